//! Genesis: what is refused, and that a state comes back byte by byte.

use holdfast_proto::Message;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_store::MemKv;
use holdfast_testkit::{MemBank, TestChain};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Hrp, Module, check_prefix_table};

use super::world::*;
use crate::invariants;

/// An escrow in each status, in two denominations.
fn rich() -> World {
    let mut w = World::new();
    for _ in 0..3 {
        w.create();
    }
    w.at(205);
    w.settle("creator", &signed(&vectors(&w, 2), &THREE));
    w.end(220);
    w.at(225);
    w.create();
    let five = w.create();
    w.at(410);
    w.dispute("host-1", &signed(&vectors(&w, five), &THREE));
    w.chain.ctx(|ctx| MemBank.set(ctx, &addr("creator"), "uother", AMOUNT));
    w.set_params(|p| p.denom = "uother".into());
    let mut msg = create_msg();
    msg.amount.as_mut().unwrap().denom = "uother".into();
    w.ok(|ctx, deps| crate::msg_server::create_escrow(ctx, deps, msg));
    w
}

fn exported(w: &World) -> pb::GenesisState {
    let bytes = MODULE.export_genesis(&w.chain.store, &Hrp::default()).unwrap();
    pb::GenesisState::decode(bytes.as_slice()).unwrap()
}

fn own_rows(store: &MemKv) -> Vec<(Vec<u8>, Vec<u8>)> {
    use holdfast_store::{KvRead, Order};
    let rows = store.scan(b"escrow/", Some(b"escrow0"), Order::Ascending);
    rows.collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_state_comes_back_byte_by_byte() {
    let w = rich();
    let genesis = exported(&w);
    assert_eq!(genesis.escrows.len(), 6);
    let mut fresh = TestChain::new(411);
    for denom in [DENOM, "uother"] {
        let held = MemBank.balance(&w.chain.store, &crate::module_account(), denom).unwrap();
        fresh.ctx(|ctx| MemBank.set(ctx, &crate::module_account(), denom, held));
    }
    let bytes = genesis.encode_to_vec();
    MODULE.validate_genesis(&bytes, &Hrp::default()).unwrap();
    fresh.ctx(|ctx| MODULE.init_genesis(ctx, &bytes)).unwrap();
    assert_eq!(own_rows(&fresh.store), own_rows(&w.chain.store));
    assert_eq!(MODULE.export_genesis(&fresh.store, &Hrp::default()).unwrap(), bytes);
    invariants::check(&fresh.store, &MemBank).unwrap();
}

#[test]
fn a_fresh_chain_has_default_parameters_and_begins_with_escrow_1() {
    let bytes = MODULE.default_genesis();
    let genesis = pb::GenesisState::decode(bytes.as_slice()).unwrap();
    let params = crate::Params::default().to_pb();
    assert_eq!(genesis, pb::GenesisState { params: Some(params), next_escrow_id: 1, ..Default::default() });
    MODULE.validate_genesis(&bytes, &Hrp::default()).unwrap();
    assert!(check_prefix_table(&MODULE));
}

#[test]
fn a_genesis_that_does_not_fit_together_is_refused() {
    let w = rich();
    let good = exported(&w);
    let status = |n: usize| good.escrows[n].status;
    // 1 expired, 2 settled, 3 expired, 4 open, 5 disputed, 6 open.
    assert_eq!((0..6).map(status).collect::<Vec<_>>(), [4, 3, 4, 1, 2, 1]);
    type Change = Box<dyn Fn(&mut pb::GenesisState)>;
    let cases: Vec<Change> = vec![
        Box::new(|g| g.params = None),
        Box::new(|g| g.params.as_mut().unwrap().max_slots = 0),
        Box::new(|g| g.next_escrow_id = 0),
        Box::new(|g| g.next_escrow_id = 6),
        Box::new(|g| g.escrows.swap(0, 1)),
        Box::new(|g| g.escrows[1] = g.escrows[0].clone()),
        Box::new(|g| g.escrows[0].config.as_mut().unwrap().escrow_id = 0),
        Box::new(|g| g.escrows[0].status = 9),
        Box::new(|g| g.escrows[0].denom = "1".into()),
        Box::new(|g| g.escrows[0].gateway_url = "gopher://".into()),
        Box::new(|g| g.escrows[0].stamps.reverse()),
        Box::new(|g| drop(g.escrows[0].stamps.pop())),
        Box::new(|g| g.escrows[0].created_at_height = 0),
        Box::new(|g| g.escrows[0].expires_at_height = 10),
        Box::new(|g| g.escrows[0].dispute_window_blocks = 0),
        // Status and parts.
        Box::new(|g| g.escrows[3].status = 2),
        Box::new(|g| g.escrows[3].status = 3),
        Box::new(|g| g.escrows[3].outcome = g.escrows[0].outcome.clone()),
        Box::new(|g| g.escrows[1].dispute = g.escrows[4].dispute.clone()),
        Box::new(|g| g.escrows[1].status = 4),
        Box::new(|g| g.escrows[0].status = 3),
        // An outcome.
        Box::new(|g| g.escrows[1].outcome.as_mut().unwrap().paid = "119".into()),
        Box::new(|g| g.escrows[1].outcome.as_mut().unwrap().refunded = "1".into()),
        Box::new(|g| g.escrows[1].outcome.as_mut().unwrap().end_height = 9),
        Box::new(|g| g.escrows[1].outcome.as_mut().unwrap().hosts[0].missed = 7),
        Box::new(|g| g.escrows[1].outcome.as_mut().unwrap().hosts.reverse()),
        Box::new(|g| g.escrows[0].outcome.as_mut().unwrap().nonce = 1),
        Box::new(|g| {
            let outcome = g.escrows[0].outcome.as_mut().unwrap();
            (outcome.fees, outcome.refunded) = ("9999".into(), "990001".into());
        }),
        // A dispute.
        Box::new(|g| g.escrows[4].dispute.as_mut().unwrap().fees = "999881".into()),
        Box::new(|g| g.escrows[4].dispute.as_mut().unwrap().sender = text("nobody")),
        Box::new(|g| g.escrows[4].dispute.as_mut().unwrap().opened_at_height = 399),
        Box::new(|g| g.escrows[4].dispute.as_mut().unwrap().closes_at_height += 1),
    ];
    for (n, change) in cases.iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert_ne!(bad, good, "case {n}");
        let error = MODULE.validate_genesis(&bad.encode_to_vec(), &Hrp::default());
        let error = error.expect_err(&format!("case {n} was accepted"));
        assert_eq!((error.codespace, error.code), ("escrow", 16), "case {n}: {error}");
    }
    let mut bytes = good.encode_to_vec();
    bytes.push(0);
    assert_eq!(MODULE.validate_genesis(&bytes, &Hrp::default()).unwrap_err().code, 16);
}

#[test]
fn coins_of_the_module_account_must_be_those_of_the_escrows() {
    let w = rich();
    let bytes = exported(&w).encode_to_vec();
    for (held, other) in [(2 * AMOUNT + 1, AMOUNT), (2 * AMOUNT - 1, AMOUNT), (2 * AMOUNT, AMOUNT - 1)] {
        let mut fresh = TestChain::new(411);
        fresh.ctx(|ctx| MemBank.set(ctx, &crate::module_account(), DENOM, held));
        fresh.ctx(|ctx| MemBank.set(ctx, &crate::module_account(), "uother", other));
        let error = fresh.ctx(|ctx| MODULE.init_genesis(ctx, &bytes)).unwrap_err();
        assert_eq!((error.codespace, error.code), ("escrow", 16), "{held} {other}");
    }
}

#[test]
fn broken_states_are_found_by_the_invariants() {
    let broken = |change: &dyn Fn(&mut World)| {
        let mut w = rich();
        change(&mut w);
        invariants::check(&w.chain.store, &MemBank).is_err()
    };
    assert!(!broken(&|_| ()));
    assert!(broken(&|w| w.chain.ctx(|ctx| MemBank.set(ctx, &crate::module_account(), DENOM, 1))));
    assert!(broken(&|w| {
        crate::state::BY_OWNER.remove(&mut w.chain.store, &(addr("host-0"), 4)).unwrap();
    }));
    assert!(broken(&|w| {
        let mut row = w.row(2);
        row.outcome.as_mut().unwrap().refunded += 1;
        crate::state::ESCROWS.set(&mut w.chain.store, &2, &row).unwrap();
    }));
    assert!(broken(&|w| {
        let mut row = w.row(4);
        row.status = crate::Status::Disputed;
        crate::state::ESCROWS.set(&mut w.chain.store, &4, &row).unwrap();
    }));
    let w = rich();
    invariants::nothing_is_due(&w.chain.store, 419).unwrap();
    assert!(invariants::nothing_is_due(&w.chain.store, 420).is_err());
}
