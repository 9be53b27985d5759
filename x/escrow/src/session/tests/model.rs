//! Random sessions beside a bookkeeper of a few lines that knows no hashes: coins, counts, and which transactions fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::scene::*;
use crate::session::{Phase, SEAL_INTERVAL, State, Tx, apply, check_tx, compose, digest};

#[derive(Debug, Clone, Copy)]
enum Op {
    Pass,
    Start,
    Confirm(usize),
    Finish(usize, u32, u32),
    Error(usize, u8),
    Refused(usize),
    Late(usize),
    Finalize,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => Just(Op::Pass),
        6 => Just(Op::Start),
        6 => any::<usize>().prop_map(Op::Confirm),
        5 => (any::<usize>(), 0..=17u32, 0..=9u32).prop_map(|(i, a, b)| Op::Finish(i, a, b)),
        2 => (any::<usize>(), 0..=11u8).prop_map(|(i, kind)| Op::Error(i, kind)),
        2 => any::<usize>().prop_map(Op::Refused),
        2 => any::<usize>().prop_map(Op::Late),
    ];
    (proptest::collection::vec(op, 1..120), any::<bool>()).prop_map(|(mut ops, end)| {
        if end {
            ops.push(Op::Finalize);
            ops.extend([Op::Start, Op::Confirm(0), Op::Confirm(1), Op::Pass, Op::Pass, Op::Pass]);
        }
        ops
    })
}

/// 'p' open, 's' confirmed, 'e' ended.
#[derive(Default)]
struct Books {
    open: BTreeMap<u64, char>,
    balance: i128,
    fees: i128,
    cost: i128,
    counts: BTreeMap<&'static str, u32>,
    finalized_at: Option<u64>,
    frozen: bool,
}

impl Books {
    fn add(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_random_session_keeps_the_books_of_a_simple_model(ops in ops()) {
        let mut config = config();
        (config.cancel_charge_bp, config.seal_grace_nonces) = (2500, 20);
        let mut state = State::genesis(Arc::new(config));
        let mut books = Books { balance: 990_000, fees: 10_000, ..Books::default() };
        for op in ops {
            if books.frozen {
                prop_assert!(compose(&state, vec![], vec![]).is_err());
                break;
            }
            let nonce = state.nonce() + 1;
            let known: Vec<u64> = books.open.keys().copied().collect();
            let pick = |i: usize| known.get(i % known.len().max(1)).copied();
            let by = |id: u64| format!("host-{}", id % 4);
            let votes = |id: u64, reason| -> Vec<_> {
                (0..4u8).filter(|slot| u64::from(*slot) != id % 4).map(|slot| vote(id, reason, slot, true, &format!("host-{slot}"))).collect()
            };
            let active = books.finalized_at.is_none();
            // The transaction, and whether the books say that it fits.
            let (tx, fits) = match op {
                Op::Pass => (None, true),
                Op::Start => (Some(start("p")), active && books.balance >= 240),
                Op::Finalize => (Some(Tx::FinalizeRound), active),
                Op::Confirm(i) => match pick(i) {
                    Some(id) if state.record(id).is_some() => (Some(confirm(&state, id, &by(id))), books.open[&id] == 'p'),
                    _ => (None, true),
                },
                Op::Finish(i, a, b) => match pick(i) {
                    Some(id) => (Some(finish(&state, id, (a, b), "r", &by(id))), books.open[&id] == 's' && a <= 16 && b <= 8),
                    None => (None, true),
                },
                Op::Error(i, kind) => match pick(i) {
                    Some(id) => (Some(error(&state, id, kind, (4, 3), &by(id))), books.open[&id] != 'e' && (1..=10).contains(&kind)),
                    None => (None, true),
                },
                Op::Refused(i) => match pick(i) {
                    Some(id) => (Some(Tx::TimeoutInference { id, reason: 1, votes: votes(id, 1) }), books.open[&id] == 'p'),
                    None => (None, true),
                },
                Op::Late(i) => match pick(i) {
                    Some(id) => (Some(Tx::TimeoutInference { id, reason: 2, votes: votes(id, 2) }), books.open[&id] == 's'),
                    None => (None, true),
                },
            };
            let txs: Vec<Tx> = tx.into_iter().collect();
            if let [tx] = txs.as_slice() {
                prop_assert_eq!(check_tx(&state, tx).is_ok(), fits, "{:?} {:?}", op, check_tx(&state, tx));
            }
            if !fits {
                prop_assert!(apply(&state, &signed(nonce, txs, [0; 32])).is_err());
                continue;
            }
            match txs.first() {
                Some(Tx::StartInference { .. }) => {
                    books.balance -= 240;
                    books.open.insert(nonce, 'p');
                    books.add("started");
                }
                Some(Tx::ConfirmStart { id, .. }) => drop(books.open.insert(*id, 's')),
                Some(Tx::FinishInference { id, input_tokens, output_tokens, .. }) => {
                    let cost = i128::from(input_tokens + output_tokens) * 10;
                    books.cost += cost;
                    books.balance += 240 - cost;
                    books.open.insert(*id, 'e');
                    books.add("completed");
                }
                Some(Tx::ReportError { id, kind, .. }) => {
                    // (4 + 3) · 10 · 2500 / 10 000 = 17.5, rounded down.
                    let cost = if *kind == 8 { 17 } else { 0 };
                    books.cost += cost;
                    books.balance += 240 - cost;
                    books.open.insert(*id, 'e');
                    books.add(if *kind == 8 { "released" } else { "errored" });
                }
                Some(Tx::TimeoutInference { id, .. }) => {
                    books.balance += 240;
                    books.open.insert(*id, 'e');
                    books.add("missed");
                }
                Some(Tx::FinalizeRound) => books.finalized_at = Some(nonce),
                _ => {}
            }
            if books.finalized_at.is_none() {
                books.balance -= 100;
                books.fees += 100;
            }
            if nonce.is_multiple_of(SEAL_INTERVAL) {
                books.open.retain(|id, status| *status != 'e' || id + 20 > nonce);
            }
            if books.finalized_at.is_some_and(|at| at + 4 == nonce) {
                for status in std::mem::take(&mut books.open).into_values() {
                    if status != 'e' {
                        books.cost += 240;
                        books.add("drained");
                    }
                }
                books.frozen = true;
            }
            state = step(&state, txs);
            let sum = |field: fn(&crate::session::HostStats) -> u32| state.stats().iter().map(field).sum::<u32>();
            let counts = [
                ("started", sum(|row| row.started)),
                ("completed", sum(|row| row.completed)),
                ("missed", sum(|row| row.missed)),
                ("errored", sum(|row| row.errored)),
                ("released", sum(|row| row.released)),
                ("drained", sum(|row| row.drained)),
            ];
            for (name, count) in counts {
                prop_assert_eq!(books.counts.get(name).copied().unwrap_or(0), count, "{}", name);
            }
            prop_assert_eq!(
                (books.balance, books.fees, books.cost),
                (state.balance() as i128, state.fees() as i128, state.cost() as i128)
            );
            prop_assert_eq!(books.open.keys().copied().collect::<Vec<_>>(), state.live().map(|r| r.id).collect::<Vec<_>>());
            prop_assert_eq!(books.frozen, state.phase() == Phase::Frozen);
            // The live hash from scratch, as written in escrow-details 2.
            let mut buckets: BTreeMap<u64, Vec<(u64, [u8; 32])>> = BTreeMap::new();
            for record in state.live() {
                buckets.entry(record.id / 32).or_default().push((record.id, digest::leaf(record)));
            }
            let buckets: Vec<_> = buckets.iter().map(|(number, leaves)| (*number, digest::bucket(*number, leaves))).collect();
            prop_assert_eq!(digest::live(&buckets), state.root_parts().live_hash);
        }
    }
}
