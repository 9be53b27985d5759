//! From a cancel until everything is free.

use super::*;

/// When shards let go.
#[derive(Default)]
pub(super) struct Releases {
    pub(super) by_session: Mutex<BTreeMap<SessionId, Vec<Instant>>>,
    pub(super) changed: Notify,
}

impl Releases {
    pub(super) fn note(&self, session: SessionId) {
        let now = Instant::now();
        let mut all = self.by_session.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(session).or_default().push(now);
        drop(all);
        self.changed.notify_one();
    }

    /// When the last of `shards` did.
    pub(super) async fn all(&self, session: SessionId, shards: usize) -> Instant {
        loop {
            {
                let mut all = self.by_session.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(times) = all.get(&session).filter(|times| times.len() >= shards)
                    && let Some(last) = times.iter().max().copied()
                {
                    all.remove(&session);
                    return last;
                }
            }
            self.changed.notified().await;
        }
    }
}

/// A shard whose releases are noted: where the KV is, or where the coordinator hears of it.
pub(super) struct Watched<A> {
    pub(super) shard: Arc<A>,
    pub(super) releases: Arc<Releases>,
}

impl<A: ShardHost> ShardHost for Watched<A> {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.shard.hello(generation)
    }

    fn reap(&self) {
        self.shard.reap();
    }

    fn counters(&self) -> ShardCounters {
        self.shard.counters()
    }
}

impl<A: BoundaryAdapter> BoundaryAdapter for Watched<A> {
    fn describe(&self) -> ShardInfo {
        self.shard.describe()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.shard.open(key, plan)
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.shard.prefill(key, step, bundle)
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.shard.decode(key, step, bundle)
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        self.shard.query_step(key, step)
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        self.shard.stop(key, cause)
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move {
            let ack = self.shard.release(key, cause).await?;
            if !matches!(ack, ReleaseAck::Busy { .. }) {
                self.releases.note(key.session);
            }
            Ok(ack)
        })
    }

    fn beat(&self, keys: &[KvKey]) {
        self.shard.beat(keys);
    }

    fn last_beat_ms(&self) -> Option<u64> {
        self.shard.last_beat_ms()
    }

    fn counts(&self, key: KvKey) -> Option<Counts> {
        self.shard.counts(key)
    }

    fn usage(&self) -> Usage {
        self.shard.usage()
    }
}

/// What the cancels took, milliseconds.
#[derive(Default)]
pub(super) struct Cancels {
    pub(super) answered: Vec<f64>,
    pub(super) released: Vec<f64>,
    /// Until the coordinator knows.
    pub(super) known: Vec<f64>,
    pub(super) step: Vec<f64>,
    pub(super) round_trip: Vec<f64>,
}

pub(super) fn ms_since(begun: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(begun).as_secs_f64() * 1e3
}

/// One cancel: after some tokens, at some point of the step that follows.
pub(super) async fn cancel_one(
    running: &Running,
    [there, here]: &[Arc<Releases>; 2],
    number: usize,
    step_ms: f64,
    took: &mut Cancels,
) -> Result<()> {
    let draw = |of: u64| splitmix64(of, number as u64);
    // Long enough not to end by itself when this task waits for a processor.
    let mut generation = running.handle.submit(request(&format!("cancel-{number}"), 480)).await?;
    let wanted = 1 + (draw(1) % 8) as u32;
    loop {
        match generation.next().await.context("the runner ended")? {
            GenerationEvent::Token { index, .. } => {
                generation.delivered(index + 1);
                if index + 1 == wanted {
                    break;
                }
            }
            GenerationEvent::Wait => {}
            GenerationEvent::Done(outcome) => bail!("ended before the cancel: {outcome:?}"),
        }
    }
    let until = Instant::now() + Duration::from_secs_f64(step_ms / 1e3 * (draw(2) % 1_000) as f64 / 1e3);
    while Instant::now() < until {
        tokio::task::yield_now().await;
    }
    let session = generation.session();
    let begun = Instant::now();
    running.handle.cancel(session, Cause::Client).await?;
    took.answered.push(ms_since(begun, Instant::now()));
    took.released.push(ms_since(begun, there.all(session, CUT.len()).await));
    took.known.push(ms_since(begun, here.all(session, CUT.len()).await));
    loop {
        if let GenerationEvent::Done(outcome) = generation.next().await.context("the runner ended")? {
            ensure!(outcome.status == WorkStatus::Cancelled, "{outcome:?}");
            return Ok(());
        }
    }
}

/// Cancels between which the unit is measured again.
pub(super) const BETWEEN: usize = 10;

pub(super) fn cancel(size: Size, times: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    // A model of some weight computes beside the connections.
    let compute = if times == 1 { Compute::Inline } else { Compute::Threaded };
    // At the workers, and at the coordinator.
    let releases: [Arc<Releases>; 2] = Default::default();
    let mut workers = Vec::new();
    for layers in CUT {
        let shard = local(Repeated::new(times, layers)?, compute);
        workers.push(Worker::start(Arc::new(Watched { shard, releases: releases[0].clone() }))?);
    }
    let folder = tempfile::tempdir_in(dir)?;
    let took = threads()?.block_on(async {
        let mut shards: Vec<Arc<dyn BoundaryAdapter>> = Vec::new();
        let mut first = None;
        for worker in &workers {
            let shard = worker.connect(1).await?;
            first.get_or_insert_with(|| shard.clone());
            shards.push(Arc::new(Watched { shard, releases: releases[1].clone() }));
        }
        let first = first.context("no worker")?;
        let running = start(Some(folder.path()), Durability::Process, shards)?;
        ensure!(running.generation == 1, "the folder is not fresh");
        let task = tokio::spawn(async move {
            let mut took = Cancels::default();
            for number in 0..size.cancels {
                if number % BETWEEN == 0 {
                    unit(&running, &releases, &first, number, &mut took).await?;
                }
                let step_ms = median(&took.step);
                timeout(PATIENCE, cancel_one(&running, &releases, number, step_ms, &mut took))
                    .await
                    .with_context(|| format!("cancel {number} does not end"))??;
            }
            let work = running.handle.work().await?;
            ensure!(work.cancelled == size.cancels as u64, "{work:?}");
            running.stop().await?;
            anyhow::Ok(took)
        });
        task.await?
    })?;
    for worker in &workers {
        ensure!(worker.host.usage().keys.is_empty(), "KV is left: {:?}", worker.host.usage());
    }
    let (step, trip) = (median(&took.step), median(&took.round_trip));
    let units: Vec<f64> = took.released.iter().map(|ms| ms / (step + trip)).collect();
    let name = if times == 1 { "cancel" } else { "cancel_1ms" };
    rows.push(Row::new(&format!("{name}.step_and_round_trip"), "ms", step + trip));
    for (what, at) in [("p50", 50), ("p99", 99), ("max", 100)] {
        let ms = percentile(&took.released, at);
        rows.push(Row::new(&format!("{name}.released_{what}"), "ms", ms).against(
            "step + round trip",
            step + trip,
            Better::Lower,
        ));
        rows.push(Row::new(&format!("{name}.units_{what}"), "times", percentile(&units, at)).at_most(1.0));
    }
    rows.push(Row::new(&format!("{name}.known_p99"), "ms", percentile(&took.known, 99)));
    rows.push(Row::new(&format!("{name}.answer_p99"), "ms", percentile(&took.answered, 99)));
    let tenths: Vec<f64> = (1..=10).map(|tenth| percentile(&units, tenth * 10)).collect();
    let within = units.iter().filter(|unit| **unit <= 1.0).count();
    Ok(json!({
        "step_ms": step, "round_trip_ms": trip, "units_by_tenths": tenths,
        "units_p95": percentile(&units, 95), "units_p99": percentile(&units, 99), "within": within,
        "known_ms": { "p50": median(&took.known), "p99": percentile(&took.known, 99) },
        "answer_ms": { "p50": median(&took.answered), "p99": percentile(&took.answered, 99) },
    }))
}

/// Times of a decode step over the route and of a round trip to its first shard.
pub(super) async fn unit(
    running: &Running,
    releases: &[Arc<Releases>; 2],
    first: &Arc<RemoteShard>,
    number: usize,
    took: &mut Cancels,
) -> Result<()> {
    let id = format!("whole-{number}");
    let run = by_runner(&running.handle, &id, 32).await?;
    took.step.extend(run.gaps.iter().map(|us| us / 1e3));
    for releases in releases {
        releases.all(request(&id, 32).session(), CUT.len()).await;
    }
    let key = KvKey::new(session(number), 0);
    let plan = OpenPlan { max_positions: 1, lease_ms: 60_000, sampling: Sampling::GREEDY, trace: None };
    first.open(key, plan).await?;
    for _ in 0..20 {
        let begun = Instant::now();
        first.query_step(key, 0).await?;
        took.round_trip.push(ms_since(begun, Instant::now()));
    }
    first.release(key, Cause::Client).await?;
    Ok(())
}
