//! Refusals: each with its code, a text that names the field or the height, and nothing changed.

use holdfast_proto::holdfast::breaker::v1::{MsgSetBreakerOverride, OverrideTo};
use holdfast_testkit::{addr, addr_n};
use holdfast_types::traits::StartAttempt;
use holdfast_types::{Address, Module, ModuleError};

use super::scene::{REQUESTER, SIGNER, Scene, attempt};
use crate::msg_server::set_breaker_override;
use crate::{BreakerModule, CODES, Keeper, OVERRIDES_MAX};

/// Refused with `code`, the text naming `word`, state and events as before.
fn refused(s: &mut Scene, msg: MsgSetBreakerOverride, code: u32, word: &str) {
    let keeper = Keeper::new(&s.group);
    let mut text = String::new();
    let found = s
        .chain
        .refused(|ctx| set_breaker_override(ctx, &keeper, msg).inspect_err(|e| text.clone_from(&e.message)));
    assert_eq!(found, ("breaker", code), "{text}");
    assert!(text.starts_with(word), "{text:?} should begin with {word:?}");
}

#[test]
fn an_override_is_refused_for_each_bad_field_and_nothing_changes() {
    let mut s = Scene::three();
    s.go(100);
    let good = s.override_msg(1, OverrideTo::Excluded, 101);
    let edit = |change: fn(&mut MsgSetBreakerOverride)| {
        let mut msg = good.clone();
        change(&mut msg);
        msg
    };
    for authority in [String::new(), s.chain.bech32(&addr(1)), s.chain.bech32(&Address::module("bank"))] {
        refused(&mut s, MsgSetBreakerOverride { authority, ..good.clone() }, 2, "authority: ");
    }
    refused(&mut s, edit(|m| m.authority = m.authority.to_uppercase()), 2, "authority: ");
    refused(&mut s, edit(|m| m.model.clear()), 3, "model: ");
    refused(&mut s, edit(|m| m.model = "M1".into()), 3, "model: ");
    refused(&mut s, edit(|m| m.participant.clear()), 3, "participant: ");
    refused(&mut s, edit(|m| m.participant = "hold1xyz".into()), 3, "participant: ");
    let other_chain = addr(1).to_bech32(&holdfast_types::Hrp::new("cosmos").unwrap());
    refused(&mut s, MsgSetBreakerOverride { participant: other_chain, ..good.clone() }, 3, "participant: ");
    let stranger = s.override_msg(77, OverrideTo::Excluded, 101);
    refused(&mut s, stranger, 3, "participant: ");
    for to in [-1, 3, i32::MAX] {
        refused(&mut s, MsgSetBreakerOverride { to, ..good.clone() }, 3, "to: ");
    }
    for until_block in [i64::MIN, -1, 0, 99, 100, 1_000_101, i64::MAX] {
        refused(&mut s, MsgSetBreakerOverride { until_block, ..good.clone() }, 3, "until_block: ");
    }
    let clear = s.override_msg(1, OverrideTo::None, 0);
    refused(&mut s, clear, 5, "to: ");
    // The bounds themselves are fine.
    s.force(1, OverrideTo::Excluded, 101);
    s.force(2, OverrideTo::Healthy, 1_000_100);
    let clear = s.override_msg(3, OverrideTo::None, 0);
    refused(&mut s, clear, 5, "to: ");
}

#[test]
fn the_codes_of_an_override_are_tested_in_order() {
    let mut s = Scene::three();
    let mut msg = s.override_msg(77, OverrideTo::Excluded, 0);
    msg.authority.clear();
    msg.model.clear();
    refused(&mut s, msg, 2, "authority: ");
    let mut msg = s.override_msg(77, OverrideTo::None, 0);
    msg.model.clear();
    refused(&mut s, msg, 3, "model: ");
}

#[test]
fn the_257th_override_is_refused_and_a_replacement_is_not() {
    let mut s = Scene::three();
    let msg = |s: &Scene, n: u64| MsgSetBreakerOverride {
        participant: s.chain.bech32(&addr_n(n)),
        ..s.override_msg(1, OverrideTo::Excluded, 50)
    };
    let limit = u64::try_from(OVERRIDES_MAX).unwrap();
    for n in 0..=limit {
        s.group.add_participant(addr_n(n));
    }
    for n in 0..limit {
        let msg = msg(&s, n);
        s.run(|k, ctx| set_breaker_override(ctx, k, msg)).unwrap();
    }
    let last = msg(&s, limit);
    refused(&mut s, last.clone(), 4, "participant: ");
    let again = MsgSetBreakerOverride { until_block: 60, ..msg(&s, 7) };
    s.run(|k, ctx| set_breaker_override(ctx, k, again)).unwrap();
    let clear = MsgSetBreakerOverride { to: OverrideTo::None.into(), ..msg(&s, 7) };
    s.run(|k, ctx| set_breaker_override(ctx, k, clear)).unwrap();
    s.run(|k, ctx| set_breaker_override(ctx, k, last)).unwrap();
}

/// The gate's refusal, with nothing changed.
fn gate(s: &mut Scene, attempt: StartAttempt<'static>) -> ModuleError {
    let (store, events) = (s.chain.store.clone(), s.chain.events.len());
    let error = s.attempt(&attempt).unwrap_err();
    assert!(s.chain.store == store && s.chain.events.len() == events);
    assert_eq!(error.codespace, "breaker");
    error
}

#[test]
fn the_gate_refuses_with_10_to_13_and_names_the_height_at_which_it_ends() {
    let mut s = Scene::three();
    let start = attempt(1, REQUESTER, SIGNER, None);
    let at = s.trip(1);
    let error = gate(&mut s, start.clone());
    assert_eq!(error.code, 10);
    assert!(error.message.contains(&format!("until height {};", at + 50)), "{error}");
    for own in [attempt(1, 1, SIGNER, None), attempt(1, REQUESTER, 1, None)] {
        assert_eq!(gate(&mut s, own).code, 10, "a self-request too");
    }
    s.go(at + 50);
    for own in [attempt(1, 1, SIGNER, None), attempt(1, REQUESTER, 1, None)] {
        let error = gate(&mut s, own);
        assert_eq!(error.code, 12);
        assert!(error.message.starts_with("requested_by: "), "{error}");
    }
    s.start(1);
    let error = gate(&mut s, start.clone());
    assert_eq!(error.code, 11);
    assert!(error.message.contains(&format!("until height {} ", at + 50 + 40)), "{error}");
    assert_eq!(gate(&mut s, attempt(1, 1, 1, None)).code, 11, "a self-request too");
    s.force(2, OverrideTo::Excluded, 777);
    let error = gate(&mut s, attempt(2, REQUESTER, SIGNER, None));
    assert_eq!(error.code, 13);
    assert!(error.message.ends_with("until height 777"), "{error}");
    // Forced out is eligibility: no fallback lifts it.
    s.trip(3);
    assert_eq!(s.tally().healthy_all, 0);
    assert_eq!(gate(&mut s, attempt(2, REQUESTER, SIGNER, None)).code, 13);
    s.start(3);
}

#[test]
fn every_code_is_listed_once_with_a_meaning() {
    assert_eq!(CODES.iter().map(|c| c.0).collect::<Vec<_>>(), [2, 3, 4, 5, 10, 11, 12, 13]);
    let module = BreakerModule(Scene::three().group);
    assert_eq!(module.error_codes().len(), CODES.len());
    assert!(holdfast_types::check_prefix_table(&module));
    assert_eq!(module.name(), "breaker");
}
