//! Gateways and executors as clients: they sign, and talk to the node over gRPC only.

use anyhow::{Context, Result, bail};
use holdfast_app::grpc::client::GrpcChannel;
use holdfast_app::tx::{TxBuilder, TxHash, pack, tx_hash};
use holdfast_proto::cosmos::tx::v1beta1::{BroadcastMode, BroadcastTxRequest, BroadcastTxResponse};
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::{Any, Message, Name};
use holdfast_types::{Coin, Hrp};

use super::genesis::{Account, CHAIN_ID, DENOM};
use super::report::Lane;

/// Gas limit of every transaction here; all pay the same fee, so that no order hangs on it.
const GAS_LIMIT: u64 = 1_000_000;
const FEE: u128 = 1_000;

const DRAW: &str = "/holdfast.inference.v1.Query/GetRandomExecutor";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

/// What a gateway learns from a draw.
pub(crate) struct Drawn {
    /// Bech32 address of the executor.
    pub executor: String,
    /// Lane it came from.
    pub lane: Lane,
}

/// Asks for an executor at `height` (0 = latest) with `seed`. `None` when nobody is eligible.
pub(crate) async fn draw(
    channel: &GrpcChannel,
    model: &str,
    seed: [u8; 32],
    height: i64,
) -> Result<Option<Drawn>> {
    let request = pb::QueryGetRandomExecutorRequest { model: model.to_owned(), seed: seed.to_vec() };
    let answer = channel.unary::<_, pb::QueryGetRandomExecutorResponse>(DRAW, &request, Some(height)).await;
    let reply = match answer {
        Ok((reply, _)) => reply,
        Err(status) if status.code() == tonic::Code::FailedPrecondition => return Ok(None),
        Err(status) => bail!("GetRandomExecutor: {status}"),
    };
    let lane = match pb::Lane::try_from(reply.lane) {
        Ok(pb::Lane::Healthy) => Lane::Healthy,
        Ok(pb::Lane::Probe) => Lane::Probe,
        Ok(pb::Lane::Fallback) => Lane::Fallback,
        _ => bail!("GetRandomExecutor: unknown lane {}", reply.lane),
    };
    let executor = reply.executor.context("GetRandomExecutor: the reply names no executor")?.address;
    Ok(Some(Drawn { executor, lane }))
}

/// An account that signs transactions one after the other.
#[derive(Clone)]
pub(crate) struct Signer {
    account: Account,
    sequence: u64,
}

impl Signer {
    /// The account at its first transaction.
    pub(crate) fn new(account: &Account) -> Self {
        Self { account: account.clone(), sequence: 0 }
    }

    /// Bech32 address.
    pub(crate) fn address(&self) -> String {
        self.account.address.to_bech32(&Hrp::default())
    }

    /// Signs a transaction with one message, the account's next one.
    pub(crate) fn sign(&mut self, message: Any) -> (TxHash, Vec<u8>) {
        let builder = TxBuilder {
            chain_id: CHAIN_ID.into(),
            account_number: self.account.number,
            sequence: self.sequence,
            fee: Coin { denom: DENOM.into(), amount: FEE },
            gas_limit: GAS_LIMIT,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![message],
        };
        let raw = builder.sign(&self.account.key);
        self.sequence += 1;
        (tx_hash(&raw), raw)
    }
}

/// Gives a transaction to the node. A refusal by the node's check is an error: these clients send nothing that could fail
/// there.
pub(crate) async fn broadcast(channel: &GrpcChannel, raw: Vec<u8>) -> Result<()> {
    let request = BroadcastTxRequest { tx_bytes: raw, mode: BroadcastMode::Sync.into() };
    let (reply, _) = channel.unary::<_, BroadcastTxResponse>(BROADCAST, &request, None).await?;
    let response = reply.tx_response.context("BroadcastTx: empty reply")?;
    if response.code != 0 {
        bail!("BroadcastTx: {} ({} {})", response.raw_log, response.codespace, response.code);
    }
    Ok(())
}

/// A message ready to sign.
pub(crate) fn message<M: Message + Name>(message: &M) -> Any {
    pack(message)
}
