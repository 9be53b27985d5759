//! Proposals, deposits, votes and upgrade plans.

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::{Address, Coin, Context, FieldError, Height, ModuleError};

use crate::deps::Deps;
use crate::errors::GovError;
use crate::events;
use crate::keys::MODULE_NAME;
use crate::messages;
use crate::msgs::Submission;
use crate::params::Params;
use crate::state::{
    APPLIED_UPGRADES, CONTENTS, DEPOSIT_QUEUE, DEPOSITS, HELD, LAST_APPLIED, MODULE_VERSIONS,
    NEXT_PROPOSAL_ID, PARAMS, PROPOSALS, SETTLEMENTS, TALLIES, UPGRADE_PLAN, VOTES, VOTING_QUEUE,
};
use crate::types::{
    Content, Plan, Proposal, ProposalId, ProposalStatus, Settlement, SettlementKind, Tally, Vote, Voting,
};

/// The gov keeper. Holds no state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

/// Adds `coins` to `sum`, both by ascending denomination. `None` when an amount passes 2^128.
pub(crate) fn add_coins(sum: &mut Vec<Coin>, coins: &[Coin]) -> Option<()> {
    for coin in coins {
        match sum.binary_search_by(|have| have.denom.cmp(&coin.denom)) {
            Ok(at) => {
                let have = sum.get_mut(at)?;
                have.amount = have.amount.checked_add(coin.amount)?;
            }
            Err(at) => sum.insert(at, coin.clone()),
        }
    }
    Some(())
}

/// Amount of `denom` in `coins`.
pub(crate) fn amount_of(coins: &[Coin], denom: &str) -> u128 {
    coins.iter().find(|coin| coin.denom == denom).map_or(0, |coin| coin.amount)
}

/// Whether `coins` have at least each of `least`.
fn covers(coins: &[Coin], least: &[Coin]) -> bool {
    least.iter().all(|coin| amount_of(coins, &coin.denom) >= coin.amount)
}

impl Keeper {
    /// Parameters in force.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        PARAMS.load(store)
    }

    /// A proposal that is neither dropped nor cancelled.
    pub fn proposal(&self, store: &dyn KvRead, id: ProposalId) -> Result<Option<Proposal>, StoreError> {
        PROPOSALS.get(store, &id)
    }

    fn known(&self, ctx: &Context<'_>, id: ProposalId) -> Result<Proposal, GovError> {
        PROPOSALS.get(ctx.store, &id)?.ok_or(GovError::UnknownProposal(id))
    }

    /// Takes a proposal in, with its first deposit. Returns its id and whether voting has begun.
    /// Codes: 18, 23, 16, 10, 13, 12, bank.
    pub fn submit(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        submission: Submission,
    ) -> Result<(ProposalId, bool), GovError> {
        let Submission { proposer, messages, deposit, title, summary, metadata, expedited } = submission;
        let params = self.params(ctx.store)?;
        check_depositor("proposer", &proposer, &deposit)?;
        self.check_initial(&params, expedited, &deposit)?;
        check_deposit("initial_deposit", &params, expedited, &deposit)?;
        messages::check(ctx, deps, &messages)?;
        let id = NEXT_PROPOSAL_ID.next(ctx.store)?;
        let now = ctx.block.time_ns;
        let deposit_end_ns = now.saturating_add(params.max_deposit_period_ns);
        let proposal = Proposal {
            status: ProposalStatus::DepositPeriod,
            proposer,
            expedited,
            submit_ns: now,
            deposit_end_ns,
            voting: None,
            total_deposit: Vec::new(),
            tally: Tally::default(),
            failed_reason: String::new(),
        };
        events::submitted(ctx, id, &proposer, &messages);
        let messages = messages.into_iter().map(Into::into).collect();
        CONTENTS.set(ctx.store, &id, &Content { messages, title, summary, metadata })?;
        DEPOSIT_QUEUE.insert(ctx.store, &(deposit_end_ns, id))?;
        let begun = self.put_deposit(ctx, deps, &params, id, proposal, &proposer, &deposit)?;
        if begun {
            events::voting_begun(ctx, "submit_proposal", id);
        }
        Ok((id, begun))
    }

    /// The first deposit reaches its share of the minimum in every denomination.
    fn check_initial(&self, params: &Params, expedited: bool, deposit: &[Coin]) -> Result<(), GovError> {
        let ratio = params.min_initial_deposit_ratio;
        let share = |coin: &Coin| Coin { denom: coin.denom.clone(), amount: ratio.of_rounded(coin.amount) };
        let needed: Vec<Coin> = params.min_deposit(expedited).iter().map(share).collect();
        // Foreign denominations are named before amounts.
        check_denoms("initial_deposit", params, deposit)?;
        if covers(deposit, &needed) {
            return Ok(());
        }
        let (found, needed) = (events::amount(deposit), events::amount(&needed));
        Err(GovError::DepositTooSmall { field: "initial_deposit", found, needed })
    }

    /// Puts `coins` on an open proposal. Codes: 2, 3, 18, 23, 16, bank.
    pub fn deposit(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: ProposalId,
        depositor: &Address,
        coins: &[Coin],
    ) -> Result<(), GovError> {
        let proposal = self.known(ctx, id)?;
        let now = ctx.block.time_ns;
        let ends = match (proposal.status, proposal.voting) {
            (ProposalStatus::DepositPeriod, _) => proposal.deposit_end_ns,
            (ProposalStatus::VotingPeriod, Some(voting)) => voting.end_ns,
            _ => return Err(GovError::Inactive { id, why: "is decided and takes no deposits" }),
        };
        if now >= ends {
            return Err(GovError::Inactive { id, why: "is at the end of its period and takes no deposits" });
        }
        let params = self.params(ctx.store)?;
        check_depositor("depositor", depositor, coins)?;
        check_denoms("amount", &params, coins)?;
        check_deposit("amount", &params, proposal.expedited, coins)?;
        if self.put_deposit(ctx, deps, &params, id, proposal, depositor, coins)? {
            events::voting_begun(ctx, "proposal_deposit", id);
        }
        Ok(())
    }

    /// Moves the coins, writes them down, and begins the voting period when they are enough. Writes the proposal.
    #[allow(clippy::too_many_arguments)] // one place for the first deposit and the later ones
    fn put_deposit(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        params: &Params,
        id: ProposalId,
        mut proposal: Proposal,
        depositor: &Address,
        coins: &[Coin],
    ) -> Result<bool, GovError> {
        let overflow = || GovError::Corrupt("deposits pass 2^128");
        if !coins.is_empty() {
            let gov = Address::module(MODULE_NAME);
            for coin in coins {
                deps.bank.send(ctx, depositor, &gov, coin)?;
                let held = HELD.get(ctx.store, &coin.denom)?.unwrap_or(0);
                let held = held.checked_add(coin.amount).ok_or_else(overflow)?;
                HELD.set(ctx.store, &coin.denom, &held)?;
            }
            let key = (id, *depositor);
            let mut sum = DEPOSITS.get(ctx.store, &key)?.unwrap_or_default();
            add_coins(&mut sum, coins).ok_or_else(overflow)?;
            DEPOSITS.set(ctx.store, &key, &sum)?;
            add_coins(&mut proposal.total_deposit, coins).ok_or_else(overflow)?;
            events::deposited(ctx, id, depositor, coins);
        }
        let begins = proposal.status == ProposalStatus::DepositPeriod
            && covers(&proposal.total_deposit, params.min_deposit(proposal.expedited));
        if begins {
            let start_ns = ctx.block.time_ns;
            let end_ns = start_ns.saturating_add(params.voting_period_ns(proposal.expedited));
            DEPOSIT_QUEUE.remove(ctx.store, &(proposal.deposit_end_ns, id))?;
            VOTING_QUEUE.insert(ctx.store, &(end_ns, id))?;
            proposal.status = ProposalStatus::VotingPeriod;
            proposal.voting = Some(Voting { start_ns, end_ns });
        }
        PROPOSALS.set(ctx.store, &id, &proposal)?;
        Ok(begins)
    }

    /// Votes, or replaces a vote, until the period's end. Codes: 2, 3, 20, 26.
    pub fn vote(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: ProposalId,
        voter: &Address,
        vote: &Vote,
    ) -> Result<(), GovError> {
        let proposal = self.known(ctx, id)?;
        let voting = match (proposal.status, proposal.voting) {
            (ProposalStatus::VotingPeriod, Some(voting)) => voting,
            (ProposalStatus::DepositPeriod, _) => {
                return Err(GovError::Inactive { id, why: "still collects deposits and takes no votes" });
            }
            _ => return Err(GovError::Inactive { id, why: "is decided and takes no votes" }),
        };
        if ctx.block.time_ns >= voting.end_ns {
            return Err(GovError::VotingEnded(id));
        }
        // So there are never more votes than voters with power, and a count has an end.
        if deps.power.power(ctx.store, ctx.block, voter)? == 0 {
            return Err(GovError::NoPower(ctx.bech32(voter)));
        }
        VOTES.set(ctx.store, &(id, *voter), vote)?;
        events::voted(ctx, id, voter, vote);
        Ok(())
    }

    /// Takes a proposal back: it is gone at once, its deposits and votes are cleared away by the next blocks.
    /// Codes: 2, 18, 21, 20.
    pub fn cancel(&self, ctx: &mut Context<'_>, id: ProposalId, proposer: &Address) -> Result<(), GovError> {
        let proposal = self.known(ctx, id)?;
        if proposal.proposer != *proposer {
            let rule = format!("proposal {id} is that of {}", ctx.bech32(&proposal.proposer));
            return Err(GovError::Proposer { field: "proposer", rule });
        }
        if !proposal.status.is_open() {
            return Err(GovError::NotCancellable(id));
        }
        match proposal.voting {
            Some(voting) if ctx.block.time_ns >= voting.end_ns => return Err(GovError::VotingEnded(id)),
            Some(voting) => VOTING_QUEUE.remove(ctx.store, &(voting.end_ns, id))?,
            None => DEPOSIT_QUEUE.remove(ctx.store, &(proposal.deposit_end_ns, id))?,
        }
        let params = self.params(ctx.store)?;
        let (ratio, destination) = (params.proposal_cancel_ratio, params.proposal_cancel_dest);
        self.remove(ctx, id)?;
        self.settle_later(ctx, id, SettlementKind::Charge { ratio, destination })?;
        events::cancelled(ctx, id, proposer);
        Ok(())
    }

    /// Forgets a proposal that was dropped or cancelled.
    pub(crate) fn remove(&self, ctx: &mut Context<'_>, id: ProposalId) -> Result<(), StoreError> {
        PROPOSALS.remove(ctx.store, &id)?;
        CONTENTS.remove(ctx.store, &id)?;
        TALLIES.remove(ctx.store, &id)
    }

    /// Queues the deposits and votes of a closed proposal for clearing.
    pub(crate) fn settle_later(
        &self,
        ctx: &mut Context<'_>,
        id: ProposalId,
        kind: SettlementKind,
    ) -> Result<(), StoreError> {
        let settlement = Settlement { kind, last_depositor: None, left_over: false };
        SETTLEMENTS.set(ctx.store, &(0, id), &settlement)
    }

    /// The planned upgrade.
    pub fn upgrade_plan(&self, store: &dyn KvRead) -> Result<Option<Plan>, StoreError> {
        UPGRADE_PLAN.get(store)
    }

    /// Plans an upgrade in place of the one planned before. Codes: `sdk` 18 for a height that has come, or a name that
    /// was used.
    pub fn plan_upgrade(&self, ctx: &mut Context<'_>, plan: &Plan) -> Result<(), GovError> {
        if plan.height <= ctx.block.height {
            let rule = format!("must be above the height {}", ctx.block.height);
            return Err(FieldError::new("plan.height", rule).into());
        }
        if let Some(height) = APPLIED_UPGRADES.get(ctx.store, &plan.name)? {
            let rule = format!("was done at height {height}; choose another");
            return Err(FieldError::new("plan.name", rule).into());
        }
        UPGRADE_PLAN.set(ctx.store, plan)?;
        events::upgrade(ctx, "EventUpgradePlanned", plan);
        Ok(())
    }

    /// Drops the plan, if there is one.
    pub fn clear_upgrade_plan(&self, ctx: &mut Context<'_>) -> Result<(), ModuleError> {
        if let Some(plan) = UPGRADE_PLAN.get(ctx.store)? {
            UPGRADE_PLAN.remove(ctx.store)?;
            events::upgrade(ctx, "EventUpgradeCancelled", &plan);
        }
        Ok(())
    }

    /// Writes down that `plan` was carried out in this block, and drops it.
    pub fn apply_upgrade(&self, ctx: &mut Context<'_>, plan: &Plan) -> Result<(), ModuleError> {
        UPGRADE_PLAN.remove(ctx.store)?;
        APPLIED_UPGRADES.set(ctx.store, &plan.name, &ctx.block.height)?;
        LAST_APPLIED.set(ctx.store, &plan.name)?;
        let applied = Plan { height: ctx.block.height, ..plan.clone() };
        events::upgrade(ctx, "EventUpgradeApplied", &applied);
        Ok(())
    }

    /// Name and height of the latest upgrade done.
    pub fn last_applied(&self, store: &dyn KvRead) -> Result<Option<(String, Height)>, StoreError> {
        let Some(name) = LAST_APPLIED.get(store)? else { return Ok(None) };
        let height = APPLIED_UPGRADES.load(store, &name)?;
        Ok(Some((name, height)))
    }

    /// Consensus version of each module's stored format, by name.
    pub fn module_versions(&self, store: &dyn KvRead) -> Result<Vec<(String, u64)>, StoreError> {
        MODULE_VERSIONS.iter(store, Order::Ascending).collect()
    }

    /// Replaces the whole table.
    pub fn set_module_versions(
        &self,
        ctx: &mut Context<'_>,
        versions: &[(String, u64)],
    ) -> Result<(), ModuleError> {
        for (name, _) in self.module_versions(ctx.store)? {
            MODULE_VERSIONS.remove(ctx.store, &name)?;
        }
        for (name, version) in versions {
            MODULE_VERSIONS.set(ctx.store, name, version)?;
        }
        Ok(())
    }
}

/// Deposits of the gov account itself would be other people's.
fn check_depositor(field: &'static str, depositor: &Address, coins: &[Coin]) -> Result<(), GovError> {
    if *depositor == Address::module(MODULE_NAME) && !coins.is_empty() {
        let rule = "the gov account holds other people's deposits and makes none".into();
        return Err(GovError::Proposer { field, rule });
    }
    Ok(())
}

/// Only denominations of the minimum are taken.
fn check_denoms(field: &'static str, params: &Params, coins: &[Coin]) -> Result<(), GovError> {
    let taken = |coin: &&Coin| params.min_deposit.iter().any(|min| min.denom == coin.denom);
    let Some(foreign) = coins.iter().find(|coin| !taken(coin)) else { return Ok(()) };
    let accepted: Vec<_> = params.min_deposit.iter().map(|coin| coin.denom.as_str()).collect();
    Err(GovError::DepositDenom { field, found: foreign.denom.clone(), accepted: accepted.join(", ") })
}

/// Each deposit reaches its share of the minimum in at least one denomination.
fn check_deposit(
    field: &'static str,
    params: &Params,
    expedited: bool,
    coins: &[Coin],
) -> Result<(), GovError> {
    let ratio = params.min_deposit_ratio;
    if ratio.units() == 0 {
        return Ok(());
    }
    let share = |coin: &Coin| Coin { denom: coin.denom.clone(), amount: ratio.of_floor(coin.amount) };
    let needed: Vec<Coin> = params.min_deposit(expedited).iter().map(share).collect();
    let reached = |coin: &Coin| {
        let found = amount_of(coins, &coin.denom);
        found > 0 && found >= coin.amount
    };
    if needed.iter().any(reached) {
        return Ok(());
    }
    let found = if coins.is_empty() { "nothing".into() } else { events::amount(coins) };
    let needed: Vec<_> = needed.iter().map(|coin| events::amount(std::slice::from_ref(coin))).collect();
    Err(GovError::DepositTooSmall { field, found, needed: needed.join(" or ") })
}
