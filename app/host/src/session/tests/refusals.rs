//! Bad input: a typed error, and nothing has changed.

use holdfast_escrow::session::{Diff, MAX_DIFF_BYTES, Tx, Vote, compose, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rules::Honest;
use crate::session::{CoreConfig, DIFFS_MAX, TakeAll};

fn teach(diffs: Vec<Vec<u8>>) -> pb::TeachRequest {
    pb::TeachRequest { escrow_id: ESCROW, diffs, challenge: None }
}

/// A session at nonce 3: inference 1 finished by host-1, inference 3 of host-3 pending.
fn scene() -> (HostAt, Gateway) {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let sign = |name: &str, digest| key(name).sign_recoverable(digest);
    let record = gateway.state.record(1).unwrap();
    let sig = sign("host-1", digest::receipt(CHAIN, ESCROW, record, START));
    gateway.step(vec![Tx::ConfirmStart { id: 1, confirmed_at: START, sig }], Vec::new());
    let sig = sign("host-1", digest::finish(CHAIN, ESCROW, 1, 1, 1, 1, &sha("r")));
    let finish =
        Tx::FinishInference { id: 1, input_tokens: 1, output_tokens: 1, response_hash: sha("r"), sig };
    gateway.step(vec![finish], vec![start("prompt-3")]);
    host.catch_up(&gateway);
    (host, gateway)
}

/// The next diff with exactly these transactions, signed by the gateway over the root that they would give.
fn next(gateway: &Gateway, txs: Vec<Tx>) -> Diff {
    let root = compose(&gateway.state, Vec::new(), txs.clone()).map_or([0; 32], |composed| composed.root);
    signed(ESCROW, gateway.state.nonce() + 1, txs, root)
}

#[test]
fn a_bad_diff_is_a_typed_error_and_state_and_store_stay_bit_identical() {
    let (mut host, gateway) = scene();
    let good = next(&gateway, Vec::new());
    let vote = |slot: u8, by: &str| {
        let sig = key(by).sign_recoverable(digest::vote(CHAIN, ESCROW, 3, 1, slot, true));
        Vote { voter_slot: slot, accept: true, sig }
    };
    let timeout = |votes| vec![Tx::TimeoutInference { id: 3, reason: 1, votes }];
    let sig = key("host-1").sign_recoverable(digest::finish(CHAIN, ESCROW, 1, 1, 1, 1, &sha("r")));
    let finish =
        Tx::FinishInference { id: 1, input_tokens: 1, output_tokens: 1, response_hash: sha("r"), sig };
    let old = Diff::from_bytes(&gateway.diffs[1]).unwrap();
    let with = |change: fn(&mut Diff)| {
        let mut diff = good.clone();
        change(&mut diff);
        diff.to_bytes()
    };
    let mut unknown = good.to_bytes();
    // One transaction of a kind that does not exist.
    unknown[16] = 1;
    unknown.insert(20, 99);
    let cases: Vec<(&str, Vec<u8>, Code)> = vec![
        ("a nonce too far", signed(ESCROW, 9, Vec::new(), good.post_state_root).to_bytes(), Code::Behind),
        ("nonce 0", signed(ESCROW, 0, Vec::new(), good.post_state_root).to_bytes(), Code::BadTx),
        ("the highest nonce", signed(ESCROW, u64::MAX, Vec::new(), [0; 32]).to_bytes(), Code::Behind),
        ("another escrow", signed(8, 4, Vec::new(), good.post_state_root).to_bytes(), Code::BadTx),
        ("a changed signature", with(|diff| diff.signature[3] ^= 1), Code::BadTx),
        ("zeros for a signature", with(|diff| diff.signature = [0; 65]), Code::BadTx),
        ("a changed root", with(|diff| diff.post_state_root[0] ^= 1), Code::BadTx),
        ("a nonce moved back", with(|diff| diff.nonce = 2), Code::BadTx),
        (
            "the signature of another diff",
            Diff { signature: old.signature, ..good.clone() }.to_bytes(),
            Code::BadTx,
        ),
        ("an unknown transaction", unknown, Code::BadTx),
        ("no bytes", Vec::new(), Code::BadTx),
        ("a byte too many", [good.to_bytes(), vec![0]].concat(), Code::BadTx),
        ("too many bytes", vec![7; MAX_DIFF_BYTES + 1], Code::TooLarge),
        ("two starts", next(&gateway, vec![start("a"), start("b")]).to_bytes(), Code::BadTx),
        ("a second finish", next(&gateway, vec![finish.clone()]).to_bytes(), Code::BadTx),
        ("a finish twice", next(&gateway, vec![finish.clone(), finish]).to_bytes(), Code::BadTx),
        (
            "a forged vote",
            next(&gateway, timeout(vec![vote(0, "host-0"), vote(2, "host-0")])).to_bytes(),
            Code::BadTx,
        ),
        (
            "an executor's own vote",
            next(&gateway, timeout(vec![vote(0, "host-0"), vote(3, "host-3")])).to_bytes(),
            Code::BadTx,
        ),
        (
            "a vote twice",
            next(&gateway, timeout(vec![vote(0, "host-0"), vote(0, "host-0")])).to_bytes(),
            Code::BadTx,
        ),
        ("too few votes", next(&gateway, timeout(vec![vote(0, "host-0")])).to_bytes(), Code::BadTx),
        (
            "a vote for a slot that is none",
            next(&gateway, timeout(vec![vote(200, "host-0")])).to_bytes(),
            Code::BadTx,
        ),
    ];
    let before = host.everything();
    for (what, bytes, code) in cases {
        let error = host.core.teach(&teach(vec![bytes.clone()])).unwrap_err();
        assert_eq!(error.code(), code, "{what}: {}", error.message);
        assert!(error.signature.is_empty(), "{what}: nothing is signed");
        assert!(host.everything() == before, "{what}");
        // The other ways in are as narrow.
        let infer = pb::InferRequest {
            escrow_id: ESCROW,
            target_nonce: 4,
            diffs: vec![bytes.clone()],
            ..Default::default()
        };
        assert_eq!(host.core.infer(START, &infer).unwrap_err().code(), code, "{what}");
        let vote = pb::VoteTimeoutRequest {
            escrow_id: ESCROW,
            inference_id: 3,
            reason: 1,
            diffs: vec![bytes],
            ..Default::default()
        };
        assert_eq!(host.core.vote_timeout(START, &vote).unwrap_err().code(), code, "{what}");
        assert!(host.everything() == before, "{what}");
    }
    let many = host.core.teach(&teach(vec![good.to_bytes(); DIFFS_MAX + 1])).unwrap_err();
    assert_eq!((many.code(), many.limit), (Code::TooLarge, DIFFS_MAX as u64));
    assert!(host.everything() == before);
    assert!(host.core.teach(&teach(vec![good.to_bytes()])).is_ok());
}

#[test]
fn a_root_that_differs_is_refused_by_a_signature_over_the_published_bytes() {
    // The first three diffs of the golden vectors, the third with a root of its own.
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let digest = digest::receipt(CHAIN, ESCROW, gateway.state.record(1).unwrap(), START + 1);
    let sig = key("host-1").sign_recoverable(digest);
    gateway.step(vec![Tx::ConfirmStart { id: 1, confirmed_at: START + 1, sig }], Vec::new());
    host.catch_up(&gateway);
    let (before, computed) = (host.everything(), {
        let composed = compose(&gateway.state, Vec::new(), Vec::new()).unwrap();
        composed.root
    });
    let bad = signed(ESCROW, 3, Vec::new(), sha("other-root"));
    let error = host.core.teach(&teach(vec![bad.to_bytes()])).unwrap_err();
    assert_eq!((error.code(), error.nonce, error.have_nonce), (Code::RootMismatch, 3, 2));
    assert_eq!((&error.root, &error.diff_digest), (&computed.to_vec(), &bad.digest(CHAIN).to_vec()));
    let refusal = digest::refusal(CHAIN, ESCROW, 3, &bad.digest(CHAIN), &computed);
    assert_eq!(recover(&refusal, &error.signature.try_into().unwrap()), Ok(addr("host-1")));
    assert!(host.everything() == before);
    // The preimage is the published one.
    let diff = hash("0acea62a62306a7f507423f65b1dfe5d26d339fa8c244ffd210197befd9730f4");
    let published = hash("55176f5d803f37f5e7e95c5d15bb4569dc8349cf2970976d98b8526a9b2a048a");
    assert_eq!(digest::refusal(CHAIN, ESCROW, 3, &diff, &sha("other-root")), published);
}

#[test]
fn another_signed_diff_at_a_nonce_that_was_applied_is_a_fork_and_shows_the_first() {
    let (mut host, gateway) = scene();
    let before = host.everything();
    let other = signed(ESCROW, 2, Vec::new(), sha("x"));
    let error = host.core.teach(&teach(vec![other.to_bytes()])).unwrap_err();
    assert_eq!((error.code(), error.nonce, error.have_nonce), (Code::DiffFork, 2, 3));
    assert_eq!(error.diff, gateway.diffs[1]);
    let applied = Diff::from_bytes(&gateway.diffs[1]).unwrap().digest(CHAIN);
    assert_eq!(error.diff_digest, applied.to_vec());
    assert!(host.everything() == before);
}

#[test]
fn the_same_diffs_again_change_nothing_and_what_comes_before_a_bad_one_stays() {
    let (mut host, mut gateway) = scene();
    let before = host.everything();
    for round in 0..2 {
        let applied = host.core.teach(&gateway.teach(0)).unwrap().applied.unwrap();
        assert_eq!(applied.nonce, 3, "{round}");
        assert!(host.everything() == before);
    }
    assert_eq!(host.core.teach(&teach(Vec::new())).unwrap().applied.unwrap().nonce, 3);
    gateway.pass(3);
    let mut diffs = gateway.after(0);
    diffs[5][60] ^= 1;
    let error = host.core.teach(&teach(diffs)).unwrap_err();
    assert_eq!((error.code(), error.nonce), (Code::BadTx, 6));
    assert_eq!(host.nonce(), 5);
    host.restart("host-1", true, Box::new(Honest));
    assert_eq!(host.nonce(), 5, "durably");
}

#[test]
fn unknown_escrows_and_strangers_get_nothing() {
    let (mut host, _) = scene();
    let other = pb::TeachRequest { escrow_id: 8, ..Default::default() };
    assert_eq!(host.core.teach(&other).unwrap_err().code(), Code::SessionNotFound);
    let pending = pb::GetPendingRequest { escrow_id: 8 };
    assert_eq!(host.core.get_pending(&pending, addr("gateway")).unwrap_err().code(), Code::SessionNotFound);
    let reset = pb::ResetSessionRequest { escrow_id: 8, generation: 1 };
    assert_eq!(host.core.reset_session(&reset, addr("gateway")).unwrap_err().code(), Code::SessionNotFound);
    assert_eq!(host.core.state(8).unwrap_err().code(), Code::SessionNotFound);
}

#[test]
fn a_host_takes_no_more_bytes_of_diffs_than_it_has_room_for() {
    let mut gateway = Gateway::new(terms());
    gateway.pass(4);
    let one = gateway.diffs[0].len() as u64;
    let config = CoreConfig { bytes_max: 2 * one, ..core_config("host-1") };
    let mut host = HostAt::with("host-1", config, Box::new(Honest), Box::new(TakeAll));
    let error = host.core.teach(&gateway.teach(0)).unwrap_err();
    assert_eq!((error.code(), host.nonce()), (Code::Unavailable, 2));
    host.restart("host-1", false, Box::new(Honest));
    assert_eq!(host.core.teach(&gateway.teach(2)).unwrap_err().code(), Code::Unavailable);
    assert_eq!(host.nonce(), 2);
}
