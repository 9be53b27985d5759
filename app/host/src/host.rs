//! `holdfast.host.v1.Host`: the executor's service.
//!
//! A call of Serve brings the body of a started inference. The host looks the inference up on the chain, runs it once,
//! and streams the answer to whoever of its requester asks, from token 0 each time. Only the requester's message on the
//! chain stops a run: a stream that ends, a client's deadline or a slow reader do not (runner-details 13).

// A status is what tonic's services return, however large it is.
#![allow(clippy::result_large_err)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_app::grpc::ChainError;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_server::HostServer;
use holdfast_proto::holdfast::host::v1::serve_response::Event;
use holdfast_proto::holdfast::inference::v1::{Inference, InferenceStatus};
use holdfast_proto::holdfast::runner::v1::FailureKind as PbKind;
use holdfast_runner::adapter::Sampling;
use holdfast_runner::runner::{GenerateRequest, Generation, Outcome, RunnerHandle, Stopped, SubmitError};
use holdfast_runner::text::{ChatMessage, TextCodec};
use holdfast_runner::{Cause, Clock, FailureKind, WorkStatus};
use holdfast_types::Address;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::answers::{Answer, Answers};
use crate::auth;
use crate::body::{BODY_MAX, Body, Prompt};
use crate::chain::Chain;
use crate::config::HostConfig;
use crate::driver::Sessions;
use crate::intake::{self, Budget, MESSAGE_MAX, Rule};
use crate::outbox::Outbox;
use crate::tape::{Piece, pump, reader_limit};
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
/// Pieces of an answer on their way to one client.
const PIECES: usize = 16;
/// When to try again if the host has no room, milliseconds.
const RETRY_MS: u64 = 1_000;

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
    /// Of escrows, if it serves any.
    pub(crate) sessions: Option<Sessions>,
}

pub(crate) type ServeStream = ReceiverStream<Result<pb::ServeResponse, Status>>;

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
        Self { shared: Arc::new(shared), sessions: None }
    }

    /// The same host, which serves escrow sessions too.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Sessions) -> Self {
        self.sessions = Some(sessions);
        self
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
            chain_id: shared.config.chain_id.clone(),
            answers: shared.answers.clone(),
            wake: shared.wake.clone(),
            pace: shared.config.pace,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(outbox.run());
        tasks.spawn(watch_withdrawals(shared.clone()));
        if let Some(sessions) = self.sessions.clone() {
            tasks.spawn(async move { sessions.run().await });
        }
        // Both end with the runner; the first to see it ends the other.
        tasks.join_next().await;
    }

    /// Takes no new inferences, lets running ones end within `runs` and stops the others, and waits until everything is
    /// reported, at most `reports`; whether it is. What is not is reported after the next start.
    pub async fn drain(&self, runs: Duration, reports: Duration) -> bool {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Release);
        if let Some(sessions) = &self.sessions {
            sessions.stop_taking();
        }
        let in_session = || self.sessions.as_ref().is_some_and(Sessions::is_running);
        let ended = async {
            while !shared.answers.running().is_empty() || in_session() {
                sleep(shared.config.pace.look).await;
            }
        };
        if timeout(runs, ended).await.is_err() {
            if let Some(sessions) = &self.sessions {
                sessions.stop_running().await;
            }
            for (_, answer) in shared.answers.running() {
                let _ = shared.runner.cancel(answer.session, Cause::Node).await;
            }
        }
        // One that was stopped has its record only when its shards are quiet.
        let reported = async {
            while !shared.answers.running().is_empty()
                || in_session()
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
        self.answers.insert(id.clone(), answer.clone());
        tokio::spawn(run(generation, answer.clone(), self.codec.clone(), self.wake.clone()));
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

/// Fills an answer from the runner.
async fn run(generation: Generation, answer: Arc<Answer>, codec: Arc<dyn TextCodec>, wake: Arc<Notify>) {
    let pumped = pump(generation, &answer.tape, codec.as_ref(), &[]).await;
    answer.tape.end(pumped.outcome.map_or_else(|| failed(None), |outcome| ended(&outcome)));
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
    let send = answer.tape.play(&sender, beat, |piece| pb::ServeResponse {
        event: Some(match piece {
            Piece::Delta(delta) => Event::Delta(delta),
            Piece::Beat => Event::Beat(pb::Beat {}),
            Piece::End(end) => end,
        }),
    });
    // A client that reads nothing holds its place for so long only; the run itself never waits for it.
    if timeout(within, send).await.is_err() {
        let event = Some(failed(Some(FailureKind::DeadlineExceeded)));
        let _ = sender.try_send(Ok(pb::ServeResponse { event }));
    }
}

impl Host {
    /// Serve: see the module.
    pub(crate) async fn serve_chain(
        &self,
        request: Request<pb::ServeRequest>,
    ) -> Result<ServeStream, Status> {
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
        let within = reader_limit(request.deadline_ms);
        let (sender, receiver) = mpsc::channel(PIECES);
        tokio::spawn(stream(answer, sender, within, shared.config.pace.beat, permit));
        Ok(ReceiverStream::new(receiver))
    }
}

#[cfg(test)]
mod tests;
