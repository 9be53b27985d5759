//! What is known of the run: what the gateway says of its sessions, what happened to the processes, and when.

use std::collections::BTreeMap;

use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::RepairPhase;

use super::faults::Fault;

/// Changes that are kept for the report; a run of days has more.
const CHANGES_MAX: usize = 20_000;

/// Where a host stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It gets traffic.
    Serving,
    /// Flagged; the next attempt is due later.
    Waiting,
    /// Flagged; it is brought diffs.
    Teaching,
    /// Flagged; it is asked for a proof.
    Verifying,
    /// Flagged and given up: it is charged.
    GaveUp,
    /// Flagged when its session ended.
    Stopped,
    /// Its process does not run.
    Down,
}

impl HostState {
    /// All, for legends.
    pub const ALL: [Self; 7] = [
        Self::Serving,
        Self::Waiting,
        Self::Teaching,
        Self::Verifying,
        Self::GaveUp,
        Self::Stopped,
        Self::Down,
    ];

    /// For a reader.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Waiting => "withheld",
            Self::Teaching => "teaching",
            Self::Verifying => "verifying",
            Self::GaveUp => "GIVEN UP",
            Self::Stopped => "stopped",
            Self::Down => "DOWN",
        }
    }

    fn of(phase: RepairPhase) -> Self {
        match phase {
            RepairPhase::Unspecified | RepairPhase::Waiting => Self::Waiting,
            RepairPhase::Teaching => Self::Teaching,
            RepairPhase::Verifying => Self::Verifying,
            RepairPhase::GaveUp => Self::GaveUp,
            RepairPhase::Stopped => Self::Stopped,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    /// Milliseconds since the load began.
    pub at_ms: u64,
    /// Number of the host; none: of the network.
    pub host: Option<usize>,
    /// What, as `escrow_participant_state_unblocked`.
    pub what: String,
}

/// A stretch of a host's time line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stretch {
    /// Milliseconds since the load began.
    pub from_ms: u64,
    /// From then on, until the next one.
    pub state: HostState,
}

/// A host.
#[derive(Debug, Clone)]
pub struct HostRow {
    /// `host0`.
    pub name: String,
    /// Bech32.
    pub address: String,
    /// What goes wrong with it.
    pub fault: Option<Fault>,
    /// Whether its process runs.
    pub up: bool,
    /// Counters over all sessions.
    pub counters: pb::Participant,
    /// Its flag, if any.
    pub flag: Option<pb::DivergenceFlag>,
    /// Its time line.
    pub stretches: Vec<Stretch>,
}

impl HostRow {
    /// A host of which nothing is known yet.
    pub fn new(name: String, address: String, fault: Option<Fault>) -> Self {
        let stretches = vec![Stretch { from_ms: 0, state: HostState::Serving }];
        let counters = pb::Participant { address: address.clone(), ..Default::default() };
        Self { name, address, fault, up: true, counters, flag: None, stretches }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> HostState {
        match &self.flag {
            _ if !self.up => HostState::Down,
            Some(flag) => HostState::of(flag.phase()),
            None => HostState::Serving,
        }
    }

    fn note(&mut self, at_ms: u64) {
        let state = self.state();
        let same = self.stretches.last().is_some_and(|last| last.state == state);
        if !same && self.stretches.len() < CHANGES_MAX {
            self.stretches.push(Stretch { from_ms: at_ms, state });
        }
    }
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// The hosts in the order of their numbers.
    pub hosts: Vec<HostRow>,
    /// The gateway's sessions as it told last.
    pub sessions: Vec<pb::EscrowSession>,
    /// What happened, oldest first.
    pub changes: Vec<Change>,
    /// Whether the gateway answers.
    pub gateway_up: bool,
    /// Sequence number after the last change of a flag that was seen.
    pub next_seq: u64,
}

/// A decimal amount; an empty one is none.
fn units(text: &str) -> u128 {
    text.parse().unwrap_or(0)
}

fn add(into: &mut pb::Participant, more: &pb::Participant) {
    into.cursor = more.cursor;
    into.slots.clone_from(&more.slots);
    into.started = into.started.saturating_add(more.started);
    into.completed = into.completed.saturating_add(more.completed);
    into.missed = into.missed.saturating_add(more.missed);
    into.errored = into.errored.saturating_add(more.errored);
    into.released = into.released.saturating_add(more.released);
    into.drained = into.drained.saturating_add(more.drained);
    into.starts_while_flagged = into.starts_while_flagged.saturating_add(more.starts_while_flagged);
    into.ghosts = into.ghosts.saturating_add(more.ghosts);
    let during = more.accountable_ghosts_during_repair;
    into.accountable_ghosts_during_repair = into.accountable_ghosts_during_repair.saturating_add(during);
    into.passes = into.passes.saturating_add(more.passes);
    into.blocked_ms = into.blocked_ms.saturating_add(more.blocked_ms);
    into.repair_attempts = into.repair_attempts.saturating_add(more.repair_attempts);
    into.restored = into.restored.saturating_add(more.restored);
    into.gave_up = into.gave_up.saturating_add(more.gave_up);
    into.flagged |= more.flagged;
    into.cost = units(&into.cost).saturating_add(units(&more.cost)).to_string();
}

impl Board {
    /// The host of an address.
    #[must_use]
    pub fn host_of(&self, address: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == address)
    }

    /// Something happened.
    pub fn change(&mut self, at_ms: u64, host: Option<usize>, what: impl Into<String>) {
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(Change { at_ms, host, what: what.into() });
        }
    }

    /// What the gateway says of its sessions.
    pub fn sessions(&mut self, sessions: Vec<pb::EscrowSession>) {
        let mut sums: BTreeMap<String, pb::Participant> = BTreeMap::new();
        for row in sessions.iter().flat_map(|session| &session.participants) {
            let sum = sums
                .entry(row.address.clone())
                .or_insert_with(|| pb::Participant { address: row.address.clone(), ..Default::default() });
            add(sum, row);
        }
        for host in &mut self.hosts {
            if let Some(sum) = sums.remove(&host.address) {
                host.counters = sum;
            }
        }
        self.sessions = sessions;
    }

    /// All flags there are.
    pub fn flags(&mut self, at_ms: u64, flags: Vec<pb::DivergenceFlag>) {
        for host in &mut self.hosts {
            host.flag = flags.iter().find(|flag| flag.participant == host.address).cloned();
            host.note(at_ms);
        }
    }

    /// A change of a flag as the gateway tells it.
    pub fn flag_changed(&mut self, at_ms: u64, news: pb::WatchDivergenceResponse) {
        self.next_seq = news.seq.saturating_add(1);
        let Some(flag) = news.flag else { return };
        let Some(at) = self.host_of(&flag.participant) else { return };
        let cleared = news.stage.ends_with("_unblocked");
        if let Some(host) = self.hosts.get_mut(at) {
            // Most attempts are over before anybody looks.
            if news.stage.ends_with("_repair_attempt") && host.stretches.len() < CHANGES_MAX {
                host.stretches.push(Stretch { from_ms: at_ms, state: HostState::Teaching });
            }
            host.flag = (!cleared).then_some(flag);
            host.note(at_ms);
        }
        self.change(at_ms, Some(at), news.stage);
    }

    /// Whether a host's process runs.
    pub fn process(&mut self, at_ms: u64, host: usize, up: bool) {
        if let Some(row) = self.hosts.get_mut(host) {
            row.up = up;
            row.note(at_ms);
        }
    }

    /// What is not decided yet, for a reader: inferences by host, requests that wait.
    #[must_use]
    pub fn undecided(&self) -> String {
        let mut parts = Vec::new();
        for host in &self.hosts {
            let row = &host.counters;
            let over = [row.completed, row.missed, row.errored, row.released, row.drained];
            let open = u64::from(row.started).saturating_sub(over.into_iter().map(u64::from).sum());
            if open > 0 {
                let noun = if open == 1 { "inference" } else { "inferences" };
                parts.push(format!("{open} {noun} of {} not decided", host.name));
            }
        }
        let queued: u64 = self.sessions.iter().map(|session| u64::from(session.queued)).sum();
        if queued > 0 {
            parts.push(format!("{queued} requests wait"));
        }
        parts.join(", ")
    }

    /// Hosts that are withheld or down, and why that is not over.
    #[must_use]
    pub fn withheld(&self) -> String {
        let out = self.hosts.iter().filter(|host| host.state() != HostState::Serving);
        let told = out.map(|host| format!("{} {}", host.name, host.state().word().to_lowercase()));
        told.collect::<Vec<_>>().join(", ")
    }

    /// How far sessions are on their way to the settlement.
    #[must_use]
    pub fn ends(&self) -> String {
        let told = self.sessions.iter().map(|session| {
            let signed = match session.signatures_need {
                0 => String::new(),
                need => format!(", {} of {need} signatures", session.signatures_have),
            };
            format!("escrow {} {}{signed}", session.escrow_id, session.phase)
        });
        told.collect::<Vec<_>>().join(", ")
    }

    /// Sessions in which an inference or a request is open. Live rows are no measure: they stay for a while after their end,
    /// without a reserve.
    #[must_use]
    pub fn open(&self) -> usize {
        let open = |session: &&pb::EscrowSession| {
            session.queued > 0 || !matches!(session.reserved.as_str(), "" | "0")
        };
        self.sessions.iter().filter(open).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        let host = |n: usize| HostRow::new(format!("host{n}"), format!("hold1{n}"), None);
        Board { hosts: (0..2).map(host).collect(), ..Board::default() }
    }

    fn news(seq: u64, stage: &str, phase: RepairPhase) -> pb::WatchDivergenceResponse {
        let participant = "hold11".to_owned();
        let flag = pb::DivergenceFlag { participant, phase: phase.into(), ..Default::default() };
        pb::WatchDivergenceResponse { seq, stage: stage.into(), flag: Some(flag), ..Default::default() }
    }

    #[test]
    fn a_time_line_has_one_stretch_for_each_change_of_state() {
        let mut board = board();
        board.flag_changed(10, news(4, "escrow_participant_state_blocked", RepairPhase::Waiting));
        board.flag_changed(20, news(5, "escrow_participant_state_repair_attempt", RepairPhase::Waiting));
        board.process(30, 1, false);
        board.process(40, 1, true);
        board.flag_changed(50, news(6, "escrow_participant_state_unblocked", RepairPhase::Verifying));
        let line: Vec<_> = board.hosts[1].stretches.iter().map(|s| (s.from_ms, s.state)).collect();
        let expected = [
            (0, HostState::Serving),
            (10, HostState::Waiting),
            (20, HostState::Teaching),
            (20, HostState::Waiting),
            (30, HostState::Down),
            (40, HostState::Waiting),
            (50, HostState::Serving),
        ];
        assert_eq!(line, expected);
        assert_eq!((board.hosts[0].stretches.len(), board.next_seq, board.changes.len()), (1, 7, 3));
    }

    #[test]
    fn what_a_run_waits_for_is_named() {
        let mut board = board();
        assert_eq!((board.undecided(), board.withheld(), board.ends()), Default::default());
        let row = pb::Participant {
            address: "hold11".into(),
            started: 9,
            completed: 5,
            missed: 1,
            errored: 1,
            released: 1,
            ..Default::default()
        };
        let session = pb::EscrowSession {
            escrow_id: 1,
            phase: "frozen".into(),
            queued: 2,
            signatures_have: 2,
            signatures_need: 3,
            participants: vec![row],
            ..Default::default()
        };
        board.sessions(vec![session]);
        assert_eq!(board.undecided(), "1 inference of host1 not decided, 2 requests wait");
        assert_eq!(board.ends(), "escrow 1 frozen, 2 of 3 signatures");
        board.flag_changed(10, news(4, "escrow_participant_state_blocked", RepairPhase::Waiting));
        board.process(30, 0, false);
        assert_eq!(board.withheld(), "host0 down, host1 withheld");
    }

    #[test]
    fn counters_of_several_sessions_are_added() {
        let mut board = board();
        let session = |completed| {
            let row = pb::Participant {
                address: "hold10".into(),
                completed,
                blocked_ms: 5,
                cost: (completed * 100).to_string(),
                ..Default::default()
            };
            let reserved = (completed - 3).to_string();
            pb::EscrowSession { live: 2, reserved, participants: vec![row], ..Default::default() }
        };
        board.sessions(vec![session(3), session(4)]);
        let counters = &board.hosts[0].counters;
        assert_eq!((counters.completed, counters.blocked_ms, board.open()), (7, 10, 1));
        assert_eq!(counters.cost, "700");
        board.sessions(vec![session(3)]);
        assert_eq!(board.hosts[0].counters.completed, 3);
    }
}
