//! A random load: everything the chain can be asked, also wrongly, with all invariants checked after each block.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use holdfast_escrow::Status;
use holdfast_proto::Any;
use holdfast_proto::holdfast::breaker::v1::OverrideTo;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_types::{Decimal12, ONE, ValidationParams};

use super::net::*;
use super::sessions::*;
use crate::app::Moment;
use crate::state::CommitStore;
use crate::tx::pack;

pub(super) const SEED: u64 = 20_260_131;
pub(super) const BLOCKS: usize = 100;

pub(super) fn spec() -> Spec {
    let executor = |weight, models: &[&'static str], preserved| Executor {
        preserved,
        ..Executor::serving(weight, models)
    };
    Spec {
        gateways: 3,
        outsiders: 2,
        executors: vec![
            executor(40, &[MODEL, OTHER], true),
            executor(30, &[MODEL], false),
            executor(25, &[MODEL, OTHER], true),
            executor(15, &[OTHER], false),
            executor(20, &[MODEL], true),
            executor(30, &[MODEL, OTHER], false),
        ],
        validation: ValidationParams {
            expiration_blocks: 5,
            health_cb_min_samples: 3,
            health_cb_initial_cooldown_blocks: 4,
            health_cb_max_cooldown_blocks: 16,
            health_cb_window_blocks: 20,
            health_cb_consecutive_misses: 3,
            health_cb_probation_blocks: 30,
            health_cb_max_excluded_weight_pct: 70,
            health_cb_probe_share_bp: 2_000,
            health_cb_jitter_pct: 20,
            downtime_h_threshold: Decimal12(3 * ONE),
            ..ValidationParams::default()
        },
        epoch_length: 30,
        poc_length: 6,
        ..Spec::default()
    }
}

/// Per cent of its work that an executor answers, reports failed, or leaves to expire, block by block.
const BEHAVIOUR: [(usize, usize); 6] = [(70, 0), (3, 0), (20, 30), (50, 2), (40, 10), (60, 0)];

pub(super) struct Load<S = crate::state::MemCommitStore> {
    pub(super) net: Net<S>,
    rng: Rng,
    open: Vec<(String, usize, usize)>,
    waiting: Vec<(String, usize)>,
    windows: Vec<(usize, i64)>,
    next: u64,
    /// Of escrows, so that they change nothing else; `None` = without them.
    escrow_rng: Option<Rng>,
}

impl Load {
    pub(super) fn new(seed: u64) -> Self {
        let net = Net::new(&spec());
        Self {
            net,
            rng: Rng(seed),
            open: Vec::new(),
            waiting: Vec::new(),
            windows: Vec::new(),
            next: 0,
            escrow_rng: Some(Rng(seed ^ 0xe5c0)),
        }
    }

    pub(super) fn without_escrows(seed: u64) -> Self {
        Self { escrow_rng: None, ..Self::new(seed) }
    }
}

impl<S: CommitStore> Load<S> {
    fn id(&mut self) -> String {
        self.next += 1;
        format!("i-{}", self.next)
    }

    fn model(&mut self) -> &'static str {
        if self.rng.percent(60) { MODEL } else { OTHER }
    }

    fn starts(&mut self) {
        for _ in 0..self.rng.below(9) {
            let (model, gateway, id) = (self.model(), self.rng.below(3), self.id());
            let drawn = self.net.draw(model, self.rng.seed()).ok().and_then(|reply| reply.executor);
            let known = drawn.filter(|_| self.rng.percent(80)).map(|executor| executor.address);
            let known = known.filter(|address| (0..6).any(|i| self.net.executor(i).bech32() == *address));
            let executor = known.map_or_else(|| self.rng.below(6), |address| self.net.index_of(&address));
            let message = self.net.start_msg(gateway, &id, model, executor);
            self.net.push(&self.net.gateway(gateway), vec![message]);
            self.open.push((id, gateway, executor));
        }
        if self.rng.percent(10) {
            // An executor that asks itself.
            let executor = self.rng.below(6);
            let (who, id) = (self.net.executor(executor), self.id());
            self.net.push(&who, vec![start_msg(&who, &id, MODEL, &who)]);
        }
        for (id, executor) in std::mem::take(&mut self.waiting) {
            let message = self.net.start_msg(0, &id, MODEL, executor);
            self.net.push(&self.net.gateway(0), vec![message]);
        }
    }

    fn answers(&mut self) {
        for (id, gateway, executor) in std::mem::take(&mut self.open) {
            let (finish, report) = BEHAVIOUR[executor];
            let roll = self.rng.below(100);
            if roll < finish {
                self.net.finish(&id, executor);
            } else if roll < finish + report {
                self.net.report(&id, executor);
            } else if self.rng.percent(4) {
                let who = self.net.gateway(gateway);
                let message =
                    inference::MsgCancelInference { requested_by: who.bech32(), inference_id: id.clone() };
                self.net.push(&who, vec![pack(&message)]);
            } else if self.rng.percent(85) {
                self.open.push((id, gateway, executor));
            } else if self.rng.percent(20) {
                self.net.finish(&id, (executor + 1) % 6);
            }
        }
        if self.rng.percent(10) {
            let (id, executor) = (self.id(), self.rng.below(6));
            self.net.finish(&id, executor);
            if self.rng.percent(60) {
                self.waiting.push((id, executor));
            }
        }
    }

    /// Escrows of up to four slots; of those that hold coins some are settled, some disputed, some left.
    fn escrows(&mut self) {
        let height = self.net.height() + 1;
        let Some(rng) = &mut self.escrow_rng else { return };
        // Seldom and in bursts: a chain and its import go on alike only until a group is drawn.
        let creations = if height % 35 < 3 { 1 + rng.below(4) } else { 0 };
        for _ in 0..creations {
            let creator = self.net.gateway(rng.below(3));
            let message =
                create_escrow_msg(&creator, 1 + rng.below(4) as u32, 900 + rng.below(5_000) as u128);
            self.net.push(&creator, vec![message]);
        }
        for escrow in [Status::Open, Status::Disputed].map(|status| self.net.escrows(status)).concat() {
            let (settle, dispute) = (rng.percent(8), height >= escrow.expires_at && rng.percent(30));
            if !settle && !dispute {
                continue;
            }
            let end = |rng: &mut Rng| [End::Finished, End::Errored, End::Cancelled, End::Open][rng.below(4)];
            let ends: Vec<End> = (0..rng.below(4)).map(|_| end(rng)).collect();
            let config = &escrow.config;
            // Below this not every diff can be paid for.
            if config.amount < 1_500 {
                continue;
            }
            let state = self.net.session(config, &ends);
            let state = if settle { finalized(&state) } else { state };
            let signed = self.net.signed(&state, config.slots.len() - usize::from(rng.percent(10)));
            let by = match rng.below(10) {
                0 => self.net.gateway(0),
                1..6 => self.net.who(&config.creator),
                _ => self.net.who(&config.slots[0]),
            };
            let message = if settle { settle_msg(&by, &signed) } else { dispute_msg(&by, &signed) };
            self.net.push(&by, vec![message]);
        }
    }

    fn memberships(&mut self) {
        let height = self.net.height() + 1;
        let executor = self.rng.below(6);
        let who = self.net.executor(executor);
        let coin = Some(pb_coin(1 + self.rng.below(9) as u128));
        let participant = who.bech32();
        let message: Option<Any> = match self.rng.below(40) {
            0..4 => {
                let start = height + self.rng.below(5) as i64;
                self.windows.push((executor, start));
                Some(announce_msg(&who, start, start + 1 + self.rng.below(5) as i64))
            }
            4 => self.windows.pop().map(|(executor, start_height)| {
                let participant = self.net.executor(executor).bech32();
                pack(&participants::MsgCancelMaintenance { participant, start_height })
            }),
            5 => Some(leave_msg(&who)),
            6..10 => Some(register_msg(&who, &[MODEL, OTHER], 12)),
            10 => Some(serve_msg(&who, &[OTHER], false)),
            11..13 => Some(serve_msg(&who, &[MODEL, OTHER], self.rng.percent(50))),
            13..16 => Some(pack(&participants::MsgDepositCollateral { participant, amount: coin })),
            16..18 => Some(pack(&participants::MsgWithdrawCollateral { participant, amount: coin })),
            18..20 => Some(pack(&participants::MsgClaimCollateral { participant })),
            20 => {
                let new = self.net.outsider(self.rng.below(2));
                let message = register_msg(&new, &[MODEL], 11);
                self.net.push(&new, vec![message]);
                None
            }
            21..24 => {
                let from = self.net.gateway(self.rng.below(3));
                let (to, amount) = (self.net.outsider(0).address, self.rng.below(1_000) as u128);
                self.net.push(&from, vec![send_msg(&from, &to, amount), send_msg(&from, &to, 1)]);
                None
            }
            _ => None,
        };
        if let Some(message) = message {
            // A cancelled window may be another executor's than the one drawn above.
            let signer = (0..6).map(|i| self.net.executor(i)).find(|who| {
                message.value.windows(who.bech32().len()).any(|part| part == who.bech32().as_bytes())
            });
            self.net.push(&signer.unwrap_or(who), vec![message]);
        }
    }

    fn bad_transactions(&mut self) {
        let who = self.net.gateway(2);
        let message = send_msg(&who, &self.net.outsider(1).address, 3);
        match self.rng.below(12) {
            0 => self.net.txs.push(self.rng.seed().to_vec()),
            1 => {
                let mut tx = self.net.builder(&who, vec![message]);
                tx.sequence += 5;
                self.net.txs.push(tx.sign(&who.key));
            }
            2 => {
                let mut tx = self.net.builder(&who, vec![message]);
                tx.gas_limit = 1_000 + self.rng.below(100_000) as u64;
                tx.fee.amount = 9;
                self.net.txs.push(tx.sign(&who.key));
            }
            3 => {
                let unknown = Any { type_url: "/holdfast.gov.v1.MsgVote".into(), value: message.value };
                self.net.push(&who, vec![unknown]);
            }
            _ => {}
        }
    }

    fn authority(&mut self) {
        let height = self.net.height() + 1;
        let who = self.net.executor(self.rng.below(6));
        let model = self.model();
        let moment = if self.rng.percent(50) { Moment::BeforeTransactions } else { Moment::AfterEndBlock };
        let until = height + 1 + self.rng.below(20) as i64;
        let message = match self.rng.below(40) {
            0 => override_msg(model, &who, OverrideTo::Excluded, until),
            1 => override_msg(model, &who, OverrideTo::Healthy, until),
            2 => override_msg(model, &who, OverrideTo::None, 0),
            3 => model_msg("m3"),
            4 => {
                let price = 1 + self.rng.below(3) as u128;
                validation_msg(spec().validation, price, &["token_price"])
            }
            5 => {
                let new = ValidationParams {
                    health_cb_window_blocks: 10 * (1 + self.rng.below(4) as i64),
                    health_cb_freeze_pct: [0, 60][self.rng.below(2)],
                    health_cb_shadow: self.rng.percent(20),
                    health_cb_enabled: self.rng.percent(85),
                    health_cb_max_excluded_weight_pct: [40, 70, 100][self.rng.below(3)],
                    downtime_sprt_enabled: self.rng.percent(70),
                    ..spec().validation
                };
                validation_msg(new, 1, &["validation"])
            }
            6 => {
                let new = holdfast_participants::Params {
                    collateral_per_weight: 1 + self.rng.below(2) as u128,
                    ..spec().participants
                };
                participants_msg(&new, &["collateral_per_weight"])
            }
            7 => epochs_msg(25 + self.rng.below(10) as i64, 5, &["*"]),
            _ => return,
        };
        self.net.govern(moment, message);
    }

    pub(super) fn step(&mut self) {
        self.answers();
        self.starts();
        self.escrows();
        self.memberships();
        self.authority();
        self.bad_transactions();
        self.net.block();
    }
}

/// The load that the tests share, played once.
pub(super) fn played() -> MutexGuard<'static, Load> {
    static LOAD: OnceLock<Mutex<Load>> = OnceLock::new();
    let load = LOAD.get_or_init(|| {
        println!("load of {BLOCKS} blocks, seed {SEED}");
        let mut load = Load::new(SEED);
        for _ in 0..BLOCKS {
            load.step();
        }
        Mutex::new(load)
    });
    load.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_load_reaches_what_it_is_for() {
    let load = played();
    let done = &load.net.done;
    let events: Vec<_> = done.iter().flat_map(all_events).collect();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for event in &events {
        *kinds.entry(event.kind.rsplit('.').next().unwrap()).or_default() += 1;
    }
    for name in [
        "EventInferenceStarted",
        "EventInferenceFinished",
        "EventInferenceMissed",
        "EventInferenceReleased",
        "EventExecutorExcluded",
        "EventExclusionRefused",
        "EventProbeOpened",
        "EventProbeClaimed",
        "EventExecutorRestored",
        "EventOverrideSet",
        "EventBreakerReset",
        "EventMaintenanceStarted",
        "EventMaintenanceEnded",
        "EventParticipantLeft",
        "EventParticipantRegistered",
        "EventParticipantUpdated",
        "EventParticipantDeactivated",
        "EventCollateralDeposited",
        "EventCollateralWithdrawn",
        "EventEpochEnded",
        "EventEscrowCreated",
        "EventEscrowSettled",
        "EventHostSettled",
        "EventEscrowDisputed",
        "EventEscrowExpired",
    ] {
        assert!(kinds.contains_key(name), "{name} never happens: {kinds:?}");
    }
    assert!(!kinds.contains_key("EventStepDiscarded"), "{:?}", find(&events, "EventStepDiscarded"));
    let mut codes: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for result in done.iter().flat_map(|d| &d.tx_results) {
        *codes.entry((result.codespace.clone(), result.code)).or_default() += 1;
    }
    for (codespace, code) in [
        ("", 0),
        ("breaker", 10),
        ("breaker", 11),
        ("inference", 9),
        ("inference", 14),
        ("sdk", 2),
        ("sdk", 6),
    ] {
        assert!(codes.contains_key(&(codespace.to_owned(), code)), "{codespace} {code}: {codes:?}");
    }
    assert!(codes[&(String::new(), 0)] > 300, "{codes:?}");
}

#[test]
fn invariants_and_tables_hold_under_other_seeds() {
    for seed in 1..=3 {
        println!("seed {seed}");
        let mut load = Load::new(seed);
        for _ in 0..40 {
            load.step();
        }
    }
}
