//! Infer, outcomes, cancellation, waiting transactions and withholding.

use holdfast_escrow::session::{KIND_CANCELLED, State, Tx, check_tx, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::cancel_inference_response::State as CancelState;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;

use super::scene::*;
use crate::session::rules::Honest;
use crate::session::{Admission, CoreConfig, JobEnd, Refusal, TakeAll};
use crate::store::Fault;

fn finished(input_tokens: u32, output_tokens: u32) -> JobEnd {
    let response_hash = sha("response-1");
    JobEnd::Finished { input_tokens, output_tokens, response_hash, finish_reason: "stop".into() }
}

fn failed(kind: u8) -> JobEnd {
    JobEnd::Failed { kind, input_tokens: 4, output_tokens: 3 }
}

/// host-1 with inference 1 taken.
fn taken() -> (HostAt, Gateway, Vec<u8>) {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let step = host.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    (host, gateway, step.receipt)
}

#[test]
fn a_receipt_is_on_disk_before_it_leaves_and_names_the_published_bytes() {
    let (mut host, gateway, receipt) = taken();
    let Tx::ConfirmStart { id: 1, confirmed_at, sig } = tx(&receipt) else { panic!() };
    assert_eq!(confirmed_at, START + 1);
    let published = hash("9d9b9cc4d5e988cd5fd680754da3693c64a32d1c240682cc31f6638483c6d794");
    assert_eq!(recover(&published, &sig), Ok(addr("host-1")));
    host.restart("host-1", true, Box::new(Honest));
    let pending =
        host.core.get_pending(&pb::GetPendingRequest { escrow_id: ESCROW }, addr("gateway")).unwrap();
    assert_eq!(pending.txs, std::slice::from_ref(&receipt));
    assert_eq!(host.core.unfinished().unwrap(), [(ESCROW, 1)]);
    let again = host.core.infer(START + 5, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    assert_eq!(
        (again.receipt, again.start, again.ended),
        (receipt, None, None),
        "the same receipt, no second run"
    );
}

#[test]
fn a_commit_that_fails_gives_no_receipt_and_changes_nothing() {
    for fault in [Fault::Fail, Fault::Full, Fault::CrashBefore] {
        let mut host = HostAt::new("host-1");
        let mut gateway = Gateway::new(terms());
        gateway.step(Vec::new(), vec![start("prompt-1")]);
        let before = host.everything();
        host.db.fault(1, fault);
        let request = infer(&gateway, 0, 1, "prompt-1");
        let error = host.core.infer(START + 1, &request).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(host.everything(), before);
        host.restart("host-1", true, Box::new(Honest));
        assert!(host.core.infer(START + 1, &request).unwrap().start.is_some());
    }
    // The receipt became durable, and the process did not hear of it: the work is never begun, and is reported.
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    host.db.fault(1, Fault::CrashAfter);
    host.core.infer(START + 1, &infer(&gateway, 0, 1, "prompt-1")).unwrap_err();
    host.restart("host-1", true, Box::new(Honest));
    assert_eq!(host.core.unfinished().unwrap(), [(ESCROW, 1)]);
}

#[test]
fn a_finish_survives_the_process_names_the_published_bytes_and_is_signed_once() {
    let (mut host, mut gateway, receipt) = taken();
    let finish = host.core.outcome(ESCROW, 1, &finished(4, 8)).unwrap();
    let Tx::FinishInference { sig, .. } = tx(&finish) else { panic!() };
    let published = hash("24665dfc886b2bf9f730fe0bdd87455355e305823fad17126a17ac40d06e0e55");
    assert_eq!(recover(&published, &sig), Ok(addr("host-1")));
    assert_eq!(host.core.outcome(ESCROW, 1, &failed(1)).unwrap(), finish, "the first outcome stays");
    host.restart("host-1", true, Box::new(Honest));
    assert!(host.core.unfinished().unwrap().is_empty());
    let pending =
        host.core.get_pending(&pb::GetPendingRequest { escrow_id: ESCROW }, addr("gateway")).unwrap();
    assert_eq!(pending.txs, [receipt.clone(), finish.clone()], "oldest first");
    assert_eq!(host.core.ended(ESCROW, 1).unwrap(), Some((finish.clone(), "stop".into())));
    gateway.step(vec![tx(&receipt), tx(&finish)], Vec::new());
    assert!(host.catch_up(&gateway).pending.is_empty());
    let late = host.core.infer(START + 9, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    assert_eq!(late.ended.map(|(tx, _)| tx), Some(finish));
}

#[test]
fn counts_are_clamped_to_the_limits_of_the_start() {
    let (mut host, gateway, receipt) = taken();
    let Tx::FinishInference { input_tokens, output_tokens, .. } =
        tx(&host.core.outcome(ESCROW, 1, &finished(17, 9)).unwrap())
    else {
        panic!()
    };
    assert_eq!((input_tokens, output_tokens), (16, 8));
    let mut next = Gateway { state: gateway.state.clone(), diffs: Vec::new() };
    next.step(vec![tx(&receipt)], Vec::new());

    let (mut host, _, _) = taken();
    let end = JobEnd::Failed { kind: 3, input_tokens: u32::MAX, output_tokens: u32::MAX };
    let report = tx(&host.core.outcome(ESCROW, 1, &end).unwrap());
    assert!(matches!(report, Tx::ReportError { kind: 3, input_tokens: 16, output_tokens: 8, .. }));
    assert_eq!(check_tx(&next.state, &report), Ok(()));
}

#[test]
fn a_failure_is_signed_with_its_number_and_cancelled_only_on_the_gateways_word() {
    for (given, signed) in [(1, 1), (10, 10), (0, 10), (11, 10), (KIND_CANCELLED, 10)] {
        let (mut host, _, _) = taken();
        let Tx::ReportError { kind, sig, .. } = tx(&host.core.outcome(ESCROW, 1, &failed(given)).unwrap())
        else {
            panic!()
        };
        assert_eq!(kind, signed);
        let digest = digest::error(CHAIN, ESCROW, 1, 1, kind, 4, 3);
        assert_eq!(recover(&digest, &sig), Ok(addr("host-1")));
        if kind == 1 {
            assert_eq!(digest, hash("67866c92acac655a9ce65babfbf7d1e7e21149c5717da757453496e51686fc20"));
        }
    }
}

#[test]
fn a_cancellation_ends_the_work_once_by_the_gateways_word_alone() {
    let (mut host, gateway, receipt) = taken();
    let (request, auth) = cancel(1);
    assert_eq!(host.core.cancel(&request, &auth, addr("host-0"), (4, 3)).unwrap_err().code(), Code::Policy);
    let step = host.core.cancel(&request, &auth, addr("gateway"), (4, 3)).unwrap();
    assert!(step.stop);
    assert_eq!((step.reply.state(), step.reply.delivered_tokens), (CancelState::Cancelled, 3));
    let report = step.reply.pending.last().unwrap().clone();
    assert!(matches!(
        tx(&report),
        Tx::ReportError { kind: KIND_CANCELLED, input_tokens: 4, output_tokens: 3, .. }
    ));
    assert_eq!(step.reply.pending, [receipt, report.clone()]);
    // What the runner says later changes nothing; a second cancellation is told the same.
    assert_eq!(host.core.outcome(ESCROW, 1, &finished(4, 8)).unwrap(), report);
    host.restart("host-1", true, Box::new(Honest));
    let again = host.core.cancel(&request, &auth, addr("gateway"), (0, 0)).unwrap();
    assert!(!again.stop);
    assert_eq!((again.reply.state(), again.reply.delivered_tokens), (CancelState::Cancelled, 3));
    // Its evidence goes to whoever challenges.
    let challenge = pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: 1,
        diffs: gateway.after(1),
        body: b"prompt-1".to_vec(),
    };
    let answer = host.core.challenge_start(START + 99, &challenge, addr("host-2")).unwrap().reply;
    assert_eq!(answer.outcome, report);
    assert_eq!(answer.cancel.unwrap(), pb::SignedCancel { request: Some(request), auth });

    let (unknown, auth) = cancel(2);
    let step = host.core.cancel(&unknown, &auth, addr("gateway"), (0, 0)).unwrap();
    assert_eq!((step.reply.state(), step.stop), (CancelState::Unspecified, false));
    let (mut host, _, _) = taken();
    host.core.outcome(ESCROW, 1, &finished(4, 8)).unwrap();
    let (request, auth) = cancel(1);
    let step = host.core.cancel(&request, &auth, addr("gateway"), (4, 8)).unwrap();
    assert_eq!((step.reply.state(), step.reply.delivered_tokens, step.stop), (CancelState::Ended, 8, false));
}

#[test]
fn work_of_others_with_another_body_or_that_has_ended_is_not_taken() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    let theirs = gateway.start(2, "prompt");
    let ours = gateway.start(1, "prompt");
    let refused = |host: &mut HostAt, gateway: &Gateway, id, body: &str| {
        let have = host.nonce();
        let before = host.nonce().max(gateway.state.nonce());
        let error = host.core.infer(START, &infer(gateway, have, id, body)).unwrap_err();
        assert_eq!(host.nonce(), before, "the diffs stay applied");
        error.code()
    };
    assert_eq!(refused(&mut host, &gateway, theirs, "prompt"), Code::Policy);
    assert_eq!(refused(&mut host, &gateway, ours, "Prompt"), Code::Policy);
    assert_eq!(refused(&mut host, &gateway, 1, "prompt"), Code::BadTx, "a pass is no inference");
    let error = host.core.infer(START, &infer(&gateway, gateway.state.nonce(), 99, "prompt")).unwrap_err();
    assert_eq!((error.code(), error.have_nonce), (Code::Behind, gateway.state.nonce()));
    let long = "x".repeat(crate::body::BODY_MAX + 1);
    let error = host.core.infer(START, &infer(&gateway, gateway.state.nonce(), ours, &long)).unwrap_err();
    assert_eq!((error.code(), error.limit), (Code::TooLarge, crate::body::BODY_MAX as u64));
    // Whoever knows no body gets no answer of one that ran.
    host.core.infer(START, &infer(&gateway, gateway.state.nonce(), ours, "prompt")).unwrap();
    assert_eq!(refused(&mut host, &gateway, ours, "Prompt"), Code::Policy);
}

struct Cannot;

impl Admission for Cannot {
    fn check(&self, body: &[u8], input_limit: u32, output_limit: u32) -> Result<(), Refusal> {
        assert_eq!((input_limit, output_limit), (16, 8));
        match body {
            b"busy" => Err(Refusal::Busy { message: "full".into(), retry_after_ms: 77 }),
            _ => Err(Refusal::Policy("no".into())),
        }
    }
}

#[test]
fn what_the_runner_cannot_do_gets_no_receipt_and_no_signed_word_when_it_is_challenged_either() {
    let mut host = HostAt::with("host-1", core_config("host-1"), Box::new(Honest), Box::new(Cannot));
    let mut gateway = Gateway::new(terms());
    let busy = gateway.start(1, "busy");
    let error = host.core.infer(START, &infer(&gateway, 0, busy, "busy")).unwrap_err();
    assert_eq!((error.code(), error.retry_after_ms), (Code::Busy, 77));
    let id = gateway.start(1, "bad");
    let error = host.core.infer(START, &infer(&gateway, busy, id, "bad")).unwrap_err();
    assert_eq!(error.code(), Code::Policy);
    let mut challenge = pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: id,
        diffs: Vec::new(),
        body: b"bad".to_vec(),
    };
    let refused = host.core.challenge_start(START, &challenge, addr("host-0")).unwrap_err();
    assert_eq!(refused.code(), Code::Policy);
    let pending = pb::GetPendingRequest { escrow_id: ESCROW };
    assert!(host.core.get_pending(&pending, addr("gateway")).unwrap().txs.is_empty(), "nothing is reported");
    challenge.inference_id = busy;
    challenge.body = b"busy".to_vec();
    assert_eq!(host.core.challenge_start(START, &challenge, addr("host-0")).unwrap_err().code(), Code::Busy);
}

#[test]
fn a_start_that_was_never_taken_ends_released_by_the_gateways_word_and_is_shown_with_it() {
    let mut host = HostAt::with("host-1", core_config("host-1"), Box::new(Honest), Box::new(Cannot));
    let mut gateway = Gateway::new(terms());
    let id = gateway.start(1, "bad");
    let theirs = gateway.start(2, "bad");
    assert_eq!(host.core.infer(START, &infer(&gateway, 0, id, "bad")).unwrap_err().code(), Code::Policy);
    host.catch_up(&gateway);
    let (request, auth) = cancel(id);
    let step = host.core.cancel(&request, &auth, addr("gateway"), (9, 9)).unwrap();
    assert!(!step.stop, "nothing runs");
    assert_eq!((step.reply.state(), step.reply.delivered_tokens), (CancelState::Cancelled, 0));
    let [report] = step.reply.pending.as_slice() else { panic!() };
    let wanted = (KIND_CANCELLED, 0, 0);
    assert!(
        matches!(tx(report), Tx::ReportError { kind, input_tokens, output_tokens, .. } if (kind, input_tokens, output_tokens) == wanted)
    );
    // It is on disk, is given again, and is shown to whoever challenges.
    host.restart("host-1", true, Box::new(Honest));
    let again = host.core.cancel(&request, &auth, addr("gateway"), (0, 0)).unwrap();
    assert_eq!(again.reply.pending, std::slice::from_ref(report));
    let challenge = pb::ChallengeStartRequest {
        escrow_id: ESCROW,
        inference_id: id,
        diffs: Vec::new(),
        body: b"bad".to_vec(),
    };
    let shown = host.core.challenge_start(START, &challenge, addr("host-0")).unwrap();
    assert!(shown.start.is_none() && shown.reply.receipt.is_empty());
    assert_eq!(shown.reply.outcome, *report);
    assert_eq!(shown.reply.cancel.unwrap(), pb::SignedCancel { request: Some(request), auth });
    let late = host.core.infer(START, &infer(&gateway, gateway.state.nonce(), id, "bad")).unwrap();
    assert!(late.start.is_none() && late.ended.is_some(), "it is not taken any more");
    // Of others' work, and of what it knows no Start of, it says nothing.
    for id in [theirs, 99] {
        let (request, auth) = cancel(id);
        let step = host.core.cancel(&request, &auth, addr("gateway"), (0, 0)).unwrap();
        assert_eq!(step.reply.state(), CancelState::Unspecified);
    }
    gateway.step(vec![tx(report)], Vec::new());
    let row = &gateway.state.stats()[1];
    assert_eq!((row.released, row.errored, row.missed), (1, 0, 0));
    assert!(host.catch_up(&gateway).pending.is_empty());
}

#[test]
fn a_host_withholds_while_its_receipt_is_left_out_for_more_than_two_rounds() {
    let (mut host, mut gateway, receipt) = taken();
    gateway.pass(8);
    let patient = host.catch_up(&gateway);
    assert!(!patient.withheld && !patient.state_signature.is_empty(), "2·N nonces are patience");
    gateway.pass(1);
    let challenge = pb::Challenge { generation: 1, challenge: vec![7; 32] };
    let request = pb::TeachRequest { challenge: Some(challenge.clone()), ..gateway.teach(9) };
    let withheld = host.core.teach(&request).unwrap().applied.unwrap();
    assert!(withheld.withheld && withheld.state_signature.is_empty() && withheld.verification.is_none());
    assert_eq!((withheld.root, withheld.stale), (gateway.state.root().to_vec(), vec![receipt.clone()]));
    let old = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce: 3, challenge: Some(challenge) };
    let old = host.core.get_signatures(&old, addr("gateway")).unwrap();
    assert!(old.withheld && old.state_signature.is_empty() && old.verification.is_none());
    assert_eq!(old.stale, std::slice::from_ref(&receipt));
    // It does not withhold where its operator does not want it.
    let mut meek = CoreConfig { withhold: false, ..core_config("host-1") };
    std::mem::swap(&mut host.config, &mut meek);
    host.restart("host-1", false, Box::new(Honest));
    assert!(!host.core.teach(&gateway.teach(10)).unwrap().applied.unwrap().withheld);
    std::mem::swap(&mut host.config, &mut meek);
    host.restart("host-1", false, Box::new(Honest));
    // The receipt in the log ends it.
    gateway.step(vec![tx(&receipt)], Vec::new());
    let signed = host.catch_up(&gateway);
    assert!(!signed.withheld && signed.stale.is_empty() && !signed.state_signature.is_empty());
}

#[test]
fn what_can_follow_no_more_does_not_wait_and_withholds_nothing() {
    let (mut host, mut gateway, receipt) = taken();
    // Timed out by the others: the receipt is void.
    let vote = |slot: u8| {
        let by = key(&format!("host-{slot}"));
        let sig = by.sign_recoverable(digest::vote(CHAIN, ESCROW, 1, 1, slot, true));
        holdfast_escrow::session::Vote { voter_slot: slot, accept: true, sig }
    };
    let timeout = Tx::TimeoutInference { id: 1, reason: 1, votes: vec![vote(0), vote(2)] };
    gateway.step(Vec::new(), vec![timeout]);
    assert!(host.catch_up(&gateway).pending.is_empty());
    gateway.pass(12);
    assert!(!host.catch_up(&gateway).withheld);
    let finish = host.core.outcome(ESCROW, 1, &finished(4, 8)).unwrap();
    assert!(
        !finish.is_empty() && host.catch_up(&gateway).pending.is_empty(),
        "an outcome that nobody can use"
    );

    let (mut host, mut gateway, _) = taken();
    gateway.step(vec![tx(&receipt)], Vec::new());
    host.catch_up(&gateway);
    host.core.outcome(ESCROW, 1, &finished(4, 8)).unwrap();
    gateway.step(Vec::new(), vec![Tx::FinalizeRound]);
    gateway.pass(4);
    let frozen = host.catch_up(&gateway);
    assert!(frozen.pending.is_empty() && !frozen.withheld, "drained: nothing follows");
}

#[test]
fn the_pool_of_waiting_transactions_is_bounded() {
    let config = CoreConfig { pending_max: 2, ..core_config("host-1") };
    let mut host = HostAt::with("host-1", config, Box::new(Honest), Box::new(TakeAll));
    let mut gateway = Gateway::new(terms());
    let mut take = |gateway: &mut Gateway| {
        let id = gateway.start(1, "prompt");
        let have = host.nonce();
        host.core.infer(START, &infer(gateway, have, id, "prompt"))
    };
    assert!(take(&mut gateway).is_ok() && take(&mut gateway).is_ok());
    assert_eq!(take(&mut gateway).unwrap_err().code(), Code::Busy);
}

#[test]
fn a_clock_behind_the_gateways_signs_no_receipt_from_before_the_start() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    gateway.step(Vec::new(), vec![start("prompt-1")]);
    let step = host.core.infer(START - 50, &infer(&gateway, 0, 1, "prompt-1")).unwrap();
    assert!(matches!(tx(&step.receipt), Tx::ConfirmStart { confirmed_at: START, .. }));
    let state: State = gateway.state;
    assert_eq!(check_tx(&state, &tx(&step.receipt)), Ok(()));
}

/// A vote about a late end carries no body; a gateway may also have lost it.
#[test]
fn a_challenge_about_work_that_was_taken_is_answered_whatever_its_body() {
    let mut host = HostAt::new("host-1");
    let mut gateway = Gateway::new(terms());
    let id = gateway.start(1, "prompt");
    let taken = host.core.infer(START, &infer(&gateway, 0, id, "prompt")).unwrap();
    let end = JobEnd::Failed { kind: 1, input_tokens: 0, output_tokens: 0 };
    let outcome = host.core.outcome(ESCROW, id, &end).unwrap();
    for body in ["", "other", "prompt"] {
        let request = pb::ChallengeStartRequest {
            escrow_id: ESCROW,
            inference_id: id,
            diffs: Vec::new(),
            body: body.into(),
        };
        let step = host.core.challenge_start(START, &request, addr("host-2")).unwrap();
        assert!(step.start.is_none());
        assert_eq!((&step.reply.receipt, &step.reply.outcome), (&taken.receipt, &outcome), "{body:?}");
    }
    // The gateway itself gets nothing for another body.
    assert_eq!(host.core.infer(START, &infer(&gateway, 1, id, "other")).unwrap_err().code(), Code::Policy);
}
