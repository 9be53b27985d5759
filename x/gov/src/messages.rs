//! A proposal's own messages: whether they can be taken, and how they are run.

use holdfast_proto::Any;
use holdfast_store::{BranchKv, GasConfig, GasMeter, MeteredKv, Order};
use holdfast_types::{Address, Context, ModuleError, sdk};

use crate::deps::Deps;
use crate::errors::GovError;
use crate::keys::MODULE_NAME;
use crate::state::HELD;

/// Gas that the messages of one proposal may use together, in the prices of transactions.
pub const PROPOSAL_GAS_MAX: u64 = 50_000_000;

/// Why a run was dropped, and at which message.
pub(crate) struct Failure {
    pub(crate) index: usize,
    pub(crate) error: ModuleError,
    /// The run's own gas was used up, not that of the transaction around it.
    pub(crate) out_of_own_gas: bool,
}

/// Whether each message can be routed and has the gov account as its only signer, and whether all of them in a row
/// would succeed in the state as it is. Nothing is kept of that rehearsal, and it promises nothing for later: state
/// changes until the vote ends. Codes: 10, 12, 13; `sdk` 11 when the transaction around it has no gas left.
pub(crate) fn check(ctx: &Context<'_>, deps: &Deps<'_>, messages: &[Any]) -> Result<(), GovError> {
    let gov = Address::module(MODULE_NAME);
    for (index, message) in messages.iter().enumerate() {
        let invalid = |e: ModuleError| GovError::InvalidMessage { index, reason: e.to_string() };
        deps.router.check(message).map_err(|e| match (e.codespace, e.code) {
            (sdk::CODESPACE, sdk::UNKNOWN_REQUEST) => GovError::Unroutable { index, reason: e.to_string() },
            _ => invalid(e),
        })?;
        let signers = deps.router.signers(message, &ctx.block.hrp).map_err(invalid)?;
        if signers != [gov] {
            let found: Vec<_> = signers.iter().map(|a| ctx.bech32(a)).collect();
            let (field, expected) = (format!("messages[{index}]"), ctx.bech32(&gov));
            return Err(GovError::InvalidSigner { field, expected, found: found.join(", ") });
        }
    }
    if messages.is_empty() {
        return Ok(());
    }
    let mut events = Vec::new();
    let mut branch = BranchKv::new(&*ctx.store);
    run(&mut Context::new(ctx.block, &mut branch, &mut events), deps, messages).map_err(|failure| {
        let Failure { index, error, out_of_own_gas } = failure;
        let outer_gas = (error.codespace, error.code) == (sdk::CODESPACE, sdk::OUT_OF_GAS) && !out_of_own_gas;
        if outer_gas {
            GovError::Module(error)
        } else {
            GovError::InvalidMessage { index, reason: error.to_string() }
        }
    })
}

/// Runs all messages on a branch of `ctx`: kept when every one succeeds, else nothing of any. The gas limit and the
/// deposits of others are guarded: the gov account signs for everything it holds.
pub(crate) fn run(ctx: &mut Context<'_>, deps: &Deps<'_>, messages: &[Any]) -> Result<(), Failure> {
    let meter = GasMeter::new(PROPOSAL_GAS_MAX);
    let mut at = 0;
    let result = ctx.branch(|ctx| {
        let mut store = MeteredKv::new(&mut *ctx.store, &meter, GasConfig::SDK);
        let mut inner = Context::new(ctx.block, &mut store, &mut *ctx.events);
        for (index, message) in messages.iter().enumerate() {
            at = index;
            deps.router.deliver(&mut inner, message)?;
            check_held(&inner, deps)?;
        }
        Ok::<(), ModuleError>(())
    });
    result.map_err(|error| Failure {
        index: at,
        out_of_own_gas: meter.used() >= meter.limit()
            && (error.codespace, error.code) == (sdk::CODESPACE, sdk::OUT_OF_GAS),
        error,
    })
}

/// The gov account still holds every deposit. One row for each denomination that governance has taken deposits in.
fn check_held(ctx: &Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    let gov = Address::module(MODULE_NAME);
    for row in HELD.iter(ctx.store, Order::Ascending) {
        let (denom, held) = row?;
        if deps.bank.balance(ctx.store, &gov, &denom)? < held {
            let text = format!("the gov account holds {held}{denom} of deposits, which are not its to spend");
            return Err(ModuleError::sdk(sdk::INSUFFICIENT_FUNDS, text));
        }
    }
    Ok(())
}
