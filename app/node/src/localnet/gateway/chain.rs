//! The chain as this run needs it: pay an escrow in, read it, read balances.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_app::grpc::client::GrpcChannel;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::bank::v1beta1 as bank;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::tx::v1beta1::{
    BroadcastMode, BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse,
};
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_proto::{Any, Message};
use holdfast_types::{Address, Coin, Hrp};
use tonic::Code;

use super::genesis::AMOUNT;
use crate::devnet::genesis::DENOM;

const GAS_LIMIT: u64 = 5_000_000;
/// Longest wait for one call.
const CALL: Duration = Duration::from_secs(10);
/// Longest wait for a transaction's block.
const BLOCK: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// A node, and the account that pays.
pub(super) struct ChainClient {
    channel: GrpcChannel,
    chain_id: String,
    key: SecretKey,
}

impl ChainClient {
    pub(super) async fn connect(addr: &str, chain_id: &str, key: SecretKey) -> Result<Self> {
        let channel = GrpcChannel::connect(addr).await.context("the chain's node")?.with_timeout(CALL);
        Ok(Self { channel, chain_id: chain_id.into(), key })
    }

    async fn call<A: Message + Default>(&self, path: &str, request: &impl Message) -> Result<A> {
        let (answer, _) = self.channel.unary(path, request, None).await.with_context(|| path.to_owned())?;
        Ok(answer)
    }

    /// Pays an escrow in whose group has one slot for each host; gives its id.
    pub(super) async fn create_escrow(&self, model: &str, gateway_url: &str, slots: u32) -> Result<u64> {
        let creator = self.key.address().to_bech32(&Hrp::default());
        let message = pb::MsgCreateEscrow {
            creator: creator.clone(),
            gateway: creator.clone(),
            gateway_url: gateway_url.into(),
            model: model.into(),
            amount: Some(PbCoin { denom: DENOM.into(), amount: AMOUNT.to_string() }),
            slots,
        };
        self.send(pack(&message)).await?;
        let request = pb::QueryEscrowsRequest { creator, ..Default::default() };
        let answer: pb::QueryEscrowsResponse =
            self.call("/holdfast.escrow.v1.Query/Escrows", &request).await?;
        let last = answer.escrows.last().and_then(|escrow| escrow.config.as_ref());
        Ok(last.context("the chain has no escrow of ours")?.escrow_id)
    }

    /// Signs, sends and waits for the block.
    async fn send(&self, message: Any) -> Result<()> {
        let address = self.key.address().to_bech32(&Hrp::default());
        let answer: QueryAccountResponse =
            self.call("/cosmos.auth.v1beta1.Query/Account", &QueryAccountRequest { address }).await?;
        let account = BaseAccount::decode(answer.account.unwrap_or_default().value.as_slice())?;
        let builder = TxBuilder {
            chain_id: self.chain_id.clone(),
            account_number: account.account_number,
            sequence: account.sequence,
            fee: Coin { denom: DENOM.into(), amount: 0 },
            gas_limit: GAS_LIMIT,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![message],
        };
        let request =
            BroadcastTxRequest { tx_bytes: builder.sign(&self.key), mode: BroadcastMode::Sync.into() };
        let reply: BroadcastTxResponse =
            self.call("/cosmos.tx.v1beta1.Service/BroadcastTx", &request).await?;
        let sent = reply.tx_response.context("BroadcastTx: empty reply")?;
        if sent.code != 0 {
            bail!("the chain refused the transaction: {} ({} {})", sent.raw_log, sent.codespace, sent.code);
        }
        let (hash, until) = (sent.txhash, Instant::now() + BLOCK);
        loop {
            let request = GetTxRequest { hash: hash.clone() };
            let path = "/cosmos.tx.v1beta1.Service/GetTx";
            match self.channel.unary::<_, GetTxResponse>(path, &request, None).await {
                Ok((answer, _)) => {
                    let done = answer.tx_response.context("GetTx: empty reply")?;
                    if done.code != 0 {
                        bail!("the transaction failed: {} ({} {})", done.raw_log, done.codespace, done.code);
                    }
                    return Ok(());
                }
                Err(status) if status.code() == Code::NotFound && Instant::now() < until => {
                    tokio::time::sleep(POLL).await;
                }
                Err(status) => return Err(status).context("the transaction is in no block"),
            }
        }
    }

    /// The escrow's row.
    pub(super) async fn escrow(&self, escrow_id: u64) -> Result<pb::Escrow> {
        let request = pb::QueryEscrowRequest { escrow_id };
        let answer: pb::QueryEscrowResponse = self.call("/holdfast.escrow.v1.Query/Escrow", &request).await?;
        answer.escrow.context("the chain gave no escrow")
    }

    /// Base units that an address has.
    pub(super) async fn balance(&self, address: &Address) -> Result<u128> {
        let address = address.to_bech32(&Hrp::default());
        let request = bank::QueryBalanceRequest { address, denom: DENOM.into() };
        let answer: bank::QueryBalanceResponse =
            self.call("/cosmos.bank.v1beta1.Query/Balance", &request).await?;
        Ok(answer.balance.map_or(Ok(0), |coin| coin.amount.parse())?)
    }

    /// Base units there are.
    pub(super) async fn supply(&self) -> Result<u128> {
        let request = bank::QuerySupplyOfRequest { denom: DENOM.into() };
        let answer: bank::QuerySupplyOfResponse =
            self.call("/cosmos.bank.v1beta1.Query/SupplyOf", &request).await?;
        Ok(answer.amount.map_or(Ok(0), |coin| coin.amount.parse())?)
    }
}
