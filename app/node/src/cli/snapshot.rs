//! `holdfastd snapshot`: writing, listing, restoring and deleting snapshots of a stopped node.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_app::app::state_spaces;
use holdfast_app::snapshots::{self, SnapshotError, SnapshotFolder, SnapshotStore, restore_folder};
use holdfast_app::state::{CommitStore, DiskStore, StateError};
use serde_json::{Value, json};

use super::error::fail;
use super::files::{Home, HomeArgs};
use super::output::{Format, Io};
use super::wiring;

/// Writes, lists, restores and deletes snapshots of a stopped node
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotCommand {
    /// Writes a snapshot of a height into data/snapshots
    Create(CreateArgs),
    /// Lists the snapshots, highest first; the node may run
    List(Shared),
    /// Fills the empty state database from a snapshot
    Restore(RestoreArgs),
    /// Deletes a snapshot
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct Shared {
    #[command(flatten)]
    home: HomeArgs,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Height of the state [default: the last]
    #[arg(long, value_name = "H", value_parser = height, allow_negative_numbers = true)]
    height: Option<i64>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, clap::Args)]
struct RestoreArgs {
    /// Height of a snapshot in data/snapshots; it and FORMAT, or --from, must be given
    height: Option<u64>,
    /// Format of the snapshot
    format: Option<u32>,
    /// Folder of a snapshot that was copied from another node, with `metadata` and the chunks 0, 1, ... in it; its content
    /// is taken on trust
    #[arg(long, value_name = "DIR", conflicts_with_all = ["height", "format"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// Height of the snapshot
    height: u64,
    /// Format of the snapshot
    format: u32,
    #[command(flatten)]
    shared: Shared,
}

/// A block height.
pub(crate) fn height(text: &str) -> Result<i64, String> {
    text.parse().ok().filter(|height| *height > 0).ok_or_else(|| "give a height from 1 up".into())
}

/// Where the snapshots of a home are.
fn dir(home: &Home) -> PathBuf {
    home.data().join("snapshots")
}

/// The state database of a stopped node that has run.
pub(crate) fn open_state(home: &Home) -> Result<DiskStore> {
    let path = home.data().join("state");
    if !path.is_dir() {
        let text = "no state database; give the --home of a node that has run, or restore a snapshot";
        return Err(fail(23, path.display().to_string(), text));
    }
    let store = open(&path)?;
    if store.latest_height() == 0 {
        let text = "holds no block yet; start the node, or restore a snapshot";
        return Err(fail(23, path.display().to_string(), text));
    }
    Ok(store)
}

fn open(path: &Path) -> Result<DiskStore> {
    DiskStore::open(path, &state_spaces(), crate::open::state_options())
        .map_err(|error| state_failure(path, &error))
}

/// A failure of the state database in `path`.
pub(crate) fn state_failure(path: &Path, error: &StateError) -> anyhow::Error {
    match error {
        StateError::Locked { .. } => fail(22, "--home", error.to_string()),
        StateError::Pruned { .. } => fail(62, "--height", error.to_string()),
        StateError::Future { .. } | StateError::InvalidHeight { .. } => {
            fail(12, "--height", error.to_string())
        }
        _ => fail(73, path.display().to_string(), error.to_string()),
    }
}

/// A failure of a snapshot that lies in `at`, or of the state database of `home`.
fn failure(home: &Home, at: &Path, error: &SnapshotError) -> anyhow::Error {
    let field = at.display().to_string();
    match error {
        SnapshotError::Locked { .. } => fail(22, "--home", error.to_string()),
        SnapshotError::Io { path, source } => super::error::io_failure(path, source),
        SnapshotError::Missing { .. } => fail(71, field, error.to_string()),
        SnapshotError::NotEmpty { .. } => fail(22, home.data().display().to_string(), error.to_string()),
        SnapshotError::State(error) => state_failure(&home.data().join("state"), error),
        SnapshotError::Damaged { path, what } => {
            let text = format!("is damaged: {what}; delete the snapshot and create or fetch it again");
            fail(72, path.display().to_string(), text)
        }
        _ => fail(72, field, error.to_string()),
    }
}

/// What is printed of a snapshot. 64-bit numbers are strings, as in every proto3 JSON.
fn shown(folder: &SnapshotFolder) -> Value {
    let (info, metadata) = (folder.info(), folder.metadata());
    json!({
        "height": info.height.to_string(),
        "format": info.format,
        "chunks": info.chunks,
        "hash": hex::encode_upper(&info.hash),
        "chain_id": metadata.chain_id,
        "app_hash": hex::encode_upper(metadata.app_hash),
        "keys": metadata.items.to_string(),
        "bytes": metadata.bytes.to_string(),
        "path": folder.path().display().to_string(),
    })
}

pub(crate) fn run(args: &SnapshotArgs, io: &mut Io<'_>) -> Result<()> {
    match &args.command {
        SnapshotCommand::Create(args) => {
            let home = args.shared.home.home()?;
            let state = open_state(&home)?;
            let failed = |error: SnapshotError| failure(&home, &dir(&home), &error);
            let store = SnapshotStore::open(dir(&home)).map_err(failed)?;
            let info = store.create(&state, args.height.unwrap_or(state.latest_height())).map_err(failed)?;
            let folder = store.folder(info.height, info.format).map_err(failed)?;
            io.print(&shown(&folder), args.shared.output)
        }
        SnapshotCommand::List(args) => {
            let home = args.home.home()?;
            let found = snapshots::list(&dir(&home)).map_err(|error| failure(&home, &dir(&home), &error))?;
            let found: Vec<Value> = found.iter().map(shown).collect();
            io.print(&json!({ "snapshots": found }), args.output)
        }
        SnapshotCommand::Restore(args) => restore(args, io),
        SnapshotCommand::Delete(args) => {
            let home = args.shared.home.home()?;
            let failed = |error: SnapshotError| failure(&home, &dir(&home), &error);
            if !dir(&home).is_dir() {
                return Err(failed(SnapshotError::Missing { height: args.height, format: args.format }));
            }
            let store = SnapshotStore::open(dir(&home)).map_err(failed)?;
            store.delete(args.height, args.format).map_err(failed)?;
            let value = json!({ "deleted": { "height": args.height.to_string(), "format": args.format } });
            io.print(&value, args.shared.output)
        }
    }
}

fn restore(args: &RestoreArgs, io: &mut Io<'_>) -> Result<()> {
    if args.from.is_none() && (args.height.is_none() || args.format.is_none()) {
        return Err(fail(14, "HEIGHT FORMAT", "give both, or --from DIR"));
    }
    let home = args.shared.home.home()?;
    let at = args.from.clone().unwrap_or_else(|| dir(&home));
    let failed = |error: SnapshotError| failure(&home, &at, &error);
    // The snapshot has to be of the chain that the home is set up for.
    let chain_id = wiring::read_genesis(&home)?.chain_id;
    let (folder, _store) = match &args.from {
        Some(from) => (SnapshotFolder::open(from).map_err(failed)?, None),
        None => {
            let (height, format) = (args.height.unwrap_or(0), args.format.unwrap_or(0));
            if !dir(&home).is_dir() {
                return Err(failed(SnapshotError::Missing { height, format }));
            }
            let store = SnapshotStore::open(dir(&home)).map_err(failed)?;
            (store.folder(height, format).map_err(failed)?, Some(store))
        }
    };
    super::files::create_dir(&home.data())?;
    let path = home.data().join("state");
    let was_there = path.exists();
    let state = open(&path)?;
    let err = &mut *io.err;
    let mut progress = |done: u32, all: u32| {
        if all > 1 {
            let _ = writeln!(err, "chunk {done} of {all}");
        }
    };
    if let Err(error) = restore_folder(&folder, &state, Some(&chain_id), &mut progress) {
        drop(state);
        if !was_there {
            // What stays behind is an empty database; the error that matters is the first one.
            let _ = std::fs::remove_dir_all(&path);
        }
        return Err(failed(error));
    }
    io.print(&json!({ "restored": shown(&folder) }), args.shared.output)
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::OsString;

    use holdfast_app::app::{App, AppOptions, Block};
    use holdfast_app::genesis::GenesisDoc;

    use super::*;
    use crate::cli::error::CliError;
    use crate::cli::{Stop, execute};

    /// Runs a command line that reaches no node.
    pub(crate) fn holdfast(words: &[&str]) -> Result<Value, CliError> {
        let words: Vec<OsString> = ["holdfastd"].iter().chain(words).map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut io = Io { out: &mut out, err: &mut err, input: &mut std::io::empty(), terminal: false };
        match execute(&words, &mut io, &|_| panic!("no node is asked")) {
            Ok(()) => Ok(serde_json::from_slice(&out).unwrap_or(Value::Null)),
            Err(Stop::Failed(error)) => Err(error.downcast().unwrap()),
            Err(Stop::Printed(text) | Stop::Help(text)) => panic!("{text}"),
        }
    }

    /// A home folder after `init`.
    pub(crate) fn fresh(chain_id: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("node").to_str().unwrap().to_owned();
        holdfast(&["init", "a", "--chain-id", chain_id, "--home", &home]).unwrap();
        (dir, home)
    }

    pub(crate) fn state(home: &str) -> DiskStore {
        open(&Path::new(home).join("data/state")).unwrap()
    }

    /// Executes empty blocks up to `height`; returns the app hash.
    pub(crate) fn run_to(home: &str, height: i64) -> String {
        let store = state(home);
        let mut app = if store.latest_height() == 0 {
            let doc = std::fs::read(Path::new(home).join("config/genesis.json")).unwrap();
            let doc = GenesisDoc::parse(&doc).unwrap();
            App::from_genesis(store, AppOptions::default(), &doc).unwrap()
        } else {
            App::open(store, AppOptions::default()).unwrap()
        };
        while app.height() < height {
            let height = app.height() + 1;
            app.finalize_block(&Block { height, time_ns: height.unsigned_abs(), txs: Vec::new() }).unwrap();
            app.commit().unwrap();
        }
        hex::encode_upper(app.app_hash())
    }

    #[track_caller]
    pub(crate) fn refused(answer: Result<Value, CliError>, code: u32, part: &str) {
        let error = answer.unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }

    #[test]
    fn a_snapshot_of_one_node_starts_another_and_both_go_on_alike() {
        let (_dir, home) = fresh("snap-1");
        let at = |words: &[&str], home: &str| holdfast(&[&["snapshot"], words, &["--home", home]].concat());
        refused(at(&["create"], &home), 23, "no state database");
        assert_eq!(at(&["list"], &home).unwrap(), json!({ "snapshots": [] }));
        let hash = run_to(&home, 6);
        let made = at(&["create"], &home).unwrap();
        assert_eq!((&made["height"], &made["format"], &made["chunks"]), (&json!("6"), &json!(1), &json!(1)));
        assert_eq!((&made["app_hash"], &made["chain_id"]), (&json!(hash), &json!("snap-1")));
        at(&["create", "--height", "4"], &home).unwrap();
        refused(at(&["create", "--height", "7"], &home), 12, "in the future");
        refused(at(&["create", "--height", "0"], &home), 12, "height from 1 up");
        let listed = at(&["list"], &home).unwrap();
        assert_eq!(listed["snapshots"][0], made);
        assert_eq!(listed["snapshots"][1]["height"], "4");
        assert_eq!(at(&["create"], &home).unwrap(), made, "again it is the same");

        // A node that runs has its databases to itself; a look at the list is free.
        let running = state(&home);
        refused(at(&["create"], &home), 22, "locked");
        refused(at(&["restore", "6", "1"], &home), 22, "locked");
        refused(holdfast(&["start", "--home", &home, "--grpc-listen", "127.0.0.1:0"]), 22, "locked");
        let beside = ["start", "--engine", "comet", "--home", &home, "--grpc-listen", "127.0.0.1:0"];
        let beside =
            [&beside[..], &["--proxy-app", "tcp://127.0.0.1:0", "--rpc-laddr", "127.0.0.1:1"]].concat();
        refused(holdfast(&beside), 22, "locked");
        assert_eq!(at(&["list"], &home).unwrap(), listed);
        drop(running);
        let serving = SnapshotStore::open(Path::new(&home).join("data/snapshots")).unwrap();
        refused(at(&["delete", "6", "1"], &home), 22, "another process");
        drop(serving);
        refused(at(&["restore", "6", "1"], &home), 22, "is at height 6");
        refused(at(&["restore", "6"], &home), 14, "FORMAT");
        refused(at(&["restore"], &home), 14, "--from DIR");

        let (_other, twin) = fresh("snap-1");
        let from = made["path"].as_str().unwrap();
        refused(at(&["restore", "6", "1"], &twin), 71, "no snapshot of height 6");
        refused(at(&["restore", "--from", "nowhere"], &twin), 21, "nowhere");
        let restored = at(&["restore", "--from", from], &twin).unwrap();
        assert_eq!(restored, json!({ "restored": made }));
        assert_eq!(run_to(&twin, 6), hash);
        assert_eq!(run_to(&twin, 9), run_to(&home, 9));
        let again = at(&["create", "--height", "6"], &twin).unwrap();
        assert_eq!(again["hash"], made["hash"]);

        let (_foreign, foreign) = fresh("snap-2");
        refused(at(&["restore", "--from", from], &foreign), 72, "of chain snap-1, this node is of snap-2");

        assert_eq!(
            at(&["delete", "4", "1"], &home).unwrap(),
            json!({ "deleted": { "height": "4", "format": 1 } })
        );
        refused(at(&["delete", "4", "1"], &home), 71, "`snapshot list`");
        refused(at(&["delete", "6", "2"], &home), 71, "format 2");
    }

    #[test]
    fn a_changed_or_missing_file_of_a_snapshot_is_named_and_leaves_no_state_behind() {
        let (_dir, home) = fresh("snap-1");
        run_to(&home, 3);
        let made = holdfast(&["snapshot", "create", "--home", &home]).unwrap();
        let from = made["path"].as_str().unwrap();
        let (_other, other) = fresh("snap-1");
        let damaged = |name: &str, case: &str| {
            let error = holdfast(&["snapshot", "restore", "--from", from, "--home", &other]).unwrap_err();
            let file = Path::new(from).join(name).display().to_string();
            assert_eq!((error.code, &error.field), (72, &file), "{case}: {error}");
            assert!(!Path::new(&other).join("data/state").exists(), "{case}");
        };
        for name in ["metadata", "0"] {
            let path = Path::new(from).join(name);
            let whole = std::fs::read(&path).unwrap();
            // Every byte of the metadata, and some of the chunk, which one hash covers.
            let step = if name == "0" { whole.len() / 5 } else { 1 };
            for at in (0..whole.len()).step_by(step) {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << (at % 8);
                std::fs::write(&path, bytes).unwrap();
                damaged(name, &format!("{name}, byte {at}"));
            }
            for cut in [0, whole.len() - 1] {
                std::fs::write(&path, &whole[..cut]).unwrap();
                damaged(name, &format!("{name}, cut at {cut}"));
            }
            std::fs::remove_file(&path).unwrap();
            damaged(name, &format!("{name}, gone"));
            // The same of a snapshot in its own home.
            let error = holdfast(&["snapshot", "restore", "3", "1", "--home", &home]).unwrap_err();
            assert_eq!((error.code, error.field), (72, path.display().to_string()));
            std::fs::write(&path, whole).unwrap();
        }
        let restored = holdfast(&["snapshot", "restore", "--from", from, "--home", &other]).unwrap();
        assert_eq!(restored["restored"]["height"], "3");
    }
}
