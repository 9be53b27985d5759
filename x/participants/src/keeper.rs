//! Registration, groups and collateral.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{
    BankKeeper, Eligibility, EligibilityHooks, EpochsRead, GroupTotals, ParticipantsRead, WeightSource,
};
use holdfast_types::{Address, Coin, Context, Height, ModuleError};

use crate::errors::ParticipantsError;
use crate::events;
use crate::keys::MODULE_NAME;
use crate::msgs::{Registration, Serving};
use crate::params::Params;
use crate::state::{
    CANDIDATES, IN_MAINTENANCE, INACTIVE, MEMBERS, MODELS, NEXT_TOTALS, PARAMS, PARTICIPANTS, UNAVAILABILITY,
};
use crate::types::{Cause, Interval, MemberRecord, NextTotals, Participant};
use crate::validators::group_weight;

/// The participants keeper over a schedule and a source of weights. Holds no state.
#[derive(Clone, Copy)]
pub struct Keeper<'a> {
    /// Epoch schedule.
    pub epochs: &'a dyn EpochsRead,
    /// Weights.
    pub weights: &'a dyn WeightSource,
}

impl Keeper<'_> {
    /// Parameters in force.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        PARAMS.load(store)
    }

    /// A registered participant that has not left.
    pub(crate) fn registered(
        &self,
        ctx: &Context<'_>,
        participant: &Address,
    ) -> Result<Participant, ParticipantsError> {
        PARTICIPANTS
            .get(ctx.store, participant)?
            .filter(|p| !p.left)
            .ok_or_else(|| ParticipantsError::UnknownParticipant(ctx.bech32(participant)))
    }

    /// Totals of every model for the epoch that begins: O(models).
    ///
    /// Also lists who may validate in it: O(`max_validators`).
    pub fn start_epoch(&self, ctx: &mut Context<'_>) -> Result<Vec<GroupTotals>, ModuleError> {
        self.list_candidates(ctx)?;
        let mut out = Vec::new();
        for model in MODELS.iter(ctx.store, holdfast_store::Order::Ascending) {
            let model = model?;
            let NextTotals { eligible_weight, members, preserved } =
                NEXT_TOTALS.get(ctx.store, &model)?.unwrap_or_default();
            out.push(GroupTotals { model, eligible_weight, members, preserved });
        }
        Ok(out)
    }

    /// Sets what `participant` weighs for `model` from the next epoch on.
    fn set_next(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        weight: u64,
        preserved: bool,
    ) -> Result<(), ParticipantsError> {
        let key = (model.to_owned(), *participant);
        let old = MEMBERS.get(ctx.store, &key)?.unwrap_or_default().at(ctx.block.epoch);
        let new = MemberRecord { next_weight: weight, next_preserved: preserved, ..old };
        if !IN_MAINTENANCE.has(ctx.store, participant)? {
            self.count_next(ctx, model, &old, false)?;
            self.count_next(ctx, model, &new, true)?;
        }
        Ok(MEMBERS.set(ctx.store, &key, &new)?)
    }

    /// Adds or takes away what a record contributes to the next epoch's sums.
    pub(crate) fn count_next(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        record: &MemberRecord,
        add: bool,
    ) -> Result<(), ParticipantsError> {
        if record.next_weight == 0 {
            return Ok(());
        }
        let model = model.to_owned();
        let old = NEXT_TOTALS.get(ctx.store, &model)?.unwrap_or_default();
        let (weight, preserved) = (u128::from(record.next_weight), u32::from(record.next_preserved));
        let sums = if add {
            (
                old.eligible_weight.checked_add(weight),
                old.members.checked_add(1),
                old.preserved.checked_add(preserved),
            )
        } else {
            (
                old.eligible_weight.checked_sub(weight),
                old.members.checked_sub(1),
                old.preserved.checked_sub(preserved),
            )
        };
        let (Some(eligible_weight), Some(members), Some(preserved)) = sums else {
            return Err(ParticipantsError::Corrupt("next totals out of range"));
        };
        let new = NextTotals { eligible_weight, members, preserved };
        // No row of zeros: an imported chain has none, and would charge other gas for reading one.
        if new == NextTotals::default() {
            return Ok(NEXT_TOTALS.remove(ctx.store, &model)?);
        }
        Ok(NEXT_TOTALS.set(ctx.store, &model, &new)?)
    }

    /// Asks the weight source and stages the answer for the next epoch, for all models of `participant`.
    pub(crate) fn refresh(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        participant: &Participant,
    ) -> Result<(), ParticipantsError> {
        let weight = self.weights.weight(ctx.store, address, participant.collateral)?;
        for model in &participant.models {
            let key = (model.clone(), *address);
            let preserved = participant.poc_preserved;
            // A served model has a row even at weight 0: to genesis, a missing one is a member since its start.
            let staged = MEMBERS.get(ctx.store, &key)?.map(|r| (r.next_weight, r.next_preserved));
            if staged != Some((weight, preserved)) {
                self.set_next(ctx, model, address, weight, preserved)?;
            }
        }
        self.stage_weight(ctx, address, participant, if participant.models.is_empty() { 0 } else { weight })
    }

    /// Registers, or registers again after leaving. Works from the next epoch.
    pub fn register(
        &self,
        ctx: &mut Context<'_>,
        bank: &dyn BankKeeper,
        address: &Address,
        msg: Registration,
    ) -> Result<(), ModuleError> {
        let old = PARTICIPANTS.get(ctx.store, address)?;
        if old.as_ref().is_some_and(|p| !p.left) {
            return Err(ParticipantsError::AlreadyRegistered(ctx.bech32(address)).into());
        }
        self.check_models(ctx, &msg.serving.models)?;
        self.check_collateral(ctx, "collateral", &msg.collateral)?;
        let old = old.unwrap_or_default();
        let collateral = self.checked_collateral(ctx, "collateral", msg.collateral.amount)?;
        let Serving { host_url, workers, models, poc_preserved } = msg.serving;
        let participant = Participant {
            validator_key: msg.validator_key,
            host_url,
            workers,
            models,
            poc_preserved,
            collateral,
            unbonding: old.unbonding,
            unbonding_epoch: old.unbonding_epoch,
            left: false,
            joined_epoch: ctx.block.epoch.saturating_add(1),
        };
        self.save(ctx, address, &participant)?;
        bank.send(ctx, address, &Address::module(MODULE_NAME), &msg.collateral)?;
        self.refresh(ctx, address, &participant)?;
        events::registered(ctx, address, participant.joined_epoch);
        Ok(())
    }

    fn save(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        p: &Participant,
    ) -> Result<(), ParticipantsError> {
        match PARTICIPANTS.set(ctx.store, address, p) {
            Err(StoreError::Duplicate { .. }) => Err(ParticipantsError::KeyTaken),
            other => Ok(other?),
        }
    }

    fn check_models(&self, ctx: &Context<'_>, models: &[String]) -> Result<(), ParticipantsError> {
        for model in models {
            if !MODELS.has(ctx.store, model)? {
                return Err(ParticipantsError::UnknownModel(model.clone()));
            }
        }
        Ok(())
    }

    fn check_collateral(
        &self,
        ctx: &Context<'_>,
        field: &'static str,
        coin: &Coin,
    ) -> Result<(), ParticipantsError> {
        let denom = self.params(ctx.store)?.collateral_denom;
        if coin.denom == denom {
            return Ok(());
        }
        Err(ParticipantsError::field(field, format!("must be in {denom}")))
    }

    /// A sum of collateral whose weight fits.
    fn checked_collateral(
        &self,
        ctx: &Context<'_>,
        field: &'static str,
        sum: u128,
    ) -> Result<u128, ParticipantsError> {
        let per_weight = self.params(ctx.store)?.collateral_per_weight;
        match sum.checked_div(per_weight).map(u64::try_from) {
            Some(Ok(_)) => Ok(sum),
            _ => Err(ParticipantsError::field(field, "is more weight than 2^64 - 1; bond less")),
        }
    }

    /// Replaces what a participant serves. New models count from the next epoch, dropped ones go at once.
    pub fn update(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
        serving: Serving,
    ) -> Result<(), ModuleError> {
        let mut participant = self.registered(ctx, address)?;
        self.check_models(ctx, &serving.models)?;
        let dropped: Vec<String> =
            participant.models.iter().filter(|m| !serving.models.contains(m)).cloned().collect();
        let weighed = group_weight(ctx.store, ctx.block.epoch, address, &participant.models)?;
        for model in &dropped {
            self.take_out(ctx, hooks, model, address, Cause::ModelDropped)?;
        }
        let weighs = group_weight(ctx.store, ctx.block.epoch, address, &serving.models)?;
        self.lose_weight(ctx, address, weighed, weighs)?;
        participant.host_url = serving.host_url;
        participant.workers = serving.workers;
        participant.models = serving.models;
        participant.poc_preserved = serving.poc_preserved;
        self.save(ctx, address, &participant)?;
        self.refresh(ctx, address, &participant)?;
        events::updated(ctx, address);
        Ok(())
    }

    /// Leaves every group at once; collateral unbonds.
    pub fn leave(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        address: &Address,
    ) -> Result<(), ModuleError> {
        let mut participant = self.registered(ctx, address)?;
        let weighed = group_weight(ctx.store, ctx.block.epoch, address, &participant.models)?;
        for model in std::mem::take(&mut participant.models) {
            self.take_out(ctx, hooks, &model, address, Cause::Left)?;
        }
        self.lose_weight(ctx, address, weighed, 0)?;
        self.stage_weight(ctx, address, &participant, 0)?;
        let amount = participant.collateral;
        self.unbond(ctx, &mut participant, amount)?;
        participant.left = true;
        self.save(ctx, address, &participant)?;
        INACTIVE.remove(ctx.store, address)?;
        events::left(ctx, address);
        Ok(())
    }

    /// Takes a member out of a model's group now and for later epochs.
    fn take_out(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
        model: &str,
        address: &Address,
        cause: Cause,
    ) -> Result<(), ModuleError> {
        let before = self.standing(ctx.store, ctx.block, model, address)?;
        self.set_next(ctx, model, address, 0, false)?;
        let key = (model.to_owned(), *address);
        let record = MEMBERS.get(ctx.store, &key)?.unwrap_or_default();
        MEMBERS.set(ctx.store, &key, &MemberRecord { weight: 0, ..record })?;
        if before.member {
            self.note_absence(ctx, address, model, cause)?;
        }
        let old = before.eligibility();
        if old.weight > 0 {
            let new = Eligibility { weight: 0, ..old };
            hooks.after_member_eligibility_changed(ctx, model, address, old, new)?;
        }
        Ok(())
    }

    /// Records that nobody is to be blamed from this block to the end of the epoch.
    fn note_absence(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        model: &str,
        cause: Cause,
    ) -> Result<(), ParticipantsError> {
        let height = ctx.block.height;
        let epoch = self.epochs.epoch(ctx.store, ctx.block.epoch)?;
        let last = epoch.map_or(height, |epoch| epoch.end().saturating_sub(1)).max(height);
        let interval = Interval { to_height: last, announced_at: height };
        Ok(UNAVAILABILITY.set(ctx.store, &(*address, height, model.to_owned(), cause.byte()), &interval)?)
    }

    /// The slow breaker's verdict: out of every group until the epoch ends.
    pub fn deactivate(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        hooks: &dyn EligibilityHooks,
    ) -> Result<(), ModuleError> {
        let participant = self.registered(ctx, address)?;
        let mut before = Vec::new();
        for model in &participant.models {
            before.push((model, self.standing(ctx.store, ctx.block, model, address)?.eligibility()));
        }
        INACTIVE.set(ctx.store, address, &ctx.block.epoch)?;
        CANDIDATES.remove(ctx.store, address)?;
        self.note_absence(ctx, address, "", Cause::Inactive)?;
        for (model, old) in before {
            if old.weight > 0 {
                let new = Eligibility { weight: 0, ..old };
                hooks.after_member_eligibility_changed(ctx, model, address, old, new)?;
            }
        }
        Ok(())
    }

    /// Bonds more collateral: more weight from the next epoch on.
    pub fn deposit(
        &self,
        ctx: &mut Context<'_>,
        bank: &dyn BankKeeper,
        address: &Address,
        amount: &Coin,
    ) -> Result<(), ModuleError> {
        let mut participant = self.registered(ctx, address)?;
        self.check_collateral(ctx, "amount", amount)?;
        let sum = participant.collateral.checked_add(amount.amount);
        let sum = sum.ok_or_else(|| ParticipantsError::field("amount", "is too large"))?;
        participant.collateral = self.checked_collateral(ctx, "amount", sum)?;
        bank.send(ctx, address, &Address::module(MODULE_NAME), amount)?;
        self.save(ctx, address, &participant)?;
        self.refresh(ctx, address, &participant)?;
        events::deposited(ctx, address, amount);
        Ok(())
    }

    /// Moves collateral out of the bond; it stays locked while it backs this epoch's weight.
    pub fn withdraw(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        amount: &Coin,
    ) -> Result<u64, ModuleError> {
        let mut participant = self.registered(ctx, address)?;
        self.check_collateral(ctx, "amount", amount)?;
        self.unbond(ctx, &mut participant, amount.amount)?;
        self.save(ctx, address, &participant)?;
        self.refresh(ctx, address, &participant)?;
        events::withdrawn(ctx, address, amount, participant.unbonding_epoch);
        Ok(participant.unbonding_epoch)
    }

    fn unbond(
        &self,
        ctx: &Context<'_>,
        participant: &mut Participant,
        amount: u128,
    ) -> Result<(), ParticipantsError> {
        let bonded = participant.collateral;
        let left = bonded.checked_sub(amount);
        participant.collateral = left.ok_or(ParticipantsError::NotBonded { bonded, asked: amount })?;
        if amount > 0 {
            let unbonding = participant.unbonding.checked_add(amount);
            participant.unbonding = unbonding.ok_or(ParticipantsError::Corrupt("unbonding sum"))?;
            participant.unbonding_epoch = ctx.block.epoch.saturating_add(1);
        }
        Ok(())
    }

    /// Pays out unbonded collateral.
    pub fn claim(
        &self,
        ctx: &mut Context<'_>,
        bank: &dyn BankKeeper,
        address: &Address,
    ) -> Result<Coin, ModuleError> {
        let participant = PARTICIPANTS.get(ctx.store, address)?;
        let mut participant =
            participant.ok_or_else(|| ParticipantsError::UnknownParticipant(ctx.bech32(address)))?;
        if participant.unbonding == 0 {
            return Err(ParticipantsError::NothingToClaim.into());
        }
        if ctx.block.epoch < participant.unbonding_epoch {
            return Err(ParticipantsError::NotYet(participant.unbonding_epoch).into());
        }
        let denom = self.params(ctx.store)?.collateral_denom;
        let coin = Coin { denom, amount: std::mem::take(&mut participant.unbonding) };
        self.save(ctx, address, &participant)?;
        bank.send(ctx, &Address::module(MODULE_NAME), address, &coin)?;
        events::claimed(ctx, address, &coin);
        Ok(coin)
    }

    /// Registers a model.
    pub fn register_model(&self, ctx: &mut Context<'_>, model: &str) -> Result<(), ModuleError> {
        let model = model.to_owned();
        if MODELS.has(ctx.store, &model)? {
            return Err(ParticipantsError::ModelExists(model).into());
        }
        let limit = self.params(ctx.store)?.max_models;
        let count = MODELS.iter(ctx.store, holdfast_store::Order::Ascending).count();
        if count >= usize::try_from(limit).unwrap_or(usize::MAX) {
            return Err(ParticipantsError::TooManyModels(limit).into());
        }
        MODELS.insert(ctx.store, &model)?;
        events::model_registered(ctx, &model);
        Ok(())
    }

    /// Changes parameters that were checked. A new price of weight starts a sweep over all participants.
    pub(crate) fn set_params(&self, ctx: &mut Context<'_>, params: &Params) -> Result<(), ParticipantsError> {
        let old = self.params(ctx.store)?;
        PARAMS.set(ctx.store, params)?;
        if old.collateral_per_weight != params.collateral_per_weight {
            crate::state::REFRESH_CURSOR.set(ctx.store, &None)?;
        }
        Ok(())
    }
}

/// Whether `height` lies in `from ..= to`.
pub(crate) fn overlaps(from: Height, to: Height, first: Height, last: Height) -> bool {
    first <= to && last >= from
}
