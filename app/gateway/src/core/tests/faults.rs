//! Restarts, broken disks, broken logs.

use holdfast_escrow::session::{InferenceStatus, State};
use holdfast_host::store::{Fault, MemDb};

use super::host::Serves;
use super::world::{World, key, open, terms};
use crate::core::store::{DIFFS, SNAPSHOTS};
use crate::core::{
    ClientEvent, Effect, Event, GatewayConfig, GatewayCore, Now, OpenError, PermitPool, RequestError,
};

fn fields(core: &GatewayCore) -> String {
    let members: Vec<_> = core.members.iter().map(|(p, m)| (*p, m.row())).collect();
    let dues: Vec<_> = core.dues.iter().map(|(id, due)| (*id, due.row.clone())).collect();
    let pending: Vec<_> = core.pending_txs().cloned().collect();
    let flags: Vec<_> = core.divergence_flags().map(|f| (f.subject, f.generation)).collect();
    format!(
        "{:?}\n{:?}\n{members:?}\n{dues:?}\n{pending:?}\n{:?}\n{flags:?}",
        core.state().to_bytes(),
        core.history,
        core.kept
    )
}

#[test]
fn what_is_recovered_equals_what_was_live_at_every_nonce() {
    let cfg = GatewayConfig { snapshot_every: 7, ..GatewayConfig::default() };
    let mut world = World::with(terms(4), cfg);
    world.run(100);
    for step in 0..60u64 {
        world.host(1).serves = match step % 9 {
            3 => Serves::Fails,
            5 => Serves::Silent,
            7 => Serves::OnlyReceipt,
            _ => Serves::Well,
        };
        if step == 30 {
            world.host(3).fork_at = Some(world.core.status().nonce);
        }
        world.ask();
        world.run(30 + step * 40 % 1_500);
        // Cursors travel with the next commit: bring them along.
        world.core.note_members();
        world.core.ledger.commit(&Default::default(), true).unwrap();
        let copy = world.db.copy();
        let (mut again, _) = open(&copy, &world.cfg, &world.terms, &PermitPool::new(8), world.now());
        for (participant, member) in &world.core.members {
            // An open limiter comes back as a probation: no amnesty, but a new chance.
            let row = crate::core::limiter::Limiter::from_row(member.limiter.row());
            again.members.get_mut(participant).unwrap().limiter = row;
        }
        let mut live = fields(&world.core);
        for member in world.core.members.values() {
            let row = member.limiter.row();
            let after = crate::core::limiter::Limiter::from_row(row).row();
            live = live.replace(&format!("{row:?}"), &format!("{after:?}"));
        }
        assert_eq!(fields(&again), live, "after step {step} at nonce {}", world.core.status().nonce);
    }
    assert!(world.core.status().nonce > 60);
}

#[test]
fn a_failed_commit_changes_nothing_sends_nothing_and_the_restart_goes_on() {
    for fault in [Fault::Fail, Fault::Full, Fault::CrashBefore, Fault::CrashAfter] {
        let mut world = World::new(4);
        world.run(100);
        for _ in 0..5 {
            world.ask();
            world.run(20);
        }
        world.run(2_000);
        let before = world.core.status();
        let infers: u64 = world.hosts.values().map(|host| host.infers).sum();
        world.db.fault(1, fault);
        let id = world.ask();
        let after = world.core.status();
        assert_eq!((after.nonce, after.root), (before.nonce, before.root));
        assert!(after.storage_failed);
        assert_eq!(world.hosts.values().map(|host| host.infers).sum::<u64>(), infers);
        let other = world.ask();
        assert_eq!(world.clients[&other].last(), Some(&ClientEvent::Failed(RequestError::Storage)));
        assert!(
            world.clients.get(&id).is_none_or(|e| !matches!(e.last(), Some(ClientEvent::Dispatched { .. })))
        );
        world.run(5_000);
        world.restart(false);
        let expected = before.nonce + u64::from(fault == Fault::CrashAfter);
        assert_eq!(world.core.status().nonce, expected, "{fault:?}");
        world.run(3_000);
        let id = world.ask();
        world.run(100);
        assert!(world.finished(id), "{fault:?}");
    }
}

#[test]
fn a_diff_that_was_stored_but_never_sent_is_timed_out_and_refunded() {
    let mut world = World::new(4);
    world.run(100);
    world.db.fault(1, Fault::CrashAfter);
    world.ask();
    world.restart(false);
    assert_eq!(world.core.open_starts().count(), 1);
    world.run(60_000);
    assert_eq!(world.core.open_starts().count(), 0);
    assert_eq!(world.core.state().reserved(), 0);
}

#[test]
fn what_a_challenge_made_a_host_run_is_finished_long_before_its_execution_time() {
    let mut world = World::new(4);
    world.run(100);
    world.db.fault(1, Fault::CrashAfter);
    world.ask();
    world.restart(false);
    // The Start was not sent: the host hears of it by a voter's challenge, and only that voter tells us of the receipt.
    world.run(12_000);
    let terms = world.terms.clone();
    let log = world.core.diffs(1, 1);
    let at = world.now().unix_s() + 4;
    world.host(1).teach(&terms, &log).unwrap();
    let receipt = world.host(1).confirm(&terms, 1, at);
    world.host(1).pending.clear();
    for index in [0, 2, 3] {
        world.host(index).challenged = vec![receipt.clone()];
    }
    world.run(5_000);
    assert!(world.calls.iter().any(|(_, call)| *call == "vote"));
    world.host(1).finish_now(&terms, 1);
    world.run(10_000);
    let record = world.core.state().record(1).unwrap();
    assert_eq!((record.status, record.cost), (InferenceStatus::Finished, 50));
}

#[test]
fn a_corrupt_snapshot_costs_a_replay_and_a_gap_is_said() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..40 {
        world.ask();
        world.run(20);
    }
    let nonce = world.core.status().nonce;
    let root = world.core.status().root;
    let db = world.db.copy();
    for at in [16, 32, 48, 64] {
        if DIFFS.has(&db, &(7, at)).unwrap() && SNAPSHOTS.has(&db, &(7, at)).unwrap() {
            db.damage(&SNAPSHOTS.key(&(7, at)), Some(b"broken"));
        }
    }
    let (core, _) = open(&db, &world.cfg, &world.terms, &PermitPool::new(8), world.now());
    assert_eq!((core.status().nonce, core.status().root), (nonce, root));

    let db = world.db.copy();
    db.damage(&DIFFS.key(&(7, 20)), None);
    assert!(matches!(try_open(&db, &world), Err(OpenError::Gap { nonce: 20 })));
}

fn try_open(db: &MemDb, world: &World) -> Result<(GatewayCore, Vec<Effect>), OpenError> {
    GatewayCore::open(
        Box::new(db.clone()),
        world.cfg.clone(),
        world.terms.clone(),
        Box::new(key("gateway")),
        Box::new(|| [1; 32]),
        PermitPool::new(8),
        world.now(),
    )
}

#[test]
fn a_log_that_does_not_replay_retires_the_escrow_for_a_dispute_at_the_last_good_nonce() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..12 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    let db = world.db.copy();
    let broken = DIFFS.load(&db, &(7, 9)).unwrap();
    db.damage(&DIFFS.key(&(7, 9)), Some(&broken[..broken.len() - 1]));
    world.db = db;
    world.restart(false);
    assert_eq!(world.core.corrupt_at(), Some(9));
    assert!(!world.core.takes_requests());
    world.run(10_000);
    assert_eq!(world.disputes.len(), 1);
    assert_eq!(world.disputes[0].nonce, 8);
    world.pays(&world.disputes[0].clone(), holdfast_escrow::session::settle::Mode::Dispute);
}

#[test]
fn a_foreign_key_and_other_terms_are_refused() {
    let world = World::new(4);
    let other = GatewayCore::open(
        Box::new(MemDb::new()),
        world.cfg.clone(),
        world.terms.clone(),
        Box::new(key("host-0")),
        Box::new(|| [1; 32]),
        PermitPool::new(8),
        Now { mono_ms: 0, unix_ms: 0 },
    );
    assert!(matches!(other, Err(OpenError::WrongKey { .. })));
    let mut terms = world.terms.clone();
    terms.token_price += 1;
    let again = GatewayCore::open(
        Box::new(world.db.clone()),
        world.cfg.clone(),
        terms,
        Box::new(key("gateway")),
        Box::new(|| [1; 32]),
        PermitPool::new(8),
        Now { mono_ms: 0, unix_ms: 0 },
    );
    assert!(matches!(again, Err(OpenError::Config(_))));
}

#[test]
fn a_tail_that_our_store_lost_is_fetched_from_hosts_and_no_nonce_is_signed_twice() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..6 {
        world.ask();
        world.run(20);
    }
    let old = world.db.copy();
    for _ in 0..6 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    let tip = world.core.status().nonce;
    let root = world.core.status().root;
    let known: u64 = world.hosts.values().map(|h| h.state.as_ref().map_or(0, State::nonce)).max().unwrap();
    world.db = old;
    world.restart(false);
    assert!(world.core.status().nonce < known);
    world.run(3_000);
    assert!(world.stage_count("escrow_tail_recovered") >= 1);
    assert!(world.core.status().nonce >= known);
    if known == tip {
        assert_eq!(world.core.root_at(tip), Some(root));
    }
    assert!(!world.core.status().self_suspect);
    for _ in 0..8 {
        let id = world.ask();
        world.run(100);
        assert!(world.finished(id));
    }
    assert!(world.core.flags().is_empty());
}

#[test]
fn a_store_that_was_lost_is_rebuilt_from_hosts_before_anything_is_signed() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..10 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    let known = world.hosts.values().map(|h| h.state.as_ref().map_or(0, State::nonce)).max().unwrap();
    let root = world.core.root_at(known);
    world.db = MemDb::new();
    world.restart(false);
    let id = world.ask();
    world.run(3_000);
    assert!(world.core.status().nonce > known);
    assert_eq!(world.core.root_at(known), root);
    assert!(world.finished(id));
    assert!(world.core.flags().is_empty() && !world.core.status().self_suspect);
}

#[test]
fn a_stop_tells_clients_and_leaves_everything_to_the_next_start() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    let id = world.ask();
    world.run(20);
    world.send(Event::Stop);
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(RequestError::Stopping)));
    assert!(world.others.iter().any(|effect| matches!(effect, Effect::Retired { .. })));
    world.restart(false);
    assert_eq!(world.core.open_starts().count(), 1);
}

#[test]
fn another_diff_at_the_next_nonce_of_our_log_stops_the_sequencer_and_nothing_is_sent() {
    let mut world = World::new(4);
    world.run(100);
    world.ask();
    world.run(3_000);
    let nonce = world.core.status().nonce;
    // A second gateway wrote to the same store.
    let foreign = borsh::to_vec(&vec![1u8, 2, 3]).unwrap();
    world.db.damage(&DIFFS.key(&(7, nonce + 1)), Some(&foreign));
    let infers: u64 = world.hosts.values().map(|host| host.infers).sum();
    let id = world.ask();
    world.run(100);
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(RequestError::Storage)));
    assert_eq!(world.core.status().nonce, nonce);
    assert_eq!(world.hosts.values().map(|host| host.infers).sum::<u64>(), infers);
    assert!(world.logs.iter().any(|line| line.stage == "gateway_storage_failed" && line.alarm));
}

#[test]
fn the_same_bytes_at_the_next_nonce_are_a_repeated_append() {
    let mut world = World::new(4);
    world.run(100);
    // The commit reached the disk, and the process hears of a failure: the next process holds the diff already.
    world.db.fault(1, Fault::CrashAfter);
    world.ask();
    let stored = world.db.rows().get(&DIFFS.key(&(7, 1))).cloned();
    assert!(stored.is_some());
    world.restart(true);
    assert_eq!(world.core.status().nonce, 1);
    assert_eq!(world.db.rows().get(&DIFFS.key(&(7, 1))).cloned(), stored);
}

#[test]
fn a_doubt_survives_a_restart_and_ends_by_a_quorum_only() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..6 {
        world.ask();
        world.run(20);
    }
    world.core.raise_suspicion("test");
    world.send(Event::Tick);
    for index in [0, 1] {
        world.host(index).serves = Serves::Down;
    }
    world.restart(true);
    world.run(30_000);
    assert!(world.core.status().self_suspect);
    let id = world.ask();
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(RequestError::SelfSuspect)));
    assert_eq!(world.stage_count("escrow_self_replay"), 2, "before the restart and after it");
    world.host(0).serves = Serves::Well;
    world.run(30_000);
    assert!(!world.core.status().self_suspect);
    assert_eq!(world.core.corrupt_at(), None);
}

#[test]
fn a_state_in_memory_that_is_not_that_of_the_log_is_found_by_the_replay() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..6 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    // Memory went wrong at some time: the state is that of another log of the same length.
    let mut other = World::new(4);
    other.run(2_100);
    for _ in 0..6 {
        other.ask();
        other.run(20);
    }
    other.run(2_000);
    let nonce = world.core.status().nonce;
    assert_eq!(other.core.status().nonce, nonce);
    assert_ne!(other.core.status().root, world.core.status().root);
    world.core.state = other.core.state().clone();
    world.core.raise_suspicion("test");
    world.send(Event::Tick);
    world.run(5_000);
    assert_eq!(world.core.corrupt_at(), Some(nonce));
    assert_eq!(world.disputes.len(), 1);
    world.pays(&world.disputes[0].clone(), holdfast_escrow::session::settle::Mode::Dispute);
}
