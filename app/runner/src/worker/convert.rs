//! The contract's types to and from the wire. Lengths and missing fields are refused here; what a value means is the
//! shard's to check.

use holdfast_proto::holdfast::runner::v1 as pb;

use super::BootId;
use crate::adapter::{
    AdapterError, Bundle, Digest, KvKey, OpenPlan, Payload, ReleaseAck, Sampling, SessionId, ShardInfo,
    StepOut, StepState, StopAck,
};
use crate::failure::Cause;
use crate::trace::TraceContext;

/// Longest text taken over from the other side, in bytes.
const DETAIL_BYTES_MAX: usize = 512;
/// Longest name of a shard, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// What is wrong with a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

fn missing(what: &str) -> Malformed {
    Malformed(format!("{what}: missing"))
}

pub(super) fn digest(what: &str, bytes: &[u8]) -> Result<Digest, Malformed> {
    bytes.try_into().map_err(|_| Malformed(format!("{what}: {} bytes, 32 expected", bytes.len())))
}

pub(super) fn boot_id(bytes: &[u8]) -> Result<BootId, Malformed> {
    let id = bytes.try_into().map_err(|_| Malformed(format!("boot_id: {} bytes, 16 expected", bytes.len())));
    id.map(BootId)
}

pub(super) fn key_to(key: KvKey) -> pb::KvKey {
    pb::KvKey { session: key.session.0.to_vec(), epoch: key.epoch }
}

pub(super) fn key_from(key: &pb::KvKey) -> Result<KvKey, Malformed> {
    let session = key.session.as_slice().try_into();
    let session =
        session.map_err(|_| Malformed(format!("session: {} bytes, 16 expected", key.session.len())))?;
    Ok(KvKey::new(SessionId(session), key.epoch))
}

pub(super) fn plan_to(plan: OpenPlan) -> pb::OpenPlan {
    pb::OpenPlan {
        max_positions: plan.max_positions,
        lease_ms: plan.lease_ms,
        sampling: Some(pb::Sampling { greedy: plan.sampling.greedy, seed: plan.sampling.seed }),
        traceparent: plan.trace.map_or_else(String::new, |trace| trace.to_string()),
    }
}

pub(super) fn plan_from(plan: &pb::OpenPlan) -> Result<OpenPlan, Malformed> {
    let sampling = plan.sampling.as_ref().ok_or_else(|| missing("sampling"))?;
    Ok(OpenPlan {
        max_positions: plan.max_positions,
        lease_ms: plan.lease_ms,
        sampling: Sampling { greedy: sampling.greedy, seed: sampling.seed },
        trace: TraceContext::parse(&plan.traceparent),
    })
}

pub(super) fn bundle_to(bundle: Bundle) -> pb::Bundle {
    let payload = match bundle.payload {
        Payload::Tokens(ids) => pb::bundle::Payload::Tokens(pb::Tokens { ids }),
        Payload::Hidden { rows, cols, data } => pb::bundle::Payload::Hidden(pb::Hidden { rows, cols, data }),
    };
    pb::Bundle { position: bundle.position, payload: Some(payload), digest: bundle.digest.to_vec() }
}

pub(super) fn bundle_from(bundle: pb::Bundle) -> Result<Bundle, Malformed> {
    let payload = match bundle.payload.ok_or_else(|| missing("payload"))? {
        pb::bundle::Payload::Tokens(tokens) => Payload::Tokens(tokens.ids),
        pb::bundle::Payload::Hidden(hidden) => {
            Payload::Hidden { rows: hidden.rows, cols: hidden.cols, data: hidden.data }
        }
    };
    Ok(Bundle { position: bundle.position, payload, digest: digest("bundle digest", &bundle.digest)? })
}

pub(super) fn out_to(out: StepOut) -> pb::StepOut {
    let out = match out {
        StepOut::Hidden(bundle) => pb::step_out::Out::Hidden(bundle_to(bundle)),
        StepOut::Token { token, logits_digest } => {
            pb::step_out::Out::Token(pb::Token { token, logits_digest: logits_digest.to_vec() })
        }
    };
    pb::StepOut { out: Some(out) }
}

pub(super) fn out_from(out: Option<pb::StepOut>) -> Result<StepOut, Malformed> {
    match out.and_then(|out| out.out).ok_or_else(|| missing("out"))? {
        pb::step_out::Out::Hidden(bundle) => bundle_from(bundle).map(StepOut::Hidden),
        pb::step_out::Out::Token(token) => Ok(StepOut::Token {
            token: token.token,
            logits_digest: digest("logits digest", &token.logits_digest)?,
        }),
    }
}

pub(super) fn state_to(state: StepState) -> pb::StepState {
    let state = match state {
        StepState::NotSeen { kv_len } => pb::step_state::State::NotSeen(kv_len),
        StepState::Done { fingerprint, out } => pb::step_state::State::Done(pb::StepDone {
            fingerprint: fingerprint.to_vec(),
            out: Some(out_to(out)),
        }),
        StepState::Unknown => pb::step_state::State::Unknown(pb::Unknown {}),
    };
    pb::StepState { state: Some(state) }
}

pub(super) fn state_from(state: Option<pb::StepState>) -> Result<StepState, Malformed> {
    Ok(match state.and_then(|state| state.state).ok_or_else(|| missing("state"))? {
        pb::step_state::State::NotSeen(kv_len) => StepState::NotSeen { kv_len },
        pb::step_state::State::Done(done) => StepState::Done {
            fingerprint: digest("fingerprint", &done.fingerprint)?,
            out: out_from(done.out)?,
        },
        pb::step_state::State::Unknown(_) => StepState::Unknown,
    })
}

pub(super) fn stop_to(ack: StopAck) -> pb::StopAck {
    let in_flight = match ack {
        StopAck::Quiescent => None,
        StopAck::InFlight { step } => Some(step),
    };
    pb::StopAck { in_flight }
}

pub(super) fn stop_from(ack: &pb::StopAck) -> StopAck {
    ack.in_flight.map_or(StopAck::Quiescent, |step| StopAck::InFlight { step })
}

pub(super) fn release_to(ack: ReleaseAck) -> pb::ReleaseAck {
    let ack = match ack {
        ReleaseAck::Released { rows, buffers } => {
            pb::release_ack::Ack::Released(pb::Released { rows, buffers })
        }
        ReleaseAck::WasAbsent => pb::release_ack::Ack::WasAbsent(pb::WasAbsent {}),
        ReleaseAck::Busy { step } => pb::release_ack::Ack::Busy(step),
    };
    pb::ReleaseAck { ack: Some(ack) }
}

pub(super) fn release_from(ack: &pb::ReleaseAck) -> Result<ReleaseAck, Malformed> {
    Ok(match ack.ack.as_ref().ok_or_else(|| missing("ack"))? {
        pb::release_ack::Ack::Released(released) => {
            ReleaseAck::Released { rows: released.rows, buffers: released.buffers }
        }
        pb::release_ack::Ack::WasAbsent(_) => ReleaseAck::WasAbsent,
        pb::release_ack::Ack::Busy(step) => ReleaseAck::Busy { step: *step },
    })
}

/// A cause that is not told is the coordinator's own.
pub(super) fn cause_from(cause: i32) -> Cause {
    match pb::Cause::try_from(cause) {
        Ok(pb::Cause::Client) => Cause::Client,
        Ok(pb::Cause::Deadline) => Cause::Deadline,
        Ok(pb::Cause::Node) => Cause::Node,
        Ok(pb::Cause::Peer) => Cause::Peer,
        Ok(pb::Cause::Coordinator | pb::Cause::Unspecified) | Err(_) => Cause::Coordinator,
    }
}

pub(super) fn info_to(info: ShardInfo) -> pb::ShardInfo {
    pb::ShardInfo {
        shard_id: info.shard_id,
        first_layer: info.layers.0,
        end_layer: info.layers.1,
        model_layers: info.model_layers,
        model_digest: info.model_digest.to_vec(),
        d_model: info.d_model,
        vocab: info.vocab,
        max_positions: info.max_positions,
        capacity: info.capacity,
        chunk_max: info.chunk_max,
    }
}

/// A worker's word on what it is, as far as the coordinator can tell that it makes sense.
pub(super) fn info_from(info: Option<pb::ShardInfo>) -> Result<ShardInfo, Malformed> {
    let info = info.ok_or_else(|| missing("shard"))?;
    if info.first_layer >= info.end_layer || info.end_layer > info.model_layers {
        let pb::ShardInfo { first_layer, end_layer, model_layers, .. } = info;
        return Err(Malformed(format!("layers {first_layer}..{end_layer} of {model_layers}")));
    }
    if info.d_model == 0 || info.vocab == 0 || info.max_positions == 0 || info.chunk_max == 0 {
        return Err(Malformed("a shard with a width, vocabulary, length or chunk of 0".to_owned()));
    }
    Ok(ShardInfo {
        layers: (info.first_layer, info.end_layer),
        model_layers: info.model_layers,
        model_digest: digest("model_digest", &info.model_digest)?,
        d_model: info.d_model,
        vocab: info.vocab,
        max_positions: info.max_positions,
        capacity: info.capacity,
        chunk_max: info.chunk_max.min(crate::adapter::CHUNK_MAX),
        shard_id: cut(&info.shard_id, NAME_BYTES_MAX).to_owned(),
    })
}

pub(super) fn failed_to(error: &AdapterError) -> pb::Failed {
    let (detail, have_epoch) = match error {
        AdapterError::WorkerDeath(detail)
        | AdapterError::StreamReset(detail)
        | AdapterError::MalformedBundle(detail)
        | AdapterError::CacheMiss(detail)
        | AdapterError::Full(detail)
        | AdapterError::Conflict(detail)
        | AdapterError::Internal(detail) => (detail.as_str(), 0),
        AdapterError::StaleEpoch { have } => ("", *have),
        AdapterError::LeaseExpired => ("", 0),
    };
    let code = i32::try_from(error.code()).unwrap_or_default();
    pb::Failed { code, detail: cut(detail, DETAIL_BYTES_MAX).to_owned(), have_epoch }
}

/// A code that this build does not know is a defect of one side.
pub(super) fn failed_from(failed: &pb::Failed) -> AdapterError {
    use pb::AdapterErrorCode as Code;
    let detail = cut(&failed.detail, DETAIL_BYTES_MAX).to_owned();
    match Code::try_from(failed.code) {
        Ok(Code::WorkerDeath) => AdapterError::WorkerDeath(detail),
        Ok(Code::StreamReset) => AdapterError::StreamReset(detail),
        Ok(Code::MalformedBundle) => AdapterError::MalformedBundle(detail),
        Ok(Code::StaleEpoch) => AdapterError::StaleEpoch { have: failed.have_epoch },
        Ok(Code::CacheMiss) => AdapterError::CacheMiss(detail),
        Ok(Code::Full) => AdapterError::Full(detail),
        Ok(Code::Conflict) => AdapterError::Conflict(detail),
        Ok(Code::LeaseExpired) => AdapterError::LeaseExpired,
        Ok(Code::Internal) => AdapterError::Internal(detail),
        Ok(Code::Unspecified) | Err(_) => {
            AdapterError::Internal(format!("unknown refusal {}: {detail}", failed.code))
        }
    }
}

/// The first `most` bytes of a text, at a character's edge.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
