//! Tests of the descriptors, of type URLs, of strict decoding and of JSON.

use std::collections::BTreeSet;

use prost_reflect::{DescriptorPool, Kind};

use crate::cosmos::auth::v1beta1::BaseAccount;
use crate::cosmos::bank::v1beta1::MsgSend;
use crate::cosmos::base::v1beta1::Coin;
use crate::cosmos::crypto::secp256k1::PubKey;
use crate::cosmos::tx::signing::v1beta1::SignMode;
use crate::cosmos::tx::v1beta1::{AuthInfo, SignDoc, TxBody, TxRaw, mode_info};
use crate::holdfast::breaker::v1::MsgSetBreakerOverride;
use crate::holdfast::epochs::v1::{EpochInfo, MsgUpdateParams};
use crate::holdfast::inference::v1::{MsgFinishInference, MsgStartInference, ValidationParams};
use crate::{
    Any, FILE_DESCRIPTOR_SET, FieldMask, Message, Name, StrictDecodeError, Timestamp, decode_strict, type_url,
};

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap()
}

/// A message with two fields: executed_by (1) and prompt_tokens (4).
fn finish() -> MsgFinishInference {
    MsgFinishInference { executed_by: "ab".to_owned(), prompt_tokens: 5, ..Default::default() }
}

const FINISH: [u8; 6] = [0x0a, 0x02, b'a', b'b', 0x20, 0x05];

fn refused(bytes: &[u8]) -> (usize, usize, usize, &'static str) {
    match decode_strict::<MsgFinishInference>(bytes) {
        Err(StrictDecodeError::NotCanonical { type_name, offset, given, canonical, hint }) => {
            assert_eq!(type_name, "holdfast.inference.v1.MsgFinishInference");
            (offset, given, canonical, hint)
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn the_descriptor_set_lists_every_service_and_method() {
    let methods: Vec<String> = pool()
        .services()
        .map(|service| {
            let names: Vec<String> = service.methods().map(|m| m.name().to_owned()).collect();
            format!("{}: {}", service.full_name(), names.join(" "))
        })
        .collect();
    let sorted: BTreeSet<&str> = methods.iter().map(String::as_str).collect();
    assert_eq!(
        sorted.into_iter().collect::<Vec<_>>(),
        [
            "cosmos.auth.v1beta1.Msg: UpdateParams",
            "cosmos.auth.v1beta1.Query: Accounts Account Params ModuleAccountByName",
            "cosmos.bank.v1beta1.Msg: Send",
            "cosmos.bank.v1beta1.Query: Balance AllBalances TotalSupply SupplyOf",
            "cosmos.base.tendermint.v1beta1.Service: GetNodeInfo GetLatestBlock GetBlockByHeight",
            "cosmos.gov.v1.Msg: SubmitProposal Vote VoteWeighted Deposit UpdateParams CancelProposal",
            "cosmos.gov.v1.Query: Proposal Proposals Vote Votes Params Deposit Deposits TallyResult",
            "cosmos.tx.v1beta1.Service: Simulate GetTx BroadcastTx",
            "cosmos.upgrade.v1beta1.Msg: SoftwareUpgrade CancelUpgrade",
            "cosmos.upgrade.v1beta1.Query: CurrentPlan AppliedPlan ModuleVersions Authority",
            "holdfast.breaker.v1.Msg: SetBreakerOverride",
            "holdfast.breaker.v1.Query: CircuitBreaker CircuitBreakers BreakerSummary Overrides WhatIf",
            "holdfast.epochs.v1.Msg: UpdateParams",
            "holdfast.epochs.v1.Query: Params CurrentEpoch Epoch",
            "holdfast.escrow.v1.Msg: CreateEscrow SettleEscrow DisputeEscrow UpdateParams",
            "holdfast.escrow.v1.Query: Params Escrow Escrows EscrowsByParticipant",
            "holdfast.gateway.v1.Gateway: Announce Divergence Divergences WatchDivergence \
             ForceTeach GiveUp Release Finalize Escrows Escrow",
            "holdfast.host.v1.Host: Serve Bind Teach Infer CancelInference GetSignatures \
             GetPending GetDiffs VoteTimeout ChallengeStart ResetSession",
            "holdfast.inference.v1.Msg: StartInference FinishInference ReportFailure \
             CancelInference UpdateParams",
            "holdfast.inference.v1.Query: Params Inference Inferences ParticipantStats Sprt \
             GetRandomExecutor CandidateTable",
            "holdfast.participants.v1.Msg: RegisterParticipant UpdateParticipant LeaveNetwork \
             DepositCollateral WithdrawCollateral ClaimCollateral AnnounceMaintenance \
             CancelMaintenance RegisterModel UpdateParams",
            "holdfast.participants.v1.Query: Params Participant Participants Models EpochGroup \
             Maintenance Validators",
            "holdfast.runner.v1.Worker: Describe Control Run",
        ]
    );
}

#[test]
fn every_msg_service_is_marked_and_says_which_field_signs() {
    let pool = pool();
    let signer = pool.get_extension_by_name("cosmos.msg.v1.signer").unwrap();
    let marker = pool.get_extension_by_name("cosmos.msg.v1.service").unwrap();
    assert_eq!((signer.number(), marker.number()), (11_110_000, 11_110_000));
    let mut messages = 0;
    for service in pool.services() {
        let is_msg = service.name() == "Msg";
        assert_eq!(
            service.options().get_extension(&marker).as_bool(),
            Some(is_msg),
            "{}",
            service.full_name()
        );
        for method in service.methods().filter(|_| is_msg) {
            let input = method.input();
            // cosmos.gov.v1 has its signers where the Cosmos SDK has them.
            let number = match input.full_name() {
                "cosmos.gov.v1.MsgSubmitProposal" => 3,
                "cosmos.gov.v1.MsgVote" | "cosmos.gov.v1.MsgVoteWeighted" => 2,
                "cosmos.gov.v1.MsgDeposit" | "cosmos.gov.v1.MsgCancelProposal" => 2,
                _ => 1,
            };
            let first = input.get_field(number).unwrap();
            let options = input.options();
            let named = options.get_extension(&signer).into_owned();
            let named: Vec<&str> =
                named.as_list().unwrap().iter().filter_map(|value| value.as_str()).collect();
            assert_eq!(named, [first.name()], "{}", input.full_name());
            assert!(matches!(first.kind(), Kind::String), "{}", input.full_name());
            assert_eq!(input.name(), format!("Msg{}", method.name()).as_str());
            messages += 1;
        }
    }
    assert_eq!(messages, 31);
}

#[test]
fn update_messages_of_all_modules_have_one_shape() {
    for package in [
        "holdfast.epochs",
        "holdfast.participants",
        "holdfast.inference",
        "holdfast.escrow",
        "cosmos.gov",
        "cosmos.auth",
    ] {
        let version = if package == "cosmos.auth" { "v1beta1" } else { "v1" };
        let name = format!("{package}.{version}.MsgUpdateParams");
        let message = pool().get_message_by_name(&name).unwrap();
        let fields: Vec<(u32, String)> =
            message.fields().map(|field| (field.number(), field.name().to_owned())).collect();
        let expected = [(1, "authority"), (2, "params"), (3, "update_mask")];
        assert_eq!(fields, expected.map(|(number, name)| (number, name.to_owned())), "{name}");
    }
}

#[test]
fn validation_params_have_their_published_names_in_order() {
    let message = pool().get_message_by_name(&ValidationParams::full_name()).unwrap();
    let fields: Vec<String> = message
        .fields()
        .enumerate()
        .map(|(position, field)| {
            assert_eq!(usize::try_from(field.number()).unwrap(), position + 1);
            field.name().to_owned()
        })
        .collect();
    assert_eq!(
        fields,
        [
            "expiration_blocks",
            "health_cb_enabled",
            "health_cb_shadow",
            "health_cb_miss_threshold_pct",
            "health_cb_min_samples",
            "health_cb_initial_cooldown_blocks",
            "health_cb_max_cooldown_blocks",
            "health_cb_probe_share_bp",
            "health_cb_window_blocks",
            "health_cb_consecutive_misses",
            "health_cb_probation_blocks",
            "health_cb_max_excluded_weight_pct",
            "health_cb_freeze_pct",
            "health_cb_jitter_pct",
            "downtime_sprt_enabled",
            "downtime_good_percentage",
            "downtime_bad_percentage",
            "downtime_h_threshold",
        ]
    );
}

#[test]
fn the_draw_answers_with_the_numbers_of_breaker_details_4() {
    let fields = |name: &str| -> Vec<(u32, String)> {
        let message = pool().get_message_by_name(name).unwrap();
        message.fields().map(|field| (field.number(), field.name().to_owned())).collect()
    };
    let numbered = |names: &[&str]| -> Vec<(u32, String)> {
        (1..).zip(names).map(|(number, name)| (number, (*name).to_owned())).collect()
    };
    assert_eq!(fields("holdfast.inference.v1.QueryGetRandomExecutorRequest"), numbered(&["model", "seed"]));
    assert_eq!(
        fields("holdfast.inference.v1.QueryGetRandomExecutorResponse"),
        numbered(&[
            "executor",
            "height",
            "seed",
            "table_digest",
            "lane",
            "fallback",
            "epoch",
            "generation",
            "eligible_count",
        ])
    );
    let lanes = pool().get_enum_by_name("holdfast.inference.v1.Lane").unwrap();
    let lanes: Vec<(i32, String)> =
        lanes.values().map(|value| (value.number(), value.name().to_owned())).collect();
    let expected = ["LANE_UNSPECIFIED", "LANE_HEALTHY", "LANE_PROBE", "LANE_FALLBACK"];
    assert_eq!(lanes, (0..).zip(expected.map(str::to_owned)).collect::<Vec<_>>());
}

#[test]
fn breaker_events_carry_their_attributes_in_the_order_of_breaker_details_6() {
    let between = [
        (
            "EventExecutorExcluded",
            "rule ok missed window_blocks consecutive_misses level cooldown_blocks due_block",
        ),
        ("EventExclusionRefused", "reason rule ok missed weight out_weight eligible_weight limit_pct"),
        ("EventProbeOpened", "cause ready_since level"),
        ("EventProbeClaimed", "inference_id deadline_block attempt"),
        ("EventExecutorRestored", "cause inference_id attempts excluded_at restored_at"),
        ("EventOverrideSet", "to until_block authority"),
        ("EventOverrideEnded", "to cause"),
    ];
    let names = |event: &str| -> String {
        let name = format!("holdfast.breaker.v1.{event}");
        let message = pool().get_message_by_name(&name).unwrap();
        let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
        names.join(" ")
    };
    for (event, own) in between {
        assert_eq!(names(event), format!("epoch model participant generation {own} shadow"));
    }
    assert_eq!(names("EventBreakerFrozen"), "epoch model frozen tripped_weight eligible_weight freeze_pct");
    assert_eq!(names("EventBreakerReset"), "epoch from_epoch");
}

#[test]
fn every_own_message_field_value_and_method_has_a_comment() {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut looked_at = 0;
    for file in &set.file {
        if file.package().starts_with("google.") {
            continue;
        }
        let info = file.source_code_info.as_ref().unwrap();
        let commented: BTreeSet<&[i32]> = info
            .location
            .iter()
            .filter(|location| !location.leading_comments().trim().is_empty())
            .map(|location| location.path.as_slice())
            .collect();
        // Paths by the numbers of `FileDescriptorProto`: 4 messages, 5 enums, 6 services; fields, values and methods
        // are number 2 of theirs.
        let groups = [
            (4, file.message_type.iter().map(|message| message.field.len()).collect::<Vec<_>>()),
            (5, file.enum_type.iter().map(|values| values.value.len()).collect()),
            (6, file.service.iter().map(|service| service.method.len()).collect()),
        ];
        for (group, sizes) in groups {
            for (outer, size) in (0..).zip(sizes) {
                let mut paths = vec![vec![group, outer]];
                paths.extend((0..).take(size).map(|inner| vec![group, outer, 2, inner]));
                for path in paths {
                    assert!(commented.contains(path.as_slice()), "{}: {path:?}", file.name());
                    looked_at += 1;
                }
            }
        }
    }
    assert!(looked_at > 700, "only {looked_at} places looked at");
}

#[test]
fn the_descriptor_set_names_files_as_imports_do() {
    let files: Vec<String> = pool().files().map(|file| file.name().to_owned()).collect();
    assert!(files.iter().any(|name| name == "holdfast/breaker/v1/types.proto"), "{files:?}");
    assert!(files.iter().any(|name| name == "cosmos/tx/v1beta1/service.proto"), "{files:?}");
    let folders = ["holdfast/", "cosmos/", "tendermint/", "google/protobuf/", "google/rpc/"];
    for name in files {
        assert!(folders.iter().any(|folder| name.starts_with(folder)), "{name}");
    }
}

#[test]
fn type_urls_are_a_slash_and_the_full_name() {
    assert_eq!(type_url::<MsgStartInference>(), "/holdfast.inference.v1.MsgStartInference");
    assert_eq!(type_url::<MsgSetBreakerOverride>(), "/holdfast.breaker.v1.MsgSetBreakerOverride");
    assert_eq!(type_url::<MsgSend>(), "/cosmos.bank.v1beta1.MsgSend");
    assert_eq!(type_url::<BaseAccount>(), "/cosmos.auth.v1beta1.BaseAccount");
    assert_eq!(type_url::<PubKey>(), "/cosmos.crypto.secp256k1.PubKey");
    let packed = Any::from_msg(&finish()).unwrap();
    assert_eq!(packed.type_url, "/holdfast.inference.v1.MsgFinishInference");
    assert_eq!(packed.to_msg::<MsgFinishInference>().unwrap(), finish());
}

#[test]
fn strict_decoding_takes_the_canonical_encoding() {
    assert_eq!(finish().encode_to_vec(), FINISH);
    assert_eq!(decode_strict::<MsgFinishInference>(&FINISH).unwrap(), finish());
    assert_eq!(decode_strict::<MsgFinishInference>(&[]).unwrap(), MsgFinishInference::default());
    // A set optional field is kept even when it is zero.
    let zero = crate::holdfast::inference::v1::QueryParticipantStatsRequest {
        participant: String::new(),
        epoch: Some(0),
    };
    assert_eq!(zero.encode_to_vec(), [0x10, 0x00]);
    assert_eq!(decode_strict(&[0x10, 0x00]), Ok(zero));
}

#[test]
fn strict_decoding_refuses_what_comes_after_the_message() {
    let mut bytes = FINISH.to_vec();
    // A lone byte is half a field.
    bytes.push(0x28);
    let error = decode_strict::<MsgFinishInference>(&bytes).unwrap_err();
    assert!(matches!(&error, StrictDecodeError::Malformed { type_name, .. }
        if type_name == "holdfast.inference.v1.MsgFinishInference"));
    assert!(error.to_string().contains("holdfast.inference.v1.MsgFinishInference: cannot be"));
    // With its value it is completion_tokens = 0, a default written out.
    bytes.push(0x00);
    let (offset, given, canonical, hint) = refused(&bytes);
    assert_eq!((offset, given, canonical), (6, 8, 6));
    assert!(hint.contains("default written out"));
}

#[test]
fn strict_decoding_refuses_an_unknown_field() {
    // Field 15, varint 1.
    let (offset, given, canonical, hint) = refused(&[&FINISH[..], &[0x78, 0x01]].concat());
    assert_eq!((offset, given, canonical), (6, 8, 6));
    assert!(hint.contains("unknown field"));
    // The same in front of a known one.
    let (offset, ..) = refused(&[0x0a, 0x02, b'a', b'b', 0x78, 0x01, 0x20, 0x05]);
    assert_eq!(offset, 4);
}

#[test]
fn strict_decoding_refuses_an_unknown_field_inside_a_nested_message() {
    let coin = Coin { denom: "uhold".to_owned(), amount: "1".to_owned() };
    let inner = [coin.encode_to_vec(), vec![0x78, 0x01]].concat();
    let bytes = [vec![0x1a, u8::try_from(inner.len()).unwrap()], inner].concat();
    assert_eq!(MsgSend::decode(bytes.as_slice()).unwrap().amount, [coin]);
    assert!(matches!(
        decode_strict::<MsgSend>(&bytes),
        Err(StrictDecodeError::NotCanonical { offset: 1, .. })
    ));
}

#[test]
fn strict_decoding_refuses_a_varint_longer_than_needed() {
    // prompt_tokens = 5 in two bytes.
    let (offset, given, canonical, hint) = refused(&[0x0a, 0x02, b'a', b'b', 0x20, 0x85, 0x00]);
    assert_eq!((offset, given, canonical), (5, 7, 6));
    assert!(hint.contains("varint"));
    // The length of executed_by in two bytes.
    assert_eq!(refused(&[0x0a, 0x82, 0x00, b'a', b'b', 0x20, 0x05]).0, 1);
    // A flag that is neither 0 nor 1: health_cb_enabled = 2.
    assert!(matches!(
        decode_strict::<ValidationParams>(&[0x10, 0x02]),
        Err(StrictDecodeError::NotCanonical { offset: 1, given: 2, canonical: 2, .. })
    ));
}

#[test]
fn strict_decoding_refuses_fields_out_of_order_or_given_twice() {
    let (offset, given, canonical, hint) = refused(&[0x20, 0x05, 0x0a, 0x02, b'a', b'b']);
    assert_eq!((offset, given, canonical), (0, 6, 6));
    assert!(hint.contains("out of order"));
    let (offset, given, canonical, hint) = refused(&[0x0a, 0x02, b'a', b'b', 0x20, 0x04, 0x20, 0x05]);
    assert_eq!((offset, given, canonical), (5, 8, 6));
    assert!(hint.contains("given twice"));
}

#[test]
fn strict_decoding_refuses_cut_and_foreign_bytes() {
    for bytes in [&FINISH[..5], &FINISH[..3], &[0x20, 0x80][..], &[0x0a, 0x01, 0xff][..]] {
        assert!(
            matches!(decode_strict::<MsgFinishInference>(bytes), Err(StrictDecodeError::Malformed { .. })),
            "{bytes:?}"
        );
    }
}

#[test]
fn negative_heights_and_well_known_types_survive_strict_decoding() {
    let epoch = EpochInfo { index: 1, start_height: -1, length: i64::MIN, poc_length: i64::MAX };
    assert_eq!(decode_strict::<EpochInfo>(&epoch.encode_to_vec()), Ok(epoch));
    let update = MsgUpdateParams {
        authority: "gov".to_owned(),
        params: None,
        update_mask: Some(FieldMask { paths: vec!["epoch_length".to_owned(), "poc_length".to_owned()] }),
    };
    assert_eq!(decode_strict::<MsgUpdateParams>(&update.encode_to_vec()), Ok(update));
    let time = Timestamp { seconds: -5, nanos: 9 };
    assert_eq!(decode_strict::<Timestamp>(&time.encode_to_vec()), Ok(time));
}

/// Encoded by cosmos-sdk-proto 0.27: MsgSend of 250 uhold from `hold1from` to `hold1to`, memo `hi`, timeout height 90;
/// key 33 × 02, direct mode, sequence 7, fee 5000 uhold, gas 200000; signature 64 × 09.
const COSMOS_TX: &str = "0a4a0a420a1c2f636f736d6f732e62616e6b2e763162657461312e4d736753656e6412220a0968\
    6f6c643166726f6d1207686f6c6431746f1a0c0a0575686f6c64120332353012026869185a12670a500a460a1f2f636f736d\
    6f732e63727970746f2e736563703235366b312e5075624b657912230a210202020202020202020202020202020202020202\
    0202020202020202020202020212040a020801180712130a0d0a0575686f6c6412043530303010c09a0c1a40090909090909\
    0909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909\
    0909090909090909";

#[test]
fn a_transaction_of_another_stack_decodes_strictly_at_every_level() {
    let bytes = hex::decode(COSMOS_TX).unwrap();
    let raw: TxRaw = decode_strict(&bytes).unwrap();
    assert_eq!(raw.signatures, [vec![9; 64]]);

    let body: TxBody = decode_strict(&raw.body_bytes).unwrap();
    assert_eq!((body.memo.as_str(), body.timeout_height), ("hi", 90));
    assert_eq!(body.messages[0].type_url, type_url::<MsgSend>());
    let send: MsgSend = decode_strict(&body.messages[0].value).unwrap();
    assert_eq!((send.from_address.as_str(), send.to_address.as_str()), ("hold1from", "hold1to"));
    assert_eq!(send.amount, [Coin { denom: "uhold".to_owned(), amount: "250".to_owned() }]);

    let auth: AuthInfo = decode_strict(&raw.auth_info_bytes).unwrap();
    let fee = auth.fee.unwrap();
    assert_eq!((fee.gas_limit, fee.amount[0].amount.as_str()), (200_000, "5000"));
    let signer = &auth.signer_infos[0];
    assert_eq!(signer.sequence, 7);
    let key = signer.public_key.as_ref().unwrap();
    assert_eq!(key.type_url, type_url::<PubKey>());
    assert_eq!(decode_strict::<PubKey>(&key.value).unwrap().key, [2; 33]);
    match signer.mode_info.as_ref().unwrap().sum.as_ref().unwrap() {
        mode_info::Sum::Single(single) => assert_eq!(single.mode(), SignMode::Direct),
        mode_info::Sum::Multi(_) => panic!("a single signature was expected"),
    }

    // Field order of what is signed, also from cosmos-sdk-proto.
    let doc = SignDoc {
        body_bytes: vec![1],
        auth_info_bytes: vec![2],
        chain_id: "c-1".to_owned(),
        account_number: 3,
    };
    assert_eq!(hex::encode(doc.encode_to_vec()), "0a01011201021a03632d312003");
}

#[cfg(feature = "json")]
mod json {
    use serde_json::{Value, json};

    use super::*;
    use crate::holdfast::breaker::v1::{BreakerRow, CircuitBreakerEntry, State};
    use crate::{JsonError, from_json, to_json};

    const START: &str = "holdfast.inference.v1.MsgStartInference";
    const GENESIS: &str = "holdfast.breaker.v1.GenesisState";

    #[test]
    fn json_keeps_field_names_and_writes_defaults_and_long_numbers_as_text() {
        let message = MsgStartInference {
            signer: "s".to_owned(),
            prompt_hash: vec![1, 2, 3],
            prompt_tokens: u64::MAX,
            ..Default::default()
        };
        assert_eq!(
            to_json(START, &message.encode_to_vec()).unwrap(),
            json!({
                "signer": "s", "requested_by": "", "inference_id": "", "model": "",
                "assigned_to": "", "prompt_hash": "AQID",
                "prompt_tokens": "18446744073709551615", "max_tokens": "0"
            })
        );
    }

    #[test]
    fn json_names_enums_and_comes_back_to_the_same_canonical_bytes() {
        let row = BreakerRow {
            epoch: 7,
            model: "m1".to_owned(),
            participant: "p".to_owned(),
            entry: Some(CircuitBreakerEntry {
                state: State::Excluded as i32,
                generation: 3,
                excluded_at: 100,
                ..Default::default()
            }),
        };
        let bytes = row.encode_to_vec();
        let value = to_json(&BreakerRow::full_name(), &bytes).unwrap();
        assert_eq!(value["epoch"], json!("7"));
        assert_eq!(value["entry"]["state"], json!("STATE_EXCLUDED"));
        assert_eq!(value["entry"]["generation"], json!(3));
        assert_eq!(value["entry"]["excluded_at"], json!("100"));
        let back = from_json(&BreakerRow::full_name(), &value).unwrap();
        assert_eq!(back, bytes);
        assert_eq!(decode_strict::<BreakerRow>(&back), Ok(row));
    }

    #[test]
    fn json_fields_may_be_left_out_and_come_in_any_order() {
        let bytes = from_json(START, &json!({"max_tokens": "9", "signer": "s"})).unwrap();
        let expected = MsgStartInference { signer: "s".to_owned(), max_tokens: 9, ..Default::default() };
        assert_eq!(decode_strict::<MsgStartInference>(&bytes), Ok(expected));
    }

    #[test]
    fn json_that_does_not_fit_is_refused_with_the_path_of_the_field() {
        let state = |state: Value| json!({"entries": [{}, {"entry": {"state": state}}]});
        for (name, value, said) in [
            (START, json!({"signr": "s"}), "unrecognized field name 'signr'"),
            (START, json!({"signer": 5}), "signer: invalid type: integer `5`, expected a string"),
            (START, json!({"max_tokens": "18446744073709551616"}), "max_tokens: number too large"),
            (START, json!({"max_tokens": -1}), "max_tokens: "),
            (START, json!({"prompt_hash": "!"}), "prompt_hash: invalid base64"),
            (START, json!([]), ".: invalid type: sequence"),
            (GENESIS, state(json!("STATE_OPEN")), "entries[1].entry.state: "),
            (GENESIS, state(json!(1.5)), "entries[1].entry.state: "),
        ] {
            let error = from_json(name, &value).unwrap_err();
            assert!(matches!(error, JsonError::Json { .. }), "{value}");
            let text = error.to_string();
            assert!(text.starts_with(name) && text.contains(said), "{text}, expected {said}");
        }
    }

    #[test]
    fn json_of_an_unknown_message_or_of_broken_bytes_is_refused() {
        let error = to_json("holdfast.no.v1.Msg", &[]).unwrap_err();
        assert!(error.to_string().starts_with("holdfast.no.v1.Msg: unknown message"));
        assert!(matches!(to_json(START, &[0x0a]), Err(JsonError::Decode { .. })));
    }
}
