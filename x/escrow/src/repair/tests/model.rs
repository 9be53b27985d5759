//! The machine against a model that knows five letters, some numbers and no effects; and the invariants.

use proptest::prelude::*;

use super::*;

/// What may happen, with numbers that make most of it meaningful.
#[derive(Debug, Clone)]
enum Op {
    Mismatch,
    Due(bool),
    /// The wait passes, and a permit comes.
    WaitAndStart,
    Chunk(u64),
    OldSnapshot,
    Refused,
    Budget,
    Forked,
    NotFound,
    Fail,
    TooLarge,
    /// Generation and attempt as given off from the present ones, nonce off from the target.
    Proof(u64, u32, u64),
    Behind,
    AboveTip,
    Unbound,
    Withheld,
    Late(bool),
    Announce(u64),
    Force,
    GiveUp,
    Release,
    End,
    Restart,
    Unreadable,
    Readable,
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Mismatch),
        2 => any::<bool>().prop_map(Op::Due),
        12 => Just(Op::WaitAndStart),
        6 => (1_u64..=70).prop_map(Op::Chunk),
        1 => Just(Op::OldSnapshot),
        1 => Just(Op::Refused),
        1 => Just(Op::Budget),
        1 => Just(Op::Forked),
        2 => Just(Op::NotFound),
        4 => Just(Op::Fail),
        1 => Just(Op::TooLarge),
        2 => (0_u64..=1, 0_u32..=1, 0_u64..=2).prop_map(|(g, a, n)| Op::Proof(g, a, n)),
        1 => Just(Op::Behind),
        1 => Just(Op::AboveTip),
        1 => Just(Op::Unbound),
        1 => Just(Op::Withheld),
        1 => any::<bool>().prop_map(Op::Late),
        2 => (0_u64..=1_200_000).prop_map(Op::Announce),
        1 => Just(Op::Force),
        1 => Just(Op::GiveUp),
        1 => Just(Op::Release),
        1 => Just(Op::End),
        1 => Just(Op::Restart),
        1 => Just(Op::Unreadable),
        2 => Just(Op::Readable),
    ]
}

/// N none, W, T, V, G, S.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    at: char,
    generation: u64,
    attempt: u32,
    level: usize,
    elapsed: u64,
    due: u64,
    target: u64,
    reached: u64,
    lost: u32,
    old: bool,
    progress: bool,
    reopened: u32,
    paused: bool,
    active: bool,
}

const TIP: u64 = 60;
const DEADLINE: u64 = 1_800_000;

impl Model {
    fn new() -> Self {
        Self {
            at: 'N',
            generation: 0,
            attempt: 0,
            level: 0,
            elapsed: 0,
            due: 0,
            target: 0,
            reached: 0,
            lost: 0,
            old: false,
            progress: false,
            reopened: 0,
            paused: false,
            active: true,
        }
    }

    fn spend(&mut self, ms: u64, unreachable: bool) {
        if self.paused {
            return;
        }
        let counted = match self.at {
            'W' => ms.min(self.due),
            'T' | 'V' => ms,
            _ => 0,
        };
        if self.at == 'W' {
            self.due -= counted;
        }
        if !unreachable {
            self.elapsed += counted;
        }
    }

    fn fail(&mut self, wait: Option<u64>) {
        let ladder = [15_000, 30_000, 60_000, 300_000];
        self.due = wait.unwrap_or_else(|| {
            let base = ladder[self.level];
            self.level = (self.level + 1).min(3);
            backoff_ms(base, 7, host_2(), self.generation, self.attempt)
        });
        self.attempt += 1;
        self.at = 'W';
        if self.elapsed >= DEADLINE {
            self.leave('G');
        }
    }

    fn leave(&mut self, to: char) {
        (self.at, self.due) = (to, 0);
        if to == 'G' {
            self.paused = false;
        }
    }

    fn begin_generation(&mut self) {
        self.generation += 1;
        (self.attempt, self.lost) = (1, 0);
    }

    fn take(&mut self, op: &Op, tuned: (u64, u32, u64)) {
        let attempt = matches!(self.at, 'T' | 'V');
        match (op, self.at) {
            (Op::Mismatch, 'N') => {
                *self = Self { at: if self.active { 'W' } else { 'S' }, reopened: 0, ..self.clone() };
                self.begin_generation();
                (self.level, self.elapsed, self.target, self.paused) = (0, 0, 0, false);
                self.due = if self.active { 500 } else { 0 };
            }
            (Op::Mismatch, _) if attempt => {
                self.fail(Some(1_000));
                self.begin_generation();
            }
            (Op::Due(_) | Op::WaitAndStart, 'W') if self.due > 0 => self.paused = false,
            (Op::Due(_) | Op::WaitAndStart, 'W') if self.elapsed >= DEADLINE => self.leave('G'),
            (Op::Due(true) | Op::WaitAndStart, 'W') => {
                (self.at, self.target, self.reached) = ('T', TIP, 0);
                (self.old, self.progress, self.paused) = (false, false, false);
            }
            (Op::Due(false), 'W') => self.paused = false,
            (Op::Chunk(nonce), 'T') => {
                if *nonce > TIP || (*nonce <= self.reached && *nonce < self.target) {
                    self.fail(None);
                } else {
                    (self.reached, self.progress) = (*nonce, true);
                    if *nonce >= self.target {
                        self.at = 'V';
                    }
                }
            }
            (Op::OldSnapshot, 'T') => {
                if self.old {
                    self.fail(None);
                } else {
                    (self.old, self.reached) = (true, 3);
                }
            }
            (Op::Budget, 'T') => self.fail(self.progress.then_some(1_000)),
            (Op::Forked, _) if attempt => {
                self.level = 3;
                self.fail(None);
            }
            (Op::NotFound, _) if attempt => {
                self.lost += 1;
                self.fail((self.lost <= 2).then_some(1_000));
            }
            (Op::Fail | Op::TooLarge | Op::AboveTip, _) if attempt => self.fail(None),
            (Op::Withheld, 'T') if self.target > 20 => {
                if self.reached >= 20 {
                    self.fail(None);
                } else {
                    (self.reached, self.progress) = (20, true);
                }
            }
            (Op::Withheld, _) if attempt => self.fail(None),
            (Op::Refused, 'T') => self.fail(None),
            (Op::Behind | Op::Unbound, 'V') => self.fail(None),
            (Op::Proof(..), _) if attempt => {
                let (generation, number, nonce) = tuned;
                if generation == self.generation
                    && number == self.attempt
                    && (self.target..=TIP).contains(&nonce)
                {
                    self.leave('N');
                }
            }
            (Op::Announce(since), 'G') if self.reopened == 0 || (self.reopened < 3 && *since >= 600_000) => {
                self.reopened += 1;
                self.begin_generation();
                (self.at, self.due, self.level, self.elapsed) = ('W', 500, 0, 0);
            }
            (Op::Force, 'W') => self.due = 0,
            (Op::Force, 'G') => {
                self.begin_generation();
                (self.at, self.due, self.level, self.elapsed) = ('W', 0, 0, 0);
            }
            (Op::GiveUp, 'W') => self.leave('G'),
            (Op::GiveUp, _) if attempt => {
                self.attempt += 1;
                self.leave('G');
            }
            (Op::End, 'N') => {}
            (Op::End, _) => {
                self.attempt += u32::from(attempt);
                if self.at != 'S' {
                    self.leave('S');
                }
            }
            (Op::Restart, 'W' | 'T' | 'V') => {
                self.attempt += u32::from(attempt);
                (self.at, self.paused) = ('W', false);
                // Anything below five seconds; the machine's choice is checked and taken over.
                self.due = u64::MAX;
            }
            (Op::Unreadable, 'W' | 'T' | 'V') if !self.paused => {
                self.attempt += u32::from(attempt);
                (self.at, self.paused) = ('W', true);
            }
            (Op::Readable, 'W') => self.paused = false,
            _ => {}
        }
        if *op == Op::End {
            self.active = false;
        }
    }
}

impl PartialEq<Op> for Op {
    fn eq(&self, other: &Op) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

fn letter(state: Option<&RepairState>) -> char {
    state.map_or('N', |state| format!("{:?}", state.phase).chars().next().unwrap())
}

/// The machine, and a driver's view of it: the permit, and when the flag was cleared.
struct Machine {
    state: Option<RepairState>,
    generation: u64,
    permit: bool,
}

fn event(op: &Op, machine: &Machine) -> (RepairEvent, (u64, u32, u64)) {
    use RepairEvent as E;
    let (attempt, target) = machine.state.as_ref().map_or((0, 0), |s| (s.attempt, s.target));
    let mut tuned = (0, 0, 0);
    let event = match *op {
        Op::Mismatch => E::Mismatch { nonce: 44 },
        Op::Due(permit) => E::Due { permit },
        Op::WaitAndStart => E::Due { permit: true },
        Op::Chunk(nonce) => E::ChunkApplied { nonce },
        Op::OldSnapshot => E::ChunkBehind { have: 3 },
        Op::Refused => E::ChunkRefused { nonce: 44 },
        Op::Budget => E::BudgetUsed,
        Op::Forked => E::Forked { nonce: 44 },
        Op::NotFound => E::NotFound,
        Op::Fail => E::Failed(Failure::Unavailable),
        Op::TooLarge => E::Failed(Failure::TooLarge),
        Op::Proof(generation, number, nonce) => {
            tuned = (
                machine.generation - generation.min(machine.generation),
                attempt + number,
                target + nonce - nonce.min(1),
            );
            E::Proof(ClearProof::for_test(tuned.0, tuned.1, tuned.2))
        }
        Op::Behind => E::SignedBehind { nonce: 20 },
        Op::AboveTip => E::SignedAboveTip { nonce: 99 },
        Op::Unbound => E::KeyNotBound,
        Op::Withheld => E::Withheld { nonce: 20 },
        Op::Late(served) => E::LateEnd { served },
        Op::Announce(since_reopen_ms) => E::Announced { since_reopen_ms },
        Op::Force => E::ForceTeach,
        Op::GiveUp => E::GiveUp,
        Op::Release => E::Release,
        Op::End => E::SessionEnded,
        Op::Restart => E::Restarted,
        Op::Unreadable => E::StoreUnreadable,
        Op::Readable => E::StoreReadable,
    };
    (event, tuned)
}

fn run(history: &[(Op, u64, bool)]) -> Result<(), TestCaseError> {
    let config = RepairConfig::default();
    let mut model = Model::new();
    let mut machine = Machine { state: None, generation: 0, permit: false };
    for (number, (op, ms, unreachable)) in history.iter().enumerate() {
        let at = format!("step {number}, {op:?}");
        let ms = match op {
            Op::WaitAndStart => machine.state.as_ref().map_or(0, |s| s.due_in_ms),
            _ => *ms,
        };
        let (event, tuned) = event(op, &machine);
        let mut ctx = context(&config);
        (ctx.generation, ctx.since_ms) = (machine.generation, ms);
        (ctx.majority_unreachable, ctx.active) = (*unreachable, model.active);
        let before = machine.state.clone();
        let outcome = match step(&ctx, before.as_ref(), &event) {
            Ok(outcome) => outcome,
            Err(_) => {
                let verb = matches!(op, Op::Force | Op::GiveUp | Op::Release);
                prop_assert!(verb && matches!(model.at, 'N' | 'S'), "{at}: refused in {}", model.at);
                continue;
            }
        };
        if !matches!(op, Op::Restart) {
            model.spend(ms, *unreachable);
        }
        model.take(op, tuned);

        // The permit, as a driver keeps it.
        let held = machine.permit;
        let brought = matches!(event, RepairEvent::Due { permit: true });
        let returned = outcome.effects.iter().filter(|e| **e == Effect::ReleasePermit).count();
        let started = outcome.effects.iter().any(|e| matches!(e, Effect::StartAttempt { .. }));
        machine.permit = if matches!(op, Op::Restart) {
            false
        } else if brought {
            prop_assert!(started != (returned == 1), "{at}: a permit is used or given back");
            held || started
        } else {
            prop_assert!(!started, "{at}: an attempt without a permit");
            held && returned == 0
        };

        let now = outcome.state.as_ref();
        prop_assert_eq!(letter(now), model.at, "{}: {:?}", &at, &outcome);
        prop_assert_eq!(outcome.generation, model.generation, "{}", &at);
        if let Some(now) = now {
            if model.due == u64::MAX {
                prop_assert!(now.due_in_ms < 5_000, "{at}");
                model.due = now.due_in_ms;
            }
            let got = (now.attempt, usize::from(now.level), now.elapsed_ms, now.due_in_ms, now.paused);
            let expected = (model.attempt, model.level, model.elapsed, model.due, model.paused);
            prop_assert_eq!(got, expected, "{}: attempt, level, elapsed, due, paused", &at);
            prop_assert_eq!(now.phase.in_attempt(), machine.permit, "{}: permit", &at);
            prop_assert!(now.level <= 3 && now.chunk_diffs >= 1 && now.reopened <= 3, "{at}");
        }
        invariants(&at, &event, before.as_ref(), machine.generation, &outcome)?;
        machine.state = outcome.state;
        machine.generation = outcome.generation;
    }
    Ok(())
}

fn invariants(
    at: &str,
    event: &RepairEvent,
    before: Option<&RepairState>,
    generation: u64,
    outcome: &Outcome,
) -> Result<(), TestCaseError> {
    let cleared = outcome.effects.contains(&Effect::ClearFlag);
    prop_assert_eq!(cleared, before.is_some() && outcome.state.is_none(), "{}", at);
    if let (true, Some(before)) = (cleared, before) {
        let RepairEvent::Proof(proof) = event else {
            return Err(TestCaseError::fail(format!("{at}: cleared by {event:?}")));
        };
        prop_assert_eq!((proof.generation(), proof.attempt()), (generation, before.attempt), "{}", at);
        prop_assert!(proof.nonce() >= before.target, "{at}: below the target");
    }
    let (Some(before), Some(now)) = (before, &outcome.state) else { return Ok(()) };
    let order = (generation, before.attempt) <= (outcome.generation, now.attempt);
    prop_assert!(order, "{at}: generation and attempt go back");
    let reopened = before.phase == RepairPhase::GaveUp && now.phase == RepairPhase::Waiting;
    prop_assert!(now.elapsed_ms >= before.elapsed_ms || reopened, "{at}: elapsed goes back");
    if now.phase == RepairPhase::GaveUp && before.phase != RepairPhase::GaveUp {
        let operator = *event == RepairEvent::GiveUp;
        prop_assert!(operator || now.elapsed_ms >= DEADLINE, "{at}: gave up too early");
        prop_assert!(outcome.effects.contains(&Effect::Log(LogStage::GaveUp)), "{at}");
    }
    if now.phase != RepairPhase::GaveUp && now.elapsed_ms >= DEADLINE {
        // Only in the middle of an attempt or of a wait, or where the wait cannot be due.
        let middle = now.phase.in_attempt() || now.due_in_ms > 0 || now.paused;
        let due = matches!(event, RepairEvent::Due { .. });
        prop_assert!(middle || !due || now.phase == RepairPhase::Stopped, "{at}: does not give up");
    }
    if before.released > Forgiven::No {
        prop_assert!(now.released >= before.released, "{at}: forgiveness is lost");
    }
    prop_assert!(before.phase != RepairPhase::Stopped || now.phase == RepairPhase::Stopped, "{at}");
    Ok(())
}

proptest! {
    // A failure prints the shortest history that shows it; PROPTEST_RNG_SEED runs another set.
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_agrees_with_the_model(
        history in proptest::collection::vec((ops(), 0_u64..=200_000, proptest::bool::weighted(0.1)), 1..120)
    ) {
        run(&history)?;
    }
}
