//! Clients of the gateway's HTTP API: chats, half of them streamed, asked again as the official clients do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::devnet::workload::SplitMix64;

/// Stream of the seed; others belong to the other loads.
const STREAM: u64 = 32;
/// How often a request is sent again: as the official clients.
const RETRIES: u32 = 2;
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(120);
/// Longest pause before a request is sent again.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Longest answer, bytes.
const ANSWER_BYTES: usize = 4 << 20;
/// Reasons of failures that are kept.
const REASONS: usize = 8;

const WORDS: [&str; 12] = [
    "chain", "token", "weight", "quorum", "nonce", "root", "proof", "lease", "shard", "prompt", "ledger",
    "epoch",
];

/// What is asked of the gateway.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where it listens, `127.0.0.1:PORT`.
    pub(super) addr: String,
    /// The model.
    pub(super) model: String,
    /// Requests in all.
    pub(super) requests: u64,
    /// Requests at a time.
    pub(super) clients: usize,
    /// Requests a second at most; 0: as fast as the clients go.
    pub(super) rate: u64,
    /// Every so-manieth client leaves after its first token; 0: none.
    pub(super) cancel_every: u64,
    /// Seed of prompts and lengths.
    pub(super) seed: u64,
}

/// What became of the requests so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Taken by a client, which may have to wait before it sends.
    taken: AtomicU64,
    offered: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    again: AtomicU64,
    reasons: std::sync::Mutex<VecDeque<String>>,
}

/// The same as plain numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Requests {
    /// Sent by a client, each counted once however often it was sent again.
    pub offered: u64,
    /// Answered whole.
    pub completed: u64,
    /// Not answered, or cut off.
    pub failed: u64,
    /// The client left.
    pub cancelled: u64,
}

impl Requests {
    /// Under way.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.offered.saturating_sub(self.completed).saturating_sub(self.failed).saturating_sub(self.cancelled)
    }
}

impl Counts {
    pub(super) fn now(&self) -> Requests {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Ends first: what ends in between is open then, not offered too little.
        let (completed, failed, cancelled) =
            (read(&self.completed), read(&self.failed), read(&self.cancelled));
        Requests { offered: read(&self.offered), completed, failed, cancelled }
    }

    /// How often a request was sent again.
    pub(super) fn again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// The last reasons of failures.
    pub(super) fn reasons(&self) -> Vec<String> {
        self.reasons.lock().map(|reasons| reasons.iter().cloned().collect()).unwrap_or_default()
    }

    fn failed(&self, reason: String) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut reasons) = self.reasons.lock() {
            if reasons.len() >= REASONS {
                reasons.pop_front();
            }
            reasons.push_back(reason);
        }
    }
}

/// Starts the clients. Dropping the set ends them.
pub(super) fn spawn(load: &Load, counts: &Arc<Counts>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let began = tokio::time::Instant::now();
    for _ in 0..load.clients {
        let (load, counts) = (load.clone(), Arc::clone(counts));
        clients.spawn(async move {
            loop {
                let index = counts.taken.fetch_add(1, Ordering::Relaxed);
                if index >= load.requests {
                    return;
                }
                let due_ms = index.saturating_mul(1000).checked_div(load.rate).unwrap_or(0);
                tokio::time::sleep_until(began + Duration::from_millis(due_ms)).await;
                counts.offered.fetch_add(1, Ordering::Relaxed);
                one(&load, index, &counts).await;
            }
        });
    }
    clients
}

/// How one sending ended.
enum Ended {
    Completed,
    Left,
    /// Why, and whether it is worth another try after which pause.
    Failed(String, Option<Option<Duration>>),
}

fn body(load: &Load, index: u64) -> (Value, bool) {
    let mut rng = SplitMix64::keyed(&[load.seed, STREAM, index]);
    let mut word = || WORDS[usize::try_from(rng.below(WORDS.len() as u64)).unwrap_or(0)];
    let text = format!("{} {} {}", word(), word(), word());
    let (max_tokens, stream) = (4 + rng.below(13), index.is_multiple_of(2));
    let body = json!({
        "model": load.model,
        "messages": [{ "role": "user", "content": text }],
        "max_tokens": max_tokens,
        "stream": stream,
    });
    (body, stream)
}

async fn one(load: &Load, index: u64, counts: &Counts) {
    let leaves = load.cancel_every > 0 && index % load.cancel_every == load.cancel_every - 1;
    let (mut body, mut stream) = body(load, index);
    if leaves {
        stream = true;
        body["stream"] = true.into();
        body["max_tokens"] = 64.into();
    }
    let mut pause = Duration::from_millis(500);
    for round in 0..=RETRIES {
        let sent = tokio::time::timeout(ANSWER, send(&load.addr, &body, stream, leaves)).await;
        match sent.unwrap_or_else(|_| Ended::Failed("no answer in two minutes".into(), None)) {
            Ended::Completed => {
                counts.completed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ended::Left => {
                counts.cancelled.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ended::Failed(_, Some(wait)) if round < RETRIES => {
                counts.again.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(wait.unwrap_or(pause).min(PAUSE_MAX)).await;
                pause = pause.saturating_mul(2);
            }
            Ended::Failed(reason, _) => return counts.failed(reason),
        }
    }
}

async fn send(addr: &str, body: &Value, stream: bool, leaves: bool) -> Ended {
    match exchange(addr, body, stream, leaves).await {
        Ok(ended) => ended,
        Err(error) => Ended::Failed(format!("connection: {error}"), Some(None)),
    }
}

async fn exchange(
    addr: &str,
    body: &Value,
    stream: bool,
    leaves: bool,
) -> Result<Ended, Box<dyn std::error::Error + Send + Sync>> {
    let connection = TcpStream::connect(addr).await?;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    // Ends with the sender and the body: that is how a client leaves.
    tokio::spawn(driver);
    let request = http::Request::post("/v1/chat/completions")
        .header(HOST, addr)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    if status != StatusCode::OK {
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = Limited::new(response.into_body(), ANSWER_BYTES).collect().await?.to_bytes();
        let told: Value = serde_json::from_slice(&text).unwrap_or_default();
        let code = told["error"]["code"].as_str().unwrap_or("no error object");
        let again = matches!(status.as_u16(), 408 | 409 | 429 | 500..=599);
        return Ok(Ended::Failed(
            format!("{} {code}", status.as_u16()),
            again.then(|| wait.map(Duration::from_secs)),
        ));
    }
    if !stream {
        let text = Limited::new(response.into_body(), ANSWER_BYTES).collect().await?.to_bytes();
        let told: Value = serde_json::from_slice(&text)?;
        let finished = told["choices"][0]["finish_reason"].is_string();
        let counted = told["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0);
        return Ok(match finished && counted {
            true => Ended::Completed,
            false => Ended::Failed("200 without a finish reason".into(), None),
        });
    }
    let mut body = response.into_body();
    let (mut text, mut seen) = (String::new(), Stream::default());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        text.push_str(&String::from_utf8_lossy(&data));
        while let Some((line, rest)) = text.split_once('\n') {
            seen.line(line.trim_end());
            text = rest.to_owned();
        }
        if leaves && seen.deltas > 0 {
            return Ok(Ended::Left);
        }
        if text.len() > ANSWER_BYTES {
            return Ok(Ended::Failed("a line without an end".into(), None));
        }
    }
    Ok(match (seen.done && seen.finished, seen.error) {
        (true, None) => Ended::Completed,
        (_, Some(code)) => Ended::Failed(format!("in the stream: {code}"), None),
        (false, None) => Ended::Failed("the stream has no [DONE]".into(), None),
    })
}

/// What a stream of events held.
#[derive(Default)]
struct Stream {
    deltas: u64,
    finished: bool,
    done: bool,
    error: Option<String>,
}

impl Stream {
    fn line(&mut self, line: &str) {
        let Some(data) = line.strip_prefix("data:").map(str::trim_start) else { return };
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let chunk: Value = serde_json::from_str(data).unwrap_or_default();
        if !chunk["error"].is_null() {
            self.error = Some(chunk["error"]["code"].as_str().unwrap_or("no code").to_owned());
        }
        let choice = &chunk["choices"][0];
        self.deltas += u64::from(choice["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()));
        self.finished |= choice["finish_reason"].is_string();
    }
}

/// Waits until all clients are done, or for so long.
pub(super) async fn finished(clients: &mut JoinSet<()>, most: Duration) -> bool {
    let until = Instant::now() + most;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, clients.join_next()).await {
            Ok(None) => return true,
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_whole_only_with_a_finish_reason_and_done() {
        let mut seen = Stream::default();
        for line in [
            r#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            "",
            ": beat",
            r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"data: {"choices":[{"delta":{},"finish_reason":"length"}]}"#,
        ] {
            seen.line(line);
        }
        assert_eq!((seen.deltas, seen.finished, seen.done), (1, true, false));
        seen.line("data: [DONE]");
        assert!(seen.done && seen.error.is_none());
        seen.line(r#"data: {"error":{"code":"stream_reset"}}"#);
        assert_eq!(seen.error.as_deref(), Some("stream_reset"));
    }

    #[test]
    fn requests_follow_from_the_seed_and_half_are_streamed() {
        let load = Load {
            addr: String::new(),
            model: String::new(),
            requests: 0,
            clients: 0,
            rate: 0,
            cancel_every: 0,
            seed: 7,
        };
        let bodies: Vec<_> = (0..20).map(|index| body(&load, index)).collect();
        assert_eq!(bodies, (0..20).map(|index| body(&load, index)).collect::<Vec<_>>());
        assert_eq!(bodies.iter().filter(|(_, stream)| *stream).count(), 10);
        assert_ne!(bodies[0].0, body(&Load { seed: 8, ..load.clone() }, 0).0);
    }
}
