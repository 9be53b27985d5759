//! Hooks that write down what they hear, and hooks that do not listen.

use std::cell::RefCell;

use holdfast_types::traits::{
    Eligibility, EligibilityHooks, EpochHooks, EpochInfo, EscrowCounts, EscrowHooks, InferenceHooks,
    InferenceOutcome, InferenceStarted,
};
use holdfast_types::{Address, Context, Epoch, ModuleError};

/// One call of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// `after_epoch_ended`, with the epoch and phase of the context it came with.
    EpochEnded(EpochInfo, Epoch, bool),
    /// `after_epoch_started`, likewise.
    EpochStarted(EpochInfo, Epoch, bool),
    /// `after_member_eligibility_changed`: model, participant, old, new.
    Eligibility(String, Address, Eligibility, Eligibility),
    /// `after_inference_started`.
    Started(InferenceStarted),
    /// `after_inference_finished`.
    Finished(InferenceOutcome),
    /// `after_inference_missed`.
    Missed(InferenceOutcome),
    /// `after_inference_released`.
    Released(InferenceOutcome),
    /// `after_escrow_settled`.
    Escrow(EscrowCounts),
}

/// Listens to every hook and keeps the calls in order.
#[derive(Debug, Default)]
pub struct Recorder(RefCell<Vec<Seen>>);

impl Recorder {
    /// The calls since the last `take`, in order.
    pub fn take(&self) -> Vec<Seen> {
        self.0.take()
    }

    fn push(&self, seen: Seen) -> Result<(), ModuleError> {
        self.0.borrow_mut().push(seen);
        Ok(())
    }
}

impl EpochHooks for Recorder {
    fn after_epoch_ended(&self, ctx: &mut Context<'_>, ended: &EpochInfo) -> Result<(), ModuleError> {
        self.push(Seen::EpochEnded(*ended, ctx.block.epoch, ctx.block.poc))
    }
    fn after_epoch_started(&self, ctx: &mut Context<'_>, started: &EpochInfo) -> Result<(), ModuleError> {
        self.push(Seen::EpochStarted(*started, ctx.block.epoch, ctx.block.poc))
    }
}

impl EligibilityHooks for Recorder {
    fn after_member_eligibility_changed(
        &self,
        _ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        old: Eligibility,
        new: Eligibility,
    ) -> Result<(), ModuleError> {
        self.push(Seen::Eligibility(model.to_owned(), *participant, old, new))
    }
}

impl InferenceHooks for Recorder {
    fn after_inference_started(
        &self,
        _ctx: &mut Context<'_>,
        event: &InferenceStarted,
    ) -> Result<(), ModuleError> {
        self.push(Seen::Started(event.clone()))
    }
    fn after_inference_finished(
        &self,
        _ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        self.push(Seen::Finished(event.clone()))
    }
    fn after_inference_missed(
        &self,
        _ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        self.push(Seen::Missed(event.clone()))
    }
    fn after_inference_released(
        &self,
        _ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        self.push(Seen::Released(event.clone()))
    }
}

impl EscrowHooks for Recorder {
    fn after_escrow_settled(&self, _ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError> {
        self.push(Seen::Escrow(counts.clone()))
    }
}

/// Does not listen.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl EpochHooks for NoHooks {
    fn after_epoch_ended(&self, _: &mut Context<'_>, _: &EpochInfo) -> Result<(), ModuleError> {
        Ok(())
    }
    fn after_epoch_started(&self, _: &mut Context<'_>, _: &EpochInfo) -> Result<(), ModuleError> {
        Ok(())
    }
}

impl EligibilityHooks for NoHooks {
    fn after_member_eligibility_changed(
        &self,
        _: &mut Context<'_>,
        _: &str,
        _: &Address,
        _: Eligibility,
        _: Eligibility,
    ) -> Result<(), ModuleError> {
        Ok(())
    }
}

impl InferenceHooks for NoHooks {
    fn after_inference_started(&self, _: &mut Context<'_>, _: &InferenceStarted) -> Result<(), ModuleError> {
        Ok(())
    }
    fn after_inference_finished(&self, _: &mut Context<'_>, _: &InferenceOutcome) -> Result<(), ModuleError> {
        Ok(())
    }
    fn after_inference_missed(&self, _: &mut Context<'_>, _: &InferenceOutcome) -> Result<(), ModuleError> {
        Ok(())
    }
    fn after_inference_released(&self, _: &mut Context<'_>, _: &InferenceOutcome) -> Result<(), ModuleError> {
        Ok(())
    }
}

impl EscrowHooks for NoHooks {
    fn after_escrow_settled(&self, _: &mut Context<'_>, _: &EscrowCounts) -> Result<(), ModuleError> {
        Ok(())
    }
}
