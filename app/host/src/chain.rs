//! What a host asks of the chain and tells it.

use std::sync::Arc;

use holdfast_app::grpc::{ChainClient, ChainError, ChainFuture, Gas, TX_LIFE_BLOCKS};
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::pack;
use holdfast_escrow::session::settle::Settlement;
use holdfast_escrow::{config_from_pb, settlement_to_pb};
use holdfast_proto::Any;
use holdfast_proto::holdfast::escrow::v1::{
    EscrowStatus as PbStatus, MsgDisputeEscrow, QueryEscrowRequest, QueryEscrowResponse,
};
use holdfast_proto::holdfast::inference::v1::{Inference, QueryInferenceRequest, QueryInferenceResponse};
use holdfast_proto::holdfast::participants::v1::{
    Participant, QueryParticipantRequest, QueryParticipantResponse,
};
use holdfast_types::{Address, Coin, Hrp};

use crate::escrows::{EscrowInfo, EscrowSource, Overdue};
use crate::session::{EscrowStatus, Terms};

const INFERENCE: &str = "/holdfast.inference.v1.Query/Inference";
const PARTICIPANT: &str = "/holdfast.participants.v1.Query/Participant";
const ESCROW: &str = "/holdfast.escrow.v1.Query/Escrow";

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
pub struct GrpcChain(ChainClient);

impl GrpcChain {
    /// As [`ChainClient::connect`].
    ///
    /// # Errors
    /// [`ChainError::Unreachable`].
    pub async fn connect(addr: &str, key: SecretKey, hrp: Hrp, fee: Coin) -> Result<Self, ChainError> {
        ChainClient::connect(addr, Arc::new(key), hrp, fee).await.map(Self)
    }

    /// Id of the chain.
    #[must_use]
    pub fn chain_id(&self) -> &str {
        self.0.chain_id()
    }

    /// The participant that the key belongs to, if the chain knows one.
    ///
    /// # Errors
    /// [`ChainError`].
    pub async fn participant(&self) -> Result<Option<Participant>, ChainError> {
        self.participant_of(self.0.address()).await
    }

    async fn participant_of(&self, address: Address) -> Result<Option<Participant>, ChainError> {
        let request = QueryParticipantRequest { participant: address.to_bech32(self.0.hrp()) };
        let answer: Option<QueryParticipantResponse> = self.0.find(PARTICIPANT, &request).await?;
        Ok(answer.and_then(|answer| answer.participant))
    }
}

impl GrpcChain {
    async fn escrow_row(&self, escrow_id: u64) -> Result<Option<QueryEscrowResponse>, ChainError> {
        self.0.find(ESCROW, &QueryEscrowRequest { escrow_id }).await
    }
}

impl Chain for GrpcChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(self.0.height())
    }

    fn inference<'a>(&'a self, id: &'a str) -> ChainFuture<'a, Option<Inference>> {
        Box::pin(async move {
            let request = QueryInferenceRequest { inference_id: id.to_owned() };
            let answer: Option<QueryInferenceResponse> = self.0.find(INFERENCE, &request).await?;
            Ok(answer.and_then(|answer| answer.inference))
        })
    }

    fn broadcast(&self, messages: Vec<Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>> {
        Box::pin(async move {
            let mut sender = self.0.sender().await?;
            let until = self.0.height().await?.saturating_add(TX_LIFE_BLOCKS);
            let mut sent = Vec::with_capacity(messages.len());
            for message in messages {
                let result = sender.send(message, Gas::Usual, until).await;
                let stop = matches!(&result, Err(error) if error.is_wrong_sequence()
                    || matches!(error, ChainError::Unreachable(_)));
                sent.push(result);
                if stop {
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
            let config = config_from_pb(&config, self.0.hrp()).map_err(|error| odd(error.to_string()))?;
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
            let height = self.0.height().await?;
            let (from, last) = (u64::try_from(escrow.expires_at_height), u64::try_from(last));
            let (Ok(from), Ok(last)) = (from, last) else { return Ok(None) };
            let brought = escrow.dispute.map_or(0, |dispute| dispute.nonce);
            Ok((from..=last).contains(&height).then_some(Overdue { from, height, brought }))
        })
    }

    fn dispute(&self, settlement: Settlement) -> ChainFuture<'_, ()> {
        Box::pin(async move {
            let hrp = self.0.hrp();
            let message = pack(&MsgDisputeEscrow {
                sender: self.0.address().to_bech32(hrp),
                escrow_id: settlement.escrow_id,
                settlement: Some(settlement_to_pb(&settlement, hrp)),
            });
            let mut sender = self.0.sender().await?;
            let until = self.0.height().await?.saturating_add(TX_LIFE_BLOCKS);
            // With keys and signatures of a large group it is too long for the usual gas.
            sender.send(message, Gas::Simulated, until).await.map(drop)
        })
    }

    fn host_url(&self, participant: Address) -> ChainFuture<'_, Option<String>> {
        Box::pin(async move {
            let found = self.participant_of(participant).await?;
            Ok(found.map(|found| found.host_url).filter(|url| !url.is_empty()))
        })
    }
}
