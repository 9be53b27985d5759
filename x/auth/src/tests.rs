use holdfast_proto::cosmos::auth::v1beta1 as cosmos;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::cosmos::crypto::secp256k1::PubKey;
use holdfast_proto::holdfast::auth::v1 as pb;
use holdfast_proto::{Any, Message, decode_strict};
use holdfast_store::MemKv;
use holdfast_testkit::{TestChain, addr};
use holdfast_types::traits::AccountKeeper;
use holdfast_types::{Address, Hrp, Module, QueryKind, check_prefix_table};

use crate::*;

const K: Keeper = Keeper;

fn key(last: u8) -> [u8; 33] {
    let mut key = [7; 33];
    (key[0], key[32]) = (2, last);
    key
}

/// Two key holders and the account of gov.
fn chain() -> TestChain {
    let mut chain = TestChain::new(1);
    chain.ctx(|ctx| {
        K.ensure_account(ctx, &addr(1)).unwrap();
        K.ensure_module_account(ctx.store, "gov").unwrap();
        K.ensure_account(ctx, &addr(2)).unwrap();
        K.set_pub_key(ctx.store, &addr(2), key(9)).unwrap();
        K.increment_sequence(ctx.store, &addr(2)).unwrap();
    });
    chain
}

#[test]
fn numbers_are_given_in_order_and_once() {
    let mut chain = chain();
    let number = |chain: &TestChain, a| K.account(&chain.store, a).unwrap().unwrap().number;
    assert_eq!([number(&chain, &addr(1)), number(&chain, &Address::module("gov")), number(&chain, &addr(2))], [0, 1, 2]);
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
    assert_eq!(chain.refused(|ctx| K.set_pub_key(ctx.store, &addr(9), key(1))), ("sdk", 9));
    assert_eq!(chain.refused(|ctx| K.increment_sequence(ctx.store, &gov)), ("auth", 3));
    assert_eq!(chain.refused(|ctx| K.set_pub_key(ctx.store, &gov, key(1))), ("auth", 3));
}

#[test]
fn a_stored_account_has_these_bytes() {
    let account = Account { number: 3, sequence: 258, pub_key: Some(key(9)), module: Some("gov".into()) };
    let mut golden = vec![3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1];
    golden.extend(key(9));
    golden.extend([1, 3, 0, 0, 0, b'g', b'o', b'v']);
    assert_eq!(borsh::to_vec(&account).unwrap(), golden);
    assert_eq!(borsh::to_vec(&Account::default()).unwrap(), [0; 18]);
    let full_key = [&b"auth/\x01"[..], &[1; 20]].concat();
    assert_eq!(ACCOUNTS.key(&addr(1)), full_key);
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
    let keyed = base(&ask(&addr(2)).unwrap().account.unwrap());
    assert_eq!((keyed.account_number, keyed.sequence, keyed.address), (2, 1, chain.bech32(&addr(2))));
    let any = keyed.pub_key.unwrap();
    assert_eq!(any.type_url, "/cosmos.crypto.secp256k1.PubKey");
    assert_eq!(decode_strict::<PubKey>(&any.value).unwrap().key, key(9));
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
    let ask = |pagination| query_server::accounts(chain.query(), cosmos::QueryAccountsRequest { pagination }).unwrap();
    let all = ask(None);
    assert_eq!((all.accounts.len(), all.pagination.unwrap().total), (3, 3));
    let first = ask(Some(PageRequest { limit: 1, ..Default::default() }));
    assert_eq!(base(&first.accounts[0]).address, chain.bech32(&addr(1)));
    let key = first.pagination.unwrap().next_key;
    assert_eq!(key, [2; 20]);
    let second = ask(Some(PageRequest { key, limit: 1, ..Default::default() }));
    assert_eq!(base(&second.accounts[0]).address, chain.bech32(&addr(2)));
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
    assert_eq!(AuthModule.export_genesis(&MemKv::default(), &Hrp::default()).unwrap(), AuthModule.default_genesis());
}

#[test]
fn each_bad_genesis_field_is_refused_by_its_name() {
    type Change = fn(&mut pb::GenesisState);
    // In order of address: 1, 2, gov (0x7b…).
    let cases: &[(&str, Change)] = &[
        ("accounts[0].address", |g| g.accounts[0].address = "nobody".into()),
        ("accounts[1].address", |g| g.accounts.swap(0, 1)),
        ("accounts[1].address", |g| g.accounts[1] = g.accounts[0].clone()),
        ("accounts[1].account_number", |g| g.accounts[1].account_number = 0),
        ("accounts[1].account_number", |g| g.next_account_number = 2),
        ("accounts[1].pub_key", |g| g.accounts[1].pub_key[0] = 4),
        ("accounts[1].pub_key", |g| g.accounts[1].pub_key.truncate(32)),
        ("accounts[0].module_name", |g| g.accounts[0].module_name = "bank".into()),
        ("accounts[2].module_name", |g| g.accounts[2].sequence = 1),
        ("accounts[2].module_name", |g| g.accounts[2].pub_key = key(1).to_vec()),
    ];
    for (field, change) in cases {
        let mut bad = genesis();
        change(&mut bad);
        let error = AuthModule.validate_genesis(&bad.encode_to_vec(), &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("auth", 2));
        assert!(error.message.starts_with(&format!("genesis {field}: ")), "{field}: {error}");
    }
    let mut trailing = genesis().encode_to_vec();
    trailing.extend([0x78, 1]);
    let error = AuthModule.validate_genesis(&trailing, &Hrp::default()).unwrap_err();
    assert_eq!((error.codespace, error.code), ("sdk", 34));
}

#[test]
fn collections_and_codes_are_where_the_tables_say() {
    assert!(check_prefix_table(&AuthModule));
    let samples = [AuthError::genesis("f", "r"), AuthError::ModuleAccount("gov".into())];
    assert_eq!(samples.map(|e| e.code()).to_vec(), CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}
