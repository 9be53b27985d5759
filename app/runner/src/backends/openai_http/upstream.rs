//! A small upstream server with faults on purpose: the other side of [`OpenAiHttpAdapter`](super::OpenAiHttpAdapter)
//! in tests and drills, in this process or in one of its own.
//!
//! It answers `POST /v1/completions` with the pieces that [`piece`] makes of the prompt, `GET /metrics` or `GET /slots`
//! with its running requests. A request runs until its last piece was sent or its client is seen to have gone; clients
//! are watched during every wait. What can go wrong, and where, is a [`FaultPlan`].

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Most bytes of a request.
const REQUEST_MAX: usize = 4 << 20;
/// Longest wait for a request.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Most clients at a time.
const CLIENTS_MAX: u32 = 1024;

/// Where a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// When the connection is there, before the request is read.
    Accept,
    /// When the request is read, before the answer's head.
    Request,
    /// After the head.
    Head,
    /// After this many pieces.
    Tokens(u32),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing more is said; the connection stays open.
    Silence,
    /// The connection is reset.
    Reset,
    /// The answer ends in good order, too early.
    EarlyEnd,
    /// Bytes that are no HTTP before the head, no event stream after it.
    GarbageBytes,
    /// A chunk that is no JSON.
    GarbageJson,
    /// A chunk with an error in it.
    ErrorChunk,
    /// Headers for 1 MiB; before the head only.
    OversizeHead,
    /// A line that does not end for 2 MiB.
    OversizeLine,
    /// Comments for ever.
    EndlessComments,
    /// Pieces for ever.
    EndlessTokens,
    /// Each piece comes twice.
    Duplicates,
    /// All but `[DONE]`.
    NoDone,
    /// All but the reason it finished.
    NoFinishReason,
    /// All but the usage.
    NoUsage,
    /// This many times as many tokens in the usage as there were.
    UsageTimes(u32),
    /// An answer that calls itself JSON.
    ContentType,
    /// A refusal with this status and `Retry-After` in seconds.
    Status(u16, Option<u32>),
    /// The request runs on when its client has gone.
    RunsOn,
    /// vLLM's gauges keep their value from the last piece made when a request is aborted.
    StaleGauges,
}

/// A fault, where it strikes, and how many requests it hits. Faults without a place of their own ignore the phase.
///
/// As text: `silence@accept`, `reset@tokens:3`, `status:429:1@request x1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    /// What.
    pub fault: Fault,
    /// Where.
    pub phase: Phase,
    /// How many completions requests, from now on.
    pub hits: u32,
}

impl FaultPlan {
    /// At every request.
    #[must_use]
    pub const fn always(fault: Fault, phase: Phase) -> Self {
        Self { fault, phase, hits: u32::MAX }
    }
}

/// A fault plan that nobody can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no fault plan: {0}; as in `reset@tokens:3` or `status:429:1@request x1`")]
pub struct FaultSyntax(String);

impl FromStr for FaultPlan {
    type Err = FaultSyntax;

    fn from_str(text: &str) -> Result<Self, FaultSyntax> {
        let bad = || FaultSyntax(text.to_owned());
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
        let (plan, hits) = match text.split_once(" x") {
            Some((plan, hits)) => (plan, number(hits)?),
            None => (text, u32::MAX),
        };
        let (fault, phase) = plan.split_once('@').unwrap_or((plan, "request"));
        let parts: Vec<&str> = fault.split(':').collect();
        let fault = match parts[..] {
            ["silence"] => Fault::Silence,
            ["reset"] => Fault::Reset,
            ["early-end"] => Fault::EarlyEnd,
            ["garbage-bytes"] => Fault::GarbageBytes,
            ["garbage-json"] => Fault::GarbageJson,
            ["error-chunk"] => Fault::ErrorChunk,
            ["oversize-head"] => Fault::OversizeHead,
            ["oversize-line"] => Fault::OversizeLine,
            ["endless-comments"] => Fault::EndlessComments,
            ["endless-tokens"] => Fault::EndlessTokens,
            ["duplicates"] => Fault::Duplicates,
            ["no-done"] => Fault::NoDone,
            ["no-finish-reason"] => Fault::NoFinishReason,
            ["no-usage"] => Fault::NoUsage,
            ["usage-times", times] => Fault::UsageTimes(number(times)?),
            ["content-type"] => Fault::ContentType,
            ["status", code] => Fault::Status(code.parse().map_err(|_| bad())?, None),
            ["status", code, after] => Fault::Status(code.parse().map_err(|_| bad())?, Some(number(after)?)),
            ["runs-on"] => Fault::RunsOn,
            ["stale-gauges"] => Fault::StaleGauges,
            _ => return Err(bad()),
        };
        let phase = match phase.split(':').collect::<Vec<_>>()[..] {
            ["accept"] => Phase::Accept,
            ["request"] => Phase::Request,
            ["head"] => Phase::Head,
            ["tokens", count] => Phase::Tokens(number(count)?),
            _ => return Err(bad()),
        };
        Ok(Self { fault, phase, hits })
    }
}

/// How the upstream shows its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStyle {
    /// `GET /metrics` with vLLM's gauges.
    Vllm,
    /// `GET /slots` with llama.cpp's list.
    Slots,
    /// Not at all.
    Hidden,
}

/// An upstream's settings and what it has seen.
#[derive(Debug)]
pub struct Upstream {
    style: LoadStyle,
    token_ms: AtomicU64,
    /// Pieces before the answer finishes by itself; 0: never.
    stop_after: AtomicU32,
    fault: Mutex<Option<FaultPlan>>,
    clients: AtomicU32,
    running: AtomicU32,
    gauge: AtomicU32,
    requests: AtomicU64,
    pieces: AtomicU64,
    last_body: Mutex<String>,
    key: Option<String>,
}

impl Upstream {
    /// Without faults; a piece each `token_ms`; with a key it wants that as a bearer token.
    #[must_use]
    pub fn new(style: LoadStyle, token_ms: u64, key: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            style,
            token_ms: token_ms.into(),
            stop_after: 0.into(),
            fault: Mutex::default(),
            clients: 0.into(),
            running: 0.into(),
            gauge: 0.into(),
            requests: 0.into(),
            pieces: 0.into(),
            last_body: Mutex::default(),
            key,
        })
    }

    /// What goes wrong from here on.
    pub fn set_fault(&self, plan: Option<FaultPlan>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }

    /// Milliseconds per piece from here on.
    pub fn set_token_ms(&self, token_ms: u64) {
        self.token_ms.store(token_ms, Ordering::Release);
    }

    /// Answers stop by themselves after this many pieces; 0: when they have as many as asked for.
    pub fn set_stop_after(&self, pieces: u32) {
        self.stop_after.store(pieces, Ordering::Release);
    }

    /// Completions requests that run now.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Acquire)
    }

    /// Connections that are open now.
    #[must_use]
    pub fn clients(&self) -> u32 {
        self.clients.load(Ordering::Acquire)
    }

    /// Completions requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// Pieces made so far, sent or not.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Acquire)
    }

    /// Body of the last completions request.
    #[must_use]
    pub fn last_body(&self) -> String {
        self.last_body.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The plan for a request at `phase`, used up by one. A plan for another phase waits.
    fn hit(&self) -> Option<FaultPlan> {
        let mut slot = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = slot.as_mut()?;
        if plan.hits == 0 {
            return None;
        }
        if plan.hits != u32::MAX {
            plan.hits -= 1;
        }
        Some(*plan)
    }

    fn peek(&self) -> Option<FaultPlan> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Piece `index` of the answer to a prompt: a word picked by SHA-256 of prompt, zero byte and index (u32 big-endian).
#[must_use]
pub fn piece(prompt: &str, index: u32) -> &'static str {
    const WORDS: [&str; 16] = [
        " the",
        " of",
        "\n",
        " naïve",
        " 東京",
        " a",
        " river",
        ".",
        " \"quoted\"",
        " ha",
        " ha",
        "…",
        " stone",
        " 🦀",
        " holds",
        " fast",
    ];
    let mut hash = Sha256::new();
    hash.update(prompt.as_bytes());
    hash.update([0]);
    hash.update(index.to_be_bytes());
    WORDS[usize::from(hash.finalize()[0]) % WORDS.len()]
}

/// One added to a count for as long as it lives.
struct Counted(Arc<Upstream>, fn(&Upstream) -> &AtomicU32);

impl Counted {
    fn new(upstream: &Arc<Upstream>, which: fn(&Upstream) -> &AtomicU32) -> Self {
        which(upstream).fetch_add(1, Ordering::AcqRel);
        Self(upstream.clone(), which)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves until dropped or the listener fails; connections end with it.
///
/// # Errors
/// The listener's.
pub async fn serve_upstream(listener: TcpListener, upstream: Arc<Upstream>) -> io::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                if upstream.clients() < CLIENTS_MAX {
                    let counted = Counted::new(&upstream, |upstream| &upstream.clients);
                    let upstream = upstream.clone();
                    tasks.spawn(async move {
                        let _counted = counted;
                        // A client that goes away or talks nonsense is its own affair.
                        if let Err(error) = client(stream, &upstream).await {
                            tracing::debug!(%error, "upstream client");
                        }
                    });
                }
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Why an answer ended before its end.
#[derive(Debug)]
enum Cut {
    Gone,
    Faulty,
    Io(io::Error),
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the client has gone"),
            Self::Faulty => f.write_str("a fault on purpose"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

struct Asked {
    line: String,
    head: String,
    body: Vec<u8>,
}

async fn client(mut stream: TcpStream, upstream: &Arc<Upstream>) -> Result<(), Cut> {
    stream.set_nodelay(true)?;
    // Only completions are hit: what the load query meets would say nothing about them. Before the request is read, a
    // look at its first byte tells the two apart.
    let mut first = [0];
    if timeout(REQUEST_WAIT, stream.peek(&mut first)).await.map_err(|_| Cut::Gone)?? == 0 {
        return Err(Cut::Gone);
    }
    let post = first == *b"P";
    if post && upstream.peek().is_some_and(|plan| plan.phase == Phase::Accept) {
        let plan = upstream.hit();
        if let Some(plan) = plan {
            upstream.requests.fetch_add(1, Ordering::AcqRel);
            let mut answer = Answer { stream, upstream, plan: Some(plan), head_sent: false };
            return answer.strike(Phase::Accept).await;
        }
    }
    let asked = timeout(REQUEST_WAIT, read_request(&mut stream)).await.map_err(|_| Cut::Gone)??;
    let mut words = asked.line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let running = upstream.running();
    match (method, path, upstream.style) {
        ("GET", "/metrics", LoadStyle::Vllm) => {
            let stale = upstream.peek().is_some_and(|plan| plan.fault == Fault::StaleGauges);
            let running = if stale { upstream.gauge.load(Ordering::Acquire) } else { running };
            let text = format!(
                "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine=\"0\"}} {running}.0\n\
                 # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} 0.0\n"
            );
            respond(&mut stream, 200, "text/plain; version=0.0.4", "", text.as_bytes()).await?;
        }
        ("GET", "/slots", LoadStyle::Slots) => {
            let slots: Vec<_> = (0..running.max(4))
                .map(|id| serde_json::json!({"id": id, "is_processing": id < running}))
                .collect();
            respond(
                &mut stream,
                200,
                "application/json",
                "",
                serde_json::json!(slots).to_string().as_bytes(),
            )
            .await?;
        }
        ("POST", "/v1/completions", _) => completions(stream, upstream, &asked).await?,
        _ => respond(&mut stream, 404, "application/json", "", b"{\"error\":\"no such path\"}").await?,
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream) -> Result<Asked, Cut> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        read_more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let end = head_end + 4 + length.unwrap_or(0).min(REQUEST_MAX);
    while bytes.len() < end {
        read_more(stream, &mut bytes).await?;
    }
    let line = head.lines().next().unwrap_or_default().to_owned();
    Ok(Asked { line, head, body: bytes[head_end + 4..end].to_vec() })
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<(), Cut> {
    if bytes.len() > REQUEST_MAX || stream.read_buf(bytes).await? == 0 {
        return Err(Cut::Gone);
    }
    Ok(())
}

async fn respond(
    stream: &mut TcpStream,
    status: u16,
    kind: &str,
    extra: &str,
    body: &[u8],
) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n{extra}\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    stream.shutdown().await
}

/// An answer on its way.
struct Answer<'a> {
    stream: TcpStream,
    upstream: &'a Arc<Upstream>,
    plan: Option<FaultPlan>,
    head_sent: bool,
}

impl Answer<'_> {
    fn has(&self, fault: Fault) -> bool {
        self.plan.is_some_and(|plan| plan.fault == fault)
    }

    /// Waits, and ends when the client goes. What it still sends does not matter.
    async fn wait(&mut self, time: Duration) -> Result<(), Cut> {
        if self.runs_on() {
            sleep(time.max(Duration::from_millis(1))).await;
            return Ok(());
        }
        let until = Instant::now() + time;
        let mut bytes = [0; 1024];
        loop {
            match timeout_at(until, self.stream.read(&mut bytes)).await {
                Err(_) => return Ok(()),
                Ok(Ok(0) | Err(_)) => return Err(Cut::Gone),
                Ok(Ok(_)) => {}
            }
        }
    }

    /// For as long as that fault is the plan.
    fn runs_on(&self) -> bool {
        self.has(Fault::RunsOn) && self.upstream.peek().is_some_and(|plan| plan.fault == Fault::RunsOn)
    }

    /// One HTTP chunk, sent in two parts with the cut in its middle, wherever that falls.
    async fn chunk(&mut self, data: &[u8]) -> Result<(), Cut> {
        let (first, second) = data.split_at(data.len() / 2);
        for part in [first, second] {
            if !part.is_empty() {
                let sent = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
                let written = self.stream.write_all(&sent).await;
                if !self.runs_on() {
                    written?;
                }
            }
        }
        Ok(())
    }

    async fn event(&mut self, data: &str) -> Result<(), Cut> {
        self.chunk(format!("data: {data}\n\n").as_bytes()).await
    }

    async fn end(&mut self) -> Result<(), Cut> {
        self.stream.write_all(b"0\r\n\r\n").await?;
        Ok(self.stream.shutdown().await?)
    }

    /// Does what the plan says if this is the place for it.
    async fn strike(&mut self, here: Phase) -> Result<(), Cut> {
        let Some(plan) = self.plan.filter(|plan| plan.phase == here) else { return Ok(()) };
        match plan.fault {
            Fault::Silence => loop {
                self.wait(Duration::from_secs(1)).await?;
            },
            Fault::Reset => {
                self.stream.set_zero_linger()?;
                return Err(Cut::Faulty);
            }
            Fault::EarlyEnd if self.head_sent => self.end().await?,
            Fault::EarlyEnd => self.stream.shutdown().await?,
            Fault::GarbageBytes => {
                let garbage: Vec<u8> =
                    (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect();
                if self.head_sent {
                    self.chunk(&garbage).await?;
                    self.chunk(b"\n\n").await?;
                } else {
                    self.stream.write_all(&garbage).await?;
                }
                self.wait(Duration::from_secs(3600)).await?;
            }
            Fault::GarbageJson => {
                self.event("{\"choices\": [{\"text\": ").await?;
                self.wait(Duration::from_secs(3600)).await?;
            }
            Fault::ErrorChunk => {
                self.event("{\"error\": {\"message\": \"out of memory\", \"code\": 500}}").await?;
                self.wait(Duration::from_secs(3600)).await?;
            }
            Fault::OversizeHead => {
                self.stream.write_all(b"HTTP/1.1 200 OK\r\nx-pad: ").await?;
                for _ in 0..16 {
                    self.stream.write_all(&[b'x'; 64 << 10]).await?;
                }
                self.wait(Duration::from_secs(3600)).await?;
            }
            Fault::OversizeLine => {
                self.chunk(b"data: {\"choices\": [{\"text\": \"").await?;
                for _ in 0..32 {
                    self.chunk(&[b'x'; 64 << 10]).await?;
                }
                self.wait(Duration::from_secs(3600)).await?;
            }
            Fault::EndlessComments => loop {
                self.chunk(&b": still here\n\n".repeat(256)).await?;
                self.wait(Duration::from_micros(100)).await?;
            },
            _ => return Ok(()),
        }
        Err(Cut::Faulty)
    }
}

async fn completions(mut stream: TcpStream, upstream: &Arc<Upstream>, asked: &Asked) -> Result<(), Cut> {
    upstream.requests.fetch_add(1, Ordering::AcqRel);
    *upstream.last_body.lock().unwrap_or_else(PoisonError::into_inner) =
        String::from_utf8_lossy(&asked.body).into_owned();
    if let Some(key) = &upstream.key
        && !asked.head.lines().any(|line| line.eq_ignore_ascii_case(&format!("authorization: Bearer {key}")))
    {
        return Ok(respond(&mut stream, 401, "application/json", "", b"{\"error\":\"no key\"}").await?);
    }
    let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let (prompt, max_tokens) = (body["prompt"].as_str(), body["max_tokens"].as_u64());
    let (Some(prompt), Some(max_tokens)) = (prompt, max_tokens.and_then(|max| u32::try_from(max).ok()))
    else {
        return Ok(respond(&mut stream, 400, "application/json", "", b"{\"error\":\"no prompt\"}").await?);
    };
    let plan = upstream.hit();
    if let Some(FaultPlan { fault: Fault::Status(status, after), .. }) = plan {
        let extra = after.map(|after| format!("retry-after: {after}\r\n")).unwrap_or_default();
        return Ok(
            respond(&mut stream, status, "application/json", &extra, b"{\"error\":\"refused\"}").await?
        );
    }
    let _running = Counted::new(upstream, |upstream| &upstream.running);
    let mut answer = Answer { stream, upstream, plan, head_sent: false };
    answer.strike(Phase::Request).await?;
    if body["stream"] != true {
        answer.made_one();
        upstream.gauge.store(upstream.running().saturating_sub(1), Ordering::Release);
        let text = serde_json::json!({"choices": [{"index": 0, "text": piece(prompt, 0), "finish_reason": "length"}]});
        return Ok(
            respond(&mut answer.stream, 200, "application/json", "", text.to_string().as_bytes()).await?
        );
    }
    let kind =
        if answer.has(Fault::ContentType) { "application/json" } else { "text/event-stream; charset=utf-8" };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    answer.stream.write_all(head.as_bytes()).await?;
    answer.head_sent = true;
    answer.strike(Phase::Head).await?;
    answer.generate(prompt, max_tokens).await
}

impl Answer<'_> {
    fn made_one(&self) {
        self.upstream.pieces.fetch_add(1, Ordering::AcqRel);
        self.upstream.gauge.store(self.upstream.running(), Ordering::Release);
    }

    async fn generate(&mut self, prompt: &str, max_tokens: u32) -> Result<(), Cut> {
        let stop_after = self.upstream.stop_after.load(Ordering::Acquire);
        let (count, reason) = match stop_after {
            1.. if stop_after < max_tokens => (stop_after, "stop"),
            _ => (max_tokens, "length"),
        };
        let endless = self.has(Fault::EndlessTokens);
        let mut index = 0;
        while index < count || endless || self.runs_on() {
            self.strike(Phase::Tokens(index)).await?;
            self.wait(Duration::from_millis(self.upstream.token_ms.load(Ordering::Acquire))).await?;
            self.made_one();
            let chunk = serde_json::json!({"id": "cmpl-1", "object": "text_completion", "choices": [
                {"index": 0, "text": piece(prompt, index), "logprobs": null, "finish_reason": null}]});
            for _ in 0..if self.has(Fault::Duplicates) { 2 } else { 1 } {
                self.event(&chunk.to_string()).await?;
            }
            index = index.saturating_add(1);
        }
        self.strike(Phase::Tokens(count)).await?;
        let last = if reason == "stop" { 1 } else { 0 };
        let times = match self.plan {
            Some(FaultPlan { fault: Fault::UsageTimes(times), .. }) => u64::from(times),
            _ => 1,
        };
        if !self.has(Fault::NoFinishReason) {
            let chunk = serde_json::json!({"choices": [{"index": 0, "text": "", "finish_reason": reason}]});
            self.event(&chunk.to_string()).await?;
        }
        if !self.has(Fault::NoUsage) {
            // About four bytes are a token, and the token that stops counts.
            let prompt_tokens = (prompt.len() as u64).div_ceil(4) * times;
            let completion_tokens = (u64::from(count) + last) * times;
            let usage = serde_json::json!({"choices": [], "usage": {"prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens}});
            self.event(&usage.to_string()).await?;
        }
        if !self.has(Fault::NoDone) {
            self.event("[DONE]").await?;
        }
        self.upstream.gauge.store(self.upstream.running().saturating_sub(1), Ordering::Release);
        self.end().await
    }
}
