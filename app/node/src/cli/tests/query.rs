//! Queries.

use super::*;

#[test]
fn a_query_sends_its_fields_page_and_height_and_prints_the_answer() {
    let path = "/cosmos.bank.v1beta1.Query/Balance";
    let answer = QueryBalanceResponse { balance: Some(Coin { denom: "uhold".into(), amount: "5".into() }) };
    let node = FakeNode::default().on(path, Ok(answer.encode_to_vec()));
    let words = ["query", "bank", "balance", "--address", "a", "--denom", "uhold", "--height", "33"];
    assert_eq!(
        run_with(&words, "", false, &node).json(),
        json!({"balance": {"denom": "uhold", "amount": "5"}})
    );
    assert_eq!(node.calls.borrow()[0].2, Some(33));
    let text = run_with(&[&words[..], &["-o", "text"]].concat(), "", false, &node).out;
    assert_eq!(text, "balance:\n  amount: \"5\"\n  denom: uhold\n");

    let path = "/cosmos.bank.v1beta1.Query/AllBalances";
    let node = FakeNode::default().on(path, Ok(Vec::new()));
    let words =
        ["q", "bank", "all-balances", "--address", "a", "--page-key", "AQI=", "--limit", "3", "--reverse"];
    run_with(&words, "", false, &node).json();
    let page = PageRequest { key: vec![1, 2], offset: 0, limit: 3, count_total: false, reverse: true };
    let expected =
        QueryAllBalancesRequest { address: "a".into(), pagination: Some(page), resolve_denom: false };
    assert_eq!(decode_strict::<QueryAllBalancesRequest>(&node.requests(path)[0]), Ok(expected));
    assert_eq!(node.calls.borrow()[0].2, None);

    let node = FakeNode::default().on(path, Ok(vec![0xff]));
    run_with(&["q", "bank", "all-balances"], "", false, &node).refused(47, &["AllBalances"]);
}

#[test]
fn an_optional_field_is_sent_when_given_even_if_it_is_zero() {
    let path = "/holdfast.inference.v1.Query/ParticipantStats";
    let node = FakeNode::default().on(path, Ok(Vec::new()));
    run_with(&["query", "inference", "participant-stats", "--epoch", "0"], "", false, &node).json();
    run_with(&["query", "inference", "participant-stats"], "", false, &node).json();
    let sent: Vec<Option<u64>> = node
        .requests(path)
        .iter()
        .map(|bytes| decode_strict::<inference::QueryParticipantStatsRequest>(bytes).unwrap().epoch)
        .collect();
    assert_eq!(sent, [Some(0), None]);
}

#[test]
fn the_height_of_a_block_query_is_its_field_and_a_transaction_is_found_by_hash() {
    let path = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
    let node = FakeNode::default().on(path, Ok(GetBlockByHeightResponse::default().encode_to_vec()));
    run_with(&["query", "tendermint", "get-block-by-height", "--height", "8"], "", false, &node).json();
    assert_eq!(decode_strict(&node.requests(path)[0]), Ok(GetBlockByHeightRequest { height: 8 }));
    assert_eq!(node.calls.borrow()[0].2, None);

    let node = FakeNode::default().on(GET_TX, not_found());
    let hash = "0x".to_owned() + &"ab".repeat(32);
    run_with(&["query", "tx", &hash], "", false, &node)
        .refused(42, &["GetTx", "not there", "status 5 not found"]);
    assert_eq!(decode_strict(&node.requests(GET_TX)[0]), Ok(GetTxRequest { hash: "AB".repeat(32) }));
}
