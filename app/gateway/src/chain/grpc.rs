//! The chain behind a node's gRPC address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_app::grpc::GrpcChannel;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_host::chain::ChainError;
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::base::query::v1beta1::{PageRequest, PageResponse};
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest, GetNodeInfoResponse,
};
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::tx::v1beta1::{
    BroadcastMode, BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse, SimulateRequest,
    SimulateResponse,
};
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_proto::holdfast::epochs::v1 as epochs;
use holdfast_proto::holdfast::escrow::v1 as escrow;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::{Any, Message, decode_strict};
use holdfast_types::{Address, Coin, Hrp};
use tonic::{Code, Status};

use super::{Chain, ChainFuture, EscrowRow, NewEscrow, Order, ProbeReady, ProbeStart, TxOutcome, convert};

const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const ESCROW: &str = "/holdfast.escrow.v1.Query/Escrow";
const ESCROWS: &str = "/holdfast.escrow.v1.Query/Escrows";
const ESCROW_PARAMS: &str = "/holdfast.escrow.v1.Query/Params";
const PARTICIPANTS: &str = "/holdfast.participants.v1.Query/Participants";
const EPOCH_GROUP: &str = "/holdfast.participants.v1.Query/EpochGroup";
const CURRENT_EPOCH: &str = "/holdfast.epochs.v1.Query/CurrentEpoch";
const BREAKERS: &str = "/holdfast.breaker.v1.Query/CircuitBreakers";
const INFERENCE_PARAMS: &str = "/holdfast.inference.v1.Query/Params";
const CREATED: &str = "holdfast.escrow.v1.EventEscrowCreated";

/// Longest wait for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Gas that a transaction asks for in its simulation, which does not hold it to that.
const GAS: u64 = 200_000;
/// Gas is asked for with this much more than the simulation used, percent: the state moves on until the block.
const GAS_MARGIN: u64 = 30;
/// Rows of a page, and pages of a list at most.
const PAGE: (u64, usize) = (100, 1_000);

/// A chain behind a node's gRPC address. Sends one transaction at a time, so that sequences stay in order.
pub struct GrpcChain {
    channel: GrpcChannel,
    key: Arc<SecretKey>,
    hrp: Hrp,
    chain_id: String,
    fee: Coin,
    sending: tokio::sync::Mutex<()>,
}

impl GrpcChain {
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

    async fn ask<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        request: &Req,
    ) -> Result<Resp, ChainError> {
        Ok(self.channel.unary(path, request, None).await.map_err(refused)?.0)
    }

    /// As [`Self::ask`], with `None` for what is not there.
    async fn find<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        request: &Req,
    ) -> Result<Option<Resp>, ChainError> {
        match self.channel.unary(path, request, None).await {
            Ok((answer, _)) => Ok(Some(answer)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(status)),
        }
    }

    /// All pages of a list.
    async fn pages<Req: Message, Resp: Message + Default>(
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

    async fn account(&self) -> Result<BaseAccount, ChainError> {
        let request = QueryAccountRequest { address: self.me() };
        let answer: QueryAccountResponse = self.ask(ACCOUNT, &request).await?;
        let any = answer.account.unwrap_or_default();
        decode_strict(&any.value).map_err(|e| ChainError::Unreachable(format!("{ACCOUNT}: {e}")))
    }

    fn me(&self) -> String {
        self.key.address().to_bech32(&self.hrp)
    }

    async fn message(&self, order: Order) -> Result<Any, ChainError> {
        let me = self.me();
        Ok(match order {
            Order::Create(NewEscrow { model, amount, slots, gateway_url }) => {
                let answer: escrow::QueryParamsResponse =
                    self.ask(ESCROW_PARAMS, &escrow::QueryParamsRequest {}).await?;
                let denom = answer.params.unwrap_or_default().denom;
                let amount = Some(PbCoin { denom, amount: amount.to_string() });
                let (creator, gateway) = (me.clone(), me);
                pack(&escrow::MsgCreateEscrow { creator, gateway, gateway_url, model, amount, slots })
            }
            Order::Settle(summary) => pack(&escrow::MsgSettleEscrow {
                sender: me,
                escrow_id: summary.escrow_id,
                settlement: Some(convert::settlement(&summary, &self.hrp)),
            }),
            Order::Dispute(summary) => pack(&escrow::MsgDisputeEscrow {
                sender: me,
                escrow_id: summary.escrow_id,
                settlement: Some(convert::settlement(&summary, &self.hrp)),
            }),
            Order::Probe(ProbeStart {
                inference_id,
                model,
                assigned_to,
                prompt_hash,
                prompt_tokens,
                max_tokens,
            }) => pack(&inference::MsgStartInference {
                signer: me.clone(),
                requested_by: me,
                inference_id,
                model,
                assigned_to: assigned_to.to_bech32(&self.hrp),
                prompt_hash: prompt_hash.to_vec(),
                prompt_tokens: prompt_tokens.into(),
                max_tokens: max_tokens.into(),
            }),
        })
    }
}

impl Chain for GrpcChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async {
            let answer: GetLatestBlockResponse = self.ask(LATEST_BLOCK, &GetLatestBlockRequest {}).await?;
            let height = answer.sdk_block.and_then(|block| block.header).map_or(0, |header| header.height);
            Ok(u64::try_from(height).unwrap_or(0))
        })
    }

    fn escrow(&self, id: u64) -> ChainFuture<'_, Option<EscrowRow>> {
        Box::pin(async move {
            let request = escrow::QueryEscrowRequest { escrow_id: id };
            let Some(answer) = self.find(ESCROW, &request).await? else { return Ok(None) };
            let row = convert::escrow(answer, &self.hrp).map_err(malformed)?;
            if row.config.escrow_id != id || row.config.chain_id != self.chain_id {
                return Err(ChainError::Refused {
                    codespace: "gateway".into(),
                    code: 1,
                    log: format!("asked for escrow {id}, the node answers with another one"),
                });
            }
            Ok(Some(row))
        })
    }

    fn own_open(&self, model: &str) -> ChainFuture<'_, Vec<EscrowRow>> {
        let model = model.to_owned();
        Box::pin(async move {
            let mut rows = Vec::new();
            let request = |pagination| escrow::QueryEscrowsRequest {
                status: Some(escrow::EscrowStatus::Open.into()),
                creator: self.me(),
                model: model.clone(),
                pagination: Some(pagination),
            };
            self.pages(ESCROWS, request, |answer: escrow::QueryEscrowsResponse| {
                rows.extend(answer.escrows.into_iter().filter_map(|row| convert::plain(row, &self.hrp).ok()));
                answer.pagination
            })
            .await?;
            rows.retain(|row| row.config.gateway == self.key.address());
            Ok(rows)
        })
    }

    fn host_urls(&self) -> ChainFuture<'_, BTreeMap<Address, String>> {
        Box::pin(async {
            let mut urls = BTreeMap::new();
            let request =
                |pagination| participants::QueryParticipantsRequest { pagination: Some(pagination) };
            self.pages(PARTICIPANTS, request, |answer: participants::QueryParticipantsResponse| {
                for row in answer.participants.into_iter().filter(|row| !row.host_url.is_empty()) {
                    if let Ok(address) = Address::parse(&row.address, &self.hrp) {
                        urls.insert(address, row.host_url);
                    }
                }
                answer.pagination
            })
            .await?;
            Ok(urls)
        })
    }

    fn absent(&self, model: &str) -> ChainFuture<'_, Vec<Address>> {
        let model = model.to_owned();
        Box::pin(async move {
            let now: epochs::QueryCurrentEpochResponse =
                self.ask(CURRENT_EPOCH, &epochs::QueryCurrentEpochRequest {}).await?;
            let poc = now.phase() == epochs::Phase::Poc;
            let mut absent = Vec::new();
            let request = |pagination| participants::QueryEpochGroupRequest {
                model: model.clone(),
                pagination: Some(pagination),
            };
            self.pages(EPOCH_GROUP, request, |answer: participants::QueryEpochGroupResponse| {
                for row in answer.members {
                    if (row.in_maintenance || (poc && !row.preserved))
                        && let Ok(address) = Address::parse(&row.participant, &self.hrp)
                    {
                        absent.push(address);
                    }
                }
                answer.pagination
            })
            .await?;
            absent.sort();
            Ok(absent)
        })
    }

    fn probe_ready(&self, model: &str) -> ChainFuture<'_, Vec<ProbeReady>> {
        let model = model.to_owned();
        Box::pin(async move {
            let mut ready = Vec::new();
            let request = |pagination| breaker::QueryCircuitBreakersRequest {
                model: model.clone(),
                state: Some(breaker::State::Probe.into()),
                participant: String::new(),
                pagination: Some(pagination),
            };
            self.pages(BREAKERS, request, |answer: breaker::QueryCircuitBreakersResponse| {
                for row in answer.entries {
                    let entry = row.entry.unwrap_or_default();
                    if entry.probe.is_none()
                        && entry.forced.is_none()
                        && let Ok(participant) = Address::parse(&row.participant, &self.hrp)
                    {
                        let cooldown = (row.epoch, entry.generation, entry.probe_attempts);
                        ready.push(ProbeReady { participant, cooldown });
                    }
                }
                answer.pagination
            })
            .await?;
            Ok(ready)
        })
    }

    fn token_price(&self) -> ChainFuture<'_, u128> {
        Box::pin(async {
            let answer: inference::QueryParamsResponse =
                self.ask(INFERENCE_PARAMS, &inference::QueryParamsRequest {}).await?;
            let price = answer.params.unwrap_or_default().token_price.unwrap_or_default();
            price.amount.parse().map_err(|e| ChainError::Unreachable(format!("token_price: {e}")))
        })
    }

    fn submit(&self, order: Order, until: u64) -> ChainFuture<'_, String> {
        Box::pin(async move {
            let _in_order = self.sending.lock().await;
            let message = self.message(order).await?;
            let account = self.account().await?;
            let mut builder = TxBuilder {
                chain_id: self.chain_id.clone(),
                account_number: account.account_number,
                sequence: account.sequence,
                fee: self.fee.clone(),
                gas_limit: GAS,
                memo: String::new(),
                timeout_height: until,
                msgs: vec![message],
            };
            #[allow(deprecated)]
            let request = SimulateRequest { tx_bytes: builder.sign(&self.key), ..SimulateRequest::default() };
            let simulated: SimulateResponse = self.ask(SIMULATE, &request).await?;
            let used = simulated.gas_info.map_or(0, |gas| gas.gas_used);
            builder.gas_limit = used.saturating_add(used / 100 * GAS_MARGIN).saturating_add(10_000);
            let tx_bytes = builder.sign(&self.key);
            let request = BroadcastTxRequest { tx_bytes, mode: BroadcastMode::Sync.into() };
            // A connection that breaks here leaves open whether it was taken.
            let (answer, _): (BroadcastTxResponse, _) =
                self.channel.unary(BROADCAST, &request, None).await.map_err(unreachable)?;
            let answer = answer.tx_response.unwrap_or_default();
            match (answer.code, answer.codespace.as_str()) {
                (0, _) | (TX_IN_CACHE, "sdk") => Ok(answer.txhash),
                (code, _) => {
                    Err(ChainError::Refused { codespace: answer.codespace, code, log: answer.raw_log })
                }
            }
        })
    }

    fn outcome(&self, hash: &str) -> ChainFuture<'_, Option<TxOutcome>> {
        let request = GetTxRequest { hash: hash.to_owned() };
        Box::pin(async move {
            let Some(answer) = self.find::<_, GetTxResponse>(GET_TX, &request).await? else {
                return Ok(None);
            };
            let Some(result) = answer.tx_response else { return Ok(None) };
            let height = u64::try_from(result.height).unwrap_or(0);
            let id = result
                .events
                .iter()
                .filter(|event| event.r#type == CREATED)
                .flat_map(|event| &event.attributes)
                .find(|attribute| attribute.key == "escrow_id")
                .and_then(|attribute| attribute.value.trim_matches('"').parse().ok());
            let refused = (result.code != 0).then(|| ChainError::Refused {
                codespace: result.codespace.clone(),
                code: result.code,
                log: result.raw_log.clone(),
            });
            Ok((height > 0).then_some(TxOutcome { height, refused, escrow_id: id }))
        })
    }
}

/// Codespace `sdk`: the same bytes are there already.
const TX_IN_CACHE: u32 = 19;

fn malformed(error: convert::RowError) -> ChainError {
    ChainError::Refused { codespace: "gateway".into(), code: 2, log: error.to_string() }
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
