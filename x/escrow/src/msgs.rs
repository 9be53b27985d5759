//! Messages as the keeper takes them: parsed and checked by themselves (code 3).

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Coin, Hrp};

use crate::errors::EscrowError;
use crate::forms::settlement_from_pb;
use crate::session::MAX_SLOTS;
use crate::session::settle::Settlement;

/// Longest `gateway_url`, bytes.
pub const URL_MAX: usize = 256;

/// `MsgCreateEscrow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateEscrow {
    /// Signs and pays.
    pub creator: Address,
    /// Its key will sign diffs.
    pub gateway: Address,
    /// Where hosts reach it; empty when nowhere.
    pub gateway_url: String,
    /// Model.
    pub model: String,
    /// To be paid in.
    pub amount: Coin,
    /// Slots of the group, 1 to 128.
    pub slots: u8,
}

/// `MsgSettleEscrow` or `MsgDisputeEscrow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BringState {
    /// Signs.
    pub sender: Address,
    /// The state, with the id of its escrow.
    pub settlement: Settlement,
}

pub(crate) fn address(field: &str, text: &str, hrp: &Hrp) -> Result<Address, EscrowError> {
    Address::parse(text, hrp).map_err(|e| EscrowError::invalid(field, e.to_string()))
}

/// Empty, or http(s) in graphic ASCII.
pub(crate) fn check_url(field: &str, url: &str) -> Result<(), EscrowError> {
    let scheme = ["http://", "https://"].iter().any(|s| url.len() > s.len() && url.starts_with(s));
    if url.is_empty() || (scheme && url.len() <= URL_MAX && url.bytes().all(|b| b.is_ascii_graphic())) {
        return Ok(());
    }
    Err(EscrowError::invalid(field, "leave it empty, or use http:// or https:// and at most 256 characters"))
}

impl CreateEscrow {
    /// Parses; errors are code 3.
    pub fn from_pb(msg: pb::MsgCreateEscrow, hrp: &Hrp) -> Result<Self, EscrowError> {
        let creator = address("creator", &msg.creator, hrp)?;
        let gateway = address("gateway", &msg.gateway, hrp)?;
        check_url("gateway_url", &msg.gateway_url)?;
        if msg.model.is_empty() {
            return Err(EscrowError::invalid("model", "must not be empty"));
        }
        let coin = msg.amount.as_ref().ok_or_else(|| EscrowError::invalid("amount", "must be given"))?;
        let amount = Coin::try_from(coin).map_err(|e| EscrowError::invalid("amount", e.to_string()))?;
        let slots = u8::try_from(msg.slots).ok().filter(|n| (1..=MAX_SLOTS).contains(&usize::from(*n)));
        let slots = slots.ok_or_else(|| EscrowError::invalid("slots", "must be 1 to 128"))?;
        Ok(Self { creator, gateway, gateway_url: msg.gateway_url, model: msg.model, amount, slots })
    }
}

impl BringState {
    /// Parses; errors are code 3.
    pub fn from_pb(
        sender: &str,
        escrow_id: u64,
        settlement: Option<&pb::Settlement>,
        hrp: &Hrp,
    ) -> Result<Self, EscrowError> {
        let sender = address("sender", sender, hrp)?;
        let given = settlement.ok_or_else(|| EscrowError::invalid("settlement", "must be given"))?;
        Ok(Self { sender, settlement: settlement_from_pb(escrow_id, given, hrp)? })
    }
}
