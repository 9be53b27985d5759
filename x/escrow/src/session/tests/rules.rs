//! One rule, one test: what applies, what is refused, and what it costs.

use std::sync::Arc;

use super::scene::*;
use crate::session::errors::VoteFault;
use crate::session::{
    ApplyError, Diff, InferenceStatus, MAX_TXS, Phase, State, Tx, apply, check_tx, compose, digest,
};

/// The refusal, and that it leaves nothing behind.
fn refused(state: &State, diff: &Diff) -> ApplyError {
    let before = (state.clone(), state.root());
    let error = apply(state, diff).unwrap_err();
    assert_eq!((state, state.root()), (&before.0, before.1), "{error}");
    error
}

fn refused_tx(state: &State, tx: Tx) -> ApplyError {
    let by_check = check_tx(state, &tx).unwrap_err();
    let error = refused(state, &signed(state.nonce() + 1, vec![tx.clone()], [0; 32]));
    assert_eq!(error, by_check);
    // The gateway leaves a host's transaction out and goes on.
    let composed = compose(state, vec![tx.clone()], vec![]).unwrap();
    assert_eq!(composed.txs, []);
    if tx.from_host() {
        assert_eq!(composed.dropped, [(tx, error.clone())]);
    }
    error
}

fn started() -> State {
    let state = step(&genesis(), vec![start("prompt-1")]);
    step(&state, vec![confirm(&state, 1, "host-1")])
}

#[test]
fn a_diff_of_another_place_or_hand_is_refused() {
    let state = started();
    let good = diff(&state, vec![]);
    let with = |change: fn(&mut Diff)| {
        let mut diff = good.clone();
        change(&mut diff);
        refused(&state, &diff)
    };
    assert_eq!(with(|d| d.escrow_id = 8), ApplyError::WrongEscrow { expected: 7, got: 8 });
    assert_eq!(with(|d| d.nonce = 2), ApplyError::WrongNonce { expected: 3, got: 2 });
    assert_eq!(with(|d| d.nonce = 4), ApplyError::WrongNonce { expected: 3, got: 4 });
    // A replay of an old signature, a flipped bit, v out of range, the high-s twin.
    assert_eq!(with(|d| d.post_state_root[0] ^= 1), ApplyError::BadDiffSignature);
    assert_eq!(with(|d| d.signature[3] ^= 1), ApplyError::BadDiffSignature);
    assert_eq!(with(|d| d.signature[64] += 2), ApplyError::BadDiffSignature);
    assert_eq!(with(|d| d.txs.push(Tx::FinalizeRound)), ApplyError::BadDiffSignature);
    let mut by_host = good.clone();
    by_host.signature = sign("host-1", &good.digest(CHAIN));
    assert_eq!(refused(&state, &by_host), ApplyError::BadDiffSignature);
}

#[test]
fn another_root_is_named_with_both_roots_and_the_digest() {
    let state = started();
    let bad = signed(3, vec![], [9; 32]);
    let (computed, digest) = (diff(&state, vec![]).post_state_root, bad.digest(CHAIN));
    assert_eq!(
        refused(&state, &bad),
        ApplyError::RootMismatch { nonce: 3, computed, claimed: [9; 32], digest }
    );
}

#[test]
fn a_diff_with_two_starts_or_too_much_is_refused() {
    let state = genesis();
    let two = signed(1, vec![start("a"), start("b")], [0; 32]);
    assert_eq!(refused(&state, &two), ApplyError::NotLast);
    let both = signed(1, vec![Tx::FinalizeRound, start("a")], [0; 32]);
    assert_eq!(refused(&state, &both), ApplyError::NotLast);
    let many = signed(1, vec![Tx::FinalizeRound; MAX_TXS + 1], [0; 32]);
    assert_eq!(refused(&state, &many), ApplyError::TooManyTxs(257));
    let votes = vec![vote(1, 1, 2, true, "host-2"); 4000];
    let big = signed(1, vec![Tx::TimeoutInference { id: 1, reason: 1, votes }], [0; 32]);
    // 117 bytes of frame, 1 + 8 + 1 + 4 of the transaction, 67 a vote.
    assert_eq!(refused(&state, &big), ApplyError::TooLarge(117 + 14 + 4000 * 67));
    assert!(Diff::from_bytes(&big.to_bytes()).is_err());
    let mut trailing = diff(&state, vec![]).to_bytes();
    trailing.push(0);
    assert!(Diff::from_bytes(&trailing).is_err());
    // Discriminant 7 is no transaction.
    assert!(Tx::from_bytes(&[7]).is_err());
}

#[test]
fn a_start_reserves_and_its_finish_pays_only_what_was_used() {
    let one = step(&genesis(), vec![start("prompt-1")]);
    // (16 + 8) · 10 reserved, 100 fee.
    assert_eq!((one.balance(), one.reserved(), one.fees()), (989_660, 240, 10_100));
    let two = step(&one, vec![confirm(&one, 1, "host-1")]);
    let three = step(&two, vec![finish(&two, 1, (4, 8), "r", "host-1")]);
    assert_eq!((three.balance(), three.reserved(), three.cost()), (989_580, 0, 120));
    let row = &three.stats()[1];
    assert_eq!((row.started, row.completed, row.cost), (1, 1, 120));
    let again = finish(&three, 1, (4, 8), "r", "host-1");
    let status = InferenceStatus::Finished;
    assert_eq!(refused_tx(&three, again), ApplyError::WrongStatus { id: 1, status, tx: "FinishInference" });
}

#[test]
fn receipts_and_finishes_need_the_executor_the_order_and_the_limits() {
    let one = step(&genesis(), vec![start("prompt-1")]);
    assert_eq!(refused_tx(&one, confirm(&one, 1, "host-2")), ApplyError::BadSignature { slot: 1 });
    let early = finish(&one, 1, (4, 8), "r", "host-1");
    let status = InferenceStatus::Pending;
    assert_eq!(refused_tx(&one, early), ApplyError::WrongStatus { id: 1, status, tx: "FinishInference" });
    let two = step(&one, vec![confirm(&one, 1, "host-1")]);
    for (tokens, field, limit, got) in [((17, 8), "input_tokens", 16, 17), ((16, 9), "output_tokens", 8, 9)] {
        let tx = finish(&two, 1, tokens, "r", "host-1");
        assert_eq!(refused_tx(&two, tx), ApplyError::AboveLimit { id: 1, field, limit, got });
    }
    let other = finish(&two, 1, (4, 8), "r", "host-0");
    assert_eq!(refused_tx(&two, other), ApplyError::BadSignature { slot: 1 });
    let mut changed = finish(&two, 1, (4, 8), "r", "host-1");
    if let Tx::FinishInference { response_hash, .. } = &mut changed {
        *response_hash = sha("other");
    }
    assert_eq!(refused_tx(&two, changed), ApplyError::BadSignature { slot: 1 });
    let unknown = finish(&two, 5, (4, 8), "r", "host-1");
    assert_eq!(refused_tx(&two, unknown), ApplyError::InferenceNotLive(5));
}

#[test]
fn a_start_needs_balance_room_and_limits() {
    let mut config = config();
    (config.amount, config.max_live) = (10_000 + 100 + 240, 1);
    let state = State::genesis(Arc::new(config.clone()));
    let one = step(&state, vec![start("a")]);
    assert_eq!((one.balance(), one.reserved()), (0, 240));
    assert_eq!(check_tx(&one, &start("b")), Err(ApplyError::TooManyLive(1)));
    // Not even a pass can be paid now: the gateway must finalize, which is free.
    assert_eq!(
        refused(&one, &signed(2, vec![], [0; 32])),
        ApplyError::BalanceTooLow { balance: 0, needed: 100 }
    );
    step(&one, vec![Tx::FinalizeRound]);
    config.amount -= 1;
    let poor = State::genesis(Arc::new(config));
    assert_eq!(
        compose(&poor, vec![], vec![start("a")]).unwrap_err(),
        ApplyError::BalanceTooLow { balance: 99, needed: 100 }
    );
    let zero = Tx::StartInference { prompt_hash: [0; 32], input_limit: 0, output_limit: 8, started_at: 0 };
    assert_eq!(refused_tx(&genesis(), zero), ApplyError::ZeroLimit("input_limit"));
}

#[test]
fn the_last_nonces_are_kept_for_finalizing_and_passes_cannot_eat_them() {
    let mut config = config();
    config.max_nonce = 6;
    let mut state = State::genesis(Arc::new(config));
    state = step(&state, vec![]);
    // 2 + 4 + 1 > 6.
    assert_eq!(refused(&state, &signed(2, vec![], [0; 32])), ApplyError::NonceReserve { nonce: 2, max: 6 });
    state = step(&state, vec![Tx::FinalizeRound]);
    for _ in 0..4 {
        state = step(&state, vec![]);
    }
    assert_eq!((state.nonce(), state.phase()), (6, Phase::Frozen));
    assert_eq!(refused(&state, &signed(7, vec![], [0; 32])), ApplyError::Frozen { nonce: 6 });
}

#[test]
fn votes_are_checked_one_by_one_and_one_bad_vote_spoils_all() {
    let state = step(&genesis(), vec![start("prompt-1")]);
    let timeout = |votes| Tx::TimeoutInference { id: 1, reason: 1, votes };
    let bad = |votes, slot, why| {
        assert_eq!(refused_tx(&state, timeout(votes)), ApplyError::BadVote { slot, why });
    };
    let yes = |slot: u8| vote(1, 1, slot, true, &format!("host-{slot}"));
    bad(vec![yes(2), yes(0)], 0, VoteFault::Order);
    bad(vec![yes(2), yes(2)], 2, VoteFault::Order);
    bad(vec![yes(0), yes(1)], 1, VoteFault::Executor);
    bad(vec![vote(1, 1, 4, true, "host-2")], 4, VoteFault::UnknownSlot);
    bad(vec![yes(0), vote(1, 1, 2, false, "host-2")], 2, VoteFault::Against);
    bad(vec![yes(0), vote(1, 1, 2, true, "host-3")], 2, VoteFault::Signature);
    // A vote for another reason, and one for another slot, are other bytes.
    bad(vec![vote(1, 2, 2, true, "host-2")], 2, VoteFault::Signature);
    let mut moved = yes(2);
    moved.voter_slot = 3;
    bad(vec![moved], 3, VoteFault::Signature);
    // E = 3 at 5000 bp: one of three is too few, two are enough.
    assert_eq!(
        refused_tx(&state, timeout(vec![yes(0)])),
        ApplyError::InsufficientVotes { weight: 1, eligible: 3, threshold_bp: 5000 }
    );
    assert_eq!(
        refused_tx(&state, Tx::TimeoutInference { id: 1, reason: 3, votes: vec![] }),
        ApplyError::UnknownReason(3)
    );
    let early = Tx::TimeoutInference { id: 1, reason: 2, votes: vec![yes(0), yes(2)] };
    let status = InferenceStatus::Pending;
    assert_eq!(refused_tx(&state, early), ApplyError::WrongStatus { id: 1, status, tx: "TimeoutInference" });
    let missed = step(&state, vec![timeout(vec![yes(0), yes(2)])]);
    assert_eq!((missed.stats()[1].missed, missed.reserved(), missed.balance()), (1, 0, 989_800));
    assert_eq!(missed.record(1).unwrap().confirmed_at, 0);
    let late = confirm(&missed, 1, "host-1");
    let status = InferenceStatus::Missed;
    assert_eq!(refused_tx(&missed, late), ApplyError::WrongStatus { id: 1, status, tx: "ConfirmStart" });
}

#[test]
fn an_owner_of_many_slots_votes_once_with_all_its_weight_and_never_on_itself() {
    let mut config = config();
    config.slots = ["host-0", "host-1", "host-1", "host-2", "host-3", "host-0", "host-2"].map(addr).into();
    let state = step(&State::genesis(Arc::new(config.clone())), vec![start("prompt-1")]);
    let timeout = |votes| Tx::TimeoutInference { id: 1, reason: 1, votes };
    let own = vote(1, 1, 2, true, "host-1");
    assert_eq!(
        refused_tx(&state, timeout(vec![own])),
        ApplyError::BadVote { slot: 2, why: VoteFault::Executor }
    );
    let twice = vec![vote(1, 1, 0, true, "host-0"), vote(1, 1, 5, true, "host-0")];
    assert_eq!(
        refused_tx(&state, timeout(twice)),
        ApplyError::BadVote { slot: 5, why: VoteFault::SameOwner }
    );
    // E = 7 − 2 = 5; one vote of an owner of two slots weighs 2, two such 4 > 2.5.
    let one = vec![vote(1, 1, 0, true, "host-0")];
    assert_eq!(
        refused_tx(&state, timeout(one)),
        ApplyError::InsufficientVotes { weight: 2, eligible: 5, threshold_bp: 5000 }
    );
    step(&state, vec![timeout(vec![vote(1, 1, 5, true, "host-0"), vote(1, 1, 6, true, "host-2")])]);
    // Alone in the group, nobody can vote.
    config.slots = vec![addr("host-1")];
    let alone = step(&State::genesis(Arc::new(config)), vec![start("x")]);
    assert_eq!(
        refused_tx(&alone, timeout(vec![])),
        ApplyError::InsufficientVotes { weight: 0, eligible: 0, threshold_bp: 5000 }
    );
}

#[test]
fn an_error_costs_the_host_its_pay_and_a_cancel_only_the_share_of_the_terms() {
    let state = started();
    let errored = step(&state, vec![error(&state, 1, 1, (4, 3), "host-1")]);
    assert_eq!((errored.stats()[1].errored, errored.cost(), errored.reserved()), (1, 0, 0));
    let released = step(&state, vec![error(&state, 1, 8, (4, 3), "host-1")]);
    assert_eq!((released.stats()[1].released, released.cost()), (1, 0));
    let mut config = config();
    config.cancel_charge_bp = 3333;
    let one = step(&State::genesis(Arc::new(config)), vec![start("prompt-1")]);
    let charged = step(&one, vec![error(&one, 1, 8, (4, 3), "host-1")]);
    // ⌊7 · 10 · 3333 / 10 000⌋ = ⌊23.331⌋.
    assert_eq!((charged.cost(), charged.balance()), (23, 1_000_000 - 10_000 - 200 - 23));
    for kind in [0, 11] {
        assert_eq!(
            refused_tx(&state, error(&state, 1, kind, (4, 3), "host-1")),
            ApplyError::UnknownKind(kind)
        );
    }
    assert_eq!(
        refused_tx(&state, error(&state, 1, 1, (4, 3), "host-0")),
        ApplyError::BadSignature { slot: 1 }
    );
}

#[test]
fn a_warm_key_is_bound_by_the_cold_key_in_sequence_and_can_be_revoked() {
    let state = step(&genesis(), vec![start("prompt-1")]);
    assert_eq!(refused_tx(&state, bind("host-1", "warm-1", 1, "warm-1")), ApplyError::BadBinding);
    let wrong = ApplyError::WrongKeySeq { expected: 1, got: 2 };
    assert_eq!(refused_tx(&state, bind("host-1", "warm-1", 2, "host-1")), wrong);
    assert_eq!(
        refused_tx(&state, bind("gateway", "warm-1", 1, "gateway")),
        ApplyError::NotAMember(addr("gateway"))
    );
    let bound = step(&state, vec![bind("host-1", "warm-1", 1, "host-1")]);
    assert!(bound.authorised(1, &addr("warm-1")) && bound.authorised(1, &addr("host-1")));
    assert!(!bound.authorised(2, &addr("warm-1")) && !bound.authorised(9, &addr("warm-1")));
    let by_warm = step(&bound, vec![confirm(&bound, 1, "warm-1")]);
    let zeros = holdfast_types::Address([0; 20]);
    let sig = sign("host-1", &digest::bind(CHAIN, 7, &addr("host-1"), &zeros, 2));
    let revoke = Tx::BindWarmKey { owner: addr("host-1"), warm: zeros, seq: 2, sig };
    let revoked = step(&by_warm, vec![revoke]);
    assert!(!revoked.authorised(1, &addr("warm-1")) && !revoked.authorised(1, &zeros));
    assert_eq!(revoked.keys()[&addr("host-1")].seq, 2);
    let late = finish(&revoked, 1, (1, 1), "r", "warm-1");
    assert_eq!(refused_tx(&revoked, late), ApplyError::BadSignature { slot: 1 });
}

#[test]
fn ended_records_are_folded_after_the_grace_and_open_ones_stay() {
    let mut config = config();
    config.seal_grace_nonces = 31;
    let mut state = step(&State::genesis(Arc::new(config)), vec![start("prompt-1")]);
    state = step(&state, vec![confirm(&state, 1, "host-1")]);
    state = step(&state, vec![finish(&state, 1, (4, 8), "r", "host-1")]);
    state = step(&state, vec![start("open")]);
    let leaf = digest::leaf(state.record(1).unwrap());
    while state.nonce() < 31 {
        state = step(&state, vec![]);
    }
    assert_eq!((state.live_len(), state.sealed_acc()), (2, [0; 32]));
    state = step(&state, vec![]);
    assert_eq!((state.live_len(), state.sealed_acc()), (1, digest::seal(&[0; 32], 32, &leaf)));
    assert_eq!(refused_tx(&state, finish(&state, 1, (4, 8), "r", "host-1")), ApplyError::InferenceNotLive(1));
    while state.nonce() < 64 {
        state = step(&state, vec![]);
    }
    assert_eq!(state.record(4).unwrap().status, InferenceStatus::Pending);
}

#[test]
fn what_is_open_at_the_end_is_paid_in_full() {
    let mut state = started();
    state = step(&state, vec![start("prompt-2")]);
    state = step(&state, vec![Tx::FinalizeRound]);
    assert_eq!(
        refused_tx(&state, start("late")),
        ApplyError::WrongPhase { tx: "StartInference", phase: Phase::Finalizing }
    );
    assert_eq!(
        refused_tx(&state, Tx::FinalizeRound),
        ApplyError::WrongPhase { tx: "FinalizeRound", phase: Phase::Finalizing }
    );
    // Everything but a start stays legal, and is free.
    state = step(&state, vec![finish(&state, 1, (4, 8), "r", "host-1")]);
    for _ in 0..3 {
        state = step(&state, vec![]);
    }
    assert_eq!((state.phase(), state.live_len(), state.reserved()), (Phase::Frozen, 0, 0));
    // 120 for the finished one, 240 for the one that was Pending at slot 3; three fees.
    assert_eq!((state.cost(), state.fees()), (360, 10_300));
    assert_eq!((state.stats()[3].drained, state.stats()[3].cost), (1, 240));
}

#[test]
fn the_gateway_puts_receipts_first_and_defers_what_has_no_room() {
    let one = step(&genesis(), vec![start("prompt-1")]);
    let confirm_tx = confirm(&one, 1, "host-1");
    let confirmed = step(&one, vec![confirm_tx.clone()]);
    let finish_tx = finish(&confirmed, 1, (4, 8), "r", "host-1");
    let composed = compose(&one, vec![finish_tx.clone(), confirm_tx.clone()], vec![start("b")]).unwrap();
    assert_eq!(composed.txs, [confirm_tx.clone(), finish_tx, start("b")]);
    assert_eq!(composed.nonce, 2);
    let many = vec![confirm_tx; MAX_TXS + 5];
    let composed = compose(&one, many, vec![start("b")]).unwrap();
    assert_eq!((composed.txs.len(), composed.dropped.len(), composed.deferred.len()), (2, 260, 0));
    // A host cannot slip in what only the gateway may propose.
    let composed = compose(&one, vec![start("own"), Tx::FinalizeRound], vec![]).unwrap();
    assert_eq!((composed.txs.len(), composed.dropped.len()), (0, 2));
}
