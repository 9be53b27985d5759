//! Counts over runs, so that a reader sees that the faults happened.

use std::fmt;

/// What happened in one run or in many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests of clients.
    pub requests: u64,
    /// Answered.
    pub completed: u64,
    /// Ended by an error.
    pub failed: u64,
    /// Diffs of all logs.
    pub diffs: u64,
    /// Diffs without a start.
    pub passes: u64,
    /// Starts sent.
    pub dispatches: u64,
    /// Starts not sent and charged after a give-up.
    pub ghosts: u64,
    /// Inferences begun by hosts.
    pub executions: u64,
    /// Flags raised.
    pub flags: u64,
    /// Flags cleared by proof.
    pub restores: u64,
    /// Repairs given up.
    pub give_ups: u64,
    /// Participants found to hold another diff that we signed.
    pub own_forks: u64,
    /// Times a gateway opened its store after the first.
    pub gateway_starts: u64,
    /// Times a host's process began after the first.
    pub host_starts: u64,
    /// Alarms of self-suspicion.
    pub self_suspects: u64,
    /// Replicas dropped on request.
    pub resets: u64,
    /// Timeouts by votes in logs.
    pub missed: u64,
    /// Sessions settled.
    pub settled: u64,
    /// Summaries for a dispute.
    pub disputes: u64,
    /// Sessions that ended otherwise: no honest quorum, or the store was damaged.
    pub unsettled: u64,
    /// Calls and replies lost by lines.
    pub lost: u64,
    /// Events handled.
    pub steps: u64,
    /// Faults that began.
    pub faults: u64,
}

impl Totals {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.fields_mut().into_iter().zip(other.clone().fields_mut()) {
            *sum += *more;
        }
    }

    fn fields_mut(&mut self) -> [&mut u64; 23] {
        [
            &mut self.requests,
            &mut self.completed,
            &mut self.failed,
            &mut self.diffs,
            &mut self.passes,
            &mut self.dispatches,
            &mut self.ghosts,
            &mut self.executions,
            &mut self.flags,
            &mut self.restores,
            &mut self.give_ups,
            &mut self.own_forks,
            &mut self.gateway_starts,
            &mut self.host_starts,
            &mut self.self_suspects,
            &mut self.resets,
            &mut self.missed,
            &mut self.settled,
            &mut self.disputes,
            &mut self.unsettled,
            &mut self.lost,
            &mut self.steps,
            &mut self.faults,
        ]
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests ({} answered, {} failed), {} diffs ({} passes), {} dispatches, {} executions, {} flags, \
             {} restored, {} given up, {} forks of our own, {} ghosts, {} timeouts, {} resets, {} self-suspicions, {} gateway restarts, \
             {} host restarts, {} faults, {} messages lost, {} settled, {} disputes, {} not settled, {} steps",
            self.requests,
            self.completed,
            self.failed,
            self.diffs,
            self.passes,
            self.dispatches,
            self.executions,
            self.flags,
            self.restores,
            self.give_ups,
            self.own_forks,
            self.ghosts,
            self.missed,
            self.resets,
            self.self_suspects,
            self.gateway_starts,
            self.host_starts,
            self.faults,
            self.lost,
            self.settled,
            self.disputes,
            self.unsettled,
            self.steps
        )
    }
}
