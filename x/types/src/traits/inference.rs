//! What x/inference tells its listeners.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::{Address, Context, Epoch, Height, ModuleError};

/// Which state of the breaker an inference was started under (breaker-details 0.1). Its outcome is evidence
/// only while that state lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Stamp {
    /// Epoch at the start.
    pub epoch: Epoch,
    /// Generation of the breaker entry at the start.
    pub generation: u32,
    /// Whether the outcome counts at all.
    pub evidence: bool,
}

/// An inference was admitted and paid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferenceStarted {
    /// Its id.
    pub inference_id: String,
    /// Model.
    pub model: String,
    /// `assigned_to`.
    pub executor: Address,
    /// The stamp that was written into the record.
    pub stamp: Stamp,
    /// The gate decided that this inference takes the executor's probe slot.
    pub claim: bool,
    /// Last height at which it can be finished.
    pub expires_at: Height,
}

/// How an inference ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferenceOutcome {
    /// Its id.
    pub inference_id: String,
    /// Model.
    pub model: String,
    /// `assigned_to`.
    pub executor: Address,
    /// The stamp written at its start.
    pub stamp: Stamp,
}

/// Each started inference ends in exactly one of finished, missed, released.
pub trait InferenceHooks {
    /// Started.
    fn after_inference_started(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceStarted,
    ) -> Result<(), ModuleError>;
    /// Finished in time by its executor.
    fn after_inference_finished(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError>;
    /// Expired, or reported failed by its executor.
    fn after_inference_missed(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError>;
    /// Ended without fault.
    fn after_inference_released(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError>;
}
