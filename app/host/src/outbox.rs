//! What became of each inference, told to the chain once (runner-details 13).
//!
//! The work ledger is the source: a record that is not marked submitted is looked up on the chain, reported if the
//! chain still waits for it, and marked when the chain shows that it is closed. A crash between any two of these steps
//! only repeats a look or a report that the chain refuses as a duplicate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_app::tx::pack;
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1::{
    Inference, InferenceStatus, MsgFinishInference, MsgReportFailure,
};
use holdfast_runner::adapter::KvKey;
use holdfast_runner::runner::{Report, RunnerHandle, Stopped};
use holdfast_runner::text::TextCodec;
use holdfast_runner::{FailureKind, WorkRecord, WorkStatus};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::chain::{Chain, ChainError, TX_LIFE_BLOCKS};

/// Most reports under way at a time.
const BATCH: usize = 64;
/// Longest time between two looks.
const IDLE: Duration = Duration::from_secs(2);
/// Time between two looks while reports are under way.
const BUSY: Duration = Duration::from_millis(250);

/// What is to be done about a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing more: the chain has it, or wants nothing. The text says which.
    Close(String),
    /// The chain waits for this.
    Send(Any),
}

/// Decides what to do about the last record of an inference, given what the chain says of it.
#[must_use]
pub fn decide(record: &WorkRecord, chain: Option<&Inference>, me: &str, id: &str, response_hash: [u8; 32]) -> Step {
    let Some(inference) = chain else {
        // Ended so long ago that the chain forgot it, or never started: a report would be refused.
        return Step::Close("unknown".into());
    };
    match inference.status() {
        InferenceStatus::Started => {}
        status => return Step::Close(status.as_str_name().to_lowercase()),
    }
    match record.status {
        WorkStatus::Completed => Step::Send(pack(&MsgFinishInference {
            executed_by: me.to_owned(),
            inference_id: id.to_owned(),
            response_hash: response_hash.to_vec(),
            prompt_tokens: record.prompt_tokens.into(),
            completion_tokens: record.tokens.unwrap_or(0).into(),
        })),
        // The requester withdrew it; its own message says so.
        WorkStatus::Cancelled if record.cause == Some(holdfast_runner::Cause::Client) => Step::Close("released".into()),
        // Whoever was at fault: an executor cannot excuse itself.
        WorkStatus::Cancelled | WorkStatus::Failed | WorkStatus::Unverified => Step::Send(pack(&MsgReportFailure {
            executor: me.to_owned(),
            inference_id: id.to_owned(),
            kind: record.failure_kind.map_or(0, FailureKind::number),
        })),
    }
}

/// A report under way.
struct Sent {
    /// Height from which the transaction can be in no block any more.
    void_at: u64,
}

/// Reports until the runner stops.
pub(crate) struct Outbox {
    pub(crate) runner: RunnerHandle,
    pub(crate) chain: Arc<dyn Chain>,
    /// Gives the text whose hash is reported.
    pub(crate) codec: Arc<dyn TextCodec>,
    /// This host's address as the chain writes it.
    pub(crate) me: String,
    pub(crate) wake: Arc<Notify>,
}

impl Outbox {
    pub(crate) async fn run(self) {
        let mut sent: BTreeMap<KvKey, Sent> = BTreeMap::new();
        loop {
            match self.round(&mut sent).await {
                Ok(()) => {}
                Err(RoundError::Stopped) => return,
                Err(RoundError::Chain(error)) => tracing::warn!(%error, "reports wait for the chain"),
            }
            let pause = if sent.is_empty() { IDLE } else { BUSY };
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    async fn round(&self, sent: &mut BTreeMap<KvKey, Sent>) -> Result<(), RoundError> {
        let waiting = self.runner.unsubmitted().await?;
        sent.retain(|key, _| waiting.iter().any(|report| report.record.key == *key));
        if waiting.is_empty() {
            return Ok(());
        }
        let height = self.chain.height().await?;
        let mut messages = Vec::new();
        let mut keys = Vec::new();
        for Report { record, inference_id, tokens } in waiting.iter().take(BATCH) {
            let inference = self.chain.inference(inference_id).await?;
            let text = self.codec.decode(tokens).unwrap_or_default();
            match decide(record, inference.as_ref(), &self.me, inference_id, response_hash(&text)) {
                Step::Close(reference) => {
                    if let Err(error) = self.runner.mark_submitted(record.key, reference).await {
                        tracing::error!(%error, session = %record.key.session, "cannot mark a report");
                        return Ok(());
                    }
                    self.runner.mark_closed(record.key.session).await.ok();
                    sent.remove(&record.key);
                }
                Step::Send(_) if sent.get(&record.key).is_some_and(|sent| height < sent.void_at) => {}
                Step::Send(message) => {
                    messages.push(message);
                    keys.push(record.key);
                }
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
                    sent.insert(key, Sent { void_at: height.saturating_add(TX_LIFE_BLOCKS + 1) });
                }
                // Looked up again in the next round: a duplicate shows as closed then.
                Err(error) => tracing::warn!(session = %key.session, %error, "a report was not taken"),
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
