//! Signers that are remembered: nothing is taken that a first look would not take.

use super::scene::*;
use crate::session::{
    ApplyError, Recovered, Signers, State, Tx, apply, check_tx, compose, compose_recovered, digest,
};

/// Two inferences: 1 has its receipt, 2 waits for one.
fn two_starts() -> State {
    let state = step(&genesis(), vec![start("prompt-1")]);
    step(&state, vec![confirm(&state, 1, "host-1"), start("prompt-2")])
}

fn recovered(state: &State, tx: Tx) -> Recovered {
    Recovered::from(tx).check(state, None).unwrap()
}

/// What a diff says of `tx` whose signers are known from elsewhere. What one without memory says is the same.
fn dropped(state: &State, known: Recovered) -> ApplyError {
    let before = (state.clone(), state.root());
    let tx = known.tx().clone();
    let by_check = known.clone().check(state, None).unwrap_err();
    let composed = compose_recovered(state, vec![known], vec![]).unwrap();
    assert_eq!(composed.txs, []);
    assert_eq!(composed.dropped, [(tx.clone(), by_check.clone())]);
    assert_eq!(check_tx(state, &tx), Err(by_check.clone()));
    assert_eq!((state, state.root()), (&before.0, before.1));
    by_check
}

#[test]
fn a_diff_of_remembered_signers_has_the_bytes_of_one_that_recovers_them_all() {
    let state = two_starts();
    let host = vec![
        finish(&state, 1, (4, 8), "r", "host-1"),
        bind("host-3", "warm-1", 1, "host-3"),
        // Of two that speak of one inference the second is dropped.
        error(&state, 1, 1, (4, 3), "host-1"),
    ];
    let votes = vec![vote(2, 1, 0, true, "host-0"), vote(2, 1, 1, true, "host-1")];
    let own = vec![Tx::TimeoutInference { id: 2, reason: 1, votes }, start("prompt-3")];
    let known = host.iter().map(|tx| recovered(&state, tx.clone())).collect();
    let [timeout, start] = own.clone().try_into().unwrap();
    let known = compose_recovered(&state, known, vec![recovered(&state, timeout), start.into()]).unwrap();
    let plain = compose(&state, host, own).unwrap();
    assert_eq!((&known.txs, &known.dropped), (&plain.txs, &plain.dropped));
    assert_eq!((known.root, &known.state), (plain.root, &plain.state));
    assert_eq!(known.txs.len(), 4);
    let diff = signed(3, known.txs.clone(), known.root);
    assert_eq!(apply(&state, &diff).unwrap().0, known.state);
}

#[test]
fn a_forged_signature_is_remembered_for_nobody() {
    let state = two_starts();
    for forger in ["host-2", "gateway", "nobody"] {
        let forged = finish(&state, 1, (4, 8), "r", forger);
        assert_eq!(dropped(&state, forged.into()), ApplyError::BadSignature { slot: 1 });
    }
    let Tx::FinishInference { id, input_tokens, output_tokens, response_hash, mut sig } =
        finish(&state, 1, (4, 8), "r", "host-1")
    else {
        panic!()
    };
    sig[40] ^= 1;
    let bent = Tx::FinishInference { id, input_tokens, output_tokens, response_hash, sig };
    assert_eq!(dropped(&state, bent.into()), ApplyError::BadSignature { slot: 1 });
    assert_eq!(Signers::default().recover(&sha("r"), &[255; 65]), None);
}

#[test]
fn what_was_signed_for_one_record_is_refused_for_another() {
    // The same inference of another prompt: the receipt is over the record.
    let one = step(&genesis(), vec![start("prompt-1")]);
    let other = step(&genesis(), vec![start("prompt-2")]);
    let receipt = recovered(&one, confirm(&one, 1, "host-1"));
    assert_eq!(dropped(&other, receipt.clone()), ApplyError::BadSignature { slot: 1 });
    // Another group: the slot is somebody else's.
    let mut config = config();
    config.slots.swap(1, 2);
    let swapped = step(&State::genesis(config.into()), vec![start("prompt-1")]);
    assert_eq!(dropped(&swapped, receipt.clone()), ApplyError::BadSignature { slot: 1 });
    // Another escrow.
    let elsewhere =
        State::genesis(crate::session::FrozenConfig { escrow_id: 8, ..super::scene::config() }.into());
    let elsewhere = compose(&elsewhere, vec![], vec![start("prompt-1")]).unwrap().state;
    assert_eq!(dropped(&elsewhere, receipt.clone()), ApplyError::BadSignature { slot: 1 });
    // The same state later: it has its receipt.
    let later = step(&one, vec![receipt.tx().clone()]);
    assert!(matches!(dropped(&later, receipt), ApplyError::WrongStatus { id: 1, .. }));
    // A transaction that was exchanged under the memory of another.
    let state = two_starts();
    let honest = digest::finish(CHAIN, 7, 1, 1, 4, 8, &sha("r"));
    let sig = sign("host-1", &honest);
    let mut signers = Signers::default();
    assert_eq!(signers.recover(&honest, &sig), Some(addr("host-1")));
    let dearer =
        Tx::FinishInference { id: 1, input_tokens: 16, output_tokens: 8, response_hash: sha("r"), sig };
    assert_eq!(dropped(&state, Recovered::new(dearer, signers)), ApplyError::BadSignature { slot: 1 });
}

#[test]
fn a_key_that_was_revoked_since_signs_no_more() {
    let state = step(&two_starts(), vec![bind("host-1", "warm-1", 1, "host-1")]);
    let by_warm = recovered(&state, finish(&state, 1, (4, 8), "r", "warm-1"));
    let Tx::BindWarmKey { owner, seq, .. } = bind("host-1", "warm-1", 2, "host-1") else { panic!() };
    let zeros = holdfast_types::Address([0; 20]);
    let sig = sign("host-1", &digest::bind(CHAIN, 7, &owner, &zeros, seq));
    let revoked = step(&state, vec![Tx::BindWarmKey { owner, warm: zeros, seq, sig }]);
    assert_eq!(dropped(&revoked, by_warm), ApplyError::BadSignature { slot: 1 });
}

#[test]
fn what_is_remembered_is_not_computed_again() {
    // Nothing but a memory that was made to lie tells a signer that was looked up from one that was computed.
    let state = two_starts();
    let tx = finish(&state, 1, (4, 8), "r", "host-2");
    let Tx::FinishInference { response_hash, sig, .. } = tx else { panic!() };
    let mut signers = Signers::default();
    signers.pretend(digest::finish(CHAIN, 7, 1, 1, 4, 8, &response_hash), sig, addr("host-1"));
    let composed = compose_recovered(&state, vec![Recovered::new(tx.clone(), signers)], vec![]).unwrap();
    assert_eq!(composed.txs, [tx]);
}

#[test]
fn a_finish_is_judged_behind_the_receipt_that_it_needs() {
    let state = step(&genesis(), vec![start("prompt-1")]);
    let receipt = recovered(&state, confirm(&state, 1, "host-1"));
    let good = Recovered::from(finish(&state, 1, (4, 8), "r", "host-1"));
    assert!(matches!(good.clone().check(&state, None), Err(ApplyError::WrongStatus { id: 1, .. })));
    let good = good.check(&state, Some(&receipt)).unwrap();
    let forged = Recovered::from(finish(&state, 1, (4, 8), "r", "host-2"));
    let error = forged.check(&state, Some(&receipt)).unwrap_err();
    assert_eq!(error, ApplyError::BadSignature { slot: 1 });
    let composed = compose_recovered(&state, vec![good, receipt], vec![]).unwrap();
    assert_eq!((composed.txs.len(), composed.state.stats()[1].completed), (2, 1));
}
