//! The life of an inference: start, finish, report, cancel, and the common end of all of them.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{InferenceOutcome, InferenceStarted, ScheduleLimits, StartAttempt};
use holdfast_types::{Address, Coin, Context, Epoch, Height, ModuleError, sdk};

use crate::errors::InferenceError;
use crate::msgs::{CancelInference, FinishInference, ReportFailure, StartInference, UpdateParams};
use crate::state::{CHANGED, INFERENCES, PARAMS, STATS, block_price};
use crate::types::{Answer, EpochStats, Inference, Start, Status};
use crate::{Deps, MODULE_NAME, Params, calc, events};

/// The module's writes. Holds nothing. A call that fails may have written: run it on a branch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

/// The account that holds what started inferences paid in.
pub fn module_account() -> Address {
    Address::module(MODULE_NAME)
}

/// How an inference ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Answered: the executor is paid.
    Finished,
    /// A miss: [`Status::Expired`] or [`Status::Failed`], and the event's cause.
    Missed(Status, &'static str),
    /// No fault: [`Status::Cancelled`] or [`Status::Released`], and the event's cause.
    Released(Status, &'static str),
}

fn logic(what: &str) -> ModuleError {
    ModuleError::sdk(sdk::LOGIC, what)
}

impl Keeper {
    /// The record of an inference, from its start or waiting finish until it is pruned.
    pub fn inference(&self, store: &dyn KvRead, id: &str) -> Result<Option<Inference>, StoreError> {
        INFERENCES.get(store, &id.to_owned())
    }

    /// The committed parameters: B1 of the next block copies `validation` into its context.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        Params::load(store)
    }

    /// Gives work to an executor. Refusals in the order of breaker-details 5: 3 · 4 · 5 · 6 · 7 · 14 · 8 · 9 ·
    /// the breaker's · 10. If the finish is waiting, it is settled in this call.
    pub fn start(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: StartInference,
    ) -> Result<(), ModuleError> {
        let block = ctx.block;
        let token_price = block_price(&*ctx.store)?;
        let escrowed =
            calc::escrow(msg.prompt_tokens, msg.max_tokens, token_price.amount).ok_or_else(|| {
                InferenceError::invalid(
                    "max_tokens",
                    "tokens times token_price pass 2^128 - 1; ask for fewer",
                )
            })?;
        if !deps.participants.has_model(&*ctx.store, &msg.model)? {
            return Err(InferenceError::ModelUnknown(msg.model.chars().take(80).collect()).into());
        }
        if !deps.requesters.is_known(&*ctx.store, &msg.requested_by)? {
            return Err(InferenceError::RequesterUnknown(ctx.bech32(&msg.requested_by)).into());
        }
        let executor = msg.assigned_to;
        if !deps.participants.has_participant(&*ctx.store, &executor)? {
            let executor = ctx.bech32(&executor);
            return Err(InferenceError::ExecutorUnknown { field: "assigned_to", executor }.into());
        }
        let id = msg.inference_id;
        let waiting = match known(ctx, &id)? {
            None => None,
            Some(Inference { status: Status::FinishedFirst, answer: Some(answer), .. }) => Some(answer),
            Some(_) => return Err(InferenceError::InferenceExists(id).into()),
        };
        if let Some(answer) = waiting.as_ref().filter(|answer| answer.executed_by != executor) {
            let executor = ctx.bech32(&answer.executed_by);
            return Err(InferenceError::ExecutorMismatch { field: "assigned_to", id, executor }.into());
        }
        let standing = deps.participants.standing(&*ctx.store, block, &msg.model, &executor)?;
        if !standing.serving() {
            return Err(InferenceError::ExecutorNotServing(ctx.bech32(&executor)).into());
        }
        let away = match (standing.in_maintenance, block.poc && !standing.preserved) {
            (true, _) => Some("maintenance"),
            (false, true) => Some("poc"),
            (false, false) => None,
        };
        if let Some(why) = away {
            let executor = ctx.bech32(&executor);
            return Err(InferenceError::ExecutorUnavailable { executor, why }.into());
        }
        let attempt = StartAttempt {
            model: &msg.model,
            requester: msg.requested_by,
            signer: msg.signer,
            executor,
            finished_at: waiting.as_ref().map(|answer| answer.height),
        };
        let admission = deps.gate.admit(ctx, &attempt)?;

        let payment = Coin { denom: token_price.denom.clone(), amount: escrowed };
        deps.bank.send(ctx, &msg.signer, &module_account(), &payment).map_err(|error| {
            if error.codespace != sdk::CODESPACE || error.code != sdk::INSUFFICIENT_FUNDS {
                return error;
            }
            let needed = format!("{}{}", payment.amount, payment.denom);
            InferenceError::InsufficientFunds { needed, reason: error.message }.into()
        })?;
        let start = Start {
            model: msg.model,
            requested_by: msg.requested_by,
            payer: msg.signer,
            assigned_to: executor,
            prompt_hash: msg.prompt_hash,
            prompt_tokens: msg.prompt_tokens,
            max_tokens: msg.max_tokens,
            token_price,
            escrowed,
            height: block.height,
            stamp: admission.stamp,
        };
        let expires_at = timeout(ctx)?;
        let record = Inference {
            status: Status::Started,
            expires_at,
            start: Some(start.clone()),
            answer: waiting,
            paid: 0,
            refunded: 0,
            end_height: 0,
            failure_kind: 0,
        };
        count(ctx, start.stamp.epoch, &executor, |stats| {
            stats.assigned = stats.assigned.checked_add(1)?;
            Some(())
        })?;
        events::started(ctx, &id, &start);
        let started = InferenceStarted {
            inference_id: id.clone(),
            model: start.model,
            executor,
            stamp: start.stamp,
            claim: admission.claim,
            expires_at,
        };
        if record.answer.is_none() {
            INFERENCES.set(ctx.store, &id, &record)?;
            return deps.hooks.after_inference_started(ctx, &started);
        }
        deps.hooks.after_inference_started(ctx, &started)?;
        self.end(ctx, deps, &id, record, Ending::Finished, true)
    }

    /// Records an answer and settles the payment. Refusals: 3 · 6 · 14 · 12 · 13. An unknown id waits for its
    /// start, at most `expiration_blocks`.
    pub fn finish(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: FinishInference,
    ) -> Result<(), ModuleError> {
        if !deps.participants.has_participant(&*ctx.store, &msg.executed_by)? {
            let executor = ctx.bech32(&msg.executed_by);
            return Err(InferenceError::ExecutorUnknown { field: "executed_by", executor }.into());
        }
        let answer = Answer {
            executed_by: msg.executed_by,
            response_hash: msg.response_hash,
            prompt_tokens: msg.prompt_tokens,
            completion_tokens: msg.completion_tokens,
            height: ctx.block.height,
        };
        let id = msg.inference_id;
        let Some(mut record) = known(ctx, &id)? else {
            let waiting = Inference {
                status: Status::FinishedFirst,
                expires_at: timeout(ctx)?,
                start: None,
                answer: Some(answer),
                paid: 0,
                refunded: 0,
                end_height: 0,
                failure_kind: 0,
            };
            return Ok(INFERENCES.set(ctx.store, &id, &waiting)?);
        };
        check_executor(ctx, "executed_by", &id, &record, &msg.executed_by)?;
        check_open(ctx.block.height, &id, &record)?;
        record.answer = Some(answer);
        self.end(ctx, deps, &id, record, Ending::Finished, true)
    }

    /// The executor gives up: a miss whatever the kind. Refusals: 3 · 11 · 14 · 12 · 13.
    pub fn report_failure(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: ReportFailure,
    ) -> Result<(), ModuleError> {
        let id = msg.inference_id;
        let mut record = started_before(ctx, &id)?;
        check_executor(ctx, "executor", &id, &record, &msg.executor)?;
        check_open(ctx.block.height, &id, &record)?;
        record.failure_kind = msg.kind;
        self.end(ctx, deps, &id, record, Ending::Missed(Status::Failed, "reported"), true)
    }

    /// The requester withdraws. Refusals: 3 · 11 · 2 · 12 · 13.
    pub fn cancel(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: CancelInference,
    ) -> Result<(), ModuleError> {
        let id = msg.inference_id;
        let record = started_before(ctx, &id)?;
        if let Some(start) = record.start.as_ref().filter(|start| start.requested_by != msg.requested_by) {
            let allowed = format!("the requester {}", ctx.bech32(&start.requested_by));
            return Err(InferenceError::InvalidSigner { field: "requested_by", allowed }.into());
        }
        check_open(ctx.block.height, &id, &record)?;
        self.end(ctx, deps, &id, record, Ending::Released(Status::Cancelled, "cancelled"), true)
    }

    /// Changes parameters from the next block on. Refusals: 2 · 3.
    pub fn update_params(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: UpdateParams,
    ) -> Result<(), ModuleError> {
        let gov = ctx.bech32(&Address::module("gov"));
        if msg.authority != gov {
            let allowed = format!("the gov module account {gov}");
            return Err(InferenceError::InvalidSigner { field: "authority", allowed }.into());
        }
        let old = PARAMS.load(&*ctx.store)?;
        let new = old.updated(&msg.params, &msg.update_mask)?;
        let max = new.validation.health_cb_max_cooldown_blocks;
        if max != old.validation.health_cb_max_cooldown_blocks {
            let epoch = deps.epochs.epoch(&*ctx.store, ctx.block.epoch)?;
            let length = epoch.ok_or_else(|| logic("the current epoch has no schedule"))?.length;
            // A shorter epoch may have been decided already.
            let next = deps.epochs.next_length(&*ctx.store, ctx.block.epoch)?.unwrap_or(length);
            let length = length.min(next);
            if max > length {
                let rule = format!("must be at most the epoch's length of {length} blocks");
                return Err(InferenceError::invalid("health_cb_max_cooldown_blocks", rule).into());
            }
        }
        Ok(PARAMS.set(ctx.store, &new)?)
    }

    /// Ends a started inference: money first, then record, statistics, event, hook. `notify` false leaves the
    /// last two out (a discarded step).
    pub(crate) fn end(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: &str,
        mut record: Inference,
        ending: Ending,
        notify: bool,
    ) -> Result<(), ModuleError> {
        let start = record.start.clone().ok_or_else(|| logic("an inference without start cannot end"))?;
        let price = &start.token_price;
        let (status, paid) = match (ending, &record.answer) {
            (Ending::Finished, Some(a)) => (
                Status::Finished,
                calc::earned(a.prompt_tokens, a.completion_tokens, price.amount, start.escrowed),
            ),
            (Ending::Finished, None) => return Err(logic("an inference without answer cannot finish")),
            (Ending::Missed(status, _) | Ending::Released(status, _), _) => (status, 0),
        };
        let refunded =
            start.escrowed.checked_sub(paid).ok_or_else(|| logic("paid more than was escrowed"))?;
        // The bank takes 0 as "nothing to do", but a free chain should not even ask.
        for (to, amount) in [(&start.payer, refunded), (&start.assigned_to, paid)] {
            if amount > 0 {
                let coin = Coin { denom: price.denom.clone(), amount };
                deps.bank.send(ctx, &module_account(), to, &coin)?;
            }
        }
        record.status = status;
        record.paid = paid;
        record.refunded = refunded;
        record.end_height = ctx.block.height;
        INFERENCES.set(ctx.store, &id.to_owned(), &record)?;

        let answer = record.answer.as_ref();
        count(ctx, start.stamp.epoch, &start.assigned_to, |stats| {
            let column = match ending {
                Ending::Finished => &mut stats.inference_count,
                Ending::Missed(..) => &mut stats.missed_requests,
                Ending::Released(..) => &mut stats.released,
            };
            *column = column.checked_add(1)?;
            if let (Ending::Finished, Some(answer)) = (ending, answer) {
                // The executor chose these numbers: they must not be able to overflow anything.
                stats.prompt_tokens = stats.prompt_tokens.saturating_add(answer.prompt_tokens);
                stats.completion_tokens = stats.completion_tokens.saturating_add(answer.completion_tokens);
                stats.earned = stats.earned.checked_add(paid)?;
            }
            Some(())
        })?;
        let judged = !matches!(ending, Ending::Released(..));
        if judged && start.stamp.epoch == ctx.block.epoch {
            CHANGED.set(ctx.store, &start.assigned_to, &())?;
        }
        if !notify {
            return Ok(());
        }
        let outcome = InferenceOutcome {
            inference_id: id.to_owned(),
            model: start.model.clone(),
            executor: start.assigned_to,
            stamp: start.stamp,
        };
        match ending {
            Ending::Finished => {
                events::finished(ctx, id, &start);
                deps.hooks.after_inference_finished(ctx, &outcome)
            }
            Ending::Missed(_, cause) => {
                events::missed(ctx, id, &start, cause);
                deps.hooks.after_inference_missed(ctx, &outcome)
            }
            Ending::Released(_, cause) => {
                events::released(ctx, id, &start, cause);
                deps.hooks.after_inference_released(ctx, &outcome)
            }
        }
    }
}

/// Last height for what begins in this block.
fn timeout(ctx: &Context<'_>) -> Result<Height, ModuleError> {
    let sum = ctx.block.height.checked_add(ctx.block.params.expiration_blocks);
    sum.ok_or_else(|| logic("height overflow"))
}

/// Changes the statistics row of `epoch`, unless that epoch is so old that its row is gone.
pub(crate) fn count(
    ctx: &mut Context<'_>,
    epoch: Epoch,
    participant: &Address,
    change: impl FnOnce(&mut EpochStats) -> Option<()>,
) -> Result<(), ModuleError> {
    if epoch.saturating_add(2) < ctx.block.epoch {
        return Ok(());
    }
    let key = (epoch, *participant);
    let mut stats = STATS.get(&*ctx.store, &key)?.unwrap_or_default();
    change(&mut stats).ok_or_else(|| logic("a statistics counter overflowed"))?;
    Ok(STATS.set(ctx.store, &key, &stats)?)
}

/// The record of an id. A waiting finish whose time is over is none, even while its timeout waits behind a backlog.
fn known(ctx: &Context<'_>, id: &String) -> Result<Option<Inference>, StoreError> {
    let record = INFERENCES.get(&*ctx.store, id)?;
    Ok(record.filter(|r| r.status != Status::FinishedFirst || ctx.block.height <= r.expires_at))
}

/// The record of an inference that has its start; a waiting finish is not one yet (11).
fn started_before(ctx: &Context<'_>, id: &String) -> Result<Inference, ModuleError> {
    let record = INFERENCES.get(&*ctx.store, id)?.filter(|record| record.start.is_some());
    record.ok_or_else(|| InferenceError::InferenceNotFound(id.clone()).into())
}

/// Code 14 unless the work is `signer`'s.
fn check_executor(
    ctx: &Context<'_>,
    field: &'static str,
    id: &str,
    record: &Inference,
    signer: &Address,
) -> Result<(), ModuleError> {
    match record.executor() {
        Some(executor) if executor == *signer => Ok(()),
        Some(executor) => {
            let executor = ctx.bech32(&executor);
            Err(InferenceError::ExecutorMismatch { field, id: id.to_owned(), executor }.into())
        }
        None => Err(logic("an inference has neither start nor answer")),
    }
}

/// Code 12 when it ended before its time, 13 when its time is over. A record that expired with an excuse is
/// 13 too, as it was the moment before its row was worked off: a backlog changes no answer.
fn check_open(height: Height, id: &str, record: &Inference) -> Result<(), ModuleError> {
    match record.status {
        Status::Started if height <= record.expires_at => Ok(()),
        Status::Started | Status::Expired | Status::Released => {
            Err(InferenceError::InferenceExpired { id: id.to_owned(), at: record.expires_at }.into())
        }
        status => Err(InferenceError::InferenceClosed { id: id.to_owned(), status: status.as_str() }.into()),
    }
}

impl ScheduleLimits for Keeper {
    fn longest_span(&self, store: &dyn KvRead) -> Result<(i64, &'static str), StoreError> {
        let params = PARAMS.get(store)?.unwrap_or_default();
        Ok((
            params.validation.health_cb_max_cooldown_blocks,
            "longest cooldown (health_cb_max_cooldown_blocks)",
        ))
    }
}
