//! What is left of a run: figures for programs, and the check that no coin was made or lost.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use holdfast_proto::holdfast::escrow::v1 as escrow;
use serde::Serialize;

use super::board::{Board, Change, Stretch};
use super::load::Requests;

/// Balances of everybody who has a part in an escrow, base units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balances {
    /// Of the account that pays.
    pub creator: u128,
    /// Of the hosts, in the order of their numbers.
    pub hosts: Vec<u128>,
    /// Of the module that holds what is not paid yet.
    pub module: u128,
    /// Of the account that takes fees.
    pub collector: u128,
    /// Of all accounts of the chain.
    pub supply: u128,
}

/// Where the coins went, base units as decimal text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coins {
    /// Every account has to the unit what the settlement says, and the supply is what it was.
    pub conserved: bool,
    /// Whether every escrow is settled.
    pub settled: bool,
    /// Paid into escrows.
    pub amount: String,
    /// Earned by hosts.
    pub paid: String,
    /// Taken as fees.
    pub fees: String,
    /// Given back to the creator.
    pub refunded: String,
}

/// One host at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostOutcome {
    /// `host0`.
    pub name: String,
    /// Whether it is flagged at the end.
    pub flagged: bool,
    /// How often a repair brought it back.
    pub restored: u64,
    /// How often it was given up.
    pub gave_up: u64,
    /// Attempts of all its repairs.
    pub repair_attempts: u64,
    /// Starts that were sent to it while it was flagged; always 0.
    pub starts_while_flagged: u64,
    /// Ghosts that it was charged for while a repair ran; always 0.
    pub accountable_ghosts_during_repair: u64,
    /// Time flagged, milliseconds.
    pub blocked_ms: u64,
    /// Inferences that it missed.
    pub missed: u64,
    /// Inferences that it completed.
    pub completed: u64,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What became of the requests.
    pub requests: Requests,
    /// Where the coins went.
    pub coins: Coins,
    /// The hosts in the order of their numbers.
    pub hosts: Vec<HostOutcome>,
}

/// An [`Outcome`] with what led to it, for `report.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report<'a> {
    /// The figures.
    #[serde(flatten)]
    pub outcome: &'a Outcome,
    /// The command line.
    pub command: &'a str,
    /// Version of this program.
    pub version: &'a str,
    /// Milliseconds from the first request to the settlement.
    pub elapsed_ms: u64,
    /// Milliseconds from the first request to the end of the last.
    pub load_ms: u64,
    /// How often a client sent a request again.
    pub sent_again: u64,
    /// Last reasons of failed requests.
    pub failures: Vec<String>,
    /// Highest nonce of each session, by escrow.
    pub nonces: Vec<(u64, u64)>,
    /// Faults as given, by host.
    pub faults: Vec<Option<String>>,
    /// Time line of each host.
    pub lines: Vec<&'a [Stretch]>,
    /// What happened.
    pub changes: &'a [Change],
}

/// A decimal amount of the chain.
fn units(text: &str) -> u128 {
    text.parse().unwrap_or(0)
}

/// Compares what the chain has with what the settlements say.
#[must_use]
pub fn coins(before: &Balances, after: &Balances, escrows: &[escrow::Escrow], hosts: &[String]) -> Coins {
    let mut sums = [0_u128; 4];
    let mut earned = vec![0_u128; hosts.len()];
    let (mut settled, mut held, mut adds_up) = (true, 0_u128, true);
    for row in escrows {
        let amount = row.config.as_ref().map_or(0, |config| units(&config.amount));
        let done = row.outcome.clone().unwrap_or_default();
        let (paid, fees, refunded) = (units(&done.paid), units(&done.fees), units(&done.refunded));
        for (sum, more) in sums.iter_mut().zip([amount, paid, fees, refunded]) {
            *sum = sum.saturating_add(more);
        }
        for tally in &done.hosts {
            match hosts.iter().position(|host| *host == tally.owner).and_then(|at| earned.get_mut(at)) {
                Some(sum) => *sum = sum.saturating_add(units(&tally.cost)),
                None => adds_up = false,
            }
        }
        settled &= row.status() == escrow::EscrowStatus::Settled;
        match row.outcome {
            Some(_) => adds_up &= paid.saturating_add(fees).saturating_add(refunded) == amount,
            None => held = held.saturating_add(amount),
        }
    }
    let [amount, paid, fees, refunded] = sums;
    let hosts_have = before.hosts.iter().zip(&earned).map(|(had, got)| had.saturating_add(*got));
    let conserved = adds_up
        && !escrows.is_empty()
        && after.supply == before.supply
        && earned.iter().sum::<u128>() == paid
        && after.hosts.iter().copied().eq(hosts_have)
        && after.creator.saturating_add(amount) == before.creator.saturating_add(refunded)
        && after.module == before.module.saturating_add(held)
        && after.collector == before.collector.saturating_add(fees);
    Coins {
        conserved,
        settled: settled && !escrows.is_empty(),
        amount: amount.to_string(),
        paid: paid.to_string(),
        fees: fees.to_string(),
        refunded: refunded.to_string(),
    }
}

/// The hosts as the board has them.
#[must_use]
pub fn hosts(board: &Board) -> Vec<HostOutcome> {
    let outcome = |host: &super::board::HostRow| {
        let counters = &host.counters;
        HostOutcome {
            name: host.name.clone(),
            flagged: host.flag.is_some(),
            restored: counters.restored,
            gave_up: counters.gave_up,
            repair_attempts: counters.repair_attempts,
            starts_while_flagged: counters.starts_while_flagged,
            accountable_ghosts_during_repair: counters.accountable_ghosts_during_repair,
            blocked_ms: counters.blocked_ms,
            missed: counters.missed.into(),
            completed: counters.completed.into(),
        }
    };
    board.hosts.iter().map(outcome).collect()
}

/// Writes `report.json`, `timeline.svg` and `report.html` into `folder`.
///
/// # Errors
/// A file that cannot be written.
pub fn write(report: &Report<'_>, board: &Board, folder: &Path) -> Result<Vec<PathBuf>> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    let picture = super::page::timeline(report, board);
    let page = super::page::page(report, board, &picture);
    let mut written = Vec::new();
    for (name, text) in [("report.json", json), ("timeline.svg", picture), ("report.html", page)] {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn tally(owner: &str, cost: u64) -> escrow::HostTally {
        escrow::HostTally { owner: owner.into(), cost: cost.to_string(), ..Default::default() }
    }

    fn settled() -> escrow::Escrow {
        escrow::Escrow {
            config: Some(escrow::FrozenConfig { amount: "1000".into(), ..Default::default() }),
            status: escrow::EscrowStatus::Settled.into(),
            outcome: Some(escrow::Outcome {
                paid: "120".into(),
                fees: "80".into(),
                refunded: "800".into(),
                hosts: vec![tally("a", 100), tally("b", 20)],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn balances(creator: u128, hosts: [u128; 2], module: u128, collector: u128) -> Balances {
        Balances { creator, hosts: hosts.to_vec(), module, collector, supply: 10_000 }
    }

    #[test]
    fn coins_are_conserved_only_if_every_account_has_its_part_to_the_unit() {
        let names = ["a".to_owned(), "b".to_owned()];
        let before = balances(5_000, [1_000, 2_000], 7, 0);
        let good = balances(4_800, [1_100, 2_020], 7, 80);
        let coins_of = |after: &Balances| coins(&before, after, &[settled()], &names);
        let told = coins_of(&good);
        assert!(told.conserved && told.settled);
        assert_eq!([told.amount, told.paid, told.fees, told.refunded], ["1000", "120", "80", "800"]);
        for bad in [
            balances(4_801, [1_100, 2_020], 7, 80),
            balances(4_800, [1_099, 2_021], 7, 80),
            balances(4_800, [1_100, 2_020], 8, 80),
            balances(4_800, [1_100, 2_020], 7, 79),
            Balances { supply: 10_001, ..good.clone() },
        ] {
            assert!(!coins_of(&bad).conserved, "{bad:?}");
        }
        let mut short = settled();
        short.outcome.as_mut().unwrap().refunded = "799".into();
        assert!(!coins(&before, &balances(4_799, [1_100, 2_020], 7, 80), &[short], &names).conserved);
        assert!(!coins(&before, &good, &[settled()], &names[..1]).conserved, "paid to a stranger");
        assert!(!coins(&before, &before, &[], &names).conserved, "nothing to compare with");
    }

    #[test]
    fn an_escrow_that_is_not_settled_holds_its_amount() {
        let names = ["a".to_owned(), "b".to_owned()];
        let before = balances(5_000, [1_000, 2_000], 7, 0);
        let open = escrow::Escrow { outcome: None, status: 1, ..settled() };
        let held = balances(4_000, [1_000, 2_000], 1_007, 0);
        let told = coins(&before, &held, std::slice::from_ref(&open), &names);
        assert!(told.conserved && !told.settled);
        let lost = balances(4_000, [1_000, 2_000], 1_006, 0);
        assert!(!coins(&before, &lost, &[open], &names).conserved);
    }
}
