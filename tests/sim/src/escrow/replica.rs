//! A host process as the simulated network sees it.

use holdfast_gateway::core::{HostCall, HostReply};
use holdfast_host::store::MemDb;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::model::Disk;

/// What a call gets.
pub(super) enum Answer {
    /// The whole reply.
    Reply(HostReply),
    /// The first pieces of a stream.
    Stream(Vec<pb::infer_response::Event>),
    /// A vote that needs the executor's word first.
    Challenge {
        /// Whom to ask.
        executor: Address,
        /// What.
        request: pb::ChallengeStartRequest,
    },
}

/// An inference that a host begins to compute.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// The inference.
    pub(super) id: u64,
    /// Its prompt.
    pub(super) body: Vec<u8>,
    /// Tokens of the answer, at most.
    pub(super) output_limit: u32,
}

/// How a computation ended.
#[derive(Debug, Clone)]
pub(super) enum JobEnd {
    /// With this text.
    Done {
        /// All of it.
        text: String,
        /// Tokens of it.
        tokens: u32,
    },
    /// With this `FailureKind` after so many tokens.
    Failed {
        /// 1 to 10.
        kind: u8,
        /// Delivered.
        tokens: u32,
    },
}

/// What is left of a host when its process ends.
#[derive(Clone)]
pub(super) enum Image {
    /// Of the simulator's own host.
    Model(Box<Disk>),
    /// Of the program's.
    Real(MemDb),
}

/// A running host.
pub(super) trait Replica {
    /// Last nonce of its replica, if it has one.
    fn nonce(&mut self) -> Option<u64>;
    /// A call of the gateway.
    fn call(&mut self, unix_ms: u64, call: &HostCall) -> Result<Answer, pb::EscrowError>;
    /// The rest of a vote, once the executor was asked; `None` = it gave no answer.
    fn vote(
        &mut self,
        unix_ms: u64,
        request: &pb::VoteTimeoutRequest,
        answer: Option<pb::ChallengeStartResponse>,
    ) -> Result<pb::VoteTimeoutResponse, pb::EscrowError>;
    /// The challenge again for an executor that has only the diffs up to `have`.
    fn challenge_with_log(
        &mut self,
        request: &pb::ChallengeStartRequest,
        have: u64,
    ) -> Option<pb::ChallengeStartRequest>;
    /// Another host asks.
    fn challenge(
        &mut self,
        unix_ms: u64,
        caller: &Address,
        request: &pb::ChallengeStartRequest,
    ) -> Result<pb::ChallengeStartResponse, pb::EscrowError>;
    /// Computations that calls began.
    fn take_jobs(&mut self) -> Vec<Job>;
    /// Whether it still computes this.
    fn runs(&self, id: u64) -> bool;
    /// A piece of text is on its way.
    fn delivered(&mut self, id: u64, tokens: u32);
    /// A computation ended; the last piece of its stream.
    fn ended(&mut self, unix_ms: u64, id: u64, end: &JobEnd) -> Option<pb::infer_response::Event>;
    /// The chain closed the escrow.
    fn close(&mut self);
    /// What a restart finds. `power_cut` loses what is not durable.
    fn image(&self, power_cut: bool) -> Image;
    /// A copy, as an operator's backup.
    fn backup(&self) -> Image;
}

/// An error without anything but its kind.
pub(super) fn error(code: pb::escrow_error::Code) -> pb::EscrowError {
    pb::EscrowError { code: code.into(), ..Default::default() }
}
