//! A host with a real replica and key, and a script.

use std::sync::Arc;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{
    ApplyError, Diff, FrozenConfig, Hash, InferenceStatus, State, Tx, apply, digest,
};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use pb::escrow_error::Code;
use pb::infer_response::Event as Item;
use sha2::{Digest, Sha256};

use crate::core::{CallError, HostCall, HostReply};

use super::world::key;

/// How a host behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// Receipt, text, finish.
    Well,
    /// Nothing answers at all.
    Down,
    /// Replicas work, inference is never taken.
    Silent,
    /// Receipt, and then nothing.
    OnlyReceipt,
    /// Receipt and one token; it goes on when it is told.
    Slow,
    /// Says that it has too much to do.
    Throttled,
    /// A signed failure.
    Fails,
    /// Says that nobody can serve the body; signs that it ends once that is taken back.
    Refuses,
    /// Says so too, and signs nothing.
    RefusesOnly,
    /// A piece on its way is another than the one that was signed for.
    Garbles,
    /// Says that it is done, with nothing signed and no token.
    Unsigned,
    /// Words of a divergence in an error without a signature.
    Crafted,
}

pub(super) struct Host {
    pub(super) key: SecretKey,
    pub(super) address: Address,
    pub(super) state: Option<State>,
    pub(super) roots: Vec<Hash>,
    pub(super) log: Vec<Vec<u8>>,
    pub(super) pending: Vec<Tx>,
    pub(super) serves: Serves,
    /// Computes another root from this nonce on and keeps what it has.
    pub(super) fork_at: Option<u64>,
    pub(super) withholds: bool,
    pub(super) allows_reset: bool,
    /// Shows no fresh signature, and lets the question for one hang.
    pub(super) mute: bool,
    pub(super) boot: u64,
    /// What the executor answered to its challenge: it votes no and brings it.
    pub(super) challenged: Vec<Tx>,
    /// Infer calls that reached it.
    pub(super) infers: u64,
}

type Reply = Result<HostReply, CallError>;

fn err(code: Code) -> CallError {
    CallError::Host(Box::new(pb::EscrowError { code: code as i32, ..Default::default() }))
}

impl Host {
    pub(super) fn new(name: &str) -> Self {
        let key = key(name);
        let address = key.address();
        Self {
            key,
            address,
            state: None,
            roots: Vec::new(),
            log: Vec::new(),
            pending: Vec::new(),
            serves: Serves::Well,
            fork_at: None,
            withholds: false,
            allows_reset: false,
            mute: false,
            boot: 1,
            challenged: Vec::new(),
            infers: 0,
        }
    }

    /// A restart with an empty store.
    pub(super) fn wipe(&mut self) {
        (self.state, self.roots, self.log) = (None, Vec::new(), Vec::new());
        self.boot += 1;
    }

    pub(super) fn nonce(&self) -> u64 {
        self.state.as_ref().map_or(0, State::nonce)
    }

    pub(super) fn sign(&self, digest: Hash) -> Vec<u8> {
        self.key.sign_recoverable(digest).to_vec()
    }

    pub(super) fn teach(&mut self, terms: &FrozenConfig, diffs: &[Vec<u8>]) -> Result<(), CallError> {
        let Some(mut state) = self.state.clone() else { return Err(err(Code::SessionNotFound)) };
        for bytes in diffs {
            let diff = Diff::from_bytes(bytes).unwrap();
            if diff.nonce <= state.nonce() {
                let there = &self.log[diff.nonce as usize - 1];
                if there != bytes {
                    let error = pb::EscrowError {
                        code: Code::DiffFork as i32,
                        nonce: diff.nonce,
                        diff: there.clone(),
                        ..Default::default()
                    };
                    return Err(CallError::Host(Box::new(error)));
                }
                continue;
            }
            if diff.nonce > state.nonce() + 1 {
                let error = pb::EscrowError {
                    code: Code::Behind as i32,
                    have_nonce: state.nonce(),
                    ..Default::default()
                };
                return Err(CallError::Host(Box::new(error)));
            }
            let other =
                self.fork_at.filter(|at| diff.nonce >= *at).map(|_| Hash::from(Sha256::digest(b"other")));
            let result = match other {
                Some(root) => Err(root),
                None => match apply(&state, &diff) {
                    Ok((next, root)) => Ok((next, root)),
                    Err(ApplyError::RootMismatch { computed, .. }) => Err(computed),
                    Err(error) => panic!("the gateway made a diff that does not apply: {error}"),
                },
            };
            match result {
                Ok((next, root)) => {
                    state = next;
                    self.roots.push(root);
                    self.log.push(bytes.clone());
                    self.state = Some(state.clone());
                    let keys: Vec<_> = diff.txs.iter().map(Tx::key).collect();
                    self.pending.retain(|tx| !keys.contains(&tx.key()));
                }
                Err(root) => {
                    if self.fork_at == Some(diff.nonce) {
                        // It goes its own way from here on.
                        let (next, ours) = apply(&state, &diff).unwrap();
                        self.state = Some(next);
                        self.roots.push(ours);
                        self.log.push(bytes.clone());
                    }
                    let id = diff.digest(&terms.chain_id);
                    let signed = digest::refusal(&terms.chain_id, terms.escrow_id, diff.nonce, &id, &root);
                    let error = pb::EscrowError {
                        code: Code::RootMismatch as i32,
                        nonce: diff.nonce,
                        root: root.to_vec(),
                        diff_digest: id.to_vec(),
                        signature: self.sign(signed),
                        ..Default::default()
                    };
                    return Err(CallError::Host(Box::new(error)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn root(&self, nonce: u64, terms: &FrozenConfig) -> Hash {
        match nonce {
            0 => State::genesis(Arc::new(terms.clone())).root(),
            n => {
                let mut root = self.roots[n as usize - 1];
                if self.fork_at.is_some_and(|at| n >= at) {
                    root[0] ^= 1;
                }
                root
            }
        }
    }

    pub(super) fn verification(
        &self,
        terms: &FrozenConfig,
        nonce: u64,
        challenge: Option<&pb::Challenge>,
    ) -> Option<pb::Verification> {
        let challenge = challenge.filter(|_| !self.withholds && !self.mute)?;
        let drawn: Hash = challenge.challenge.as_slice().try_into().unwrap();
        let root = self.root(nonce, terms);
        let signed =
            digest::verify(&terms.chain_id, terms.escrow_id, nonce, &root, challenge.generation, &drawn);
        Some(pb::Verification {
            generation: challenge.generation,
            challenge: challenge.challenge.clone(),
            signature: self.sign(signed),
        })
    }

    pub(super) fn state_signature(&self, terms: &FrozenConfig, nonce: u64) -> Vec<u8> {
        if self.withholds {
            return Vec::new();
        }
        let root = self.root(nonce, terms);
        self.sign(digest::state(&terms.chain_id, terms.escrow_id, nonce, &root))
    }

    pub(super) fn applied(&self, terms: &FrozenConfig, challenge: Option<&pb::Challenge>) -> pb::Applied {
        let nonce = self.nonce();
        pb::Applied {
            nonce,
            root: self.root(nonce, terms).to_vec(),
            state_signature: self.state_signature(terms, nonce),
            withheld: self.withholds,
            stale: Vec::new(),
            pending: self.pending.iter().map(Tx::to_bytes).collect(),
            verification: self.verification(terms, nonce, challenge),
        }
    }

    pub(super) fn confirm(&mut self, terms: &FrozenConfig, id: u64, at: u64) -> Tx {
        let record = self.state.as_ref().unwrap().record(id).unwrap().clone();
        let signed = digest::receipt(&terms.chain_id, terms.escrow_id, &record, at);
        let tx = Tx::ConfirmStart { id, confirmed_at: at, sig: self.key.sign_recoverable(signed) };
        self.pending.push(tx.clone());
        tx
    }

    pub(super) fn finish(&mut self, terms: &FrozenConfig, id: u64, text: &str) -> Tx {
        let slot = terms.executor_slot(id);
        let response_hash: Hash = Sha256::digest(text.as_bytes()).into();
        let signed = digest::finish(&terms.chain_id, terms.escrow_id, id, slot, 3, 2, &response_hash);
        let sig = self.key.sign_recoverable(signed);
        let tx = Tx::FinishInference { id, input_tokens: 3, output_tokens: 2, response_hash, sig };
        self.pending.push(tx.clone());
        tx
    }

    /// The answer gets ready although nobody listens any more.
    pub(super) fn finish_now(&mut self, terms: &FrozenConfig, id: u64) {
        self.finish(terms, id, "hello");
    }

    pub(super) fn report(&mut self, terms: &FrozenConfig, id: u64, kind: u8) -> Tx {
        let slot = terms.executor_slot(id);
        let signed = digest::error(&terms.chain_id, terms.escrow_id, id, slot, kind, 3, 1);
        let sig = self.key.sign_recoverable(signed);
        let tx = Tx::ReportError { id, kind, input_tokens: 3, output_tokens: 1, sig };
        self.pending.push(tx.clone());
        tx
    }

    pub(super) fn answer(&mut self, terms: &FrozenConfig, unix_s: u64, call: HostCall) -> Option<Reply> {
        if self.serves == Serves::Down {
            return Some(Err(CallError::Transport));
        }
        Some(match call {
            HostCall::Bind(request) => {
                if request.config_digest != terms.digest() {
                    return Some(Err(err(Code::ConfigMismatch)));
                }
                if self.state.is_none() {
                    self.state = Some(State::genesis(Arc::new(terms.clone())));
                }
                let nonce = self.nonce();
                Ok(HostReply::Bind(pb::BindResponse {
                    nonce,
                    root: self.root(nonce, terms).to_vec(),
                    boot_id: format!("boot-{}", self.boot),
                }))
            }
            HostCall::Teach(request) => self.teach(terms, &request.diffs).map(|()| {
                let applied = Some(self.applied(terms, request.challenge.as_ref()));
                HostReply::Teach(pb::TeachResponse { applied })
            }),
            HostCall::GetSignatures(_) if self.mute => return None,
            HostCall::GetSignatures(request) => {
                if self.state.is_none() {
                    return Some(Err(err(Code::SessionNotFound)));
                }
                let have_nonce = self.nonce();
                let nonce = if request.nonce == 0 { have_nonce } else { request.nonce.min(have_nonce) };
                Ok(HostReply::GetSignatures(pb::GetSignaturesResponse {
                    have_nonce,
                    nonce,
                    root: self.root(nonce, terms).to_vec(),
                    state_signature: self.state_signature(terms, nonce),
                    withheld: self.withholds,
                    stale: Vec::new(),
                    verification: self.verification(terms, nonce, request.challenge.as_ref()),
                }))
            }
            HostCall::GetPending(_) if self.serves == Serves::Throttled => {
                Err(CallError::Status { code: 8, retry_after_ms: 0 })
            }
            HostCall::GetPending(_) => {
                let txs = self.pending.iter().map(Tx::to_bytes).collect();
                Ok(HostReply::GetPending(pb::GetPendingResponse { txs }))
            }
            HostCall::GetDiffs(request) => {
                let diffs = self
                    .log
                    .iter()
                    .skip(request.from as usize - 1)
                    .take(request.max as usize)
                    .cloned()
                    .collect();
                Ok(HostReply::GetDiffs(pb::GetDiffsResponse { diffs }))
            }
            HostCall::VoteTimeout(request) => match self.teach(terms, &request.diffs) {
                Err(error) => Err(error),
                Ok(()) => {
                    let record = self.state.as_ref().unwrap().record(request.inference_id).cloned();
                    let late = record.is_some_and(|record| match request.reason {
                        1 => {
                            record.status == InferenceStatus::Pending
                                && unix_s >= record.started_at + u64::from(terms.refusal_timeout_s)
                                && record.prompt_hash == Hash::from(Sha256::digest(&request.body))
                        }
                        _ => {
                            record.status == InferenceStatus::Started
                                && unix_s >= record.confirmed_at + u64::from(terms.execution_timeout_s)
                        }
                    });
                    let late = late && self.challenged.is_empty();
                    let slot = terms.slots_of(&self.address)[0];
                    let reason = request.reason as u8;
                    let (chain, escrow) = (&terms.chain_id, terms.escrow_id);
                    let signed = digest::vote(chain, escrow, request.inference_id, reason, slot, late);
                    Ok(HostReply::VoteTimeout(pb::VoteTimeoutResponse {
                        accept: late,
                        voter_slot: u32::from(slot),
                        signature: self.sign(signed),
                        executor_txs: self.challenged.iter().map(Tx::to_bytes).collect(),
                    }))
                }
            },
            HostCall::Cancel(request) => {
                let id = request.inference_id;
                let spoken = self.pending.iter().any(|tx| tx.inference_id() == Some(id));
                let untaken = self.state.as_ref().and_then(|state| state.record(id)).is_some_and(|record| {
                    record.status == InferenceStatus::Pending && terms.executor_of(id) == Some(self.address)
                });
                let signs = match self.serves {
                    Serves::Slow | Serves::Refuses => true,
                    Serves::Well => untaken && !spoken,
                    _ => false,
                };
                if signs {
                    self.report(terms, id, 8);
                }
                Ok(HostReply::Cancel(pb::CancelInferenceResponse {
                    state: pb::cancel_inference_response::State::Cancelled as i32,
                    delivered_tokens: 1,
                    pending: self.pending.iter().map(Tx::to_bytes).collect(),
                }))
            }
            HostCall::ResetSession(_) if self.allows_reset => {
                self.wipe();
                // What it waited for went with the replica.
                (self.fork_at, self.withholds) = (None, false);
                Ok(HostReply::ResetSession(pb::ResetSessionResponse::default()))
            }
            HostCall::ResetSession(_) => Err(err(Code::Policy)),
            HostCall::Infer(_) => return None,
        })
    }

    /// The pieces of an Infer and how it ends; `None` = the stream stays open.
    pub(super) fn infer(
        &mut self,
        terms: &FrozenConfig,
        unix_s: u64,
        request: &pb::InferRequest,
    ) -> (Vec<Item>, Option<Result<(), CallError>>) {
        self.infers += 1;
        match self.serves {
            Serves::Down => return (Vec::new(), Some(Err(CallError::Transport))),
            Serves::Throttled => {
                return (Vec::new(), Some(Err(CallError::Status { code: 8, retry_after_ms: 0 })));
            }
            Serves::Crafted => {
                let error = pb::EscrowError {
                    code: Code::RootMismatch as i32,
                    nonce: request.target_nonce,
                    root: vec![7; 32],
                    signature: vec![1; 65],
                    message: "apply diff nonce: post_state_root does not match computed state root".into(),
                    ..Default::default()
                };
                return (Vec::new(), Some(Err(CallError::Host(Box::new(error)))));
            }
            _ => {}
        }
        if let Err(error) = self.teach(terms, &request.diffs) {
            return (Vec::new(), Some(Err(error)));
        }
        let id = request.target_nonce;
        if self.nonce() < id {
            let error =
                pb::EscrowError { code: Code::Behind as i32, have_nonce: self.nonce(), ..Default::default() };
            return (Vec::new(), Some(Err(CallError::Host(Box::new(error)))));
        }
        let mut items = vec![Item::Applied(self.applied(terms, None))];
        if matches!(self.serves, Serves::Refuses | Serves::RefusesOnly) {
            return (Vec::new(), Some(Err(err(Code::Policy))));
        }
        if self.serves == Serves::Silent {
            return (items, Some(Err(CallError::Timeout)));
        }
        if self.serves == Serves::Fails {
            let tx = self.report(terms, id, 10).to_bytes();
            items.push(Item::Failed(pb::InferFailed { kind: 10, tx }));
            return (items, Some(Ok(())));
        }
        let tx = self.confirm(terms, id, unix_s).to_bytes();
        items.push(Item::Receipt(pb::Receipt { tx }));
        if self.serves == Serves::OnlyReceipt {
            return (items, Some(Err(CallError::Transport)));
        }
        if self.serves == Serves::Unsigned {
            items.push(Item::Finished(pb::InferFinished {
                finish_reason: "stop".into(),
                ..Default::default()
            }));
            return (items, Some(Ok(())));
        }
        items.push(Item::Delta(pb::Delta { index: 0, text: "hel".into(), token_ids: vec![1] }));
        if self.serves == Serves::Slow {
            return (items, None);
        }
        let rest = if self.serves == Serves::Garbles { "LO" } else { "lo" };
        items.push(Item::Delta(pb::Delta { index: 1, text: rest.into(), token_ids: vec![2] }));
        let tx = self.finish(terms, id, "hello").to_bytes();
        let usage = Some(pb::Usage { prompt_tokens: 3, completion_tokens: 2 });
        items.push(Item::Finished(pb::InferFinished { tx, finish_reason: "stop".into(), usage }));
        (items, Some(Ok(())))
    }
}
