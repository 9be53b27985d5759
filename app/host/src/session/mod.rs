//! The replicas of a host: sessions of all its escrows, without sockets, clock or tasks (escrow-details 8).
//!
//! ```text
//!  call ─► stage: diffs on a copy of the state ─► one durable commit ─► install ─► reply
//!                    │ a diff that does not fit: what came before it is kept, the reply says why
//! ```
//!
//! | part | what it is |
//! |---|---|
//! | `calls` | Bind, Teach, GetSignatures, GetPending, GetDiffs, ResetSession |
//! | `work` | Infer, its outcome, CancelInference |
//! | `vote` | VoteTimeout, ChallengeStart |
//! | `dispute` | the end of a session that its gateway left |
//! | `replica` | diffs on a state, and what waits for a diff |
//! | `recover` | a replica from the store |
//! | [`rules`] | how a diff is applied, and how it goes wrong on purpose |
//!
//! Each call takes the request as it came, the caller as its signature names it, and the time; it gives the reply and
//! what is to be done, or the typed error for the wire. Nothing leaves before it is on disk: a receipt, a signature and a
//! vote can be relied on after a crash.

// The error is the message of the wire, however large it is.
#![allow(clippy::result_large_err)]

mod calls;
mod dispute;
pub(crate) mod errors;
mod recover;
mod replica;
mod rows;
pub mod rules;
#[cfg(test)]
pub(crate) mod tests;
mod vote;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{FrozenConfig, Hash, State};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_store::{BranchKv, KvRead, Order, WriteSet};
use holdfast_types::Address;

use crate::store::LocalDb;
use replica::Replica;
use rows::{JOBS, Presence, SESSIONS, SessionRow};
use rules::Rules;

pub use vote::{AHEAD_S, VoteStep, VoteTicket};
pub use work::{CancelStep, ChallengeStep, InferStep, JobEnd, StartJob};

/// Diffs of one call.
pub const DIFFS_MAX: usize = 1_024;
/// Diffs that GetDiffs gives at most.
pub const GET_DIFFS_MAX: u32 = 200;
/// Bytes of diffs that GetDiffs gives at most.
pub const GET_DIFFS_BYTES: usize = 3 << 20;
/// Waiting transactions that a reply lists: as many as a diff holds.
pub const PENDING_LISTED: usize = 256;
/// Nonces between two snapshots.
pub const SNAPSHOT_EVERY: u64 = 500;

/// What a host is.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// Id of the chain.
    pub chain_id: String,
    /// The participant; its key or the warm key bound for it signs.
    pub owner: Address,
    /// Differs after each start of the process.
    pub boot_id: String,
    /// Ids of the models that it runs; empty is whichever it is given.
    pub models: Vec<String>,
    /// Whether a gateway may drop a replica.
    pub allow_reset: bool,
    /// Whether signatures are withheld while own transactions are left out (escrow-details 8).
    pub withhold: bool,
    /// Most sessions at a time.
    pub sessions_max: usize,
    /// Most bytes of diffs, over all sessions.
    pub bytes_max: u64,
    /// Most waiting transactions of a session.
    pub pending_max: usize,
    /// A drill: challenges are not answered, neither in a reply to Teach nor at all.
    pub mute: bool,
}

impl CoreConfig {
    /// Of a participant, with the usual limits: 64 sessions, 4 GiB of diffs, 4 096 waiting transactions.
    #[must_use]
    pub fn new(chain_id: impl Into<String>, owner: Address, boot_id: impl Into<String>) -> Self {
        Self {
            chain_id: chain_id.into(),
            owner,
            boot_id: boot_id.into(),
            models: Vec::new(),
            allow_reset: false,
            withhold: true,
            sessions_max: 64,
            bytes_max: 4 << 30,
            pending_max: 4_096,
            mute: false,
        }
    }
}

/// Why work is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be done here, now or later.
    Policy(String),
    /// There is no room now.
    Busy {
        /// Why.
        message: String,
        /// When to try again, milliseconds.
        retry_after_ms: u64,
    },
}

/// Whether the runner can do a piece of work; asked before a receipt is signed.
pub trait Admission: Send + Sync {
    /// Looks at the body and the limits of a Start, tokens.
    ///
    /// # Errors
    /// [`Refusal`].
    fn check(&self, body: &[u8], input_limit: u32, output_limit: u32) -> Result<(), Refusal>;
}

/// Takes everything: for tests and the simulator.
#[derive(Debug, Clone, Copy, Default)]
pub struct TakeAll;

impl Admission for TakeAll {
    fn check(&self, _: &[u8], _: u32, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Where an escrow stands on the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EscrowStatus {
    /// Open or Disputed: hosts work and sign.
    Open,
    /// Settled or Expired: nothing follows.
    Closed,
}

/// An escrow as the chain has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Its frozen terms.
    pub config: FrozenConfig,
    /// Where it stands.
    pub status: EscrowStatus,
}

/// A replica in memory.
enum Loaded {
    Live(Box<Replica>),
    /// The store cannot give it any more.
    Broken(String),
}

/// Replicas of all escrows of a host. One call at a time.
pub struct HostCore {
    db: Box<dyn LocalDb>,
    key: SecretKey,
    config: CoreConfig,
    rules: Box<dyn Rules>,
    admission: Box<dyn Admission>,
    rows: BTreeMap<u64, SessionRow>,
    loaded: BTreeMap<u64, Loaded>,
    /// Past their expiry: nothing is withheld.
    expired: BTreeSet<u64>,
}

impl HostCore {
    /// The replicas in `db`, which are read back when they are first asked for. `key` signs.
    ///
    /// # Errors
    /// UNAVAILABLE when the store cannot be read.
    pub fn open(
        db: Box<dyn LocalDb>,
        key: SecretKey,
        config: CoreConfig,
        rules: Box<dyn Rules>,
        admission: Box<dyn Admission>,
    ) -> Result<Self, pb::EscrowError> {
        let found = SESSIONS.iter(read(db.as_ref()), Order::Ascending).collect::<Result<_, _>>();
        let rows = found.map_err(|error| errors::store(&error))?;
        Ok(Self {
            db,
            key,
            config,
            rules,
            admission,
            rows,
            loaded: BTreeMap::new(),
            expired: BTreeSet::new(),
        })
    }

    /// What this host is.
    #[must_use]
    pub fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// Escrows with a replica here.
    #[must_use]
    pub fn escrows(&self) -> Vec<u64> {
        let live = self.rows.iter().filter(|(_, row)| row.presence == Presence::Live);
        live.map(|(escrow_id, _)| *escrow_id).collect()
    }

    /// Escrows that were ever bound here.
    #[must_use]
    pub fn known(&self) -> Vec<u64> {
        self.rows.keys().copied().collect()
    }

    /// Terms of a session that was bound here.
    #[must_use]
    pub fn terms(&self, escrow_id: u64) -> Option<&FrozenConfig> {
        self.rows.get(&escrow_id).map(|row| &row.config)
    }

    /// The state of a replica.
    ///
    /// # Errors
    /// As any call of the session.
    pub fn state(&mut self, escrow_id: u64) -> Result<&State, pb::EscrowError> {
        self.replica(escrow_id).map(|replica| &replica.state)
    }

    /// Inferences that were taken and have no outcome, as escrow and id: after a start, those that the last process left.
    ///
    /// # Errors
    /// UNAVAILABLE when the store cannot be read.
    pub fn unfinished(&self) -> Result<Vec<(u64, u64)>, pb::EscrowError> {
        let mut open = Vec::new();
        for row in JOBS.iter(read(self.db.as_ref()), Order::Ascending) {
            let (key, job) = row.map_err(|error| errors::store(&error))?;
            if job.outcome.is_empty() {
                open.push(key);
            }
        }
        Ok(open)
    }

    /// The replica, read back if need be.
    fn replica(&mut self, escrow_id: u64) -> Result<&Replica, pb::EscrowError> {
        match self.rows.get(&escrow_id) {
            None => return Err(errors::not_found(escrow_id)),
            Some(row) => match row.presence {
                Presence::Closed => return Err(errors::closed(escrow_id)),
                Presence::Dropped => return Err(errors::not_found(escrow_id)),
                Presence::Live if self.loaded.contains_key(&escrow_id) => {}
                Presence::Live => {
                    let found = recover::replica(read(self.db.as_ref()), row, self.rules.as_ref());
                    let loaded = match found {
                        Ok(replica) => Loaded::Live(Box::new(replica)),
                        // It may go away: asked again next time.
                        Err(recover::Broken::Store(error)) => return Err(errors::store(&error)),
                        Err(recover::Broken::Log(what)) => {
                            tracing::error!(escrow = escrow_id, what, "a replica cannot be recovered");
                            Loaded::Broken(what)
                        }
                    };
                    self.loaded.insert(escrow_id, loaded);
                }
            },
        }
        match self.loaded.get(&escrow_id) {
            Some(Loaded::Live(replica)) => Ok(replica),
            Some(Loaded::Broken(what)) => Err(errors::unavailable(format!(
                "the replica of escrow {escrow_id} cannot be recovered: {what}; restore a backup, or drop it with ResetSession"
            ))),
            None => Err(errors::not_found(escrow_id)),
        }
    }

    /// Whether `address` is the escrow's gateway.
    fn check_gateway(&self, escrow_id: u64, address: Address) -> Result<(), pb::EscrowError> {
        match self.rows.get(&escrow_id) {
            Some(row) if row.config.gateway == address => Ok(()),
            Some(_) => Err(errors::policy(format!("not signed by the gateway of escrow {escrow_id}"))),
            None => Err(errors::not_found(escrow_id)),
        }
    }

    /// Whether `address` is the escrow's gateway or signs for one of its group.
    fn check_group(&mut self, escrow_id: u64, address: Address) -> Result<(), pb::EscrowError> {
        if self.check_gateway(escrow_id, address).is_ok() {
            return Ok(());
        }
        self.check_host(escrow_id, address)
    }

    /// Whether `address` signs for one of the group.
    fn check_host(&mut self, escrow_id: u64, address: Address) -> Result<(), pb::EscrowError> {
        let state = &self.replica(escrow_id)?.state;
        let member = state.config().owners().keys().any(|owner| state.speaks_for(owner, &address));
        if member {
            Ok(())
        } else {
            Err(errors::policy(format!("not signed by a host of escrow {escrow_id}")))
        }
    }

    /// Makes a step durable, and only then visible.
    fn commit(&mut self, writes: WriteSet, replica: Replica) -> Result<(), pb::EscrowError> {
        if !writes.is_empty() {
            self.db.commit(writes, true).map_err(|error| errors::db(&error))?;
        }
        let escrow_id = replica.escrow_id();
        self.loaded.insert(escrow_id, Loaded::Live(Box::new(replica)));
        Ok(())
    }

    /// A buffer over the store.
    fn branch(&self, writes: WriteSet) -> BranchKv<'_> {
        BranchKv::with_writes(read(self.db.as_ref()), writes)
    }

    /// Bytes of diffs over all replicas in memory.
    fn bytes(&self) -> u64 {
        let bytes = |loaded: &Loaded| match loaded {
            Loaded::Live(replica) => replica.bytes,
            Loaded::Broken(_) => 0,
        };
        self.loaded.values().map(bytes).fold(0, u64::saturating_add)
    }

    fn sign(&self, digest: Hash) -> Vec<u8> {
        self.key.sign_recoverable(digest).to_vec()
    }
}

/// The read side of a store.
fn read(db: &dyn LocalDb) -> &dyn KvRead {
    db
}
