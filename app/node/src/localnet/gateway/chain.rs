//! The chain as this run needs it: pay an escrow in, read it, read balances.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_app::keys::SecretKey;
use holdfast_gateway::chain::{GrpcChain, NewEscrow, Order, deliver};
use holdfast_proto::cosmos::bank::v1beta1 as bank;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Coin, Hrp};

use super::genesis::AMOUNT;
use crate::devnet::genesis::DENOM;

const POLL: Duration = Duration::from_millis(50);

/// A node, and the account that pays.
pub(super) struct Payer(GrpcChain);

impl Payer {
    pub(super) async fn connect(addr: &str, key: SecretKey) -> Result<Self> {
        let fee = Coin { denom: DENOM.into(), amount: 0 };
        Ok(Self(GrpcChain::connect(addr, Arc::new(key), Hrp::default(), fee).await?))
    }

    /// Pays an escrow in whose group has one slot for each host; gives its id.
    pub(super) async fn create_escrow(&self, model: &str, gateway_url: &str, slots: u32) -> Result<u64> {
        let (model, gateway_url) = (model.to_owned(), gateway_url.to_owned());
        let order = Order::Create(NewEscrow { model, amount: AMOUNT, slots, gateway_url });
        let outcome = deliver(&self.0, order, POLL).await.context("the escrow")?;
        outcome.escrow_id.context("the chain has no escrow of ours")
    }

    /// The last block's height; before the first one an error.
    pub(super) async fn height(&self) -> Result<u64> {
        Ok(self.0.client().height().await?)
    }

    /// The escrow's row.
    pub(super) async fn escrow(&self, escrow_id: u64) -> Result<pb::Escrow> {
        let request = pb::QueryEscrowRequest { escrow_id };
        let answer: pb::QueryEscrowResponse =
            self.0.client().ask("/holdfast.escrow.v1.Query/Escrow", &request).await?;
        answer.escrow.context("the chain gave no escrow")
    }

    /// Base units that an address has.
    pub(super) async fn balance(&self, address: &Address) -> Result<u128> {
        let address = address.to_bech32(&Hrp::default());
        let request = bank::QueryBalanceRequest { address, denom: DENOM.into() };
        let answer: bank::QueryBalanceResponse =
            self.0.client().ask("/cosmos.bank.v1beta1.Query/Balance", &request).await?;
        Ok(answer.balance.map_or(Ok(0), |coin| coin.amount.parse())?)
    }

    /// Base units there are.
    pub(super) async fn supply(&self) -> Result<u128> {
        let request = bank::QuerySupplyOfRequest { denom: DENOM.into() };
        let answer: bank::QuerySupplyOfResponse =
            self.0.client().ask("/cosmos.bank.v1beta1.Query/SupplyOf", &request).await?;
        Ok(answer.amount.map_or(Ok(0), |coin| coin.amount.parse())?)
    }
}
