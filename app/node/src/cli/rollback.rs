//! `holdfastd rollback`: takes the chain's state back, so that its last blocks are executed again.

use anyhow::Result;
use holdfast_app::state::{Rollback, StateError};
use serde_json::json;

use super::error::fail;
use super::files::HomeArgs;
use super::output::{Format, Io};

/// Takes the state of a stopped node back by one height, or to an earlier one
///
/// The blocks stay. At the next start those above the state are executed again, by the solo engine as by CometBFT.
/// If the state was wrong in itself, CometBFT has recorded its app hash in the next block's header and must go back
/// by one height as well: run `cometbft rollback --home DIR` once, then start.
#[derive(Debug, clap::Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// The height to go back to [default: the one before the latest]
    #[arg(long, value_name = "H", value_parser = height)]
    height: Option<i64>,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

fn height(text: &str) -> Result<i64, String> {
    let height = text.parse().ok().filter(|height| *height > 0);
    height.ok_or_else(|| "give a height from 1 up".into())
}

pub(crate) fn run(args: &RollbackArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.home.home()?;
    let mut state = Rollback::open(home.data().join("state")).map_err(refused)?;
    let (from, earliest) = (state.height(), state.earliest());
    let to = args.height.unwrap_or(from.saturating_sub(1));
    if to >= from {
        let text = format!("{to} is not below the latest height, {from}; give a lower one");
        return Err(fail(12, "--height", text));
    }
    if to < earliest {
        let text = format!(
            "{to} is not kept, the oldest kept height is {earliest}; restore a snapshot, or state-sync into an empty folder"
        );
        return Err(fail(62, "--height", text));
    }
    while state.height() > to {
        state.step().map_err(refused)?;
        if io.terminal {
            writeln!(io.err, "at height {}", state.height())?;
        }
    }
    let report = json!({
        "from": from.to_string(),
        "height": state.height().to_string(),
        "app_hash": hex::encode_upper(state.app_hash()),
    });
    io.print(&report, args.output)
}

/// A refusal of the state database in the command line's numbers.
fn refused(error: StateError) -> anyhow::Error {
    match &error {
        StateError::Locked { path } => {
            fail(22, path.display().to_string(), "the node is running; stop it first")
        }
        StateError::NoState { path } => {
            let text = "holds no chain; give the --home of a node that has made blocks";
            fail(23, path.display().to_string(), text)
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use holdfast_app::state::{CommitStore, DiskStore, StateOptions};

    use super::*;
    use crate::cli::error::CliError;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: RollbackArgs,
    }

    fn rollback(home: &Path, more: &[&str]) -> Result<serde_json::Value, CliError> {
        let home = home.to_str().unwrap();
        let line = Line::try_parse_from([&["rollback", "--home", home], more].concat()).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut io = Io { out: &mut out, err: &mut err, input: &mut std::io::empty(), terminal: false };
        match run(&line.args, &mut io) {
            Ok(()) => Ok(serde_json::from_slice(&out).unwrap()),
            Err(error) => Err(error.downcast().unwrap()),
        }
    }

    fn store(home: &Path, keep_recent: u64) -> DiskStore {
        let options = StateOptions { keep_recent, threads: 1, ..StateOptions::default() };
        DiskStore::open(home.join("data/state"), &["bank"], options).unwrap()
    }

    fn commit(store: &DiskStore, height: i64) -> String {
        let block = [(b"bank/a".to_vec(), Some(height.to_be_bytes().to_vec()))].into();
        let prepared = store.prepare(height, &block).unwrap();
        let hash = hex::encode_upper(prepared.app_hash());
        store.commit(prepared).unwrap();
        hash
    }

    #[test]
    fn the_state_goes_back_by_one_height_or_to_the_one_given_and_says_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let opened = store(dir.path(), 0);
        let hashes: Vec<String> = (1..=6).map(|height| commit(&opened, height)).collect();
        let error = rollback(dir.path(), &[]).unwrap_err();
        assert_eq!(error.code, 22, "{error}");
        drop(opened);
        let report = rollback(dir.path(), &[]).unwrap();
        assert_eq!(report, json!({"from": "6", "height": "5", "app_hash": hashes[4]}));
        let report = rollback(dir.path(), &["--height", "2"]).unwrap();
        assert_eq!(report, json!({"from": "5", "height": "2", "app_hash": hashes[1]}));
        let again = store(dir.path(), 0);
        assert_eq!((3..=6).map(|height| commit(&again, height)).collect::<Vec<_>>(), hashes[2..]);
    }

    #[test]
    fn a_height_that_cannot_be_gone_back_to_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let error = rollback(dir.path(), &[]).unwrap_err();
        assert_eq!(error.code, 23, "{error}");
        assert!(!dir.path().join("data").exists(), "asking creates no database");
        let opened = store(dir.path(), 2);
        let mut last = String::new();
        for height in 1..=6 {
            last = commit(&opened, height);
        }
        while opened.prune(100).unwrap() > 0 {}
        drop(opened);
        let error = rollback(dir.path(), &["--height", "4"]).unwrap_err();
        assert_eq!((error.code, error.field.as_str()), (62, "--height"));
        assert!(error.text.contains("the oldest kept height is 5"), "{error}");
        assert_eq!(rollback(dir.path(), &["--height", "6"]).unwrap_err().code, 12);
        assert!(Line::try_parse_from(["rollback", "--height", "0"]).is_err());
        let opened = store(dir.path(), 2);
        assert_eq!((opened.latest_height(), hex::encode_upper(opened.app_hash())), (6, last));
        drop(opened);
        // By one it still can, and then no further.
        assert_eq!(rollback(dir.path(), &[]).unwrap()["height"], "5");
        assert_eq!(rollback(dir.path(), &[]).unwrap_err().code, 62);
    }
}
