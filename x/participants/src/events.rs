//! Typed events; attribute order is the protobuf field order.

use holdfast_types::{Address, Coin, Context, Epoch, Event, Height};

fn about(ctx: &Context<'_>, name: &str, participant: &Address) -> Event {
    Event::new(format!("holdfast.participants.v1.{name}")).with("participant", ctx.bech32(participant))
}

pub(crate) fn registered(ctx: &mut Context<'_>, participant: &Address, joined_epoch: Epoch) {
    let event = about(ctx, "EventParticipantRegistered", participant).with("joined_epoch", joined_epoch);
    ctx.emit(event);
}

pub(crate) fn updated(ctx: &mut Context<'_>, participant: &Address) {
    let event = about(ctx, "EventParticipantUpdated", participant);
    ctx.emit(event);
}

pub(crate) fn left(ctx: &mut Context<'_>, participant: &Address) {
    let event = about(ctx, "EventParticipantLeft", participant).with("epoch", ctx.block.epoch);
    ctx.emit(event);
}

fn moved(ctx: &Context<'_>, name: &str, participant: &Address, coin: &Coin) -> Event {
    about(ctx, name, participant).with("amount", format!("{}{}", coin.amount, coin.denom))
}

pub(crate) fn deposited(ctx: &mut Context<'_>, participant: &Address, coin: &Coin) {
    let event = moved(ctx, "EventCollateralDeposited", participant, coin);
    ctx.emit(event);
}

pub(crate) fn withdrawn(ctx: &mut Context<'_>, participant: &Address, coin: &Coin, unbonding_epoch: Epoch) {
    let event = moved(ctx, "EventCollateralWithdrawn", participant, coin);
    ctx.emit(event.with("unbonding_epoch", unbonding_epoch));
}

pub(crate) fn claimed(ctx: &mut Context<'_>, participant: &Address, coin: &Coin) {
    let event = moved(ctx, "EventCollateralClaimed", participant, coin);
    ctx.emit(event);
}

pub(crate) fn window(ctx: &mut Context<'_>, name: &str, participant: &Address, start: Height, end: Height) {
    let event = about(ctx, name, participant).with("start_height", start).with("end_height", end);
    ctx.emit(event);
}

/// A row of a block step that failed and was left out; `key` says which.
pub(crate) fn step_discarded(ctx: &mut Context<'_>, step: &str, key: String, reason: impl ToString) {
    let event = Event::new("holdfast.participants.v1.EventStepDiscarded");
    ctx.emit(event.with("step", step).with("key", key).with("reason", reason));
}

pub(crate) fn model_registered(ctx: &mut Context<'_>, model: &str) {
    ctx.emit(Event::new("holdfast.participants.v1.EventModelRegistered").with("model", model));
}
