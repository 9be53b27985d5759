//! Infer: taking work, running it, its outcome, its end; and CancelInference.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use holdfast_escrow::session::Tx;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use holdfast_proto::holdfast::host::v1::infer_response::Event;
use holdfast_proto::holdfast::runner::v1::FailureKind as PbKind;
use holdfast_runner::adapter::SessionId;
use holdfast_runner::runner::{Generation, SubmitError};
use holdfast_runner::trace::TraceContext;
use holdfast_runner::{Cause as EndedBy, FailureKind, WorkStatus};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::admission::Ready;
use super::{Sessions, credential};
use crate::outbox::response_hash;
use crate::session::{HostCore, JobEnd, StartJob, errors};
use crate::tape::{Kept, Piece, Tape, pump, reader_limit};
use crate::wire;

/// Messages on their way to one client.
const PIECES: usize = 16;
/// Longest wait of work for a place in the runner's queue.
const QUEUE_WAIT: Duration = Duration::from_secs(30);
/// Tries to make an outcome durable, and the first pause between two; it doubles.
const OUTCOME_TRIES: u32 = 6;
const OUTCOME_PAUSE: Duration = Duration::from_millis(250);

/// An inference of a session, running or ended.
pub(super) struct Work {
    pub(super) session: SessionId,
    prompt_tokens: AtomicU32,
    tape: Tape<Event>,
}

impl Work {
    fn new(session: SessionId) -> Arc<Self> {
        Arc::new(Self { session, prompt_tokens: AtomicU32::new(0), tape: Tape::new(None) })
    }
}

impl Kept for Work {
    type End = Event;

    fn tape(&self) -> &Tape<Event> {
        &self.tape
    }
}

type Stream = ReceiverStream<Result<pb::InferResponse, Status>>;

/// The last message of a stream, by the transaction that ends the inference.
fn event(tx: &[u8], finish_reason: &str) -> Event {
    match Tx::from_bytes(tx) {
        Ok(Tx::FinishInference { input_tokens, output_tokens, .. }) => Event::Finished(pb::InferFinished {
            tx: tx.to_vec(),
            finish_reason: finish_reason.to_owned(),
            usage: Some(pb::Usage { prompt_tokens: input_tokens, completion_tokens: output_tokens }),
        }),
        Ok(Tx::ReportError { kind, .. }) => failed(kind, tx.to_vec()),
        _ => failed(number(FailureKind::Internal), Vec::new()),
    }
}

fn failed(kind: u8, tx: Vec<u8>) -> Event {
    let kind = PbKind::try_from(i32::from(kind)).unwrap_or(PbKind::Internal);
    Event::Failed(pb::InferFailed { kind: kind.into(), tx })
}

fn number(kind: FailureKind) -> u8 {
    u8::try_from(kind.number()).unwrap_or(u8::MAX)
}

/// The trace that a call belongs to.
fn trace(metadata: &MetadataMap) -> Option<TraceContext> {
    metadata.get("traceparent").and_then(|value| value.to_str().ok()).and_then(TraceContext::parse)
}

impl Sessions {
    pub(crate) async fn infer(&self, call: Request<pb::InferRequest>) -> Result<Stream, Status> {
        let full = |_| wire::status(errors::busy("too many streams; try again in a second", 1_000));
        let permit = self.shared.streams.clone().try_acquire_owned().map_err(full)?;
        let trace = trace(call.metadata());
        let request = call.into_inner();
        let (deadline_ms, unix_s) = (request.deadline_ms, self.unix_s());
        let (escrow_id, id) = (request.escrow_id, request.target_nonce);
        tracing::debug!(
            escrow = escrow_id,
            inference = id,
            request = request.request_id,
            trace = trace.map(tracing::field::display),
            "infer"
        );
        let body = request.body.clone();
        let this = self.clone();
        let (step, work) = self
            .core(move |core| {
                let step = core.infer(unix_s, &request)?;
                let work = this.begin(escrow_id, id, step.start.clone(), trace);
                Ok((step, work))
            })
            .await?;
        let work = match (work, &step.ended) {
            (Some(work), _) => work,
            (None, Some((tx, reason))) => self.ended_before(escrow_id, id, body, tx, reason).await,
            // The last process took it; its outcome is being found out.
            (None, None) => return Err(wire::status(errors::busy("it is being settled", 1_000))),
        };
        let within = reader_limit(deadline_ms);
        let (sender, receiver) = mpsc::channel(PIECES);
        let receipt = Some(step.receipt).filter(|tx| !tx.is_empty());
        let first =
            [Some(Event::Applied(step.applied)), receipt.map(|tx| Event::Receipt(pb::Receipt { tx }))];
        tokio::spawn(stream(work, first, sender, within, self.shared.config.beat, permit));
        Ok(ReceiverStream::new(receiver))
    }

    /// Called inside the core's turn, so that work which was taken has its tape before anybody else asks for it.
    pub(super) fn begin(
        &self,
        escrow_id: u64,
        id: u64,
        start: Option<StartJob>,
        trace: Option<TraceContext>,
    ) -> Option<Arc<Work>> {
        let Some(job) = start else { return self.shared.works.get(&(escrow_id, id)) };
        let work = Work::new(SessionId::new(&self.shared.chain_id, escrow_id, &id.to_string()));
        self.shared.works.insert((escrow_id, id), work.clone());
        let (this, running) = (self.clone(), work.clone());
        tokio::spawn(async move {
            let end = this.compute(&job, &running, trace).await;
            this.settle(job.escrow_id, job.id, end, Some(running)).await;
        });
        Some(work)
    }

    /// Runs work to its end.
    async fn compute(&self, job: &StartJob, work: &Work, trace: Option<TraceContext>) -> JobEnd {
        let failure = |kind: FailureKind| JobEnd::Failed {
            kind: number(kind),
            input_tokens: work.prompt_tokens.load(Ordering::Relaxed),
            output_tokens: work.tape.delivered(),
        };
        let ready = match self.shared.admission.read(&job.body, job.output_limit) {
            Ok(ready) => ready,
            Err(refusal) => {
                tracing::warn!(
                    escrow = job.escrow_id,
                    inference = job.id,
                    ?refusal,
                    "work that was taken cannot be done"
                );
                return failure(FailureKind::Internal);
            }
        };
        work.prompt_tokens.store(u32::try_from(ready.prompt.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        // The ledger knows what ran before, also when the store of sessions is new.
        let before = self.shared.runner.records(work.session).await.unwrap_or_default();
        if let Some(record) = before.last().filter(|record| record.status != WorkStatus::Completed) {
            return failure(record.failure_kind.unwrap_or(FailureKind::WorkerDeath));
        }
        let mut generation = match self.submit(job, &ready, work, trace).await {
            Ok(generation) => generation,
            Err(error) => {
                tracing::warn!(escrow = job.escrow_id, inference = job.id, %error, "the runner does not take it");
                return failure(FailureKind::Internal);
            }
        };
        // From here on it runs to its end, whoever listens.
        generation.detach();
        if work.tape.has_ended() {
            generation.cancel(EndedBy::Client);
        }
        let pumped = pump(generation, &work.tape, self.shared.codec.as_ref(), &ready.stop).await;
        let Some(outcome) = pumped.outcome else { return failure(FailureKind::WorkerDeath) };
        let finish_reason = match (pumped.stopped, outcome.status, outcome.finish_reason) {
            (true, ..) => "stop",
            (false, WorkStatus::Completed, Some(reason)) => reason.as_str(),
            _ => return failure(outcome.kind.unwrap_or(FailureKind::Internal)),
        };
        JobEnd::Finished {
            input_tokens: work.prompt_tokens.load(Ordering::Relaxed),
            output_tokens: pumped.tokens,
            response_hash: pumped.hash,
            finish_reason: finish_reason.to_owned(),
        }
    }

    /// Waits for a place in the queue: the receipt is out.
    async fn submit(
        &self,
        job: &StartJob,
        ready: &Ready,
        work: &Work,
        trace: Option<TraceContext>,
    ) -> Result<Generation, SubmitError> {
        let client = format!("escrow {}", job.escrow_id);
        let mut request = self.shared.admission.request(&self.shared.chain_id, client, job, ready);
        // A span of its own, the same at every try.
        let span = |context: TraceContext| {
            let [a, b, c, d, e, f, g, h, ..] = work.session.0;
            context.child([a, b, c, d, e, f, g, h])
        };
        request.trace = trace.map(span);
        let until = tokio::time::Instant::now() + QUEUE_WAIT;
        loop {
            let pause = match self.shared.runner.submit(request.clone()).await {
                Err(SubmitError::QueueFull { retry_after_ms }) => Duration::from_millis(retry_after_ms),
                Err(SubmitError::LedgerFull | SubmitError::NoRoute) => Duration::from_millis(500),
                taken => return taken,
            };
            let pause = pause.clamp(Duration::from_millis(20), Duration::from_secs(2));
            if work.tape.has_ended() || tokio::time::Instant::now() + pause > until {
                return Err(SubmitError::QueueFull { retry_after_ms: 0 });
            }
            sleep(pause).await;
        }
    }

    /// Makes an outcome durable, ends the tape with it, and marks the record of the ledger.
    async fn settle(&self, escrow_id: u64, id: u64, end: JobEnd, work: Option<Arc<Work>>) {
        let mut pause = OUTCOME_PAUSE;
        let mut last = failed(number(FailureKind::Internal), Vec::new());
        for attempt in 1..=OUTCOME_TRIES {
            let end = end.clone();
            let done = move |core: &mut HostCore| {
                core.outcome(escrow_id, id, &end)?;
                core.ended(escrow_id, id)
            };
            match self.core(done).await {
                Ok(Some((tx, reason))) => {
                    last = event(&tx, &reason);
                    let session = SessionId::new(&self.shared.chain_id, escrow_id, &id.to_string());
                    self.mark(session, escrow_id).await;
                    break;
                }
                Ok(None) => break,
                // Settled meanwhile: nobody wants it any more.
                Err(error) if wire::escrow_error(&error).code() != Cause::Unavailable => {
                    tracing::warn!(escrow = escrow_id, inference = id, %error, "an outcome that came too late");
                    let session = SessionId::new(&self.shared.chain_id, escrow_id, &id.to_string());
                    self.mark(session, escrow_id).await;
                    break;
                }
                Err(error) => {
                    tracing::error!(escrow = escrow_id, inference = id, attempt, %error, "an outcome cannot be kept");
                    sleep(pause).await;
                    pause *= 2;
                }
            }
        }
        if let Some(work) = work {
            work.tape.end(last);
        }
    }

    /// The ledger hears that a record needs no report of its own.
    async fn mark(&self, session: SessionId, escrow_id: u64) {
        let records = self.shared.runner.records(session).await.unwrap_or_default();
        let Some(record) = records.last() else { return };
        let reference = format!("escrow {escrow_id}");
        let marked = match self.shared.runner.mark_submitted(record.key, reference).await {
            Ok(()) => self.shared.runner.mark_closed(session).await,
            Err(error) => Err(error),
        };
        if let Err(error) = marked {
            tracing::warn!(%session, %error, "a record cannot be marked");
        }
    }

    /// The stream of an inference whose tape is gone: its text from the ledger, if it is there, and its end.
    async fn ended_before(
        &self,
        escrow_id: u64,
        id: u64,
        body: Vec<u8>,
        tx: &[u8],
        reason: &str,
    ) -> Arc<Work> {
        let session = SessionId::new(&self.shared.chain_id, escrow_id, &id.to_string());
        let work = Work::new(session);
        let end = event(tx, reason);
        let completed =
            matches!(end, Event::Finished(_))
                && self.shared.runner.records(session).await.is_ok_and(|records| {
                    records.last().is_some_and(|last| last.status == WorkStatus::Completed)
                });
        let job = StartJob { escrow_id, id, body, input_limit: u32::MAX, output_limit: u32::MAX };
        let ready = self.shared.admission.read(&job.body, job.output_limit);
        match ready {
            Ok(ready) if completed => {
                let client = format!("escrow {escrow_id}");
                let request = self.shared.admission.request(&self.shared.chain_id, client, &job, &ready);
                if let Ok(generation) = self.shared.runner.submit(request).await {
                    let _ = pump(generation, &work.tape, self.shared.codec.as_ref(), &ready.stop).await;
                }
            }
            _ => {}
        }
        work.tape.end(end);
        work
    }

    pub(crate) async fn cancel_inference(
        &self,
        call: Request<pb::CancelInferenceRequest>,
    ) -> Result<pb::CancelInferenceResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let (escrow_id, id) = (request.escrow_id, request.inference_id);
        let caller = self.caller(&metadata, escrow_id, "CancelInference", &request)?;
        let auth = credential(&metadata).unwrap_or_default();
        let this = self.clone();
        let (step, work) = self
            .core(move |core| {
                let work = this.shared.works.get(&(escrow_id, id));
                let progress = work.as_ref().map_or((0, 0), |work| {
                    (work.prompt_tokens.load(Ordering::Relaxed), work.tape.delivered())
                });
                let step = core.cancel(&request, &auth, caller, progress)?;
                if let Some((tx, reason)) = core.ended(escrow_id, id)?
                    && let Some(work) = &work
                {
                    work.tape.end(event(&tx, &reason));
                }
                Ok((step, work))
            })
            .await?;
        if step.stop
            && let Some(work) = work
        {
            let runner = self.shared.runner.clone();
            // The reply does not wait for the shards.
            tokio::spawn(async move { drop(runner.cancel(work.session, EndedBy::Client).await) });
        }
        Ok(step.reply)
    }

    /// Gives an outcome to all work that the last process left: by the ledger, which knows what ran.
    pub(super) async fn resume(&self) {
        let open = match self.core(|core| core.unfinished()).await {
            Ok(open) => open,
            Err(error) => {
                tracing::error!(%error, "what the last process left cannot be read");
                return;
            }
        };
        let reports = self.shared.runner.unsubmitted().await.unwrap_or_default();
        let reports: BTreeMap<SessionId, _> =
            reports.into_iter().map(|report| (report.record.key.session, report)).collect();
        for (escrow_id, id) in open {
            if self.shared.works.get(&(escrow_id, id)).is_some() {
                continue;
            }
            let session = SessionId::new(&self.shared.chain_id, escrow_id, &id.to_string());
            let failure = |kind: FailureKind, input_tokens, output_tokens| JobEnd::Failed {
                kind: number(kind),
                input_tokens,
                output_tokens,
            };
            let end = match reports.get(&session) {
                // A receipt without a run: the body went with the process.
                None => failure(FailureKind::WorkerDeath, 0, 0),
                Some(report) if report.record.status == WorkStatus::Completed => {
                    let record = &report.record;
                    let text = self.shared.codec.decode(&report.tokens);
                    let ends = |token: &u32| self.shared.codec.stop_tokens().contains(token);
                    let stopped = report.tokens.last().is_some_and(ends);
                    JobEnd::Finished {
                        input_tokens: record.prompt_tokens,
                        output_tokens: record.tokens.unwrap_or(0),
                        response_hash: text.map_or(record.output_digest, |text| response_hash(&text)),
                        finish_reason: if stopped { "stop" } else { "length" }.to_owned(),
                    }
                }
                Some(report) => {
                    let record = &report.record;
                    let kind = record.failure_kind.unwrap_or(FailureKind::WorkerDeath);
                    failure(kind, record.prompt_tokens, record.delivered_tokens)
                }
            };
            tracing::info!(escrow = escrow_id, inference = id, ?end, "left by the last process");
            self.settle(escrow_id, id, end, None).await;
        }
        self.mark_left(reports.into_keys().collect()).await;
    }

    /// Records whose outcome was kept while the mark was not. One that no session here knows, because its store is gone, is
    /// not forgotten by the ledger: it keeps the inference from being run again.
    async fn mark_left(&self, sessions: Vec<SessionId>) {
        let Ok(escrows) = self.core(|core| Ok(core.known())).await else { return };
        for report in self.shared.runner.unsubmitted().await.unwrap_or_default() {
            let (session, name) = (report.record.key.session, report.inference_id);
            let is_of =
                |escrow_id: &&u64| SessionId::new(&self.shared.chain_id, **escrow_id, &name) == session;
            if !sessions.contains(&session) || is_of(&&0) {
                continue;
            }
            let known = escrows.iter().find(is_of).copied().zip(name.parse().ok());
            match known {
                Some((escrow_id, id)) => {
                    let over = move |core: &mut HostCore| {
                        let live = core.escrows().contains(&escrow_id);
                        Ok(!live || core.ended(escrow_id, id)?.is_some())
                    };
                    if let Ok(true) = self.core(over).await {
                        self.mark(session, escrow_id).await;
                    }
                }
                None => drop(self.shared.runner.mark_submitted(report.record.key, "unknown session").await),
            }
        }
    }
}

/// Sends an inference from its beginning, until its end, the client's, or `within` is over.
async fn stream(
    work: Arc<Work>,
    first: [Option<Event>; 2],
    sender: mpsc::Sender<Result<pb::InferResponse, Status>>,
    within: Duration,
    beat: Duration,
    _permit: OwnedSemaphorePermit,
) {
    let message = |event| pb::InferResponse { event: Some(event) };
    let send = async {
        for event in first.into_iter().flatten() {
            sender.send(Ok(message(event))).await.ok()?;
        }
        work.tape
            .play(&sender, beat, |piece| {
                message(match piece {
                    Piece::Delta(delta) => Event::Delta(delta),
                    Piece::Beat => Event::Beat(pb::Beat {}),
                    Piece::End(end) => end,
                })
            })
            .await
    };
    // A client that reads nothing holds its place for so long only; the run itself never waits for it.
    if timeout(within, send).await.is_err() {
        let _ = sender.try_send(Ok(message(failed(number(FailureKind::DeadlineExceeded), Vec::new()))));
    }
}
