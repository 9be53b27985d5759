//! `holdfast.host.v1.Host`: the executor's service.
//!
//! A call of Serve brings the body of a started inference. The host looks the inference up on the chain, runs it once,
//! and streams the answer to whoever of its requester asks, from token 0 each time. Only the requester's message on the
//! chain stops a run: a stream that ends, a client's deadline or a slow reader do not (runner-details 13).

// A status is what tonic's services return, however large it is.
#![allow(clippy::result_large_err)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_server::{Host as HostService, HostServer};
use holdfast_proto::holdfast::host::v1::serve_response::Event;
use holdfast_proto::holdfast::inference::v1::{Inference, InferenceStatus};
use holdfast_proto::holdfast::runner::v1::FailureKind as PbKind;
use holdfast_runner::adapter::{Sampling, SessionId};
use holdfast_runner::runner::{
    GenerateRequest, Generation, GenerationEvent, Outcome, RunnerHandle, Stopped, SubmitError,
};
use holdfast_runner::text::{ChatMessage, TextCodec, TextStream};
use holdfast_runner::{Cause, Clock, FailureKind, WorkStatus};
use holdfast_types::{Address, Hrp};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::auth;
use crate::body::{BODY_MAX, Body, Prompt};
use crate::chain::{Chain, ChainError};
use crate::intake::{self, Budget, MESSAGE_MAX, Rule};
use crate::outbox::Outbox;
use crate::waiting::Waiting;
use crate::wire::RETRY_AFTER;

/// Longest id of an inference, as on the chain.
const ID_MAX: usize = 64;
/// Blocks to wait for the Start of an inference whose body came first (escrow-details 8).
const START_BLOCKS: u64 = 2;
/// Longest wait for these blocks.
const START_WAIT: Duration = Duration::from_secs(30);
/// Calls of Serve at a time.
const STREAMS_MAX: usize = 1_024;
/// Answers kept for those who ask again: the newest.
const ANSWERS_MAX: usize = 1_024;
/// Pieces of all these together, each some 150 bytes. Who asks for one that went gets it from the ledger.
const PIECES_KEPT: usize = 1 << 19;
/// Pieces of an answer on their way to one client.
const PIECES: usize = 16;
/// Longest a client may take for the whole answer, beyond the runner's own limit.
pub(crate) const READER_GRACE: Duration = Duration::from_secs(360);
/// When to try again if the host has no room, milliseconds.
const RETRY_MS: u64 = 1_000;

/// What a host is.
pub struct HostConfig {
    /// Id of the chain.
    pub chain_id: String,
    /// Prefix of its addresses.
    pub hrp: Hrp,
    /// This executor.
    pub executor: Address,
    /// Ids, on the chain, of the models that it runs; empty is whichever it is given.
    pub models: Vec<String>,
    /// Longest answer, tokens.
    pub max_tokens: u32,
    /// How often it looks.
    pub pace: Pace,
}

/// How often a host looks and tells.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two looks for a Start.
    pub look: Duration,
    /// Between two signs of life to a client.
    pub beat: Duration,
    /// Between two looks at whether a running inference was withdrawn.
    pub watch: Duration,
    /// Between two looks at reports under way.
    pub busy: Duration,
    /// Between two looks for reports when none is under way.
    pub idle: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_millis(250),
            beat: Duration::from_secs(2),
            watch: Duration::from_secs(1),
            busy: Duration::from_millis(250),
            idle: Duration::from_secs(2),
        }
    }
}

/// One answer as its clients see it.
pub(crate) struct Answer {
    session: SessionId,
    requester: Address,
    prompt_hash: [u8; 32],
    state: Mutex<AnswerState>,
    changed: watch::Sender<()>,
    /// Tokens handed to the socket of the client that is furthest on.
    delivered: AtomicU32,
}

#[derive(Default)]
struct AnswerState {
    deltas: Vec<pb::Delta>,
    end: Option<Event>,
}

impl Answer {
    fn new(session: SessionId, requester: Address, prompt_hash: [u8; 32], end: Option<Event>) -> Arc<Self> {
        Arc::new(Self {
            session,
            requester,
            prompt_hash,
            state: Mutex::new(AnswerState { deltas: Vec::new(), end }),
            changed: watch::Sender::new(()),
            delivered: AtomicU32::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, delta: pb::Delta) {
        self.lock().deltas.push(delta);
        self.changed.send_replace(());
    }

    fn end(&self, event: Event) {
        self.lock().end = Some(event);
        self.changed.send_replace(());
    }

    /// What follows the first `from` pieces.
    fn after(&self, from: usize) -> (Vec<pb::Delta>, Option<Event>) {
        let state = self.lock();
        (state.deltas.get(from..).unwrap_or_default().to_vec(), state.end.clone())
    }
}

/// Answers by inference id: those being made, and the newest of those that ended.
#[derive(Default)]
pub(crate) struct Answers {
    answers: Mutex<BTreeMap<String, (u64, Arc<Answer>)>>,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (u64, Arc<Answer>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &str) -> Option<Arc<Answer>> {
        self.lock().get(id).map(|(_, answer)| answer.clone())
    }

    fn insert(&self, id: &str, answer: Arc<Answer>) {
        let mut answers = self.lock();
        let number = answers.values().map(|(number, _)| *number).max().map_or(0, |last| last + 1);
        answers.insert(id.to_owned(), (number, answer));
        let mut pieces: usize = answers.values().map(|(_, answer)| answer.lock().deltas.len()).sum();
        while answers.len() > ANSWERS_MAX || pieces > PIECES_KEPT {
            let ended = answers.iter().filter(|(_, (_, answer))| answer.lock().end.is_some());
            let Some(oldest) = ended.min_by_key(|(_, (number, _))| *number).map(|(id, _)| id.clone()) else {
                break;
            };
            let removed = answers.remove(&oldest);
            pieces = pieces.saturating_sub(removed.map_or(0, |(_, answer)| answer.lock().deltas.len()));
        }
    }

    /// The inference of a session.
    pub(crate) fn id_of(&self, session: SessionId) -> Option<String> {
        let answers = self.lock();
        answers.iter().find(|(_, (_, answer))| answer.session == session).map(|(id, _)| id.clone())
    }

    fn running(&self) -> Vec<(String, Arc<Answer>)> {
        let answers = self.lock();
        let running = answers.iter().filter(|(_, (_, answer))| answer.lock().end.is_none());
        running.map(|(id, (_, answer))| (id.clone(), answer.clone())).collect()
    }
}

struct Shared {
    config: HostConfig,
    runner: RunnerHandle,
    chain: Arc<dyn Chain>,
    codec: Arc<dyn TextCodec>,
    clock: Arc<dyn Clock>,
    answers: Arc<Answers>,
    /// One inference begins at a time, so that two calls for one find one answer.
    beginning: tokio::sync::Mutex<()>,
    streams: Arc<Semaphore>,
    waiting: Waiting,
    budget: Budget,
    wake: Arc<Notify>,
    draining: AtomicBool,
}

/// An executor: its service, and what it does by itself.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

impl Host {
    /// A host that answers with `runner` and reports to `chain`. [`Host::background`] must run beside the service.
    pub fn new(
        config: HostConfig,
        runner: RunnerHandle,
        chain: Arc<dyn Chain>,
        codec: Arc<dyn TextCodec>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Shared {
            config,
            runner,
            chain,
            codec,
            clock,
            answers: Arc::default(),
            beginning: tokio::sync::Mutex::new(()),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            waiting: Waiting::default(),
            budget: Budget::new(),
            wake: Arc::new(Notify::new()),
            draining: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The gRPC service.
    #[must_use]
    pub fn service(&self) -> HostServer<Self> {
        HostServer::new(self.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Whether a call of `path` is worth reading, and what it may bring.
    pub(crate) fn admit(&self, path: &str, headers: &http::HeaderMap) -> Result<Rule, Box<Status>> {
        let rule = intake::rule(path);
        rule.admit(headers, self.shared.clock.unix_ms()).map(|()| rule)
    }

    /// Room for the messages of a new connection.
    pub(crate) fn budget(&self) -> Budget {
        self.shared.budget.connection()
    }

    /// Reports what became of inferences, and stops those that were withdrawn, until the runner stops.
    pub async fn background(&self) {
        let shared = &self.shared;
        let outbox = Outbox {
            runner: shared.runner.clone(),
            chain: shared.chain.clone(),
            codec: shared.codec.clone(),
            me: shared.config.executor.to_bech32(&shared.config.hrp),
            answers: shared.answers.clone(),
            wake: shared.wake.clone(),
            pace: shared.config.pace,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(outbox.run());
        tasks.spawn(watch_withdrawals(shared.clone()));
        // Both end with the runner; the first to see it ends the other.
        tasks.join_next().await;
    }

    /// Takes no new inferences, lets running ones end within `runs` and stops the others, and waits until everything is
    /// reported, at most `reports`; whether it is. What is not is reported after the next start.
    pub async fn drain(&self, runs: Duration, reports: Duration) -> bool {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Release);
        let ended = async {
            while !shared.answers.running().is_empty() {
                sleep(shared.config.pace.look).await;
            }
        };
        if timeout(runs, ended).await.is_err() {
            for (_, answer) in shared.answers.running() {
                let _ = shared.runner.cancel(answer.session, Cause::Node).await;
            }
        }
        // One that was stopped has its record only when its shards are quiet.
        let reported = async {
            while !shared.answers.running().is_empty()
                || shared.runner.unsubmitted().await.is_ok_and(|waiting| !waiting.is_empty())
            {
                shared.wake.notify_one();
                sleep(shared.config.pace.busy).await;
            }
        };
        timeout(reports, reported).await.is_ok()
    }
}

/// Cancels what the chain has closed: by its requester, or because it took too long.
async fn watch_withdrawals(shared: Arc<Shared>) {
    let mut seen = 0;
    loop {
        sleep(shared.config.pace.watch).await;
        if shared.runner.telemetry().await.is_err() {
            return;
        }
        let running = shared.answers.running();
        if running.is_empty() {
            continue;
        }
        let Ok(height) = shared.chain.height().await else { continue };
        if height == seen {
            continue;
        }
        seen = height;
        for (id, answer) in running {
            let Ok(Some(inference)) = shared.chain.inference(&id).await else { continue };
            let cause = match inference.status() {
                InferenceStatus::Started | InferenceStatus::FinishedFirst => continue,
                InferenceStatus::Cancelled => Cause::Client,
                _ => Cause::Deadline,
            };
            tracing::info!(inference = id, status = inference.status().as_str_name(), "stopped: it is over");
            if let Err(Stopped) = shared.runner.cancel(answer.session, cause).await {
                return;
            }
        }
    }
}

fn refusal(error: ChainError) -> Status {
    match error {
        ChainError::Unreachable(text) => unavailable(text),
        ChainError::Refused { log, .. } => Status::failed_precondition(log),
    }
}

/// No room now.
fn full(text: impl Into<String>, retry_after_ms: u64) -> Status {
    let mut status = Status::resource_exhausted(text);
    status.metadata_mut().insert(RETRY_AFTER, retry_after_ms.into());
    status
}

/// Not now, for a reason that goes away.
fn unavailable(text: impl Into<String>) -> Status {
    let mut status = Status::unavailable(text);
    status.metadata_mut().insert(RETRY_AFTER, RETRY_MS.into());
    status
}

impl Shared {
    /// The started inference, waited for if its Start is on its way.
    async fn started(&self, id: &str, signer: Address) -> Result<Inference, Status> {
        if let Some(inference) = self.chain.inference(id).await.map_err(refusal)? {
            return Ok(inference);
        }
        let _place = self.waiting.enter(signer, id).map_err(|text| full(text, RETRY_MS))?;
        let wait = async {
            let first = self.chain.height().await.map_err(refusal)?;
            loop {
                let height = self.chain.height().await.map_err(refusal)?;
                if let Some(inference) = self.chain.inference(id).await.map_err(refusal)? {
                    return Ok(inference);
                }
                if height >= first.saturating_add(START_BLOCKS) {
                    break;
                }
                sleep(self.config.pace.look).await;
            }
            Err(Status::not_found(format!(
                "inference_id {id}: the chain has no such inference {START_BLOCKS} blocks on; send MsgStartInference first"
            )))
        };
        timeout(START_WAIT, wait).await.unwrap_or_else(|_| {
            let seconds = START_WAIT.as_secs();
            Err(Status::not_found(format!("inference_id {id}: not on the chain after {seconds} s")))
        })
    }

    /// The answer to a started inference: one that was made before, or a new one.
    async fn begin(
        self: &Arc<Self>,
        request: &pb::ServeRequest,
        caller: Address,
    ) -> Result<Arc<Answer>, Status> {
        let id = &request.inference_id;
        if id.is_empty() || id.len() > ID_MAX {
            return Err(Status::invalid_argument(format!("inference_id: give 1 to {ID_MAX} bytes")));
        }
        let body = Body::parse(&request.body).map_err(|e| Status::invalid_argument(e.to_string()))?;
        if !body.stop.is_empty() {
            return Err(Status::invalid_argument(
                "body: stop: not supported for inferences of the chain; leave it out",
            ));
        }
        let inference = self.started(id, caller).await?;
        let prompt_hash: [u8; 32] = Sha256::digest(&request.body).into();
        self.check_policy(id, &inference, caller, prompt_hash)?;
        let generate = self.generate_request(id, body, &inference)?;
        let session = generate.session();

        let _alone = self.beginning.lock().await;
        if let Some(answer) = self.answers.get(id) {
            return Ok(answer);
        }
        if self.draining.load(Ordering::Acquire) {
            return Err(unavailable("the host is stopping; try again in a minute"));
        }
        let stopped = |_| unavailable(Stopped.to_string());
        let before = self.runner.records(session).await.map_err(stopped)?;
        match before.last() {
            // It failed before this process began, and is reported: a retry is another inference.
            Some(record) if record.status != WorkStatus::Completed => {
                return Ok(Answer::new(session, caller, prompt_hash, Some(failed(record.failure_kind))));
            }
            // The recorded tokens once more, whatever the chain says of it by now.
            Some(_) => {}
            None if inference.status() != InferenceStatus::Started => {
                let status = inference.status().as_str_name();
                return Err(Status::failed_precondition(format!("inference_id {id}: it is over ({status})")));
            }
            None => {}
        }
        let mut generation = self.runner.submit(generate).await.map_err(|error| busy(&error))?;
        // From here on it runs to its end, whoever listens: only the chain withdraws it.
        generation.detach();
        let answer = Answer::new(session, caller, prompt_hash, None);
        self.answers.insert(id, answer.clone());
        tokio::spawn(pump(generation, answer.clone(), self.codec.clone(), self.wake.clone()));
        Ok(answer)
    }

    fn check_policy(
        &self,
        id: &str,
        inference: &Inference,
        caller: Address,
        prompt_hash: [u8; 32],
    ) -> Result<(), Status> {
        let policy = |text: String| Err(Status::permission_denied(format!("inference_id {id}: {text}")));
        let Inference { assigned_to, requested_by, model, .. } = inference;
        let me = self.config.executor.to_bech32(&self.config.hrp);
        if *assigned_to != me {
            return policy(format!("it was given to {assigned_to}, this is {me}"));
        }
        if *requested_by != caller.to_bech32(&self.config.hrp) {
            return policy(format!("requested by {requested_by}, who did not sign this call"));
        }
        let models = &self.config.models;
        if !models.is_empty() && !models.contains(model) {
            return policy(format!("model {model} does not run here"));
        }
        if inference.prompt_hash != prompt_hash {
            return policy("the body is not the one whose SHA-256 was started".into());
        }
        Ok(())
    }

    fn generate_request(
        &self,
        id: &str,
        body: Body,
        inference: &Inference,
    ) -> Result<GenerateRequest, Status> {
        let text = match body.prompt {
            Prompt::Text(text) => text,
            Prompt::Chat(messages) => {
                let messages: Vec<_> =
                    messages.into_iter().map(|(role, content)| ChatMessage::new(role, content)).collect();
                let chat = self.codec.chat(&messages);
                chat.map_err(|e| Status::invalid_argument(format!("body: messages: {e}")))?
            }
        };
        let prompt = self.codec.encode(&text);
        let prompt = prompt.map_err(|e| Status::invalid_argument(format!("body: prompt: {e}")))?;
        let paid = u32::try_from(inference.max_tokens).unwrap_or(u32::MAX);
        let mut max_new = body.max_tokens.unwrap_or(u32::MAX).min(paid).min(self.config.max_tokens);
        // What is left of the model's context; a prompt without any is refused by the runner.
        let context = self.runner.shards().iter().map(|shard| shard.max_positions.min(shard.capacity)).min();
        if let Some(context) = context {
            let prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
            max_new = max_new.min(context.saturating_sub(prompt).max(1));
        }
        Ok(GenerateRequest {
            chain_id: self.config.chain_id.clone(),
            client: inference.requested_by.clone(),
            stop_tokens: self.codec.stop_tokens().to_vec(),
            sampling: body.seed.map_or(Sampling::GREEDY, |seed| Sampling { greedy: false, seed }),
            ..GenerateRequest::new(id, prompt, max_new)
        })
    }
}

fn busy(error: &SubmitError) -> Status {
    let text = error.to_string();
    match error {
        SubmitError::QueueFull { retry_after_ms } => full(text, *retry_after_ms),
        SubmitError::LedgerFull => full(text, RETRY_MS),
        SubmitError::BadRequest { .. } => Status::invalid_argument(format!("body: {text}")),
        SubmitError::Duplicate { .. } => Status::failed_precondition(text),
        SubmitError::NoRoute | SubmitError::Stopped => unavailable(text),
    }
}

/// Moves tokens from the runner to the answer, as text.
async fn pump(mut generation: Generation, answer: Arc<Answer>, codec: Arc<dyn TextCodec>, wake: Arc<Notify>) {
    let mut text = TextStream::default();
    let mut waiting = pb::Delta::default();
    let outcome = loop {
        match generation.next().await {
            Some(GenerationEvent::Token { index, token }) => {
                if waiting.token_ids.is_empty() {
                    waiting.index = index;
                }
                waiting.token_ids.push(token);
                match text.push(codec.as_ref(), token) {
                    // Half a character waits for its other half.
                    Ok(piece) if piece.is_empty() => {}
                    Ok(piece) => {
                        waiting.text = piece;
                        answer.push(std::mem::take(&mut waiting));
                    }
                    Err(error) => tracing::error!(%error, token, "a token has no text"),
                }
                generation.delivered(answer.delivered.load(Ordering::Relaxed));
            }
            Some(GenerationEvent::Wait) => {}
            Some(GenerationEvent::Done(outcome)) => break Some(outcome),
            None => break None,
        }
    };
    let rest = text.finish();
    if !rest.is_empty() || !waiting.token_ids.is_empty() {
        waiting.text = rest;
        answer.push(waiting);
    }
    answer.end(outcome.map_or_else(|| failed(None), |outcome| ended(&outcome)));
    wake.notify_one();
}

/// Without a kind it is the node's own trouble.
fn failed(kind: Option<FailureKind>) -> Event {
    let kind = kind.unwrap_or(FailureKind::Internal).number();
    let kind = i32::try_from(kind).ok().and_then(|kind| PbKind::try_from(kind).ok());
    Event::Failed(pb::Failed { kind: kind.unwrap_or(PbKind::Internal).into() })
}

fn ended(outcome: &Outcome) -> Event {
    match (outcome.status, outcome.finish_reason, outcome.records.last()) {
        (WorkStatus::Completed, Some(reason), Some(record)) => Event::Finished(pb::Finished {
            finish_reason: reason.as_str().to_owned(),
            usage: Some(pb::Usage {
                prompt_tokens: record.prompt_tokens,
                completion_tokens: record.tokens.unwrap_or(0),
            }),
        }),
        _ => failed(outcome.kind),
    }
}

/// Sends an answer from its beginning, until its end, the client's, or `within` is over.
async fn stream(
    answer: Arc<Answer>,
    sender: mpsc::Sender<Result<pb::ServeResponse, Status>>,
    within: Duration,
    beat: Duration,
    _permit: OwnedSemaphorePermit,
) {
    let response = |event| Ok(pb::ServeResponse { event: Some(event) });
    let send = async {
        let mut changed = answer.changed.subscribe();
        let mut sent = 0;
        loop {
            let (deltas, end) = answer.after(sent);
            sent += deltas.len();
            for delta in deltas {
                let count = u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX);
                let upto = delta.index.saturating_add(count);
                sender.send(response(Event::Delta(delta))).await.ok()?;
                answer.delivered.fetch_max(upto, Ordering::Relaxed);
            }
            if let Some(end) = end {
                return sender.send(response(end)).await.ok();
            }
            if timeout(beat, changed.changed()).await.is_err() {
                sender.send(response(Event::Beat(pb::Beat {}))).await.ok()?;
            }
        }
    };
    // A client that reads nothing holds its place for so long only; the run itself never waits for it.
    if timeout(within, send).await.is_err() {
        let _ = sender.try_send(response(failed(Some(FailureKind::DeadlineExceeded))));
    }
}

#[tonic::async_trait]
impl HostService for Host {
    type ServeStream = ReceiverStream<Result<pb::ServeResponse, Status>>;
    type InferStream = ReceiverStream<Result<pb::InferResponse, Status>>;

    async fn infer(&self, _: Request<pb::InferRequest>) -> Result<Response<Self::InferStream>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn bind(&self, _: Request<pb::BindRequest>) -> Result<Response<pb::BindResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn teach(&self, _: Request<pb::TeachRequest>) -> Result<Response<pb::TeachResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn cancel_inference(
        &self,
        _: Request<pb::CancelInferenceRequest>,
    ) -> Result<Response<pb::CancelInferenceResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn get_signatures(
        &self,
        _: Request<pb::GetSignaturesRequest>,
    ) -> Result<Response<pb::GetSignaturesResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn get_pending(
        &self,
        _: Request<pb::GetPendingRequest>,
    ) -> Result<Response<pb::GetPendingResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn get_diffs(
        &self,
        _: Request<pb::GetDiffsRequest>,
    ) -> Result<Response<pb::GetDiffsResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn vote_timeout(
        &self,
        _: Request<pb::VoteTimeoutRequest>,
    ) -> Result<Response<pb::VoteTimeoutResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn challenge_start(
        &self,
        _: Request<pb::ChallengeStartRequest>,
    ) -> Result<Response<pb::ChallengeStartResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn reset_session(
        &self,
        _: Request<pb::ResetSessionRequest>,
    ) -> Result<Response<pb::ResetSessionResponse>, Status> {
        Err(Status::unimplemented("no sessions here"))
    }

    async fn serve(&self, request: Request<pb::ServeRequest>) -> Result<Response<Self::ServeStream>, Status> {
        let shared = &self.shared;
        let permit = shared.streams.clone().try_acquire_owned().map_err(|_| {
            full(format!("{STREAMS_MAX} calls are being served; try again in a second"), RETRY_MS)
        })?;
        let credential = request.metadata().get_bin(auth::METADATA).and_then(|value| value.to_bytes().ok());
        let request = request.into_inner();
        if request.body.len() > BODY_MAX {
            return Err(Status::invalid_argument(format!("body: at most {BODY_MAX} bytes")));
        }
        let caller = auth::verify(
            credential.as_deref(),
            &shared.config.chain_id,
            0,
            "Serve",
            &request,
            shared.clock.unix_ms(),
        )
        .map_err(|e| Status::unauthenticated(e.to_string()))?;
        let answer = match shared.answers.get(&request.inference_id) {
            Some(answer) => answer,
            None => shared.begin(&request, caller).await?,
        };
        let prompt_hash: [u8; 32] = Sha256::digest(&request.body).into();
        if answer.requester != caller || answer.prompt_hash != prompt_hash {
            let id = &request.inference_id;
            let text = format!("inference_id {id}: somebody else's, or with another body");
            return Err(Status::permission_denied(text));
        }
        let within = match request.deadline_ms {
            0 => READER_GRACE,
            limit => Duration::from_millis(limit).min(READER_GRACE),
        };
        let (sender, receiver) = mpsc::channel(PIECES);
        tokio::spawn(stream(answer, sender, within, shared.config.pace.beat, permit));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests;
