//! How the modules fit together: who hears whom, who reads whom, and the order of a block's steps.
//!
//! Nothing here is kept between calls: keepers hold no state, hooks are composed anew for each call, so no
//! listener can be forgotten after construction.

use std::sync::Arc;

use holdfast_inference::{Deps, Groups, Requesters};
use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{
    Eligibility, EligibilityHooks, EpochHooks, EpochInfo, EscrowCounts, EscrowHooks, ParticipantsWrite,
    WeightSource,
};
use holdfast_types::{Address, BlockContext, Context, Event, Module, ModuleError, ValidatorUpdate};

use crate::ante::FEE_COLLECTOR;

/// Name of the space that holds the chain's own settings.
pub const APP_SPACE: &str = "app";

/// Names of the modules, in genesis order: balances before those who spend them, the schedule before its
/// listeners, members before the breaker that sums over them, the authority last.
pub const MODULE_NAMES: &[&str] =
    &["auth", "bank", "epochs", "participants", "inference", "breaker", "escrow", "gov"];

/// The embedder's choices.
#[derive(Clone)]
pub struct Composition {
    weights: Arc<dyn WeightSource + Send + Sync>,
}

impl Default for Composition {
    /// Weights from collateral.
    fn default() -> Self {
        Self { weights: Arc::new(holdfast_participants::CollateralWeight) }
    }
}

impl Composition {
    /// With the embedder's own weights.
    pub fn with_weights(weights: Arc<dyn WeightSource + Send + Sync>) -> Self {
        Self { weights }
    }

    /// x/participants over the schedule and the weights.
    pub fn participants(&self) -> holdfast_participants::Keeper<'_> {
        holdfast_participants::Keeper { epochs: &holdfast_epochs::Keeper, weights: &*self.weights }
    }

    /// Runs `use_them` with the hooks and neighbours of a call.
    pub(crate) fn with<T>(&self, use_them: impl FnOnce(&Hooks<'_>) -> T) -> T {
        use_them(&Hooks { participants: self.participants() })
    }

    /// The module table: one row a module, in genesis order ([`MODULE_NAMES`]).
    pub fn modules(&self) -> Vec<Box<dyn Module + '_>> {
        vec![
            Box::new(holdfast_auth::AuthModule),
            Box::new(holdfast_bank::BankModule),
            Box::new(holdfast_epochs::EpochsModule),
            Box::new(holdfast_participants::ParticipantsModule { keeper: self.participants() }),
            Box::new(holdfast_inference::InferenceModule),
            Box::new(holdfast_breaker::BreakerModule(self.participants())),
            Box::new(holdfast_escrow::EscrowModule { bank: &holdfast_bank::Keeper }),
            Box::new(holdfast_gov::GovModule { bank: &holdfast_bank::Keeper }),
        ]
    }
}

/// Fans every notification out to its listeners, in written order.
pub(crate) struct Hooks<'a> {
    pub(crate) participants: holdfast_participants::Keeper<'a>,
}

impl Hooks<'_> {
    pub(crate) fn breaker(&self) -> holdfast_breaker::Keeper<'_> {
        holdfast_breaker::Keeper::new(&self.participants)
    }

    /// Runs `use_them` with x/escrow's neighbours.
    pub(crate) fn escrow<T>(&self, use_them: impl FnOnce(&holdfast_escrow::Deps<'_>) -> T) -> T {
        let breaker = self.breaker();
        use_them(&holdfast_escrow::Deps {
            bank: &holdfast_bank::Keeper,
            accounts: &holdfast_auth::Keeper,
            epochs: &holdfast_epochs::Keeper,
            groups: &Groups { participants: &self.participants, breaker: &breaker },
            stamps: &breaker,
            hooks: self,
            fee_collector: Address::module(FEE_COLLECTOR),
        })
    }

    /// Runs `use_them` with x/gov's neighbours.
    pub(crate) fn gov<T>(&self, use_them: impl FnOnce(&holdfast_gov::Deps<'_>) -> T) -> T {
        use_them(&holdfast_gov::Deps {
            bank: &holdfast_bank::Keeper,
            accounts: &holdfast_auth::Keeper,
            power: &self.participants,
            router: self,
        })
    }

    /// Runs `use_them` with x/inference's neighbours.
    pub(crate) fn inference<T>(&self, use_them: impl FnOnce(&Deps<'_>) -> T) -> T {
        let breaker = self.breaker();
        use_them(&Deps {
            bank: &holdfast_bank::Keeper,
            participants: &self.participants,
            deactivation: self,
            gate: &breaker,
            hooks: &breaker,
            epochs: &holdfast_epochs::Keeper,
            requesters: self,
        })
    }
}

impl EpochHooks for Hooks<'_> {
    fn after_epoch_ended(&self, _ctx: &mut Context<'_>, _ended: &EpochInfo) -> Result<(), ModuleError> {
        // Groups roll and entries turn invisible by their key: nobody has work at the end itself.
        Ok(())
    }

    fn after_epoch_started(&self, ctx: &mut Context<'_>, _started: &EpochInfo) -> Result<(), ModuleError> {
        // The group is complete before the breaker sums over it.
        let totals = self.participants.start_epoch(ctx)?;
        Ok(self.breaker().start_epoch(ctx, &totals)?)
    }
}

impl EligibilityHooks for Hooks<'_> {
    fn after_member_eligibility_changed(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        old: Eligibility,
        new: Eligibility,
    ) -> Result<(), ModuleError> {
        self.breaker().after_member_eligibility_changed(ctx, model, participant, old, new)
    }
}

impl EscrowHooks for Hooks<'_> {
    fn after_escrow_settled(&self, ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError> {
        holdfast_inference::Keeper.after_escrow_settled(ctx, counts)?;
        self.breaker().after_escrow_settled(ctx, counts)
    }
}

impl ParticipantsWrite for Hooks<'_> {
    fn deactivate(&self, ctx: &mut Context<'_>, participant: &Address) -> Result<(), ModuleError> {
        self.participants.deactivate(ctx, participant, self)
    }
}

impl Requesters for Hooks<'_> {
    fn is_known(&self, store: &dyn KvRead, requester: &Address) -> Result<bool, StoreError> {
        Ok(holdfast_auth::Keeper.account(store, requester)?.is_some())
    }
}

/// What happens when a step fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The chain stops: going on would mean guessing the schedule.
    Halt,
    /// The step's writes and events are dropped, the failure is evented, the block goes on.
    DiscardAndRecord,
}

/// A step of a block, named as in breaker-details 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Name.
    pub name: &'static str,
    /// On failure.
    pub policy: Policy,
    /// Why here.
    pub reason: &'static str,
}

/// Order of the steps around a block's transactions; a test prints it.
pub const STEPS: &[Step] = &[
    Step { name: "B0 upgrade", policy: Policy::Halt, reason: "no step may meet a format it does not know" },
    Step { name: "B1 inference", policy: Policy::Halt, reason: "one set of numbers per block" },
    Step { name: "B2 epochs", policy: Policy::Halt, reason: "everything after belongs to the new epoch" },
    Step {
        name: "B3 participants",
        policy: Policy::DiscardAndRecord,
        reason: "eligibility before it is read",
    },
    Step { name: "B4 breaker", policy: Policy::DiscardAndRecord, reason: "a start of this block can claim" },
    Step {
        name: "E1 inference expiry",
        policy: Policy::DiscardAndRecord,
        reason: "misses judged in their block",
    },
    Step {
        name: "E1 escrow close",
        policy: Policy::DiscardAndRecord,
        reason: "counts of disputes judged in their block",
    },
    Step {
        name: "E2 inference sprt",
        policy: Policy::DiscardAndRecord,
        reason: "the cap sees the smaller group",
    },
    Step { name: "E3 breaker", policy: Policy::DiscardAndRecord, reason: "after every outcome" },
    Step {
        name: "E4 validators",
        policy: Policy::DiscardAndRecord,
        reason: "the group is final for this block",
    },
    Step { name: "E4 prune", policy: Policy::DiscardAndRecord, reason: "nothing after reads it" },
    Step {
        name: "E5 gov",
        policy: Policy::DiscardAndRecord,
        reason: "what it decides acts from the next block on",
    },
];

/// Runs one step on its own branch under its policy. A discarded step gives the default: with its writes goes what it
/// would have told.
fn step<T: Default>(
    ctx: &mut Context<'_>,
    name: &str,
    run: impl FnOnce(&mut Context<'_>) -> Result<T, ModuleError>,
) -> Result<T, ModuleError> {
    let error = match ctx.branch(run) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let Some(step) = STEPS.iter().find(|step| step.name == name && step.policy == Policy::DiscardAndRecord)
    else {
        return Err(error);
    };
    let event = Event::new("holdfast.breaker.v1.EventStepDiscarded");
    ctx.emit(event.with("step", step.name).with("key", "").with("reason", error));
    Ok(T::default())
}

impl Composition {
    /// B1 to B4 of [`STEPS`]; B0 comes before, for it may replace what is read here. Returns the block with its epoch and
    /// phase set.
    ///
    /// # Errors
    /// Only of a step whose policy is to halt.
    pub fn begin_block(&self, ctx: &mut Context<'_>) -> Result<BlockContext, ModuleError> {
        self.with(|hooks| {
            step(ctx, "B1 inference", holdfast_inference::begin_block)?;
            let mut block = ctx.block.clone();
            step(ctx, "B2 epochs", |ctx| {
                let position = holdfast_epochs::Keeper.begin_block(ctx, hooks)?;
                (block.epoch, block.poc) = (position.epoch, position.poc);
                Ok(())
            })?;
            let mut ctx = ctx.with_block(&block);
            step(&mut ctx, "B3 participants", |ctx| hooks.participants.begin_block(ctx, hooks))?;
            step(&mut ctx, "B4 breaker", |ctx| Ok(hooks.breaker().begin_block(ctx)?))?;
            Ok(block)
        })
    }

    /// E1 to E5 of [`STEPS`]. Returns the changes of the validator set.
    ///
    /// # Errors
    /// Only of a step whose policy is to halt; none of these.
    pub fn end_block(&self, ctx: &mut Context<'_>) -> Result<Vec<ValidatorUpdate>, ModuleError> {
        self.with(|hooks| {
            step(ctx, "E1 inference expiry", |ctx| {
                hooks.inference(|deps| holdfast_inference::expire(ctx, deps))
            })?;
            step(ctx, "E1 escrow close", |ctx| hooks.escrow(|deps| holdfast_escrow::close(ctx, deps)))?;
            step(ctx, "E2 inference sprt", |ctx| {
                hooks.inference(|deps| holdfast_inference::sprt_step(ctx, deps))
            })?;
            step(ctx, "E3 breaker", |ctx| Ok(hooks.breaker().end_block(ctx)?))?;
            let updates = step(ctx, "E4 validators", |ctx| hooks.participants.validator_updates(ctx))?;
            // A branch for each: a failing one must not keep its neighbours' rows.
            step(ctx, "E4 prune", |ctx| hooks.participants.end_block(ctx))?;
            step(ctx, "E4 prune", |ctx| Ok(hooks.breaker().prune(ctx)?))?;
            step(ctx, "E4 prune", |ctx| holdfast_inference::prune(ctx, &holdfast_epochs::Keeper))?;
            step(ctx, "E4 prune", |ctx| holdfast_escrow::prune(ctx, &holdfast_epochs::Keeper))?;
            step(ctx, "E5 gov", |ctx| hooks.gov(|deps| holdfast_gov::abci::end_block(ctx, deps)))?;
            Ok(updates)
        })
    }

    /// Every invariant of every module over `store` at `block`. Returns how many were checked.
    ///
    /// # Errors
    /// The first one that does not hold, in words.
    pub fn check_invariants(&self, store: &dyn KvRead, block: &BlockContext) -> Result<u64, String> {
        holdfast_bank::invariants::check(store)?;
        holdfast_participants::invariants::check(&self.participants(), store, block)?;
        holdfast_participants::invariants::collateral_is_backed(store, &holdfast_bank::Keeper)?;
        let params = holdfast_inference::Keeper.params(store).map_err(|e| e.to_string())?;
        let (bank, denom) = (&holdfast_bank::Keeper, &params.token_price.denom);
        holdfast_inference::invariants::escrow_is_backed(store, bank, denom)?;
        holdfast_inference::invariants::nothing_is_due(store, block.height)?;
        self.with(|hooks| holdfast_breaker::invariants::check(&hooks.breaker(), store, block))?;
        holdfast_escrow::invariants::check(store, bank)?;
        holdfast_escrow::invariants::nothing_is_due(store, block.height)?;
        holdfast_gov::invariants::check(store, bank)?;
        Ok(9)
    }
}
