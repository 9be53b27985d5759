//! Genesis: what is refused, what a fresh chain gets, and that an exported chain goes on as it was.

use super::history::{history_world, random_block};
use super::params::BAD;
use super::*;
use crate::state::{INACTIVE, MEMBERS, NEXT_TOTALS, PARTICIPANTS, REFRESH_CURSOR};

/// Exports `w` after its block has ended and starts a chain from it that stands where `w` stands.
fn reborn(w: &World) -> World {
    let height = w.chain.block.height;
    let bytes = w.export();
    let mut chain = TestChain::new(height + 1);
    chain.block.epoch = w.chain.block.epoch;
    for (key, value) in w.chain.store.pairs().filter(|(k, _)| k.starts_with(b"membank/")) {
        chain.ctx(|ctx| ctx.store.set(key, value)).unwrap();
    }
    let (source, ears, comet) = Default::default();
    let mut new = World { chain, epochs: w.epochs, source, ears, comet };
    new.source.polled.set(w.source.polled.get());
    *new.source.given.borrow_mut() = w.source.given.borrow().clone();
    *new.ears.sums.borrow_mut() = w.ears.sums.borrow().clone();
    new.init(&pb::GenesisState::decode(bytes.as_slice()).unwrap()).unwrap();
    new.epochs.move_to(&mut new.chain.block, height);
    assert_eq!(new.export(), bytes, "export, init, export");
    assert_eq!(new.comet, w.comet, "the validators go on");
    new
}

/// Every row in hex, but for sums that are zero, which a new chain does not write, and the cursor of a sweep, which
/// begins at the first weight that is to change.
fn rows(w: &World) -> Vec<String> {
    let zero = borsh::to_vec(&NextTotals::default()).unwrap();
    let other = |k: &[u8], v: &[u8]| {
        !(NEXT_TOTALS.parse_key(k).is_some() && v == zero || k == REFRESH_CURSOR.key().as_slice())
    };
    let rows = w.chain.store.pairs().filter(|(k, v)| other(k, v));
    rows.map(|(k, v)| format!("{} = {}", hex::encode(k), hex::encode(v))).collect()
}

#[track_caller]
fn same(copy: &World, original: &World, about: &str) {
    let (copy, original) = (rows(copy), rows(original));
    for row in &copy {
        assert!(original.contains(row), "{about}: only the copy has {row}");
    }
    for row in &original {
        assert!(copy.contains(row), "{about}: the copy lacks {row}");
    }
}

#[test]
fn a_history_goes_on_alike_after_export_and_import_at_random_points() {
    for seed in 41..=46 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = history_world();
        w.source.polled.set(seed == 46);
        for _ in 0..6 {
            for _ in 0..10 + rng.below(30) {
                random_block(&mut w, &mut rng, seed);
            }
            let mut copy = reborn(&w);
            same(&copy, &w, &format!("seed {seed}, height {}", w.chain.block.height));
            copy.check("imported");
            let (mut here, mut there) = (rng.clone(), rng.clone());
            let mut one = World {
                chain: w.chain.clone(),
                epochs: w.epochs,
                source: Source::default(),
                ears: Ears::default(),
                comet: w.comet.clone(),
            };
            one.source.polled.set(w.source.polled.get());
            *one.ears.sums.borrow_mut() = w.ears.sums.borrow().clone();
            one.told();
            for _ in 0..45 {
                random_block(&mut one, &mut here, seed);
                random_block(&mut copy, &mut there, seed);
                assert_eq!(one.told(), copy.told(), "seed {seed}, height {}", one.chain.block.height);
                assert_eq!(one.ears.seen.take(), copy.ears.seen.take());
            }
            same(&copy, &one, &format!("seed {seed}, height {}", one.chain.block.height));
            assert_eq!(copy.export(), one.export());
        }
    }
}

#[test]
fn a_participant_without_rows_is_a_member_of_the_epoch_the_chain_begins_in() {
    let participant = |n: u8, collateral: &str, poc_preserved| pb::Participant {
        address: TestChain::new(1).bech32(&addr(n)),
        validator_key: vec![n; 32],
        models: vec!["a".into()],
        collateral: collateral.into(),
        poc_preserved,
        status: pb::ParticipantStatus::Active.into(),
        ..Default::default()
    };
    let genesis = pb::GenesisState {
        params: Some(small_params().to_pb()),
        models: vec![pb::Model { id: "a".into() }],
        participants: vec![
            participant(1, "100", true),
            participant(2, "55", false),
            participant(3, "", false),
        ],
        ..Default::default()
    };
    let mut w = World::from_genesis(10, 2, 1, &genesis);
    w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("participants"), DENOM, 155));
    assert_eq!(*w.ears.sums.borrow(), Sums::from([("a".into(), (15, 2, 1))]));
    let standing =
        Standing { member: true, active: true, weight: 10, preserved: true, in_maintenance: false };
    assert_eq!(w.standing("a", addr(1)), standing);
    assert_eq!((w.weight("a", addr(2)), w.weight("a", addr(3))), (5, 0));
    w.check("fresh");
    assert_eq!(REFRESH_CURSOR.get(&w.chain.store).unwrap(), None);
    w.go(11);
    assert_eq!(*w.ears.sums.borrow(), Sums::from([("a".into(), (15, 2, 1))]));
    // In a later epoch as well: it stands in 2 when block 31 is its first.
    let w = World::from_genesis(10, 2, 30, &genesis);
    assert_eq!((w.row("a", addr(1)).epoch, w.weight("a", addr(1))), (2, 10));
}

#[test]
fn a_served_model_without_weight_is_not_given_any_by_an_import() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 0);
    w.go(12);
    w.end();
    let copy = reborn(&w);
    same(&copy, &w, "no weight");
    assert_eq!(copy.weight("a", addr(1)), 0);
}

#[test]
fn a_sweep_under_way_goes_on_after_an_import() {
    // The price changed in the block before the export.
    let mut w = World::new(100, 0);
    for n in 1..=600 {
        w.join(addr_n(n), &["a"], 10);
    }
    w.go(101);
    w.set_params(&Params { collateral_per_weight: 5, ..small_params() }, &["*"]).unwrap();
    for height in 101..=104 {
        w.go(height);
        w.end();
        let copy = reborn(&w);
        same(&copy, &w, &format!("height {height}"));
        let cursor = |w: &World| REFRESH_CURSOR.get(&w.chain.store).unwrap();
        assert_eq!(cursor(&copy), cursor(&w), "height {height}");
        assert_eq!(cursor(&w).is_some(), height < 104);
    }
}

#[test]
fn a_limit_of_models_below_their_number_can_be_exported() {
    let mut w = World::new(10, 0);
    w.set_params(&Params { max_models: 1, ..small_params() }, &["max_models"]).unwrap();
    w.end();
    same(&reborn(&w), &w, "limit");
}

/// One of each: active, inactive, left; intervals of each cause; a window open and two ahead. Height 105.
fn full() -> (World, pb::GenesisState) {
    let mut w = World::new(100, 20);
    for n in 1..=4 {
        w.join(addr(n), &["a", "b"], 100);
    }
    w.go(101);
    w.announce(addr(1), 103, 110).unwrap();
    w.announce(addr(1), 110, 120).unwrap();
    w.announce(addr(2), 150, 160).unwrap();
    w.update(addr(2), &["b"], true).unwrap();
    w.deactivate(addr(3)).unwrap();
    w.leave(addr(4)).unwrap();
    w.go(105);
    w.end();
    let genesis = pb::GenesisState::decode(w.export().as_slice()).unwrap();
    assert_eq!((genesis.participants.len(), genesis.members.len()), (4, 8));
    assert_eq!((genesis.unavailability.len(), genesis.windows.len(), genesis.validators.len()), (5, 3, 2));
    (w, genesis)
}

#[test]
fn an_import_rebuilds_open_windows_due_rows_and_sums() {
    let (mut w, _) = full();
    let mut copy = reborn(&w);
    same(&copy, &w, "full");
    assert!(copy.standing("a", addr(1)).in_maintenance && !copy.standing("a", addr(2)).in_maintenance);
    assert_eq!(INACTIVE.get(&copy.chain.store, &addr(3)).unwrap(), Some(1));
    w.told();
    for world in [&mut w, &mut copy] {
        world.go(210);
    }
    assert_eq!(w.told(), copy.told());
    same(&copy, &w, "full");
}

#[test]
fn every_bad_field_is_refused_by_name() {
    type Spoil = fn(&mut pb::GenesisState);
    let cases: &[(&str, Spoil)] = &[
        ("params", |g| g.params = None),
        ("models", |g| g.models[0].id.clear()),
        ("models", |g| g.models[0].id = "x".repeat(65)),
        ("models", |g| g.models.swap(0, 1)),
        ("models", |g| g.models.push(pb::Model { id: "c".into() })),
        ("models", |g| g.models.extend((0..62).map(|n| pb::Model { id: format!("d{n:02}") }))),
        ("participants.address", |g| g.participants[0].address.clear()),
        ("participants.address", |g| g.participants[0].address.push('x')),
        ("participants: rows", |g| g.participants.swap(0, 1)),
        ("participants: rows", |g| g.participants[1].address = g.participants[0].address.clone()),
        ("participants: validator_key", |g| g.participants[0].validator_key.clear()),
        ("participants.validator_key", |g| {
            g.participants[0].validator_key = g.participants[3].validator_key.clone();
        }),
        ("participants: host_url", |g| g.participants[0].host_url = "x".into()),
        ("participants: workers.url", |g| g.participants[0].workers = vec![Default::default()]),
        ("participants: workers.last_layer", |g| {
            let url = "http://w".into();
            g.participants[0].workers = vec![pb::WorkerEndpoint { url, first_layer: 1, last_layer: 0 }];
        }),
        ("participants: models", |g| g.participants[0].models.push("a".into())),
        ("participants: models", |g| g.participants[0].models.push("a b".into())),
        ("participants.models", |g| g.participants[0].models.push("z".into())),
        ("participants.collateral", |g| g.participants[0].collateral = "-1".into()),
        ("participants.unbonding:", |g| g.participants[0].unbonding = "x".into()),
        ("participants.unbonding_epoch", |g| g.participants[0].unbonding_epoch = 3),
        ("participants.joined_epoch", |g| g.participants[0].joined_epoch = 3),
        ("participants.inactive_epoch", |g| g.participants[2].inactive_epoch = 2),
        ("participants.status", |g| g.participants[0].status = 0),
        ("participants.status", |g| g.participants[0].status = 4),
        ("participants.status", |g| g.participants[0].status = -1),
        ("participants.status", |g| g.participants[3].collateral = "1".into()),
        ("participants.status", |g| g.participants[3].models = vec!["a".into()]),
        ("members.model", |g| g.members[0].model = "z".into()),
        ("members.participant", |g| g.members[0].participant.clear()),
        ("members.participant", |g| g.members[0].participant = TestChain::new(1).bech32(&addr(9))),
        ("members: rows", |g| g.members.swap(0, 1)),
        ("members: rows", |g| g.members[1] = g.members[0].clone()),
        ("members.epoch", |g| g.members[0].epoch = 2),
        // Participant 2 dropped `a`, participant 4 left.
        ("members.weight", |g| g.members[1].weight = 1),
        ("members.weight", |g| g.members[1].next_weight = 1),
        ("members.weight", |g| g.members[7].next_weight = 1),
        ("unavailability.participant", |g| g.unavailability[0].participant.clear()),
        ("unavailability.participant", |g| {
            g.unavailability[0].participant = TestChain::new(1).bech32(&addr(9));
        }),
        ("unavailability.model", |g| g.unavailability[1].model = "z".into()),
        ("unavailability.cause", |g| g.unavailability[0].cause = 0),
        ("unavailability.cause", |g| g.unavailability[0].cause = 5),
        ("unavailability.cause", |g| g.unavailability[0].cause = 257),
        ("unavailability.to_height", |g| g.unavailability[0].to_height = 102),
        ("unavailability.announced_at", |g| g.unavailability[0].announced_at = 104),
        ("unavailability: rows", |g| g.unavailability.swap(0, 1)),
        ("unavailability: opens two", |g| {
            let mut second = g.unavailability[0].clone();
            (second.from_height, second.to_height) = (110, 119);
            g.unavailability.insert(1, second);
        }),
        ("windows.participant", |g| g.windows[0].participant.clear()),
        ("windows.participant", |g| g.windows[0].participant = TestChain::new(1).bech32(&addr(9))),
        ("windows.end_height", |g| g.windows[0].end_height = 103),
        ("windows.announced_at", |g| g.windows[0].announced_at = 103),
        ("windows.start_height", |g| g.windows[1].start_height = 109),
        ("windows.start_height", |g| g.windows.swap(0, 1)),
        ("windows: rows", |g| g.windows.swap(1, 2)),
        ("validators: validator_key", |g| g.validators[0].validator_key.clear()),
        ("validators: rows", |g| g.validators.swap(0, 1)),
        ("validators: rows", |g| g.validators[1].validator_key = g.validators[0].validator_key.clone()),
        ("validators.participant", |g| g.validators[0].participant.push('x')),
        ("validators.participant", |g| g.validators[0].participant = TestChain::new(1).bech32(&addr(9))),
        ("validators.power", |g| g.validators[0].power = 0),
        ("validators.power", |g| g.validators[0].power = -1),
        ("validators: at most", |g| g.validators[0].power = i64::MAX / 8),
    ];
    let (w, good) = full();
    let fresh = || {
        let mut chain = TestChain::new(106);
        chain.block.epoch = 1;
        let (source, ears, comet) = Default::default();
        World { chain, epochs: w.epochs, source, ears, comet }
    };
    fresh().init(&good).unwrap();
    for (field, spoil) in cases {
        let mut genesis = good.clone();
        spoil(&mut genesis);
        let mut world = fresh();
        let error = world.init(&genesis).expect_err(field);
        assert_eq!((error.codespace, error.code), ("sdk", sdk::INVALID_REQUEST));
        assert!(error.message.starts_with(&format!("participants genesis: {field}")), "{field}: {error}");
        assert!(world.chain.store.is_empty(), "{field}");
    }
    for (field, spoil) in BAD {
        let mut genesis = good.clone();
        spoil(genesis.params.as_mut().unwrap());
        let error = fresh().init(&genesis).expect_err(field);
        assert!(error.message.starts_with(&format!("participants genesis: params: {field}")), "{error}");
    }
}

#[test]
fn bytes_that_are_no_genesis_are_refused() {
    let (w, good) = full();
    let module = ParticipantsModule { keeper: w.keeper() };
    let hrp = w.chain.block.hrp.clone();
    let bytes = good.encode_to_vec();
    module.validate_genesis(&bytes, &hrp).unwrap();
    let trailing = [bytes.as_slice(), &[0x7a, 1, 0]].concat();
    for bad in [&bytes[..bytes.len() - 1], &trailing, b"\xff", b""] {
        let error = module.validate_genesis(bad, &hrp).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", sdk::INVALID_REQUEST));
    }
    let other = holdfast_types::Hrp::new("other").unwrap();
    assert!(module.validate_genesis(&bytes, &other).is_err(), "addresses of another chain");
}

#[test]
fn a_fresh_chain_exports_what_it_was_given() {
    let w = World::new(10, 0);
    let module = ParticipantsModule { keeper: w.keeper() };
    let mut chain = TestChain::new(1);
    let bytes = module.default_genesis();
    chain.ctx(|ctx| module.init_genesis(ctx, &bytes)).unwrap();
    assert_eq!(module.export_genesis(&chain.store, &chain.block.hrp).unwrap(), bytes);
    assert_eq!(PARTICIPANTS.entries().iter(&chain.store, Order::Ascending).count(), 0);
    assert_eq!(MEMBERS.iter(&chain.store, Order::Ascending).count(), 0);
}
