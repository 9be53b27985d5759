//! What is stored of a repair.

use borsh::{BorshDeserialize, BorshSerialize};

use super::RepairConfig;

/// Where a repair stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum RepairPhase {
    /// Until its next attempt is due and a permit is free.
    Waiting,
    /// Brings diffs; holds a permit.
    Teaching,
    /// Has asked for a fresh signature; holds a permit.
    Verifying,
    /// No more attempts of its own; the host is charged.
    GaveUp,
    /// The session is no longer Active; terminal.
    Stopped,
}

impl RepairPhase {
    /// Whether an attempt runs.
    pub fn in_attempt(self) -> bool {
        matches!(self, Self::Teaching | Self::Verifying)
    }

    /// Lower-case name for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Teaching => "teaching",
            Self::Verifying => "verifying",
            Self::GaveUp => "gave_up",
            Self::Stopped => "stopped",
        }
    }
}

/// How the last attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum Verdict {
    /// No attempt ended yet.
    None,
    /// The host did not answer, or answered that it is busy.
    Unavailable,
    /// A call took too long.
    TimedOut,
    /// The host will not.
    Policy,
    /// The host holds other terms.
    ConfigMismatch,
    /// The reply makes no sense or proves nothing.
    Malformed,
    /// A chunk was above the host's limit.
    TooLarge,
    /// The host is at a lower nonce than it should be.
    Behind,
    /// The host signed that it will not apply a diff of ours.
    Refused,
    /// The host holds another state at a nonce that it applied.
    Forked,
    /// The host has no copy of the session.
    NotFound,
    /// The host signs nothing until its transactions are taken up.
    Withheld,
    /// Signed by a key that our state does not bind.
    KeyNotBound,
    /// The host signed a nonce that we never made.
    AboveTip,
    /// The attempt used up its time or bytes, and brought diffs.
    Budget,
    /// A new signed mismatch came in meanwhile.
    Mismatch,
    /// The gateway restarted.
    Restarted,
    /// Our own store could not be read.
    StoreUnreadable,
    /// An operator ended it.
    Operator,
    /// The session left the phase Active.
    SessionEnded,
    /// The host proved that it holds our state.
    Restored,
}

impl Verdict {
    /// Stable name, as in logs and in the gateway's service.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
            Self::Policy => "policy",
            Self::ConfigMismatch => "config_mismatch",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::Behind => "behind",
            Self::Refused => "refused",
            Self::Forked => "forked",
            Self::NotFound => "session_not_found",
            Self::Withheld => "withheld",
            Self::KeyNotBound => "key_not_bound",
            Self::AboveTip => "above_tip",
            Self::Budget => "budget_used",
            Self::Mismatch => "new_mismatch",
            Self::Restarted => "gateway_restarted",
            Self::StoreUnreadable => "store_unreadable",
            Self::Operator => "operator",
            Self::SessionEnded => "session_ended",
            Self::Restored => "restored",
        }
    }
}

/// Why nothing is charged for a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum Forgiven {
    /// It is charged once the repair was given up.
    No,
    /// An operator said so.
    Operator,
    /// The host holds another diff of ours: we signed two at one nonce.
    OwnFork,
}

/// One repair, as it is stored in the flag. Its generation is the flag's.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RepairState {
    /// Where it stands.
    pub phase: RepairPhase,
    /// Number of the attempt that runs or comes next, from 1 in each generation.
    pub attempt: u32,
    /// Backoff of the next failure: 0 to 3.
    pub level: u8,
    /// The host holds another state at a nonce that it applied.
    pub forked: bool,
    /// Nonce that the running or last attempt aims at; fixed when it starts.
    pub target: u64,
    /// Attempt and backoff time so far.
    pub elapsed_ms: u64,
    /// Times that the host's restart reopened it.
    pub reopened: u8,
    /// Times that the host had no session, in this generation.
    pub not_found: u8,
    /// How the last attempt ended.
    pub last_verdict: Verdict,
    /// Waiting: rest of the wait; 0 = due.
    pub due_in_ms: u64,
    /// Our store cannot be read: time stands still.
    pub paused: bool,
    /// Whether nothing is charged, and why.
    pub released: Forgiven,
    /// No census was taken in this generation.
    pub census_due: bool,
    /// The host must bind before it is taught.
    pub bind_due: bool,
    /// Diffs in one chunk.
    pub chunk_diffs: u32,
    /// The running attempt moved the cursor.
    pub progress: bool,
    /// Nonce that the running attempt brought the host to; 0 = no chunk yet.
    pub reached: u64,
    /// The running attempt found the host at an older snapshot once.
    pub old_snapshot: bool,
}

impl RepairState {
    /// A repair that begins: `phase` is Waiting, or Stopped outside Active.
    pub(super) fn begin(config: &RepairConfig, phase: RepairPhase, level: u8) -> Self {
        Self {
            phase,
            attempt: 1,
            level,
            forked: false,
            target: 0,
            elapsed_ms: 0,
            reopened: 0,
            not_found: 0,
            last_verdict: Verdict::None,
            due_in_ms: if phase == RepairPhase::Waiting { config.first_wait_ms } else { 0 },
            paused: false,
            released: Forgiven::No,
            census_due: true,
            bind_due: false,
            chunk_diffs: config.chunk_diffs,
            progress: false,
            reached: 0,
            old_snapshot: false,
        }
    }
}

/// What the next nonce of a participant is good for, as far as its flag decides (escrow-details 5, rows 2 to 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonceUse {
    /// Not flagged: the other rows decide.
    Free,
    /// A diff without a start; nobody is charged.
    Pass,
    /// A start that is not sent and will be charged.
    Ghost,
}

/// What a flag makes of its participant's nonces. `repair` = `None`: not flagged.
pub fn nonce_use(repair: Option<&RepairState>, self_suspect: bool) -> NonceUse {
    match repair {
        None => NonceUse::Free,
        Some(RepairState { phase: RepairPhase::GaveUp, released: Forgiven::No, .. }) if !self_suspect => {
            NonceUse::Ghost
        }
        Some(_) => NonceUse::Pass,
    }
}
