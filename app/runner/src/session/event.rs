//! What the session core is told and what it tells its driver to do.

use std::sync::Arc;

use crate::adapter::{
    AdapterError, Bundle, Counts, KeyUsage, KvKey, OpenPlan, Opened, ReleaseAck, SessionId, ShardInfo,
    StepOut, StepRef, StepState, StopAck,
};
use crate::cancel::CancellationToken;
use crate::failure::Cause;
use crate::session::request::{GenerateRequest, Outcome, SubmitError};

/// A shard as the core and its driver name it to each other. A number stands for one adapter and is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardNo(pub u32);

/// The time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// On the injected clock: all decisions.
    pub ms: u64,
    /// Unix milliseconds: records only.
    pub unix_ms: u64,
}

/// What happened. Of events of the same moment the driver gives commands first, then [`Event::Tick`], then answers of
/// shards: so a cancel comes before a deadline and a deadline before a failure (runner-details 8).
#[derive(Debug)]
pub enum Event {
    /// The shards that are connected now, all of them. Given before the first submission and after each change.
    Shards(Vec<(ShardNo, Arc<ShardInfo>)>),
    /// Somebody wants a generation. Answered by [`Effect::Accepted`] or [`Effect::Refused`].
    Submit {
        /// Chosen by the driver, for the answer.
        ticket: u64,
        /// What is wanted.
        request: Box<GenerateRequest>,
    },
    /// Somebody withdraws a session; with an epoch, only if that is the running one.
    Cancel {
        /// The session.
        session: SessionId,
        /// The attempt meant, if a certain one is.
        epoch: Option<u32>,
        /// Who.
        cause: Cause,
    },
    /// Bytes of so many tokens, all in all, were handed to the client's socket.
    Delivered {
        /// The session.
        session: SessionId,
        /// From the first token on.
        count: u32,
    },
    /// A shard showed life by itself.
    Alive {
        /// The shard.
        shard: ShardNo,
        /// When, on the injected clock.
        at_ms: u64,
    },
    /// Time passed; at the latest at the last [`Effect::WakeAt`].
    Tick,
    /// Answer to [`Effect::Open`].
    Opened {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The answer.
        result: Result<Opened, AdapterError>,
        /// What the shard holds for the key's session after the answer.
        held: Vec<KeyUsage>,
    },
    /// Answer to [`Effect::Step`].
    StepEnded {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The step.
        step: u32,
        /// The answer.
        result: Result<StepOut, AdapterError>,
        /// Tokens as the shard counts them, once the answer is whole.
        counts: Option<Counts>,
    },
    /// The driver did not execute an [`Effect::Step`] because its token was cancelled: no shard has seen the step.
    StepUnsent {
        /// The key.
        key: KvKey,
        /// The step.
        step: u32,
    },
    /// Answer to [`Effect::QueryStep`].
    QueryEnded {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The step.
        step: u32,
        /// The answer.
        result: Result<StepState, AdapterError>,
    },
    /// Answer to [`Effect::Stop`].
    StopEnded {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The answer.
        result: Result<StopAck, AdapterError>,
    },
    /// Answer to [`Effect::Release`].
    ReleaseEnded {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The answer.
        result: Result<ReleaseAck, AdapterError>,
    },
    /// No new work; what still runs at `until_ms` is cancelled, cause node.
    Drain {
        /// On the injected clock.
        until_ms: u64,
    },
}

/// What the driver must do, in the order given, and only after the ledger was flushed.
///
/// Every call to a shard is answered by exactly one event, whatever becomes of it: an adapter that panics answers
/// [`AdapterError::Internal`], one that is no longer there [`AdapterError::WorkerDeath`]. Only [`Effect::Forget`]
/// ends a call without an event.
#[derive(Debug)]
pub enum Effect {
    /// The session of `ticket` waits in the queue. The driver MUST keep a place for its tokens.
    Accepted {
        /// Of [`Event::Submit`].
        ticket: u64,
        /// The session.
        session: SessionId,
        /// Most tokens it will give.
        max_new: u32,
    },
    /// The request of `ticket` was not taken. The driver MUST tell the client why.
    Refused {
        /// Of [`Event::Submit`].
        ticket: u64,
        /// Why.
        error: SubmitError,
    },
    /// The driver MUST call `open` and answer [`Event::Opened`] with what the shard then holds for the session.
    Open {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// What to reserve.
        plan: OpenPlan,
    },
    /// A session has this token from now on, until the next one. The driver MUST make it reachable for whoever cancels.
    Attempt {
        /// Of the session's current epoch.
        token: CancellationToken,
    },
    /// The driver MUST call `prefill` or `decode` and answer [`Event::StepEnded`]; or, if there is a token and it is
    /// cancelled, call nothing and answer [`Event::StepUnsent`].
    Step {
        /// The shard.
        shard: ShardNo,
        /// For the first shard of a route: nothing of the step has happened yet.
        token: Option<CancellationToken>,
        /// The key.
        key: KvKey,
        /// The step.
        step: StepRef,
        /// A chunk of the prompt; otherwise one token.
        prefill: bool,
        /// The input.
        bundle: Bundle,
    },
    /// The driver MUST call `query_step` and answer [`Event::QueryEnded`].
    QueryStep {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// The step.
        step: u32,
    },
    /// The driver MUST call `stop` and answer [`Event::StopEnded`].
    Stop {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// Why.
        cause: Cause,
    },
    /// The driver MUST call `release` and answer [`Event::ReleaseEnded`].
    Release {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
        /// Why.
        cause: Cause,
    },
    /// The key is gone from the shard. The driver MUST drop whatever call for it was still open there before this.
    Forget {
        /// The shard.
        shard: ShardNo,
        /// The key.
        key: KvKey,
    },
    /// The driver MUST call `beat` with these keys.
    Beat {
        /// The shard.
        shard: ShardNo,
        /// Live keys there.
        keys: Vec<KvKey>,
    },
    /// The driver MUST hand the token to the client, without waiting for it, before any [`Effect::Step`] of the turn.
    Deliver {
        /// The session.
        session: SessionId,
        /// Number of the token, from 0, over all epochs.
        index: u32,
        /// The token.
        token: u32,
    },
    /// Five seconds without a token: the driver MUST tell the client that the session lives.
    Wait {
        /// The session.
        session: SessionId,
    },
    /// The session is over. The driver MUST tell the client, after every token.
    Done {
        /// How it ended.
        outcome: Box<Outcome>,
    },
    /// The driver MUST give [`Event::Tick`] at this time, unless a later `WakeAt` names another.
    WakeAt(
        /// On the injected clock, milliseconds.
        u64,
    ),
}
