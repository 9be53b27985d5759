//! Random histories: coins are never made or lost, counts add up, and restarting from an export changes
//! nothing.

use holdfast_store::{KvWrite, Order};

use super::*;
use crate::draw::DrawStream;

fn total(w: &World) -> u128 {
    BALANCES.iter(&w.store, Order::Ascending).map(|row| row.unwrap().1).sum()
}

fn check(w: &World, seed: u8) {
    let height = w.block.height;
    invariants::escrow_is_backed(&w.store, &w.near, DENOM)
        .unwrap_or_else(|e| panic!("seed {seed} at {height}: {e}"));
    invariants::nothing_is_due(&w.store, height).unwrap_or_else(|e| panic!("seed {seed} at {height}: {e}"));
    assert_eq!(total(w), 2 * RICH, "seed {seed} at {height}");
    // Started = finished + missed + released + pending, per epoch and executor.
    let mut pending = BTreeMap::new();
    for row in crate::state::INFERENCES.entries().iter(&w.store, Order::Ascending) {
        let (_, inference) = row.unwrap();
        if let (Status::Started, Some(start)) = (inference.status, inference.start) {
            *pending.entry((start.stamp.epoch, start.assigned_to)).or_insert(0_u64) += 1;
        }
    }
    for row in crate::state::STATS.iter(&w.store, Order::Ascending) {
        let (key, s) = row.unwrap();
        let open = pending.remove(&key).unwrap_or(0);
        assert_eq!(
            s.assigned,
            s.inference_count + s.missed_requests + s.released + open,
            "seed {seed} {key:?}"
        );
    }
    assert!(pending.is_empty(), "seed {seed}");
}

fn reimport(w: &mut World) {
    let hrp = Hrp::default();
    let genesis = InferenceModule.export_genesis(&w.store, &hrp).unwrap();
    InferenceModule.validate_genesis(&genesis, &hrp).unwrap();
    let rows: Vec<_> = w.store.scan(b"", None, Order::Ascending).map(Result::unwrap).collect();
    let mut fresh = MemKv::default();
    for (key, value) in &rows {
        if !key.starts_with(b"inference/") {
            fresh.set(key, value).unwrap();
        }
    }
    w.store = fresh;
    w.run(|ctx, _| InferenceModule.init_genesis(ctx, &genesis)).unwrap();
    let again: Vec<_> = w.store.scan(b"", None, Order::Ascending).map(Result::unwrap).collect();
    assert_eq!(again, rows);
}

/// One history; returns the rows at its end and what listeners heard.
fn history(seed: u8, restarts: bool) -> (Vec<holdfast_store::Pair>, Vec<String>) {
    let mut w = World::new();
    let mut random = DrawStream::new([seed; 32], [0; 32]);
    let mut below = |n: u128| random.below(n).unwrap() as u8;
    let mut heard = Vec::new();
    for height in 1..=260 {
        if height > 1 {
            w.begin(height);
        }
        w.near.deactivated.borrow_mut().clear();
        w.near.excuses.clear();
        if below(3) == 0 {
            w.near.excuses.insert(who(1 + below(3)), Excuse::Maintenance);
        }
        w.near.refusal = (below(10) == 0).then_some(10);
        for _ in 0..below(8) {
            let id = format!("i{}", below(60));
            let executor = 1 + below(3);
            if below(12) == 0 {
                w.near.deaf_to.borrow_mut().insert(id.clone());
            }
            // Refusals are as welcome as successes; a refused message must leave nothing.
            let _ = match below(9) {
                0..=3 => w.start(&id, executor),
                4 | 5 => w.finish(&id, executor),
                6 => w.report(&id, executor),
                7 => w.cancel(&id, 51 + below(2)),
                _ => w.send_start(pb::MsgStartInference {
                    signer: text(52),
                    max_tokens: u64::from(below(200)) * 1000,
                    ..start_msg(&id, executor)
                }),
            };
        }
        if below(6) == 0 {
            let mut params = Params::load(&w.store).unwrap();
            params.token_price.amount = u128::from(below(4));
            params.validation.expiration_blocks = 1 + i64::from(below(40));
            crate::state::PARAMS.set(&mut w.store, &params).unwrap();
        }
        w.end();
        w.near.deaf_to.borrow_mut().clear();
        check(&w, seed);
        heard.extend(w.heard());
        if restarts && height % 37 == 0 {
            // What the next block's B1 writes anyway, so that the comparison is of whole states.
            w.block.params = Params::load(&w.store).unwrap().validation;
            reimport(&mut w);
        }
    }
    (w.store.scan(b"", None, Order::Ascending).map(Result::unwrap).collect(), heard)
}

#[test]
fn random_histories_conserve_coins_and_counts() {
    let mut kinds = BTreeSet::new();
    for seed in 0..16 {
        let (_, heard) = history(seed, false);
        kinds.extend(heard.into_iter().map(|h| h.split(' ').next().unwrap().to_owned()));
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

#[test]
fn a_history_with_restarts_from_export_ends_in_the_same_bytes() {
    for seed in 100..104 {
        assert_eq!(history(seed, true), history(seed, false), "seed {seed}");
    }
}

#[test]
fn the_escrow_invariant_sees_a_coin_too_few_or_too_many() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    invariants::escrow_is_backed(&w.store, &w.near, DENOM).unwrap();
    for wrong in [29, 31] {
        BALANCES.set(&mut w.store, &(module_account(), DENOM.to_owned()), &wrong).unwrap();
        invariants::escrow_is_backed(&w.store, &w.near, DENOM).unwrap_err();
    }
}
