//! The chain behind a node's gRPC address.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_app::grpc::{ChainClient, ChainError, ChainFuture, Gas};
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::pack;
use holdfast_escrow::settlement_to_pb;
use holdfast_proto::Any;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::tx::v1beta1::{GetTxRequest, GetTxResponse};
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_proto::holdfast::epochs::v1 as epochs;
use holdfast_proto::holdfast::escrow::v1 as escrow;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_types::{Address, Coin, Hrp};

use super::{Chain, EscrowRow, NewEscrow, Order, Prices, ProbeReady, ProbeStart, TxOutcome, rows};

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

/// A chain behind a node's gRPC address. Sends one transaction at a time, so that sequences stay in order.
pub struct GrpcChain(ChainClient);

impl GrpcChain {
    /// As [`ChainClient::connect`].
    ///
    /// # Errors
    /// [`ChainError::Unreachable`].
    pub async fn connect(addr: &str, key: Arc<SecretKey>, hrp: Hrp, fee: Coin) -> Result<Self, ChainError> {
        ChainClient::connect(addr, key, hrp, fee).await.map(Self)
    }

    /// Id of the chain.
    #[must_use]
    pub fn chain_id(&self) -> &str {
        self.0.chain_id()
    }

    /// The node, for queries that a gateway does not need.
    #[must_use]
    pub fn client(&self) -> &ChainClient {
        &self.0
    }

    fn me(&self) -> String {
        self.0.address().to_bech32(self.0.hrp())
    }

    async fn message(&self, order: Order) -> Result<Any, ChainError> {
        let me = self.me();
        Ok(match order {
            Order::Create(NewEscrow { model, amount, slots, gateway_url }) => {
                let answer: escrow::QueryParamsResponse =
                    self.0.ask(ESCROW_PARAMS, &escrow::QueryParamsRequest {}).await?;
                let denom = answer.params.unwrap_or_default().denom;
                let amount = Some(PbCoin { denom, amount: amount.to_string() });
                let (creator, gateway) = (me.clone(), me);
                pack(&escrow::MsgCreateEscrow { creator, gateway, gateway_url, model, amount, slots })
            }
            Order::Settle(summary) => pack(&escrow::MsgSettleEscrow {
                sender: me,
                escrow_id: summary.escrow_id,
                settlement: Some(settlement_to_pb(&summary, self.0.hrp())),
            }),
            Order::Dispute(summary) => pack(&escrow::MsgDisputeEscrow {
                sender: me,
                escrow_id: summary.escrow_id,
                settlement: Some(settlement_to_pb(&summary, self.0.hrp())),
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
                assigned_to: assigned_to.to_bech32(self.0.hrp()),
                prompt_hash: prompt_hash.to_vec(),
                prompt_tokens: prompt_tokens.into(),
                max_tokens: max_tokens.into(),
            }),
        })
    }
}

impl Chain for GrpcChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(self.0.height())
    }

    fn escrow(&self, id: u64) -> ChainFuture<'_, Option<EscrowRow>> {
        Box::pin(async move {
            let request = escrow::QueryEscrowRequest { escrow_id: id };
            let Some(answer) = self.0.find(ESCROW, &request).await? else { return Ok(None) };
            let row = rows::escrow(answer, self.0.hrp())?;
            if row.config.escrow_id != id || row.config.chain_id != self.chain_id() {
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
            self.0
                .pages(ESCROWS, request, |answer: escrow::QueryEscrowsResponse| {
                    rows.extend(
                        answer.escrows.into_iter().filter_map(|row| rows::plain(row, self.0.hrp()).ok()),
                    );
                    answer.pagination
                })
                .await?;
            rows.retain(|row| row.config.gateway == self.0.address());
            Ok(rows)
        })
    }

    fn host_urls(&self) -> ChainFuture<'_, BTreeMap<Address, String>> {
        Box::pin(async {
            let mut urls = BTreeMap::new();
            let request =
                |pagination| participants::QueryParticipantsRequest { pagination: Some(pagination) };
            self.0
                .pages(PARTICIPANTS, request, |answer: participants::QueryParticipantsResponse| {
                    for row in answer.participants.into_iter().filter(|row| !row.host_url.is_empty()) {
                        if let Ok(address) = Address::parse(&row.address, self.0.hrp()) {
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
                self.0.ask(CURRENT_EPOCH, &epochs::QueryCurrentEpochRequest {}).await?;
            let poc = now.phase() == epochs::Phase::Poc;
            let mut absent = Vec::new();
            let request = |pagination| participants::QueryEpochGroupRequest {
                model: model.clone(),
                pagination: Some(pagination),
            };
            self.0
                .pages(EPOCH_GROUP, request, |answer: participants::QueryEpochGroupResponse| {
                    for row in answer.members {
                        if (row.in_maintenance || (poc && !row.preserved))
                            && let Ok(address) = Address::parse(&row.participant, self.0.hrp())
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
            self.0
                .pages(BREAKERS, request, |answer: breaker::QueryCircuitBreakersResponse| {
                    for row in answer.entries {
                        let entry = row.entry.unwrap_or_default();
                        if entry.probe.is_none()
                            && entry.forced.is_none()
                            && let Ok(participant) = Address::parse(&row.participant, self.0.hrp())
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
                self.0.ask(INFERENCE_PARAMS, &inference::QueryParamsRequest {}).await?;
            let price = answer.params.unwrap_or_default().token_price.unwrap_or_default();
            price.amount.parse().map_err(|e| ChainError::Unreachable(format!("token_price: {e}")))
        })
    }

    fn prices(&self) -> ChainFuture<'_, Prices> {
        Box::pin(async {
            let answer: escrow::QueryParamsResponse =
                self.0.ask(ESCROW_PARAMS, &escrow::QueryParamsRequest {}).await?;
            let params = answer.params.unwrap_or_default();
            let price = |field: &str, text: &str| {
                text.parse().map_err(|e| ChainError::Unreachable(format!("escrow params: {field}: {e}")))
            };
            Ok(Prices {
                create_fee: price("create_fee", &params.create_fee)?,
                fee_per_nonce: price("fee_per_nonce", &params.fee_per_nonce)?,
                token_price: price("token_price", &params.token_price)?,
            })
        })
    }

    fn submit(&self, order: Order, until: u64) -> ChainFuture<'_, String> {
        Box::pin(async move {
            let mut sender = self.0.sender().await?;
            sender.send(self.message(order).await?, Gas::Simulated, until).await
        })
    }

    fn outcome(&self, hash: &str) -> ChainFuture<'_, Option<TxOutcome>> {
        let request = GetTxRequest { hash: hash.to_owned() };
        Box::pin(async move {
            let Some(answer) = self.0.find::<_, GetTxResponse>(GET_TX, &request).await? else {
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
