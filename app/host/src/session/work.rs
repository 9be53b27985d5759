//! Work: Infer, what became of it, and its cancellation.

use holdfast_escrow::session::{
    Hash, InferenceRecord, InferenceStatus, KIND_CANCELLED, KIND_MAX, State, Tx, digest,
};
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::cancel_inference_response::State as CancelState;
use holdfast_store::StoreError;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use super::replica::Stage;
use super::rows::{JOBS, JobRow};
use super::rules::Via;
use super::{HostCore, Refusal, errors, read};
use crate::body::BODY_MAX;

/// Kind of a failure of this node that is none of the others.
const KIND_INTERNAL: u8 = KIND_MAX;
/// Longest cause of a cancellation, bytes.
const CAUSE_MAX: usize = 64;

/// A piece of work to be given to the runner now. Its receipt is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartJob {
    /// The escrow.
    pub escrow_id: u64,
    /// Its inference.
    pub id: u64,
    /// The prompt as it came.
    pub body: Vec<u8>,
    /// Tokens of the prompt, at most.
    pub input_limit: u32,
    /// Tokens of the answer, at most.
    pub output_limit: u32,
}

/// What Infer leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct InferStep {
    /// First message of the stream.
    pub applied: pb::Applied,
    /// Second: ConfirmStart.
    pub receipt: Vec<u8>,
    /// Work to begin; `None` when it was begun before.
    pub start: Option<StartJob>,
    /// The outcome, when it has ended: FinishInference or ReportError, and `stop` or `length`.
    pub ended: Option<(Vec<u8>, String)>,
}

/// How a piece of work ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// All of it is there.
    Finished {
        /// Tokens of the prompt.
        input_tokens: u32,
        /// Tokens of the answer.
        output_tokens: u32,
        /// SHA-256 of the text that was sent.
        response_hash: Hash,
        /// `stop` or `length`.
        finish_reason: String,
    },
    /// It did not work out.
    Failed {
        /// Number of the failure.
        kind: u8,
        /// Tokens of the prompt.
        input_tokens: u32,
        /// Tokens that were delivered.
        output_tokens: u32,
    },
}

/// What CancelInference leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct CancelStep {
    /// The reply.
    pub reply: pb::CancelInferenceResponse,
    /// Whether the runner is to be told.
    pub stop: bool,
}

/// What ChallengeStart leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct ChallengeStep {
    /// The reply.
    pub reply: pb::ChallengeStartResponse,
    /// Work to begin.
    pub start: Option<StartJob>,
}

/// What a host makes of a Start.
enum Taken {
    /// It took it before.
    Before(JobRow),
    /// It takes it now.
    Now(JobRow, StartJob),
}

impl HostCore {
    /// Applies diffs up to a Start and takes its work; `unix_s` is the time of the receipt. The receipt is on disk when this
    /// returns, and leaves after that.
    ///
    /// # Errors
    /// As Teach; Policy for work that is not this host's or that it cannot do; Busy without room.
    pub fn infer(&mut self, unix_s: u64, request: &pb::InferRequest) -> Result<InferStep, pb::EscrowError> {
        let pb::InferRequest { escrow_id, target_nonce: id, body, .. } = request;
        let (stage, stop) = self.stage(*escrow_id, &request.diffs, Via::Infer)?;
        let taken = self.take(stage, stop, *id, body, unix_s)?;
        let (job, start) = match taken {
            Taken::Before(job) if job.prompt_hash != Hash::from(Sha256::digest(body)) => {
                return Err(wrong_body());
            }
            Taken::Before(job) => (job, None),
            Taken::Now(job, start) => (job, Some(start)),
        };
        let applied = self.applied(*escrow_id, None)?;
        let ended = (!job.outcome.is_empty()).then_some((job.outcome, job.finish_reason));
        Ok(InferStep { applied, receipt: job.receipt, start, ended })
    }

    /// Host to host: takes the work of a Start now. Of work that it has, it tells whatever the body: a gateway that lost the
    /// bodies, or sends others, must not have it found late. What was withdrawn before it was taken comes with the gateway's word.
    ///
    /// # Errors
    /// As Infer; Policy unless a host of the group asks. A body that no host can serve is refused like at Infer: nothing is
    /// signed, as it is the gateway's fault; honest voters refuse it by the same rule.
    pub fn challenge_start(
        &mut self,
        unix_s: u64,
        request: &pb::ChallengeStartRequest,
        caller: Address,
    ) -> Result<ChallengeStep, pb::EscrowError> {
        let pb::ChallengeStartRequest { escrow_id, inference_id: id, body, .. } = request;
        self.check_host(*escrow_id, caller)?;
        let (stage, stop) = self.stage(*escrow_id, &request.diffs, Via::Peer)?;
        // A voter on the execution time may have got no body: what this host has done it says all the same.
        let before = if body.is_empty() { self.job(*escrow_id, *id)? } else { None };
        let (job, start) = match before {
            Some(job) => {
                self.commit(stage.writes, stage.replica)?;
                (job, None)
            }
            None => match self.take(stage, stop, *id, body, unix_s)? {
                Taken::Before(job) => (job, None),
                Taken::Now(job, start) => (job, Some(start)),
            },
        };
        let cancel = job.cancel.as_ref().and_then(|(request, auth)| {
            let request = pb::CancelInferenceRequest::decode(request.as_slice()).ok()?;
            Some(pb::SignedCancel { request: Some(request), auth: auth.clone() })
        });
        let cancel = cancel.filter(|_| is_cancelled(&job.outcome));
        let reply = pb::ChallengeStartResponse { receipt: job.receipt, outcome: job.outcome, cancel };
        Ok(ChallengeStep { reply, start })
    }

    /// Commits a stage, with a receipt if this host takes the work of `id`.
    fn take(
        &mut self,
        mut stage: Stage,
        stop: Option<pb::EscrowError>,
        id: u64,
        body: &[u8],
        unix_s: u64,
    ) -> Result<Taken, pb::EscrowError> {
        let taken = match stop {
            Some(error) => Err(error),
            None => self.decide(&stage, id, body, unix_s),
        };
        if let Ok(Taken::Now(job, _)) = &taken {
            self.write_job(&mut stage, id, job).map_err(|error| errors::store(&error))?;
        }
        self.commit(stage.writes, stage.replica)?;
        taken
    }

    fn decide(&self, stage: &Stage, id: u64, body: &[u8], unix_s: u64) -> Result<Taken, pb::EscrowError> {
        let state = &stage.replica.state;
        let escrow_id = state.config().escrow_id;
        if body.len() > BODY_MAX {
            return Err(errors::too_large("body", body.len(), BODY_MAX));
        }
        if id > state.nonce() {
            // Also to a challenge: a replica that is behind signs no receipt.
            return Err(errors::behind(state.nonce()));
        }
        let prompt_hash: Hash = Sha256::digest(body).into();
        let before = JOBS.get(read(self.db.as_ref()), &(escrow_id, id));
        if let Some(job) = before.map_err(|error| errors::store(&error))? {
            return Ok(Taken::Before(job));
        }
        let Some(record) = state.record(id) else {
            return Err(errors::bad_tx(format!("inference {id} is not live")));
        };
        if state.config().owner_of(record.executor_slot) != Some(self.config.owner) {
            return Err(errors::policy(format!("inference {id} was given to slot {}", record.executor_slot)));
        }
        if record.prompt_hash != prompt_hash {
            return Err(wrong_body());
        }
        if record.status != InferenceStatus::Pending {
            return Err(errors::bad_tx(format!(
                "inference {id} is {:?}, and not by this host",
                record.status
            )));
        }
        if stage.replica.pending.len() >= self.config.pending_max {
            return Err(errors::busy("too many transactions wait for a diff", errors::RETRY_MS));
        }
        let mut job = job_of(record);
        match self.admission.check(body, record.input_limit, record.output_limit) {
            Ok(()) => {}
            Err(Refusal::Busy { message, retry_after_ms }) => {
                return Err(errors::busy(message, retry_after_ms));
            }
            Err(Refusal::Policy(message)) => return Err(errors::policy(message)),
        }
        job.receipt = self.receipt(state, record, unix_s).to_bytes();
        let (input_limit, output_limit) = job.limits;
        let start = StartJob { escrow_id, id, body: body.to_vec(), input_limit, output_limit };
        Ok(Taken::Now(job, start))
    }

    fn receipt(&self, state: &State, record: &InferenceRecord, unix_s: u64) -> Tx {
        let config = state.config();
        // A clock that is behind the gateway's does not sign that it was early.
        let confirmed_at = unix_s.max(record.started_at);
        let digest = digest::receipt(&config.chain_id, config.escrow_id, record, confirmed_at);
        Tx::ConfirmStart { id: record.id, confirmed_at, sig: self.key.sign_recoverable(digest) }
    }

    fn report(&self, state: &State, job: &JobRow, id: u64, kind: u8, tokens: (u32, u32)) -> Tx {
        let config = state.config();
        let (input_tokens, output_tokens) = (tokens.0.min(job.limits.0), tokens.1.min(job.limits.1));
        let digest = digest::error(
            &config.chain_id,
            config.escrow_id,
            id,
            job.slot,
            kind,
            input_tokens,
            output_tokens,
        );
        Tx::ReportError { id, kind, input_tokens, output_tokens, sig: self.key.sign_recoverable(digest) }
    }

    /// Puts a job and its transactions into a stage.
    fn write_job(&self, stage: &mut Stage, id: u64, job: &JobRow) -> Result<(), StoreError> {
        let mut branch = self.branch(std::mem::take(&mut stage.writes));
        let replica = &mut stage.replica;
        JOBS.set(&mut branch, &(replica.escrow_id(), id), job)?;
        if job.outcome.is_empty() {
            replica.running.insert(id);
        } else {
            replica.running.remove(&id);
        }
        for bytes in [&job.receipt, &job.outcome] {
            if let Ok(tx) = Tx::from_bytes(bytes) {
                replica.add_pending(&mut branch, &tx)?;
            }
        }
        stage.writes = branch.into_writes();
        Ok(())
    }

    fn job(&self, escrow_id: u64, id: u64) -> Result<Option<JobRow>, pb::EscrowError> {
        JOBS.get(read(self.db.as_ref()), &(escrow_id, id)).map_err(|error| errors::store(&error))
    }

    /// The outcome of an inference that this host took, if there is one yet: its transaction, and `stop` or `length`.
    ///
    /// # Errors
    /// Unavailable when the store cannot be read.
    pub fn ended(&self, escrow_id: u64, id: u64) -> Result<Option<(Vec<u8>, String)>, pb::EscrowError> {
        let job = self.job(escrow_id, id)?;
        Ok(job.filter(|job| !job.outcome.is_empty()).map(|job| (job.outcome, job.finish_reason)))
    }

    /// What became of a piece of work: signs FinishInference or ReportError, durable when this returns. Counts are clamped to
    /// the limits of the Start. An outcome that was there before stays, and is given.
    ///
    /// # Errors
    /// As any call of the session; BadTx for an inference that was never taken.
    pub fn outcome(&mut self, escrow_id: u64, id: u64, end: &JobEnd) -> Result<Vec<u8>, pb::EscrowError> {
        let replica = self.replica(escrow_id)?.clone();
        let Some(mut job) = self.job(escrow_id, id)? else {
            return Err(errors::bad_tx(format!("inference {id} was not taken here")));
        };
        if !job.outcome.is_empty() {
            return Ok(job.outcome);
        }
        let state = &replica.state;
        let tx = match end {
            JobEnd::Finished { input_tokens, output_tokens, response_hash, finish_reason } => {
                let (input_tokens, output_tokens) =
                    ((*input_tokens).min(job.limits.0), (*output_tokens).min(job.limits.1));
                let config = state.config();
                let digest = digest::finish(
                    &config.chain_id,
                    escrow_id,
                    id,
                    job.slot,
                    input_tokens,
                    output_tokens,
                    response_hash,
                );
                job.finish_reason.clone_from(finish_reason);
                job.output_tokens = output_tokens;
                let sig = self.key.sign_recoverable(digest);
                Tx::FinishInference { id, input_tokens, output_tokens, response_hash: *response_hash, sig }
            }
            JobEnd::Failed { kind, input_tokens, output_tokens } => {
                let kind = if (1..=KIND_MAX).contains(kind) { *kind } else { KIND_INTERNAL };
                // Only the gateway cancels; a run that somebody else withdrew is this node's failure.
                let kind = if kind == KIND_CANCELLED && job.cancel.is_none() { KIND_INTERNAL } else { kind };
                job.output_tokens = (*output_tokens).min(job.limits.1);
                self.report(state, &job, id, kind, (*input_tokens, *output_tokens))
            }
        };
        job.outcome = tx.to_bytes();
        let mut stage = Stage { writes: holdfast_store::WriteSet::new(), replica };
        self.write_job(&mut stage, id, &job).map_err(|error| errors::store(&error))?;
        self.commit(stage.writes, stage.replica)?;
        Ok(job.outcome)
    }

    /// Ends a running inference by the gateway's word, which is kept as evidence: `auth` is the credential of the call,
    /// `progress` the tokens of the prompt and those that were delivered. The report is durable when this returns. A Start of
    /// this host that stands Pending here and was never taken ends too, with no tokens, and is not taken any more.
    ///
    /// # Errors
    /// Policy unless the gateway asks; as any call of the session.
    pub fn cancel(
        &mut self,
        request: &pb::CancelInferenceRequest,
        auth: &[u8],
        caller: Address,
        progress: (u32, u32),
    ) -> Result<CancelStep, pb::EscrowError> {
        let (escrow_id, id) = (request.escrow_id, request.inference_id);
        self.check_gateway(escrow_id, caller)?;
        if request.cause.len() > CAUSE_MAX {
            return Err(errors::too_large("cause", request.cause.len(), CAUSE_MAX));
        }
        let replica = self.replica(escrow_id)?.clone();
        let reply = |state: CancelState, delivered_tokens, core: &mut Self| {
            let pending = core.replica(escrow_id)?.listed(|_| true);
            Ok(pb::CancelInferenceResponse { state: state.into(), delivered_tokens, pending })
        };
        let before = self.job(escrow_id, id)?;
        let (untaken, progress) = (before.is_none(), if before.is_none() { (0, 0) } else { progress });
        let untaken_job = || {
            let record = replica.state.record(id)?;
            let ours = replica.state.config().owner_of(record.executor_slot) == Some(self.config.owner);
            (ours && record.status == InferenceStatus::Pending).then(|| job_of(record))
        };
        let Some(mut job) = before.or_else(untaken_job) else {
            return Ok(CancelStep { reply: reply(CancelState::Unspecified, 0, self)?, stop: false });
        };
        if untaken && replica.pending.len() >= self.config.pending_max {
            return Err(errors::busy("too many transactions wait for a diff", errors::RETRY_MS));
        }
        if !job.outcome.is_empty() {
            let state = if is_cancelled(&job.outcome) { CancelState::Cancelled } else { CancelState::Ended };
            return Ok(CancelStep { reply: reply(state, job.output_tokens, self)?, stop: false });
        }
        job.cancel = Some((request.encode_to_vec(), auth.to_vec()));
        job.output_tokens = progress.1.min(job.limits.1);
        job.outcome = self.report(&replica.state, &job, id, KIND_CANCELLED, progress).to_bytes();
        let mut stage = Stage { writes: holdfast_store::WriteSet::new(), replica };
        self.write_job(&mut stage, id, &job).map_err(|error| errors::store(&error))?;
        self.commit(stage.writes, stage.replica)?;
        Ok(CancelStep { reply: reply(CancelState::Cancelled, job.output_tokens, self)?, stop: !untaken })
    }
}

fn wrong_body() -> pb::EscrowError {
    errors::policy("the body is not the one whose SHA-256 was started")
}

/// What is kept of a Start, before this host signs anything about it.
fn job_of(record: &InferenceRecord) -> JobRow {
    JobRow {
        prompt_hash: record.prompt_hash,
        limits: (record.input_limit, record.output_limit),
        slot: record.executor_slot,
        ..JobRow::default()
    }
}

/// Whether the bytes are a ReportError of kind cancelled.
fn is_cancelled(outcome: &[u8]) -> bool {
    matches!(Tx::from_bytes(outcome), Ok(Tx::ReportError { kind: KIND_CANCELLED, .. }))
}
