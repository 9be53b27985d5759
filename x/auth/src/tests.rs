use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::cosmos::auth::v1beta1 as cosmos;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::cosmos::crypto::secp256k1::PubKey;
use holdfast_proto::holdfast::auth::v1 as pb;
use holdfast_proto::{Any, Message, decode_strict};
use holdfast_store::{KvRead, KvWrite, MemKv, Order};
use holdfast_testkit::{Rng, TestChain, addr};
use holdfast_types::traits::AccountKeeper;
use holdfast_types::{Address, FieldError, Hrp, Module, QueryKind, check_prefix_table};

use crate::*;

const K: Keeper = Keeper;

/// The generator of secp256k1, and the address that BIP173's test vectors give for it.
const KEY: [u8; 33] = [
    0x02, 0x79, 0xBE, 0x66, 0x7E, 0xF9, 0xDC, 0xBB, 0xAC, 0x55, 0xA0, 0x62, 0x95, 0xCE, 0x87, 0x0B, 0x07,
    0x02, 0x9B, 0xFC, 0xDB, 0x2D, 0xCE, 0x28, 0xD9, 0x59, 0xF2, 0x81, 0x5B, 0x16, 0xF8, 0x17, 0x98,
];
const HOLDER: Address = Address([
    0x75, 0x1E, 0x76, 0xE8, 0x19, 0x91, 0x96, 0xD4, 0x54, 0x94, 0x1C, 0x45, 0xD1, 0xB3, 0xA3, 0x23, 0xF1,
    0x43, 0x3B, 0xD6,
]);

/// Two key holders and the account of gov.
fn chain() -> TestChain {
    let mut chain = TestChain::new(1);
    chain.ctx(|ctx| AuthModule.init_genesis(ctx, &AuthModule.default_genesis())).unwrap();
    chain.ctx(|ctx| {
        K.ensure_account(ctx, &addr(1)).unwrap();
        K.ensure_module_account(ctx.store, "gov").unwrap();
        K.ensure_account(ctx, &HOLDER).unwrap();
        K.set_pub_key(ctx.store, &HOLDER, KEY).unwrap();
        K.increment_sequence(ctx.store, &HOLDER).unwrap();
    });
    chain
}

#[test]
fn numbers_are_given_in_order_and_once() {
    let mut chain = chain();
    let number = |chain: &TestChain, a| K.account(&chain.store, a).unwrap().unwrap().number;
    assert_eq!(
        [number(&chain, &addr(1)), number(&chain, &Address::module("gov")), number(&chain, &HOLDER)],
        [0, 1, 2]
    );
    let before = chain.store.clone();
    chain.ctx(|ctx| K.ensure_account(ctx, &addr(1))).unwrap();
    chain.ctx(|ctx| K.ensure_module_account(ctx.store, "gov")).unwrap();
    assert!(chain.store == before, "ensuring twice changes nothing");
}

#[test]
fn an_account_made_by_a_transfer_becomes_the_modules_and_keeps_its_number() {
    let mut chain = TestChain::new(1);
    let gov = Address::module("gov");
    chain.ctx(|ctx| K.ensure_account(ctx, &gov)).unwrap();
    assert!(!K.is_module_account(&chain.store, &gov).unwrap());
    assert_eq!(chain.ctx(|ctx| K.ensure_module_account(ctx.store, "gov")).unwrap(), gov);
    assert!(K.is_module_account(&chain.store, &gov).unwrap());
    assert_eq!(K.account(&chain.store, &gov).unwrap().unwrap().number, 0);
    // No key is known for such an address; had it one, the module's account would still have none.
    let keyed = Account { number: 7, sequence: 3, pub_key: Some(KEY), module: None };
    let bank = Address::module("bank");
    chain.ctx(|ctx| K.set_account(ctx.store, &bank, &keyed)).unwrap();
    chain.ctx(|ctx| K.ensure_module_account(ctx.store, "bank")).unwrap();
    let expected = Account { number: 7, module: Some("bank".into()), ..Account::default() };
    assert_eq!(K.account(&chain.store, &bank).unwrap(), Some(expected));
}

#[test]
fn sequences_count_up_and_never_wrap() {
    let mut chain = chain();
    assert_eq!(chain.ctx(|ctx| K.increment_sequence(ctx.store, &addr(1))), Ok(1));
    assert_eq!(chain.ctx(|ctx| K.increment_sequence(ctx.store, &addr(1))), Ok(2));
    let full = Account { sequence: u64::MAX, ..Account::default() };
    chain.ctx(|ctx| K.set_account(ctx.store, &addr(1), &full)).unwrap();
    assert_eq!(chain.refused(|ctx| K.increment_sequence(ctx.store, &addr(1))), ("sdk", 32));
}

#[test]
fn an_unknown_account_and_a_modules_take_neither_key_nor_sequence() {
    let mut chain = chain();
    let gov = Address::module("gov");
    assert_eq!(chain.refused(|ctx| K.increment_sequence(ctx.store, &addr(9))), ("sdk", 9));
    assert_eq!(chain.refused(|ctx| K.set_pub_key(ctx.store, &addr(9), KEY)), ("sdk", 9));
    assert_eq!(chain.refused(|ctx| K.increment_sequence(ctx.store, &gov)), ("auth", 3));
    assert_eq!(chain.refused(|ctx| K.set_pub_key(ctx.store, &gov, KEY)), ("auth", 3));
}

#[test]
fn a_stored_account_has_these_bytes() {
    let account = Account { number: 3, sequence: 258, pub_key: Some(KEY), module: Some("gov".into()) };
    let mut golden = vec![3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1];
    golden.extend(KEY);
    golden.extend([1, 3, 0, 0, 0, b'g', b'o', b'v']);
    assert_eq!(borsh::to_vec(&account).unwrap(), golden);
    assert_eq!(borsh::to_vec(&Account::default()).unwrap(), [0; 18]);
    let full_key = [&b"auth/\x01"[..], &[1; 20]].concat();
    assert_eq!(ACCOUNTS.key(&addr(1)), full_key);
    let chain = chain();
    let row = |key: &[u8]| chain.store.get(key).unwrap().unwrap();
    assert_eq!(row(&full_key), [0; 18]);
    assert_eq!(row(b"auth/\x02"), [3, 0, 0, 0, 0, 0, 0, 0], "the next number");
}

fn base(any: &Any) -> cosmos::BaseAccount {
    assert_eq!(any.type_url, "/cosmos.auth.v1beta1.BaseAccount");
    decode_strict(&any.value).unwrap()
}

#[test]
fn account_gives_what_clients_of_the_sdk_expect() {
    let chain = chain();
    let ask = |address: &Address| {
        query_server::account(chain.query(), cosmos::QueryAccountRequest { address: chain.bech32(address) })
    };
    let plain = base(&ask(&addr(1)).unwrap().account.unwrap());
    assert_eq!((plain.account_number, plain.sequence, plain.pub_key), (0, 0, None));
    let keyed = base(&ask(&HOLDER).unwrap().account.unwrap());
    assert_eq!((keyed.account_number, keyed.sequence, keyed.address), (2, 1, chain.bech32(&HOLDER)));
    let any = keyed.pub_key.unwrap();
    assert_eq!(any.type_url, "/cosmos.crypto.secp256k1.PubKey");
    assert_eq!(decode_strict::<PubKey>(&any.value).unwrap().key, KEY);
    let gov = ask(&Address::module("gov")).unwrap().account.unwrap();
    assert_eq!(gov.type_url, "/cosmos.auth.v1beta1.ModuleAccount");
    let gov: cosmos::ModuleAccount = decode_strict(&gov.value).unwrap();
    assert_eq!((gov.name.as_str(), gov.base_account.unwrap().account_number), ("gov", 1));
}

#[test]
fn an_absent_account_is_not_found_by_its_address_and_a_bad_one_is_invalid() {
    let chain = chain();
    let ask = |address: String| query_server::account(chain.query(), cosmos::QueryAccountRequest { address });
    let missing = chain.bech32(&addr(9));
    let error = ask(missing.clone()).unwrap_err();
    assert_eq!(error.kind, QueryKind::NotFound);
    assert!(error.message.contains(&missing), "{error}");
    for bad in [String::new(), "hold1".into(), addr(1).to_bech32(&Hrp::new("cosmos").unwrap())] {
        let error = ask(bad).unwrap_err();
        assert_eq!(error.kind, QueryKind::InvalidArgument);
        assert!(error.message.starts_with("address: "), "{error}");
    }
    let by_name = |name: &str| {
        let request = cosmos::QueryModuleAccountByNameRequest { name: name.into() };
        query_server::module_account_by_name(chain.query(), request)
    };
    assert_eq!(by_name("gov").unwrap().account.unwrap().type_url, "/cosmos.auth.v1beta1.ModuleAccount");
    assert_eq!(by_name("bank").unwrap_err().kind, QueryKind::NotFound);
    assert_eq!(by_name("").unwrap_err().kind, QueryKind::InvalidArgument);
}

#[test]
fn accounts_come_in_pages_by_address() {
    let chain = chain();
    let ask = |pagination| {
        query_server::accounts(chain.query(), cosmos::QueryAccountsRequest { pagination }).unwrap()
    };
    let all = ask(None);
    assert_eq!((all.accounts.len(), all.pagination.unwrap().total), (3, 3));
    let first = ask(Some(PageRequest { limit: 1, ..Default::default() }));
    assert_eq!(base(&first.accounts[0]).address, chain.bech32(&addr(1)));
    let key = first.pagination.unwrap().next_key;
    assert_eq!(key, HOLDER.0);
    let second = ask(Some(PageRequest { key, limit: 1, ..Default::default() }));
    assert_eq!(base(&second.accounts[0]).address, chain.bech32(&HOLDER));
}

#[test]
fn a_page_past_the_limits_is_refused_by_its_field() {
    let chain = chain();
    let page =
        |key: &[u8], offset, limit| PageRequest { key: key.to_vec(), offset, limit, ..Default::default() };
    for (field, page) in [
        ("pagination.limit: ", page(&[], 0, 1001)),
        ("pagination.offset: ", page(&[], 10_001, 1)),
        ("pagination: ", page(&[1], 1, 1)),
    ] {
        let request = cosmos::QueryAccountsRequest { pagination: Some(page) };
        let error = query_server::accounts(chain.query(), request).unwrap_err();
        assert_eq!(error.kind, QueryKind::InvalidArgument);
        assert!(error.message.starts_with(field), "{error}");
    }
}

#[test]
fn a_corrupt_account_is_an_error_and_never_a_new_one() {
    let mut chain = chain();
    chain.store.set(&ACCOUNTS.key(&addr(1)), &[1]).unwrap();
    assert!(K.account(&chain.store, &addr(1)).is_err());
    assert_eq!(chain.refused(|ctx| K.increment_sequence(ctx.store, &addr(1))), ("sdk", 1));
    let request = cosmos::QueryAccountRequest { address: chain.bech32(&addr(1)) };
    assert_eq!(query_server::account(chain.query(), request).unwrap_err().kind, QueryKind::Internal);
}

#[test]
fn when_the_numbers_run_out_no_account_is_made() {
    let mut chain = chain();
    NEXT_ACCOUNT_NUMBER.set(&mut chain.store, u64::MAX).unwrap();
    assert_eq!(chain.refused(|ctx| K.ensure_account(ctx, &addr(8))), ("sdk", 1));
    assert_eq!(chain.refused(|ctx| K.ensure_module_account(ctx.store, "bank")), ("sdk", 1));
}

#[test]
fn after_random_operations_numbers_are_unique_and_genesis_brings_back_the_state() {
    let names = ["bank", "gov", "inference"];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut chain = TestChain::new(1);
        chain.ctx(|ctx| AuthModule.init_genesis(ctx, &AuthModule.default_genesis())).unwrap();
        let mut sequences: BTreeMap<Address, u64> = BTreeMap::new();
        for _ in 0..120 {
            // Module addresses are among those that receive coins, before and after the module has its account.
            let address = match rng.below(3) {
                0 => Address::module(names[rng.below(3) as usize]),
                1 => HOLDER,
                _ => addr(rng.below(12) as u8),
            };
            let known = K.account(&chain.store, &address).unwrap();
            let signs = known.is_some_and(|account| account.module.is_none());
            match rng.below(4) {
                0 => chain.message(|ctx| K.ensure_account(ctx, &address)).unwrap(),
                1 => {
                    let name = *rng.pick(&names);
                    let made = chain.message(|ctx| K.ensure_module_account(ctx.store, name)).unwrap();
                    sequences.remove(&made);
                }
                2 => {
                    let result = chain.message(|ctx| K.increment_sequence(ctx.store, &address));
                    assert_eq!(result.is_ok(), signs, "seed {seed}");
                    if let Ok(sequence) = result {
                        let expected = sequences.entry(address).or_default();
                        *expected += 1;
                        assert_eq!(sequence, *expected, "seed {seed}");
                    }
                }
                _ => {
                    let result = chain.message(|ctx| K.set_pub_key(ctx.store, &HOLDER, KEY));
                    let there = K.account(&chain.store, &HOLDER).unwrap().is_some();
                    assert_eq!(result.is_ok(), there, "seed {seed}");
                }
            }
        }
        let rows: Vec<_> = ACCOUNTS.iter(&chain.store, Order::Ascending).map(Result::unwrap).collect();
        let numbers: BTreeSet<_> = rows.iter().map(|(_, account)| account.number).collect();
        assert_eq!(numbers.len(), rows.len(), "seed {seed}: a number is given twice");
        assert_eq!(NEXT_ACCOUNT_NUMBER.peek(&chain.store).unwrap(), rows.len() as u64, "seed {seed}: a gap");
        for (address, account) in &rows {
            assert_eq!(account.sequence, sequences.get(address).copied().unwrap_or(0), "seed {seed}");
        }
        let bytes = AuthModule.export_genesis(&chain.store, &Hrp::default()).unwrap();
        AuthModule.validate_genesis(&bytes, &Hrp::default()).unwrap();
        let mut copy = TestChain::new(1);
        copy.ctx(|ctx| AuthModule.init_genesis(ctx, &bytes)).unwrap();
        assert_eq!(AuthModule.export_genesis(&copy.store, &Hrp::default()).unwrap(), bytes, "seed {seed}");
        if !rows.is_empty() {
            assert!(copy.store == chain.store, "seed {seed}");
        }
    }
}

fn genesis() -> pb::GenesisState {
    let exported = AuthModule.export_genesis(&chain().store, &Hrp::default()).unwrap();
    pb::GenesisState::decode(exported.as_slice()).unwrap()
}

#[test]
fn export_validate_init_export_is_the_same_bytes_and_the_same_state() {
    let source = chain();
    let bytes = AuthModule.export_genesis(&source.store, &Hrp::default()).unwrap();
    AuthModule.validate_genesis(&bytes, &Hrp::default()).unwrap();
    let mut copy = TestChain::new(1);
    copy.ctx(|ctx| AuthModule.init_genesis(ctx, &bytes)).unwrap();
    assert!(copy.store == source.store);
    assert_eq!(AuthModule.export_genesis(&copy.store, &Hrp::default()).unwrap(), bytes);
    AuthModule.validate_genesis(&AuthModule.default_genesis(), &Hrp::default()).unwrap();
    assert_eq!(
        AuthModule.export_genesis(&MemKv::default(), &Hrp::default()).unwrap(),
        AuthModule.default_genesis()
    );
}

#[test]
fn each_bad_genesis_field_is_refused_by_its_name() {
    type Change = fn(&mut pb::GenesisState);
    // In order of address: 1, the holder (0x75…), gov (0x7b…).
    let cases: &[(&str, Change)] = &[
        ("accounts[0].address", |g| g.accounts[0].address = "nobody".into()),
        ("accounts[1].address", |g| g.accounts.swap(0, 1)),
        ("accounts[1].address", |g| g.accounts[1] = g.accounts[0].clone()),
        ("accounts[1].account_number", |g| g.accounts[1].account_number = 0),
        ("accounts[1].account_number", |g| g.next_account_number = 2),
        ("accounts[1].pub_key", |g| g.accounts[1].pub_key[0] = 4),
        ("accounts[1].pub_key", |g| g.accounts[1].pub_key.truncate(32)),
        ("accounts[0].pub_key", |g| g.accounts[0].pub_key = KEY.to_vec()),
        ("accounts[1].pub_key", |g| g.accounts[1].pub_key[32] ^= 1),
        ("accounts[0].module_name", |g| g.accounts[0].module_name = "bank".into()),
        ("params.tx_sig_limit", |g| g.params.as_mut().unwrap().tx_sig_limit = 8),
        ("accounts[2].module_name", |g| g.accounts[2].sequence = 1),
        ("accounts[2].module_name", |g| g.accounts[2].pub_key = KEY.to_vec()),
    ];
    for (field, change) in cases {
        let mut bad = genesis();
        change(&mut bad);
        let error = AuthModule.validate_genesis(&bad.encode_to_vec(), &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("auth", 2));
        assert!(error.message.starts_with(&format!("genesis {field}: ")), "{field}: {error}");
        let init = TestChain::new(1).refused(|ctx| AuthModule.init_genesis(ctx, &bad.encode_to_vec()));
        assert_eq!(init, ("auth", 2), "{field}: the state is built only of what was checked");
    }
    let good = genesis().encode_to_vec();
    for bytes in [[&good[..], &[0x78, 1]].concat(), good[..good.len() - 1].to_vec()] {
        let error = AuthModule.validate_genesis(&bytes, &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", 34));
    }
}

#[test]
fn collections_and_codes_are_where_the_tables_say() {
    assert!(check_prefix_table(&AuthModule));
    let samples = [
        AuthError::genesis("f", "r"),
        AuthError::ModuleAccount("gov".into()),
        AuthError::InvalidSigner { expected: "gov".into() },
        AuthError::InvalidParams(FieldError::new("f", "r")),
    ];
    assert_eq!(samples.map(|e| e.code()).to_vec(), CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}

fn update(params: cosmos::Params, paths: &[&str]) -> cosmos::MsgUpdateParams {
    cosmos::MsgUpdateParams {
        authority: Address::module("gov").to_bech32(&Hrp::default()),
        params: Some(params),
        update_mask: Some(holdfast_proto::FieldMask {
            paths: paths.iter().map(|p| (*p).to_owned()).collect(),
        }),
    }
}

#[test]
fn an_update_changes_the_named_fields_and_no_other() {
    let wanted = cosmos::Params {
        max_memo_characters: 1,
        tx_sig_limit: 2,
        tx_size_cost_per_byte: 3,
        sig_verify_cost_secp256k1: 4,
    };
    let number = |params: &Params, field: &str| match field {
        "max_memo_characters" => params.max_memo_characters,
        "tx_sig_limit" => params.tx_sig_limit,
        "tx_size_cost_per_byte" => params.tx_size_cost_per_byte,
        "sig_verify_cost_secp256k1" => params.sig_verify_cost_secp256k1,
        other => panic!("no field {other}"),
    };
    for (n, field) in PARAMS_FIELDS.iter().enumerate() {
        let mut chain = chain();
        chain.ctx(|ctx| msg_server::update_params(ctx, update(wanted, &[field]))).unwrap();
        let (after, old) = (K.params(&chain.store).unwrap(), Params::default());
        assert_eq!(number(&after, field), n as u64 + 1);
        for other in PARAMS_FIELDS.iter().filter(|other| *other != field) {
            assert_eq!(number(&after, other), number(&old, other), "{field} changed {other}");
        }
    }
    let mut chain = chain();
    chain.ctx(|ctx| msg_server::update_params(ctx, update(wanted, &["*"]))).unwrap();
    assert_eq!(cosmos::Params::from(&K.params(&chain.store).unwrap()), wanted);
}

#[test]
fn a_bad_update_is_refused_by_its_field_and_changes_nothing() {
    let good = cosmos::Params::from(&Params::default());
    let cases = [
        (update(cosmos::Params { max_memo_characters: 65_537, ..good }, &["*"]), "auth", 5),
        (update(cosmos::Params { tx_sig_limit: 0, ..good }, &["tx_sig_limit"]), "auth", 5),
        (update(cosmos::Params { tx_sig_limit: 8, ..good }, &["tx_sig_limit"]), "auth", 5),
        (update(cosmos::Params { tx_size_cost_per_byte: 0, ..good }, &["*"]), "auth", 5),
        (update(cosmos::Params { sig_verify_cost_secp256k1: 1_000_001, ..good }, &["*"]), "auth", 5),
        (update(good, &[]), "auth", 5),
        (update(good, &["memo"]), "auth", 5),
        (cosmos::MsgUpdateParams { params: None, ..update(good, &["*"]) }, "auth", 5),
        (
            cosmos::MsgUpdateParams { authority: addr(1).to_bech32(&Hrp::default()), ..update(good, &["*"]) },
            "auth",
            4,
        ),
        (cosmos::MsgUpdateParams { authority: "gov".into(), ..update(good, &["*"]) }, "sdk", 7),
    ];
    for (n, (msg, codespace, code)) in cases.into_iter().enumerate() {
        let refused = chain().refused(|ctx| msg_server::update_params(ctx, msg));
        assert_eq!(refused, (codespace, code), "case {n}");
    }
}

#[test]
fn stored_params_have_these_bytes() {
    let golden = [
        [0, 1, 0, 0, 0, 0, 0, 0],
        [7, 0, 0, 0, 0, 0, 0, 0],
        [10, 0, 0, 0, 0, 0, 0, 0],
        [0xE8, 3, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(borsh::to_vec(&Params::default()).unwrap(), golden.concat());
}
