//! The breaker of one chain as plain maps, and every rule that moves it.
//!
//! ```text
//!  begin_block   B1 params · B2 epoch, overrides again · B3 availability · B4 due rows
//!  messages      start · finish · miss · release · escrow_counts · set_override · set_params
//!  E1            the caller's expiry: miss or release
//!  judge         E3
//!  prune         E4
//!  E5            set_params · set_override by governance
//! ```

use crate::calc;
use crate::draw::{Row, Table};
use crate::entry::{Claim, Entry, Forced, ForcedTo, State, Trip};
use crate::params::Params;
use crate::{Address, Pair, hex};
use std::collections::{BTreeMap, BTreeSet};

mod judge;
mod overrides;
mod types;

pub use types::*;
use types::{Inference, Tripped};

/// The whole breaker.
#[derive(Clone, Debug)]
pub struct World {
    /// Height of the block being executed.
    pub height: i64,
    /// Parameters of this block.
    pub params: Params,
    /// Parameters as last committed.
    pub committed: Params,
    /// Effective epoch; `None` before the first.
    pub epoch: Option<u64>,
    /// PoC phase.
    pub poc: bool,
    /// Groups of the effective epoch.
    pub group: BTreeMap<Pair, Member>,
    /// In maintenance now.
    pub maintenance: BTreeSet<Pair>,
    /// Out for the rest of this epoch.
    pub out: BTreeSet<Pair>,
    /// `(epoch, model, participant)` → entry.
    pub entries: BTreeMap<(u64, String, Address), Entry>,
    /// `(epoch, model)` → ring.
    pub rings: BTreeMap<(u64, String), Ring>,
    /// Live overrides.
    pub overrides: BTreeMap<Pair, OverrideRow>,
    /// Outcomes of this block.
    pub tally: BTreeMap<Pair, Tally>,
    /// Pairs an override may name.
    pub known_pairs: BTreeSet<Pair>,
    /// The one address overrides come from, as events print it.
    pub authority: String,
    /// How often each cell of the transition table was passed.
    pub coverage: BTreeMap<String, u64>,
    inferences: BTreeMap<String, Inference>,
    events: Vec<Event>,
}

impl World {
    /// An empty breaker before its first block.
    pub fn new(params: Params, authority: &str, known_pairs: BTreeSet<Pair>) -> Self {
        World {
            height: 0,
            committed: params.clone(),
            params,
            epoch: None,
            poc: false,
            group: BTreeMap::new(),
            maintenance: BTreeSet::new(),
            out: BTreeSet::new(),
            entries: BTreeMap::new(),
            rings: BTreeMap::new(),
            overrides: BTreeMap::new(),
            tally: BTreeMap::new(),
            known_pairs,
            authority: authority.to_string(),
            coverage: BTreeMap::new(),
            inferences: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    // ---- reads ----

    /// Index of the effective epoch.
    pub fn current_epoch(&self) -> u64 {
        self.epoch.expect("no epoch has begun")
    }

    /// The entry of the effective epoch; absent = default.
    pub fn entry(&self, model: &str, participant: &Address) -> Entry {
        let key = (self.current_epoch(), model.to_string(), *participant);
        self.entries.get(&key).cloned().unwrap_or_default()
    }

    /// Entries of the effective epoch, without those that say nothing.
    pub fn current_entries(&self) -> BTreeMap<Pair, Entry> {
        let epoch = self.current_epoch();
        let rows =
            self.entries.iter().filter(|((e, _, _), entry)| *e == epoch && **entry != Entry::default());
        rows.map(|((_, model, address), entry)| ((model.clone(), *address), entry.clone())).collect()
    }

    /// Ring of a model as far as it means anything at this height: the live buckets. An empty, unfrozen ring is
    /// the same as none.
    pub fn current_ring(&self, model: &str) -> Option<Ring> {
        let mut ring = self.rings.get(&(self.current_epoch(), model.to_string()))?.clone();
        ring.buckets.retain(|index, _| calc::live(*index, self.height, ring.width));
        (ring.frozen || !ring.buckets.is_empty()).then_some(ring)
    }

    /// Models that have a group in the effective epoch.
    pub fn models(&self) -> BTreeSet<String> {
        self.group.keys().map(|(model, _)| model.clone()).collect()
    }

    /// Members of a model's group, address ascending.
    pub fn members(&self, model: &str) -> Vec<(Address, Member)> {
        self.group.iter().filter(|((m, _), _)| m == model).map(|((_, a), member)| (*a, *member)).collect()
    }

    /// In the group, not out, weight > 0, not in maintenance, not forced Excluded (2.3).
    pub fn eligible(&self, model: &str, participant: &Address) -> bool {
        let pair = (model.to_string(), *participant);
        self.group.get(&pair).is_some_and(|member| member.weight > 0)
            && !self.out.contains(&pair)
            && !self.maintenance.contains(&pair)
            && !self.entry(model, participant).forced_out()
    }

    /// The weight `w` of the judge.
    ///
    /// Reading: 2.3's "weight w" is the entry's part of `eligible_weight`: the group weight of an eligible
    /// member, 0 of anybody else (left, Inactive, dropped, in maintenance, not in the group). Otherwise
    /// cap 100 could refuse somebody and the ring could outgrow what it is compared with.
    pub fn weight(&self, model: &str, participant: &Address) -> u64 {
        if self.eligible(model, participant) {
            self.group[&(model.to_string(), *participant)].weight
        } else {
            0
        }
    }

    /// The model's sums, from all its members.
    pub fn tallies(&self, model: &str) -> Tallies {
        let mut sums = Tallies::default();
        for (address, member) in self.members(model) {
            if !self.eligible(model, &address) {
                continue;
            }
            sums.eligible_weight += u128::from(member.weight);
            if self.entry(model, &address).state == State::Healthy {
                sums.healthy_all += 1;
                if member.preserved {
                    sums.healthy_poc += 1;
                }
            } else {
                sums.out_weight += u128::from(member.weight);
            }
        }
        sums
    }

    /// Healthy eligible members in the column of the current phase.
    pub fn healthy(&self, model: &str) -> u32 {
        let sums = self.tallies(model);
        if self.poc { sums.healthy_poc } else { sums.healthy_all }
    }

    /// The candidate table a query at this height sees (2.4).
    ///
    /// Reading: a query reads committed state, so share, shadow and enabled are the parameters as committed at
    /// this height, which are those of the block the answer will be used in. Inside a block that changed them
    /// they differ from the block's own copy.
    pub fn candidates(&self, model: &str) -> Table {
        let mut rows = Vec::new();
        for (address, member) in self.members(model) {
            if !self.eligible(model, &address) || (self.poc && !member.preserved) {
                continue;
            }
            let entry = self.entry(model, &address);
            let (class, since) = if self.committed.health_cb_shadow || !self.committed.health_cb_enabled {
                (0, 0)
            } else {
                match entry.column() {
                    'H' => (0, 0),
                    'R' => (1, entry.ready_since as u64),
                    _ => (2, 0),
                }
            };
            rows.push(Row { address, weight: member.weight, class, since });
        }
        Table {
            epoch: self.current_epoch(),
            model: model.to_string(),
            share_bp: self.committed.health_cb_probe_share_bp as u16,
            poc: self.poc,
            rows,
        }
    }

    /// The stamp an escrow takes at its creation.
    pub fn stamp(&self, model: &str, participant: &Address) -> Stamp {
        Stamp {
            epoch: self.current_epoch(),
            generation: self.entry(model, participant).generation,
            evidence: true,
        }
    }

    /// Events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    // ---- writes shared by the rows ----

    fn put(&mut self, model: &str, participant: &Address, entry: Entry) {
        self.entries.insert((self.current_epoch(), model.to_string(), *participant), entry);
    }

    fn hit(&mut self, cell: &str) {
        *self.coverage.entry(cell.to_string()).or_insert(0) += 1;
    }

    fn hit_column(&mut self, row: &str, column: char) {
        self.hit(&format!("{row}{column}"));
    }

    /// Emits an event about one entry; the entry must be stored first, so that `generation` is the one after.
    fn emit(
        &mut self,
        name: &'static str,
        model: &str,
        participant: &Address,
        between: Vec<(&'static str, String)>,
    ) {
        let mut attributes = vec![
            ("epoch", self.current_epoch().to_string()),
            ("model", model.to_string()),
            ("participant", hex(participant)),
            ("generation", self.entry(model, participant).generation.to_string()),
        ];
        attributes.extend(between);
        attributes.push(("shadow", self.params.health_cb_shadow.to_string()));
        for (key, value) in &attributes {
            if ["rule", "reason", "cause", "frozen"].contains(key) {
                let cell = format!("{name} {key}={value}");
                *self.coverage.entry(cell).or_insert(0) += 1;
            }
        }
        self.hit(name);
        self.events.push(Event { name, attributes });
    }

    fn emit_probe_opened(&mut self, model: &str, participant: &Address, cause: &str) {
        let entry = self.entry(model, participant);
        self.emit(
            "EventProbeOpened",
            model,
            participant,
            vec![
                ("cause", cause.to_string()),
                ("ready_since", entry.ready_since.to_string()),
                ("level", entry.backoff_level.to_string()),
            ],
        );
    }

    /// Into X by rows 4, 8 or 15; the evidence in the event is what the entry held just before.
    ///
    /// Reading: `ok`, `missed` and `consecutive_misses` are the live window sums and the streak of the entry
    /// just before its new generation, under every rule. After a claimed probe's miss all three are 0: the
    /// verdict of a claim enters no window. An override reports what stood there, read with the stored width.
    fn exclude(
        &mut self,
        model: &str,
        participant: &Address,
        rule: &'static str,
        level: u32,
        cooldown: i64,
        forced: Option<Forced>,
    ) {
        let mut entry = self.entry(model, participant);
        let (ok, missed) = calc::live_counts(&entry.window, self.height);
        let streak = entry.consecutive_misses;
        entry.next_generation();
        entry.state = State::Excluded;
        entry.probe = None;
        entry.backoff_level = level;
        entry.excluded_at = self.height;
        entry.cooldown_blocks = cooldown;
        entry.forced = forced;
        self.put(model, participant, entry);
        self.emit(
            "EventExecutorExcluded",
            model,
            participant,
            vec![
                ("rule", rule.to_string()),
                ("ok", ok.to_string()),
                ("missed", missed.to_string()),
                ("window_blocks", self.params.health_cb_window_blocks.to_string()),
                ("consecutive_misses", streak.to_string()),
                ("level", level.to_string()),
                ("cooldown_blocks", cooldown.to_string()),
                ("due_block", (self.height + cooldown).to_string()),
            ],
        );
    }

    /// C or R with a finish → H (row 3).
    ///
    /// Reading: `attempts` in the event is the count the recovery took, before it is set to 0.
    fn restore_by_probe(&mut self, model: &str, participant: &Address) {
        let mut entry = self.entry(model, participant);
        let claim = entry.probe.take().expect("only a claim is restored");
        let attempts = entry.probe_attempts;
        entry.next_generation();
        entry.state = State::Healthy;
        entry.probe_attempts = 0;
        entry.restored_at = self.height;
        self.put(model, participant, entry);
        self.emit_restored(model, participant, "probe", &claim.inference_id, attempts);
    }

    fn emit_restored(&mut self, model: &str, participant: &Address, cause: &str, id: &str, attempts: u32) {
        let entry = self.entry(model, participant);
        self.emit(
            "EventExecutorRestored",
            model,
            participant,
            vec![
                ("cause", cause.to_string()),
                ("inference_id", id.to_string()),
                ("attempts", attempts.to_string()),
                ("excluded_at", entry.excluded_at.to_string()),
                ("restored_at", entry.restored_at.to_string()),
            ],
        );
    }

    fn claim(&mut self, model: &str, participant: &Address, id: &str, expires_at: i64) {
        let mut entry = self.entry(model, participant);
        assert_eq!(entry.column(), 'R');
        entry.probe_attempts += 1;
        let deadline = expires_at + self.params.expiration_blocks;
        entry.probe = Some(Claim { inference_id: id.to_string(), deadline_block: deadline });
        let attempt = entry.probe_attempts;
        self.put(model, participant, entry);
        self.emit(
            "EventProbeClaimed",
            model,
            participant,
            vec![
                ("inference_id", id.to_string()),
                ("deadline_block", deadline.to_string()),
                ("attempt", attempt.to_string()),
            ],
        );
    }

    /// C → R (rows 5 and 12).
    fn free_claim(&mut self, model: &str, participant: &Address, cause: &str) {
        let mut entry = self.entry(model, participant);
        assert_eq!(entry.column(), 'C');
        entry.probe = None;
        entry.ready_since = self.height;
        self.put(model, participant, entry);
        self.emit_probe_opened(model, participant, cause);
    }

    fn count(&mut self, model: &str, participant: &Address, ok: u64, missed: u64) {
        let generation = self.entry(model, participant).generation;
        let row = self.tally.entry((model.to_string(), *participant)).or_insert(Tally {
            generation,
            ok: 0,
            missed: 0,
        });
        if row.generation != generation {
            *row = Tally { generation, ok: 0, missed: 0 };
        }
        row.ok += ok;
        row.missed += missed;
    }

    fn stamp_ok(&self, model: &str, participant: &Address, stamp: Stamp) -> bool {
        stamp.epoch == self.current_epoch()
            && stamp.generation == self.entry(model, participant).generation
            && stamp.evidence
    }

    // ---- BeginBlock ----

    /// B1 to B4.
    pub fn begin_block(&mut self, block: &BeginBlock) {
        assert_eq!(block.height, self.height + 1, "blocks come one after the other");
        assert!(self.tally.is_empty() && self.events.is_empty(), "the last block was not ended");
        self.height = block.height;
        if self.params != self.committed {
            self.params = self.committed.clone();
            self.hit_all_columns("17");
        }
        if let Some(epoch) = &block.epoch {
            self.switch_epoch(epoch);
        }
        if self.poc != block.poc {
            self.poc = block.poc;
            self.hit_all_columns(if block.poc { "20-starts-" } else { "20-ends-" });
        }
        for ((model, participant), change) in &block.availability {
            self.set_availability(model, participant, *change);
        }
        self.run_due_rows();
    }

    fn hit_all_columns(&mut self, row: &str) {
        if self.epoch.is_some() {
            for entry in self.current_entries().values() {
                self.hit_column(row, entry.column());
            }
        }
    }

    /// Row 13, then the live overrides again in order of their keys.
    ///
    /// Reading: live = ends after this height. One that ends exactly here is removed without an event, because
    /// its due row belongs to the old epoch. The first epoch of a chain resets nothing and fires no event. A
    /// reapplied override fires the events of its row, EventOverrideSet included, with the one authority there
    /// is; it is applied whether or not the pair is in the new group.
    fn switch_epoch(&mut self, input: &EpochInput) {
        let from = self.epoch;
        if from.is_some() {
            self.hit_all_columns("13");
        }
        self.epoch = Some(input.index);
        self.group = input.group.clone();
        self.out.clear();
        if let Some(from) = from {
            assert!(input.index > from);
            self.hit("EventBreakerReset");
            self.events.push(Event {
                name: "EventBreakerReset",
                attributes: vec![("epoch", input.index.to_string()), ("from_epoch", from.to_string())],
            });
        }
        for ((model, participant), row) in self.overrides.clone() {
            if row.until_block > self.height {
                self.hit(&format!("again-{}", row.to.word()));
                self.apply_override(&model, &participant, row);
            } else {
                self.hit("again-dead");
                self.overrides.remove(&(model, participant));
            }
        }
    }

    /// A member's availability, by B3, a message or E2.
    pub fn set_availability(&mut self, model: &str, participant: &Address, change: Availability) {
        let pair = (model.to_string(), *participant);
        let in_group = self.group.contains_key(&pair) && !self.out.contains(&pair);
        let column = self.entry(model, participant).column();
        match change {
            Availability::MaintenanceBegins => {
                self.maintenance.insert(pair);
            }
            Availability::MaintenanceEnds => {
                self.maintenance.remove(&pair);
            }
            Availability::Out => {
                self.out.insert(pair);
            }
        }
        if in_group {
            self.hit_column(
                match change {
                    Availability::MaintenanceBegins => "18-maintenance-",
                    Availability::MaintenanceEnds => "19",
                    Availability::Out => "18-out-",
                },
                column,
            );
        }
    }

    fn run_due_rows(&mut self) {
        let mut due: Vec<(i64, String, Address)> = Vec::new();
        for ((model, participant), entry) in self.current_entries() {
            if let Some(height) = entry.due()
                && height <= self.height
            {
                due.push((height, model, participant));
            }
        }
        due.sort();
        due.truncate(5_000);
        for (_, model, participant) in due {
            let mut entry = self.entry(&model, &participant);
            if entry.forced.is_some() {
                self.hit_column("16-height-", entry.column());
                self.end_override(&model, &participant, "height");
                continue;
            }
            match entry.column() {
                'X' => {
                    self.hit("11X");
                    if !self.params.health_cb_enabled {
                        self.hit("21X-due");
                    }
                    entry.state = State::Probe;
                    entry.ready_since = self.height;
                    self.put(&model, &participant, entry);
                    self.emit_probe_opened(&model, &participant, "cooldown");
                }
                'C' => {
                    self.hit("12C");
                    self.free_claim(&model, &participant, "deadline");
                }
                other => panic!("no due row in {other}"),
            }
        }
    }

    // ---- messages ----

    /// Admission and claim. Refused with a code of codespace `breaker`: 10 excluded, 11 claimed, 12 probe
    /// self-request, 13 forced out. The caller has done the checks of x/inference.
    ///
    /// Reading: with the breaker disabled a start on H still carries evidence (row 21 names a bypass only in the
    /// other columns); its outcome counts if the breaker is on again by then and the stamp still ok.
    ///
    /// Reading: a Finish-first start "is never refused by the breaker", so not with 13 either: on a forced-out
    /// entry it is a bypass. On R with the breaker disabled it is a bypass too (row 21), in shadow it claims and
    /// restores (row 22). Where it claims and restores at once, both events fire, claim first; its stamp has the
    /// generation of the claim.
    pub fn start(&mut self, call: &StartCall) -> Result<Stamp, u32> {
        let (model, executor) = (call.model.as_str(), &call.executor);
        let entry = self.entry(model, executor);
        let column = entry.column();
        let self_request = call.requester == *executor || call.signer == *executor;
        let row = if self_request { "2" } else { "1" };
        let enabled = self.params.health_cb_enabled;
        let unfiltered = !enabled || self.params.health_cb_shadow;
        let unfiltered_row = if enabled { "22" } else { "21" };
        let counts = Stamp { epoch: self.current_epoch(), generation: entry.generation, evidence: true };
        let bypass = Stamp { evidence: false, ..counts };

        if let Some(finished_at) = call.finished_at {
            let fresh = finished_at >= entry.ready_since.max(entry.restored_at);
            match column {
                _ if self_request || !fresh => {
                    self.hit(if self_request { "first-bypass-self" } else { "first-bypass-stale" });
                    return Ok(bypass);
                }
                'H' => {
                    self.hit("first-H");
                    if enabled {
                        self.count(model, executor, 1, 0);
                    }
                    return Ok(counts);
                }
                'R' if enabled => {
                    self.hit("first-R");
                    self.claim(model, executor, &call.inference_id, call.expires_at);
                    self.restore_by_probe(model, executor);
                    return Ok(counts);
                }
                _ => {
                    self.hit(&format!("first-bypass-{column}"));
                    return Ok(bypass);
                }
            }
        }

        if entry.forced_out() {
            self.hit("start-forced-out");
            return Err(13);
        }
        let stamp = if column == 'H' {
            self.hit_column(row, 'H');
            if self_request { bypass } else { counts }
        } else if column == 'R' && !self_request && enabled {
            if unfiltered {
                self.hit("22R-claim");
            }
            self.hit("1R");
            self.claim(model, executor, &call.inference_id, call.expires_at);
            counts
        } else if unfiltered {
            self.hit_column(unfiltered_row, column);
            bypass
        } else if self.healthy(model) == 0 {
            self.hit(&format!("{row}{column}-bypass"));
            bypass
        } else {
            self.hit(&format!("{row}{column}-refused"));
            return Err(match column {
                'X' => 10,
                'C' => 11,
                _ => 12,
            });
        };
        let inference = Inference { model: model.to_string(), executor: *executor, stamp };
        self.inferences.insert(call.inference_id.clone(), inference);
        Ok(stamp)
    }

    /// A paid Finish by the executor it was assigned to (rows 3, 6, 7).
    pub fn finish(&mut self, inference_id: &str) {
        self.outcome(inference_id, true);
    }

    /// Expired with fault or reported failed (rows 4, 6, 7).
    pub fn miss(&mut self, inference_id: &str) {
        self.outcome(inference_id, false);
    }

    fn outcome(&mut self, inference_id: &str, success: bool) {
        let Inference { model, executor, stamp } =
            self.inferences.remove(inference_id).expect("an outcome of an open inference");
        let entry = self.entry(&model, &executor);
        let ok = self.stamp_ok(&model, &executor, stamp);
        let claimed = entry.probe.as_ref().is_some_and(|claim| claim.inference_id == inference_id);
        let column = entry.column();
        if claimed {
            assert!(ok, "a claim keeps the generation of its stamp");
            if !self.params.health_cb_enabled {
                self.hit("21C-verdict");
            }
            if success {
                self.hit("3C");
                self.restore_by_probe(&model, &executor);
            } else {
                self.hit("4C");
                let level = calc::level_at_failed_probe(&entry);
                let cooldown = calc::cooldown(&self.params, level, &model, &executor, self.height);
                self.exclude(&model, &executor, "probe", level, cooldown, None);
            }
        } else if !ok {
            self.hit_column("7", column);
        } else if column != 'H' {
            self.hit_column("6", column);
        } else if !self.params.health_cb_enabled {
            self.hit("21H");
        } else {
            self.hit(if success { "6H-ok" } else { "6H-missed" });
            self.count(&model, &executor, u64::from(success), u64::from(!success));
        }
    }

    /// Ended without fault (rows 5, 7).
    pub fn release(&mut self, inference_id: &str) {
        let Inference { model, executor, stamp } =
            self.inferences.remove(inference_id).expect("a release of an open inference");
        let entry = self.entry(&model, &executor);
        if entry.probe.as_ref().is_some_and(|claim| claim.inference_id == inference_id) {
            assert_eq!(stamp.epoch, self.current_epoch());
            self.hit("5C");
            self.free_claim(&model, &executor, "released");
        } else {
            self.hit_column("7-release-", entry.column());
        }
    }

    /// Counts settled by x/escrow (row 23).
    ///
    /// Reading: a settlement of (0, 0) holds no outcome, so it makes no tally row and nothing is judged.
    pub fn escrow_counts(&mut self, model: &str, participant: &Address, stamp: Stamp, ok: u64, missed: u64) {
        let column = self.entry(model, participant).column();
        if !self.stamp_ok(model, participant, stamp) {
            self.hit_column("23-stale-", column);
        } else if column != 'H' {
            self.hit_column("23", column);
        } else if !self.params.health_cb_enabled {
            self.hit("23-disabled");
        } else if ok > 0 || missed > 0 {
            self.hit("23H");
            self.count(model, participant, ok, missed);
        }
    }

    /// Commits parameters; they act from the next block.
    pub fn set_params(&mut self, params: Params) {
        params.check().unwrap_or_else(|field| panic!("bad {field}"));
        self.committed = params;
    }

    /// E4: rows of past epochs, at most 1,000 of each collection, from the front.
    pub fn prune(&mut self) {
        let epoch = self.current_epoch();
        let old: Vec<_> = self.entries.keys().filter(|key| key.0 < epoch).take(1_000).cloned().collect();
        for key in old {
            self.entries.remove(&key);
        }
        let old: Vec<_> = self.rings.keys().filter(|key| key.0 < epoch).take(1_000).cloned().collect();
        for key in old {
            self.rings.remove(&key);
        }
    }
}
