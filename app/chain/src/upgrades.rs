//! Upgrades of the running chain: a plan decided by governance, a halt at its height, migrations in place.
//!
//! ```text
//!  MsgSoftwareUpgrade ──▶ plan {name, height}
//!                            │ block `height`
//!         binary without the upgrade            binary with it
//!         UPGRADE "…" NEEDED, process ends      migrations, then the block
//! ```
//!
//! All of it happens inside the block of the plan's height, on that block's branch: a crash in the middle leaves the state
//! of the block before, and the block is executed again.

use std::path::Path;
use std::sync::Arc;

pub use holdfast_gov::Plan;
use holdfast_store::KvRead;
use holdfast_types::{BlockContext, Context, Height, ModuleError};
use thiserror::Error;

use crate::app::AppError;
use crate::composition::Composition;
use crate::files::write_whole;

/// File that tells cosmovisor which binary to run next; lies in the data folder.
pub const UPGRADE_INFO: &str = "upgrade-info.json";

/// Changes beyond the modules' own migrations.
type Extra = dyn Fn(&Composition, &mut Context<'_>) -> Result<(), ModuleError> + Send + Sync;

/// An upgrade this binary can carry out.
#[derive(Clone)]
pub struct Upgrade {
    name: String,
    added_modules: Vec<String>,
    extra: Option<Arc<Extra>>,
}

impl Upgrade {
    /// The upgrade that a plan of this name asks for: every module is brought to its version in this binary.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), added_modules: Vec::new(), extra: None }
    }

    /// Declares modules that the state does not have before the plan's height. They begin with their default genesis.
    #[must_use]
    pub fn adding(mut self, modules: &[&str]) -> Self {
        self.added_modules = modules.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Runs `change` after the modules' migrations.
    #[must_use]
    pub fn then(
        mut self,
        change: impl Fn(&Composition, &mut Context<'_>) -> Result<(), ModuleError> + Send + Sync + 'static,
    ) -> Self {
        self.extra = Some(Arc::new(change));
        self
    }

    /// Name of the plan.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Why a binary may not run on this state. `Needed` ends a running node too; the others are told at the start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UpgradeError {
    /// The plan's height has come and this binary does not have the upgrade. The text is the one cosmovisor waits for.
    #[error("UPGRADE {:?} NEEDED at height: {}: {}", .0.name, .0.height, .0.info)]
    Needed(Plan),
    /// A binary with the upgrade was started before the plan's height.
    #[error(
        "BINARY UPDATED BEFORE TRIGGER! UPGRADE {:?} - in binary but not executed on chain: it is due at height {}; \
         run the binary before it until then (downgrade your binary)", .0.name, .0.height
    )]
    Early(Plan),
    /// The state was written by a later binary.
    #[error("this binary is too old for the state: {0}; start the binary of the chain's last upgrade")]
    TooOld(String),
    /// This binary writes formats that no plan has asked for.
    #[error(
        "this binary is too new for the state: {0}, and no upgrade to it is planned; start the binary before it"
    )]
    TooNew(String),
}

/// Upgrades known to a binary, and the heights at which the operators agreed to skip one.
#[derive(Clone, Default)]
pub struct Upgrades {
    known: Vec<Upgrade>,
    skipped: Vec<Height>,
}

/// What a block has to do before its steps.
pub(crate) enum Due {
    Nothing,
    Skip,
    Run(Plan, Upgrade),
}

impl Upgrades {
    /// The upgrades of a binary, every one it or an earlier binary carried out on a chain it still serves.
    pub fn new(known: Vec<Upgrade>) -> Self {
        Self { known, skipped: Vec::new() }
    }

    /// Passes over the plans at these heights (`--unsafe-skip-upgrades`): all validators must do the same.
    #[must_use]
    pub fn skipping(mut self, heights: &[Height]) -> Self {
        self.skipped = heights.to_vec();
        self
    }

    /// Modules that some upgrade of this binary adds.
    pub fn added_modules(&self) -> Vec<&str> {
        self.known.iter().flat_map(|upgrade| upgrade.added_modules.iter().map(String::as_str)).collect()
    }

    fn find(&self, name: &str) -> Option<&Upgrade> {
        self.known.iter().find(|upgrade| upgrade.name == name)
    }

    /// Whether this binary may go on from `store`, whose next block is `next`.
    ///
    /// # Errors
    /// [`AppError::Upgrade`], with the reason.
    pub fn check_start(
        &self,
        composition: &Composition,
        store: &dyn KvRead,
        next: Height,
    ) -> Result<(), AppError> {
        if let Some((name, height)) = holdfast_gov::Keeper.last_applied(store)?
            && self.find(&name).is_none()
        {
            let text =
                format!("it was upgraded to {name:?} at height {height}, which this binary does not know");
            return Err(UpgradeError::TooOld(text).into());
        }
        let migrates = matches!(self.due(store, next)?, Due::Run(..));
        let stored = holdfast_gov::Keeper.module_versions(store)?;
        let modules = composition.modules();
        if let Some((name, _)) = stored.iter().find(|(name, _)| !modules.iter().any(|m| m.name() == name)) {
            return Err(UpgradeError::TooOld(format!("it has a module {name:?}")).into());
        }
        for module in modules {
            let (name, own) = (module.name(), module.consensus_version());
            let found = stored.iter().find(|(stored, _)| stored == name).map(|(_, version)| *version);
            let apart = |version| format!("module {name} is at version {version}, the binary at {own}");
            match found {
                Some(version) if version > own => return Err(UpgradeError::TooOld(apart(version)).into()),
                Some(version) if version < own && !migrates => {
                    return Err(UpgradeError::TooNew(apart(version)).into());
                }
                None if !migrates => {
                    return Err(UpgradeError::TooNew(format!("it has no module {name}")).into());
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// What block `height` has to do with the plan in `store`.
    pub(crate) fn due(&self, store: &dyn KvRead, height: Height) -> Result<Due, AppError> {
        let Some(plan) = holdfast_gov::Keeper.upgrade_plan(store)? else { return Ok(Due::Nothing) };
        if self.skipped.contains(&plan.height) {
            return Ok(if height < plan.height { Due::Nothing } else { Due::Skip });
        }
        if height < plan.height {
            // A plan can come while the node runs; then nobody could have refused at the start.
            return match self.find(&plan.name) {
                Some(_) => Err(UpgradeError::Early(plan).into()),
                None => Ok(Due::Nothing),
            };
        }
        match self.find(&plan.name) {
            Some(upgrade) => Ok(Due::Run(plan, upgrade.clone())),
            None => Err(UpgradeError::Needed(plan).into()),
        }
    }
}

/// Carries out `due` on the block's branch. Migrations stand where the last block left the state: the new epoch, if one begins
/// here, comes after them.
pub(crate) fn run(composition: &Composition, ctx: &mut Context<'_>, due: Due) -> Result<(), ModuleError> {
    match due {
        Due::Nothing => Ok(()),
        Due::Skip => holdfast_gov::Keeper.clear_upgrade_plan(ctx),
        Due::Run(plan, upgrade) => {
            let last = ctx.block.height.saturating_sub(1);
            let position = holdfast_epochs::Keeper.position(ctx.store, last)?;
            let block = BlockContext { epoch: position.epoch, poc: position.poc, ..ctx.block.clone() };
            let ctx = &mut ctx.with_block(&block);
            migrate(composition, ctx)?;
            if let Some(extra) = &upgrade.extra {
                extra(composition, ctx)?;
            }
            holdfast_gov::Keeper.apply_upgrade(ctx, &plan)
        }
    }
}

/// Versions of the modules in this binary, in genesis order.
pub(crate) fn versions(composition: &Composition) -> Vec<(String, u64)> {
    composition.modules().iter().map(|m| (m.name().to_owned(), m.consensus_version())).collect()
}

/// Brings every module to its version in this binary, in genesis order; new ones begin with their default genesis.
fn migrate(composition: &Composition, ctx: &mut Context<'_>) -> Result<(), ModuleError> {
    let stored = holdfast_gov::Keeper.module_versions(ctx.store)?;
    for module in composition.modules() {
        match stored.iter().find(|(name, _)| name == module.name()) {
            Some((_, from)) => {
                for version in *from..module.consensus_version() {
                    module.migrate(ctx, version)?;
                }
            }
            None => module.init_genesis(ctx, &module.default_genesis())?,
        }
        holdfast_auth::Keeper.ensure_module_account(ctx.store, module.name())?;
    }
    holdfast_gov::Keeper.set_module_versions(ctx, &versions(composition))
}

/// Writes `upgrade-info.json` into `data`, whole or not at all: a supervisor may end this process at any moment.
///
/// # Errors
/// File system.
pub fn write_upgrade_info(data: &Path, plan: &Plan) -> std::io::Result<()> {
    let text = serde_json::json!({ "name": plan.name, "height": plan.height, "info": plan.info });
    write_whole(&data.join(UPGRADE_INFO), text.to_string().as_bytes(), false)
}

/// Whether a step of the start or of a block failed because the binary is not the chain's.
pub fn needed(error: &AppError) -> Option<&Plan> {
    match error {
        AppError::Upgrade(UpgradeError::Needed(plan)) => Some(plan),
        _ => None,
    }
}
