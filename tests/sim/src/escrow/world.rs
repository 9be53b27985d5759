//! One run: the gateway's core, the hosts, and the network between them, on virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use holdfast_escrow::session::Phase;
use holdfast_gateway::core::GatewayCore;
use holdfast_gateway::core::{
    CallError, CallId, ChainNews, ClientEvent, Effect, Event, FlagView, HostCall, HostReply, Now, PermitPool,
    RetireReason, UserRequest, Verb,
};
use holdfast_host::store::{Fault, MemDb};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use sha2::{Digest as _, Sha256};

use crate::Rng;

use super::cast::Cast;
use super::mask::{Face, Forked, Outcome};
use super::node::{Computation, Node, Stream};
use super::replica::{Answer, JobEnd};
use super::schedule::{Commit, Damage, Fate, Heal, Item, Mood, Schedule, Store, What, Work};
use super::totals::Totals;
use super::watch::{Books, Breach, Check, Law, Mark, Watch, breach};

mod gateway;
mod items;
mod network;
mod words;
mod work;

/// When a run begins, on the monotonic clock and on the wall.
const BEGIN_MS: u64 = 1_000_000;
const UNIX_MS: u64 = 1_700_000_000_000;
/// Steps of a run, at most.
const STEPS_MAX: u64 = 600_000;
/// Steps within one millisecond, at most.
const STEPS_PER_MS: u64 = 3_000;
/// How long others may dispute a summary, before the chain pays it.
const DISPUTE_MS: u64 = 5_000;
/// How long the executor has to answer a challenge.
const CHALLENGE_MS: u64 = 10_000;

/// Something on its way.
enum Do {
    Item(usize),
    /// A call reaches a host. `echo`: it came twice, the second answer goes nowhere.
    Arrive {
        host: usize,
        gateway_boot: u64,
        call_id: CallId,
        call: Rc<HostCall>,
        echo: bool,
    },
    /// Something reaches the gateway.
    Back {
        gateway_boot: u64,
        call_id: CallId,
        what: Back,
    },
    CallTimeout {
        gateway_boot: u64,
        call_id: CallId,
    },
    Wake {
        gateway_boot: u64,
        number: u64,
    },
    GatewayStart,
    HostStart {
        host: usize,
    },
    Announce {
        host: usize,
        boot: u64,
    },
    JobStep {
        host: usize,
        boot: u64,
        id: u64,
    },
    /// A challenge reaches the executor.
    Challenge {
        from: usize,
        to: usize,
        ask: Rc<pb::ChallengeStartRequest>,
        vote: Ballot,
    },
    /// The voter hears of it.
    Challenged {
        vote: Ballot,
        answer: Option<pb::ChallengeStartResponse>,
    },
    Excused(Vec<Address>),
    CutEnds,
    Settled,
    Pulse,
    Backup,
}

/// A vote that waits for the executor.
#[derive(Clone)]
struct Ballot {
    host: usize,
    boot: u64,
    gateway_boot: u64,
    call_id: CallId,
    call: Rc<HostCall>,
    number: u64,
}

enum Back {
    Done(Result<HostReply, CallError>),
    Piece(pb::infer_response::Event),
    End(Result<(), CallError>),
}

struct OpenCall {
    host: usize,
    infer: bool,
    /// Pieces arrive in order.
    last_ms: u64,
}

struct Gateway {
    core: Option<GatewayCore>,
    db: MemDb,
    boot: u64,
    wake: u64,
    calls: BTreeMap<CallId, OpenCall>,
    clock_ms: i64,
    /// Number of the commit that goes wrong, how, power cut, time down.
    fault: Option<(u64, Commit, bool, u64)>,
    damaged: bool,
    absent: Vec<Address>,
    /// The chain paid the escrow.
    paid: bool,
    /// The chain takes it as expired.
    expired: bool,
    /// A copy of its store, with the books of that time.
    copy: Option<(MemDb, Mark)>,
    /// Its store has failed: what it says of itself is no longer durable.
    broken: bool,
}

/// A call as it left the gateway, for scenarios.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) at_ms: u64,
    pub(super) host: usize,
    pub(super) call: Rc<HostCall>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Settled,
    /// Its store is damaged, and it says so.
    Lost,
    /// No honest quorum.
    Unsettled,
}

/// See the module.
pub(super) struct World<'a> {
    pub(super) cast: &'a Cast,
    pub(super) watch: Watch,
    pub(super) nodes: Vec<Node>,
    gateway: Gateway,
    now_ms: u64,
    seq: u64,
    queue: BTreeMap<(u64, u64), Do>,
    net: Rng,
    items: BTreeMap<usize, Item>,
    pub(super) calm_ms: u64,
    pub(super) calm: super::calm::Calm,
    /// Votes that were answered.
    ballots: BTreeSet<u64>,
    asked_to_fail: BTreeSet<[u8; 32]>,
    clocks_moved: bool,
    over: Option<Over>,
    steps_now: (u64, u64),
    op_id: u64,
    pub(super) trace: bool,
    pub(super) stages: BTreeMap<&'static str, u64>,
    /// Calls.
    #[cfg(test)]
    pub(super) seen: Vec<Seen>,
    /// What clients were told.
    #[cfg(test)]
    pub(super) told: Vec<(u64, ClientEvent)>,
    /// Of the running gateway.
    pub(super) permits: PermitPool,
}

impl<'a> World<'a> {
    pub(super) fn new(cast: &'a Cast, schedule: &Schedule, numbers: &[usize], trace: bool) -> Self {
        let mut world = Self {
            cast,
            watch: Watch::new(cast.terms.clone()),
            nodes: cast.members.iter().map(|member| Node::new(member, cast)).collect(),
            gateway: Gateway {
                core: None,
                db: MemDb::new(),
                boot: 0,
                wake: 0,
                calls: BTreeMap::new(),
                clock_ms: 0,
                fault: None,
                damaged: false,
                absent: Vec::new(),
                paid: false,
                expired: false,
                copy: None,
                broken: false,
            },
            now_ms: BEGIN_MS,
            seq: 0,
            queue: BTreeMap::new(),
            net: Rng::new(cast.seed, "escrow network"),
            items: schedule.keep(numbers).into_iter().collect(),
            calm_ms: BEGIN_MS + schedule.calm_ms,
            calm: super::calm::Calm::default(),
            ballots: BTreeSet::new(),
            asked_to_fail: BTreeSet::new(),
            clocks_moved: false,
            over: None,
            steps_now: (0, 0),
            op_id: 0,
            trace,
            stages: BTreeMap::new(),
            #[cfg(test)]
            seen: Vec::new(),
            #[cfg(test)]
            told: Vec::new(),
            permits: PermitPool::new(8),
        };
        let items: Vec<(usize, u64)> =
            world.items.iter().map(|(number, item)| (*number, BEGIN_MS + 100 + item.at_ms)).collect();
        world.at(BEGIN_MS, Do::GatewayStart);
        for (number, at_ms) in items {
            world.at(at_ms, Do::Item(number));
        }
        for step in 1..=schedule.calm_ms / 15_000 {
            world.at(BEGIN_MS + step * 15_000, Do::Backup);
        }
        world.at(world.calm_ms, Do::Pulse);
        world
    }

    /// Plays to the end.
    pub(super) fn play(&mut self) -> Result<Totals, Breach> {
        while self.over.is_none() {
            self.step()?;
        }
        self.finish()?;
        Ok(self.watch.totals.clone())
    }

    /// Plays until so many milliseconds after the begin.
    #[cfg(test)]
    pub(super) fn play_until(&mut self, ms: u64) -> Check {
        while let Some((&(at_ms, _), _)) = self.queue.first_key_value() {
            if at_ms > BEGIN_MS + ms || self.over.is_some() {
                break;
            }
            self.step()?;
        }
        self.now_ms = self.now_ms.max(BEGIN_MS + ms);
        Ok(())
    }

    fn step(&mut self) -> Check {
        let Some(((at_ms, _), next)) = self.queue.pop_first() else {
            return breach(Law::SessionSettles, "nothing is left to happen");
        };
        self.now_ms = at_ms;
        self.watch.totals.steps += 1;
        self.steps_now = if self.steps_now.0 == at_ms { (at_ms, self.steps_now.1 + 1) } else { (at_ms, 1) };
        if self.watch.totals.steps > STEPS_MAX || self.steps_now.1 > STEPS_PER_MS {
            return breach(Law::NoBusyLoop, format!("{} steps", self.watch.totals.steps));
        }
        self.happen(next)
    }

    fn finish(&mut self) -> Check {
        let missed = self.watch.ledger.rows.iter().map(|row| row.missed).sum::<u64>();
        self.watch.totals.missed += missed;
        if self.over != Some(Over::Settled) {
            self.watch.totals.unsettled += 1;
        }
        if self.gateway.core.is_some() {
            self.watch.overdue(self.now_ms, 30_000)?;
        }
        if self.watch.ledger.frozen {
            self.watch.ended(0, u64::MAX)?;
        }
        if !self.clocks_moved {
            let blameless = self.nodes.iter().filter(|node| node.blameless);
            let blameless = blameless.map(|node| node.member.address).collect();
            self.watch.charges(&blameless, &self.asked_to_fail)?;
        }
        Ok(())
    }

    /// Does now what an item of a schedule would.
    #[cfg(test)]
    pub(super) fn now_happens(&mut self, what: What) -> Check {
        let number = 10_000 + self.items.len();
        self.items.insert(number, Item { at_ms: self.since(), what });
        self.item(number)
    }

    /// Name of the request that was made last.
    #[cfg(test)]
    pub(super) fn last_request(&self) -> u64 {
        9_999 + self.items.len() as u64 + 1
    }

    /// Milliseconds since the begin.
    pub(super) fn since(&self) -> u64 {
        self.now_ms - BEGIN_MS
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(super) fn core(&self) -> Option<&GatewayCore> {
        self.gateway.core.as_ref()
    }

    pub(super) fn clocks_moved(&self) -> bool {
        self.clocks_moved
    }

    pub(super) fn damaged(&self) -> bool {
        self.gateway.damaged
    }

    pub(super) fn expired(&self) -> bool {
        self.gateway.expired
    }

    pub(super) fn end(&mut self, over: Over) {
        self.over = Some(over);
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3}  {}", self.since() as f64 / 1000.0, text());
        }
    }

    fn at(&mut self, at_ms: u64, what: Do) {
        self.seq += 1;
        self.queue.insert((at_ms.max(self.now_ms), self.seq), what);
    }

    fn after(&mut self, ms: u64, what: Do) {
        self.at(self.now_ms + ms, what);
    }

    /// 0 to `most`.
    pub(super) fn some(&mut self, most: usize) -> usize {
        self.net.below(most + 1)
    }

    pub(super) fn pulse_after(&mut self, ms: u64) {
        self.after(ms, Do::Pulse);
    }

    fn now(&self) -> Now {
        let unix_ms = (UNIX_MS + self.since()).saturating_add_signed(self.gateway.clock_ms);
        Now { mono_ms: self.now_ms, unix_ms }
    }

    fn host_unix_ms(&self, host: usize) -> u64 {
        (UNIX_MS + self.since()).saturating_add_signed(self.nodes[host].clock_ms)
    }

    fn happen(&mut self, what: Do) -> Check {
        match what {
            Do::Item(number) => self.item(number),
            Do::Arrive { host, gateway_boot, call_id, call, echo } => {
                self.arrive(host, gateway_boot, call_id, &call, echo)
            }
            Do::Back { gateway_boot, call_id, what } => self.back(gateway_boot, call_id, what),
            Do::CallTimeout { gateway_boot, call_id } => {
                let infer = self.gateway.calls.get(&call_id).map(|call| call.infer);
                match infer {
                    Some(true) => self.back(gateway_boot, call_id, Back::End(Err(CallError::Timeout))),
                    Some(false) => self.back(gateway_boot, call_id, Back::Done(Err(CallError::Timeout))),
                    None => Ok(()),
                }
            }
            Do::Wake { gateway_boot, number } => {
                if gateway_boot == self.gateway.boot && number == self.gateway.wake {
                    return self.tell(Event::Tick);
                }
                Ok(())
            }
            Do::GatewayStart => self.start_gateway(),
            Do::HostStart { host } => {
                if self.nodes[host].replica.is_none() {
                    self.watch.totals.host_starts += 1;
                    self.nodes[host].start(self.cast);
                    self.say(|| format!("host{host} starts"));
                    let boot = self.nodes[host].boot;
                    self.after(50, Do::Announce { host, boot });
                }
                Ok(())
            }
            Do::Announce { host, boot } => self.announce(host, boot),
            Do::JobStep { host, boot, id } => self.job_step(host, boot, id),
            Do::Challenge { from, to, ask, vote } => self.challenge(from, to, &ask, vote),
            Do::Challenged { vote, answer } => self.challenged(&vote, answer),
            Do::Excused(list) => {
                self.gateway.absent.clone_from(&list);
                self.tell(Event::Chain(ChainNews::Absent(list)))
            }
            Do::CutEnds => Ok(()),
            Do::Settled => {
                self.gateway.paid = true;
                for node in &mut self.nodes {
                    node.close();
                }
                self.tell(Event::Chain(ChainNews::Settled))
            }
            Do::Pulse => self.pulse(),
            Do::Backup => {
                self.nodes.iter_mut().for_each(Node::back_up);
                self.copy_gateway();
                Ok(())
            }
        }
    }

    pub(super) fn phase(&self) -> Option<Phase> {
        self.core().map(|core| core.state().phase())
    }

    /// Faults that pass are over.
    pub(super) fn lift_faults(&mut self) {
        let now_ms = self.now_ms;
        for node in &mut self.nodes {
            node.line = super::node::Line::default();
            for (_, until) in &mut node.mask.moods {
                *until = (*until).min(now_ms);
            }
        }
        // A commit that was to go wrong still does: it cannot be taken back.
        if self.gateway.core.is_none() {
            self.after(1, Do::GatewayStart);
        }
        for host in 0..self.nodes.len() {
            if self.nodes[host].replica.is_none() {
                self.after(1, Do::HostStart { host });
            }
        }
    }
}

pub(super) fn by_address(flags: Vec<FlagView>) -> BTreeMap<Address, FlagView> {
    flags.into_iter().map(|flag| (flag.participant, flag)).collect()
}
