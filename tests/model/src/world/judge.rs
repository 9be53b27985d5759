//! The end of a block: trips, freeze, cap.

use super::*;

impl World {
    /// E3 and E4, for a block without governance after them.
    pub fn end_block(&mut self) {
        self.judge();
        self.prune();
    }

    /// E3: models ascending.
    ///
    /// Reading: a model is judged when it has a tally row, also if the row is then dropped; steps (b) to (d) run
    /// for it even when nobody meets a rule, so a ring that has aged can thaw.
    pub fn judge(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        assert!(tally.is_empty() || self.params.health_cb_enabled);
        let models: BTreeSet<&String> = tally.keys().map(|(model, _)| model).collect();
        for model in models {
            let rows: Vec<(Address, Tally)> =
                tally.iter().filter(|((m, _), _)| m == model).map(|((_, a), row)| (*a, *row)).collect();
            self.judge_model(model, &rows);
        }
    }

    pub(super) fn judge_model(&mut self, model: &str, rows: &[(Address, Tally)]) {
        // (a) windows of all touched H entries; other rows are dropped (row 8)
        let mut tripped: Vec<Tripped> = Vec::new();
        for (address, row) in rows {
            let mut entry = self.entry(model, address);
            if entry.generation != row.generation || entry.column() != 'H' {
                self.hit_column("8-dropped-", entry.column());
                continue;
            }
            calc::touch(&mut entry, self.params.health_cb_window_blocks, self.height, row.ok, row.missed);
            self.put(model, address, entry.clone());
            let (ok, missed) = calc::live_counts(&entry.window, self.height);
            match calc::rule_met(ok, missed, entry.consecutive_misses, &self.params) {
                None => self.hit("10H"),
                Some(rule) => tripped.push(Tripped {
                    address: *address,
                    rule,
                    ok,
                    missed,
                    weight: self.weight(model, address),
                }),
            }
        }
        // (b) marks
        self.prepare_ring(model);
        for trip in &tripped {
            self.mark(model, trip);
        }
        // (c) the model's ring, once
        let frozen = self.freeze(model);
        // (d) worst first
        tripped.sort_by(|a, b| {
            let share =
                |x: &Tripped, y: &Tripped| u128::from(x.missed) * (u128::from(y.ok) + u128::from(y.missed));
            share(b, a).cmp(&share(a, b)).then(b.missed.cmp(&a.missed)).then(a.address.cmp(&b.address))
        });
        for trip in &tripped {
            self.exclude_or_refuse(model, trip, frozen);
        }
    }

    /// Makes the ring fit this block's parameters.
    ///
    /// Reading: rings follow the parameters lazily like windows, when their model is judged: created (since_block
    /// = h) at the first judgement with freeze_pct > 0, emptied when the width differs, removed when freeze_pct
    /// is 0. A frozen ring that is removed thaws: EventBreakerFrozen with frozen = false and tripped weight 0.
    pub(super) fn prepare_ring(&mut self, model: &str) {
        let key = (self.current_epoch(), model.to_string());
        let (height, width) = (self.height, self.params.health_cb_window_blocks / 10);
        if self.params.health_cb_freeze_pct == 0 {
            if let Some(ring) = self.rings.remove(&key)
                && ring.frozen
            {
                self.emit_frozen(model, false, 0);
            }
            return;
        }
        let ring = self.rings.entry(key).or_insert(Ring { since_block: height, width, ..Ring::default() });
        if ring.width != width {
            ring.width = width;
            ring.since_block = height;
            ring.buckets.clear();
        }
        ring.buckets.retain(|index, _| calc::live(*index, height, width));
    }

    /// Reading: the mark is stored whenever a rule is met (row 9), also with freeze off or weight 0; only the
    /// ring is kept to freeze_pct > 0. The mark survives the new generation of an allowed trip.
    pub(super) fn mark(&mut self, model: &str, trip: &Tripped) {
        let mut entry = self.entry(model, &trip.address);
        if let Some(ring) = self.rings.get_mut(&(self.epoch.unwrap(), model.to_string())) {
            if let Some(old) = &entry.trip {
                let index = calc::bucket_of(old.block, ring.width);
                if old.block >= ring.since_block
                    && calc::live(index, self.height, ring.width)
                    && old.weight > 0
                {
                    let bucket = ring.buckets.get_mut(&index).expect("the marked bucket");
                    *bucket -= u128::from(old.weight);
                    if *bucket == 0 {
                        ring.buckets.remove(&index);
                    }
                }
            }
            if trip.weight > 0 {
                *ring.buckets.entry(calc::bucket_of(self.height, ring.width)).or_insert(0) +=
                    u128::from(trip.weight);
            }
        }
        entry.trip = Some(Trip { block: self.height, weight: trip.weight });
        self.put(model, &trip.address, entry);
    }

    pub(super) fn freeze(&mut self, model: &str) -> bool {
        let eligible = self.tallies(model).eligible_weight;
        let limit = u128::from(self.params.health_cb_freeze_pct);
        let Some(ring) = self.rings.get_mut(&(self.epoch.unwrap(), model.to_string())) else {
            return false;
        };
        let tripped: u128 = ring.buckets.values().sum();
        let frozen = limit > 0 && tripped * 100 > limit * eligible;
        if ring.frozen != frozen {
            ring.frozen = frozen;
            self.emit_frozen(model, frozen, tripped);
        }
        frozen
    }

    /// Reading: "all but the last two" end with `shadow`, so Frozen and Reset do not.
    pub(super) fn emit_frozen(&mut self, model: &str, frozen: bool, tripped: u128) {
        self.hit("EventBreakerFrozen");
        self.hit(&format!("EventBreakerFrozen frozen={frozen}"));
        let attributes = vec![
            ("epoch", self.current_epoch().to_string()),
            ("model", model.to_string()),
            ("frozen", frozen.to_string()),
            ("tripped_weight", tripped.to_string()),
            ("eligible_weight", self.tallies(model).eligible_weight.to_string()),
            ("freeze_pct", self.params.health_cb_freeze_pct.to_string()),
        ];
        self.events.push(Event { name: "EventBreakerFrozen", attributes });
    }

    /// Row 8 or row 9.
    ///
    /// Reading: a forced H is refused as `forced` before freeze, cap and weight 0 are looked at; freeze goes
    /// before cap. `limit_pct` is the cap, the freeze share, or 0 for `forced`. The event limit (one per
    /// `initial_cooldown_blocks`, counted from the last event) is one per entry, for all reasons together.
    pub(super) fn exclude_or_refuse(&mut self, model: &str, trip: &Tripped, frozen: bool) {
        let mut entry = self.entry(model, &trip.address);
        let sums = self.tallies(model);
        let cap = self.params.health_cb_max_excluded_weight_pct;
        let over_cap =
            (sums.out_weight + u128::from(trip.weight)) * 100 > u128::from(cap) * sums.eligible_weight;
        let refusal = if entry.forced.is_some() {
            Some(("forced", 0))
        } else if trip.weight == 0 {
            self.hit("8H-weightless");
            None
        } else if frozen {
            Some(("freeze", self.params.health_cb_freeze_pct))
        } else if over_cap {
            Some(("cap", cap))
        } else {
            None
        };
        let Some((reason, limit)) = refusal else {
            self.hit(&format!("8H-{}", trip.rule));
            let level = calc::level_at_trip(&entry, self.height, &self.params);
            let cooldown = calc::cooldown(&self.params, level, model, &trip.address, self.height);
            self.exclude(model, &trip.address, trip.rule, level, cooldown, None);
            return;
        };
        self.hit(&format!("9H-{reason}"));
        if entry.refused_at != 0
            && self.height - entry.refused_at < self.params.health_cb_initial_cooldown_blocks
        {
            self.hit("9H-silent");
            return;
        }
        entry.refused_at = self.height;
        self.put(model, &trip.address, entry);
        self.emit(
            "EventExclusionRefused",
            model,
            &trip.address,
            vec![
                ("reason", reason.to_string()),
                ("rule", trip.rule.to_string()),
                ("ok", trip.ok.to_string()),
                ("missed", trip.missed.to_string()),
                ("weight", trip.weight.to_string()),
                ("out_weight", sums.out_weight.to_string()),
                ("eligible_weight", sums.eligible_weight.to_string()),
                ("limit_pct", limit.to_string()),
            ],
        );
    }
}
