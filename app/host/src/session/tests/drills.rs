//! Rules that go wrong on purpose.

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rules::{Drill, Fork, Honest, Lie};
use crate::session::{CoreConfig, TakeAll};

fn host(rules: Box<dyn crate::session::rules::Rules>) -> HostAt {
    let config = CoreConfig { allow_reset: true, ..core_config("host-2") };
    HostAt::with("host-2", config, rules, Box::new(TakeAll))
}

#[test]
fn a_fork_refuses_once_by_its_signature_keeps_its_own_state_and_is_healed_by_a_reset() {
    let mut host = host(Box::new(Fork::new(3)));
    let mut gateway = Gateway::new(terms());
    gateway.pass(6);
    let error = host.core.teach(&gateway.teach(0)).unwrap_err();
    assert_eq!((error.code(), error.nonce, host.nonce()), (Code::RootMismatch, 3, 2));
    assert_eq!(error.signature.len(), 65);
    // From now on it applies, to a state of its own, and signs that.
    let applied = host.catch_up(&gateway);
    assert_eq!(applied.nonce, 6);
    assert_ne!(applied.root, gateway.state.root().to_vec());
    assert_eq!(applied.state_signature.len(), 65);
    gateway.pass(3);
    assert_eq!(host.catch_up(&gateway).nonce, 9);
    let root = |host: &mut HostAt, nonce| {
        let request = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce, challenge: None };
        host.core.get_signatures(&request, addr("gateway")).unwrap().root
    };
    let claimed = |gateway: &Gateway, nonce: usize| {
        let diff = holdfast_escrow::session::Diff::from_bytes(&gateway.diffs[nonce - 1]).unwrap();
        diff.post_state_root.to_vec()
    };
    assert_eq!(root(&mut host, 2), claimed(&gateway, 2));
    for nonce in 3..=9 {
        assert_ne!(root(&mut host, nonce), claimed(&gateway, usize::try_from(nonce).unwrap()));
    }
    // A restart does not heal it.
    let before = host.core.state(ESCROW).unwrap().clone();
    host.restart("host-2", true, Box::new(Fork::new(3)));
    assert_eq!(*host.core.state(ESCROW).unwrap(), before);
    let reset = pb::ResetSessionRequest { escrow_id: ESCROW, generation: 1 };
    assert_eq!(host.core.reset_session(&reset, addr("gateway")).unwrap().dropped_nonce, 9);
    host.bind().unwrap();
    assert_eq!(host.catch_up(&gateway).root, gateway.state.root().to_vec());
}

#[test]
fn a_liar_signs_our_roots_and_refuses_what_live_traffic_brings() {
    let mut host = host(Box::new(Lie { from: 2 }));
    let mut gateway = Gateway::new(terms());
    gateway.start(2, "prompt");
    for _ in 0..2 {
        let error = host.core.infer(START, &infer(&gateway, 0, 2, "prompt")).unwrap_err();
        assert_eq!((error.code(), error.nonce), (Code::RootMismatch, 2));
        assert_ne!(error.root, gateway.state.root().to_vec());
    }
    let taught = host.catch_up(&gateway);
    assert_eq!((taught.nonce, taught.root), (2, gateway.state.root().to_vec()));
    gateway.start(2, "prompt");
    assert_eq!(
        host.core.infer(START, &infer(&gateway, 2, 6, "prompt")).unwrap_err().code(),
        Code::RootMismatch
    );
}

#[test]
fn a_mute_host_is_taught_and_signs_its_state_but_answers_no_challenge() {
    let config = CoreConfig { mute: true, ..core_config("host-2") };
    let mut host = HostAt::with("host-2", config, Box::new(Honest), Box::new(TakeAll));
    let mut gateway = Gateway::new(terms());
    gateway.pass(3);
    let challenge = Some(pb::Challenge { generation: 1, challenge: vec![7; 32] });
    let taught = host.core.teach(&pb::TeachRequest { challenge, ..gateway.teach(0) }).unwrap();
    let applied = taught.applied.unwrap();
    assert_eq!((applied.nonce, applied.root), (3, gateway.state.root().to_vec()));
    assert_eq!((applied.state_signature.len(), applied.verification), (65, None));
}

#[test]
fn an_honest_process_on_a_forked_store_does_not_sign() {
    let mut host = host(Box::new(Fork::new(2)));
    let mut gateway = Gateway::new(terms());
    gateway.pass(4);
    host.core.teach(&gateway.teach(0)).unwrap_err();
    host.catch_up(&gateway);
    host.restart("host-2", true, Box::new(Honest));
    assert_eq!(host.core.state(ESCROW).unwrap_err().code(), Code::Unavailable);
}

#[test]
fn drills_are_read_from_their_words() {
    for (text, drill) in [
        ("fork@nonce40", Ok(Drill::Fork(40))),
        ("restart-empty@nonce60", Ok(Drill::Fork(60))),
        ("lie@nonce1", Ok(Drill::Lie(1))),
        ("slow@250", Ok(Drill::Slow(250))),
        ("mute", Ok(Drill::Mute)),
    ] {
        assert_eq!(text.parse(), drill);
    }
    let wrong =
        ["", "fork", "fork@40", "fork@nonce0", "fork@nonce", "slow@nonce4", "slow@60001", "die@nonce4"];
    for text in wrong.into_iter().chain(["mute@1", "mute@nonce4"]) {
        assert!(text.parse::<Drill>().is_err(), "{text}");
    }
}
