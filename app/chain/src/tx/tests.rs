use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::crypto::multisig::v1beta1::CompactBitArray;
use holdfast_proto::cosmos::tx::v1beta1::{AuthInfo, ModeInfo, Tip, TxBody, TxRaw, mode_info};
use holdfast_proto::holdfast::inference::v1::MsgStartInference;
use holdfast_proto::{Any, Message};
use holdfast_types::{Coin, Hrp, ModuleError, sdk};

use super::*;

fn hrp() -> Hrp {
    Hrp::default()
}

fn key(label: &str) -> SecretKey {
    SecretKey::from_seed_label(b"tx", label)
}

fn send_from(label: &str) -> Any {
    let amount = vec![PbCoin { denom: "uhold".into(), amount: "100".into() }];
    let (from, to) = (key(label).address(), key("to").address());
    pack(&MsgSend { from_address: from.to_bech32(&hrp()), to_address: to.to_bech32(&hrp()), amount })
}

fn builder() -> TxBuilder {
    TxBuilder {
        chain_id: "holdfast-test-1".into(),
        account_number: 4,
        sequence: 7,
        fee: Coin::new("uhold", 2500).unwrap(),
        gas_limit: 100_000,
        memo: "rent".into(),
        timeout_height: 99,
        msgs: vec![send_from("a")],
    }
}

/// The three levels of a good transaction, to be spoilt.
#[derive(Clone)]
struct Parts {
    body: TxBody,
    auth: AuthInfo,
    signatures: Vec<Vec<u8>>,
}

impl Parts {
    fn good() -> Self {
        let raw = TxRaw::decode(builder().sign(&key("a")).as_slice()).unwrap();
        Self {
            body: TxBody::decode(raw.body_bytes.as_slice()).unwrap(),
            auth: AuthInfo::decode(raw.auth_info_bytes.as_slice()).unwrap(),
            signatures: raw.signatures,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut parts = Self::good();
        change(&mut parts);
        parts.encode()
    }

    fn encode(self) -> Vec<u8> {
        raw(self.body.encode_to_vec(), self.auth.encode_to_vec(), self.signatures)
    }
}

fn raw(body_bytes: Vec<u8>, auth_info_bytes: Vec<u8>, signatures: Vec<Vec<u8>>) -> Vec<u8> {
    TxRaw { body_bytes, auth_info_bytes, signatures }.encode_to_vec()
}

#[track_caller]
fn refused(bytes: &[u8], code: u32, text: &str) -> ModuleError {
    let error = DecodedTx::decode(bytes, &hrp()).unwrap_err();
    assert_eq!((error.codespace, error.code), (sdk::CODESPACE, code), "{error}");
    assert!(error.message.contains(text), "{error} does not contain {text:?}");
    error
}

#[test]
fn a_transaction_decodes_to_what_was_built() {
    let bytes = builder().sign(&key("a"));
    let tx = DecodedTx::decode(&bytes, &hrp()).unwrap();
    assert_eq!(tx.size(), bytes.len());
    assert_eq!(tx.hash(), &tx_hash(&bytes));
    assert_eq!(tx.messages(), [send_from("a")]);
    assert_eq!(tx.signers(), [key("a").address()]);
    assert_eq!(
        tx.signer_infos(),
        [SignerInfo { public_key: Some(key("a").public_key()), mode: Some(1), sequence: 7 }]
    );
    assert_eq!(tx.fee(), [Coin::new("uhold", 2500).unwrap()]);
    assert_eq!((tx.gas_limit(), tx.memo(), tx.timeout_height()), (100_000, "rent", 99));
    assert_eq!(tx.signatures(), [key("a").sign(&tx.sign_bytes("holdfast-test-1", 4)).to_vec()]);
}

#[test]
fn a_hash_is_sha_256_in_upper_case_hex() {
    // FIPS 180-2, one block.
    let expected = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
    assert_eq!(hash_hex(&tx_hash(b"abc")), expected);
}

#[test]
fn signers_come_in_order_of_first_appearance() {
    let mut tx = builder();
    tx.msgs = ["b", "a", "b", "c", "a"].map(send_from).to_vec();
    let keys = ["b", "a", "c"].map(key);
    let signers: Vec<Signer<'_>> = keys
        .iter()
        .zip([10_u64, 11, 12])
        .map(|(key, n)| Signer { key, account_number: n, sequence: n + 100 })
        .collect();
    let tx = DecodedTx::decode(&tx.sign_all(&signers), &hrp()).unwrap();
    assert_eq!(tx.signers(), keys.each_ref().map(SecretKey::address));
    assert_eq!(tx.signer_infos().iter().map(|i| i.sequence).collect::<Vec<_>>(), [110, 111, 112]);
    for ((key, number), signature) in keys.iter().zip([10, 11, 12]).zip(tx.signatures()) {
        assert_eq!(signature, &key.sign(&tx.sign_bytes("holdfast-test-1", number)));
    }
}

#[test]
fn bytes_and_signature_equal_those_of_cosmrs() {
    use cosmrs::bank::MsgSend;
    use cosmrs::crypto::secp256k1::SigningKey;
    use cosmrs::tx::{Body, Fee, Msg, SignDoc, SignerInfo};
    let theirs = SigningKey::from_slice(&key("a").to_bytes()).unwrap();
    let account = |label: &str| key(label).address().to_bech32(&hrp()).parse().unwrap();
    assert_eq!(theirs.public_key().account_id("hold").unwrap(), account("a"));
    let coin = |amount| cosmrs::Coin { denom: "uhold".parse().unwrap(), amount };
    let message = MsgSend { from_address: account("a"), to_address: account("to"), amount: vec![coin(100)] };
    let body = Body::new([message.to_any().unwrap()], "rent", 99_u32);
    let fee = Fee::from_amount_and_gas(coin(2500), 100_000_u64);
    let auth_info = SignerInfo::single_direct(Some(theirs.public_key()), 7).auth_info(fee);
    let doc = SignDoc::new(&body, &auth_info, &"holdfast-test-1".parse().unwrap(), 4).unwrap();
    let foreign = doc.sign(&theirs).unwrap().to_bytes().unwrap();
    let ours = builder().sign(&key("a"));
    assert_eq!(hex::encode(&foreign), hex::encode(&ours));

    let tx = DecodedTx::decode(&foreign, &hrp()).unwrap();
    assert_eq!(tx.signers(), [key("a").address()]);
    let read = cosmrs::Tx::from_bytes(&ours).unwrap();
    assert_eq!((read.body, read.auth_info), (body, auth_info));
    assert_eq!(read.signatures, tx.signatures());
}

#[test]
fn a_transaction_over_the_size_limit_is_refused_before_it_is_decoded() {
    let mut tx = builder();
    let overhead = tx.sign(&key("a")).len() - tx.memo.len();
    // The length before the memo grows from one byte to three, the one before the body from two.
    tx.memo = "m".repeat(MAX_TX_BYTES - overhead - 3);
    let bytes = tx.sign(&key("a"));
    assert_eq!(bytes.len(), MAX_TX_BYTES);
    assert!(DecodedTx::decode(&bytes, &hrp()).is_ok());
    tx.memo.push('m');
    refused(&tx.sign(&key("a")), sdk::TX_TOO_LARGE, "1048577 bytes, at most 1048576");
    refused(&vec![0; MAX_TX_BYTES + 1], sdk::TX_TOO_LARGE, "tx too large");
}

#[test]
fn a_truncated_transaction_is_refused_or_has_lost_its_signature() {
    let bytes = builder().sign(&key("a"));
    let mut unsigned = Vec::new();
    for length in 0..bytes.len() {
        match DecodedTx::decode(&bytes[..length], &hrp()) {
            Err(error) => {
                assert_eq!((error.codespace, error.code), ("sdk", sdk::TX_DECODE), "{length}: {error}")
            }
            Ok(tx) => {
                assert!(tx.signatures().is_empty());
                unsigned.push(length);
            }
        }
    }
    // Cut exactly behind the body and behind the auth info; the ante steps refuse both (15).
    let tx = TxRaw::decode(bytes.as_slice()).unwrap();
    let without_signature = bytes.len() - 66;
    assert_eq!(unsigned, [without_signature - tx.auth_info_bytes.len() - 2, without_signature]);
}

#[test]
fn bytes_that_follow_a_level_are_refused_at_every_level() {
    let good = Parts::good();
    let (body, auth) = (good.body.encode_to_vec(), good.auth.encode_to_vec());
    let trailing = |bytes: &[u8], tail: &[u8]| [bytes, tail].concat();
    // A stray byte; an unknown field 15; an unknown field 1031, which the SDK would call non-critical.
    for tail in [&[0_u8][..], &[0x7a, 0x00], &[0xba, 0x40, 0x00]] {
        refused(&trailing(&good.clone().encode(), tail), sdk::TX_DECODE, "cosmos.tx.v1beta1.TxRaw");
        let bytes = raw(trailing(&body, tail), auth.clone(), good.signatures.clone());
        refused(&bytes, sdk::TX_DECODE, "cosmos.tx.v1beta1.TxBody");
        let bytes = raw(body.clone(), trailing(&auth, tail), good.signatures.clone());
        refused(&bytes, sdk::TX_DECODE, "cosmos.tx.v1beta1.AuthInfo");
        let bytes = Parts::with(|parts| {
            let any = parts.auth.signer_infos[0].public_key.as_mut().unwrap();
            any.value = trailing(&any.value, tail);
        });
        refused(&bytes, sdk::TX_DECODE, "cosmos.crypto.secp256k1.PubKey");
    }
    refused(&[], sdk::TX_DECODE, "empty");
}

#[test]
fn other_encodings_of_the_same_values_are_refused() {
    let good = Parts::good();
    let (body, auth) = (good.body.encode_to_vec(), good.auth.encode_to_vec());
    let signatures = &good.signatures;
    // timeout_height 99 is the last field of the body: tag 0x18, one byte.
    let (head, tail) = body.split_at(body.len() - 2);
    assert_eq!(tail, [0x18, 99]);
    let field = |tag: u8, value: &[u8]| [&[tag, u8::try_from(value.len()).unwrap()], value].concat();
    let memo = field(0x12, b"rent");
    let before_memo = &head[..head.len() - memo.len()];
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a long varint", [head, &[0x18, 99 | 0x80, 0]].concat()),
        ("a field given twice", [head, &memo, tail].concat()),
        ("fields out of order", [before_memo, tail, &memo].concat()),
        ("a default written out", [head, &[0x18, 0]].concat()),
        ("a wrong wire type", [head, &[0x1d, 99, 0, 0, 0]].concat()),
        ("text that is not UTF-8", [before_memo, &field(0x12, &[0xff, 0xfe]), tail].concat()),
    ];
    for (what, body) in cases {
        let error = refused(&raw(body, auth.clone(), signatures.clone()), sdk::TX_DECODE, "TxBody");
        assert!(!error.message.is_empty(), "{what}");
    }
    // The same two fields of TxRaw in the other order.
    let (body_field, auth_field) = (
        TxRaw { body_bytes: body, ..TxRaw::default() }.encode_to_vec(),
        TxRaw { auth_info_bytes: auth, signatures: signatures.clone(), ..TxRaw::default() }.encode_to_vec(),
    );
    assert_eq!([&body_field[..], &auth_field].concat(), good.encode());
    refused(&[auth_field, body_field].concat(), sdk::TX_DECODE, "TxRaw");
}

#[test]
fn too_many_messages_are_refused() {
    let bytes = |count| Parts::with(|parts| parts.body.messages = vec![send_from("a"); count]);
    assert!(DecodedTx::decode(&bytes(MAX_TX_MESSAGES), &hrp()).is_ok());
    refused(&bytes(MAX_TX_MESSAGES + 1), sdk::INVALID_REQUEST, "257 messages, at most 256");
}

#[test]
fn extension_options_of_both_kinds_are_refused() {
    let bytes = Parts::with(|parts| parts.body.extension_options = vec![send_from("a")]);
    refused(&bytes, sdk::UNKNOWN_EXTENSION_OPTIONS, "extension_options");
    let bytes = Parts::with(|parts| parts.body.non_critical_extension_options = vec![Any::default()]);
    refused(&bytes, sdk::UNKNOWN_EXTENSION_OPTIONS, "extension_options");
}

#[test]
fn a_message_without_a_signer_is_refused() {
    let with_value = |value: Vec<u8>| {
        Parts::with(|parts| {
            parts.body.messages.push(Any { type_url: "/cosmos.bank.v1beta1.MsgSend".into(), value })
        })
    };
    let with_signer =
        |text: &str| with_value(MsgSend { from_address: text.into(), ..MsgSend::default() }.encode_to_vec());
    let address = key("a").address();
    let good = address.to_bech32(&hrp());
    assert!(DecodedTx::decode(&with_signer(&good), &hrp()).is_ok());
    let other_chain = address.to_bech32(&Hrp::new("cosmos").unwrap());
    let mut typo = good.clone();
    typo.pop();
    typo.push(if good.ends_with('q') { 'p' } else { 'q' });
    for text in ["", "alice", &other_chain, &typo, &good.to_uppercase()] {
        refused(
            &with_signer(text),
            sdk::INVALID_ADDRESS,
            "body.messages[1]: /cosmos.bank.v1beta1.MsgSend: signer",
        );
    }
    refused(&with_value(vec![0x0a, 2, 0xff, 0xfe]), sdk::INVALID_ADDRESS, "not UTF-8");
    // No field 1 at all.
    refused(&with_value(vec![0x12, 1, b'x']), sdk::INVALID_ADDRESS, "signer (field 1)");
}

#[test]
fn a_message_whose_first_field_two_readers_could_see_differently_is_refused() {
    let signer = |label: &str| {
        let text = key(label).address().to_bech32(&hrp());
        [&[0x0a, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    };
    let any = |value: Vec<u8>| Any { type_url: "/x.Y".into(), value };
    assert_eq!(message_signer(&any(signer("a")), &hrp()).unwrap(), key("a").address());
    let later_fields =
        [&signer("a")[..], &[0x10, 5, 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x2a, 0]].concat();
    assert_eq!(message_signer(&any(later_fields), &hrp()).unwrap(), key("a").address());
    let ten_byte_varint = [0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    for (what, value) in [
        ("field 1 twice", [signer("a"), signer("b")].concat()),
        ("field 1 again as a number", [&signer("a")[..], &[0x08, 1]].concat()),
        ("field 1 as a number", vec![0x08, 1]),
        ("field 0", [&signer("a")[..], &[0x02, 0]].concat()),
        ("a group", [&signer("a")[..], &[0x13]].concat()),
        ("a length beyond the end", [&signer("a")[..], &[0x12, 9, 0]].concat()),
        ("a cut fixed32", [&signer("a")[..], &[0x1d, 1, 2]].concat()),
        ("a cut fixed64", [&signer("a")[..], &[0x21, 1, 2]].concat()),
        ("a cut varint", [&signer("a")[..], &ten_byte_varint].concat()),
        ("a varint above 64 bits", [&signer("a")[..], &ten_byte_varint, &[2]].concat()),
    ] {
        let error = message_signer(&any(value), &hrp()).unwrap_err();
        assert_eq!(error.code, sdk::TX_DECODE, "{what}: {error}");
    }
    let largest = [&signer("a")[..], &ten_byte_varint, &[1]].concat();
    assert!(message_signer(&any(largest), &hrp()).is_ok());
}

#[test]
fn the_signer_of_every_message_of_this_chain_is_where_its_descriptor_says() {
    let pool = holdfast_proto::pool().unwrap();
    let mut seen = Vec::new();
    for service in pool.services().filter(|service| service.name() == "Msg") {
        for method in service.methods() {
            let input = method.input();
            let options = input.options();
            let signers: Vec<String> = options
                .extensions()
                .filter(|(extension, _)| extension.full_name() == "cosmos.msg.v1.signer")
                .flat_map(|(_, value)| value.as_list().unwrap().to_vec())
                .map(|value| value.as_str().unwrap().to_owned())
                .collect();
            let number = signer_field(&format!("/{}", input.full_name()));
            let field = input.get_field(u32::try_from(number).unwrap()).unwrap();
            assert_eq!(signers, [field.name()], "{}", input.full_name());
            assert_eq!(format!("{:?}", field.kind()), "string", "{}", input.full_name());
            seen.push(input.full_name().to_owned());
        }
    }
    assert!(
        seen.contains(&MsgStartInference::full_name()) && seen.contains(&MsgSend::full_name()),
        "{seen:?}"
    );
}

#[test]
fn a_malformed_fee_is_refused() {
    let with_fee = |coins: &[(&str, &str)]| {
        Parts::with(|parts| {
            let coin =
                |(denom, amount): &(&str, &str)| PbCoin { denom: (*denom).into(), amount: (*amount).into() };
            parts.auth.fee.as_mut().unwrap().amount = coins.iter().map(coin).collect();
        })
    };
    let overflow = "340282366920938463463374607431768211456"; // 2^128
    for amount in [overflow, "9".repeat(200).as_str(), "-1", "", "1.5", "0x10", "01", "+1", " 1"] {
        refused(&with_fee(&[("uhold", amount)]), sdk::INVALID_COINS, "auth_info.fee.amount: amount");
    }
    refused(&with_fee(&[("uhold", "0")]), sdk::INVALID_COINS, "auth_info.fee.amount: amount of uhold is 0");
    for denom in ["", "u", "1hold", "u hold", &"u".repeat(129)] {
        refused(&with_fee(&[(denom, "5")]), sdk::INVALID_COINS, "auth_info.fee.amount: denom");
    }
    for coins in [[("uhold", "1"), ("uhold", "2")], [("uhold", "1"), ("ahold", "2")]] {
        refused(&with_fee(&coins), sdk::INVALID_COINS, "once, in ascending order");
    }
    let most = with_fee(&[("uhold", "340282366920938463463374607431768211455")]);
    assert_eq!(DecodedTx::decode(&most, &hrp()).unwrap().fee()[0].amount, u128::MAX);
}

#[test]
fn fee_payers_granters_and_tips_are_refused_by_name() {
    let with_fee = |payer: &str, granter: &str| {
        Parts::with(|parts| {
            let fee = parts.auth.fee.as_mut().unwrap();
            (fee.payer, fee.granter) = (payer.to_owned(), granter.to_owned());
        })
    };
    let (own, other) = (key("a").address().to_bech32(&hrp()), key("b").address().to_bech32(&hrp()));
    // Naming the one who pays anyway says nothing new.
    assert!(DecodedTx::decode(&with_fee(&own, ""), &hrp()).is_ok());
    refused(&with_fee(&other, ""), sdk::NOT_SUPPORTED, "auth_info.fee.payer");
    refused(&with_fee("nobody", ""), sdk::NOT_SUPPORTED, "auth_info.fee.payer");
    refused(&with_fee("", &other), sdk::NOT_SUPPORTED, "auth_info.fee.granter");
    refused(&Parts::with(|parts| parts.auth.tip = Some(Tip::default())), sdk::NOT_SUPPORTED, "auth_info.tip");
}

#[test]
fn multisignatures_are_refused_by_name() {
    let bytes = Parts::with(|parts| {
        let multi = mode_info::Multi { bitarray: Some(CompactBitArray::default()), mode_infos: vec![] };
        parts.auth.signer_infos[0].mode_info = Some(ModeInfo { sum: Some(mode_info::Sum::Multi(multi)) });
    });
    refused(&bytes, sdk::NOT_SUPPORTED, "multisignatures are not supported");
    let bytes = Parts::with(|parts| {
        let any = Any { type_url: "/cosmos.crypto.multisig.LegacyAminoPubKey".into(), value: vec![] };
        parts.auth.signer_infos[0].public_key = Some(any);
    });
    refused(&bytes, sdk::NOT_SUPPORTED, "multisig keys are not supported");
}

#[test]
fn bad_public_keys_are_refused() {
    let with_key = |type_url: &str, key: Vec<u8>| {
        let value = PubKey { key }.encode_to_vec();
        let any = Any { type_url: type_url.into(), value };
        Parts::with(|parts| parts.auth.signer_infos[0].public_key = Some(any))
    };
    let good = key("a").public_key().to_bytes().to_vec();
    assert!(DecodedTx::decode(&with_key(PUBKEY_TYPE_URL, good.clone()), &hrp()).is_ok());
    let mut off_curve = vec![0; 33];
    (off_curve[0], off_curve[32]) = (2, 5);
    for bad in [off_curve, good[..32].to_vec(), vec![], [&good[..], &[0]].concat(), vec![4; 65]] {
        refused(&with_key(PUBKEY_TYPE_URL, bad), sdk::INVALID_PUBKEY, "auth_info.signer_infos[0].public_key");
    }
    for url in ["/cosmos.crypto.ed25519.PubKey", "cosmos.crypto.secp256k1.PubKey", ""] {
        refused(&with_key(url, good.clone()), sdk::INVALID_PUBKEY, "use /cosmos.crypto.secp256k1.PubKey");
    }
}

#[test]
fn the_number_of_signatures_is_limited() {
    let many = |signatures: usize, infos: usize| {
        Parts::with(|parts| {
            parts.signatures = vec![parts.signatures[0].clone(); signatures];
            parts.auth.signer_infos = vec![parts.auth.signer_infos[0].clone(); infos];
        })
    };
    assert!(DecodedTx::decode(&many(7, 7), &hrp()).is_ok());
    refused(&many(8, 1), sdk::TOO_MANY_SIGNATURES, "signatures: 8, limit: 7");
    refused(&many(1, 8), sdk::TOO_MANY_SIGNATURES, "signatures: 8, limit: 7");
}

#[test]
fn a_transaction_for_simulation_needs_no_key() {
    for public_key in [None, Some(key("a").public_key())] {
        let tx = DecodedTx::decode(&builder().unsigned(public_key.as_ref()), &hrp()).unwrap();
        assert_eq!(tx.signatures(), [Vec::<u8>::new()]);
        assert_eq!(tx.signer_infos()[0].public_key, public_key);
        assert_eq!(tx.signer_infos()[0].sequence, 7);
    }
}
