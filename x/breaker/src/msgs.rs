//! Messages as domain types.

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_types::{Address, Height, Hrp};

use crate::errors::BreakerError;
use crate::types::ForcedTo;

/// Blocks an override may last.
pub(crate) const OVERRIDE_BLOCKS_MAX: i64 = 1_000_000;

/// Governance puts an executor in or out by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MsgSetBreakerOverride {
    /// The gov module account, as signed.
    pub authority: String,
    /// Model.
    pub model: String,
    /// Participant.
    pub participant: Address,
    /// `None` clears.
    pub to: Option<ForcedTo>,
    /// First block without it; not read when clearing.
    pub until_block: Height,
}

impl MsgSetBreakerOverride {
    /// From the wire form; checks what needs no state.
    pub fn from_pb(msg: pb::MsgSetBreakerOverride, hrp: &Hrp) -> Result<Self, BreakerError> {
        let bad = |field, reason: String| BreakerError::InvalidOverride { field, reason };
        let participant =
            Address::parse(&msg.participant, hrp).map_err(|e| bad("participant", e.to_string()))?;
        let to = match pb::OverrideTo::try_from(msg.to) {
            Ok(pb::OverrideTo::None) => None,
            Ok(pb::OverrideTo::Healthy) => Some(ForcedTo::Healthy),
            Ok(pb::OverrideTo::Excluded) => Some(ForcedTo::Excluded),
            Err(_) => return Err(bad("to", "must be 0 (none), 1 (healthy) or 2 (excluded)".into())),
        };
        Ok(Self { authority: msg.authority, model: msg.model, participant, to, until_block: msg.until_block })
    }
}
