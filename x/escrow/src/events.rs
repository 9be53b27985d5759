//! Events: attributes as the fields of the protobuf messages, in their order.

use holdfast_types::traits::EscrowCounts;
use holdfast_types::{Address, Coin, Context, Event, ModuleError};

use crate::types::{Dispute, Escrow, EscrowId, Outcome};

fn event(kind: &str, id: EscrowId) -> Event {
    Event::new(format!("holdfast.escrow.v1.{kind}")).with("escrow_id", id)
}

pub(crate) fn created(ctx: &mut Context<'_>, id: EscrowId, escrow: &Escrow, amount: &Coin) {
    let event = event("EventEscrowCreated", id)
        .with("creator", ctx.bech32(&escrow.config.creator))
        .with("gateway", ctx.bech32(&escrow.config.gateway))
        .with("model", &escrow.config.model)
        .with("amount", format!("{}{}", amount.amount, amount.denom))
        .with("slots", escrow.config.slots.len())
        .with("epoch", escrow.epoch)
        .with("expires_at_height", escrow.expires_at);
    ctx.emit(event);
}

pub(crate) fn disputed(ctx: &mut Context<'_>, id: EscrowId, sender: &Address, dispute: &Dispute) {
    let event = event("EventEscrowDisputed", id)
        .with("sender", ctx.bech32(sender))
        .with("nonce", dispute.nonce)
        .with("closes_at_height", dispute.closes_at);
    ctx.emit(event);
}

pub(crate) fn settled(ctx: &mut Context<'_>, id: EscrowId, cause: &str, outcome: &Outcome) {
    let event = event("EventEscrowSettled", id)
        .with("cause", cause)
        .with("nonce", outcome.nonce)
        .with("paid", outcome.paid)
        .with("fees", outcome.fees)
        .with("refunded", outcome.refunded);
    ctx.emit(event);
}

pub(crate) fn host_settled(ctx: &mut Context<'_>, id: EscrowId, counts: &EscrowCounts) {
    let event = event("EventHostSettled", id)
        .with("model", &counts.model)
        .with("participant", ctx.bech32(&counts.participant))
        .with("epoch", counts.stamp.epoch)
        .with("generation", counts.stamp.generation)
        .with("evidence", counts.stamp.evidence)
        .with("completed", counts.ok)
        .with("missed", counts.missed)
        .with("released", counts.released)
        .with("cost", counts.earned);
    ctx.emit(event);
}

pub(crate) fn expired(ctx: &mut Context<'_>, id: EscrowId, outcome: &Outcome) {
    let event = event("EventEscrowExpired", id).with("fees", outcome.fees).with("refunded", outcome.refunded);
    ctx.emit(event);
}

/// A row of a block step that failed and was taken out so that its neighbours go on.
pub(crate) fn step_discarded(ctx: &mut Context<'_>, step: &str, row: EscrowId, error: &ModuleError) {
    let event = Event::new("holdfast.escrow.v1.EventStepDiscarded")
        .with("step", step)
        .with("row", row)
        .with("codespace", error.codespace)
        .with("code", error.code)
        .with("reason", &error.message);
    ctx.emit(event);
}
