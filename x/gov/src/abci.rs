//! End of a block, step E5: periods that are over, and the clearing away after them.
//!
//! | what | at most in one block |
//! |---|---|
//! | proposals dropped at the end of their deposit period | [`DUE_MAX`] |
//! | proposals looked at after the end of their voting period | [`DUE_MAX`] |
//! | votes counted, of all of them together | [`TALLY_VOTES_MAX`] |
//! | proposals whose messages are run | [`EXECUTIONS_MAX`], each with [`PROPOSAL_GAS_MAX`](crate::PROPOSAL_GAS_MAX) |
//! | deposits given back or burned, votes removed, together | [`SETTLE_ROWS_MAX`] |
//!
//! The rest waits for the next block in the same order. Open proposals whose time has not come cost nothing: the
//! queues are read from the front.

use holdfast_proto::Any;
use holdfast_types::{Address, Coin, Context, ModuleError, sdk};

use crate::calc::{Outcome, Share, Sums, outcome};
use crate::deps::Deps;
use crate::errors::GovError;
use crate::events;
use crate::keeper::Keeper;
use crate::keys::MODULE_NAME;
use crate::messages;
use crate::state::{
    CONTENTS, DEPOSIT_QUEUE, DEPOSITS, HELD, PROPOSALS, SETTLEMENTS, TALLIES, VOTES, VOTING_QUEUE,
};
use crate::types::{
    Proposal, ProposalId, ProposalStatus, Settlement, SettlementKind, TallyProgress, TimeNs, Voting,
};

/// Proposals of each queue looked at in one block.
pub const DUE_MAX: usize = 100;
/// Votes counted in one block.
pub const TALLY_VOTES_MAX: usize = 1_000;
/// Proposals whose messages are run in one block.
pub const EXECUTIONS_MAX: usize = 8;
/// Deposits paid out or burned and votes removed in one block.
pub const SETTLE_ROWS_MAX: usize = 1_000;

/// Step E5. A proposal that fails leaves its neighbours alone.
///
/// # Errors
/// Only when the queues themselves cannot be read.
pub fn end_block(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    drop_unfunded(ctx)?;
    count_votes(ctx, deps)?;
    settle(ctx, deps)
}

/// Drops proposals whose deposit period ended without enough.
fn drop_unfunded(ctx: &mut Context<'_>) -> Result<(), ModuleError> {
    let due: Vec<(TimeNs, ProposalId)> =
        DEPOSIT_QUEUE.up_to(ctx.store, &ctx.block.time_ns).take(DUE_MAX).collect::<Result<_, _>>()?;
    for row in due {
        let id = row.1;
        let dropped = ctx.branch(|ctx| {
            let params = Keeper.params(ctx.store)?;
            let burn = params.burn_proposal_deposit_prevote;
            DEPOSIT_QUEUE.remove(ctx.store, &row)?;
            Keeper.remove(ctx, id)?;
            let kind = if burn { SettlementKind::Burn } else { SettlementKind::Refund };
            Keeper.settle_later(ctx, id, kind)?;
            events::dropped(ctx, id);
            Ok::<(), ModuleError>(())
        });
        if let Err(error) = dropped {
            // Off the queue, or it would be tried for ever before all others.
            DEPOSIT_QUEUE.remove(ctx.store, &row)?;
            events::step_discarded(ctx, "deposit_end", id, &error);
        }
    }
    Ok(())
}

/// What is left of a block's bounds.
struct Budget {
    votes: usize,
    executions: usize,
    /// Power of all voters, asked for once in a block.
    total_power: Option<u128>,
}

/// Counts, decides and carries out proposals whose voting period has ended.
fn count_votes(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    let due: Vec<(TimeNs, ProposalId)> =
        VOTING_QUEUE.up_to(ctx.store, &ctx.block.time_ns).take(DUE_MAX).collect::<Result<_, _>>()?;
    let mut budget = Budget { votes: TALLY_VOTES_MAX, executions: EXECUTIONS_MAX, total_power: None };
    for row in due {
        if budget.votes == 0 || budget.executions == 0 {
            break;
        }
        let id = row.1;
        if let Err(error) = ctx.branch(|ctx| count(ctx, deps, id, &mut budget)) {
            events::step_discarded(ctx, "voting_end", id, &error);
            give_up(ctx, row)?;
        }
    }
    Ok(())
}

/// A proposal that cannot be counted fails and its deposits go back.
fn give_up(ctx: &mut Context<'_>, row: (TimeNs, ProposalId)) -> Result<(), ModuleError> {
    let id = row.1;
    VOTING_QUEUE.remove(ctx.store, &row)?;
    TALLIES.remove(ctx.store, &id)?;
    // Unreadable proposals stay as they are.
    if let Ok(Some(mut proposal)) = PROPOSALS.get(ctx.store, &id) {
        proposal.status = ProposalStatus::Failed;
        proposal.failed_reason = "votes could not be counted".into();
        PROPOSALS.set(ctx.store, &id, &proposal)?;
        Keeper.settle_later(ctx, id, SettlementKind::Refund)?;
        events::decided(ctx, id, "proposal_failed", "votes could not be counted");
    }
    Ok(())
}

/// Counts a slice of the votes; after the last one decides.
fn count(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    id: ProposalId,
    budget: &mut Budget,
) -> Result<(), ModuleError> {
    let proposal = PROPOSALS.load(ctx.store, &id)?;
    let Some(voting) = proposal.voting else {
        return Err(GovError::Corrupt("a proposal in the voting queue without a voting period").into());
    };
    let mut progress = match TALLIES.get(ctx.store, &id)? {
        Some(progress) => progress,
        None => {
            let total_power = match budget.total_power {
                Some(total) => total,
                None => deps.power.total_power(ctx.store, ctx.block)?,
            };
            budget.total_power = Some(total_power);
            TallyProgress { last_voter: None, total_power, sums: Sums::default() }
        }
    };
    let after = progress.last_voter.map(|voter| (id, voter));
    let asked = budget.votes;
    let page: Vec<_> =
        VOTES.prefix_after(ctx.store, &id, after.as_ref()).take(asked).collect::<Result<_, _>>()?;
    budget.votes = asked.saturating_sub(page.len());
    for ((_, voter), vote) in &page {
        let power = deps.power.power(ctx.store, ctx.block, voter)?;
        progress.sums.add_vote(power, vote).ok_or(GovError::Corrupt("voting power passes 2^128"))?;
        progress.last_voter = Some(*voter);
    }
    if page.len() >= asked {
        // There may be more.
        return Ok(TALLIES.set(ctx.store, &id, &progress)?);
    }
    TALLIES.remove(ctx.store, &id)?;
    VOTING_QUEUE.remove(ctx.store, &(voting.end_ns, id))?;
    let passed = decide(ctx, deps, id, proposal, voting, &progress)?;
    budget.executions = budget.executions.saturating_sub(usize::from(passed));
    Ok(())
}

/// Decides by a finished count. Returns whether the proposal passed and its messages were run.
fn decide(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    id: ProposalId,
    mut proposal: Proposal,
    voting: Voting,
    progress: &TallyProgress,
) -> Result<bool, ModuleError> {
    let params = Keeper.params(ctx.store)?;
    let outcome = outcome(&progress.sums, progress.total_power, &params.limits(proposal.expedited))
        .ok_or(GovError::Corrupt("voting power passes 2^128"))?;
    if proposal.expedited && outcome != Outcome::Passed {
        // Voted on as a normal one from its begin; the votes given so far stand and can be changed.
        let end_ns = voting.start_ns.saturating_add(params.voting_period_ns(false)).max(voting.end_ns);
        proposal.expedited = false;
        proposal.voting = Some(Voting { end_ns, ..voting });
        VOTING_QUEUE.insert(ctx.store, &(end_ns, id))?;
        PROPOSALS.set(ctx.store, &id, &proposal)?;
        events::decided(
            ctx,
            id,
            "expedited_proposal_rejected",
            "expedited proposal converted to a normal one",
        );
        return Ok(false);
    }
    let (burn, why) = match outcome {
        Outcome::Passed => (false, ""),
        Outcome::NoPower => (false, "nobody has voting power"),
        Outcome::NoQuorum => (params.burn_vote_quorum, "the quorum was missed"),
        Outcome::AllAbstain => (false, "nobody voted but to abstain"),
        Outcome::Vetoed => (params.burn_vote_veto, "vetoed"),
        Outcome::TooFewYes => (false, "too few voted yes"),
    };
    proposal.tally = progress.sums.to_tally();
    proposal.status =
        if outcome == Outcome::Passed { ProposalStatus::Passed } else { ProposalStatus::Rejected };
    // Written before its messages run, so that they find it decided.
    PROPOSALS.set(ctx.store, &id, &proposal)?;
    let kind = if burn { SettlementKind::Burn } else { SettlementKind::Refund };
    Keeper.settle_later(ctx, id, kind)?;
    if outcome != Outcome::Passed {
        events::decided(ctx, id, "proposal_rejected", why);
        return Ok(false);
    }
    let content = CONTENTS.load(ctx.store, &id)?;
    let messages: Vec<Any> = content.messages.into_iter().map(Any::from).collect();
    match messages::run(ctx, deps, &messages) {
        Ok(()) => events::decided(ctx, id, "proposal_passed", "passed"),
        Err(failure) => {
            let url = messages.get(failure.index).map_or("", |m| m.type_url.as_str());
            let url: String = url.chars().take(200).collect();
            let (index, error) = (failure.index, failure.error);
            proposal.status = ProposalStatus::Failed;
            proposal.failed_reason =
                format!("messages[{index}] {url}: codespace {}, code {}", error.codespace, error.code);
            PROPOSALS.set(ctx.store, &id, &proposal)?;
            let log = format!("messages[{index}] {url} failed: {error}");
            events::decided(ctx, id, "proposal_failed", log);
        }
    }
    Ok(true)
}

/// Gives deposits of closed proposals back, or burns them, and removes their votes.
fn settle(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    // As many as there can be steps: each settlement costs at least one.
    let queue: Vec<((u32, ProposalId), Settlement)> = SETTLEMENTS
        .iter(ctx.store, holdfast_store::Order::Ascending)
        .take(DUE_MAX)
        .collect::<Result<_, _>>()?;
    let mut rows = SETTLE_ROWS_MAX;
    for (key, settlement) in queue {
        if rows == 0 {
            break;
        }
        settle_one(ctx, deps, key, settlement, &mut rows)?;
    }
    Ok(())
}

/// Works off at most `rows` rows of one settlement.
fn settle_one(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    (attempt, id): (u32, ProposalId),
    mut settlement: Settlement,
    rows: &mut usize,
) -> Result<(), ModuleError> {
    let after = settlement.last_depositor.map(|depositor| (id, depositor));
    let page: Vec<((ProposalId, Address), Vec<Coin>)> =
        DEPOSITS.prefix_after(ctx.store, &id, after.as_ref()).take(*rows).collect::<Result<_, _>>()?;
    *rows = rows.saturating_sub(page.len());
    for ((_, depositor), coins) in &page {
        settlement.last_depositor = Some(*depositor);
        let paid = ctx.branch(|ctx| pay(ctx, deps, id, depositor, coins, settlement.kind));
        if let Err(error) = paid {
            settlement.left_over = true;
            let step = if settlement.kind == SettlementKind::Burn { "burn" } else { "refund" };
            let key = format!("{id}/{}", ctx.bech32(depositor));
            events::step_discarded(ctx, step, key, &error);
        }
    }
    let key = (attempt, id);
    if *rows > 0 {
        let removed = VOTES.clear_prefix(ctx.store, &id, *rows)?;
        *rows = rows.saturating_sub(removed);
    }
    if *rows == 0 {
        // There may be more.
        return Ok(SETTLEMENTS.set(ctx.store, &key, &settlement)?);
    }
    // A settlement without rows costs one, too.
    *rows = rows.saturating_sub(1);
    SETTLEMENTS.remove(ctx.store, &key)?;
    if settlement.left_over {
        // Again, after everybody else.
        let again = Settlement { last_depositor: None, left_over: false, ..settlement };
        SETTLEMENTS.set(ctx.store, &(attempt.saturating_add(1), id), &again)?;
    }
    Ok(())
}

/// Pays one deposit out, or burns it, and forgets it.
fn pay(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    id: ProposalId,
    depositor: &Address,
    coins: &[Coin],
    kind: SettlementKind,
) -> Result<(), ModuleError> {
    let gov = Address::module(MODULE_NAME);
    let (ratio, destination) = match kind {
        SettlementKind::Refund => (Share::ZERO, None),
        SettlementKind::Burn => (Share::ONE, None),
        SettlementKind::Charge { ratio, destination } => (ratio, destination),
    };
    DEPOSITS.remove(ctx.store, &(id, *depositor))?;
    for coin in coins {
        let taken = ratio.of_floor(coin.amount);
        let part = |amount| Coin { denom: coin.denom.clone(), amount };
        if taken > 0 {
            match &destination {
                Some(to) => {
                    deps.accounts.ensure_account(ctx, to)?;
                    deps.bank.send(ctx, &gov, to, &part(taken))?;
                }
                None => deps.bank.burn(ctx, &gov, &part(taken))?,
            }
        }
        deps.bank.send(ctx, &gov, depositor, &part(coin.amount.saturating_sub(taken)))?;
        let held = HELD.get(ctx.store, &coin.denom)?.unwrap_or(0);
        let held = held
            .checked_sub(coin.amount)
            .ok_or_else(|| ModuleError::sdk(sdk::LOGIC, "more deposits than are held"))?;
        if held == 0 {
            HELD.remove(ctx.store, &coin.denom)?;
        } else {
            HELD.set(ctx.store, &coin.denom, &held)?;
        }
    }
    Ok(())
}
