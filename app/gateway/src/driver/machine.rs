//! What the driver needs of a session, and how one is opened.

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::FrozenConfig;
use holdfast_host::store::FjallDb;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_types::{Address, Hrp};
use sha2::{Digest, Sha256};

use crate::core::{
    Effect, Event, FlagView, GatewayConfig, GatewayCore, Now, OpenError, PermitPool, RepairView,
};

/// One session without sockets and clock. Calls block for a disk's sync.
pub trait Machine: Send + 'static {
    /// Something happened.
    fn handle(&mut self, now: Now, event: Event) -> Vec<Effect>;
    /// The numbers that requests are placed by.
    fn glance(&self, now: Now) -> Glance;
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
    /// Its store takes no commit any more.
    pub storage_failed: bool,
    /// A token or an answered ping within 60 s.
    pub sign_of_life: bool,
    /// Requests that wait.
    pub queued: usize,
    /// Nonces until it must be finalized.
    pub nonces_left: u64,
    /// Coins that are free.
    pub balance: u128,
    /// Coins that requests under way have reserved.
    pub reserved: u128,
}

/// A session as the service shows it.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Its numbers.
    pub session: pb::EscrowSession,
    /// Its flags, by participant.
    pub flags: Vec<FlagView>,
}

impl Machine for GatewayCore {
    fn handle(&mut self, now: Now, event: Event) -> Vec<Effect> {
        Self::handle(self, now, event)
    }

    fn glance(&self, now: Now) -> Glance {
        let (state, terms, status) = (self.state(), self.terms(), self.status());
        // What finalization needs is not for requests.
        let last = terms.max_nonce.saturating_sub(terms.group_size()).saturating_sub(1);
        Glance {
            active: self.takes_requests(),
            self_suspect: status.self_suspect,
            storage_failed: status.storage_failed,
            sign_of_life: self.ready(now.mono_ms),
            queued: usize::try_from(status.queued).unwrap_or(usize::MAX),
            nonces_left: last.saturating_sub(state.nonce()),
            balance: state.balance(),
            reserved: state.reserved(),
        }
    }

    fn view(&self, hrp: &Hrp) -> View {
        View { session: self.to_proto(hrp), flags: self.flags() }
    }

    fn speaks_for(&self, signer: &Address, participant: &Address) -> bool {
        self.state().config().slots_of(participant).iter().any(|slot| self.state().authorised(*slot, signer))
    }
}

/// Opens sessions over stores in folders of their own: `escrow-ID` below `home`.
pub struct CoreOpener {
    home: PathBuf,
    config: GatewayConfig,
    key: Arc<SecretKey>,
    permits: PermitPool,
}

impl CoreOpener {
    /// `repairs` at a time over all sessions.
    #[must_use]
    pub fn new(home: PathBuf, config: GatewayConfig, key: Arc<SecretKey>, repairs: usize) -> Self {
        Self { home, config, key, permits: PermitPool::new(repairs) }
    }
}

impl Opener for CoreOpener {
    fn open(&self, frozen: FrozenConfig, now: Now) -> Result<(Box<dyn Machine>, Vec<Effect>), OpenError> {
        let folder = self.home.join(format!("escrow-{}", frozen.escrow_id));
        let db = FjallDb::open(&folder, "gateway session")
            .map_err(|error| OpenError::Storage(error.to_string()))?;
        let opened = GatewayCore::open(
            Box::new(db),
            self.config.clone(),
            frozen,
            Box::new(self.key.as_ref().clone()),
            Box::new(entropy(self.key.to_bytes(), now)),
            self.permits.clone(),
            now,
        )?;
        Ok((Box::new(opened.0), opened.1))
    }
}

/// Challenges from the system's randomness. Should it fail, they still depend on the key, which nobody else knows.
fn entropy(secret: [u8; 32], now: Now) -> impl FnMut() -> [u8; 32] + Send {
    let mut chain: [u8; 32] = Sha256::new()
        .chain_update(b"holdfast.gateway.challenge")
        .chain_update(secret)
        .chain_update(now.unix_ms.to_le_bytes())
        .finalize()
        .into();
    move || {
        let mut fresh = [0; 32];
        if let Err(error) = getrandom::fill(&mut fresh) {
            tracing::error!(%error, "gateway_no_randomness");
        }
        chain = Sha256::new().chain_update(chain).chain_update(fresh).finalize().into();
        Sha256::digest(chain).into()
    }
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
        reason: flag.reason.into(),
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
