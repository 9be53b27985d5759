//! Failover: which shards, whether at all, and whether the next epoch starts clean (runner-details 4 and 11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::adapter::{BoundaryAdapter, Digest, KvKey, Opened, ShardInfo, Usage};
use crate::failure::FailureKind;

/// Restarts of one session.
pub const RESTARTS_MAX: u32 = 2;
/// Wait before the first and before the second restart, milliseconds.
pub const BACKOFF_MS: [u64; RESTARTS_MAX as usize] = [0, 500];
/// How long other sessions keep away from a worker that failed one, milliseconds.
pub const INHIBIT_MS: u64 = 5_000;
/// Most workers that are kept away from at a time.
const INHIBITED_MAX: usize = 1_024;

/// The shards there are.
pub trait ShardPool: Send + Sync + 'static {
    /// Those that can be called now. A process that died and came back is another one: its id differs.
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>>;
}

/// A pool that never changes.
impl ShardPool for Vec<Arc<dyn BoundaryAdapter>> {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        self.clone()
    }
}

/// What a route should look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteWish {
    /// The model; `None` for any one. A later epoch names the first one's.
    pub model: Option<Digest>,
    /// Shards, by id, that must not be on it.
    pub excluded: BTreeSet<String>,
    /// Shards, by id, that are taken only if there is no other way.
    pub avoided: BTreeSet<String>,
}

/// No set of shards covers all layers of one model once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no route: {shards} shards, {excluded} of them excluded, do not cover all layers of one model")]
pub struct NoRoute {
    /// Shards that were looked at.
    pub shards: usize,
    /// How many of them are excluded.
    pub excluded: usize,
}

impl NoRoute {
    /// Stable code.
    pub const CODE: &'static str = "no-route";
}

/// Cost of a way to some layer, then what decides between equal ones.
type Way<'a> = (usize, usize, Vec<(&'a str, usize)>);

/// Picks shards, as indices into `infos` in layer order, that cover every layer of one model exactly once: as few
/// avoided ones as possible, then as few as possible, then the lowest ids, then the lowest model digest. The order of
/// `infos` does not matter.
///
/// # Errors
/// [`NoRoute`] if there is none.
pub fn plan_route(infos: &[ShardInfo], wish: &RouteWish) -> Result<Vec<usize>, NoRoute> {
    let excluded = |info: &ShardInfo| wish.excluded.contains(&info.shard_id);
    // Shards of one model agree on its shape, too.
    let mut models: BTreeMap<(Digest, u32, u32, u32), Vec<usize>> = BTreeMap::new();
    for (index, info) in infos.iter().enumerate() {
        let (from, to) = info.layers;
        let sane = from < to && to <= info.model_layers;
        if sane && !excluded(info) && wish.model.is_none_or(|model| model == info.model_digest) {
            let model = (info.model_digest, info.model_layers, info.d_model, info.vocab);
            models.entry(model).or_default().push(index);
        }
    }
    let mut best: Option<Way<'_>> = None;
    for ((_, model_layers, _, _), mut shards) in models {
        // By first layer: every way to a layer is known before a shard that begins there is looked at.
        shards.sort_by_key(|index| infos[*index].layers);
        let mut ways: BTreeMap<u32, Way<'_>> = BTreeMap::from([(0, (0, 0, Vec::new()))]);
        for index in shards {
            let info = &infos[index];
            let Some((avoided, hops, path)) = ways.get(&info.layers.0) else { continue };
            let avoided = avoided + usize::from(wish.avoided.contains(&info.shard_id));
            let mut path = path.clone();
            path.push((&info.shard_id, index));
            let way = (avoided, hops + 1, path);
            if ways.get(&info.layers.1).is_none_or(|known| way < *known) {
                ways.insert(info.layers.1, way);
            }
        }
        if let Some(way) = ways.remove(&model_layers)
            && best
                .as_ref()
                .is_none_or(|(avoided, hops, path)| (way.0, way.1, &way.2) < (*avoided, *hops, path))
        {
            best = Some(way);
        }
    }
    best.map(|(_, _, path)| path.into_iter().map(|(_, index)| index).collect()).ok_or_else(|| NoRoute {
        shards: infos.len(),
        excluded: infos.iter().filter(|info| excluded(info)).count(),
    })
}

/// Workers that failed a session, which others keep away from for a while. One per node; bounded.
#[derive(Debug, Clone, Default)]
pub struct Inhibitions {
    until_ms: BTreeMap<String, u64>,
}

impl Inhibitions {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The worker failed now.
    pub fn note(&mut self, shard_id: &str, now_ms: u64) {
        self.until_ms.retain(|_, until| *until > now_ms);
        if self.until_ms.len() >= INHIBITED_MAX
            && !self.until_ms.contains_key(shard_id)
            && let Some(soonest) = self.until_ms.iter().min_by_key(|(_, until)| **until)
        {
            let soonest = soonest.0.clone();
            self.until_ms.remove(&soonest);
        }
        self.until_ms.insert(shard_id.to_owned(), now_ms.saturating_add(INHIBIT_MS));
    }

    /// Whom to avoid now.
    #[must_use]
    pub fn avoided(&self, now_ms: u64) -> BTreeSet<String> {
        self.until_ms.iter().filter(|(_, until)| **until > now_ms).map(|(id, _)| id.clone()).collect()
    }
}

/// What is known of the shards of a session that lost its heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// `restart_after_fence` is off: such a session is not restarted.
    Off,
    /// It is on; some shard may still hold the old epoch.
    Open,
    /// It is on; each old shard has released or its lease has ended.
    Closed,
}

/// How an attempt ended, as far as a restart is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// What ended it.
    pub kind: FailureKind,
    /// Id of the shard at fault, if one is.
    pub shard_id: Option<String>,
    /// Tokens the client has.
    pub delivered: u32,
    /// Whether a second run gives the same tokens: greedy, or drawn from a seed.
    pub reproducible: bool,
    /// What is left of the total limit, milliseconds.
    pub total_left_ms: u64,
    /// Matters after a lost heartbeat only.
    pub fence: Fence,
}

/// Why there is no next epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRestart {
    /// The kind is not restartable.
    #[error("the failure is not restartable")]
    Kind,
    /// The restarts are used up.
    #[error("no restart left")]
    Budget,
    /// The total limit ends before it could begin.
    #[error("no time left")]
    Time,
    /// The client has tokens that a second run need not give again.
    #[error("the client has tokens and the sampling cannot be repeated")]
    Sampling,
    /// There is no number for it.
    #[error("no epoch left")]
    Epoch,
}

/// Whether to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Restart {
        /// The next epoch.
        epoch: u32,
        /// Not before this time.
        not_before_ms: u64,
        /// Shards, by id, that the session must not use any more.
        excluded: BTreeSet<String>,
    },
    /// Ask again when each old shard has released or its lease has ended. No restart was used.
    AwaitFence,
    /// No.
    No {
        /// Why.
        why: NoRestart,
    },
}

/// Decides over the restarts of one session.
#[derive(Debug, Clone)]
pub struct RestartController {
    key: KvKey,
    used: u32,
    model: Option<Digest>,
    excluded: BTreeSet<String>,
}

impl RestartController {
    /// Of a session in its first epoch on this run of the node.
    #[must_use]
    pub fn new(key: KvKey) -> Self {
        Self { key, used: 0, model: None, excluded: BTreeSet::new() }
    }

    /// The session and its epoch.
    #[must_use]
    pub fn key(&self) -> KvKey {
        self.key
    }

    /// Restarts used.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The model that the first epoch ran on: no later one may change it.
    pub fn ran_on(&mut self, model: Digest) {
        self.model.get_or_insert(model);
    }

    /// What the session's next route should look like.
    #[must_use]
    pub fn wish(&self, inhibitions: &Inhibitions, now_ms: u64) -> RouteWish {
        RouteWish { model: self.model, excluded: self.excluded.clone(), avoided: inhibitions.avoided(now_ms) }
    }

    /// Whether to run again after an attempt has ended. A yes uses a restart up and moves to the next epoch. The shard
    /// at fault is excluded for the session, and noted for others, whatever the answer.
    pub fn may_restart(
        &mut self,
        now_ms: u64,
        failed: &FailedAttempt,
        inhibitions: &mut Inhibitions,
    ) -> Decision {
        if let Some(shard_id) = &failed.shard_id
            && failed.kind.node_at_fault()
            && self.excluded.insert(shard_id.clone())
        {
            inhibitions.note(shard_id, now_ms);
        }
        match self.decide(now_ms, failed) {
            Ok(Some((epoch, not_before_ms))) => {
                self.used += 1;
                self.key.epoch = epoch;
                Decision::Restart { epoch, not_before_ms, excluded: self.excluded.clone() }
            }
            Ok(None) => Decision::AwaitFence,
            Err(why) => Decision::No { why },
        }
    }

    fn decide(&self, now_ms: u64, failed: &FailedAttempt) -> Result<Option<(u32, u64)>, NoRestart> {
        let lost = failed.kind == FailureKind::HeartbeatLost && failed.fence != Fence::Off;
        if !failed.kind.restartable() && !lost {
            return Err(NoRestart::Kind);
        }
        let backoff_ms = BACKOFF_MS.get(self.used as usize).copied().ok_or(NoRestart::Budget)?;
        if !failed.reproducible && failed.delivered > 0 {
            return Err(NoRestart::Sampling);
        }
        if failed.total_left_ms <= backoff_ms {
            return Err(NoRestart::Time);
        }
        let epoch = self.key.epoch.checked_add(1).ok_or(NoRestart::Epoch)?;
        if lost && failed.fence == Fence::Open {
            return Ok(None);
        }
        Ok(Some((epoch, now_ms.saturating_add(backoff_ms))))
    }
}

/// What a shard of the new route says before the first step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreshReport {
    /// The shard.
    pub shard_id: String,
    /// Answer to `open` of the new key; `None` if there is none.
    pub opened: Option<Opened>,
    /// What it holds; `None` if unknown.
    pub usage: Option<Usage>,
}

/// A shard that does not start clean: the attempt fails and is not tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFresh {
    /// There is no shard.
    #[error("not fresh: no shard was asked")]
    NoShard,
    /// It said nothing.
    #[error("not fresh: nothing is known of {shard_id}")]
    Unknown {
        /// The shard.
        shard_id: String,
    },
    /// The new key holds rows before its first step.
    #[error("not fresh: {shard_id} has {rows} rows of the new epoch")]
    NewRows {
        /// The shard.
        shard_id: String,
        /// How many.
        rows: u32,
    },
    /// Another epoch of the session is still there.
    #[error("not fresh: {shard_id} still holds epoch {epoch}")]
    OldEpoch {
        /// The shard.
        shard_id: String,
        /// Which.
        epoch: u32,
    },
}

/// Lets an epoch begin only if every shard of its route holds nothing of the session: 0 rows of the new key, and no
/// other epoch. What is not known counts as not fresh.
///
/// # Errors
/// [`NotFresh`] names the first shard that is not.
pub fn assert_fresh_start(key: KvKey, reports: &[FreshReport]) -> Result<(), NotFresh> {
    if reports.is_empty() {
        return Err(NotFresh::NoShard);
    }
    for FreshReport { shard_id, opened, usage } in reports {
        let shard_id = shard_id.clone();
        let (Some(opened), Some(usage)) = (opened, usage) else {
            return Err(NotFresh::Unknown { shard_id });
        };
        if opened.kv_len != 0 {
            return Err(NotFresh::NewRows { shard_id, rows: opened.kv_len });
        }
        for held in usage.keys.iter().filter(|held| held.key.session == key.session) {
            if held.key.epoch != key.epoch {
                return Err(NotFresh::OldEpoch { shard_id, epoch: held.key.epoch });
            }
            if held.rows != 0 {
                return Err(NotFresh::NewRows { shard_id, rows: held.rows });
            }
        }
    }
    Ok(())
}

/// What to do with a token of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emit {
    /// The client has it.
    Silent,
    /// It is new: deliver it.
    Deliver,
}

/// The second run differs from what the client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {at} was {had} and is {got:?} now")]
pub struct PrefixMismatch {
    /// Which token, from 0.
    pub at: u32,
    /// What the client has.
    pub had: u32,
    /// What came now; `None` if the run ended before it.
    pub got: Option<u32>,
}

impl PrefixMismatch {
    /// Its kind.
    pub const KIND: FailureKind = FailureKind::PrefixMismatch;
}

/// Keeps a further run silent as far as the client has its tokens, and compares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixCheck {
    delivered: Vec<u32>,
    at: usize,
}

impl PrefixCheck {
    /// Against the tokens delivered so far.
    #[must_use]
    pub fn new(delivered: Vec<u32>) -> Self {
        Self { delivered, at: 0 }
    }

    /// Whether everything the client has was seen again.
    #[must_use]
    pub fn caught_up(&self) -> bool {
        self.at >= self.delivered.len()
    }

    fn mismatch(&self, had: u32, got: Option<u32>) -> PrefixMismatch {
        PrefixMismatch { at: u32::try_from(self.at).unwrap_or(u32::MAX), had, got }
    }

    /// The run's next token.
    ///
    /// # Errors
    /// [`PrefixMismatch`] if the client has another one; it comes again for every further token.
    pub fn token(&mut self, token: u32) -> Result<Emit, PrefixMismatch> {
        let Some(had) = self.delivered.get(self.at).copied() else { return Ok(Emit::Deliver) };
        if had != token {
            return Err(self.mismatch(had, Some(token)));
        }
        self.at += 1;
        Ok(Emit::Silent)
    }

    /// The run is complete.
    ///
    /// # Errors
    /// [`PrefixMismatch`] if the client has more tokens than it gave.
    pub fn end(&self) -> Result<(), PrefixMismatch> {
        self.delivered.get(self.at).map_or(Ok(()), |had| Err(self.mismatch(*had, None)))
    }
}

#[cfg(test)]
mod tests;
