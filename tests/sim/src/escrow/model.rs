//! A host of the simulator's own, written from the rules (escrow-details 7, 8) and sharing with the program's host only the
//! session's `apply` and digests. It plays beside it, so that a gateway that suits one alone is noticed.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{
    ApplyError, Diff, FrozenConfig, Hash, InferenceStatus, KIND_CANCELLED, State, Tx, TxKey, apply, check_tx,
    digest,
};
use holdfast_gateway::core::{HostCall, HostReply};
use holdfast_host::auth;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use pb::escrow_error::Code;
use sha2::{Digest as _, Sha256};

use super::cast::{Cast, Member};
use super::replica::{Answer, Image, Job, JobEnd, Replica, error};

#[derive(Clone)]
struct Waiting {
    tx: Tx,
    born: u64,
}

#[derive(Clone, Default)]
struct Work {
    receipt: Vec<u8>,
    outcome: Option<Tx>,
    finish_reason: String,
    usage: (u32, u32),
    delivered: u32,
    cancel: Option<pb::SignedCancel>,
    running: bool,
}

#[derive(Clone)]
struct Session {
    state: State,
    roots: BTreeMap<u64, Hash>,
    diffs: BTreeMap<u64, (Hash, Vec<u8>)>,
    pool: BTreeMap<TxKey, Waiting>,
    work: BTreeMap<u64, Work>,
}

/// A replica at a nonce, signed unless something is stale.
struct SignedAt {
    root: Vec<u8>,
    signature: Vec<u8>,
    stale: Vec<Vec<u8>>,
    fresh: Option<pb::Verification>,
}

/// What survives the process.
#[derive(Clone, Default)]
pub(super) struct Disk {
    session: Option<Session>,
    closed: bool,
}

/// See the module.
pub(super) struct ModelHost {
    key: SecretKey,
    me: Address,
    terms: Arc<FrozenConfig>,
    consent: bool,
    gateway: SecretKey,
    boot_id: String,
    disk: Disk,
    jobs: Vec<Job>,
}

impl ModelHost {
    pub(super) fn open(
        member: &Member,
        cast: &Cast,
        terms: Arc<FrozenConfig>,
        boot_id: String,
        disk: Disk,
    ) -> Self {
        let mut host = Self {
            key: member.key.clone(),
            me: member.address,
            terms,
            consent: member.consent,
            gateway: cast.gateway_key.clone(),
            boot_id,
            disk,
            jobs: Vec::new(),
        };
        host.give_up_lost_work();
        host
    }

    /// Work of the process before: it may have got anywhere, so it is not done again but reported.
    fn give_up_lost_work(&mut self) {
        let Some(session) = &self.disk.session else { return };
        let lost: Vec<u64> =
            session.work.iter().filter(|(_, work)| work.running).map(|(id, _)| *id).collect();
        for id in lost {
            let tokens = self.disk.session.as_ref().map_or(0, |s| s.work[&id].delivered);
            self.ended(0, id, &JobEnd::Failed { kind: 1, tokens });
        }
    }

    fn session(&self) -> Result<&Session, pb::EscrowError> {
        if self.disk.closed {
            return Err(error(Code::SessionClosed));
        }
        self.disk.session.as_ref().ok_or_else(|| error(Code::SessionNotFound))
    }

    fn session_mut(&mut self) -> Result<&mut Session, pb::EscrowError> {
        if self.disk.closed {
            return Err(error(Code::SessionClosed));
        }
        self.disk.session.as_mut().ok_or_else(|| error(Code::SessionNotFound))
    }

    fn sign(&self, digest: Hash) -> Vec<u8> {
        self.key.sign_recoverable(digest).to_vec()
    }

    fn slots(&self) -> Vec<u8> {
        self.terms.slots_of(&self.me)
    }

    fn take(&mut self, diffs: &[Vec<u8>]) -> Result<(), pb::EscrowError> {
        self.session()?;
        diffs.iter().try_for_each(|bytes| self.take_one(bytes))
    }

    fn take_one(&mut self, bytes: &[u8]) -> Result<(), pb::EscrowError> {
        let diff = Diff::from_bytes(bytes).map_err(|_| error(Code::BadTx))?;
        let terms = self.terms.clone();
        let digest = diff.digest(&terms.chain_id);
        let session = self.session_mut()?;
        let have = session.state.nonce();
        if diff.nonce <= have {
            return match session.diffs.get(&diff.nonce) {
                Some((known, _)) if *known == digest => Ok(()),
                Some((known, bytes)) => Err(pb::EscrowError {
                    have_nonce: have,
                    nonce: diff.nonce,
                    diff_digest: known.to_vec(),
                    diff: bytes.clone(),
                    ..error(Code::DiffFork)
                }),
                None => Err(error(Code::Unavailable)),
            };
        }
        if diff.nonce > have + 1 {
            return Err(pb::EscrowError { have_nonce: have, ..error(Code::Behind) });
        }
        match apply(&session.state, &diff) {
            Ok((state, root)) => {
                session.state = state;
                session.roots.insert(diff.nonce, root);
                session.diffs.insert(diff.nonce, (digest, bytes.to_vec()));
                for tx in &diff.txs {
                    session.pool.remove(&tx.key());
                }
                let state = &session.state;
                session.pool.retain(|_, waiting| {
                    waiting
                        .tx
                        .inference_id()
                        .is_none_or(|id| state.record(id).is_some_and(|record| record.status.is_open()))
                });
                Ok(())
            }
            Err(ApplyError::RootMismatch { nonce, computed, digest, .. }) => {
                let refusal = digest::refusal(&terms.chain_id, terms.escrow_id, nonce, &digest, &computed);
                Err(pb::EscrowError {
                    have_nonce: have,
                    nonce,
                    root: computed.to_vec(),
                    diff_digest: digest.to_vec(),
                    signature: self.sign(refusal),
                    ..error(Code::RootMismatch)
                })
            }
            Err(cause) => {
                Err(pb::EscrowError { have_nonce: have, message: cause.to_string(), ..error(Code::BadTx) })
            }
        }
    }

    fn pending(session: &Session) -> Vec<Vec<u8>> {
        session.pool.values().map(|waiting| waiting.tx.to_bytes()).collect()
    }

    /// Own transactions that were left out for too long although they apply.
    fn stale(session: &Session) -> Vec<Vec<u8>> {
        let grace = 2 * session.state.config().group_size();
        let late = session.pool.values().filter(|waiting| {
            waiting.born + grace < session.state.nonce() && check_tx(&session.state, &waiting.tx).is_ok()
        });
        late.map(|waiting| waiting.tx.to_bytes()).collect()
    }

    fn signature_at(
        &self,
        nonce: u64,
        challenge: Option<&pb::Challenge>,
    ) -> Result<SignedAt, pb::EscrowError> {
        let session = self.session()?;
        let root = session.roots.get(&nonce).copied().ok_or_else(|| error(Code::Unavailable))?;
        let stale = Self::stale(session);
        if !stale.is_empty() {
            return Ok(SignedAt { root: root.to_vec(), signature: Vec::new(), stale, fresh: None });
        }
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let fresh = challenge.and_then(|asked| {
            let drawn: Hash = asked.challenge.as_slice().try_into().ok()?;
            let digest = digest::verify(chain, escrow, nonce, &root, asked.generation, &drawn);
            Some(pb::Verification {
                generation: asked.generation,
                challenge: asked.challenge.clone(),
                signature: self.sign(digest),
            })
        });
        let signature = self.sign(digest::state(chain, escrow, nonce, &root));
        Ok(SignedAt { root: root.to_vec(), signature, stale, fresh })
    }

    fn applied(&self, challenge: Option<&pb::Challenge>) -> Result<pb::Applied, pb::EscrowError> {
        let session = self.session()?;
        let nonce = session.state.nonce();
        let SignedAt { root, signature: state_signature, stale, fresh: verification } =
            self.signature_at(nonce, challenge)?;
        Ok(pb::Applied {
            nonce,
            root,
            withheld: state_signature.is_empty(),
            state_signature,
            stale,
            pending: Self::pending(session),
            verification,
        })
    }

    fn bind(&mut self, request: &pb::BindRequest) -> Result<pb::BindResponse, pb::EscrowError> {
        if self.disk.closed {
            return Err(error(Code::SessionClosed));
        }
        if request.config_digest != self.terms.digest() {
            return Err(error(Code::ConfigMismatch));
        }
        let terms = self.terms.clone();
        let session = self.disk.session.get_or_insert_with(|| {
            let state = State::genesis(terms);
            Session {
                roots: BTreeMap::from([(0, state.root())]),
                state,
                diffs: BTreeMap::new(),
                pool: BTreeMap::new(),
                work: BTreeMap::new(),
            }
        });
        Ok(pb::BindResponse {
            nonce: session.state.nonce(),
            root: session.state.root().to_vec(),
            boot_id: self.boot_id.clone(),
        })
    }

    /// Takes up the work of a pending start that is ours: signs a receipt once, begins once.
    fn take_up(&mut self, unix_ms: u64, id: u64, body: &[u8]) -> Result<Vec<u8>, pb::EscrowError> {
        let me = self.me;
        let terms = self.terms.clone();
        let key = self.key.clone();
        let session = self.session_mut()?;
        let have_nonce = session.state.nonce();
        if have_nonce < id {
            return Err(pb::EscrowError { have_nonce, ..error(Code::Behind) });
        }
        let record = session.state.record(id).cloned().ok_or_else(|| error(Code::BadTx))?;
        if terms.owner_of(record.executor_slot) != Some(me) {
            return Err(error(Code::Policy));
        }
        if let Some(work) = session.work.get(&id) {
            return Ok(work.receipt.clone());
        }
        if record.status != InferenceStatus::Pending
            || record.prompt_hash != <[u8; 32]>::from(Sha256::digest(body))
        {
            return Err(error(Code::Policy));
        }
        let confirmed_at = unix_ms / 1000;
        let digest = digest::receipt(&terms.chain_id, terms.escrow_id, &record, confirmed_at);
        let tx = Tx::ConfirmStart { id, confirmed_at, sig: key.sign_recoverable(digest) };
        let receipt = tx.to_bytes();
        session.pool.insert(tx.key(), Waiting { tx, born: have_nonce });
        session.work.insert(id, Work { receipt: receipt.clone(), running: true, ..Work::default() });
        self.jobs.push(Job { id, body: body.to_vec(), output_limit: record.output_limit });
        Ok(receipt)
    }

    fn infer(
        &mut self,
        unix_ms: u64,
        request: &pb::InferRequest,
    ) -> Result<Vec<pb::infer_response::Event>, pb::EscrowError> {
        use pb::infer_response::Event;
        self.take(&request.diffs)?;
        let receipt = self.take_up(unix_ms, request.target_nonce, &request.body)?;
        let mut pieces =
            vec![Event::Applied(self.applied(None)?), Event::Receipt(pb::Receipt { tx: receipt })];
        pieces.extend(self.last_piece(request.target_nonce));
        Ok(pieces)
    }

    fn last_piece(&self, id: u64) -> Option<pb::infer_response::Event> {
        use pb::infer_response::Event;
        let work = self.disk.session.as_ref()?.work.get(&id)?;
        let tx = work.outcome.as_ref()?;
        Some(match tx {
            Tx::ReportError { kind, .. } => {
                Event::Failed(pb::InferFailed { kind: i32::from(*kind), tx: tx.to_bytes() })
            }
            tx => Event::Finished(pb::InferFinished {
                tx: tx.to_bytes(),
                finish_reason: work.finish_reason.clone(),
                usage: Some(pb::Usage { prompt_tokens: work.usage.0, completion_tokens: work.usage.1 }),
            }),
        })
    }

    fn cancel(
        &mut self,
        unix_ms: u64,
        request: &pb::CancelInferenceRequest,
    ) -> Result<pb::CancelInferenceResponse, pb::EscrowError> {
        use pb::cancel_inference_response::State as Stand;
        let id = request.inference_id;
        let (me, session) = (self.me, self.session_mut()?);
        if !session.work.contains_key(&id)
            && let Some(record) = session.state.record(id)
            && record.status == InferenceStatus::Pending
            && session.state.config().owner_of(record.executor_slot) == Some(me)
        {
            // A Start that it never took ends without tokens, and is not taken any more.
            session.work.insert(id, Work { running: true, ..Work::default() });
        }
        let known = session.work.get(&id).map(|work| (work.running, work.delivered));
        let state = match known {
            None => Stand::Unspecified,
            Some((false, _)) if session.work.get(&id).is_some_and(|work| work.cancel.is_some()) => {
                Stand::Cancelled
            }
            Some((false, _)) => Stand::Ended,
            Some((true, tokens)) => {
                self.ended(0, id, &JobEnd::Failed { kind: KIND_CANCELLED, tokens });
                let terms = &self.terms;
                let (chain, escrow) = (&terms.chain_id, terms.escrow_id);
                // The metadata of the call.
                let auth = auth::sign(&self.gateway, chain, escrow, "CancelInference", request, unix_ms);
                let signed = pb::SignedCancel { request: Some(request.clone()), auth };
                if let Some(work) = self.session_mut()?.work.get_mut(&id) {
                    work.cancel = Some(signed);
                }
                Stand::Cancelled
            }
        };
        let session = self.session()?;
        Ok(pb::CancelInferenceResponse {
            state: state.into(),
            delivered_tokens: known.map_or(0, |(_, delivered)| delivered),
            pending: Self::pending(session),
        })
    }

    fn get_signatures(
        &self,
        request: &pb::GetSignaturesRequest,
    ) -> Result<pb::GetSignaturesResponse, pb::EscrowError> {
        let have_nonce = self.session()?.state.nonce();
        let nonce = if request.nonce == 0 { have_nonce } else { request.nonce.min(have_nonce) };
        let SignedAt { root, signature: state_signature, stale, fresh: verification } =
            self.signature_at(nonce, request.challenge.as_ref())?;
        let withheld = state_signature.is_empty();
        Ok(pb::GetSignaturesResponse {
            have_nonce,
            nonce,
            root,
            state_signature,
            withheld,
            stale,
            verification,
        })
    }

    fn reset(
        &mut self,
        _request: &pb::ResetSessionRequest,
    ) -> Result<pb::ResetSessionResponse, pb::EscrowError> {
        if !self.consent {
            return Err(error(Code::Policy));
        }
        let session = self.session()?;
        if session.work.values().any(|work| work.running) {
            return Err(pb::EscrowError { retry_after_ms: 1_000, ..error(Code::Busy) });
        }
        let (dropped_nonce, root) = (session.state.nonce(), session.state.root().to_vec());
        self.disk.session = None;
        Ok(pb::ResetSessionResponse { dropped_nonce, root })
    }

    /// What a voter must find in its replica before it asks the executor; `false` = it votes against.
    fn is_late(
        &self,
        unix_ms: u64,
        request: &pb::VoteTimeoutRequest,
    ) -> Result<Option<Address>, pb::EscrowError> {
        let session = self.session()?;
        let id = request.inference_id;
        let Some(record) = session.state.record(id) else { return Err(error(Code::BadTx)) };
        let executor = self.terms.owner_of(record.executor_slot).ok_or_else(|| error(Code::BadTx))?;
        if executor == self.me {
            return Err(error(Code::Policy));
        }
        let now = unix_ms / 1000;
        let late = match request.reason {
            1 => {
                record.status == InferenceStatus::Pending
                    && now >= record.started_at + u64::from(self.terms.refusal_timeout_s)
                    && record.prompt_hash == <[u8; 32]>::from(Sha256::digest(&request.body))
            }
            2 => {
                record.status == InferenceStatus::Started
                    && now >= record.confirmed_at + u64::from(self.terms.execution_timeout_s)
            }
            _ => return Err(error(Code::BadTx)),
        };
        Ok(late.then_some(executor))
    }

    fn ballot(
        &self,
        request: &pb::VoteTimeoutRequest,
        accept: bool,
        executor_txs: Vec<Vec<u8>>,
    ) -> Result<pb::VoteTimeoutResponse, pb::EscrowError> {
        let slot = self.slots().first().copied().ok_or_else(|| error(Code::Policy))?;
        let reason = u8::try_from(request.reason).map_err(|_| error(Code::BadTx))?;
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let digest = digest::vote(chain, escrow, request.inference_id, reason, slot, accept);
        let (voter_slot, signature) = (u32::from(slot), self.sign(digest));
        Ok(pb::VoteTimeoutResponse { accept, voter_slot, signature, executor_txs })
    }
}

impl Replica for ModelHost {
    fn nonce(&mut self) -> Option<u64> {
        self.disk.session.as_ref().map(|session| session.state.nonce())
    }

    fn call(&mut self, unix_ms: u64, call: &HostCall) -> Result<Answer, pb::EscrowError> {
        let reply = match call {
            HostCall::Bind(request) => HostReply::Bind(self.bind(request)?),
            HostCall::Teach(request) => {
                self.take(&request.diffs)?;
                let applied = Some(self.applied(request.challenge.as_ref())?);
                HostReply::Teach(pb::TeachResponse { applied })
            }
            HostCall::Infer(request) => return Ok(Answer::Stream(self.infer(unix_ms, request)?)),
            HostCall::Cancel(request) => HostReply::Cancel(self.cancel(unix_ms, request)?),
            HostCall::GetSignatures(request) => HostReply::GetSignatures(self.get_signatures(request)?),
            HostCall::GetPending(_) => {
                HostReply::GetPending(pb::GetPendingResponse { txs: Self::pending(self.session()?) })
            }
            HostCall::GetDiffs(request) => {
                let max = if request.max == 0 { 200 } else { request.max.min(200) } as usize;
                let diffs = self.session()?.diffs.range(request.from.max(1)..).take(max);
                let diffs = diffs.map(|(_, (_, bytes))| bytes.clone()).collect();
                HostReply::GetDiffs(pb::GetDiffsResponse { diffs })
            }
            HostCall::VoteTimeout(request) => {
                self.take(&request.diffs)?;
                match self.is_late(unix_ms, request)? {
                    None => HostReply::VoteTimeout(self.ballot(request, false, Vec::new())?),
                    Some(executor) => {
                        let request = pb::ChallengeStartRequest {
                            escrow_id: request.escrow_id,
                            inference_id: request.inference_id,
                            diffs: request.diffs.clone(),
                            body: request.body.clone(),
                        };
                        return Ok(Answer::Challenge { executor, request });
                    }
                }
            }
            HostCall::ResetSession(request) => HostReply::ResetSession(self.reset(request)?),
        };
        Ok(Answer::Reply(reply))
    }

    fn vote(
        &mut self,
        _unix_ms: u64,
        request: &pb::VoteTimeoutRequest,
        answer: Option<pb::ChallengeStartResponse>,
    ) -> Result<pb::VoteTimeoutResponse, pb::EscrowError> {
        let Some(answer) = answer else { return self.ballot(request, true, Vec::new()) };
        let valid = |bytes: &Vec<u8>| Tx::from_bytes(bytes).ok();
        let cancelled = |tx: &Tx| matches!(tx, Tx::ReportError { kind: KIND_CANCELLED, .. });
        let outcome = valid(&answer.outcome).filter(|tx| !cancelled(tx) || answer.cancel.is_some());
        let against = match request.reason {
            1 => valid(&answer.receipt).is_some() || outcome.is_some(),
            _ => outcome.is_some(),
        };
        let txs: Vec<Vec<u8>> = [answer.receipt, outcome.map_or_else(Vec::new, |tx| tx.to_bytes())].into();
        let txs = if against { txs.into_iter().filter(|tx| !tx.is_empty()).collect() } else { Vec::new() };
        self.ballot(request, !against, txs)
    }

    fn challenge_with_log(
        &mut self,
        request: &pb::ChallengeStartRequest,
        have: u64,
    ) -> Option<pb::ChallengeStartRequest> {
        let log = &self.disk.session.as_ref()?.diffs;
        let diffs: Vec<Vec<u8>> = log.range(have + 1..).map(|(_, (_, bytes))| bytes.clone()).collect();
        let news = !diffs.is_empty() && diffs.first() != request.diffs.first();
        news.then(|| pb::ChallengeStartRequest { diffs, ..request.clone() })
    }

    fn challenge(
        &mut self,
        unix_ms: u64,
        _caller: &Address,
        request: &pb::ChallengeStartRequest,
    ) -> Result<pb::ChallengeStartResponse, pb::EscrowError> {
        self.take(&request.diffs)?;
        let receipt = self.take_up(unix_ms, request.inference_id, &request.body)?;
        let work = self.session()?.work.get(&request.inference_id).cloned().unwrap_or_default();
        let outcome = work.outcome.map_or_else(Vec::new, |tx| tx.to_bytes());
        Ok(pb::ChallengeStartResponse { receipt, outcome, cancel: work.cancel })
    }

    fn take_jobs(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }

    fn runs(&self, id: u64) -> bool {
        let work = self.disk.session.as_ref().and_then(|session| session.work.get(&id));
        work.is_some_and(|work| work.running)
    }

    fn delivered(&mut self, id: u64, tokens: u32) {
        if let Some(session) = &mut self.disk.session
            && let Some(work) = session.work.get_mut(&id)
        {
            work.delivered = tokens;
        }
    }

    fn ended(&mut self, _unix_ms: u64, id: u64, end: &JobEnd) -> Option<pb::infer_response::Event> {
        let (terms, key) = (self.terms.clone(), self.key.clone());
        let session = self.disk.session.as_mut()?;
        let work = session.work.get_mut(&id).filter(|work| work.running)?;
        work.running = false;
        let born = session.state.nonce();
        // A sealed or ended record takes nothing more.
        let record = session.state.record(id).filter(|record| record.status.is_open())?;
        let (chain, escrow, slot) = (&terms.chain_id, terms.escrow_id, record.executor_slot);
        let tx = match end {
            JobEnd::Done { text, tokens } => {
                // The host clamps what it reports.
                let (input_tokens, output_tokens) =
                    (9.min(record.input_limit), (*tokens).min(record.output_limit));
                let response_hash = Sha256::digest(text).into();
                let digest =
                    digest::finish(chain, escrow, id, slot, input_tokens, output_tokens, &response_hash);
                work.finish_reason = if *tokens > output_tokens { "length" } else { "stop" }.into();
                work.usage = (input_tokens, output_tokens);
                let sig = key.sign_recoverable(digest);
                Tx::FinishInference { id, input_tokens, output_tokens, response_hash, sig }
            }
            JobEnd::Failed { kind, tokens } => {
                let output_tokens = (*tokens).min(record.output_limit);
                let digest = digest::error(chain, escrow, id, slot, *kind, 0, output_tokens);
                let sig = key.sign_recoverable(digest);
                Tx::ReportError { id, kind: *kind, input_tokens: 0, output_tokens, sig }
            }
        };
        work.outcome = Some(tx.clone());
        session.pool.insert(tx.key(), Waiting { tx, born });
        self.last_piece(id)
    }

    fn close(&mut self) {
        self.disk.closed = true;
    }

    fn image(&self, _power_cut: bool) -> Image {
        self.backup()
    }

    fn backup(&self) -> Image {
        Image::Model(Box::new(self.disk.clone()))
    }
}
