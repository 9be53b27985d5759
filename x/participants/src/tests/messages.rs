//! Every message: its refusals by code with nothing changed, and what it does.

use super::*;

/// Participant 1 serves `a` and `b` with weight 10, from epoch 1; participant 2 has left.
fn world() -> World {
    let mut w = World::new(100, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.join(addr(2), &["a"], 50);
    w.leave(addr(2)).unwrap();
    w.go(101);
    w.rich(addr(3));
    w.told();
    w.ears.seen.take();
    w
}

type Spoil<M> = fn(&mut M);

/// Each spoilt message is code 3 and the text begins with the field.
fn bad_fields<M: Clone>(
    good: &M,
    cases: &[(&str, Spoil<M>)],
    send: impl Fn(&mut Context<'_>, &Keeper<'_>, &dyn EligibilityHooks, M) -> Result<(), ModuleError>,
) {
    for (field, spoil) in cases {
        let mut w = world();
        let mut msg = good.clone();
        spoil(&mut msg);
        let (space, code, text) = w.refused(|ctx, k, hooks| send(ctx, k, hooks, msg));
        assert_eq!((space, code), ("participants", 3), "{field}: {text}");
        assert!(text.starts_with(&format!("{field}:")), "{field}: {text}");
        assert_eq!(w.ears.seen.take(), []);
    }
    let mut w = world();
    w.send(|ctx, k, hooks| send(ctx, k, hooks, good.clone())).expect("the unspoilt message is accepted");
}

fn worker() -> pb::WorkerEndpoint {
    pb::WorkerEndpoint { url: "grpc://w:1".into(), first_layer: 0, last_layer: 10_000 }
}

#[test]
fn each_bad_field_of_a_registration_is_code_3_and_named() {
    let good = pb::MsgRegisterParticipant {
        host_url: format!("https://{}", "h".repeat(248)),
        workers: vec![worker(); 64],
        models: vec!["b".into(), "a".into()],
        ..register_msg(&world().chain, addr(3))
    };
    let cases: &[(&str, Spoil<pb::MsgRegisterParticipant>)] = &[
        ("participant", |m| m.participant.clear()),
        ("participant", |m| m.participant = m.participant.to_uppercase()),
        ("participant", |m| m.participant = "cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn".into()),
        ("validator_key", |m| m.validator_key.clear()),
        ("validator_key", |m| m.validator_key.truncate(31)),
        ("validator_key", |m| m.validator_key.extend([0, 0])),
        ("host_url", |m| m.host_url = "ftp://h".into()),
        ("host_url", |m| m.host_url = "http://".into()),
        ("host_url", |m| m.host_url = "http://h h".into()),
        ("host_url", |m| m.host_url.push('h')),
        ("workers", |m| m.workers.push(worker())),
        ("workers.url", |m| m.workers[0].url.clear()),
        ("workers.last_layer", |m| m.workers[1].last_layer += 1),
        ("workers.last_layer", |m| (m.workers[2].first_layer, m.workers[2].last_layer) = (2, 1)),
        ("models", |m| m.models = (0..65).map(|n| format!("m{n}")).collect()),
        ("models", |m| m.models.push("a".into())),
        ("models", |m| m.models.push(String::new())),
        ("models", |m| m.models.push("ä".into())),
        ("models", |m| m.models.push("x".repeat(65))),
        ("collateral", |m| m.collateral = None),
        ("collateral", |m| m.collateral = Some(PbCoin { denom: "x".into(), amount: "1".into() })),
        ("collateral", |m| m.collateral = Some(PbCoin { denom: "uother".into(), amount: "1".into() })),
        ("collateral", |m| m.collateral.as_mut().unwrap().amount = "-1".into()),
        ("collateral", |m| m.collateral.as_mut().unwrap().amount = "01".into()),
        ("collateral", |m| m.collateral.as_mut().unwrap().amount.clear()),
        ("collateral", |m| m.collateral.as_mut().unwrap().amount = format!("{}0", u128::MAX)),
        // Weight 2^64 at ten base units each.
        ("collateral", |m| m.collateral = Some(coin((1 << 64) * 10))),
    ];
    bad_fields(&good, cases, |ctx, k, _, msg| {
        msg_server::register_participant(ctx, k, &BANK, msg).map(|_| ())
    });
}

#[test]
fn a_registration_is_refused_for_a_known_participant_model_key_or_an_empty_purse() {
    let mut w = world();
    let good = register_msg(&w.chain, addr(3));
    let mut refused = |msg: pb::MsgRegisterParticipant| {
        let (space, code, _) = w.refused(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg));
        (space, code)
    };
    let known =
        pb::MsgRegisterParticipant { participant: TestChain::new(1).bech32(&addr(1)), ..good.clone() };
    assert_eq!(refused(known), ("participants", 6));
    let model = pb::MsgRegisterParticipant { models: vec!["a".into(), "z".into()], ..good.clone() };
    assert_eq!(refused(model), ("participants", 4));
    for owner in [addr(1), addr(2)] {
        let key = register_msg(&TestChain::new(1), owner).validator_key;
        let taken = pb::MsgRegisterParticipant { validator_key: key, ..good.clone() };
        assert_eq!(refused(taken), ("participants", 7), "also the key of one that left");
    }
    let poor = pb::MsgRegisterParticipant { collateral: Some(coin(RICH + 1)), ..good };
    assert_eq!(refused(poor), ("sdk", sdk::INSUFFICIENT_FUNDS));
}

#[test]
fn a_registration_stores_what_it_names_bonds_and_says_when_it_works() {
    let mut w = world();
    let msg = pb::MsgRegisterParticipant {
        host_url: "http://h".into(),
        workers: vec![worker()],
        models: vec!["c".into(), "a".into()],
        poc_preserved: true,
        collateral: Some(coin(107)),
        ..register_msg(&w.chain, addr(3))
    };
    let key = msg.validator_key.clone();
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    let expected = Participant {
        validator_key: key,
        host_url: "http://h".into(),
        workers: vec![Worker { url: "grpc://w:1".into(), first_layer: 0, last_layer: 10_000 }],
        models: vec!["a".into(), "c".into()],
        poc_preserved: true,
        collateral: 107,
        unbonding: 0,
        unbonding_epoch: 0,
        left: false,
        joined_epoch: 2,
    };
    assert_eq!(w.stored(addr(3)), expected);
    assert_eq!(w.held(&addr(3)), RICH - 107);
    let who = w.chain.bech32(&addr(3));
    assert_eq!(w.told(), [format!("EventParticipantRegistered participant={who} joined_epoch=2")]);
    assert_eq!(w.ears.seen.take(), [], "nobody's standing changes in this epoch");
    assert_eq!(w.standing("a", addr(3)), Standing::default());
    w.go(201);
    let standing =
        Standing { member: true, active: true, weight: 10, preserved: true, in_maintenance: false };
    assert_eq!((w.standing("a", addr(3)), w.standing("c", addr(3))), (standing, standing));
    assert_eq!(w.weight("b", addr(3)), 0);
}

#[test]
fn a_key_that_was_given_up_by_registering_anew_is_free() {
    let mut w = world();
    let old = w.stored(addr(2)).validator_key;
    let msg = pb::MsgRegisterParticipant { validator_key: vec![5; 33], ..register_msg(&w.chain, addr(2)) };
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    let msg = pb::MsgRegisterParticipant { validator_key: old, ..register_msg(&w.chain, addr(3)) };
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, msg)).unwrap();
    assert_eq!(w.stored(addr(2)).validator_key, vec![5; 33]);
}

#[test]
fn updates_are_refused_by_code_and_replace_every_field() {
    let who = world().chain.bech32(&addr(1));
    let good = pb::MsgUpdateParticipant {
        participant: who.clone(),
        host_url: "http://h".into(),
        workers: vec![worker()],
        models: vec!["b".into()],
        poc_preserved: true,
    };
    let cases: &[(&str, Spoil<pb::MsgUpdateParticipant>)] = &[
        ("participant", |m| m.participant = "x".into()),
        ("host_url", |m| m.host_url = "h".into()),
        ("workers", |m| m.workers = vec![worker(); 65]),
        ("workers.url", |m| m.workers[0].url = "w".into()),
        ("workers.last_layer", |m| m.workers[0].last_layer = 10_001),
        ("models", |m| m.models.push("b".into())),
        ("models", |m| m.models.push("b b".into())),
    ];
    bad_fields(&good, cases, |ctx, k, hooks, msg| {
        msg_server::update_participant(ctx, k, hooks, msg).map(|_| ())
    });
    let mut w = world();
    for (address, models, code) in [(addr(3), "a", 5), (addr(2), "a", 5), (addr(1), "z", 4)] {
        let participant = w.chain.bech32(&address);
        let msg = pb::MsgUpdateParticipant { participant, models: vec![models.into()], ..good.clone() };
        let (space, found, _) = w.refused(|ctx, k, hooks| msg_server::update_participant(ctx, k, hooks, msg));
        assert_eq!((space, found), ("participants", code));
    }
    w.send(|ctx, k, hooks| msg_server::update_participant(ctx, k, hooks, good)).unwrap();
    let now = w.stored(addr(1));
    assert_eq!((now.host_url.as_str(), now.workers.len(), now.poc_preserved), ("http://h", 1, true));
    assert_eq!(now.models, ["b"]);
    assert_eq!(w.told(), [format!("EventParticipantUpdated participant={who}")]);
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0)], "the dropped model, and only it, at once");
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (0, 10));
    assert!(!w.standing("b", addr(1)).preserved, "the flag counts from the next epoch");
    w.go(201);
    assert!(w.standing("b", addr(1)).preserved);
}

#[test]
fn leaving_is_refused_to_strangers_and_takes_effect_in_every_group_at_once() {
    let who = world().chain.bech32(&addr(1));
    let good = pb::MsgLeaveNetwork { participant: who.clone() };
    bad_fields(&good, &[("participant", |m| m.participant.push('x'))], |ctx, k, hooks, msg| {
        msg_server::leave_network(ctx, k, hooks, msg).map(|_| ())
    });
    let mut w = world();
    for stranger in [addr(3), addr(2)] {
        let msg = pb::MsgLeaveNetwork { participant: w.chain.bech32(&stranger) };
        let (space, code, _) = w.refused(|ctx, k, hooks| msg_server::leave_network(ctx, k, hooks, msg));
        assert_eq!((space, code), ("participants", 5));
    }
    w.leave(addr(1)).unwrap();
    assert_eq!(w.told(), [format!("EventParticipantLeft participant={who} epoch=1")]);
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0), hook("b", addr(1), 10, 0)]);
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (0, 0));
    let now = w.stored(addr(1));
    assert_eq!((now.left, now.models.len(), now.collateral), (true, 0, 0));
    assert_eq!((now.unbonding, now.unbonding_epoch), (100, 2));
    w.check("left");
}

#[test]
fn deposits_are_refused_by_code_and_count_from_the_next_epoch() {
    let who = world().chain.bech32(&addr(1));
    let good = pb::MsgDepositCollateral { participant: who.clone(), amount: Some(coin(55)) };
    let cases: &[(&str, Spoil<pb::MsgDepositCollateral>)] = &[
        ("participant", |m| m.participant.clear()),
        ("amount", |m| m.amount = None),
        ("amount", |m| m.amount = Some(coin(0))),
        ("amount", |m| m.amount.as_mut().unwrap().amount = "1.5".into()),
        ("amount", |m| m.amount.as_mut().unwrap().denom = "uother".into()),
        ("amount", |m| m.amount = Some(coin(u128::MAX))),
        ("amount", |m| m.amount = Some(coin((1 << 64) * 10))),
    ];
    bad_fields(&good, cases, |ctx, k, _, msg| msg_server::deposit_collateral(ctx, k, &BANK, msg).map(|_| ()));
    let mut w = world();
    for (address, amount, expected) in [
        (addr(3), 1, ("participants", 5)),
        (addr(2), 1, ("participants", 5)),
        (addr(1), RICH, ("sdk", sdk::INSUFFICIENT_FUNDS)),
    ] {
        let participant = w.chain.bech32(&address);
        let msg = pb::MsgDepositCollateral { participant, amount: Some(coin(amount)) };
        let (space, code, _) = w.refused(|ctx, k, _| msg_server::deposit_collateral(ctx, k, &BANK, msg));
        assert_eq!((space, code), expected);
    }
    w.deposit(addr(1), 55).unwrap();
    assert_eq!(w.told(), [format!("EventCollateralDeposited participant={who} amount=55uhold")]);
    assert_eq!((w.stored(addr(1)).collateral, w.held(&addr(1))), (155, RICH - 155));
    assert_eq!((w.weight("a", addr(1)), w.row("a", addr(1)).next_weight), (10, 15));
    w.go(201);
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (15, 15));
}

#[test]
fn withdrawals_stay_locked_for_the_epoch_they_back_and_the_claim_pays_exactly() {
    let who = world().chain.bech32(&addr(1));
    let good = pb::MsgWithdrawCollateral { participant: who.clone(), amount: Some(coin(41)) };
    let cases: &[(&str, Spoil<pb::MsgWithdrawCollateral>)] = &[
        ("participant", |m| m.participant.clear()),
        ("amount", |m| m.amount = None),
        ("amount", |m| m.amount = Some(coin(0))),
        ("amount", |m| m.amount.as_mut().unwrap().amount = "x".into()),
        ("amount", |m| m.amount.as_mut().unwrap().denom = "uother".into()),
    ];
    bad_fields(&good, cases, |ctx, k, _, msg| msg_server::withdraw_collateral(ctx, k, msg).map(|_| ()));
    let claim = pb::MsgClaimCollateral { participant: who.clone() };
    let claims = |address: Address, w: &mut World| {
        let msg = pb::MsgClaimCollateral { participant: w.chain.bech32(&address) };
        let (space, code, _) = w.refused(|ctx, k, _| msg_server::claim_collateral(ctx, k, &BANK, msg));
        (space, code)
    };
    let mut w = world();
    for (address, amount, expected) in [(addr(3), 1, 5), (addr(2), 1, 5), (addr(1), 101, 8)] {
        let participant = w.chain.bech32(&address);
        let msg = pb::MsgWithdrawCollateral { participant, amount: Some(coin(amount)) };
        let (space, code, _) = w.refused(|ctx, k, _| msg_server::withdraw_collateral(ctx, k, msg));
        assert_eq!((space, code), ("participants", expected));
    }
    assert_eq!(claims(addr(3), &mut w), ("participants", 5));
    assert_eq!(claims(addr(1), &mut w), ("participants", 9), "nothing to claim");
    let (space, code, text) = w.refused(|ctx, k, _| {
        let msg = pb::MsgClaimCollateral { participant: "x".into() };
        msg_server::claim_collateral(ctx, k, &BANK, msg)
    });
    assert!((space, code) == ("participants", 3) && text.starts_with("participant:"), "{text}");

    assert_eq!(w.withdraw(addr(1), 41).unwrap(), 2);
    assert_eq!(
        w.told(),
        [format!("EventCollateralWithdrawn participant={who} amount=41uhold unbonding_epoch=2")]
    );
    assert_eq!((w.weight("a", addr(1)), w.row("a", addr(1)).next_weight), (10, 5));
    w.go(200);
    assert_eq!(claims(addr(1), &mut w), ("participants", 9), "the last block of the epoch is too early");
    w.go(201);
    assert_eq!(w.weight("a", addr(1)), 5);
    let paid = w.send(|ctx, k, _| msg_server::claim_collateral(ctx, k, &BANK, claim)).unwrap();
    assert_eq!(paid.amount, Some(coin(41)));
    assert_eq!(w.told(), [format!("EventCollateralClaimed participant={who} amount=41uhold")]);
    assert_eq!((w.held(&addr(1)), w.held(&Address::module("participants"))), (RICH - 59, 59 + 50));
    assert_eq!(claims(addr(1), &mut w), ("participants", 9), "nothing is paid twice");
    // One that left claims too, all it had.
    assert_eq!(w.claim(addr(2)).unwrap(), coin(50));
    assert_eq!(w.held(&addr(2)), RICH);
}

#[test]
fn a_second_withdrawal_locks_the_first_again() {
    let mut w = world();
    w.withdraw(addr(1), 10).unwrap();
    w.go(201);
    assert_eq!(w.withdraw(addr(1), 20).unwrap(), 3);
    assert_eq!(w.claim(addr(1)).unwrap_err().code, 9);
    w.go(301);
    assert_eq!(w.claim(addr(1)).unwrap(), coin(30));
}

#[test]
fn bad_maintenance_messages_are_refused_by_code() {
    let who = world().chain.bech32(&addr(1));
    let good = pb::MsgAnnounceMaintenance { participant: who.clone(), start_height: 103, end_height: 153 };
    let announce = |w: &mut World, msg: pb::MsgAnnounceMaintenance| {
        w.refused(|ctx, k, _| msg_server::announce_maintenance(ctx, k, msg))
    };
    bad_fields(&good, &[("participant", |m| m.participant.clear())], |ctx, k, _, msg| {
        msg_server::announce_maintenance(ctx, k, msg).map(|_| ())
    });
    // Height 101, two blocks of notice, fifty blocks long at most.
    for (start_height, end_height, field) in [
        (102, 110, "start_height"),
        (0, 110, "start_height"),
        (i64::MIN, 110, "start_height"),
        (101 + 10_000_001, 101 + 10_000_002, "start_height"),
        (i64::MAX, i64::MAX, "start_height"),
        (103, 103, "end_height"),
        (103, 102, "end_height"),
        (103, i64::MIN, "end_height"),
        (103, 154, "end_height"),
        (103, i64::MAX, "end_height"),
    ] {
        let msg = pb::MsgAnnounceMaintenance { start_height, end_height, ..good.clone() };
        let (space, code, text) = announce(&mut world(), msg);
        assert_eq!((space, code), ("participants", 10), "{start_height}..{end_height}");
        assert!(text.starts_with(field), "{text}");
    }
    let mut w = world();
    for stranger in [addr(2), addr(3)] {
        let msg = pb::MsgAnnounceMaintenance { participant: w.chain.bech32(&stranger), ..good.clone() };
        assert_eq!(announce(&mut w, msg).1, 5);
    }
    w.announce(addr(1), 110, 120).unwrap();
    for (start, end) in [(110, 120), (105, 111), (119, 125), (112, 113), (105, 125)] {
        let msg = pb::MsgAnnounceMaintenance { start_height: start, end_height: end, ..good.clone() };
        let (_, code, text) = announce(&mut w, msg);
        assert_eq!(code, 10, "{start}..{end} overlaps 110..120");
        assert!(text.starts_with("start_height") && text.contains("110 to 120"), "{text}");
    }
    w.announce(addr(1), 105, 110).unwrap();
    w.announce(addr(1), 120, 121).unwrap();
    w.announce(addr(1), 130, 131).unwrap();
    let fifth = pb::MsgAnnounceMaintenance { start_height: 140, end_height: 141, ..good.clone() };
    assert_eq!(announce(&mut w, fifth.clone()).1, 11);
    w.cancel(addr(1), 130).unwrap();
    w.send(|ctx, k, _| msg_server::announce_maintenance(ctx, k, fifth)).unwrap();
    for (participant, start_height, code) in
        [(who.clone(), 111, 12), (w.chain.bech32(&addr(2)), 110, 12), ("x".into(), 110, 3)]
    {
        let msg = pb::MsgCancelMaintenance { participant, start_height };
        let (space, found, _) = w.refused(|ctx, k, hooks| msg_server::cancel_maintenance(ctx, k, hooks, msg));
        assert_eq!((space, found), ("participants", code));
    }
}

#[test]
fn models_are_registered_by_governance_alone_once_and_up_to_the_limit() {
    let mut w = world();
    let gov = w.chain.bech32(&Address::module("gov"));
    let msg = |authority: &str, id: &str| pb::MsgRegisterModel {
        authority: authority.into(),
        model: Some(pb::Model { id: id.into() }),
    };
    let who = w.chain.bech32(&addr(1));
    let nameless = pb::MsgRegisterModel { model: None, ..msg(&gov, "") };
    let long = "x".repeat(65);
    for (msg, expected) in [
        (msg(&who, "d"), 2),
        (msg("", "d"), 2),
        (nameless, 3),
        (msg(&gov, ""), 3),
        (msg(&gov, "a b"), 3),
        (msg(&gov, "ä"), 3),
        (msg(&gov, &long), 3),
        (msg(&gov, "a"), 13),
    ] {
        let (space, code, text) = w.refused(|ctx, k, _| msg_server::register_model(ctx, k, msg));
        assert_eq!((space, code), ("participants", expected), "{text}");
        assert!(code == 2 || text.starts_with("model:"), "{text}");
    }
    for n in 3..16 {
        let msg = msg(&gov, &format!("org/Model-{n}.v1:q4_0"));
        w.send(|ctx, k, _| msg_server::register_model(ctx, k, msg)).unwrap();
    }
    assert_eq!(w.told()[0], "EventModelRegistered model=org/Model-3.v1:q4_0");
    let (_, code, _) = w.refused(|ctx, k, _| msg_server::register_model(ctx, k, msg(&gov, "one/more")));
    assert_eq!(code, 14);
}

#[test]
fn every_code_has_its_line_in_the_table() {
    use crate::errors::ParticipantsError as E;
    let text = String::new;
    let all = [
        E::InvalidSigner { expected: text(), found: text() },
        E::field("f", "rule"),
        E::UnknownModel(text()),
        E::UnknownParticipant(text()),
        E::AlreadyRegistered(text()),
        E::KeyTaken,
        E::NotBonded { bonded: 0, asked: 1 },
        E::NothingToClaim,
        E::NotYet(1),
        E::Window { field: "f", rule: text() },
        E::TooManyWindows(1),
        E::UnknownWindow(1),
        E::ModelExists(text()),
        E::TooManyModels(1),
    ];
    let mut codes: Vec<u32> = all.iter().map(|e| e.code().unwrap()).collect();
    codes.dedup();
    assert_eq!(codes, (2..=14).collect::<Vec<u32>>());
    assert_eq!(CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>(), codes);
    for error in all {
        let code = error.code().unwrap();
        let error = ModuleError::from(error);
        assert_eq!((error.codespace, error.code), ("participants", code));
    }
    let corrupt = ModuleError::from(E::Corrupt("x"));
    assert_eq!((corrupt.codespace, corrupt.code), ("sdk", sdk::LOGIC));
    let store = ModuleError::from(E::Store(StoreError::Backend("disk".into())));
    assert_eq!((store.codespace, store.code), ("sdk", sdk::INTERNAL));
    let w = World::new(10, 0);
    let table = ParticipantsModule { keeper: w.keeper() }.error_codes();
    assert_eq!(table.len(), CODES.len());
}
