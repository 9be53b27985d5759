//! Genesis: every field that cannot be is refused by name; what is good comes back byte for byte.

use holdfast_proto::Message;
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_testkit::{TestChain, addr, addr_n};
use holdfast_types::{Hrp, Module, sdk};

use super::scene::{M, Scene};
use crate::{BreakerModule, Keeper, OVERRIDES_MAX};

fn entry() -> pb::CircuitBreakerEntry {
    pb::CircuitBreakerEntry {
        state: pb::State::Probe.into(),
        generation: 3,
        excluded_at: 100,
        cooldown_blocks: 50,
        ready_since: 150,
        restored_at: 90,
        refused_at: 80,
        probe_attempts: 2,
        backoff_level: 1,
        consecutive_misses: 1,
        probe: Some(pb::ProbeClaim { inference_id: "i1".into(), deadline_block: 190 }),
        window: Some(pb::OutcomeWindow {
            width: 20,
            touched_at: 155,
            buckets: vec![
                pb::OutcomeBucket { index: 6, ok: 1, missed: 0 },
                pb::OutcomeBucket { index: 7, ok: 0, missed: 1 },
            ],
        }),
        trip: Some(pb::TripMark { block: 99, weight: 10 }),
        forced: None,
    }
}

fn row(n: u8) -> pb::BreakerRow {
    let participant = addr(n).to_bech32(&Hrp::default());
    pb::BreakerRow { epoch: 0, model: M.into(), participant, entry: Some(entry()) }
}

fn ring() -> pb::TripRing {
    let bucket = |index, weight: &str| pb::TripBucket { index, weight: weight.into() };
    let buckets = vec![bucket(4, "10"), bucket(5, "20")];
    pb::TripRing { epoch: 0, model: M.into(), since_block: 50, width: 20, frozen: false, buckets }
}

fn good() -> pb::GenesisState {
    let forced = pb::ForcedOverride { to: pb::OverrideTo::Excluded.into(), until_block: 400 };
    let held = pb::CircuitBreakerEntry {
        state: pb::State::Excluded.into(),
        forced: Some(forced),
        probe: None,
        ..entry()
    };
    let participant = addr(3).to_bech32(&Hrp::default());
    let to = pb::OverrideTo::Excluded.into();
    pb::GenesisState {
        entries: vec![row(1), row(2), pb::BreakerRow { entry: Some(held), ..row(3) }],
        overrides: vec![pb::Override { model: M.into(), participant, to, until_block: 400 }],
        rings: vec![ring()],
    }
}

fn validate(genesis: &pb::GenesisState) -> Result<(), String> {
    let module = BreakerModule(Scene::three().group);
    module.validate_genesis(&genesis.encode_to_vec(), &Hrp::default()).map_err(|e| {
        assert_eq!((e.codespace, e.code), (sdk::CODESPACE, sdk::INVALID_REQUEST));
        e.message
    })
}

#[test]
fn a_good_genesis_comes_back_byte_for_byte_with_its_indexes_rebuilt() {
    let group = Scene::three().group;
    let module = BreakerModule(group.clone());
    for bytes in [good().encode_to_vec(), module.default_genesis()] {
        let mut chain = TestChain::new(160);
        module.validate_genesis(&bytes, &chain.block.hrp).unwrap();
        chain.ctx(|ctx| module.init_genesis(ctx, &bytes)).unwrap();
        assert_eq!(module.export_genesis(&chain.store, &chain.block.hrp).unwrap(), bytes);
        crate::invariants::check(&Keeper::new(&group), &chain.store, &chain.block).unwrap();
    }
    let mut s = Scene::three();
    let bytes = good().encode_to_vec();
    s.run(|_, ctx| module.init_genesis(ctx, &bytes)).unwrap();
    assert_eq!([1, 2, 3].map(|n| s.letter(n)), ['C', 'C', 'X']);
    assert_eq!((s.tally().eligible_weight, s.tally().out_weight), (20, 20), "3 is forced out");
    assert_eq!(s.entry(1).due(), Some(190));
}

#[test]
fn each_bad_field_of_an_entry_is_refused_by_name() {
    type Change = fn(&mut pb::CircuitBreakerEntry);
    fn window(e: &mut pb::CircuitBreakerEntry) -> &mut pb::OutcomeWindow {
        e.window.as_mut().unwrap()
    }
    let cases: [(&str, Change); 21] = [
        ("entries.entry.state", |e| e.state = 3),
        ("entries.entry.state", |e| e.state = -1),
        ("entries.entry.excluded_at", |e| e.excluded_at = -1),
        ("entries.entry.cooldown_blocks", |e| e.cooldown_blocks = -1),
        ("entries.entry.ready_since", |e| e.ready_since = i64::MIN),
        ("entries.entry.restored_at", |e| e.restored_at = -1),
        ("entries.entry.refused_at", |e| e.refused_at = -1),
        ("entries.entry.backoff_level", |e| e.backoff_level = 64),
        ("entries.entry.probe:", |e| e.state = pb::State::Healthy.into()),
        ("entries.entry.probe:", |e| e.state = pb::State::Excluded.into()),
        ("entries.entry.probe.deadline_block", |e| e.probe.as_mut().unwrap().deadline_block = -1),
        ("entries.entry.trip.block", |e| e.trip.as_mut().unwrap().block = -1),
        ("entries.entry.window.touched_at", |e| window(e).touched_at = -1),
        ("entries.entry.window.buckets", |e| window(e).buckets.reverse()),
        ("entries.entry.window.buckets", |e| window(e).buckets[0].index = 7),
        ("entries.entry.window.buckets", |e| window(e).buckets[0].ok = 0),
        ("entries.entry.window.buckets", |e| {
            let bucket = |index| pb::OutcomeBucket { index, ok: 1, missed: 1 };
            window(e).buckets = (0..11).map(bucket).collect();
        }),
        ("entries.entry.forced.to", |e| e.forced = Some(pb::ForcedOverride { to: 0, until_block: 9 })),
        ("entries.entry.forced.to", |e| e.forced = Some(pb::ForcedOverride { to: 3, until_block: 9 })),
        ("entries.entry.forced.to", |e| e.forced = Some(pb::ForcedOverride { to: 1, until_block: 9 })),
        ("entries.entry.forced.until_block", |e| {
            e.forced = Some(pb::ForcedOverride { to: 2, until_block: -9 });
        }),
    ];
    assert_eq!(validate(&good()), Ok(()));
    for (n, (field, change)) in cases.into_iter().enumerate() {
        let mut genesis = good();
        change(genesis.entries[1].entry.as_mut().unwrap());
        let text = validate(&genesis).unwrap_err();
        assert!(text.contains(field), "case {n}: {text:?} should name {field}");
    }
}

#[test]
fn each_bad_row_is_refused_by_name() {
    type Change = fn(&mut pb::GenesisState);
    let cases: [(&str, Change); 20] = [
        ("entries.participant", |g| g.entries[0].participant.clear()),
        ("entries.participant", |g| g.entries[0].participant.push('x')),
        ("entries.model", |g| g.entries[0].model.clear()),
        ("entries.entry: is missing", |g| g.entries[0].entry = None),
        ("entries:", |g| g.entries.swap(0, 1)),
        ("entries:", |g| g.entries[1] = g.entries[0].clone()),
        ("entries:", |g| g.entries[0].epoch = 1),
        ("overrides.participant", |g| g.overrides[0].participant.clear()),
        ("overrides.model", |g| g.overrides[0].model.clear()),
        ("overrides.to", |g| g.overrides[0].to = 0),
        ("overrides.to", |g| g.overrides[0].to = 7),
        ("overrides.until_block", |g| g.overrides[0].until_block = -1),
        ("overrides:", |g| g.overrides.push(g.overrides[0].clone())),
        ("rings.model", |g| g.rings[0].model.clear()),
        ("rings.since_block", |g| g.rings[0].since_block = -1),
        ("rings.width", |g| g.rings[0].width = 0),
        ("rings.buckets.weight", |g| g.rings[0].buckets[0].weight = "010".into()),
        ("rings.buckets:", |g| g.rings[0].buckets[0].weight = "0".into()),
        ("rings.buckets:", |g| g.rings[0].buckets.reverse()),
        ("rings:", |g| g.rings.push(g.rings[0].clone())),
    ];
    for (n, (field, change)) in cases.into_iter().enumerate() {
        let mut genesis = good();
        change(&mut genesis);
        let text = validate(&genesis).unwrap_err();
        assert!(text.contains(field), "case {n}: {text:?} should name {field}");
    }
    let mut genesis = good();
    let one = genesis.overrides[0].clone();
    let many = (0..=OVERRIDES_MAX as u64).map(|n| addr_n(n).to_bech32(&Hrp::default()));
    genesis.overrides = many.map(|participant| pb::Override { participant, ..one.clone() }).collect();
    assert!(validate(&genesis).unwrap_err().contains("overrides: at most 256"));
    let mut unknown_field = good().encode_to_vec();
    unknown_field.extend([0x78, 1]);
    let module = BreakerModule(Scene::three().group);
    let error = module.validate_genesis(&unknown_field, &Hrp::default()).unwrap_err();
    assert!(error.message.starts_with("breaker genesis: "), "{error}");
}
