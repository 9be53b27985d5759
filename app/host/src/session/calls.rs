//! Bind, Teach, and what is asked of a replica.

use holdfast_escrow::session::{FrozenConfig, Hash, digest};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_store::{KvRead, KvWrite, Order, StoreError, WriteSet};
use holdfast_types::Address;

use super::replica::Stage;
use super::rows::{JOBS, LOG, PENDING, Presence, SESSIONS, SNAPSHOTS, SessionRow};
use super::rules::Via;
use super::{EscrowStatus, GET_DIFFS_BYTES, GET_DIFFS_MAX, HostCore, Loaded, Terms, errors, read};

impl HostCore {
    /// Compares the terms, and makes a replica if there is none. `terms` is the escrow as the chain has it; `None` when the
    /// chain does not answer, which is enough for a session that was bound before.
    ///
    /// # Errors
    /// ConfigMismatch, SessionClosed, Policy, Unavailable.
    pub fn bind(
        &mut self,
        request: &pb::BindRequest,
        caller: Address,
        terms: Option<&Terms>,
    ) -> Result<pb::BindResponse, pb::EscrowError> {
        let escrow_id = request.escrow_id;
        if terms.is_some_and(|terms| terms.status == EscrowStatus::Closed) {
            self.close(escrow_id)?;
        }
        let known = self.rows.get(&escrow_id);
        if known.is_some_and(|row| row.presence == Presence::Closed)
            || terms.is_some_and(|terms| terms.status == EscrowStatus::Closed)
        {
            return Err(errors::closed(escrow_id));
        }
        let config = match (terms, known) {
            (Some(terms), Some(row)) if row.config != terms.config => {
                return Err(errors::config("the chain's terms are not those that were bound"));
            }
            (Some(terms), _) => terms.config.clone(),
            (None, Some(row)) => row.config.clone(),
            (None, None) => return Err(errors::unavailable("the chain does not answer")),
        };
        self.check_terms(&config, request, caller)?;
        if known.is_none_or(|row| row.presence == Presence::Dropped) {
            self.begin(config)?;
        }
        let boot_id = self.config.boot_id.clone();
        let replica = self.replica(escrow_id)?;
        Ok(pb::BindResponse { nonce: replica.state.nonce(), root: replica.root().to_vec(), boot_id })
    }

    fn check_terms(
        &self,
        config: &FrozenConfig,
        request: &pb::BindRequest,
        caller: Address,
    ) -> Result<(), pb::EscrowError> {
        config.validate().map_err(|error| errors::config(error.to_string()))?;
        if config.escrow_id != request.escrow_id || config.chain_id != self.config.chain_id {
            return Err(errors::config("the terms are of another escrow or chain"));
        }
        if config.gateway != caller {
            return Err(errors::policy(format!("not signed by the gateway of escrow {}", config.escrow_id)));
        }
        if config.digest()[..] != request.config_digest {
            return Err(errors::config("config_digest: the gateway has other terms than the chain"));
        }
        if config.weight(&self.config.owner) == 0 {
            return Err(errors::policy(format!("this host holds no slot of escrow {}", config.escrow_id)));
        }
        let models = &self.config.models;
        if !models.is_empty() && !models.contains(&config.model) {
            return Err(errors::policy(format!("model {} does not run here", config.model)));
        }
        Ok(())
    }

    /// Makes a replica that no gateway has bound, because a host of the group challenges this one: otherwise a gateway could
    /// have it found late by never binding it. `terms` is the escrow as the chain has it.
    ///
    /// # Errors
    /// SessionNotFound for a replica that was dropped; Policy unless both are of the group; as [`HostCore::bind`].
    pub fn adopt(&mut self, terms: &Terms, caller: Address) -> Result<(), pb::EscrowError> {
        let config = &terms.config;
        let escrow_id = config.escrow_id;
        match self.rows.get(&escrow_id).map(|row| row.presence) {
            None => {}
            Some(Presence::Live) => return Ok(()),
            Some(Presence::Dropped) => return Err(errors::not_found(escrow_id)),
            Some(Presence::Closed) => return Err(errors::closed(escrow_id)),
        }
        if terms.status == EscrowStatus::Closed {
            return Err(errors::closed(escrow_id));
        }
        if config.weight(&caller) == 0 {
            return Err(errors::policy(format!("not signed by a host of escrow {escrow_id}")));
        }
        let config_digest = config.digest().to_vec();
        self.check_terms(config, &pb::BindRequest { escrow_id, config_digest }, config.gateway)?;
        self.begin(config.clone())
    }

    /// A replica at nonce 0.
    fn begin(&mut self, config: FrozenConfig) -> Result<(), pb::EscrowError> {
        let escrow_id = config.escrow_id;
        if self.escrows().len() >= self.config.sessions_max {
            return Err(errors::unavailable(format!("{} sessions are all", self.config.sessions_max)));
        }
        let old = self.rows.get(&escrow_id);
        let row = SessionRow {
            config,
            presence: Presence::Live,
            resets: old.map_or(0, |row| row.resets),
            reset_generation: old.map_or(0, |row| row.reset_generation),
        };
        self.write_row(row, WriteSet::new())?;
        self.loaded.remove(&escrow_id);
        Ok(())
    }

    /// Writes the row of a session together with `writes`.
    fn write_row(&mut self, row: SessionRow, writes: WriteSet) -> Result<(), pb::EscrowError> {
        let escrow_id = row.config.escrow_id;
        let mut branch = self.branch(writes);
        SESSIONS.set(&mut branch, &escrow_id, &row).map_err(|error| errors::store(&error))?;
        let writes = branch.into_writes();
        self.db.commit(writes, true).map_err(|error| errors::db(&error))?;
        self.rows.insert(escrow_id, row);
        Ok(())
    }

    /// Applies diffs.
    ///
    /// # Errors
    /// Behind, RootMismatch, DiffFork, BadTx, TooLarge, SessionNotFound, SessionClosed, Unavailable. Diffs in front of the
    /// one that is refused stay applied.
    pub fn teach(&mut self, request: &pb::TeachRequest) -> Result<pb::TeachResponse, pb::EscrowError> {
        let challenge = challenge(request.challenge.as_ref())?;
        self.absorb(request.escrow_id, &request.diffs, Via::Teach)?;
        let applied = self.applied(request.escrow_id, challenge)?;
        Ok(pb::TeachResponse { applied: Some(applied) })
    }

    /// Applies diffs, durably.
    pub(super) fn absorb(
        &mut self,
        escrow_id: u64,
        diffs: &[Vec<u8>],
        via: Via,
    ) -> Result<(), pb::EscrowError> {
        let (Stage { writes, replica }, stop) = self.stage(escrow_id, diffs, via)?;
        self.commit(writes, replica)?;
        stop.map_or(Ok(()), Err)
    }

    /// The replica as a reply shows it.
    pub(super) fn applied(
        &mut self,
        escrow_id: u64,
        challenge: Option<(u64, Hash)>,
    ) -> Result<pb::Applied, pb::EscrowError> {
        let challenge = challenge.filter(|_| !self.config.mute);
        let withhold = self.withholds(escrow_id);
        let replica = self.replica(escrow_id)?;
        let (nonce, root) = (replica.state.nonce(), replica.root());
        let stale = if withhold { replica.stale() } else { Vec::new() };
        let pending = replica.listed(|_| true);
        let withheld = !stale.is_empty();
        let (state_signature, verification) = self.signatures(escrow_id, nonce, root, withheld, challenge);
        Ok(pb::Applied {
            nonce,
            root: root.to_vec(),
            state_signature,
            withheld,
            stale,
            pending,
            verification,
        })
    }

    fn signatures(
        &self,
        escrow_id: u64,
        nonce: u64,
        root: Hash,
        withheld: bool,
        challenge: Option<(u64, Hash)>,
    ) -> (Vec<u8>, Option<pb::Verification>) {
        if withheld {
            return (Vec::new(), None);
        }
        let chain_id = &self.config.chain_id;
        let fresh = challenge.map(|(generation, challenge)| pb::Verification {
            generation,
            challenge: challenge.to_vec(),
            signature: self.sign(digest::verify(chain_id, escrow_id, nonce, &root, generation, &challenge)),
        });
        (self.sign(digest::state(chain_id, escrow_id, nonce, &root)), fresh)
    }

    /// The signature at one nonce, for the gateway and the hosts of the group.
    ///
    /// # Errors
    /// Policy, BadTx, SessionNotFound, SessionClosed, Unavailable.
    pub fn get_signatures(
        &mut self,
        request: &pb::GetSignaturesRequest,
        caller: Address,
    ) -> Result<pb::GetSignaturesResponse, pb::EscrowError> {
        let escrow_id = request.escrow_id;
        let challenge = challenge(request.challenge.as_ref())?;
        self.check_group(escrow_id, caller)?;
        let withhold = self.withholds(escrow_id);
        let replica = self.replica(escrow_id)?;
        let have_nonce = replica.state.nonce();
        let nonce = if request.nonce == 0 { have_nonce } else { request.nonce.min(have_nonce) };
        let last = replica.root();
        let stale = if withhold { replica.stale() } else { Vec::new() };
        let root = if nonce == have_nonce { last } else { self.root_at(escrow_id, nonce)? };
        let withheld = !stale.is_empty();
        let (state_signature, verification) = self.signatures(escrow_id, nonce, root, withheld, challenge);
        let root = root.to_vec();
        Ok(pb::GetSignaturesResponse {
            have_nonce,
            nonce,
            root,
            state_signature,
            withheld,
            stale,
            verification,
        })
    }

    fn root_at(&self, escrow_id: u64, nonce: u64) -> Result<Hash, pb::EscrowError> {
        let row = LOG.load(read(self.db.as_ref()), &(escrow_id, nonce));
        row.map(|row| row.root).map_err(|error| errors::store(&error))
    }

    /// Transactions of this host that wait for a diff, for the gateway and the hosts of the group.
    ///
    /// # Errors
    /// Policy, SessionNotFound, SessionClosed, Unavailable.
    pub fn get_pending(
        &mut self,
        request: &pb::GetPendingRequest,
        caller: Address,
    ) -> Result<pb::GetPendingResponse, pb::EscrowError> {
        self.check_group(request.escrow_id, caller)?;
        let txs = self.replica(request.escrow_id)?.listed(|_| true);
        Ok(pb::GetPendingResponse { txs })
    }

    /// Diffs of the log, for the gateway and the hosts of the group.
    ///
    /// # Errors
    /// Policy, SessionNotFound, SessionClosed, Unavailable.
    pub fn get_diffs(
        &mut self,
        request: &pb::GetDiffsRequest,
        caller: Address,
    ) -> Result<pb::GetDiffsResponse, pb::EscrowError> {
        let escrow_id = request.escrow_id;
        self.check_group(escrow_id, caller)?;
        self.replica(escrow_id)?;
        let count = if request.max == 0 { GET_DIFFS_MAX } else { request.max.min(GET_DIFFS_MAX) };
        Ok(pb::GetDiffsResponse { diffs: self.log(escrow_id, request.from, count)? })
    }

    /// Diffs of a loaded replica's log, within the limits.
    pub(super) fn log(&self, escrow_id: u64, from: u64, count: u32) -> Result<Vec<Vec<u8>>, pb::EscrowError> {
        let Some(Loaded::Live(replica)) = self.loaded.get(&escrow_id) else { return Ok(Vec::new()) };
        let first = from.max(1);
        let last = replica.state.nonce().min(first.saturating_add(u64::from(count)).saturating_sub(1));
        let (mut diffs, mut bytes) = (Vec::new(), 0usize);
        for nonce in first..=last {
            let row = LOG.load(read(self.db.as_ref()), &(escrow_id, nonce));
            let diff = row.map_err(|error| errors::store(&error))?.diff;
            bytes = bytes.saturating_add(diff.len());
            if bytes > GET_DIFFS_BYTES && !diffs.is_empty() {
                break;
            }
            diffs.push(diff);
        }
        Ok(diffs)
    }

    /// Drops the replica: its log and snapshots. What this host did about inferences stays, so that none runs twice and
    /// what waits for a diff still does.
    ///
    /// # Errors
    /// Policy unless the host's operator allows it and this generation has not dropped it yet; Busy while an inference
    /// runs; SessionNotFound, SessionClosed, Unavailable.
    pub fn reset_session(
        &mut self,
        request: &pb::ResetSessionRequest,
        caller: Address,
    ) -> Result<pb::ResetSessionResponse, pb::EscrowError> {
        let escrow_id = request.escrow_id;
        self.check_gateway(escrow_id, caller)?;
        if !self.config.allow_reset {
            return Err(errors::policy("the host's operator does not allow it"));
        }
        let failed = self.replica(escrow_id).is_err();
        let broken = failed && matches!(self.loaded.get(&escrow_id), Some(Loaded::Broken(_)));
        let (dropped_nonce, root) = if broken {
            (0, Vec::new())
        } else {
            let replica = self.replica(escrow_id)?;
            if !replica.running.is_empty() {
                return Err(errors::busy("it runs an inference", errors::RETRY_MS));
            }
            (replica.state.nonce(), replica.root().to_vec())
        };
        let Some(mut row) = self.rows.get(&escrow_id).cloned() else {
            return Err(errors::not_found(escrow_id));
        };
        if row.resets > 0 && request.generation <= row.reset_generation {
            return Err(errors::policy(format!("generation {} has dropped it before", row.reset_generation)));
        }
        row.presence = Presence::Dropped;
        row.resets = row.resets.saturating_add(1);
        row.reset_generation = request.generation;
        let writes = self.without_log(escrow_id).map_err(|error| errors::store(&error))?;
        self.write_row(row, writes)?;
        self.loaded.remove(&escrow_id);
        Ok(pb::ResetSessionResponse { dropped_nonce, root })
    }

    /// The chain has paid the escrow out: only its row stays.
    ///
    /// # Errors
    /// Unavailable.
    pub fn close(&mut self, escrow_id: u64) -> Result<(), pb::EscrowError> {
        let Some(mut row) = self.rows.get(&escrow_id).cloned() else { return Ok(()) };
        if row.presence == Presence::Closed {
            return Ok(());
        }
        row.presence = Presence::Closed;
        let writes = self.without_anything(escrow_id).map_err(|error| errors::store(&error))?;
        self.write_row(row, writes)?;
        self.loaded.remove(&escrow_id);
        Ok(())
    }

    fn without_log(&self, escrow_id: u64) -> Result<WriteSet, StoreError> {
        let mut branch = self.branch(WriteSet::new());
        let store = read(self.db.as_ref());
        for prefix in [LOG.prefix_key(&escrow_id), SNAPSHOTS.prefix_key(&escrow_id)] {
            remove_all(store, &mut branch, &prefix)?;
        }
        Ok(branch.into_writes())
    }

    fn without_anything(&self, escrow_id: u64) -> Result<WriteSet, StoreError> {
        let mut branch = self.branch(self.without_log(escrow_id)?);
        let store = read(self.db.as_ref());
        for prefix in [PENDING.prefix_key(&escrow_id), JOBS.prefix_key(&escrow_id)] {
            remove_all(store, &mut branch, &prefix)?;
        }
        Ok(branch.into_writes())
    }
}

fn remove_all(store: &dyn KvRead, target: &mut dyn KvWrite, prefix: &[u8]) -> Result<(), StoreError> {
    let end = holdfast_store::successor(prefix);
    for row in store.scan(prefix, end.as_deref(), Order::Ascending) {
        target.remove(&row?.0)?;
    }
    Ok(())
}

/// A challenge, checked.
fn challenge(given: Option<&pb::Challenge>) -> Result<Option<(u64, Hash)>, pb::EscrowError> {
    let Some(given) = given else { return Ok(None) };
    let challenge = Hash::try_from(given.challenge.as_slice());
    let challenge = challenge.map_err(|_| errors::bad_tx("challenge: give 32 bytes"))?;
    Ok(Some((given.generation, challenge)))
}
