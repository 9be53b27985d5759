//! Transactions: built, signed, sent, waited for.

use super::*;

const SEND: [&str; 6] = ["bank", "send", "--to-address", "cosmos1to", "--amount", "7uhold,5uatom"];

#[test]
fn a_transfer_is_signed_for_chain_number_and_sequence_of_the_node_and_broadcast() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    let more = ["--fees", "10uhold", "--gas", "90000", "--memo", "hi", "--timeout-height", "77", "-y"];
    let answer = run_with(&tx_words(&home, &SEND, &more), "", false, &node).json();
    assert_eq!(answer["txhash"], json!("AB".repeat(32)));
    let asked: QueryAccountRequest = decode_strict(&node.requests(ACCOUNT)[0]).unwrap();
    assert_eq!(asked.address, ABANDON_ADDRESS);

    let (_, tx) = broadcast(&node);
    let coin = |amount: &str, denom: &str| Coin { denom: denom.into(), amount: amount.into() };
    let expected = MsgSend {
        from_address: ABANDON_ADDRESS.into(),
        to_address: "cosmos1to".into(),
        amount: vec![coin("5", "uatom"), coin("7", "uhold")],
    };
    assert_eq!(tx.messages(), [Any { type_url: MsgSend::type_url(), value: expected.encode_to_vec() }]);
    assert_eq!((tx.gas_limit(), tx.memo(), tx.timeout_height()), (90_000, "hi", 77));
    assert_eq!((tx.fee()[0].amount, tx.fee()[0].denom.as_str()), (10, "uhold"));
    assert_eq!(tx.signer_infos()[0].sequence, 9);
    let key = SecretKey::from_mnemonic(ABANDON, 0).unwrap();
    // RFC 6979 leaves one signature for these bytes.
    assert_eq!(tx.signatures(), [key.sign(&tx.sign_bytes("test-1", 4)).to_vec()]);
    assert_eq!(tx.signer_infos()[0].public_key, Some(key.public_key()));
}

#[test]
fn generate_sign_broadcast_in_three_steps_gives_the_bytes_of_one_and_offline_too() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    let fees = ["--fees", "10uhold", "--memo", "m"];
    run_with(&tx_words(&home, &SEND, &[&fees[..], &["-y"]].concat()), "", false, &node).json();
    let (direct, _) = broadcast(&node);

    let silent = FakeNode::default();
    let unsigned =
        run_with(&tx_words(&home, &SEND, &[&fees[..], &["--generate-only"]].concat()), "", false, &silent);
    let value = unsigned.json();
    assert_eq!(value["body"]["messages"][0]["@type"], json!("/cosmos.bank.v1beta1.MsgSend"));
    assert_eq!((&value["signatures"], &value["auth_info"]["signer_infos"]), (&json!([]), &json!([])));
    let identity = ["--chain-id", "test-1", "--account-number", "4", "--sequence", "9"];
    let signed = run_with(&tx_words(&home, &["sign", "-"], &identity), &unsigned.out, false, &silent);
    let stepwise = FakeNode::default().on(BROADCAST, broadcast_answer(0, ""));
    run_with(&["tx", "broadcast", "-"], &signed.out, false, &stepwise).json();
    assert_eq!(broadcast(&stepwise).0, direct);

    let offline = run_with(
        &tx_words(&home, &SEND, &[&fees[..], &["--offline"], &identity].concat()),
        "",
        false,
        &silent,
    );
    assert_eq!(offline.json(), signed.json());
    assert!(silent.calls.borrow().is_empty());
    for (missing, flag) in [(0, "--chain-id"), (2, "--account-number"), (4, "--sequence")] {
        let rest = [&identity[..missing], &identity[missing + 2..], &["--offline"]].concat();
        run_with(&tx_words(&home, &SEND, &rest), "", false, &silent).refused(14, &[flag, "--offline"]);
    }
    run_with(&["tx", "broadcast", "-"], "{\"body\": 1}", false, &silent).refused(46, &["body"]);
    run_with(&["tx", "broadcast", "no-such-file"], "", false, &silent).refused(21, &["no-such-file"]);
}

#[test]
fn a_message_as_json_is_the_message_as_flags() {
    let (_dir, home) = home_of_alice();
    let make = |words: &[&str]| run(&tx_words(&home, words, &["--generate-only"]));
    let hash = "ab".repeat(32);
    let flags = [
        "inference",
        "start-inference",
        "--requested-by",
        "r",
        "--inference-id",
        "i1",
        "--model",
        "m",
        "--assigned-to",
        "e",
        "--prompt-hash",
        &hash,
        "--prompt-tokens",
        "18446744073709551615",
        "--max-tokens",
        "2",
    ];
    let by_flags = make(&flags).json();
    let message = inference::MsgStartInference {
        signer: ABANDON_ADDRESS.into(),
        requested_by: "r".into(),
        inference_id: "i1".into(),
        model: "m".into(),
        assigned_to: "e".into(),
        prompt_hash: vec![0xab; 32],
        prompt_tokens: u64::MAX,
        max_tokens: 2,
    };
    let as_json =
        holdfast_proto::to_json(&inference::MsgStartInference::full_name(), &message.encode_to_vec())
            .unwrap();
    let mut shown = by_flags["body"]["messages"][0].clone();
    shown.as_object_mut().unwrap().remove("@type");
    assert_eq!(shown, as_json);
    let text = as_json.to_string();
    assert_eq!(make(&["inference", "start-inference", "--json", &text]).json(), by_flags);
    let words = tx_words(&home, &["inference", "start-inference", "--json-file", "-"], &["--generate-only"]);
    assert_eq!(run_with(&words, &text, false, &FakeNode::default()).json(), by_flags);

    let refused = |json: &str, code: u32, parts: &[&str]| {
        make(&["inference", "start-inference", "--json", json]).refused(code, parts)
    };
    refused("{\"modle\": \"m\"}", 13, &["--json", "modle", "signer, requested_by, inference_id, model"]);
    refused("{\"signer\": \"cosmos1other\"}", 12, &["signer must be", ABANDON_ADDRESS]);
    refused("{\"max_tokens\": \"x\"}", 12, &["--json", "max_tokens"]);
    refused("[]", 12, &["--json", "JSON object"]);
    refused("{", 12, &["--json", "JSON object"]);
    make(&["inference", "start-inference", "--json", "{}", "--model", "m"])
        .refused(15, &["--json", "--model"]);
    make(&["inference", "start-inference", "--json-file", "no-such-file"]).refused(21, &["no-such-file"]);
    make(&["inference", "start-inference", "--json", "{}", "--json-file", "x"])
        .refused(15, &["--json", "--json-file"]);
    make(&["inference", "start-inference", "--promt-hash", "00"])
        .refused(13, &["--promt-hash", "--prompt-hash", "--max-tokens"]);
    make(&["inference", "start-inference", "--model", "a", "--model", "b"]).refused(12, &["--model", "once"]);
}

#[test]
fn nested_repeated_enum_mask_and_negative_values_come_through_flags() {
    let (_dir, home) = home_of_alice();
    let message = |words: &[&str]| {
        run(&tx_words(&home, words, &["--generate-only"])).json()["body"]["messages"][0].clone()
    };
    let registered = message(&[
        "participants",
        "register-participant",
        "--validator-key",
        "0x0102",
        "--host-url",
        "http://h",
        "--workers",
        r#"{"url": "http://w1", "last_layer": 3}"#,
        "--workers",
        r#"{"url": "http://w2"}"#,
        "--models",
        "m1",
        "--models",
        "m2",
        "--poc-preserved",
        "--collateral",
        "12uhold",
    ]);
    assert_eq!(registered["participant"], json!(ABANDON_ADDRESS));
    assert_eq!(registered["validator_key"], json!("AQI="));
    assert_eq!(registered["workers"][0]["last_layer"], json!(3));
    assert_eq!(registered["workers"][1]["url"], json!("http://w2"));
    assert_eq!((&registered["models"], &registered["poc_preserved"]), (&json!(["m1", "m2"]), &json!(true)));
    assert_eq!(registered["collateral"], json!({"denom": "uhold", "amount": "12"}));
    let as_array = message(&[
        "participants",
        "update-participant",
        "--models",
        r#"["m1", "m2"]"#,
        "--poc-preserved",
        "false",
    ]);
    assert_eq!((&as_array["models"], &as_array["poc_preserved"]), (&json!(["m1", "m2"]), &json!(false)));
    assert_eq!(participants::MsgUpdateParticipant::type_url(), as_array["@type"].as_str().unwrap());

    for name in ["excluded", "EXCLUDED", "OVERRIDE_TO_EXCLUDED", "override-to-excluded"] {
        let forced = message(&["breaker", "set-breaker-override", "--to", name, "--until-block", "-1"]);
        assert_eq!((&forced["to"], &forced["until_block"]), (&json!("OVERRIDE_TO_EXCLUDED"), &json!("-1")));
    }
    let params = message(&[
        "epochs",
        "update-params",
        "--params",
        r#"{"epoch_length": "9"}"#,
        "--update-mask",
        "epoch_length, poc_length",
    ]);
    assert_eq!(params["params"]["epoch_length"], json!("9"));
    assert_eq!(params["update_mask"], json!("epochLength,pocLength"));
    let unknown = run(&tx_words(
        &home,
        &["epochs", "update-params", "--params", r#"{"epoch_lenght": 9}"#],
        &["--generate-only"],
    ));
    unknown.refused(12, &["--params", "epoch_lenght"]);
}

#[test]
fn gas_auto_asks_a_simulation_and_adds_the_adjustment() {
    let (_dir, home) = home_of_alice();
    let simulated =
        SimulateResponse { gas_info: Some(GasInfo { gas_wanted: 0, gas_used: 70_001 }), result: None };
    let node = node_with_account()
        .on(SIMULATE, Ok(simulated.encode_to_vec()))
        .on(BROADCAST, broadcast_answer(0, ""));
    run_with(&tx_words(&home, &SEND, &["--gas", "auto", "-y"]), "", false, &node).json();
    // 70,001 · 1.3 = 91,001.3, rounded up.
    assert_eq!(broadcast(&node).1.gas_limit(), 91_002);
    run_with(&tx_words(&home, &SEND, &["--gas", "auto", "--gas-adjustment", "2", "-y"]), "", false, &node)
        .json();
    assert_eq!(broadcast(&node).1.gas_limit(), 140_002);
    let words =
        ["--gas", "auto", "--offline", "--chain-id", "test-1", "--account-number", "1", "--sequence", "1"];
    run_with(&tx_words(&home, &SEND, &words), "", false, &node).refused(15, &["--gas", "--offline"]);
}

#[test]
fn nothing_is_sent_before_it_is_confirmed() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    run_with(&tx_words(&home, &SEND, &[]), "y\n", false, &node).refused(45, &["--yes", "-y"]);
    run_with(&tx_words(&home, &SEND, &[]), "n\n", true, &node).refused(45, &["not confirmed"]);
    assert!(node.requests(BROADCAST).is_empty());
    let sent = run_with(&tx_words(&home, &SEND, &[]), "y\n", true, &node);
    assert!(sent.err.contains("to_address: cosmos1to") && sent.err.contains("[y/N]"), "{}", sent.err);
    assert_eq!(node.requests(BROADCAST).len(), 1);
}

#[test]
fn wait_looks_until_the_transaction_is_in_a_block_and_fails_with_its_code() {
    let (_dir, home) = home_of_alice();
    let failed = TxResponse {
        height: 12,
        code: 5,
        codespace: "bank".into(),
        raw_log: "too\nlittle".into(),
        txhash: "AB".repeat(32),
        ..TxResponse::default()
    };
    let failed = GetTxResponse { tx: None, tx_response: Some(failed) }.encode_to_vec();
    let node = node_with_account()
        .on(BROADCAST, broadcast_answer(0, ""))
        .on(GET_TX, not_found())
        .on(GET_TX, Ok(failed));
    let ended = run_with(&tx_words(&home, &SEND, &["-y", "--wait=5"]), "", false, &node);
    ended.refused(43, &["too little", "codespace bank, code 5"]);
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(shown["height"], json!("12"));
    let asked: GetTxRequest = decode_strict(&node.requests(GET_TX)[0]).unwrap();
    assert_eq!(asked.hash, "AB".repeat(32));
    assert_eq!(node.requests(GET_TX).len(), 2);

    let never = node_with_account().on(BROADCAST, broadcast_answer(0, "")).on(GET_TX, not_found());
    run_with(&tx_words(&home, &SEND, &["-y", "--wait=1"]), "", false, &never)
        .refused(44, &["--wait", "query tx ABAB"]);
}

#[test]
fn refusals_of_the_node_keep_codespace_code_or_status() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(32, "account sequence mismatch"));
    run_with(&tx_words(&home, &SEND, &["-y"]), "", false, &node)
        .refused(43, &["account sequence mismatch", "codespace sdk, code 32"]);
    let empty = FakeNode::default().on(ACCOUNT, not_found());
    run_with(&tx_words(&home, &SEND, &["-y", "--chain-id", "test-1"]), "", false, &empty)
        .refused(42, &["--from", ABANDON_ADDRESS, "send it coins"]);
    let away = Err(CallFailure { status: None, message: "refused".into() });
    let away = FakeNode::default().on("/cosmos.bank.v1beta1.Query/TotalSupply", away);
    run_with(&["query", "bank", "total-supply"], "", false, &away)
        .refused(41, &["--grpc-addr", "start a node"]);
    run(&["tx", "bank", "send", "--from", "nobody", "--home", &home]).refused(33, &["nobody"]);
    run(&["tx", "bank", "send"]).refused(14, &["--from"]);
}
