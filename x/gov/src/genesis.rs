//! Genesis: everything but what follows from it (queues, the sums held, the latest upgrade) crosses.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::Timestamp;
use holdfast_proto::cosmos::gov::v1 as gov;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::holdfast::gov::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, Coin, Context, Height, Hrp, ModuleError};

use crate::calc::{Power, Share, Sums, time_ns};
use crate::errors::GovError;
use crate::keeper::{add_coins, amount_of};
use crate::keys::MODULE_NAME;
use crate::msgs::{check_plan_name, check_size, check_texts, coins};
use crate::params::Params;
use crate::query_server::{deposit_to_pb, proposal_to_pb, vote_to_pb};
use crate::state::{
    APPLIED_UPGRADES, CONTENTS, DEPOSIT_QUEUE, DEPOSITS, HELD, LAST_APPLIED, MODULE_VERSIONS,
    NEXT_PROPOSAL_ID, PARAMS, PROPOSALS, SETTLEMENTS, TALLIES, UPGRADE_PLAN, VOTES, VOTING_QUEUE,
};
use crate::types::{
    Content, Plan, Proposal, ProposalId, ProposalStatus, Settlement, SettlementKind, Tally, TallyProgress,
    TimeNs, Vote, Voting,
};

/// Longest reason of a failure, bytes.
const REASON_MAX: usize = 1_000;

fn bad(field: impl Into<String>, rule: impl std::fmt::Display) -> GovError {
    GovError::Genesis { field: field.into(), rule: rule.to_string() }
}

fn ascending<K: Ord>(field: &str, keys: impl Iterator<Item = K>) -> Result<(), GovError> {
    if keys.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(bad(field, "rows must be ascending and distinct"))
    }
}

/// A genesis state in domain types.
pub(crate) struct Genesis {
    params: Params,
    next_id: ProposalId,
    proposals: Vec<(ProposalId, Proposal, Content)>,
    deposits: Vec<((ProposalId, Address), Vec<Coin>)>,
    votes: Vec<((ProposalId, Address), Vote)>,
    tallies: Vec<(ProposalId, TallyProgress)>,
    settlements: Vec<((u32, ProposalId), Settlement)>,
    plan: Option<Plan>,
    applied: Vec<(String, Height)>,
    versions: Vec<(String, u64)>,
}

fn time(field: &str, at: Option<&Timestamp>) -> Result<TimeNs, GovError> {
    at.and_then(time_ns).ok_or_else(|| bad(field, "give a time from 1970 on"))
}

fn parse_address(field: &str, text: &str, hrp: &Hrp) -> Result<Address, GovError> {
    Address::parse(text, hrp).map_err(|e| bad(field, e))
}

fn optional_address(field: &str, text: &str, hrp: &Hrp) -> Result<Option<Address>, GovError> {
    (!text.is_empty()).then(|| parse_address(field, text, hrp)).transpose()
}

fn proposal(row: gov::Proposal, hrp: &Hrp) -> Result<(ProposalId, Proposal, Content), GovError> {
    let id = row.id;
    let field = |name: &str| format!("proposals[id {id}].{name}");
    let status = match gov::ProposalStatus::try_from(row.status) {
        Ok(gov::ProposalStatus::DepositPeriod) => ProposalStatus::DepositPeriod,
        Ok(gov::ProposalStatus::VotingPeriod) => ProposalStatus::VotingPeriod,
        Ok(gov::ProposalStatus::Passed) => ProposalStatus::Passed,
        Ok(gov::ProposalStatus::Rejected) => ProposalStatus::Rejected,
        Ok(gov::ProposalStatus::Failed) => ProposalStatus::Failed,
        _ => return Err(bad(field("status"), "must be 1 to 5")),
    };
    let submit_ns = time(&field("submit_time"), row.submit_time.as_ref())?;
    let deposit_end_ns = time(&field("deposit_end_time"), row.deposit_end_time.as_ref())?;
    let voting = match (&row.voting_start_time, &row.voting_end_time) {
        (None, None) => None,
        (start, end) => Some(Voting {
            start_ns: time(&field("voting_start_time"), start.as_ref())?,
            end_ns: time(&field("voting_end_time"), end.as_ref())?,
        }),
    };
    if deposit_end_ns < submit_ns || voting.is_some_and(|v| v.start_ns < submit_ns || v.end_ns < v.start_ns) {
        return Err(bad(field("submit_time"), "periods must follow each other"));
    }
    if voting.is_none() != (status == ProposalStatus::DepositPeriod) {
        return Err(bad(field("voting_start_time"), "must be there unless the status is DEPOSIT_PERIOD"));
    }
    let tally = row.final_tally_result.unwrap_or_default();
    let count = |name: &str, text: &str| {
        if text.is_empty() { Ok(0) } else { Coin::parse_amount(text).map_err(|e| bad(field(name), e)) }
    };
    let tally = Tally {
        yes: count("yes_count", &tally.yes_count)?,
        abstain: count("abstain_count", &tally.abstain_count)?,
        no: count("no_count", &tally.no_count)?,
        no_with_veto: count("no_with_veto_count", &tally.no_with_veto_count)?,
    };
    if status.is_open() && tally != Tally::default() {
        return Err(bad(field("final_tally_result"), "must be zeros until the proposal is decided"));
    }
    if row.failed_reason.len() > REASON_MAX
        || (status != ProposalStatus::Failed && !row.failed_reason.is_empty())
    {
        return Err(bad(field("failed_reason"), "must be empty unless FAILED, and at most 1000 bytes"));
    }
    check_texts(&row.title, &row.summary, &row.metadata).map_err(|e| bad(field("title"), e))?;
    check_size(&row.messages).map_err(|e| bad(field("messages"), e))?;
    let out = Proposal {
        status,
        proposer: parse_address(&field("proposer"), &row.proposer, hrp)?,
        expedited: row.expedited,
        submit_ns,
        deposit_end_ns,
        voting,
        total_deposit: coins("total_deposit", &row.total_deposit)
            .map_err(|e| bad(field("total_deposit"), e))?,
        tally,
        failed_reason: row.failed_reason,
    };
    let messages = row.messages.into_iter().map(Into::into).collect();
    let (title, summary, metadata) = (row.title, row.summary, row.metadata);
    Ok((id, out, Content { messages, title, summary, metadata }))
}

fn settlement(row: &pb::Settlement, hrp: &Hrp) -> Result<((u32, ProposalId), Settlement), GovError> {
    let kind = match pb::SettlementKind::try_from(row.kind) {
        Ok(pb::SettlementKind::Refund) => SettlementKind::Refund,
        Ok(pb::SettlementKind::Burn) => SettlementKind::Burn,
        Ok(pb::SettlementKind::Charge) => SettlementKind::Charge {
            ratio: Share::parse(&row.ratio).map_err(|e| bad("settlements.ratio", e))?,
            destination: optional_address("settlements.destination", &row.destination, hrp)?,
        },
        _ => return Err(bad("settlements.kind", "must be REFUND, BURN or CHARGE")),
    };
    let charge = matches!(kind, SettlementKind::Charge { .. });
    if !charge && (!row.ratio.is_empty() || !row.destination.is_empty()) {
        return Err(bad("settlements.ratio", "only for CHARGE"));
    }
    let last_depositor = optional_address("settlements.last_depositor", &row.last_depositor, hrp)?;
    let settlement = Settlement { kind, last_depositor, left_over: row.left_over };
    Ok(((row.attempt, row.proposal_id), settlement))
}

fn tally(row: &pb::TallyProgress, hrp: &Hrp) -> Result<(ProposalId, TallyProgress), GovError> {
    let power = |name: &str, text: &str| Power::parse(text).map_err(|e| bad(format!("tallies.{name}"), e));
    let sums = Sums {
        yes: power("yes", &row.yes)?,
        abstain: power("abstain", &row.abstain)?,
        no: power("no", &row.no)?,
        no_with_veto: power("no_with_veto", &row.no_with_veto)?,
    };
    let total_power = Coin::parse_amount(&row.total_power).map_err(|e| bad("tallies.total_power", e))?;
    let last_voter = optional_address("tallies.last_voter", &row.last_voter, hrp)?;
    Ok((row.proposal_id, TallyProgress { last_voter, total_power, sums }))
}

impl Genesis {
    /// Parses and checks everything that needs no other module.
    pub(crate) fn from_pb(genesis: pb::GenesisState, hrp: &Hrp) -> Result<Self, GovError> {
        let params = genesis.params.as_ref().ok_or_else(|| bad("params", "is missing"))?;
        let params = Params::from_pb(params, hrp).map_err(|e| bad("params", e))?;
        params.validate().map_err(|e| bad("params", e))?;
        let next_id = genesis.next_proposal_id;
        if next_id == 0 {
            return Err(bad("next_proposal_id", "must be at least 1"));
        }
        let numbered = |field: &str, id: ProposalId| {
            if (1..next_id).contains(&id) {
                Ok(())
            } else {
                Err(bad(field, format!("must be 1 to below next_proposal_id {next_id}")))
            }
        };
        let mut proposals = Vec::new();
        let (mut open, mut voting) = (BTreeMap::new(), BTreeSet::new());
        for row in genesis.proposals {
            let (id, proposal, content) = proposal(row, hrp)?;
            numbered("proposals.id", id)?;
            if proposal.status.is_open() {
                open.insert(id, proposal.total_deposit.clone());
            }
            if proposal.status == ProposalStatus::VotingPeriod {
                voting.insert(id);
            }
            proposals.push((id, proposal, content));
        }
        ascending("proposals", proposals.iter().map(|p| p.0))?;

        let settlements =
            genesis.settlements.iter().map(|s| settlement(s, hrp)).collect::<Result<Vec<_>, _>>()?;
        ascending("settlements", settlements.iter().map(|s| s.0))?;
        let mut settling = BTreeSet::new();
        for ((_, id), _) in &settlements {
            numbered("settlements.proposal_id", *id)?;
            if open.contains_key(id) || !settling.insert(*id) {
                return Err(bad("settlements.proposal_id", format!("{id} is open, or listed twice")));
            }
        }

        let mut deposits = Vec::new();
        let mut sums: BTreeMap<ProposalId, Vec<Coin>> = open.keys().map(|id| (*id, Vec::new())).collect();
        for row in &genesis.deposits {
            let id = row.proposal_id;
            let key = (id, parse_address("deposits.depositor", &row.depositor, hrp)?);
            let amount = coins("amount", &row.amount).map_err(|e| bad("deposits.amount", e))?;
            if amount.is_empty() {
                return Err(bad("deposits.amount", "must not be empty"));
            }
            match sums.get_mut(&id) {
                Some(sum) => {
                    add_coins(sum, &amount).ok_or_else(|| bad("deposits.amount", "passes 2^128 - 1"))?;
                }
                None if settling.contains(&id) => {}
                None => return Err(bad("deposits.proposal_id", format!("{id} holds no deposits"))),
            }
            deposits.push((key, amount));
        }
        ascending("deposits", deposits.iter().map(|d| d.0))?;
        if sums != open {
            return Err(bad("proposals.total_deposit", "must be the sum of the deposits while open"));
        }

        let mut votes = Vec::new();
        for row in genesis.votes {
            let id = row.proposal_id;
            if !voting.contains(&id) && !settling.contains(&id) {
                return Err(bad("votes.proposal_id", format!("{id} is not voted on")));
            }
            let key = (id, parse_address("votes.voter", &row.voter, hrp)?);
            votes.push((key, Vote::weighted(&row.options, row.metadata).map_err(|e| bad("votes", e))?));
        }
        ascending("votes", votes.iter().map(|v| v.0))?;

        let tallies = genesis.tallies.iter().map(|t| tally(t, hrp)).collect::<Result<Vec<_>, _>>()?;
        ascending("tallies", tallies.iter().map(|t| t.0))?;
        if let Some((id, _)) = tallies.iter().find(|(id, _)| !voting.contains(id)) {
            return Err(bad("tallies.proposal_id", format!("{id} is not voted on")));
        }
        Self::upgrades(genesis.plan, genesis.applied_upgrades, genesis.module_versions).map(
            |(plan, applied, versions)| Self {
                params,
                next_id,
                proposals,
                deposits,
                votes,
                tallies,
                settlements,
                plan,
                applied,
                versions,
            },
        )
    }

    #[allow(clippy::type_complexity)] // the three parts of one state
    fn upgrades(
        plan: Option<upgrade::Plan>,
        applied: Vec<pb::AppliedUpgrade>,
        versions: Vec<upgrade::ModuleVersion>,
    ) -> Result<(Option<Plan>, Vec<(String, Height)>, Vec<(String, u64)>), GovError> {
        let plan = plan.map(Plan::from_pb).transpose().map_err(|e| bad("plan", e))?;
        let mut heights = BTreeSet::new();
        for row in &applied {
            check_plan_name(&row.name).map_err(|e| bad("applied_upgrades.name", e))?;
            if row.height < 1 || !heights.insert(row.height) {
                return Err(bad("applied_upgrades.height", "must be above 0 and distinct"));
            }
        }
        ascending("applied_upgrades", applied.iter().map(|a| &a.name))?;
        if let Some(plan) = &plan
            && applied.iter().any(|a| a.name == plan.name)
        {
            return Err(bad("plan.name", "was applied already"));
        }
        if versions.iter().any(|v| v.name.is_empty() || v.version == 0) {
            return Err(bad("module_versions", "need a name and a version of at least 1"));
        }
        ascending("module_versions", versions.iter().map(|v| &v.name))?;
        let applied = applied.into_iter().map(|a| (a.name, a.height)).collect();
        Ok((plan, applied, versions.into_iter().map(|v| (v.name, v.version)).collect()))
    }

    /// Writes the state. Fails with 8 when the gov account does not hold exactly the deposits.
    pub(crate) fn init(self, ctx: &mut Context<'_>, bank: &dyn BankKeeper) -> Result<(), ModuleError> {
        PARAMS.set(ctx.store, &self.params)?;
        NEXT_PROPOSAL_ID.set(ctx.store, self.next_id)?;
        for (id, proposal, content) in &self.proposals {
            PROPOSALS.set(ctx.store, id, proposal)?;
            CONTENTS.set(ctx.store, id, content)?;
            match (proposal.status, proposal.voting) {
                (ProposalStatus::DepositPeriod, _) => {
                    DEPOSIT_QUEUE.insert(ctx.store, &(proposal.deposit_end_ns, *id))?;
                }
                (ProposalStatus::VotingPeriod, Some(voting)) => {
                    VOTING_QUEUE.insert(ctx.store, &(voting.end_ns, *id))?;
                }
                _ => {}
            }
        }
        let mut held = Vec::new();
        for (key, coins) in &self.deposits {
            DEPOSITS.set(ctx.store, key, coins)?;
            add_coins(&mut held, coins).ok_or_else(|| bad("deposits.amount", "passes 2^128 - 1"))?;
        }
        for coin in &held {
            HELD.set(ctx.store, &coin.denom, &coin.amount)?;
        }
        let gov = Address::module(MODULE_NAME);
        for coin in held.iter().chain(&self.params.min_deposit) {
            let (denom, owed) = (&coin.denom, amount_of(&held, &coin.denom));
            let balance = bank.balance(ctx.store, &gov, denom)?;
            if balance != owed {
                let rule = format!("add up to {owed}{denom}, but the gov account holds {balance}{denom}");
                return Err(bad("deposits", rule).into());
            }
        }
        for (key, vote) in &self.votes {
            VOTES.set(ctx.store, key, vote)?;
        }
        for (id, progress) in &self.tallies {
            TALLIES.set(ctx.store, id, progress)?;
        }
        for (key, settlement) in &self.settlements {
            SETTLEMENTS.set(ctx.store, key, settlement)?;
        }
        if let Some(plan) = &self.plan {
            UPGRADE_PLAN.set(ctx.store, plan)?;
        }
        for (name, height) in &self.applied {
            APPLIED_UPGRADES.set(ctx.store, name, height)?;
        }
        if let Some((name, _)) = self.applied.iter().max_by_key(|(_, height)| *height) {
            LAST_APPLIED.set(ctx.store, name)?;
        }
        for (name, version) in &self.versions {
            MODULE_VERSIONS.set(ctx.store, name, version)?;
        }
        Ok(())
    }
}

/// The whole state back in wire form.
pub(crate) fn export(store: &dyn KvRead, hrp: &Hrp) -> Result<pb::GenesisState, ModuleError> {
    let text = |address: Option<Address>| address.map(|a| a.to_bech32(hrp)).unwrap_or_default();
    let mut out = pb::GenesisState {
        params: Some(PARAMS.load(store)?.to_pb(hrp)),
        next_proposal_id: NEXT_PROPOSAL_ID.peek(store)?,
        plan: UPGRADE_PLAN.get(store)?.map(|plan| plan.to_pb()),
        ..pb::GenesisState::default()
    };
    for row in PROPOSALS.iter(store, Order::Ascending) {
        let (id, proposal) = row?;
        out.proposals.push(proposal_to_pb(id, proposal, CONTENTS.load(store, &id)?, hrp));
    }
    for row in DEPOSITS.iter(store, Order::Ascending) {
        let ((id, depositor), coins) = row?;
        out.deposits.push(deposit_to_pb(id, &depositor, &coins, hrp));
    }
    for row in VOTES.iter(store, Order::Ascending) {
        let ((id, voter), vote) = row?;
        out.votes.push(vote_to_pb(id, &voter, &vote, hrp));
    }
    for row in TALLIES.iter(store, Order::Ascending) {
        let (proposal_id, TallyProgress { last_voter, total_power, sums }) = row?;
        out.tallies.push(pb::TallyProgress {
            proposal_id,
            last_voter: text(last_voter),
            total_power: total_power.to_string(),
            yes: sums.yes.to_string(),
            abstain: sums.abstain.to_string(),
            no: sums.no.to_string(),
            no_with_veto: sums.no_with_veto.to_string(),
        });
    }
    for row in SETTLEMENTS.iter(store, Order::Ascending) {
        let ((attempt, proposal_id), Settlement { kind, last_depositor, left_over }) = row?;
        let (kind, ratio, destination) = match kind {
            SettlementKind::Refund => (pb::SettlementKind::Refund, String::new(), None),
            SettlementKind::Burn => (pb::SettlementKind::Burn, String::new(), None),
            SettlementKind::Charge { ratio, destination } => {
                (pb::SettlementKind::Charge, ratio.to_string(), destination)
            }
        };
        out.settlements.push(pb::Settlement {
            attempt,
            proposal_id,
            kind: kind.into(),
            ratio,
            destination: text(destination),
            last_depositor: text(last_depositor),
            left_over,
        });
    }
    for row in APPLIED_UPGRADES.iter(store, Order::Ascending) {
        let (name, height) = row?;
        out.applied_upgrades.push(pb::AppliedUpgrade { name, height });
    }
    for row in MODULE_VERSIONS.iter(store, Order::Ascending) {
        let (name, version) = row?;
        out.module_versions.push(upgrade::ModuleVersion { name, version });
    }
    Ok(out)
}
