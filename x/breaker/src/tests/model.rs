//! The keeper against the reference model, which is written from the document alone and shares no code with it.

use std::collections::BTreeMap;

use holdfast_model::driver::{Circuit, Driver};
use holdfast_model::history::{genesis, random_history};
use holdfast_model::params::Params;
use holdfast_model::world::{
    Availability, BeginBlock, Event as ModelEvent, OverrideTo, Stamp as ModelStamp, StartCall, World,
};
use holdfast_store::{MemKv, Order};
use holdfast_testkit::StaticGroup;
use holdfast_types::traits::{
    BreakerGate, BreakerRead, EligibilityHooks, EscrowCounts, EscrowHooks, HealthClass, InferenceHooks,
    InferenceOutcome, InferenceStarted, ParticipantsRead, Stamp, Standing, StartAttempt,
};
use holdfast_types::{Address, BlockContext, Context, Decimal12, Event, ModuleError, ValidationParams};

use crate::msgs::MsgSetBreakerOverride;
use crate::state::{ENTRIES, TRIP_RINGS};
use crate::{Entry, ForcedTo, Keeper};

type RawAddress = holdfast_model::Address;

fn params(p: &Params) -> ValidationParams {
    ValidationParams {
        expiration_blocks: p.expiration_blocks,
        health_cb_enabled: p.health_cb_enabled,
        health_cb_shadow: p.health_cb_shadow,
        health_cb_miss_threshold_pct: p.health_cb_miss_threshold_pct,
        health_cb_min_samples: p.health_cb_min_samples,
        health_cb_initial_cooldown_blocks: p.health_cb_initial_cooldown_blocks,
        health_cb_max_cooldown_blocks: p.health_cb_max_cooldown_blocks,
        health_cb_probe_share_bp: p.health_cb_probe_share_bp,
        health_cb_window_blocks: p.health_cb_window_blocks.into(),
        health_cb_consecutive_misses: p.health_cb_consecutive_misses,
        health_cb_probation_blocks: p.health_cb_probation_blocks,
        health_cb_max_excluded_weight_pct: p.health_cb_max_excluded_weight_pct,
        health_cb_freeze_pct: p.health_cb_freeze_pct,
        health_cb_jitter_pct: p.health_cb_jitter_pct,
        downtime_sprt_enabled: p.downtime_sprt_enabled,
        downtime_good_percentage: Decimal12(p.downtime_good_percentage.into()),
        downtime_bad_percentage: Decimal12(p.downtime_bad_percentage.into()),
        downtime_h_threshold: Decimal12(p.downtime_h_threshold),
    }
}

fn model_stamp(s: Stamp) -> ModelStamp {
    ModelStamp { epoch: s.epoch, generation: s.generation, evidence: s.evidence }
}

fn stamp(s: ModelStamp) -> Stamp {
    Stamp { epoch: s.epoch, generation: s.generation, evidence: s.evidence }
}

/// The implementation behind the model's seam.
pub(super) struct Real {
    pub(super) store: MemKv,
    pub(super) block: BlockContext,
    pub(super) committed: ValidationParams,
    pub(super) group: StaticGroup,
    pairs: Vec<(String, RawAddress)>,
    inferences: BTreeMap<String, InferenceOutcome>,
    pub(super) events: Vec<Event>,
}

impl Real {
    pub(super) fn new(seed: u64) -> Self {
        let start = genesis(seed);
        let mut group = StaticGroup::new();
        for model in &start.models {
            group.add_model(model);
        }
        for participant in &start.participants {
            group.add_participant(Address(*participant));
        }
        let committed = params(&start.params);
        let block = BlockContext::new(0, committed.clone());
        let pairs = start.pairs().into_iter().collect();
        Self {
            store: MemKv::default(),
            block,
            committed,
            group,
            pairs,
            inferences: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    fn run<T, E: std::fmt::Debug + From<holdfast_store::StoreError>>(
        &mut self,
        step: impl FnOnce(&Keeper<'_>, &mut Context<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let keeper = Keeper::new(&self.group);
        let mut ctx = Context::new(&self.block, &mut self.store, &mut self.events);
        ctx.branch(|ctx| step(&keeper, ctx))
    }

    fn outcome(
        &mut self,
        id: &str,
        step: fn(&Keeper<'_>, &mut Context<'_>, &InferenceOutcome) -> Result<(), ModuleError>,
    ) {
        let event = self.inferences.get(id).unwrap().clone();
        self.run(|k, ctx| step(k, ctx, &event)).unwrap();
    }

    fn standing(&self, model: &str, p: &RawAddress) -> Standing {
        self.group.get(model, &Address(*p))
    }
}

impl Circuit for Real {
    fn begin_block(&mut self, block: &BeginBlock) {
        self.block.height = block.height;
        self.block.params = self.committed.clone();
        self.block.poc = block.poc;
        if let Some(epoch) = &block.epoch {
            self.block.epoch = epoch.index;
            for (model, p) in self.pairs.clone() {
                let in_maintenance = self.standing(&model, &p).in_maintenance;
                let member = epoch.group.get(&(model.clone(), p));
                let standing = Standing {
                    member: member.is_some(),
                    active: true,
                    weight: member.map_or(0, |m| m.weight),
                    preserved: member.is_some_and(|m| m.preserved),
                    in_maintenance,
                };
                self.group.set_standing(&model, Address(p), standing);
            }
            let totals = self.group.totals();
            self.run(|k, ctx| k.start_epoch(ctx, &totals)).unwrap();
        }
        for ((model, p), change) in &block.availability {
            self.set_availability(model, p, *change);
        }
        self.run(|k, ctx| k.begin_block(ctx)).unwrap();
    }

    fn start(&mut self, call: &StartCall) -> Result<ModelStamp, u32> {
        let call = call.clone();
        let id = call.inference_id.clone();
        let executor = Address(call.executor);
        let (admission, model) = self
            .run(|k, ctx| {
                let attempt = StartAttempt {
                    model: &call.model,
                    requester: Address(call.requester),
                    signer: Address(call.signer),
                    executor,
                    finished_at: call.finished_at,
                };
                let admission = k.admit(ctx, &attempt)?;
                let started = InferenceStarted {
                    inference_id: call.inference_id.clone(),
                    model: call.model.clone(),
                    executor,
                    stamp: admission.stamp,
                    claim: admission.claim,
                    expires_at: call.expires_at,
                };
                k.after_inference_started(ctx, &started)?;
                Ok::<_, ModuleError>((admission, call.model.clone()))
            })
            .map_err(|e| {
                assert_eq!(e.codespace, "breaker", "{e}");
                e.code
            })?;
        let outcome = InferenceOutcome { inference_id: id.clone(), model, executor, stamp: admission.stamp };
        self.inferences.insert(id.clone(), outcome);
        if call.finished_at.is_some() {
            self.finish(&id);
        }
        Ok(model_stamp(admission.stamp))
    }

    fn finish(&mut self, id: &str) {
        self.outcome(id, |k, ctx, e| k.after_inference_finished(ctx, e));
    }
    fn miss(&mut self, id: &str) {
        self.outcome(id, |k, ctx, e| k.after_inference_missed(ctx, e));
    }
    fn release(&mut self, id: &str) {
        self.outcome(id, |k, ctx, e| k.after_inference_released(ctx, e));
    }

    fn stamp(&mut self, model: &str, p: &RawAddress) -> ModelStamp {
        model_stamp(Keeper::new(&self.group).stamp(&self.store, &self.block, model, &Address(*p)).unwrap())
    }

    fn escrow_counts(&mut self, model: &str, p: &RawAddress, s: ModelStamp, ok: u64, missed: u64) {
        let counts = EscrowCounts {
            model: model.into(),
            participant: Address(*p),
            stamp: stamp(s),
            assigned: ok + missed,
            ok,
            missed,
            released: 0,
            earned: 0,
        };
        self.run(|k, ctx| k.after_escrow_settled(ctx, &counts)).unwrap();
    }

    fn set_override(
        &mut self,
        model: &str,
        p: &RawAddress,
        to: OverrideTo,
        until_block: i64,
    ) -> Result<(), u32> {
        let to = match to {
            OverrideTo::None => None,
            OverrideTo::Healthy => Some(ForcedTo::Healthy),
            OverrideTo::Excluded => Some(ForcedTo::Excluded),
        };
        let msg = MsgSetBreakerOverride {
            authority: String::new(),
            model: model.into(),
            participant: Address(*p),
            to,
            until_block,
        };
        self.run(|k, ctx| k.set_override(ctx, &msg)).map_err(|e| e.code().unwrap())
    }

    fn set_params(&mut self, p: Params) {
        self.committed = params(&p);
        assert_eq!(self.committed.validate(), Ok(()));
    }

    fn set_availability(&mut self, model: &str, p: &RawAddress, change: Availability) {
        let (old, new) = self.group.change(model, Address(*p), |s| match change {
            Availability::MaintenanceBegins => s.in_maintenance = true,
            Availability::MaintenanceEnds => s.in_maintenance = false,
            Availability::Out => s.active = false,
        });
        if old != new {
            self.run(|k, ctx| k.after_member_eligibility_changed(ctx, model, &Address(*p), old, new))
                .unwrap();
        }
    }

    fn judge(&mut self) {
        self.run(|k, ctx| k.end_block(ctx)).unwrap();
    }

    fn prune(&mut self) {
        self.run(|k, ctx| k.prune(ctx)).unwrap();
    }

    fn take_events(&mut self) -> Vec<ModelEvent> {
        // Compared as text below; the model's type holds static names.
        Vec::new()
    }
}

fn text(events: &[ModelEvent]) -> Vec<(String, Vec<(String, String)>)> {
    events
        .iter()
        .map(|e| {
            (e.name.to_owned(), e.attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
        })
        .collect()
}

/// Events with the package cut off and addresses as hex, as the model writes them.
pub(super) fn real_text(real: &mut Real) -> Vec<(String, Vec<(String, String)>)> {
    let hrp = real.block.hrp.clone();
    let value = |k: &str, v: String| match k {
        "participant" => Address::parse(&v, &hrp).unwrap().to_hex(),
        "authority" => "gov".to_owned(),
        _ => v,
    };
    let bare = |kind: &str| kind.strip_prefix("holdfast.breaker.v1.").unwrap().to_owned();
    std::mem::take(&mut real.events)
        .into_iter()
        .map(|e| (bare(&e.kind), e.attributes.into_iter().map(|(k, v)| (k.clone(), value(&k, v))).collect()))
        .collect()
}

/// Runs one history on both and compares after every block. Returns the number of blocks.
fn compare(seed: u64, blocks: usize) {
    let start = genesis(seed);
    let world = World::new(start.params.clone(), "gov", start.pairs());
    let mut model = Driver::new(world, &start);
    let mut real = Driver::new(Real::new(seed), &start);
    for ops in random_history(seed, blocks) {
        let at = format!("seed {seed}, block {}", ops.height);
        let expected = model.run_block(&ops);
        let found = real.run_block(&ops);
        assert_eq!(found.messages, expected.messages, "answers, {at}");
        assert_eq!(found.stamps, expected.stamps, "stamps, {at}");
        assert_eq!(found.gov, expected.gov, "governance, {at}");
        let (world, real) = (&model.circuit, &mut real.circuit);
        assert_eq!(real_text(real), text(&expected.events), "events, {at}");
        for ((m, p), entry) in world.current_entries() {
            let key = (real.block.epoch, m.clone(), Address(p));
            let found = ENTRIES.get(&real.store, &key).unwrap().unwrap_or_default();
            assert_eq!(borsh::to_vec(&found).unwrap(), entry.encode(), "{found:?} vs {entry:?}, {at}");
        }
        let stored = ENTRIES
            .prefix(&real.store, &real.block.epoch, Order::Ascending)
            .map(Result::unwrap)
            .filter(|(_, e)| *e != Entry::default())
            .count();
        assert_eq!(stored, world.current_entries().len(), "number of entries, {at}");
        let keeper = Keeper::new(&real.group);
        for m in &start.models {
            let (found, expected) = (keeper.tally(&real.store, &real.block, m).unwrap(), world.tallies(m));
            assert_eq!(
                (found.eligible_weight, found.out_weight, found.healthy_all, found.healthy_poc),
                (expected.eligible_weight, expected.out_weight, expected.healthy_all, expected.healthy_poc),
                "sums of {m}, {at}"
            );
            let ring = TRIP_RINGS.get(&real.store, &(real.block.epoch, m.clone())).unwrap();
            let mut ring = ring.map(|r| {
                let live =
                    r.buckets.iter().filter(|b| crate::calc::is_live(b.index, real.block.height, r.width));
                let buckets: BTreeMap<u64, u128> = live.map(|b| (b.index, b.weight)).collect();
                (r.since_block, r.width, r.frozen, buckets)
            });
            if ring.as_ref().is_some_and(|r| !r.2 && r.3.is_empty()) {
                ring = None;
            }
            let expected = world.current_ring(m).map(|r| (r.since_block, r.width, r.frozen, r.buckets));
            assert_eq!(ring, expected, "ring of {m}, {at}");
            compare_candidates(world, real, m, &at);
        }
        crate::invariants::check(&keeper, &real.store, &real.block).unwrap_or_else(|e| panic!("{e}, {at}"));
    }
}

fn compare_candidates(world: &World, real: &Real, model: &str, at: &str) {
    let keeper = Keeper::new(&real.group);
    // A table at height h shows the parameters committed at h.
    let block = BlockContext { params: real.committed.clone(), ..real.block.clone() };
    let mut rows = Vec::new();
    for (p, standing) in real.group.members(&real.store, &block, model).unwrap() {
        if !standing.eligible() || (block.poc && !standing.preserved) {
            continue;
        }
        let (class, since) = match keeper.health(&real.store, &block, model, &p).unwrap() {
            HealthClass::Healthy => (0, 0),
            HealthClass::ProbeReady { since } => (1, u64::try_from(since).unwrap()),
            HealthClass::Out => (2, 0),
            HealthClass::ForcedOut => continue,
        };
        rows.push((p.0, standing.weight, class, since));
    }
    let expected: Vec<_> =
        world.candidates(model).rows.iter().map(|r| (r.address, r.weight, r.class, r.since)).collect();
    assert_eq!(rows, expected, "candidates of {model}, {at}");
}

#[test]
fn ten_thousand_random_histories_agree_with_the_reference_model() {
    // HOLDFAST_HISTORIES and HOLDFAST_FIRST_SEED choose others; a failure names its seed and block.
    let env =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, count) = (env("HOLDFAST_FIRST_SEED", 1), env("HOLDFAST_HISTORIES", 10_000));
    println!("seeds {first} to {}", first + count - 1);
    let half = count / 2;
    std::thread::scope(|scope| {
        scope.spawn(|| (first..first + half).for_each(|seed| compare(seed, 60)));
        (first + half..first + count).for_each(|seed| compare(seed, 60));
    });
}

#[test]
fn long_histories_agree_with_the_reference_model() {
    for seed in 1_000_001..1_000_041 {
        compare(seed, 400);
    }
}
