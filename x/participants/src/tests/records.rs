//! Records that roll by reading, and stored bytes. A change of the bytes is a change of consensus: it needs a new
//! consensus version and a migration.

use super::*;
use crate::state::{DUE, IN_MAINTENANCE, INACTIVE, MEMBERS, PARTICIPANTS, UNAVAILABILITY, WINDOWS};

fn hex(value: &impl borsh::BorshSerialize) -> String {
    hex::encode(borsh::to_vec(value).unwrap())
}

fn back<T: borsh::BorshSerialize + borsh::BorshDeserialize + PartialEq + std::fmt::Debug>(
    value: &T,
    bytes: &str,
) {
    let bytes: String = bytes.split_whitespace().collect();
    assert_eq!(hex(value), bytes);
    assert_eq!(&borsh::from_slice::<T>(&hex::decode(bytes).unwrap()).unwrap(), value);
}

#[test]
fn a_record_shifts_by_one_epoch_and_repeats_its_next_after_that() {
    let record = MemberRecord {
        epoch: 5,
        weight: 50,
        preserved: true,
        prev_weight: 40,
        prev_preserved: true,
        next_weight: 60,
        next_preserved: false,
    };
    assert_eq!(record.at(5), record);
    let next = MemberRecord {
        epoch: 6,
        weight: 60,
        preserved: false,
        prev_weight: 50,
        prev_preserved: true,
        ..record
    };
    assert_eq!(record.at(6), next);
    let later = MemberRecord { epoch: 9, prev_weight: 60, prev_preserved: false, ..next };
    assert_eq!(record.at(9), later);
    assert_eq!(record.at(4), record, "an earlier epoch shows what there is");
}

#[test]
fn rolling_one_epoch_at_a_time_equals_rolling_several() {
    let seed = 18;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    for _ in 0..2_000 {
        let record = MemberRecord {
            epoch: rng.below(9),
            weight: rng.below(4),
            preserved: rng.chance(50),
            prev_weight: rng.below(4),
            prev_preserved: rng.chance(50),
            next_weight: rng.below(4),
            next_preserved: rng.chance(50),
        };
        let mut stepped = record;
        for passed in 0..6 {
            assert_eq!(record.at(record.epoch + passed), stepped, "{record:?} after {passed}");
            let between = record.at(record.epoch + rng.below(passed + 1));
            assert_eq!(between.at(record.epoch + passed), stepped, "{record:?} in two leaps");
            stepped = stepped.at(stepped.epoch + 1);
        }
    }
}

#[test]
fn stored_types_keep_their_bytes() {
    back(
        &Participant {
            validator_key: vec![1, 2],
            host_url: "h".into(),
            workers: vec![Worker { url: "w".into(), first_layer: 3, last_layer: 4 }],
            models: vec!["ab".into()],
            poc_preserved: true,
            collateral: 5,
            unbonding: 6,
            unbonding_epoch: 7,
            left: true,
            joined_epoch: 8,
        },
        "02000000 0102 01000000 68 01000000 01000000 77 03000000 04000000 01000000 02000000 6162 01
         05000000000000000000000000000000 06000000000000000000000000000000 0700000000000000 01 0800000000000000",
    );
    back(
        &MemberRecord {
            epoch: 1,
            weight: 2,
            preserved: true,
            prev_weight: 3,
            prev_preserved: false,
            next_weight: 4,
            next_preserved: true,
        },
        "0100000000000000 0200000000000000 01 0300000000000000 00 0400000000000000 01",
    );
    back(
        &NextTotals { eligible_weight: 258, members: 3, preserved: 4 },
        "02010000000000000000000000000000 03000000 04000000",
    );
    back(&Window { end_height: 258, announced_at: 1 }, "0201000000000000 0100000000000000");
    back(&Interval { to_height: 2, announced_at: -1 }, "0200000000000000 ffffffffffffffff");
    back(
        &Params {
            collateral_denom: "uhold".into(),
            collateral_per_weight: 1,
            max_models: 2,
            min_announce_blocks: 3,
            max_maintenance_blocks: 4,
            max_maintenance_windows: 5,
            max_validators: 6,
            max_validator_change_permille: 7,
        },
        "05000000 75686f6c64 01000000000000000000000000000000 02000000 0300000000000000 0400000000000000 05000000
         06000000 07000000",
    );
    back(
        &Validator { participant: Some(addr(9)), power: 258 },
        &format!("01 {} 0201000000000000", "09".repeat(20)),
    );
    back(&Validator { participant: None, power: 1 }, "00 0100000000000000");
    back(&NextWeight { weight: 258, validator_key: vec![1, 2] }, "0201000000000000 02000000 0102");
    back(
        &PowerTotals { epoch: 1, weight: 2, next_weight: 258 },
        "0100000000000000 02000000000000000000000000000000 02010000000000000000000000000000",
    );
    back(&Some(addr(9)), &format!("01 {}", "09".repeat(20)));
    for (cause, byte) in
        [(Cause::Maintenance, 1), (Cause::Left, 2), (Cause::Inactive, 3), (Cause::ModelDropped, 4)]
    {
        assert_eq!((cause.byte(), Cause::from_byte(byte)), (byte, Some(cause)));
        back(&cause, &format!("{:02x}", byte - 1));
    }
    assert_eq!((Cause::from_byte(0), Cause::from_byte(5)), (None, None));
}

#[test]
fn keys_keep_their_bytes_and_due_rows_sort_by_height() {
    // Big-endian heights with the sign bit flipped; strings end with 00 01.
    let who = "09".repeat(20);
    let space = hex::encode("participants/");
    let is = |key: Vec<u8>, tail: String| assert_eq!(hex::encode(key), format!("{space}{tail}"));
    is(PARTICIPANTS.entries().key(&addr(9)), format!("03{who}"));
    is(MEMBERS.key(&("a".into(), addr(9))), format!("05610001{who}"));
    is(WINDOWS.key(&(addr(9), 258)), format!("09{who}8000000000000102"));
    let interval = (addr(9), 1, "a".to_owned(), Cause::Left.byte());
    is(UNAVAILABILITY.entries().key(&interval), format!("0b{who}800000000000000161000102"));
    let mut w = World::new(100, 0);
    for (height, closes) in [(300, false), (299, true), (2, true), (2, false)] {
        w.chain.ctx(|ctx| DUE.insert(ctx.store, &(height, closes, addr(9), 1))).unwrap();
    }
    let rows: Vec<_> =
        DUE.iter(&w.chain.store, Order::Ascending).map(|r| r.unwrap()).map(|r| (r.0, r.1)).collect();
    assert_eq!(rows, [(2, false), (2, true), (299, true), (300, false)]);
}

#[test]
fn every_collection_lies_in_the_space_of_the_module() {
    let w = World::new(100, 0);
    let module = ParticipantsModule { keeper: w.keeper() };
    assert!(check_prefix_table(&module));
    assert_eq!(module.name(), "participants");
    let numbers: Vec<u8> = module.collections().iter().map(|p| p.id).collect();
    assert_eq!(numbers, (1..=18).collect::<Vec<u8>>());
}

#[test]
fn keys_that_change_a_standing_are_watched_and_others_are_not() {
    let one = |model: Option<&str>| Some(Watched { model: model.map(str::to_owned), participant: addr(9) });
    assert_eq!(watched(&MEMBERS.key(&("a".into(), addr(9)))), one(Some("a")));
    assert_eq!(watched(&INACTIVE.key(&addr(9))), one(None));
    assert_eq!(watched(&IN_MAINTENANCE.key(&addr(9))), one(None));
    assert_eq!(watched(&WINDOWS.key(&(addr(9), 1))), None);
    assert_eq!(watched(&PARTICIPANTS.entries().key(&addr(9))), None);
    assert_eq!(watched(b""), None);
    assert_eq!(watched(&MEMBERS.key(&("a".into(), addr(9)))[..20]), None);
}

#[test]
fn no_standing_changes_inside_an_epoch_without_a_watched_key() {
    // Each message and step of a full life, with the rows it wrote.
    let mut w = World::new(20, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.go(21);
    let steps: &[fn(&mut World)] = &[
        |w| w.announce(addr(1), 23, 25).unwrap(),
        |w| w.go(23),
        |w| w.go(25),
        |w| w.update(addr(1), &["a"], false).unwrap(),
        |w| w.deactivate(addr(1)).unwrap(),
        |w| w.leave(addr(1)).unwrap(),
    ];
    let standings = |w: &World| ["a", "b"].map(|m| (m, w.standing(m, addr(1))));
    let mut changes = 0;
    for step in steps {
        let (store, before) = (w.chain.store.clone(), standings(&w));
        step(&mut w);
        let told: Vec<_> = w
            .chain
            .store
            .pairs()
            .chain(store.pairs())
            .filter(|(k, _)| store.get(k).unwrap() != w.chain.store.get(k).unwrap())
            .filter_map(|(k, _)| watched(k))
            .collect();
        for ((model, old), (_, new)) in before.into_iter().zip(standings(&w)) {
            if old != new {
                changes += 1;
                assert!(
                    told.iter().any(|t| t.model.as_deref().is_none_or(|m| m == model)),
                    "{model} {told:?}"
                );
            }
        }
    }
    assert_eq!(changes, 7, "out and in for two models, one dropped, one inactive, one left");
}
