//! A whole model behind an upstream server that speaks the OpenAI completions API with streaming: vLLM, the llama.cpp
//! server, SGLang (runner-details 14).
//!
//! | call | at the upstream |
//! |---|---|
//! | `open` | one of the upstream's slots is taken; none free, or draining: [`AdapterError::Full`] |
//! | `prefill` | kept until the prompt is whole; then `POST /v1/completions`, streamed, gives the first piece of text |
//! | `decode` | the next piece |
//! | `stop` | the connection is closed |
//! | `release` | the same, then the upstream's load is asked for until the request is gone from it |
//! | `query_step` | [`StepState::Unknown`]: an upstream remembers nothing, so a step in doubt means a new attempt |
//!
//! **Tokens** are the pieces of text that the upstream sends: a chunk is a step, whatever it holds, and has the id that
//! the [`PieceTable`] gives it. Chunks without text are no steps. The step after the last piece gives [`END_TOKEN`].
//! What is billed are the [`Counts`] of the upstream's `usage`, never more than was asked for; a usage below the
//! number of chunks ends the stream, for then chunks came twice. The digest of a token's logits is that of its text.
//!
//! **A prompt** is the bytes of its text and [`PROMPT_END_TOKEN`] ([`PieceTable`] puts it there), in chunks as for any
//! shard. `max_tokens` is what the plan leaves after the prompt: `max_positions` = prompt + new tokens.
//!
//! **Slots.** An upstream belongs to one adapter alone, since its load must be ours: the sum of the gauges for running
//! and waiting requests at `GET /metrics` (vLLM, SGLang, llama.cpp with `--metrics`), else the busy slots at
//! `GET /slots`; an upstream with neither is refused. A closed request is gone when the load is no more than the requests
//! that are being answered. The load names none: one that the upstream has answered in full, but whose end is not yet
//! read here, can hide another. vLLM's gauges stand still once everything was aborted, so one request of one token sets
//! them going again. What is not gone after 10 s is leaked: its slot is lost and nothing is opened until the load shows
//! that it did end.
//!
//! **Failover** compares pieces: adapters of one model share a table, so that equal pieces are equal tokens. An upstream
//! that puts several tokens into one chunk may cut the same text differently the next time; that attempt then ends as a
//! mismatch and is not billed.
//!
//! **Liveness.** The load is asked for each second, and an answer is a beat of the process, as is a part of a stream.
//! Progress is another matter and judged by the deadlines of first token and inter-token time. Every wait here has an
//! end of its own as well.
//!
//! Plain HTTP only: the workspace has no TLS. An upstream on another machine needs a TLS proxy in front of this node.

mod client;
mod sse;
#[cfg(test)]
mod tests;
mod text;
pub mod upstream;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

use self::client::{Client, Posted, broken, silent};
use self::sse::{Decoder, Event};
pub use self::sse::{LINE_MAX, PIECE_MAX, TEXT_MAX};
pub use self::text::{END_TOKEN, PROMPT_END_TOKEN, PieceTable};
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, CHUNK_MAX, Counts, Digest, KeyUsage, KvKey,
    OpenPlan, Opened, Payload, ReleaseAck, Sampling, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::clock::Clock;
use crate::failure::Cause;
use crate::kv::{Begin, HotKvStateManager, KvLimits, StaleCoordinator};
use crate::shard::{ShardCounters, ShardHost};

/// Pieces that wait for their step; the connection is not read beyond them.
const QUEUE_MAX: usize = 16;
/// Most slots of one upstream.
const SLOTS_MAX: u32 = 4096;
/// Fences kept for sessions without a live key.
const FENCES_MAX: usize = 100_000;
/// Wait before a request that found no room is sent again, if the upstream names none.
const RETRY_DEFAULT: Duration = Duration::from_secs(1);

/// An upstream server and the limits it is used within.
#[derive(Clone)]
pub struct OpenAiHttpConfig {
    /// `http://host[:port][/prefix]`; `/v1/completions` follows.
    pub base_url: String,
    /// Name of the model at the upstream.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Requests the upstream may have at a time.
    pub slots: u32,
    /// Context length, tokens; prompts are measured in bytes, which are hardly ever fewer.
    pub max_positions: u32,
    /// Longest wait for a connection, milliseconds.
    pub connect_ms: u64,
    /// Longest wait for the next byte, milliseconds. The runner's deadlines are to be shorter.
    pub silence_ms: u64,
    /// Longest wait before a request that found no room is sent again, milliseconds.
    pub retry_after_max_ms: u64,
    /// Longest wait until a closed request is gone from the upstream, milliseconds.
    pub stop_wait_ms: u64,
    /// Time between two questions for the load, milliseconds.
    pub beat_ms: u64,
}

impl OpenAiHttpConfig {
    /// The usual limits: 5 s to connect, 60 s of silence, 5 s of `Retry-After`, 10 s to stop, a beat each second.
    #[must_use]
    pub fn new(
        base_url: impl Into<String>,
        model: impl Into<String>,
        slots: u32,
        max_positions: u32,
    ) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api_key: None,
            slots,
            max_positions,
            connect_ms: 5_000,
            silence_ms: 60_000,
            retry_after_max_ms: 5_000,
            stop_wait_ms: 10_000,
            beat_ms: 1_000,
        }
    }
}

impl fmt::Debug for OpenAiHttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base_url, model, api_key, slots, max_positions, .. } = self;
        f.debug_struct("OpenAiHttpConfig")
            .field("base_url", base_url)
            .field("model", model)
            .field("api_key", &api_key.as_ref().map(|_| "…"))
            .field("slots", slots)
            .field("max_positions", max_positions)
            .finish_non_exhaustive()
    }
}

/// A model behind an upstream server: see the module.
pub struct OpenAiHttpAdapter {
    site: Arc<Site>,
    kv: Mutex<HotKvStateManager<Kv>>,
    info: ShardInfo,
    steps_done: AtomicU64,
    prober: JoinHandle<()>,
}

/// What outlives a key: its request may still run at the upstream.
struct Site {
    client: Client,
    config: OpenAiHttpConfig,
    pieces: Arc<PieceTable>,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    slots: Arc<Semaphore>,
    lines: Mutex<BTreeMap<KvKey, Arc<Line>>>,
    leaked: AtomicU32,
    last_beat_ms: AtomicU64,
    gone: AtomicBool,
}

/// One key's request, as seen from outside its steps.
struct Line {
    key: KvKey,
    reader: Mutex<Option<AbortHandle>>,
    /// No more steps; the connection is or will be closed.
    cut: AtomicBool,
    /// The request is out and its connection open.
    asked: AtomicBool,
    /// And its stream has begun: it is part of the load.
    answered: AtomicBool,
    /// The upstream got the request and did not say that it ended.
    runs: AtomicBool,
    queued: AtomicU32,
    counts: OnceLock<Counts>,
    /// Whether the request was seen to end, once that is known.
    closed: watch::Sender<Option<bool>>,
}

/// What a key holds. Dropping it closes the connection and gives the slot back when the request is seen to end.
struct Kv {
    site: Arc<Site>,
    line: Arc<Line>,
    slot: Option<OwnedSemaphorePermit>,
    /// What came of the prompt before its last chunk.
    prompt: Vec<u8>,
    stream: Option<Stream>,
}

struct Stream {
    prompt: Digest,
    pieces: mpsc::Receiver<Result<Event, AdapterError>>,
    reader: Option<JoinHandle<()>>,
    /// The token that the next step is to feed back.
    last: Option<u32>,
    failed: Option<AdapterError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prefill,
    Decode,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenAiHttpAdapter {
    /// Asks the upstream for its load once and begins to watch it. Adapters whose attempts are to compare share
    /// `pieces`.
    ///
    /// # Errors
    /// [`AdapterError::Internal`] for settings that cannot be, outside a tokio runtime, and for an upstream that shows
    /// no load; else why it cannot be reached.
    pub async fn connect(
        config: OpenAiHttpConfig,
        pieces: Arc<PieceTable>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AdapterError> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|_| AdapterError::Internal("no tokio runtime".into()))?;
        if !(1..=SLOTS_MAX).contains(&config.slots) || !(2..=1 << 20).contains(&config.max_positions) {
            return Err(AdapterError::Internal(format!(
                "1 to {SLOTS_MAX} slots of 2 to {} positions are possible",
                1 << 20
            )));
        }
        let client = Client::new(
            &config.base_url,
            config.api_key.as_deref(),
            Duration::from_millis(config.connect_ms),
            Duration::from_millis(config.silence_ms),
        )?;
        client.load().await?;
        let mut model = Sha256::new();
        model.update(b"holdfast.openai-http.v1\0");
        model.update(config.model.as_bytes());
        let info = ShardInfo {
            shard_id: format!("openai-http:{}", client.name()),
            layers: (0, 1),
            model_layers: 1,
            model_digest: model.finalize().into(),
            d_model: 1,
            vocab: u32::MAX,
            max_positions: config.max_positions,
            capacity: config.slots.saturating_mul(config.max_positions),
            chunk_max: CHUNK_MAX,
        };
        let limits =
            KvLimits { capacity: info.capacity, max_positions: info.max_positions, fences: FENCES_MAX };
        let site = Arc::new(Site {
            client,
            pieces,
            slots: Arc::new(Semaphore::new(config.slots as usize)),
            lines: Mutex::default(),
            leaked: AtomicU32::new(0),
            last_beat_ms: AtomicU64::new(clock.now_ms()),
            gone: AtomicBool::new(false),
            config,
            clock,
            runtime: runtime.clone(),
        });
        let prober = runtime.spawn(site.clone().probe());
        Ok(Self {
            site,
            kv: Mutex::new(HotKvStateManager::new(limits)),
            info,
            steps_done: AtomicU64::new(0),
            prober,
        })
    }

    /// Nothing is opened any more, as requests that were closed still run at the upstream.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.leaked() > 0
    }

    /// Closed requests that still run at the upstream, as far as is known.
    #[must_use]
    pub fn leaked(&self) -> u32 {
        self.site.leaked.load(Ordering::Acquire)
    }

    async fn open_key(&self, key: KvKey, plan: OpenPlan) -> Result<Opened, AdapterError> {
        // Refuses a stale epoch before anything else happens.
        lock(&self.kv).query(key, 0, self.site.clock.now_ms())?;
        // What this session held before gives its slot back first.
        for line in self.site.session(key) {
            if line.key.epoch < key.epoch {
                self.release_line(&line).await;
            } else if line.cut.load(Ordering::Acquire) {
                line.seen_closed().await;
            }
        }
        let mut slot = match self.leaked() {
            0 => self.site.slots.clone().try_acquire_owned().ok(),
            _ => None,
        };
        let had = slot.is_some();
        let mut made = false;
        let now_ms = self.site.clock.now_ms();
        let mut kv = lock(&self.kv);
        let opened = kv.open(key, plan, now_ms, || {
            made = true;
            Kv::new(&self.site, key, slot.take())
        })?;
        if made && !had {
            kv.release(key, now_ms);
            return Err(AdapterError::Full(match self.leaked() {
                0 => format!(
                    "all {} slots of the upstream are taken",
                    self.info.capacity / self.info.max_positions
                ),
                leaked => format!("draining: {leaked} closed requests still run at the upstream"),
            }));
        }
        Ok(opened)
    }

    /// Releases a key and waits until its slot is free or counted as leaked. A step that runs there ends first, which
    /// takes somebody who polls it: the wait is bounded.
    async fn release_line(&self, line: &Line) {
        line.cut();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(self.site.config.stop_wait_ms) {
            let ack = lock(&self.kv).release(line.key, self.site.clock.now_ms());
            if !matches!(ack, ReleaseAck::Busy { .. }) {
                line.seen_closed().await;
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// A step that runs holds its key until it ends; where the lease is over it is ended.
    fn cut_expired(&self) {
        let usage = lock(&self.kv).usage(self.site.clock.now_ms());
        let over = usage.keys.iter().filter(|usage| usage.lease_left_ms == 0);
        over.filter_map(|usage| self.site.line(usage.key)).for_each(|line| line.cut());
    }

    async fn step(
        &self,
        key: KvKey,
        step: StepRef,
        bundle: Bundle,
        kind: Kind,
    ) -> Result<StepOut, AdapterError> {
        let input = self.check(&bundle, kind)?;
        let rows = bundle.payload.rows();
        let begun = lock(&self.kv).begin(key, step, bundle.position, rows, self.site.clock.now_ms())?;
        let (kv, plan) = match begun {
            Begin::Replay(out) => return Ok(out),
            Begin::Run { kv, plan } => (kv, plan),
        };
        let mut running = Running { adapter: self, key, kv: Some(kv) };
        let kv = running.kv.as_mut().expect("set one line above");
        if kind == Kind::Prefill && kv.stream.is_none() {
            let (part, whole) = prompt_part(&input)?;
            if !whole {
                kv.prompt.extend(part);
                // Nobody asks for the token of a chunk that is not the last.
                return self.finish(running, PROMPT_END_TOKEN, Sha256::digest(b"").into());
            }
            let rows = bundle.position.saturating_add(rows);
            let text = [kv.prompt.as_slice(), &part].concat();
            kv.stream = Some(kv.site.post(&kv.line, text, rows, step.fingerprint, plan)?);
        }
        let Some(stream) = &mut kv.stream else {
            return Err(AdapterError::MalformedBundle("the prompt has no end".into()));
        };
        match kind {
            Kind::Prefill if stream.last.is_some() => {
                return Err(AdapterError::MalformedBundle("the prompt has ended".into()));
            }
            // The same prefill may come again after its first future was dropped.
            Kind::Prefill if stream.prompt != step.fingerprint => {
                return Err(AdapterError::Conflict("another prompt was sent".into()));
            }
            Kind::Decode if stream.last != input.first().copied() => {
                return Err(AdapterError::Conflict("the token is not the one the upstream gave".into()));
            }
            _ => {}
        }
        let (token, digest) = stream.next(&kv.site.pieces, &kv.line).await?;
        if kv.line.cut.load(Ordering::Acquire) {
            return Err(AdapterError::StreamReset("stopped".into()));
        }
        stream.last = Some(token);
        self.finish(running, token, digest)
    }

    fn finish(
        &self,
        mut running: Running<'_>,
        token: u32,
        logits_digest: Digest,
    ) -> Result<StepOut, AdapterError> {
        let out = StepOut::Token { token, logits_digest };
        let kv = running.kv.take().expect("a running step has it until here");
        lock(&self.kv).finish(running.key, kv, &out, self.site.clock.now_ms())?;
        self.steps_done.fetch_add(1, Ordering::Relaxed);
        Ok(out)
    }

    /// The bundle's own checks, in the order of the contract; gives its tokens.
    fn check(&self, bundle: &Bundle, kind: Kind) -> Result<Vec<u32>, AdapterError> {
        let bad = |what: &str| Err(AdapterError::MalformedBundle(what.to_owned()));
        if bundle.digest != Bundle::digest_of(bundle.position, &bundle.payload) {
            return bad("the digest is another");
        }
        let Payload::Tokens(tokens) = &bundle.payload else { return bad("tokens are wanted here") };
        let most = if kind == Kind::Prefill { self.info.chunk_max as usize } else { 1 };
        if !(1..=most).contains(&tokens.len()) {
            return bad(&format!("{} rows where 1 to {most} are possible", tokens.len()));
        }
        if tokens.contains(&u32::MAX) {
            return bad("a token beyond the vocabulary");
        }
        Ok(tokens.clone())
    }
}

/// A step between `begin` and its end; whatever happens, also if its future is dropped, the KV goes back.
struct Running<'a> {
    adapter: &'a OpenAiHttpAdapter,
    key: KvKey,
    kv: Option<Kv>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(kv) = self.kv.take() {
            lock(&self.adapter.kv).fail(self.key, kv, self.adapter.site.clock.now_ms());
        }
    }
}

impl Stream {
    /// The next token. Dropping the future loses none.
    async fn next(&mut self, pieces: &PieceTable, line: &Line) -> Result<(u32, Digest), AdapterError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.last == Some(END_TOKEN) {
            return Err(AdapterError::Internal("the answer has ended".into()));
        }
        let event = self.pieces.recv().await;
        let event =
            event.unwrap_or_else(|| Err(AdapterError::StreamReset("the connection was closed here".into())));
        line.queued.fetch_sub(u32::from(event.is_ok()), Ordering::AcqRel);
        let result = match event {
            Ok(Event::Piece(text)) => match pieces.intern(&text) {
                Some(id) => Ok((id, Sha256::digest(text.as_bytes()).into())),
                None => Err(AdapterError::Internal("no ids are left for pieces of text".into())),
            },
            Ok(Event::End(_)) => Ok((END_TOKEN, Sha256::digest(b"").into())),
            Err(error) => Err(error),
        };
        self.failed = result.as_ref().err().cloned();
        result
    }
}

impl Line {
    /// No more steps; the connection closes as soon as its task is dropped.
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        if let Some(reader) = &*lock(&self.reader) {
            reader.abort();
        }
    }

    fn hung_up(&self) {
        self.asked.store(false, Ordering::Release);
        self.answered.store(false, Ordering::Release);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) && !self.cut.load(Ordering::Acquire)
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire) && self.is_asked()
    }

    /// Waits until the request was seen to end, or not to.
    async fn seen_closed(&self) -> bool {
        let mut closed = self.closed.subscribe();
        // The sender is this line's own, so the wait ends with an answer.
        closed.wait_for(Option::is_some).await.is_ok_and(|closed| *closed == Some(true))
    }
}

impl Kv {
    fn new(site: &Arc<Site>, key: KvKey, slot: Option<OwnedSemaphorePermit>) -> Self {
        let line = Arc::new(Line {
            key,
            reader: Mutex::default(),
            cut: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            counts: OnceLock::new(),
            closed: watch::Sender::new(None),
        });
        lock(&site.lines).insert(key, line.clone());
        Self { site: site.clone(), line, slot, prompt: Vec::new(), stream: None }
    }
}

impl Drop for Kv {
    fn drop(&mut self) {
        self.line.cut();
        let (site, line, slot) = (self.site.clone(), self.line.clone(), self.slot.take());
        match self.stream.as_mut().and_then(|stream| stream.reader.take()) {
            None => {
                drop(slot);
                site.close(&line, true);
            }
            Some(reader) => {
                let runtime = site.runtime.clone();
                runtime.spawn(async move {
                    // However it ends, its connection is closed afterwards.
                    let _ = reader.await;
                    line.hung_up();
                    let ended = !line.runs.load(Ordering::Acquire) || site.wait_for_end().await;
                    match slot {
                        Some(slot) if !ended => {
                            slot.forget();
                            site.leaked.fetch_add(1, Ordering::AcqRel);
                            tracing::warn!(session = %line.key.session, epoch = line.key.epoch,
                                "a closed request still runs at the upstream: no new ones until it ends");
                        }
                        slot => drop(slot),
                    }
                    site.close(&line, ended);
                });
            }
        }
    }
}

impl Site {
    /// Lines of the key's session, up to its epoch.
    fn session(&self, key: KvKey) -> Vec<Arc<Line>> {
        lock(&self.lines).range(KvKey::new(key.session, 0)..=key).map(|(_, line)| line.clone()).collect()
    }

    fn line(&self, key: KvKey) -> Option<Arc<Line>> {
        lock(&self.lines).get(&key).cloned()
    }

    fn close(&self, line: &Arc<Line>, ended: bool) {
        let mut lines = lock(&self.lines);
        if lines.get(&line.key).is_some_and(|now| Arc::ptr_eq(now, line)) {
            lines.remove(&line.key);
        }
        drop(lines);
        line.closed.send_replace(Some(ended));
    }

    /// Begins a request.
    fn post(
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
    async fn wait_for_end(&self) -> bool {
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
    async fn probe(self: Arc<Self>) {
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

impl Drop for OpenAiHttpAdapter {
    fn drop(&mut self) {
        self.prober.abort();
        self.site.gone.store(true, Ordering::Release);
    }
}

impl BoundaryAdapter for OpenAiHttpAdapter {
    fn describe(&self) -> ShardInfo {
        self.info.clone()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        Box::pin(self.open_key(key, plan))
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.step(key, step, bundle, Kind::Prefill))
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.step(key, step, bundle, Kind::Decode))
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        let known = lock(&self.kv).query(key, step, self.site.clock.now_ms());
        Box::pin(std::future::ready(known.map(|_| StepState::Unknown)))
    }

    fn stop(&self, key: KvKey, _cause: Cause) -> AdapterFuture<'_, StopAck> {
        let ack = lock(&self.kv).stop(key);
        if let Some(line) = self.site.line(key) {
            line.cut();
        }
        Box::pin(std::future::ready(Ok(ack)))
    }

    /// [`AdapterError::StreamReset`] once for a request that did not end in time; the key is absent from then on.
    fn release(&self, key: KvKey, _cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move {
            let Some(line) = self.site.line(key) else { return Ok(ReleaseAck::WasAbsent) };
            let buffers = line.queued.load(Ordering::Acquire);
            line.cut();
            let ack = lock(&self.kv).release(key, self.site.clock.now_ms());
            if let ReleaseAck::Busy { .. } = ack {
                return Ok(ack);
            }
            if !line.seen_closed().await {
                return Err(AdapterError::StreamReset("the request still runs at the upstream".into()));
            }
            Ok(match ack {
                ReleaseAck::Released { rows, .. } => ReleaseAck::Released { rows, buffers },
                other => other,
            })
        })
    }

    fn beat(&self, keys: &[KvKey]) {
        lock(&self.kv).renew(keys, self.site.clock.now_ms());
        self.cut_expired();
    }

    fn last_beat_ms(&self) -> Option<u64> {
        Some(self.site.last_beat_ms.load(Ordering::Acquire))
    }

    fn counts(&self, key: KvKey) -> Option<Counts> {
        self.site.line(key)?.counts.get().copied()
    }

    /// A key whose request was closed and not yet seen to end is listed without rows.
    fn usage(&self) -> Usage {
        let live = lock(&self.kv).usage(self.site.clock.now_ms());
        let mut keys: BTreeMap<KvKey, KeyUsage> =
            live.keys.into_iter().map(|usage| (usage.key, usage)).collect();
        for line in lock(&self.site.lines).values() {
            let none = KeyUsage { key: line.key, rows: 0, reserved: 0, buffers: 0, lease_left_ms: 0 };
            keys.entry(line.key).or_insert(none).buffers += line.queued.load(Ordering::Acquire);
        }
        Usage { keys: keys.into_values().collect() }
    }
}

impl ShardHost for OpenAiHttpAdapter {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        let mut kv = lock(&self.kv);
        let before = kv.generation();
        kv.hello(generation, self.site.clock.now_ms())?;
        drop(kv);
        if generation > before {
            // What is left of the lower generations are steps that run.
            lock(&self.site.lines).values().for_each(|line| line.cut());
        }
        Ok(())
    }

    fn reap(&self) {
        lock(&self.kv).reap(self.site.clock.now_ms());
        self.cut_expired();
    }

    fn counters(&self) -> ShardCounters {
        let kv = lock(&self.kv);
        ShardCounters {
            steps_done: self.steps_done.load(Ordering::Relaxed),
            busy: kv.busy(),
            free_rows: kv.free_rows(),
        }
    }
}

/// The bytes of a chunk of prompt, and whether it is the last.
fn prompt_part(tokens: &[u32]) -> Result<(Vec<u8>, bool), AdapterError> {
    let (bytes, whole) = match tokens.split_last() {
        Some((&PROMPT_END_TOKEN, bytes)) => (bytes, true),
        _ => (tokens, false),
    };
    match bytes.iter().map(|id| u8::try_from(*id)).collect() {
        Ok(bytes) => Ok((bytes, whole)),
        Err(_) => Err(AdapterError::MalformedBundle("a prompt is bytes and its end".into())),
    }
}

/// The body of a completions request.
fn request(model: &str, prompt: &str, max_tokens: u32, sampling: Sampling) -> Bytes {
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
