//! The contract of a shard: every backend, in this process or behind a socket, is a [`BoundaryAdapter`]
//! (runner-details 2).

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use borsh::{BorshDeserialize, BorshSerialize};
use sha2::{Digest as _, Sha256};

use crate::failure::Cause;
use crate::trace::TraceContext;

/// A SHA-256.
pub type Digest = [u8; 32];

/// Most rows of one prefill step (runner-details 12).
pub const CHUNK_MAX: u32 = 64;

/// One inference on this node: see [`SessionId::new`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// First 16 bytes of SHA-256 of borsh {tag, chain id, escrow id (0 on the chain path), inference id}
    /// (runner-details 1). Never reused: a client's retry is another inference.
    #[must_use]
    pub fn new(chain_id: &str, escrow_id: u64, inference_id: &str) -> Self {
        let bytes = borsh::to_vec(&("holdfast.runner.session.v1", chain_id, escrow_id, inference_id))
            .expect("writing to memory does not fail");
        let digest: Digest = Sha256::digest(bytes).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What KV, fences and records go by: a session and its attempt, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct KvKey {
    /// The session.
    pub session: SessionId,
    /// The attempt.
    pub epoch: u32,
}

impl KvKey {
    /// Shorthand.
    #[must_use]
    pub const fn new(session: SessionId, epoch: u32) -> Self {
        Self { session, epoch }
    }
}

/// How a token is picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Sampling {
    /// The most likely token, ties to the lowest id.
    pub greedy: bool,
    /// Seed of the draw when not greedy.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token.
    pub const GREEDY: Self = Self { greedy: true, seed: 0 };
}

/// What a key reserves when it is opened: worst-case rows at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenPlan {
    /// KV rows, the most the key may ever hold.
    pub max_positions: u32,
    /// How long the key lives without a [`BoundaryAdapter::beat`] that names it, milliseconds.
    pub lease_ms: u64,
    /// How its tokens are picked.
    pub sampling: Sampling,
    /// Trace that it belongs to; for logs only.
    pub trace: Option<TraceContext>,
}

/// An open key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// KV rows it holds: 0 for a fresh key.
    pub kv_len: u32,
}

/// Which step, and what makes it this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRef {
    /// From 0 within the epoch.
    pub step: u32,
    /// See [`fingerprint`].
    pub fingerprint: Digest,
}

/// SHA-256 of borsh {tag, model digest, session, position, input tokens, sampling}. The epoch is not in it, so steps
/// of two epochs compare (runner-details 1).
#[must_use]
pub fn fingerprint(
    model: &Digest,
    session: SessionId,
    position: u32,
    input: &[u32],
    sampling: Sampling,
) -> Digest {
    let bytes = borsh::to_vec(&("holdfast.runner.step.v1", model, session, position, input, sampling))
        .expect("writing to memory does not fail");
    Sha256::digest(bytes).into()
}

/// Input of one step at one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// KV rows before the step.
    pub position: u32,
    /// What goes in.
    pub payload: Payload,
    /// See [`Bundle::digest_of`].
    pub digest: Digest,
}

/// What goes into a shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// Token ids, for the first shard.
    Tokens(Vec<u32>),
    /// Activations, for every later shard: `rows` × `cols` values, row after row.
    Hidden {
        /// Positions.
        rows: u32,
        /// Width of a row.
        cols: u32,
        /// The values, 32-bit floats in little-endian bytes.
        data: Vec<u8>,
    },
}

impl Payload {
    /// Positions it stands for.
    #[must_use]
    pub fn rows(&self) -> u32 {
        match self {
            Self::Tokens(ids) => u32::try_from(ids.len()).unwrap_or(u32::MAX),
            Self::Hidden { rows, .. } => *rows,
        }
    }
}

impl Bundle {
    /// A bundle with its right digest.
    #[must_use]
    pub fn new(position: u32, payload: Payload) -> Self {
        let digest = Self::digest_of(position, &payload);
        Self { position, payload, digest }
    }

    /// SHA-256 over position, kind (u8: 0 tokens, 1 hidden), rows, cols (u32 little-endian, 0 cols for tokens) and
    /// data (runner-details 2).
    #[must_use]
    pub fn digest_of(position: u32, payload: &Payload) -> Digest {
        let mut hash = Sha256::new();
        hash.update(position.to_le_bytes());
        match payload {
            Payload::Tokens(ids) => {
                hash.update([0]);
                hash.update(payload.rows().to_le_bytes());
                hash.update(0_u32.to_le_bytes());
                for id in ids {
                    hash.update(id.to_le_bytes());
                }
            }
            Payload::Hidden { rows, cols, data } => {
                hash.update([1]);
                hash.update(rows.to_le_bytes());
                hash.update(cols.to_le_bytes());
                hash.update(data);
            }
        }
        hash.finalize().into()
    }
}

/// Result of a step at one shard.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOut {
    /// Activations for the next shard.
    Hidden(Bundle),
    /// From the last shard.
    Token {
        /// The token picked after the step's last row.
        token: u32,
        /// SHA-256 of the logits it was picked from, 32-bit floats in little-endian bytes.
        logits_digest: Digest,
    },
}

/// What a shard knows of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepState {
    /// It has not run here.
    NotSeen {
        /// KV rows of the key.
        kv_len: u32,
    },
    /// It ran.
    Done {
        /// Fingerprint it ran with.
        fingerprint: Digest,
        /// What it gave.
        out: StepOut,
    },
    /// The shard cannot say: too old, in flight, or the key is gone.
    Unknown,
}

/// Answer to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAck {
    /// Nothing runs for the key, and nothing will.
    Quiescent,
    /// This step still runs; nothing will after it.
    InFlight {
        /// The step.
        step: u32,
    },
}

/// Answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAck {
    /// The KV is free.
    Released {
        /// Rows that were held.
        rows: u32,
        /// Buffers that were queued.
        buffers: u32,
    },
    /// There was none.
    WasAbsent,
    /// A step still runs on it; ask again.
    Busy {
        /// The step.
        step: u32,
    },
}

/// What a shard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardInfo {
    /// Name of the shard, for people and records. A process behind a socket has its boot id in it.
    pub shard_id: String,
    /// Layers `from..to`.
    pub layers: (u32, u32),
    /// Layers of the whole model: the last shard is the one with `layers.1 == model_layers`.
    pub model_layers: u32,
    /// Identifies the whole model, the same at each of its shards.
    pub model_digest: Digest,
    /// Width of a row of activations.
    pub d_model: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Most positions of a session.
    pub max_positions: u32,
    /// KV rows it can hold in all.
    pub capacity: u32,
    /// Most rows of one prefill step, at most [`CHUNK_MAX`].
    pub chunk_max: u32,
}

impl ShardInfo {
    /// Takes tokens.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.layers.0 == 0
    }

    /// Gives tokens.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.layers.1 == self.model_layers
    }
}

/// What one key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key.
    pub key: KvKey,
    /// Rows in use.
    pub rows: u32,
    /// Rows reserved.
    pub reserved: u32,
    /// Buffers queued for it.
    pub buffers: u32,
    /// Milliseconds until its lease ends.
    pub lease_left_ms: u64,
}

/// What a shard holds. Nothing is held by a key that is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live keys, ascending.
    pub keys: Vec<KeyUsage>,
}

impl Usage {
    /// Rows reserved by all keys.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.keys.iter().map(|key| u64::from(key.reserved)).sum()
    }

    /// Rows in use by all keys.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.keys.iter().map(|key| u64::from(key.rows)).sum()
    }

    /// Buffers queued for all keys.
    #[must_use]
    pub fn buffers(&self) -> u64 {
        self.keys.iter().map(|key| u64::from(key.buffers)).sum()
    }
}

/// Tokens of one key as the shard itself counts them, clamped to what was asked for (runner-details 14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

/// How the text of an [`AdapterError::Internal`] begins that is about the request alone.
const REQUEST_REFUSED: &str = "request refused: ";

/// Why a shard refused or did not answer. Codes are stable and equal `AdapterErrorCode` on the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// The worker process is gone; a step in flight may have happened.
    #[error("worker death: {0}")]
    WorkerDeath(String),
    /// The stream broke before the answer; a step in flight may have happened.
    #[error("stream reset: {0}")]
    StreamReset(String),
    /// The bundle cannot be right. KV was not touched.
    #[error("malformed bundle: {0}")]
    MalformedBundle(String),
    /// The epoch is below the fence. KV was not touched.
    #[error("stale epoch: the fence is at {have}")]
    StaleEpoch {
        /// Highest epoch seen.
        have: u32,
    },
    /// The KV that the step needs is not there.
    #[error("cache miss: {0}")]
    CacheMiss(String),
    /// No room for the plan.
    #[error("full: {0}")]
    Full(String),
    /// The same key or step with other content. KV was not touched.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The lease ended and the KV is gone: a cache miss for the caller.
    #[error("lease expired")]
    LeaseExpired,
    /// A defect, or an order that the backend cannot follow.
    #[error("internal: {0}")]
    Internal(String),
}

impl AdapterError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::WorkerDeath(_) => 1,
            Self::StreamReset(_) => 2,
            Self::MalformedBundle(_) => 3,
            Self::StaleEpoch { .. } => 4,
            Self::CacheMiss(_) => 5,
            Self::Full(_) => 6,
            Self::Conflict(_) => 7,
            Self::LeaseExpired => 8,
            Self::Internal(_) => 9,
        }
    }

    /// Whether the step may have changed KV although it gave no result (runner-details 2 and 6).
    #[must_use]
    pub const fn is_uncertain(&self) -> bool {
        matches!(self, Self::WorkerDeath(_) | Self::StreamReset(_) | Self::Internal(_))
    }

    /// An order that no node could follow, as an upstream's 400 (runner-details 14).
    #[must_use]
    pub fn request_refused(detail: &str) -> Self {
        Self::Internal(format!("{REQUEST_REFUSED}{detail}"))
    }

    /// Whether the request alone is to blame: no node is at fault. Survives the wire, which carries code and text.
    #[must_use]
    pub fn is_request_fault(&self) -> bool {
        matches!(self, Self::Internal(text) if text.starts_with(REQUEST_REFUSED))
    }
}

/// A shard's answer to come. Dropping it does not undo the step: its outcome is then uncertain.
pub type AdapterFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, AdapterError>> + Send + 'a>>;

/// One shard of a model, wherever it runs.
///
/// A bundle is checked before KV is touched, in this order: digest; kind for this shard; 1 ≤ rows ≤ chunk limit;
/// cols = d_model; length; every value finite; token < vocab; position = KV rows. Step order: a step below the next
/// one with the same fingerprint gives the recorded output (the last 4 are kept), with another one or too old
/// [`AdapterError::Conflict`]; the next one runs; one further on, or an unknown key, is [`AdapterError::CacheMiss`];
/// an epoch below the fence [`AdapterError::StaleEpoch`].
pub trait BoundaryAdapter: Send + Sync + 'static {
    /// What the shard is.
    fn describe(&self) -> ShardInfo;

    /// Reserves the plan's rows for the key. A second open of a live key with an equal plan is ok, with another one
    /// [`AdapterError::Conflict`]. A higher epoch of a session releases the lower ones first.
    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened>;

    /// A chunk of the prompt.
    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut>;

    /// One token.
    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut>;

    /// What became of a step.
    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState>;

    /// No further step for the key; never waits for one.
    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck>;

    /// Gives the key's KV back; idempotent.
    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck>;

    /// Renews the leases of `keys` and lets expired ones go. The coordinator calls it each second with every live key.
    fn beat(&self, keys: &[KvKey]);

    /// When the shard last showed life by itself, on the coordinator's clock; `None` if its results are its only sign
    /// of life. An open socket is none.
    fn last_beat_ms(&self) -> Option<u64>;

    /// Tokens of a key whose answer is whole, for a shard behind which tokens are counted by somebody else; they, and not
    /// the number of steps, are billed. `None`: a step is a token.
    fn counts(&self, key: KvKey) -> Option<Counts> {
        let _ = key;
        None
    }

    /// What it holds now. For a shard behind a socket: what this coordinator holds there, as far as it knows.
    fn usage(&self) -> Usage;
}
