//! What x/gov needs of the chain around it: who may decide, and how a decision is carried out.

use holdfast_proto::Any;
use holdfast_store::{KvRead, StoreError};

use crate::{Address, BlockContext, Context, Hrp, ModuleError};

/// Votes weigh what their voter's power is when the vote is counted.
pub trait VotingPower {
    /// Power of `voter` in the epoch of `block`; 0 for whoever has none.
    fn power(&self, store: &dyn KvRead, block: &BlockContext, voter: &Address) -> Result<u128, StoreError>;

    /// Power of all voters together in the epoch of `block`.
    fn total_power(&self, store: &dyn KvRead, block: &BlockContext) -> Result<u128, StoreError>;
}

/// Carries a message to its module, as the messages of a transaction are.
pub trait MessageRouter {
    /// Whether a module takes messages of this type and the bytes are its one encoding; `sdk` 6 and 34 otherwise.
    fn check(&self, message: &Any) -> Result<(), ModuleError>;

    /// Who must have signed the message, first signer first.
    fn signers(&self, message: &Any, hrp: &Hrp) -> Result<Vec<Address>, ModuleError>;

    /// Runs the message on `ctx`, a branch that the caller keeps or drops. A panic of the handler comes back as an error.
    fn deliver(&self, ctx: &mut Context<'_>, message: &Any) -> Result<Any, ModuleError>;
}
