use holdfast_store::*;
use holdfast_types::traits::{BankKeeper, EpochsRead, Excuse, ParticipantsRead};
use holdfast_types::{Coin, ModuleError};

use crate::conformance::{Rows, run_history_suite, run_read_suite, run_refusal_suite, run_write_suite};
use crate::*;

fn mem(rows: &Rows) -> MemKv {
    let mut store = MemKv::default();
    for (key, value) in rows {
        store.set(key, value).unwrap();
    }
    store
}

/// A base whose rows lie among those the suite writes.
fn busy_base() -> MemKv {
    let mut store = MemKv::default();
    for key in
        [&b"a"[..], b"a\0", b"b", b"\xFF\xFF", b"p", b"pa", b"\0", b"d\0", b"\xFE\x01", b"bb", b"\x01a"]
    {
        store.set(key, b"base").unwrap();
    }
    store
}

#[test]
fn the_memory_store_conforms() {
    run_write_suite(&mut |case| case(&mut MemKv::default()));
    run_history_suite(&mut |case| case(&mut busy_base()));
    run_read_suite(&mut |rows, case| case(&mem(rows)));
}

#[test]
fn a_branch_conforms_over_an_empty_base_and_over_one_it_has_emptied() {
    run_write_suite(&mut |case| case(&mut BranchKv::new(&MemKv::default())));
    let base = busy_base();
    run_write_suite(&mut |case| {
        let mut branch = BranchKv::new(&base);
        for (key, _) in base.pairs() {
            branch.remove(key).unwrap();
        }
        case(&mut branch);
    });
    assert_eq!(base, busy_base(), "a branch leaves its base alone");
}

#[test]
fn a_branch_over_rows_agrees_with_the_model_and_applies_to_the_same_state() {
    run_history_suite(&mut |case| {
        let mut target = busy_base();
        let base = busy_base();
        let mut branch = BranchKv::new(&base);
        // Half hidden from the start, so that history meets removals of base rows.
        for (n, (key, _)) in base.pairs().enumerate() {
            if n % 2 == 0 {
                branch.remove(key).unwrap();
            }
        }
        case(&mut branch);
        let seen: Vec<_> = branch.scan(b"", None, Order::Ascending).map(Result::unwrap).collect();
        BranchKv::apply(branch.into_writes(), &mut target).unwrap();
        assert_eq!(target.scan(b"", None, Order::Ascending).map(Result::unwrap).collect::<Vec<_>>(), seen);
    });
}

#[test]
fn a_branch_of_a_branch_conforms() {
    let base = busy_base();
    run_history_suite(&mut |case| {
        let mut lower = BranchKv::new(&base);
        lower.set(b"a", b"lower").unwrap();
        lower.remove(b"b").unwrap();
        case(&mut BranchKv::new(&lower));
    });
    run_read_suite(&mut |rows, case| {
        // Even rows in the base, odd ones in the branch, and a base row to hide.
        let mut base = MemKv::default();
        base.set(b"hidden", b"x").unwrap();
        let mut writes = WriteSet::new();
        writes.insert(b"hidden".to_vec(), None);
        for (n, (key, value)) in rows.iter().enumerate() {
            if n % 2 == 0 {
                base.set(key, value).unwrap();
            } else {
                base.set(key, b"old").unwrap();
                writes.insert(key.clone(), Some(value.clone()));
            }
        }
        case(&BranchKv::with_writes(&base, writes));
    });
}

#[test]
fn a_metered_store_that_never_runs_out_conforms() {
    let meter = GasMeter::new(u64::MAX);
    run_write_suite(&mut |case| case(&mut MeteredKv::new(&mut MemKv::default(), &meter, GasConfig::SDK)));
    assert!(meter.used() > 0);
    run_read_suite(&mut |rows, case| case(&MeteredKv::new(&mut mem(rows), &meter, GasConfig::SDK)));
}

#[test]
fn a_space_conforms_and_touches_nothing_outside_it() {
    for prefix in [&b"mod/"[..], b"\xFF\xFF", b"p"] {
        let outside = [&b"mod"[..], b"mod0", b"mod.", b"\xFF", b"\xFE\xFF", b"o\xFF", b"q"];
        run_write_suite(&mut |case| {
            let mut inner = MemKv::default();
            for key in outside {
                inner.set(key, b"outside").unwrap();
            }
            case(&mut SpaceKv::new(&mut inner, prefix));
            for key in outside {
                assert_eq!(inner.get(key).unwrap(), Some(b"outside".to_vec()));
            }
        });
    }
    run_read_suite(&mut |rows, case| {
        let mut inner = MemKv::default();
        for (key, value) in rows {
            inner.set(&[&b"s/"[..], key].concat(), value).unwrap();
        }
        inner.set(b"s0", b"outside").unwrap();
        case(&SpaceKv::new(&inner, &b"s/"[..]));
    });
}

#[test]
fn a_read_only_view_shows_the_same_rows_and_refuses_writes() {
    run_read_suite(&mut |rows, case| case(&ReadOnlyKv::new(&mem(rows))));
    run_refusal_suite(&mut ReadOnlyKv::new(&busy_base()));
    run_refusal_suite(&mut ReadOnlyKv::new(&MemKv::default()));
}

/// Wrong in one way, chosen by its flag: the suite must notice each.
struct Broken(MemKv, u8);

impl KvRead for Broken {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.0.get(key)?;
        Ok(if self.1 == 0 { value.filter(|v| !v.is_empty()) } else { value })
    }
    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        match (self.1, end) {
            (1, _) => self.0.scan(start, end, Order::Ascending),
            (2, Some(end)) => self.0.scan(start, Some(&[end, &[0]].concat()), order),
            (3, _) => self.0.scan(&[start, &[0]].concat(), end, order),
            _ => self.0.scan(start, end, order),
        }
    }
}

impl KvWrite for Broken {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if self.1 == 4 && self.0.get(key)?.is_some() {
            return Ok(());
        }
        self.0.set(key, value)
    }
    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        if self.1 == 5 { Ok(()) } else { self.0.remove(key) }
    }
}

#[test]
fn the_suite_notices_a_store_that_breaks_the_contract() {
    for fault in 0..6 {
        let run = std::panic::catch_unwind(|| {
            run_write_suite(&mut |case| case(&mut Broken(MemKv::default(), fault)));
        });
        assert!(run.is_err(), "fault {fault} passed");
    }
}

#[test]
fn a_static_group_sums_only_eligible_members() {
    let mut group = StaticGroup::new();
    group.add_member("m1", addr(2), 30);
    group.put("m1", addr(1), StaticMember { weight: 12, preserved: true });
    group.add_member("m1", addr(3), 7);
    group.add_model("m0");
    let (old, new) = group.change("m1", addr(3), |s| s.in_maintenance = true);
    assert_eq!((old.weight, new.weight), (7, 0));
    let totals = group.totals();
    assert_eq!(totals.iter().map(|t| t.model.as_str()).collect::<Vec<_>>(), ["m0", "m1"]);
    assert_eq!((totals[1].eligible_weight, totals[1].members, totals[1].preserved), (42, 2, 1));
    let chain = TestChain::new(5);
    let members = group.members(&chain.store, &chain.block, "m1").unwrap();
    assert_eq!(members.iter().map(|(a, _)| *a).collect::<Vec<_>>(), [addr(1), addr(2), addr(3)]);
    group.set_excuse("m1", addr(3), Some(Excuse::Maintenance));
    let excuse = group.excuse(&chain.store, &chain.block, "m1", &addr(3), 1, 2).unwrap();
    assert_eq!(excuse, Some(Excuse::Maintenance));
}

#[test]
fn a_refused_message_is_told_from_an_accepted_one() {
    let mut chain = TestChain::new(1);
    chain.ctx(|ctx| MemBank.set(ctx, &addr(1), "uhold", 10));
    let coin = |n| Coin::new("uhold", n).unwrap();
    assert_eq!(chain.refused(|ctx| MemBank.send(ctx, &addr(1), &addr(2), &coin(11))), ("sdk", 5));
    chain.message(|ctx| MemBank.send(ctx, &addr(1), &addr(2), &coin(10))).unwrap();
    assert_eq!(MemBank.balance(&chain.store, &addr(2), "uhold").unwrap(), 10);
    let accepted = std::panic::AssertUnwindSafe(|| chain.clone().refused(|_| Ok::<_, ModuleError>(())));
    assert!(std::panic::catch_unwind(accepted).is_err());
}

#[test]
fn a_static_schedule_places_heights_by_hand() {
    let epochs = StaticEpochs { start_height: 5, length: 10, poc_length: 3 };
    assert_eq!(epochs.at(5).epoch, 0);
    assert_eq!(epochs.at(14).epoch, 0);
    assert_eq!((epochs.at(15).epoch, epochs.at(15).start_height), (1, 15));
    let mut chain = TestChain::new(1);
    epochs.move_to(&mut chain.block, 22);
    assert_eq!((chain.block.epoch, chain.block.poc), (1, true));
    assert_eq!(epochs.epoch(&chain.store, 2).unwrap().unwrap().start_height, 25);
}
