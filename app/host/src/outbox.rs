//! What became of each inference, told to the chain once (runner-details 13).
//!
//! The work ledger is the source: a record that is not marked submitted is looked up on the chain, reported if the
//! chain still waits for it, and marked when the chain shows that it is closed. A crash between any two of these steps
//! only repeats a look or a report that the chain refuses as a duplicate.
//!
//! ```text
//!  Terminal (durable) ──► look ── chain waits ──► broadcast ──► look … ── ended ──► Submitted, Closed (durable)
//!                          ▲                        │ in no block in time
//!                          └────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_app::grpc::{ChainError, TX_LIFE_BLOCKS};
use holdfast_app::tx::pack;
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1::{
    Inference, InferenceStatus, MsgFinishInference, MsgReportFailure,
};
use holdfast_runner::adapter::{KvKey, SessionId};
use holdfast_runner::runner::{MarkError, Report, RunnerHandle, Stopped};
use holdfast_runner::text::TextCodec;
use holdfast_runner::{Cause, FailureKind, WorkRecord, WorkStatus};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::answers::Answers;
use crate::chain::Chain;
use crate::config::Pace;

/// Most reports looked at in one round.
const BATCH: usize = 64;

/// What is to be done about a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing more: the chain has it, or wants nothing. The text says which.
    Close(&'static str),
    /// The chain waits for this.
    Send(Any),
}

/// Decides what to do about the last record of an inference, given what the chain says of it.
#[must_use]
pub fn decide(
    record: &WorkRecord,
    inference: &Inference,
    me: &str,
    response_hash: impl FnOnce() -> [u8; 32],
) -> Step {
    match inference.status() {
        InferenceStatus::Started => {}
        status => return Step::Close(status.as_str_name()),
    }
    match record.status {
        WorkStatus::Completed => Step::Send(pack(&MsgFinishInference {
            executed_by: me.to_owned(),
            inference_id: inference.inference_id.clone(),
            response_hash: response_hash().to_vec(),
            prompt_tokens: record.prompt_tokens.into(),
            completion_tokens: record.tokens.unwrap_or(0).into(),
        })),
        // The requester withdrew it; its own message says so.
        WorkStatus::Cancelled if record.cause == Some(Cause::Client) => Step::Close("released"),
        // Whoever was at fault: an executor cannot excuse itself.
        WorkStatus::Cancelled | WorkStatus::Failed | WorkStatus::Unverified => {
            Step::Send(pack(&MsgReportFailure {
                executor: me.to_owned(),
                inference_id: inference.inference_id.clone(),
                kind: record.failure_kind.map_or(0, FailureKind::number),
            }))
        }
    }
}

/// What a record waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// A report: at this height it can be in no block any more.
    Sent { void_at: u64 },
    /// The chain does not know the inference since this height. It may have forgotten it; a node may be behind.
    Unknown { since: u64 },
}

/// Reports until the runner stops.
pub(crate) struct Outbox {
    pub(crate) runner: RunnerHandle,
    pub(crate) chain: Arc<dyn Chain>,
    /// Gives the text whose hash is reported.
    pub(crate) codec: Arc<dyn TextCodec>,
    /// This host's address as the chain writes it.
    pub(crate) me: String,
    pub(crate) chain_id: String,
    pub(crate) answers: Arc<Answers>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) pace: Pace,
}

impl Outbox {
    pub(crate) async fn run(self) {
        let mut waits: BTreeMap<KvKey, Wait> = BTreeMap::new();
        let mut told: Option<ChainError> = None;
        loop {
            match self.round(&mut waits).await {
                Ok(()) => told = None,
                Err(RoundError::Stopped) => return,
                // The same trouble again and again is said once.
                Err(RoundError::Chain(error)) if told.as_ref() == Some(&error) => {}
                Err(RoundError::Chain(error)) => {
                    tracing::warn!(%error, "reports wait for the chain");
                    told = Some(error);
                }
            }
            let pause = if waits.is_empty() { self.pace.idle } else { self.pace.busy };
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    async fn round(&self, waits: &mut BTreeMap<KvKey, Wait>) -> Result<(), RoundError> {
        let mut reports = self.runner.unsubmitted().await?;
        // Those of escrow sessions are told by their diffs.
        let of_chain = |report: &Report| {
            let id = &report.inference_id;
            id.is_empty() || SessionId::new(&self.chain_id, 0, id) == report.record.key.session
        };
        reports.retain(of_chain);
        waits.retain(|key, _| reports.iter().any(|report| report.record.key == *key));
        if reports.is_empty() {
            return Ok(());
        }
        // Those that wait for a block do not keep new ones out.
        reports.sort_by_key(|report| waits.contains_key(&report.record.key));
        let height = self.chain.height().await?;
        let (mut keys, mut messages) = (Vec::new(), Vec::new());
        for report in reports.iter().take(BATCH) {
            match self.step(report, waits, height).await? {
                Some(Step::Close(reference)) => self.close(report.record.key, reference).await?,
                Some(Step::Send(message)) => {
                    keys.push(report.record.key);
                    messages.push(message);
                }
                None => {}
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        let results = self.chain.broadcast(messages).await?;
        for (key, result) in keys.into_iter().zip(results) {
            match result {
                Ok(hash) => {
                    tracing::info!(session = %key.session, %hash, "reported");
                    // One more block, for a node that is a block behind.
                    waits.insert(key, Wait::Sent { void_at: height.saturating_add(TX_LIFE_BLOCKS + 1) });
                }
                // Looked up again in the next round; a duplicate shows as ended then.
                Err(error) => tracing::warn!(session = %key.session, %error, "a report was not taken"),
            }
        }
        Ok(())
    }

    /// What to do about a report now; `None` is to wait.
    async fn step(
        &self,
        report: &Report,
        waits: &mut BTreeMap<KvKey, Wait>,
        height: u64,
    ) -> Result<Option<Step>, RoundError> {
        let Report { record, inference_id, tokens } = report;
        let key = record.key;
        // A session that ended in the queue has no opening in the ledger that would name it.
        let named = Some(inference_id.clone()).filter(|id| !id.is_empty());
        let Some(id) = named.or_else(|| self.answers.find(|answer| answer.session == key.session)) else {
            return Ok(Some(Step::Close("unnamed")));
        };
        let Some(inference) = self.chain.inference(&id).await? else {
            let since = match waits.get(&key) {
                Some(Wait::Unknown { since }) => *since,
                _ => height,
            };
            waits.insert(key, Wait::Unknown { since });
            let forgotten = height >= since.saturating_add(TX_LIFE_BLOCKS);
            return Ok(forgotten.then_some(Step::Close("unknown")));
        };
        let step = decide(record, &inference, &self.me, || {
            // The text of an upstream's tokens does not outlive the process; their digest does.
            self.codec.decode(tokens).map_or(record.output_digest, |text| response_hash(&text))
        });
        let under_way = matches!(waits.get(&key), Some(Wait::Sent { void_at }) if height < *void_at);
        Ok(Some(step).filter(|step| !(under_way && matches!(step, Step::Send(_)))))
    }

    async fn close(&self, key: KvKey, reference: &str) -> Result<(), RoundError> {
        let marked = match self.runner.mark_submitted(key, reference).await {
            Ok(()) => self.runner.mark_closed(key.session).await,
            Err(error) => Err(error),
        };
        match marked {
            Ok(()) => tracing::info!(session = %key.session, reference, "closed"),
            Err(MarkError::Stopped(Stopped)) => return Err(RoundError::Stopped),
            Err(MarkError::Ledger(error)) => {
                tracing::error!(%error, session = %key.session, "a report cannot be marked");
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
enum RoundError {
    Stopped,
    Chain(ChainError),
}

impl From<Stopped> for RoundError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<ChainError> for RoundError {
    fn from(error: ChainError) -> Self {
        Self::Chain(error)
    }
}

/// Hash of an answer: SHA-256 of its text.
#[must_use]
pub fn response_hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}
