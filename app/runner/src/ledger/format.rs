//! Bytes of a segment (runner-details 5; byte by byte in `docs/ledger.md`).

use borsh::{BorshDeserialize, BorshSerialize};

use crate::adapter::{Digest, KvKey, Sampling, SessionId};
use crate::record::WorkRecord;

/// Bytes of a segment's header.
pub const HEADER_BYTES: usize = 32;
/// Bytes in front of a record's body: length and checksum.
pub const PREFIX_BYTES: usize = 8;
/// Longest body of a record. Longer is not written, and not read.
pub const BODY_MAX: usize = 1 << 20;
/// Version of the format.
pub const VERSION: u16 = 1;

const KIND_MAX: u8 = 9;
const MAGIC: &[u8; 8] = b"HFLEDGER";

/// One step of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct StepKey {
    /// The session.
    pub session: SessionId,
    /// The attempt.
    pub epoch: u32,
    /// The step, from 0 within the attempt.
    pub step: u32,
}

impl StepKey {
    /// A step of `key`.
    #[must_use]
    pub const fn new(key: KvKey, step: u32) -> Self {
        Self { session: key.session, epoch: key.epoch, step }
    }

    /// The attempt it belongs to.
    #[must_use]
    pub const fn kv(&self) -> KvKey {
        KvKey::new(self.session, self.epoch)
    }
}

/// What is fixed when an attempt begins.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EpochOpened {
    /// Session and epoch.
    pub key: KvKey,
    /// Start of the coordinator that opened it.
    pub generation: u64,
    /// The inference, as its client names it.
    pub inference_id: String,
    /// The model.
    pub model_digest: Digest,
    /// SHA-256 of the prompt.
    pub prompt_digest: Digest,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Shards, in layer order.
    pub shards: Vec<String>,
}

/// One record. The discriminant is the kind on disk: numbers are stable.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Record {
    /// An attempt begins; durable before any shard hears of it.
    EpochOpened(Box<EpochOpened>) = 1,
    /// A step is about to run; written before the first shard sees it.
    StepIntent {
        /// The step.
        key: StepKey,
        /// What the step is.
        fingerprint: Digest,
    } = 2,
    /// A step ran on every shard; written before its token leaves the runner.
    StepCommitted {
        /// The step.
        key: StepKey,
        /// Its token; none for a prefill chunk before the last.
        token: Option<u32>,
        /// SHA-256 of the logits; zeros where there is no token.
        logits_digest: Digest,
    } = 3,
    /// Nobody knows whether a step ran.
    StepUncertain {
        /// The step.
        key: StepKey,
    } = 4,
    /// Every shard was asked about an uncertain step. When it ran, its `StepCommitted` follows.
    StepResolved {
        /// The step.
        key: StepKey,
        /// It ran everywhere; otherwise nowhere.
        committed: bool,
    } = 5,
    /// Tokens that the client has, over all epochs of the session.
    Delivered {
        /// The session.
        session: SessionId,
        /// How many by now.
        count: u32,
    } = 6,
    /// An attempt ended; durable before any count is reported.
    Terminal(Box<WorkRecord>) = 7,
    /// The chain or the gateway took the report; durable.
    Submitted {
        /// The attempt.
        key: KvKey,
        /// What the receiver calls it.
        reference: String,
    } = 8,
    /// Nothing more will come.
    Closed {
        /// The session.
        session: SessionId,
    } = 9,
}

impl Record {
    /// Whether what follows from the record has to wait until it is durable.
    #[must_use]
    pub const fn needs_sync(&self) -> bool {
        matches!(self, Self::EpochOpened(_) | Self::Terminal(_) | Self::Submitted { .. })
    }

    /// Appends length, checksum and body. Nothing is appended, and `false` returned, when the body is too long.
    pub fn encode(&self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        self.serialize(out).expect("writing to memory does not fail");
        let body = start + PREFIX_BYTES;
        let len = out.len() - body;
        if len > BODY_MAX {
            out.truncate(start);
            return false;
        }
        let len = u32::try_from(len).expect("the limit of a body fits in 32 bits");
        let crc = crc32c::crc32c(&out[body..]);
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        out[start + 4..body].copy_from_slice(&crc.to_le_bytes());
        true
    }
}

/// What a reader finds at a place in a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The end of the bytes.
    End,
    /// A whole record and the offset behind it.
    Record(Record, usize),
    /// Bytes that are no record, and why.
    Bad(&'static str),
}

/// Body of the record at `offset`, and the offset behind it.
pub(crate) fn frame(bytes: &[u8], offset: usize) -> Result<(&[u8], usize), &'static str> {
    let rest = bytes.get(offset..).ok_or("short record")?;
    let (len, rest) = rest.split_first_chunk::<4>().ok_or("short record")?;
    let (crc, rest) = rest.split_first_chunk::<4>().ok_or("short record")?;
    let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
    if len == 0 || len > BODY_MAX {
        return Err("impossible length");
    }
    let body = rest.get(..len).ok_or("short record")?;
    if !(1..=KIND_MAX).contains(&body[0]) {
        return Err("unknown kind");
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err("wrong checksum");
    }
    Ok((body, offset + PREFIX_BYTES + len))
}

/// Reads the record at `offset`.
#[must_use]
pub fn read_record(bytes: &[u8], offset: usize) -> Read {
    if offset == bytes.len() {
        return Read::End;
    }
    match frame(bytes, offset) {
        Ok((body, end)) => match Record::try_from_slice(body) {
            Ok(record) => Read::Record(record, end),
            Err(_) => Read::Bad("unknown content"),
        },
        Err(why) => Read::Bad(why),
    }
}

/// First bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the segment, also in its name.
    pub segment: u64,
    /// Start of the coordinator that made it.
    pub generation: u64,
}

/// Why a header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHeader {
    /// Too short, or the checksum or the magic is wrong.
    Broken,
    /// Whole, but of a version this program does not know.
    Version(u16),
}

impl Header {
    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[12..20].copy_from_slice(&self.segment.to_le_bytes());
        out[20..28].copy_from_slice(&self.generation.to_le_bytes());
        let crc = crc32c::crc32c(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the first bytes of a segment.
    ///
    /// # Errors
    /// [`BadHeader`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(BadHeader::Broken)?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let crc = u32::from_le_bytes(std::array::from_fn(|i| bytes[28 + i]));
        if &bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..28]) != crc {
            return Err(BadHeader::Broken);
        }
        match (u16_at(8), u16_at(10)) {
            (VERSION, 0) => Ok(Self { segment: u64_at(12), generation: u64_at(20) }),
            (version, _) => Err(BadHeader::Version(version)),
        }
    }
}
