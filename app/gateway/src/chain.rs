//! What a gateway asks of the chain and sends to it.

mod grpc;
mod rows;

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_app::grpc::{ChainError, ChainFuture, TX_LIFE_BLOCKS};
use holdfast_escrow::session::settle::Settlement;
use holdfast_escrow::session::{FrozenConfig, Hash};
use holdfast_types::Address;

pub use grpc::GrpcChain;

/// An escrow as the chain has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscrowRow {
    /// Terms of its session.
    pub config: FrozenConfig,
    /// Their hash, by the chain.
    pub config_digest: Hash,
    /// Where it stands.
    pub status: EscrowStatus,
    /// Height of its creation.
    pub created_at: u64,
    /// Height from which a dispute is taken.
    pub expires_at: u64,
    /// Blocks after the expiry in which a first dispute is taken.
    pub dispute_window: u64,
    /// Nonce of the highest state that was brought by dispute.
    pub disputed_nonce: Option<u64>,
    /// Nonce of the state that was paid.
    pub paid_nonce: Option<u64>,
}

/// Where an escrow stands on the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EscrowStatus {
    /// Coins are held.
    Open,
    /// Coins are held, hosts brought a state.
    Disputed,
    /// Paid.
    Settled,
    /// Paid back: nobody brought a state.
    Expired,
}

impl EscrowStatus {
    /// Whether the coins are gone, one way or the other.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Settled | Self::Expired)
    }
}

/// An escrow to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEscrow {
    /// Its model.
    pub model: String,
    /// Coins, of the denomination of the chain's parameters.
    pub amount: u128,
    /// Slots of its group.
    pub slots: u32,
    /// Where hosts reach the gateway; may be empty.
    pub gateway_url: String,
}

/// What an escrow that is created now would cost, base units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// Taken at its creation.
    pub create_fee: u128,
    /// Taken by each nonce.
    pub fee_per_nonce: u128,
    /// Of a token of prompt or answer.
    pub token_price: u128,
}

/// A member of a model that waits for its probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReady {
    /// The member.
    pub participant: Address,
    /// Names this cooldown: epoch, generation of the breaker entry, probes since the last restoration.
    pub cooldown: (u64, u32, u32),
}

/// An inference on the chain that is a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeStart {
    /// Its new id.
    pub inference_id: String,
    /// The model.
    pub model: String,
    /// Who is to answer.
    pub assigned_to: Address,
    /// Of the body.
    pub prompt_hash: Hash,
    /// Of the body.
    pub prompt_tokens: u32,
    /// Most tokens of the answer.
    pub max_tokens: u32,
}

/// A transaction to send. The signer is this gateway's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// `MsgCreateEscrow`.
    Create(NewEscrow),
    /// `MsgSettleEscrow`.
    Settle(Box<Settlement>),
    /// `MsgDisputeEscrow`.
    Dispute(Box<Settlement>),
    /// `MsgStartInference`.
    Probe(ProbeStart),
}

/// What became of a transaction that is in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxOutcome {
    /// Its block.
    pub height: u64,
    /// Why it was refused; `None` = done.
    pub refused: Option<ChainError>,
    /// Id in its `EventEscrowCreated`.
    pub escrow_id: Option<u64>,
}

/// What a gateway needs of the chain.
pub trait Chain: Send + Sync + 'static {
    /// Last committed height.
    fn height(&self) -> ChainFuture<'_, u64>;
    /// One escrow, `None` if the chain does not know it.
    fn escrow(&self, id: u64) -> ChainFuture<'_, Option<EscrowRow>>;
    /// Open escrows that this gateway's key created for itself.
    fn own_open(&self, model: &str) -> ChainFuture<'_, Vec<EscrowRow>>;
    /// URLs of participants; without those that give none.
    fn host_urls(&self) -> ChainFuture<'_, BTreeMap<Address, String>>;
    /// Members of a model that the chain excuses now: PoC, maintenance.
    fn absent(&self, model: &str) -> ChainFuture<'_, Vec<Address>>;
    /// Members of a model that wait for their probe, none in flight.
    fn probe_ready(&self, model: &str) -> ChainFuture<'_, Vec<ProbeReady>>;
    /// Price of a token of an inference on the chain.
    fn token_price(&self) -> ChainFuture<'_, u128>;
    /// Prices of an escrow that is created now.
    fn prices(&self) -> ChainFuture<'_, Prices>;
    /// Signs and sends, good until the height `until`; gives the hash. Being taken is not being executed.
    fn submit(&self, order: Order, until: u64) -> ChainFuture<'_, String>;
    /// What became of it; `None` while it is in no block.
    fn outcome(&self, hash: &str) -> ChainFuture<'_, Option<TxOutcome>>;
}

/// Why a transaction did not do what it is for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// The chain's refusal, or no answer: it may have been taken.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// In no block in its time.
    #[error("tx_void: in no block up to height {until}; nothing was done")]
    Void {
        /// Last height at which it was good.
        until: u64,
    },
}

/// Sends `order`, good for [`TX_LIFE_BLOCKS`], and waits for the block that holds it, looking every `poll`.
///
/// # Errors
/// [`DeliverError`]; a refusal in the block is one too.
pub async fn deliver(chain: &dyn Chain, order: Order, poll: Duration) -> Result<TxOutcome, DeliverError> {
    let until = chain.height().await?.saturating_add(TX_LIFE_BLOCKS);
    deliver_until(chain, order, poll, until).await
}

/// [`deliver`] for a transaction that is good until the height `until`.
///
/// # Errors
/// As [`deliver`].
pub async fn deliver_until(
    chain: &dyn Chain,
    order: Order,
    poll: Duration,
    until: u64,
) -> Result<TxOutcome, DeliverError> {
    let hash = chain.submit(order, until).await?;
    let mut failures = 0;
    loop {
        tokio::time::sleep(poll).await;
        // The height first: at `until + 1` or above, what is then in no block never will be.
        let looked = async {
            let height = chain.height().await?;
            Ok::<_, ChainError>((height, chain.outcome(&hash).await?))
        };
        match looked.await {
            Ok((_, Some(outcome))) => {
                return match outcome.refused {
                    Some(error) => Err(error.into()),
                    None => Ok(outcome),
                };
            }
            Ok((height, None)) if height > until => return Err(DeliverError::Void { until }),
            Ok((_, None)) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures >= LOOKS_MAX {
                    return Err(error.into());
                }
            }
        }
    }
}

/// Failed looks in a row after which the chain counts as unreachable.
const LOOKS_MAX: u32 = 10;
