//! The driver: starts that end, and starts that nobody answers.

use std::collections::BTreeMap;

use super::{M, addr};
use crate::history::{self, Op};
use crate::params::Params;
use crate::world::{EpochInput, Member, World};
use crate::{BlockReport, Driver, Pair, Refusal};

fn one_model(blocks: i64, ops: &[(i64, Op)]) -> Vec<BlockReport> {
    let genesis = history::Genesis {
        params: Params { expiration_blocks: 3, health_cb_min_samples: 1, ..Params::defaults() },
        models: vec![M.into()],
        participants: vec![addr(1), addr(2)],
        epoch_length: 1_000,
        poc_length: 0,
    };
    let world = World::new(genesis.params.clone(), "gov", genesis.pairs());
    let mut driver = Driver::new(world, &genesis);
    let group: BTreeMap<Pair, Member> =
        genesis.pairs().into_iter().map(|pair| (pair, Member { weight: 5, preserved: true })).collect();
    (1..=blocks)
        .map(|height| {
            let block = crate::BlockOps {
                height,
                epoch: (height == 1).then(|| EpochInput { index: 0, group: group.clone() }),
                messages: ops.iter().filter(|(h, _)| *h == height).map(|(_, op)| op.clone()).collect(),
                ..crate::BlockOps::default()
            };
            driver.run_block(&block)
        })
        .collect()
}

fn start_op(id: &str) -> Op {
    Op::Start { id: id.into(), model: M.into(), requester: addr(200), signer: addr(200), executor: addr(1) }
}

#[test]
fn an_unanswered_start_is_missed_at_its_expiry_and_not_before() {
    let blocks = one_model(6, &[(2, start_op("a"))]);
    let counts: Vec<usize> = blocks.iter().map(|b| b.events.len()).collect();
    assert_eq!(counts, [0, 0, 0, 0, 1, 0]);
}

#[test]
fn a_finish_at_the_expiry_height_wins_and_one_block_later_is_refused() {
    let finish = || Op::Finish { id: "a".into(), executed_by: addr(1) };
    let blocks = one_model(6, &[(2, start_op("a")), (5, finish())]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
    let blocks = one_model(6, &[(2, start_op("a")), (6, finish())]);
    assert_eq!(blocks[5].messages, [Err(Refusal::Inference(13))]);
    let forged = Op::Finish { id: "a".into(), executed_by: addr(2) };
    let blocks = one_model(6, &[(2, start_op("a")), (3, forged)]);
    assert_eq!(blocks[2].messages, [Err(Refusal::Inference(14))]);
    assert_eq!(blocks[4].events.len(), 1);
}

#[test]
fn maintenance_excuses_an_expiry_only_if_announced_before_the_start() {
    let announce = || Op::AnnounceMaintenance { participant: addr(1), from: 4, until: 5 };
    let blocks = one_model(8, &[(1, announce()), (2, start_op("a"))]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
    let blocks = one_model(8, &[(3, announce()), (2, start_op("a"))]);
    assert_eq!(blocks[4].events.len(), 1);
    let leave = Op::Leave { participant: addr(1) };
    let blocks = one_model(8, &[(2, start_op("a")), (3, leave)]);
    assert!(blocks.iter().all(|b| b.events.is_empty()));
}

#[test]
fn a_delayed_expiry_speaks_after_its_claim_was_freed() {
    let ops = [
        (1, start_op("a")),
        (1, Op::ReportFailure { id: "a".into(), executor: addr(1) }),
        (51, start_op("b")),
        (51, Op::DelayExpiry { id: "b".into(), blocks: 10 }),
    ];
    let blocks = one_model(66, &ops);
    let opened: Vec<(i64, &str)> = (1..)
        .zip(&blocks)
        .flat_map(|(h, b)| b.events.iter().map(move |e| (h, e)))
        .filter_map(|(h, e)| Some((h, e.get("cause")?)))
        .collect();
    assert_eq!(opened, [(51, "cooldown"), (57, "deadline")]);
    assert!(blocks[63].events.is_empty(), "the late miss changes nothing");
}
