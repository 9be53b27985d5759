//! Bytes: the golden vectors of escrow-details 2.

use super::scene::*;
use crate::session::{Phase, Tx, digest, recover};

fn hex(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(bytes)
}

#[test]
fn addresses_terms_and_the_empty_layers_have_the_published_bytes() {
    assert_eq!(hex(addr("gateway").0), "a319cfc77fccb790bee3a2f9153dcb60ffb6b8fc");
    assert_eq!(hex(addr("host-1").0), "201085689c8e8308179011b76889cfd7bf106b02");
    assert_eq!(hex(addr("warm-1").0), "ac1559e6ed2d556a24a52809672a544a8cd89fb7");
    let state = genesis();
    let preimage = borsh::to_vec(&("holdfast.escrow.config.v1", "holdfast-escrow/1", config())).unwrap();
    assert_eq!(preimage.len(), 306);
    assert_eq!(
        hex(state.config_digest()),
        "4d8bbc75c9fc879272e6cd86e8afc572db30527db1d2ef9f1d2ad04119e985e1"
    );
    assert_eq!(hex(state.root()), "558f3f8f8a2e71419c4783512478cca74cd43f71773a2816e11a45ad0f6e356f");
    let parts = state.root_parts();
    assert_eq!(hex(parts.stats_hash), "874a82215348632a1d5ad60862ebd74dea4341cf7947e7adc20a9d733a7ff078");
    assert_eq!(hex(parts.live_hash), "d212b396abff1d90f760a76ce792beb992945d13f9cf108329bd92269b3ab252");
    assert_eq!(hex(parts.keys_hash), "e21008d265f18779addf01aa945161b7b7d730182c50d02b026c62833c1bc6cb");
}

#[test]
fn nine_diffs_lead_to_the_published_roots_digests_and_coins() {
    let roots = [
        (
            "b9f174adadb1d4449c4a278961985f78a644103aec18fcc32b4510c8839a320f",
            "e93584230a4573ec28154968ad95402d4ef4bfef5d4929db952edc4012203d2f",
        ),
        (
            "dc3a66e4b1ea37b442516623d194d682b93cb8cd681dfe06978dccd4d242e952",
            "44aecdc03be0d28596107b678e9b8e10001c88dd0a550beb4a2d118381000629",
        ),
        (
            "7808dadb865ef518126d8449c46506e7c9d1c8c15335ac83a77e2b8304ea6fa9",
            "0acea62a62306a7f507423f65b1dfe5d26d339fa8c244ffd210197befd9730f4",
        ),
        (
            "ad4d2577954bfc9317d1ad9adfdf23e6edd0e2fda8b8deead840c2f857277969",
            "ca11f062abc5a35ad4590078215b8edd1b0fd82267d0f13df6db4b173d7ef247",
        ),
    ];
    let mut state = genesis();
    for (nonce, (root, digest)) in (1u64..).zip(roots) {
        let txs = match nonce {
            1 => vec![start("prompt-1")],
            2 => vec![confirm(&state, 1, "host-1")],
            3 => vec![finish(&state, 1, (4, 8), "response-1", "host-1")],
            _ => vec![],
        };
        let diff = diff(&state, txs.clone());
        assert_eq!(hex(diff.digest(CHAIN)), digest, "diff {nonce}");
        if nonce == 1 {
            let leaf = |state: &crate::session::State| hex(digest::leaf(state.record(1).unwrap()));
            let next = step(&state, txs.clone());
            assert_eq!(leaf(&next), "18f8f173f5c17dd79d85f9a5187b490f4a57650f07c22edf22f5695e07e45b9b");
            assert_eq!(
                hex(diff.signature),
                "4fcc88dda16d8b38df92f1e4866bc7a4d671c43496d8b177703f1ab6092509320dc5c81b8ff4066a47d5ed709321bb94fa42e813d9ff1d636d789533adbb788101"
            );
        }
        state = step(&state, txs);
        assert_eq!(hex(state.root()), root, "root {nonce}");
    }
    let state_4 = digest::state(CHAIN, 7, 4, &state.root());
    assert_eq!(hex(state_4), "9109c8cf1a1a8db8c9250f30028ab5aa6c4cc124d390f6f172ecfe0f5b6e3909");
    assert_eq!(
        hex(sign("host-1", &state_4)),
        "2110ded1ce7863f6748c7681e1f88d288ff8e06217c8d3be60f56d5bdfbe21090d4d25b7b19691c0bc11ed535f242d60b6f2ccf73214b5f3b575b1c8f0efe9b700"
    );
    assert_eq!(recover(&state_4, &sign("host-1", &state_4)), Ok(addr("host-1")));
    assert_eq!(
        hex(digest::leaf(state.record(1).unwrap())),
        "d9f740f04f9b21de1a9a542efdd2b801f349ee62102600de6a2c312ac14482f9"
    );
    let verify = digest::verify(CHAIN, 7, 4, &state.root(), 1, &sha("challenge-1"));
    assert_eq!(hex(verify), "76c3dd8bb371b3eb344872909ae76aea5c8cd6bb068fe73e9a4562f00c1ca88a");
    let refusal = digest::refusal(CHAIN, 7, 3, &hash(roots[2].1), &sha("other-root"));
    assert_eq!(hex(refusal), "55176f5d803f37f5e7e95c5d15bb4569dc8349cf2970976d98b8526a9b2a048a");

    state = step(&state, vec![Tx::FinalizeRound]);
    assert_eq!(hex(state.root()), "3f7435cc2341d158d185debabc6d4fcf18dc7f66c819c858f17cc1dc896668bf");
    for _ in 6..=9 {
        assert_eq!(state.phase(), Phase::Finalizing);
        state = step(&state, vec![]);
    }
    assert_eq!((state.phase(), state.nonce()), (Phase::Frozen, 9));
    assert_eq!((state.balance(), state.cost(), state.fees()), (989_480, 120, 10_400));
    assert_eq!(hex(state.sealed_acc()), "f20fd47d31847a27e87eabc14be1b256c040ec79ebd80bab5c6a10c138ff5424");
    assert_eq!(hex(state.root()), "2a4869765e71089c26fd009441e314c9be1c2094500fa19f63eabb3f545f2c80");
    let state_9 = digest::state(CHAIN, 7, 9, &state.root());
    assert_eq!(hex(state_9), "2e66eef0a761d14523c9d2b0b40ac08dd261975473be33a613461fd83d3ce79e");
}

#[test]
fn digests_of_hosts_have_the_published_bytes() {
    let state = step(&genesis(), vec![start("prompt-1")]);
    let receipt = digest::receipt(CHAIN, 7, state.record(1).unwrap(), 1_700_000_001);
    assert_eq!(hex(receipt), "9d9b9cc4d5e988cd5fd680754da3693c64a32d1c240682cc31f6638483c6d794");
    let finish = digest::finish(CHAIN, 7, 1, 1, 4, 8, &sha("response-1"));
    assert_eq!(hex(finish), "24665dfc886b2bf9f730fe0bdd87455355e305823fad17126a17ac40d06e0e55");
    let vote = digest::vote(CHAIN, 7, 1, 1, 2, true);
    assert_eq!(hex(vote), "4f08a2bef837976652aacf53ac089015862ee22913db9cc0dd87ba57593f4920");
    let bind = digest::bind(CHAIN, 7, &addr("host-1"), &addr("warm-1"), 1);
    assert_eq!(hex(bind), "f6a1d4d81c9dd1751adc7730afcffc5e41b70e3511baada6fec060b65670b04f");
    let error = digest::error(CHAIN, 7, 1, 1, 1, 4, 3);
    assert_eq!(hex(error), "67866c92acac655a9ce65babfbf7d1e7e21149c5717da757453496e51686fc20");
}
