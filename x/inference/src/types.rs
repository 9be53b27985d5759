//! Stored types and their protobuf forms.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_types::traits::Stamp;
use holdfast_types::{Address, Coin, Decimal12, Epoch, Height, Hrp};

use crate::errors::InferenceError;
use crate::msgs::{address, hash};

/// Where an inference stands; numbers as in `InferenceStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Status {
    /// Waits for its answer.
    Started = 1,
    /// Answered in time and paid.
    Finished = 2,
    /// Not answered in time: a miss.
    Expired = 3,
    /// Its executor reported a failure: a miss.
    Failed = 4,
    /// Its requester withdrew it.
    Cancelled = 5,
    /// Not answered in time, with an excuse.
    Released = 6,
    /// Answered before its start arrived; waits for it.
    FinishedFirst = 7,
}

impl Status {
    /// Has a timeout and has not ended.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Started | Self::FinishedFirst)
    }

    /// Name in error texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Expired => "expired",
            Self::Failed => "reported failed",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::FinishedFirst => "finished, waits for its start",
        }
    }

    pub(crate) fn to_pb(self) -> pb::InferenceStatus {
        match self {
            Self::Started => pb::InferenceStatus::Started,
            Self::Finished => pb::InferenceStatus::Finished,
            Self::Expired => pb::InferenceStatus::Expired,
            Self::Failed => pb::InferenceStatus::Failed,
            Self::Cancelled => pb::InferenceStatus::Cancelled,
            Self::Released => pb::InferenceStatus::Released,
            Self::FinishedFirst => pb::InferenceStatus::FinishedFirst,
        }
    }

    /// From the number on the wire; 0 and unknown ones are `None`.
    pub(crate) fn from_pb(number: i32) -> Option<Self> {
        match pb::InferenceStatus::try_from(number).ok()? {
            pb::InferenceStatus::Unspecified => None,
            pb::InferenceStatus::Started => Some(Self::Started),
            pb::InferenceStatus::Finished => Some(Self::Finished),
            pb::InferenceStatus::Expired => Some(Self::Expired),
            pb::InferenceStatus::Failed => Some(Self::Failed),
            pb::InferenceStatus::Cancelled => Some(Self::Cancelled),
            pb::InferenceStatus::Released => Some(Self::Released),
            pb::InferenceStatus::FinishedFirst => Some(Self::FinishedFirst),
        }
    }
}

/// What a start wrote down.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Start {
    /// Model.
    pub model: String,
    /// Who asked.
    pub requested_by: Address,
    /// Who signed and paid.
    pub payer: Address,
    /// Who shall answer.
    pub assigned_to: Address,
    /// SHA-256 of the prompt.
    pub prompt_hash: [u8; 32],
    /// Declared tokens of the prompt.
    pub prompt_tokens: u64,
    /// Most tokens of the answer.
    pub max_tokens: u64,
    /// Price of one token at the start.
    pub token_price: Coin,
    /// Paid in, base units of the price's denomination.
    pub escrowed: u128,
    /// Height of the start.
    pub height: Height,
    /// State of the executor's breaker at the start.
    pub stamp: Stamp,
}

/// What a finish wrote down.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Answer {
    /// Who answered.
    pub executed_by: Address,
    /// SHA-256 of the answer.
    pub response_hash: [u8; 32],
    /// Tokens of the prompt as the executor counted them.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Height of the finish.
    pub height: Height,
}

/// One inference. Started: `start` only. Finished first: `answer` only. Finished: both.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Inference {
    /// Where it stands.
    pub status: Status,
    /// Last height at which an answer is taken; for a finished-first one, at which its start is.
    pub expires_at: Height,
    /// The start, once seen.
    pub start: Option<Start>,
    /// The answer, once seen.
    pub answer: Option<Answer>,
    /// Paid to the executor, base units.
    pub paid: u128,
    /// Paid back, base units.
    pub refunded: u128,
    /// Height at which it ended; 0 while open.
    pub end_height: Height,
    /// Number the executor gave with its report; 0 without one.
    pub failure_kind: u32,
}

/// What a participant did in one epoch, all models together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EpochStats {
    /// Inferences given to it.
    pub assigned: u64,
    /// Answered.
    pub inference_count: u64,
    /// Missed.
    pub missed_requests: u64,
    /// Ended without fault or answer.
    pub released: u64,
    /// Tokens of the prompts it answered; stops at 2^64 − 1.
    pub prompt_tokens: u64,
    /// Tokens of its answers; stops at 2^64 − 1.
    pub completion_tokens: u64,
    /// Earned, base units.
    pub earned: u128,
}

/// A participant's sequential test in one epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct SprtState {
    /// Log-likelihood ratio, units of 10^-12.
    pub llr: i128,
    /// Answers already in `llr`.
    pub absorbed_ok: u64,
    /// Misses already in `llr`.
    pub absorbed_missed: u64,
}

/// Increments of the ratio and the parameters they were computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct SprtIncrements {
    /// Miss rate of a good participant.
    pub p0: Decimal12,
    /// Miss rate of a bad one.
    pub p1: Decimal12,
    /// What a miss adds, units of 10^-12.
    pub up: i128,
    /// What an answer adds, negative.
    pub down: i128,
}

/// Parses a decimal amount of a protobuf field.
pub(crate) fn amount(field: &'static str, text: &str) -> Result<u128, InferenceError> {
    Coin::parse_amount(text).map_err(|e| InferenceError::invalid(field, e.to_string()))
}

impl Inference {
    /// Whose work it is: `assigned_to`, or before the start whoever answered.
    pub fn executor(&self) -> Option<Address> {
        let assigned = self.start.as_ref().map(|s| s.assigned_to);
        assigned.or_else(|| self.answer.as_ref().map(|a| a.executed_by))
    }

    /// The protobuf form.
    pub fn to_pb(&self, id: &str, hrp: &Hrp) -> pb::Inference {
        let mut out = pb::Inference {
            inference_id: id.to_owned(),
            status: self.status.to_pb().into(),
            escrowed: "0".to_owned(),
            expires_at: self.expires_at,
            paid: self.paid.to_string(),
            refunded: self.refunded.to_string(),
            end_height: self.end_height,
            failure_kind: self.failure_kind,
            ..Default::default()
        };
        if let Some(start) = &self.start {
            out.model = start.model.clone();
            out.requested_by = start.requested_by.to_bech32(hrp);
            out.payer = start.payer.to_bech32(hrp);
            out.assigned_to = start.assigned_to.to_bech32(hrp);
            out.prompt_hash = start.prompt_hash.to_vec();
            out.prompt_tokens = start.prompt_tokens;
            out.max_tokens = start.max_tokens;
            out.token_price = Some((&start.token_price).into());
            out.escrowed = start.escrowed.to_string();
            out.start_height = start.height;
            out.stamp = Some(pb::Stamp {
                epoch: start.stamp.epoch,
                generation: start.stamp.generation,
                evidence: start.stamp.evidence,
            });
        }
        if let Some(answer) = &self.answer {
            out.executed_by = answer.executed_by.to_bech32(hrp);
            out.response_hash = answer.response_hash.to_vec();
            out.reported_prompt_tokens = answer.prompt_tokens;
            out.completion_tokens = answer.completion_tokens;
            out.finish_height = answer.height;
        }
        out
    }

    /// Reads the protobuf form. A form that [`Self::to_pb`] would not write is refused, so that an import
    /// loses nothing.
    pub fn from_pb(pb: &pb::Inference, hrp: &Hrp) -> Result<Self, InferenceError> {
        let status = Status::from_pb(pb.status)
            .ok_or_else(|| InferenceError::invalid("inferences.status", "must be a known status"))?;
        let start = match &pb.stamp {
            None => None,
            Some(stamp) => Some(Start {
                model: pb.model.clone(),
                requested_by: address("inferences.requested_by", &pb.requested_by, hrp)?,
                payer: address("inferences.payer", &pb.payer, hrp)?,
                assigned_to: address("inferences.assigned_to", &pb.assigned_to, hrp)?,
                prompt_hash: hash("inferences.prompt_hash", &pb.prompt_hash)?,
                prompt_tokens: pb.prompt_tokens,
                max_tokens: pb.max_tokens,
                token_price: pb
                    .token_price
                    .as_ref()
                    .ok_or_else(|| InferenceError::invalid("inferences.token_price", "must be given"))?
                    .try_into()
                    .map_err(|e: holdfast_types::CoinError| {
                        InferenceError::invalid("inferences.token_price", e.to_string())
                    })?,
                escrowed: amount("inferences.escrowed", &pb.escrowed)?,
                height: pb.start_height,
                stamp: Stamp { epoch: stamp.epoch, generation: stamp.generation, evidence: stamp.evidence },
            }),
        };
        let answer = match pb.executed_by.as_str() {
            "" => None,
            executed_by => Some(Answer {
                executed_by: address("inferences.executed_by", executed_by, hrp)?,
                response_hash: hash("inferences.response_hash", &pb.response_hash)?,
                prompt_tokens: pb.reported_prompt_tokens,
                completion_tokens: pb.completion_tokens,
                height: pb.finish_height,
            }),
        };
        let inference = Self {
            status,
            expires_at: pb.expires_at,
            start,
            answer,
            paid: amount("inferences.paid", &pb.paid)?,
            refunded: amount("inferences.refunded", &pb.refunded)?,
            end_height: pb.end_height,
            failure_kind: pb.failure_kind,
        };
        if inference.to_pb(&pb.inference_id, hrp) != *pb {
            return Err(InferenceError::invalid(
                "inferences",
                format!("{}: has fields that its status leaves empty, or unusual spellings", pb.inference_id),
            ));
        }
        Ok(inference)
    }
}

impl EpochStats {
    /// The protobuf form.
    pub fn to_pb(&self, epoch: Epoch, participant: &Address, hrp: &Hrp) -> pb::EpochStats {
        pb::EpochStats {
            epoch,
            participant: participant.to_bech32(hrp),
            assigned: self.assigned,
            inference_count: self.inference_count,
            missed_requests: self.missed_requests,
            released: self.released,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            earned: self.earned.to_string(),
        }
    }

    pub(crate) fn from_pb(
        pb: &pb::EpochStats,
        hrp: &Hrp,
    ) -> Result<((Epoch, Address), Self), InferenceError> {
        let participant = address("stats.participant", &pb.participant, hrp)?;
        let stats = Self {
            assigned: pb.assigned,
            inference_count: pb.inference_count,
            missed_requests: pb.missed_requests,
            released: pb.released,
            prompt_tokens: pb.prompt_tokens,
            completion_tokens: pb.completion_tokens,
            earned: amount("stats.earned", &pb.earned)?,
        };
        Ok(((pb.epoch, participant), stats))
    }
}

impl SprtState {
    pub(crate) fn to_pb(self, epoch: Epoch, participant: &Address, hrp: &Hrp) -> pb::SprtState {
        pb::SprtState {
            epoch,
            participant: participant.to_bech32(hrp),
            llr: self.llr.to_string(),
            absorbed_ok: self.absorbed_ok,
            absorbed_missed: self.absorbed_missed,
        }
    }

    pub(crate) fn from_pb(pb: &pb::SprtState, hrp: &Hrp) -> Result<((Epoch, Address), Self), InferenceError> {
        let participant = address("sprt.participant", &pb.participant, hrp)?;
        let llr: i128 =
            pb.llr.parse().ok().filter(|llr: &i128| llr.to_string() == pb.llr).ok_or_else(|| {
                InferenceError::invalid("sprt.llr", "must be a decimal integer without leading zeros")
            })?;
        let state = Self { llr, absorbed_ok: pb.absorbed_ok, absorbed_missed: pb.absorbed_missed };
        Ok(((pb.epoch, participant), state))
    }
}
