//! Requests while a host of the group is repaired in a loop.
//!
//! In one escrow all is well. In the other the last host refuses, by its signature, every diff from a nonce on; its
//! replica is dropped again and again, and an operator has it taught at once each time, so that a repair runs from the
//! first nonce to the one that is refused, many times more often than it would. The load comes at a fixed rate and goes
//! to both in turn, and to the second also while it rests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_gateway::core::Verb;
use holdfast_gateway::driver::{Audit, Gateway};
use holdfast_types::Address;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::client::{Http, channels, reset};
use super::first_token::ms;
use super::net::{HOSTS, ILL, Net, WELL, key};
use crate::{Better, Row, median, percentile};

/// What the p99 may be of that without a repair.
const WITHIN: f64 = 1.1;
const TOKENS: u32 = 8;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Requests in front of the nonce from which on the host refuses.
    pub history: usize,
    /// Rounds.
    pub rounds: usize,
    /// Requests a second.
    pub rate: f64,
    /// How long each kind lasts in a round.
    pub window: Duration,
    /// Between two repairs.
    pub every: Duration,
}

impl Size {
    pub(super) const FULL: Self = Self {
        history: 400,
        rounds: 6,
        rate: 40.0,
        window: Duration::from_secs(5),
        every: Duration::from_secs(1),
    };
    pub(super) const QUICK: Self = Self {
        history: 9,
        rounds: 1,
        rate: 40.0,
        window: Duration::from_millis(150),
        every: Duration::from_millis(30),
    };
}

/// A connection that rested longer is not used again: the server ends those that rest.
const REST: Duration = Duration::from_secs(10);

/// Connections that are used again.
struct Load {
    net: std::net::SocketAddr,
    idle: Arc<Mutex<Vec<(Instant, Http)>>>,
    failed: Arc<Mutex<Vec<String>>>,
}

impl Load {
    /// Latencies of the requests of one window, milliseconds.
    async fn run(&self, model: &'static str, size: Size) -> Result<Vec<f64>> {
        let mut turn = interval(Duration::from_secs_f64(1.0 / size.rate));
        turn.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (begun, mut asking) = (Instant::now(), JoinSet::new());
        while begun.elapsed() < size.window {
            turn.tick().await;
            let (idle, failed, net) = (self.idle.clone(), self.failed.clone(), self.net);
            asking.spawn(async move {
                let free = idle.lock().await.pop();
                let mut http = match free {
                    Some((since, http)) if since.elapsed() < REST => http,
                    _ => Http::connect(net).await?,
                };
                match http.ask(model, TOKENS).await {
                    Ok(answer) => {
                        idle.lock().await.push((Instant::now(), http));
                        Ok(Some(ms(answer.whole)))
                    }
                    Err(error) => {
                        failed.lock().await.push(format!("{error:#}"));
                        anyhow::Ok(None)
                    }
                }
            });
        }
        let mut all = Vec::new();
        while let Some(took) = asking.join_next().await {
            all.extend(took??);
        }
        Ok(all)
    }
}

pub(super) async fn run(net: &Net, size: Size, rows: &mut Vec<Row>) -> Result<Value> {
    let ill = key(&format!("host-{}", HOSTS - 1)).address();
    let mut http = Http::connect(net.api).await?;
    for _ in 0..size.history {
        http.ask(ILL.1, 1).await?;
    }
    let from = net.gateway.view(ILL.0).await?.session.nonce + 1;
    net.refuses.from.store(from, Ordering::Relaxed);
    // One of the next requests comes to it, is refused, and goes to another host.
    let mut asked = 0;
    while flag(&net.gateway).await?.is_none() {
        http.ask(ILL.1, 1).await?;
        asked += 1;
        ensure!(asked < 50, "the host that refuses is not flagged");
    }
    let line = channels(&net.urls[HOSTS - 1], 1).await?.remove(0);
    let generation = Arc::new(AtomicU64::new(1));
    let load = Load { net: net.api, idle: Arc::default(), failed: Arc::default() };
    load.run(WELL.1, size).await?;
    let before = flag(&net.gateway).await?.context("the flag is gone")?;
    // Well; flagged and at rest; flagged and repaired.
    let mut arms: [Vec<Vec<f64>>; 3] = Default::default();
    for round in 0..size.rounds {
        for turn in 0..arms.len() {
            let arm = (round + turn) % arms.len();
            let model = if arm == 0 { WELL.1 } else { ILL.1 };
            let repairs = (arm == 2).then(|| {
                let (gateway, line, generation) = (net.gateway.clone(), line.clone(), generation.clone());
                tokio::spawn(async move {
                    loop {
                        generation.fetch_add(1, Ordering::Relaxed);
                        // Busy and a repair under way: the next turn does it.
                        let _ = reset(&line, ILL.0, generation.load(Ordering::Relaxed)).await;
                        let _ = gateway.operate(audit(ill), Verb::ForceTeach).await;
                        sleep(size.every).await;
                    }
                })
            });
            arms[arm].push(load.run(model, size).await?);
            if let Some(repairs) = repairs {
                repairs.abort();
                // What it began ends by itself.
                sleep(size.every).await;
            }
        }
    }
    let after = flag(&net.gateway).await?.context("the flag is gone")?;
    let pooled = |arm: usize, q: usize| percentile(&arms[arm].concat(), q);
    let by_round = |arm: usize| arms[arm].iter().map(|round| percentile(round, 99)).collect::<Vec<_>>();
    let failed = load.failed.lock().await.clone();
    let (well, rest, repaired) = (pooled(0, 99), pooled(1, 99), pooled(2, 99));
    rows.extend([
        Row::new("escrow.repair_failed", "", failed.len() as f64).at_most(0.0),
        Row::new("escrow.repair_attempts", "", f64::from(after.1 - before.1)),
        Row::new("escrow.repair_latency_p50", "ms", pooled(2, 50)).against(
            "without",
            pooled(0, 50),
            Better::Lower,
        ),
        Row::new("escrow.repair_latency_p99", "ms", repaired).against("without", well, Better::Lower),
        Row::new("escrow.repair_p99_ratio", "", repaired / well).at_most(WITHIN),
        Row::new("escrow.repair_p99_to_rest", "", repaired / rest).against(
            "round by round",
            {
                let (rest, repaired) = (by_round(1), by_round(2));
                median(&repaired.iter().zip(&rest).map(|(a, b)| a / b).collect::<Vec<_>>())
            },
            Better::Lower,
        ),
    ]);
    Ok(json!({
        "refused_from": from, "requests": arms.iter().map(|arm| arm.concat().len()).collect::<Vec<_>>(),
        "p50_ms": [pooled(0, 50), pooled(1, 50), pooled(2, 50)], "p99_ms": [well, rest, repaired],
        "p99_by_round_ms": [by_round(0), by_round(1), by_round(2)], "attempts": after.1 - before.1,
        "phase": after.0, "failed": failed,
    }))
}

/// Phase and attempts of the flag in the ill session.
async fn flag(gateway: &Gateway) -> Result<Option<(String, u32)>> {
    let view = gateway.view(ILL.0).await?;
    Ok(view.flags.first().map(|flag| (format!("{:?}", flag.phase), flag.attempt)))
}

fn audit(participant: Address) -> Audit {
    Audit {
        escrow_id: ILL.0,
        participant: Some(participant),
        verb: "force_teach".into(),
        operator: "bench".into(),
        reason: "a benchmark".into(),
        at_ms: 0,
    }
}
