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
use super::watch::{Books, Breach, Check, Law, Watch, breach};

/// When a run begins, on the monotonic clock and on the wall.
const BEGIN_MS: u64 = 1_000_000;
const UNIX_MS: u64 = 1_700_000_000_000;
/// Steps of a run, at most.
const STEPS_MAX: u64 = 600_000;
/// Steps within one millisecond, at most.
const STEPS_PER_MS: u64 = 3_000;
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
    /// Its store has failed: what it says of itself is no longer durable.
    broken: bool,
}

/// A call as it left the gateway, for scenarios.
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
    /// Calls, when asked for.
    pub(super) seen: Option<Vec<Seen>>,
    /// What clients were told.
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
            seen: None,
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
                Ok(())
            }
        }
    }

    // ---- the gateway ----

    fn start_gateway(&mut self) -> Check {
        if self.gateway.core.is_some() {
            return Ok(());
        }
        self.gateway.boot += 1;
        let mut drawn = Rng::new(self.cast.seed ^ self.gateway.boot.rotate_left(32), "escrow challenges");
        let entropy = move || -> [u8; 32] { Sha256::digest(drawn.bytes(32)).into() };
        self.permits = PermitPool::new(8);
        let opened = GatewayCore::open(
            Box::new(self.gateway.db.clone()),
            self.cast.gateway.clone(),
            (*self.cast.terms).clone(),
            Box::new(self.cast.gateway_key.clone()),
            Box::new(entropy),
            self.permits.clone(),
            self.now(),
        );
        let (core, effects) = match opened {
            Ok(opened) => opened,
            Err(_) if self.gateway.damaged => {
                self.end(Over::Lost);
                return Ok(());
            }
            Err(_) if self.fault_due().is_some() => {
                self.crash_by_fault();
                return Ok(());
            }
            Err(error) => return breach(Law::GatewayOpens, error.to_string()),
        };
        self.say(|| format!("gateway starts at nonce {}", core.state().nonce()));
        if let Some(nonce) = core.corrupt_at() {
            // It keeps its log for a dispute and signs nothing more.
            if self.gateway.damaged {
                self.end(Over::Lost);
                return Ok(());
            }
            return breach(Law::GatewayOpens, format!("it finds itself corrupt at nonce {nonce}"));
        }
        let first = self.gateway.boot == 1;
        let flags = by_address(core.flags());
        let log = core.diffs(1, usize::MAX);
        self.gateway.core = Some(core);
        if !first {
            self.watch.reopened(&flags, &log)?;
        }
        if self.crash_by_fault() {
            return Ok(());
        }
        self.watch.silence();
        self.look(effects)?;
        if self.gateway.paid {
            // What it missed, its driver reads from the chain.
            return self.tell(Event::Chain(ChainNews::Settled));
        }
        if !self.gateway.absent.is_empty() {
            self.tell(Event::Chain(ChainNews::Absent(self.gateway.absent.clone())))?;
        }
        Ok(())
    }

    fn fault_due(&self) -> Option<(Commit, bool, u64)> {
        let (at, how, power_cut, down_ms) = self.gateway.fault?;
        (self.gateway.db.commits() >= at).then_some((how, power_cut, down_ms))
    }

    /// Whether a planned commit has killed the process.
    fn crash_by_fault(&mut self) -> bool {
        let Some((how, power_cut, down_ms)) = self.fault_due() else { return false };
        self.gateway.fault = None;
        self.watch.totals.faults += 1;
        self.say(|| format!("gateway: a commit {how:?}"));
        if matches!(how, Commit::DiesBefore | Commit::DiesAfter) {
            self.kill_gateway(power_cut, down_ms);
            return true;
        }
        // The process lives, its store takes nothing more; somebody restarts it.
        self.gateway.broken = true;
        self.items
            .insert(usize::MAX, Item { at_ms: self.since(), what: What::Kill { power_cut: false, down_ms } });
        self.after(700, Do::Item(usize::MAX));
        false
    }

    fn kill_gateway(&mut self, power_cut: bool, down_ms: u64) {
        if self.gateway.core.take().is_none() {
            return;
        }
        self.say(|| format!("gateway is killed, power cut {power_cut}"));
        self.gateway.db = self.gateway.db.reopen(power_cut);
        self.gateway.broken = false;
        self.gateway.calls.clear();
        self.gateway.wake += 1;
        self.watch.rebooted();
        for node in &mut self.nodes {
            node.streams.clear();
        }
        self.after(down_ms, Do::GatewayStart);
    }

    /// The gateway hears of something.
    pub(super) fn tell(&mut self, event: Event) -> Check {
        let now = self.now();
        let Some(core) = &mut self.gateway.core else { return Ok(()) };
        match &event {
            Event::CallDone { call_id, result } => self.watch.reply(*call_id, result),
            Event::StreamItem { call_id, event } => self.watch.piece(*call_id, event),
            Event::StreamEnded { call_id, result } => self.watch.stream_end(*call_id, result),
            _ => self.watch.silence(),
        }
        if self.trace && !matches!(event, Event::Tick) {
            println!("{:>10.3}  -> {}", (self.now_ms - BEGIN_MS) as f64 / 1000.0, brief(&event));
        }
        let effects = core.handle(now, event);
        if self.crash_by_fault() {
            return Ok(());
        }
        self.look(effects)
    }

    /// What a step of the gateway did.
    fn look(&mut self, effects: Vec<Effect>) -> Check {
        let Some(core) = &self.gateway.core else { return Ok(()) };
        let flags = by_address(core.flags());
        let state = core.state();
        if state.nonce() != self.watch.ledger.nonce {
            for bytes in core.diffs(self.watch.ledger.nonce + 1, usize::MAX) {
                self.watch.diff(&bytes, &flags)?;
            }
            self.watch.books(&Books {
                nonce: state.nonce(),
                balance: state.balance(),
                fees: state.fees(),
                reserved: state.reserved(),
                stats: state.stats(),
            })?;
            if let Err(why) = state.check_conservation() {
                return breach(Law::CoinsConserved, why);
            }
        }
        for effect in &effects {
            if let Effect::Call { call_id, participant, call, .. } = effect {
                self.watch.call(*call_id, *participant, call, &flags)?;
            }
        }
        if !self.gateway.broken {
            self.watch.step(flags)?;
        }
        effects.into_iter().try_for_each(|effect| self.perform(effect))
    }

    fn perform(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::Call { call_id, participant, call, timeout_ms, .. } => {
                let Some(host) = self.cast.index(&participant) else { return Ok(()) };
                self.say(|| format!("<- host{host} #{call_id} {}", brief_call(&call)));
                let infer = matches!(call, HostCall::Infer(_));
                self.gateway.calls.insert(call_id, OpenCall { host, infer, last_ms: self.now_ms });
                let gateway_boot = self.gateway.boot;
                self.after(timeout_ms, Do::CallTimeout { gateway_boot, call_id });
                let call = Rc::new(call);
                if let Some(seen) = &mut self.seen {
                    seen.push(Seen { at_ms: self.now_ms - BEGIN_MS, host, call: call.clone() });
                }
                self.send(host, call_id, call);
                Ok(())
            }
            Effect::AbortCall { call_id } => {
                self.gateway.calls.remove(&call_id);
                Ok(())
            }
            Effect::ToClient { request_id, event } => {
                self.say(|| format!("<- client {request_id}: {event:?}"));
                if matches!(event, ClientEvent::Failed(_)) {
                    *self.stages.entry("client failed").or_default() += 1;
                }
                if self.seen.is_some() {
                    self.told.push((request_id, event.clone()));
                }
                self.watch.client(request_id, &event)
            }
            Effect::WakeAt { mono_ms } => {
                self.gateway.wake += 1;
                let (gateway_boot, number) = (self.gateway.boot, self.gateway.wake);
                self.at(mono_ms, Do::Wake { gateway_boot, number });
                Ok(())
            }
            Effect::SettlementReady(settlement) => {
                self.say(|| "<- chain: settlement".into());
                self.watch.settlement(&settlement)?;
                self.after(1_500, Do::Settled);
                Ok(())
            }
            Effect::Retired { reason } => {
                self.say(|| format!("retired: {reason:?}"));
                match reason {
                    RetireReason::Settled => self.end(Over::Settled),
                    RetireReason::SelfCorrupt { .. } if self.gateway.damaged => self.end(Over::Lost),
                    RetireReason::SelfCorrupt { nonce } => {
                        return breach(
                            Law::GatewayOpens,
                            format!("it finds itself corrupt at nonce {nonce}"),
                        );
                    }
                    RetireReason::Stopped => {}
                }
                Ok(())
            }
            Effect::Log(line) => {
                *self.stages.entry(line.stage).or_default() += 1;
                if line.stage.contains("self_suspect") && line.alarm {
                    self.watch.totals.self_suspects += 1;
                }
                self.say(|| {
                    let whom = line.participant.map_or_else(String::new, |p| self.cast.name(&p));
                    format!("   log {} {whom} {:?}", line.stage, line.fields)
                });
                Ok(())
            }
            Effect::OperatorDone { .. }
            | Effect::DisputeReady(_)
            | Effect::Metric(_)
            | Effect::FlagChanged { .. } => Ok(()),
        }
    }

    // ---- the network ----

    fn cut(&self, host: usize) -> bool {
        self.nodes[host].line.cut_until_ms > self.now_ms
    }

    /// Whether a message on the line of `host` is lost, and how long it takes.
    fn fly(&mut self, host: usize) -> Option<u64> {
        let line = self.nodes[host].line;
        let bad = line.until_ms > self.now_ms;
        if self.cut(host) || (bad && self.net.percent(line.lost_pct)) {
            self.watch.totals.lost += 1;
            return None;
        }
        let base = self.nodes[host].member.latency_ms;
        let jitter = self.net.unsigned(0, base / 2 + 1);
        let extra = if bad { self.net.unsigned(0, line.delay_ms) } else { 0 };
        let slow = self.nodes[host].mask.in_mood(self.now_ms, Mood::Slow);
        let slow = if slow { self.net.unsigned(500, 4_000) } else { 0 };
        Some(base + jitter + extra + slow)
    }

    fn send(&mut self, host: usize, call_id: CallId, call: Rc<HostCall>) {
        let gateway_boot = self.gateway.boot;
        let Some(ms) = self.fly(host) else {
            // Half of the time the caller is told that nobody is there.
            if self.net.percent(50) {
                let ms = self.net.unsigned(1, 1_000);
                self.fail(host, call_id, ms, CallError::Transport);
            }
            return;
        };
        let line = self.nodes[host].line;
        let twice = line.until_ms > self.now_ms && self.net.percent(line.twice_pct);
        if twice && let Some(ms) = self.fly(host) {
            let call = call.clone();
            self.after(ms, Do::Arrive { host, gateway_boot, call_id, call, echo: true });
        }
        self.after(ms, Do::Arrive { host, gateway_boot, call_id, call, echo: false });
    }

    fn fail(&mut self, _host: usize, call_id: CallId, ms: u64, error: CallError) {
        let gateway_boot = self.gateway.boot;
        let Some(call) = self.gateway.calls.get(&call_id) else { return };
        let what = if call.infer { Back::End(Err(error)) } else { Back::Done(Err(error)) };
        self.after(ms, Do::Back { gateway_boot, call_id, what });
    }

    /// Sends something back to the gateway; what belongs to one call keeps its order.
    fn reply(&mut self, host: usize, gateway_boot: u64, call_id: CallId, what: Back) {
        let Some(ms) = self.fly(host) else { return };
        if gateway_boot != self.gateway.boot {
            return;
        }
        let Some(call) = self.gateway.calls.get_mut(&call_id) else { return };
        call.last_ms = call.last_ms.max(self.now_ms + ms);
        let at_ms = call.last_ms;
        self.at(at_ms, Do::Back { gateway_boot, call_id, what });
    }

    fn back(&mut self, gateway_boot: u64, call_id: CallId, what: Back) -> Check {
        if gateway_boot != self.gateway.boot || !self.gateway.calls.contains_key(&call_id) {
            return Ok(());
        }
        match what {
            Back::Piece(event) => self.tell(Event::StreamItem { call_id, event }),
            Back::End(result) => {
                self.gateway.calls.remove(&call_id);
                self.tell(Event::StreamEnded { call_id, result })
            }
            Back::Done(result) => {
                self.gateway.calls.remove(&call_id);
                self.tell(Event::CallDone { call_id, result })
            }
        }
    }

    fn arrive(
        &mut self,
        host: usize,
        gateway_boot: u64,
        call_id: CallId,
        call: &Rc<HostCall>,
        echo: bool,
    ) -> Check {
        let unix_ms = self.host_unix_ms(host);
        let now_ms = self.now_ms;
        let node = &mut self.nodes[host];
        let Some(replica) = &mut node.replica else {
            if !echo && gateway_boot == self.gateway.boot {
                self.fail(host, call_id, 5, CallError::Transport);
            }
            return Ok(());
        };
        let face = Face { key: &node.member.key, terms: &self.cast.terms };
        let outcome = node.mask.answer(replica.as_mut(), &face, &mut self.net, (now_ms, unix_ms), call);
        let dropped = matches!(&outcome, Outcome::Answer(Answer::Reply(HostReply::ResetSession(_))));
        if dropped {
            node.memory += 1;
            self.watch.totals.resets += 1;
            if node.mask.fork.is_some_and(|fork| fork.heal != Heal::Never) {
                node.mask.fork = None;
            }
        }
        self.honest(host, &outcome)?;
        self.begin_jobs(host)?;
        let infer = matches!(**call, HostCall::Infer(_));
        match outcome {
            Outcome::Error(error) if !echo => {
                let what = if infer { Back::End(Err(error)) } else { Back::Done(Err(error)) };
                self.reply(host, gateway_boot, call_id, what);
            }
            Outcome::Answer(Answer::Reply(reply)) if !echo => {
                self.reply(host, gateway_boot, call_id, Back::Done(Ok(reply)));
            }
            Outcome::Answer(Answer::Stream(pieces)) if !echo => {
                let over = pieces.iter().any(last);
                for piece in pieces {
                    self.reply(host, gateway_boot, call_id, Back::Piece(piece));
                }
                if over {
                    self.reply(host, gateway_boot, call_id, Back::End(Ok(())));
                } else if let HostCall::Infer(request) = &**call {
                    let stream = Stream { gateway_boot, call_id };
                    self.nodes[host].streams.insert(request.target_nonce, stream);
                }
            }
            Outcome::Answer(Answer::Challenge { executor, request }) if !echo => {
                self.seq += 1;
                let (boot, number) = (self.nodes[host].boot, self.seq);
                let vote = Ballot { host, boot, gateway_boot, call_id, call: call.clone(), number };
                self.after(CHALLENGE_MS, Do::Challenged { vote: vote.clone(), answer: None });
                if let Some(to) = self.cast.index(&executor)
                    && let (Some(out), Some(back)) = (self.fly(host), self.fly(to))
                {
                    let ask = Rc::new(request);
                    self.after(out + back, Do::Challenge { from: host, to, ask, vote });
                }
            }
            Outcome::Error(_) | Outcome::Answer(_) => {}
        }
        Ok(())
    }

    /// A sound host computes what we compute.
    fn honest(&self, host: usize, outcome: &Outcome) -> Check {
        let node = &self.nodes[host];
        if !node.mask.sound(self.now_ms) || node.member.wrong_terms {
            return Ok(());
        }
        match outcome {
            Outcome::Answer(Answer::Reply(HostReply::Teach(reply))) => match &reply.applied {
                Some(applied) => self.watch.honest_root(host, applied.nonce, &applied.root),
                None => Ok(()),
            },
            Outcome::Answer(Answer::Reply(HostReply::GetSignatures(reply))) => {
                self.watch.honest_root(host, reply.nonce, &reply.root)
            }
            _ => Ok(()),
        }
    }

    fn challenge(&mut self, from: usize, to: usize, ask: &pb::ChallengeStartRequest, vote: Ballot) -> Check {
        let unix_ms = self.host_unix_ms(to);
        let caller = self.nodes[from].member.address;
        let node = &self.nodes[to];
        // A host that will not work does not work for a voter either.
        let unwilling = node.mask.in_mood(self.now_ms, Mood::Refuses)
            || node.mask.fork.is_some_and(|fork| fork.how != super::schedule::Fork::Careless);
        if unwilling {
            return Ok(());
        }
        let mut ask = ask.clone();
        let answer = loop {
            let Some(executor) = &mut self.nodes[to].replica else { return Ok(()) };
            match executor.challenge(unix_ms, &caller, &ask) {
                Ok(answer) => break Some(answer),
                Err(error) if error.code() == pb::escrow_error::Code::Behind => {
                    // The voter lends its log.
                    let voter = self.nodes[from].replica.as_mut();
                    match voter.and_then(|voter| voter.challenge_with_log(&ask, error.have_nonce)) {
                        Some(again) => ask = again,
                        None => break None,
                    }
                }
                Err(_) => break None,
            }
        };
        self.begin_jobs(to)?;
        if let (Some(answer), Some(out), Some(back)) = (answer, self.fly(to), self.fly(from)) {
            self.after(out + back, Do::Challenged { vote, answer: Some(answer) });
        }
        Ok(())
    }

    fn challenged(&mut self, vote: &Ballot, answer: Option<pb::ChallengeStartResponse>) -> Check {
        let unix_ms = self.host_unix_ms(vote.host);
        let node = &mut self.nodes[vote.host];
        let HostCall::VoteTimeout(request) = &*vote.call else { return Ok(()) };
        if node.boot != vote.boot || !self.ballots.insert(vote.number) {
            return Ok(());
        }
        let Some(replica) = &mut node.replica else { return Ok(()) };
        let result = replica.vote(unix_ms, request, answer);
        let result = result.map(HostReply::VoteTimeout).map_err(|error| CallError::Host(Box::new(error)));
        self.reply(vote.host, vote.gateway_boot, vote.call_id, Back::Done(result));
        Ok(())
    }

    fn announce(&mut self, host: usize, boot: u64) -> Check {
        if self.nodes[host].boot != boot || self.nodes[host].replica.is_none() {
            return Ok(());
        }
        if self.gateway.core.is_none() || self.cut(host) {
            self.after(5_000, Do::Announce { host, boot });
            return Ok(());
        }
        let participant = self.nodes[host].member.address;
        self.tell(Event::Announce { participant, boot_id: format!("boot-{boot}") })
    }

    // ---- computations ----

    fn begin_jobs(&mut self, host: usize) -> Check {
        let Some(replica) = &mut self.nodes[host].replica else { return Ok(()) };
        for job in replica.take_jobs() {
            self.watch.run(host, self.nodes[host].memory, job.id)?;
            let work = Work::of(&job.body);
            let fate = if self.nodes[host].mask.in_mood(self.now_ms, Mood::Stuck) {
                Fate::Never
            } else if self.nodes[host].mask.in_mood(self.now_ms, Mood::Late) {
                Fate::Late
            } else {
                work.fate
            };
            let computation = Computation {
                tokens: work.tokens,
                limit: job.output_limit,
                pace_ms: work.pace_ms,
                fate,
                began_ms: self.now_ms,
                done: 0,
                text: String::new(),
            };
            self.nodes[host].jobs.insert(job.id, computation);
            let boot = self.nodes[host].boot;
            self.after(work.pace_ms, Do::JobStep { host, boot, id: job.id });
        }
        Ok(())
    }

    fn job_step(&mut self, host: usize, boot: u64, id: u64) -> Check {
        use pb::infer_response::Event as Piece;
        let unix_ms = self.host_unix_ms(host);
        let timeout_ms = u64::from(self.cast.terms.execution_timeout_s) * 1_000;
        let now_ms = self.now_ms;
        let node = &mut self.nodes[host];
        let Some(replica) = node.replica.as_mut().filter(|replica| node.boot == boot && replica.runs(id))
        else {
            node.jobs.remove(&id);
            return Ok(());
        };
        let Some(job) = node.jobs.get_mut(&id) else { return Ok(()) };
        let tokens = job.tokens.min(job.limit);
        let age_ms = now_ms - job.began_ms;
        let (end, wait_ms) = match job.fate {
            Fate::Never if age_ms > 2 * timeout_ms => (Some(JobEnd::Failed { kind: 6, tokens: job.done }), 0),
            Fate::Late if age_ms > timeout_ms + 20_000 => {
                (Some(JobEnd::Done { text: job.text.clone(), tokens: job.done }), 0)
            }
            Fate::Never | Fate::Late => (None, 2_000),
            Fate::Fails(kind) if job.done + 1 >= tokens => {
                (Some(JobEnd::Failed { kind, tokens: job.done }), 0)
            }
            Fate::Done if job.done >= tokens => {
                (Some(JobEnd::Done { text: job.text.clone(), tokens: job.done }), 0)
            }
            Fate::Done | Fate::Fails(_) => (None, job.pace_ms),
        };
        let piece = match &end {
            Some(end) => {
                let piece = replica.ended(unix_ms, id, end);
                node.jobs.remove(&id);
                piece
            }
            None if wait_ms == 2_000 => Some(Piece::Beat(pb::Beat {})),
            None => {
                let index = job.done;
                let text = format!("w{index} ");
                job.text.push_str(&text);
                job.done += 1;
                replica.delivered(id, job.done);
                Some(Piece::Delta(pb::Delta { index, text, token_ids: vec![index] }))
            }
        };
        let stream = node.streams.get(&id).copied();
        if let (Some(Stream { gateway_boot, call_id }), Some(piece)) = (stream, piece) {
            self.reply(host, gateway_boot, call_id, Back::Piece(piece));
            if end.is_some() {
                self.reply(host, gateway_boot, call_id, Back::End(Ok(())));
            }
        }
        if end.is_none() {
            self.after(wait_ms.max(1), Do::JobStep { host, boot, id });
        } else {
            self.nodes[host].streams.remove(&id);
        }
        Ok(())
    }

    // ---- what the schedule says ----

    pub(super) fn ask(
        &mut self,
        name: u64,
        filling: usize,
        limits: (u32, u32),
        work: Work,
        patience_ms: u64,
    ) -> Check {
        if self.gateway.core.is_none() {
            return Ok(());
        }
        let body = work.body(name, filling);
        if work.fate != Fate::Done {
            self.asked_to_fail.insert(Sha256::digest(&body).into());
        }
        let deadline_ms = self.now_ms + patience_ms;
        self.watch.request(name, deadline_ms);
        self.tell(Event::Request(UserRequest {
            request_id: name,
            label: format!("request-{name}"),
            body,
            input_limit: limits.0,
            output_limit: limits.1,
            deadline_ms,
        }))
    }

    pub(super) fn crash_host(&mut self, host: usize, store: Store, power_cut: bool, down_ms: u64) {
        if self.nodes[host].replica.is_none() {
            return;
        }
        self.say(|| format!("host{host} dies, store {store:?}"));
        let node = &mut self.nodes[host];
        node.stop(power_cut);
        match store {
            Store::Kept => {}
            Store::Empty => node.wipe(),
            Store::Older => node.restore(),
        }
        // A true fork lives in the state: with it gone the host is sound, unless it forks again.
        if store == Store::Empty && node.mask.fork.is_some_and(|fork| fork.heal != Heal::Never) {
            node.mask.fork = None;
        }
        let open: Vec<CallId> =
            self.gateway.calls.iter().filter(|(_, call)| call.host == host).map(|(id, _)| *id).collect();
        for call_id in open {
            let ms = self.net.unsigned(1, 50);
            self.fail(host, call_id, ms, CallError::Transport);
        }
        self.after(down_ms, Do::HostStart { host });
    }

    pub(super) fn operator(&mut self, host: usize, verb: Verb) -> Check {
        self.op_id += 1;
        let participant = self.nodes[host].member.address;
        self.tell(Event::Operator { op_id: self.op_id, participant, verb })
    }

    fn item(&mut self, number: usize) -> Check {
        let Some(Item { what, .. }) = self.items.get(&number).cloned() else { return Ok(()) };
        let now_ms = self.now_ms;
        if !matches!(what, What::Request { .. } | What::Leave(_) | What::Finalize) {
            self.watch.totals.faults += 1;
        }
        match what {
            What::Request { filling, limits, work, patience_ms } => {
                self.ask(number as u64 + 1, filling, limits, work, patience_ms)
            }
            What::Leave(of) => {
                let request_id = of as u64 + 1;
                if self.gateway.core.is_none() || !self.watch.waits(request_id) {
                    return Ok(());
                }
                self.watch.left(request_id);
                self.tell(Event::ClientLeft { request_id })
            }
            What::Line { host, lost_pct, twice_pct, delay_ms, for_ms } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                let cut_until_ms = node.line.cut_until_ms;
                node.line = super::node::Line {
                    until_ms: now_ms + for_ms,
                    lost_pct,
                    twice_pct,
                    delay_ms,
                    cut_until_ms,
                };
                Ok(())
            }
            What::Cut { host, for_ms } => {
                self.nodes[host].blameless = false;
                self.nodes[host].line.cut_until_ms = now_ms + for_ms;
                self.after(for_ms, Do::CutEnds);
                Ok(())
            }
            What::Crash { host, store, power_cut, down_ms } => {
                self.nodes[host].blameless = false;
                self.crash_host(host, store, power_cut, down_ms);
                Ok(())
            }
            What::Fork { host, after, how, heal } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                let have = node.replica.as_mut().and_then(|replica| replica.nonce()).unwrap_or(0);
                node.mask.fork = Some(Forked { from: have + 1 + after, how, heal });
                Ok(())
            }
            What::Mood { host, mood, for_ms } => {
                let node = &mut self.nodes[host];
                node.blameless = false;
                node.mask.moods.push((mood, now_ms + for_ms));
                Ok(())
            }
            What::Kill { power_cut, down_ms } => {
                self.kill_gateway(power_cut, down_ms);
                Ok(())
            }
            What::CommitFault { nth, how, power_cut, down_ms } => {
                let fault = match how {
                    Commit::DiesBefore => Fault::CrashBefore,
                    Commit::DiesAfter => Fault::CrashAfter,
                    Commit::Fails => Fault::Fail,
                    Commit::Full => Fault::Full,
                };
                if self.gateway.fault.is_none() && self.gateway.core.is_some() {
                    self.gateway.db.fault(nth, fault);
                    self.gateway.fault = Some((self.gateway.db.commits() + nth, how, power_cut, down_ms));
                }
                Ok(())
            }
            What::Damage(damage) => {
                self.damage(damage);
                Ok(())
            }
            What::GatewayClock { by_ms } => {
                self.clocks_moved = true;
                self.gateway.clock_ms += by_ms;
                Ok(())
            }
            What::HostClock { host, by_ms } => {
                self.clocks_moved = true;
                self.nodes[host].clock_ms += by_ms;
                Ok(())
            }
            What::Operator { host, verb } => {
                let verb = match verb {
                    0 => Verb::ForceTeach,
                    1 => Verb::GiveUp,
                    _ => Verb::Release,
                };
                self.operator(host, verb)
            }
            What::Absent { host, for_ms } => {
                let list = vec![self.nodes[host].member.address];
                self.after(for_ms, Do::Excused(Vec::new()));
                self.gateway.absent.clone_from(&list);
                self.tell(Event::Chain(ChainNews::Absent(list)))
            }
            What::Finalize if self.gateway.core.is_none() => {
                self.after(1_000, Do::Item(number));
                Ok(())
            }
            What::Finalize => {
                self.calm.finalized = true;
                self.tell(Event::Finalize)
            }
        }
    }

    /// Alters a row on the gateway's disk; the process starts again over it.
    fn damage(&mut self, damage: Damage) {
        let rows = self.gateway.db.rows();
        let space = match damage {
            Damage::Diff | Damage::Gap => &b"diffs"[..],
            Damage::Snapshot => b"snapshots",
        };
        let found: Vec<_> =
            rows.iter().filter(|(key, _)| key.windows(space.len()).any(|w| w == space)).collect();
        let Some((key, value)) = self.net.maybe(&found).copied() else { return };
        let mut value = value.clone();
        let at = self.net.below(value.len());
        match damage {
            Damage::Gap => self.gateway.db.damage(key, None),
            _ => {
                if let Some(byte) = value.get_mut(at) {
                    *byte ^= 0x40;
                }
                self.gateway.db.damage(key, Some(&value));
            }
        }
        self.gateway.damaged = true;
        self.watch.damaged = true;
        self.kill_gateway(false, 1_000);
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

fn last(piece: &pb::infer_response::Event) -> bool {
    matches!(piece, pb::infer_response::Event::Finished(_) | pb::infer_response::Event::Failed(_))
}

pub(super) fn by_address(flags: Vec<FlagView>) -> BTreeMap<Address, FlagView> {
    flags.into_iter().map(|flag| (flag.participant, flag)).collect()
}

fn brief(event: &Event) -> String {
    match event {
        Event::CallDone { call_id, result } => match result {
            Ok(HostReply::Teach(reply)) => {
                let at = reply.applied.as_ref().map(|applied| (applied.nonce, applied.withheld));
                format!("#{call_id} Teach at {at:?}")
            }
            Ok(HostReply::GetSignatures(reply)) => format!(
                "#{call_id} GetSignatures {} of {}, fresh {}",
                reply.nonce,
                reply.have_nonce,
                reply.verification.is_some()
            ),
            Ok(HostReply::VoteTimeout(reply)) => format!("#{call_id} vote {}", reply.accept),
            Ok(HostReply::Bind(reply)) => format!("#{call_id} Bind at {}", reply.nonce),
            Ok(_) => format!("#{call_id} ok"),
            Err(CallError::Host(error)) => {
                format!("#{call_id} error {:?} nonce {} have {}", error.code(), error.nonce, error.have_nonce)
            }
            Err(error) => format!("#{call_id} {error:?}"),
        },
        Event::StreamItem { call_id, event } => {
            let text = format!("{event:?}");
            format!("#{call_id} {}", text.chars().take(60).collect::<String>())
        }
        Event::Request(request) => format!("request {}", request.request_id),
        other => format!("{other:?}").chars().take(160).collect(),
    }
}

fn brief_call(call: &HostCall) -> String {
    match call {
        HostCall::Teach(request) => {
            format!("Teach {} diffs, challenge {}", request.diffs.len(), request.challenge.is_some())
        }
        HostCall::Infer(request) => {
            format!("Infer {} with {} diffs", request.target_nonce, request.diffs.len())
        }
        HostCall::GetSignatures(request) => format!("GetSignatures {}", request.nonce),
        HostCall::VoteTimeout(request) => {
            format!("VoteTimeout {} reason {}", request.inference_id, request.reason)
        }
        HostCall::Cancel(request) => format!("Cancel {} {}", request.inference_id, request.cause),
        HostCall::Bind(_) => "Bind".into(),
        HostCall::GetPending(_) => "GetPending".into(),
        HostCall::GetDiffs(request) => format!("GetDiffs {}", request.from),
        HostCall::ResetSession(_) => "ResetSession".into(),
    }
}
