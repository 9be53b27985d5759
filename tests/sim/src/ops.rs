//! Operations: for every message the chain routes, how a user comes to send one. Most are such that the chain takes them;
//! some are wrong in a field, in their signer, or in their bytes.

use std::sync::OnceLock;

use holdfast_app::composition::Composition;
use holdfast_app::router;
use holdfast_app::tx::pack;
use holdfast_app::views::QueryView;
use holdfast_proto::cosmos::auth::v1beta1 as auth;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as gov;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::holdfast::{breaker, epochs, escrow, inference, participants};
use holdfast_proto::{Any, FieldMask, Message, Name, type_url};
use holdfast_types::Address;
use holdfast_types::traits::ParticipantsRead;

use crate::cast::{Cast, DENOM, validator_key};
use crate::escrow_ops;
use crate::memory::{Memory, Open};
use crate::params;
use crate::rng::Rng;

/// Where an operation is drawn: who acts, what they know, and the last committed state.
pub(crate) struct Scene<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) cast: &'a Cast,
    pub(crate) memory: &'a mut Memory,
    pub(crate) view: &'a QueryView,
    pub(crate) composition: &'a Composition,
    /// Height of the block to come.
    pub(crate) height: i64,
}

/// A message and the account that signs it.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) signer: usize,
    pub(crate) message: Any,
}

/// Who can have a message carried out.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    /// Whoever signs it.
    Signed(fn(&mut Scene<'_>) -> Draft),
    /// Only a proposal that passes.
    Governed(fn(&mut Scene<'_>) -> Any),
}

/// How messages of a type come about.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) url: String,
    pub(crate) weight: u32,
    pub(crate) make: Make,
}

fn signed<M: Name>(weight: u32, make: fn(&mut Scene<'_>) -> Draft) -> Operation {
    Operation { url: type_url::<M>(), weight, make: Make::Signed(make) }
}

fn governed<M: Name>(weight: u32, make: fn(&mut Scene<'_>) -> Any) -> Operation {
    Operation { url: type_url::<M>(), weight, make: Make::Governed(make) }
}

/// One row for each type of message. A test compares it with what the app routes.
pub(crate) fn operations() -> &'static [Operation] {
    static TABLE: OnceLock<Vec<Operation>> = OnceLock::new();
    TABLE.get_or_init(|| {
        vec![
            signed::<MsgSend>(8, send),
            signed::<participants::v1::MsgRegisterParticipant>(5, register),
            signed::<participants::v1::MsgUpdateParticipant>(5, update),
            signed::<participants::v1::MsgLeaveNetwork>(1, leave),
            signed::<participants::v1::MsgDepositCollateral>(4, deposit_collateral),
            signed::<participants::v1::MsgWithdrawCollateral>(4, withdraw_collateral),
            signed::<participants::v1::MsgClaimCollateral>(4, claim_collateral),
            signed::<participants::v1::MsgAnnounceMaintenance>(6, announce),
            signed::<participants::v1::MsgCancelMaintenance>(3, cancel_maintenance),
            signed::<inference::v1::MsgStartInference>(60, start),
            signed::<inference::v1::MsgFinishInference>(6, finish),
            signed::<inference::v1::MsgReportFailure>(3, report),
            signed::<inference::v1::MsgCancelInference>(4, cancel_inference),
            signed::<escrow::v1::MsgCreateEscrow>(10, escrow_ops::create),
            signed::<escrow::v1::MsgSettleEscrow>(5, escrow_ops::settle),
            signed::<escrow::v1::MsgDisputeEscrow>(6, escrow_ops::dispute),
            signed::<gov::MsgSubmitProposal>(16, submit),
            signed::<gov::MsgDeposit>(4, deposit),
            signed::<gov::MsgVote>(2, vote),
            signed::<gov::MsgVoteWeighted>(2, vote_weighted),
            signed::<gov::MsgCancelProposal>(1, cancel_proposal),
            governed::<epochs::v1::MsgUpdateParams>(4, epochs_params),
            governed::<participants::v1::MsgRegisterModel>(4, register_model),
            governed::<participants::v1::MsgUpdateParams>(4, participants_params),
            governed::<inference::v1::MsgUpdateParams>(10, inference_params),
            governed::<breaker::v1::MsgSetBreakerOverride>(8, breaker_override),
            governed::<escrow::v1::MsgUpdateParams>(4, escrow_ops::escrow_params),
            governed::<auth::MsgUpdateParams>(2, auth_params),
            governed::<gov::MsgUpdateParams>(3, gov_params),
            governed::<upgrade::MsgSoftwareUpgrade>(5, software_upgrade),
            governed::<upgrade::MsgCancelUpgrade>(2, cancel_upgrade),
        ]
    })
}

/// Those that the app of this build routes.
fn routed() -> &'static [Operation] {
    static TABLE: OnceLock<Vec<Operation>> = OnceLock::new();
    TABLE.get_or_init(|| operations().iter().filter(|op| router::is_routed(&op.url)).cloned().collect())
}

/// What happens besides proposals and votes, and governed messages that somebody sends by themselves.
pub(crate) fn draw(scene: &mut Scene<'_>) -> Draft {
    let weight = |op: &Operation| match op.make {
        Make::Signed(_) => op.weight,
        Make::Governed(_) => 0,
    };
    let table = routed();
    if scene.rng.percent(2)
        && let Some(message) = governed_message(scene)
    {
        // Nobody has the authority's key.
        return Draft { signer: scene.anybody(), message };
    }
    let op = &table[scene.rng.weighted(table.iter().map(weight))];
    match op.make {
        Make::Signed(make) => make(scene),
        Make::Governed(_) => send(scene),
    }
}

/// A message for a proposal.
fn governed_message(scene: &mut Scene<'_>) -> Option<Any> {
    let request = upgrade::QueryCurrentPlanRequest {};
    let plan: Option<upgrade::QueryCurrentPlanResponse> =
        scene.query("/cosmos.upgrade.v1beta1.Query/CurrentPlan", &request);
    if plan.is_some_and(|reply| reply.plan.is_some()) && scene.rng.percent(15) {
        return Some(cancel_upgrade(scene));
    }
    let table: Vec<&Operation> = routed().iter().filter(|op| matches!(op.make, Make::Governed(_))).collect();
    let op = *table.get(scene.rng.weighted(table.iter().map(|op| op.weight)))?;
    match op.make {
        Make::Governed(make) => Some(make(scene)),
        Make::Signed(_) => None,
    }
}

/// Answers, reports and further waiting for everything that is open.
pub(crate) fn answers(scene: &mut Scene<'_>) -> Vec<Draft> {
    let mut out = Vec::new();
    for open in scene.memory.open.clone() {
        // An answer in the block of the start would have to follow it there; some do, through early finishes.
        let (answered, reported) = scene.cast.mood(open.executor, scene.height);
        let roll = scene.rng.below(100);
        if roll < answered {
            out.push(finish_of(scene, &open, open.executor));
        } else if roll < answered + reported {
            out.push(report_of(scene, &open));
        } else if scene.rng.percent(2) {
            out.push(cancel_of(scene, &open));
        }
    }
    out
}

/// Votes on what can be voted on.
pub(crate) fn votes(scene: &mut Scene<'_>) -> Vec<Draft> {
    let mut out = Vec::new();
    let mut followed = Vec::new();
    for proposal in std::mem::take(&mut scene.memory.proposals) {
        let request = gov::QueryProposalRequest { proposal_id: proposal.id };
        let reply: Option<gov::QueryProposalResponse> =
            scene.query("/cosmos.gov.v1.Query/Proposal", &request);
        let status = reply.and_then(|reply| reply.proposal).map(|proposal| proposal.status());
        let Some(status) = status else {
            scene.memory.ended("removed", &proposal.messages, false);
            continue;
        };
        match status {
            gov::ProposalStatus::Passed => scene.memory.ended("passed", &proposal.messages, true),
            gov::ProposalStatus::Rejected => scene.memory.ended("rejected", &proposal.messages, false),
            gov::ProposalStatus::Failed => scene.memory.ended("failed", &proposal.messages, false),
            gov::ProposalStatus::VotingPeriod => {
                // The mood about a proposal is the same for all.
                let mut mood = Rng::new(proposal.id ^ scene.cast.moods, "proposal");
                let (liked, turnout) =
                    (*mood.pick(&[100, 100, 97, 90, 60, 20]), *mood.pick(&[80, 60, 40, 3]));
                for executor in scene.cast.executors.clone() {
                    if scene.rng.percent(turnout) {
                        let yes = scene.rng.percent(liked);
                        out.push(ballot(scene, executor, proposal.id, yes));
                    }
                }
                followed.push(proposal);
            }
            _ => {
                if scene.rng.percent(25) {
                    let needed = scene.gov_params().min_deposit;
                    out.push(top_up(scene, proposal.id, needed));
                }
                followed.push(proposal);
            }
        }
    }
    scene.memory.proposals = followed;
    out
}

impl Memory {
    /// Counts how a proposal ended.
    fn ended(&mut self, how: &str, messages: &[Any], done: bool) {
        *self.counts.proposals.entry(how.to_owned()).or_default() += 1;
        for message in messages {
            let tally = self.counts.messages.entry(message.type_url.clone()).or_default();
            if done {
                tally.done += 1;
            } else {
                tally.refused += 1;
            }
        }
    }
}

impl Scene<'_> {
    /// True for the part of operations that shall be wrong in some way.
    pub(crate) fn wrong(&mut self) -> bool {
        self.rng.percent(6)
    }

    pub(crate) fn anybody(&mut self) -> usize {
        self.rng.below(self.cast.accounts.len())
    }

    pub(crate) fn gateway(&mut self) -> usize {
        *self.rng.pick(&self.cast.gateways)
    }

    /// Mostly an executor of genesis, else one of those who may have become one.
    fn executor(&mut self) -> usize {
        let list = if self.rng.percent(85) { &self.cast.executors } else { &self.cast.outsiders };
        *self.rng.pick(list)
    }

    pub(crate) fn name(&self, account: usize) -> String {
        self.cast.accounts[account].bech32.clone()
    }

    fn registered_models(&self) -> Vec<String> {
        self.composition.participants().models(self.view.query().store).unwrap_or_default()
    }

    /// Mostly a registered one.
    pub(crate) fn model(&mut self) -> String {
        let registered = self.registered_models();
        if !registered.is_empty() && !self.wrong() {
            return self.rng.pick(&registered).clone();
        }
        self.rng.pick(&self.cast.models).clone()
    }

    pub(crate) fn coin(&mut self, denom: &str, amount: u128) -> PbCoin {
        let wrong = self.wrong();
        match self.rng.below(5) {
            0 if wrong => PbCoin { denom: denom.into(), amount: "0".into() },
            1 if wrong => PbCoin { denom: denom.into(), amount: u128::MAX.to_string() },
            2 if wrong => PbCoin { denom: "unone".into(), amount: "1".into() },
            3 if wrong => PbCoin { denom: String::new(), amount: "-1".into() },
            4 if wrong => PbCoin { denom: denom.into(), amount: "01".into() },
            _ => PbCoin { denom: denom.into(), amount: amount.to_string() },
        }
    }

    pub(crate) fn query<M: Message + Default>(&self, path: &str, request: &impl Message) -> Option<M> {
        let seed = || Ok([7; 32]);
        let reply = self.composition.query(self.view, path, &request.encode_to_vec(), &seed).ok()?;
        M::decode(reply.as_slice()).ok()
    }

    /// Some fields of `all`, or everything.
    pub(crate) fn mask<S: AsRef<str> + Clone>(&mut self, all: &[S]) -> Option<FieldMask> {
        let mut paths: Vec<String> = match self.rng.below(4) {
            0 => vec!["*".into()],
            1 => vec![self.rng.pick(all).as_ref().to_owned()],
            _ => self.rng.part(all).iter().map(|path| path.as_ref().to_owned()).collect(),
        };
        if paths.is_empty() {
            paths.push(self.rng.pick(all).as_ref().to_owned());
        }
        if self.wrong() {
            match self.rng.below(3) {
                0 => paths.clear(),
                1 => paths.push("no_such_field".into()),
                _ => paths.extend(paths.clone()),
            }
        }
        Some(FieldMask { paths })
    }

    pub(crate) fn authority(&mut self) -> String {
        if self.rng.percent(2) {
            let account = self.anybody();
            return self.name(account);
        }
        self.cast.gov()
    }

    fn workers(&mut self) -> Vec<participants::v1::WorkerEndpoint> {
        let wrong = self.wrong();
        let mut layer = 0;
        let mut worker = |rng: &mut Rng| {
            let first_layer = layer;
            layer += rng.range(1, 20) as u32;
            let url = if wrong { "ftp://layers".into() } else { format!("grpc://layers-{first_layer}:9000") };
            participants::v1::WorkerEndpoint { url, first_layer, last_layer: layer - 1 }
        };
        (0..self.rng.below(3)).map(|_| worker(self.rng)).collect()
    }

    fn served(&mut self) -> Vec<String> {
        let registered = self.registered_models();
        let mut models = self.rng.part(&registered);
        if self.wrong() {
            models.push(self.rng.pick(&self.cast.models).clone());
        }
        self.rng.shuffle(&mut models);
        models
    }
}

pub(crate) fn send(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let to_address = match scene.rng.below(12) {
        0 => scene.cast.gov(),
        1 => Address::module("inference").to_bech32(&scene.cast.hrp),
        2 => "cosmos1nobody".into(),
        3 => {
            // An account that does not exist yet.
            let bytes = scene.rng.bytes(20).try_into().unwrap_or([0; 20]);
            Address(bytes).to_bech32(&scene.cast.hrp)
        }
        _ => {
            let to = scene.anybody();
            scene.name(to)
        }
    };
    let amount = scene.rng.unsigned(1, 5_000).into();
    let mut coins = vec![scene.coin(DENOM, amount)];
    if scene.cast.collateral_denom != DENOM && scene.rng.percent(50) {
        let denom = scene.cast.collateral_denom.clone();
        coins.insert(0, scene.coin(&denom, amount));
    }
    if scene.rng.percent(3) {
        coins.extend(coins.clone());
    }
    let message = pack(&MsgSend { from_address: scene.name(signer), to_address, amount: coins });
    Draft { signer, message }
}

fn register(scene: &mut Scene<'_>) -> Draft {
    let signer =
        if scene.rng.percent(50) { *scene.rng.pick(&scene.cast.outsiders) } else { scene.executor() };
    let account = &scene.cast.accounts[signer];
    let mut validator_key = validator_key(scene.rng, account);
    if scene.wrong() {
        validator_key = match scene.rng.below(2) {
            0 => scene.cast.accounts[*scene.rng.pick(&scene.cast.executors)]
                .key
                .public_key()
                .to_bytes()
                .to_vec(),
            _ => scene.rng.bytes(31),
        };
    }
    let denom = scene.cast.collateral_denom.clone();
    let amount = scene.rng.unsigned(1, 90).into();
    let message = participants::v1::MsgRegisterParticipant {
        participant: scene.name(signer),
        validator_key,
        host_url: if scene.rng.percent(50) { "https://new.example".into() } else { String::new() },
        workers: scene.workers(),
        models: scene.served(),
        poc_preserved: scene.rng.percent(50),
        collateral: Some(scene.coin(&denom, amount)),
    };
    Draft { signer, message: pack(&message) }
}

fn update(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let message = participants::v1::MsgUpdateParticipant {
        participant: scene.name(signer),
        host_url: String::new(),
        workers: scene.workers(),
        models: scene.served(),
        poc_preserved: scene.rng.percent(50),
    };
    Draft { signer, message: pack(&message) }
}

fn leave(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgLeaveNetwork { participant }) }
}

fn deposit_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let denom = scene.cast.collateral_denom.clone();
    let amount = if scene.rng.percent(3) { u128::from(u64::MAX) } else { scene.rng.unsigned(1, 40).into() };
    let amount = Some(scene.coin(&denom, amount));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgDepositCollateral { participant, amount }) }
}

fn withdraw_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let denom = scene.cast.collateral_denom.clone();
    let amount = scene.rng.unsigned(1, 30).into();
    let amount = Some(scene.coin(&denom, amount));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgWithdrawCollateral { participant, amount }) }
}

fn claim_collateral(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgClaimCollateral { participant }) }
}

fn announce(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.executor();
    let start_height = scene.height + scene.rng.range(1, 8);
    let shortest = i64::from(!scene.wrong());
    let message = participants::v1::MsgAnnounceMaintenance {
        participant: scene.name(signer),
        start_height,
        end_height: start_height + scene.rng.range(shortest, 8),
    };
    Draft { signer, message: pack(&message) }
}

fn cancel_maintenance(scene: &mut Scene<'_>) -> Draft {
    let known = scene.rng.maybe(&scene.memory.windows).copied();
    let (signer, start_height) = match known {
        Some(window) if !scene.wrong() => window,
        _ => (scene.executor(), scene.height),
    };
    scene.memory.windows.retain(|window| *window != (signer, start_height));
    let participant = scene.name(signer);
    Draft { signer, message: pack(&participants::v1::MsgCancelMaintenance { participant, start_height }) }
}

fn start(scene: &mut Scene<'_>) -> Draft {
    let gateway = if scene.rng.percent(90) { scene.gateway() } else { scene.anybody() };
    // Mostly a model that somebody serves, and the executor that the chain's own draw gives.
    let mut model = scene.model();
    let mut drawn = None;
    for _ in 0..3 {
        drawn = scene.drawn(&model);
        if drawn.is_some() || scene.wrong() {
            break;
        }
        model = scene.model();
    }
    let mut executor = match drawn {
        Some(executor) if scene.rng.percent(90) => executor,
        None if scene.rng.percent(70) => return send(scene),
        _ => scene.executor(),
    };
    let mut inference_id = match scene.memory.early.first().cloned() {
        Some((id, answered_by)) if scene.rng.percent(60) => {
            executor = answered_by;
            id
        }
        _ => scene.memory.id(),
    };
    let mut prompt_hash = vec![7; 32];
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => inference_id = "not an id".into(),
            1 => inference_id = scene.memory.open.last().map(|open| open.id.clone()).unwrap_or_default(),
            2 => prompt_hash.truncate(31),
            _ => executor = gateway,
        }
    }
    let max_tokens = if scene.rng.percent(1) { u64::MAX } else { scene.rng.unsigned(0, 200) };
    // Somebody else can pay.
    let signer = if scene.rng.percent(10) { scene.anybody() } else { gateway };
    let message = inference::v1::MsgStartInference {
        signer: scene.name(signer),
        requested_by: scene.name(gateway),
        inference_id,
        model,
        assigned_to: scene.name(executor),
        prompt_hash,
        prompt_tokens: scene.rng.unsigned(0, 100),
        max_tokens,
    };
    Draft { signer, message: pack(&message) }
}

fn finish_of(scene: &mut Scene<'_>, open: &Open, signer: usize) -> Draft {
    let completion_tokens = if scene.rng.percent(2) { u64::MAX } else { scene.rng.unsigned(0, 150) };
    let message = inference::v1::MsgFinishInference {
        executed_by: scene.name(signer),
        inference_id: open.id.clone(),
        response_hash: vec![8; if scene.rng.percent(1) { 33 } else { 32 }],
        prompt_tokens: scene.rng.unsigned(0, 120),
        completion_tokens,
    };
    Draft { signer, message: pack(&message) }
}

/// Finishes that nobody expects: of another's work, of no work yet, or once more.
fn finish(scene: &mut Scene<'_>) -> Draft {
    let executor = scene.executor();
    let known = scene.rng.maybe(&scene.memory.open).cloned();
    match known {
        Some(open) if scene.rng.percent(40) => {
            let signer = if scene.rng.percent(50) { executor } else { open.executor };
            finish_of(scene, &open, signer)
        }
        _ => {
            let id = scene.memory.id();
            let open = Open { id, gateway: 0, executor };
            finish_of(scene, &open, executor)
        }
    }
}

fn report_of(scene: &mut Scene<'_>, open: &Open) -> Draft {
    let message = inference::v1::MsgReportFailure {
        executor: scene.name(open.executor),
        inference_id: open.id.clone(),
        kind: scene.rng.range(0, 5) as u32,
    };
    Draft { signer: open.executor, message: pack(&message) }
}

fn report(scene: &mut Scene<'_>) -> Draft {
    let executor = scene.executor();
    let open = scene.rng.maybe(&scene.memory.open).cloned();
    let gone = || Open { id: "i-0".into(), gateway: 0, executor };
    let mut open = open.unwrap_or_else(gone);
    if scene.rng.percent(30) {
        open.executor = executor;
    }
    report_of(scene, &open)
}

fn cancel_of(scene: &mut Scene<'_>, open: &Open) -> Draft {
    let signer = if scene.wrong() { scene.anybody() } else { open.gateway };
    let message =
        inference::v1::MsgCancelInference { requested_by: scene.name(signer), inference_id: open.id.clone() };
    Draft { signer, message: pack(&message) }
}

fn cancel_inference(scene: &mut Scene<'_>) -> Draft {
    let gateway = scene.gateway();
    let open = scene.rng.maybe(&scene.memory.open).cloned();
    let gone = || Open { id: "i-0".into(), gateway, executor: 0 };
    cancel_of(scene, &open.unwrap_or_else(gone))
}

/// A proposal: mostly of one or two messages that its authority may send.
fn submit(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let mut messages = Vec::new();
    for _ in 0..*scene.rng.pick(&[1, 1, 1, 1, 2, 3, 0]) {
        messages.extend(governed_message(scene));
    }
    if scene.rng.percent(8) {
        // A plan that is taken back in the same breath.
        messages = vec![software_upgrade(scene), cancel_upgrade(scene)];
    }
    if scene.rng.percent(10) {
        match scene.rng.below(6) {
            // Its signer is a user.
            0 => messages.push(send(scene).message),
            1 => messages.push(Any { type_url: "/holdfast.none.v1.MsgNone".into(), value: Vec::new() }),
            2 => {
                let nested = gov::MsgSubmitProposal {
                    messages: std::mem::take(&mut messages),
                    proposer: scene.cast.gov(),
                    title: "nested".into(),
                    summary: "a proposal in a proposal".into(),
                    ..gov::MsgSubmitProposal::default()
                };
                messages.push(pack(&nested));
            }
            3 => {
                let amount = vec![scene.coin(DENOM, 1)];
                let to_address = scene.name(signer);
                messages.push(pack(&MsgSend { from_address: scene.cast.gov(), to_address, amount }));
            }
            4 => {
                let voter = scene.cast.gov();
                messages = vec![pack(&vote_of(scene, voter, 1)); 40];
            }
            _ => {
                if let Some(message) = messages.first_mut() {
                    message.value = scene.rng.bytes(20);
                }
            }
        }
    }
    let params = scene.gov_params();
    let expedited = scene.rng.percent(15);
    let needed = if expedited { &params.expedited_min_deposit } else { &params.min_deposit };
    let needed = needed.first().and_then(|coin| coin.amount.parse::<u128>().ok()).unwrap_or(1);
    let amount = match scene.rng.below(10) {
        0 => 0,
        1 => 1,
        2 | 3 => needed / 2,
        _ => needed,
    };
    let mut initial_deposit = Vec::new();
    if amount > 0 {
        initial_deposit.push(scene.coin(DENOM, amount));
    }
    let message = gov::MsgSubmitProposal {
        messages,
        initial_deposit,
        proposer: scene.name(signer),
        metadata: String::new(),
        title: if scene.wrong() { String::new() } else { "A change".into() },
        summary: "What and why".into(),
        expedited,
    };
    Draft { signer, message: pack(&message) }
}

impl Scene<'_> {
    /// A draw among the candidates for `model`.
    fn drawn(&mut self, model: &str) -> Option<usize> {
        let seed: [u8; 32] = self.rng.bytes(32).try_into().ok()?;
        let table = self.view.table(self.composition, model).ok()?;
        let draw = table.draw(seed)?;
        self.cast.index_of(&table.rows().get(draw.row)?.address.to_bech32(&self.cast.hrp))
    }

    fn gov_params(&self) -> gov::Params {
        let request = gov::QueryParamsRequest { params_type: "voting".into() };
        let reply: Option<gov::QueryParamsResponse> = self.query("/cosmos.gov.v1.Query/Params", &request);
        reply.and_then(|reply| reply.params).unwrap_or_default()
    }

    fn proposal(&mut self) -> u64 {
        let known = self.rng.maybe(&self.memory.proposals).map(|proposal| proposal.id);
        known.unwrap_or_else(|| self.rng.unsigned(0, 30))
    }
}

fn deposit(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let amount = scene.rng.unsigned(1, 800).into();
    let message = gov::MsgDeposit {
        proposal_id: scene.proposal(),
        depositor: scene.name(signer),
        amount: vec![scene.coin(DENOM, amount)],
    };
    Draft { signer, message: pack(&message) }
}

/// What a proposal lacks before it is voted on, or more.
fn top_up(scene: &mut Scene<'_>, proposal_id: u64, amount: Vec<PbCoin>) -> Draft {
    let signer = scene.anybody();
    let depositor = scene.name(signer);
    Draft { signer, message: pack(&gov::MsgDeposit { proposal_id, depositor, amount }) }
}

fn vote_of(scene: &mut Scene<'_>, voter: String, proposal_id: u64) -> gov::MsgVote {
    let first = i64::from(!scene.wrong());
    let option = scene.rng.range(first, 4) as i32;
    gov::MsgVote { proposal_id, voter, option, metadata: String::new() }
}

fn vote(scene: &mut Scene<'_>) -> Draft {
    let signer = scene.anybody();
    let (voter, id) = (scene.name(signer), scene.proposal());
    let message = vote_of(scene, voter, id);
    Draft { signer, message: pack(&message) }
}

fn vote_weighted(scene: &mut Scene<'_>) -> Draft {
    let signer = if scene.rng.percent(80) { scene.executor() } else { scene.anybody() };
    let share = |option: gov::VoteOption, weight: &str| gov::WeightedVoteOption {
        option: option.into(),
        weight: weight.to_owned(),
    };
    use gov::VoteOption::{Abstain, No, NoWithVeto, Yes};
    let options = match scene.rng.below(6) {
        0 => vec![share(Yes, "1")],
        1 => vec![share(Yes, "0.700000000000000000"), share(No, "0.3")],
        2 => vec![share(Yes, "0.25"), share(Abstain, "0.25"), share(No, "0.25"), share(NoWithVeto, "0.25")],
        3 => vec![share(Abstain, "1.0")],
        4 => vec![share(Yes, "0.5"), share(Yes, "0.5")],
        _ => vec![share(Yes, "0.5"), share(No, "0.4")],
    };
    let message = gov::MsgVoteWeighted {
        proposal_id: scene.proposal(),
        voter: scene.name(signer),
        options,
        metadata: String::new(),
    };
    Draft { signer, message: pack(&message) }
}

fn ballot(scene: &mut Scene<'_>, voter: usize, proposal_id: u64, yes: bool) -> Draft {
    let option = if yes {
        gov::VoteOption::Yes
    } else {
        *scene.rng.pick(&[gov::VoteOption::No, gov::VoteOption::NoWithVeto, gov::VoteOption::Abstain])
    };
    let message = gov::MsgVote {
        proposal_id,
        voter: scene.name(voter),
        option: option.into(),
        metadata: String::new(),
    };
    Draft { signer: voter, message: pack(&message) }
}

fn cancel_proposal(scene: &mut Scene<'_>) -> Draft {
    let anybody = scene.anybody();
    let known = scene.rng.maybe(&scene.memory.proposals).map(|proposal| (proposal.proposer, proposal.id));
    let (signer, proposal_id) = known.unwrap_or((anybody, 1));
    let signer = if scene.wrong() { anybody } else { signer };
    let proposer = scene.name(signer);
    Draft { signer, message: pack(&gov::MsgCancelProposal { proposal_id, proposer }) }
}

fn epochs_params(scene: &mut Scene<'_>) -> Any {
    let (mut epoch_length, poc_length) = params::epochs(scene.rng);
    if scene.wrong() {
        epoch_length = *scene.rng.pick(&[0, -1, i64::MAX]);
    }
    pack(&epochs::v1::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(epochs::v1::Params { epoch_length, poc_length }),
        update_mask: scene.mask(&["epoch_length", "poc_length"]),
    })
}

fn register_model(scene: &mut Scene<'_>) -> Any {
    let id = if scene.wrong() { "no model id!".into() } else { scene.rng.pick(&scene.cast.models).clone() };
    let model = Some(participants::v1::Model { id });
    pack(&participants::v1::MsgRegisterModel { authority: scene.authority(), model })
}

/// Fields of a message by ascending number, each behind `prefix`.
pub(crate) fn field_names<M: Name>(prefix: &str) -> Vec<String> {
    let message = holdfast_proto::pool().ok().and_then(|pool| pool.get_message_by_name(&M::full_name()));
    let mut fields: Vec<_> =
        message.iter().flat_map(|m| m.fields()).map(|f| (f.number(), f.name().to_owned())).collect();
    fields.sort();
    fields.into_iter().map(|(_, name)| format!("{prefix}{name}")).collect()
}

fn participants_params(scene: &mut Scene<'_>) -> Any {
    let mut new = params::participants(scene.rng, &scene.cast.collateral_denom);
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => new.collateral_denom = "uother".into(),
            1 => new.collateral_per_weight = 0,
            2 => new.max_models = 1_000,
            _ => new.max_maintenance_blocks = i64::MAX,
        }
    }
    // The denomination is fixed at genesis.
    let fields = field_names::<participants::v1::Params>("").split_off(1);
    pack(&participants::v1::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(new.to_pb()),
        update_mask: scene.mask(&fields),
    })
}

fn inference_params(scene: &mut Scene<'_>) -> Any {
    let cooldown_max = scene.rng.range(1, 40);
    let mut validation = params::validation(scene.rng, cooldown_max);
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => validation.health_cb_window_blocks = 15,
            1 => validation.health_cb_max_cooldown_blocks = i64::MAX,
            2 => validation.expiration_blocks = 0,
            _ => validation.downtime_good_percentage = validation.downtime_bad_percentage,
        }
    }
    let denom = if scene.rng.percent(5) { scene.cast.collateral_denom.clone() } else { DENOM.to_owned() };
    let token_price = params::token_price(scene.rng, &denom);
    let mut fields = vec!["token_price".to_owned()];
    fields.extend(field_names::<inference::v1::ValidationParams>("validation."));
    let update_mask = if scene.rng.percent(40) {
        Some(FieldMask { paths: vec!["validation".into()] })
    } else {
        scene.mask(&fields)
    };
    let params = Some(holdfast_inference::Params { validation, token_price }.to_pb());
    pack(&inference::v1::MsgUpdateParams { authority: scene.authority(), params, update_mask })
}

fn breaker_override(scene: &mut Scene<'_>) -> Any {
    let executor = scene.executor();
    let last = if scene.wrong() { 3 } else { 2 };
    let to = scene.rng.range(0, last) as i32;
    // It is carried out some blocks from now.
    let until_block = scene.height + scene.rng.range(3, 70);
    pack(&breaker::v1::MsgSetBreakerOverride {
        authority: scene.authority(),
        model: scene.model(),
        participant: scene.name(executor),
        to,
        until_block,
    })
}

fn auth_params(scene: &mut Scene<'_>) -> Any {
    let mut new = params::auth(scene.rng);
    if scene.wrong() {
        new.tx_sig_limit = 0;
    }
    pack(&auth::MsgUpdateParams {
        authority: scene.authority(),
        params: Some((&new).into()),
        update_mask: scene.mask(holdfast_auth::PARAMS_FIELDS),
    })
}

fn gov_params(scene: &mut Scene<'_>) -> Any {
    let mut params = scene.gov_params();
    let voting = scene.rng.range(8, 60);
    if let Some(period) = &mut params.voting_period {
        period.seconds = voting;
    }
    if let Some(period) = &mut params.expedited_voting_period {
        period.seconds = scene.rng.range(3, voting - 1);
    }
    if let Some(period) = &mut params.max_deposit_period {
        period.seconds = if scene.wrong() { -1 } else { scene.rng.range(5, 60) };
    }
    params.quorum = (*scene.rng.pick(&["0.01", "0.334", "0.5", "1"])).into();
    params.veto_threshold = (*scene.rng.pick(&["0.334", "0.2", "1"])).into();
    params.threshold = (*scene.rng.pick(&["0.5", "0.3", "0.6"])).into();
    params.min_deposit_ratio = (*scene.rng.pick(&["0", "0.01", "1"])).into();
    params.min_initial_deposit_ratio = (*scene.rng.pick(&["0", "0.1", "1"])).into();
    params.proposal_cancel_ratio = (*scene.rng.pick(&["0", "0.5", "1"])).into();
    if scene.wrong() {
        params.threshold = (*scene.rng.pick(&["1.5", "0", "", "-1", "0.9"])).into();
    }
    let fields = [
        "max_deposit_period",
        "quorum",
        "threshold",
        "veto_threshold",
        "min_deposit_ratio",
        "min_initial_deposit_ratio",
        "proposal_cancel_ratio",
        "burn_vote_quorum",
    ];
    pack(&gov::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(params),
        update_mask: scene.mask(&fields),
    })
}

fn software_upgrade(scene: &mut Scene<'_>) -> Any {
    scene.memory.upgrades += 1;
    let name = format!("sim-{}", scene.memory.upgrades);
    let height = if scene.wrong() { scene.height - 1 } else { scene.height + scene.rng.range(8, 26) };
    let plan = upgrade::Plan { name, height, info: "{}".into(), ..upgrade::Plan::default() };
    pack(&upgrade::MsgSoftwareUpgrade { authority: scene.authority(), plan: Some(plan) })
}

fn cancel_upgrade(scene: &mut Scene<'_>) -> Any {
    pack(&upgrade::MsgCancelUpgrade { authority: scene.authority() })
}

/// Changes a message's bytes: mostly into something that is no message.
pub(crate) fn spoil(rng: &mut Rng, message: &mut Any) {
    match rng.below(5) {
        0 => {
            let half = message.value.len() / 2;
            message.value.truncate(half);
        }
        1 if !message.value.is_empty() => {
            let at = rng.below(message.value.len());
            message.value[at] ^= 1 << rng.below(8);
        }
        // Field 60000, a varint: unknown to every message.
        2 => message.value.extend([0x80, 0xa6, 0x1d, 0x01]),
        3 => message.type_url.push('x'),
        _ => message.value.clear(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_routed_message_has_one_operation() {
        let routed: BTreeSet<String> = router::message_types().into_iter().collect();
        let known: Vec<String> = operations().iter().map(|op| op.url.clone()).collect();
        let distinct: BTreeSet<String> = known.iter().cloned().collect();
        assert_eq!(distinct.len(), known.len());
        assert_eq!(distinct, routed, "give each new message a row in operations()");
    }
}
