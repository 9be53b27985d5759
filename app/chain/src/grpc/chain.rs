//! A chain behind a node's gRPC address, for a program that reads it and signs with one key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::base::query::v1beta1::{PageRequest, PageResponse};
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest, GetNodeInfoResponse,
};
use holdfast_proto::cosmos::tx::v1beta1::{
    BroadcastMode, BroadcastTxRequest, BroadcastTxResponse, SimulateRequest, SimulateResponse,
};
use holdfast_proto::{Any, Message, decode_strict};
use holdfast_types::{Address, Coin, Hrp};
use thiserror::Error;
use tonic::{Code, Status};

use super::client::GrpcChannel;
use crate::keys::SecretKey;
use crate::tx::TxBuilder;

const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";

/// Blocks after which a transaction that is in none is void, and may be sent again without being counted twice.
pub const TX_LIFE_BLOCKS: u64 = 10;

/// Longest wait for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Gas of a transaction whose use is not simulated; a simulation is not held to it.
const GAS: u64 = 200_000;
/// Gas is asked for with this much more than the simulation used, percent and units: the state moves on until the block.
const GAS_MARGIN: (u64, u64) = (30, 10_000);
/// Rows of a page, and pages of a list at most.
const PAGE: (u64, usize) = (100, 1_000);
/// Codespace `sdk`: the sequence is not the account's next one.
const WRONG_SEQUENCE: u32 = 32;
/// Codespace `sdk`: the same bytes are there already.
const TX_IN_CACHE: u32 = 19;

/// Why the chain did not do it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChainError {
    /// No answer; what was sent may have been taken.
    #[error("the chain cannot be reached: {0}")]
    Unreachable(String),
    /// A refusal.
    #[error("the chain refused: {log} ({codespace} {code})")]
    Refused {
        /// Codespace; `grpc` for a status of the node.
        codespace: String,
        /// Its code.
        code: u32,
        /// The chain's words.
        log: String,
    },
}

impl ChainError {
    /// Whether the transaction bears another sequence than the account's next one.
    #[must_use]
    pub fn is_wrong_sequence(&self) -> bool {
        matches!(self, Self::Refused { codespace, code: WRONG_SEQUENCE, .. } if codespace == "sdk")
    }
}

impl From<Status> for ChainError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => unreachable(status),
            code => Self::Refused {
                codespace: "grpc".into(),
                code: code as u32,
                log: status.message().to_owned(),
            },
        }
    }
}

fn unreachable(status: Status) -> ChainError {
    ChainError::Unreachable(status.message().to_owned())
}

/// An answer of the chain to come.
pub type ChainFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ChainError>> + Send + 'a>>;

/// How much gas a transaction asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gas {
    /// What a small message needs: 200,000.
    Usual,
    /// What a simulation used, and a margin.
    Simulated,
}

/// A node, and the key that signs.
pub struct ChainClient {
    channel: GrpcChannel,
    key: Arc<SecretKey>,
    hrp: Hrp,
    chain_id: String,
    fee: Coin,
    /// Held by the one that sends, so that sequences stay in order.
    sending: tokio::sync::Mutex<()>,
}

impl ChainClient {
    /// Connects to `addr`, `host:port` or `http://host:port`. Transactions are signed by `key` and pay `fee`.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`].
    pub async fn connect(addr: &str, key: Arc<SecretKey>, hrp: Hrp, fee: Coin) -> Result<Self, ChainError> {
        let channel = GrpcChannel::connect(addr).await.map_err(unreachable)?.with_timeout(CALL_TIMEOUT);
        let (info, _): (GetNodeInfoResponse, _) =
            channel.unary(NODE_INFO, &GetNodeInfoRequest {}, None).await.map_err(unreachable)?;
        let chain_id = info.default_node_info.unwrap_or_default().network;
        Ok(Self { channel, key, hrp, chain_id, fee, sending: tokio::sync::Mutex::new(()) })
    }

    /// Id of the chain.
    #[must_use]
    pub fn chain_id(&self) -> &str {
        &self.chain_id
    }

    /// Prefix of its addresses.
    #[must_use]
    pub fn hrp(&self) -> &Hrp {
        &self.hrp
    }

    /// Address of the key.
    #[must_use]
    pub fn address(&self) -> Address {
        self.key.address()
    }

    /// One query at `path`, `/package.Service/Method`.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn ask<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        request: &Req,
    ) -> Result<Resp, ChainError> {
        Ok(self.channel.unary(path, request, None).await?.0)
    }

    /// As [`Self::ask`], with `None` for what is not there.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn find<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        request: &Req,
    ) -> Result<Option<Resp>, ChainError> {
        match self.channel.unary(path, request, None).await {
            Ok((answer, _)) => Ok(Some(answer)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// All pages of a list. `page` takes an answer and gives what it says of the next one.
    ///
    /// # Errors
    /// [`ChainError`]; a list of more than 100,000 rows counts as [`ChainError::Unreachable`].
    pub async fn pages<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        mut request: impl FnMut(PageRequest) -> Req,
        mut page: impl FnMut(Resp) -> Option<PageResponse>,
    ) -> Result<(), ChainError> {
        let mut key = Vec::new();
        for _ in 0..PAGE.1 {
            let wanted = PageRequest { key, limit: PAGE.0, ..PageRequest::default() };
            key = page(self.ask(path, &request(wanted)).await?).unwrap_or_default().next_key;
            if key.is_empty() {
                return Ok(());
            }
        }
        Err(ChainError::Unreachable(format!("{path}: the list has no end")))
    }

    /// Last committed height.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn height(&self) -> Result<u64, ChainError> {
        let answer: GetLatestBlockResponse = self.ask(LATEST_BLOCK, &GetLatestBlockRequest {}).await?;
        let height = answer.sdk_block.and_then(|block| block.header).map_or(0, |header| header.height);
        Ok(u64::try_from(height).unwrap_or(0))
    }

    /// The turn to send: waits for those before, and reads the account.
    ///
    /// # Errors
    /// [`ChainError`], also when the chain has no such account.
    pub async fn sender(&self) -> Result<Sender<'_>, ChainError> {
        let in_order = self.sending.lock().await;
        let request = QueryAccountRequest { address: self.address().to_bech32(&self.hrp) };
        let answer: QueryAccountResponse = self.ask(ACCOUNT, &request).await?;
        let account = decode_strict(&answer.account.unwrap_or_default().value)
            .map_err(|e| ChainError::Unreachable(format!("{ACCOUNT}: {e}")))?;
        Ok(Sender { client: self, account, _in_order: in_order })
    }
}

/// Sends transactions of the client's key; nobody else does meanwhile.
pub struct Sender<'a> {
    client: &'a ChainClient,
    account: BaseAccount,
    _in_order: tokio::sync::MutexGuard<'a, ()>,
}

impl Sender<'_> {
    /// Signs and sends one message, good until the height `until`; gives the transaction's hash. Being taken is not being
    /// executed.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`] leaves open whether it was taken, [`ChainError::Refused`] says that it was not.
    pub async fn send(&mut self, message: Any, gas: Gas, until: u64) -> Result<String, ChainError> {
        let client = self.client;
        let mut builder = TxBuilder {
            chain_id: client.chain_id.clone(),
            account_number: self.account.account_number,
            sequence: self.account.sequence,
            fee: client.fee.clone(),
            gas_limit: GAS,
            memo: String::new(),
            timeout_height: until,
            msgs: vec![message],
        };
        if gas == Gas::Simulated {
            #[allow(deprecated)]
            let request =
                SimulateRequest { tx_bytes: builder.sign(&client.key), ..SimulateRequest::default() };
            let simulated: SimulateResponse = client.ask(SIMULATE, &request).await?;
            let used = simulated.gas_info.map_or(0, |gas| gas.gas_used);
            let margin = (used / 100).saturating_mul(GAS_MARGIN.0).saturating_add(GAS_MARGIN.1);
            builder.gas_limit = used.saturating_add(margin);
        }
        let request =
            BroadcastTxRequest { tx_bytes: builder.sign(&client.key), mode: BroadcastMode::Sync.into() };
        // A connection that breaks here leaves open whether it was taken.
        let (answer, _): (BroadcastTxResponse, _) =
            client.channel.unary(BROADCAST, &request, None).await.map_err(unreachable)?;
        let answer = answer.tx_response.unwrap_or_default();
        match (answer.code, answer.codespace.as_str()) {
            (0, _) | (TX_IN_CACHE, "sdk") => {
                self.account.sequence = self.account.sequence.saturating_add(1);
                Ok(answer.txhash)
            }
            (code, _) => Err(ChainError::Refused { codespace: answer.codespace, code, log: answer.raw_log }),
        }
    }
}
