//! A session, its hosts, and the clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::settle::{Mode, Settlement, verify};
use holdfast_escrow::session::{
    ApplyError, Diff, FrozenConfig, Hash, InferenceStatus, State, Tx, apply, digest,
};
use holdfast_host::store::MemDb;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use pb::escrow_error::Code;
use pb::infer_response::Event as Item;
use sha2::{Digest, Sha256};

use crate::core::{
    CallError, CallId, ClientEvent, Effect, Event, GatewayConfig, GatewayCore, HostCall, HostReply, LogLine,
    Now, PermitPool, RequestId, UserRequest,
};

pub(super) const START_MS: u64 = 1_000;
pub(super) const UNIX_MS: u64 = 1_700_000_000_000;

pub(super) fn key(name: &str) -> SecretKey {
    SecretKey::from_bytes(&Sha256::digest(format!("holdfast-test-key:{name}").as_bytes())).unwrap()
}

/// How a host behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// Receipt, text, finish.
    Well,
    /// Nothing answers at all.
    Down,
    /// Replicas work, inference is never taken.
    Silent,
    /// Receipt, and then nothing.
    OnlyReceipt,
    /// Receipt and one token; it goes on when it is told.
    Slow,
    /// Says that it has too much to do.
    Throttled,
    /// A signed failure.
    Fails,
    /// Words of a divergence in an error without a signature.
    Crafted,
}

pub(super) struct Host {
    pub(super) key: SecretKey,
    pub(super) address: Address,
    pub(super) state: Option<State>,
    pub(super) roots: Vec<Hash>,
    pub(super) log: Vec<Vec<u8>>,
    pub(super) pending: Vec<Tx>,
    pub(super) serves: Serves,
    /// Computes another root from this nonce on and keeps what it has.
    pub(super) fork_at: Option<u64>,
    pub(super) withholds: bool,
    pub(super) allows_reset: bool,
    pub(super) boot: u64,
    /// Infer calls that reached it.
    pub(super) infers: u64,
}

type Reply = Result<HostReply, CallError>;

fn err(code: Code) -> CallError {
    CallError::Host(Box::new(pb::EscrowError { code: code as i32, ..Default::default() }))
}

impl Host {
    fn new(name: &str) -> Self {
        let key = key(name);
        let address = key.address();
        Self {
            key,
            address,
            state: None,
            roots: Vec::new(),
            log: Vec::new(),
            pending: Vec::new(),
            serves: Serves::Well,
            fork_at: None,
            withholds: false,
            allows_reset: false,
            boot: 1,
            infers: 0,
        }
    }

    /// A restart with an empty store.
    pub(super) fn wipe(&mut self) {
        (self.state, self.roots, self.log) = (None, Vec::new(), Vec::new());
        self.boot += 1;
    }

    fn nonce(&self) -> u64 {
        self.state.as_ref().map_or(0, State::nonce)
    }

    fn sign(&self, digest: Hash) -> Vec<u8> {
        self.key.sign_recoverable(digest).to_vec()
    }

    fn teach(&mut self, terms: &FrozenConfig, diffs: &[Vec<u8>]) -> Result<(), CallError> {
        let Some(mut state) = self.state.clone() else { return Err(err(Code::SessionNotFound)) };
        for bytes in diffs {
            let diff = Diff::from_bytes(bytes).unwrap();
            if diff.nonce <= state.nonce() {
                let there = &self.log[diff.nonce as usize - 1];
                if there != bytes {
                    let error = pb::EscrowError {
                        code: Code::DiffFork as i32,
                        nonce: diff.nonce,
                        diff: there.clone(),
                        ..Default::default()
                    };
                    return Err(CallError::Host(Box::new(error)));
                }
                continue;
            }
            if diff.nonce > state.nonce() + 1 {
                let error = pb::EscrowError {
                    code: Code::Behind as i32,
                    have_nonce: state.nonce(),
                    ..Default::default()
                };
                return Err(CallError::Host(Box::new(error)));
            }
            let other =
                self.fork_at.filter(|at| diff.nonce >= *at).map(|_| Hash::from(Sha256::digest(b"other")));
            let result = match other {
                Some(root) => Err(root),
                None => match apply(&state, &diff) {
                    Ok((next, root)) => Ok((next, root)),
                    Err(ApplyError::RootMismatch { computed, .. }) => Err(computed),
                    Err(error) => panic!("the gateway made a diff that does not apply: {error}"),
                },
            };
            match result {
                Ok((next, root)) => {
                    state = next;
                    self.roots.push(root);
                    self.log.push(bytes.clone());
                    self.state = Some(state.clone());
                    let keys: Vec<_> = diff.txs.iter().map(Tx::key).collect();
                    self.pending.retain(|tx| !keys.contains(&tx.key()));
                }
                Err(root) => {
                    let id = diff.digest(&terms.chain_id);
                    let signed = digest::refusal(&terms.chain_id, terms.escrow_id, diff.nonce, &id, &root);
                    let error = pb::EscrowError {
                        code: Code::RootMismatch as i32,
                        nonce: diff.nonce,
                        root: root.to_vec(),
                        diff_digest: id.to_vec(),
                        signature: self.sign(signed),
                        ..Default::default()
                    };
                    return Err(CallError::Host(Box::new(error)));
                }
            }
        }
        Ok(())
    }

    fn root(&self, nonce: u64, terms: &FrozenConfig) -> Hash {
        match nonce {
            0 => State::genesis(Arc::new(terms.clone())).root(),
            n => self.roots[n as usize - 1],
        }
    }

    fn verification(
        &self,
        terms: &FrozenConfig,
        nonce: u64,
        challenge: Option<&pb::Challenge>,
    ) -> Option<pb::Verification> {
        let challenge = challenge.filter(|_| !self.withholds)?;
        let drawn: Hash = challenge.challenge.as_slice().try_into().unwrap();
        let root = self.root(nonce, terms);
        let signed =
            digest::verify(&terms.chain_id, terms.escrow_id, nonce, &root, challenge.generation, &drawn);
        Some(pb::Verification {
            generation: challenge.generation,
            challenge: challenge.challenge.clone(),
            signature: self.sign(signed),
        })
    }

    fn state_signature(&self, terms: &FrozenConfig, nonce: u64) -> Vec<u8> {
        if self.withholds {
            return Vec::new();
        }
        let root = self.root(nonce, terms);
        self.sign(digest::state(&terms.chain_id, terms.escrow_id, nonce, &root))
    }

    fn applied(&self, terms: &FrozenConfig, challenge: Option<&pb::Challenge>) -> pb::Applied {
        let nonce = self.nonce();
        pb::Applied {
            nonce,
            root: self.root(nonce, terms).to_vec(),
            state_signature: self.state_signature(terms, nonce),
            withheld: self.withholds,
            stale: Vec::new(),
            pending: self.pending.iter().map(Tx::to_bytes).collect(),
            verification: self.verification(terms, nonce, challenge),
        }
    }

    fn confirm(&mut self, terms: &FrozenConfig, id: u64, at: u64) -> Tx {
        let record = self.state.as_ref().unwrap().record(id).unwrap().clone();
        let signed = digest::receipt(&terms.chain_id, terms.escrow_id, &record, at);
        let tx = Tx::ConfirmStart { id, confirmed_at: at, sig: self.key.sign_recoverable(signed) };
        self.pending.push(tx.clone());
        tx
    }

    fn finish(&mut self, terms: &FrozenConfig, id: u64, text: &str) -> Tx {
        let slot = terms.executor_slot(id);
        let response_hash: Hash = Sha256::digest(text.as_bytes()).into();
        let signed = digest::finish(&terms.chain_id, terms.escrow_id, id, slot, 3, 2, &response_hash);
        let sig = self.key.sign_recoverable(signed);
        let tx = Tx::FinishInference { id, input_tokens: 3, output_tokens: 2, response_hash, sig };
        self.pending.push(tx.clone());
        tx
    }

    /// The answer gets ready although nobody listens any more.
    pub(super) fn finish_now(&mut self, terms: &FrozenConfig, id: u64) {
        self.finish(terms, id, "hello");
    }

    fn report(&mut self, terms: &FrozenConfig, id: u64, kind: u8) -> Tx {
        let slot = terms.executor_slot(id);
        let signed = digest::error(&terms.chain_id, terms.escrow_id, id, slot, kind, 3, 1);
        let sig = self.key.sign_recoverable(signed);
        let tx = Tx::ReportError { id, kind, input_tokens: 3, output_tokens: 1, sig };
        self.pending.push(tx.clone());
        tx
    }

    fn answer(&mut self, terms: &FrozenConfig, unix_s: u64, call: HostCall) -> Option<Reply> {
        if self.serves == Serves::Down {
            return Some(Err(CallError::Transport));
        }
        Some(match call {
            HostCall::Bind(request) => {
                if request.config_digest != terms.digest() {
                    return Some(Err(err(Code::ConfigMismatch)));
                }
                if self.state.is_none() {
                    self.state = Some(State::genesis(Arc::new(terms.clone())));
                }
                let nonce = self.nonce();
                Ok(HostReply::Bind(pb::BindResponse {
                    nonce,
                    root: self.root(nonce, terms).to_vec(),
                    boot_id: format!("boot-{}", self.boot),
                }))
            }
            HostCall::Teach(request) => self.teach(terms, &request.diffs).map(|()| {
                let applied = Some(self.applied(terms, request.challenge.as_ref()));
                HostReply::Teach(pb::TeachResponse { applied })
            }),
            HostCall::GetSignatures(request) => {
                if self.state.is_none() {
                    return Some(Err(err(Code::SessionNotFound)));
                }
                let have_nonce = self.nonce();
                let nonce = if request.nonce == 0 { have_nonce } else { request.nonce.min(have_nonce) };
                Ok(HostReply::GetSignatures(pb::GetSignaturesResponse {
                    have_nonce,
                    nonce,
                    root: self.root(nonce, terms).to_vec(),
                    state_signature: self.state_signature(terms, nonce),
                    withheld: self.withholds,
                    stale: Vec::new(),
                    verification: self.verification(terms, nonce, request.challenge.as_ref()),
                }))
            }
            HostCall::GetPending(_) if self.serves == Serves::Throttled => {
                Err(CallError::Status { code: 8, retry_after_ms: 0 })
            }
            HostCall::GetPending(_) => {
                let txs = self.pending.iter().map(Tx::to_bytes).collect();
                Ok(HostReply::GetPending(pb::GetPendingResponse { txs }))
            }
            HostCall::GetDiffs(request) => {
                let diffs = self
                    .log
                    .iter()
                    .skip(request.from as usize - 1)
                    .take(request.max as usize)
                    .cloned()
                    .collect();
                Ok(HostReply::GetDiffs(pb::GetDiffsResponse { diffs }))
            }
            HostCall::VoteTimeout(request) => match self.teach(terms, &request.diffs) {
                Err(error) => Err(error),
                Ok(()) => {
                    let record = self.state.as_ref().unwrap().record(request.inference_id).cloned();
                    let late = record.is_some_and(|record| match request.reason {
                        1 => {
                            record.status == InferenceStatus::Pending
                                && unix_s >= record.started_at + u64::from(terms.refusal_timeout_s)
                                && record.prompt_hash == Hash::from(Sha256::digest(&request.body))
                        }
                        _ => {
                            record.status == InferenceStatus::Started
                                && unix_s >= record.confirmed_at + u64::from(terms.execution_timeout_s)
                        }
                    });
                    let slot = terms.slots_of(&self.address)[0];
                    let reason = request.reason as u8;
                    let (chain, escrow) = (&terms.chain_id, terms.escrow_id);
                    let signed = digest::vote(chain, escrow, request.inference_id, reason, slot, late);
                    Ok(HostReply::VoteTimeout(pb::VoteTimeoutResponse {
                        accept: late,
                        voter_slot: u32::from(slot),
                        signature: self.sign(signed),
                        executor_txs: Vec::new(),
                    }))
                }
            },
            HostCall::Cancel(request) => {
                if self.serves == Serves::Slow {
                    self.report(terms, request.inference_id, 8);
                }
                Ok(HostReply::Cancel(pb::CancelInferenceResponse {
                    state: pb::cancel_inference_response::State::Cancelled as i32,
                    delivered_tokens: 1,
                    pending: self.pending.iter().map(Tx::to_bytes).collect(),
                }))
            }
            HostCall::ResetSession(_) if self.allows_reset => {
                self.wipe();
                self.fork_at = None;
                Ok(HostReply::ResetSession(pb::ResetSessionResponse::default()))
            }
            HostCall::ResetSession(_) => Err(err(Code::Policy)),
            HostCall::Infer(_) => return None,
        })
    }

    /// The pieces of an Infer and how it ends; `None` = the stream stays open.
    fn infer(
        &mut self,
        terms: &FrozenConfig,
        unix_s: u64,
        request: &pb::InferRequest,
    ) -> (Vec<Item>, Option<Result<(), CallError>>) {
        self.infers += 1;
        match self.serves {
            Serves::Down => return (Vec::new(), Some(Err(CallError::Transport))),
            Serves::Throttled => {
                return (Vec::new(), Some(Err(CallError::Status { code: 8, retry_after_ms: 0 })));
            }
            Serves::Crafted => {
                let error = pb::EscrowError {
                    code: Code::RootMismatch as i32,
                    nonce: request.target_nonce,
                    root: vec![7; 32],
                    signature: vec![1; 65],
                    message: "apply diff nonce: post_state_root does not match computed state root".into(),
                    ..Default::default()
                };
                return (Vec::new(), Some(Err(CallError::Host(Box::new(error)))));
            }
            _ => {}
        }
        if let Err(error) = self.teach(terms, &request.diffs) {
            return (Vec::new(), Some(Err(error)));
        }
        let id = request.target_nonce;
        if self.nonce() < id {
            let error =
                pb::EscrowError { code: Code::Behind as i32, have_nonce: self.nonce(), ..Default::default() };
            return (Vec::new(), Some(Err(CallError::Host(Box::new(error)))));
        }
        let mut items = vec![Item::Applied(self.applied(terms, None))];
        if self.serves == Serves::Silent {
            return (items, Some(Err(CallError::Timeout)));
        }
        if self.serves == Serves::Fails {
            let tx = self.report(terms, id, 10).to_bytes();
            items.push(Item::Failed(pb::InferFailed { kind: 10, tx }));
            return (items, Some(Ok(())));
        }
        let tx = self.confirm(terms, id, unix_s).to_bytes();
        items.push(Item::Receipt(pb::Receipt { tx }));
        if self.serves == Serves::OnlyReceipt {
            return (items, Some(Err(CallError::Transport)));
        }
        items.push(Item::Delta(pb::Delta { index: 0, text: "hel".into(), token_ids: vec![1] }));
        if self.serves == Serves::Slow {
            return (items, None);
        }
        items.push(Item::Delta(pb::Delta { index: 1, text: "lo".into(), token_ids: vec![2] }));
        let tx = self.finish(terms, id, "hello").to_bytes();
        let usage = Some(pb::Usage { prompt_tokens: 3, completion_tokens: 2 });
        items.push(Item::Finished(pb::InferFinished { tx, finish_reason: "stop".into(), usage }));
        (items, Some(Ok(())))
    }
}

pub(super) struct World {
    pub(super) terms: FrozenConfig,
    pub(super) cfg: GatewayConfig,
    pub(super) db: MemDb,
    pub(super) core: GatewayCore,
    pub(super) hosts: BTreeMap<Address, Host>,
    pub(super) names: Vec<Address>,
    pub(super) permits: PermitPool,
    pub(super) now_ms: u64,
    wake_ms: Option<u64>,
    events: VecDeque<(u64, Event)>,
    pub(super) logs: Vec<LogLine>,
    pub(super) clients: BTreeMap<RequestId, Vec<ClientEvent>>,
    pub(super) settlements: Vec<Settlement>,
    pub(super) disputes: Vec<Settlement>,
    pub(super) calls: Vec<(Address, &'static str)>,
    pub(super) stages: Vec<&'static str>,
    pub(super) others: Vec<Effect>,
    next_request: RequestId,
}

pub(super) fn terms(hosts: usize) -> FrozenConfig {
    FrozenConfig {
        chain_id: "holdfast-test-1".into(),
        escrow_id: 7,
        creator: key("gateway").address(),
        gateway: key("gateway").address(),
        model: "ref-llama".into(),
        slots: (0..hosts).map(|i| key(&format!("host-{i}")).address()).collect(),
        amount: 1_000_000,
        create_fee: 10_000,
        fee_per_nonce: 10,
        token_price: 10,
        refusal_timeout_s: 10,
        execution_timeout_s: 60,
        vote_threshold_bp: 5_000,
        cancel_charge_bp: 0,
        seal_grace_nonces: 64,
        max_nonce: 2_000,
        max_live: 64,
    }
}

impl World {
    pub(super) fn new(hosts: usize) -> Self {
        Self::with(terms(hosts), GatewayConfig { snapshot_every: 16, ..GatewayConfig::default() })
    }

    pub(super) fn with(terms: FrozenConfig, cfg: GatewayConfig) -> Self {
        let names: Vec<Address> = terms.slots.clone();
        let hosts = (0..names.len())
            .map(|i| Host::new(&format!("host-{i}")))
            .map(|host| (host.address, host))
            .collect();
        let db = MemDb::new();
        let permits = PermitPool::new(8);
        let now = Now { mono_ms: START_MS, unix_ms: UNIX_MS + START_MS };
        let (core, effects) = open(&db, &cfg, &terms, &permits, now);
        let mut world = Self {
            terms,
            cfg,
            db,
            core,
            hosts,
            names,
            permits,
            now_ms: START_MS,
            wake_ms: None,
            events: VecDeque::new(),
            logs: Vec::new(),
            clients: BTreeMap::new(),
            settlements: Vec::new(),
            disputes: Vec::new(),
            calls: Vec::new(),
            stages: Vec::new(),
            others: Vec::new(),
            next_request: 1,
        };
        world.carry_out(effects);
        world
    }

    /// The process ends and begins again on the same disk.
    pub(super) fn restart(&mut self, power_cut: bool) {
        self.db = self.db.reopen(power_cut);
        self.events.clear();
        self.wake_ms = None;
        self.permits = PermitPool::new(8);
        let (core, effects) = open(&self.db, &self.cfg, &self.terms, &self.permits, self.now());
        self.core = core;
        self.carry_out(effects);
    }

    pub(super) fn now(&self) -> Now {
        Now { mono_ms: self.now_ms, unix_ms: UNIX_MS + self.now_ms }
    }

    pub(super) fn host(&mut self, index: usize) -> &mut Host {
        let address = self.names[index];
        self.hosts.get_mut(&address).unwrap()
    }

    pub(super) fn send(&mut self, event: Event) {
        let now = self.now();
        let effects = self.core.handle(now, event);
        self.carry_out(effects);
    }

    pub(super) fn ask(&mut self) -> RequestId {
        self.ask_with(30_000)
    }

    pub(super) fn ask_with(&mut self, wait_ms: u64) -> RequestId {
        let request_id = self.next_request;
        self.next_request += 1;
        self.send(Event::Request(UserRequest {
            request_id,
            label: format!("request-{request_id}"),
            body: format!("{{\"messages\":[],\"n\":{request_id}}}").into_bytes(),
            input_limit: 16,
            output_limit: 8,
            deadline_ms: self.now_ms + wait_ms,
        }));
        request_id
    }

    /// Runs for so long.
    pub(super) fn run(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        loop {
            let event = self.events.iter().map(|(at, _)| *at).min();
            let next = event.into_iter().chain(self.wake_ms).min().filter(|at| *at <= end);
            let Some(at) = next else { break };
            self.now_ms = self.now_ms.max(at);
            if event.is_some_and(|event| event <= at) {
                let position = self.events.iter().position(|(when, _)| *when == at).unwrap();
                let (_, event) = self.events.remove(position).unwrap();
                self.send(event);
            } else {
                self.wake_ms = None;
                self.send(Event::Tick);
            }
        }
        self.now_ms = end;
        self.check();
    }

    /// What holds at every moment.
    pub(super) fn check(&self) {
        self.core.state().check_conservation().unwrap();
        for participant in self.core.status().participants {
            assert_eq!(participant.counters.starts_while_flagged, 0);
            assert_eq!(participant.counters.accountable_ghosts_during_repair, 0);
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Call { call_id, participant, call, .. } => self.deliver(call_id, participant, call),
                Effect::AbortCall { call_id } => self.events.retain(|(_, event)| match event {
                    Event::CallDone { call_id: id, .. }
                    | Event::StreamItem { call_id: id, .. }
                    | Event::StreamEnded { call_id: id, .. } => *id != call_id,
                    _ => true,
                }),
                Effect::ToClient { request_id, event } => {
                    self.clients.entry(request_id).or_default().push(event);
                }
                Effect::WakeAt { mono_ms } => self.wake_ms = Some(mono_ms),
                Effect::Log(line) => self.logs.push(line),
                Effect::SettlementReady(settlement) => self.settlements.push(*settlement),
                Effect::DisputeReady(settlement) => self.disputes.push(*settlement),
                Effect::FlagChanged { stage, .. } => self.stages.push(stage),
                Effect::Metric(_) => {}
                other => self.others.push(other),
            }
        }
    }

    fn deliver(&mut self, call_id: CallId, participant: Address, call: HostCall) {
        let unix_s = self.now().unix_s();
        let at = self.now_ms + 1;
        let host = self.hosts.get_mut(&participant).unwrap();
        let name = match &call {
            HostCall::Bind(_) => "bind",
            HostCall::Teach(_) => "teach",
            HostCall::Infer(_) => "infer",
            HostCall::Cancel(_) => "cancel",
            HostCall::GetSignatures(_) => "signatures",
            HostCall::GetPending(_) => "pending",
            HostCall::GetDiffs(_) => "diffs",
            HostCall::VoteTimeout(_) => "vote",
            HostCall::ResetSession(_) => "reset",
        };
        if let HostCall::Infer(request) = &call {
            assert!(self.core.flag(&participant).is_none(), "an Infer to a flagged participant");
            let (items, end) = host.infer(&self.terms, unix_s, request);
            for event in items {
                self.events.push_back((at, Event::StreamItem { call_id, event }));
            }
            if let Some(result) = end {
                self.events.push_back((at, Event::StreamEnded { call_id, result }));
            }
        } else if let Some(result) = host.answer(&self.terms, unix_s, call) {
            self.events.push_back((at, Event::CallDone { call_id, result }));
        }
        self.calls.push((participant, name));
    }

    pub(super) fn stage_count(&self, stage: &str) -> usize {
        self.logs.iter().filter(|line| line.stage == stage).count()
    }

    pub(super) fn field(&self, stage: &str, name: &str) -> Vec<String> {
        let lines = self.logs.iter().filter(|line| line.stage == stage);
        lines.flat_map(|l| l.fields.iter().filter(|(n, _)| *n == name).map(|(_, v)| v.clone())).collect()
    }

    pub(super) fn finished(&self, id: RequestId) -> bool {
        self.clients
            .get(&id)
            .is_some_and(|events| matches!(events.last(), Some(ClientEvent::Finished { .. })))
    }

    pub(super) fn outcomes(&self, index: usize) -> [u32; 6] {
        let address = self.names[index];
        let status = self.core.status();
        status.participants.iter().find(|p| p.address == address).unwrap().outcomes
    }

    /// The settlement passes the chain's check and pays out everything.
    pub(super) fn pays(&self, settlement: &Settlement, mode: Mode) {
        let payout = verify(&self.terms, settlement, mode).unwrap();
        let earned: u128 = payout.earned.values().sum();
        let sum = earned + payout.fees + payout.refund;
        assert_eq!(sum, self.terms.amount);
    }
}

pub(super) fn open(
    db: &MemDb,
    cfg: &GatewayConfig,
    terms: &FrozenConfig,
    permits: &PermitPool,
    now: Now,
) -> (GatewayCore, Vec<Effect>) {
    let mut drawn = 0u8;
    let entropy = move || {
        drawn = drawn.wrapping_add(1);
        [drawn; 32]
    };
    GatewayCore::open(
        Box::new(db.clone()),
        cfg.clone(),
        terms.clone(),
        Box::new(key("gateway")),
        Box::new(entropy),
        permits.clone(),
        now,
    )
    .unwrap()
}
