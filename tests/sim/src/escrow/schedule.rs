//! What happens when: requests and faults, drawn from the seed, printed as a list.

use std::fmt;

use crate::Rng;

use super::cast::Cast;

/// How an executor fares with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// All tokens come.
    Done,
    /// It fails with this `FailureKind`.
    Fails(u8),
    /// Beats come, an end does not.
    Never,
    /// The end comes after the execution timeout.
    Late,
}

/// Work that a request means, written into its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Tokens of the answer.
    pub(super) tokens: u32,
    /// Milliseconds a token.
    pub(super) pace_ms: u64,
    /// How it ends.
    pub(super) fate: Fate,
}

impl Work {
    /// The body of a request: what the host reads its work from, and filling.
    pub(super) fn body(&self, name: u64, filling: usize) -> Vec<u8> {
        let fate = match self.fate {
            Fate::Done => 0,
            Fate::Fails(kind) => kind,
            Fate::Never => 100,
            Fate::Late => 101,
        };
        let mut body = format!("work {} {} {fate} {name} ", self.tokens, self.pace_ms).into_bytes();
        body.resize(body.len() + filling, b'.');
        body
    }

    /// From a body; any other body, as that of a ghost, is one quick token.
    pub(super) fn of(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let mut words = text.split(' ');
        let work = (|| {
            (words.next()? == "work").then_some(())?;
            let tokens = words.next()?.parse().ok()?;
            let pace_ms = words.next()?.parse().ok()?;
            let fate = match words.next()?.parse().ok()? {
                0 => Fate::Done,
                100 => Fate::Never,
                101 => Fate::Late,
                kind => Fate::Fails(kind),
            };
            Some(Self { tokens, pace_ms, fate })
        })();
        work.unwrap_or(Self { tokens: 1, pace_ms: 10, fate: Fate::Done })
    }
}

/// How a forked host behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fork {
    /// It computes another root and refuses the diff with its signature.
    Refuses,
    /// It applies everything and signs its own roots.
    Careless,
    /// It refuses work with its signature, yet signs our roots when it is asked for a proof.
    Liar,
}

/// What ends a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heal {
    /// An empty store: it starts again when the faults stop.
    Restart,
    /// ResetSession, if both sides allow it; else as [`Heal::Restart`].
    Reset,
    /// Nothing.
    Never,
}

/// A passing mood of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// It signs no state.
    Withholds,
    /// It signs roots of its own.
    SignsOther,
    /// Its replies hold random bytes.
    Garbage,
    /// Its errors speak of roots that do not match, unsigned or with a signature of nobody.
    Crafted,
    /// Everything is too large for it.
    TooLarge,
    /// It takes no work.
    Refuses,
    /// It claims nonces that do not exist.
    ClaimsAhead,
    /// It offers transactions that nobody signed.
    BogusTxs,
    /// It answers with a diff that the gateway never signed.
    ForgedFork,
    /// Its answers take seconds.
    Slow,
    /// It begins and never ends.
    Stuck,
    /// It ends after the execution timeout.
    Late,
    /// It proves nothing while it is taught: it has to be asked.
    Terse,
}

/// Those that a fault draws from; `Terse` is drawn apart.
const MOODS: [Mood; 12] = [
    Mood::Withholds,
    Mood::SignsOther,
    Mood::Garbage,
    Mood::Crafted,
    Mood::TooLarge,
    Mood::Refuses,
    Mood::ClaimsAhead,
    Mood::BogusTxs,
    Mood::ForgedFork,
    Mood::Slow,
    Mood::Stuck,
    Mood::Late,
];

/// With which store a host starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    /// Its own.
    Kept,
    /// None.
    Empty,
    /// A copy from some time ago.
    Older,
}

/// How a commit of the gateway goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// The process dies before it.
    DiesBefore,
    /// The process dies after it.
    DiesAfter,
    /// The disk fails.
    Fails,
    /// The disk is full.
    Full,
}

/// Damage to the gateway's own store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// A byte of a diff.
    Diff,
    /// A snapshot.
    Snapshot,
    /// A diff is gone.
    Gap,
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// A client asks.
    Request {
        /// Filling of the body, bytes.
        filling: usize,
        /// Limits of tokens.
        limits: (u32, u32),
        /// What it means.
        work: Work,
        /// How long the client waits.
        patience_ms: u64,
    },
    /// The client of the `n`th item is gone.
    Leave(usize),
    /// A bad line for a while.
    Line { host: usize, lost_pct: usize, twice_pct: usize, delay_ms: u64, for_ms: u64 },
    /// No line for a while.
    Cut { host: usize, for_ms: u64 },
    /// The process of a host dies.
    Crash { host: usize, store: Store, power_cut: bool, down_ms: u64 },
    /// A host parts from us, so many nonces from now.
    Fork { host: usize, after: u64, how: Fork, heal: Heal },
    /// A mood for a while.
    Mood { host: usize, mood: Mood, for_ms: u64 },
    /// The gateway's process ends in order.
    Stop { down_ms: u64 },
    /// The gateway's process is killed.
    Kill { power_cut: bool, down_ms: u64 },
    /// The `nth` commit from now goes wrong.
    CommitFault { nth: u64, how: Commit, power_cut: bool, down_ms: u64 },
    /// Damage to the gateway's store, then a restart.
    Damage(Damage),
    /// The gateway is started from an older copy of its store; of who holds more than that, the one that is furthest on is
    /// cut off for `away_ms`.
    Older { down_ms: u64, away_ms: u64 },
    /// The chain takes the escrow as expired: only a dispute pays from here on.
    Expires,
    /// The wall clock of the gateway jumps.
    GatewayClock { by_ms: i64 },
    /// The wall clock of a host jumps.
    HostClock { host: usize, by_ms: i64 },
    /// An operator of the gateway speaks: 0 ForceTeach, 1 GiveUp, 2 Release.
    Operator { host: usize, verb: u8 },
    /// The chain excuses a host for a while.
    Absent { host: usize, for_ms: u64 },
    /// The gateway's operator ends the session.
    Finalize,
}

/// When, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Milliseconds from the begin.
    pub(super) at_ms: u64,
    /// What.
    pub(super) what: What,
}

/// The list of a seed. Items keep their numbers when others are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    /// By number.
    pub(super) items: Vec<Item>,
    /// When the faults stop.
    pub(super) calm_ms: u64,
}

impl Schedule {
    pub(super) fn draw(cast: &Cast) -> Self {
        let mut rng = Rng::new(cast.seed, "escrow schedule");
        let hosts = cast.members.len();
        let calm_ms = *rng.pick(&[20_000, 60_000, 60_000, 120_000, 240_000]);
        let mut items = Vec::new();
        let requests = rng.unsigned(5, 40);
        for _ in 0..requests {
            items.push(Item { at_ms: rng.unsigned(0, calm_ms), what: request(&mut rng) });
        }
        let leaves = rng.below(4);
        for _ in 0..leaves {
            let of = rng.below(items.len());
            let at_ms = items[of].at_ms + rng.unsigned(1, 3_000);
            if matches!(items[of].what, What::Request { .. }) {
                items.push(Item { at_ms, what: What::Leave(of) });
            }
        }
        // A third of the seeds is about one fault, so that it is not hidden behind others.
        let faults = *rng.pick(&[0, 1, 1, 2, 3, 4, 6, 9]);
        for _ in 0..faults {
            let at_ms = rng.unsigned(0, calm_ms);
            items.push(Item { at_ms, what: fault(&mut rng, hosts, calm_ms) });
        }
        if rng.percent(15) {
            items.push(Item { at_ms: rng.unsigned(calm_ms / 2, calm_ms), what: What::Finalize });
        }
        // Apart from the faults above, so that the items of a seed stay what they were.
        if rng.percent(8) {
            let (down_ms, away_ms) = (rng.unsigned(100, 10_000), *rng.pick(&[0, 10_000, 60_000, 60_000]));
            let at_ms = rng.unsigned(calm_ms / 4, calm_ms);
            items.push(Item { at_ms, what: What::Older { down_ms, away_ms } });
        }
        if rng.percent(4) {
            items.push(Item { at_ms: rng.unsigned(calm_ms / 2, calm_ms), what: What::Expires });
        }
        if rng.percent(8) {
            let (host, for_ms) = (rng.below(hosts), rng.unsigned(500, calm_ms));
            let what = What::Mood { host, mood: Mood::Terse, for_ms };
            items.push(Item { at_ms: rng.unsigned(0, calm_ms), what });
        }
        Self { items, calm_ms }
    }

    /// Only the items with these numbers.
    pub(super) fn keep(&self, numbers: &[usize]) -> Vec<(usize, Item)> {
        let kept = numbers.iter().filter_map(|number| Some((*number, self.items.get(*number)?.clone())));
        let mut kept: Vec<_> = kept.collect();
        kept.sort_by_key(|(number, item)| (item.at_ms, *number));
        kept
    }

    /// All numbers.
    pub(super) fn numbers(&self) -> Vec<usize> {
        (0..self.items.len()).collect()
    }
}

fn request(rng: &mut Rng) -> What {
    let fate = match rng.below(20) {
        0 => Fate::Fails(*rng.pick(&[1, 2, 6, 7, 10])),
        1 => Fate::Never,
        2 => Fate::Late,
        _ => Fate::Done,
    };
    let tokens = u32::try_from(rng.unsigned(1, 12)).unwrap_or(1);
    What::Request {
        filling: rng.below(200),
        limits: (64, if rng.percent(95) { 16 } else { tokens.saturating_sub(1).max(1) }),
        work: Work { tokens, pace_ms: rng.unsigned(5, 400), fate },
        patience_ms: *rng.pick(&[2_000, 20_000, 60_000, 120_000]),
    }
}

fn fault(rng: &mut Rng, hosts: usize, calm_ms: u64) -> What {
    let host = rng.below(hosts);
    let for_ms = rng.unsigned(500, calm_ms / 2);
    let down_ms = rng.unsigned(100, 30_000);
    match rng.below(100) {
        0..=11 => What::Line {
            host,
            lost_pct: rng.below(60),
            twice_pct: rng.below(60),
            delay_ms: rng.unsigned(0, 5_000),
            for_ms,
        },
        12..=18 => What::Cut { host, for_ms },
        19..=32 => {
            let store = *rng.pick(&[Store::Kept, Store::Empty, Store::Older]);
            What::Crash { host, store, power_cut: rng.percent(50), down_ms }
        }
        33..=54 => What::Fork {
            host,
            after: rng.unsigned(0, 6),
            how: *rng.pick(&[Fork::Refuses, Fork::Refuses, Fork::Careless, Fork::Liar]),
            heal: *rng.pick(&[Heal::Restart, Heal::Restart, Heal::Reset, Heal::Never]),
        },
        55..=72 => What::Mood { host, mood: *rng.pick(&MOODS), for_ms },
        73..=74 => What::Stop { down_ms },
        75..=78 => What::Kill { power_cut: rng.percent(50), down_ms },
        79..=86 => What::CommitFault {
            nth: rng.unsigned(1, 40),
            how: *rng.pick(&[
                Commit::DiesBefore,
                Commit::DiesAfter,
                Commit::DiesAfter,
                Commit::Fails,
                Commit::Full,
            ]),
            power_cut: rng.percent(50),
            down_ms,
        },
        87 => What::Damage(*rng.pick(&[Damage::Diff, Damage::Snapshot, Damage::Gap])),
        88..=90 => What::GatewayClock { by_ms: rng.range(-90_000, 90_000) },
        91..=93 => What::HostClock { host, by_ms: rng.range(-90_000, 90_000) },
        94..=97 => What::Operator { host, verb: u8::try_from(rng.below(3)).unwrap_or(0) },
        _ => What::Absent { host, for_ms },
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s  ", self.at_ms as f64 / 1000.0)?;
        match &self.what {
            What::Request { filling, limits, work, patience_ms } => write!(
                f,
                "request of {} tokens at {} ms, {:?}, limits {}/{}, filling {filling}, waits {patience_ms} ms",
                work.tokens, work.pace_ms, work.fate, limits.0, limits.1
            ),
            What::Leave(of) => write!(f, "the client of item {of} leaves"),
            What::Line { host, lost_pct, twice_pct, delay_ms, for_ms } => write!(
                f,
                "host{host}: line loses {lost_pct} %, doubles {twice_pct} %, adds up to {delay_ms} ms, for {for_ms} ms"
            ),
            What::Cut { host, for_ms } => write!(f, "host{host}: cut off for {for_ms} ms"),
            What::Crash { host, store, power_cut, down_ms } => {
                write!(
                    f,
                    "host{host}: crash, power cut {power_cut}, store {store:?}, back after {down_ms} ms"
                )
            }
            What::Fork { host, after, how, heal } => {
                write!(f, "host{host}: forks {after} nonces later, {how:?}, healed by {heal:?}")
            }
            What::Mood { host, mood, for_ms } => write!(f, "host{host}: {mood:?} for {for_ms} ms"),
            What::Kill { power_cut, down_ms } => {
                write!(f, "gateway: killed, power cut {power_cut}, back after {down_ms} ms")
            }
            What::Stop { down_ms } => write!(f, "gateway: stopped, back after {down_ms} ms"),
            What::CommitFault { nth, how, power_cut, down_ms } => write!(
                f,
                "gateway: commit {nth} from now {how:?}, power cut {power_cut}, back after {down_ms} ms"
            ),
            What::Damage(what) => write!(f, "gateway: damaged on disk: {what:?}"),
            What::Older { down_ms, away_ms } => write!(
                f,
                "gateway: started from an older copy after {down_ms} ms, the host that is furthest on is cut off for {away_ms} ms"
            ),
            What::Expires => write!(f, "chain: the escrow expires"),
            What::GatewayClock { by_ms } => write!(f, "gateway: wall clock {by_ms:+} ms"),
            What::HostClock { host, by_ms } => write!(f, "host{host}: wall clock {by_ms:+} ms"),
            What::Operator { host, verb } => write!(
                f,
                "operator: {} host{host}",
                ["ForceTeach", "GiveUp", "Release"].get(usize::from(*verb)).unwrap_or(&"?")
            ),
            What::Absent { host, for_ms } => write!(f, "chain: excuses host{host} for {for_ms} ms"),
            What::Finalize => write!(f, "operator: finalize"),
        }
    }
}
