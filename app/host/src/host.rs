//! `holdfast.host.v1.Host`: the executor's service.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_server::{Host as HostService, HostServer};
use holdfast_proto::holdfast::host::v1::serve_response::Event;
use holdfast_proto::holdfast::inference::v1::{Inference, InferenceStatus};
use holdfast_proto::holdfast::runner::v1::FailureKind as PbKind;
use holdfast_runner::adapter::{Sampling, SessionId};
use holdfast_runner::deadline::DeadlineOverrides;
use holdfast_runner::runner::{GenerateRequest, Generation, GenerationEvent, Outcome, RunnerHandle, SubmitError};
use holdfast_runner::text::{ChatMessage, TextCodec, TextStream};
use holdfast_runner::{Cause, Clock, WorkStatus};
use holdfast_types::{Address, Hrp};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::auth;
use crate::body::{BODY_MAX, Body, Prompt};
use crate::chain::{Chain, ChainError};
use crate::outbox::Outbox;

/// Blocks to wait for the Start of an inference whose prompt came first (escrow-details 8).
const START_BLOCKS: u64 = 2;
/// Longest wait for these blocks.
const START_WAIT: Duration = Duration::from_secs(30);
/// Time between two looks at the chain while waiting.
const LOOK: Duration = Duration::from_millis(250);
/// Time between two signs of life to a client.
const BEAT: Duration = Duration::from_secs(2);
/// Time between two looks at whether an inference was withdrawn.
const WATCH: Duration = Duration::from_secs(1);
/// Calls of Serve at a time.
const STREAMS_MAX: usize = 1_024;
/// Answers kept for those who ask again: the newest.
const ANSWERS_MAX: usize = 1_024;
/// Pieces of an answer on their way to one client.
const PIECES: usize = 16;
/// Longest a client may take for the whole answer, beyond the runner's own limit.
const READER_GRACE: Duration = Duration::from_secs(360);
/// Largest message.
const MESSAGE_MAX: usize = 8 << 20;

/// What a host is.
pub struct HostConfig {
    /// Id of the chain.
    pub chain_id: String,
    /// Prefix of its addresses.
    pub hrp: Hrp,
    /// This executor.
    pub executor: Address,
    /// Longest answer, tokens.
    pub max_tokens: u32,
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
struct Answers {
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
        let number = answers.values().map(|(number, _)| *number).max().unwrap_or(0) + 1;
        answers.insert(id.to_owned(), (number, answer));
        while answers.len() > ANSWERS_MAX {
            let ended = answers.iter().filter(|(_, (_, answer))| answer.lock().end.is_some());
            let Some(oldest) = ended.min_by_key(|(_, (number, _))| *number).map(|(id, _)| id.clone()) else { break };
            answers.remove(&oldest);
        }
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
    answers: Answers,
    streams: Arc<Semaphore>,
    wake: Arc<Notify>,
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
            answers: Answers::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            wake: Arc::new(Notify::new()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The gRPC service.
    #[must_use]
    pub fn service(&self) -> HostServer<Self> {
        HostServer::new(self.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Reports what became of inferences, and stops those that were withdrawn, until the runner stops.
    pub async fn background(&self) {
        let outbox = Outbox {
            runner: self.shared.runner.clone(),
            chain: self.shared.chain.clone(),
            codec: self.shared.codec.clone(),
            me: self.shared.config.executor.to_bech32(&self.shared.config.hrp),
            wake: self.shared.wake.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(outbox.run());
        tasks.spawn(watch_withdrawals(self.shared.clone()));
        // Both end with the runner; the first to see it ends the other.
        tasks.join_next().await;
    }
}

/// Cancels what the chain has closed: by its requester, or because it took too long.
async fn watch_withdrawals(shared: Arc<Shared>) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(WATCH).await;
        let Ok(height) = shared.chain.height().await else { continue };
        if height == seen {
            continue;
        }
        seen = height;
        for (id, answer) in shared.answers.running() {
            let Ok(Some(inference)) = shared.chain.inference(&id).await else { continue };
            let cause = match inference.status() {
                InferenceStatus::Started | InferenceStatus::FinishedFirst => continue,
                InferenceStatus::Cancelled => Cause::Client,
                _ => Cause::Deadline,
            };
            if shared.runner.cancel(answer.session, cause).await.is_err() {
                return;
            }
        }
    }
}

fn refusal(error: ChainError) -> Status {
    match error {
        ChainError::Unreachable(text) => Status::unavailable(text),
        ChainError::Refused { log, .. } => Status::failed_precondition(log),
    }
}

impl Shared {
    /// The started inference, waited for if its Start is on its way.
    async fn started(&self, id: &str) -> Result<Inference, Status> {
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
                tokio::time::sleep(LOOK).await;
            }
            Err(Status::not_found(format!(
                "inference_id {id}: the chain has no such inference {START_BLOCKS} blocks on; send MsgStartInference first"
            )))
        };
        tokio::time::timeout(START_WAIT, wait).await.unwrap_or_else(|_| {
            Err(Status::not_found(format!("inference_id {id}: not on the chain after {} s", START_WAIT.as_secs())))
        })
    }

    /// Begins the answer to a started inference.
    async fn begin(&self, request: &pb::ServeRequest, caller: Address) -> Result<Arc<Answer>, Status> {
        let id = &request.inference_id;
        let body = Body::parse(&request.body).map_err(|e| Status::invalid_argument(e.to_string()))?;
        if !body.stop.is_empty() {
            return Err(Status::invalid_argument("body: stop: not supported for inferences of the chain; leave it out"));
        }
        let inference = self.started(id).await?;
        let prompt_hash: [u8; 32] = Sha256::digest(&request.body).into();
        let me = self.config.executor.to_bech32(&self.config.hrp);
        let policy = |text: String| Status::permission_denied(format!("inference_id {id}: {text}"));
        if inference.assigned_to != me {
            return Err(policy(format!("it was given to {}, this is {me}", inference.assigned_to)));
        }
        if inference.requested_by != caller.to_bech32(&self.config.hrp) {
            return Err(policy(format!("requested by {}, who did not sign this call", inference.requested_by)));
        }
        if inference.prompt_hash != prompt_hash {
            return Err(policy("the body is not the one whose hash was started".into()));
        }
        if inference.status() != InferenceStatus::Started {
            let status = inference.status().as_str_name();
            return Err(Status::failed_precondition(format!("inference_id {id}: it is over ({status})")));
        }
        let text = match body.prompt {
            Prompt::Text(text) => text,
            Prompt::Chat(messages) => {
                let messages: Vec<_> =
                    messages.into_iter().map(|(role, content)| ChatMessage::new(role, content)).collect();
                self.codec.chat(&messages).map_err(|e| Status::invalid_argument(format!("body: messages: {e}")))?
            }
        };
        let prompt =
            self.codec.encode(&text).map_err(|e| Status::invalid_argument(format!("body: prompt: {e}")))?;
        let paid = u32::try_from(inference.max_tokens).unwrap_or(u32::MAX);
        let max_new = body.max_tokens.unwrap_or(u32::MAX).min(paid).min(self.config.max_tokens);
        let generate = GenerateRequest {
            chain_id: self.config.chain_id.clone(),
            client: inference.requested_by.clone(),
            stop_tokens: self.codec.stop_tokens().to_vec(),
            sampling: body.seed.map_or(Sampling::GREEDY, |seed| Sampling { greedy: false, seed }),
            deadlines: DeadlineOverrides {
                total_ms: Some(request.deadline_ms).filter(|ms| *ms > 0),
                ..DeadlineOverrides::default()
            },
            ..GenerateRequest::new(id.clone(), prompt, max_new)
        };
        let session = generate.session();
        let generation = match self.runner.submit(generate).await {
            Ok(generation) => generation,
            Err(error) => return self.answers.get(id).ok_or_else(|| busy(&error)),
        };
        let answer = Arc::new(Answer {
            session,
            requester: caller,
            prompt_hash,
            state: Mutex::default(),
            changed: watch::Sender::new(()),
            delivered: AtomicU32::new(0),
        });
        self.answers.insert(id, answer.clone());
        tokio::spawn(pump(generation, answer.clone(), self.codec.clone(), self.wake.clone()));
        Ok(answer)
    }
}

fn busy(error: &SubmitError) -> Status {
    let text = error.to_string();
    match error {
        SubmitError::QueueFull { retry_after_ms } => {
            let mut status = Status::resource_exhausted(text);
            status.metadata_mut().insert("retry-after-ms", (*retry_after_ms).into());
            status
        }
        SubmitError::LedgerFull => Status::resource_exhausted(text),
        SubmitError::BadRequest { .. } => Status::invalid_argument(text),
        SubmitError::Duplicate { .. } => Status::failed_precondition(text),
        SubmitError::NoRoute | SubmitError::Stopped => Status::unavailable(text),
    }
}

/// Moves tokens from the runner to the answer, as text. The run goes on whoever listens: only the chain withdraws it
/// (runner-details 13).
async fn pump(mut generation: Generation, answer: Arc<Answer>, codec: Arc<dyn TextCodec>, wake: Arc<Notify>) {
    generation.detach();
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
    answer.end(outcome.map_or(failed(PbKind::Internal), |outcome| ended(&outcome)));
    wake.notify_one();
}

fn failed(kind: PbKind) -> Event {
    Event::Failed(pb::Failed { kind: kind.into() })
}

fn ended(outcome: &Outcome) -> Event {
    let last = outcome.records.last();
    match (outcome.status, outcome.finish_reason, last) {
        (WorkStatus::Completed, Some(reason), Some(record)) => Event::Finished(pb::Finished {
            finish_reason: reason.as_str().to_owned(),
            usage: Some(pb::Usage {
                prompt_tokens: record.prompt_tokens,
                completion_tokens: record.tokens.unwrap_or(0),
            }),
        }),
        _ => {
            let kind = outcome.kind.map_or(0, |kind| i32::try_from(kind.number()).unwrap_or(0));
            failed(PbKind::try_from(kind).unwrap_or(PbKind::Internal))
        }
    }
}

/// Sends an answer from its beginning, until its end or the client's.
async fn stream(
    answer: Arc<Answer>,
    sender: mpsc::Sender<Result<pb::ServeResponse, Status>>,
    _permit: OwnedSemaphorePermit,
) {
    let send = async {
        let mut changed = answer.changed.subscribe();
        let mut sent = 0;
        loop {
            let (deltas, end) = answer.after(sent);
            sent += deltas.len();
            for delta in deltas {
                let upto = delta.index.saturating_add(u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX));
                sender.send(Ok(pb::ServeResponse { event: Some(Event::Delta(delta)) })).await.ok()?;
                answer.delivered.fetch_max(upto, Ordering::Relaxed);
            }
            if let Some(end) = end {
                return sender.send(Ok(pb::ServeResponse { event: Some(end) })).await.ok();
            }
            if tokio::time::timeout(BEAT, changed.changed()).await.is_err() {
                sender.send(Ok(pb::ServeResponse { event: Some(Event::Beat(pb::Beat {})) })).await.ok()?;
            }
        }
    };
    // A client that reads nothing holds its place for so long only; the run itself never waits for it.
    let _ = tokio::time::timeout(READER_GRACE, send).await;
}

#[tonic::async_trait]
impl HostService for Host {
    type ServeStream = ReceiverStream<Result<pb::ServeResponse, Status>>;

    async fn serve(&self, request: Request<pb::ServeRequest>) -> Result<Response<Self::ServeStream>, Status> {
        let shared = &self.shared;
        let permit = shared.streams.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{STREAMS_MAX} calls are being served; try again in a second"))
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
            return Err(Status::permission_denied(format!("inference_id {id}: somebody else's, or another body")));
        }
        let (sender, receiver) = mpsc::channel(PIECES);
        tokio::spawn(stream(answer, sender, permit));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
