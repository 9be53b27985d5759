//! VoteTimeout and ChallengeStart.

use holdfast_escrow::session::{Tx, apply, compose, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rules::Honest;
use crate::session::{Admission, EscrowStatus, HostCore, JobEnd, Refusal, TakeAll, Terms, VoteStep};

const LATE: u64 = START + 60;

fn ask(gateway: &Gateway, id: u64, reason: u32, body: &str) -> pb::VoteTimeoutRequest {
    pb::VoteTimeoutRequest {
        escrow_id: ESCROW,
        inference_id: id,
        reason,
        diffs: gateway.diffs.clone(),
        body: body.into(),
    }
}

/// A vote of `name`, whose executor answers with `answer`.
fn vote(
    host: &mut HostAt,
    unix_s: u64,
    request: &pb::VoteTimeoutRequest,
    answer: impl FnOnce(&pb::ChallengeStartRequest) -> Option<pb::ChallengeStartResponse>,
) -> Result<pb::VoteTimeoutResponse, pb::EscrowError> {
    match host.core.vote_timeout(unix_s, request)? {
        VoteStep::Voted(vote) => Ok(vote),
        VoteStep::Ask { executor, request, ticket } => {
            assert_eq!(executor, addr("host-1"));
            let answer = answer(&request);
            host.core.vote_answered(&ticket, answer.as_ref())
        }
    }
}

fn pending() -> Gateway {
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    gateway
}

#[test]
fn a_start_whose_executor_says_nothing_is_voted_late_over_the_published_bytes() {
    let mut host = HostAt::new("host-2");
    let gateway = pending();
    let reply = vote(&mut host, LATE, &ask(&gateway, 1, 1, "prompt-1"), |_| None).unwrap();
    assert!(reply.accept && reply.executor_txs.is_empty());
    assert_eq!(reply.voter_slot, 2);
    let published = hash("4f08a2bef837976652aacf53ac089015862ee22913db9cc0dd87ba57593f4920");
    assert_eq!(recover(&published, &reply.signature.clone().try_into().unwrap()), Ok(addr("host-2")));
    // Two of three votes carry the timeout.
    let mut votes = vec![holdfast_escrow::session::Vote {
        voter_slot: 2,
        accept: true,
        sig: reply.signature.try_into().unwrap(),
    }];
    let mut other = HostAt::new("host-3");
    let reply = vote(&mut other, LATE, &ask(&gateway, 1, 1, "prompt-1"), |_| None).unwrap();
    votes.push(holdfast_escrow::session::Vote {
        voter_slot: 3,
        accept: true,
        sig: reply.signature.try_into().unwrap(),
    });
    let timeout = Tx::TimeoutInference { id: 1, reason: 1, votes };
    assert!(compose(&gateway.state, Vec::new(), vec![timeout]).is_ok());
}

#[test]
fn an_executor_that_takes_the_work_up_is_not_late_and_its_receipt_comes_back() {
    let mut host = HostAt::new("host-2");
    let mut executor = HostAt::new("host-1");
    let mut gateway = pending();
    let mut begun = None;
    let reply = vote(&mut host, LATE, &ask(&gateway, 1, 1, "prompt-1"), |challenge| {
        let step = executor.core.challenge_start(LATE, challenge, addr("host-2")).unwrap();
        begun = step.start;
        Some(step.reply)
    })
    .unwrap();
    assert!(!reply.accept);
    assert_eq!(begun.unwrap().body, b"prompt-1");
    let [receipt] = reply.executor_txs.as_slice() else { panic!() };
    let digest = digest::vote(CHAIN, ESCROW, 1, 1, 2, false);
    assert_eq!(recover(&digest, &reply.signature.try_into().unwrap()), Ok(addr("host-2")));
    // Asked again it knows the receipt and asks nobody.
    let again = host.core.vote_timeout(LATE + 9, &ask(&gateway, 1, 1, "prompt-1")).unwrap();
    assert!(matches!(again, VoteStep::Voted(vote) if !vote.accept && vote.executor_txs == [receipt.clone()]));
    gateway.step(vec![tx(receipt)], Vec::new());
    let ended = host.core.vote_timeout(LATE + 9, &ask(&gateway, 1, 1, "prompt-1")).unwrap_err();
    assert_eq!(ended.code(), Code::BadTx, "it is Started now");
}

#[test]
fn an_answer_that_proves_nothing_is_no_answer() {
    let gateway = pending();
    let forged = {
        let record = gateway.state.record(1).unwrap();
        let sig = key("host-3").sign_recoverable(digest::receipt(CHAIN, ESCROW, record, LATE));
        Tx::ConfirmStart { id: 1, confirmed_at: LATE, sig }.to_bytes()
    };
    let report = |kind| {
        let sig = key("host-1").sign_recoverable(digest::error(CHAIN, ESCROW, 1, 1, kind, 0, 0));
        Tx::ReportError { id: 1, kind, input_tokens: 0, output_tokens: 0, sig }.to_bytes()
    };
    let answer = |receipt: Vec<u8>, outcome: Vec<u8>, cancel| {
        Some(pb::ChallengeStartResponse { receipt, outcome, cancel })
    };
    let signed = |id: u64, by: &str| {
        let request = pb::CancelInferenceRequest { escrow_id: ESCROW, inference_id: id, cause: "c".into() };
        let auth = crate::auth::sign(&key(by), CHAIN, ESCROW, "CancelInference", &request, START);
        Some(pb::SignedCancel { request: Some(request), auth })
    };
    let none = Vec::new;
    for (what, answer, accept) in [
        ("nothing", answer(none(), none(), None), true),
        ("garbage", answer(vec![9; 70], vec![1], None), true),
        ("a receipt by somebody else", answer(forged.clone(), none(), None), true),
        ("a failure", answer(none(), report(1), None), false),
        ("a cancellation without the gateway's word", answer(none(), report(8), None), true),
        ("one by the executor itself", answer(none(), report(8), signed(1, "host-1")), true),
        ("one of another inference", answer(none(), report(8), signed(2, "gateway")), true),
        ("the gateway's own", answer(none(), report(8), signed(1, "gateway")), false),
    ] {
        let mut host = HostAt::new("host-2");
        let reply = vote(&mut host, LATE, &ask(&gateway, 1, 1, "prompt-1"), |_| answer).unwrap();
        assert_eq!(reply.accept, accept, "{what}");
        assert_eq!(reply.executor_txs.is_empty(), accept, "{what}");
    }
}

#[test]
fn a_receipt_without_a_finish_is_late_after_the_execution_time() {
    let mut executor = HostAt::new("host-1");
    let mut gateway = pending();
    let step = executor.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    gateway.step(vec![tx(&step.receipt)], Vec::new());
    let late = START + 1 + 1200;
    for body in ["prompt-1", ""] {
        let mut host = HostAt::new("host-0");
        let early = vote(&mut host, late - 1, &ask(&gateway, 1, 2, body), |_| None).unwrap_err();
        assert_eq!(early.code(), Code::BadTx);
        assert!(vote(&mut host, late, &ask(&gateway, 1, 2, body), |_| None).unwrap().accept);
    }
    // It works, and has nothing to show.
    let mut host = HostAt::new("host-0");
    let request = ask(&gateway, 1, 2, "prompt-1");
    let works = vote(&mut host, late, &request, |challenge| {
        let step = executor.core.challenge_start(late, challenge, addr("host-0")).unwrap();
        assert!(step.start.is_none() && step.reply.outcome.is_empty());
        Some(step.reply)
    });
    assert!(works.unwrap().accept);
    // It has ended, and the gateway did not publish it.
    let end = JobEnd::Finished {
        input_tokens: 1,
        output_tokens: 2,
        response_hash: sha("r"),
        finish_reason: "stop".into(),
    };
    let finish = executor.core.outcome(ESCROW, 1, &end).unwrap();
    let reply = vote(&mut host, late, &request, |challenge| {
        Some(executor.core.challenge_start(late, challenge, addr("host-0")).unwrap().reply)
    })
    .unwrap();
    assert_eq!((reply.accept, &reply.executor_txs), (false, &vec![finish]));
    // A gateway that keeps the body back keeps nothing from coming to light.
    let mut host = HostAt::new("host-0");
    let bare = vote(&mut host, late, &ask(&gateway, 1, 2, ""), |challenge| {
        Some(executor.core.challenge_start(late, challenge, addr("host-0")).unwrap().reply)
    });
    assert_eq!(bare.unwrap(), reply);
}

#[test]
fn an_empty_body_begins_no_work() {
    let mut executor = HostAt::new("host-1");
    let gateway = pending();
    let challenge = pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: 1,
        diffs: gateway.diffs,
        body: Vec::new(),
    };
    let refused = executor.core.challenge_start(LATE, &challenge, addr("host-2")).unwrap_err();
    assert_eq!(refused.code(), Code::Policy);
}

#[test]
fn a_receipt_of_a_time_to_come_is_no_answer() {
    let gateway = pending();
    let receipt = |confirmed_at| {
        let record = gateway.state.record(1).unwrap();
        let sig = key("host-1").sign_recoverable(digest::receipt(CHAIN, ESCROW, record, confirmed_at));
        Tx::ConfirmStart { id: 1, confirmed_at, sig }.to_bytes()
    };
    for (confirmed_at, accept) in [(LATE + 70, false), (LATE + 71, true), (u64::MAX, true)] {
        let mut host = HostAt::new("host-2");
        let answer = pb::ChallengeStartResponse { receipt: receipt(confirmed_at), ..Default::default() };
        let reply = vote(&mut host, LATE, &ask(&gateway, 1, 1, "prompt-1"), |_| Some(answer)).unwrap();
        assert_eq!(reply.accept, accept, "{confirmed_at}");
    }
}

/// A gateway could have any host found late by giving it a diff of its own.
#[test]
fn an_executor_that_was_given_another_diff_is_not_judged() {
    let (mut gateway, mut other) = (pending(), Gateway::new(terms()));
    other.pass(1);
    let mut executor = HostAt::new("host-1");
    executor.catch_up(&other);
    let mut host = HostAt::new("host-2");
    let VoteStep::Ask { request, .. } =
        host.core.vote_timeout(LATE, &ask(&gateway, 1, 1, "prompt-1")).unwrap()
    else {
        panic!()
    };
    let fork = executor.core.challenge_start(LATE, &request, addr("host-2")).unwrap_err();
    assert_eq!(fork.code(), Code::DiffFork);
    assert!(host.core.forked_by_gateway(ESCROW, &fork));
    // Asked without diffs it knows of no such start; the diff of that nonce alone brings the same to light.
    let bare = pb::ChallengeStartRequest { diffs: Vec::new(), ..request.clone() };
    let unknown = executor.core.challenge_start(LATE, &bare, addr("host-2")).unwrap_err();
    assert_eq!(unknown.code(), Code::BadTx);
    let again = host.core.challenge_at(&bare, 1).unwrap();
    assert_eq!(executor.core.challenge_start(LATE, &again, addr("host-2")).unwrap_err(), fork);
    // Words without the gateway's signature, of our own log, or of what we do not hold, show nothing.
    let with = |change: &dyn Fn(&mut pb::EscrowError)| {
        let mut fork = fork.clone();
        change(&mut fork);
        fork
    };
    gateway.pass(1);
    let forged = signed(ESCROW, 1, Vec::new(), sha("r"));
    let forged = holdfast_escrow::session::Diff { signature: [1; 65], ..forged }.to_bytes();
    for bad in [
        with(&|f| f.diff.clear()),
        with(&|f| f.diff = gateway.diffs[0].clone()),
        with(&|f| f.diff = gateway.diffs[1].clone()),
        with(&|f| f.diff = forged.clone()),
        with(&|f| f.diff = signed(8, 1, Vec::new(), sha("r")).to_bytes()),
    ] {
        assert!(!host.core.forked_by_gateway(ESCROW, &bad));
    }
}

#[test]
fn no_vote_is_given_on_what_is_not_late_not_ours_to_judge_or_not_what_it_says() {
    let gateway = pending();
    let refused = |name: &str, unix_s, request: &pb::VoteTimeoutRequest| {
        let mut host = HostAt::new(name);
        vote(&mut host, unix_s, request, |_| None).unwrap_err().code()
    };
    assert_eq!(refused("host-2", LATE - 1, &ask(&gateway, 1, 1, "prompt-1")), Code::BadTx);
    assert_eq!(refused("host-1", LATE, &ask(&gateway, 1, 1, "prompt-1")), Code::Policy, "the executor");
    assert_eq!(refused("host-2", LATE, &ask(&gateway, 1, 1, "Prompt-1")), Code::Policy);
    assert_eq!(refused("host-2", LATE, &ask(&gateway, 1, 2, "prompt-1")), Code::BadTx, "there is no receipt");
    assert_eq!(refused("host-2", LATE, &ask(&gateway, 2, 1, "prompt-1")), Code::Behind);
    for reason in [0, 3, 257, u32::MAX] {
        assert_eq!(refused("host-2", LATE, &ask(&gateway, 1, reason, "prompt-1")), Code::BadTx);
    }
    // Without the diffs it knows of no Start: it abstains, and is taught by the next request.
    let mut host = HostAt::new("host-2");
    let bare = pb::VoteTimeoutRequest { diffs: Vec::new(), ..ask(&gateway, 1, 1, "prompt-1") };
    assert_eq!(host.core.vote_timeout(LATE, &bare).unwrap_err().code(), Code::Behind);
    assert!(vote(&mut host, LATE, &ask(&gateway, 1, 1, "prompt-1"), |_| None).unwrap().accept);
}

struct Nothing;

impl Admission for Nothing {
    fn check(&self, _: &[u8], _: u32, _: u32) -> Result<(), Refusal> {
        Err(Refusal::Policy("no".into()))
    }
}

#[test]
fn a_voter_that_could_not_serve_the_body_either_gives_no_vote() {
    let config = core_config("host-2");
    let mut host = HostAt::with("host-2", config, Box::new(Honest), Box::new(Nothing));
    let mut gateway = pending();
    let refused = host.core.vote_timeout(LATE, &ask(&gateway, 1, 1, "prompt-1")).unwrap_err();
    assert_eq!(refused.code(), Code::Policy);
    // What an executor took it has to finish.
    let mut executor = HostAt::new("host-1");
    let step = executor.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    gateway.step(vec![tx(&step.receipt)], Vec::new());
    let late = START + 1 + 1200;
    assert!(vote(&mut host, late, &ask(&gateway, 1, 2, "prompt-1"), |_| None).unwrap().accept);
}

#[test]
fn an_executor_that_is_behind_signs_no_receipt_and_answers_only_hosts_of_the_group() {
    let gateway = pending();
    let mut executor = HostAt::new("host-1");
    let challenge = |diffs: &[Vec<u8>]| pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: 1,
        diffs: diffs.to_vec(),
        body: b"prompt-1".to_vec(),
    };
    let behind = executor.core.challenge_start(LATE, &challenge(&[]), addr("host-2")).unwrap_err();
    assert_eq!((behind.code(), behind.have_nonce), (Code::Behind, 0));
    for caller in ["gateway", "nobody"] {
        let refused =
            executor.core.challenge_start(LATE, &challenge(&gateway.diffs), addr(caller)).unwrap_err();
        assert_eq!(refused.code(), Code::Policy);
    }
    let step = executor.core.challenge_start(LATE, &challenge(&gateway.diffs), addr("host-2")).unwrap();
    let again = executor.core.challenge_start(LATE + 5, &challenge(&gateway.diffs), addr("host-3")).unwrap();
    assert!(step.start.is_some() && again.start.is_none());
    assert_eq!(step.reply.receipt, again.reply.receipt);
    let (next, _) = {
        let mut after = Gateway { state: gateway.state.clone(), diffs: Vec::new() };
        let bytes = after.step(vec![tx(&step.reply.receipt)], Vec::new());
        apply(&gateway.state, &holdfast_escrow::session::Diff::from_bytes(&bytes).unwrap()).unwrap()
    };
    assert_eq!(next.record(1).unwrap().confirmed_at, LATE);
}

#[test]
fn an_executor_that_the_gateway_keeps_diffs_from_is_taught_by_the_voter() {
    let mut gateway = pending();
    gateway.pass(250);
    let mut host = HostAt::new("host-2");
    host.catch_up(&gateway);
    // The gateway's request brings the voter nothing, as it lacks nothing; the executor was bound and never taught.
    let bare = pb::VoteTimeoutRequest { diffs: Vec::new(), ..ask(&gateway, 1, 1, "prompt-1") };
    let mut executor = HostAt::new("host-1");
    let VoteStep::Ask { request, ticket, .. } = host.core.vote_timeout(LATE, &bare).unwrap() else {
        panic!()
    };
    let behind = executor.core.challenge_start(LATE, &request, addr("host-2")).unwrap_err();
    assert_eq!(behind.code(), Code::Behind);
    let next = host.core.challenge_with_log(&request, behind.have_nonce).unwrap().unwrap();
    assert_eq!(next.diffs, gateway.diffs[..200]);
    let step = executor.core.challenge_start(LATE, &next, addr("host-2")).unwrap();
    assert!(step.start.is_some());
    assert!(!host.core.vote_answered(&ticket, Some(&step.reply)).unwrap().accept);
    // What it had from the last try brings it no further.
    assert_eq!(host.core.challenge_with_log(&next, behind.have_nonce).unwrap(), None);
    assert_eq!(host.core.challenge_with_log(&next, 251).unwrap(), None);
}

#[test]
fn an_executor_that_no_gateway_has_bound_takes_the_terms_from_the_chain_for_a_host_of_the_group() {
    let open = Terms { config: terms(), status: EscrowStatus::Open };
    let fresh = || {
        let db = Box::new(crate::store::MemDb::new());
        let config = core_config("host-1");
        HostCore::open(db, key("host-1"), config, Box::new(Honest), Box::new(TakeAll)).unwrap()
    };
    let mut core = fresh();
    assert_eq!(core.adopt(&open, addr("nobody")).unwrap_err().code(), Code::Policy);
    let closed = Terms { status: EscrowStatus::Closed, ..open.clone() };
    assert_eq!(core.adopt(&closed, addr("host-2")).unwrap_err().code(), Code::SessionClosed);
    assert!(core.escrows().is_empty());
    core.adopt(&open, addr("host-2")).unwrap();
    core.adopt(&open, addr("host-2")).unwrap();
    let gateway = pending();
    let request = pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: 1,
        diffs: gateway.diffs.clone(),
        body: b"prompt-1".to_vec(),
    };
    assert!(core.challenge_start(LATE, &request, addr("host-2")).unwrap().start.is_some());
    // The gateway that binds it later finds what it is at.
    assert_eq!(core.bind(&bind(), addr("gateway"), Some(&open)).unwrap().nonce, 1);
}
