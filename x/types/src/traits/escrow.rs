//! What an escrow settlement hands over.

use super::Stamp;
use crate::{Address, Context, ModuleError};

/// Outcomes of one participant in one settled escrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscrowCounts {
    /// Model of the escrow.
    pub model: String,
    /// The host.
    pub participant: Address,
    /// Stamp taken when the escrow was created; stale counts are statistics, not evidence.
    pub stamp: Stamp,
    /// Finished.
    pub ok: u64,
    /// Missed.
    pub missed: u64,
}

/// Fired once per host when an escrow settles.
pub trait EscrowHooks {
    /// Counts never claim or settle a probe (breaker-details 1, row 23).
    fn after_escrow_settled(&self, ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError>;
}
