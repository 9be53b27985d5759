//! `holdfast.breaker.v1.Msg`.

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_store::Order;
use holdfast_types::{Address, Context, ModuleError};

use crate::calc;
use crate::errors::BreakerError;
use crate::events;
use crate::keeper::{Keeper, OVERRIDES_MAX};
use crate::msgs::{MsgSetBreakerOverride, OVERRIDE_BLOCKS_MAX};
use crate::state::{ENTRIES, EntryKey, OVERRIDES};
use crate::types::{Forced, ForcedTo, State};

/// Sets, replaces or clears an override (rows 14 to 16). Codes in order: 2, 3, 4, 5.
pub fn set_breaker_override(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    msg: pb::MsgSetBreakerOverride,
) -> Result<pb::MsgSetBreakerOverrideResponse, ModuleError> {
    let expected = ctx.bech32(&Address::module("gov"));
    if msg.authority != expected {
        return Err(BreakerError::InvalidSigner { expected, found: msg.authority }.into());
    }
    let msg = MsgSetBreakerOverride::from_pb(msg, &ctx.block.hrp)?;
    keeper.set_override(ctx, &msg)?;
    Ok(pb::MsgSetBreakerOverrideResponse {})
}

impl Keeper<'_> {
    /// Applies a checked override message.
    pub fn set_override(
        &self,
        ctx: &mut Context<'_>,
        msg: &MsgSetBreakerOverride,
    ) -> Result<(), BreakerError> {
        let bad = |field, reason: String| Err(BreakerError::InvalidOverride { field, reason });
        if !self.group.has_model(ctx.store, &msg.model)? {
            return bad("model", format!("{:?} is not registered", msg.model));
        }
        if !self.group.has_participant(ctx.store, &msg.participant)? {
            return bad("participant", "is not registered".into());
        }
        let pair = (msg.model.clone(), msg.participant);
        let key: EntryKey = (ctx.block.epoch, msg.model.clone(), msg.participant);
        let Some(to) = msg.to else {
            if OVERRIDES.get(ctx.store, &pair)?.is_none() {
                return Err(BreakerError::NoOverride);
            }
            OVERRIDES.remove(ctx.store, &pair)?;
            // An override that a genesis brought without its entry acts from the next epoch; until then it is only a row.
            let entry = ENTRIES.get(ctx.store, &key)?.filter(|entry| entry.forced.is_some());
            return entry.map_or(Ok(()), |entry| self.end_override(ctx, &key, &entry, "cleared"));
        };
        let (first, last) =
            (ctx.block.height.saturating_add(1), ctx.block.height.saturating_add(OVERRIDE_BLOCKS_MAX));
        if !(first..=last).contains(&msg.until_block) {
            return bad("until_block", format!("must be {first} to {last}"));
        }
        let live = OVERRIDES.iter(ctx.store, Order::Ascending).take(OVERRIDES_MAX).count();
        if live >= OVERRIDES_MAX && !OVERRIDES.has(ctx.store, &pair)? {
            return Err(BreakerError::TooManyOverrides { limit: OVERRIDES_MAX });
        }
        let forced = Forced { to, until_block: msg.until_block };
        OVERRIDES.set(ctx.store, &pair, &forced)?;
        self.force(ctx, &key, forced)
    }

    /// Rows 14 and 15, from any state.
    pub(crate) fn force(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        forced: Forced,
    ) -> Result<(), BreakerError> {
        let old = ENTRIES.get(ctx.store, key)?.unwrap_or_default();
        let mut entry = old.clone();
        entry.probe = None;
        entry.forced = Some(forced);
        Self::next_generation(&mut entry)?;
        match forced.to {
            ForcedTo::Healthy => {
                entry.state = State::Healthy;
                entry.backoff_level = 0;
                entry.restored_at = ctx.block.height;
            }
            ForcedTo::Excluded => {
                entry.state = State::Excluded;
                entry.excluded_at = ctx.block.height;
                entry.cooldown_blocks = forced.until_block.saturating_sub(ctx.block.height);
            }
        }
        self.save(ctx, key, &old, &entry)?;
        let authority = ctx.bech32(&Address::module("gov"));
        let (_, model, participant) = key;
        events::override_set(
            ctx,
            model,
            participant,
            entry.generation,
            forced.to,
            forced.until_block,
            &authority,
        );
        match forced.to {
            ForcedTo::Healthy => {
                events::restored(ctx, model, participant, &entry, "override", "", old.probe_attempts);
            }
            ForcedTo::Excluded => {
                let (ok, missed) = calc::totals(&old.window, ctx.block.height);
                let consecutive_misses = old.consecutive_misses;
                let evidence =
                    events::Evidence { rule: calc::Rule::Override, ok, missed, consecutive_misses };
                events::excluded(ctx, model, participant, &entry, &evidence);
            }
        }
        Ok(())
    }
}
