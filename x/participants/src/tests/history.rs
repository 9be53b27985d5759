//! Random histories: whatever happens, in whatever order, the sums agree and the collateral is there.

use super::*;
use crate::state::{IN_MAINTENANCE, PARTICIPANTS, WINDOWS};

pub(crate) const PEOPLE: u8 = 12;

/// A world for histories: epochs of twenty blocks, the last four PoC.
pub(crate) fn history_world() -> World {
    let mut w = World::new(20, 4);
    for n in 1..=PEOPLE {
        w.rich(addr(n));
    }
    w
}

/// One random operation; refusals are part of a history. Returns what it was.
pub(crate) fn random_step(w: &mut World, rng: &mut Rng) -> String {
    let who = addr(1 + rng.below(PEOPLE.into()) as u8);
    let models: Vec<&str> = ["a", "b", "c"].into_iter().filter(|_| rng.chance(60)).collect();
    let (amount, flag, h) = (u128::from(rng.below(60)), rng.chance(40), w.chain.block.height);
    let (start, length) = (h + 1 + rng.below(12) as i64, 1 + rng.below(25) as i64);
    let (name, result) = match rng.below(20) {
        0..=4 => {
            let mut msg = register_msg(&w.chain, who);
            // Now and then with the key of another.
            if rng.chance(15) {
                msg.validator_key =
                    register_msg(&w.chain, addr(1 + rng.below(PEOPLE.into()) as u8)).validator_key;
            }
            msg.models = models.iter().map(|m| (*m).to_owned()).collect();
            (msg.collateral, msg.poc_preserved) = (Some(coin(amount)), flag);
            ("register", w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).map(|_| ()))
        }
        5..=7 => ("update", w.update(who, &models, flag)),
        8 | 9 => ("leave", w.leave(who)),
        10 | 11 => ("deposit", w.deposit(who, amount)),
        12 | 13 => ("withdraw", w.withdraw(who, amount).map(|_| ())),
        14 => ("claim", w.claim(who).map(|_| ())),
        15 | 16 => ("announce", w.announce(who, start, start + length)),
        17 => {
            let rows = WINDOWS.prefix(&w.chain.store, &who, Order::Ascending);
            let starts: Vec<Height> = rows.map(|r| r.unwrap().0.1).collect();
            let start = if starts.is_empty() { start } else { *rng.pick(&starts) };
            ("cancel", w.cancel(who, start))
        }
        18 => ("deactivate", w.deactivate(who)),
        _ => {
            let price = [5, 10, 25][rng.below(3) as usize];
            let params = Params { collateral_per_weight: price, ..small_params() };
            ("price", w.set_params(&params, &["collateral_per_weight"]))
        }
    };
    if let Err(error) = &result {
        assert!(
            error.codespace == "participants" || error.code == sdk::INSUFFICIENT_FUNDS,
            "{name}: {error}"
        );
    }
    format!("{name} {who:?} at {h}: {result:?}")
}

/// A block with up to four operations, checked after each.
pub(crate) fn random_block(w: &mut World, rng: &mut Rng, seed: u64) {
    w.begin(w.chain.block.height + 1);
    w.check(&format!("seed {seed}, begin of {}", w.chain.block.height));
    for _ in 0..rng.below(5) {
        let step = random_step(w, rng);
        w.check(&format!("seed {seed}, {step}"));
    }
    w.end();
}

/// Rows that belong together: windows, due rows, open windows.
fn due_rows_fit(w: &World, seed: u64) {
    let store = &w.chain.store;
    let mut expected = Vec::new();
    for row in WINDOWS.iter(store, Order::Ascending) {
        let ((address, start), window) = row.unwrap();
        let open = IN_MAINTENANCE.get(store, &address).unwrap() == Some(start);
        assert_eq!(open, start <= w.chain.block.height, "seed {seed}: {address:?} {start}");
        assert!(window.end_height > w.chain.block.height, "seed {seed}: a window outlived its end");
        expected.push((if open { window.end_height } else { start }, open, address, start));
    }
    expected.sort();
    let due: Vec<_> = crate::state::DUE.iter(store, Order::Ascending).map(Result::unwrap).collect();
    assert_eq!(due, expected, "seed {seed}");
    let open = IN_MAINTENANCE.iter(store, Order::Ascending).count();
    assert_eq!(open, expected.iter().filter(|row| row.1).count(), "seed {seed}");
}

#[test]
fn sums_hooks_and_collateral_agree_in_random_histories() {
    let mut names = BTreeMap::<String, u32>::new();
    for seed in 1..=8 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = history_world();
        while w.chain.block.height < 300 {
            random_block(&mut w, &mut rng, seed);
            due_rows_fit(&w, seed);
            let told = w.told();
            assert!(told.iter().all(|t| !t.starts_with("EventStepDiscarded")), "seed {seed}: {told:?}");
            for event in told {
                *names.entry(event.split(' ').next().unwrap().to_owned()).or_default() += 1;
            }
        }
        // Nothing is lost: everybody leaves, claims, and has what it began with.
        for n in 1..=PEOPLE {
            let _ = w.leave(addr(n));
        }
        w.go(321);
        for n in 1..=PEOPLE {
            let owed = PARTICIPANTS.get(&w.chain.store, &addr(n)).unwrap().map_or(0, |p| p.unbonding);
            assert_eq!(w.claim(addr(n)).is_ok(), owed > 0, "seed {seed}");
            assert_eq!(w.held(&addr(n)), RICH, "seed {seed}");
        }
        w.check("everybody gone");
    }
    for name in [
        "EventParticipantRegistered",
        "EventParticipantUpdated",
        "EventParticipantLeft",
        "EventCollateralDeposited",
        "EventCollateralWithdrawn",
        "EventCollateralClaimed",
        "EventMaintenanceAnnounced",
        "EventMaintenanceCancelled",
        "EventMaintenanceStarted",
        "EventMaintenanceEnded",
    ] {
        assert!(names.get(name).is_some_and(|n| *n > 20), "histories too tame: {name} in {names:?}");
    }
}

#[test]
fn a_polled_source_that_jumps_about_keeps_the_sums_right() {
    for seed in 21..=24 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = history_world();
        w.source.polled.set(true);
        while w.chain.block.height < 200 {
            for _ in 0..rng.below(4) {
                let who = addr(1 + rng.below(PEOPLE.into()) as u8);
                w.source.given.borrow_mut().insert(who, rng.below(5));
            }
            random_block(&mut w, &mut rng, seed);
            for row in crate::state::MEMBERS.iter(&w.chain.store, Order::Ascending) {
                let ((model, who), record) = row.unwrap();
                let serves = w.stored(who).models.contains(&model);
                let given = w.source.given.borrow().get(&who).copied();
                if let (true, Some(given)) = (serves, given) {
                    assert_eq!(record.next_weight, given, "seed {seed}: one block is enough for twelve");
                }
            }
        }
    }
}

#[test]
fn weight_in_a_group_never_grows_inside_an_epoch_and_never_changes_but_to_nothing() {
    for seed in 31..=34 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = history_world();
        let mut before = BTreeMap::new();
        while w.chain.block.height < 200 {
            random_block(&mut w, &mut rng, seed);
            let mut now = BTreeMap::new();
            for model in ["a", "b", "c"] {
                for n in 1..=PEOPLE {
                    let standing = w.standing(model, addr(n));
                    now.insert((model, n), (standing.weight, standing.preserved, standing.active));
                }
            }
            let first = w.epochs.at(w.chain.block.height).start_height == w.chain.block.height;
            for (key, (weight, preserved, active)) in &now {
                let Some((was, flag, was_active)) = before.get(key).filter(|_| !first) else { continue };
                assert!(weight == was || *weight == 0, "seed {seed}: {key:?} {was} to {weight}");
                assert!(*weight == 0 || preserved == flag, "seed {seed}: {key:?}");
                assert!(!active || *was_active, "seed {seed}: {key:?} is active again");
            }
            before = now;
        }
    }
}
