//! Many streams at a time, through the gateway and straight at one host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use holdfast_escrow::session::Tx;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::client::{Answer, Direct, Http, channels, infer};
use super::first_token::ms;
use super::net::{Net, SINGLE, WELL};
use crate::{Better, Row, median, percentile};

/// Streams on one connection to a host, as the gateway has them.
const ON_ONE: usize = 100;

/// One round.
#[derive(Default)]
struct Round {
    answers: Vec<Answer>,
    failed: Vec<String>,
    took: Duration,
}

impl Round {
    fn rate(&self) -> f64 {
        let tokens: u32 = self.answers.iter().map(|answer| answer.tokens).sum();
        f64::from(tokens) / self.took.as_secs_f64()
    }

    fn first_p99(&self) -> f64 {
        percentile(&self.answers.iter().map(|answer| ms(answer.first)).collect::<Vec<_>>(), 99)
    }
}

pub(super) async fn run(
    net: &Net,
    (streams, tokens, rounds): (usize, u32, usize),
    rows: &mut Vec<Row>,
) -> Result<Value> {
    let mut direct = Direct::open(SINGLE, &net.urls[..1]).await?;
    let lines = channels(&net.urls[0], streams.div_ceil(ON_ONE)).await?;
    let before = resident();
    let (mut through, mut straight, mut peak) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let watch = Resident::watch();
        through.push(by_gateway(net, streams, tokens).await?);
        peak = peak.max(watch.peak());
        straight.push(by_host(&mut direct, &lines, streams, tokens).await?);
    }
    let of = |rounds: &[Round], what: fn(&Round) -> f64| median(&rounds.iter().map(what).collect::<Vec<_>>());
    let failed: Vec<&String> = through.iter().flat_map(|round| &round.failed).collect();
    let direct_failed: Vec<&String> = straight.iter().flat_map(|round| &round.failed).collect();
    rows.extend([
        Row::new("escrow.streams_failed", "", failed.len() as f64).at_most(0.0),
        Row::new("escrow.streams_tokens", "1/s", of(&through, Round::rate)).against(
            "one host",
            of(&straight, Round::rate),
            Better::Higher,
        ),
        Row::new("escrow.streams_first_p99", "ms", of(&through, Round::first_p99)).against(
            "one host",
            of(&straight, Round::first_p99),
            Better::Lower,
        ),
        Row::new("escrow.streams_rss", "B", peak as f64),
    ]);
    let list = |rounds: &[Round], what: fn(&Round) -> f64| rounds.iter().map(what).collect::<Vec<_>>();
    Ok(json!({
        "streams": streams, "tokens": tokens, "failed": failed, "direct_failed": direct_failed,
        "rss_before": before, "rss_peak": peak,
        "tokens_per_second": list(&through, Round::rate), "direct_tokens_per_second": list(&straight, Round::rate),
        "first_p99_ms": list(&through, Round::first_p99), "direct_first_p99_ms": list(&straight, Round::first_p99),
    }))
}

async fn by_gateway(net: &Net, streams: usize, tokens: u32) -> Result<Round> {
    let together = Arc::new(Barrier::new(streams + 1));
    let mut asking = JoinSet::new();
    for _ in 0..streams {
        let (mut http, together) = (Http::connect(net.api).await?, together.clone());
        asking.spawn(async move {
            together.wait().await;
            http.ask(WELL.1, tokens).await
        });
    }
    together.wait().await;
    let (begun, mut round) = (Instant::now(), Round::default());
    while let Some(answer) = asking.join_next().await {
        match answer? {
            Ok(answer) => round.answers.push(answer),
            Err(error) => round.failed.push(format!("{error:#}")),
        }
    }
    round.took = begun.elapsed();
    Ok(round)
}

/// The diffs, all signed before the clock runs, and then their Infers at once.
async fn by_host(
    direct: &mut Direct,
    lines: &[tonic::transport::Channel],
    streams: usize,
    tokens: u32,
) -> Result<Round> {
    let (taught, requests) = direct.many(streams, tokens)?;
    let (begun, mut round) = (Instant::now(), Round::default());
    let mut client = HostClient::new(lines[0].clone());
    for chunk in taught {
        client.teach(chunk).await?;
    }
    let mut asking = JoinSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let (line, brought) = (lines[number % lines.len()].clone(), begun.elapsed());
        asking.spawn(async move { infer(&line, request).await.map(|answer| (brought, answer)) });
    }
    let mut txs: Vec<Tx> = Vec::new();
    while let Some(answer) = asking.join_next().await {
        match answer? {
            Ok((brought, (answer, of_host))) => {
                // Its diffs were part of the way to it.
                let first = answer.first + brought;
                round.answers.push(Answer { first, ..answer });
                txs.extend(of_host);
            }
            Err(error) => round.failed.push(format!("{error:#}")),
        }
    }
    round.took = begun.elapsed();
    // Receipts before what follows them.
    txs.sort_by_key(|tx| !matches!(tx, Tx::ConfirmStart { .. }));
    let before = direct.len();
    direct.settle(txs)?;
    client.teach(direct.log_from(before)).await?;
    Ok(round)
}

/// Resident memory of this process now, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The most of it while this lives.
struct Resident {
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Resident {
    fn watch() -> Self {
        let (peak, over) = (Arc::new(AtomicU64::new(resident())), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (peak.clone(), over.clone());
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                seen.fetch_max(resident(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { peak, over }
    }

    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
