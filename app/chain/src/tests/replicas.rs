//! Replicas: the same blocks give the same bytes, whatever the store and whenever a node restarts.

use super::load::{played, spec};
use super::net::*;
use crate::app::{App, FinalizedBlock, state_spaces};
use crate::state::{CommitStore, DiskStore, StateOptions};

/// Plays `history` on a fresh replica whose store `open` opens. After every `every` blocks the node stops and starts again,
/// and every second time it stops between executing a block and committing it.
#[track_caller]
fn replay<S: CommitStore>(
    open: impl Fn() -> S,
    every: usize,
    history: &[Played],
    expected: &[FinalizedBlock],
) {
    let fresh = |store: S| App::from_genesis(store, options(), &spec().document()).unwrap();
    let mut app = fresh(open());
    for (n, (played, expected)) in history.iter().zip(expected).enumerate() {
        let (done, _) = finalize(&mut app, played);
        assert_eq!(done, *expected, "block {}", played.block.height);
        let stop = n % every == every - 1;
        if stop && n % (2 * every) == every - 1 {
            let height = app.height();
            drop(app);
            app = if height == 0 { fresh(open()) } else { App::open(open(), options()).unwrap() };
            assert_eq!(app.height(), height);
            finalize(&mut app, played);
        }
        app.commit().unwrap();
        assert_eq!(app.app_hash(), expected.app_hash);
        if stop {
            drop(app);
            app = App::open(open(), options()).unwrap();
            assert_eq!((app.height(), app.app_hash()), (played.block.height, expected.app_hash));
        }
    }
    app.shared().check_invariants().unwrap();
}

#[test]
fn replicas_in_memory_agree_whatever_their_restarts() {
    let load = played();
    let (history, done) = (&load.net.history, &load.net.done);
    for every in [1, 7] {
        let store = mem();
        replay(|| store.clone(), every, history, done);
    }
}

#[test]
fn a_replica_on_disk_that_is_killed_and_restarted_agrees() {
    let load = played();
    let folder = tempfile::tempdir().unwrap();
    let options = StateOptions {
        keep_recent: 5,
        page_cache: 64,
        value_cache_bytes: 4_096,
        threads: 3,
        ..StateOptions::default()
    };
    let open = || DiskStore::open(folder.path(), &state_spaces(), options.clone()).unwrap();
    replay(open, 13, &load.net.history, &load.net.done);
}
