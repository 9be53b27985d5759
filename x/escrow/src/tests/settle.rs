//! A frozen session is paid to the last coin, and nothing else is.

use std::collections::BTreeMap;

use holdfast_types::Address;
use holdfast_types::traits::{EscrowCounts, Stamp};

use super::world::*;
use crate::session::settle::Settlement;
use crate::session::{BoundKey, Phase, Tx};
use crate::{HostTally, Outcome, Status, msg_server};

#[test]
fn a_settlement_pays_hosts_fees_and_creator_and_hands_the_counts_over() {
    let mut w = World::new();
    w.near.generation = 5;
    let id = w.create();
    let state = vectors(&w, id);
    assert_eq!((state.balance(), state.fees(), state.nonce()), (989_480, 10_400, 9));
    w.chain.take_events();
    w.at(150);
    w.settle("creator", &signed(&state, &THREE));
    assert_eq!(HOSTS.map(|host| w.held(host)), [0, 120, 0, 0]);
    assert_eq!((w.collected(), w.held("creator")), (10_400, RICH - AMOUNT + 989_480));
    assert_eq!((w.held_at(&crate::module_account()), w.all_coins()), (0, RICH));

    let nothing = |owner| HostTally {
        owner,
        started: 0,
        completed: 0,
        missed: 0,
        errored: 0,
        released: 0,
        drained: 0,
        cost: 0,
    };
    let mut hosts: Vec<_> = HOSTS.map(|name| nothing(addr(name))).to_vec();
    (hosts[1].started, hosts[1].completed, hosts[1].cost) = (1, 1, 120);
    hosts.sort_by_key(|host| host.owner);
    let outcome = Outcome { nonce: 9, paid: 120, fees: 10_400, refunded: 989_480, hosts, end_height: 150 };
    let row = w.row(id);
    assert_eq!((row.status, row.dispute, row.outcome), (Status::Settled, None, Some(outcome)));

    // The stamp of the creation: epoch 0, although epoch 1 has begun.
    let heard = w.near.heard.take();
    assert_eq!(heard.len(), 4);
    let of_host_1: Vec<_> = heard.iter().filter(|counts| counts.participant == addr("host-1")).collect();
    let expected = EscrowCounts {
        model: MODEL.into(),
        participant: addr("host-1"),
        stamp: Stamp { epoch: 0, generation: 5, evidence: true },
        assigned: 1,
        ok: 1,
        missed: 0,
        released: 0,
        earned: 120,
    };
    assert_eq!(of_host_1, [&expected]);
    assert_eq!(
        w.kinds(),
        [
            "EventEscrowSettled",
            "EventHostSettled",
            "EventHostSettled",
            "EventHostSettled",
            "EventHostSettled"
        ]
    );
}

#[test]
fn missed_and_errored_are_misses_while_released_and_drained_are_neutral() {
    let mut w = World::new();
    let id = w.create();
    let mut state = session(&w, id);
    // Slot 1 gets work at nonces 1, 5, 9 and 13; with the pairs at 2, 6, 10 and 14 slot 2 does.
    state = step(&state, vec![start()]);
    state = step(&state, vec![start()]);
    // Work 1 times out by two of three votes, work 2 is reported failed (kind 1), work 5 cancelled, work 6 stays open.
    let config = state.config().clone();
    let vote = |voter_slot, by: &str| {
        let digest = crate::session::digest::vote(&config.chain_id, id, 1, 1, voter_slot, true);
        crate::session::Vote { voter_slot, accept: true, sig: sign(by, &digest) }
    };
    let timeout =
        Tx::TimeoutInference { id: 1, reason: 1, votes: vec![vote(0, "host-0"), vote(2, "host-2")] };
    let error = |inference, slot, kind, by: &str| {
        let digest = crate::session::digest::error(&config.chain_id, id, inference, slot, kind, 0, 0);
        Tx::ReportError { id: inference, kind, input_tokens: 0, output_tokens: 0, sig: sign(by, &digest) }
    };
    state = step(&state, vec![timeout, error(2, 2, 1, "host-2")]);
    state = step(&state, vec![]);
    state = step(&state, vec![start()]);
    state = step(&state, vec![error(5, 1, crate::session::KIND_CANCELLED, "host-1"), start()]);
    // The drain takes the reserve of work 6: 240. Six diffs were paid for; the one that finalizes is free.
    let state = finalized(&state);
    assert_eq!((state.fees(), state.balance()), (10_600, AMOUNT - 10_600 - 240));
    w.settle("host-3", &signed(&state, &THREE));
    assert_eq!(HOSTS.map(|host| w.held(host)), [0, 0, 240, 0]);
    assert_eq!((w.held("creator"), w.all_coins()), (RICH - 10_600 - 240, RICH));
    let counts: BTreeMap<Address, (u64, u64, u64, u64, u128)> = w
        .near
        .heard
        .take()
        .into_iter()
        .map(|c| (c.participant, (c.assigned, c.ok, c.missed, c.released, c.earned)))
        .collect();
    assert_eq!(counts[&addr("host-1")], (2, 0, 1, 1, 0));
    assert_eq!(counts[&addr("host-2")], (2, 0, 1, 1, 240));
    assert_eq!(counts[&addr("host-0")], (0, 0, 0, 0, 0));
}

#[test]
fn a_settlement_altered_in_any_field_is_refused_and_changes_nothing() {
    let mut w = World::new();
    let id = w.create();
    let good = signed(&vectors(&w, id), &THREE);
    let warm = |name: &str| (addr(name), BoundKey { warm: addr("warm-1"), seq: 1, sig: [1; 65] });
    type Change = Box<dyn Fn(&mut Settlement)>;
    let cases: Vec<(u32, Change)> = vec![
        (7, Box::new(|s| s.escrow_id = 2)),
        (13, Box::new(|s| s.nonce = 8)),
        (14, Box::new(|s| (s.nonce, s.finalize_nonce) = (8, 4))),
        (12, Box::new(|s| (s.nonce, s.finalize_nonce) = (20_001, 19_997))),
        (13, Box::new(|s| s.phase = Phase::Active)),
        (13, Box::new(|s| s.phase = Phase::Finalizing)),
        (13, Box::new(|s| s.finalize_nonce = 4)),
        (12, Box::new(|s| s.balance += 1)),
        (12, Box::new(|s| s.fees -= 1)),
        (14, Box::new(|s| (s.balance, s.fees) = (s.balance + 400, s.fees - 400))),
        (12, Box::new(|s| s.stats[1].cost += 1)),
        (14, Box::new(|s| (s.stats[1].cost, s.stats[0].cost) = (0, 120))),
        (14, Box::new(|s| (s.stats[1].cost, s.balance) = (240, s.balance - 120))),
        (12, Box::new(|s| s.stats[1].started = 2)),
        (14, Box::new(|s| (s.stats[1].started, s.stats[1].missed) = (2, 1))),
        (12, Box::new(|s| (s.stats[0].started, s.stats[0].missed) = (3, 3))),
        (12, Box::new(|s| s.stats.swap(0, 1))),
        (12, Box::new(|s| s.stats.truncate(3))),
        (14, Box::new(|s| s.sealed_acc[31] ^= 1)),
        (12, Box::new(|s| s.live_hash[0] ^= 1)),
        (14, Box::new(move |s| s.keys = BTreeMap::from([warm("host-1")]))),
        (12, Box::new(move |s| s.keys = BTreeMap::from([warm("creator")]))),
        (14, Box::new(|s| s.signatures[0].sig[5] ^= 1)),
        (14, Box::new(|s| s.signatures[0].slot = 2)),
        (14, Box::new(|s| s.signatures[0] = s.signatures[1].clone())),
        (15, Box::new(|s| s.signatures.truncate(2))),
        (15, Box::new(|s| s.signatures.clear())),
    ];
    for (n, (code, change)) in cases.iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert_ne!(bad, good, "case {n}");
        assert_eq!(w.settle_refused("creator", &bad), *code, "case {n}");
    }
    w.settle("creator", &good);
}

#[test]
fn only_parties_settle_and_only_once() {
    let mut w = World::new();
    let id = w.create();
    let other = w.create();
    let good = signed(&vectors(&w, id), &THREE);
    for stranger in ["gateway", "warm-1", "nobody"] {
        assert_eq!(w.settle_refused(stranger, &good), 2, "{stranger}");
    }
    // What the hosts of one escrow signed settles no other.
    let mut moved = good.clone();
    moved.escrow_id = other;
    assert_eq!(w.settle_refused("creator", &moved), 14);
    w.settle("host-2", &good);
    assert_eq!(w.settle_refused("creator", &good), 8);
    assert_eq!((w.status(id), w.status(other)), (Status::Settled, Status::Open));
    assert_eq!(w.held_at(&crate::module_account()), AMOUNT);
}

#[test]
fn owners_of_several_slots_are_paid_once_for_all_of_them() {
    let mut w = World::new();
    w.near.slots = vec!["host-0", "host-1", "host-0"];
    let mut msg = create_msg();
    msg.slots = 3;
    let id = w.ok(|ctx, deps| msg_server::create_escrow(ctx, deps, msg)).escrow_id;
    assert_eq!(w.row(id).stamps.len(), 2);
    // Nonces 2 and 3 belong to slots 2 and 0, both of host-0.
    let mut state = step(&session(&w, id), vec![]);
    state = step(&state, vec![start()]);
    state = step(&state, vec![confirm(&state, 2, "host-0"), start()]);
    state = step(&state, vec![finish(&state, 2, (10, 0), "host-0"), confirm(&state, 3, "host-0")]);
    state = step(&state, vec![finish(&state, 3, (1, 1), "host-0")]);
    let state = finalized(&state);
    // Quorum 3: one signature of host-0 counts for two slots.
    assert_eq!(w.settle_refused("host-0", &signed(&state, &[(2, "host-0")])), 15);
    w.settle("host-0", &signed(&state, &[(2, "host-0"), (1, "host-1")]));
    assert_eq!((w.held("host-0"), w.held("host-1")), (120, 0));
    let outcome = w.row(id).outcome.unwrap();
    assert_eq!(outcome.hosts.iter().map(|host| (host.started, host.cost)).max(), Some((2, 120)));
    assert_eq!(w.all_coins(), RICH);
}

#[test]
fn a_bound_key_signs_a_settlement_and_a_revoked_one_does_not() {
    let mut w = World::new();
    let id = w.create();
    let bind = |warm: Address, seq, chain: &str| {
        let owner = addr("host-3");
        let sig = sign("host-3", &crate::session::digest::bind(chain, id, &owner, &warm, seq));
        Tx::BindWarmKey { owner, warm, seq, sig }
    };
    let state = step(&session(&w, id), vec![bind(addr("warm-1"), 1, "test-1")]);
    let revoked = finalized(&step(&state, vec![bind(Address([0; 20]), 2, "test-1")]));
    let by = [(0, "host-0"), (1, "host-1"), (3, "warm-1")];
    assert_eq!(w.settle_refused("creator", &signed(&revoked, &by)), 14);
    w.settle("creator", &signed(&finalized(&state), &by));
}
