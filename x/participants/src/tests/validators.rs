//! Validator power: worked sets, bounded steps under random changes, and what the engine would refuse.

use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_store::{GasConfig, GasMeter, MeteredKv};

use super::history::{PEOPLE, history_world, random_block};
use super::*;
use crate::calc::{self, Powers};
use crate::state::NEXT_TOTALS;

/// The key that [`register_msg`] gives.
fn key(address: Address) -> Vec<u8> {
    register_msg(&TestChain::new(1), address).validator_key
}

/// A participant of a genesis with `weight` in `a`, and a key of its own.
fn member(n: u64, weight: u128) -> pb::Participant {
    pb::Participant {
        address: TestChain::new(1).bech32(&addr_n(n)),
        validator_key: key(addr_n(n)),
        models: vec!["a".into()],
        collateral: (weight * 10).to_string(),
        status: pb::ParticipantStatus::Active.into(),
        ..Default::default()
    }
}

fn genesis(weights: &[u128], max_validators: u32, max_validator_change_permille: u32) -> pb::GenesisState {
    let params = Params { max_validators, max_validator_change_permille, ..small_params() };
    pb::GenesisState {
        params: Some(params.to_pb()),
        models: vec![pb::Model { id: "a".into() }, pb::Model { id: "b".into() }],
        participants: (1..).zip(weights).map(|(n, weight)| member(n, *weight)).collect(),
        ..Default::default()
    }
}

/// Epochs of ten blocks, height 2; participants 1, 2, … weigh `weights`.
fn world(weights: &[u128], max_validators: u32, permille: u32) -> World {
    let mut w = World::from_genesis(10, 0, 1, &genesis(weights, max_validators, permille));
    let bonded = weights.iter().sum::<u128>() * 10;
    w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("participants"), DENOM, bonded));
    for n in 1..=weights.len() as u64 {
        w.rich(addr_n(n));
    }
    let first = w.comet.clone();
    w.go(2);
    assert_eq!(w.comet, first, "the first block of a chain changes nothing");
    w
}

/// The set as (participant, power), by participant; `None` where there is nobody behind a key.
fn set(w: &World) -> Vec<(Option<Address>, u64)> {
    let rows = crate::validators::stored(&w.chain.store).unwrap();
    let mut rows: Vec<_> = rows.into_values().map(|v| (v.participant, v.power)).collect();
    rows.sort();
    rows
}

fn of(rows: &[(u64, u64)]) -> Vec<(Option<Address>, u64)> {
    rows.iter().map(|(n, power)| (Some(addr_n(*n)), *power)).collect()
}

/// Ends the running block and goes to the end of the first block of the next epoch; what the engine is told there.
fn next_epoch(w: &mut World) -> Vec<ValidatorUpdate> {
    let next = w.epochs.at(w.chain.block.height).end();
    w.go(next);
    let updates = w.end();
    assert_eq!(w.end(), [], "told once");
    updates
}

fn told(rows: &[(u64, i64)]) -> Vec<ValidatorUpdate> {
    rows.iter().map(|(n, power)| ValidatorUpdate { public_key: key(addr_n(*n)), power: *power }).collect()
}

/// Where the set should be, by reading every member of every model.
fn wanted(w: &World) -> BTreeMap<Vec<u8>, i64> {
    let (store, block, keeper) = (&w.chain.store, &w.chain.block, w.keeper());
    let mut weights: BTreeMap<Address, u64> = BTreeMap::new();
    for model in keeper.models(store).unwrap() {
        for (address, standing) in keeper.members(store, block, &model).unwrap() {
            if w.stored(address).validator_key.len() == 32 {
                let most = weights.entry(address).or_default();
                *most = standing.weight.max(*most);
            }
        }
    }
    let mut ranked: Vec<(u64, Address)> = weights.into_iter().map(|(a, weight)| (weight, a)).collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    ranked.truncate(keeper.params(store).unwrap().max_validators as usize);
    ranked.into_iter().map(|(weight, a)| (w.stored(a).validator_key, weight as i64 * 1_000)).collect()
}

#[test]
fn a_genesis_makes_the_heaviest_validators_and_the_first_block_changes_nothing() {
    let mut w = world(&[5, 0, 9, 5, 7, 5], 4, 200);
    // Ties by address: 1 and 4 before 6.
    assert_eq!(set(&w), of(&[(1, 5_000), (3, 9_000), (4, 5_000), (5, 7_000)]));
    let first = w.keeper().genesis_validators(&w.chain.store).unwrap();
    assert_eq!(first, told(&[(1, 5_000), (3, 9_000), (4, 5_000), (5, 7_000)]));
    assert_eq!(next_epoch(&mut w), []);
}

#[test]
fn a_newcomer_gets_its_power_in_steps_of_the_share_at_boundaries_only() {
    // 20,000 in all: 2,000 may move, then a tenth of what there is.
    let mut w = world(&[10, 10], 4, 100);
    w.join(addr_n(3), &["a"], 50);
    assert_eq!(next_epoch(&mut w), told(&[(3, 2_000)]));
    assert_eq!(next_epoch(&mut w), told(&[(3, 4_200)]));
    assert_eq!(next_epoch(&mut w), told(&[(3, 5_000)]));
    assert_eq!(next_epoch(&mut w), []);
    assert_eq!(set(&w), of(&[(1, 10_000), (2, 10_000), (3, 5_000)]));
}

#[test]
fn who_leaves_goes_in_steps_and_less_collateral_is_less_power() {
    let mut w = world(&[6, 20, 20], 4, 200);
    w.leave(addr_n(1)).unwrap();
    w.withdraw(addr_n(2), 50).unwrap();
    // 46,000: 9,200 may move, falls take half of it first and the rest as nothing rises.
    assert_eq!(next_epoch(&mut w), told(&[(1, 0), (2, 16_800)]));
    assert_eq!(next_epoch(&mut w), told(&[(2, 15_000)]));
    assert_eq!(set(&w), of(&[(2, 15_000), (3, 20_000)]));
}

#[test]
fn a_single_validator_hands_over_to_another_without_a_gap() {
    let mut w = world(&[1], 1, 300);
    w.leave(addr_n(1)).unwrap();
    w.join(addr_n(2), &["a"], 10);
    let mut powers = Vec::new();
    for _ in 0..8 {
        next_epoch(&mut w);
        powers.push(set(&w));
    }
    let pairs = [(850, 150), (700, 300), (550, 450), (400, 600), (250, 750), (100, 900)];
    for (found, (one, two)) in powers.iter().zip(pairs) {
        assert_eq!(found, &of(&[(1, one), (2, two)]));
    }
    assert_eq!(powers[6..], [of(&[(2, 1_000)]), of(&[(2, 1_000)])]);
}

#[test]
fn when_everybody_leaves_the_last_set_stays() {
    let mut w = world(&[3, 4], 4, 333);
    w.leave(addr_n(1)).unwrap();
    w.leave(addr_n(2)).unwrap();
    for _ in 0..5 {
        assert_eq!(next_epoch(&mut w), []);
    }
    assert_eq!(set(&w), of(&[(1, 3_000), (2, 4_000)]));
}

#[test]
fn messages_of_the_first_block_count_only_where_they_take_out() {
    let change = |step: fn(&mut World)| {
        let mut w = world(&[10, 10, 10], 4, 100);
        w.go(11);
        step(&mut w);
        let updates = w.end();
        w.check("first block");
        updates
    };
    assert_eq!(change(|w| w.deposit(addr_n(1), 50).unwrap()), []);
    assert_eq!(change(|w| w.join(addr_n(4), &["a"], 50)), []);
    assert_eq!(change(|w| assert_eq!(w.withdraw(addr_n(1), 50), Ok(2))), []);
    assert_eq!(change(|w| w.update(addr_n(1), &["a", "b"], false).unwrap()), []);
    assert_eq!(change(|w| w.leave(addr_n(1)).unwrap()), told(&[(1, 7_000)]));
    assert_eq!(change(|w| w.update(addr_n(1), &["b"], false).unwrap()), told(&[(1, 7_000)]));
    assert_eq!(change(|w| w.deactivate(addr_n(1)).unwrap()), told(&[(1, 7_000)]));
}

#[test]
fn inside_an_epoch_nothing_changes_the_set_and_a_verdict_ends_with_the_epoch() {
    let mut w = world(&[10, 10, 10], 4, 100);
    w.go(12);
    w.deactivate(addr_n(1)).unwrap();
    w.leave(addr_n(2)).unwrap();
    w.go(20);
    assert_eq!(set(&w), of(&[(1, 10_000), (2, 10_000), (3, 10_000)]));
    assert_eq!(next_epoch(&mut w), told(&[(2, 7_000)]));
}

#[test]
fn a_new_key_comes_as_the_old_one_goes_and_an_old_key_can_be_another_participants() {
    let mut w = world(&[10, 10], 4, 300);
    w.leave(addr_n(1)).unwrap();
    w.rich(addr_n(1));
    let new = vec![1; 32];
    let msg = pb::MsgRegisterParticipant { validator_key: new.clone(), ..register_msg(&w.chain, addr_n(1)) };
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    let update = |key: &[u8], power| ValidatorUpdate { public_key: key.to_vec(), power };
    let old = key(addr_n(1));
    assert_eq!(next_epoch(&mut w), [update(&new, 3_000), update(&old, 7_000)]);
    // The key that is free now is taken by a third; the first's row is the third's from its first epoch on.
    w.rich(addr_n(3));
    let msg = pb::MsgRegisterParticipant { validator_key: old.clone(), ..register_msg(&w.chain, addr_n(3)) };
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    assert_eq!(next_epoch(&mut w), [update(&new, 9_000)]);
    assert_eq!(set(&w), of(&[(1, 9_000), (2, 10_000), (3, 7_000)]));
    assert_eq!(next_epoch(&mut w), [update(&new, 10_000), update(&old, 10_000)]);
    w.check("keys");
}

#[test]
fn a_key_of_another_type_never_reaches_the_engine_but_votes() {
    let mut state = genesis(&[10, 10], 4, 200);
    state.participants[0].validator_key = vec![2; 33];
    let w = World::from_genesis(10, 0, 1, &state);
    assert_eq!(set(&w), of(&[(2, 10_000)]));
    assert_eq!(w.keeper().power(&w.chain.store, &w.chain.block, &addr_n(1)).unwrap(), 10);
    assert_eq!(w.keeper().total_power(&w.chain.store, &w.chain.block).unwrap(), 20);
}

#[test]
fn votes_weigh_once_whatever_the_models_and_follow_the_group() {
    let mut w = world(&[10, 4], 4, 200);
    let votes = |w: &World| {
        let (k, store, block) = (w.keeper(), &w.chain.store, &w.chain.block);
        let each = [1, 2, 3].map(|n| k.power(store, block, &addr_n(n)).unwrap());
        (each, k.total_power(store, block).unwrap())
    };
    w.update(addr_n(1), &["a", "b"], false).unwrap();
    w.join(addr_n(3), &["a", "b"], 70);
    assert_eq!(votes(&w), ([10, 4, 0], 14));
    next_epoch(&mut w);
    assert_eq!(votes(&w), ([10, 4, 7], 21));
    w.update(addr_n(1), &["b"], false).unwrap();
    w.deactivate(addr_n(2)).unwrap();
    w.announce(addr_n(1), w.chain.block.height + 2, w.chain.block.height + 5).unwrap();
    w.go(w.chain.block.height + 3);
    assert_eq!(votes(&w), ([10, 4, 7], 21), "a model less, a verdict, maintenance");
    w.update(addr_n(1), &[], false).unwrap();
    w.leave(addr_n(3)).unwrap();
    assert_eq!(votes(&w), ([0, 4, 0], 4));
}

#[test]
fn a_set_taken_over_keeps_its_shares_and_passes_to_participants_in_steps() {
    let mut w = world(&[], 4, 200);
    let given: Vec<_> =
        [(9, 30), (8, 10)].map(|(n, power)| ValidatorUpdate { public_key: vec![n; 32], power }).to_vec();
    assert_eq!(w.keeper().genesis_validators(&w.chain.store).unwrap(), []);
    for (bad, text) in [
        (vec![given[0].clone(), given[0].clone()], "twice"),
        (vec![ValidatorUpdate { power: -1, ..given[0].clone() }], "negative"),
        (vec![ValidatorUpdate { public_key: vec![1; 31], power: 1 }], "validator_key"),
        (vec![ValidatorUpdate { power: i64::MAX / 8, ..given[0].clone() }, given[1].clone()], "total power"),
    ] {
        let (_, _, found) = w.refused(|ctx, k, _| k.adopt_validators(ctx, &bad));
        assert!(found.contains(text), "{found}");
    }
    w.send(|ctx, k, _| k.adopt_validators(ctx, &given)).unwrap();
    let first = w.keeper().genesis_validators(&w.chain.store).unwrap();
    let expected = [(8, 250_000 * 4), (9, 750_000 * 4)];
    let expected = expected.map(|(n, power)| ValidatorUpdate { public_key: vec![n; 32], power });
    // 30 + 10 is below a million until times 100,000.
    assert_eq!(first, expected);
    w.comet.set = first.into_iter().map(|v| (v.public_key, v.power)).collect();
    // A second set is not taken.
    w.send(|ctx, k, _| k.adopt_validators(ctx, &given[..1])).unwrap();
    assert_eq!(w.keeper().genesis_validators(&w.chain.store).unwrap(), expected);
    for _ in 0..2 {
        assert_eq!(next_epoch(&mut w), [], "nobody to hand over to");
    }
    let bytes = w.export();
    let copy = World::from_genesis(10, 0, 22, &pb::GenesisState::decode(bytes.as_slice()).unwrap());
    assert_eq!((copy.export(), copy.comet.clone()), (bytes, w.comet.clone()));
    w.join(addr_n(1), &["a"], 20_000);
    for _ in 0..12 {
        next_epoch(&mut w);
    }
    assert_eq!(set(&w), of(&[(1, 2_000_000)]));
}

#[test]
fn a_key_taken_over_is_its_participants_if_there_is_one() {
    let mut w = world(&[0], 4, 200);
    let given = [told(&[(1, 5_000_000)]), told(&[(2, 1_000_000)])].concat();
    w.send(|ctx, k, _| k.adopt_validators(ctx, &given)).unwrap();
    assert_eq!(set(&w), [(None, 1_000_000), (Some(addr_n(1)), 5_000_000)]);
}

#[test]
fn the_first_weights_of_a_chain_without_validators_become_its_set_at_once() {
    let mut w = world(&[], 2, 200);
    for n in 1..=3 {
        w.join(addr_n(n), &["a"], 10 * u128::from(n));
    }
    assert_eq!(next_epoch(&mut w), told(&[(2, 2_000), (3, 3_000)]));
}

#[test]
fn a_smaller_limit_takes_the_lightest_out_first() {
    let mut w = world(&[1, 2, 3, 4], 4, 333);
    w.set_params(
        &Params { max_validators: 2, ..w.keeper().params(&w.chain.store).unwrap() },
        &["max_validators"],
    )
    .unwrap();
    // 10,000: 3,330 may go.
    assert_eq!(next_epoch(&mut w), told(&[(1, 0), (2, 0)]));
    assert_eq!(set(&w), of(&[(3, 3_000), (4, 4_000)]));
}

#[test]
fn powers_are_a_thousand_a_weight_until_the_engine_cannot_count_them() {
    assert_eq!(calc::powers(&[1, 2]), [1_000, 2_000]);
    assert_eq!(calc::powers(&[]), [] as [u64; 0]);
    // (2^64 − 1) · 1000 / 2^14, rounded down; half of that shift would be above 2^60 − 1.
    assert_eq!(calc::powers(&[u64::MAX, 1]), [1_125_899_906_842_623_999, 1]);
    let sum: u128 = calc::powers(&[u64::MAX; 500]).into_iter().map(u128::from).sum();
    assert!(sum <= u128::from(TOTAL_POWER_MAX) && sum > u128::from(TOTAL_POWER_MAX / 2), "{sum}");
    assert_eq!(u128::from(TOTAL_POWER_MAX), (i64::MAX / 8) as u128);
}

#[test]
fn falls_take_half_of_what_may_move_and_newcomers_wait_for_room() {
    let powers = |rows: &[(u8, u64)]| -> Powers { rows.iter().map(|(n, p)| (vec![*n], *p)).collect() };
    let old = powers(&[(1, 400), (2, 100), (3, 300), (4, 200)]);
    // 333 may move. 167 for falls: 2 goes (100), 1 falls by 67. 166 for rises: 5 wants most.
    let target = powers(&[(3, 400), (4, 200), (5, 900)]);
    assert_eq!(calc::step(&old, &target, 333, 5), powers(&[(1, 333), (3, 300), (4, 200), (5, 166)]));
    // Without room for 5 the place that 2 leaves is its; with less still, 3 rises and falls take the rest.
    assert_eq!(calc::step(&old, &target, 333, 4), powers(&[(1, 333), (3, 300), (4, 200), (5, 166)]));
    assert_eq!(calc::step(&old, &target, 333, 3), powers(&[(1, 267), (3, 400), (4, 200)]));
    // Who shrinks most comes first, after those who go.
    let target = powers(&[(1, 300), (2, 90), (3, 100), (4, 200)]);
    assert_eq!(calc::step(&old, &target, 100, 4), powers(&[(1, 400), (2, 100), (3, 200), (4, 200)]));
    assert_eq!(calc::step(&old, &Powers::new(), 333, 4), old);
    assert_eq!(calc::step(&Powers::new(), &target, 10, 4), target);
}

#[test]
fn any_step_is_bounded_and_steps_arrive() {
    for seed in 51..=58 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut at = Powers::new();
        for round in 0..60 {
            let limit = 1 + rng.below(6) as usize;
            let permille = 10 + rng.below(324) as u32;
            let huge = rng.chance(20);
            let weights: Vec<u64> =
                (0..limit).map(|_| if huge { rng.next_u64().max(1) } else { 1 + rng.below(1_000) }).collect();
            let mut target = Powers::new();
            for power in calc::powers(&weights) {
                target.insert(vec![rng.below(12) as u8], power);
            }
            let steps = if rng.chance(30) { 5_000 } else { 1 + rng.below(4) };
            let mut taken = 0;
            while taken < steps && at != target {
                let about = format!("seed {seed}, round {round}, step {taken}");
                let next = calc::step(&at, &target, permille, limit + 1);
                if !at.is_empty() {
                    let power = |set: &Powers, k: &Vec<u8>| i128::from(set.get(k).copied().unwrap_or(0));
                    let keys: std::collections::BTreeSet<_> = at.keys().chain(next.keys()).collect();
                    let moved: i128 = keys.iter().map(|k| (power(&next, k) - power(&at, k)).abs()).sum();
                    let old = calc::total(&at) as i128;
                    assert!(moved * 1_000 <= old * i128::from(permille), "{about}: {moved} of {old}");
                    assert!(moved > 0, "{about}: stuck at {at:?} before {target:?}");
                    // Every key is between where it was and where it should be.
                    for k in keys {
                        let (a, b, c) = (power(&at, k), power(&next, k), power(&target, k));
                        assert!(a.min(c) <= b && b <= a.max(c), "{about}");
                    }
                    assert!(next.len() <= at.len().max(limit + 1), "{about}");
                    assert!(calc::total(&next) <= calc::total(&at).max(calc::total(&target)), "{about}");
                }
                assert!(!next.is_empty() && next.values().all(|p| *p > 0), "{about}");
                at = next;
                taken += 1;
            }
            assert!(steps < 5_000 || at == target, "seed {seed}, round {round}: never arrives");
        }
    }
}

#[test]
fn random_histories_tell_the_engine_nothing_it_refuses_and_arrive_when_weights_stand_still() {
    let (mut told, mut joined, mut gone) = (0, 0, 0);
    for seed in 61..=66 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = history_world();
        let params = |rng: &mut Rng| Params {
            max_validators: 1 + rng.below(6) as u32,
            max_validator_change_permille: 50 + rng.below(284) as u32,
            ..small_params()
        };
        let mask = ["max_validators", "max_validator_change_permille"];
        w.source.polled.set(seed % 2 == 0);
        while w.chain.block.height < 600 {
            let before = w.comet.clone();
            if rng.chance(3) {
                w.set_params(&params(&mut rng), &mask).unwrap();
            }
            if w.source.polled.get() && rng.chance(10) {
                let weight = if rng.chance(10) { u64::MAX - rng.below(9) } else { rng.below(20) };
                w.source.given.borrow_mut().insert(addr(1 + rng.below(PEOPLE.into()) as u8), weight);
            }
            // Its end checks that the list is legal, sorted, within the bound, and what is stored.
            random_block(&mut w, &mut rng, seed);
            told += usize::from(before != w.comet);
            joined += w.comet.set.keys().filter(|key| !before.set.contains_key(*key)).count();
            gone += before.set.keys().filter(|key| !w.comet.set.contains_key(*key)).count();
            assert!(before.set.is_empty() || !w.comet.set.is_empty(), "seed {seed}: an empty set");
        }
        // Weights stand still: with no huge ones left, a few hundred epochs are enough whatever the set was.
        w.source.polled.set(false);
        w.source.given.borrow_mut().clear();
        for n in 1..=PEOPLE {
            let _ = w.leave(addr(n));
        }
        for n in [2, 5, 7] {
            w.join(addr(n), &["b"], 100 + u128::from(n));
        }
        let settled = params(&mut rng);
        w.set_params(&settled, &mask).unwrap();
        w.epochs.length = 1;
        w.epochs.start_height = w.chain.block.height - w.chain.block.epoch as i64;
        for _ in 0..1_500 {
            w.go(w.chain.block.height + 1);
        }
        w.end();
        let wanted = wanted(&w);
        assert!(!wanted.is_empty());
        assert_eq!(w.comet.set, wanted, "seed {seed}");
        w.check("settled");
    }
    assert!(told > 60 && joined > 30 && gone > 20, "histories too tame: {told} {joined} {gone}");
}

#[test]
fn the_first_block_of_an_epoch_costs_the_same_however_many_participants_there_are() {
    let cost = |participants: usize| {
        let weights: Vec<u128> = (0..participants as u128).map(|n| 1_000_000 + n % 7).collect();
        let mut w = world(&weights, 10, 200);
        w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("participants"), DENOM, RICH * 1_000_000_000));
        w.withdraw(addr_n(7), 10).unwrap();
        w.go(10);
        w.end();
        w.epochs.move_to(&mut w.chain.block, 11);
        let meter = GasMeter::new(u64::MAX);
        let (block, mut store) = (w.chain.block.clone(), w.chain.store.clone());
        let mut metered = MeteredKv::new(&mut store, &meter, GasConfig::SDK);
        let mut events = Vec::new();
        let mut ctx = Context::new(&block, &mut metered, &mut events);
        w.keeper().start_epoch(&mut ctx).unwrap();
        w.keeper().validator_updates(&mut ctx).unwrap();
        meter.used()
    };
    let (few, many) = (cost(500), cost(8_000));
    assert!(many.abs_diff(few) * 100 < few, "{few} for 500, {many} for 8,000");
}

#[test]
fn a_fresh_genesis_computes_the_set_and_that_of_a_running_chain_is_taken_as_it_is() {
    // A set on its way from 1 to 2, and its parameters from before there were any.
    let mut w = world(&[10, 10], 4, 200);
    w.leave(addr_n(1)).unwrap();
    next_epoch(&mut w);
    let bytes = w.export();
    let state = pb::GenesisState::decode(bytes.as_slice()).unwrap();
    assert_eq!(state.validators.iter().map(|v| v.power).collect::<Vec<_>>(), [6_000, 10_000]);
    let copy = World::from_genesis(10, 0, 12, &state);
    assert_eq!((copy.export(), set(&copy)), (bytes, of(&[(1, 6_000), (2, 10_000)])));
    let mut old = pb::GenesisState { validators: Vec::new(), ..state };
    let params = old.params.as_mut().unwrap();
    (params.max_validators, params.max_validator_change_permille) = (0, 0);
    let copy = World::from_genesis(10, 0, 12, &old);
    assert_eq!(set(&copy), [], "a running chain without validators has none on purpose");
    let params = copy.keeper().params(&copy.chain.store).unwrap();
    assert_eq!((params.max_validators, params.max_validator_change_permille), (100, 200));
}

#[test]
fn the_query_pages_through_the_set_by_key() {
    let mut w = world(&[10, 20, 30], 4, 200);
    w.leave(addr_n(1)).unwrap();
    let row = |n: u64, power| pb::Validator {
        validator_key: key(addr_n(n)),
        participant: w.chain.bech32(&addr_n(n)),
        power,
    };
    let page = |key: Vec<u8>, limit| {
        let pagination = Some(PageRequest { key, limit, ..Default::default() });
        query_server::validators(w.chain.query(), pb::QueryValidatorsRequest { pagination }).unwrap()
    };
    let first = page(Vec::new(), 2);
    assert_eq!(first.validators, [row(1, 10_000), row(2, 20_000)]);
    let second = page(first.pagination.unwrap().next_key, 2);
    assert_eq!(second.validators, [row(3, 30_000)]);
    assert!(second.pagination.unwrap().next_key.is_empty());
}

#[test]
fn a_model_that_lost_its_last_member_keeps_no_row_of_sums() {
    let mut w = world(&[10], 4, 200);
    assert!(NEXT_TOTALS.has(&w.chain.store, &"a".to_owned()).unwrap());
    w.leave(addr_n(1)).unwrap();
    assert!(!NEXT_TOTALS.has(&w.chain.store, &"a".to_owned()).unwrap());
}

#[test]
fn nobody_is_inactive_before_the_first_block_of_a_chain() {
    let mut bad = genesis(&[10, 20], 4, 200);
    bad.participants[1].status = pb::ParticipantStatus::Inactive.into();
    let mut w = World::new(10, 0);
    w.chain = TestChain::new(1);
    let error = w.init(&bad).unwrap_err();
    assert!(error.message.contains("participants.status"), "{error}");
}
