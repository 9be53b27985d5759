use std::collections::BTreeMap;

use super::*;

/// Small segments, so that the history below crosses their borders.
const CONFIG: LedgerConfig = LedgerConfig {
    durability: Durability::Process,
    index_bytes_max: 64 << 20,
    sessions_max: 100,
    retention_ms: 50,
    segment_bytes: 400,
};

/// What a driver did because a flush said it may.
#[derive(Debug, Default, Clone)]
struct Acted {
    opened: Vec<KvKey>,
    /// Steps that shards saw.
    seen: Vec<StepKey>,
    /// Tokens that left.
    tokens: Vec<(StepKey, u32)>,
    /// Records that were counted.
    reported: Vec<WorkRecord>,
    /// Reports that were taken.
    submitted: Vec<KvKey>,
    /// The first session may be forgotten.
    retired: bool,
    /// Segments removed.
    removed: usize,
}

fn steps(
    ledger: &mut IdempotencyLedger,
    acted: &mut Acted,
    n: u8,
    epoch: u32,
    count: u32,
) -> Result<(), LedgerError> {
    ledger.epoch_opened(opened(n, epoch))?;
    ledger.flush()?;
    acted.opened.push(key(n, epoch));
    for number in 0..count {
        let step = step(n, epoch, number);
        match ledger.begin(step, fp(number)) {
            Ok(StepDisposition::Fresh) => {}
            Err(BeginError::Ledger(error)) => return Err(error),
            other => panic!("{other:?}"),
        }
        ledger.flush()?;
        acted.seen.push(step);
        ledger.commit(step, Some(100 + number), LOGITS)?;
        ledger.flush()?;
        acted.tokens.push((step, 100 + number));
        ledger.delivered(session(n), number + 1)?;
    }
    Ok(())
}

fn end(ledger: &mut IdempotencyLedger, acted: &mut Acted, record: WorkRecord) -> Result<(), LedgerError> {
    ledger.terminal(record.clone())?;
    ledger.flush()?;
    acted.reported.push(record);
    Ok(())
}

/// Two sessions: one completes, is submitted, closed and forgotten; one fails in doubt and completes in its next
/// epoch.
fn history(disk: &MemoryDisk, acted: &mut Acted) -> Result<(), LedgerError> {
    let (mut ledger, _) = try_open(disk, CONFIG)?;
    steps(&mut ledger, acted, 1, 0, 3)?;
    steps(&mut ledger, acted, 2, 0, 1)?;
    ledger.begin(step(2, 0, 1), fp(1)).map_err(|_| LedgerError::NotOpened)?;
    ledger.flush()?;
    acted.seen.push(step(2, 0, 1));
    end(&mut ledger, acted, ended(1, 0, None, 3))?;
    let mut failed = ended(2, 0, Some(FailureKind::WorkerDeath), 1);
    failed.uncertain_step = Some(1);
    end(&mut ledger, acted, failed)?;
    ledger.submitted(session(1), 0, "tx:1")?;
    ledger.flush()?;
    acted.submitted.push(key(1, 0));
    ledger.closed(session(1), 0)?;
    steps(&mut ledger, acted, 2, 1, 3)?;
    end(&mut ledger, acted, ended(2, 1, None, 3))?;
    acted.retired = true;
    acted.removed = ledger.retire(50)?.segments;
    ledger.submitted(session(2), 1, "tx:2")?;
    ledger.flush()?;
    acted.submitted.push(key(2, 1));
    Ok(())
}

/// Opens what a crash left and holds it against what was done before.
fn check(disk: &MemoryDisk, acted: &Acted) {
    let (mut ledger, recovery) = try_open(disk, CONFIG).expect("a crash is no corruption");
    let mut terminals: BTreeMap<KvKey, u32> = BTreeMap::new();
    let mut begun = Vec::new();
    for record in records(disk) {
        match record {
            Record::Terminal(record) => *terminals.entry(record.key).or_default() += 1,
            Record::EpochOpened(opened) => begun.push(opened.key),
            _ => {}
        }
    }
    for key in &begun {
        assert_eq!(terminals.get(key), Some(&1), "{key:?} has one record");
    }
    for key in acted.opened.iter().filter(|key| !(acted.retired && key.session == session(1))) {
        assert_eq!(terminals.get(key), Some(&1), "{key:?} was opened and has one record");
    }
    let mut billable = 0;
    for record in &acted.reported {
        // Only a session that is over may be forgotten.
        match ledger.record(record.key) {
            Some(recorded) => {
                assert_eq!(recorded, record);
                billable += if record.billable() { u64::from(record.tokens.unwrap_or(0)) } else { 0 };
            }
            None => assert!(acted.retired && record.key.session == session(1)),
        }
    }
    assert!(recovery.terminated.iter().all(|record| !record.billable()));
    // More only if a record was written whose flush did not return.
    let later: Vec<u64> = [key(1, 0), key(2, 1)]
        .iter()
        .filter(|key| !acted.reported.iter().any(|record| record.key == **key))
        .filter_map(|key| ledger.record(*key))
        .filter(|record| record.billable())
        .map(|record| u64::from(record.tokens.unwrap_or(0)))
        .collect();
    assert_eq!(ledger.work().billable_tokens, billable + later.iter().sum::<u64>());
    for key in &acted.submitted {
        assert!(ledger.unsubmitted().all(|record| record.key != *key), "{key:?} is not reported again");
    }
    for seen in &acted.seen {
        match ledger.begin(*seen, fp(seen.step)) {
            Ok(StepDisposition::Fresh) => panic!("{seen:?} would run twice"),
            Ok(StepDisposition::Replay { token, .. }) => assert_eq!(token, Some(100 + seen.step)),
            _ => {}
        }
    }
}

#[test]
fn a_crash_at_any_write_or_sync_replays_nothing_and_bills_once() {
    let clean = MemoryDisk::new();
    let mut acted = Acted::default();
    history(&clean, &mut acted).unwrap();
    assert!(acted.removed > 0, "the history removes a segment");
    assert_eq!(acted.reported.len(), 3);
    check(&clean.copy(), &acted);
    let total = clean.operations();
    assert!(total > 40);
    for at in 0..total {
        let disk = MemoryDisk::new();
        disk.fail_at(at, io::ErrorKind::Other);
        let mut acted = Acted::default();
        history(&disk, &mut acted).unwrap_err();
        let tears = (0..=disk.unsynced()).step_by(5).map(Crash::Tear);
        for how in tears.chain([Crash::Lose, Crash::Keep]) {
            let after = disk.copy();
            after.crash(how);
            check(&after, &acted);
            // Opened again, nothing changes.
            check(&after, &acted);
        }
        // Killed processes keep their pages: what left is known.
        let after = disk.copy();
        after.crash(Crash::Keep);
        let (ledger, _) = try_open(&after, CONFIG).unwrap();
        for (step, token) in &acted.tokens {
            let tokens = ledger.committed_tokens(step.session, step.epoch);
            if !(acted.retired && step.session == session(1)) {
                assert_eq!(tokens.get(step.step as usize), Some(token), "at {at}: {step:?}");
            }
        }
    }
}

#[test]
fn a_crash_while_it_recovers_from_a_crash_is_harmless() {
    let total = {
        let disk = MemoryDisk::new();
        history(&disk, &mut Acted::default()).unwrap();
        disk.operations()
    };
    for at in (0..total).step_by(3) {
        let disk = MemoryDisk::new();
        disk.fail_at(at, io::ErrorKind::Other);
        let mut acted = Acted::default();
        history(&disk, &mut acted).unwrap_err();
        disk.crash(Crash::Keep);
        for again in 0.. {
            let after = disk.copy();
            after.fail_at(again, io::ErrorKind::Other);
            let failed = try_open(&after, CONFIG).is_err();
            for how in [Crash::Lose, Crash::Keep, Crash::Tear(30)] {
                let after = after.copy();
                after.crash(how);
                check(&after, &acted);
            }
            if !failed {
                break;
            }
        }
    }
}

#[test]
fn a_crash_while_sessions_are_copied_out_of_old_segments_loses_none() {
    let config = LedgerConfig { segment_bytes: 1000, retention_ms: 0, ..CONFIG };
    let run = |disk: &MemoryDisk, there: &mut bool, moved: &mut usize| -> Result<(), LedgerError> {
        let (mut ledger, _) = try_open(disk, config)?;
        ledger.epoch_opened(opened(1, 0))?;
        ledger.terminal(ended(1, 0, Some(FailureKind::StreamReset), 1))?;
        ledger.epoch_opened(opened(1, 1))?;
        ledger.flush()?;
        run_step(&mut ledger, step(1, 1, 0))?;
        ledger.terminal(ended(1, 1, None, 1))?;
        ledger.flush()?;
        *there = true;
        for n in 2..52 {
            ledger.epoch_opened(opened(n, 0))?;
            run_step(&mut ledger, step(n, 0, 0))?;
            ledger.terminal(ended(n, 0, None, 1))?;
            ledger.closed(session(n), 0)?;
            ledger.flush()?;
            *moved += ledger.retire(0)?.moved;
        }
        Ok(())
    };
    let clean = MemoryDisk::new();
    let (mut there, mut moved) = (false, 0);
    run(&clean, &mut there, &mut moved).unwrap();
    assert!(moved > 1);
    for at in 0..clean.operations() {
        let disk = MemoryDisk::new();
        disk.fail_at(at, io::ErrorKind::Other);
        let mut there = false;
        run(&disk, &mut there, &mut 0).unwrap_err();
        for how in [Crash::Lose, Crash::Keep, Crash::Tear(200), Crash::Tear(400)] {
            let after = disk.copy();
            after.crash(how);
            let (mut ledger, _) = try_open(&after, config).unwrap();
            ledger.flush().unwrap();
            // Those that are over go, wherever their records begin.
            ledger.retire(0).unwrap();
            assert!(ledger.sessions() <= 2, "at {at}: {} sessions", ledger.sessions());
            if there {
                let replay = StepDisposition::Replay { token: Some(100), logits_digest: LOGITS };
                assert_eq!(ledger.begin(step(1, 1, 0), fp(0)), Ok(replay), "at {at}, {how:?}");
                assert_eq!(ledger.record(key(1, 1)), Some(&ended(1, 1, None, 1)));
                assert_eq!(ledger.record(key(1, 0)), Some(&ended(1, 0, Some(FailureKind::StreamReset), 1)));
                assert!(ledger.unsubmitted().any(|record| record.key == key(1, 1)));
            }
        }
    }
}

#[test]
fn power_durability_knows_every_step_that_a_shard_saw() {
    let config = LedgerConfig { durability: Durability::Power, ..CONFIG };
    for at in 0..40 {
        let disk = MemoryDisk::new();
        disk.fail_at(at, io::ErrorKind::Other);
        let mut seen = None;
        let mut run = || -> Result<(), LedgerError> {
            let (mut ledger, _) = try_open(&disk, config)?;
            ledger.epoch_opened(opened(1, 0))?;
            ledger.flush()?;
            for number in 0..20 {
                match ledger.begin(step(1, 0, number), fp(number)) {
                    Err(BeginError::Ledger(error)) => return Err(error),
                    other => assert_eq!(other, Ok(StepDisposition::Fresh)),
                }
                ledger.flush()?;
                seen = Some(number);
                ledger.commit(step(1, 0, number), Some(number), LOGITS)?;
                ledger.flush()?;
            }
            Ok(())
        };
        run().unwrap_err();
        disk.crash(Crash::Lose);
        let (mut ledger, _) = try_open(&disk, config).unwrap();
        if let Some(number) = seen {
            let found = ledger.begin(step(1, 0, number), fp(number));
            let known = matches!(found, Err(BeginError::Uncertain(_)) | Ok(StepDisposition::Replay { .. }));
            assert!(known, "at {at}: {found:?}");
        }
    }
}

#[test]
fn a_changed_byte_is_corruption_in_an_old_segment_and_a_cut_in_the_last() {
    let disk = MemoryDisk::new();
    let config = LedgerConfig { segment_bytes: 700, ..CONFIG };
    let (mut ledger, _) = try_open(&disk, config).unwrap();
    ledger.epoch_opened(opened(1, 0)).unwrap();
    ledger.flush().unwrap();
    for n in 0..9 {
        run_step(&mut ledger, step(1, 0, n)).unwrap();
    }
    drop(ledger);
    let contents = disk.contents();
    let last = *contents.keys().next_back().unwrap();
    assert_eq!(last, 2);
    for (segment, good) in &contents {
        for at in 0..good.len() {
            let copy = disk.copy();
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            copy.overwrite(*segment, bad);
            let outcome = try_open(&copy, CONFIG);
            if *segment < last || at < HEADER_BYTES {
                match outcome.map(|_| ()).unwrap_err() {
                    LedgerError::Corrupt { file, offset, .. } => {
                        assert_eq!(file, segment_name(*segment));
                        let offset = usize::try_from(offset).unwrap();
                        assert!(offset <= at && at < offset + 150, "{offset} for {at}");
                    }
                    other => panic!("segment {segment}, byte {at}: {other}"),
                }
            } else {
                let (_, recovery) = outcome.unwrap();
                let cut = recovery.cut.unwrap();
                assert!(cut.offset <= at as u64 && cut.offset + cut.bytes == good.len() as u64);
            }
        }
    }
    // Cut short, an old segment is corrupt at its end; one that is missing is named.
    let copy = disk.copy();
    copy.overwrite(0, contents[&0][..contents[&0].len() - 1].to_vec());
    assert!(matches!(try_open(&copy, CONFIG), Err(LedgerError::Corrupt { .. })));
    let folder = tempfile::tempdir().unwrap();
    for segment in [0, 2] {
        std::fs::write(folder.path().join(segment_name(segment)), &contents[&segment]).unwrap();
    }
    let store = FileStore::open(folder.path()).unwrap();
    let missing = IdempotencyLedger::open(store, CONFIG, &VirtualClock::new()).unwrap_err();
    assert!(missing.to_string().starts_with("LedgerCorrupt: ledger-0000000000000001.log"), "{missing}");
}

#[test]
fn a_segment_numbered_beyond_all_that_were_ever_given_is_corruption() {
    for number in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let disk = MemoryDisk::new();
        disk.overwrite(number, Vec::new());
        let refused = try_open(&disk, LedgerConfig::default());
        assert!(matches!(refused, Err(LedgerError::Corrupt { .. })), "{number}: {refused:?}");
    }
}

#[test]
fn damage_in_the_last_segment_that_no_crash_explains_is_corruption() {
    let disk = MemoryDisk::new();
    let (mut ledger, _) = open(&disk);
    let mut ends = Vec::new();
    ledger.epoch_opened(opened(1, 0)).unwrap();
    ledger.flush().unwrap();
    ends.push(disk.contents()[&0].len());
    run_step(&mut ledger, step(1, 0, 0)).unwrap();
    ledger.terminal(ended(1, 0, None, 1)).unwrap();
    ledger.flush().unwrap();
    ends.push(disk.contents()[&0].len());
    ledger.submitted(session(1), 0, "tx").unwrap();
    ledger.flush().unwrap();
    ends.push(disk.contents()[&0].len());
    ledger.epoch_opened(opened(2, 0)).unwrap();
    ledger.flush().unwrap();
    ends.push(disk.contents()[&0].len());
    run_step(&mut ledger, step(2, 0, 0)).unwrap();
    drop(ledger);
    let good = disk.contents()[&0].clone();
    // The second session's steps prove that its opening was durable, and everything before it.
    for at in HEADER_BYTES..good.len() {
        let copy = disk.copy();
        let mut bad = good.clone();
        bad[at] ^= 1;
        copy.overwrite(0, bad);
        match try_open(&copy, LedgerConfig::default()) {
            Err(LedgerError::Corrupt { offset, what, .. }) => {
                assert!(at < ends[3] && offset <= at as u64, "byte {at}: {what}");
            }
            other => assert!(at >= ends[3], "byte {at}: {other:?}"),
        }
    }
    // Without them: the report proves that the end was durable, and nothing proves that the report was.
    for (at, corrupt) in [(ends[0] - 1, true), (ends[1] - 1, true), (ends[2] - 1, false)] {
        let copy = disk.copy();
        let mut bad = good[..ends[2]].to_vec();
        bad[at] ^= 1;
        copy.overwrite(0, bad);
        assert_eq!(try_open(&copy, LedgerConfig::default()).is_err(), corrupt, "byte {at}");
    }
}

#[test]
fn another_version_is_refused_and_left_alone() {
    let disk = MemoryDisk::new();
    let mut header = Header { segment: 0, generation: 1 }.encode();
    header[8] = 2;
    let crc = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    disk.overwrite(0, header.to_vec());
    let refused = try_open(&disk, CONFIG).unwrap_err();
    assert_eq!(refused, LedgerError::UnknownVersion { file: segment_name(0), version: 2 });
    assert_eq!(disk.contents()[&0], header);
}

#[test]
fn whole_records_that_no_history_explains_are_corruption() {
    let open = || Record::EpochOpened(Box::new(opened(1, 0)));
    let at = step(1, 0, 0);
    let intent = |content| Record::StepIntent { key: at, fingerprint: fp(content) };
    let result = |token| Record::StepCommitted { key: at, token: Some(token), logits_digest: LOGITS };
    let doubt = || Record::StepUncertain { key: at };
    let answer = |committed| Record::StepResolved { key: at, committed };
    let end = |tokens| Record::Terminal(Box::new(ended(1, 0, None, tokens)));
    let report = |reference: &str| Record::Submitted { key: at.kv(), reference: reference.to_owned() };
    let mut other = opened(1, 0);
    other.prompt_tokens = 5;
    let histories = [
        vec![intent(0)],
        vec![open(), Record::EpochOpened(Box::new(other))],
        vec![open(), Record::StepIntent { key: step(1, 0, 1), fingerprint: fp(1) }],
        vec![open(), Record::StepIntent { key: step(1, 1, 0), fingerprint: fp(1) }],
        vec![open(), intent(0), intent(1)],
        vec![open(), result(1)],
        vec![open(), intent(0), result(1), result(2)],
        vec![open(), intent(0), result(1), doubt()],
        vec![open(), intent(0), doubt(), result(1)],
        vec![open(), intent(0), doubt(), answer(false), result(1)],
        vec![open(), intent(0), answer(true)],
        vec![open(), doubt()],
        vec![Record::Delivered { session: session(1), count: 1 }],
        vec![open(), end(1), end(2)],
        vec![open(), report("a")],
        vec![open(), end(1), report("a"), report("b")],
        vec![Record::Closed { session: session(1) }],
    ];
    for history in histories {
        let disk = MemoryDisk::new();
        let mut bytes = Header { segment: 0, generation: 1 }.encode().to_vec();
        let mut last = 0;
        for record in &history {
            last = bytes.len() as u64;
            record.encode(&mut bytes);
        }
        disk.overwrite(0, bytes.clone());
        match try_open(&disk, CONFIG) {
            Err(LedgerError::Corrupt { file, offset, .. }) => {
                assert_eq!((file, offset), (segment_name(0), last), "{history:?}");
            }
            other => panic!("{history:?}: {other:?}"),
        }
        assert_eq!(disk.contents()[&0], bytes, "what is refused is left alone");
    }
}
