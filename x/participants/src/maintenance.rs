//! Maintenance windows: announced ahead, opened and closed by a due queue.

use holdfast_types::traits::{Eligibility, EligibilityHooks, ParticipantsRead};
use holdfast_types::{Address, Context, Height, ModuleError};

use crate::errors::ParticipantsError;
use crate::events;
use crate::keeper::Keeper;
use crate::state::{DUE, IN_MAINTENANCE, MEMBERS, PARTICIPANTS, UNAVAILABILITY, WINDOWS};
use crate::types::{Cause, Interval, Window};

/// Windows opened or closed in one block; the rest waits for the next.
pub const DUE_ROWS_MAX: usize = 1_000;

impl Keeper<'_> {
    /// Announces a window of blocks `start .. end`.
    pub fn announce(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        start: Height,
        end: Height,
    ) -> Result<(), ModuleError> {
        self.registered(ctx, address)?;
        let params = self.params(ctx.store)?;
        let refuse = |field, rule: String| Err(ParticipantsError::Window { field, rule }.into());
        let first = ctx.block.height.saturating_add(params.min_announce_blocks);
        if start < first || start > ctx.block.height.saturating_add(10_000_000) {
            return refuse(
                "start_height",
                format!("must be {first} or later, at most 10000000 blocks ahead"),
            );
        }
        let last = start.saturating_add(params.max_maintenance_blocks);
        if end <= start || end > last {
            return refuse("end_height", format!("must be above start_height and at most {last}"));
        }
        let mut pending = 0_u32;
        for row in WINDOWS.prefix(ctx.store, address, holdfast_store::Order::Ascending) {
            let ((_, other_start), other) = row?;
            pending = pending.saturating_add(1);
            if start < other.end_height && other_start < end {
                let rule = format!("overlaps the window {other_start} to {}", other.end_height);
                return refuse("start_height", rule);
            }
        }
        if pending >= params.max_maintenance_windows {
            return Err(ParticipantsError::TooManyWindows(params.max_maintenance_windows).into());
        }
        let window = Window { end_height: end, announced_at: ctx.block.height };
        WINDOWS.set(ctx.store, &(*address, start), &window)?;
        DUE.insert(ctx.store, &(start, false, *address, start))?;
        events::window(ctx, "EventMaintenanceAnnounced", address, start, end);
        Ok(())
    }

    /// Takes back a window, or ends an open one in this block.
    pub fn cancel(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        start: Height,
    ) -> Result<(), ModuleError> {
        let window = WINDOWS.get(ctx.store, &(*address, start))?;
        let window = window.ok_or(ParticipantsError::UnknownWindow(start))?;
        if IN_MAINTENANCE.get(ctx.store, address)? == Some(start) {
            DUE.remove(ctx.store, &(window.end_height, true, *address, start))?;
            // This block was still, in part, maintenance.
            let last = ctx.block.height;
            self.close(ctx, hooks, address, start, window, last)?;
        } else {
            DUE.remove(ctx.store, &(start, false, *address, start))?;
            WINDOWS.remove(ctx.store, &(*address, start))?;
        }
        events::window(ctx, "EventMaintenanceCancelled", address, start, window.end_height);
        Ok(())
    }

    /// B3, first part: windows that open or close by now, oldest first. A row that fails is removed and recorded.
    pub(crate) fn open_and_close(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
    ) -> Result<(), ModuleError> {
        let due: Vec<_> =
            DUE.up_to(ctx.store, &ctx.block.height).take(DUE_ROWS_MAX).collect::<Result<_, _>>()?;
        for row in due {
            // A window that follows at once has ended the one before it, whose row is then gone.
            if !DUE.has(ctx.store, &row)? {
                continue;
            }
            let (_, closes, address, start) = row;
            DUE.remove(ctx.store, &row)?;
            let step = ctx.branch(|ctx| {
                if closes {
                    self.end(ctx, hooks, &address, start)
                } else {
                    self.open(ctx, hooks, &address, start)
                }
            });
            if let Err(error) = step {
                let key = format!("{}/{start}", ctx.bech32(&address));
                events::step_discarded(ctx, "maintenance", key, error);
            }
        }
        Ok(())
    }

    /// Ends an open window whose time is over.
    fn end(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        start: Height,
    ) -> Result<(), ModuleError> {
        let window = WINDOWS.load(ctx.store, &(*address, start))?;
        DUE.remove(ctx.store, &(window.end_height, true, *address, start))?;
        self.close(ctx, hooks, address, start, window, window.end_height.saturating_sub(1))?;
        events::window(ctx, "EventMaintenanceEnded", address, start, window.end_height);
        Ok(())
    }

    fn open(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        start: Height,
    ) -> Result<(), ModuleError> {
        // At one height openings come first, and after a backlog the closing may wait behind this row.
        if let Some(before) = IN_MAINTENANCE.get(ctx.store, address)? {
            self.end(ctx, hooks, address, before)?;
        }
        let window = WINDOWS.load(ctx.store, &(*address, start))?;
        let before = self.eligibilities(ctx, address)?;
        self.count_all_next(ctx, address, false)?;
        IN_MAINTENANCE.set(ctx.store, address, &start)?;
        let interval =
            Interval { to_height: window.end_height.saturating_sub(1), announced_at: window.announced_at };
        let key = (*address, start, String::new(), Cause::Maintenance.byte());
        UNAVAILABILITY.set(ctx.store, &key, &interval)?;
        DUE.insert(ctx.store, &(window.end_height, true, *address, start))?;
        self.tell(ctx, hooks, address, before)?;
        events::window(ctx, "EventMaintenanceStarted", address, start, window.end_height);
        Ok(())
    }

    fn close(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        start: Height,
        window: Window,
        last: Height,
    ) -> Result<(), ModuleError> {
        let before = self.eligibilities(ctx, address)?;
        IN_MAINTENANCE.remove(ctx.store, address)?;
        self.count_all_next(ctx, address, true)?;
        WINDOWS.remove(ctx.store, &(*address, start))?;
        let interval = Interval { to_height: last, announced_at: window.announced_at };
        let key = (*address, start, String::new(), Cause::Maintenance.byte());
        UNAVAILABILITY.set(ctx.store, &key, &interval)?;
        self.tell(ctx, hooks, address, before)
    }

    /// Eligibility for every model served; at most as many as the chain has models.
    fn eligibilities(
        &self,
        ctx: &Context<'_>,
        address: &Address,
    ) -> Result<Vec<(String, Eligibility)>, ModuleError> {
        let models = PARTICIPANTS.get(ctx.store, address)?.map(|p| p.models).unwrap_or_default();
        let mut out = Vec::with_capacity(models.len());
        for model in models {
            let standing = self.standing(ctx.store, ctx.block, &model, address)?;
            out.push((model, standing.eligibility()));
        }
        Ok(out)
    }

    fn tell(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        before: Vec<(String, Eligibility)>,
    ) -> Result<(), ModuleError> {
        for (model, old) in before {
            let new = self.standing(ctx.store, ctx.block, &model, address)?.eligibility();
            if old.weight != new.weight {
                hooks.after_member_eligibility_changed(ctx, &model, address, old, new)?;
            }
        }
        Ok(())
    }

    fn count_all_next(&self, ctx: &mut Context<'_>, address: &Address, add: bool) -> Result<(), ModuleError> {
        let models = PARTICIPANTS.get(ctx.store, address)?.map(|p| p.models).unwrap_or_default();
        for model in models {
            let record = MEMBERS.get(ctx.store, &(model.clone(), *address))?.unwrap_or_default();
            self.count_next(ctx, &model, &record, add)?;
        }
        Ok(())
    }
}
