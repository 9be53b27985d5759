//! Messages as the keeper takes them: parsed and checked by themselves (code 3).

use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_types::{Address, Hrp};

use crate::errors::InferenceError;

/// `MsgStartInference`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartInference {
    /// Signs and pays.
    pub signer: Address,
    /// Who asks.
    pub requested_by: Address,
    /// New id.
    pub inference_id: String,
    /// Model.
    pub model: String,
    /// Who shall answer.
    pub assigned_to: Address,
    /// SHA-256 of the prompt.
    pub prompt_hash: [u8; 32],
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Most tokens of the answer.
    pub max_tokens: u64,
}

/// `MsgFinishInference`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishInference {
    /// Signs; the executor.
    pub executed_by: Address,
    /// Id.
    pub inference_id: String,
    /// SHA-256 of the answer.
    pub response_hash: [u8; 32],
    /// Tokens of the prompt as the executor counted them.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

/// `MsgReportFailure`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFailure {
    /// Signs; the executor.
    pub executor: Address,
    /// Id.
    pub inference_id: String,
    /// The executor's own number; changes nothing.
    pub kind: u32,
}

/// `MsgCancelInference`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelInference {
    /// Signs; the requester.
    pub requested_by: Address,
    /// Id.
    pub inference_id: String,
}

/// `MsgUpdateParams`, authority not yet checked.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateParams {
    /// Signs; as written.
    pub authority: String,
    /// New values.
    pub params: pb::Params,
    /// Paths to change.
    pub update_mask: Vec<String>,
}

pub(crate) fn address(field: &'static str, text: &str, hrp: &Hrp) -> Result<Address, InferenceError> {
    Address::parse(text, hrp).map_err(|e| InferenceError::invalid(field, e.to_string()))
}

pub(crate) fn hash(field: &'static str, bytes: &[u8]) -> Result<[u8; 32], InferenceError> {
    bytes
        .try_into()
        .map_err(|_| InferenceError::invalid(field, format!("must be 32 bytes, has {}", bytes.len())))
}

/// An id: 1 to 64 of `A–Z a–z 0–9 . _ -`.
pub(crate) fn id(text: String) -> Result<String, InferenceError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text);
    }
    Err(InferenceError::invalid("inference_id", "use 1 to 64 letters, digits or . _ -"))
}

impl StartInference {
    /// Parses; errors are code 3.
    pub fn from_pb(msg: pb::MsgStartInference, hrp: &Hrp) -> Result<Self, InferenceError> {
        let signer = address("signer", &msg.signer, hrp)?;
        let requested_by = address("requested_by", &msg.requested_by, hrp)?;
        let inference_id = id(msg.inference_id)?;
        if msg.model.is_empty() {
            return Err(InferenceError::invalid("model", "must not be empty"));
        }
        Ok(Self {
            signer,
            requested_by,
            inference_id,
            model: msg.model,
            assigned_to: address("assigned_to", &msg.assigned_to, hrp)?,
            prompt_hash: hash("prompt_hash", &msg.prompt_hash)?,
            prompt_tokens: msg.prompt_tokens,
            max_tokens: msg.max_tokens,
        })
    }
}

impl FinishInference {
    /// Parses; errors are code 3.
    pub fn from_pb(msg: pb::MsgFinishInference, hrp: &Hrp) -> Result<Self, InferenceError> {
        Ok(Self {
            executed_by: address("executed_by", &msg.executed_by, hrp)?,
            inference_id: id(msg.inference_id)?,
            response_hash: hash("response_hash", &msg.response_hash)?,
            prompt_tokens: msg.prompt_tokens,
            completion_tokens: msg.completion_tokens,
        })
    }
}

impl ReportFailure {
    /// Parses; errors are code 3.
    pub fn from_pb(msg: pb::MsgReportFailure, hrp: &Hrp) -> Result<Self, InferenceError> {
        let executor = address("executor", &msg.executor, hrp)?;
        Ok(Self { executor, inference_id: id(msg.inference_id)?, kind: msg.kind })
    }
}

impl CancelInference {
    /// Parses; errors are code 3.
    pub fn from_pb(msg: pb::MsgCancelInference, hrp: &Hrp) -> Result<Self, InferenceError> {
        let requested_by = address("requested_by", &msg.requested_by, hrp)?;
        Ok(Self { requested_by, inference_id: id(msg.inference_id)? })
    }
}

impl From<pb::MsgUpdateParams> for UpdateParams {
    fn from(msg: pb::MsgUpdateParams) -> Self {
        Self {
            authority: msg.authority,
            params: msg.params.unwrap_or_default(),
            update_mask: msg.update_mask.map(|mask| mask.paths).unwrap_or_default(),
        }
    }
}
