//! What the driver needs of a session, and how one is opened.

use holdfast_escrow::session::FrozenConfig;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_types::{Address, Hrp};

use crate::core::api::{Effect, Event, FlagView, Now, OpenError, RepairView};

/// One session without sockets and clock. Calls block for a disk's sync.
pub trait Machine: Send + 'static {
    /// Something happened.
    fn handle(&mut self, now: Now, event: Event) -> Vec<Effect>;
    /// The numbers that requests are placed by.
    fn glance(&self) -> Glance;
    /// All that the service shows.
    fn view(&self, hrp: &Hrp) -> View;
    /// Whether `signer` is the participant or its bound key.
    fn speaks_for(&self, signer: &Address, participant: &Address) -> bool;
}

/// Opens sessions.
pub trait Opener: Send + Sync + 'static {
    /// Opens the session of an escrow, or begins it. Blocks.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, frozen: FrozenConfig, now: Now) -> Result<(Box<dyn Machine>, Vec<Effect>), OpenError>;
}

/// The numbers that requests are placed by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Glance {
    /// It takes requests.
    pub active: bool,
    /// It may itself be wrong.
    pub self_suspect: bool,
    /// A token or an answered ping within 60 s.
    pub sign_of_life: bool,
    /// Requests that wait.
    pub queued: usize,
    /// Nonces until it must be finalized.
    pub nonces_left: u64,
    /// Coins that are free.
    pub balance: u128,
}

/// A session as the service shows it.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Its numbers.
    pub session: pb::EscrowSession,
    /// Its flags, by participant.
    pub flags: Vec<FlagView>,
}

/// A flag on the wire.
pub(crate) fn flag(flag: &FlagView, hrp: &Hrp) -> pb::DivergenceFlag {
    let phase = match flag.phase {
        RepairView::Waiting => pb::RepairPhase::Waiting,
        RepairView::Teaching => pb::RepairPhase::Teaching,
        RepairView::Verifying => pb::RepairPhase::Verifying,
        RepairView::GaveUp => pb::RepairPhase::GaveUp,
        RepairView::Stopped => pb::RepairPhase::Stopped,
    };
    pb::DivergenceFlag {
        escrow_id: flag.escrow_id,
        participant: flag.participant.to_bech32(hrp),
        reason: holdfast_escrow::divergence::REASON.into(),
        diverged_nonce: flag.diverged_nonce,
        our_root: flag.our_root.to_vec(),
        their_root: flag.their_root.to_vec(),
        signature: flag.signature.clone(),
        signed_digest: flag.signed_digest.to_vec(),
        generation: flag.generation,
        flagged_at: flag.flagged_at,
        phase: phase.into(),
        attempt: flag.attempt,
        level: flag.level.into(),
        forked: flag.forked,
        target: flag.target,
        elapsed_ms: flag.elapsed_ms,
        last_verdict: flag.last_verdict.clone(),
        released: flag.released,
        first_bad_nonce: flag.first_bad_nonce,
        restored: flag.restored,
    }
}
