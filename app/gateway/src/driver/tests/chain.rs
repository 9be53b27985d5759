//! A chain for tests: a block for every look at its height, settlements judged by the chain's own rules.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_app::grpc::{ChainError, ChainFuture};
use holdfast_escrow::session::FrozenConfig;
use holdfast_escrow::session::settle::{Mode, Payout, verify};
use holdfast_types::Address;

use crate::chain::{Chain, EscrowRow, EscrowStatus, Order, Prices, ProbeReady, ProbeStart, TxOutcome};

/// What happens to the next transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// It does not reach the node.
    Lost,
    /// It is taken and never in a block.
    Void,
    /// It is in a block, but the answer to its sending is lost.
    LostAnswer,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) height: u64,
    pub(crate) rows: BTreeMap<u64, EscrowRow>,
    pub(crate) urls: BTreeMap<Address, String>,
    pub(crate) absent: Vec<Address>,
    pub(crate) ready: Vec<ProbeReady>,
    pub(crate) mishaps: VecDeque<Mishap>,
    pub(crate) paid: BTreeMap<u64, Payout>,
    pub(crate) settles: usize,
    pub(crate) creates: usize,
    pub(crate) probes: Vec<ProbeStart>,
    outcomes: BTreeMap<String, TxOutcome>,
    sent: usize,
    /// Terms of escrows that are created, but for id, model and amount.
    pub(crate) template: Option<FrozenConfig>,
}

#[derive(Clone, Default)]
pub(crate) struct FakeChain(Arc<Mutex<World>>);

impl FakeChain {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

pub(crate) fn row(config: FrozenConfig, height: u64) -> EscrowRow {
    EscrowRow {
        config_digest: config.digest(),
        config,
        status: EscrowStatus::Open,
        created_at: height,
        expires_at: 1_000_000,
        dispute_window: 600,
        disputed_nonce: None,
        paid_nonce: None,
    }
}

fn refused(log: impl ToString) -> ChainError {
    ChainError::Refused { codespace: "escrow".into(), code: 2, log: log.to_string() }
}

impl World {
    /// In the next block.
    fn execute(&mut self, order: Order) -> TxOutcome {
        self.height += 1;
        let (mut refusal, mut escrow_id) = (None, None);
        match order {
            Order::Create(new) => {
                self.creates += 1;
                let id = self.rows.keys().max().copied().unwrap_or(0) + 1;
                let mut config = self.template.clone().unwrap();
                (config.escrow_id, config.model, config.amount) = (id, new.model, new.amount);
                self.rows.insert(id, row(config, self.height));
                escrow_id = Some(id);
            }
            Order::Settle(summary) | Order::Dispute(summary) => {
                self.settles += 1;
                let row = self.rows.get_mut(&summary.escrow_id).unwrap();
                match verify(&row.config, &summary, Mode::Settle) {
                    _ if row.status.is_final() => refusal = Some(refused("the escrow is settled")),
                    Ok(payout) => {
                        row.status = EscrowStatus::Settled;
                        row.paid_nonce = Some(summary.nonce);
                        self.paid.insert(summary.escrow_id, payout);
                    }
                    Err(error) => refusal = Some(refused(error)),
                }
            }
            Order::Probe(start) => self.probes.push(start),
        }
        TxOutcome { height: self.height, refused: refusal, escrow_id }
    }
}

impl Chain for FakeChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async {
            let mut world = self.world();
            world.height += 1;
            Ok(world.height)
        })
    }

    fn escrow(&self, id: u64) -> ChainFuture<'_, Option<EscrowRow>> {
        Box::pin(async move { Ok(self.world().rows.get(&id).cloned()) })
    }

    fn own_open(&self, model: &str) -> ChainFuture<'_, Vec<EscrowRow>> {
        let model = model.to_owned();
        Box::pin(async move {
            let world = self.world();
            let open = |row: &&EscrowRow| row.config.model == model && row.status == EscrowStatus::Open;
            Ok(world.rows.values().filter(open).cloned().collect())
        })
    }

    fn host_urls(&self) -> ChainFuture<'_, BTreeMap<Address, String>> {
        Box::pin(async { Ok(self.world().urls.clone()) })
    }

    fn absent(&self, _: &str) -> ChainFuture<'_, Vec<Address>> {
        Box::pin(async { Ok(self.world().absent.clone()) })
    }

    fn probe_ready(&self, _: &str) -> ChainFuture<'_, Vec<ProbeReady>> {
        Box::pin(async { Ok(self.world().ready.clone()) })
    }

    fn token_price(&self) -> ChainFuture<'_, u128> {
        Box::pin(async { Ok(1) })
    }

    fn prices(&self) -> ChainFuture<'_, Prices> {
        Box::pin(async {
            let terms = self.world().template.clone().unwrap();
            Ok(Prices {
                create_fee: terms.create_fee,
                fee_per_nonce: terms.fee_per_nonce,
                token_price: terms.token_price,
            })
        })
    }

    fn submit(&self, order: Order, _: u64) -> ChainFuture<'_, String> {
        Box::pin(async move {
            let mut world = self.world();
            world.sent += 1;
            let hash = format!("{:064X}", world.sent);
            let lost = || ChainError::Unreachable("no node".into());
            match world.mishaps.pop_front() {
                Some(Mishap::Lost) => return Err(lost()),
                Some(Mishap::Void) => return Ok(hash),
                mishap => {
                    let outcome = world.execute(order);
                    world.outcomes.insert(hash.clone(), outcome);
                    if mishap == Some(Mishap::LostAnswer) {
                        return Err(lost());
                    }
                }
            }
            Ok(hash)
        })
    }

    fn outcome(&self, hash: &str) -> ChainFuture<'_, Option<TxOutcome>> {
        let hash = hash.to_owned();
        Box::pin(async move { Ok(self.world().outcomes.get(&hash).cloned()) })
    }
}
