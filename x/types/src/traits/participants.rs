//! What other modules need of x/participants.

use holdfast_store::{KvRead, StoreError};

use crate::{Address, BlockContext, Context, Height, ModuleError};

/// A participant's place in a model's group of the current epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// In the group (also with weight 0).
    pub member: bool,
    /// Not deactivated, not left, model not dropped in this epoch.
    pub active: bool,
    /// Weight frozen at the epoch's start.
    pub weight: u64,
    /// Serves during the PoC phase too.
    pub preserved: bool,
    /// A maintenance window is open.
    pub in_maintenance: bool,
}

impl Standing {
    /// Member, active, weight above 0: may be assigned work when available.
    pub fn serving(&self) -> bool {
        self.member && self.active && self.weight > 0
    }

    /// Serving and not in maintenance: counts in the breaker's sums whatever the phase (breaker-details 2.3).
    pub fn eligible(&self) -> bool {
        self.serving() && !self.in_maintenance
    }

    /// The breaker's view of this standing.
    pub fn eligibility(&self) -> Eligibility {
        Eligibility { weight: if self.eligible() { self.weight } else { 0 }, preserved: self.preserved }
    }
}

/// Weight that counts now; 0 = not eligible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Eligibility {
    /// Frozen weight, or 0.
    pub weight: u64,
    /// Serves during the PoC phase.
    pub preserved: bool,
}

/// Sums over a model's eligible members when its epoch begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTotals {
    /// Model id.
    pub model: String,
    /// Sum of weights.
    pub eligible_weight: u128,
    /// Number of members with weight.
    pub members: u32,
    /// Of them, those preserved during PoC.
    pub preserved: u32,
}

/// Why an expired inference is no miss (breaker-details 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excuse {
    /// Announced maintenance overlapped the inference's life.
    Maintenance,
    /// A PoC phase overlapped it and the executor does not serve during PoC.
    Poc,
    /// The executor left the group, or is not in the next epoch's.
    Left,
}

impl Excuse {
    /// Name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::Poc => "poc",
            Self::Left => "left",
        }
    }
}

/// Reads of the registry and of epoch groups. [`Self::models`] and [`Self::members`] are enough to begin with; a
/// registry of some size answers the others by key, for the breaker asks them in every block.
pub trait ParticipantsRead {
    /// Whether the model is registered.
    fn has_model(&self, store: &dyn KvRead, model: &str) -> Result<bool, StoreError> {
        Ok(self.models(store)?.iter().any(|m| m == model))
    }

    /// Whether the address is a registered participant. By default everybody is; who is in no group gets no work.
    fn has_participant(&self, _store: &dyn KvRead, _participant: &Address) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Place of `participant` in `model`'s group of `block.epoch`. By default looked up in [`Self::members`].
    fn standing(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Standing, StoreError> {
        let members = self.members(store, block, model)?;
        Ok(members
            .into_iter()
            .find(|(a, _)| a == participant)
            .map(|(_, standing)| standing)
            .unwrap_or_default())
    }

    /// Every member of `model`'s group of `block.epoch`, by ascending address. Queries only: O(members).
    fn members(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError>;

    /// Every registered model, ascending; at most `max_models`.
    fn models(&self, store: &dyn KvRead) -> Result<Vec<String>, StoreError>;

    /// Whether work given at `from` and unanswered at `to` (both inclusive) is excused. By default nothing is.
    fn excuse(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        _model: &str,
        _participant: &Address,
        _from: Height,
        _to: Height,
    ) -> Result<Option<Excuse>, StoreError> {
        Ok(None)
    }
}

/// Writes that x/inference asks of x/participants.
pub trait ParticipantsWrite {
    /// Takes `participant` out of every group for the rest of the epoch (the slow breaker's verdict).
    fn deactivate(&self, ctx: &mut Context<'_>, participant: &Address) -> Result<(), ModuleError>;
}

/// Fired whenever a member's eligibility changes inside an epoch.
pub trait EligibilityHooks {
    /// `old` and `new` differ in weight; `preserved` never changes inside an epoch.
    fn after_member_eligibility_changed(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        old: Eligibility,
        new: Eligibility,
    ) -> Result<(), ModuleError>;
}

/// Where weights come from. The default is collateral; an embedder brings its own.
pub trait WeightSource {
    /// Weight of `participant` from the next epoch on, given its bonded `collateral` in base units.
    fn weight(&self, store: &dyn KvRead, participant: &Address, collateral: u128) -> Result<u64, StoreError>;

    /// Whether weights change without a message of the participant. Then x/participants asks again for
    /// every participant, a bounded number each block.
    fn polled(&self) -> bool {
        false
    }
}
