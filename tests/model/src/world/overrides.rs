//! Governance's overrides.

use super::*;

impl World {
    /// `MsgSetBreakerOverride` by the authority, in a message or in E5. Codes: 3 unknown pair or `until_block`
    /// outside `h+1..=h+10^6`, 4 more than 256, 5 nothing to clear.
    ///
    /// Reading: `until_block` means nothing when clearing and is not checked then. Replacing a live override
    /// does not count as one more. A replaced override fires no EventOverrideEnded.
    pub fn set_override(
        &mut self,
        model: &str,
        participant: &Address,
        to: OverrideTo,
        until_block: i64,
    ) -> Result<(), u32> {
        let pair = (model.to_string(), *participant);
        if !self.known_pairs.contains(&pair) {
            self.hit("override-unknown");
            return Err(3);
        }
        let to = match to {
            OverrideTo::None => None,
            OverrideTo::Healthy => Some(ForcedTo::Healthy),
            OverrideTo::Excluded => Some(ForcedTo::Excluded),
        };
        let Some(to) = to else {
            if !self.overrides.contains_key(&pair) {
                self.hit("override-nothing");
                return Err(5);
            }
            let column = self.entry(model, participant).column();
            self.hit_column("16-cleared-", column);
            self.end_override(model, participant, "cleared");
            return Ok(());
        };
        if until_block <= self.height || until_block > self.height + 1_000_000 {
            self.hit("override-until");
            return Err(3);
        }
        if !self.overrides.contains_key(&pair) && self.overrides.len() >= 256 {
            return Err(4);
        }
        let row = OverrideRow { to, until_block };
        if self.overrides.insert(pair, row).is_some() {
            self.hit("override-replaced");
        }
        self.apply_override(model, participant, row);
        Ok(())
    }

    /// Rows 14 and 15.
    ///
    /// Reading: the order of events is cause, then effect: EventOverrideSet, then EventExecutorRestored or
    /// EventExecutorExcluded. Row 14 fires EventExecutorRestored from every column, H too (every new generation
    /// is an exclusion or a restoration), with `restored_at` = h, which is also stored; `inference_id` is empty
    /// and `attempts` the stored count, which row 14 does not reset. Row 15 from H keeps the level as from X.
    pub(super) fn apply_override(&mut self, model: &str, participant: &Address, row: OverrideRow) {
        let mut entry = self.entry(model, participant);
        let column = entry.column();
        let forced = Some(Forced { to: row.to, until_block: row.until_block });
        let set_event = |world: &mut World| {
            let authority = world.authority.clone();
            world.emit(
                "EventOverrideSet",
                model,
                participant,
                vec![
                    ("to", row.to.word().to_string()),
                    ("until_block", row.until_block.to_string()),
                    ("authority", authority),
                ],
            );
        };
        match row.to {
            ForcedTo::Healthy => {
                self.hit_column("14", column);
                entry.next_generation();
                entry.state = State::Healthy;
                entry.probe = None;
                entry.backoff_level = 0;
                entry.restored_at = self.height;
                entry.forced = forced;
                let attempts = entry.probe_attempts;
                self.put(model, participant, entry);
                set_event(self);
                self.emit_restored(model, participant, "override", "", attempts);
            }
            ForcedTo::Excluded => {
                self.hit_column("15", column);
                let level = entry.backoff_level;
                let cooldown = row.until_block - self.height;
                self.exclude(model, participant, "override", level, cooldown, forced);
                // The event of the cause goes before that of the effect, both with the new generation.
                let excluded = self.events.pop().expect("an exclusion is evented");
                set_event(self);
                self.events.push(excluded);
            }
        }
    }

    /// Row 16.
    ///
    /// Reading: forced X → R keeps the generation (only the H column says gen+). EventOverrideEnded goes before
    /// EventProbeOpened.
    pub(super) fn end_override(&mut self, model: &str, participant: &Address, cause: &str) {
        self.overrides.remove(&(model.to_string(), *participant));
        let mut entry = self.entry(model, participant);
        let forced = entry.forced.take().expect("an override in force");
        match forced.to {
            ForcedTo::Healthy => {
                assert_eq!(entry.column(), 'H');
                entry.next_generation();
            }
            ForcedTo::Excluded => {
                assert_eq!(entry.column(), 'X');
                entry.state = State::Probe;
                entry.ready_since = self.height;
            }
        }
        self.put(model, participant, entry);
        self.emit(
            "EventOverrideEnded",
            model,
            participant,
            vec![("to", forced.to.word().to_string()), ("cause", cause.to_string())],
        );
        if forced.to == ForcedTo::Excluded {
            self.emit_probe_opened(model, participant, "override_ended");
        }
    }

    // ---- EndBlock ----
}
