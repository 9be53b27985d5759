use std::sync::Arc;

use holdfast_types::{Address, ModuleError, sdk};

use super::{Mempool, MempoolConfig, MempoolTx, bytes_in_block};

fn account(n: u8) -> Address {
    Address([n; 20])
}

/// A transaction of one account; its bytes say what it is.
fn tx(sender: u8, sequence: u64, price: u128) -> MempoolTx {
    joint(&[(sender, sequence)], price)
}

fn joint(signers: &[(u8, u64)], price: u128) -> MempoolTx {
    let signers: Vec<_> = signers.iter().map(|(n, sequence)| (account(*n), *sequence)).collect();
    MempoolTx::new(format!("{signers:?} pays {price}").into_bytes(), signers, 100, price)
}

fn pool(txs: impl IntoIterator<Item = MempoolTx>) -> Mempool {
    let mut pool = Mempool::new(MempoolConfig::default());
    for tx in txs {
        pool.insert(tx).unwrap();
    }
    pool
}

fn raws(txs: &[MempoolTx]) -> Vec<Arc<[u8]>> {
    txs.iter().map(|tx| tx.raw.clone()).collect()
}

#[track_caller]
fn refused(result: Result<Vec<Arc<MempoolTx>>, ModuleError>, code: u32, text: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.codespace, error.code), (sdk::CODESPACE, code), "{error}");
    assert!(error.message.contains(text), "{error}");
}

#[test]
fn a_block_is_ordered_by_price_then_address_never_by_arrival() {
    let expected = [tx(9, 0, 70), tx(2, 5, 50), tx(5, 1, 50), tx(7, 3, 50), tx(1, 0, 10)];
    // Every rotation and its reverse arrive; the block is the same.
    for shift in 0..expected.len() {
        let mut arrival = expected.to_vec();
        arrival.rotate_left(shift);
        assert_eq!(pool(arrival.clone()).reap(usize::MAX, u64::MAX), raws(&expected));
        arrival.reverse();
        assert_eq!(pool(arrival).reap(usize::MAX, u64::MAX), raws(&expected));
    }
}

#[test]
fn a_well_paid_transaction_never_overtakes_an_earlier_one_of_its_account() {
    let (cheap, dear, other) = (tx(1, 4, 10), tx(1, 5, 1000), tx(2, 0, 20));
    let block = pool([dear.clone(), other.clone(), cheap.clone()]).reap(usize::MAX, u64::MAX);
    assert_eq!(block, raws(&[other, cheap, dear]));
}

#[test]
fn what_lies_behind_a_gap_waits() {
    let mut waiting = pool([tx(1, 4, 10), tx(1, 6, 1000), tx(1, 7, 1000)]);
    assert_eq!(waiting.reap(usize::MAX, u64::MAX), raws(&[tx(1, 4, 10)]));
    waiting.insert(tx(1, 5, 1)).unwrap();
    assert_eq!(
        waiting.reap(usize::MAX, u64::MAX),
        raws(&[tx(1, 4, 10), tx(1, 5, 1), tx(1, 6, 1000), tx(1, 7, 1000)])
    );
}

#[test]
fn a_transaction_of_two_accounts_comes_after_the_earlier_ones_of_both() {
    let both = joint(&[(1, 1), (2, 1)], 500);
    let block = pool([both.clone(), tx(2, 0, 5), tx(1, 0, 9), tx(2, 2, 900)]).reap(usize::MAX, u64::MAX);
    assert_eq!(block, raws(&[tx(1, 0, 9), tx(2, 0, 5), both, tx(2, 2, 900)]));
}

#[test]
fn the_same_bytes_and_the_same_sequence_are_taken_once() {
    let mut waiting = pool([tx(1, 4, 10)]);
    refused(waiting.insert(tx(1, 4, 10)), sdk::TX_IN_MEMPOOL, "tx already exists in cache");
    assert_eq!(waiting.check_absent(tx(1, 4, 10).hash()).unwrap_err().code, sdk::TX_IN_MEMPOOL);
    refused(waiting.insert(tx(1, 4, 11)), sdk::WRONG_SEQUENCE, "account sequence 4");
    refused(waiting.insert(joint(&[(2, 0), (1, 4)], 99)), sdk::WRONG_SEQUENCE, "account sequence 4");
    refused(waiting.insert(joint(&[], 1)), sdk::INVALID_REQUEST, "signers");
    refused(waiting.insert(joint(&[(3, 0), (3, 1)], 1)), sdk::INVALID_REQUEST, "signers");
    assert_eq!(waiting.reap(usize::MAX, u64::MAX), raws(&[tx(1, 4, 10)]));
}

#[test]
fn a_full_pool_lets_go_of_its_worst_tail_for_a_better_payer_only() {
    let config = MempoolConfig { max_txs: 3, ..MempoolConfig::default() };
    let mut waiting = Mempool::new(config);
    for tx in [tx(1, 0, 1), tx(1, 1, 30), tx(2, 0, 20)] {
        waiting.insert(tx).unwrap();
    }
    // Equal pay is not better; the cheapest of all, (1, 0), is no tail.
    refused(waiting.insert(tx(3, 0, 20)), sdk::MEMPOOL_FULL, "mempool is full");
    let evicted = waiting.insert(tx(3, 0, 21)).unwrap();
    assert_eq!(evicted, [Arc::new(tx(2, 0, 20))]);
    // An account's own tail makes no room for its next transaction, which would be left without a predecessor.
    let evicted = waiting.insert(tx(1, 2, 1000)).unwrap();
    assert_eq!(evicted, [Arc::new(tx(3, 0, 21))]);
    refused(waiting.insert(tx(1, 3, 5000)), sdk::MEMPOOL_FULL, "mempool is full");
    assert_eq!(waiting.reap(usize::MAX, u64::MAX), raws(&[tx(1, 0, 1), tx(1, 1, 30), tx(1, 2, 1000)]));
}

#[test]
fn limits_on_bytes_and_on_each_account_hold() {
    let size = tx(1, 0, 10).raw.len();
    let mut waiting =
        Mempool::new(MempoolConfig { max_bytes: 2 * size, max_per_signer: 2, ..MempoolConfig::default() });
    waiting.insert(tx(1, 0, 10)).unwrap();
    waiting.insert(tx(2, 0, 11)).unwrap();
    assert_eq!(waiting.bytes(), 2 * size);
    // Needs the room of both, and pays more than only one of them: nothing is evicted.
    let large = |price| MempoolTx::new(vec![7; size + 1], vec![(account(3), 0)], 100, price);
    refused(waiting.insert(large(11)), sdk::MEMPOOL_FULL, "mempool is full");
    assert_eq!((waiting.len(), waiting.bytes()), (2, 2 * size));
    assert_eq!(waiting.insert(large(12)).unwrap().len(), 2);
    let huge = MempoolTx::new(vec![7; 2 * size + 1], vec![(account(4), 0)], 100, u128::MAX);
    refused(waiting.insert(huge), sdk::MEMPOOL_FULL, "over the limit");
    assert_eq!(waiting.len(), 1);

    let mut waiting = Mempool::new(MempoolConfig { max_per_signer: 2, ..MempoolConfig::default() });
    waiting.insert(tx(1, 0, 1)).unwrap();
    waiting.insert(joint(&[(2, 0), (1, 1)], 1)).unwrap();
    refused(waiting.insert(tx(1, 2, 1)), sdk::MEMPOOL_FULL, "2 transactions of this account");
    waiting.insert(tx(2, 1, 1)).unwrap();
}

#[test]
fn a_block_keeps_to_its_bytes_and_gas() {
    let (a, b, c) = (tx(1, 0, 30), tx(2, 0, 20), tx(3, 0, 10));
    let waiting = pool([a.clone(), b.clone(), c.clone()]);
    let each = bytes_in_block(a.raw.len());
    assert_eq!(waiting.reap(2 * each, u64::MAX), raws(&[a.clone(), b.clone()]));
    assert_eq!(waiting.reap(2 * each - 1, u64::MAX), raws(std::slice::from_ref(&a)));
    assert_eq!(waiting.reap(usize::MAX, 299), raws(&[a.clone(), b.clone()]));
    assert_eq!(waiting.reap(usize::MAX, 300), raws(&[a.clone(), b, c.clone()]));
    // One that does not fit takes its successors with it; others still fit.
    let greedy = MempoolTx::new(b"greedy".to_vec(), vec![(account(2), 0)], 250, 20);
    let waiting = pool([a.clone(), greedy, tx(2, 1, 90), c.clone()]);
    assert_eq!(waiting.reap(usize::MAX, 300), raws(&[a, c]));
}

#[test]
fn bytes_in_a_block_are_those_of_a_repeated_protobuf_field() {
    use holdfast_proto::Message;
    use holdfast_proto::cosmos::tx::v1beta1::TxRaw;
    for size in [1, 127, 128, 16_383, 16_384, 1 << 20] {
        let block = TxRaw { signatures: vec![vec![1; size]], ..TxRaw::default() };
        assert_eq!(bytes_in_block(size), block.encoded_len(), "{size} bytes");
    }
}

#[test]
fn a_commit_removes_its_transactions_and_what_they_overtook() {
    let mut waiting = pool([tx(1, 3, 1), tx(1, 4, 1), tx(1, 5, 1), tx(2, 0, 1)]);
    let committed = [*tx(1, 3, 1).hash(), [0xee; 32]];
    // The account sent sequence 4 through another node.
    waiting.remove_committed(&committed, |signer| if *signer == account(1) { 5 } else { 0 });
    assert_eq!(waiting.reap(usize::MAX, u64::MAX), raws(&[tx(1, 5, 1), tx(2, 0, 1)]));
}

#[test]
fn recheck_sees_every_transaction_in_block_order_and_drops_what_it_refuses() {
    let mut waiting = pool([tx(1, 3, 1), tx(1, 4, 90), tx(2, 0, 50), tx(2, 9, 70)]);
    let mut seen = Vec::new();
    let refused = waiting.recheck(|tx| {
        seen.push(tx.clone());
        if tx.price() == 1 { Err(ModuleError::sdk(sdk::WRONG_SEQUENCE, "over")) } else { Ok(()) }
    });
    assert_eq!(seen, [tx(2, 0, 50), tx(1, 3, 1), tx(1, 4, 90), tx(2, 9, 70)]);
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].0.price(), refused[0].1.code), (1, sdk::WRONG_SEQUENCE));
    assert_eq!(waiting.len(), 3);
}

/// The rules of the module's documentation over a plain list, nothing indexed.
struct Model {
    config: MempoolConfig,
    txs: Vec<MempoolTx>,
}

impl Model {
    fn others<'m>(&'m self, signer: &'m Address) -> impl Iterator<Item = (&'m MempoolTx, u64)> {
        let of = move |tx: &'m MempoolTx| tx.signers.iter().find(|(s, _)| s == signer).map(|(_, q)| (tx, *q));
        self.txs.iter().filter_map(of)
    }

    fn order(tx: &MempoolTx) -> (std::cmp::Reverse<u128>, (Address, u64)) {
        (std::cmp::Reverse(tx.price), tx.signers[0])
    }

    fn insert(&mut self, tx: &MempoolTx) -> Result<Vec<MempoolTx>, u32> {
        if self.txs.iter().any(|t| t.raw == tx.raw) {
            return Err(19);
        }
        for (signer, sequence) in &tx.signers {
            if self.others(signer).any(|(_, q)| q == *sequence) {
                return Err(32);
            }
            if self.others(signer).count() >= self.config.max_per_signer {
                return Err(20);
            }
        }
        let (before, mut evicted) = (self.txs.clone(), Vec::new());
        let bytes = |txs: &[MempoolTx]| txs.iter().map(|t| t.raw.len()).sum::<usize>();
        while self.txs.len() + 1 > self.config.max_txs
            || bytes(&self.txs) + tx.raw.len() > self.config.max_bytes
        {
            let tail =
                |t: &&MempoolTx| t.signers.iter().all(|(s, q)| self.others(s).all(|(_, other)| other <= *q));
            let stranger =
                |t: &&MempoolTx| t.signers.iter().all(|(s, _)| tx.signers.iter().all(|(own, _)| own != s));
            let victim = self.txs.iter().filter(|t| t.price < tx.price).filter(tail).filter(stranger);
            let Some(victim) = victim.max_by_key(|t| Self::order(t)).cloned() else {
                self.txs = before;
                return Err(20);
            };
            self.txs.retain(|t| t.raw != victim.raw);
            evicted.push(victim);
        }
        self.txs.push(tx.clone());
        Ok(evicted)
    }

    fn reap(&self, max_bytes: usize, max_gas: u64) -> Vec<Arc<[u8]>> {
        let (mut block, mut passed) = (Vec::<&MempoolTx>::new(), Vec::<&MempoolTx>::new());
        loop {
            let done = |t: &MempoolTx| block.iter().chain(&passed).any(|b| b.raw == t.raw);
            let ready = |t: &&MempoolTx| {
                t.signers.iter().all(|(s, q)| {
                    let before =
                        self.others(s).filter(|(_, other)| other < q).max_by_key(|(_, other)| *other);
                    before.is_none_or(|(prev, other)| {
                        other + 1 == *q && block.iter().any(|b| b.raw == prev.raw)
                    })
                })
            };
            let next = self.txs.iter().filter(|t| !done(t)).filter(ready).min_by_key(|t| Self::order(t));
            let Some(next) = next else { return block.iter().map(|t| t.raw.clone()).collect() };
            let bytes: usize = block.iter().map(|t| bytes_in_block(t.raw.len())).sum();
            let gas: u64 = block.iter().map(|t| t.gas_wanted).sum();
            let fits =
                bytes + bytes_in_block(next.raw.len()) <= max_bytes && gas + next.gas_wanted <= max_gas;
            if fits { block.push(next) } else { passed.push(next) }
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn size(&mut self, n: u64) -> usize {
        usize::try_from(self.below(n)).unwrap()
    }

    fn tx(&mut self) -> MempoolTx {
        let mut signers = vec![(account(u8::try_from(self.below(4)).unwrap()), self.below(6))];
        if self.below(4) == 0 {
            let other = (account(u8::try_from(self.below(4)).unwrap()), self.below(6));
            if other.0 != signers[0].0 {
                signers.push(other);
            }
        }
        let (price, gas) = (u128::from(self.below(5)), self.below(50));
        let mut raw = format!("{signers:?} {price}").into_bytes();
        raw.resize(raw.len() + self.size(40), 0);
        MempoolTx::new(raw, signers, gas, price)
    }
}

#[test]
fn random_histories_agree_with_the_plain_list() {
    let (mut evictions, mut full, mut reaped) = (0, 0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let config = MempoolConfig {
            max_txs: 4 + random.size(8),
            max_bytes: 400 + random.size(1000),
            max_per_signer: 2 + random.size(4),
        };
        let (mut pool, mut model) = (Mempool::new(config), Model { config, txs: Vec::new() });
        for step in 0..120 {
            let at = format!("seed {seed} step {step}");
            match random.below(10) {
                0 => {
                    let gone: Vec<_> = model.txs.iter().filter(|_| random.below(4) == 0).cloned().collect();
                    pool.remove(gone.iter().map(MempoolTx::hash));
                    model.txs.retain(|t| !gone.contains(t));
                }
                1 => {
                    // A block of two transactions is committed.
                    let block = pool.reap(usize::MAX, u64::MAX);
                    let hashes: Vec<_> = block.iter().take(2).map(|raw| crate::tx::tx_hash(raw)).collect();
                    let committed: Vec<_> =
                        model.txs.iter().filter(|t| hashes.contains(&t.hash)).cloned().collect();
                    let sequences = committed.iter().flat_map(|t| t.signers.clone());
                    let next = |signer: &Address| {
                        let of = sequences.clone().filter(|(s, _)| s == signer);
                        of.map(|(_, q)| q + 1).max().unwrap_or(0)
                    };
                    pool.remove_committed(&hashes, next);
                    model.txs.retain(|t| t.signers.iter().all(|(s, q)| *q >= next(s)));
                }
                2 => {
                    let refuse = |t: &MempoolTx| t.price == 0;
                    let out = pool.recheck(|t| {
                        if refuse(t) { Err(ModuleError::sdk(sdk::INSUFFICIENT_FEE, "free")) } else { Ok(()) }
                    });
                    assert_eq!(out.len(), model.txs.iter().filter(|t| refuse(t)).count(), "{at}");
                    model.txs.retain(|t| !refuse(t));
                }
                _ => {
                    let tx = random.tx();
                    let ours = pool.insert(tx.clone()).map_err(|e| e.code);
                    let ours = ours.map(|evicted| evicted.iter().map(|t| (**t).clone()).collect::<Vec<_>>());
                    let theirs = model.insert(&tx);
                    evictions += theirs.as_ref().map_or(0, Vec::len);
                    full += u32::from(theirs == Err(20));
                    assert_eq!(ours, theirs, "{at}");
                }
            }
            let (bytes, gas) = (random.size(800), random.below(200));
            let block = model.reap(bytes, gas);
            reaped += block.len();
            assert_eq!(pool.reap(bytes, gas), block, "{at}");
            assert_eq!(pool.reap(usize::MAX, u64::MAX), model.reap(usize::MAX, u64::MAX), "{at}");
            assert_eq!(pool.len(), model.txs.len(), "{at}");
            assert_eq!(pool.bytes(), model.txs.iter().map(|t| t.raw.len()).sum::<usize>(), "{at}");
            assert!(model.txs.iter().all(|t| pool.get(&t.hash).is_some()), "{at}");
        }
    }
    // The histories reach what they are meant to reach.
    assert!(evictions > 100 && full > 100 && reaped > 1000, "{evictions} {full} {reaped}");
}
