//! Random operations, flushes and crashes against maps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    Open { n: u8, epoch: u32 },
    Begin { n: u8, epoch: u32, step: u32, content: u32 },
    Commit { n: u8, epoch: u32, step: u32 },
    Doubt { n: u8, epoch: u32, step: u32 },
    Resolve { n: u8, epoch: u32, step: u32, ran: bool },
    Delivered { n: u8, count: u32 },
    End { n: u8, epoch: u32, completed: bool },
    Submit { n: u8, epoch: u32 },
    Close { n: u8 },
    Flush,
    Crash(Crash),
}

fn op() -> impl Strategy<Value = Op> {
    let (n, epoch, step) = (1..3_u8, 0..3_u32, 0..4_u32);
    let at = (n.clone(), epoch.clone(), step);
    let crash = prop_oneof![Just(Crash::Lose), Just(Crash::Keep), (0..300_usize).prop_map(Crash::Tear)];
    prop_oneof![
        4 => (n.clone(), epoch.clone()).prop_map(|(n, epoch)| Op::Open { n, epoch }),
        8 => (at.clone(), 0..8_u32).prop_map(|((n, epoch, step), odd)| {
            Op::Begin { n, epoch, step, content: if odd == 0 { 99 } else { step } }
        }),
        6 => at.clone().prop_map(|(n, epoch, step)| Op::Commit { n, epoch, step }),
        2 => at.clone().prop_map(|(n, epoch, step)| Op::Doubt { n, epoch, step }),
        2 => (at, any::<bool>()).prop_map(|((n, epoch, step), ran)| Op::Resolve { n, epoch, step, ran }),
        1 => (n.clone(), 0..9_u32).prop_map(|(n, count)| Op::Delivered { n, count }),
        3 => (n.clone(), epoch.clone(), any::<bool>())
            .prop_map(|(n, epoch, completed)| Op::End { n, epoch, completed }),
        1 => (n.clone(), epoch).prop_map(|(n, epoch)| Op::Submit { n, epoch }),
        1 => (0..8_u8, n).prop_filter_map("seldom", |(odd, n)| (odd == 0).then_some(Op::Close { n })),
        5 => Just(Op::Flush),
        2 => crash.prop_map(Op::Crash),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Open,
    Doubt,
    NotRun,
    Done,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Attempt {
    opened: bool,
    /// Status, uncertain step.
    ended: Option<(WorkStatus, Option<u32>)>,
    submitted: bool,
    tokens: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Entry {
    attempts: BTreeMap<u32, Attempt>,
    /// Content and mark, of the last attempt.
    steps: Vec<(u32, Mark)>,
    delivered: u32,
    closed: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Model(BTreeMap<u8, Entry>);

const OK: &str = "ok";

impl Entry {
    fn last(&self) -> u32 {
        *self.attempts.keys().next_back().unwrap()
    }

    fn last_ended(&self) -> bool {
        self.attempts[&self.last()].ended.is_some()
    }
}

impl Model {
    /// The mark of a step that a live attempt has.
    fn live(&mut self, n: u8, epoch: u32, step: u32) -> Result<&mut (u32, Mark), &'static str> {
        let entry = self.0.get_mut(&n).ok_or("not opened")?;
        let last = entry.last();
        if entry.closed {
            return Err("closed");
        }
        if epoch != last {
            return Err(if epoch < last { "stale" } else { "not opened" });
        }
        if entry.last_ended() {
            return Err("wrong step");
        }
        entry.steps.get_mut(step as usize).ok_or("wrong step")
    }

    fn token(&mut self, n: u8, epoch: u32, step: u32) {
        self.0.get_mut(&n).unwrap().attempts.get_mut(&epoch).unwrap().tokens.push(100 + step);
    }

    fn apply(&mut self, op: &Op) -> Result<&'static str, &'static str> {
        match *op {
            Op::Open { n, epoch } => {
                if let Some(entry) = self.0.get(&n) {
                    if entry.closed {
                        return Err("closed");
                    }
                    if epoch <= entry.last() {
                        return Err("stale");
                    }
                    if !entry.last_ended() {
                        return Err("unfinished");
                    }
                }
                let entry = self.0.entry(n).or_default();
                entry.steps.clear();
                entry.attempts.insert(epoch, Attempt { opened: true, ..Attempt::default() });
            }
            Op::Begin { n, epoch, step, content } => {
                let entry = self.0.get_mut(&n).ok_or("not opened")?;
                let last = entry.last();
                if entry.closed {
                    return Ok("closed");
                }
                if epoch < last {
                    return Ok("stale");
                }
                if epoch > last {
                    return Err("not opened");
                }
                let ended = entry.last_ended();
                let all_done = entry.steps.iter().all(|step| step.1 == Mark::Done);
                let next = entry.steps.len();
                match entry.steps.get_mut(step as usize) {
                    Some((have, Mark::Done)) => {
                        return Ok(if *have == content { "replay" } else { "conflict" });
                    }
                    Some((_, Mark::Open | Mark::Doubt)) => return Err("uncertain"),
                    _ if ended => return Err("terminated"),
                    Some(slot) => *slot = (content, Mark::Open),
                    None if all_done && step as usize == next => entry.steps.push((content, Mark::Open)),
                    None => return Err("out of order"),
                }
                return Ok("fresh");
            }
            Op::Commit { n, epoch, step } => {
                let slot = self.live(n, epoch, step)?;
                if slot.1 != Mark::Open {
                    return Err("wrong step");
                }
                slot.1 = Mark::Done;
                self.token(n, epoch, step);
            }
            Op::Doubt { n, epoch, step } => match self.live(n, epoch, step)? {
                (_, mark @ (Mark::Open | Mark::Doubt)) => *mark = Mark::Doubt,
                _ => return Err("wrong step"),
            },
            Op::Resolve { n, epoch, step, ran } => {
                match self.live(n, epoch, step)? {
                    (_, mark @ Mark::Doubt) => *mark = if ran { Mark::Done } else { Mark::NotRun },
                    _ => return Err("wrong step"),
                }
                if ran {
                    self.token(n, epoch, step);
                }
            }
            Op::Delivered { n, count } => {
                let entry = self.0.get_mut(&n).ok_or("not opened")?;
                if entry.closed {
                    return Err("closed");
                }
                entry.delivered = entry.delivered.max(count);
            }
            Op::End { n, epoch, completed } => {
                let mut doubt = None;
                if let Some(entry) = self.0.get_mut(&n) {
                    if entry.attempts.get(&epoch).is_some_and(|attempt| attempt.ended.is_some()) {
                        return Err("duplicate");
                    }
                    if entry.closed {
                        return Err("closed");
                    }
                    if epoch > entry.last() && !entry.last_ended() {
                        return Err("unfinished");
                    }
                    if epoch == entry.last()
                        && let Some(open) = entry.steps.iter().position(|step| step.1 == Mark::Open)
                    {
                        if completed {
                            return Err("invalid");
                        }
                        entry.steps[open].1 = Mark::Doubt;
                        doubt = u32::try_from(open).ok();
                    }
                    if epoch > entry.last() {
                        entry.steps.clear();
                    }
                }
                let status = if completed { WorkStatus::Completed } else { WorkStatus::Failed };
                self.0.entry(n).or_default().attempts.entry(epoch).or_default().ended = Some((status, doubt));
            }
            Op::Submit { n, epoch } => {
                let entry = self.0.get_mut(&n).ok_or("not opened")?;
                let closed = entry.closed;
                let attempt = entry.attempts.get_mut(&epoch).ok_or("not opened")?;
                if !attempt.submitted && closed {
                    return Err("closed");
                }
                if attempt.ended.is_none() {
                    return Err("unfinished");
                }
                attempt.submitted = true;
            }
            Op::Close { n } => {
                let entry = self.0.get_mut(&n).ok_or("not opened")?;
                if !entry.last_ended() {
                    return Err("unfinished");
                }
                entry.closed = true;
            }
            Op::Flush | Op::Crash(_) => {}
        }
        Ok(OK)
    }

    /// After a start.
    fn recovered(mut self) -> Self {
        for entry in self.0.values_mut() {
            let last = entry.last();
            for (epoch, attempt) in &mut entry.attempts {
                if attempt.ended.is_some() {
                    continue;
                }
                let open = entry.steps.iter().position(|step| matches!(step.1, Mark::Open | Mark::Doubt));
                let doubt = open.filter(|_| *epoch == last);
                if let Some(open) = doubt {
                    entry.steps[open].1 = Mark::Doubt;
                }
                attempt.ended = Some((WorkStatus::Unverified, doubt.and_then(|step| step.try_into().ok())));
            }
        }
        self
    }

    /// Everything a caller can ask.
    fn matches(&self, ledger: &mut IdempotencyLedger) -> Result<(), String> {
        let mut unsubmitted = Vec::new();
        for n in 1..3 {
            let Some(entry) = self.0.get(&n) else {
                if ledger.last_epoch(session(n)).is_some() {
                    return Err(format!("session {n} is known"));
                }
                continue;
            };
            if ledger.last_epoch(session(n)) != Some(entry.last()) {
                return Err(format!("last epoch of {n}"));
            }
            if ledger.delivered_count(session(n)) != entry.delivered {
                return Err(format!("delivered of {n}"));
            }
            for (epoch, attempt) in &entry.attempts {
                let record = ledger.record(key(n, *epoch));
                let found = record.map(|record| (record.status, record.uncertain_step));
                if found != attempt.ended {
                    return Err(format!("{n}/{epoch} ended as {found:?}, not {:?}", attempt.ended));
                }
                if ledger.committed_tokens(session(n), *epoch) != attempt.tokens {
                    return Err(format!("tokens of {n}/{epoch}"));
                }
                if ledger.opened(key(n, *epoch)).is_some() != attempt.opened {
                    return Err(format!("opening of {n}/{epoch}"));
                }
            }
            let last = &entry.attempts[&entry.last()];
            if last.ended.is_some() && !last.submitted && !entry.closed {
                unsubmitted.push(key(n, entry.last()));
            }
            if entry.closed != (ledger.begin(step(n, entry.last(), 0), fp(0)) == Ok(StepDisposition::Closed))
            {
                return Err(format!("closing of {n}"));
            }
        }
        let found: Vec<KvKey> = ledger.unsubmitted().map(|record| record.key).collect();
        if found != unsubmitted {
            return Err(format!("{found:?} is to be submitted, not {unsubmitted:?}"));
        }
        let completed = self.0.values().flat_map(|entry| entry.attempts.values());
        let completed = completed.filter(|attempt| matches!(attempt.ended, Some((WorkStatus::Completed, _))));
        if ledger.work().completed != completed.count() as u64 {
            return Err("counts".to_owned());
        }
        Ok(())
    }
}

fn said(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::NotOpened => "not opened",
        LedgerError::Closed => "closed",
        LedgerError::StaleEpoch { .. } => "stale",
        LedgerError::Unfinished { .. } => "unfinished",
        LedgerError::WrongStep(_) => "wrong step",
        LedgerError::DuplicateTerminal(_) => "duplicate",
        LedgerError::Invalid(_) => "invalid",
        _ => "another error",
    }
}

fn apply(ledger: &mut IdempotencyLedger, op: &Op) -> Result<&'static str, &'static str> {
    let token = |step: u32| Some(100 + step);
    let outcome = match *op {
        Op::Open { n, epoch } => ledger.epoch_opened(opened(n, epoch)),
        Op::Begin { n, epoch, step: number, content } => {
            return match ledger.begin(step(n, epoch, number), fp(content)) {
                Ok(StepDisposition::Fresh) => Ok("fresh"),
                Ok(StepDisposition::Replay { token, .. }) if token == Some(100 + number) => Ok("replay"),
                Ok(StepDisposition::Replay { .. }) => Err("another token"),
                Ok(StepDisposition::Conflict) => Ok("conflict"),
                Ok(StepDisposition::StaleEpoch { .. }) => Ok("stale"),
                Ok(StepDisposition::Closed) => Ok("closed"),
                Err(BeginError::Uncertain(_)) => Err("uncertain"),
                Err(BeginError::Terminated) => Err("terminated"),
                Err(BeginError::OutOfOrder { .. }) => Err("out of order"),
                Err(BeginError::Ledger(error)) => Err(said(&error)),
            };
        }
        Op::Commit { n, epoch, step: number } => ledger.commit(step(n, epoch, number), token(number), LOGITS),
        Op::Doubt { n, epoch, step: number } => ledger.mark_uncertain(step(n, epoch, number)),
        Op::Resolve { n, epoch, step: number, ran } => {
            let ran = Resolution::Ran { token: token(number), logits_digest: LOGITS }.only_if(ran);
            ledger.resolve(step(n, epoch, number), ran)
        }
        Op::Delivered { n, count } => ledger.delivered(session(n), count),
        Op::End { n, epoch, completed } => {
            let kind = (!completed).then_some(FailureKind::StreamReset);
            ledger.terminal(ended(n, epoch, kind, 2))
        }
        Op::Submit { n, epoch } => ledger.submitted(session(n), epoch, "tx"),
        Op::Close { n } => ledger.closed(session(n), 0),
        Op::Flush | Op::Crash(_) => ledger.flush(),
    };
    outcome.map(|()| OK).map_err(|error| said(&error))
}

impl Resolution {
    fn only_if(self, ran: bool) -> Self {
        if ran { self } else { Self::NotRun }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_history_with_any_crash_is_what_the_maps_say(ops in proptest::collection::vec(op(), 1..80)) {
        // Borders of segments come by often, removal does not: sessions are few and remembered.
        let config = LedgerConfig { segment_bytes: 500, ..LedgerConfig::default() };
        let disk = MemoryDisk::new();
        let (mut ledger, _) = try_open(&disk, config).unwrap();
        let mut now = Model::default();
        // After each operation since the last one that is durable, and how many of them are written.
        let mut since = vec![now.clone()];
        let mut written = 1;
        for op in &ops {
            match op {
                Op::Flush => {
                    let synced_before = disk.unsynced();
                    ledger.flush().unwrap();
                    written = since.len();
                    if disk.unsynced() == 0 && (synced_before > 0 || written > 1) {
                        since = vec![now.clone()];
                        written = 1;
                    }
                }
                Op::Crash(how) => {
                    drop(ledger);
                    disk.crash(*how);
                    let (again, _) = try_open(&disk, config).unwrap();
                    ledger = again;
                    let candidates = match how {
                        Crash::Keep => &since[written - 1..written],
                        Crash::Lose | Crash::Tear(_) => &since[..written],
                    };
                    let found = candidates.iter().rev().map(|model| model.clone().recovered()).find(|model| {
                        model.matches(&mut ledger).is_ok()
                    });
                    let why = candidates[candidates.len() - 1].clone().recovered().matches(&mut ledger);
                    prop_assert!(found.is_some(), "after {:?}: {:?}", how, why);
                    now = found.unwrap();
                    since = vec![now.clone()];
                    written = 1;
                }
                op => {
                    let expected = now.apply(op);
                    prop_assert_eq!(apply(&mut ledger, op), expected, "{:?}", op);
                    since.push(now.clone());
                }
            }
        }
        ledger.flush().unwrap();
        // Makes what is not durable yet count.
        let ticket = ledger.write_pending().unwrap();
        let outcome = ledger.syncer()();
        ledger.sync_done(ticket, outcome).unwrap();
        let same = now.matches(&mut ledger);
        prop_assert!(same.is_ok(), "{:?}", same);
    }
}
