//! Every message of the chain, signed and broadcast by cosmrs.

use std::collections::BTreeSet;

use cosmrs::proto::cosmos::base::abci::v1beta1::TxMsgData;
use cosmrs::proto::cosmos::gov::v1 as gov;
use cosmrs::proto::cosmos::tx::v1beta1::SimulateRequest;
use cosmrs::proto::cosmos::upgrade::v1beta1 as upgrade;
use cosmrs::tx::Msg;
use holdfast_proto::cosmos::auth::v1beta1 as auth;
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::cosmos::gov::v1 as own_gov;
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_proto::holdfast::epochs::v1 as epochs;
use holdfast_proto::holdfast::escrow::v1 as escrow;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::{FieldMask, Message, Name, pool};
use tonic::Code;

use crate::chain::{Chain, DENOM, DEPOSIT, EPOCH, EXPEDITED, FUNDS, MODELS, Node, address, module_address};
use crate::client::{Client, FEE, Wallet, altered, any, attributes, block_on, coin, submit, vote};

type TxResponse = cosmrs::proto::cosmos::base::abci::v1beta1::TxResponse;

/// Every message that a `Msg` service takes.
fn message_types() -> BTreeSet<String> {
    let services = pool().expect("descriptors").services().filter(|service| service.name() == "Msg");
    services
        .flat_map(|s| s.methods().map(|m| format!("/{}", m.input().full_name())).collect::<Vec<_>>())
        .collect()
}

fn uhold(amount: u128) -> Option<Coin> {
    Some(Coin { denom: DENOM.into(), amount: amount.to_string() })
}

#[track_caller]
fn good(response: &TxResponse) {
    assert_eq!((response.code, response.raw_log.as_str()), (0, ""), "{response:?}");
    assert!(response.gas_used > 0 && response.gas_used <= response.gas_wanted);
}

#[track_caller]
fn bad(response: &TxResponse, codespace: &str, code: u32, text: &str) {
    assert_eq!((response.codespace.as_str(), response.code), (codespace, code), "{}", response.raw_log);
    assert!(response.raw_log.contains(text), "{text:?} is not in: {}", response.raw_log);
}

/// The answer to the first message of a transaction.
fn answer<A: Message + Name + Default>(response: &TxResponse) -> A {
    let data = hex::decode(&response.data).expect("hex");
    let data = TxMsgData::decode(data.as_slice()).expect("TxMsgData");
    let first = data.msg_responses.first().expect("an answer");
    assert_eq!(first.type_url, holdfast_proto::type_url::<A>());
    A::decode(first.value.as_slice()).expect("the answer decodes")
}

/// A chain with a gateway (key 1), a participant to be (3) and an executor (9), and what was sent on it.
struct Scene {
    client: Client,
    gateway: Wallet,
    joiner: Wallet,
    executor: Wallet,
    sent: BTreeSet<String>,
}

impl Scene {
    async fn new(node: &Node, chain: &Chain) -> Self {
        let client = Client::connect(&node.addr).await;
        let open = async |number| Wallet::open(&client, chain.id, number).await;
        let (gateway, joiner, executor) = (open(1).await, open(3).await, open(9).await);
        Self { gateway, joiner, executor, sent: BTreeSet::new(), client }
    }

    async fn gateway<M: Message + Name>(&mut self, message: M) -> TxResponse {
        self.sent.insert(holdfast_proto::type_url::<M>());
        self.gateway.send(any(&message)).await
    }

    async fn joiner<M: Message + Name>(&mut self, message: M) -> TxResponse {
        self.sent.insert(holdfast_proto::type_url::<M>());
        self.joiner.send(any(&message)).await
    }

    async fn executor<M: Message + Name>(&mut self, message: M) -> TxResponse {
        self.sent.insert(holdfast_proto::type_url::<M>());
        self.executor.send(any(&message)).await
    }

    async fn participant(&self) -> participants::Participant {
        let request = participants::QueryParticipantRequest { participant: self.joiner.id.to_string() };
        let path = "/holdfast.participants.v1.Query/Participant";
        let answer: participants::QueryParticipantResponse =
            self.client.call(path, &request).await.expect("known");
        answer.participant.expect("a participant")
    }

    async fn windows(&self) -> usize {
        let request = participants::QueryMaintenanceRequest { participant: self.joiner.id.to_string() };
        let path = "/holdfast.participants.v1.Query/Maintenance";
        let answer: participants::QueryMaintenanceResponse =
            self.client.call(path, &request).await.expect("known");
        answer.windows.len()
    }

    async fn inference(&self, id: &str) -> inference::Inference {
        let request = inference::QueryInferenceRequest { inference_id: id.into() };
        let path = "/holdfast.inference.v1.Query/Inference";
        let answer: inference::QueryInferenceResponse =
            self.client.call(path, &request).await.expect("known");
        answer.inference.expect("an inference")
    }

    async fn epoch(&self) -> epochs::QueryCurrentEpochResponse {
        let path = "/holdfast.epochs.v1.Query/CurrentEpoch";
        self.client.call(path, &epochs::QueryCurrentEpochRequest {}).await.expect("an epoch")
    }

    fn start(&self, id: &str, model: &str, assigned_to: &str) -> inference::MsgStartInference {
        inference::MsgStartInference {
            signer: self.gateway.id.to_string(),
            requested_by: self.gateway.id.to_string(),
            inference_id: id.into(),
            model: model.into(),
            assigned_to: assigned_to.into(),
            prompt_hash: vec![7; 32],
            prompt_tokens: 100,
            max_tokens: 200,
        }
    }
}

fn finish(by: &Wallet, id: &str) -> inference::MsgFinishInference {
    inference::MsgFinishInference {
        executed_by: by.id.to_string(),
        inference_id: id.into(),
        response_hash: vec![8; 32],
        prompt_tokens: 100,
        completion_tokens: 50,
    }
}

/// A transfer, its events and its simulation.
async fn transfer(scene: &mut Scene) {
    let (from_address, to_address) = (scene.gateway.id.clone(), address(2));
    let send = cosmrs::bank::MsgSend { from_address, to_address, amount: vec![coin(1_000, DENOM)] };
    let message = send.to_any().expect("cosmrs packs it");
    let url = message.type_url.clone();
    scene.sent.insert(url.clone());
    let response = scene.gateway.send(message.clone()).await;
    good(&response);
    assert_eq!(scene.gateway.balance().await, FUNDS - 1_000 - FEE);
    assert_eq!(scene.client.balance(&address(2)).await, 1_000);
    let (gateway, receiver) = (scene.gateway.id.to_string(), address(2).to_string());
    assert_eq!(attributes(&response, "tx", "fee"), [format!("{FEE}{DENOM}")]);
    assert_eq!(attributes(&response, "tx", "fee_payer"), [gateway.as_str()]);
    assert_eq!(attributes(&response, "tx", "acc_seq"), [format!("{gateway}/0")]);
    assert_eq!(attributes(&response, "message", "action"), [url]);
    // The fee moves coins too.
    assert_eq!(attributes(&response, "transfer", "recipient").last(), Some(&receiver));
    assert_eq!(attributes(&response, "transfer", "amount").last().map(String::as_str), Some("1000uhold"));
    assert_eq!(attributes(&response, "coin_received", "receiver").last(), Some(&receiver));
    assert_eq!(attributes(&response, "transfer", "msg_index").last().map(String::as_str), Some("0"));

    // Simulated without a signature; then sent with just the gas that was named.
    let mut draft = scene.gateway.draft(vec![message.clone()]);
    let unsigned = altered(&draft.sign(&scene.gateway.key), |tx| tx.signatures = vec![Vec::new()]);
    #[allow(deprecated)] // cosmrs marks the field that is not set here
    let request = SimulateRequest { tx: None, tx_bytes: unsigned };
    let simulated = scene.client.tx().simulate(request).await.expect("an answer").into_inner();
    let gas = simulated.gas_info.expect("gas").gas_used;
    assert!((10_000..200_000).contains(&gas), "{gas}");
    draft.gas = gas;
    let response = scene.gateway.send_draft(&draft).await;
    good(&response);
    assert_eq!(response.gas_wanted, i64::try_from(gas).expect("small"));

    // What would fail says so with its code, and nothing was written.
    let (from_address, to_address) = (scene.gateway.id.clone(), address(2));
    let send = cosmrs::bank::MsgSend { from_address, to_address, amount: vec![coin(FUNDS, DENOM)] };
    let message = send.to_any().expect("cosmrs packs it");
    let raw = scene.gateway.draft(vec![message.clone()]).sign(&scene.gateway.key);
    #[allow(deprecated)]
    let request = SimulateRequest { tx: None, tx_bytes: raw };
    let status = scene.client.tx().simulate(request).await.expect_err("too much");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("[sdk 5]"), "{status}");
    // In a block it costs the fee and a sequence, and moves nothing.
    let before = scene.gateway.balance().await;
    let response = scene.gateway.send(message).await;
    bad(&response, "sdk", 5, "message 0");
    assert!(attributes(&response, "message", "action").is_empty());
    assert_eq!(scene.gateway.balance().await, before - FEE);
    assert_eq!(scene.client.balance(&address(2)).await, 2_000);
}

/// A participant joins, changes, deposits, announces; returns the epoch from which it can claim 30.
async fn join(scene: &mut Scene) -> u64 {
    let participant = scene.joiner.id.to_string();
    let claim = participants::MsgClaimCollateral { participant: participant.clone() };
    bad(&scene.joiner(claim.clone()).await, "participants", 5, "not registered");
    let register = participants::MsgRegisterParticipant {
        participant: participant.clone(),
        validator_key: vec![3; 32],
        host_url: "https://three.example".into(),
        workers: vec![participants::WorkerEndpoint {
            url: "grpc://10.0.0.3:80".into(),
            first_layer: 0,
            last_layer: 31,
        }],
        models: vec![MODELS[0].into()],
        poc_preserved: false,
        collateral: uhold(50),
    };
    let before = scene.joiner.balance().await;
    let response = scene.joiner(register.clone()).await;
    good(&response);
    assert_eq!(scene.joiner.balance().await, before - 50 - FEE);
    let kind = "holdfast.participants.v1.EventParticipantRegistered";
    assert_eq!(attributes(&response, kind, "participant"), [participant.as_str()]);
    let joined: u64 = attributes(&response, kind, "joined_epoch")[0].parse().expect("a number");
    let epoch_of = |height: i64| u64::try_from((height - 1) / EPOCH).expect("a height");
    assert_eq!(joined, epoch_of(response.height) + 1, "serving begins with the next epoch");
    bad(&scene.joiner(register).await, "participants", 6, "registered already");
    bad(&scene.joiner(claim).await, "participants", 9, "no collateral is unbonding");

    let update = participants::MsgUpdateParticipant {
        participant: participant.clone(),
        host_url: "https://new.example".into(),
        workers: Vec::new(),
        models: MODELS.iter().map(|m| m.to_string()).collect(),
        poc_preserved: true,
    };
    let response = scene.joiner(update.clone()).await;
    good(&response);
    let kind = "holdfast.participants.v1.EventParticipantUpdated";
    assert_eq!(attributes(&response, kind, "participant"), [participant.as_str()]);
    let unknown = participants::MsgUpdateParticipant { models: vec!["none".into()], ..update };
    bad(&scene.joiner(unknown).await, "participants", 4, "none");

    let deposit = participants::MsgDepositCollateral { participant: participant.clone(), amount: uhold(25) };
    let response = scene.joiner(deposit).await;
    good(&response);
    let kind = "holdfast.participants.v1.EventCollateralDeposited";
    assert_eq!(attributes(&response, kind, "amount"), ["25uhold"]);
    let known = scene.participant().await;
    assert_eq!((known.host_url.as_str(), known.collateral.as_str()), ("https://new.example", "75"));
    assert_eq!(
        (known.models.as_slice(), known.workers.len(), known.poc_preserved),
        (&MODELS.map(String::from)[..], 0, true)
    );

    let start_height = response.height + 10_000;
    let announce = participants::MsgAnnounceMaintenance {
        participant: participant.clone(),
        start_height,
        end_height: start_height + 10,
    };
    let response = scene.joiner(announce.clone()).await;
    good(&response);
    let kind = "holdfast.participants.v1.EventMaintenanceAnnounced";
    assert_eq!(attributes(&response, kind, "start_height"), [start_height.to_string()]);
    assert_eq!(scene.windows().await, 1);
    let late = participants::MsgAnnounceMaintenance { start_height: 1, end_height: 5, ..announce };
    bad(&scene.joiner(late).await, "participants", 10, "start_height");
    let cancel = participants::MsgCancelMaintenance { participant: participant.clone(), start_height };
    good(&scene.joiner(cancel.clone()).await);
    assert_eq!(scene.windows().await, 0);
    bad(&scene.joiner(cancel).await, "participants", 12, "start_height");

    let withdraw = participants::MsgWithdrawCollateral { participant, amount: uhold(30) };
    let response = scene.joiner(withdraw.clone()).await;
    good(&response);
    let epoch = answer::<participants::MsgWithdrawCollateralResponse>(&response).unbonding_epoch;
    assert_eq!(epoch, epoch_of(response.height) + 1, "it backs the weight of this epoch");
    let much = participants::MsgWithdrawCollateral { amount: uhold(46), ..withdraw };
    bad(&scene.joiner(much).await, "participants", 8, "45 is bonded");
    epoch
}

/// Inferences that are answered, reported, withdrawn, and what is refused on the way.
async fn infer(scene: &mut Scene) {
    let (gateway, executor) = (scene.gateway.id.to_string(), scene.executor.id.to_string());
    let before = (scene.gateway.balance().await, scene.executor.balance().await);

    let response = scene.gateway(scene.start("answered", MODELS[0], &executor)).await;
    good(&response);
    let kind = "holdfast.inference.v1.EventInferenceStarted";
    assert_eq!(attributes(&response, kind, "inference_id"), ["answered"]);
    assert_eq!(attributes(&response, kind, "assigned_to"), [executor.as_str()]);
    // 300 tokens at 1 each, paid in advance.
    assert_eq!(scene.gateway.balance().await, before.0 - FEE - 300);
    assert_eq!(scene.client.balance(&module_address("inference")).await, 300);
    assert_eq!(scene.inference("answered").await.status(), inference::InferenceStatus::Started);
    bad(&scene.gateway(scene.start("answered", MODELS[0], &executor)).await, "inference", 7, "answered");
    bad(&scene.joiner(finish(&scene.joiner, "answered")).await, "inference", 14, &executor);
    let response = scene.executor(finish(&scene.executor, "answered")).await;
    good(&response);
    let kind = "holdfast.inference.v1.EventInferenceFinished";
    assert_eq!(attributes(&response, kind, "inference_id"), ["answered"]);
    let ended = scene.inference("answered").await;
    assert_eq!(ended.status(), inference::InferenceStatus::Finished);
    assert_eq!((ended.paid.as_str(), ended.refunded.as_str()), ("150", "150"));
    assert_eq!(scene.gateway.balance().await, before.0 - 2 * FEE - 150);
    assert_eq!(scene.executor.balance().await, before.1 - FEE + 150);
    bad(&scene.executor(finish(&scene.executor, "answered")).await, "inference", 12, "closed");

    good(&scene.gateway(scene.start("reported", MODELS[0], &executor)).await);
    let report =
        inference::MsgReportFailure { executor: executor.clone(), inference_id: "reported".into(), kind: 4 };
    let response = scene.executor(report).await;
    good(&response);
    let kind = "holdfast.inference.v1.EventInferenceMissed";
    assert_eq!(attributes(&response, kind, "cause"), ["reported"]);
    let ended = scene.inference("reported").await;
    assert_eq!(ended.status(), inference::InferenceStatus::Failed);
    assert_eq!((ended.refunded.as_str(), ended.failure_kind), ("300", 4));

    good(&scene.gateway(scene.start("withdrawn", MODELS[1], &executor)).await);
    let cancel =
        inference::MsgCancelInference { requested_by: gateway.clone(), inference_id: "withdrawn".into() };
    let foreign =
        inference::MsgCancelInference { requested_by: scene.joiner.id.to_string(), ..cancel.clone() };
    bad(&scene.joiner(foreign).await, "inference", 2, &gateway);
    let response = scene.gateway(cancel).await;
    good(&response);
    let kind = "holdfast.inference.v1.EventInferenceReleased";
    assert_eq!(attributes(&response, kind, "cause"), ["cancelled"]);
    assert_eq!(scene.inference("withdrawn").await.status(), inference::InferenceStatus::Cancelled);

    let unknown = inference::MsgCancelInference { requested_by: gateway, inference_id: "never".into() };
    bad(&scene.gateway(unknown).await, "inference", 11, "never");
    bad(&scene.gateway(scene.start("no-model", "none", &executor)).await, "inference", 4, "none");
    let stranger = address(200).to_string();
    bad(&scene.gateway(scene.start("no-one", MODELS[0], &stranger)).await, "inference", 6, &stranger);
    // Six starts and two cancels of the gateway; 150 of all tokens was earned, the rest came back.
    assert_eq!(scene.gateway.balance().await, before.0 - 8 * FEE - 150);
    assert_eq!(scene.client.balance(&module_address("inference")).await, 0);
}

/// The participant serves in its first epoch, claims what it took out, and leaves.
async fn serve_and_leave(scene: &mut Scene, claimable: u64) {
    for _ in 0..2_000 {
        if scene.epoch().await.epoch.is_some_and(|epoch| epoch.index >= claimable) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let participant = scene.joiner.id.to_string();
    let request = participants::QueryEpochGroupRequest { model: MODELS[1].into(), pagination: None };
    let path = "/holdfast.participants.v1.Query/EpochGroup";
    let group: participants::QueryEpochGroupResponse =
        scene.client.call(path, &request).await.expect("a group");
    let member = group.members.iter().find(|m| m.participant == participant).expect("it serves");
    assert_eq!((member.weight, member.active), (45, true), "75 bonded less 30 taken out");

    let before = scene.joiner.balance().await;
    let response = scene.joiner(participants::MsgClaimCollateral { participant: participant.clone() }).await;
    good(&response);
    assert_eq!(answer::<participants::MsgClaimCollateralResponse>(&response).amount, uhold(30));
    assert_eq!(scene.joiner.balance().await, before + 30 - FEE);

    good(&scene.gateway(scene.start("joined", MODELS[1], &participant)).await);
    good(&scene.joiner(finish(&scene.joiner, "joined")).await);

    let response = scene.joiner(participants::MsgLeaveNetwork { participant: participant.clone() }).await;
    good(&response);
    let kind = "holdfast.participants.v1.EventParticipantLeft";
    assert_eq!(attributes(&response, kind, "participant"), [participant.as_str()]);
    let known = scene.participant().await;
    assert_eq!(known.status(), participants::ParticipantStatus::Left);
    assert_eq!((known.collateral.as_str(), known.unbonding.as_str()), ("0", "45"));
    bad(&scene.gateway(scene.start("left", MODELS[1], &participant)).await, "inference", 8, &participant);
    bad(
        &scene.joiner(participants::MsgLeaveNetwork { participant }).await,
        "participants",
        5,
        "not registered",
    );
}

/// Who may change parameters is an account without a key, so nobody else gets through either way.
async fn authority_only(scene: &mut Scene) {
    async fn both<M: Message + Name>(
        scene: &mut Scene,
        (module, code): (&str, u32),
        message: impl Fn(String) -> M,
    ) {
        let gov = module_address("gov").to_string();
        // In the name of the module account: nobody can sign for it.
        let raw = scene.gateway.draft(vec![any(&message(gov.clone()))]).sign(&scene.gateway.key);
        let response = scene.client.broadcast(raw).await;
        bad(&response, "sdk", 4, &gov);
        // In one's own name: the module refuses.
        let own = message(scene.gateway.id.to_string());
        bad(&scene.gateway(own).await, module, code, "authority");
    }
    let mask = |path: &str| Some(FieldMask { paths: vec![path.into()] });
    both(scene, ("epochs", 2), |authority| epochs::MsgUpdateParams {
        authority,
        params: Some(epochs::Params { epoch_length: 7, poc_length: 0 }),
        update_mask: mask("epoch_length"),
    })
    .await;
    both(scene, ("participants", 2), |authority| participants::MsgRegisterModel {
        authority,
        model: Some(participants::Model { id: "model-3".into() }),
    })
    .await;
    both(scene, ("participants", 2), |authority| participants::MsgUpdateParams {
        authority,
        params: Some(participants::Params { max_models: 7, ..Default::default() }),
        update_mask: mask("max_models"),
    })
    .await;
    both(scene, ("inference", 2), |authority| inference::MsgUpdateParams {
        authority,
        params: Some(inference::Params { token_price: uhold(7), ..Default::default() }),
        update_mask: mask("token_price"),
    })
    .await;
    let executor = scene.executor.id.to_string();
    both(scene, ("breaker", 2), |authority| breaker::MsgSetBreakerOverride {
        authority,
        model: MODELS[0].into(),
        participant: executor.clone(),
        to: breaker::OverrideTo::Excluded.into(),
        until_block: 10_000,
    })
    .await;
    both(scene, ("escrow", 2), |authority| escrow::MsgUpdateParams {
        authority,
        params: Some(escrow::Params { max_live: 9, ..Default::default() }),
        update_mask: mask("max_live"),
    })
    .await;
    both(scene, ("auth", 4), |authority| auth::MsgUpdateParams {
        authority,
        params: Some(auth::Params { max_memo_characters: 7, ..Default::default() }),
        update_mask: mask("max_memo_characters"),
    })
    .await;
    both(scene, ("gov", 13), |authority| own_gov::MsgUpdateParams {
        authority,
        params: Some(own_gov::Params { quorum: "0.1".into(), ..Default::default() }),
        update_mask: mask("quorum"),
    })
    .await;
    both(scene, ("gov", 13), |authority| upgrade::MsgSoftwareUpgrade { authority, plan: Some(plan()) }).await;
    both(scene, ("gov", 13), |authority| upgrade::MsgCancelUpgrade { authority }).await;
}

/// Coins for a group of one, and states of it that nobody signed.
async fn escrowed(scene: &mut Scene) {
    let gateway = scene.gateway.id.to_string();
    let before = scene.gateway.balance().await;
    let create = escrow::MsgCreateEscrow {
        creator: gateway.clone(),
        gateway: gateway.clone(),
        gateway_url: "http://127.0.0.1:8090".into(),
        model: MODELS[0].into(),
        amount: uhold(5_000),
        slots: 1,
    };
    let response = scene.gateway(create.clone()).await;
    good(&response);
    let escrow_id = answer::<escrow::MsgCreateEscrowResponse>(&response).escrow_id;
    let kind = "holdfast.escrow.v1.EventEscrowCreated";
    assert_eq!(attributes(&response, kind, "amount"), ["5000uhold"]);
    assert_eq!(scene.gateway.balance().await, before - FEE - 5_000);
    assert_eq!(scene.client.balance(&module_address("escrow")).await, 5_000);
    // Two executors cannot hold four slots of four.
    bad(&scene.gateway(escrow::MsgCreateEscrow { slots: 4, ..create }).await, "escrow", 5, "slots");

    let request = escrow::QueryEscrowRequest { escrow_id };
    let found: escrow::QueryEscrowResponse =
        scene.client.call("/holdfast.escrow.v1.Query/Escrow", &request).await.expect("an answer");
    let owners = found.escrow.and_then(|escrow| escrow.config).expect("terms").slots;
    // Whoever of the two that serve the model.
    let members = [scene.executor.id.to_string(), scene.joiner.id.to_string()];
    assert!(owners.len() == 1 && members.contains(&owners[0]), "{owners:?}");
    let request =
        escrow::QueryEscrowsByParticipantRequest { participant: owners[0].clone(), ..Default::default() };
    let path = "/holdfast.escrow.v1.Query/EscrowsByParticipant";
    let found: escrow::QueryEscrowsByParticipantResponse =
        scene.client.call(path, &request).await.expect("an answer");
    assert_eq!(found.escrows.len(), 1);

    // The state before the first diff: nothing is live, and nobody signed.
    let stats = escrow::SlotStats { cost: "0".into(), ..Default::default() };
    let state = escrow::Settlement {
        balance: "4000".into(),
        fees: "1000".into(),
        stats: vec![stats],
        sealed_acc: vec![0; 32],
        live_hash: vec![0; 32],
        ..Default::default()
    };
    let (sender, settlement) = (gateway, Some(state));
    let settle =
        escrow::MsgSettleEscrow { sender: sender.clone(), escrow_id, settlement: settlement.clone() };
    bad(&scene.gateway(settle).await, "escrow", 13, "phase");
    let dispute = escrow::MsgDisputeEscrow { sender, escrow_id, settlement };
    bad(&scene.gateway(dispute.clone()).await, "escrow", 9, "until then settle it");
    let unknown = escrow::MsgDisputeEscrow { escrow_id: escrow_id + 1, ..dispute };
    bad(&scene.gateway(unknown).await, "escrow", 7, "no escrow");
}

/// An upgrade at a height that no test reaches.
fn plan() -> upgrade::Plan {
    upgrade::Plan { name: "v9".into(), height: 1_000_000, info: "{}".into(), ..Default::default() }
}

/// Waits until the chain says so.
async fn soon(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if ask().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("not in time: {what}");
}

/// One message of every module that has parameters, and the others that only the authority may send.
fn of_the_authority(executor: &str) -> Vec<cosmrs::Any> {
    let authority = module_address("gov").to_string();
    let mask = |path: &str| Some(FieldMask { paths: vec![path.into()] });
    vec![
        any(&auth::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(auth::Params { max_memo_characters: 300, ..Default::default() }),
            update_mask: mask("max_memo_characters"),
        }),
        any(&epochs::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(epochs::Params { epoch_length: 30, poc_length: 0 }),
            update_mask: mask("epoch_length"),
        }),
        any(&participants::MsgRegisterModel {
            authority: authority.clone(),
            model: Some(participants::Model { id: "model-3".into() }),
        }),
        any(&participants::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(participants::Params { max_models: 7, ..Default::default() }),
            update_mask: mask("max_models"),
        }),
        any(&inference::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(inference::Params { token_price: uhold(7), ..Default::default() }),
            update_mask: mask("token_price"),
        }),
        any(&breaker::MsgSetBreakerOverride {
            authority: authority.clone(),
            model: MODELS[0].into(),
            participant: executor.into(),
            to: breaker::OverrideTo::Excluded.into(),
            until_block: 100_000,
        }),
        any(&escrow::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(escrow::Params { max_live: 9, ..Default::default() }),
            update_mask: mask("max_live"),
        }),
        any(&own_gov::MsgUpdateParams {
            authority: authority.clone(),
            params: Some(own_gov::Params { quorum: "0.2".into(), ..Default::default() }),
            update_mask: mask("quorum"),
        }),
        any(&upgrade::MsgSoftwareUpgrade { authority, plan: Some(plan()) }),
    ]
}

/// A proposal collects its deposit, is voted on and changes what only governance can; returns what was burned.
async fn govern(scene: &mut Scene) -> u128 {
    let before = (scene.gateway.balance().await, scene.joiner.balance().await);
    let executor = scene.executor.id.to_string();
    let messages = of_the_authority(&executor);
    let response = scene.gateway(submit(&scene.gateway, "All at once", messages.clone(), DEPOSIT - 6)).await;
    good(&response);
    assert_eq!(answer::<gov::MsgSubmitProposalResponse>(&response).proposal_id, 1);
    assert_eq!(attributes(&response, "submit_proposal", "proposal_id"), ["1"]);
    assert!(attributes(&response, "submit_proposal", "voting_period_start").is_empty());
    assert_eq!(attributes(&response, "proposal_deposit", "amount"), ["9999994uhold"]);
    let open = scene.client.proposal(1).await.expect("known");
    assert_eq!((open.status(), &open.messages), (gov::ProposalStatus::DepositPeriod, &messages));
    assert_eq!((open.title.as_str(), open.proposer), ("All at once", scene.gateway.id.to_string()));
    let yes = vote(&scene.executor, 1, gov::VoteOption::Yes);
    bad(&scene.executor(yes.clone()).await, "gov", 3, "deposits");

    // Too little for one deposit, which is a hundredth of all at least.
    let depositor = scene.joiner.id.to_string();
    let deposit = gov::MsgDeposit { proposal_id: 1, depositor, amount: vec![coin(6, DENOM).into()] };
    bad(&scene.joiner(deposit.clone()).await, "gov", 16, "amount");
    let deposit = gov::MsgDeposit { amount: vec![coin(100_000, DENOM).into()], ..deposit };
    let response = scene.joiner(deposit).await;
    good(&response);
    assert_eq!(attributes(&response, "proposal_deposit", "voting_period_start"), ["1"]);
    assert_eq!(scene.client.balance(&module_address("gov")).await, DEPOSIT - 6 + 100_000);
    let deposits = gov::QueryDepositsRequest { proposal_id: 1, pagination: None };
    let deposits = scene.client.gov().deposits(deposits).await.expect("an answer").into_inner().deposits;
    assert_eq!(deposits.len(), 2);

    let response = scene.executor(yes).await;
    good(&response);
    assert_eq!(attributes(&response, "proposal_vote", "proposal_id"), ["1"]);
    let part = |option: gov::VoteOption, weight: &str| gov::WeightedVoteOption {
        option: option.into(),
        weight: weight.into(),
    };
    let options = vec![part(gov::VoteOption::Yes, "0.7"), part(gov::VoteOption::Abstain, "0.3")];
    let voter = executor.clone();
    let parts = gov::MsgVoteWeighted { proposal_id: 1, voter, options, metadata: "both".into() };
    good(&scene.executor(parts).await);
    let request = gov::QueryVoteRequest { proposal_id: 1, voter: executor.clone() };
    let stored =
        scene.client.gov().vote(request).await.expect("an answer").into_inner().vote.expect("a vote");
    assert_eq!((stored.options.len(), stored.metadata.as_str()), (2, "both"), "the later vote counts");

    let decided = scene.client.decided(1).await;
    assert_eq!(decided.status(), gov::ProposalStatus::Passed, "{decided:?}");
    let tally = decided.final_tally_result.expect("a count");
    assert_eq!((tally.yes_count.as_str(), tally.abstain_count.as_str()), ("70", "30"));
    assert_eq!((tally.no_count.as_str(), tally.no_with_veto_count.as_str()), ("0", "0"));
    changed(scene, &executor).await;

    cancelled_upgrade(scene).await;

    // Taken back by its proposer: half of the deposit is burned.
    let text = gov::MsgSubmitProposal {
        metadata: "only words".into(),
        ..submit(&scene.gateway, "Words", Vec::new(), 200_000)
    };
    let response = scene.gateway(text).await;
    good(&response);
    let proposal_id = answer::<gov::MsgSubmitProposalResponse>(&response).proposal_id;
    let cancel = gov::MsgCancelProposal { proposal_id, proposer: scene.gateway.id.to_string() };
    let response = scene.gateway(cancel).await;
    good(&response);
    let cancelled: gov::MsgCancelProposalResponse = answer(&response);
    assert_eq!(cancelled.canceled_height, u64::try_from(response.height).expect("a height"));
    let gone = scene.client.proposal(proposal_id).await.expect_err("it is gone");
    assert_eq!(gone.code(), Code::NotFound);

    // All other deposits are back.
    let client = scene.client.clone();
    soon("deposits are settled", async || client.balance(&module_address("gov")).await == 0).await;
    let fees = (5 * FEE, 2 * FEE);
    assert_eq!(scene.gateway.balance().await, before.0 - 100_000 - fees.0);
    assert_eq!(scene.joiner.balance().await, before.1 - fees.1);
    100_000
}

/// What [`of_the_authority`] asks for is so, some of it from the next epoch on.
async fn changed(scene: &Scene, executor: &str) {
    let client = &scene.client;
    async fn read<A: Message + Default>(client: &Client, path: &str) -> A {
        let (answer, _) = client.raw(path, Vec::new(), None).await.expect("an answer");
        A::decode(answer.as_slice()).expect("it decodes")
    }
    let answer: auth::QueryParamsResponse = read(client, "/cosmos.auth.v1beta1.Query/Params").await;
    assert_eq!(answer.params.expect("params").max_memo_characters, 300);
    let answer: participants::QueryModelsResponse =
        read(client, "/holdfast.participants.v1.Query/Models").await;
    assert_eq!(
        answer.models.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(),
        [MODELS[0], MODELS[1], "model-3"]
    );
    let answer: breaker::QueryOverridesResponse = read(client, "/holdfast.breaker.v1.Query/Overrides").await;
    let row = answer.overrides.first().expect("an override");
    assert_eq!((row.participant.as_str(), row.to()), (executor, breaker::OverrideTo::Excluded));
    let params = gov::QueryParamsRequest { params_type: "tallying".into() };
    let params = client.gov().params(params).await.expect("an answer").into_inner().params.expect("params");
    assert_eq!(
        (params.quorum.as_str(), params.threshold.as_str()),
        ("0.200000000000000000", "0.500000000000000000")
    );
    assert_eq!(client.plan().await.map(|plan| (plan.name, plan.height)), Some(("v9".into(), 1_000_000)));
    soon("participants' parameters", async || {
        let answer: participants::QueryParamsResponse =
            read(client, "/holdfast.participants.v1.Query/Params").await;
        answer.params.expect("params").max_models == 7
    })
    .await;
    soon("inference's parameters", async || {
        let answer: inference::QueryParamsResponse =
            read(client, "/holdfast.inference.v1.Query/Params").await;
        answer.params.expect("params").token_price == uhold(7)
    })
    .await;
    soon("the length of an epoch", async || {
        let answer: epochs::QueryCurrentEpochResponse =
            read(client, "/holdfast.epochs.v1.Query/CurrentEpoch").await;
        answer.epoch.expect("an epoch").length == 30
    })
    .await;
}

/// Two expedited proposals pass; the second one can no longer be done when its turn comes, and changes nothing.
async fn cancelled_upgrade(scene: &mut Scene) {
    let authority = module_address("gov").to_string();
    let cancel = any(&upgrade::MsgCancelUpgrade { authority: authority.clone() });
    let free = any(&breaker::MsgSetBreakerOverride {
        authority: authority.clone(),
        model: MODELS[0].into(),
        participant: scene.executor.id.to_string(),
        to: breaker::OverrideTo::None.into(),
        until_block: 0,
    });
    let other = any(&participants::MsgRegisterModel {
        authority,
        model: Some(participants::Model { id: "model-4".into() }),
    });
    for (id, messages) in [(2, vec![cancel.clone(), free]), (3, vec![other, cancel])] {
        let message = gov::MsgSubmitProposal {
            expedited: true,
            ..submit(&scene.gateway, "In a hurry", messages, EXPEDITED)
        };
        let response = scene.gateway(message).await;
        good(&response);
        assert_eq!(attributes(&response, "submit_proposal", "voting_period_start"), [id.to_string()]);
        good(&scene.executor(vote(&scene.executor, id, gov::VoteOption::Yes)).await);
    }
    let passed = scene.client.decided(2).await;
    assert_eq!(passed.status(), gov::ProposalStatus::Passed, "{passed:?}");
    assert_eq!(scene.client.plan().await, None);
    let failed = scene.client.decided(3).await;
    assert_eq!(failed.status(), gov::ProposalStatus::Failed, "{failed:?}");
    assert!(
        failed.failed_reason.contains("messages[1]") && failed.failed_reason.contains("code 27"),
        "{}",
        failed.failed_reason
    );
    let path = "/holdfast.participants.v1.Query/Models";
    let answer: participants::QueryModelsResponse =
        scene.client.call(path, &participants::QueryModelsRequest::default()).await.expect("an answer");
    assert_eq!(answer.models.len(), 3, "the message before the one that failed is undone");
    let path = "/holdfast.breaker.v1.Query/Overrides";
    let answer: breaker::QueryOverridesResponse =
        scene.client.call(path, &breaker::QueryOverridesRequest::default()).await.expect("an answer");
    assert!(answer.overrides.is_empty());
}

/// Everything that only the authority could have changed.
async fn governed(client: &Client) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for path in [
        "/cosmos.auth.v1beta1.Query/Params",
        "/cosmos.gov.v1.Query/Params",
        "/cosmos.upgrade.v1beta1.Query/CurrentPlan",
        "/holdfast.epochs.v1.Query/Params",
        "/holdfast.participants.v1.Query/Params",
        "/holdfast.participants.v1.Query/Models",
        "/holdfast.inference.v1.Query/Params",
        "/holdfast.escrow.v1.Query/Params",
        "/holdfast.breaker.v1.Query/Overrides",
    ] {
        answers.push(client.raw(path, Vec::new(), None).await.expect("an answer").0);
    }
    answers
}

#[test]
fn cosmrs_signs_and_broadcasts_every_message_of_the_chain() {
    let chain = Chain::with_executors("msgs-1", &[1, 3, 9], &[(9, 100)]);
    chain.vote_within(4, 2);
    let node = chain.start("0.1");
    block_on(async {
        let mut scene = Scene::new(&node, &chain).await;
        transfer(&mut scene).await;
        let claimable = join(&mut scene).await;
        infer(&mut scene).await;
        escrowed(&mut scene).await;
        let before = governed(&scene.client).await;
        authority_only(&mut scene).await;
        assert_eq!(governed(&scene.client).await, before);
        let burned = govern(&mut scene).await;
        serve_and_leave(&mut scene, claimable).await;
        assert_eq!(scene.sent, message_types(), "every message was sent, and no other");

        // Nothing was made, and nothing lost but what was burned: what all have together is the supply.
        let mut sum = 0;
        for account in [1, 2, 3, 9].map(address) {
            sum += scene.client.balance(&account).await;
        }
        for module in ["participants", "inference", "escrow", "fee_collector", "gov"].map(module_address) {
            sum += scene.client.balance(&module).await;
        }
        assert_eq!(sum, 3 * FUNDS + 100 - burned);
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}
