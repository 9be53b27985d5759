//! Counts a run, block by block.

use super::*;

/// Counts a run for its [`Report`]. Between two calls of [`Recorder::end_block`] lies one block, and the order of
/// the other calls inside it does not matter.
#[derive(Debug)]
pub struct Recorder {
    info: RunInfo,
    executors: Vec<ExecutorReport>,
    miss_steps: Vec<Steps<u64>>,
    points: Steps<Point>,
    requests: RequestCounts,
    draws: DrawCounts,
    tx: TxCounts,
    transitions: Vec<Transition>,
    transitions_omitted: u64,
    invariant_checks: u64,
    blocks: u64,
    finalize_us: Vec<u32>,
    commit_us: Vec<u32>,
    /// Entries that are not Healthy.
    states: BTreeMap<(usize, String), State>,
    /// Epoch of the block.
    epoch: u64,
    /// Consecutive misses of each (executor, epoch, model), if any.
    streaks: BTreeMap<(usize, u64, String), u64>,
    /// Finished and missed of each (executor, epoch, model) in this block.
    tallies: BTreeMap<(usize, u64, String), (u64, u64)>,
    now: Point,
    states_changed: bool,
}

impl Recorder {
    /// Begins a run over `executors`, each with its address, in the order of `--executors`.
    ///
    /// Fails as [`Profile::resolve`](crate::devnet::executors::Profile::resolve) does.
    pub fn new(info: RunInfo, executors: &[(String, ExecutorSpec)]) -> Result<Self, SpecError> {
        let run_blocks = info.run_blocks;
        let executors = executors
            .iter()
            .map(|(address, spec)| {
                let profile = spec.profile.resolve(run_blocks)?;
                Ok(ExecutorReport {
                    address: address.clone(),
                    profile: spec.profile.to_string(),
                    models: spec.models.clone(),
                    weight: spec.weight,
                    assigned: 0,
                    finished: 0,
                    missed: 0,
                    exclusions: 0,
                    probes_passed: 0,
                    probes_failed: 0,
                    blocks_excluded: 0,
                    state: State::Healthy,
                    first_fault_height: profile.first_fault_block(run_blocks),
                    fifth_consecutive_miss_height: None,
                    first_exclusion_height: None,
                    misses_before_first_exclusion: None,
                    fault_spans: profile.fault_spans(run_blocks, MAX_FAULT_SPANS),
                    misses_at: Vec::new(),
                })
            })
            .collect::<Result<Vec<_>, SpecError>>()?;
        Ok(Recorder {
            miss_steps: executors.iter().map(|_| Steps::new()).collect(),
            executors,
            info,
            points: Steps::new(),
            requests: RequestCounts::default(),
            draws: DrawCounts::default(),
            tx: TxCounts::default(),
            transitions: Vec::new(),
            transitions_omitted: 0,
            invariant_checks: 0,
            blocks: 0,
            finalize_us: Vec::new(),
            commit_us: Vec::new(),
            states: BTreeMap::new(),
            epoch: 0,
            streaks: BTreeMap::new(),
            tallies: BTreeMap::new(),
            now: Point::default(),
            states_changed: false,
        })
    }

    /// A request of the input fell into this block; counted once, not for each try.
    pub fn offered(&mut self) {
        self.requests.offered += 1;
    }

    /// `GetRandomExecutor` answered from `lane`.
    pub fn drawn(&mut self, lane: Lane) {
        self.draws.total += 1;
        match lane {
            Lane::Healthy => {}
            Lane::Probe => self.draws.probe += 1,
            Lane::Fallback => self.draws.fallback += 1,
        }
    }

    /// A request was given up after its last try.
    pub fn refused(&mut self) {
        self.requests.refused += 1;
        self.now.refused += 1;
    }

    /// The chain admitted a Start on `executor` (position in the list).
    pub fn started(&mut self, executor: usize) {
        self.requests.started += 1;
        self.now.started += 1;
        if let Some(executor) = self.executors.get_mut(executor) {
            executor.assigned += 1;
        }
    }

    /// A started request of `executor` ended; `epoch` is the one in its stamp.
    pub fn outcome(&mut self, executor: usize, model: &str, epoch: u64, outcome: Outcome) {
        let Some(report) = self.executors.get_mut(executor) else {
            return;
        };
        let tally = match outcome {
            Outcome::Released => {
                self.requests.released += 1;
                return;
            }
            Outcome::Finished => {
                self.requests.finished += 1;
                self.now.finished += 1;
                report.finished += 1;
                (1, 0)
            }
            Outcome::Missed => {
                self.requests.missed += 1;
                self.now.missed += 1;
                report.missed += 1;
                (0, 1)
            }
        };
        let sum = self.tallies.entry((executor, epoch, model.to_owned())).or_default();
        *sum = (sum.0 + tally.0, sum.1 + tally.1);
    }

    /// The breaker moved an entry in this block. `rule` is the rule or cause its event names.
    pub fn transition(&mut self, executor: usize, epoch: u64, model: &str, to: State, rule: &str) {
        let height = self.height();
        let key = (executor, model.to_owned());
        let from = self.states.get(&key).copied().unwrap_or(State::Healthy);
        let Some(report) = self.executors.get_mut(executor) else {
            return;
        };
        match (from, to) {
            (State::ProbeClaimed, State::Healthy) => report.probes_passed += 1,
            (State::ProbeClaimed, State::Excluded) if rule != "override" => report.probes_failed += 1,
            _ => {}
        }
        if to == State::Excluded {
            report.exclusions += 1;
            if report.first_exclusion_height.is_none() {
                // Outcomes of this block enter the streaks at its end, so these are the misses before it.
                let entry = (executor, epoch, model.to_owned());
                report.first_exclusion_height = Some(height);
                report.misses_before_first_exclusion = Some(self.streaks.get(&entry).copied().unwrap_or(0));
            }
        }
        self.note(Transition { height, executor, model: model.to_owned(), from, to, rule: rule.to_owned() });
        if to == State::Healthy {
            self.states.remove(&key);
        } else {
            self.states.insert(key, to);
        }
    }

    /// A new epoch began in this block: every entry is Healthy again. Call it before the block's transitions.
    pub fn epoch_began(&mut self) {
        let height = self.height();
        self.epoch += 1;
        self.streaks.clear();
        for ((executor, model), from) in std::mem::take(&mut self.states) {
            self.note(Transition {
                height,
                executor,
                model,
                from,
                to: State::Healthy,
                rule: "epoch".to_owned(),
            });
        }
    }

    /// A transaction was executed in a block or refused by CheckTx.
    pub fn transaction(&mut self, ok: bool) {
        if ok {
            self.tx.delivered += 1;
        } else {
            self.tx.failed += 1;
        }
    }

    /// Invariants of the chain were checked, and held.
    pub fn invariants_held(&mut self, checks: u64) {
        self.invariant_checks += checks;
    }

    /// Ends the current block; the first call ends block 1.
    pub fn end_block(&mut self, finalize_us: u64, commit_us: u64) {
        self.finalize_us.push(u32::try_from(finalize_us).unwrap_or(u32::MAX));
        self.commit_us.push(u32::try_from(commit_us).unwrap_or(u32::MAX));
        self.end_untimed_block();
    }

    /// The same for a block of which nobody knows how long it took.
    pub fn end_untimed_block(&mut self) {
        let height = self.height();
        for (entry, (finished, missed)) in std::mem::take(&mut self.tallies) {
            let executor = entry.0;
            if missed > 0
                && let Some(steps) = self.miss_steps.get_mut(executor)
            {
                steps.add(height, &missed, |sum, more| *sum += more);
            }
            if entry.1 < self.epoch {
                // Work of an epoch that is over: its entry is gone, nobody could act on it.
                continue;
            }
            if finished > 0 {
                self.streaks.remove(&entry);
                continue;
            }
            let streak = self.streaks.entry(entry).or_default();
            *streak += missed;
            if *streak >= FAILED_AFTER_MISSES
                && let Some(report) = self.executors.get_mut(executor)
            {
                report.fifth_consecutive_miss_height.get_or_insert(height);
            }
        }
        let mut worst: BTreeMap<usize, State> = BTreeMap::new();
        for ((executor, _), state) in &self.states {
            let seen = worst.entry(*executor).or_insert(*state);
            *seen = (*seen).max(*state);
        }
        for (executor, state) in &worst {
            if *state == State::Excluded {
                self.now.excluded += 1;
                if let Some(report) = self.executors.get_mut(*executor) {
                    report.blocks_excluded += 1;
                }
            } else {
                self.now.probe += 1;
            }
        }
        self.now.healthy = self.executors.len() as u64 - self.now.probe - self.now.excluded;
        let busy = self.now.started + self.now.finished + self.now.missed + self.now.refused > 0;
        if busy || self.states_changed || height == 1 {
            self.points.add(height, &self.now, |sum, more| {
                sum.started += more.started;
                sum.finished += more.finished;
                sum.missed += more.missed;
                sum.refused += more.refused;
                (sum.healthy, sum.probe, sum.excluded) = (more.healthy, more.probe, more.excluded);
            });
        }
        self.states_changed = false;
        self.now = Point::default();
        self.blocks += 1;
    }

    /// What has been counted so far, for the live view.
    pub fn requests(&self) -> &RequestCounts {
        &self.requests
    }

    /// Transactions so far.
    pub fn transactions(&self) -> &TxCounts {
        &self.tx
    }

    /// The executors so far; `state` and `misses_at` are filled in by [`Recorder::finish`] only.
    pub fn executors(&self) -> &[ExecutorReport] {
        &self.executors
    }

    /// State of an executor now, the worst over its models.
    pub fn state(&self, executor: usize) -> State {
        let from = (executor, String::new());
        self.states
            .range(from..)
            .take_while(|((at, _), _)| *at == executor)
            .map(|(_, state)| *state)
            .max()
            .unwrap_or(State::Healthy)
    }

    /// The last `count` transitions that the report lists, oldest first.
    pub fn last_transitions(&self, count: usize) -> &[Transition] {
        &self.transitions[self.transitions.len().saturating_sub(count)..]
    }

    /// The changes of state after the first `seen` ones.
    pub fn transitions_since(&self, seen: usize) -> &[Transition] {
        self.transitions.get(seen..).unwrap_or_default()
    }

    /// Ends the run. `pending` is the number of requests the chain still holds open, `elapsed_ms` the machine's
    /// time from the first block to the last.
    pub fn finish(mut self, app_hash: String, pending: u64, elapsed_ms: u64) -> Report {
        self.requests.pending = pending;
        let all = u128::from(self.tx.delivered) + u128::from(self.tx.failed);
        self.tx.per_second = u64::try_from(all * 1000 / u128::from(elapsed_ms.max(1))).unwrap_or(u64::MAX);
        for index in 0..self.executors.len() {
            let state = self.state(index);
            let executor = &mut self.executors[index];
            executor.state = state;
            executor.misses_at =
                self.miss_steps[index].sums.iter().map(|(height, misses)| (*height, *misses)).collect();
        }
        let block_ms = BlockTimes {
            finalize_p50: percentile_ms(&mut self.finalize_us, 50),
            finalize_p99: percentile_ms(&mut self.finalize_us, 99),
            commit_p50: percentile_ms(&mut self.commit_us, 50),
            commit_p99: percentile_ms(&mut self.commit_us, 99),
        };
        let points =
            self.points.sums.iter().map(|(height, point)| Point { height: *height, ..*point }).collect();
        Report {
            version: self.info.version,
            command: self.info.command,
            seed: self.info.seed,
            preset: self.info.preset,
            trace: self.info.trace,
            blocks: self.blocks,
            block_seconds: self.info.block_seconds,
            app_hash,
            miss_rate_bp: miss_rate_bp(self.requests.finished, self.requests.missed),
            requests: self.requests,
            draws: self.draws,
            executors: self.executors,
            tx: self.tx,
            block_ms,
            invariant_checks: self.invariant_checks,
            transitions: self.transitions,
            transitions_omitted: self.transitions_omitted,
            series: Series { step: u64::try_from(self.points.step).unwrap_or(1), points },
            measured: MEASURED.map(str::to_owned).to_vec(),
            arms: Vec::new(),
        }
    }

    fn height(&self) -> i64 {
        i64::try_from(self.blocks).unwrap_or(i64::MAX - 1) + 1
    }

    fn note(&mut self, transition: Transition) {
        self.states_changed = true;
        if self.transitions.len() < MAX_TRANSITIONS {
            self.transitions.push(transition);
        } else {
            self.transitions_omitted += 1;
        }
    }
}

/// Sums over steps of blocks; when there are too many, the steps double.
#[derive(Debug)]
pub(super) struct Steps<T> {
    step: i64,
    /// By first height of the step.
    sums: BTreeMap<i64, T>,
}

impl<T: Clone> Steps<T> {
    fn new() -> Self {
        Steps { step: 1, sums: BTreeMap::new() }
    }

    fn add(&mut self, height: i64, value: &T, join: fn(&mut T, &T)) {
        Self::add_to(&mut self.sums, self.step, height, value, join);
        while self.sums.len() > MAX_POINTS {
            self.step *= 2;
            for (height, value) in std::mem::take(&mut self.sums) {
                Self::add_to(&mut self.sums, self.step, height, &value, join);
            }
        }
    }

    fn add_to(sums: &mut BTreeMap<i64, T>, step: i64, height: i64, value: &T, join: fn(&mut T, &T)) {
        let first = (height - 1) / step * step + 1;
        match sums.get_mut(&first) {
            Some(sum) => join(sum, value),
            None => {
                sums.insert(first, value.clone());
            }
        }
    }
}
