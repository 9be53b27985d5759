//! After the faults: what can heal is healed, light traffic goes on, and within a bound of virtual time every repair has
//! come to its end; then the session is settled.

use holdfast_escrow::session::Phase;
use holdfast_gateway::core::{RepairView, Verb};

use holdfast_types::Address;

use super::schedule::{Fate, Heal, Store, Work};
use super::watch::{Check, Law, breach, own_fork};
use super::world::{Over, World};

const MINUTE: u64 = 60_000;
/// Names of the requests made here begin above those of the schedule.
const FIRST_NAME: u64 = 1_000_000;

/// Where the end of a run stands.
#[derive(Debug, Default)]
pub(super) struct Calm {
    begun: bool,
    names: u64,
    forced: u64,
    second_heal: bool,
    pub(super) finalized: bool,
    finalized_ms: u64,
    /// Nobody is healed a second time: tests of this file's own laws.
    pub(super) believe_healed: bool,
    /// First nonce since the faults stopped and the same participants are flagged.
    first_nonce: u64,
    flagged: Vec<Address>,
}

impl World<'_> {
    /// Weight of those who compute what we compute.
    fn honest_weight(&self) -> u64 {
        let honest = self.nodes.iter().filter(|node| !node.member.wrong_terms && node.mask.fork.is_none());
        let honest = honest.filter(|node| !self.own_fork(&node.member.address));
        honest.map(|node| self.cast.terms.weight(&node.member.address)).sum()
    }

    /// Whether it is flagged for a diff of ours that our log does not hold.
    fn own_fork(&self, address: &Address) -> bool {
        self.watch.flags.get(address).is_some_and(own_fork)
    }

    fn quorum_is_honest(&self) -> bool {
        self.honest_weight() >= self.cast.terms.quorum()
    }

    fn hopeless(&self, host: usize) -> bool {
        let node = &self.nodes[host];
        let reset = self.cast.gateway.allow_reset && node.member.consent;
        node.member.wrong_terms
            || node.mask.fork.is_some_and(|fork| fork.heal == Heal::Never)
            || self.own_fork(&node.member.address) && !reset
    }

    /// A look at the run every few seconds, once the faults have stopped.
    pub(super) fn pulse(&mut self) -> Check {
        let age_ms = self.now_ms() - self.calm_ms;
        if !self.calm.begun {
            self.calm.begun = true;
            self.lift_faults();
            self.calm.first_nonce = self.watch.ledger.nonce + 1;
            self.heal(|heal| heal == Heal::Restart);
            self.pulse_after(3_000);
            return Ok(());
        }
        let flagged: Vec<Address> = self.watch.flags.keys().copied().collect();
        if flagged != self.calm.flagged {
            self.calm.flagged = flagged;
            self.calm.first_nonce = self.watch.ledger.nonce + 1;
        }
        if age_ms > 15 * MINUTE && !self.calm.second_heal && !self.calm.believe_healed {
            // Reset did not come about: its operator takes the disk away.
            self.calm.second_heal = true;
            // Whoever is sound only from now on has its turn within the longest backoff: the settlement waits for that.
            self.calm.finalized_ms = 0;
            self.heal(|heal| heal != Heal::Never);
        }
        if age_ms > (16 + 5 * self.calm.forced) * MINUTE {
            self.calm.forced += 1;
            self.force_the_rest()?;
        }
        self.watch.overdue(self.now_ms(), 5 * MINUTE)?;
        if self.calm.finalized || self.expired() || self.phase().is_none_or(|phase| phase != Phase::Active) {
            return self.wait_for_settlement();
        }
        if let Err(breach) = self.settled_repairs() {
            if age_ms <= self.bound_ms() {
                let wait_ms = if age_ms < MINUTE { 5_000 } else { 45_000 };
                // In irregular numbers, so that no rhythm spares a slot.
                for _ in 0..=self.some(3) {
                    self.small_request()?;
                }
                self.pulse_after(wait_ms);
                return Ok(());
            }
            // Without an honest quorum nobody can tell who is right.
            if self.quorum_is_honest() && !self.damaged() && !self.out_of_means() {
                return Err(breach);
            }
        } else if self.open_starts() && age_ms <= self.bound_ms() {
            self.pulse_after(10_000);
            return Ok(());
        }
        self.dispatches_ended()?;
        self.calm.finalized = true;
        self.calm.finalized_ms = self.now_ms();
        self.pulse_after(5_000);
        self.tell(holdfast_gateway::core::Event::Finalize)
    }

    /// The give-up deadline and what lies around it.
    fn bound_ms(&self) -> u64 {
        45 * MINUTE
    }

    fn heal(&mut self, which: impl Fn(Heal) -> bool) {
        for host in 0..self.nodes.len() {
            if self.nodes[host].mask.fork.is_some_and(|fork| which(fork.heal)) {
                self.crash_host(host, Store::Empty, false, 1_000);
            }
        }
    }

    /// Whoever was given up and is well again: its operator calls ours.
    fn force_the_rest(&mut self) -> Check {
        for host in 0..self.nodes.len() {
            let address = self.nodes[host].member.address;
            let given_up =
                self.watch.flags.get(&address).is_some_and(|flag| flag.phase == RepairView::GaveUp);
            if given_up && !self.hopeless(host) {
                self.operator(host, Verb::ForceTeach)?;
            }
        }
        Ok(())
    }

    /// No nonce, coin or room for records is left for work.
    fn out_of_means(&self) -> bool {
        let ledger = &self.watch.ledger;
        let terms = &self.cast.terms;
        ledger.nonce + terms.group_size() + 8 > terms.max_nonce
            || terms.max_live < 1_024
            || ledger.balance < 200 * terms.token_price + 20 * terms.fee_per_nonce
            || self.core().is_some_and(|core| !core.takes_requests())
    }

    /// Healable: not flagged. Unhealable: given up, and charged for its nonces.
    fn settled_repairs(&self) -> Check {
        for host in 0..self.nodes.len() {
            let address = self.nodes[host].member.address;
            let Some(flag) = self.watch.flags.get(&address) else { continue };
            if !self.hopeless(host) {
                return breach(
                    Law::EveryHealableRestored,
                    format!(
                        "host{host} is still {:?}, attempt {}, \"{}\"",
                        flag.phase, flag.attempt, flag.last_verdict
                    ),
                );
            }
            if flag.phase != RepairView::GaveUp {
                return breach(
                    Law::EveryUnhealableGivenUp,
                    format!("host{host} is still {:?} after {} ms", flag.phase, flag.elapsed_ms),
                );
            }
            let (starts, nonces) = self.watch.charged_again(&address);
            if starts == 0 && !flag.released && !self.out_of_means() {
                return breach(
                    Law::EveryUnhealableGivenUp,
                    format!("host{host} was given up, none of its {nonces} nonces is charged"),
                );
            }
        }
        Ok(())
    }

    fn open_starts(&self) -> bool {
        self.watch.ledger.entries.values().any(|entry| entry.end.is_none())
    }

    fn small_request(&mut self) -> Check {
        self.calm.names += 1;
        let work = Work { tokens: 2, pace_ms: 20, fate: Fate::Done };
        self.ask(FIRST_NAME + self.calm.names, 10, (64, 8), work, 20_000)
    }

    /// What was started without faults has an end, as far as others could vote.
    fn dispatches_ended(&self) -> Check {
        if !self.quorum_is_honest() || self.core().is_none_or(|core| core.status().self_suspect) {
            // It signs nothing more while it doubts itself.
            return Ok(());
        }
        let terms = &self.cast.terms;
        let rounds_s = 60 + 240;
        let longest_s = u64::from(terms.refusal_timeout_s) + u64::from(terms.execution_timeout_s) + rounds_s;
        let now_s = 1_700_000_000 + self.since() / 1_000;
        for (id, entry) in self.watch.ledger.entries.range(self.calm.first_nonce..) {
            let owner = terms.slots[entry.slot];
            let eligible = terms.group_size() - terms.weight(&owner);
            let votes: u64 = self
                .nodes
                .iter()
                .filter(|node| {
                    let address = node.member.address;
                    address != owner
                        && node.mask.fork.is_none()
                        && !node.member.wrong_terms
                        && !self.watch.flags.contains_key(&address)
                })
                .map(|node| terms.weight(&node.member.address))
                .sum();
            let enough = votes * 10_000 > eligible * u64::from(terms.vote_threshold_bp);
            let late = entry.started_at + longest_s < now_s;
            if entry.end.is_none() && late && enough && !self.damaged() && !self.clocks_moved() {
                return breach(
                    Law::DispatchEnds,
                    format!("start {id} is open after {longest_s} s: {entry:?}"),
                );
            }
        }
        Ok(())
    }

    fn wait_for_settlement(&mut self) -> Check {
        if self.calm.finalized_ms == 0 {
            self.calm.finalized_ms = self.now_ms();
        }
        if self.now_ms() - self.calm.finalized_ms < 20 * MINUTE {
            self.pulse_after(10_000);
            // The disk may have failed below the order: whoever gave it sees that and gives it again.
            if self.core().is_some_and(|core| core.takes_requests()) {
                return self.tell(holdfast_gateway::core::Event::Finalize);
            }
            return Ok(());
        }
        if self.quorum_is_honest() && !self.damaged() {
            return breach(
                Law::SessionSettles,
                format!("{:?} at nonce {}, 20 minutes later", self.phase(), self.watch.ledger.nonce),
            );
        }
        self.end(Over::Unsettled);
        Ok(())
    }
}
