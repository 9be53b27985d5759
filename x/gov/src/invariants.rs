//! What must hold in every state. For tests and simulation: O(deposits + proposals).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, Coin};

use crate::keeper::add_coins;
use crate::keys::MODULE_NAME;
use crate::state::{
    CONTENTS, DEPOSIT_QUEUE, DEPOSITS, HELD, PARAMS, PROPOSALS, SETTLEMENTS, TALLIES, VOTES, VOTING_QUEUE,
};
use crate::types::ProposalStatus;

fn text(error: StoreError) -> String {
    format!("gov: {error}")
}

/// Every invariant of the module. The error names the first that does not hold, and where.
pub fn check(store: &dyn KvRead, bank: &dyn BankKeeper) -> Result<(), String> {
    deposits_are_backed(store, bank)?;
    rows_belong_together(store)
}

/// The gov account holds exactly the deposits: of each denomination that is or was taken.
pub fn deposits_are_backed(store: &dyn KvRead, bank: &dyn BankKeeper) -> Result<(), String> {
    let mut sums: BTreeMap<String, u128> = BTreeMap::new();
    for coin in PARAMS.load(store).map_err(text)?.min_deposit {
        sums.insert(coin.denom, 0);
    }
    for row in DEPOSITS.iter(store, Order::Ascending) {
        let (_, coins) = row.map_err(text)?;
        for coin in coins {
            let sum = sums.entry(coin.denom).or_default();
            *sum = sum.checked_add(coin.amount).ok_or("gov: deposits pass 2^128")?;
        }
    }
    let mut held = BTreeMap::new();
    for row in HELD.iter(store, Order::Ascending) {
        let (denom, amount) = row.map_err(text)?;
        sums.entry(denom.clone()).or_default();
        held.insert(denom, amount);
    }
    let gov = Address::module(MODULE_NAME);
    for (denom, sum) in &sums {
        let noted = held.get(denom).copied().unwrap_or(0);
        let balance = bank.balance(store, &gov, denom).map_err(text)?;
        if noted != *sum || balance != *sum {
            return Err(format!("gov: deposits of {denom} add up to {sum}, {noted} noted, {balance} held"));
        }
    }
    Ok(())
}

/// Each open proposal is in its queue once, its deposits add up, votes and deposits belong to an open or unsettled
/// proposal, and counts to one that is voted on.
pub fn rows_belong_together(store: &dyn KvRead) -> Result<(), String> {
    let (mut open, mut voting) = (BTreeSet::new(), BTreeSet::new());
    let (mut deposit_queue, mut voting_queue) = (BTreeSet::new(), BTreeSet::new());
    let mut totals: BTreeMap<u64, Vec<Coin>> = BTreeMap::new();
    for row in PROPOSALS.iter(store, Order::Ascending) {
        let (id, proposal) = row.map_err(text)?;
        if !CONTENTS.has(store, &id).map_err(text)? {
            return Err(format!("gov: proposal {id} has no content"));
        }
        if !proposal.status.is_open() {
            continue;
        }
        open.insert(id);
        totals.insert(id, proposal.total_deposit);
        match (proposal.status, proposal.voting) {
            (ProposalStatus::VotingPeriod, Some(period)) => {
                voting.insert(id);
                voting_queue.insert((period.end_ns, id));
            }
            (ProposalStatus::DepositPeriod, None) => {
                deposit_queue.insert((proposal.deposit_end_ns, id));
            }
            _ => return Err(format!("gov: status and voting period of proposal {id} disagree")),
        }
    }
    let queue = |set: &holdfast_store::KeySet<(u64, u64)>| {
        set.iter(store, Order::Ascending).collect::<Result<BTreeSet<_>, _>>().map_err(text)
    };
    if queue(&DEPOSIT_QUEUE)? != deposit_queue {
        return Err("gov: the deposit queue is not that of the proposals".into());
    }
    if queue(&VOTING_QUEUE)? != voting_queue {
        return Err("gov: the voting queue is not that of the proposals".into());
    }
    let mut settling = BTreeSet::new();
    for row in SETTLEMENTS.iter(store, Order::Ascending) {
        let ((_, id), _) = row.map_err(text)?;
        if open.contains(&id) || !settling.insert(id) {
            return Err(format!("gov: proposal {id} is settled twice or while open"));
        }
    }
    let mut sums: BTreeMap<u64, Vec<Coin>> = open.iter().map(|id| (*id, Vec::new())).collect();
    for row in DEPOSITS.iter(store, Order::Ascending) {
        let ((id, _), coins) = row.map_err(text)?;
        match sums.get_mut(&id) {
            Some(sum) => add_coins(sum, &coins).ok_or("gov: deposits pass 2^128")?,
            None if settling.contains(&id) => {}
            None => return Err(format!("gov: a deposit on proposal {id}, which holds none")),
        }
    }
    if sums != totals {
        return Err(format!("gov: deposits add up to {sums:?}, noted {totals:?}"));
    }
    for row in VOTES.iter(store, Order::Ascending) {
        let ((id, _), _) = row.map_err(text)?;
        if !voting.contains(&id) && !settling.contains(&id) {
            return Err(format!("gov: a vote on proposal {id}, which takes none"));
        }
    }
    for row in TALLIES.iter(store, Order::Ascending) {
        let (id, _) = row.map_err(text)?;
        if !voting.contains(&id) {
            return Err(format!("gov: a count of proposal {id}, which is not voted on"));
        }
    }
    Ok(())
}
