//! Coins in, a group drawn.

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::traits::Stamp;
use sha2::{Digest, Sha256};

use super::world::*;
use crate::session::FrozenConfig;
use crate::{Escrow, Status, calc, msg_server};

#[test]
fn an_escrow_takes_its_values_from_parameters_draw_and_schedule() {
    let mut w = World::new();
    w.near.generation = 3;
    assert_eq!(w.create(), 1);
    let owners: Vec<_> = w.row(1).config.owners().into_keys().collect();
    let expected = Escrow {
        status: Status::Open,
        config: FrozenConfig {
            chain_id: "test-1".into(),
            escrow_id: 1,
            creator: addr("creator"),
            gateway: addr("gateway"),
            model: MODEL.into(),
            slots: HOSTS.map(addr).to_vec(),
            amount: 1_000_000,
            create_fee: 10_000,
            fee_per_nonce: 100,
            token_price: 10,
            refusal_timeout_s: 60,
            execution_timeout_s: 1_200,
            vote_threshold_bp: 5_000,
            cancel_charge_bp: 0,
            seal_grace_nonces: 12,
            max_nonce: 20_000,
            max_live: 1_024,
        },
        denom: DENOM.into(),
        gateway_url: "https://gw.example:8443".into(),
        epoch: 0,
        created_at: 10,
        // The next epoch ends with block 200.
        expires_at: 200,
        dispute_window: 20,
        stamps: owners.iter().map(|o| (*o, Stamp { epoch: 0, generation: 3, evidence: true })).collect(),
        dispute: None,
        outcome: None,
    };
    assert_eq!(w.row(1), expected);
    assert_eq!((w.held("creator"), w.held_at(&crate::module_account())), (RICH - AMOUNT, AMOUNT));
    let event = w.chain.take_events().pop().unwrap();
    assert_eq!(event.kind, "holdfast.escrow.v1.EventEscrowCreated");
    assert_eq!((event.get("amount"), event.get("expires_at_height")), (Some("1000000uhold"), Some("200")));
    assert_eq!(w.create(), 2);
}

#[test]
fn the_seed_is_the_hash_of_tag_chain_id_escrow_and_previous_app_hash() {
    let mut w = World::new();
    w.create();
    w.create();
    let preimage = |id: u8| {
        let mut bytes = vec![24, 0, 0, 0];
        bytes.extend_from_slice(b"holdfast.escrow.group.v1");
        bytes.extend_from_slice(&[6, 0, 0, 0]);
        bytes.extend_from_slice(b"test-1");
        bytes.extend_from_slice(&[id, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&[0xab; 32]);
        bytes
    };
    let seed = |id| <[u8; 32]>::from(Sha256::digest(preimage(id)));
    assert_eq!(w.near.asked.take(), [(seed(1), 4, 1), (seed(2), 4, 1)]);
}

#[test]
fn an_owner_is_capped_by_the_quorum_and_by_the_parameter() {
    // N ≥ 4: N − (⌊2N/3⌋ + 1); below, no cap but the parameter's.
    for (slots, by_quorum) in
        [(1, 1), (2, 2), (3, 3), (4, 1), (5, 1), (6, 1), (7, 2), (9, 2), (10, 3), (128, 42)]
    {
        assert_eq!(calc::slot_cap(slots, 0), by_quorum, "{slots}");
        assert_eq!(calc::slot_cap(slots, 1), 1, "{slots}");
        assert_eq!(calc::slot_cap(slots, 1_000), by_quorum, "{slots}");
    }
    assert_eq!(calc::slot_cap(10, 2), 2);
}

#[test]
fn an_escrow_never_outlives_the_next_epoch() {
    let mut w = World::new();
    w.set_params(|p| p.max_lifetime_blocks = 50);
    // Created at 10 it would live to 60; at 180 to 230; at 150 of epoch 1, whose next ends with 300, to 200.
    for (height, expires) in [(10, 60), (100, 150), (101, 151), (150, 200)] {
        w.at(height);
        let id = w.create();
        assert_eq!(w.row(id).expires_at, expires, "created at {height}");
    }
    w.set_params(|p| p.max_lifetime_blocks = 1_000);
    for (height, expires) in [(1, 200), (100, 200), (101, 300), (200, 300), (201, 400)] {
        w.at(height);
        let id = w.create();
        assert_eq!(w.row(id).expires_at, expires, "created at {height}");
    }
    // An epoch that has been decided to be shorter counts with its new length.
    assert_eq!(calc::expires_at(i64::MAX - 1, 5, i64::MAX, 5), i64::MAX - 1);
    assert_eq!(calc::expires_at(50, 1_000, 101, 30), 130);
}

#[test]
fn what_cannot_be_an_escrow_is_refused_and_moves_no_coin() {
    let mut w = World::new();
    let coin = |denom: &str, amount: &str| Some(PbCoin { denom: denom.into(), amount: amount.into() });
    type Change = Box<dyn Fn(&mut pb::MsgCreateEscrow)>;
    let cases: Vec<(u32, Change)> = vec![
        (3, Box::new(|m| m.creator = "hold1".into())),
        (3, Box::new(|m| m.gateway.clear())),
        (3, Box::new(|m| m.gateway_url = "ftp://gw".into())),
        (3, Box::new(|m| m.gateway_url = "https://".into())),
        (3, Box::new(|m| m.gateway_url = format!("https://{}", "x".repeat(249)))),
        (3, Box::new(|m| m.gateway_url = "https://a b".into())),
        (3, Box::new(|m| m.model.clear())),
        (3, Box::new(|m| m.amount = None)),
        (3, Box::new(move |m| m.amount = coin("uatom", "1000000"))),
        (3, Box::new(move |m| m.amount = coin(DENOM, "0"))),
        (3, Box::new(move |m| m.amount = coin(DENOM, "-1"))),
        (3, Box::new(move |m| m.amount = coin(DENOM, "9999"))),
        (3, Box::new(|m| m.slots = 0)),
        (3, Box::new(|m| m.slots = 129)),
        (3, Box::new(|m| m.slots = 260)),
        (6, Box::new(move |m| m.amount = coin(DENOM, "10000001"))),
        (6, Box::new(|m| m.creator = text("gateway"))),
    ];
    for (n, (code, change)) in cases.iter().enumerate() {
        let mut msg = create_msg();
        change(&mut msg);
        assert_eq!(w.refused(|ctx, deps| msg_server::create_escrow(ctx, deps, msg)), *code, "case {n}");
    }
    let refused = |w: &mut World| w.refused(|ctx, deps| msg_server::create_escrow(ctx, deps, create_msg()));
    w.set_params(|p| p.max_slots = 3);
    assert_eq!(refused(&mut w), 3);
    w.set_params(|p| (p.max_slots, p.max_nonce) = (128, 5));
    assert_eq!(refused(&mut w), 3);
    // 4 slots need 6 nonces.
    w.set_params(|p| p.max_nonce = 6);
    w.create();
    w.near.slots = vec![];
    assert_eq!(refused(&mut w), 5);
    w.near.no_model = true;
    assert_eq!(refused(&mut w), 4);
    // A draw that breaks the rule of the quorum makes no escrow either.
    (w.near.no_model, w.near.slots) = (false, vec!["host-0", "host-0", "host-1", "host-2"]);
    assert_eq!(refused(&mut w), 3);
    assert_eq!((w.held("creator"), w.all_coins()), (RICH - AMOUNT, RICH));
}

#[test]
fn the_creation_fee_may_be_all_there_is() {
    let mut w = World::new();
    let mut msg = create_msg();
    msg.amount = Some(PbCoin { denom: DENOM.into(), amount: "10000".into() });
    msg.gateway_url.clear();
    let id = w.ok(|ctx, deps| msg_server::create_escrow(ctx, deps, msg)).escrow_id;
    assert_eq!((w.row(id).config.amount, w.row(id).gateway_url.as_str()), (10_000, ""));
}
