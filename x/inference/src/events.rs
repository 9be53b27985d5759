//! Events (breaker-details 6): attributes as the fields of the protobuf messages, in their order.

use holdfast_types::{Address, Context, Event, ModuleError};

use crate::{SprtState, Start};

fn life(ctx: &Context<'_>, kind: &str, id: &str, start: &Start) -> Event {
    Event::new(format!("holdfast.inference.v1.{kind}"))
        .with("inference_id", id)
        .with("model", &start.model)
        .with("assigned_to", ctx.bech32(&start.assigned_to))
        .with("epoch", start.stamp.epoch)
        .with("generation", start.stamp.generation)
        .with("evidence", start.stamp.evidence)
}

pub(crate) fn started(ctx: &mut Context<'_>, id: &str, start: &Start) {
    let event = life(ctx, "EventInferenceStarted", id, start);
    ctx.emit(event);
}

pub(crate) fn finished(ctx: &mut Context<'_>, id: &str, start: &Start) {
    let event = life(ctx, "EventInferenceFinished", id, start);
    ctx.emit(event);
}

pub(crate) fn missed(ctx: &mut Context<'_>, id: &str, start: &Start, cause: &str) {
    let event = life(ctx, "EventInferenceMissed", id, start).with("cause", cause);
    ctx.emit(event);
}

pub(crate) fn released(ctx: &mut Context<'_>, id: &str, start: &Start, cause: &str) {
    let event = life(ctx, "EventInferenceReleased", id, start).with("cause", cause);
    ctx.emit(event);
}

pub(crate) fn deactivated(ctx: &mut Context<'_>, participant: &Address, state: &SprtState) {
    let event = Event::new("holdfast.inference.v1.EventParticipantDeactivated")
        .with("epoch", ctx.block.epoch)
        .with("participant", ctx.bech32(participant))
        .with("llr", state.llr)
        .with("h", ctx.block.params.downtime_h_threshold.0)
        .with("ok", state.absorbed_ok)
        .with("missed", state.absorbed_missed);
    ctx.emit(event);
}

/// A row of a block step that failed and was taken out so that its neighbours go on.
pub(crate) fn step_discarded(ctx: &mut Context<'_>, step: &str, row: &str, error: &ModuleError) {
    let event = Event::new("holdfast.inference.v1.EventStepDiscarded")
        .with("step", step)
        .with("row", row)
        .with("codespace", error.codespace)
        .with("code", error.code)
        .with("reason", &error.message);
    ctx.emit(event);
}
