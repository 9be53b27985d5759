//! The failure matrix's stage of real processes: workers that are killed, stopped and cut off.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_runner::matrix::{Act, BoxFuture, MatrixError, Pace, Scenario, Scene, Stage};
use holdfast_runner::proxy::{Proxy, Wire};
use holdfast_runner::worker::{RemoteLimits, RemotePool, RemoteShard, WorkerAddress};
use holdfast_runner::{BoundaryAdapter as _, Clock, SystemClock};
use rustix::process::Signal;
use tokio::sync::Mutex;

use crate::workers::{WorkerCommand, WorkerProcess, signal};

/// Longest wait until every worker is connected.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a wire stays cut: long enough for both ends to notice, short enough for the worker to be the same one.
const CUT: Duration = Duration::from_millis(50);
/// Longest wait for the next beat of every worker; one comes each second.
const BEATS_MS: u64 = 3_000;

/// Layers `0..layers` in `count` ranges of nearly equal length; with 3 of 4 the middle one is the longest.
#[must_use]
pub fn cuts(layers: u32, count: u32) -> Vec<(u32, u32)> {
    // Rounded to the nearest, so that the ends are as short as the middle allows.
    let at = |i: u32| (2 * i * layers + count) / (2 * count);
    (0..count).map(|i| (at(i), at(i + 1))).collect()
}

/// See the [module](self).
pub struct ProcessStage {
    command: WorkerCommand,
    layers: Vec<(u32, u32)>,
    prompt: Vec<u32>,
    pace: Pace,
    clock: Arc<dyn Clock>,
    generation: u64,
    set: Option<Arc<Set>>,
}

/// Workers of one run.
struct Set {
    workers: Vec<Mutex<Option<WorkerProcess>>>,
    proxies: Vec<Proxy>,
    pool: Arc<RemotePool>,
}

impl ProcessStage {
    /// Workers for `layers`, which cover a model, started by `command`.
    #[must_use]
    pub fn new(command: WorkerCommand, layers: Vec<(u32, u32)>, prompt: Vec<u32>, pace: Pace) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self { command, layers, prompt, pace, clock, generation: 0, set: None }
    }

    async fn fresh(&mut self, faulty: usize, fault: Option<&'static str>) -> Result<Arc<Set>> {
        self.set = None;
        self.generation += 1;
        let mut workers = Vec::new();
        let mut proxies = Vec::new();
        for (index, layers) in self.layers.iter().enumerate() {
            let faults: Vec<String> =
                fault.filter(|_| index == faulty).map(str::to_owned).into_iter().collect();
            let worker = WorkerProcess::start(&self.command, any_port(), *layers, &faults).await?;
            proxies.push(Proxy::start(worker.addr()).await.context("a relay cannot be started")?);
            workers.push(Mutex::new(Some(worker)));
        }
        let addresses = proxies.iter().map(|proxy| WorkerAddress::parse(&format!("http://{}", proxy.addr())));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let pool =
            RemotePool::start(addresses, self.generation, None, RemoteLimits::default(), self.clock.clone());
        anyhow::ensure!(pool.ready(CONNECT).await, "the workers cannot be reached: {pool:?}");
        let set = Arc::new(Set { workers, proxies, pool: Arc::new(pool) });
        self.set = Some(set.clone());
        Ok(set)
    }

    async fn scene(&mut self, scenario: Scenario, faulty: usize) -> Result<Scene> {
        let fault = match scenario {
            Scenario::Clean | Scenario::Cancel | Scenario::StaleEpoch => None,
            Scenario::Deadline => Some("stall@2"),
            Scenario::HeartbeatLoss => Some("stall@3"),
            Scenario::WorkerDeath | Scenario::AlphaFailover => Some("stall-after@3"),
            Scenario::StreamReset => Some("stall@0"),
            Scenario::CacheMiss => Some("evict@4"),
        };
        let set = self.fresh(faulty, fault).await?;
        let deadlines = self.pace.deadlines(scenario);
        let act = self.act(scenario, faulty, set.clone()).await;
        let time = self.clock.clone();
        let held = Box::new(move || {
            let (pool, clock) = (set.pool.clone(), time.clone());
            Box::pin(async move { rows_held(&pool, clock.as_ref()).await }) as BoxFuture<'static, u64>
        });
        let pool = self.set.as_ref().context("it was just set")?.pool.clone();
        let (clock, hold_ms) = (self.clock.clone(), self.pace.hold_ms);
        Ok(Scene { pool, clock, deadlines, hold_ms, act, held })
    }

    /// What is done to the faulty worker once it holds a step back.
    async fn act(&self, scenario: Scenario, faulty: usize, set: Arc<Set>) -> Option<Act> {
        let (stalled, pid, addr) = {
            let worker = set.workers.get(faulty)?.lock().await;
            let worker = worker.as_ref()?;
            (worker.stalled(), worker.pid(), worker.addr())
        };
        let (command, layers) = (self.command.clone(), *self.layers.get(faulty)?);
        let pause = Duration::from_millis(self.pace.heartbeat_ms + 1_500);
        let misfortune = async move {
            let mut stalled = stalled;
            if stalled.wait_for(|stalled| *stalled).await.is_err() {
                return;
            }
            match scenario {
                Scenario::HeartbeatLoss => {
                    signal(pid, Signal::STOP);
                    tokio::time::sleep(pause).await;
                    signal(pid, Signal::CONT);
                }
                Scenario::WorkerDeath => signal(pid, Signal::KILL),
                Scenario::AlphaFailover => {
                    let Some(slot) = set.workers.get(faulty) else { return };
                    let mut worker = slot.lock().await;
                    signal(pid, Signal::KILL);
                    *worker = None;
                    match WorkerProcess::start(&command, addr, layers, &[]).await {
                        Ok(again) => *worker = Some(again),
                        Err(error) => tracing::error!(%error, "a worker did not come back"),
                    }
                }
                Scenario::StreamReset => {
                    let Some(proxy) = set.proxies.get(faulty) else { return };
                    proxy.set(Wire::Cut);
                    tokio::time::sleep(CUT).await;
                    proxy.set(Wire::Whole);
                }
                _ => {}
            }
        };
        let acts = matches!(
            scenario,
            Scenario::HeartbeatLoss | Scenario::WorkerDeath | Scenario::AlphaFailover | Scenario::StreamReset
        );
        acts.then(|| Box::pin(misfortune) as Act)
    }
}

/// Rows that the connected workers of a pool say are not free, in a beat from now or later.
pub async fn rows_held(pool: &RemotePool, clock: &dyn Clock) -> u64 {
    let asked_ms = clock.now_ms();
    let heard = |shard: &Arc<RemoteShard>| shard.last_beat_ms().is_some_and(|at_ms| at_ms > asked_ms);
    // One that does not beat is gone, or about to be.
    while clock.now_ms() < asked_ms.saturating_add(BEATS_MS) && !pool.shards().iter().all(heard) {
        clock.sleep_until(clock.now_ms().saturating_add(20)).await;
    }
    let held = |shard: &Arc<RemoteShard>| {
        let free = shard.free_rows().unwrap_or(0);
        u64::from(shard.describe().capacity.saturating_sub(free))
    };
    pool.shards().iter().map(held).sum()
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

impl Stage for ProcessStage {
    fn shards(&self) -> usize {
        self.layers.len()
    }

    fn prompt(&self) -> Vec<u32> {
        self.prompt.clone()
    }

    fn set(&mut self, scenario: Scenario, faulty: usize) -> BoxFuture<'_, Result<Scene, MatrixError>> {
        Box::pin(async move {
            self.scene(scenario, faulty).await.map_err(|error| MatrixError::Stage {
                scenario: scenario.as_str(),
                reason: format!("{error:#}"),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_cut_into_ranges_that_cover_it() {
        assert_eq!(cuts(4, 1), [(0, 4)]);
        assert_eq!(cuts(4, 2), [(0, 2), (2, 4)]);
        assert_eq!(cuts(4, 3), [(0, 1), (1, 3), (3, 4)]);
        assert_eq!(cuts(30, 3), [(0, 10), (10, 20), (20, 30)]);
    }
}
