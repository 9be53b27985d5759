use std::num::NonZero;

use holdfast_auth::Account;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::tx::v1beta1::{AuthInfo, ModeInfo, TxBody, TxRaw, mode_info};
use holdfast_proto::{Any, Message};
use holdfast_store::{GasMeter, MemKv};
use holdfast_types::traits::AccountKeeper;
use holdfast_types::{Address, BlockContext, Coin, Context, Event, ModuleError, ValidationParams, sdk};

use super::*;
use crate::keys::SecretKey;
use crate::signatures::{SignatureCache, cores};
use crate::tx::{DecodedTx, Signer, TxBuilder, pack};

const GAS: u64 = 100_000;

fn key(label: &str) -> SecretKey {
    SecretKey::from_seed_label(b"ante", label)
}

/// A chain at height 50 with accounts `a` (number 1, sequence 3, key known), `b` (number 2, fresh), a module account
/// with coins, and 10,000 uhold each.
struct Chain {
    store: MemKv,
    block: BlockContext,
    events: Vec<Event>,
    cache: SignatureCache,
    min_gas_price: u128,
    max_block_gas: Option<u64>,
}

impl Chain {
    fn new() -> Self {
        let mut block = BlockContext::new(50, ValidationParams::default());
        block.chain_id = "holdfast-test-1".into();
        let (mut store, mut events) = (MemKv::default(), Vec::new());
        let auth = holdfast_auth::Keeper;
        auth.ensure_module_account(&mut store, FEE_COLLECTOR).unwrap();
        let mut ctx = Context::new(&block, &mut store, &mut events);
        for label in ["a", "b"] {
            auth.ensure_account(&mut ctx, &key(label).address()).unwrap();
            let coin = Coin::new("uhold", 10_000).unwrap();
            holdfast_bank::Keeper.mint(&mut ctx, &key(label).address(), &coin).unwrap();
        }
        let mut chain = Self {
            store,
            block,
            events: Vec::new(),
            cache: SignatureCache::new(NonZero::new(1000).unwrap()),
            min_gas_price: 0,
            max_block_gas: Some(1_000_000),
        };
        chain.change("a", |account| {
            account.sequence = 3;
            account.pub_key = Some(key("a").public_key().to_bytes());
        });
        assert_eq!((chain.account("a").number, chain.account("b").number), (1, 2));
        chain
    }

    fn account(&self, label: &str) -> Account {
        holdfast_auth::Keeper.account(&self.store, &key(label).address()).unwrap().unwrap()
    }

    fn change(&mut self, label: &str, change: impl FnOnce(&mut Account)) {
        let mut account = self.account(label);
        change(&mut account);
        holdfast_auth::Keeper.set_account(&mut self.store, &key(label).address(), &account).unwrap();
    }

    fn balance(&self, address: &Address) -> u128 {
        holdfast_bank::Keeper.balance(&self.store, address, "uhold").unwrap()
    }

    fn run_metered(
        &mut self,
        mode: AnteMode,
        raw: &[u8],
        meter: &GasMeter,
    ) -> Result<AnteOutcome, ModuleError> {
        let env = AnteEnv {
            bank: &holdfast_bank::Keeper,
            fee_denom: "uhold",
            min_gas_price: self.min_gas_price,
            max_block_gas: self.max_block_gas,
            cache: &self.cache,
        };
        let tx = DecodedTx::decode(raw, &self.block.hrp)?;
        ante(&mut Context::new(&self.block, &mut self.store, &mut self.events), mode, &tx, &env, meter)
    }

    fn run(&mut self, mode: AnteMode, raw: &[u8]) -> Result<AnteOutcome, ModuleError> {
        self.run_metered(mode, raw, &GasMeter::new(GAS))
    }

    /// Refused with `code` in check and deliver mode, and nothing changed.
    #[track_caller]
    fn refuses(&mut self, raw: &[u8], code: u32, text: &str) {
        for mode in [AnteMode::Check, AnteMode::Deliver] {
            self.refuses_in(mode, raw, code, text);
        }
    }

    #[track_caller]
    fn refuses_in(&mut self, mode: AnteMode, raw: &[u8], code: u32, text: &str) {
        let before = self.store.clone();
        let error = self.run(mode, raw).unwrap_err();
        assert_eq!((error.codespace, error.code), (sdk::CODESPACE, code), "{mode:?}: {error}");
        assert!(error.message.contains(text), "{error} does not contain {text:?}");
        assert_eq!(self.store, before, "{mode:?} wrote something");
        assert!(self.events.is_empty());
    }
}

fn send_from(address: &Address) -> Any {
    let hrp = holdfast_types::Hrp::default();
    let amount = vec![PbCoin { denom: "uhold".into(), amount: "1".into() }];
    pack(&MsgSend {
        from_address: address.to_bech32(&hrp),
        to_address: key("z").address().to_bech32(&hrp),
        amount,
    })
}

/// A good transaction of `a`.
fn from_a() -> TxBuilder {
    TxBuilder {
        chain_id: "holdfast-test-1".into(),
        account_number: 1,
        sequence: 3,
        fee: Coin::new("uhold", 500).unwrap(),
        gas_limit: GAS,
        memo: String::new(),
        timeout_height: 0,
        msgs: vec![send_from(&key("a").address())],
    }
}

/// A good transaction of `b`, its first.
fn from_b() -> TxBuilder {
    TxBuilder { account_number: 2, sequence: 0, msgs: vec![send_from(&key("b").address())], ..from_a() }
}

fn with(change: impl FnOnce(&mut TxBuilder)) -> Vec<u8> {
    let mut tx = from_a();
    change(&mut tx);
    tx.sign(&key("a"))
}

/// Changes the parts of a signed transaction; `sign` says whether `a` signs the result again.
fn with_parts(sign: bool, change: impl FnOnce(&mut TxBody, &mut AuthInfo, &mut Vec<Vec<u8>>)) -> Vec<u8> {
    let raw = TxRaw::decode(from_a().sign(&key("a")).as_slice()).unwrap();
    let mut body = TxBody::decode(raw.body_bytes.as_slice()).unwrap();
    let mut auth = AuthInfo::decode(raw.auth_info_bytes.as_slice()).unwrap();
    let mut signatures = raw.signatures;
    change(&mut body, &mut auth, &mut signatures);
    let (body_bytes, auth_info_bytes) = (body.encode_to_vec(), auth.encode_to_vec());
    let mut raw = TxRaw { body_bytes, auth_info_bytes, signatures };
    if sign {
        let tx = DecodedTx::decode(&raw.encode_to_vec(), &holdfast_types::Hrp::default()).unwrap();
        raw.signatures = vec![key("a").sign(&tx.sign_bytes("holdfast-test-1", 1)).to_vec()];
    }
    raw.encode_to_vec()
}

#[test]
fn a_good_transaction_pays_and_uses_its_sequence() {
    for mode in [AnteMode::Check, AnteMode::Recheck, AnteMode::Deliver] {
        let mut chain = Chain::new();
        let raw = from_a().sign(&key("a"));
        let meter = GasMeter::new(GAS);
        let outcome = chain.run_metered(mode, &raw, &meter).unwrap();
        let expected = AnteOutcome {
            gas_wanted: GAS,
            price: PRICE_ONE / 200,
            fee: Some(Coin::new("uhold", 500).unwrap()),
            signers: vec![(key("a").address(), 3)],
        };
        assert_eq!(outcome, expected);
        assert_eq!(chain.account("a").sequence, 4);
        assert_eq!(chain.balance(&key("a").address()), 9500);
        assert_eq!(chain.balance(&Address::module(FEE_COLLECTOR)), 500);
        let size = u64::try_from(raw.len()).unwrap();
        assert!(meter.used() > size * 10 + 1000 && meter.used() < GAS, "{}", meter.used());
        // The same bytes again have the wrong sequence.
        chain.events.clear();
        chain.refuses_in(mode, &raw, sdk::WRONG_SEQUENCE, "account sequence mismatch, expected 4, got 3");
    }
}

#[test]
fn the_first_transaction_of_an_account_records_its_key() {
    let mut chain = Chain::new();
    chain.run(AnteMode::Deliver, &from_b().sign(&key("b"))).unwrap();
    let account = chain.account("b");
    assert_eq!((account.sequence, account.pub_key), (1, Some(key("b").public_key().to_bytes())));
    // From then on it can be left out.
    let mut tx = from_b();
    tx.sequence = 1;
    let mut raw = TxRaw::decode(tx.sign(&key("b")).as_slice()).unwrap();
    let mut auth = AuthInfo::decode(raw.auth_info_bytes.as_slice()).unwrap();
    auth.signer_infos[0].public_key = None;
    raw.auth_info_bytes = auth.encode_to_vec();
    let decoded = DecodedTx::decode(&raw.encode_to_vec(), &chain.block.hrp).unwrap();
    raw.signatures = vec![key("b").sign(&decoded.sign_bytes("holdfast-test-1", 2)).to_vec()];
    chain.run(AnteMode::Deliver, &raw.encode_to_vec()).unwrap();
    assert_eq!(chain.account("b").sequence, 2);
}

#[test]
fn events_name_fee_payer_sequences_and_signatures() {
    let mut chain = Chain::new();
    let raw = from_a().sign(&key("a"));
    chain.run(AnteMode::Deliver, &raw).unwrap();
    let address = key("a").address().to_bech32(&chain.block.hrp);
    let of = |name: &str| chain.events.iter().filter(|e| e.kind == "tx").find_map(|e| e.get(name)).unwrap();
    assert_eq!((of("fee"), of("fee_payer")), ("500uhold", address.as_str()));
    assert_eq!(of("acc_seq"), format!("{address}/3"));
    let signature = BASE64.decode(of("signature")).unwrap();
    assert_eq!(signature, TxRaw::decode(raw.as_slice()).unwrap().signatures[0]);
}

#[test]
fn several_signers_each_use_their_sequence_and_the_first_pays() {
    let mut chain = Chain::new();
    let (a, b) = (key("a"), key("b"));
    let tx = |first: &SecretKey, second: &SecretKey| {
        let msgs = [first, second, first].map(|key| send_from(&key.address())).to_vec();
        TxBuilder { msgs, ..from_a() }
    };
    let (as_a, as_b) = (
        Signer { key: &a, account_number: 1, sequence: 3 },
        Signer { key: &b, account_number: 2, sequence: 0 },
    );
    // Signatures in the wrong order fit neither key.
    let swapped = tx(&b, &a).sign_all(&[as_a, as_b]);
    chain.refuses(&swapped, sdk::INVALID_PUBKEY, "pubKey does not match signer address");
    let outcome = chain.run(AnteMode::Deliver, &tx(&b, &a).sign_all(&[as_b, as_a])).unwrap();
    assert_eq!(outcome.signers, [(b.address(), 0), (a.address(), 3)]);
    assert_eq!((chain.account("a").sequence, chain.account("b").sequence), (4, 1));
    assert_eq!((chain.balance(&a.address()), chain.balance(&b.address())), (10_000, 9_500));
}

#[test]
fn a_transaction_without_messages_is_refused() {
    // Without messages there are no signers either; the number of signatures does not matter.
    Chain::new().refuses(&with(|tx| tx.msgs.clear()), sdk::INVALID_REQUEST, "at least one message");
}

#[test]
fn gas_limits_beyond_the_block_or_63_bits_are_refused() {
    let mut chain = Chain::new();
    chain.refuses(
        &with(|tx| tx.gas_limit = 1_000_001),
        sdk::INVALID_GAS_LIMIT,
        "exceeds block max gas 1000000",
    );
    assert!(chain.run(AnteMode::Deliver, &with(|tx| tx.gas_limit = 1_000_000)).is_ok());
    let mut chain = Chain::new();
    chain.max_block_gas = None;
    chain.refuses(&with(|tx| tx.gas_limit = 1 << 63), sdk::INVALID_REQUEST, "fee.gas_limit");
    assert!(chain.run(AnteMode::Deliver, &with(|tx| tx.gas_limit = (1 << 63) - 1)).is_ok());
}

#[test]
fn the_number_of_signatures_must_be_that_of_signers() {
    let mut chain = Chain::new();
    let none = with_parts(false, |_, _, signatures| signatures.clear());
    chain.refuses(&none, sdk::NO_SIGNATURES, "no signatures supplied");
    let two = with_parts(false, |_, _, signatures| signatures.push(signatures[0].clone()));
    chain.refuses(&two, sdk::UNAUTHORIZED, "wrong number of signers; expected 1, got 2");
    let two_infos = with_parts(true, |_, auth, _| auth.signer_infos.push(auth.signer_infos[0].clone()));
    chain.refuses(&two_infos, sdk::UNAUTHORIZED, "wrong number of signers; expected 1, got 2");
    let no_info = with_parts(true, |_, auth, _| auth.signer_infos.clear());
    chain.refuses(&no_info, sdk::UNAUTHORIZED, "wrong number of signers; expected 1, got 0");
    let second_signer_missing = with(|tx| tx.msgs.push(send_from(&key("b").address())));
    chain.refuses(&second_signer_missing, sdk::UNAUTHORIZED, "wrong number of signers; expected 2, got 1");
}

#[test]
fn sign_modes_other_than_direct_are_refused_by_name() {
    let mut chain = Chain::new();
    for (mode, name) in [
        (0, "SIGN_MODE_UNSPECIFIED"),
        (2, "SIGN_MODE_TEXTUAL"),
        (127, "SIGN_MODE_LEGACY_AMINO_JSON"),
        (99, "an unknown mode"),
    ] {
        let raw = with_parts(true, |_, auth, _| {
            let single = mode_info::Single { mode };
            auth.signer_infos[0].mode_info = Some(ModeInfo { sum: Some(mode_info::Sum::Single(single)) });
        });
        chain.refuses(&raw, sdk::NOT_SUPPORTED, &format!("{name} is not supported; use SIGN_MODE_DIRECT"));
    }
    let raw = with_parts(true, |_, auth, _| auth.signer_infos[0].mode_info = None);
    chain.refuses(&raw, sdk::NOT_SUPPORTED, "no mode is not supported");
}

#[test]
fn a_timeout_height_is_the_last_one_that_counts() {
    let mut chain = Chain::new();
    chain.refuses(&with(|tx| tx.timeout_height = 49), sdk::TX_TIMEOUT_HEIGHT, "block height is 50");
    assert!(chain.run(AnteMode::Deliver, &with(|tx| tx.timeout_height = 50)).is_ok());
}

#[test]
fn each_parameter_of_auth_changes_what_passes() {
    let set = |chain: &mut Chain, change: fn(&mut holdfast_auth::Params)| {
        let mut params = holdfast_auth::Params::default();
        change(&mut params);
        holdfast_auth::PARAMS.set(&mut chain.store, &params).unwrap();
    };
    let used = |chain: &mut Chain| {
        let meter = GasMeter::new(GAS);
        chain.run_metered(AnteMode::Simulate, &with(|_| {}), &meter).unwrap();
        meter.used()
    };
    let size = with(|_| {}).len() as u64;
    let base = used(&mut Chain::new());

    let mut chain = Chain::new();
    set(&mut chain, |params| params.tx_size_cost_per_byte = 11);
    assert_eq!(used(&mut chain), base + size);
    let mut chain = Chain::new();
    set(&mut chain, |params| params.sig_verify_cost_secp256k1 = 1001);
    assert_eq!(used(&mut chain), base + 1);

    let mut chain = Chain::new();
    set(&mut chain, |params| params.max_memo_characters = 3);
    chain.refuses(&with(|tx| tx.memo = "four".into()), sdk::MEMO_TOO_LARGE, "3 but received 4");
    assert!(chain.run(AnteMode::Deliver, &with(|tx| tx.memo = "tri".into())).is_ok());

    let both =
        TxBuilder { msgs: vec![send_from(&key("a").address()), send_from(&key("b").address())], ..from_a() };
    let (a, b) = (key("a"), key("b"));
    let signers = [
        Signer { key: &a, account_number: 1, sequence: 3 },
        Signer { key: &b, account_number: 2, sequence: 0 },
    ];
    let raw = both.sign_all(&signers);
    let mut chain = Chain::new();
    set(&mut chain, |params| params.tx_sig_limit = 1);
    chain.refuses(&raw, sdk::TOO_MANY_SIGNATURES, "2, limit: 1");
    assert!(Chain::new().run(AnteMode::Deliver, &raw).is_ok());
}

#[test]
fn a_memo_is_limited_in_bytes() {
    let mut chain = Chain::new();
    chain.refuses(&with(|tx| tx.memo = "m".repeat(257)), sdk::MEMO_TOO_LARGE, "256 but received 257");
    chain.refuses(&with(|tx| tx.memo = "é".repeat(129)), sdk::MEMO_TOO_LARGE, "256 but received 258");
    assert!(chain.run(AnteMode::Deliver, &with(|tx| tx.memo = "é".repeat(128))).is_ok());
}

#[test]
fn gas_that_runs_out_at_any_point_changes_nothing() {
    let raw = from_b().sign(&key("b"));
    let needed = {
        let meter = GasMeter::new(GAS);
        Chain::new().run_metered(AnteMode::Deliver, &raw, &meter).unwrap();
        meter.used()
    };
    let mut chain = Chain::new();
    let before = chain.store.clone();
    for limit in (0..needed).step_by(97).chain([needed - 1]) {
        let error = chain.run_metered(AnteMode::Deliver, &raw, &GasMeter::new(limit)).unwrap_err();
        assert_eq!((error.codespace, error.code), (sdk::CODESPACE, sdk::OUT_OF_GAS), "{limit}: {error}");
        assert!(chain.store == before && chain.events.is_empty(), "{limit}");
    }
    chain.run_metered(AnteMode::Deliver, &raw, &GasMeter::new(needed)).unwrap();
}

#[test]
fn the_fee_must_be_there_in_the_one_denomination() {
    let mut chain = Chain::new();
    let fee = |denom, amount| with(|tx| tx.fee = Coin::new(denom, amount).unwrap());
    chain.refuses(&fee("uatom", 500), sdk::INVALID_COINS, "fees are paid in uhold, not in uatom");
    let both = with_parts(true, |_, auth, _| {
        let coin = PbCoin { denom: "aatom".into(), amount: "1".into() };
        auth.fee.as_mut().unwrap().amount.insert(0, coin);
    });
    chain.refuses(&both, sdk::INVALID_COINS, "not in aatom");
    chain.refuses(&fee("uhold", 10_001), sdk::INSUFFICIENT_FUNDS, "insufficient funds");
    chain.refuses(&fee("uhold", u128::MAX), sdk::INSUFFICIENT_FUNDS, "insufficient funds");
    chain.run(AnteMode::Deliver, &fee("uhold", 10_000)).unwrap();
    assert_eq!(chain.balance(&key("a").address()), 0);
    // No fee is a fee, where the node asks for none.
    let outcome = chain.run(AnteMode::Check, &with(|tx| (tx.sequence, tx.fee.amount) = (4, 0))).unwrap();
    assert_eq!((outcome.price, outcome.fee), (0, None));
}

#[test]
fn the_minimum_price_is_a_rule_of_the_node_not_of_the_block() {
    let mut chain = Chain::new();
    chain.min_gas_price = PRICE_ONE / 40; // 0.025: 2,500 for 100,000 gas
    let fee = |amount| with(|tx| tx.fee.amount = amount);
    for mode in [AnteMode::Check, AnteMode::Recheck] {
        let text = "insufficient fees; got: 2499uhold required: 2500uhold";
        chain.refuses_in(mode, &fee(2499), sdk::INSUFFICIENT_FEE, text);
        chain.refuses_in(mode, &fee(0), sdk::INSUFFICIENT_FEE, "got: 0uhold");
    }
    assert!(chain.run(AnteMode::Deliver, &fee(2499)).is_ok());
    let mut chain = Chain::new();
    chain.min_gas_price = PRICE_ONE / 40;
    assert!(chain.run(AnteMode::Check, &fee(2500)).is_ok());
}

#[test]
fn prices_and_required_fees_are_exact_and_saturate() {
    let coin = |amount| Coin::new("uhold", amount).unwrap();
    assert_eq!(gas_price(None, 5), 0);
    assert_eq!(gas_price(Some(&coin(1)), 3), 333_333_333_333);
    assert_eq!(gas_price(Some(&coin(7)), 0), 7 * PRICE_ONE);
    assert_eq!(gas_price(Some(&coin(u128::MAX)), 1), u128::MAX);
    // 2^128 - 1 = 18446744073709551617 · (2^64 - 1)
    assert_eq!(gas_price(Some(&coin(u128::MAX)), u64::MAX), 18_446_744_073_709_551_617 * PRICE_ONE);
    assert_eq!(required_fee(1, 1), 1);
    assert_eq!(required_fee(PRICE_ONE / 40, 100_001), 2501);
    assert_eq!(required_fee(0, u64::MAX), 0);
    assert_eq!(required_fee(u128::MAX, u64::MAX), u128::MAX.div_ceil(PRICE_ONE));
}

#[test]
fn an_unknown_account_is_refused() {
    let raw = TxBuilder { msgs: vec![send_from(&key("nobody").address())], ..from_a() }.sign(&key("nobody"));
    Chain::new().refuses(&raw, sdk::UNKNOWN_ADDRESS, "does not exist");
    // As second signer too.
    let (a, nobody) = (key("a"), key("nobody"));
    let tx = TxBuilder { msgs: vec![send_from(&a.address()), send_from(&nobody.address())], ..from_a() };
    let raw = tx.sign_all(&[
        Signer { key: &a, account_number: 1, sequence: 3 },
        Signer { key: &nobody, account_number: 0, sequence: 0 },
    ]);
    Chain::new().refuses(&raw, sdk::UNKNOWN_ADDRESS, "does not exist");
}

#[test]
fn nobody_signs_for_a_module_account() {
    let mut chain = Chain::new();
    let gov = holdfast_auth::Keeper.ensure_module_account(&mut chain.store, "gov").unwrap();
    let raw = TxBuilder { msgs: vec![send_from(&gov)], ..from_a() }.sign(&key("a"));
    chain.refuses(&raw, sdk::UNAUTHORIZED, "is a module account");
    // Not even one whose address happens to be that of a key.
    chain.change("a", |account| account.module = Some("mint".into()));
    chain.refuses(&from_a().sign(&key("a")), sdk::UNAUTHORIZED, "is a module account");
}

#[test]
fn a_key_that_is_not_the_signers_is_refused() {
    let mut chain = Chain::new();
    chain.refuses(&from_a().sign(&key("b")), sdk::INVALID_PUBKEY, "signer index: 0");
    let unsigned_by_key = |raw: Vec<u8>| {
        let mut raw = TxRaw::decode(raw.as_slice()).unwrap();
        let mut auth = AuthInfo::decode(raw.auth_info_bytes.as_slice()).unwrap();
        auth.signer_infos[0].public_key = None;
        raw.auth_info_bytes = auth.encode_to_vec();
        raw.encode_to_vec()
    };
    chain.refuses(
        &unsigned_by_key(from_b().sign(&key("b"))),
        sdk::INVALID_PUBKEY,
        "pubkey on account is not set",
    );
}

#[test]
fn a_wrong_sequence_says_which_one_is_right() {
    let mut chain = Chain::new();
    for sequence in [2, 4, 0, u64::MAX] {
        let text = format!("account sequence mismatch, expected 3, got {sequence}");
        chain.refuses(&with(|tx| tx.sequence = sequence), sdk::WRONG_SEQUENCE, &text);
        chain.refuses_in(AnteMode::Recheck, &with(|tx| tx.sequence = sequence), sdk::WRONG_SEQUENCE, &text);
    }
    chain.change("a", |account| account.sequence = u64::MAX);
    chain.refuses(&with(|tx| tx.sequence = u64::MAX), sdk::LOGIC, "used up all numbers");
}

#[test]
fn a_signature_for_other_bytes_is_refused_with_the_three_usual_causes() {
    let mut chain = Chain::new();
    let text = "please verify account number (1), sequence (3) and chain-id (holdfast-test-1)";
    chain.refuses(&with(|tx| tx.chain_id = "holdfast-main-1".into()), sdk::UNAUTHORIZED, text);
    chain.refuses(&with(|tx| tx.chain_id.clear()), sdk::UNAUTHORIZED, text);
    chain.refuses(&with(|tx| tx.account_number = 2), sdk::UNAUTHORIZED, text);
    let tampered = with_parts(false, |body, _, _| body.memo = "more".into());
    chain.refuses(&tampered, sdk::UNAUTHORIZED, text);
    let cheaper = with_parts(false, |_, auth, _| auth.fee.as_mut().unwrap().gas_limit -= 1);
    chain.refuses(&cheaper, sdk::UNAUTHORIZED, text);
}

#[test]
fn malformed_signatures_are_refused() {
    let mut chain = Chain::new();
    let with_signature =
        |change: &dyn Fn(&mut Vec<u8>)| with_parts(false, |_, _, signatures| change(&mut signatures[0]));
    let high_s = with_signature(&|signature| {
        let low = <[u8; 64]>::try_from(signature.as_slice()).unwrap();
        *signature = crate::signatures::tests::high_s_twin(&low).to_vec();
    });
    chain.refuses(&high_s, sdk::UNAUTHORIZED, "upper half of the order");
    chain.refuses(&with_signature(&Vec::clear), sdk::UNAUTHORIZED, "64 bytes (r and s), this one 0");
    chain.refuses(&with_signature(&|s| s.truncate(63)), sdk::UNAUTHORIZED, "this one 63");
    chain.refuses(&with_signature(&|s| s.push(1)), sdk::UNAUTHORIZED, "this one 65");
    chain.refuses(&with_signature(&|s| s[..32].fill(0xff)), sdk::UNAUTHORIZED, "below the order");
    chain.refuses(&with_signature(&|s| s[7] ^= 1), sdk::UNAUTHORIZED, "does not fit");
}

#[test]
fn no_flipped_bit_gets_through() {
    let mut chain = Chain::new();
    let good = TxBuilder { memo: "m".into(), timeout_height: 60, ..from_a() }.sign(&key("a"));
    let before = chain.store.clone();
    let mut codes = std::collections::BTreeMap::new();
    for i in 0..good.len() * 8 {
        let mut raw = good.clone();
        raw[i / 8] ^= 1 << (i % 8);
        let error = chain.run(AnteMode::Deliver, &raw).unwrap_err();
        *codes.entry(error.code).or_insert(0) += 1;
        assert_eq!(error.codespace, sdk::CODESPACE);
        assert!(chain.store == before && chain.events.is_empty(), "bit {i}: {error}");
    }
    // Structure, signature, address and key are all reached.
    for code in [sdk::TX_DECODE, sdk::UNAUTHORIZED, sdk::INVALID_ADDRESS, sdk::INVALID_PUBKEY] {
        assert!(codes.contains_key(&code), "{codes:?}");
    }
    chain.run(AnteMode::Deliver, &good).unwrap();
}

#[test]
fn a_signature_is_verified_once_from_arrival_to_block() {
    let mut chain = Chain::new();
    let raw = from_b().sign(&key("b"));
    let committed = chain.store.clone();
    chain.run(AnteMode::Check, &raw).unwrap();
    assert_eq!((chain.cache.verified(), chain.cache.hits()), (1, 0));
    for _ in ["proposal", "block"] {
        chain.store = committed.clone();
        chain.run(AnteMode::Deliver, &raw).unwrap();
    }
    chain.store = committed;
    chain.run(AnteMode::Recheck, &raw).unwrap();
    assert_eq!((chain.cache.verified(), chain.cache.hits()), (1, 2));
}

#[test]
fn signatures_checked_ahead_are_the_ones_the_steps_ask_for() {
    let mut chain = Chain::new();
    let (a, b) = (key("a"), key("b"));
    let tx = TxBuilder { msgs: vec![send_from(&b.address()), send_from(&a.address())], ..from_a() };
    let raw = tx.sign_all(&[
        Signer { key: &b, account_number: 2, sequence: 0 },
        Signer { key: &a, account_number: 1, sequence: 3 },
    ]);
    let decoded = DecodedTx::decode(&raw, &chain.block.hrp).unwrap();
    let checks = signature_checks(&chain.store, "holdfast-test-1", &decoded);
    assert_eq!(checks.len(), 2);
    chain.cache.warm(checks, cores());
    chain.run(AnteMode::Deliver, &raw).unwrap();
    assert_eq!((chain.cache.verified(), chain.cache.hits()), (2, 2));
    // What the steps will refuse anyway gives nothing to check.
    for raw in [
        with_parts(false, |_, _, signatures| signatures.clear()),
        TxBuilder { msgs: vec![send_from(&key("nobody").address())], ..from_a() }.sign(&key("nobody")),
        from_a().sign(&b),
    ] {
        let decoded = DecodedTx::decode(&raw, &chain.block.hrp).unwrap();
        assert!(signature_checks(&chain.store, "holdfast-test-1", &decoded).is_empty());
    }
}

#[test]
fn a_cached_signature_does_not_carry_over_to_another_chain_or_account_number() {
    let mut chain = Chain::new();
    let raw = from_a().sign(&key("a"));
    let committed = chain.store.clone();
    chain.run(AnteMode::Check, &raw).unwrap();
    (chain.store, chain.events) = (committed, Vec::new());
    chain.change("a", |account| account.number = 9);
    chain.refuses(&raw, sdk::UNAUTHORIZED, "account number (9)");
    chain.change("a", |account| account.number = 1);
    chain.block.chain_id = "fork-1".into();
    chain.refuses(&raw, sdk::UNAUTHORIZED, "chain-id (fork-1)");
}

#[test]
fn a_simulation_needs_no_signature_and_estimates_what_the_transaction_will_use() {
    for (label, tx) in [("a", from_a()), ("b", from_b())] {
        let real = {
            let meter = GasMeter::new(GAS);
            Chain::new().run_metered(AnteMode::Deliver, &tx.sign(&key(label)), &meter).unwrap();
            meter.used()
        };
        for public_key in [Some(key(label).public_key()), None] {
            let meter = GasMeter::new(u64::MAX);
            let raw = tx.unsigned(public_key.as_ref());
            let outcome = Chain::new().run_metered(AnteMode::Simulate, &raw, &meter).unwrap();
            assert_eq!(outcome.signers, [(key(label).address(), tx.sequence)]);
            // A few bytes of length prefixes may differ, and where `a`'s known key is left out, the 72 bytes of it.
            let left_out = if label == "a" && public_key.is_none() { 720 } else { 0 };
            assert!(meter.used().abs_diff(real - left_out) <= 30, "{label}: {} for {real}", meter.used());
        }
    }
}

#[test]
fn a_simulation_takes_what_clients_send_for_one_and_still_checks_the_sequence() {
    let simulate = |raw: &[u8]| Chain::new().run_metered(AnteMode::Simulate, raw, &GasMeter::new(u64::MAX));
    // CosmJS sends an unspecified mode and an empty fee.
    let cosmjs = with_parts(false, |_, auth, signatures| {
        let single = mode_info::Single { mode: 0 };
        auth.signer_infos[0].mode_info = Some(ModeInfo { sum: Some(mode_info::Sum::Single(single)) });
        auth.fee = Some(holdfast_proto::cosmos::tx::v1beta1::Fee::default());
        signatures[0].clear();
    });
    assert!(simulate(&cosmjs).is_ok());
    let bare = with_parts(false, |_, auth, signatures| {
        auth.signer_infos.clear();
        signatures.clear();
    });
    assert!(simulate(&bare).is_ok());
    assert_eq!(simulate(&with(|tx| tx.sequence = 2)).unwrap_err().code, sdk::WRONG_SEQUENCE);
    assert_eq!(simulate(&with(|tx| tx.msgs.clear())).unwrap_err().code, sdk::INVALID_REQUEST);
    assert_eq!(simulate(&with(|tx| tx.fee.amount = 10_001)).unwrap_err().code, sdk::INSUFFICIENT_FUNDS);
    let two = with_parts(false, |_, _, signatures| signatures.push(Vec::new()));
    assert_eq!(simulate(&two).unwrap_err().code, sdk::UNAUTHORIZED);
}
