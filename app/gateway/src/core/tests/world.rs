//! A session, its hosts, and the clock.

use std::collections::{BTreeMap, VecDeque};

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::FrozenConfig;
use holdfast_escrow::session::settle::{Mode, Settlement, verify};
use holdfast_host::store::MemDb;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use crate::core::{
    CallId, ClientEvent, Effect, Event, GatewayConfig, GatewayCore, HostCall, LogLine, Now, PermitPool,
    RequestId, UserRequest,
};

use super::host::Host;

pub(super) const START_MS: u64 = 1_000;
pub(super) const UNIX_MS: u64 = 1_700_000_000_000;

pub(super) fn key(name: &str) -> SecretKey {
    SecretKey::from_bytes(&Sha256::digest(format!("holdfast-test-key:{name}").as_bytes())).unwrap()
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
        let mut idle = 0u64;
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
                idle += 1;
                assert!(idle < 2_000 + ms / 20, "the session wakes itself without need");
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
