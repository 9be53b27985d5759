use super::*;

#[test]
fn each_disposition_of_a_step() {
    let (mut ledger, _) = open(&MemoryDisk::new());
    let not_opened = BeginError::Ledger(LedgerError::NotOpened);
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Err(not_opened.clone()));
    ledger.epoch_opened(opened(1, 1)).unwrap();
    assert_eq!(ledger.begin(step(1, 2, 0), fp(0)), Err(not_opened));
    assert_eq!(ledger.begin(step(1, 1, 1), fp(1)), Err(BeginError::OutOfOrder { step: 1, next: 0 }));
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Ok(StepDisposition::Fresh));
    // In flight: the same step again, and the next one.
    let in_doubt = Err(UncertainMutationError(step(1, 1, 0)).into());
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), in_doubt);
    assert_eq!(ledger.begin(step(1, 1, 1), fp(1)), Err(BeginError::OutOfOrder { step: 1, next: 0 }));
    ledger.commit(step(1, 1, 0), Some(8), LOGITS).unwrap();
    let replay = StepDisposition::Replay { token: Some(8), logits_digest: LOGITS };
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Ok(replay));
    assert_eq!(ledger.begin(step(1, 1, 0), fp(9)), Ok(StepDisposition::Conflict));
    assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(StepDisposition::StaleEpoch { have: 1 }));
    assert_eq!(ledger.commit(step(1, 1, 0), Some(9), LOGITS), Err(LedgerError::WrongStep(0)));
    // Uncertain, with any content.
    assert_eq!(ledger.begin(step(1, 1, 1), fp(1)), Ok(StepDisposition::Fresh));
    ledger.mark_uncertain(step(1, 1, 1)).unwrap();
    ledger.mark_uncertain(step(1, 1, 1)).unwrap();
    for content in [1, 2] {
        let in_doubt = Err(UncertainMutationError(step(1, 1, 1)).into());
        assert_eq!(ledger.begin(step(1, 1, 1), fp(content)), in_doubt);
    }
    // Its late answer is refused.
    assert_eq!(ledger.commit(step(1, 1, 1), Some(9), LOGITS), Err(LedgerError::WrongStep(1)));
    ledger.terminal(ended(1, 1, Some(FailureKind::WorkerDeath), 1)).unwrap();
    // After the end: what was committed is replayed, nothing new begins.
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Ok(replay));
    assert_eq!(ledger.begin(step(1, 1, 2), fp(2)), Err(BeginError::Terminated));
    assert_eq!(ledger.committed_tokens(session(1), 1), [8]);
    ledger.closed(session(1), 0).unwrap();
    assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Ok(StepDisposition::Closed));
    assert_eq!(ledger.epoch_opened(opened(1, 2)), Err(LedgerError::Closed));
}

#[test]
fn an_uncertain_step_is_settled_by_the_answer_of_all_shards() {
    let disk = MemoryDisk::new();
    let (mut ledger, _) = open(&disk);
    ledger.epoch_opened(opened(1, 0)).unwrap();
    let ran = Resolution::Ran { token: Some(8), logits_digest: LOGITS };
    assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(StepDisposition::Fresh));
    assert_eq!(ledger.resolve(step(1, 0, 0), ran), Err(LedgerError::WrongStep(0)));
    ledger.mark_uncertain(step(1, 0, 0)).unwrap();
    ledger.resolve(step(1, 0, 0), Resolution::NotRun).unwrap();
    assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(StepDisposition::Fresh));
    ledger.mark_uncertain(step(1, 0, 0)).unwrap();
    ledger.resolve(step(1, 0, 0), ran).unwrap();
    let replay = StepDisposition::Replay { token: Some(8), logits_digest: LOGITS };
    assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(replay));
    ledger.flush().unwrap();
    drop(ledger);
    let (mut ledger, recovery) = open(&disk);
    assert_eq!(recovery.uncertain, []);
    assert_eq!(recovery.terminated[0].tokens, Some(1));
    assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(replay));
}

#[test]
fn an_attempt_has_one_record_and_epochs_only_rise() {
    let (mut ledger, _) = open(&MemoryDisk::new());
    ledger.epoch_opened(opened(1, 0)).unwrap();
    assert_eq!(ledger.epoch_opened(opened(1, 1)), Err(LedgerError::Unfinished { epoch: 0 }));
    assert_eq!(ledger.epoch_opened(opened(1, 0)), Err(LedgerError::StaleEpoch { have: 0 }));
    assert_eq!(ledger.closed(session(1), 0), Err(LedgerError::Unfinished { epoch: 0 }));
    assert_eq!(ledger.submitted(session(1), 0, "tx"), Err(LedgerError::Unfinished { epoch: 0 }));
    ledger.begin(step(1, 0, 0), fp(0)).unwrap();
    let completed = ended(1, 0, None, 0);
    assert!(matches!(ledger.terminal(completed), Err(LedgerError::Invalid(_))));
    ledger.terminal(ended(1, 0, Some(FailureKind::DeadlineExceeded), 0)).unwrap();
    // The open step went into doubt with its attempt.
    assert_eq!(ledger.record(key(1, 0)).unwrap().uncertain_step, Some(0));
    let second = ended(1, 0, None, 8);
    assert_eq!(ledger.terminal(second), Err(LedgerError::DuplicateTerminal(key(1, 0))));
    assert_eq!(ledger.record(key(1, 0)).unwrap().failure_kind, Some(FailureKind::DeadlineExceeded));
    // Withdrawn while it was queued: a record without an attempt.
    ledger.terminal(ended(2, 0, Some(FailureKind::Cancelled), 0)).unwrap();
    assert_eq!(ledger.begin(step(2, 0, 0), fp(0)), Err(BeginError::Terminated));
}

#[test]
fn counts_are_those_of_durable_records_and_only_completed_ones_are_billed() {
    let disk = MemoryDisk::new();
    let (mut ledger, _) = open(&disk);
    // The scenario set of the failure matrix: clean, cancel, worker death, and a failover of two attempts.
    let set = [
        ended(1, 0, None, 8),
        ended(2, 0, Some(FailureKind::Cancelled), 3),
        ended(3, 0, Some(FailureKind::WorkerDeath), 3),
        ended(4, 0, Some(FailureKind::WorkerDeath), 3),
        ended(4, 1, None, 8),
    ];
    for record in set.clone() {
        let KvKey { epoch, .. } = record.key;
        ledger.epoch_opened(opened(record.key.session.0[0], epoch)).unwrap();
        ledger.terminal(record).unwrap();
    }
    assert_eq!(*ledger.work(), WorkLedger::default());
    assert_eq!(ledger.unsubmitted().count(), 0);
    ledger.flush().unwrap();
    let golden = serde_json::json!({
        "completed": 2, "cancelled": 1, "failed": 0, "unverified": 2, "billable_tokens": 16
    });
    assert_eq!(ledger.work().to_json(), golden);
    assert_eq!(serde_json::to_value(ledger.work()).unwrap(), golden);
    assert_eq!(set.iter().collect::<WorkLedger>(), *ledger.work());
    // One report of a session, of its last epoch.
    let epochs = |ledger: &IdempotencyLedger| -> Vec<(u8, u32)> {
        ledger.unsubmitted().map(|record| (record.key.session.0[0], record.key.epoch)).collect()
    };
    assert_eq!(epochs(&ledger), [(1, 0), (2, 0), (3, 0), (4, 1)]);
    ledger.submitted(session(1), 0, "tx:1").unwrap();
    ledger.submitted(session(1), 0, "tx:again").unwrap();
    ledger.closed(session(2), 0).unwrap();
    ledger.epoch_opened(opened(3, 1)).unwrap();
    assert_eq!(epochs(&ledger), [(4, 1)]);
    ledger.flush().unwrap();
    drop(ledger);
    let (ledger, recovery) = open(&disk);
    assert_eq!(recovery.terminated.len(), 1);
    assert_eq!(epochs(&ledger), [(3, 1), (4, 1)]);
    assert_eq!(ledger.work().unverified, 3);
    assert_eq!(ledger.work().billable_tokens, 16);
}

#[test]
fn a_closed_session_is_remembered_for_its_time_and_then_forgotten() {
    let disk = MemoryDisk::new();
    let config = LedgerConfig { sessions_max: 1, ..LedgerConfig::default() };
    let (mut ledger, _) = try_open(&disk, config).unwrap();
    ledger.epoch_opened(opened(1, 0)).unwrap();
    ledger.terminal(ended(1, 0, None, 8)).unwrap();
    ledger.flush().unwrap();
    ledger.closed(session(1), 1000).unwrap();
    // Nothing is forgotten to make room.
    assert!(matches!(ledger.epoch_opened(opened(2, 0)), Err(LedgerError::Full { sessions: 1, .. })));
    assert!(matches!(ledger.terminal(ended(2, 0, None, 1)), Err(LedgerError::Full { .. })));
    assert_eq!(ledger.retire(600_999).unwrap(), Retired::default());
    // Due, but its end is not durable yet.
    assert_eq!(ledger.retire(601_000).unwrap().sessions, 0);
    assert!(ledger.needs_sync());
    ledger.flush().unwrap();
    assert_eq!(ledger.retire(601_000).unwrap().sessions, 1);
    assert_eq!((ledger.sessions(), ledger.index_bytes()), (0, 0));
    assert_eq!(*ledger.work(), WorkLedger::default());
    ledger.epoch_opened(opened(2, 0)).unwrap();
}

#[test]
fn memory_beyond_the_limit_refuses_new_sessions_and_no_others() {
    let disk = MemoryDisk::new();
    let config = LedgerConfig { index_bytes_max: 2000, ..LedgerConfig::default() };
    let (mut ledger, _) = try_open(&disk, config).unwrap();
    ledger.epoch_opened(opened(1, 0)).unwrap();
    for n in 0..40 {
        run_step(&mut ledger, step(1, 0, n)).unwrap();
    }
    assert!(ledger.index_bytes() >= 2000);
    let full = ledger.epoch_opened(opened(2, 0)).unwrap_err();
    assert_eq!(full.code(), 7);
    ledger.terminal(ended(1, 0, Some(FailureKind::StreamReset), 40)).unwrap();
    ledger.epoch_opened(opened(1, 1)).unwrap();
}

#[test]
fn steps_sync_only_when_power_must_not_take_them() {
    for (durability, per_step) in [(Durability::Process, 1), (Durability::Power, 2)] {
        let disk = MemoryDisk::new();
        let config = LedgerConfig { durability, ..LedgerConfig::default() };
        let (mut ledger, _) = try_open(&disk, config).unwrap();
        for (what, operations) in [("open", 2), ("intent", per_step), ("commit", 1), ("end", 2), ("none", 0)]
        {
            let before = disk.operations();
            match what {
                "open" => ledger.epoch_opened(opened(1, 0)).unwrap(),
                "intent" => assert_eq!(ledger.begin(step(1, 0, 0), fp(0)), Ok(StepDisposition::Fresh)),
                "commit" => ledger.commit(step(1, 0, 0), Some(8), LOGITS).unwrap(),
                "end" => ledger.terminal(ended(1, 0, None, 1)).unwrap(),
                _ => {}
            }
            assert_eq!(disk.operations(), before, "no I/O before the flush");
            ledger.flush().unwrap();
            assert_eq!(disk.operations() - before, operations, "{durability:?} {what}");
        }
    }
}

#[test]
fn a_sync_on_another_thread_counts_once_it_is_reported() {
    let (mut ledger, _) = open(&MemoryDisk::new());
    ledger.epoch_opened(opened(1, 0)).unwrap();
    ledger.terminal(ended(1, 0, None, 8)).unwrap();
    let ticket = ledger.write_pending().unwrap();
    assert!(ledger.needs_sync());
    let sync = ledger.syncer();
    let outcome = std::thread::spawn(move || sync()).join().unwrap();
    // Written while the sync ran: not covered by it.
    ledger.terminal(ended(2, 0, None, 5)).unwrap();
    ledger.write_pending().unwrap();
    ledger.sync_done(ticket, outcome).unwrap();
    assert!(ledger.needs_sync());
    assert_eq!(ledger.work().billable_tokens, 8);
    ledger.flush().unwrap();
    assert!(!ledger.needs_sync());
    assert_eq!(ledger.work().billable_tokens, 13);
}

#[test]
fn after_a_failed_write_or_sync_the_ledger_refuses_everything() {
    // Operation 3 is the write of the batch, 4 its sync.
    for (at, kind, code) in
        [(3, io::ErrorKind::StorageFull, 3), (4, io::ErrorKind::Other, 2), (3, io::ErrorKind::Other, 2)]
    {
        let disk = MemoryDisk::new();
        let (mut ledger, _) = open(&disk);
        ledger.epoch_opened(opened(1, 0)).unwrap();
        ledger.terminal(ended(1, 0, None, 8)).unwrap();
        let at = disk.operations() + at - 3;
        disk.fail_at(at, kind);
        assert_eq!(ledger.flush().unwrap_err().code(), code);
        disk.fail_at(u64::MAX, kind);
        // Also when the disk is well again.
        let stopped = |error: LedgerError| assert_eq!(error.code(), 6, "{error}");
        stopped(ledger.flush().unwrap_err());
        stopped(ledger.epoch_opened(opened(2, 0)).unwrap_err());
        stopped(ledger.terminal(ended(2, 0, None, 1)).unwrap_err());
        stopped(ledger.retire(0).unwrap_err());
        assert!(matches!(
            ledger.begin(step(1, 0, 0), fp(0)),
            Err(BeginError::Ledger(LedgerError::Stopped(_)))
        ));
        assert_eq!(*ledger.work(), WorkLedger::default());
        assert_eq!(ledger.unsubmitted().count(), 0);
    }
}

#[test]
fn a_folder_has_one_owner_and_gives_everything_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::new();
    let config = LedgerConfig { segment_bytes: 400, ..LedgerConfig::default() };
    let store = FileStore::open(folder.path()).unwrap();
    let (mut ledger, recovery) = IdempotencyLedger::open(store, config, &clock).unwrap();
    assert_eq!((recovery.generation, ledger.generation()), (1, 1));
    let refused = FileStore::open(folder.path()).unwrap_err();
    assert_eq!(refused.code(), 1);
    assert!(refused.to_string().contains("in use by another process"), "{refused}");
    ledger.epoch_opened(opened(1, 0)).unwrap();
    ledger.flush().unwrap();
    for n in 0..6 {
        run_step(&mut ledger, step(1, 0, n)).unwrap();
    }
    ledger.delivered(session(1), 5).unwrap();
    ledger.delivered(session(1), 4).unwrap();
    ledger.flush().unwrap();
    drop(ledger);
    let last = folder.path().join(segment_name(2));
    assert!(last.exists() && !folder.path().join(segment_name(3)).exists());
    // A record that was never finished.
    let good = std::fs::read(&last).unwrap();
    std::fs::write(&last, [&good[..], &[57, 0, 0, 0, 1, 2, 3]].concat()).unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let (mut ledger, recovery) = IdempotencyLedger::open(store, config, &clock).unwrap();
    assert_eq!(recovery.generation, 2);
    let cut = Cut { file: segment_name(2), offset: good.len() as u64, bytes: 7 };
    assert_eq!(recovery.cut, Some(cut));
    assert_eq!(recovery.records, 14);
    assert_eq!(ledger.committed_tokens(session(1), 0), [100, 101, 102, 103, 104, 105]);
    let record = ledger.record(key(1, 0)).unwrap();
    assert_eq!(
        (record.status, record.failure_kind),
        (WorkStatus::Unverified, Some(FailureKind::WorkerDeath))
    );
    assert_eq!((record.tokens, record.delivered_tokens, record.uncertain_step), (Some(6), 5, None));
    assert_eq!(record.cause, Some(Cause::Node));
    // Bytes 64 00 00 00 65 00 00 00 … 69 00 00 00, hashed elsewhere.
    assert_eq!(
        hex::encode(record.output_digest),
        "d1cb314ca9b1f93fb807ae949444cb891051d88ffafd41dfb63a927efaf468a4"
    );
    ledger.closed(session(1), 0).unwrap();
    ledger.flush().unwrap();
    ledger.terminal(ended(2, 0, Some(FailureKind::Cancelled), 0)).unwrap();
    ledger.flush().unwrap();
    let retired = ledger.retire(600_000).unwrap();
    assert_eq!(retired.sessions, 1);
    assert!(retired.segments >= 2, "{retired:?}");
    assert!(!folder.path().join(segment_name(0)).exists());
    drop(ledger);
    let store = FileStore::open(folder.path()).unwrap();
    let (ledger, _) = IdempotencyLedger::open(store, config, &clock).unwrap();
    assert_eq!(ledger.unsubmitted().count(), 1);
}

#[test]
fn a_session_that_never_closes_does_not_keep_every_segment() {
    let disk = MemoryDisk::new();
    let config = LedgerConfig { segment_bytes: 4000, retention_ms: 0, ..LedgerConfig::default() };
    let (mut ledger, _) = try_open(&disk, config).unwrap();
    // Stays for ever: two attempts, one delivered token, one step in doubt.
    ledger.epoch_opened(opened(1, 0)).unwrap();
    run_step(&mut ledger, step(1, 0, 0)).unwrap();
    ledger.terminal(ended(1, 0, Some(FailureKind::StreamReset), 1)).unwrap();
    ledger.epoch_opened(opened(1, 1)).unwrap();
    run_step(&mut ledger, step(1, 1, 0)).unwrap();
    ledger.delivered(session(1), 1).unwrap();
    ledger.begin(step(1, 1, 1), fp(1)).unwrap();
    ledger.terminal(ended(1, 1, Some(FailureKind::WorkerDeath), 1)).unwrap();
    ledger.flush().unwrap();
    for round in 0..400_u32 {
        let n = u8::try_from(2 + round % 200).unwrap();
        ledger.epoch_opened(opened(n, 0)).unwrap();
        ledger.flush().unwrap();
        run_step(&mut ledger, step(n, 0, 0)).unwrap();
        ledger.terminal(ended(n, 0, None, 1)).unwrap();
        ledger.submitted(session(n), 0, "tx").unwrap();
        ledger.closed(session(n), 0).unwrap();
        ledger.flush().unwrap();
        ledger.retire(u64::from(round)).unwrap();
        assert!(disk.contents().len() <= 8, "{} segments", disk.contents().len());
    }
    assert_eq!(ledger.sessions(), 1);
    let before = ledger.record(key(1, 1)).cloned();
    drop(ledger);
    assert!(!disk.contents().contains_key(&0));
    disk.crash(Crash::Lose);
    let (mut ledger, recovery) = try_open(&disk, config).unwrap();
    assert_eq!(recovery.terminated, []);
    assert_eq!(ledger.record(key(1, 1)).cloned(), before);
    assert_eq!(ledger.record(key(1, 0)), Some(&ended(1, 0, Some(FailureKind::StreamReset), 1)));
    assert_eq!(ledger.committed_tokens(session(1), 1), [100]);
    assert_eq!(ledger.delivered_count(session(1)), 1);
    assert_eq!(ledger.opened(key(1, 0)), Some(&opened(1, 0)));
    let in_doubt = Err(UncertainMutationError(step(1, 1, 1)).into());
    assert_eq!(ledger.begin(step(1, 1, 1), fp(1)), in_doubt);
    // Those that were closed may be back for a while: their beginnings or their ends are there.
    ledger.flush().unwrap();
    ledger.retire(u64::MAX).unwrap();
    assert_eq!(ledger.sessions(), 1);
}

#[cfg(unix)]
#[test]
fn a_pipe_where_a_file_of_the_ledger_should_be_is_refused_at_once() {
    use rustix::fs::{CWD, Mode, mkfifoat};

    for name in ["lock", "generation", &segment_name(1)] {
        let folder = tempfile::tempdir().unwrap();
        mkfifoat(CWD, folder.path().join(name), Mode::RUSR | Mode::WUSR).unwrap();
        let opened = FileStore::open(folder.path())
            .and_then(|store| IdempotencyLedger::open(store, LedgerConfig::default(), &VirtualClock::new()));
        let Err(error) = opened else { panic!("{name} was opened") };
        let error = error.to_string();
        assert!(error.contains("is no regular file"), "{name}: {error}");
    }
}
