//! Seeded random histories as plain data.
//!
//! Everything follows from the seed alone, never from a breaker's state: ids are handed out in order, every
//! inference is given its fate when its Start is written, and what a refused Start leaves behind (a Finish for
//! an id nobody knows) is part of the history. Executors go through spells of good, bad and mixed behaviour so
//! that exclusions, probes and recoveries follow each other within a few dozen blocks.

use crate::params::Params;
use crate::world::{EpochInput, Member, OverrideTo};
use crate::{Address, Pair};
use std::collections::{BTreeMap, BTreeSet};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, > 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// In `low..=high`.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of a list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}

/// What holds before the first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Parameters of block 1.
    pub params: Params,
    /// All models.
    pub models: Vec<String>,
    /// All participants, ascending.
    pub participants: Vec<Address>,
    /// Blocks in an epoch; epoch 0 begins at height 1. No generated cooldown maximum is longer.
    pub epoch_length: i64,
    /// Blocks of PoC at the end of each epoch; 0 = none.
    pub poc_length: i64,
}

impl Genesis {
    /// The pairs an override may name: each participant with each model.
    pub fn pairs(&self) -> BTreeSet<Pair> {
        let models = self.models.iter();
        models.flat_map(|m| self.participants.iter().map(move |p| (m.clone(), *p))).collect()
    }
}

/// One thing that somebody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `MsgStartInference`.
    Start {
        /// Id.
        id: String,
        /// Model.
        model: String,
        /// `requested_by`.
        requester: Address,
        /// `signer`.
        signer: Address,
        /// `assigned_to`.
        executor: Address,
    },
    /// `MsgFinishInference`, also forged, late, or before its Start.
    Finish {
        /// Id.
        id: String,
        /// `executed_by`.
        executed_by: Address,
    },
    /// `MsgReportFailure`.
    ReportFailure {
        /// Id.
        id: String,
        /// `executor`.
        executor: Address,
    },
    /// `MsgCancelInference`.
    Cancel {
        /// Id.
        id: String,
        /// `requested_by`.
        requested_by: Address,
    },
    /// A backlog: the expiry of this id is handled so many blocks after its height.
    DelayExpiry {
        /// Id.
        id: String,
        /// Blocks.
        blocks: i64,
    },
    /// An escrow takes the current stamp of a pair.
    OpenEscrow {
        /// Id of the escrow.
        escrow: String,
        /// Model.
        model: String,
        /// Participant.
        participant: Address,
    },
    /// It settles, once.
    SettleEscrow {
        /// Id of the escrow.
        escrow: String,
        /// Successes.
        ok: u64,
        /// Misses; not both 0.
        missed: u64,
    },
    /// Leaves every group for the rest of the epoch.
    Leave {
        /// Participant.
        participant: Address,
    },
    /// Leaves one model's group for the rest of the epoch.
    DropModel {
        /// Model.
        model: String,
        /// Participant.
        participant: Address,
    },
    /// Maintenance in the blocks `from..until`, later than this one.
    AnnounceMaintenance {
        /// Participant.
        participant: Address,
        /// First block.
        from: i64,
        /// First block after.
        until: i64,
    },
    /// `MsgSetBreakerOverride`.
    SetOverride {
        /// Model.
        model: String,
        /// Participant.
        participant: Address,
        /// Direction.
        to: OverrideTo,
        /// Height whose BeginBlock ends it.
        until_block: i64,
    },
    /// `MsgUpdateParams`.
    SetParams(Params),
}

/// One block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOps {
    /// Height, from 1 without gaps.
    pub height: i64,
    /// Present in the first block of an epoch.
    pub epoch: Option<EpochInput>,
    /// PoC phase.
    pub poc: bool,
    /// Messages in order.
    pub messages: Vec<Op>,
    /// Inactive for the rest of the epoch, after expiry and before the judge (E2).
    pub deactivated: Vec<Address>,
    /// Executed by governance after the judge (E5): SetOverride and SetParams only.
    pub gov: Vec<Op>,
}

/// The history without delayed expiries, for a driver that cannot make a backlog.
pub fn without_delays(mut blocks: Vec<BlockOps>) -> Vec<BlockOps> {
    for block in &mut blocks {
        block.messages.retain(|op| !matches!(op, Op::DelayExpiry { .. }));
    }
    blocks
}

/// What holds before the history of a seed.
pub fn genesis(seed: u64) -> Genesis {
    let mut rng = SplitMix64(seed ^ 0x6765_6e65_7369_7331);
    let models = (0..rng.range(1, 3)).map(|i| format!("m{i}")).collect();
    let mut participants: Vec<Address> = (0..rng.range(2, 8))
        .map(|i| {
            let mut address = [0; 20];
            for byte in &mut address {
                *byte = rng.next_u64() as u8;
            }
            address[19] = i as u8;
            address
        })
        .collect();
    participants.sort();
    Genesis {
        params: any_params(&mut rng),
        models,
        participants,
        epoch_length: rng.range(36, 75),
        poc_length: if rng.chance(300) { 0 } else { rng.range(1, 12) },
    }
}

fn any_params(rng: &mut SplitMix64) -> Params {
    let window = *rng.pick(&[0, 10, 20, 20, 40, 50, 100]);
    let initial = rng.range(1, 6);
    Params {
        expiration_blocks: rng.range(1, 5),
        // Inactive comes from `BlockOps::deactivated` alone.
        downtime_sprt_enabled: false,
        health_cb_miss_threshold_pct: *rng.pick(&[0, 10, 25, 25, 40, 60, 100]),
        health_cb_min_samples: rng.range(1, 4) as u64,
        health_cb_initial_cooldown_blocks: initial,
        health_cb_max_cooldown_blocks: initial * rng.range(1, 6),
        health_cb_probe_share_bp: *rng.pick(&[0, 500, 5_000, 10_000]),
        health_cb_enabled: !rng.chance(80),
        health_cb_shadow: rng.chance(100),
        health_cb_window_blocks: window,
        health_cb_consecutive_misses: *rng.pick(&[0, 1, 2, 3]),
        health_cb_probation_blocks: *rng.pick(&[0, 5, 15, 40]),
        health_cb_max_excluded_weight_pct: *rng.pick(&[100, 100, 75, 50, 34, 1]),
        health_cb_freeze_pct: if window > 0 { *rng.pick(&[0, 0, 10, 30, 60]) } else { 0 },
        health_cb_jitter_pct: *rng.pick(&[0, 10, 50]),
        ..Params::defaults()
    }
}

/// Changes one or two fields.
fn tweak(params: &Params, rng: &mut SplitMix64) -> Params {
    let other = any_params(rng);
    let mut params = params.clone();
    for _ in 0..rng.range(1, 2) {
        match rng.below(12) {
            0 => params.expiration_blocks = other.expiration_blocks,
            1 => params.health_cb_miss_threshold_pct = other.health_cb_miss_threshold_pct,
            2 => params.health_cb_min_samples = other.health_cb_min_samples,
            3 => {
                params.health_cb_initial_cooldown_blocks = other.health_cb_initial_cooldown_blocks;
                params.health_cb_max_cooldown_blocks = other.health_cb_max_cooldown_blocks;
            }
            4 => params.health_cb_enabled = !params.health_cb_enabled,
            5 => params.health_cb_shadow = !params.health_cb_shadow,
            6 | 7 => {
                params.health_cb_window_blocks = other.health_cb_window_blocks;
                params.health_cb_freeze_pct = other.health_cb_freeze_pct;
            }
            8 => params.health_cb_consecutive_misses = other.health_cb_consecutive_misses,
            9 => params.health_cb_probation_blocks = other.health_cb_probation_blocks,
            10 => params.health_cb_max_excluded_weight_pct = other.health_cb_max_excluded_weight_pct,
            _ => {
                params.health_cb_jitter_pct = other.health_cb_jitter_pct;
                params.health_cb_probe_share_bp = other.health_cb_probe_share_bp;
            }
        }
    }
    params
}

/// How an executor behaves for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spell {
    Good,
    Mixed,
    Bad,
}

struct Generator {
    rng: SplitMix64,
    genesis: Genesis,
    committed: Params,
    scheduled: BTreeMap<i64, Vec<Op>>,
    spells: BTreeMap<Address, (Spell, i64)>,
    requesters: Vec<Address>,
    next_id: u64,
    recent: Vec<(String, String, Address)>,
    overridden: Vec<Pair>,
    heavy: bool,
}

/// `blocks` blocks from height 1; goes with [`genesis`] of the same seed.
pub fn random_history(seed: u64, blocks: usize) -> Vec<BlockOps> {
    let genesis = genesis(seed);
    let mut rng = SplitMix64(seed);
    let (epoch_length, poc_length) = (genesis.epoch_length, genesis.poc_length);
    let busy = rng.range(1, 5);
    let heavy = rng.chance(150);
    let mut g = Generator {
        rng,
        committed: genesis.params.clone(),
        genesis,
        scheduled: BTreeMap::new(),
        spells: BTreeMap::new(),
        requesters: (1..=3).map(|i| [0xf0 + i; 20]).collect(),
        next_id: 0,
        recent: Vec::new(),
        overridden: Vec::new(),
        heavy,
    };
    (1..=blocks as i64).map(|height| g.block(height, epoch_length, poc_length, busy)).collect()
}

impl Generator {
    fn block(&mut self, height: i64, epoch_length: i64, poc_length: i64, busy: i64) -> BlockOps {
        let into = (height - 1) % epoch_length;
        let mut block = BlockOps {
            height,
            epoch: (into == 0).then(|| self.epoch(((height - 1) / epoch_length) as u64)),
            poc: into >= epoch_length - poc_length,
            messages: self.scheduled.remove(&height).unwrap_or_default(),
            ..BlockOps::default()
        };
        // Parameters of this block are those committed before it.
        let expiration = self.committed.expiration_blocks;
        for _ in 0..self.rng.range(0, busy) {
            let executor = *self.rng.pick(&self.genesis.participants.clone());
            let model = self.model();
            let together = if self.rng.chance(60) { self.rng.range(2, 6) } else { 1 };
            for _ in 0..together {
                self.inference(height, expiration, &model, executor, &mut block.messages);
            }
        }
        self.surroundings(height, &mut block);
        for i in (1..block.messages.len()).rev() {
            let j = self.rng.below(i as u64 + 1) as usize;
            block.messages.swap(i, j);
        }
        let announced: Vec<Address> = (block.messages.iter())
            .filter_map(|op| match op {
                Op::AnnounceMaintenance { participant, .. } => Some(*participant),
                _ => None,
            })
            .collect();
        block.messages.retain(|op| !matches!(op, Op::Start { executor, .. } if announced.contains(executor)));
        block
    }

    fn epoch(&mut self, index: u64) -> EpochInput {
        let mut group = BTreeMap::new();
        let equal = self.rng.chance(300);
        for pair in self.genesis.pairs() {
            if self.rng.chance(100) {
                continue;
            }
            let weight = if self.rng.chance(40) {
                0
            } else if self.heavy {
                u64::MAX - self.rng.below(3)
            } else if equal {
                10
            } else {
                1 + self.rng.below(100)
            };
            group.insert(pair, Member { weight, preserved: self.rng.chance(500) });
        }
        EpochInput { index, group }
    }

    fn model(&mut self) -> String {
        let models = self.genesis.models.clone();
        self.rng.pick(&models).clone()
    }

    fn participant(&mut self) -> Address {
        let participants = self.genesis.participants.clone();
        *self.rng.pick(&participants)
    }

    fn later(&mut self, height: i64, op: Op) {
        self.scheduled.entry(height).or_default().push(op);
    }

    fn spell(&mut self, executor: Address, height: i64) -> Spell {
        let (spell, until) = self.spells.get(&executor).copied().unwrap_or((Spell::Good, 0));
        if height < until {
            return spell;
        }
        let spell = *self.rng.pick(&[Spell::Good, Spell::Good, Spell::Mixed, Spell::Bad, Spell::Bad]);
        let until = height + self.rng.range(4, 25);
        self.spells.insert(executor, (spell, until));
        spell
    }

    /// One inference and its fate.
    fn inference(
        &mut self,
        height: i64,
        expiration: i64,
        model: &str,
        executor: Address,
        messages: &mut Vec<Op>,
    ) {
        self.next_id += 1;
        let id = format!("i{}", self.next_id);
        let requesters = self.requesters.clone();
        let mut requester = *self.rng.pick(&requesters);
        let mut signer = requester;
        match self.rng.below(20) {
            0 => {
                requester = executor;
                signer = executor;
            }
            1 => signer = executor,
            2 => requester = self.participant(),
            _ => {}
        }
        let start = Op::Start { id: id.clone(), model: model.to_string(), requester, signer, executor };
        self.recent.push((id.clone(), model.to_string(), executor));
        let finish = Op::Finish { id: id.clone(), executed_by: executor };

        if self.rng.chance(60) {
            // Finish first, in an earlier block or too early for its Start.
            messages.push(finish);
            let wait = self.rng.range(0, expiration + 1);
            if wait == 0 {
                messages.push(start)
            } else {
                self.later(height + wait, start)
            }
            return;
        }
        messages.push(start.clone());
        if self.rng.chance(40) {
            let again = height + self.rng.range(0, expiration + 2);
            if again == height { messages.push(start) } else { self.later(again, start) }
        }
        if self.rng.chance(40) {
            let forger = self.participant();
            let at = height + self.rng.range(1, expiration + 1);
            self.later(at, Op::Finish { id: id.clone(), executed_by: forger });
        }
        if self.rng.chance(120) {
            let blocks = self.rng.range(1, 2 * expiration + 3);
            messages.push(Op::DelayExpiry { id: id.clone(), blocks });
        }
        let good = match self.spell(executor, height) {
            Spell::Good => 930,
            Spell::Mixed => 500,
            Spell::Bad => 60,
        };
        let at = height + self.rng.range(0, expiration);
        if self.rng.chance(good) {
            if at == height {
                messages.push(finish)
            } else {
                self.later(at, finish)
            }
            return;
        }
        match self.rng.below(20) {
            0..=4 => self.later(at.max(height + 1), Op::ReportFailure { id, executor }),
            5 | 6 => self.later(at.max(height + 1), Op::Cancel { id, requested_by: requester }),
            7 => {
                let requested_by = self.participant();
                self.later(at.max(height + 1), Op::Cancel { id, requested_by });
            }
            8 => {
                let late = height + expiration + self.rng.range(1, 3);
                self.later(late, finish);
            }
            9 => {
                let executor = self.participant();
                self.later(at.max(height + 1), Op::ReportFailure { id, executor });
            }
            _ => {}
        }
    }

    /// All that is not an inference.
    fn surroundings(&mut self, height: i64, block: &mut BlockOps) {
        if self.rng.chance(80) {
            let (model, participant) = (self.model(), self.participant());
            self.next_id += 1;
            let escrow = format!("e{}", self.next_id);
            block.messages.push(Op::OpenEscrow { escrow: escrow.clone(), model, participant });
            let (ok, missed) = match self.rng.below(10) {
                0 => (1_000_000, self.rng.below(1_000_000)),
                1..=4 => (0, 1 + self.rng.below(4)),
                _ => (1 + self.rng.below(5), self.rng.below(5)),
            };
            let at = height + self.rng.range(1, 15);
            self.later(at, Op::SettleEscrow { escrow, ok, missed });
        }
        if self.rng.chance(12) {
            let participant = self.participant();
            block.messages.push(Op::Leave { participant });
        }
        if self.rng.chance(12) {
            let (model, participant) = (self.model(), self.participant());
            block.messages.push(Op::DropModel { model, participant });
        }
        if self.rng.chance(12) {
            let participant = self.participant();
            block.deactivated.push(participant);
        }
        if self.rng.chance(50) {
            let participant = self.participant();
            let from = height + self.rng.range(1, 4);
            let until = from + *self.rng.pick(&[1, 1, 2, 4, 8]);
            block.messages.push(Op::AnnounceMaintenance { participant, from, until });
        }
        if self.rng.chance(70) {
            let op = self.any_override(height);
            if self.rng.chance(500) { block.messages.push(op) } else { block.gov.push(op) }
        }
        if self.rng.chance(30) {
            let params = if self.rng.chance(700) {
                tweak(&self.committed, &mut self.rng)
            } else {
                any_params(&mut self.rng)
            };
            params.check().expect("generated parameters are valid");
            self.committed = params.clone();
            let op = Op::SetParams(params);
            if self.rng.chance(500) { block.messages.push(op) } else { block.gov.push(op) }
        }
        if self.recent.len() > 1 && self.rng.chance(30) {
            // A retry under an id that may or may not have been refused.
            let (id, model, executor) = self.rng.pick(&self.recent.clone()).clone();
            let requester = self.requesters[0];
            block.messages.push(Op::Start { id, model, requester, signer: requester, executor });
        }
        let keep = self.recent.len().saturating_sub(20);
        self.recent.drain(..keep);
    }

    fn any_override(&mut self, height: i64) -> Op {
        let to = *self.rng.pick(&[
            OverrideTo::None,
            OverrideTo::None,
            OverrideTo::Healthy,
            OverrideTo::Healthy,
            OverrideTo::Excluded,
            OverrideTo::Excluded,
        ]);
        let participant = if self.rng.chance(30) { [0xee; 20] } else { self.participant() };
        let until_block = match self.rng.below(40) {
            _ if to == OverrideTo::None => height + 1,
            0 => height,
            1 => height + 1_000_001,
            2 => height + 1_000_000,
            3..=6 => height + 1,
            _ => height + self.rng.range(2, 30),
        };
        let mut pair = (self.model(), participant);
        if !self.overridden.is_empty() && self.rng.chance(500) {
            pair = self.rng.pick(&self.overridden.clone()).clone();
        }
        self.overridden.push(pair.clone());
        let keep = self.overridden.len().saturating_sub(4);
        self.overridden.drain(..keep);
        let (model, participant) = pair;
        Op::SetOverride { model, participant, to, until_block }
    }
}
