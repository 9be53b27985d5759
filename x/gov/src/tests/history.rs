//! Random histories: money is conserved, the invariants hold after each block, and genesis brings any state back.

use super::*;
use holdfast_store::{KvWrite, MemKv, Order};

/// Everything in the bank, and what was burned by difference.
fn everything(w: &World) -> u128 {
    let accounts = (0..=20).map(addr).chain([Address::module("gov"), addr(77)]);
    accounts.map(|a| w.balance(&a)).sum()
}

fn step(w: &mut World, rng: &mut Rng) -> bool {
    let who = 1 + rng.below(14) as u8;
    let last = NEXT_PROPOSAL_ID.peek(&w.chain.store).unwrap();
    let id = 1 + rng.below(last);
    let min = Keeper.params(&w.chain.store).unwrap().min_deposit[0].amount;
    match rng.below(10) {
        0 | 1 => {
            let verbs = ["put:a", "put:b", "fail", "alien", "hungry"];
            let late = format!("before:{}", w.chain.block.time_ns / SECOND + rng.below(40));
            let upgrade = upgrade::MsgSoftwareUpgrade {
                authority: w.gov(),
                plan: Some(upgrade::Plan {
                    name: format!("v{}", rng.below(5)),
                    height: w.chain.block.height + rng.below(30) as i64,
                    ..Default::default()
                }),
            };
            let mut wire = super::params::random_params(rng);
            wire.min_deposit[0].amount = wire.min_deposit[0].amount.min(1_000);
            wire.expedited_min_deposit[0].amount = wire.min_deposit[0].amount + 1;
            let wire = wire.to_pb(&w.chain.block.hrp);
            let field = *rng.pick(crate::params::FIELDS);
            let messages = match rng.below(10) {
                0 => vec![],
                1 => vec![pack(&upgrade)],
                2 | 3 => vec![pack(&w.update_params(wire, &[field]))],
                4 => vec![test_msg("put:c"), test_msg(&late)],
                5 => vec![pack(&MsgSend { from_address: w.gov(), to_address: w.text(9), amount: uhold(1) })],
                _ => vec![test_msg(rng.pick::<&str>(&verbs))],
            };
            let deposit = min.saturating_mul(u128::from(rng.below(8))) / 2;
            let expedited = rng.chance(40);
            let msg = pb::MsgSubmitProposal { expedited, ..w.submission(who, deposit, messages) };
            w.send(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg)).is_ok()
        }
        2 | 3 => w.deposit(id, who, min / 3 + u128::from(rng.below(20))).is_ok(),
        4 => w.cancel(id, who).is_ok(),
        5 => w.weighted(id, who, &[(1, "0.4"), (1 + rng.below(4) as i32, "0.6")]).is_ok(),
        _ => {
            let option = if rng.chance(70) { 1 } else { 1 + rng.below(4) as i32 };
            w.try_vote(id, who, option).is_ok()
        }
    }
}

#[test]
fn random_histories_conserve_money_and_never_fail_a_block() {
    let (mut accepted, mut refused, mut kinds) = (0, 0, BTreeMap::<String, u32>::new());
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut params = super::params::random_params(&mut rng);
        params.min_deposit[0].amount = params.min_deposit[0].amount.min(1_000);
        params.expedited_min_deposit[0].amount = params.min_deposit[0].amount + 1;
        (params.voting_period_ns, params.expedited_voting_period_ns) = (20 * SECOND, 10 * SECOND);
        params.max_deposit_period_ns = 15 * SECOND;
        params.proposal_cancel_dest = rng.chance(50).then(|| addr(77));
        let mut w = World::with(params);
        let mut before = everything(&w);
        for _ in 0..60 {
            for _ in 0..rng.below(8) {
                if step(&mut w, &mut rng) {
                    accepted += 1
                } else {
                    refused += 1
                }
                assert_eq!(everything(&w), before, "a message neither makes nor burns coins");
            }
            let events = w.block(rng.below(6));
            for result in events.iter().filter_map(|e| e.get("proposal_result")) {
                *kinds.entry(result.to_owned()).or_default() += 1;
            }
            assert!(!events.iter().any(|e| e.kind.ends_with("EventStepDiscarded")), "{events:?}");
            let after = everything(&w);
            assert!(after <= before, "coins out of nothing");
            before = after;
        }
        let hrp = w.chain.block.hrp.clone();
        let bytes = GovModule { bank: &BANK }.export_genesis(&w.chain.store, &hrp).unwrap();
        GovModule { bank: &BANK }.validate_genesis(&bytes, &hrp).unwrap();
        let mut copy = TestChain { store: MemKv::default(), ..w.chain.clone() };
        for (key, value) in w.chain.store.pairs().filter(|(key, _)| !key.starts_with(b"gov/")) {
            copy.store.set(key, value).unwrap();
        }
        copy.message(|ctx| GovModule { bank: &BANK }.init_genesis(ctx, &bytes)).unwrap();
        assert!(copy.store == w.chain.store, "seed {seed}: genesis brings every row back");
        // In the end nobody's money is left behind.
        w.block(40_000_000);
        for _ in 0..80 {
            w.block(40_000_000);
        }
        assert_eq!(w.held(), 0, "seed {seed}");
        assert_eq!(DEPOSITS.iter(&w.chain.store, Order::Ascending).count(), 0);
        assert_eq!(VOTES.iter(&w.chain.store, Order::Ascending).count(), 0);
    }
    // The histories reach what they are meant to.
    assert!(accepted > 1_500 && refused > 1_000, "{accepted} {refused}");
    for kind in [
        "proposal_passed",
        "proposal_failed",
        "proposal_rejected",
        "proposal_dropped",
        "expedited_proposal_rejected",
    ] {
        assert!(kinds.get(kind).is_some_and(|n| *n >= 5), "{kind}: {kinds:?}");
    }
}
