//! Time to the first token through the gateway, beside the same request straight at the same hosts.

use anyhow::Result;
use serde_json::{Value, json};

use super::client::{Direct, Http};
use super::net::{DIRECT, Net, WELL};
use crate::{Better, Row, median, percentile};

/// What the gateway may add, milliseconds.
const OVERHEAD_MS: f64 = 3.0;
const TOKENS: u32 = 8;

pub(super) async fn run(net: &Net, (rounds, requests): (usize, usize), rows: &mut Vec<Row>) -> Result<Value> {
    let mut http = Http::connect(net.api).await?;
    let mut direct = Direct::open(DIRECT, &net.urls).await?;
    for _ in 0..requests.min(20) {
        http.ask(WELL.1, TOKENS).await?;
        direct.ask(TOKENS).await?;
    }
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    let (mut added, mut both) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for turn in 0..requests {
            // Whoever comes second finds the disk as the first left it.
            if turn % 2 == 0 {
                a.push(ms(http.ask(WELL.1, TOKENS).await?.first));
                b.push(ms(direct.ask(TOKENS).await?.first));
            } else {
                b.push(ms(direct.ask(TOKENS).await?.first));
                a.push(ms(http.ask(WELL.1, TOKENS).await?.first));
            }
        }
        both[0].push(median(&a));
        both[1].push(median(&b));
        added.push(median(&a) - median(&b));
        through.extend(a);
        straight.extend(b);
    }
    let tail = |values: &[f64]| percentile(values, 99);
    rows.extend([
        Row::new("escrow.first_token_p50", "ms", median(&both[0])).against(
            "direct",
            median(&both[1]),
            Better::Lower,
        ),
        Row::new("escrow.first_token_p99", "ms", tail(&through)).against(
            "direct",
            tail(&straight),
            Better::Lower,
        ),
        Row::new("escrow.gateway_adds_p50", "ms", median(&added)).below(OVERHEAD_MS),
        Row::new("escrow.gateway_adds_p99", "ms", tail(&through) - tail(&straight)).below(OVERHEAD_MS),
    ]);
    Ok(json!({ "added_ms": added, "through_ms": both[0], "direct_ms": both[1], "requests": through.len() }))
}

pub(super) fn ms(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
