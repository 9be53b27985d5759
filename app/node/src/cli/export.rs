//! `holdfastd export`: the state of a stopped node as a genesis file.

use std::path::PathBuf;

use anyhow::Result;
use holdfast_app::app::{App, AppError, AppOptions};
use holdfast_app::state::CommitStore;

use super::error::fail;
use super::files::{self, HomeArgs};
use super::output::Io;
use super::{snapshot, wiring};
use crate::program::Program;

/// Writes the state of a stopped node as a genesis file, from which a chain can start
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// Height of the state [default: the last]
    #[arg(long, value_name = "H", value_parser = snapshot::height, allow_negative_numbers = true)]
    height: Option<i64>,
    /// File for the result [default: standard output]
    #[arg(long, value_name = "FILE")]
    output_document: Option<PathBuf>,
}

pub(crate) fn run(args: &ExportArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.home.home()?;
    let path = home.data().join("state");
    let state = snapshot::open_state(&home)?;
    let height = args.height.unwrap_or(state.latest_height());
    state.snapshot_at(height).map_err(|error| snapshot::state_failure(&path, &error))?;
    let failed = |error: AppError| match &error {
        AppError::State(error) => snapshot::state_failure(&path, error),
        _ => fail(73, path.display().to_string(), error.to_string()),
    };
    let Program { composition, upgrades } = Program::get().clone();
    let options = AppOptions { composition, upgrades, ..AppOptions::default() };
    let app = App::open(state, options).map_err(failed)?;
    let mut doc = app.export(height).map_err(failed)?;
    // Neither is state: they come from the file that the chain began with, as the Cosmos SDK does it.
    if home.genesis().exists() {
        let first = wiring::read_genesis(&home)?;
        (doc.genesis_time, doc.app_name) = (first.genesis_time, first.app_name);
    }
    let text = doc.to_json()?;
    match &args.output_document {
        Some(file) => files::write_whole(file, text.as_bytes(), false),
        None => Ok(io.out.write_all(text.as_bytes())?),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_app::composition::Composition;
    use holdfast_app::genesis::GenesisDoc;
    use serde_json::Value;

    use crate::cli::snapshot::tests::{fresh, holdfast, refused, run_to, state};

    #[test]
    fn an_exported_chain_is_a_genesis_file_of_the_height() {
        let (dir, home) = fresh("export-1");
        refused(holdfast(&["export", "--home", &home]), 23, "no state database");
        run_to(&home, 5);
        let text = holdfast(&["export", "--home", &home]).unwrap();
        let doc = GenesisDoc::parse(&serde_json::to_vec(&text).unwrap()).unwrap();
        doc.validate(&Composition::default()).unwrap();
        assert_eq!((doc.chain_id.as_str(), doc.initial_height), ("export-1", 6));
        assert!(!doc.genesis_time.starts_with("1970"), "that of the chain's own file");

        let file = dir.path().join("out.json");
        let file = file.to_str().unwrap();
        let at_three = ["export", "--home", &home, "--height", "3", "--output-document", file];
        assert_eq!(holdfast(&at_three).unwrap(), Value::Null, "nothing on standard output");
        let doc = GenesisDoc::parse(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(doc.initial_height, 4);

        refused(holdfast(&["export", "--home", &home, "--height", "6"]), 12, "in the future");
        refused(holdfast(&["export", "--home", &home, "--height", "-1"]), 12, "height");
        let _running = state(&home);
        refused(holdfast(&["export", "--home", &home]), 22, "stop the other node");
    }
}
