//! The program's host core in the simulated network: what its gRPC server and runner do around it, without sockets.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::FrozenConfig;
use holdfast_gateway::core::{HostCall, HostReply};
use holdfast_host::auth;
use holdfast_host::session::rules::Honest;
use holdfast_host::session::{
    CoreConfig, EscrowStatus, HostCore, JobEnd as End, StartJob, TakeAll, Terms, VoteStep, VoteTicket,
};
use holdfast_host::store::MemDb;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use pb::escrow_error::Code;
use pb::infer_response::Event;
use sha2::{Digest as _, Sha256};

use super::cast::{Cast, Member};
use super::replica::{Answer, Image, Job, JobEnd, Replica, error};

/// See the module.
pub(super) struct RealHost {
    core: HostCore,
    db: MemDb,
    terms: Arc<FrozenConfig>,
    gateway: SecretKey,
    gateway_address: Address,
    closed: bool,
    jobs: Vec<Job>,
    /// Running, and tokens delivered.
    running: BTreeMap<u64, u32>,
    tickets: BTreeMap<(u64, u32), VoteTicket>,
}

impl RealHost {
    pub(super) fn open(
        member: &Member,
        cast: &Cast,
        terms: Arc<FrozenConfig>,
        boot_id: String,
        db: MemDb,
    ) -> Self {
        let mut config = CoreConfig::new(&terms.chain_id, member.address, boot_id);
        config.allow_reset = member.consent;
        let core = HostCore::open(
            Box::new(db.clone()),
            member.key.clone(),
            config,
            Box::new(Honest),
            Box::new(TakeAll),
        )
        .expect("a store in memory is readable");
        let mut host = Self {
            core,
            db,
            terms,
            gateway: cast.gateway_key.clone(),
            gateway_address: cast.terms.gateway,
            closed: false,
            jobs: Vec::new(),
            running: BTreeMap::new(),
            tickets: BTreeMap::new(),
        };
        // Work of the process before is not done again; its outcome is a failure.
        for (escrow_id, id) in host.core.unfinished().unwrap_or_default() {
            let end = End::Failed { kind: 1, input_tokens: 0, output_tokens: 0 };
            host.core.outcome(escrow_id, id, &end).ok();
        }
        host
    }

    fn begin(&mut self, start: Option<StartJob>) {
        if let Some(StartJob { id, body, output_limit, .. }) = start {
            self.running.insert(id, 0);
            self.jobs.push(Job { id, body, output_limit });
        }
    }
}

/// The last piece of a stream, from an outcome as it is on disk.
fn last_piece(outcome: Vec<u8>, finish_reason: String) -> Option<Event> {
    use holdfast_escrow::session::Tx;
    Some(match Tx::from_bytes(&outcome).ok()? {
        Tx::FinishInference { input_tokens, output_tokens, .. } => Event::Finished(pb::InferFinished {
            tx: outcome,
            finish_reason,
            usage: Some(pb::Usage { prompt_tokens: input_tokens, completion_tokens: output_tokens }),
        }),
        Tx::ReportError { kind, .. } => Event::Failed(pb::InferFailed { kind: kind.into(), tx: outcome }),
        _ => return None,
    })
}

impl Replica for RealHost {
    fn nonce(&mut self) -> Option<u64> {
        self.core.state(self.terms.escrow_id).ok().map(|state| state.nonce())
    }

    fn call(&mut self, unix_ms: u64, call: &HostCall) -> Result<Answer, pb::EscrowError> {
        let caller = self.gateway_address;
        let reply = match call {
            HostCall::Bind(request) => {
                let status = if self.closed { EscrowStatus::Closed } else { EscrowStatus::Open };
                let terms = Terms { config: (*self.terms).clone(), status };
                HostReply::Bind(self.core.bind(request, caller, Some(&terms))?)
            }
            HostCall::Teach(request) => HostReply::Teach(self.core.teach(request)?),
            HostCall::Infer(request) => {
                let step = self.core.infer(unix_ms / 1000, request)?;
                self.begin(step.start);
                let mut pieces =
                    vec![Event::Applied(step.applied), Event::Receipt(pb::Receipt { tx: step.receipt })];
                pieces.extend(step.ended.and_then(|(tx, reason)| last_piece(tx, reason)));
                return Ok(Answer::Stream(pieces));
            }
            HostCall::Cancel(request) => {
                let terms = &self.terms;
                let (chain, escrow) = (&terms.chain_id, terms.escrow_id);
                let auth = auth::sign(&self.gateway, chain, escrow, "CancelInference", request, unix_ms);
                let delivered = self.running.get(&request.inference_id).copied().unwrap_or(0);
                let step = self.core.cancel(request, &auth, caller, (0, delivered))?;
                if step.stop {
                    self.running.remove(&request.inference_id);
                }
                HostReply::Cancel(step.reply)
            }
            HostCall::GetSignatures(request) => {
                HostReply::GetSignatures(self.core.get_signatures(request, caller)?)
            }
            HostCall::GetPending(request) => HostReply::GetPending(self.core.get_pending(request, caller)?),
            HostCall::GetDiffs(request) => HostReply::GetDiffs(self.core.get_diffs(request, caller)?),
            HostCall::VoteTimeout(request) => match self.core.vote_timeout(unix_ms / 1000, request)? {
                VoteStep::Voted(vote) => HostReply::VoteTimeout(vote),
                VoteStep::Ask { executor, request, ticket } => {
                    // One reason at a time is open for an inference; the second half names it.
                    let reason = match self.core.state(self.terms.escrow_id) {
                        Ok(state) => {
                            state.record(request.inference_id).map_or(1, |record| record.status as u32 + 1)
                        }
                        Err(_) => 1,
                    };
                    self.tickets.insert((request.inference_id, reason), ticket);
                    return Ok(Answer::Challenge { executor, request });
                }
            },
            HostCall::ResetSession(request) => {
                let reply = self.core.reset_session(request, caller)?;
                self.running.clear();
                HostReply::ResetSession(reply)
            }
        };
        Ok(Answer::Reply(reply))
    }

    fn vote(
        &mut self,
        _unix_ms: u64,
        request: &pb::VoteTimeoutRequest,
        answer: Option<pb::ChallengeStartResponse>,
    ) -> Result<pb::VoteTimeoutResponse, pb::EscrowError> {
        let ticket = self.tickets.remove(&(request.inference_id, request.reason));
        let ticket = ticket.ok_or_else(|| error(Code::Unavailable))?;
        self.core.vote_answered(&ticket, answer.as_ref())
    }

    fn challenge_with_log(
        &mut self,
        request: &pb::ChallengeStartRequest,
        have: u64,
    ) -> Option<pb::ChallengeStartRequest> {
        self.core.challenge_with_log(request, have).ok().flatten()
    }

    fn challenge(
        &mut self,
        unix_ms: u64,
        caller: &Address,
        request: &pb::ChallengeStartRequest,
    ) -> Result<pb::ChallengeStartResponse, pb::EscrowError> {
        let step = self.core.challenge_start(unix_ms / 1000, request, *caller)?;
        self.begin(step.start);
        Ok(step.reply)
    }

    fn take_jobs(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }

    fn runs(&self, id: u64) -> bool {
        self.running.contains_key(&id)
    }

    fn delivered(&mut self, id: u64, tokens: u32) {
        if let Some(delivered) = self.running.get_mut(&id) {
            *delivered = tokens;
        }
    }

    fn ended(&mut self, _unix_ms: u64, id: u64, end: &JobEnd) -> Option<Event> {
        self.running.remove(&id)?;
        let escrow_id = self.terms.escrow_id;
        let end = match end {
            JobEnd::Done { text, tokens } => End::Finished {
                input_tokens: 9,
                output_tokens: *tokens,
                response_hash: Sha256::digest(text).into(),
                finish_reason: "stop".into(),
            },
            JobEnd::Failed { kind, tokens } => {
                End::Failed { kind: *kind, input_tokens: 0, output_tokens: *tokens }
            }
        };
        self.core.outcome(escrow_id, id, &end).ok()?;
        let (outcome, reason) = self.core.ended(escrow_id, id).ok()??;
        last_piece(outcome, reason)
    }

    fn close(&mut self) {
        self.closed = true;
        self.core.close(self.terms.escrow_id).ok();
    }

    fn image(&self, power_cut: bool) -> Image {
        Image::Real(self.db.reopen(power_cut))
    }

    fn backup(&self) -> Image {
        Image::Real(self.db.copy())
    }
}
