//! The requests at an upstream, which may outlive their keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::client::{Client, Posted, broken, silent};
use super::config::OpenAiHttpConfig;
use super::line::{Line, lock};
use super::sse::{Decoder, Event};
use super::stream::Stream;
use super::text::PieceTable;
use crate::adapter::{AdapterError, Digest, KvKey, OpenPlan, Sampling};
use crate::clock::Clock;

/// Pieces that wait for their step; the connection is not read beyond them.
const QUEUE_MAX: usize = 16;
/// Wait before a request that found no room is sent again, if the upstream names none.
const RETRY_DEFAULT: Duration = Duration::from_secs(1);

/// What outlives a key: its request may still run at the upstream.
pub(super) struct Site {
    pub(super) client: Client,
    pub(super) config: OpenAiHttpConfig,
    pub(super) pieces: Arc<PieceTable>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) slots: Arc<Semaphore>,
    pub(super) lines: Mutex<BTreeMap<KvKey, Arc<Line>>>,
    pub(super) leaked: AtomicU32,
    pub(super) last_beat_ms: AtomicU64,
    pub(super) gone: AtomicBool,
}

impl Site {
    /// Lines of the key's session, up to its epoch.
    pub(super) fn session(&self, key: KvKey) -> Vec<Arc<Line>> {
        lock(&self.lines).range(KvKey::new(key.session, 0)..=key).map(|(_, line)| line.clone()).collect()
    }

    pub(super) fn line(&self, key: KvKey) -> Option<Arc<Line>> {
        lock(&self.lines).get(&key).cloned()
    }

    pub(super) fn close(&self, line: &Arc<Line>, ended: bool) {
        let mut lines = lock(&self.lines);
        if lines.get(&line.key).is_some_and(|now| Arc::ptr_eq(now, line)) {
            lines.remove(&line.key);
        }
        drop(lines);
        line.closed.send_replace(Some(ended));
    }

    /// Begins a request.
    pub(super) fn post(
        self: &Arc<Self>,
        line: &Arc<Line>,
        prompt: Vec<u8>,
        rows: u32,
        fingerprint: Digest,
        plan: OpenPlan,
    ) -> Result<Stream, AdapterError> {
        let max_tokens = plan.max_positions.saturating_sub(rows);
        if max_tokens == 0 {
            return Err(AdapterError::MalformedBundle("the plan leaves no token for an answer".into()));
        }
        let Ok(text) = String::from_utf8(prompt) else {
            return Err(AdapterError::MalformedBundle("a prompt is a text in UTF-8".into()));
        };
        let body = request(&self.config.model, &text, max_tokens, plan.sampling);
        let (send, pieces) = mpsc::channel(QUEUE_MAX);
        let (site, held) = (self.clone(), line.clone());
        let mut reader = lock(&line.reader);
        let task = self.runtime.spawn(async move {
            let result = site.run(&held, body, Decoder::new(max_tokens, rows), &send).await;
            held.hung_up();
            if let Err(error) = result {
                // Nobody waits for it if the key went.
                let _ = send.send(Err(error)).await;
            }
        });
        *reader = Some(task.abort_handle());
        if line.cut.load(Ordering::Acquire) {
            task.abort();
        }
        drop(reader);
        Ok(Stream { prompt: fingerprint, pieces, reader: Some(task), last: None, failed: None })
    }

    /// Posts and reads one request; once more if there was no room.
    async fn run(
        &self,
        line: &Line,
        body: Bytes,
        mut decoder: Decoder,
        send: &mpsc::Sender<Result<Event, AdapterError>>,
    ) -> Result<(), AdapterError> {
        let mut busy = None;
        for _ in 0..2 {
            if let Some(wait) = busy {
                sleep(wait).await;
            }
            let sent = || {
                line.asked.store(true, Ordering::Release);
                line.runs.store(true, Ordering::Release);
            };
            let decoder = &mut decoder;
            let refused = self.client.complete(body.clone(), sent, |posted| async move {
                match posted {
                    Posted::Busy(wait, detail) => Ok(Some((wait, detail))),
                    Posted::Stream(body) => self.read(line, body, decoder, send).await.map(|()| None),
                }
            });
            let refused = refused.await;
            line.hung_up();
            let answered = |error: &AdapterError| matches!(error, AdapterError::Internal(_));
            if refused.is_ok() || refused.as_ref().is_err_and(answered) {
                line.runs.store(false, Ordering::Release);
            }
            match refused? {
                None => return Ok(()),
                Some((wait, detail)) if busy.is_some() => {
                    let _ = wait;
                    return Err(AdapterError::Full(format!("the upstream has no room: {detail}")));
                }
                Some((wait, _)) => {
                    let longest = Duration::from_millis(self.config.retry_after_max_ms);
                    busy = Some(wait.unwrap_or(RETRY_DEFAULT).min(longest));
                }
            }
        }
        Err(AdapterError::Full("the upstream has no room".into()))
    }

    async fn read(
        &self,
        line: &Line,
        mut body: hyper::body::Incoming,
        decoder: &mut Decoder,
        send: &mpsc::Sender<Result<Event, AdapterError>>,
    ) -> Result<(), AdapterError> {
        line.answered.store(true, Ordering::Release);
        let mut events = VecDeque::new();
        while !decoder.is_done() {
            let frame = timeout(self.client.silence(), body.frame()).await.map_err(|_| silent())?;
            let Some(frame) = frame else { break };
            self.beat();
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            let fed = decoder.feed(&data, &mut events);
            // The counts are there before the last piece is: whoever has that may ask for them.
            if let Some(Event::End(counts)) = events.back() {
                let _ = line.counts.set(*counts);
                if decoder.is_full() {
                    events.pop_back();
                }
            }
            for event in events.drain(..) {
                line.queued.fetch_add(1, Ordering::AcqRel);
                if send.send(Ok(event)).await.is_err() {
                    return Err(AdapterError::StreamReset("the key is gone".into()));
                }
            }
            fed.map_err(AdapterError::StreamReset)?;
        }
        decoder.finish().map_err(AdapterError::StreamReset)
    }

    /// Waits until the upstream's load is no more than the requests that are being answered, and the leaked ones.
    pub(super) async fn wait_for_end(&self) -> bool {
        let begin = Instant::now();
        let longest = Duration::from_millis(self.config.stop_wait_ms);
        let mut pause = Duration::from_millis(5);
        let mut nudged = false;
        while !self.gone.load(Ordering::Acquire) {
            // Those that are answered before and after the question are part of the load. A request on its way may be or
            // not, so it excuses none, but for the last time.
            let before: Vec<Arc<Line>> =
                lock(&self.lines).values().filter(|line| line.is_answered()).cloned().collect();
            let last = begin.elapsed() >= longest;
            let load = self.client.load().await;
            let excused = match last {
                false => before.iter().filter(|line| line.is_answered()).count(),
                true => lock(&self.lines).values().filter(|line| line.is_asked()).count(),
            };
            match load {
                Ok(load) if load <= excused as u64 + u64::from(self.leaked.load(Ordering::Acquire)) => {
                    return true;
                }
                // The process is gone, and what it ran with it.
                Err(AdapterError::WorkerDeath(_)) => return true,
                _ => {}
            }
            if last {
                return false;
            }
            if !nudged && begin.elapsed() > longest / 5 && self.client.load_may_be_stale() {
                nudged = true;
                self.client.nudge(&self.config.model).await;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
        false
    }

    fn beat(&self) {
        self.last_beat_ms.store(self.clock.now_ms(), Ordering::Release);
    }

    /// Asks for the load again and again: a beat, and the end of what was leaked.
    pub(super) async fn probe(self: Arc<Self>) {
        loop {
            sleep(Duration::from_millis(self.config.beat_ms)).await;
            let leaked = self.leaked.load(Ordering::Acquire);
            let load = match self.client.load().await {
                Ok(load) => {
                    self.beat();
                    load
                }
                Err(AdapterError::WorkerDeath(_)) => 0,
                Err(_) => continue,
            };
            // Every leaked request is part of the load. One that was leaked meanwhile is looked at next time.
            let ended = leaked.saturating_sub(u32::try_from(load).unwrap_or(u32::MAX));
            if ended > 0 {
                self.leaked.fetch_sub(ended, Ordering::AcqRel);
                self.slots.add_permits(ended as usize);
            }
        }
    }
}

/// The body of a completions request.
pub(super) fn request(model: &str, prompt: &str, max_tokens: u32, sampling: Sampling) -> Bytes {
    let mut body = serde_json::json!({
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": if sampling.greedy { 0 } else { 1 },
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !sampling.greedy {
        // Upstreams take 31 bits alike; both halves of the seed count.
        body["seed"] = ((sampling.seed ^ (sampling.seed >> 32)) & 0x7fff_ffff).into();
    }
    Bytes::from(body.to_string())
}
