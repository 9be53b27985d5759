//! Each law is broken on purpose and caught by its name; beside it the lawful step passes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::settle::{Settlement, SlotSignature};
use holdfast_escrow::session::{FrozenConfig, Hash, State, Tx, compose, digest};
use holdfast_gateway::core::{
    CallError, ClientEvent, FlagView, HostCall, HostReply, RepairView, RequestError,
};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use crate::escrow::cast::{Cast, Programs};
use crate::escrow::ledger::Ledger;
use crate::escrow::watch::{Books, Check, Law, Watch};

struct Scene {
    cast: Cast,
    watch: Watch,
    state: State,
    bytes: Vec<Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        let cast = Cast::plain(1, 4, Programs::Model);
        let (terms, watch) = (cast.terms.clone(), Watch::new(cast.terms.clone()));
        Self { cast, watch, state: State::genesis(terms), bytes: Vec::new() }
    }

    fn host(&self, index: usize) -> Address {
        self.cast.members[index].address
    }

    fn terms(&self) -> &Arc<FrozenConfig> {
        &self.cast.terms
    }

    /// The gateway's next diff, not yet seen by the watch.
    fn next(&mut self, txs: Vec<Tx>) -> Vec<u8> {
        let composed = compose(&self.state, Vec::new(), txs).unwrap();
        let signature = self.cast.gateway_key.sign_recoverable(composed.digest());
        let (diff, state) = composed.into_diff(signature);
        self.state = state;
        self.bytes.push(diff.to_bytes());
        diff.to_bytes()
    }

    fn log(&mut self, txs: Vec<Tx>) {
        let bytes = self.next(txs);
        self.watch.diff(&bytes, &BTreeMap::new()).unwrap();
    }

    fn books(&self) -> Books<'_> {
        let s = &self.state;
        let (balance, fees, reserved) = (s.balance(), s.fees(), s.reserved());
        Books { nonce: s.nonce(), balance, fees, reserved, stats: s.stats() }
    }

    fn flag(&self, index: usize, phase: RepairView) -> FlagView {
        FlagView {
            escrow_id: self.terms().escrow_id,
            participant: self.host(index),
            diverged_nonce: 1,
            our_root: [1; 32],
            their_root: [2; 32],
            signature: Vec::new(),
            signed_digest: [0; 32],
            generation: 1,
            flagged_at: 0,
            phase,
            attempt: 1,
            level: 0,
            forked: false,
            target: 2,
            elapsed_ms: 0,
            last_verdict: String::new(),
            reason: holdfast_escrow::divergence::REASON,
            released: false,
            first_bad_nonce: 0,
            restored: 0,
        }
    }

    fn flags(&self, index: usize, phase: RepairView) -> BTreeMap<Address, FlagView> {
        BTreeMap::from([(self.host(index), self.flag(index, phase))])
    }

    fn state_sig(&self, key: &SecretKey, nonce: u64, root: &Hash) -> Vec<u8> {
        let terms = self.terms();
        key.sign_recoverable(digest::state(&terms.chain_id, terms.escrow_id, nonce, root)).to_vec()
    }

    fn ask_for_proof(&mut self, call_id: u64, index: usize, generation: u64) {
        let call = HostCall::GetSignatures(pb::GetSignaturesRequest {
            escrow_id: self.terms().escrow_id,
            nonce: 2,
            challenge: Some(pb::Challenge { generation, challenge: vec![9; 32] }),
        });
        let host = self.host(index);
        self.watch.call(call_id, host, &call, &BTreeMap::new()).unwrap();
    }

    /// A reply with both signatures, as asked for by `ask_for_proof`.
    fn proof(&self, key: &SecretKey, root: &Hash, generation: u64, challenge: [u8; 32]) -> HostReply {
        let terms = self.terms();
        let fresh = digest::verify(&terms.chain_id, terms.escrow_id, 2, root, generation, &challenge);
        HostReply::GetSignatures(pb::GetSignaturesResponse {
            have_nonce: 2,
            nonce: 2,
            root: root.to_vec(),
            state_signature: self.state_sig(key, 2, root),
            verification: Some(pb::Verification {
                generation,
                challenge: challenge.to_vec(),
                signature: key.sign_recoverable(fresh).to_vec(),
            }),
            ..Default::default()
        })
    }
}

fn start() -> Tx {
    Tx::StartInference { prompt_hash: [3; 32], input_limit: 16, output_limit: 8, started_at: 1_700_000_000 }
}

fn infer(nonce: u64) -> HostCall {
    HostCall::Infer(pb::InferRequest { target_nonce: nonce, ..Default::default() })
}

#[track_caller]
fn breaks(check: Check, law: Law) {
    assert_eq!(check.map_err(|breach| breach.law), Err(law));
}

#[test]
fn a_start_sent_to_a_flagged_participant_is_caught() {
    let mut scene = Scene::new();
    let host = scene.host(1);
    scene.watch.call(1, host, &infer(1), &BTreeMap::new()).unwrap();
    let others = scene.flags(2, RepairView::Waiting);
    scene.watch.call(2, host, &infer(5), &others).unwrap();
    for phase in [RepairView::Waiting, RepairView::Teaching, RepairView::Verifying, RepairView::GaveUp] {
        let flags = scene.flags(1, phase);
        breaks(scene.watch.call(3, host, &infer(9), &flags), Law::NoStartToFlagged);
    }
    let stranger = scene.host(2);
    breaks(scene.watch.call(4, stranger, &infer(1), &BTreeMap::new()), Law::NoStartToFlagged);
}

#[test]
fn a_flag_that_goes_without_proof_is_caught() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    scene.log(Vec::new());
    let root = scene.state.root();
    let (key, other) = (scene.cast.members[1].key.clone(), scene.cast.members[2].key.clone());
    let raised = scene.flags(1, RepairView::Verifying);
    scene.watch.guilty.insert(scene.host(1));
    let bad = [
        // Nothing, another's key, another root, another generation, another challenge.
        None,
        Some(scene.proof(&other, &root, 1, [9; 32])),
        Some(scene.proof(&key, &[8; 32], 1, [9; 32])),
        Some(scene.proof(&key, &root, 7, [9; 32])),
        Some(scene.proof(&key, &root, 1, [7; 32])),
    ];
    for (number, reply) in bad.into_iter().enumerate() {
        scene.watch.step(raised.clone()).unwrap();
        scene.ask_for_proof(number as u64, 1, 1);
        if let Some(reply) = reply {
            scene.watch.reply(number as u64, &Ok(reply));
        }
        breaks(scene.watch.step(BTreeMap::new()), Law::NoClearWithoutProof);
    }
    // A state signature alone is no proof either.
    let Some(HostReply::GetSignatures(mut alone)) = Some(scene.proof(&key, &root, 1, [9; 32])) else {
        panic!()
    };
    alone.verification = None;
    scene.ask_for_proof(20, 1, 1);
    scene.watch.reply(20, &Ok(HostReply::GetSignatures(alone)));
    breaks(scene.watch.step(BTreeMap::new()), Law::NoClearWithoutProof);
    // Both over our root, for this attempt: the flag may go, once.
    scene.ask_for_proof(21, 1, 1);
    scene.watch.reply(21, &Ok(scene.proof(&key, &root, 1, [9; 32])));
    scene.watch.step(BTreeMap::new()).unwrap();
    assert_eq!(scene.watch.totals.restores, 1);
    scene.watch.step(raised).unwrap();
    breaks(scene.watch.step(BTreeMap::new()), Law::NoClearWithoutProof);
}

#[test]
fn a_ghost_of_a_participant_under_repair_is_caught() {
    for phase in [RepairView::Waiting, RepairView::Teaching, RepairView::Verifying] {
        let mut scene = Scene::new();
        let bytes = scene.next(vec![start()]);
        let flags = scene.flags(1, phase);
        breaks(scene.watch.diff(&bytes, &flags), Law::NoGhostWhileRepairing);
    }
    // A pass is lawful; a ghost is, once the repair was given up; forgiven it is not.
    let mut scene = Scene::new();
    let bytes = scene.next(Vec::new());
    let repairing = scene.flags(1, RepairView::Teaching);
    scene.watch.diff(&bytes, &repairing).unwrap();
    for _ in 2..=4 {
        scene.log(Vec::new());
    }
    let bytes = scene.next(vec![start()]);
    let mut given_up = scene.flags(1, RepairView::GaveUp);
    let mut released = scene.flag(1, RepairView::GaveUp);
    released.released = true;
    let mut forgiven = Scene::new();
    let ghost = forgiven.next(vec![start()]);
    let flags = BTreeMap::from([(released.participant, released)]);
    breaks(forgiven.watch.diff(&ghost, &flags), Law::NoGhostWhileRepairing);
    scene.watch.diff(&bytes, &given_up).unwrap();
    let host = scene.host(1);
    assert_eq!(scene.watch.charged_again(&host), (1, 1));
    given_up.clear();
}

#[test]
fn a_coin_too_many_or_an_outcome_too_few_is_caught() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    scene.watch.books(&scene.books()).unwrap();
    let mut stats = scene.state.stats().to_vec();
    let (balance, fees, reserved) = (scene.state.balance(), scene.state.fees(), scene.state.reserved());
    fn with(stats: &[holdfast_escrow::session::HostStats], sums: (u64, u128, u128, u128)) -> Books<'_> {
        Books { nonce: sums.0, balance: sums.1, fees: sums.2, reserved: sums.3, stats }
    }
    let honest = (1, balance, fees, reserved);
    for sums in [
        (1, balance + 1, fees, reserved),
        (1, balance, fees + 1, reserved),
        (1, balance, fees, reserved - 1),
        (2, balance, fees, reserved),
    ] {
        let books = with(&stats, sums);
        breaks(scene.watch.books(&books), Law::CoinsConserved);
    }
    stats[1].started = 0;
    breaks(scene.watch.books(&with(&stats, honest)), Law::CoinsConserved);
    stats[1].started = 1;
    stats[2].cost = 5;
    breaks(scene.watch.books(&with(&stats, honest)), Law::CoinsConserved);
}

#[test]
fn the_books_agree_with_the_session_over_a_life_and_refuse_what_it_refuses() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    let record = scene.state.record(1).unwrap().clone();
    let terms = scene.terms().clone();
    let key = scene.cast.members[1].key.clone();
    let confirm = Tx::ConfirmStart {
        id: 1,
        confirmed_at: 1_700_000_001,
        sig: key.sign_recoverable(digest::receipt(&terms.chain_id, terms.escrow_id, &record, 1_700_000_001)),
    };
    let finish = digest::finish(&terms.chain_id, terms.escrow_id, 1, 1, 4, 8, &[5; 32]);
    let finish = Tx::FinishInference {
        id: 1,
        input_tokens: 4,
        output_tokens: 8,
        response_hash: [5; 32],
        sig: key.sign_recoverable(finish),
    };
    scene.log(vec![confirm.clone(), finish.clone()]);
    scene.log(vec![start()]);
    scene.log(vec![Tx::FinalizeRound]);
    for _ in 0..4 {
        scene.log(Vec::new());
        scene.watch.books(&scene.books()).unwrap();
    }
    assert!(scene.watch.ledger.frozen);
    // 12 tokens at 10, and 24 reserved tokens of the start that nobody ended.
    assert_eq!(scene.watch.ledger.cost(), 120 + 240);
    // Three diffs paid a fee: those before FinalizeRound.
    assert_eq!(scene.watch.ledger.fees, terms.create_fee + 300);

    let mut books = Ledger::new(&terms);
    let diff = |nonce, txs| holdfast_escrow::session::Diff {
        escrow_id: terms.escrow_id,
        nonce,
        txs,
        post_state_root: [0; 32],
        signature: [0; 65],
    };
    assert!(books.clone().book(&diff(2, Vec::new())).is_err(), "a gap");
    assert!(books.clone().book(&diff(1, vec![finish.clone()])).is_err(), "a finish of nothing");
    books.book(&diff(1, vec![start()])).unwrap();
    assert!(books.clone().book(&diff(2, vec![finish.clone()])).is_err(), "a finish without a receipt");
    assert!(books.clone().book(&diff(2, vec![confirm.clone(), confirm.clone()])).is_err(), "two receipts");
    books.book(&diff(2, vec![confirm, finish.clone()])).unwrap();
    assert!(books.clone().book(&diff(3, vec![finish])).is_err(), "a second finish");
    books.book(&diff(3, vec![Tx::FinalizeRound])).unwrap();
    assert!(books.clone().book(&diff(4, vec![start()])).is_err(), "a start at the end");
    assert!(books.clone().book(&diff(4, vec![Tx::FinalizeRound])).is_err(), "a second end");
}

#[test]
fn a_second_diff_at_one_nonce_or_one_that_nobody_logged_is_caught() {
    let mut scene = Scene::new();
    let mut twin = Scene::new();
    scene.log(vec![start()]);
    let second = twin.next(Vec::new());
    breaks(scene.watch.diff(&second, &BTreeMap::new()), Law::NonceSignedOnce);
    let same = scene.bytes[0].clone();
    scene.watch.diff(&same, &BTreeMap::new()).unwrap();
    breaks(scene.watch.diff(&[1, 2, 3], &BTreeMap::new()), Law::NonceSignedOnce);
    // What leaves must be what is logged.
    let host = scene.host(2);
    for diffs in [vec![second], vec![scene.next(Vec::new())]] {
        let call = HostCall::Teach(pb::TeachRequest { diffs, ..Default::default() });
        breaks(scene.watch.call(1, host, &call, &BTreeMap::new()), Law::NonceSignedOnce);
    }
    let call = HostCall::Teach(pb::TeachRequest { diffs: vec![same], ..Default::default() });
    scene.watch.call(2, host, &call, &BTreeMap::new()).unwrap();
    // A restart must not forget what was told.
    breaks(scene.watch.reopened(&BTreeMap::new(), &[], false), Law::NonceSignedOnce);
}

#[test]
fn a_flag_that_a_restart_forgets_is_caught() {
    let mut scene = Scene::new();
    scene.watch.guilty.insert(scene.host(1));
    let flags = scene.flags(1, RepairView::Waiting);
    scene.watch.step(flags.clone()).unwrap();
    scene.watch.reopened(&flags, &[], false).unwrap();
    breaks(scene.watch.reopened(&BTreeMap::new(), &[], false), Law::FlagsSurvive);
    let mut older = flags.clone();
    older.values_mut().for_each(|flag| flag.generation = 0);
    breaks(scene.watch.reopened(&older, &[], false), Law::FlagsSurvive);
    // A proof of the last step took it away before the process died; one of an earlier step did not.
    let bytes = [scene.next(Vec::new()), scene.next(Vec::new())];
    bytes.iter().for_each(|bytes| scene.watch.diff(bytes, &BTreeMap::new()).unwrap());
    let (root, key) = (scene.state.root(), scene.cast.members[1].key.clone());
    for (heard_last, call_id) in [(false, 1), (true, 2)] {
        scene.ask_for_proof(call_id, 1, 1);
        scene.watch.reply(call_id, &Ok(scene.proof(&key, &root, 1, [9; 32])));
        if !heard_last {
            scene.watch.step(flags.clone()).unwrap();
            breaks(scene.watch.reopened(&BTreeMap::new(), &bytes, false), Law::FlagsSurvive);
        }
    }
    scene.watch.reopened(&BTreeMap::new(), &bytes, false).unwrap();
    assert_eq!(scene.watch.totals.restores, 1);
    // A session that was paid is let go of with its flags.
    scene.watch.step(flags).unwrap();
    scene.watch.reopened(&BTreeMap::new(), &bytes, true).unwrap();
}

#[test]
fn an_older_store_may_sign_anew_what_it_lost_and_nothing_below() {
    let (mut scene, mut twin) = (Scene::new(), Scene::new());
    scene.log(vec![start()]);
    let mark = scene.watch.mark();
    scene.log(vec![start()]);
    let (lost, root) = (scene.bytes[1].clone(), scene.state.root());
    scene.watch.older(mark.clone());
    assert_eq!(scene.watch.ledger.nonce, 1);
    scene.watch.diff(&lost, &BTreeMap::new()).unwrap();
    scene.watch.older(mark);
    twin.log(vec![start()]);
    let other = twin.next(Vec::new());
    scene.watch.diff(&other, &BTreeMap::new()).unwrap();
    // Hosts that hold the lost one show its root; a root of nobody's is still caught.
    scene.watch.honest_root(0, 2, &root).unwrap();
    breaks(scene.watch.honest_root(0, 2, &[4; 32]), Law::HonestReplicaAgrees);
    let below = Scene::new().next(Vec::new());
    breaks(scene.watch.diff(&below, &BTreeMap::new()), Law::NonceSignedOnce);
    // A flag for it needs the other diff, and lets nothing be charged.
    let mut flag = scene.flag(2, RepairView::Waiting);
    (flag.reason, flag.released) = (holdfast_escrow::divergence::REASON_OWN_FORK, true);
    let host = scene.host(2);
    let flags = BTreeMap::from([(host, flag)]);
    breaks(scene.watch.step(flags.clone()), Law::NoFlagWithoutEvidence);
    let fork =
        pb::EscrowError { code: pb::escrow_error::Code::DiffFork.into(), diff: lost, ..Default::default() };
    scene.watch.call(9, host, &HostCall::Teach(pb::TeachRequest::default()), &BTreeMap::new()).unwrap();
    scene.watch.reply(9, &Err(CallError::Host(Box::new(fork))));
    scene.watch.step(flags.clone()).unwrap();
    assert_eq!(scene.watch.totals.own_forks, 1);
    let missed = vec![Tx::TimeoutInference { id: 2, reason: 1, votes: Vec::new() }];
    let diff = holdfast_escrow::session::Diff {
        escrow_id: scene.terms().escrow_id,
        nonce: 3,
        txs: missed,
        post_state_root: [0; 32],
        signature: [0; 65],
    };
    let digest = diff.digest(&scene.terms().chain_id);
    let signature = scene.cast.gateway_key.sign_recoverable(digest);
    let charge = holdfast_escrow::session::Diff { signature, ..diff };
    breaks(scene.watch.diff(&charge.to_bytes(), &flags), Law::NoChargeWithoutFault);
}

#[test]
fn a_flag_without_a_signed_mismatch_is_caught() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    let flags = scene.flags(1, RepairView::Waiting);
    breaks(scene.watch.step(flags.clone()), Law::NoFlagWithoutEvidence);
    let (host, terms) = (scene.host(1), scene.terms().clone());
    let key = scene.cast.members[1].key.clone();
    let ours = scene.watch.log[&1];
    let refusal = |root: Hash, signer: &SecretKey| {
        let digest = digest::refusal(&terms.chain_id, terms.escrow_id, 1, &ours.digest, &root);
        let error = pb::EscrowError {
            code: pb::escrow_error::Code::RootMismatch.into(),
            nonce: 1,
            root: root.to_vec(),
            diff_digest: ours.digest.to_vec(),
            signature: signer.sign_recoverable(digest).to_vec(),
            message: "post_state_root does not match computed state root".into(),
            ..Default::default()
        };
        Err(CallError::Host(Box::new(error)))
    };
    scene.watch.call(1, host, &infer(1), &BTreeMap::new()).unwrap();
    let unsigned = match refusal([4; 32], &key) {
        Err(CallError::Host(mut error)) => {
            error.signature.clear();
            Err(CallError::Host(error))
        }
        other => other,
    };
    for no_evidence in [unsigned, refusal([4; 32], &scene.cast.members[2].key), refusal(ours.root, &key)] {
        scene.watch.reply(1, &no_evidence);
        breaks(scene.watch.step(flags.clone()), Law::NoFlagWithoutEvidence);
    }
    scene.watch.reply(1, &refusal([4; 32], &key));
    scene.watch.step(flags).unwrap();
    assert_eq!(scene.watch.totals.flags, 1);
    // A state signature over another root is evidence too.
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    scene.watch.call(1, host, &infer(1), &BTreeMap::new()).unwrap();
    let applied = pb::Applied {
        nonce: 1,
        root: vec![6; 32],
        state_signature: scene.state_sig(&key, 1, &[6; 32]),
        ..Default::default()
    };
    scene.watch.piece(1, &pb::infer_response::Event::Applied(applied));
    let flags = scene.flags(1, RepairView::Waiting);
    scene.watch.step(flags).unwrap();
}

#[test]
fn a_second_execution_of_one_inference_is_caught() {
    let mut scene = Scene::new();
    scene.watch.run(1, 0, 5).unwrap();
    scene.watch.run(1, 0, 6).unwrap();
    scene.watch.run(2, 0, 5).unwrap();
    breaks(scene.watch.run(1, 0, 5), Law::OneExecution);
    scene.watch.run(1, 1, 5).unwrap();
}

#[test]
fn a_client_that_hears_two_ends_or_none_is_caught() {
    let mut scene = Scene::new();
    let end = || ClientEvent::Failed(RequestError::NoAvailableHost);
    let finished =
        || ClientEvent::Finished { finish_reason: "stop".into(), prompt_tokens: 1, completion_tokens: 1 };
    scene.watch.request(1, 1_000);
    scene.watch.overdue(1_000, 500).unwrap();
    breaks(scene.watch.overdue(1_501, 500), Law::QueueDrains);
    scene.watch.client(1, &finished()).unwrap();
    scene.watch.overdue(9_999, 500).unwrap();
    breaks(scene.watch.client(1, &end()), Law::OneEndPerRequest);
    breaks(scene.watch.client(2, &end()), Law::OneEndPerRequest);
    scene.watch.request(3, 1_000);
    scene.watch.left(3);
    breaks(scene.watch.client(3, &end()), Law::OneEndPerRequest);
    scene.watch.request(4, 1_000);
    scene.watch.rebooted();
    breaks(scene.watch.client(4, &finished()), Law::OneEndPerRequest);
}

#[test]
fn a_charge_of_a_host_without_a_fault_and_a_start_without_an_end_are_caught() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    breaks(scene.watch.ended(0, 2), Law::DispatchEnds);
    let votes = [0usize, 2, 3].map(|index| {
        let terms = scene.terms();
        let slot = u8::try_from(index).unwrap();
        let digest = digest::vote(&terms.chain_id, terms.escrow_id, 1, 1, slot, true);
        let sig = scene.cast.members[index].key.sign_recoverable(digest);
        holdfast_escrow::session::Vote { voter_slot: slot, accept: true, sig }
    });
    scene.log(vec![Tx::TimeoutInference { id: 1, reason: 1, votes: votes.to_vec() }]);
    scene.watch.ended(0, 2).unwrap();
    let everybody: BTreeSet<Address> = (0..4).map(|index| scene.host(index)).collect();
    breaks(scene.watch.charges(&everybody, &BTreeSet::new()), Law::NoChargeWithoutFault);
    scene.watch.charges(&everybody, &BTreeSet::from([[3; 32]])).unwrap();
    let mut rest = everybody;
    rest.remove(&scene.host(1));
    scene.watch.charges(&rest, &BTreeSet::new()).unwrap();
}

#[test]
fn another_root_of_an_honest_replica_is_caught() {
    let mut scene = Scene::new();
    scene.log(Vec::new());
    let root = scene.state.root();
    scene.watch.honest_root(0, 1, &root).unwrap();
    scene.watch.honest_root(0, 9, &[0; 32]).unwrap();
    breaks(scene.watch.honest_root(0, 1, &[0; 32]), Law::HonestReplicaAgrees);
}

#[test]
fn a_settlement_that_pays_otherwise_than_the_books_is_caught() {
    let mut scene = Scene::new();
    scene.log(vec![start()]);
    scene.log(vec![Tx::FinalizeRound]);
    for _ in 0..4 {
        scene.log(Vec::new());
    }
    let sign = |scene: &Scene, settlement: &Settlement, hosts: &[usize]| {
        let terms = scene.terms();
        let root = settlement.root(terms.digest());
        let digest = digest::state(&terms.chain_id, terms.escrow_id, settlement.nonce, &root);
        let of = |index: &usize| SlotSignature {
            slot: u8::try_from(*index).unwrap(),
            sig: scene.cast.members[*index].key.sign_recoverable(digest),
        };
        hosts.iter().map(of).collect::<Vec<_>>()
    };
    let mut honest = Settlement::of(&scene.state, Vec::new());
    honest.signatures = sign(&scene, &honest, &[0, 1, 2]);
    scene.watch.settlement(&honest).unwrap();
    let mut short = honest.clone();
    short.signatures.pop();
    breaks(scene.watch.settlement(&short), Law::SettlementExact);
    // Signed by everybody, adding up, and still not what happened: the slots' earnings are exchanged.
    let mut swapped = honest.clone();
    let cost = std::mem::take(&mut swapped.stats[1].cost);
    swapped.stats[2].cost = cost;
    swapped.signatures = sign(&scene, &swapped, &[0, 1, 2, 3]);
    breaks(scene.watch.settlement(&swapped), Law::SettlementExact);
    let mut shifted = honest;
    shifted.balance -= 1;
    shifted.fees += 1;
    shifted.signatures = sign(&scene, &shifted, &[0, 1, 2, 3]);
    breaks(scene.watch.settlement(&shifted), Law::SettlementExact);
}

#[test]
fn every_law_has_a_name_of_its_own() {
    let laws = [
        Law::NoStartToFlagged,
        Law::NoClearWithoutProof,
        Law::NoGhostWhileRepairing,
        Law::CoinsConserved,
        Law::NonceSignedOnce,
        Law::OneExecution,
        Law::DispatchEnds,
        Law::OneEndPerRequest,
        Law::FlagsSurvive,
        Law::NoFlagWithoutEvidence,
        Law::NoChargeWithoutFault,
        Law::SettlementExact,
        Law::HonestReplicaAgrees,
        Law::EveryHealableRestored,
        Law::EveryUnhealableGivenUp,
        Law::SessionSettles,
        Law::QueueDrains,
        Law::NoBusyLoop,
        Law::GatewayOpens,
    ];
    let names: BTreeSet<&str> = laws.iter().map(|law| law.name()).collect();
    assert_eq!(names.len(), laws.len());
}
