//! Bind, Teach, GetSignatures, GetPending, GetDiffs, ResetSession.

use holdfast_escrow::session::{Tx, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rules::Honest;
use crate::session::{CoreConfig, EscrowStatus, FrozenConfig, JobEnd, TakeAll, Terms};

fn open(config: FrozenConfig) -> Terms {
    Terms { config, status: EscrowStatus::Open }
}

fn signer(digest: [u8; 32], signature: &[u8]) -> holdfast_types::Address {
    recover(&digest, &signature.try_into().unwrap()).unwrap()
}

#[test]
fn a_taught_replica_signs_the_published_roots_with_the_published_bytes() {
    // The nine diffs of the golden vectors, applied by host-1: it confirms and finishes inference 1 itself.
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    let first = host.bind().unwrap();
    assert_eq!(first.nonce, 0);
    assert_eq!(first.root, unhex("558f3f8f8a2e71419c4783512478cca74cd43f71773a2816e11a45ad0f6e356f"));
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let step = host.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    assert_eq!(step.applied.root, unhex("b9f174adadb1d4449c4a278961985f78a644103aec18fcc32b4510c8839a320f"));
    gateway.step(vec![tx(&step.receipt)], Vec::new());
    let end = JobEnd::Finished {
        input_tokens: 4,
        output_tokens: 8,
        response_hash: sha("response-1"),
        finish_reason: "length".into(),
    };
    let finish = host.core.outcome(ESCROW, 1, &end).unwrap();
    gateway.step(vec![tx(&finish)], Vec::new());
    gateway.step(Vec::new(), Vec::new());
    let applied = host.catch_up(&gateway);
    assert_eq!(applied.nonce, 4);
    assert_eq!(applied.root, unhex("ad4d2577954bfc9317d1ad9adfdf23e6edd0e2fda8b8deead840c2f857277969"));
    assert_eq!(
        applied.state_signature,
        unhex(
            "2110ded1ce7863f6748c7681e1f88d288ff8e06217c8d3be60f56d5bdfbe21090d4d25b7b19691c0bc11ed535f242d60b6f2ccf73214b5f3b575b1c8f0efe9b700"
        )
    );
    gateway.step(Vec::new(), vec![Tx::FinalizeRound]);
    gateway.pass(4);
    let frozen = host.catch_up(&gateway);
    assert_eq!(frozen.root, unhex("2a4869765e71089c26fd009441e314c9be1c2094500fa19f63eabb3f545f2c80"));
    let digest = hash("2e66eef0a761d14523c9d2b0b40ac08dd261975473be33a613461fd83d3ce79e");
    assert_eq!(signer(digest, &frozen.state_signature), addr("host-1"));
    assert!(frozen.pending.is_empty());
}

#[test]
fn a_fresh_signature_is_over_the_published_bytes_for_its_generation_and_challenge() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let step = host.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    gateway.step(vec![tx(&step.receipt)], Vec::new());
    let end = JobEnd::Finished {
        input_tokens: 4,
        output_tokens: 8,
        response_hash: sha("response-1"),
        finish_reason: "stop".into(),
    };
    gateway.step(vec![tx(&host.core.outcome(ESCROW, 1, &end).unwrap())], Vec::new());
    gateway.pass(1);
    let challenge = pb::Challenge { generation: 1, challenge: sha("challenge-1").to_vec() };
    let taught = pb::TeachRequest { challenge: Some(challenge.clone()), ..gateway.teach(1) };
    let taught = host.core.teach(&taught).unwrap().applied.unwrap();
    let asked = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce: 0, challenge: Some(challenge) };
    let asked = host.core.get_signatures(&asked, addr("gateway")).unwrap();
    let published = hash("76c3dd8bb371b3eb344872909ae76aea5c8cd6bb068fe73e9a4562f00c1ca88a");
    for fresh in [taught.verification.unwrap(), asked.verification.unwrap()] {
        assert_eq!((fresh.generation, fresh.challenge), (1, sha("challenge-1").to_vec()));
        assert_eq!(signer(published, &fresh.signature), addr("host-1"));
    }
    let short = pb::Challenge { generation: 1, challenge: vec![1; 31] };
    let short = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce: 0, challenge: Some(short) };
    assert_eq!(host.core.get_signatures(&short, addr("gateway")).unwrap_err().code(), Code::BadTx);
}

#[test]
fn an_old_root_is_signed_on_demand_and_a_later_one_is_answered_with_the_last() {
    let mut host = HostAt::new("host-2");
    let mut gateway = Gateway::new(terms());
    let mut roots = vec![gateway.state.root()];
    for _ in 0..5 {
        gateway.pass(1);
        roots.push(gateway.state.root());
    }
    host.catch_up(&gateway);
    for (nonce, wanted) in [(1, 1), (3, 3), (5, 5), (0, 5), (6, 5), (u64::MAX, 5)] {
        let request = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce, challenge: None };
        for caller in ["gateway", "host-0"] {
            let reply = host.core.get_signatures(&request, addr(caller)).unwrap();
            let root = roots[usize::try_from(wanted).unwrap()];
            assert_eq!((reply.have_nonce, reply.nonce, reply.root), (5, wanted, root.to_vec()));
            let digest = digest::state(CHAIN, ESCROW, wanted, &root);
            assert_eq!(signer(digest, &reply.state_signature), addr("host-2"));
            assert!(!reply.withheld && reply.verification.is_none());
        }
        assert_eq!(host.core.get_signatures(&request, addr("nobody")).unwrap_err().code(), Code::Policy);
    }
}

#[test]
fn terms_are_compared_before_the_first_diff() {
    let config = core_config("host-1");
    let fresh = |config: &CoreConfig| {
        let db = Box::new(crate::store::MemDb::new());
        let key = key("host-1");
        crate::session::HostCore::open(db, key, config.clone(), Box::new(Honest), Box::new(TakeAll)).unwrap()
    };
    let refused = |config: &CoreConfig, request: &pb::BindRequest, by: &str, terms: Option<&Terms>| {
        let mut core = fresh(config);
        let error = core.bind(request, addr(by), terms).unwrap_err();
        assert!(core.escrows().is_empty());
        error.code()
    };
    let good = open(terms());
    let other = open(FrozenConfig { refusal_timeout_s: 61, ..terms() });
    assert_eq!(refused(&config, &bind(), "gateway", Some(&other)), Code::ConfigMismatch);
    let id = open(FrozenConfig { escrow_id: 8, ..terms() });
    assert_eq!(refused(&config, &bind(), "gateway", Some(&id)), Code::ConfigMismatch);
    let stranger = open(FrozenConfig { slots: vec![addr("host-0"); 3], ..terms() });
    let request = pb::BindRequest { config_digest: stranger.config.digest().to_vec(), ..bind() };
    assert_eq!(refused(&config, &request, "gateway", Some(&stranger)), Code::Policy);
    let poor = open(FrozenConfig { amount: 9_999, ..terms() });
    let request = pb::BindRequest { config_digest: poor.config.digest().to_vec(), ..bind() };
    assert_eq!(refused(&config, &request, "gateway", Some(&poor)), Code::ConfigMismatch);
    assert_eq!(refused(&config, &bind(), "host-0", Some(&good)), Code::Policy);
    assert_eq!(refused(&config, &bind(), "gateway", None), Code::Unavailable);
    let closed = Terms { status: EscrowStatus::Closed, ..good.clone() };
    assert_eq!(refused(&config, &bind(), "gateway", Some(&closed)), Code::SessionClosed);
    let model = CoreConfig { models: vec!["other".into()], ..config.clone() };
    assert_eq!(refused(&model, &bind(), "gateway", Some(&good)), Code::Policy);
    let full = CoreConfig { sessions_max: 0, ..config.clone() };
    assert_eq!(refused(&full, &bind(), "gateway", Some(&good)), Code::Unavailable);
    // A bound session needs no chain, and does not take other terms from it.
    let mut core = fresh(&config);
    core.bind(&bind(), addr("gateway"), Some(&good)).unwrap();
    let again = core.bind(&bind(), addr("gateway"), None).unwrap();
    assert_eq!(again.boot_id, "boot of host-1");
    assert_eq!(core.bind(&bind(), addr("gateway"), Some(&other)).unwrap_err().code(), Code::ConfigMismatch);
}

#[test]
fn a_settled_escrow_is_closed_for_good_and_its_rows_are_gone() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.pass(3);
    host.catch_up(&gateway);
    let closed = Terms { config: terms(), status: EscrowStatus::Closed };
    let refused = host.core.bind(&bind(), addr("gateway"), Some(&closed)).unwrap_err();
    assert_eq!(refused.code(), Code::SessionClosed);
    assert_eq!(host.db.rows().len(), 1, "its row alone");
    for power_cut in [false, true] {
        let open = Terms { config: terms(), status: EscrowStatus::Open };
        assert_eq!(
            host.core.bind(&bind(), addr("gateway"), Some(&open)).unwrap_err().code(),
            Code::SessionClosed
        );
        assert_eq!(host.core.teach(&gateway.teach(0)).unwrap_err().code(), Code::SessionClosed);
        assert!(host.core.escrows().is_empty());
        host.restart("host-1", power_cut, Box::new(Honest));
    }
}

#[test]
fn diffs_are_given_in_order_and_within_the_limits() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.pass(250);
    host.catch_up(&gateway);
    let mut ask = |from, max| {
        let request = pb::GetDiffsRequest { escrow_id: ESCROW, from, max };
        host.core.get_diffs(&request, addr("gateway")).unwrap().diffs
    };
    assert_eq!(ask(1, 0), gateway.diffs[..200]);
    assert_eq!(ask(0, 3), gateway.diffs[..3]);
    assert_eq!(ask(249, 500), gateway.diffs[248..]);
    assert_eq!(ask(251, 10), Vec::<Vec<u8>>::new());
    assert_eq!(ask(u64::MAX, u32::MAX), Vec::<Vec<u8>>::new());
    let request = pb::GetDiffsRequest { escrow_id: ESCROW, from: 1, max: 1 };
    assert!(host.core.get_diffs(&request, addr("host-3")).is_ok());
    assert_eq!(host.core.get_diffs(&request, addr("nobody")).unwrap_err().code(), Code::Policy);
}

#[test]
fn a_bound_warm_key_of_the_group_may_ask() {
    let mut host = HostAt::new("host-2");
    let mut gateway = Gateway::new(terms());
    let request = pb::GetPendingRequest { escrow_id: ESCROW };
    assert_eq!(host.core.get_pending(&request, addr("warm-1")).unwrap_err().code(), Code::Policy);
    let sig =
        key("host-1").sign_recoverable(digest::bind(CHAIN, ESCROW, &addr("host-1"), &addr("warm-1"), 1));
    gateway
        .step(vec![Tx::BindWarmKey { owner: addr("host-1"), warm: addr("warm-1"), seq: 1, sig }], Vec::new());
    host.catch_up(&gateway);
    assert!(host.core.get_pending(&request, addr("warm-1")).is_ok());
}

#[test]
fn a_replica_is_dropped_only_with_consent_once_a_generation_and_never_while_it_runs_something() {
    let reset = |generation| pb::ResetSessionRequest { escrow_id: ESCROW, generation };
    let mut host = HostAt::new("host-1");
    assert_eq!(host.core.reset_session(&reset(1), addr("gateway")).unwrap_err().code(), Code::Policy);

    let config = CoreConfig { allow_reset: true, ..core_config("host-1") };
    let mut host = HostAt::with("host-1", config, Box::new(Honest), Box::new(TakeAll));
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt")]);
    host.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt")).unwrap();
    assert_eq!(host.core.reset_session(&reset(1), addr("host-0")).unwrap_err().code(), Code::Policy);
    assert_eq!(host.core.reset_session(&reset(1), addr("gateway")).unwrap_err().code(), Code::Busy);
    let failed = JobEnd::Failed { kind: 1, input_tokens: 0, output_tokens: 0 };
    let report = host.core.outcome(ESCROW, 1, &failed).unwrap();
    let dropped = host.core.reset_session(&reset(1), addr("gateway")).unwrap();
    assert_eq!((dropped.dropped_nonce, dropped.root), (1, gateway.state.root().to_vec()));
    assert_eq!(host.core.teach(&gateway.teach(0)).unwrap_err().code(), Code::SessionNotFound);
    // Taught again it knows what it did, and what waits for a diff still does.
    assert_eq!(host.bind().unwrap().nonce, 0);
    let applied = host.catch_up(&gateway);
    assert_eq!(applied.pending.last(), Some(&report));
    let again = host.core.infer(START + 9, &infer(&gateway, 1, 1, "prompt")).unwrap();
    assert!(again.start.is_none() && again.ended.is_some(), "it never runs twice");
    assert_eq!(host.core.reset_session(&reset(1), addr("gateway")).unwrap_err().code(), Code::Policy);
    host.restart("host-1", true, Box::new(Honest));
    assert_eq!(host.core.reset_session(&reset(1), addr("gateway")).unwrap_err().code(), Code::Policy);
    assert_eq!(host.core.reset_session(&reset(2), addr("gateway")).unwrap().dropped_nonce, 1);
}
