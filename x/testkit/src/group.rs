//! A registry that stands still until told otherwise.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{Eligibility, Excuse, GroupTotals, ParticipantsRead, Standing};
use holdfast_types::{Address, BlockContext, Height};

/// A member to be put into a [`StaticGroup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticMember {
    /// Frozen weight.
    pub weight: u64,
    /// Serves during the PoC phase.
    pub preserved: bool,
}

/// Participants and groups held in memory, outside any store: for tests of a module that reads them, and for an
/// embedder whose registry is elsewhere. Every epoch has the same members.
#[derive(Debug, Clone, Default)]
pub struct StaticGroup {
    participants: BTreeSet<Address>,
    groups: BTreeMap<String, BTreeMap<Address, Standing>>,
    excuses: BTreeMap<(String, Address), Excuse>,
}

impl StaticGroup {
    /// No model, nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `model`.
    pub fn add_model(&mut self, model: &str) {
        self.groups.entry(model.to_owned()).or_default();
    }

    /// Registers `participant` without a model.
    pub fn add_participant(&mut self, participant: Address) {
        self.participants.insert(participant);
    }

    /// Puts `participant` into `model`'s group with `weight`, active, not preserved. Registers both.
    pub fn add_member(&mut self, model: &str, participant: Address, weight: u64) {
        self.put(model, participant, StaticMember { weight, preserved: false });
    }

    /// Puts `participant` into `model`'s group. Registers both.
    pub fn put(&mut self, model: &str, participant: Address, member: StaticMember) {
        let StaticMember { weight, preserved } = member;
        let standing = Standing { member: true, active: true, weight, preserved, in_maintenance: false };
        self.set_standing(model, participant, standing);
    }

    /// Sets a whole standing and returns what an eligibility hook would be told: old, new.
    pub fn set_standing(
        &mut self,
        model: &str,
        participant: Address,
        standing: Standing,
    ) -> (Eligibility, Eligibility) {
        self.participants.insert(participant);
        let old = self.groups.entry(model.to_owned()).or_default().insert(participant, standing);
        (old.unwrap_or_default().eligibility(), standing.eligibility())
    }

    /// Changes a standing in place and returns what an eligibility hook would be told: old, new.
    pub fn change(
        &mut self,
        model: &str,
        participant: Address,
        change: impl FnOnce(&mut Standing),
    ) -> (Eligibility, Eligibility) {
        let mut standing = self.get(model, &participant);
        change(&mut standing);
        self.set_standing(model, participant, standing)
    }

    /// What [`ParticipantsRead::excuse`] answers for this pair from now on.
    pub fn set_excuse(&mut self, model: &str, participant: Address, excuse: Option<Excuse>) {
        let key = (model.to_owned(), participant);
        match excuse {
            Some(excuse) => self.excuses.insert(key, excuse),
            None => self.excuses.remove(&key),
        };
    }

    /// The standing of `participant` in `model`'s group; a stranger's is all zero.
    pub fn get(&self, model: &str, participant: &Address) -> Standing {
        self.groups.get(model).and_then(|g| g.get(participant)).copied().unwrap_or_default()
    }

    /// Totals of every model as they are handed over when an epoch starts.
    pub fn totals(&self) -> Vec<GroupTotals> {
        let sum = |(model, group): (&String, &BTreeMap<Address, Standing>)| {
            let eligible: Vec<_> = group.values().filter(|s| s.eligible()).collect();
            GroupTotals {
                model: model.clone(),
                eligible_weight: eligible.iter().map(|s| u128::from(s.weight)).sum(),
                members: eligible.len() as u32,
                preserved: eligible.iter().filter(|s| s.preserved).count() as u32,
            }
        };
        self.groups.iter().map(sum).collect()
    }
}

impl ParticipantsRead for StaticGroup {
    fn has_model(&self, _store: &dyn KvRead, model: &str) -> Result<bool, StoreError> {
        Ok(self.groups.contains_key(model))
    }

    fn has_participant(&self, _store: &dyn KvRead, participant: &Address) -> Result<bool, StoreError> {
        Ok(self.participants.contains(participant))
    }

    fn standing(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Standing, StoreError> {
        Ok(self.get(model, participant))
    }

    fn members(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        model: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError> {
        let group = self.groups.get(model).into_iter().flatten();
        Ok(group.filter(|(_, s)| s.member).map(|(a, s)| (*a, *s)).collect())
    }

    fn models(&self, _store: &dyn KvRead) -> Result<Vec<String>, StoreError> {
        Ok(self.groups.keys().cloned().collect())
    }

    fn excuse(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        model: &str,
        participant: &Address,
        _from: Height,
        _to: Height,
    ) -> Result<Option<Excuse>, StoreError> {
        Ok(self.excuses.get(&(model.to_owned(), *participant)).copied())
    }
}
