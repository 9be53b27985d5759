//! The steps of a session, made of the pieces of an answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::client::Client;
use super::config::OpenAiHttpConfig;
use super::kv::Kv;
use super::line::{Line, lock};
use super::site::Site;
use super::text::{PROMPT_END_TOKEN, PieceTable};
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, CHUNK_MAX, Counts, Digest, KeyUsage, KvKey,
    OpenPlan, Opened, Payload, ReleaseAck, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::clock::Clock;
use crate::failure::Cause;
use crate::kv::{Begin, HotKvStateManager, KvLimits, StaleCoordinator};
use crate::shard::{ShardCounters, ShardHost};

/// Most slots of one upstream.
const SLOTS_MAX: u32 = 4096;
/// Fences kept for sessions without a live key.
const FENCES_MAX: usize = 100_000;

/// A model behind an upstream server: see the module.
pub struct OpenAiHttpAdapter {
    pub(super) site: Arc<Site>,
    kv: Mutex<HotKvStateManager<Kv>>,
    info: ShardInfo,
    steps_done: AtomicU64,
    prober: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prefill,
    Decode,
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
