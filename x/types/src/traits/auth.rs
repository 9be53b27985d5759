//! What other modules need of x/auth.

use crate::{Address, Context, ModuleError};

/// Accounts come to be when an address first receives coins.
pub trait AccountKeeper {
    /// Makes an account for `address` unless it has one.
    fn ensure_account(&self, ctx: &mut Context<'_>, address: &Address) -> Result<(), ModuleError>;
}
