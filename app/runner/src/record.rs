//! The one record of an attempt (runner-details 9).

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::runner::v1 as pb;
use serde::Serialize;

use crate::adapter::{Digest, KvKey};
use crate::failure::{Cause, FailureKind, WorkStatus};

/// What became of an attempt's KV. Numbers are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum KvOutcome {
    /// Kept for a while after completion, then reaped.
    Held = 1,
    /// Given back.
    Released = 2,
    /// There never was any.
    NeverOpened = 3,
    /// It was gone before.
    AlreadyEvicted = 4,
    /// Of an epoch that a later one fenced.
    Stale = 5,
}

impl KvOutcome {
    /// Stable string.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Released => "released",
            Self::NeverOpened => "never-opened",
            Self::AlreadyEvicted => "already-evicted",
            Self::Stale => "stale",
        }
    }
}

/// The one record of an attempt. The first cause wins; a second record of the same key is refused by the ledger.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct WorkRecord {
    /// Session and epoch.
    pub key: KvKey,
    /// How it ended.
    pub status: WorkStatus,
    /// Why, unless completed.
    pub failure_kind: Option<FailureKind>,
    /// By whom, unless completed.
    pub cause: Option<Cause>,
    /// Tokens committed in this epoch; `None` if there were none.
    pub tokens: Option<u32>,
    /// Tokens whose bytes were handed to the client's socket, over all epochs.
    pub delivered_tokens: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Whether another epoch may be tried; `None` when completed.
    pub restartable: Option<bool>,
    /// What became of the KV.
    pub kv: KvOutcome,
    /// A step whose outcome is not known.
    pub uncertain_step: Option<u32>,
    /// Worker that the next epoch must not use.
    pub excluded_node: Option<String>,
    /// Shards of the attempt, in layer order.
    pub shards: Vec<String>,
    /// SHA-256 of the committed tokens as little-endian 32-bit ids.
    pub output_digest: Digest,
    /// Start, Unix milliseconds.
    pub started_ms: u64,
    /// End, Unix milliseconds.
    pub ended_ms: u64,
}

impl WorkRecord {
    /// Only completed work is paid.
    #[must_use]
    pub fn billable(&self) -> bool {
        self.status == WorkStatus::Completed
    }

    /// JSON form; what is absent is null.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "session": self.key.session.to_string(),
            "epoch": self.key.epoch,
            "status": self.status,
            "failure_kind": self.failure_kind,
            "cause": self.cause,
            "tokens": self.tokens,
            "delivered_tokens": self.delivered_tokens,
            "prompt_tokens": self.prompt_tokens,
            "restartable": self.restartable,
            "kv": self.kv,
            "uncertain_step": self.uncertain_step,
            "excluded_node": self.excluded_node,
            "shards": self.shards,
            "output_digest": hex::encode(self.output_digest),
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "billable": self.billable(),
        })
    }
}

impl From<&WorkRecord> for pb::WorkRecord {
    fn from(record: &WorkRecord) -> Self {
        Self {
            session: record.key.session.0.to_vec(),
            epoch: record.key.epoch,
            status: record.status as i32,
            failure_kind: record.failure_kind.map_or(0, |kind| kind as i32),
            cause: record.cause.map_or(0, |cause| cause as i32),
            tokens: record.tokens,
            delivered_tokens: record.delivered_tokens,
            prompt_tokens: record.prompt_tokens,
            restartable: record.restartable,
            kv: record.kv.as_str().to_owned(),
            uncertain_step: record.uncertain_step,
            excluded_node: record.excluded_node.clone().unwrap_or_default(),
            shards: record.shards.clone(),
            output_digest: record.output_digest.to_vec(),
            started_ms: record.started_ms,
            ended_ms: record.ended_ms,
            billable: record.billable(),
        }
    }
}

/// Counts over attempts. Only completed ones are billed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WorkLedger {
    /// Attempts that gave all tokens.
    pub completed: u64,
    /// Attempts that were withdrawn.
    pub cancelled: u64,
    /// Attempts that failed with nothing in doubt.
    pub failed: u64,
    /// Attempts that failed in doubt.
    pub unverified: u64,
    /// Tokens of the completed ones.
    pub billable_tokens: u64,
}

impl WorkLedger {
    /// Of one attempt.
    pub(crate) fn counts(record: &WorkRecord) -> Self {
        let mut one = Self::default();
        match record.status {
            WorkStatus::Completed => one.completed = 1,
            WorkStatus::Cancelled => one.cancelled = 1,
            WorkStatus::Failed => one.failed = 1,
            WorkStatus::Unverified => one.unverified = 1,
        }
        if record.billable() {
            one.billable_tokens = record.tokens.unwrap_or(0).into();
        }
        one
    }

    fn zip(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            completed: op(self.completed, other.completed),
            cancelled: op(self.cancelled, other.cancelled),
            failed: op(self.failed, other.failed),
            unverified: op(self.unverified, other.unverified),
            billable_tokens: op(self.billable_tokens, other.billable_tokens),
        }
    }

    /// Adds counts.
    pub(crate) fn merge(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_add);
    }

    /// Counts an attempt.
    pub fn add(&mut self, record: &WorkRecord) {
        self.merge(Self::counts(record));
    }

    /// Takes an attempt that was counted out again.
    pub fn remove(&mut self, record: &WorkRecord) {
        *self = self.zip(Self::counts(record), u64::saturating_sub);
    }

    /// JSON form.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "completed": self.completed,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "unverified": self.unverified,
            "billable_tokens": self.billable_tokens,
        })
    }
}

impl<'a> FromIterator<&'a WorkRecord> for WorkLedger {
    fn from_iter<T: IntoIterator<Item = &'a WorkRecord>>(records: T) -> Self {
        let mut sum = Self::default();
        records.into_iter().for_each(|record| sum.add(record));
        sum
    }
}
