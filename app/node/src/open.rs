//! Opening a home folder's chain: the one place that decides with which options.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use holdfast_app::app::{App, AppError, AppOptions, state_spaces};
use holdfast_app::genesis::{GENESIS_BYTES_MAX, GenesisDoc};
use holdfast_app::snapshots::SnapshotStore;
use holdfast_app::state::{DiskStore, StateOptions};
use holdfast_app::upgrades::{Plan, UPGRADE_INFO, write_upgrade_info};
use holdfast_app::what_if;

use crate::cli::StartConfig;
use crate::program::Program;
use crate::upkeep::{SnapshotDuty, Upkeep};

/// Options of the app.
pub(crate) fn app_options(config: &StartConfig) -> AppOptions {
    // Not part of the state: what a node that joined late lacks, its answers say.
    let what_if = Some(Arc::new(what_if::Log::on_disk(config.home.join("data/what-if"))));
    AppOptions {
        min_gas_price: config.min_gas_price,
        what_if,
        composition: Program::get().composition.clone(),
        upgrades: Program::get().upgrades.clone().skipping(&config.skip_upgrades),
        ..AppOptions::default()
    }
}

/// Options of every command that opens a home's state: modules that an upgrade of this binary adds may be missing there.
pub(crate) fn state_options() -> StateOptions {
    let added_modules = Program::get().upgrades.added_modules().into_iter().map(str::to_owned).collect();
    StateOptions { added_modules, ..StateOptions::default() }
}

/// The state database, empty or not.
///
/// # Errors
/// A folder in use, or one of another program.
pub(crate) fn state(config: &StartConfig) -> Result<DiskStore> {
    let options = StateOptions { keep_recent: config.pruning.keep_recent(), ..state_options() };
    Ok(DiskStore::open(config.home.join("data/state"), &state_spaces(), options)?)
}

/// The node's snapshots.
///
/// # Errors
/// A folder in use.
pub(crate) fn snapshots(config: &StartConfig) -> Result<SnapshotStore> {
    Ok(SnapshotStore::open(config.home.join("data/snapshots"))?)
}

/// Starts what follows commits: pruning, and snapshots if they are wanted.
///
/// # Errors
/// No thread can be started.
pub(crate) fn upkeep(
    config: &StartConfig,
    state: DiskStore,
    snapshots: SnapshotStore,
) -> Result<Upkeep<DiskStore>> {
    let (source, keep) = (state.clone(), config.snapshot_keep_recent);
    let duty = NonZero::new(config.snapshot_interval).map(|interval| SnapshotDuty {
        interval,
        make: Box::new(move |height, stop| {
            if snapshots.create_until(&source, height, &|| stop.is_set())?.is_some() {
                tracing::info!(height, "made a snapshot");
                snapshots.prune(keep)?;
            }
            Ok(())
        }),
    });
    Ok(Upkeep::start(state, config.pruning, duty)?)
}

/// The chain, from the state database or, when that is empty, from genesis.
///
/// # Errors
/// As [`state`]; a bad genesis.
pub(crate) fn app(config: &StartConfig) -> Result<App<DiskStore>> {
    match App::open(state(config)?, app_options(config)) {
        Ok(app) => Ok(app),
        Err(AppError::NoChain) => {
            Ok(App::from_genesis(state(config)?, app_options(config), &genesis(&config.genesis)?)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Leaves `upgrade-info.json` for cosmovisor when `error` is that the chain waits for another binary. Gives the error back.
pub(crate) fn tell_supervisor(data: &Path, plan: Option<Plan>, error: anyhow::Error) -> anyhow::Error {
    match plan.map(|plan| write_upgrade_info(data, &plan)) {
        Some(Err(e)) => error.context(format!("cannot write {}: {e}", data.join(UPGRADE_INFO).display())),
        Some(Ok(())) | None => error,
    }
}

/// The genesis document at `path`.
///
/// # Errors
/// Missing, too large, malformed.
pub(crate) fn genesis(path: &Path) -> Result<GenesisDoc> {
    let shown = path.display();
    let missing = || format!("cannot read {shown}; run init first");
    let size = std::fs::metadata(path).with_context(missing)?.len();
    anyhow::ensure!(size <= GENESIS_BYTES_MAX as u64, "{shown}: over {GENESIS_BYTES_MAX} bytes");
    let text = std::fs::read(path).with_context(missing)?;
    GenesisDoc::parse(&text).with_context(|| shown.to_string())
}
