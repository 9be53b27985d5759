//! A network of gateways, executors and outsiders, with a genesis built in code.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use holdfast_breaker::{Entry, ModelTally, State};
use holdfast_inference::CandidateTable;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as gov;
use holdfast_proto::holdfast::{auth, bank, breaker, epochs, escrow, inference, participants};
use holdfast_proto::{Any, FieldMask, Message};
use holdfast_store::{KvRead, Order};
use holdfast_types::traits::{ParticipantsRead, Standing};
use holdfast_types::{Address, Coin, Event, Hrp, ModuleError, QueryError, ValidationParams};

use crate::app::{App, AppOptions, Block, FinalizedBlock, Moment, Shared, TxResult, state_spaces};
use crate::composition::Composition;
use crate::genesis::GenesisDoc;
use crate::keys::SecretKey;
use crate::state::{CommitStore, MemCommitStore};
use crate::tx::{TxBuilder, pack};

pub(super) const CHAIN: &str = "holdfast-test-1";
pub(super) const DENOM: &str = "uhold";
pub(super) const BALANCE: u128 = 1_000_000_000;
pub(super) const MODEL: &str = "m1";
pub(super) const OTHER: &str = "m2";
pub(super) const GAS: u64 = 3_000_000;

/// Two misses in a row exclude for five blocks; nothing else does, and an answer is due within three blocks.
pub(super) fn quick() -> ValidationParams {
    ValidationParams {
        expiration_blocks: 3,
        health_cb_min_samples: 1_000,
        health_cb_consecutive_misses: 2,
        health_cb_initial_cooldown_blocks: 5,
        health_cb_max_cooldown_blocks: 10,
        downtime_sprt_enabled: false,
        ..ValidationParams::default()
    }
}

#[derive(Clone)]
pub(super) struct Executor {
    pub(super) weight: u64,
    pub(super) models: Vec<&'static str>,
    pub(super) preserved: bool,
}

impl Executor {
    pub(super) fn new(weight: u64) -> Self {
        Self { weight, models: vec![MODEL], preserved: false }
    }

    pub(super) fn serving(weight: u64, models: &[&'static str]) -> Self {
        Self { models: models.to_vec(), ..Self::new(weight) }
    }

    pub(super) fn preserved(weight: u64) -> Self {
        Self { preserved: true, ..Self::new(weight) }
    }
}

#[derive(Clone)]
pub(super) struct Spec {
    pub(super) gateways: usize,
    pub(super) outsiders: usize,
    pub(super) executors: Vec<Executor>,
    pub(super) validation: ValidationParams,
    pub(super) participants: holdfast_participants::Params,
    pub(super) epoch_length: i64,
    pub(super) poc_length: i64,
    pub(super) initial_height: i64,
    pub(super) max_gas: i64,
    pub(super) max_bytes: i64,
}

impl Default for Spec {
    /// Three executors of weight 10, epochs of 100 blocks without a PoC phase.
    fn default() -> Self {
        Self {
            gateways: 2,
            outsiders: 2,
            executors: vec![Executor::new(10); 3],
            validation: quick(),
            participants: holdfast_participants::Params {
                collateral_per_weight: 1,
                min_announce_blocks: 2,
                max_maintenance_blocks: 10,
                ..holdfast_participants::Params::default()
            },
            epoch_length: 100,
            poc_length: 0,
            initial_height: 1,
            max_gas: -1,
            max_bytes: 1 << 20,
        }
    }
}

#[derive(Clone)]
pub(super) struct Who {
    pub(super) key: SecretKey,
    pub(super) address: Address,
}

impl Who {
    pub(super) fn new(label: &str) -> Self {
        let key = SecretKey::from_seed_label(b"app tests", label);
        Self { address: key.address(), key }
    }

    pub(super) fn bech32(&self) -> String {
        self.address.to_bech32(&Hrp::default())
    }
}

fn named(role: &str, count: usize) -> Vec<Who> {
    (0..count).map(|i| Who::new(&format!("{role}/{i}"))).collect()
}

pub(super) fn pb_coin(amount: u128) -> PbCoin {
    PbCoin { denom: DENOM.into(), amount: amount.to_string() }
}

impl Spec {
    pub(super) fn document(&self) -> GenesisDoc {
        let hrp = Hrp::default();
        let bech32 = |a: &Address| a.to_bech32(&hrp);
        let executors = named("executor", self.executors.len());
        let mut all: Vec<Who> = named("gateway", self.gateways);
        all.extend(executors.iter().cloned());
        all.extend(named("outsider", self.outsiders));
        all.sort_by_key(|who| who.address);
        let mut doc = GenesisDoc::default_for(CHAIN, &hrp).unwrap();
        doc.initial_height = self.initial_height;
        doc.consensus.params.block.max_gas = self.max_gas;
        doc.consensus.params.block.max_bytes = self.max_bytes;

        let accounts = all.iter().enumerate().map(|(n, who)| auth::v1::Account {
            address: who.bech32(),
            account_number: n as u64,
            ..auth::v1::Account::default()
        });
        let state = auth::v1::GenesisState {
            accounts: accounts.collect(),
            next_account_number: all.len() as u64,
            ..auth::v1::GenesisState::default()
        };
        doc.set_module("auth", &state.encode_to_vec()).unwrap();

        let collateral: u128 = self.executors.iter().map(|e| u128::from(e.weight)).sum();
        let mut balances: Vec<(Address, u128)> = all.iter().map(|who| (who.address, BALANCE)).collect();
        balances.push((Address::module("participants"), collateral));
        balances.sort();
        let state = bank::v1::GenesisState {
            supply: vec![pb_coin(balances.iter().map(|b| b.1).sum())],
            balances: balances
                .iter()
                .filter(|b| b.1 > 0)
                .map(|(a, amount)| bank::v1::Balance { address: bech32(a), coins: vec![pb_coin(*amount)] })
                .collect(),
        };
        doc.set_module("bank", &state.encode_to_vec()).unwrap();

        let (epoch_length, poc_length) = (self.epoch_length, self.poc_length);
        let state = epochs::v1::GenesisState {
            params: Some(epochs::v1::Params { epoch_length, poc_length }),
            ..epochs::v1::GenesisState::default()
        };
        doc.set_module("epochs", &state.encode_to_vec()).unwrap();

        let mut rows: Vec<(&Who, &Executor)> = executors.iter().zip(&self.executors).collect();
        rows.sort_by_key(|(who, _)| who.address);
        let participant = |(who, e): &(&Who, &Executor)| participants::v1::Participant {
            address: who.bech32(),
            validator_key: validator_key(who),
            models: e.models.iter().map(|m| (*m).to_owned()).collect(),
            poc_preserved: e.preserved,
            collateral: e.weight.to_string(),
            unbonding: "0".into(),
            status: participants::v1::ParticipantStatus::Active.into(),
            ..participants::v1::Participant::default()
        };
        let state = participants::v1::GenesisState {
            params: Some(self.participants.to_pb()),
            models: [MODEL, OTHER].map(|id| participants::v1::Model { id: id.into() }).to_vec(),
            participants: rows.iter().map(participant).collect(),
            ..participants::v1::GenesisState::default()
        };
        doc.set_module("participants", &state.encode_to_vec()).unwrap();

        let token_price = Coin { denom: DENOM.into(), amount: 1 };
        let params = holdfast_inference::Params { validation: self.validation.clone(), token_price };
        let state = inference::v1::GenesisState { params: Some(params.to_pb()), ..Default::default() };
        doc.set_module("inference", &state.encode_to_vec()).unwrap();

        let params = holdfast_escrow::Params {
            max_lifetime_blocks: 12,
            dispute_window_blocks: 5,
            ..holdfast_escrow::Params::default()
        };
        let state = escrow::v1::GenesisState {
            params: Some(params.to_pb()),
            next_escrow_id: 1,
            ..escrow::v1::GenesisState::default()
        };
        doc.set_module("escrow", &state.encode_to_vec()).unwrap();
        doc
    }
}

pub(super) fn mem() -> MemCommitStore {
    MemCommitStore::new(&state_spaces()).unwrap()
}

/// With the check mode of the candidate tables on, and a what-if record.
pub(super) fn options() -> AppOptions {
    let what_if = Some(Arc::new(crate::what_if::Log::in_memory()));
    AppOptions { check_tables: true, what_if, ..AppOptions::default() }
}

/// Everything that went into a block.
#[derive(Clone)]
pub(super) struct Played {
    pub(super) block: Block,
    pub(super) authority: Vec<(Moment, Any)>,
}

/// Executes a block, the authority's messages included, without committing it. The second value is what they got.
pub(super) fn finalize<S: CommitStore>(
    app: &mut App<S>,
    played: &Played,
) -> (FinalizedBlock, Vec<Result<Any, ModuleError>>) {
    let results = Arc::new(Mutex::new(Vec::new()));
    let (sink, messages) = (results.clone(), played.authority.clone());
    app.authority = Some(Box::new(move |moment, composition, ctx| {
        for (_, message) in messages.iter().filter(|(at, _)| *at == moment) {
            let result = ctx.branch(|ctx| composition.deliver(ctx, message));
            sink.lock().unwrap().push(result);
        }
    }));
    let done = app.finalize_block(&played.block).unwrap();
    app.authority = None;
    let results = results.lock().unwrap().clone();
    (done, results)
}

/// The whole state below a view.
pub(super) fn dump(store: &dyn KvRead) -> BTreeMap<Vec<u8>, Vec<u8>> {
    store.scan(&[], None, Order::Ascending).map(Result::unwrap).collect()
}

pub(super) struct Net<S = MemCommitStore> {
    pub(super) app: App<S>,
    pub(super) shared: Arc<Shared<S>>,
    gateways: Vec<Who>,
    executors: Vec<Who>,
    outsiders: Vec<Who>,
    /// Transactions signed since the last block, by account.
    signed: BTreeMap<Address, u64>,
    /// Transactions for the next block.
    pub(super) txs: Vec<Vec<u8>>,
    authority: Vec<(Moment, Any)>,
    /// What the authority's messages of the last block got.
    pub(super) authority_results: Vec<Result<Any, ModuleError>>,
    /// Every block so far.
    pub(super) history: Vec<Played>,
    pub(super) done: Vec<FinalizedBlock>,
}

impl Net {
    pub(super) fn new(spec: &Spec) -> Self {
        Self::with(spec, mem(), options())
    }

    pub(super) fn standard() -> Self {
        Self::new(&Spec::default())
    }
}

impl<S: CommitStore> Net<S> {
    pub(super) fn with(spec: &Spec, store: S, options: AppOptions) -> Self {
        let app = App::from_genesis(store, options, &spec.document()).unwrap();
        Self {
            shared: app.shared(),
            app,
            gateways: named("gateway", spec.gateways),
            executors: named("executor", spec.executors.len()),
            outsiders: named("outsider", spec.outsiders),
            signed: BTreeMap::new(),
            txs: Vec::new(),
            authority: Vec::new(),
            authority_results: Vec::new(),
            history: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn gateway(&self, i: usize) -> Who {
        self.gateways[i].clone()
    }

    pub(super) fn executor(&self, i: usize) -> Who {
        self.executors[i].clone()
    }

    pub(super) fn outsider(&self, i: usize) -> Who {
        self.outsiders[i].clone()
    }

    pub(super) fn everybody(&self) -> Vec<Who> {
        [&self.gateways[..], &self.executors, &self.outsiders].concat()
    }

    pub(super) fn index_of(&self, address: &str) -> usize {
        self.executors.iter().position(|who| who.bech32() == address).unwrap()
    }

    pub(super) fn height(&self) -> i64 {
        self.shared.next_height() - 1
    }

    /// A builder with the account's number and the sequence after those signed since the last block.
    pub(super) fn builder(&mut self, who: &Who, msgs: Vec<Any>) -> TxBuilder {
        let view = self.shared.view(0).unwrap();
        let account = holdfast_auth::Keeper.account(view.query().store, &who.address).unwrap();
        let account = account.expect("the signer has an account");
        let signed = self.signed.entry(who.address).or_default();
        *signed += 1;
        TxBuilder {
            chain_id: CHAIN.into(),
            account_number: account.number,
            sequence: account.sequence + *signed - 1,
            fee: Coin { denom: DENOM.into(), amount: 0 },
            gas_limit: GAS,
            memo: String::new(),
            timeout_height: 0,
            msgs,
        }
    }

    pub(super) fn tx(&mut self, who: &Who, msgs: Vec<Any>) -> Vec<u8> {
        self.builder(who, msgs).sign(&who.key)
    }

    /// Forgets what was signed: the next transaction of each account takes the committed sequence.
    pub(super) fn forget_signed(&mut self) {
        self.signed.clear();
    }

    /// Puts a transaction into the next block.
    pub(super) fn push(&mut self, who: &Who, msgs: Vec<Any>) {
        let tx = self.tx(who, msgs);
        self.txs.push(tx);
    }

    pub(super) fn start_msg(&self, gateway: usize, id: &str, model: &str, executor: usize) -> Any {
        start_msg(&self.gateways[gateway], id, model, &self.executors[executor])
    }

    pub(super) fn start(&mut self, id: &str, executor: usize) {
        let msg = self.start_msg(0, id, MODEL, executor);
        self.push(&self.gateway(0), vec![msg]);
    }

    pub(super) fn finish(&mut self, id: &str, executor: usize) {
        let who = self.executor(executor);
        self.push(&who, vec![finish_msg(&who, id)]);
    }

    pub(super) fn report(&mut self, id: &str, executor: usize) {
        let who = self.executor(executor);
        let msg =
            inference::v1::MsgReportFailure { executor: who.bech32(), inference_id: id.into(), kind: 1 };
        self.push(&who, vec![pack(&msg)]);
    }

    pub(super) fn cancel(&mut self, id: &str) {
        let who = self.gateway(0);
        let msg = inference::v1::MsgCancelInference { requested_by: who.bech32(), inference_id: id.into() };
        self.push(&who, vec![pack(&msg)]);
    }

    /// A message of the governance account in the next block.
    pub(super) fn govern(&mut self, moment: Moment, msg: Any) {
        self.authority.push((moment, msg));
    }

    /// Executes and commits a block of the queued transactions; every invariant must hold afterwards.
    pub(super) fn block(&mut self) -> FinalizedBlock {
        let height = self.shared.next_height();
        let block = Block {
            height,
            time_ns: u64::try_from(height).unwrap() * 5_000_000_000,
            txs: std::mem::take(&mut self.txs),
        };
        let played = Played { block, authority: std::mem::take(&mut self.authority) };
        self.play(played)
    }

    pub(super) fn play(&mut self, played: Played) -> FinalizedBlock {
        let (done, results) = finalize(&mut self.app, &played);
        self.app.commit().unwrap();
        self.shared.check_invariants().unwrap();
        self.authority_results = results;
        self.signed.clear();
        self.history.push(played);
        self.done.push(done.clone());
        done
    }

    /// A block in which everything must succeed.
    #[track_caller]
    pub(super) fn good(&mut self) -> FinalizedBlock {
        let done = self.block();
        for result in &done.tx_results {
            assert_eq!(result.code, 0, "{}: {}", result.codespace, result.log);
        }
        for result in &self.authority_results {
            result.as_ref().unwrap();
        }
        done
    }

    pub(super) fn blocks(&mut self, count: i64) {
        for _ in 0..count {
            self.good();
        }
    }

    /// Empty blocks until the one before `height` is committed.
    pub(super) fn until(&mut self, height: i64) {
        assert!(self.shared.next_height() <= height, "{height} is past");
        self.blocks(height - self.shared.next_height());
    }

    /// Two misses in one block: the executor is excluded at its end.
    #[track_caller]
    pub(super) fn exclude(&mut self, executor: usize) {
        let ids = ["a", "b"].map(|n| format!("out-{executor}-{}-{n}", self.height()));
        for id in &ids {
            self.start(id, executor);
        }
        self.good();
        for id in &ids {
            self.report(id, executor);
        }
        self.good();
        assert_eq!(self.state(executor), "X");
    }

    /// Excludes and waits for the probe.
    #[track_caller]
    pub(super) fn make_ready(&mut self, executor: usize) {
        self.exclude(executor);
        self.blocks(5);
        assert_eq!(self.state(executor), "R");
    }

    pub(super) fn entry_of(&self, model: &str, executor: usize) -> Entry {
        let view = self.shared.view(0).unwrap();
        let q = view.query();
        let participants = self.shared.composition().participants();
        let keeper = holdfast_breaker::Keeper::new(&participants);
        keeper.entry(q.store, q.block, model, &self.executors[executor].address).unwrap()
    }

    pub(super) fn entry(&self, executor: usize) -> Entry {
        self.entry_of(MODEL, executor)
    }

    /// H, X, R or C.
    pub(super) fn state(&self, executor: usize) -> &'static str {
        let entry = self.entry(executor);
        match (entry.state, entry.probe) {
            (State::Healthy, _) => "H",
            (State::Excluded, _) => "X",
            (State::Probe, None) => "R",
            (State::Probe, Some(_)) => "C",
        }
    }

    pub(super) fn tally(&self) -> ModelTally {
        let view = self.shared.view(0).unwrap();
        let q = view.query();
        let participants = self.shared.composition().participants();
        holdfast_breaker::Keeper::new(&participants).tally(q.store, q.block, MODEL).unwrap()
    }

    pub(super) fn standing(&self, executor: usize) -> Standing {
        let view = self.shared.view(0).unwrap();
        let (q, address) = (view.query(), &self.executors[executor].address);
        self.shared.composition().participants().standing(q.store, q.block, MODEL, address).unwrap()
    }

    pub(super) fn table(&self) -> Arc<CandidateTable> {
        self.shared.view(0).unwrap().table(self.shared.composition(), MODEL).unwrap()
    }

    /// Class of an executor in the candidate table; `None` when it is no candidate.
    pub(super) fn class(&self, executor: usize) -> Option<u8> {
        self.table().row(&self.executors[executor].address).map(|row| row.class)
    }

    pub(super) fn query<M: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<M, QueryError> {
        let (reply, _) = self.shared.query(path, &request.encode_to_vec(), 0)?;
        Ok(M::decode(reply.as_slice()).unwrap())
    }

    pub(super) fn draw(
        &self,
        model: &str,
        seed: [u8; 32],
    ) -> Result<inference::v1::QueryGetRandomExecutorResponse, QueryError> {
        let request =
            inference::v1::QueryGetRandomExecutorRequest { model: model.into(), seed: seed.to_vec() };
        self.query("/holdfast.inference.v1.Query/GetRandomExecutor", &request)
    }

    pub(super) fn inference(&self, id: &str) -> inference::v1::Inference {
        let request = inference::v1::QueryInferenceRequest { inference_id: id.into() };
        let reply: inference::v1::QueryInferenceResponse =
            self.query("/holdfast.inference.v1.Query/Inference", &request).unwrap();
        reply.inference.unwrap()
    }

    pub(super) fn status(&self, id: &str) -> inference::v1::InferenceStatus {
        self.inference(id).status()
    }

    pub(super) fn stats(&self, executor: usize, epoch: u64) -> inference::v1::EpochStats {
        let participant = self.executors[executor].bech32();
        let request = inference::v1::QueryParticipantStatsRequest { participant, epoch: Some(epoch) };
        let reply: inference::v1::QueryParticipantStatsResponse =
            self.query("/holdfast.inference.v1.Query/ParticipantStats", &request).unwrap();
        reply.stats.unwrap()
    }

    pub(super) fn balance(&self, address: &Address) -> u128 {
        use holdfast_types::traits::BankKeeper;
        let view = self.shared.view(0).unwrap();
        holdfast_bank::Keeper.balance(view.query().store, address, DENOM).unwrap()
    }

    pub(super) fn sequence(&self, who: &Who) -> u64 {
        let view = self.shared.view(0).unwrap();
        holdfast_auth::Keeper.account(view.query().store, &who.address).unwrap().unwrap().sequence
    }

    pub(super) fn dump(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        dump(self.shared.view(0).unwrap().query().store)
    }
}

pub(super) fn start_msg(gateway: &Who, id: &str, model: &str, executor: &Who) -> Any {
    pack(&inference::v1::MsgStartInference {
        signer: gateway.bech32(),
        requested_by: gateway.bech32(),
        inference_id: id.into(),
        model: model.into(),
        assigned_to: executor.bech32(),
        prompt_hash: vec![7; 32],
        prompt_tokens: 10,
        max_tokens: 20,
    })
}

pub(super) fn finish_msg(executor: &Who, id: &str) -> Any {
    pack(&inference::v1::MsgFinishInference {
        executed_by: executor.bech32(),
        inference_id: id.into(),
        response_hash: vec![8; 32],
        prompt_tokens: 10,
        completion_tokens: 5,
    })
}

/// An escrow whose gateway is its creator.
pub(super) fn create_escrow_msg(creator: &Who, slots: u32, amount: u128) -> Any {
    pack(&escrow::v1::MsgCreateEscrow {
        creator: creator.bech32(),
        gateway: creator.bech32(),
        gateway_url: "http://127.0.0.1:8090".into(),
        model: MODEL.into(),
        amount: Some(pb_coin(amount)),
        slots,
    })
}

pub(super) fn send_msg(from: &Who, to: &Address, amount: u128) -> Any {
    pack(&MsgSend {
        from_address: from.bech32(),
        to_address: to.to_bech32(&Hrp::default()),
        amount: vec![pb_coin(amount)],
    })
}

pub(super) fn gov() -> String {
    Address::module("gov").to_bech32(&Hrp::default())
}

fn mask(paths: &[&str]) -> Option<FieldMask> {
    Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() })
}

pub(super) fn validation_msg(new: ValidationParams, price: u128, paths: &[&str]) -> Any {
    let token_price = Coin { denom: DENOM.into(), amount: price };
    let params = holdfast_inference::Params { validation: new, token_price }.to_pb();
    pack(&inference::v1::MsgUpdateParams { authority: gov(), params: Some(params), update_mask: mask(paths) })
}

/// A proposal of `messages`, with this much put on it at once.
pub(super) fn submit_msg(who: &Who, messages: Vec<Any>, deposit: u128) -> Any {
    pack(&gov::MsgSubmitProposal {
        messages,
        initial_deposit: if deposit == 0 { Vec::new() } else { vec![pb_coin(deposit)] },
        proposer: who.bech32(),
        title: "A change".into(),
        summary: "What it is for.".into(),
        metadata: "ipfs://none".into(),
        expedited: false,
    })
}

pub(super) fn vote_msg(who: &Who, proposal_id: u64, option: gov::VoteOption) -> Any {
    let (voter, option) = (who.bech32(), option.into());
    pack(&gov::MsgVote { proposal_id, voter, option, metadata: String::new() })
}

pub(super) fn epochs_msg(epoch_length: i64, poc_length: i64, paths: &[&str]) -> Any {
    pack(&epochs::v1::MsgUpdateParams {
        authority: gov(),
        params: Some(epochs::v1::Params { epoch_length, poc_length }),
        update_mask: mask(paths),
    })
}

pub(super) fn participants_msg(new: &holdfast_participants::Params, paths: &[&str]) -> Any {
    pack(&participants::v1::MsgUpdateParams {
        authority: gov(),
        params: Some(new.to_pb()),
        update_mask: mask(paths),
    })
}

pub(super) fn override_msg(model: &str, who: &Who, to: breaker::v1::OverrideTo, until_block: i64) -> Any {
    pack(&breaker::v1::MsgSetBreakerOverride {
        authority: gov(),
        model: model.into(),
        participant: who.bech32(),
        to: to.into(),
        until_block,
    })
}

pub(super) fn model_msg(id: &str) -> Any {
    let model = Some(participants::v1::Model { id: id.into() });
    pack(&participants::v1::MsgRegisterModel { authority: gov(), model })
}

pub(super) fn announce_msg(who: &Who, start_height: i64, end_height: i64) -> Any {
    pack(&participants::v1::MsgAnnounceMaintenance { participant: who.bech32(), start_height, end_height })
}

pub(super) fn leave_msg(who: &Who) -> Any {
    pack(&participants::v1::MsgLeaveNetwork { participant: who.bech32() })
}

/// 32 bytes, as of an ed25519 key.
fn validator_key(who: &Who) -> Vec<u8> {
    who.key.public_key().to_bytes()[1..].to_vec()
}

pub(super) fn deposit_msg(who: &Who, amount: u128) -> Any {
    pack(&participants::v1::MsgDepositCollateral { participant: who.bech32(), amount: Some(pb_coin(amount)) })
}

pub(super) fn serve_msg(who: &Who, models: &[&str], poc_preserved: bool) -> Any {
    pack(&participants::v1::MsgUpdateParticipant {
        participant: who.bech32(),
        models: models.iter().map(|m| (*m).to_owned()).collect(),
        poc_preserved,
        ..Default::default()
    })
}

pub(super) fn register_msg(who: &Who, models: &[&str], collateral: u128) -> Any {
    pack(&participants::v1::MsgRegisterParticipant {
        participant: who.bech32(),
        validator_key: validator_key(who),
        models: models.iter().map(|m| (*m).to_owned()).collect(),
        collateral: Some(pb_coin(collateral)),
        ..Default::default()
    })
}

/// Codespace and code.
pub(super) fn code(result: &TxResult) -> (&str, u32) {
    (&result.codespace, result.code)
}

#[track_caller]
pub(super) fn codes(done: &FinalizedBlock, expected: &[(&str, u32)]) {
    let found: Vec<_> = done.tx_results.iter().map(code).collect();
    let logs: Vec<_> = done.tx_results.iter().map(|r| &r.log).collect();
    assert_eq!(found, expected, "{logs:?}");
}

/// Names of the typed events outside transactions, in order, without their package.
pub(super) fn names(events: &[Event]) -> Vec<&str> {
    let typed = events.iter().filter(|e| e.kind.starts_with("holdfast."));
    typed.map(|e| e.kind.rsplit('.').next().unwrap()).collect()
}

/// Every event of a block, those of transactions too.
pub(super) fn all_events(done: &FinalizedBlock) -> Vec<Event> {
    let txs = done.tx_results.iter().flat_map(|r| r.events.clone());
    txs.chain(done.events.clone()).collect()
}

pub(super) fn find<'e>(events: &'e [Event], name: &str) -> Vec<&'e Event> {
    events.iter().filter(|e| e.kind.ends_with(&format!(".{name}"))).collect()
}

/// SplitMix64: the same numbers on every machine.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(super) fn percent(&mut self, pct: usize) -> bool {
        self.below(100) < pct
    }

    pub(super) fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for chunk in seed.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_be_bytes());
        }
        seed
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A composition with other weights than collateral.
pub(super) fn with_weights(
    weights: impl holdfast_types::traits::WeightSource + Send + Sync + 'static,
) -> Composition {
    Composition::with_weights(Arc::new(weights))
}
