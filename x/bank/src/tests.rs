use std::collections::BTreeMap;

use holdfast_proto::Message;
use holdfast_proto::cosmos::bank::v1beta1 as cosmos;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::bank::v1 as pb;
use holdfast_store::{KvWrite, MemKv};
use holdfast_testkit::{MemAccounts, Rng, TestChain, addr};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, Coin, Hrp, Module, ModuleError, QueryKind, check_prefix_table};

use crate::*;

fn coin(denom: &str, amount: u128) -> Coin {
    Coin::new(denom, amount).unwrap()
}

/// Account 1 has 100 uhold and 7 uabc, account 2 has 5 uhold.
fn chain() -> TestChain {
    let mut chain = TestChain::new(3);
    chain.ctx(|ctx| {
        for (n, denom, amount) in [(1, "uhold", 100), (1, "uabc", 7), (2, "uhold", 5)] {
            Keeper.mint(ctx, &addr(n), &coin(denom, amount)).unwrap();
        }
    });
    chain.take_events();
    chain
}

fn has(chain: &TestChain, n: u8, denom: &str) -> u128 {
    Keeper.balance(&chain.store, &addr(n), denom).unwrap()
}

fn msg(chain: &TestChain, from: u8, to: u8, amount: &[(&str, &str)]) -> cosmos::MsgSend {
    let coin = |(denom, amount): &(&str, &str)| PbCoin { denom: (*denom).into(), amount: (*amount).into() };
    cosmos::MsgSend {
        from_address: chain.bech32(&addr(from)),
        to_address: chain.bech32(&addr(to)),
        amount: amount.iter().map(coin).collect(),
    }
}

fn send(chain: &mut TestChain, msg: cosmos::MsgSend) -> Result<cosmos::MsgSendResponse, ModuleError> {
    chain.message(|ctx| msg_server::send(ctx, &MemAccounts, &[Address::module("gov")], msg))
}

#[test]
fn a_send_moves_each_coin_makes_the_account_and_tells_it_like_the_sdk() {
    let mut chain = chain();
    let message = msg(&chain, 1, 9, &[("uabc", "7"), ("uhold", "30")]);
    send(&mut chain, message).unwrap();
    assert_eq!(
        [has(&chain, 1, "uhold"), has(&chain, 1, "uabc"), has(&chain, 9, "uhold"), has(&chain, 9, "uabc")],
        [70, 0, 30, 7]
    );
    assert!(MemAccounts.has(&chain.store, &addr(9)));
    assert!(!BALANCES.has(&chain.store, &(addr(1), "uabc".into())).unwrap(), "a zero row stays");
    let (a, b) = (chain.bech32(&addr(1)), chain.bech32(&addr(9)));
    let told: Vec<_> = chain.take_events().into_iter().map(|e| (e.kind, e.attributes)).collect();
    let pairs =
        |rows: &[(&str, &str)]| rows.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<Vec<_>>();
    assert_eq!(
        told,
        [
            ("coin_spent".to_string(), pairs(&[("spender", &a), ("amount", "7uabc,30uhold")])),
            ("coin_received".to_string(), pairs(&[("receiver", &b), ("amount", "7uabc,30uhold")])),
            (
                "transfer".to_string(),
                pairs(&[("recipient", &b), ("sender", &a), ("amount", "7uabc,30uhold")])
            ),
        ]
    );
    invariants::check(&chain.store).unwrap();
}

#[test]
fn a_send_to_oneself_needs_the_funds_and_changes_nothing() {
    let mut chain = chain();
    let before = chain.store.clone();
    let message = msg(&chain, 1, 1, &[("uhold", "100")]);
    chain.ctx(|ctx| MemAccounts.set_module(ctx, &addr(1)));
    let with_account = chain.store.clone();
    send(&mut chain, message).unwrap();
    assert!(chain.store == with_account && before != with_account);
    let message = msg(&chain, 1, 1, &[("uhold", "101")]);
    assert_eq!(send(&mut chain, message).unwrap_err().code, 5);
}

#[test]
fn each_bad_send_is_refused_by_its_code_and_changes_nothing() {
    let mut chain = chain();
    let good = msg(&chain, 1, 2, &[("uhold", "1")]);
    let coins = |rows: &[(&str, &str)]| msg(&chain, 1, 2, rows);
    let max = u128::MAX.to_string();
    let cases = [
        (7, "from_address", cosmos::MsgSend { from_address: "hold1xyz".into(), ..good.clone() }),
        (7, "from_address", cosmos::MsgSend { from_address: String::new(), ..good.clone() }),
        (7, "to_address", cosmos::MsgSend { to_address: good.to_address.to_uppercase(), ..good.clone() }),
        (
            4,
            "to_address",
            cosmos::MsgSend { to_address: chain.bech32(&Address::module("gov")), ..good.clone() },
        ),
        (10, "amount", coins(&[])),
        (10, "amount[0]", coins(&[("u", "1")])),
        (10, "amount[0]", coins(&[("uhold", "01")])),
        (10, "amount[0]", coins(&[("uhold", "-1")])),
        (10, "amount[0]", coins(&[("uhold", "340282366920938463463374607431768211456")])),
        (10, "amount[0].amount", coins(&[("uhold", "0")])),
        (10, "amount[1].denom", coins(&[("uhold", "1"), ("uabc", "1")])),
        (10, "amount[1].denom", coins(&[("uhold", "1"), ("uhold", "1")])),
        (5, "spendable balance 100uhold", coins(&[("uhold", "101")])),
        (5, "spendable balance 100uhold", coins(&[("uabc", "7"), ("uhold", "101")])),
        (5, "spendable balance 0unone", coins(&[("unone", &max)])),
    ];
    for (code, text, message) in cases {
        let error = send(&mut chain.clone(), message.clone()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", code), "{error}");
        assert!(error.message.starts_with(text), "{error}");
        let refused =
            chain.refused(|ctx| msg_server::send(ctx, &MemAccounts, &[Address::module("gov")], message));
        assert_eq!(refused, ("sdk", code));
    }
}

#[test]
fn mint_and_burn_move_the_supply_along() {
    let mut chain = chain();
    assert_eq!(Keeper.supply(&chain.store, "uhold").unwrap(), 105);
    chain.ctx(|ctx| Keeper.burn(ctx, &addr(1), &coin("uhold", 40))).unwrap();
    assert_eq!((Keeper.supply(&chain.store, "uhold").unwrap(), has(&chain, 1, "uhold")), (65, 60));
    assert_eq!(chain.refused(|ctx| Keeper.burn(ctx, &addr(1), &coin("uhold", 61))), ("sdk", 5));
    assert_eq!(chain.refused(|ctx| Keeper.mint(ctx, &addr(1), &coin("uhold", u128::MAX))), ("bank", 3));
    chain.ctx(|ctx| Keeper.burn(ctx, &addr(1), &coin("uabc", 7))).unwrap();
    assert!(!SUPPLY.has(&chain.store, &"uabc".into()).unwrap(), "a zero row stays");
    let before = chain.store.clone();
    chain.ctx(|ctx| {
        Keeper.mint(ctx, &addr(4), &coin("uhold", 0)).unwrap();
        Keeper.burn(ctx, &addr(4), &coin("uhold", 0)).unwrap();
        Keeper.send(ctx, &addr(4), &addr(5), &coin("uhold", 0)).unwrap();
    });
    assert!(chain.store == before, "an amount of 0 does nothing");
    invariants::check(&chain.store).unwrap();
}

#[test]
fn a_neighbour_burns_as_the_keeper_does() {
    let mut chain = chain();
    let bank: &dyn BankKeeper = &Keeper;
    chain.message(|ctx| bank.burn(ctx, &addr(1), &coin("uhold", 40))).unwrap();
    assert_eq!((Keeper.supply(&chain.store, "uhold").unwrap(), has(&chain, 1, "uhold")), (65, 60));
    assert_eq!(chain.refused(|ctx| bank.burn(ctx, &addr(1), &coin("uhold", 61))), ("sdk", 5));
    invariants::check(&chain.store).unwrap();
}

#[test]
fn random_sends_conserve_every_denomination() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut chain = TestChain::new(1);
        let denoms = ["uabc", "uhold", "uxyz"];
        let mut model: BTreeMap<(u8, &str), u128> = BTreeMap::new();
        for n in 0..4 {
            for denom in denoms {
                // One denomination fills the whole range, so that sums near 2^128 are met.
                let amount = if denom == "uxyz" { u128::MAX / 4 } else { u128::from(rng.below(50)) };
                chain.ctx(|ctx| Keeper.mint(ctx, &addr(n), &coin(denom, amount))).unwrap();
                model.insert((n, denom), amount);
            }
        }
        let supply: Vec<_> = denoms.map(|d| Keeper.supply(&chain.store, d).unwrap()).into();
        for _ in 0..200 {
            let (from, to, denom) = (rng.below(4) as u8, rng.below(5) as u8, *rng.pick(&denoms));
            let had = model.get(&(from, denom)).copied().unwrap_or(0);
            let amount = match rng.below(4) {
                0 => had,
                1 => had.saturating_add(1),
                _ => u128::from(rng.below(60)),
            };
            let result = chain.message(|ctx| Keeper.send(ctx, &addr(from), &addr(to), &coin(denom, amount)));
            assert_eq!(result.is_ok(), amount <= had, "seed {seed}");
            if result.is_ok() {
                *model.entry((from, denom)).or_default() -= amount;
                *model.entry((to, denom)).or_default() += amount;
            }
        }
        for ((n, denom), amount) in model {
            assert_eq!(has(&chain, n, denom), amount, "seed {seed}");
        }
        invariants::check(&chain.store).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(denoms.map(|d| Keeper.supply(&chain.store, d).unwrap()).to_vec(), supply, "seed {seed}");
    }
}

#[test]
fn after_random_operations_only_mint_and_burn_have_moved_the_supply_and_genesis_brings_back_the_state() {
    let denoms = ["uabc", "uhold", "uxyz"];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut chain = TestChain::new(1);
        let mut supply: BTreeMap<&str, u128> = BTreeMap::new();
        for _ in 0..150 {
            let (n, denom, amount) = (rng.below(5) as u8, *rng.pick(&denoms), u128::from(rng.below(40)));
            match rng.below(6) {
                0 => {
                    chain.message(|ctx| Keeper.mint(ctx, &addr(n), &coin(denom, amount))).unwrap();
                    *supply.entry(denom).or_default() += amount;
                }
                1 => {
                    let enough = has(&chain, n, denom) >= amount;
                    let result = chain.message(|ctx| Keeper.burn(ctx, &addr(n), &coin(denom, amount)));
                    assert_eq!(result.is_ok(), enough, "seed {seed}");
                    if enough {
                        *supply.entry(denom).or_default() -= amount;
                    }
                }
                2 => {
                    let full = chain.refused(|ctx| {
                        Keeper.mint(ctx, &addr(n), &coin(denom, u128::MAX)).and_then(|()| {
                            // Into an empty supply it fits once.
                            Keeper.mint(ctx, &addr(n), &coin(denom, 1))
                        })
                    });
                    assert_eq!(full, ("bank", 3), "seed {seed}");
                }
                _ => {
                    // Two coins: when the second is short, the first has not moved either.
                    let (first, second) = (rng.below(30).max(1), rng.below(30).max(1));
                    let amount = [("uabc", first.to_string()), ("uxyz", second.to_string())];
                    let amount = [(amount[0].0, amount[0].1.as_str()), (amount[1].0, amount[1].1.as_str())];
                    let message = msg(&chain, n, rng.below(5) as u8, &amount);
                    let enough = has(&chain, n, "uabc") >= u128::from(first)
                        && has(&chain, n, "uxyz") >= u128::from(second);
                    let before = chain.store.clone();
                    assert_eq!(send(&mut chain, message).is_ok(), enough, "seed {seed}");
                    assert!(enough || chain.store == before, "seed {seed}: a refused send changed state");
                }
            }
            for denom in denoms {
                let expected = supply.get(denom).copied().unwrap_or(0);
                assert_eq!(Keeper.supply(&chain.store, denom).unwrap(), expected, "seed {seed}");
            }
            invariants::check(&chain.store).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        let hrp = Hrp::default();
        let bytes = BankModule.export_genesis(&chain.store, &hrp).unwrap();
        BankModule.validate_genesis(&bytes, &hrp).unwrap();
        let mut copy = TestChain::new(1);
        copy.ctx(|ctx| BankModule.init_genesis(ctx, &bytes)).unwrap();
        assert_eq!(BankModule.export_genesis(&copy.store, &hrp).unwrap(), bytes, "seed {seed}");
        invariants::check(&copy.store).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn mint_and_burn_tell_what_the_sdk_tells() {
    let mut chain = chain();
    chain.ctx(|ctx| {
        Keeper.mint(ctx, &addr(3), &coin("uhold", 4)).unwrap();
        Keeper.burn(ctx, &addr(3), &coin("uhold", 3)).unwrap();
    });
    let who = chain.bech32(&addr(3));
    let told: Vec<_> = chain
        .take_events()
        .into_iter()
        .map(|e| {
            let attributes: Vec<_> = e.attributes.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("{} {}", e.kind, attributes.join(" "))
        })
        .collect();
    assert_eq!(
        told,
        [
            format!("coinbase minter={who} amount=4uhold"),
            format!("coin_received receiver={who} amount=4uhold"),
            format!("coin_spent spender={who} amount=3uhold"),
            format!("burn burner={who} amount=3uhold"),
        ]
    );
}

#[test]
fn the_invariant_notices_a_lost_coin_a_made_one_and_a_zero_row() {
    let good = chain();
    invariants::check(&good.store).unwrap();
    for amount in [99, 101, 0] {
        let mut bad = good.clone();
        BALANCES.set(&mut bad.store, &(addr(1), "uhold".into()), &amount).unwrap();
        let error = invariants::check(&bad.store).unwrap_err();
        assert!(error.starts_with("bank: ") && error.contains("uhold"), "{error}");
    }
    let mut bad = good.clone();
    BALANCES.set(&mut bad.store, &(addr(1), "ufree".into()), &1).unwrap();
    assert!(invariants::check(&bad.store).is_err());
    let mut bad = good;
    SUPPLY.set(&mut bad.store, &"ufree".into(), &1).unwrap();
    assert!(invariants::check(&bad.store).is_err());
}

#[test]
fn stored_rows_have_these_bytes() {
    let key = [&b"bank/\x01"[..], &[1; 20], b"uhold\x00\x01"].concat();
    assert_eq!(BALANCES.key(&(addr(1), "uhold".into())), key);
    assert_eq!(SUPPLY.key(&"uhold".into()), b"bank/\x02uhold\x00\x01");
    let mut chain = TestChain::new(1);
    chain.ctx(|ctx| Keeper.mint(ctx, &addr(1), &coin("uhold", 258))).unwrap();
    let value = [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let rows: Vec<_> = chain.store.pairs().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    assert_eq!(rows, [(key, value.to_vec()), (b"bank/\x02uhold\x00\x01".to_vec(), value.to_vec())]);
}

#[test]
fn queries_answer_for_known_and_unknown_and_refuse_bad_fields() {
    let chain = chain();
    let (one, nobody) = (chain.bech32(&addr(1)), chain.bech32(&addr(77)));
    let balance = |address: &str, denom: &str| {
        let request = cosmos::QueryBalanceRequest { address: address.into(), denom: denom.into() };
        query_server::balance(chain.query(), request).map(|r| r.balance.unwrap().amount)
    };
    assert_eq!(balance(&one, "uhold").unwrap(), "100");
    assert_eq!(balance(&nobody, "uhold").unwrap(), "0");
    assert_eq!(balance("x", "uhold").unwrap_err().kind, QueryKind::InvalidArgument);
    assert_eq!(balance(&one, "").unwrap_err().kind, QueryKind::InvalidArgument);
    let all = |pagination| {
        let request =
            cosmos::QueryAllBalancesRequest { address: one.clone(), pagination, resolve_denom: false };
        query_server::all_balances(chain.query(), request).unwrap()
    };
    let rows =
        |coins: &[PbCoin]| coins.iter().map(|c| format!("{}{}", c.amount, c.denom)).collect::<Vec<_>>();
    assert_eq!(rows(&all(None).balances), ["7uabc", "100uhold"], "only the account's own rows");
    let first = all(Some(PageRequest { limit: 1, ..Default::default() }));
    assert_eq!(rows(&first.balances), ["7uabc"]);
    let key = first.pagination.unwrap().next_key;
    assert_eq!(rows(&all(Some(PageRequest { key, limit: 1, ..Default::default() })).balances), ["100uhold"]);
    let supply = |denom: &str| {
        query_server::supply_of(chain.query(), cosmos::QuerySupplyOfRequest { denom: denom.into() })
    };
    assert_eq!(supply("uhold").unwrap().amount.unwrap().amount, "105");
    assert_eq!(supply("unone").unwrap().amount.unwrap().amount, "0");
    assert_eq!(supply("!").unwrap_err().kind, QueryKind::InvalidArgument);
    let bad = cosmos::QueryAllBalancesRequest { address: "x".into(), ..Default::default() };
    let error = query_server::all_balances(chain.query(), bad).unwrap_err();
    assert_eq!(error.kind, QueryKind::InvalidArgument);
    assert!(error.message.starts_with("address: "), "{error}");
    for (field, key, offset, limit) in
        [("pagination.limit", "", 0, 1001), ("pagination.offset", "", 10_001, 1), ("pagination", "k", 1, 1)]
    {
        let pagination = Some(PageRequest { key: key.into(), offset, limit, ..Default::default() });
        let request = cosmos::QueryAllBalancesRequest {
            address: one.clone(),
            pagination: pagination.clone(),
            resolve_denom: false,
        };
        let first = query_server::all_balances(chain.query(), request).unwrap_err();
        let second =
            query_server::total_supply(chain.query(), cosmos::QueryTotalSupplyRequest { pagination })
                .unwrap_err();
        for error in [first, second] {
            assert_eq!(error.kind, QueryKind::InvalidArgument);
            assert!(error.message.starts_with(&format!("{field}: ")), "{error}");
        }
    }
    let total = query_server::total_supply(chain.query(), Default::default()).unwrap();
    assert_eq!(
        (rows(&total.supply), total.pagination.unwrap().total),
        (vec!["7uabc".into(), "105uhold".into()], 2)
    );
}

#[test]
fn export_validate_init_export_is_the_same_bytes_and_the_same_state() {
    let source = chain();
    let hrp = Hrp::default();
    let bytes = BankModule.export_genesis(&source.store, &hrp).unwrap();
    BankModule.validate_genesis(&bytes, &hrp).unwrap();
    let mut copy = TestChain::new(1);
    copy.ctx(|ctx| BankModule.init_genesis(ctx, &bytes)).unwrap();
    assert!(copy.store == source.store);
    assert_eq!(BankModule.export_genesis(&copy.store, &hrp).unwrap(), bytes);
    let mut short = pb::GenesisState::decode(bytes.as_slice()).unwrap();
    short.supply.clear();
    let mut computed = TestChain::new(1);
    computed.ctx(|ctx| BankModule.init_genesis(ctx, &short.encode_to_vec())).unwrap();
    assert!(computed.store == source.store, "a supply left out is computed");
    assert_eq!(BankModule.export_genesis(&MemKv::default(), &hrp).unwrap(), BankModule.default_genesis());
}

#[test]
fn each_bad_genesis_field_is_refused_by_its_name() {
    type Change = fn(&mut pb::GenesisState);
    let cases: &[(u32, &str, Change)] = &[
        (2, "genesis balances[0].address", |g| g.balances[0].address.push('x')),
        (2, "genesis balances[1].address", |g| g.balances.swap(0, 1)),
        (2, "genesis balances[1].address", |g| g.balances[1].address = g.balances[0].address.clone()),
        (2, "genesis balances[1]: coins:", |g| g.balances[1].coins.clear()),
        (2, "genesis balances[0]: coins[1].denom", |g| g.balances[0].coins.swap(0, 1)),
        (2, "genesis balances[1]: coins[0].amount", |g| g.balances[1].coins[0].amount = "0".into()),
        (2, "genesis balances[0]: coins[0]", |g| g.balances[0].coins[0].denom = "!".into()),
        (2, "genesis balances[0]: coins[0]", |g| g.balances[0].coins[0].amount = "-7".into()),
        (2, "genesis supply: supply[0]", |g| g.supply[0].amount = "seven".into()),
        (2, "genesis supply: ", |g| g.supply[0].amount = "8".into()),
        (2, "genesis supply: ", |g| drop(g.supply.pop())),
        (2, "genesis supply: supply[1].denom", |g| g.supply.swap(0, 1)),
        (3, "supply of uhold", |g| g.balances[1].coins[0].amount = u128::MAX.to_string()),
    ];
    let good = BankModule.export_genesis(&chain().store, &Hrp::default()).unwrap();
    for (code, text, change) in cases {
        let mut bad = pb::GenesisState::decode(good.as_slice()).unwrap();
        change(&mut bad);
        let error = BankModule.validate_genesis(&bad.encode_to_vec(), &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("bank", *code), "{error}");
        assert!(error.message.starts_with(text), "{text}: {error}");
        let init = TestChain::new(1).refused(|ctx| BankModule.init_genesis(ctx, &bad.encode_to_vec()));
        assert_eq!(init, ("bank", *code), "{text}: the state is built only of what was checked");
    }
    for bytes in [[&good[..], &[0x78, 1]].concat(), good[..good.len() - 1].to_vec()] {
        let error = BankModule.validate_genesis(&bytes, &Hrp::default()).unwrap_err();
        assert_eq!((error.codespace, error.code), ("sdk", 34));
    }
}

#[test]
fn a_corrupt_balance_is_an_error_and_never_zero() {
    let mut chain = chain();
    chain.store.set(&BALANCES.key(&(addr(1), "uhold".into())), &[1]).unwrap();
    assert!(Keeper.balance(&chain.store, &addr(1), "uhold").is_err());
    assert_eq!(chain.refused(|ctx| Keeper.send(ctx, &addr(1), &addr(2), &coin("uhold", 1))), ("sdk", 1));
}

#[test]
fn collections_and_codes_are_where_the_tables_say() {
    assert!(check_prefix_table(&BankModule));
    let samples = [BankError::genesis("f", "r"), BankError::SupplyOverflow("uhold".into())];
    assert_eq!(samples.map(|e| e.code()).to_vec(), CODES.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}
