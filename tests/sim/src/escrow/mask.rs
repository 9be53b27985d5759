//! What a faulty host does to the words of a sound one: forks, lies and moods stand between the replica and the network.

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{Diff, FrozenConfig, Hash, Tx, digest};
use holdfast_gateway::core::{CallError, HostCall, HostReply};
use holdfast_proto::holdfast::host::v1 as pb;
use pb::escrow_error::Code;
use pb::infer_response::Event;
use sha2::{Digest as _, Sha256};

use crate::Rng;

use super::replica::{Answer, Replica, error};
use super::schedule::{Fork, Heal, Mood};

/// A fork: from this nonce on the host has another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forked {
    pub(super) from: u64,
    pub(super) how: Fork,
    pub(super) heal: Heal,
}

/// Faults of one host.
#[derive(Debug, Default, Clone)]
pub(super) struct Mask {
    pub(super) fork: Option<Forked>,
    /// Moods, and until when.
    pub(super) moods: Vec<(Mood, u64)>,
}

/// What the network carries back.
pub(super) enum Outcome {
    Answer(Answer),
    Error(CallError),
}

/// Root of a host that went its own way.
pub(super) fn other_root(root: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(b"another state");
    hasher.update(root);
    hasher.finalize().into()
}

/// Who speaks through the mask.
pub(super) struct Face<'a> {
    pub(super) key: &'a SecretKey,
    pub(super) terms: &'a FrozenConfig,
}

impl Face<'_> {
    fn sign(&self, digest: Hash) -> Vec<u8> {
        self.key.sign_recoverable(digest).to_vec()
    }

    /// Signs another root, and answers the challenge over it.
    fn resign(
        &self,
        nonce: u64,
        root: &mut Vec<u8>,
        sig: &mut Vec<u8>,
        fresh: &mut Option<pb::Verification>,
    ) {
        let other = other_root(root);
        *root = other.to_vec();
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        *sig = self.sign(digest::state(chain, escrow, nonce, &other));
        if let Some(fresh) = fresh
            && let Ok(challenge) = fresh.challenge.as_slice().try_into()
        {
            let digest = digest::verify(chain, escrow, nonce, &other, fresh.generation, challenge);
            fresh.signature = self.sign(digest);
        }
    }
}

impl Mask {
    /// Whether nothing is wrong with the host now.
    pub(super) fn sound(&self, now_ms: u64) -> bool {
        self.fork.is_none() && !self.moods.iter().any(|(_, until)| *until > now_ms)
    }

    pub(super) fn in_mood(&self, now_ms: u64, mood: Mood) -> bool {
        self.moods.iter().any(|(held, until)| *held == mood && *until > now_ms)
    }

    /// Answers a call.
    pub(super) fn answer(
        &self,
        host: &mut dyn Replica,
        face: &Face<'_>,
        rng: &mut Rng,
        (now_ms, unix_ms): (u64, u64),
        call: &HostCall,
    ) -> Outcome {
        let has = |mood| self.in_mood(now_ms, mood);
        if has(Mood::Crafted) && rng.percent(70) {
            return Outcome::Error(crafted(rng, call));
        }
        if has(Mood::TooLarge) && rng.percent(70) {
            let error = pb::EscrowError { limit: rng.unsigned(1, 1_000), ..error(Code::TooLarge) };
            return Outcome::Error(CallError::Host(Box::new(error)));
        }
        if has(Mood::ForgedFork) && rng.percent(50) {
            return Outcome::Error(forged_fork(rng, face, call));
        }
        if has(Mood::Refuses) && matches!(call, HostCall::Infer(_)) {
            let refused = match rng.below(4) {
                0 => CallError::Status { code: *rng.pick(&[7, 16]), retry_after_ms: 0 },
                1 => CallError::Status { code: *rng.pick(&[8, 14]), retry_after_ms: rng.unsigned(0, 5_000) },
                2 => CallError::Host(Box::new(error(Code::Policy))),
                _ => CallError::Host(Box::new(pb::EscrowError {
                    retry_after_ms: rng.unsigned(0, 3_000),
                    ..error(Code::Unavailable)
                })),
            };
            return Outcome::Error(refused);
        }
        let answer = match self.fork {
            Some(fork) => forked(fork, host, face, unix_ms, call),
            None => host.call(unix_ms, call),
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Outcome::Error(CallError::Host(Box::new(error))),
        };
        self.twist(&mut answer, face, rng, now_ms);
        Outcome::Answer(answer)
    }

    /// Lies about a sound answer.
    fn twist(&self, answer: &mut Answer, face: &Face<'_>, rng: &mut Rng, now_ms: u64) {
        let has = |mood| self.in_mood(now_ms, mood);
        if has(Mood::Terse)
            && let Answer::Reply(HostReply::Teach(pb::TeachResponse { applied: Some(applied) })) = answer
        {
            applied.verification = None;
        }
        if let Some(signed) = Signed::of(answer) {
            let Signed { nonce, root, signature, fresh, withheld } = signed;
            if has(Mood::Withholds) {
                signature.clear();
                *fresh = None;
                *withheld = true;
            }
            if has(Mood::SignsOther) {
                face.resign(*nonce, root, signature, fresh);
            }
            if has(Mood::ClaimsAhead) {
                // So far that our tip is not there before the answer is: overtaken, it would be a signed lie about a
                // nonce that we hold, which is `SignsOther`.
                *nonce += rng.unsigned(1_000, 1_050);
                face.resign(*nonce, root, signature, fresh);
            }
            if has(Mood::Garbage) {
                *root = rng.bytes(*rng.clone().pick(&[0, 31, 32, 33]));
                *signature = rng.bytes(*rng.clone().pick(&[1, 64, 65]));
            }
        }
        if has(Mood::Garbage) || has(Mood::BogusTxs) {
            for list in lists(answer) {
                if has(Mood::BogusTxs) {
                    list.insert(0, bogus(rng));
                }
                if has(Mood::Garbage) {
                    list.push(rng.bytes(40));
                }
            }
        }
    }
}

/// The signed part of an answer.
struct Signed<'a> {
    nonce: &'a mut u64,
    root: &'a mut Vec<u8>,
    signature: &'a mut Vec<u8>,
    fresh: &'a mut Option<pb::Verification>,
    withheld: &'a mut bool,
}

impl<'a> Signed<'a> {
    fn of(answer: &'a mut Answer) -> Option<Self> {
        let applied = match answer {
            Answer::Reply(HostReply::Teach(reply)) => reply.applied.as_mut(),
            Answer::Reply(HostReply::GetSignatures(r)) => {
                return Some(Self {
                    nonce: &mut r.nonce,
                    root: &mut r.root,
                    signature: &mut r.state_signature,
                    fresh: &mut r.verification,
                    withheld: &mut r.withheld,
                });
            }
            Answer::Stream(pieces) => pieces.iter_mut().find_map(|piece| match piece {
                Event::Applied(applied) => Some(applied),
                _ => None,
            }),
            _ => None,
        };
        applied.map(|a| Self {
            nonce: &mut a.nonce,
            root: &mut a.root,
            signature: &mut a.state_signature,
            fresh: &mut a.verification,
            withheld: &mut a.withheld,
        })
    }
}

/// Lists of transactions in an answer.
fn lists(answer: &mut Answer) -> Vec<&mut Vec<Vec<u8>>> {
    match answer {
        Answer::Reply(HostReply::Teach(reply)) => {
            reply.applied.iter_mut().flat_map(|a| [&mut a.stale, &mut a.pending]).collect()
        }
        Answer::Reply(HostReply::GetSignatures(reply)) => vec![&mut reply.stale],
        Answer::Reply(HostReply::GetPending(reply)) => vec![&mut reply.txs],
        Answer::Reply(HostReply::Cancel(reply)) => vec![&mut reply.pending],
        Answer::Reply(HostReply::VoteTimeout(reply)) => vec![&mut reply.executor_txs],
        Answer::Stream(pieces) => pieces
            .iter_mut()
            .filter_map(|piece| match piece {
                Event::Applied(applied) => Some(&mut applied.pending),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A transaction that nobody signed, for some early inference.
fn bogus(rng: &mut Rng) -> Vec<u8> {
    let id = rng.unsigned(1, 30);
    let mut sig = [0; 65];
    sig[..64].copy_from_slice(&rng.bytes(64));
    let tx = match rng.below(4) {
        0 => Tx::ConfirmStart { id, confirmed_at: 1, sig },
        1 => Tx::ReportError { id, kind: 8, input_tokens: 0, output_tokens: 0, sig },
        2 => Tx::FinalizeRound,
        _ => Tx::FinishInference { id, input_tokens: 1, output_tokens: 1, response_hash: [0; 32], sig },
    };
    tx.to_bytes()
}

/// An error that speaks of divergence and proves nothing.
fn crafted(rng: &mut Rng, call: &HostCall) -> CallError {
    let diffs = match call {
        HostCall::Teach(request) => &request.diffs[..],
        HostCall::Infer(request) => &request.diffs[..],
        HostCall::VoteTimeout(request) => &request.diffs[..],
        _ => &[],
    };
    let nonce = diffs.last().and_then(|bytes| Diff::from_bytes(bytes).ok()).map_or(1, |diff| diff.nonce);
    let error = pb::EscrowError {
        nonce,
        root: rng.bytes(32),
        diff_digest: rng.bytes(32),
        signature: if rng.percent(50) { Vec::new() } else { rng.bytes(65) },
        message: format!("apply diff nonce {nonce}: post_state_root does not match computed state root"),
        ..error(Code::RootMismatch)
    };
    match rng.below(3) {
        0 => CallError::Status { code: 10, retry_after_ms: 0 },
        _ => CallError::Host(Box::new(error)),
    }
}

/// A second diff at one nonce, signed by the host instead of the gateway.
fn forged_fork(rng: &mut Rng, face: &Face<'_>, call: &HostCall) -> CallError {
    let mut diff = Diff {
        escrow_id: face.terms.escrow_id,
        nonce: 1,
        txs: Vec::new(),
        post_state_root: [7; 32],
        signature: [0; 65],
    };
    if let HostCall::Teach(request) = call
        && let Some(first) = request.diffs.first().and_then(|bytes| Diff::from_bytes(bytes).ok())
    {
        diff.nonce = first.nonce;
    }
    let digest = diff.digest(&face.terms.chain_id);
    diff.signature = face.key.sign_recoverable(digest);
    CallError::Host(Box::new(pb::EscrowError {
        have_nonce: diff.nonce + rng.unsigned(0, 3),
        nonce: diff.nonce,
        diff_digest: digest.to_vec(),
        diff: diff.to_bytes(),
        ..error(Code::DiffFork)
    }))
}

fn forked(
    fork: Forked,
    host: &mut dyn Replica,
    face: &Face<'_>,
    unix_ms: u64,
    call: &HostCall,
) -> Result<Answer, pb::EscrowError> {
    let honest = matches!(call, HostCall::Teach(_) | HostCall::GetSignatures(_)) && fork.how == Fork::Liar;
    if fork.how == Fork::Careless {
        let mut answer = host.call(unix_ms, call)?;
        if let Some(Signed { nonce, root, signature, fresh, .. }) = Signed::of(&mut answer)
            && *nonce >= fork.from
            && !signature.is_empty()
        {
            face.resign(*nonce, root, signature, fresh);
        }
        return Ok(answer);
    }
    let diffs = match call {
        HostCall::Teach(request) => &request.diffs,
        HostCall::Infer(request) => &request.diffs,
        HostCall::VoteTimeout(request) => &request.diffs,
        _ => return host.call(unix_ms, call),
    };
    if honest {
        return host.call(unix_ms, call);
    }
    let decoded: Vec<Diff> = diffs.iter().filter_map(|bytes| Diff::from_bytes(bytes).ok()).collect();
    let have = host.nonce();
    // Those it has applied before the fork began are no news to it.
    let Some(first) =
        decoded.iter().find(|diff| diff.nonce >= fork.from && have.is_none_or(|n| diff.nonce > n))
    else {
        return host.call(unix_ms, call);
    };
    let before: Vec<Vec<u8>> =
        decoded.iter().filter(|diff| diff.nonce < first.nonce).map(Diff::to_bytes).collect();
    let escrow_id = face.terms.escrow_id;
    host.call(unix_ms, &HostCall::Teach(pb::TeachRequest { escrow_id, diffs: before, challenge: None }))?;
    let have = host.nonce().unwrap_or(0);
    if have + 1 != first.nonce {
        return Err(pb::EscrowError { have_nonce: have, ..error(Code::Behind) });
    }
    let computed = other_root(&first.post_state_root);
    let digest = first.digest(&face.terms.chain_id);
    let refusal = digest::refusal(&face.terms.chain_id, escrow_id, first.nonce, &digest, &computed);
    Err(pb::EscrowError {
        have_nonce: have,
        nonce: first.nonce,
        root: computed.to_vec(),
        diff_digest: digest.to_vec(),
        signature: face.sign(refusal),
        ..error(Code::RootMismatch)
    })
}
