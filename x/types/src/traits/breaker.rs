//! What x/breaker offers: the admission gate of a start, and health for selection.

use holdfast_store::{KvRead, StoreError};

use super::Stamp;
use crate::{Address, BlockContext, Context, Height, ModuleError};

/// A start that passed every check but the breaker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartAttempt<'a> {
    /// Model.
    pub model: &'a str,
    /// Who asked for the inference.
    pub requester: Address,
    /// Who signed and pays.
    pub signer: Address,
    /// `assigned_to`.
    pub executor: Address,
    /// Height of the finish when it arrived first (breaker-details 1, "Finish before Start").
    pub finished_at: Option<Height>,
}

/// The gate's answer to an admitted start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// To be written into the record.
    pub stamp: Stamp,
    /// This start takes the probe slot.
    pub claim: bool,
}

/// Decides a start; reads only. The claim itself is made by the started hook.
pub trait BreakerGate {
    /// Admits or refuses with codespace `breaker`, code 10 to 13.
    fn admit(&self, ctx: &Context<'_>, attempt: &StartAttempt<'_>) -> Result<Admission, ModuleError>;
}

/// Health of a candidate, as the draw sees it (breaker-details 2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthClass {
    /// Class 0.
    Healthy,
    /// Class 1: probe ready since this height.
    ProbeReady {
        /// Start of its wait.
        since: Height,
    },
    /// Class 2: excluded, or its probe is claimed.
    Out,
    /// Forced out by governance: not eligible at all.
    ForcedOut,
}

/// Health reads for selection.
pub trait BreakerRead {
    /// Health of `participant` for `model` in `block.epoch`. Forced exclusions hold in shadow mode and with
    /// the breaker disabled; everything else is then healthy.
    fn health(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<HealthClass, StoreError>;
}
