//! From a request to its answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_host::body::BODY_MAX;
use holdfast_types::Hrp;
use http::header::{ALLOW, AUTHORIZATION, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use serde_json::json;
use tokio::sync::Semaphore;

use super::backend::{ModelInfo, Sessions, Submission};
use super::cors;
use super::errors::ApiError;
use super::idempotency::{Begun, Replies, ReplyStore, Running, StoredReply};
use super::keys::{Charge, DuplicateKey, Key, KeyBudgets, KeyConfig, Keyring, StoreError};
use super::parse::{Asked, Endpoint, parse};
use super::record::Record;
use super::reply::{self, Held, ReplyBody, Task, unix_ms};
use super::run::Run;
use super::trace::{self, Names, REQUEST_ID};
use super::upload;

/// When to try again after too many at once, ms.
const AGAIN_MS: u64 = 1000;

/// How long after its deadline a request is given up whose driver did not end it.
const GRACE: Duration = Duration::from_secs(10);

/// How the API is set up.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Prefix of addresses in `x-holdfast-executor`.
    pub hrp: Hrp,
    /// Without any the API is open.
    pub keys: Vec<KeyConfig>,
    /// Origins whose pages may use the API, such as `https://app.example`; none by default.
    pub cors_origins: Vec<String>,
    /// Longest answer of a request that sets no limit, tokens.
    pub default_max_tokens: u32,
    /// Longest time from a request's submission to the end of its answer.
    pub deadline: Duration,
    /// Bounds.
    pub limits: Limits,
}

impl Default for ApiConfig {
    /// Open, no foreign origin, 1,024 tokens, 10 minutes.
    fn default() -> Self {
        Self {
            hrp: Hrp::default(),
            keys: Vec::new(),
            cors_origins: Vec::new(),
            default_max_tokens: 1024,
            deadline: Duration::from_secs(600),
            limits: Limits::default(),
        }
    }
}

/// Bounds of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest body of a request, bytes; above the 3 MiB that hosts take it helps nobody.
    pub body_bytes: usize,
    /// Most bytes of bodies that are arriving or being answered, over all connections; at least `body_bytes`.
    pub bodies_bytes: usize,
    /// Longest head of a request, bytes, and most header lines.
    pub head: (usize, usize),
    /// Open connections; more are answered with 503 and closed.
    pub connections: usize,
    /// Requests for answers at a time, queued ones too; more are refused with 429.
    pub requests: usize,
    /// Longest time for the head of a request; also how long a connection may rest between two.
    pub head_time: Duration,
    /// Longest time for a body to arrive.
    pub body_time: Duration,
    /// Longest time that a client may take nothing of what is sent.
    pub write_time: Duration,
    /// Longest wait for the first text before the head of a stream goes out without it.
    pub first_text_time: Duration,
    /// Time between two comments in a stream in which nothing comes.
    pub keep_alive: Duration,
    /// Longest wait for answers under way when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    /// 3 MiB a body, 256 MiB of bodies, 16 KiB and 64 lines of head, 1,024 connections, 2,048 requests, 30 s for a head and
    /// for a body, 30 s without a byte taken, 20 s for the first text, a comment each 5 s, 10 s to drain.
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            bodies_bytes: 256 << 20,
            head: (16 << 10, 64),
            connections: 1024,
            requests: 2048,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(30),
            first_text_time: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
            drain: Duration::from_secs(10),
        }
    }
}

/// Why the API does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiConfigError {
    /// Two keys are one.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),
    /// The stored replies cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A limit that would let nothing through.
    #[error("limit {0} must be above 0, and bodies_bytes at least body_bytes")]
    Limit(&'static str),
}

/// What the API stands on.
pub struct Seams {
    /// The sessions.
    pub sessions: Arc<dyn Sessions>,
    /// What API keys have spent.
    pub budgets: Arc<dyn KeyBudgets>,
    /// Replies by idempotency key.
    pub replies: Arc<dyn ReplyStore>,
    /// Renders the metrics in Prometheus' text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The API, without sockets: [`serve`](super::serve) brings them.
pub struct Api {
    pub(crate) config: ApiConfig,
    sessions: Arc<dyn Sessions>,
    keys: Keyring,
    replies: Arc<Replies>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    slots: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

impl Api {
    /// Sets it up.
    ///
    /// # Errors
    /// [`ApiConfigError`].
    pub fn new(config: ApiConfig, seams: Seams) -> Result<Arc<Self>, ApiConfigError> {
        // Destructured in full, so that a new limit forces a decision here.
        let Limits {
            body_bytes,
            bodies_bytes,
            head,
            connections,
            requests,
            head_time,
            body_time,
            write_time,
            // Neither wait is a choice.
            first_text_time: _,
            drain: _,
            keep_alive,
        } = config.limits;
        for (name, holds) in [
            ("body_bytes", body_bytes > 0),
            ("bodies_bytes", bodies_bytes >= body_bytes),
            ("head", head.0 > 0 && head.1 > 0),
            ("connections", connections > 0),
            ("requests", requests > 0),
            ("head_time", !head_time.is_zero()),
            ("body_time", !body_time.is_zero()),
            ("write_time", !write_time.is_zero()),
            ("keep_alive", !keep_alive.is_zero()),
        ] {
            if !holds {
                return Err(ApiConfigError::Limit(name));
            }
        }
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let Seams { sessions, budgets, replies, metrics } = seams;
        Ok(Arc::new(Self {
            sessions,
            keys: Keyring::new(config.keys.clone(), budgets, Instant::now())?,
            replies: Arc::new(Replies::open(replies)?),
            metrics,
            slots: semaphore(requests),
            // Rounded up, so that the longest body fits.
            memory: semaphore(bodies_bytes.div_ceil(upload::UNIT)),
            config,
        }))
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let names = trace::names(&head.headers);
        let origin = cors::origin(&self.config.cors_origins, &head.headers);
        let mut response = if origin.is_some() && head.method == Method::OPTIONS {
            let mut response = reply::json(StatusCode::NO_CONTENT, "");
            cors::preflight(response.headers_mut());
            response
        } else {
            self.route(&head, &mut body, &names).await.unwrap_or_else(|error| reply::error(&error))
        };
        // One that took its time already gets no more.
        if let Some(body) = body.filter(|_| response.status() != StatusCode::REQUEST_TIMEOUT) {
            upload::discard(&head.headers, body).await;
        }
        let headers = response.headers_mut();
        // Checked or made by `names`.
        if let Ok(id) = HeaderValue::from_str(&names.request_id) {
            headers.insert(REQUEST_ID, id);
        }
        if let Some(origin) = origin {
            cors::allow(origin, headers);
        }
        response
    }

    /// Takes the body if it was read in whole.
    async fn route(
        &self,
        head: &Parts,
        body: &mut Option<Incoming>,
        names: &Names,
    ) -> Result<Response<ReplyBody>, ApiError> {
        check_head(head)?;
        let path = head.uri.path();
        let endpoint = match path {
            "/v1/chat/completions" => Some(Endpoint::Chat),
            "/v1/completions" => Some(Endpoint::Text),
            _ => None,
        };
        if let Some(endpoint) = endpoint {
            if head.method != Method::POST {
                return Ok(wrong_method("POST"));
            }
            return self.complete(endpoint, head, body, names).await;
        }
        let get = matches!(head.method, Method::GET | Method::HEAD);
        match path {
            "/healthz" | "/readyz" | "/metrics" | "/v1/models" if !get => Ok(wrong_method("GET, HEAD")),
            "/healthz" => Ok(reply::json(StatusCode::OK, r#"{"status":"ok"}"#)),
            "/readyz" => Ok(self.ready()),
            "/metrics" => Ok(reply::plain((self.metrics)())),
            "/v1/models" => self.models(&head.headers),
            _ => match path.strip_prefix("/v1/models/") {
                Some(id) if get => self.model(&head.headers, id),
                Some(_) => Ok(wrong_method("GET, HEAD")),
                None => Err(ApiError::no_route(path)),
            },
        }
    }

    fn ready(&self) -> Response<ReplyBody> {
        let ready = self.sessions.ready();
        let reasons: Vec<&str> = [
            (!ready.active_escrow, "no_active_escrow"),
            (ready.self_suspect, "self_suspect"),
            (!ready.sign_of_life, "no_sign_of_life"),
        ]
        .into_iter()
        .filter_map(|(holds, reason)| holds.then_some(reason))
        .collect();
        if ready.is_ready() {
            reply::json(StatusCode::OK, r#"{"status":"ready"}"#)
        } else {
            let body = json!({"status": "not_ready", "reasons": reasons});
            reply::json(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
        }
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Option<Arc<Key>>, ApiError> {
        self.keys.find(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))
    }

    fn models(&self, headers: &HeaderMap) -> Result<Response<ReplyBody>, ApiError> {
        let key = self.caller(headers)?;
        let mut models = BTreeMap::new();
        for model in self.sessions.models().into_iter().filter(|model| model.open) {
            if key.as_ref().is_none_or(|key| key.may_use(&model.id)) {
                models.insert(model.id.clone(), model_object(&model));
            }
        }
        let data: Vec<_> = models.into_values().collect();
        Ok(reply::json(StatusCode::OK, json!({"object": "list", "data": data}).to_string()))
    }

    fn model(&self, headers: &HeaderMap, id: &str) -> Result<Response<ReplyBody>, ApiError> {
        let key = self.caller(headers)?;
        let id = percent_decode(id);
        let model = self.find_model(key.as_ref(), &id)?;
        if !model.open {
            return Err(ApiError::model_not_found(&id));
        }
        Ok(reply::json(StatusCode::OK, model_object(&model).to_string()))
    }

    fn find_model(&self, key: Option<&Arc<Key>>, id: &str) -> Result<ModelInfo, ApiError> {
        let model = self.sessions.models().into_iter().find(|model| model.id == id);
        let model = model.ok_or_else(|| ApiError::model_not_found(id))?;
        if key.is_some_and(|key| !key.may_use(id)) {
            return Err(ApiError::forbidden(id));
        }
        Ok(model)
    }

    async fn complete(
        &self,
        endpoint: Endpoint,
        head: &Parts,
        body: &mut Option<Incoming>,
        names: &Names,
    ) -> Result<Response<ReplyBody>, ApiError> {
        let route = match endpoint {
            Endpoint::Chat => "chat",
            Endpoint::Text => "text",
        };
        let mut record = Record::begin(route, names);
        match self.prepare(endpoint, head, body, names, &mut record).await {
            Err(error) => {
                record.end(error.status.as_u16(), error.code);
                Err(error)
            }
            Ok(Prepared::Replay(stored)) => {
                record.end(200, "replayed");
                Ok(reply::replay(stored))
            }
            Ok(Prepared::Start(start)) => {
                let stream = start.asked.stream;
                let task = self.start(*start, record);
                if stream { task.stream().await } else { task.whole().await }
            }
        }
    }

    /// Everything that can refuse a request before it is queued.
    async fn prepare(
        &self,
        endpoint: Endpoint,
        head: &Parts,
        body: &mut Option<Incoming>,
        names: &Names,
        record: &mut Record,
    ) -> Result<Prepared, ApiError> {
        let key = self.caller(&head.headers)?;
        record.key = key.as_ref().map(|key| key.name().to_owned());
        let turn = key.as_ref().map(|key| key.enter(Instant::now())).transpose()?;
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let slot = slot.map_err(|_| ApiError::rate_limit("too many requests at a time", AGAIN_MS))?;
        let Some(incoming) = body.as_mut() else { return Err(ApiError::internal()) };
        let Limits { body_bytes, body_time, .. } = self.config.limits;
        let upload = upload::read(&head.headers, incoming, body_bytes, body_time, &self.memory).await?;
        *body = None;
        let who = key.as_ref().map_or("", |key| key.name());
        let running = match idempotency_key(&head.headers)? {
            None => None,
            Some(value) => {
                let path = head.uri.path();
                match self.replies.begin(who, value.as_bytes(), path, &upload.bytes, unix_ms())? {
                    Begun::Replay(stored) => return Ok(Prepared::Replay(stored)),
                    Begun::Fresh(running) => Some(running),
                }
            }
        };
        let asked = parse(endpoint, &upload.bytes)?;
        let model = self.find_model(key.as_ref(), &asked.model)?;
        record.model.clone_from(&model.id);
        let output_limit = self.output_limit(&asked, &model)?;
        let input_limit = asked.input_limit(model.context_length);
        let seed = asked.seed.or_else(|| asked.samples().then(trace::random_seed));
        let body = asked.host_body(output_limit, seed);
        // With the fields that were added, it may no longer fit.
        if body.len() > BODY_MAX {
            return Err(ApiError::too_large(BODY_MAX));
        }
        let prompt_charge = asked.prompt_charge(model.context_length, model.token_bytes_max);
        let charge = self.keys.charge(key.as_ref(), u64::from(prompt_charge) + u64::from(output_limit))?;
        let submission = Submission {
            body,
            model: model.id.clone(),
            input_limit,
            output_limit,
            deadline_ms: u64::try_from(self.config.deadline.as_millis()).unwrap_or(u64::MAX),
            request_id: names.request_id.clone(),
            traceparent: names.traceparent.clone(),
        };
        let held = Held { _turn: turn, _slot: slot, _memory: upload.memory };
        let limits = (prompt_charge, output_limit);
        Ok(Prepared::Start(Box::new(Start { asked, model, submission, limits, charge, running, held })))
    }

    /// Tokens of the answer.
    ///
    /// # Errors
    /// 400 when prompt and answer cannot fit the context. Without the model's tokens at hand, that is certain only for
    /// very long ones; the host counts the others.
    fn output_limit(&self, asked: &Asked, model: &ModelInfo) -> Result<u32, ApiError> {
        let context = model.context_length;
        let least = match model.token_bytes_max {
            0 => 1,
            most => asked.prompt_bytes().div_ceil(u64::from(most)).max(1),
        };
        let left = u64::from(context).checked_sub(least).filter(|left| *left > 0);
        let Some(left) = left.and_then(|left| u32::try_from(left).ok()) else {
            return Err(ApiError::context_length(asked.endpoint.prompt_field(), context));
        };
        match asked.max_tokens {
            Some((field, wanted)) if wanted > left => Err(ApiError::context_length(field, context)),
            Some((_, wanted)) => Ok(wanted),
            None => Ok(self.config.default_max_tokens.clamp(1, left)),
        }
    }

    fn start(&self, start: Start, record: Record) -> Task {
        let Start { asked, model, submission, limits, charge, running, held } = start;
        let answer = self.sessions.submit(submission);
        Task {
            run: Run::new(answer, asked.stop, charge, limits, self.config.deadline.saturating_add(GRACE)),
            record,
            endpoint: asked.endpoint,
            model: model.id,
            context_length: model.context_length,
            include_usage: asked.include_usage,
            running,
            hrp: self.config.hrp.clone(),
            head_after: self.config.limits.first_text_time,
            keep_alive: self.config.limits.keep_alive,
            _held: held,
        }
    }
}

/// What proxies and servers could read in two ways is not answered: a request without one host (RFC 9112, 3.2), and codings
/// of the message other than chunks (6.1).
fn check_head(head: &Parts) -> Result<(), ApiError> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || hosts == 0 && head.version == Version::HTTP_11 {
        return Err(ApiError::bad_field("Host", "send it once"));
    }
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    let plain = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if plain && codings.next().is_none() { Ok(()) } else { Err(ApiError::transfer_encoding()) }
}

/// The one that is given, also when it is given again.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&HeaderValue>, ApiError> {
    let mut given = headers.get_all("idempotency-key").iter();
    let first = given.next();
    if given.any(|other| Some(other) != first) {
        return Err(ApiError::bad_field("Idempotency-Key", "there are two; send one"));
    }
    Ok(first)
}

/// What to do with a request.
enum Prepared {
    Replay(StoredReply),
    Start(Box<Start>),
}

struct Start {
    asked: Asked,
    model: ModelInfo,
    submission: Submission,
    /// Tokens of prompt and answer that the key is charged, at most.
    limits: (u32, u32),
    charge: Charge,
    running: Option<Running>,
    held: Held,
}

fn model_object(model: &ModelInfo) -> serde_json::Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "holdfast",
        "context_length": model.context_length,
    })
}

fn wrong_method(allowed: &'static str) -> Response<ReplyBody> {
    let mut response = reply::error(&ApiError::method(allowed));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// `%2F` and the like; what is no escape stays as it is.
fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escape = (*first == b'%').then(|| tail.split_at_checked(2)).flatten();
        let byte = escape.and_then(|(digits, after)| {
            let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
            let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            Some((byte, after))
        });
        let (byte, after) = byte.unwrap_or((*first, tail));
        out.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}
