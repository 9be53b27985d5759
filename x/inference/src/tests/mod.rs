//! Neighbours made of tables, and a chain of blocks to run messages in.

mod codes;
mod conservation;
mod draw;
mod group;
mod life;
mod params;
mod queries;
mod sprt;
mod state;
mod steps;
mod table;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_store::{KvRead, Map, MemKv, Prefix, StoreError};
use holdfast_types::traits::*;
use holdfast_types::*;

use crate::*;

pub(crate) const MODEL: &str = "m1";
pub(crate) const DENOM: &str = "uhold";
pub(crate) const RICH: u128 = 1_000_000;

/// Who is who: 1 to 9 participants, 51 and 52 requesters, 59 without an account.
pub(crate) fn who(n: u8) -> Address {
    Address([n; 20])
}

pub(crate) fn text(n: u8) -> String {
    who(n).to_bech32(&Hrp::default())
}

// In the store, so that a dropped branch drops transfers too.
const BALANCES: Map<(Address, String), u128> = Map::new(Prefix::new("testbank", 1, "balances"));

#[derive(Default)]
pub(crate) struct Neighbours {
    pub(crate) standings: BTreeMap<(String, Address), Standing>,
    pub(crate) unregistered: BTreeSet<Address>,
    pub(crate) excuses: BTreeMap<Address, Excuse>,
    pub(crate) asked: RefCell<Vec<(Height, Height)>>,
    pub(crate) refusal: Option<u32>,
    pub(crate) generation: u32,
    pub(crate) claim: bool,
    pub(crate) attempts: RefCell<Vec<(Address, Address, Option<Height>)>>,
    pub(crate) heard: RefCell<Vec<String>>,
    pub(crate) deaf_to: RefCell<BTreeSet<String>>,
    pub(crate) bank_closed: Cell<bool>,
    pub(crate) deactivated: RefCell<Vec<Address>>,
    pub(crate) schedule: Vec<EpochInfo>,
    pub(crate) health: BTreeMap<Address, HealthClass>,
}

impl BankKeeper for Neighbours {
    fn send(
        &self,
        ctx: &mut Context<'_>,
        from: &Address,
        to: &Address,
        coin: &Coin,
    ) -> Result<(), ModuleError> {
        if self.bank_closed.get() {
            return Err(ModuleError::new("bank", 9, "closed"));
        }
        let held = self.balance(&*ctx.store, from, &coin.denom)?;
        let Some(left) = held.checked_sub(coin.amount) else {
            return Err(ModuleError::sdk(sdk::INSUFFICIENT_FUNDS, format!("has {held}")));
        };
        BALANCES.set(ctx.store, &(*from, coin.denom.clone()), &left)?;
        let other = self.balance(&*ctx.store, to, &coin.denom)?;
        Ok(BALANCES.set(ctx.store, &(*to, coin.denom.clone()), &(other + coin.amount))?)
    }

    fn balance(&self, store: &dyn KvRead, account: &Address, denom: &str) -> Result<u128, StoreError> {
        Ok(BALANCES.get(store, &(*account, denom.to_owned()))?.unwrap_or(0))
    }
}

impl ParticipantsRead for Neighbours {
    fn has_model(&self, store: &dyn KvRead, model: &str) -> Result<bool, StoreError> {
        Ok(self.models(store)?.iter().any(|m| m == model))
    }
    fn has_participant(&self, _: &dyn KvRead, participant: &Address) -> Result<bool, StoreError> {
        Ok((1..=9).contains(&participant.0[0]) && !self.unregistered.contains(participant))
    }
    fn standing(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Standing, StoreError> {
        let mut standing = self.standings.get(&(model.to_owned(), *participant)).copied().unwrap_or_default();
        standing.active &= !self.deactivated.borrow().contains(participant);
        Ok(standing)
    }
    fn members(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        model: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError> {
        Ok(self
            .standings
            .iter()
            .filter(|((m, _), s)| m == model && s.member)
            .map(|((_, a), s)| (*a, *s))
            .collect())
    }
    fn models(&self, _: &dyn KvRead) -> Result<Vec<String>, StoreError> {
        Ok(vec![MODEL.to_owned(), "m2".to_owned()])
    }
    fn excuse(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        _: &str,
        participant: &Address,
        from: Height,
        to: Height,
    ) -> Result<Option<Excuse>, StoreError> {
        self.asked.borrow_mut().push((from, to));
        Ok(self.excuses.get(participant).copied())
    }
}

impl ParticipantsWrite for Neighbours {
    fn deactivate(&self, _: &mut Context<'_>, participant: &Address) -> Result<(), ModuleError> {
        self.deactivated.borrow_mut().push(*participant);
        Ok(())
    }
}

impl BreakerGate for Neighbours {
    fn admit(&self, ctx: &Context<'_>, attempt: &StartAttempt<'_>) -> Result<Admission, ModuleError> {
        self.attempts.borrow_mut().push((attempt.requester, attempt.signer, attempt.finished_at));
        if let Some(code) = self.refusal {
            return Err(ModuleError::new("breaker", code, "until later"));
        }
        let stamp = Stamp { epoch: ctx.block.epoch, generation: self.generation, evidence: true };
        Ok(Admission { stamp, claim: self.claim })
    }
}

impl BreakerRead for Neighbours {
    fn health(
        &self,
        _: &dyn KvRead,
        _: &BlockContext,
        _: &str,
        participant: &Address,
    ) -> Result<HealthClass, StoreError> {
        Ok(self.health.get(participant).copied().unwrap_or(HealthClass::Healthy))
    }
}

impl Neighbours {
    fn hear(&self, what: &str, o: &InferenceOutcome) -> Result<(), ModuleError> {
        if self.deaf_to.borrow().contains(&o.inference_id) {
            return Err(ModuleError::new("breaker", 99, "corrupt entry"));
        }
        self.heard.borrow_mut().push(format!("{what} {} {}", o.inference_id, o.stamp.epoch));
        Ok(())
    }
}

impl InferenceHooks for Neighbours {
    fn after_inference_started(&self, _: &mut Context<'_>, e: &InferenceStarted) -> Result<(), ModuleError> {
        if self.deaf_to.borrow().contains(&e.inference_id) {
            return Err(ModuleError::new("breaker", 99, "corrupt entry"));
        }
        let claim = if e.claim { " claim" } else { "" };
        self.heard.borrow_mut().push(format!("started {} {}{claim}", e.inference_id, e.stamp.epoch));
        Ok(())
    }
    fn after_inference_finished(&self, _: &mut Context<'_>, e: &InferenceOutcome) -> Result<(), ModuleError> {
        self.hear("finished", e)
    }
    fn after_inference_missed(&self, _: &mut Context<'_>, e: &InferenceOutcome) -> Result<(), ModuleError> {
        self.hear("missed", e)
    }
    fn after_inference_released(&self, _: &mut Context<'_>, e: &InferenceOutcome) -> Result<(), ModuleError> {
        self.hear("released", e)
    }
}

impl EpochsRead for Neighbours {
    fn epoch(&self, _: &dyn KvRead, epoch: Epoch) -> Result<Option<EpochInfo>, StoreError> {
        Ok(self.schedule.iter().find(|e| e.epoch == epoch).copied())
    }
}

impl Requesters for Neighbours {
    fn is_known(&self, _: &dyn KvRead, requester: &Address) -> Result<bool, StoreError> {
        Ok(*requester != who(59))
    }
}

/// A chain with one module. Epochs of 100 blocks from height 1; executors 1 to 3 serve `m1`.
pub(crate) struct World {
    pub(crate) store: MemKv,
    pub(crate) block: BlockContext,
    pub(crate) events: Vec<Event>,
    pub(crate) near: Neighbours,
}

pub(crate) const SERVING: Standing =
    Standing { member: true, active: true, weight: 10, preserved: false, in_maintenance: false };

impl World {
    pub(crate) fn new() -> Self {
        let mut near = Neighbours::default();
        for n in 1..=3 {
            near.standings.insert((MODEL.to_owned(), who(n)), SERVING);
        }
        near.schedule = (0..50)
            .map(|epoch| EpochInfo {
                epoch,
                start_height: 1 + 100 * i64::try_from(epoch).unwrap(),
                length: 100,
                poc_length: 0,
            })
            .collect();
        let mut params = Params::default();
        params.validation.health_cb_max_cooldown_blocks = 90;
        let mut block = BlockContext::new(0, params.validation.clone());
        block.chain_id = "test-1".to_owned();
        let mut world = Self { store: MemKv::default(), block, events: Vec::new(), near };
        crate::state::PARAMS.set(&mut world.store, &params).unwrap();
        for n in [51, 52] {
            BALANCES.set(&mut world.store, &(who(n), DENOM.to_owned()), &RICH).unwrap();
        }
        world.begin(1);
        world
    }

    /// Begins the block at `height`.
    pub(crate) fn begin(&mut self, height: Height) {
        self.block.height = height;
        self.block.epoch = u64::try_from((height - 1) / 100).unwrap();
        self.block.params = Params::load(&self.store).unwrap().validation;
        self.run(|ctx, _| begin_block(ctx)).unwrap();
    }

    /// The block's last steps.
    pub(crate) fn end(&mut self) {
        self.run(expire).unwrap();
        self.run(sprt_step).unwrap();
        self.run(|ctx, deps| prune(ctx, deps.epochs)).unwrap();
    }

    /// Ends this block and all up to `height`, and begins that.
    pub(crate) fn go(&mut self, height: Height) {
        while self.block.height < height {
            self.end();
            self.begin(self.block.height + 1);
        }
    }

    /// One step on a branch of its own, as the app does it.
    pub(crate) fn run<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>, &Deps<'_>) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        let n = &self.near;
        let deps =
            Deps { bank: n, participants: n, deactivation: n, gate: n, hooks: n, epochs: n, requesters: n };
        let mut ctx = Context::new(&self.block, &mut self.store, &mut self.events);
        ctx.branch(|ctx| step(ctx, &deps))
    }

    pub(crate) fn send_start(&mut self, msg: pb::MsgStartInference) -> Result<(), ModuleError> {
        self.run(|ctx, deps| msg_server::start_inference(ctx, deps, msg)).map(|_| ())
    }

    /// 51 asks `executor` for `id`: 30 tokens at 1 `uhold`.
    pub(crate) fn start(&mut self, id: &str, executor: u8) -> Result<(), ModuleError> {
        self.send_start(start_msg(id, executor))
    }

    /// `executor` answers with 15 tokens.
    pub(crate) fn finish(&mut self, id: &str, executor: u8) -> Result<(), ModuleError> {
        let msg = finish_msg(id, executor);
        self.run(|ctx, deps| msg_server::finish_inference(ctx, deps, msg)).map(|_| ())
    }

    pub(crate) fn report(&mut self, id: &str, executor: u8) -> Result<(), ModuleError> {
        let msg = pb::MsgReportFailure { executor: text(executor), inference_id: id.to_owned(), kind: 7 };
        self.run(|ctx, deps| msg_server::report_failure(ctx, deps, msg)).map(|_| ())
    }

    pub(crate) fn cancel(&mut self, id: &str, requester: u8) -> Result<(), ModuleError> {
        let msg = pb::MsgCancelInference { requested_by: text(requester), inference_id: id.to_owned() };
        self.run(|ctx, deps| msg_server::cancel_inference(ctx, deps, msg)).map(|_| ())
    }

    pub(crate) fn held(&self, n: u8) -> u128 {
        self.near.balance(&self.store, &who(n), DENOM).unwrap()
    }

    pub(crate) fn escrow(&self) -> u128 {
        self.near.balance(&self.store, &module_account(), DENOM).unwrap()
    }

    pub(crate) fn record(&self, id: &str) -> Option<Inference> {
        crate::state::INFERENCES.get(&self.store, &id.to_owned()).unwrap()
    }

    pub(crate) fn status(&self, id: &str) -> Option<Status> {
        self.record(id).map(|r| r.status)
    }

    pub(crate) fn stats(&self, epoch: Epoch, n: u8) -> EpochStats {
        crate::state::STATS.get(&self.store, &(epoch, who(n))).unwrap().unwrap_or_default()
    }

    /// What listeners heard since the last call.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.near.heard.take()
    }

    /// Kinds of the events since the last call, without the package, with their cause.
    pub(crate) fn kinds(&mut self) -> Vec<String> {
        let name = |e: &Event| {
            let kind = e.kind.strip_prefix("holdfast.inference.v1.").unwrap();
            e.get("cause").map_or(kind.to_owned(), |cause| format!("{kind} {cause}"))
        };
        std::mem::take(&mut self.events).iter().map(name).collect()
    }
}

pub(crate) fn start_msg(id: &str, executor: u8) -> pb::MsgStartInference {
    pb::MsgStartInference {
        signer: text(51),
        requested_by: text(51),
        inference_id: id.to_owned(),
        model: MODEL.to_owned(),
        assigned_to: text(executor),
        prompt_hash: vec![8; 32],
        prompt_tokens: 10,
        max_tokens: 20,
    }
}

pub(crate) fn finish_msg(id: &str, executor: u8) -> pb::MsgFinishInference {
    pb::MsgFinishInference {
        executed_by: text(executor),
        inference_id: id.to_owned(),
        response_hash: vec![9; 32],
        prompt_tokens: 10,
        completion_tokens: 5,
    }
}

/// Code in codespace `inference`.
#[track_caller]
pub(crate) fn refused(result: Result<(), ModuleError>, code: u32) {
    let error = result.expect_err("must be refused");
    assert_eq!((error.codespace, error.code), (MODULE_NAME, code), "{error}");
}
