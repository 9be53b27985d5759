//! What a host asks of the chain and tells it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use holdfast_app::grpc::GrpcChannel;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::TxBuilder;
use holdfast_escrow::session::settle::Settlement;
use holdfast_escrow::{config_from_pb, settlement_to_pb};
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest, GetNodeInfoResponse,
};
use holdfast_proto::cosmos::tx::v1beta1::{BroadcastMode, BroadcastTxRequest, BroadcastTxResponse};
use holdfast_proto::holdfast::escrow::v1::{
    EscrowStatus as PbStatus, MsgDisputeEscrow, QueryEscrowRequest, QueryEscrowResponse,
};
use holdfast_proto::holdfast::inference::v1::{Inference, QueryInferenceRequest, QueryInferenceResponse};
use holdfast_proto::holdfast::participants::v1::{
    Participant, QueryParticipantRequest, QueryParticipantResponse,
};
use holdfast_proto::{Any, Message, decode_strict};
use holdfast_types::{Address, Coin, Hrp};
use tonic::{Code, Status};

use crate::escrows::{EscrowInfo, EscrowSource, Overdue};
use crate::session::{EscrowStatus, Terms};

const INFERENCE: &str = "/holdfast.inference.v1.Query/Inference";
const PARTICIPANT: &str = "/holdfast.participants.v1.Query/Participant";
const ESCROW: &str = "/holdfast.escrow.v1.Query/Escrow";
const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

/// Longest wait for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Gas of a transaction with one short message, and for each byte above that.
const GAS: u64 = 200_000;
const GAS_PER_BYTE: u64 = 20;
const SHORT: u64 = 4_096;
/// Blocks after which a transaction that is in none is void, and may be sent again without being counted twice.
pub const TX_LIFE_BLOCKS: u64 = 10;

/// Codespace `sdk`: the sequence is not the account's next one.
const WRONG_SEQUENCE: u32 = 32;
/// Codespace `sdk`: the same bytes are there already.
const TX_IN_CACHE: u32 = 19;

/// Why the chain did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// No answer; what was sent may have been taken.
    #[error("the chain cannot be reached: {0}")]
    Unreachable(String),
    /// A refusal.
    #[error("the chain refused: {log} ({codespace} {code})")]
    Refused {
        /// Codespace.
        codespace: String,
        /// Its code.
        code: u32,
        /// The chain's words.
        log: String,
    },
}

/// An answer to come.
pub type ChainFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ChainError>> + Send + 'a>>;

/// What a host needs of the chain.
pub trait Chain: Send + Sync + 'static {
    /// Last committed height.
    fn height(&self) -> ChainFuture<'_, u64>;
    /// One inference, `None` if the chain does not know it.
    fn inference<'a>(&'a self, id: &'a str) -> ChainFuture<'a, Option<Inference>>;
    /// Sends messages, each in a transaction of its own, good for [`TX_LIFE_BLOCKS`]; gives for each the hash of its
    /// transaction, or why it was not taken. Being taken is not being executed.
    fn broadcast(&self, messages: Vec<Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>>;
}

/// A chain behind a node's gRPC address.
pub struct GrpcChain {
    channel: GrpcChannel,
    key: SecretKey,
    hrp: Hrp,
    chain_id: String,
    fee: Coin,
    /// One broadcast at a time, so that sequences stay in order.
    sending: tokio::sync::Mutex<()>,
}

impl GrpcChain {
    /// Connects to `addr`, `host:port` or `http://host:port`. Transactions are signed by `key` and pay `fee`.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`].
    pub async fn connect(addr: &str, key: SecretKey, hrp: Hrp, fee: Coin) -> Result<Self, ChainError> {
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

    /// The participant that the key belongs to, if the chain knows one.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn participant(&self) -> Result<Option<Participant>, ChainError> {
        self.participant_of(self.key.address()).await
    }

    async fn participant_of(&self, address: Address) -> Result<Option<Participant>, ChainError> {
        let request = QueryParticipantRequest { participant: address.to_bech32(&self.hrp) };
        match self.channel.unary::<_, QueryParticipantResponse>(PARTICIPANT, &request, None).await {
            Ok((answer, _)) => Ok(answer.participant),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(status)),
        }
    }

    async fn escrow_row(&self, escrow_id: u64) -> Result<Option<QueryEscrowResponse>, ChainError> {
        let request = QueryEscrowRequest { escrow_id };
        match self.channel.unary::<_, QueryEscrowResponse>(ESCROW, &request, None).await {
            Ok((answer, _)) => Ok(Some(answer)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(status)),
        }
    }

    async fn account(&self) -> Result<BaseAccount, ChainError> {
        let request = QueryAccountRequest { address: self.key.address().to_bech32(&self.hrp) };
        let (answer, _): (QueryAccountResponse, _) =
            self.channel.unary(ACCOUNT, &request, None).await.map_err(refused)?;
        let any = answer.account.unwrap_or_default();
        decode_strict(&any.value).map_err(|e| ChainError::Unreachable(format!("{ACCOUNT}: {e}")))
    }

    async fn send(
        &self,
        message: Any,
        account: &BaseAccount,
        sequence: u64,
        until: u64,
    ) -> Result<String, ChainError> {
        let long = (message.value.len() as u64).saturating_sub(SHORT);
        let builder = TxBuilder {
            chain_id: self.chain_id.clone(),
            account_number: account.account_number,
            sequence,
            fee: self.fee.clone(),
            gas_limit: GAS.saturating_add(long.saturating_mul(GAS_PER_BYTE)),
            memo: String::new(),
            timeout_height: until,
            msgs: vec![message],
        };
        let request =
            BroadcastTxRequest { tx_bytes: builder.sign(&self.key), mode: BroadcastMode::Sync.into() };
        let (answer, _): (BroadcastTxResponse, _) =
            self.channel.unary(BROADCAST, &request, None).await.map_err(unreachable)?;
        let answer = answer.tx_response.unwrap_or_default();
        match (answer.code, answer.codespace.as_str()) {
            (0, _) | (TX_IN_CACHE, "sdk") => Ok(answer.txhash),
            (code, _) => Err(ChainError::Refused { codespace: answer.codespace, code, log: answer.raw_log }),
        }
    }
}

impl Chain for GrpcChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async {
            let (answer, _): (GetLatestBlockResponse, _) = self
                .channel
                .unary(LATEST_BLOCK, &GetLatestBlockRequest {}, None)
                .await
                .map_err(unreachable)?;
            let height = answer.sdk_block.and_then(|block| block.header).map_or(0, |header| header.height);
            Ok(u64::try_from(height).unwrap_or(0))
        })
    }

    fn inference<'a>(&'a self, id: &'a str) -> ChainFuture<'a, Option<Inference>> {
        Box::pin(async move {
            let request = QueryInferenceRequest { inference_id: id.to_owned() };
            match self.channel.unary::<_, QueryInferenceResponse>(INFERENCE, &request, None).await {
                Ok((answer, _)) => Ok(answer.inference),
                Err(status) if status.code() == Code::NotFound => Ok(None),
                Err(status) => Err(refused(status)),
            }
        })
    }

    fn broadcast(&self, messages: Vec<Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>> {
        Box::pin(async move {
            let _in_order = self.sending.lock().await;
            let account = self.account().await?;
            let until = self.height().await?.saturating_add(TX_LIFE_BLOCKS);
            let mut sequence = account.sequence;
            let mut sent = Vec::with_capacity(messages.len());
            for message in messages {
                let result = self.send(message, &account, sequence, until).await;
                let wrong = matches!(&result, Err(ChainError::Refused { codespace, code: WRONG_SEQUENCE, .. }) if codespace == "sdk");
                let lost = matches!(result, Err(ChainError::Unreachable(_)));
                if result.is_ok() {
                    sequence = sequence.saturating_add(1);
                }
                sent.push(result);
                if wrong || lost {
                    // Those behind it would be refused as well; the next round begins with a fresh sequence.
                    break;
                }
            }
            Ok(sent)
        })
    }
}

impl EscrowSource for GrpcChain {
    fn escrow(&self, escrow_id: u64) -> ChainFuture<'_, Option<EscrowInfo>> {
        Box::pin(async move {
            let Some(answer) = self.escrow_row(escrow_id).await? else { return Ok(None) };
            let odd = |what: String| ChainError::Unreachable(format!("{ESCROW}: {what}"));
            let escrow = answer.escrow.ok_or_else(|| odd("an answer without an escrow".into()))?;
            let status = match escrow.status() {
                PbStatus::Open | PbStatus::Disputed => EscrowStatus::Open,
                PbStatus::Settled | PbStatus::Expired => EscrowStatus::Closed,
                PbStatus::Unspecified => return Err(odd("an escrow without a status".into())),
            };
            let config = escrow.config.ok_or_else(|| odd("an escrow without terms".into()))?;
            let config = config_from_pb(&config, &self.hrp).map_err(|error| odd(error.to_string()))?;
            // Both sides must read the terms alike before a diff is signed over them.
            if config.digest()[..] != answer.config_digest {
                return Err(odd("the terms do not have the digest that the chain gives".into()));
            }
            let terms = Terms { config, status };
            Ok(Some(EscrowInfo { terms, gateway_url: escrow.gateway_url }))
        })
    }

    fn overdue(&self, escrow_id: u64) -> ChainFuture<'_, Option<Overdue>> {
        Box::pin(async move {
            let answer = self.escrow_row(escrow_id).await?;
            let Some(escrow) = answer.and_then(|answer| answer.escrow) else { return Ok(None) };
            let last = match (escrow.status(), &escrow.dispute) {
                (PbStatus::Open, _) => escrow.expires_at_height.saturating_add(escrow.dispute_window_blocks),
                (PbStatus::Disputed, Some(dispute)) => dispute.closes_at_height,
                _ => return Ok(None),
            };
            let height = self.height().await?;
            let (from, last) = (u64::try_from(escrow.expires_at_height), u64::try_from(last));
            let (Ok(from), Ok(last)) = (from, last) else { return Ok(None) };
            let brought = escrow.dispute.map_or(0, |dispute| dispute.nonce);
            Ok((from..=last).contains(&height).then_some(Overdue { from, height, brought }))
        })
    }

    fn dispute(&self, settlement: Settlement) -> ChainFuture<'_, ()> {
        Box::pin(async move {
            let message = MsgDisputeEscrow {
                sender: self.key.address().to_bech32(&self.hrp),
                escrow_id: settlement.escrow_id,
                settlement: Some(settlement_to_pb(&settlement, &self.hrp)),
            };
            let type_url = "/holdfast.escrow.v1.MsgDisputeEscrow".to_owned();
            let message = Any { type_url, value: message.encode_to_vec() };
            let sent = self.broadcast(vec![message]).await?;
            sent.into_iter().try_for_each(|sent| sent.map(drop))
        })
    }

    fn host_url(&self, participant: Address) -> ChainFuture<'_, Option<String>> {
        Box::pin(async move {
            let found = self.participant_of(participant).await?;
            Ok(found.map(|found| found.host_url).filter(|url| !url.is_empty()))
        })
    }
}

fn unreachable(status: Status) -> ChainError {
    ChainError::Unreachable(status.message().to_owned())
}

fn refused(status: Status) -> ChainError {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => unreachable(status),
        code => ChainError::Refused {
            codespace: "grpc".into(),
            code: code as u32,
            log: status.message().to_owned(),
        },
    }
}
