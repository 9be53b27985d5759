//! Transactions through the whole pipeline: what is kept, what is dropped, and in which order a block takes them.

use std::collections::BTreeMap;

use holdfast_proto::holdfast::inference::v1::MsgStartInference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::{Any, Message};
use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::WeightSource;
use holdfast_types::{Address, Hrp, QueryKind};

use super::net::*;
use crate::app::{AppOptions, Block, PANIC};
use crate::mempool::{Mempool, MempoolConfig, bytes_in_block};
use crate::tx::{DecodedTx, Signer, TxBuilder, pack};

/// Weights whose source panics when it is asked about one participant.
struct Trap(Address);

impl WeightSource for Trap {
    fn weight(&self, _: &dyn KvRead, participant: &Address, collateral: u128) -> Result<u64, StoreError> {
        assert!(*participant != self.0, "the weight source fell over");
        Ok(u64::try_from(collateral).unwrap_or(u64::MAX))
    }
}

#[test]
fn a_panic_is_an_error_of_its_transaction_alone() {
    let trap = Who::new("outsider/0");
    let options = AppOptions { composition: with_weights(Trap(trap.address)), ..options() };
    let mut net = Net::with(&Spec::default(), mem(), options);
    let mut falls = net.builder(&trap, vec![register_msg(&trap, &[MODEL], 7)]);
    falls.fee.amount = 50;
    let falls = falls.sign(&trap.key);
    assert!(net.shared.check_tx(&falls).is_ok());
    let simulated = net.shared.simulate(&falls).unwrap_err();
    assert_eq!((simulated.codespace, simulated.code), PANIC);
    net.txs.push(falls);
    let other = net.outsider(1);
    net.push(&other, vec![register_msg(&other, &[MODEL], 9)]);
    let done = net.block();
    codes(&done, &[PANIC, ("", 0)]);
    assert_eq!(PANIC, ("undefined", 111_222));
    assert!(done.tx_results[0].log.contains("the weight source fell over"));
    assert!(done.tx_results[0].data.is_empty() && done.tx_results[0].gas_used > 0);
    // The fee and the sequence are gone, the collateral is not.
    assert_eq!(net.balance(&trap.address), BALANCE - 50);
    assert_eq!(net.sequence(&trap), 1);
    let request = |who: &Who| participants::QueryParticipantRequest { participant: who.bech32() };
    let path = "/holdfast.participants.v1.Query/Participant";
    let absent = net.query::<participants::QueryParticipantResponse>(path, &request(&trap)).unwrap_err();
    assert_eq!(absent.kind, QueryKind::NotFound);
    assert!(net.query::<participants::QueryParticipantResponse>(path, &request(&other)).is_ok());
    net.push(&trap, vec![send_msg(&trap, &other.address, 1)]);
    net.good();
}

#[test]
fn out_of_gas_in_a_message_keeps_the_fee_and_in_the_ante_steps_keeps_nothing() {
    let mut net = Net::standard();
    let (from, to) = (net.gateway(0), net.outsider(0).address);
    let mut tx = net.builder(&from, vec![send_msg(&from, &to, 5)]);
    tx.fee.amount = 30;
    let used = net.shared.simulate(&tx.sign(&from.key)).unwrap().gas_used;
    tx.gas_limit = used - 100;
    net.txs.push(tx.sign(&from.key));
    let done = net.block();
    codes(&done, &[("sdk", 11)]);
    assert_eq!((done.tx_results[0].gas_wanted, done.tx_results[0].gas_used), (used - 100, used - 100));
    assert_eq!((net.balance(&from.address), net.balance(&to)), (BALANCE - 30, BALANCE));
    assert_eq!(net.sequence(&from), 1);
    // The events are those of the ante steps.
    assert!(done.tx_results[0].events.iter().any(|e| e.kind == "tx"));
    assert!(!done.tx_results[0].events.iter().any(|e| e.kind == "message"));

    let mut tx = net.builder(&from, vec![send_msg(&from, &to, 5)]);
    tx.fee.amount = 30;
    tx.gas_limit = 1_000;
    net.txs.push(tx.sign(&from.key));
    let done = net.block();
    codes(&done, &[("sdk", 11)]);
    assert!(done.tx_results[0].events.is_empty());
    assert_eq!((net.balance(&from.address), net.sequence(&from)), (BALANCE - 30, 1));
}

#[test]
fn when_the_blocks_gas_is_used_up_the_rest_of_it_fails_unpaid() {
    let mut net = Net::new(&Spec { max_gas: 60_000, ..Spec::default() });
    let (a, b, to) = (net.gateway(0), net.gateway(1), net.outsider(0).address);
    let mut greedy = net.builder(&a, (0..20).map(|_| send_msg(&a, &to, 1)).collect());
    greedy.gas_limit = 60_000;
    greedy.fee.amount = 10;
    net.txs.push(greedy.sign(&a.key));
    let mut late = net.builder(&b, vec![send_msg(&b, &to, 1)]);
    late.gas_limit = 60_000;
    late.fee.amount = 10;
    net.txs.push(late.sign(&b.key));
    let done = net.block();
    codes(&done, &[("sdk", 11), ("sdk", 11)]);
    assert_eq!((done.tx_results[0].gas_used, done.tx_results[1].gas_used), (60_000, 0));
    assert_eq!((net.balance(&a.address), net.balance(&b.address)), (BALANCE - 10, BALANCE));
    assert_eq!((net.sequence(&a), net.sequence(&b)), (1, 0));
    // A limit above the block's is refused before anything else.
    let mut over = net.builder(&b, vec![send_msg(&b, &to, 1)]);
    over.gas_limit = 60_001;
    net.txs.push(over.sign(&b.key));
    codes(&net.block(), &[("sdk", 41)]);
}

#[test]
fn messages_of_a_transaction_act_together_or_not_at_all() {
    let mut net = Net::standard();
    let (from, to) = (net.gateway(0), net.outsider(0).address);
    let mut tx = net.builder(&from, vec![send_msg(&from, &to, 5), send_msg(&from, &to, 2 * BALANCE)]);
    tx.fee.amount = 7;
    net.txs.push(tx.sign(&from.key));
    let done = net.block();
    codes(&done, &[("sdk", 5)]);
    assert!(done.tx_results[0].log.starts_with("message 1: "), "{}", done.tx_results[0].log);
    assert_eq!((net.balance(&from.address), net.balance(&to)), (BALANCE - 7, BALANCE));
    assert_eq!(net.balance(&Address::module("fee_collector")), 7);
    assert_eq!(net.sequence(&from), 1);
    net.push(&from, vec![send_msg(&from, &to, 5), send_msg(&from, &to, 6)]);
    let done = net.good();
    assert_eq!(net.balance(&to), BALANCE + 11);
    let data = done.tx_results[0].data.as_slice();
    let data = holdfast_proto::cosmos::base::abci::v1beta1::TxMsgData::decode(data).unwrap();
    assert_eq!(data.msg_responses.len(), 2);
    assert_eq!(data.msg_responses[0].type_url, "/cosmos.bank.v1beta1.MsgSendResponse");
    let indexes: Vec<_> = done.tx_results[0].events.iter().filter_map(|e| e.get("msg_index")).collect();
    assert!(indexes.contains(&"0") && indexes.contains(&"1") && indexes.is_sorted());
}

#[test]
fn an_unknown_message_and_one_in_another_encoding_have_their_codes() {
    let mut net = Net::standard();
    let who = net.gateway(0);
    let known = send_msg(&who, &net.outsider(0).address, 1);
    let unknown = Any { type_url: "/cosmos.group.v1.MsgVote".into(), value: known.value.clone() };
    // An unknown field, and the last field's default written out.
    let mut longer = known.clone();
    longer.value.extend([0x98, 0x06, 0x01]);
    let mut cut = known.clone();
    cut.value.pop();
    for (message, expected) in [(unknown, 6), (longer, 34), (cut, 2)] {
        let raw = net.tx(&who, vec![message]);
        net.forget_signed();
        let refused = net.shared.check_tx(&raw).unwrap_err();
        assert_eq!((refused.codespace, refused.code), ("sdk", expected), "{refused}");
        net.txs.push(raw);
        codes(&net.block(), &[("sdk", expected)]);
    }
    // The first two paid with their sequence; the third never became a transaction.
    assert_eq!(net.sequence(&who), 2);
    let bytes = net.tx(&who, vec![known]);
    for raw in [Vec::new(), vec![0xff; 40], bytes[..bytes.len() - 1].to_vec(), [&bytes[..], &[0]].concat()] {
        net.txs.push(raw);
        codes(&net.block(), &[("sdk", 2)]);
    }
    assert_eq!(net.sequence(&who), 2);
}

#[test]
fn a_requester_needs_an_account_and_modules_take_no_transfers() {
    let mut net = Net::standard();
    let (payer, executor) = (net.gateway(0), net.executor(0));
    let start = MsgStartInference {
        signer: payer.bech32(),
        requested_by: Who::new("nobody").bech32(),
        inference_id: "x".into(),
        model: MODEL.into(),
        assigned_to: executor.bech32(),
        prompt_hash: vec![0; 32],
        ..MsgStartInference::default()
    };
    net.push(&payer, vec![pack(&start)]);
    for module in ["inference", "participants", "gov", "fee_collector"] {
        net.push(&payer, vec![send_msg(&payer, &Address::module(module), 1)]);
    }
    let done = net.block();
    codes(&done, &[("inference", 5), ("sdk", 4), ("sdk", 4), ("sdk", 4), ("sdk", 4)]);
    assert_eq!(net.balance(&payer.address), BALANCE);
    // With an account the same request is good.
    net.push(&payer, vec![send_msg(&payer, &Who::new("nobody").address, 1), pack(&start)]);
    net.good();
}

#[test]
fn signatures_for_another_chain_sequence_or_form_are_refused() {
    let mut net = Net::standard();
    let who = net.gateway(0);
    let good = net.builder(&who, vec![send_msg(&who, &net.outsider(0).address, 1)]);
    let other_chain = TxBuilder { chain_id: "other-1".into(), ..good.clone() }.sign(&who.key);
    let later = TxBuilder { sequence: 1, ..good.clone() }.sign(&who.key);
    let stranger = good.sign(&net.gateway(1).key);
    let mut high = good.sign(&who.key);
    // s lies in the last 32 bytes; order - s verifies too, and must not be taken.
    let at = high.len() - 32;
    let order = hex::decode("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141").unwrap();
    let mut borrow = 0_i16;
    for i in (0..32).rev() {
        let digit = i16::from(order[i]) - i16::from(high[at + i]) - borrow;
        borrow = i16::from(digit < 0);
        high[at + i] = u8::try_from(digit.rem_euclid(256)).unwrap();
    }
    let state = net.dump();
    for (raw, expected) in [(other_chain, 4), (later, 32), (stranger, 8), (high, 4)] {
        assert_eq!(net.shared.check_tx(&raw).unwrap_err().code, expected);
        net.txs.push(raw);
        codes(&net.block(), &[("sdk", expected)]);
    }
    // Only what each block writes by itself is new.
    let space = |space: &str, dump: &BTreeMap<Vec<u8>, Vec<u8>>| {
        dump.iter().filter(|(k, _)| k.starts_with(space.as_bytes())).count()
    };
    assert_eq!(space("auth/", &state), space("auth/", &net.dump()));
    assert_eq!(net.balance(&who.address), BALANCE);
    net.txs.push(good.sign(&who.key));
    net.good();
}

#[test]
fn checks_follow_each_other_until_a_commit_and_are_repeated_after_it() {
    let options = AppOptions { min_gas_price: 1_000_000, ..options() };
    let mut net = Net::with(&Spec::default(), mem(), options);
    let (who, to) = (net.gateway(0), net.outsider(0).address);
    let tx = |net: &mut Net, fee: u128| {
        let mut tx = net.builder(&who, vec![send_msg(&who, &to, 1)]);
        tx.fee.amount = fee;
        tx.sign(&who.key)
    };
    // 10^-6 base units a gas unit, three million units: 3.
    let cheap = tx(&mut net, 2);
    assert_eq!(net.shared.check_tx(&cheap).unwrap_err().code, 13);
    net.forget_signed();
    let txs: Vec<_> = (0..3).map(|_| tx(&mut net, 3)).collect();
    assert_eq!(net.shared.check_tx(&txs[1]).unwrap_err().code, 32);
    for (sequence, raw) in txs.iter().enumerate() {
        let checked = net.shared.check_tx(raw).unwrap();
        assert_eq!(checked.signers(), [(who.address, sequence as u64)]);
        assert_eq!((checked.gas_wanted(), checked.price()), (GAS, 1_000_000));
    }
    assert_eq!(net.shared.check_tx(&txs[2]).unwrap_err().code, 32);
    // Nothing of that is in the state.
    assert_eq!((net.sequence(&who), net.balance(&who.address)), (0, BALANCE));
    net.txs.push(txs[0].clone());
    net.good();
    assert_eq!(net.shared.recheck_tx(&txs[0]).unwrap_err().code, 32);
    assert!(net.shared.recheck_tx(&txs[1]).is_ok());
    assert!(net.shared.recheck_tx(&txs[2]).is_ok());
    let (verified, _) = net.shared.signature_counts();
    net.txs.push(txs[1].clone());
    net.txs.push(txs[2].clone());
    net.good();
    assert_eq!(net.shared.signature_counts().0, verified, "a signature was verified twice");
}

/// Transactions of six accounts: several in a row, equal prices, two with two signers, one that is no good.
fn pool(net: &mut Net) -> Vec<Vec<u8>> {
    let to = net.outsider(1).address;
    let mut txs = Vec::new();
    let accounts =
        [net.gateway(0), net.gateway(1), net.executor(0), net.executor(1), net.executor(2), net.outsider(0)];
    for (who, fees) in accounts.iter().zip([&[5, 9, 1][..], &[5, 5, 5], &[9], &[0, 7], &[5], &[2, 2]]) {
        for fee in fees {
            let mut tx = net.builder(who, vec![send_msg(who, &to, 1)]);
            tx.fee.amount = fee * 3_000_000;
            txs.push(tx.sign(&who.key));
        }
    }
    for (a, b) in [(0, 1), (4, 2)] {
        let (a, b) = (&accounts[a], &accounts[b]);
        let mut tx = net.builder(a, vec![send_msg(a, &to, 1), send_msg(b, &to, 1)]);
        tx.fee.amount = 6 * 3_000_000;
        let second = net.builder(b, Vec::new());
        let signer = |who: &'_ Who, tx: &TxBuilder| (who.key.clone(), tx.account_number, tx.sequence);
        let signers = [signer(a, &tx), signer(b, &second)];
        let signers = signers.each_ref().map(|(key, account_number, sequence)| Signer {
            key,
            account_number: *account_number,
            sequence: *sequence,
        });
        txs.push(tx.sign_all(&signers));
    }
    // A gap in the sequences, and a forged signature that pays more for a sequence in use.
    let mut gap = net.builder(&accounts[5], vec![send_msg(&accounts[5], &to, 1)]);
    gap.sequence += 3;
    gap.fee.amount = 90 * 3_000_000;
    txs.push(gap.sign(&accounts[5].key));
    let mut forged = net.builder(&accounts[0], vec![send_msg(&accounts[0], &to, 1)]);
    forged.sequence = 0;
    forged.fee.amount = 80 * 3_000_000;
    let mut forged = forged.sign(&accounts[0].key);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    txs.push(forged);
    net.forget_signed();
    txs
}

#[test]
fn a_proposal_is_ordered_by_fee_then_sender_and_sequence_and_never_by_arrival() {
    let mut net = Net::standard();
    let mut txs = pool(&mut net);
    let first = net.app.prepare_proposal(&txs, usize::MAX);
    assert_eq!(first.len(), txs.len() - 2);
    let decoded: Vec<_> = first.iter().map(|raw| DecodedTx::decode(raw, &Hrp::default()).unwrap()).collect();
    // Every account's sequences ascend, and no transaction that was ready pays more than the one before it.
    let key = |tx: &DecodedTx| {
        let fee = tx.fee().first().map_or(0, |c| c.amount);
        (std::cmp::Reverse(fee), tx.signers()[0], tx.signer_infos()[0].sequence)
    };
    let mut next: BTreeMap<Address, u64> = BTreeMap::new();
    for (i, tx) in decoded.iter().enumerate() {
        let ready = |tx: &&DecodedTx| {
            let mut signers = tx.signers().iter().zip(tx.signer_infos());
            signers.all(|(a, info)| info.sequence == next.get(a).copied().unwrap_or(0))
        };
        let best = decoded[i..].iter().filter(ready).map(key).min().unwrap();
        assert_eq!(key(tx), best, "place {i}");
        for signer in tx.signers() {
            *next.entry(*signer).or_default() += 1;
        }
    }
    let mut rng = Rng(3);
    for _ in 0..40 {
        rng.shuffle(&mut txs);
        assert!(net.app.prepare_proposal(&txs, usize::MAX) == first);
    }
    net.txs = first;
    net.good();
}

#[test]
fn every_proposal_made_is_accepted_whatever_the_limits() {
    for (max_gas, max_bytes) in [(-1, 1 << 20), (10_000_000, 1 << 20), (-1, 2_000), (3_000_000, 1_024)] {
        let mut net = Net::new(&Spec { max_gas, max_bytes, ..Spec::default() });
        let txs = pool(&mut net);
        for asked in [0, 500, 1_500, 5_000, usize::MAX] {
            let proposal = net.app.prepare_proposal(&txs, asked);
            assert!(net.app.process_proposal(&proposal), "{max_gas} {max_bytes} {asked}");
            let bytes: usize = proposal.iter().map(|raw| bytes_in_block(raw.len())).sum();
            assert!(bytes <= asked.min(usize::try_from(max_bytes).unwrap()));
        }
        net.txs = net.app.prepare_proposal(&txs, usize::MAX);
        assert!(!net.txs.is_empty());
        net.good();
    }
}

#[test]
fn proposals_over_a_limit_or_with_undecodable_bytes_are_rejected() {
    let mut net = Net::new(&Spec { max_gas: 7_000_000, max_bytes: 1_024, ..Spec::default() });
    let who = net.gateway(0);
    let to = net.outsider(0).address;
    let txs: Vec<_> = (0..5).map(|_| net.tx(&who, vec![send_msg(&who, &to, 1)])).collect();
    assert!(net.app.process_proposal(&[]));
    assert!(net.app.process_proposal(&txs[..2]));
    // Three transactions of three million gas.
    assert!(!net.app.process_proposal(&txs[..3]));
    let mut big = net.builder(&who, (0..12).map(|_| send_msg(&who, &to, 1)).collect());
    big.memo = "x".repeat(200);
    assert!(!net.app.process_proposal(&[big.sign(&who.key)]));
    for bad in [Vec::new(), vec![1, 2, 3], txs[0][1..].to_vec(), [&txs[0][..], &[0]].concat()] {
        assert!(!net.app.process_proposal(&[txs[0].clone(), bad]));
    }
}

#[test]
fn a_block_finalized_twice_gives_the_same_and_one_out_of_turn_is_refused() {
    let mut net = Net::standard();
    net.make_ready(0);
    net.start("probe", 0);
    let txs = std::mem::take(&mut net.txs);
    let block = Block { height: net.height() + 1, time_ns: 7, txs };
    let once = net.app.finalize_block(&block).unwrap();
    // Another block for the same height replaces it, and back.
    let empty = net.app.finalize_block(&Block { txs: Vec::new(), ..block.clone() }).unwrap();
    assert_ne!(once.app_hash, empty.app_hash);
    assert_eq!(net.app.finalize_block(&block).unwrap(), once);
    assert_eq!(net.state(0), "R");
    for height in [0, block.height - 1, block.height + 1] {
        assert!(net.app.finalize_block(&Block { height, ..block.clone() }).is_err());
    }
    net.app.commit().unwrap();
    assert_eq!((net.app.app_hash(), net.state(0)), (once.app_hash, "C"));
    assert!(net.app.commit().is_err());
}

#[test]
fn swapping_two_transactions_of_a_block_changes_its_hash() {
    let mut net = Net::standard();
    let (a, b) = (net.gateway(0), net.gateway(1));
    let first = net.start_msg(0, "same-id", MODEL, 0);
    let second = net.start_msg(1, "same-id", MODEL, 1);
    let mut txs = vec![net.tx(&a, vec![first]), net.tx(&b, vec![second])];
    let block = Block { height: 1, time_ns: 0, txs: txs.clone() };
    let straight = net.app.finalize_block(&block).unwrap();
    codes(&straight, &[("", 0), ("inference", 7)]);
    txs.reverse();
    let swapped = net.app.finalize_block(&Block { txs, ..block }).unwrap();
    codes(&swapped, &[("", 0), ("inference", 7)]);
    assert_ne!(straight.app_hash, swapped.app_hash);
}

#[test]
fn what_the_pool_refuses_or_pushes_out_uses_up_no_sequence() {
    let mut net = Net::standard();
    let (poor, rich, to) = (net.gateway(0), net.gateway(1), net.outsider(0).address);
    let tx = |net: &mut Net, who: &Who, fee: u128| {
        let mut tx = net.builder(who, vec![send_msg(who, &to, 1)]);
        tx.fee.amount = fee;
        tx.sign(&who.key)
    };
    let mut pool = Mempool::new(MempoolConfig { max_txs: 1, ..MempoolConfig::default() });
    let (first, behind) = (tx(&mut net, &poor, 5), tx(&mut net, &poor, 20));
    let evicted = net.shared.check_tx_into(&first, |tx| pool.insert(tx)).unwrap();
    assert!(evicted.is_empty());
    // Refused for want of room: the next sequence must not pass in its place.
    let cheap = tx(&mut net, &rich, 1);
    let after = tx(&mut net, &rich, 9);
    assert_eq!(net.shared.check_tx_into(&cheap, |tx| pool.insert(tx)).unwrap_err().code, 20);
    assert_eq!(net.shared.check_tx_into(&after, |tx| pool.insert(tx)).unwrap_err().code, 32);
    net.forget_signed();
    let dear = tx(&mut net, &rich, 9);
    let evicted = net.shared.check_tx_into(&dear, |tx| pool.insert(tx)).unwrap();
    assert_eq!(evicted.iter().map(|tx| tx.raw().to_vec()).collect::<Vec<_>>(), std::slice::from_ref(&first));
    // Pushed out: its sequence is the account's next one again.
    net.shared.uncheck_tx(&evicted[0]).unwrap();
    assert_eq!(net.shared.check_tx(&behind).unwrap_err().code, 32);
    assert!(net.shared.check_tx(&first).is_ok());
}
