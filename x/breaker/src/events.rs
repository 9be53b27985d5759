//! Typed events (breaker-details 6): attribute order is the protobuf field order.

use holdfast_types::{Address, Context, Event, Height};

use crate::calc::Rule;
use crate::types::{Entry, ForcedTo};

/// Starts an event about one entry: epoch, model, participant, generation after the transition.
fn about(ctx: &Context<'_>, name: &str, model: &str, participant: &Address, generation: u32) -> Event {
    Event::new(format!("holdfast.breaker.v1.{name}"))
        .with("epoch", ctx.block.epoch)
        .with("model", model)
        .with("participant", ctx.bech32(participant))
        .with("generation", generation)
}

fn emit(ctx: &mut Context<'_>, event: Event) {
    let shadow = ctx.block.params.health_cb_shadow;
    ctx.emit(event.with("shadow", shadow));
}

pub(crate) struct Evidence {
    pub(crate) rule: Rule,
    pub(crate) ok: u64,
    pub(crate) missed: u64,
    pub(crate) consecutive_misses: u32,
}

pub(crate) fn excluded(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    entry: &Entry,
    evidence: &Evidence,
) {
    let event = about(ctx, "EventExecutorExcluded", model, participant, entry.generation)
        .with("rule", evidence.rule.as_str())
        .with("ok", evidence.ok)
        .with("missed", evidence.missed)
        .with("window_blocks", ctx.block.params.health_cb_window_blocks)
        .with("consecutive_misses", evidence.consecutive_misses)
        .with("level", entry.backoff_level)
        .with("cooldown_blocks", entry.cooldown_blocks)
        .with("due_block", entry.due().unwrap_or(0));
    emit(ctx, event);
}

/// A refused exclusion: what was asked, and against what.
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) weight: u64,
    pub(crate) out_weight: u128,
    pub(crate) eligible_weight: u128,
    pub(crate) limit_pct: u32,
}

pub(crate) fn refused(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    generation: u32,
    evidence: &Evidence,
    refusal: &Refusal,
) {
    let event = about(ctx, "EventExclusionRefused", model, participant, generation)
        .with("reason", refusal.reason)
        .with("rule", evidence.rule.as_str())
        .with("ok", evidence.ok)
        .with("missed", evidence.missed)
        .with("weight", refusal.weight)
        .with("out_weight", refusal.out_weight)
        .with("eligible_weight", refusal.eligible_weight)
        .with("limit_pct", refusal.limit_pct);
    emit(ctx, event);
}

pub(crate) fn probe_opened(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    entry: &Entry,
    cause: &str,
) {
    let event = about(ctx, "EventProbeOpened", model, participant, entry.generation)
        .with("cause", cause)
        .with("ready_since", entry.ready_since)
        .with("level", entry.backoff_level);
    emit(ctx, event);
}

pub(crate) fn probe_claimed(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    entry: &Entry,
    inference_id: &str,
    deadline: Height,
) {
    let event = about(ctx, "EventProbeClaimed", model, participant, entry.generation)
        .with("inference_id", inference_id)
        .with("deadline_block", deadline)
        .with("attempt", entry.probe_attempts);
    emit(ctx, event);
}

pub(crate) fn restored(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    entry: &Entry,
    cause: &str,
    inference_id: &str,
    attempts: u32,
) {
    let event = about(ctx, "EventExecutorRestored", model, participant, entry.generation)
        .with("cause", cause)
        .with("inference_id", inference_id)
        .with("attempts", attempts)
        .with("excluded_at", entry.excluded_at)
        .with("restored_at", entry.restored_at);
    emit(ctx, event);
}

pub(crate) fn override_set(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    generation: u32,
    to: ForcedTo,
    until_block: Height,
    authority: &str,
) {
    let event = about(ctx, "EventOverrideSet", model, participant, generation)
        .with("to", to.as_str())
        .with("until_block", until_block)
        .with("authority", authority);
    emit(ctx, event);
}

pub(crate) fn override_ended(
    ctx: &mut Context<'_>,
    model: &str,
    participant: &Address,
    generation: u32,
    to: ForcedTo,
    cause: &str,
) {
    let event = about(ctx, "EventOverrideEnded", model, participant, generation)
        .with("to", to.as_str())
        .with("cause", cause);
    emit(ctx, event);
}

pub(crate) fn frozen(ctx: &mut Context<'_>, model: &str, frozen: bool, tripped: u128, eligible: u128) {
    let freeze_pct = ctx.block.params.health_cb_freeze_pct;
    let event = Event::new("holdfast.breaker.v1.EventBreakerFrozen")
        .with("epoch", ctx.block.epoch)
        .with("model", model)
        .with("frozen", frozen)
        .with("tripped_weight", tripped)
        .with("eligible_weight", eligible)
        .with("freeze_pct", freeze_pct);
    ctx.emit(event);
}

pub(crate) fn reset(ctx: &mut Context<'_>, from_epoch: u64) {
    // The entry it is about is the whole new key space, hence no model or participant.
    let epoch = ctx.block.epoch;
    ctx.emit(
        Event::new("holdfast.breaker.v1.EventBreakerReset")
            .with("epoch", epoch)
            .with("from_epoch", from_epoch),
    );
}

pub(crate) fn discarded(ctx: &mut Context<'_>, step: &str, key: &str, reason: &str) {
    ctx.emit(
        Event::new("holdfast.breaker.v1.EventStepDiscarded")
            .with("step", step)
            .with("key", key)
            .with("reason", reason),
    );
}
