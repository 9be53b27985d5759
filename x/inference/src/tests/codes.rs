//! Every refusal by its code, and the order in which they are decided (breaker-details 5).

use super::*;

type Spoil = fn(&mut pb::MsgStartInference);

#[test]
fn each_bad_field_of_a_start_is_code_3_and_named() {
    let cases: &[(&str, Spoil)] = &[
        ("signer", |m| m.signer.clear()),
        ("signer", |m| m.signer = m.signer.to_uppercase()),
        ("requested_by", |m| m.requested_by = "cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn".into()),
        ("inference_id", |m| m.inference_id.clear()),
        ("inference_id", |m| m.inference_id = "x".repeat(65)),
        ("inference_id", |m| m.inference_id = "a/b".into()),
        ("inference_id", |m| m.inference_id = "ä".into()),
        ("inference_id", |m| m.inference_id = "a\0".into()),
        ("model", |m| m.model.clear()),
        ("assigned_to", |m| m.assigned_to = "nobody".into()),
        ("prompt_hash", |m| m.prompt_hash.clear()),
        ("prompt_hash", |m| m.prompt_hash.push(0)),
    ];
    for (field, spoil) in cases {
        let mut w = World::new();
        let mut msg = start_msg("a", 1);
        spoil(&mut msg);
        let error = w.send_start(msg).unwrap_err();
        assert_eq!((error.codespace, error.code), ("inference", 3), "{error}");
        assert!(error.message.starts_with(field), "{error}");
        assert_eq!((w.held(51), w.heard().len()), (RICH, 0));
    }
    let mut w = World::new();
    w.start(&"x".repeat(64), 1).unwrap();
    w.start("AZaz09._-", 1).unwrap();
}

#[test]
fn an_amount_past_128_bits_is_code_3_and_one_below_is_a_matter_of_funds() {
    let mut w = World::new();
    let mut params = Params::load(&w.store).unwrap();
    params.token_price.amount = u128::MAX / 30;
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    w.go(2);
    refused(w.send_start(pb::MsgStartInference { max_tokens: 21, ..start_msg("a", 1) }), 3);
    refused(w.start("a", 1), 10);
    let most = pb::MsgStartInference { prompt_tokens: u64::MAX, max_tokens: u64::MAX, ..start_msg("a", 1) };
    refused(w.send_start(most), 3);
}

#[test]
fn each_bad_field_of_a_finish_report_or_cancel_is_code_3() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    let finish = |w: &mut World, msg| w.run(|c, d| msg_server::finish_inference(c, d, msg)).map(|_| ());
    refused(finish(&mut w, pb::MsgFinishInference { executed_by: "x".into(), ..finish_msg("a", 1) }), 3);
    refused(finish(&mut w, pb::MsgFinishInference { inference_id: "".into(), ..finish_msg("a", 1) }), 3);
    refused(finish(&mut w, pb::MsgFinishInference { response_hash: vec![1; 31], ..finish_msg("a", 1) }), 3);
    refused(w.report("a b", 1), 3);
    refused(w.cancel("a b", 51), 3);
    let msg = pb::MsgReportFailure { executor: String::new(), inference_id: "a".into(), kind: 0 };
    refused(w.run(|c, d| msg_server::report_failure(c, d, msg)).map(|_| ()), 3);
    let msg = pb::MsgCancelInference { requested_by: String::new(), inference_id: "a".into() };
    refused(w.run(|c, d| msg_server::cancel_inference(c, d, msg)).map(|_| ()), 3);
    assert_eq!(w.status("a"), Some(Status::Started));
}

#[test]
fn unknown_model_requester_and_executor_are_4_5_and_6() {
    let mut w = World::new();
    refused(w.send_start(pb::MsgStartInference { model: "m9".into(), ..start_msg("a", 1) }), 4);
    refused(w.send_start(pb::MsgStartInference { requested_by: text(59), ..start_msg("a", 1) }), 5);
    refused(w.start("a", 99), 6);
    refused(w.finish("a", 99), 6);
}

#[test]
fn an_id_is_started_once_whatever_became_of_it() {
    let mut w = World::new();
    for (id, end) in [("open", 0), ("finished", 1), ("failed", 2), ("cancelled", 3)] {
        w.start(id, 1).unwrap();
        match end {
            1 => w.finish(id, 1).unwrap(),
            2 => w.report(id, 1).unwrap(),
            3 => w.cancel(id, 51).unwrap(),
            _ => {}
        }
        refused(w.start(id, 1), 7);
        refused(w.start(id, 2), 7);
    }
    w.go(30);
    refused(w.start("open", 1), 7);
    assert_eq!(w.stats(0, 1).assigned, 4);
}

#[test]
fn an_executor_not_serving_is_8_and_one_that_is_away_9() {
    let mut w = World::new();
    let set = |w: &mut World, change: fn(&mut Standing)| {
        let mut standing = SERVING;
        change(&mut standing);
        w.near.standings.insert((MODEL.to_owned(), who(1)), standing);
        w.start("a", 1)
    };
    refused(set(&mut w, |s| s.member = false), 8);
    refused(set(&mut w, |s| s.active = false), 8);
    refused(set(&mut w, |s| s.weight = 0), 8);
    refused(set(&mut w, |s| s.in_maintenance = true), 9);
    w.block.poc = true;
    refused(set(&mut w, |_| ()), 9);
    set(&mut w, |s| s.preserved = true).unwrap();
    refused(w.start("b", 4), 8);
}

#[test]
fn the_breakers_refusal_passes_with_its_own_code_and_no_money_moves() {
    let mut w = World::new();
    for code in [10, 11, 12, 13] {
        w.near.refusal = Some(code);
        let error = w.start("a", 1).unwrap_err();
        assert_eq!((error.codespace, error.code), ("breaker", code));
    }
    assert_eq!((w.held(51), w.status("a")), (RICH, None));
}

#[test]
fn a_signer_without_enough_is_10_and_exactly_enough_passes() {
    let mut w = World::new();
    let poor = |signer, max_tokens| pb::MsgStartInference { signer, max_tokens, ..start_msg("a", 1) };
    refused(w.send_start(poor(text(51), 999_991)), 10);
    refused(w.send_start(poor(text(60), 1)), 10);
    w.send_start(poor(text(51), 999_990)).unwrap();
    assert_eq!(w.held(51), 0);
}

#[test]
fn a_start_is_refused_by_the_first_rule_that_applies() {
    // Everything is wrong at once; then one fault after another is put right.
    let mut w = World::new();
    w.finish("a", 2).unwrap();
    w.near.refusal = Some(13);
    w.block.poc = true;
    let mut msg = pb::MsgStartInference {
        signer: text(60),
        requested_by: text(59),
        model: "m9".into(),
        assigned_to: text(99),
        prompt_hash: Vec::new(),
        ..start_msg("a", 1)
    };
    let next = |w: &mut World, msg: &pb::MsgStartInference, code| refused(w.send_start(msg.clone()), code);
    next(&mut w, &msg, 3);
    msg.prompt_hash = vec![1; 32];
    next(&mut w, &msg, 4);
    msg.model = MODEL.into();
    next(&mut w, &msg, 5);
    msg.requested_by = text(51);
    next(&mut w, &msg, 6);
    // 7 before 14, 8 and the rest: an id in use, an executor (4) that is not in the group.
    w.near.refusal = None;
    w.block.poc = false;
    w.start("used", 1).unwrap();
    w.near.refusal = Some(13);
    w.block.poc = true;
    msg.assigned_to = text(4);
    next(&mut w, &pb::MsgStartInference { inference_id: "used".into(), ..msg.clone() }, 7);
    next(&mut w, &msg, 14);
    msg.inference_id = "b".into();
    next(&mut w, &msg, 8);
    msg.assigned_to = text(1);
    next(&mut w, &msg, 9);
    w.block.poc = false;
    assert_eq!(w.send_start(msg.clone()).unwrap_err().codespace, "breaker");
    w.near.refusal = None;
    next(&mut w, &msg, 10);
    msg.signer = text(51);
    w.send_start(msg).unwrap();
}

#[test]
fn later_messages_are_refused_in_their_order_too() {
    let mut w = World::new();
    refused(w.report("none", 1), 11);
    refused(w.cancel("none", 51), 11);
    for id in ["open", "closed"] {
        w.start(id, 1).unwrap();
    }
    w.finish("closed", 1).unwrap();
    // 6 before 14 before 12.
    refused(w.finish("closed", 99), 6);
    refused(w.finish("closed", 2), 14);
    refused(w.finish("closed", 1), 12);
    refused(w.report("closed", 2), 14);
    refused(w.report("closed", 1), 12);
    refused(w.cancel("closed", 52), 2);
    refused(w.cancel("closed", 51), 12);
    w.go(30);
    refused(w.finish("open", 2), 14);
    refused(w.finish("open", 1), 13);
    refused(w.report("open", 1), 13);
    refused(w.cancel("open", 52), 2);
    refused(w.cancel("open", 51), 13);
    // Closed before its time stays "closed" after it.
    refused(w.finish("closed", 1), 12);
}

#[test]
fn what_expired_with_an_excuse_is_expired_to_everyone() {
    let mut w = World::new();
    w.near.excuses.insert(who(1), Excuse::Maintenance);
    w.start("a", 1).unwrap();
    w.go(21);
    w.block.height = 22;
    refused(w.finish("a", 1), 13);
    w.block.height = 21;
    w.go(22);
    assert_eq!(w.status("a"), Some(Status::Released));
    refused(w.finish("a", 1), 13);
    refused(w.cancel("a", 51), 13);
}

#[test]
fn the_table_of_codes_matches_the_errors() {
    let s = || "x".to_owned();
    let all = [
        InferenceError::InvalidSigner { field: "f", allowed: s() },
        InferenceError::invalid("f", "r"),
        InferenceError::ModelUnknown(s()),
        InferenceError::RequesterUnknown(s()),
        InferenceError::ExecutorUnknown { field: "f", executor: s() },
        InferenceError::InferenceExists(s()),
        InferenceError::ExecutorNotServing(s()),
        InferenceError::ExecutorUnavailable { executor: s(), why: "poc" },
        InferenceError::InsufficientFunds { needed: s(), reason: s() },
        InferenceError::InferenceNotFound(s()),
        InferenceError::InferenceClosed { id: s(), status: "x" },
        InferenceError::InferenceExpired { id: s(), at: 1 },
        InferenceError::ExecutorMismatch { field: "f", id: s(), executor: s() },
    ];
    let codes: Vec<_> = all.iter().map(InferenceError::code).collect();
    assert_eq!(codes, CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
    assert_eq!(codes, (2..=14).collect::<Vec<_>>());
    assert_eq!(InferenceModule.error_codes().len(), 13);
}
