//! One request on its way: events of the sessions in, text and an end out.

use std::time::Duration;

use holdfast_proto::holdfast::runner::v1::FailureKind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::backend::{Answer, Dispatch, Event, Failure, FinishReason, Usage};
use super::keys::Charge;
use super::stop::StopFilter;

/// Longest text of an answer, bytes: a host that sends more is not obeyed.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Longest wait for the counts of an answer that a stop text ended.
const COUNTS: Duration = Duration::from_secs(2);
/// As good as no end.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Text, never empty.
    Text(String),
    /// The end; asking again gives it again.
    Done(FinishReason, Usage),
    /// The other end.
    Failed(Failure),
}

/// A request under way. Dropping it cancels it everywhere and settles what its key is charged.
pub(crate) struct Run {
    events: mpsc::Receiver<Event>,
    enough: Option<oneshot::Sender<()>>,
    stop: StopFilter,
    charge: Charge,
    input_limit: u32,
    output_limit: u32,
    gives_up_at: Instant,
    dispatch: Option<Dispatch>,
    /// Tokens that arrived.
    tokens: u32,
    text_bytes: usize,
    /// When to stop waiting for counts, once a stop text was found.
    counts_until: Option<Instant>,
    end: Option<Result<(FinishReason, Usage), Failure>>,
}

impl Run {
    pub(crate) fn new(
        answer: Answer,
        stop: Vec<String>,
        charge: Charge,
        limits: (u32, u32),
        gives_up_after: Duration,
    ) -> Self {
        let Answer { events, enough } = answer;
        Self {
            events,
            enough: Some(enough),
            stop: StopFilter::new(stop),
            charge,
            input_limit: limits.0,
            output_limit: limits.1,
            gives_up_at: Instant::now() + gives_up_after.min(NEVER),
            dispatch: None,
            tokens: 0,
            text_bytes: 0,
            counts_until: None,
            end: None,
        }
    }

    /// Where it runs; fixed once the first text came.
    pub(crate) fn dispatch(&self) -> Option<Dispatch> {
        self.dispatch
    }

    /// Waits for what comes next. May be dropped and called again without a loss.
    pub(crate) async fn step(&mut self) -> Step {
        loop {
            match self.end {
                Some(Ok((reason, usage))) => return Step::Done(reason, usage),
                Some(Err(failure)) => return Step::Failed(failure),
                None => {}
            }
            let until = self.counts_until.unwrap_or(self.gives_up_at);
            let event = timeout_at(until, self.events.recv()).await;
            if self.counts_until.is_some() {
                self.counted(event.ok().flatten());
                continue;
            }
            let text = match event {
                Err(_) => self.fail(Failure::DeadlineExceeded),
                Ok(None) => self.fail(Failure::Host(FailureKind::StreamReset)),
                Ok(Some(event)) => self.take(event),
            };
            if !text.is_empty() {
                return Step::Text(text);
            }
        }
    }

    /// Takes an event of a running answer; gives what is to be handed out.
    fn take(&mut self, event: Event) -> String {
        match event {
            Event::Dispatched(dispatch) => {
                // After the first token no other host may go on.
                if self.tokens == 0 && self.text_bytes == 0 {
                    self.dispatch = Some(dispatch);
                }
                String::new()
            }
            Event::Delta { text, token_ids } => {
                let count = u32::try_from(token_ids.len()).unwrap_or(u32::MAX);
                self.tokens = self.tokens.saturating_add(count);
                self.text_bytes = self.text_bytes.saturating_add(text.len());
                if self.dispatch.is_none()
                    || self.tokens > self.output_limit
                    || self.text_bytes > TEXT_BYTES_MAX
                {
                    return self.fail(Failure::Host(FailureKind::Internal));
                }
                let text = self.stop.push(&text);
                if self.stop.found() {
                    self.counts_until = Some(Instant::now() + COUNTS);
                    // The driver may have ended in the meantime.
                    let _ = self.enough.take().map(|enough| enough.send(()));
                }
                text
            }
            Event::Finished { finish_reason, usage } => {
                if self.dispatch.is_none() {
                    return self.fail(Failure::Host(FailureKind::Internal));
                }
                self.finish(finish_reason, usage);
                self.stop.rest()
            }
            Event::Failed(failure) => self.fail(failure),
        }
    }

    /// Waits for the counts after a stop text: takes an event, or nothing more comes.
    fn counted(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Dispatched(_) | Event::Delta { .. }) => {}
            Some(Event::Finished { usage, .. }) => self.finish(FinishReason::Stop, usage),
            Some(Event::Failed(_)) | None => self.finish(FinishReason::Stop, self.bound()),
        }
    }

    fn finish(&mut self, reason: FinishReason, usage: Usage) {
        self.end = Some(Ok((reason, usage)));
        self.charge.settle(u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens));
    }

    /// A failed answer costs its key nothing. What is held back is not handed out.
    fn fail(&mut self, failure: Failure) -> String {
        self.end = Some(Err(failure));
        self.charge.settle(0);
        String::new()
    }

    /// What was taken at most, when no host counts it.
    fn bound(&self) -> Usage {
        Usage { prompt_tokens: self.input_limit, completion_tokens: self.tokens }
    }
}

impl Drop for Run {
    /// A client that leaves after the first token pays for what was made for it.
    fn drop(&mut self) {
        if self.end.is_none() && (self.tokens > 0 || self.text_bytes > 0) {
            let Usage { prompt_tokens, completion_tokens } = self.bound();
            self.charge.settle(u64::from(prompt_tokens) + u64::from(completion_tokens));
        }
    }
}
