use std::sync::Condvar;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::adapter::{Digest, Sampling, SessionId, fingerprint};
use crate::backends::reference::{DEFAULT_SEED, ReferenceKv, ReferenceModel};
use crate::clock::VirtualClock;

const PROMPT: [u32; 4] = [7, 3, 9, 1];
const TOKENS: [u32; 8] = [8, 185, 33, 96, 154, 45, 82, 93];
const KEY: KvKey = KvKey::new(SessionId([7; 16]), 0);

type Reference = LocalShard<ReferenceModel>;

fn shard(layers: (u32, u32), clock: &VirtualClock) -> Reference {
    let model = ReferenceModel::new(DEFAULT_SEED, layers).unwrap();
    LocalShard::new(model, ShardSettings::new("test"), Arc::new(clock.clone()))
}

fn plan(rows: u32) -> OpenPlan {
    OpenPlan { max_positions: rows, lease_ms: 10_000, sampling: Sampling::GREEDY, trace: None }
}

fn tokens(position: u32, ids: &[u32]) -> Bundle {
    Bundle::new(position, Payload::Tokens(ids.to_vec()))
}

fn hidden(position: u32, rows: u32, cols: u32, values: &[f32]) -> Bundle {
    Bundle::new(position, Payload::Hidden { rows, cols, data: bytes(values) })
}

fn at(step: u32, position: u32, input: &[u32]) -> StepRef {
    StepRef { step, fingerprint: fingerprint(&[0; 32], KEY.session, position, input, Sampling::GREEDY) }
}

fn token(out: &StepOut) -> u32 {
    match out {
        StepOut::Token { token, .. } => *token,
        StepOut::Hidden(_) => panic!("activations from the last shard"),
    }
}

impl Reference {
    /// What the KV of [`KEY`] holds now.
    fn kv_digest(&self) -> (u32, Digest) {
        let mut kv = self.inner.lock();
        let rows = kv.usage(0).keys[0].rows;
        let probe = StepRef { step: probe_step(&mut kv), fingerprint: [9; 32] };
        let Ok(Begin::Run { kv: held, .. }) = kv.begin(KEY, probe, rows, 0, self.inner.clock.now_ms()) else {
            panic!("the key is not idle");
        };
        let digest = held.digest();
        kv.fail(KEY, held, self.inner.clock.now_ms());
        (rows, digest)
    }
}

/// The next step: the first that has not run.
fn probe_step(kv: &mut HotKvStateManager<ReferenceKv>) -> u32 {
    (0..).find(|step| matches!(kv.query(KEY, *step, 0), Ok(StepState::NotSeen { .. }))).unwrap()
}

/// Prefill of the prompt through all shards, then decode until 8 tokens are there.
async fn generate(shards: &[Reference], key: KvKey) -> Vec<u32> {
    for shard in shards {
        shard.open(key, plan(11)).await.unwrap();
    }
    let mut got: Vec<u32> = Vec::new();
    let mut position = 0;
    for step in 0..8 {
        let input = if step == 0 { PROMPT.to_vec() } else { vec![got[got.len() - 1]] };
        let step = at(step, position, &input);
        let mut bundle = tokens(position, &input);
        for shard in shards {
            let out = if position == 0 {
                shard.prefill(key, step, bundle.clone()).await
            } else {
                shard.decode(key, step, bundle.clone()).await
            };
            match out.unwrap() {
                StepOut::Hidden(next) => bundle = next,
                out => got.push(token(&out)),
            }
        }
        position += input.len() as u32;
    }
    got
}

#[test]
fn any_cut_into_shards_gives_the_golden_tokens() {
    let clock = VirtualClock::new();
    for cuts in [&[(0, 4)][..], &[(0, 2), (2, 4)], &[(0, 1), (1, 3), (3, 4)]] {
        let shards: Vec<_> = cuts.iter().map(|cut| shard(*cut, &clock)).collect();
        assert_eq!(clock.run(generate(&shards, KEY)), TOKENS, "{cuts:?}");
        for shard in &shards {
            assert_eq!((shard.usage().rows(), shard.counters().steps_done), (11, 8));
            let ack = clock.run(shard.release(KEY, Cause::Client)).unwrap();
            assert_eq!(ack, ReleaseAck::Released { rows: 11, buffers: 0 });
            assert_eq!(shard.usage(), Usage::default());
            assert_eq!(shard.counters().free_rows, shard.describe().capacity);
        }
    }
}

/// The bundle is refused as malformed with `reason`, KV is the same, and the right next step gives the right token.
fn refused(bundle: Bundle, reason: &str) {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    clock.run(async {
        shard.open(KEY, plan(200)).await.unwrap();
        let out = shard.prefill(KEY, at(0, 0, &PROMPT), tokens(0, &PROMPT)).await.unwrap();
        assert_eq!(token(&out), TOKENS[0]);
        let before = shard.kv_digest();
        let step = at(1, 4, &[8]);
        match shard.prefill(KEY, step, bundle.clone()).await {
            Err(AdapterError::MalformedBundle(what)) => assert!(what.contains(reason), "{what}"),
            other => panic!("{other:?} for {reason}"),
        }
        assert_eq!(shard.kv_digest(), before);
        assert_eq!(shard.decode(KEY, step, tokens(4, &[8])).await.map(|out| token(&out)), Ok(TOKENS[1]));
    });
}

/// The same for the second of two shards.
fn refused_behind(change: impl Fn(&mut Bundle), reason: &str) {
    let clock = VirtualClock::new();
    let shards = [shard((0, 2), &clock), shard((2, 4), &clock)];
    clock.run(async {
        for shard in &shards {
            shard.open(KEY, plan(200)).await.unwrap();
        }
        let step = at(0, 0, &PROMPT);
        let StepOut::Hidden(right) = shards[0].prefill(KEY, step, tokens(0, &PROMPT)).await.unwrap() else {
            panic!("no activations");
        };
        let before = shards[1].kv_digest();
        let mut wrong = right.clone();
        change(&mut wrong);
        match shards[1].prefill(KEY, step, wrong).await {
            Err(AdapterError::MalformedBundle(what)) => assert!(what.contains(reason), "{what}"),
            other => panic!("{other:?} for {reason}"),
        }
        assert_eq!(shards[1].kv_digest(), before);
        assert_eq!(shards[1].prefill(KEY, step, right).await.map(|out| token(&out)), Ok(TOKENS[0]));
    });
}

fn rewrite(rows: u32, cols: u32, len: usize) -> impl Fn(&mut Bundle) {
    move |bundle| {
        let Payload::Hidden { data, .. } = &bundle.payload else { panic!("no activations") };
        let data = data.iter().copied().cycle().take(len).collect();
        *bundle = Bundle::new(bundle.position, Payload::Hidden { rows, cols, data });
    }
}

#[test]
fn a_wrong_digest_is_malformed() {
    let mut bundle = tokens(4, &[8]);
    bundle.digest[31] ^= 1;
    refused(bundle, "digest");
    let mut moved = tokens(3, &[8]);
    moved.position = 4;
    refused(moved, "digest");
    refused_behind(
        |bundle| {
            let Payload::Hidden { data, .. } = &mut bundle.payload else { panic!("no activations") };
            data[17] ^= 0x10;
        },
        "digest",
    );
}

#[test]
fn activations_for_the_first_shard_are_malformed() {
    refused(hidden(4, 1, 32, &[0.5; 32]), "takes tokens");
}

#[test]
fn tokens_for_a_later_shard_are_malformed() {
    refused_behind(|bundle| *bundle = tokens(0, &PROMPT), "takes activations");
}

#[test]
fn no_rows_and_more_rows_than_a_chunk_are_malformed() {
    refused(tokens(4, &[]), "0 tokens where 1 to 64");
    refused(tokens(4, &[1; 65]), "65 tokens where 1 to 64");
    refused_behind(rewrite(0, 32, 0), "0 rows");
    refused_behind(rewrite(65, 32, 65 * 128), "65 rows");
    refused_behind(rewrite(u32::MAX, 32, 512), "rows where 1 to 64");
}

#[test]
fn a_decode_of_two_rows_is_malformed() {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    clock.run(async {
        shard.open(KEY, plan(20)).await.unwrap();
        let out = shard.decode(KEY, at(0, 0, &PROMPT), tokens(0, &PROMPT)).await;
        assert!(matches!(out, Err(AdapterError::MalformedBundle(_))), "{out:?}");
        assert_eq!(shard.usage().rows(), 0);
    });
}

#[test]
fn another_width_is_malformed() {
    refused_behind(rewrite(4, 31, 4 * 31 * 4), "31 columns");
    refused_behind(rewrite(4, u32::MAX, 512), "columns");
    refused_behind(rewrite(4, 0, 0), "0 columns");
}

#[test]
fn another_length_is_malformed() {
    for len in [0, 511, 513, 508, 516] {
        refused_behind(rewrite(4, 32, len), "bytes for 4 rows of 32");
    }
}

#[test]
fn a_value_that_is_not_finite_is_malformed() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
        refused_behind(
            |bundle| {
                let Payload::Hidden { data, .. } = &bundle.payload else { panic!("no activations") };
                let mut values: Vec<f32> = floats(data).collect();
                values[127] = value;
                *bundle = hidden(0, 4, 32, &values);
            },
            "value 127 is not finite",
        );
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_malformed() {
    refused(tokens(4, &[256]), "token 256");
    refused(tokens(4, &[8, u32::MAX]), "token 4294967295");
}

#[test]
fn another_position_is_malformed() {
    for position in [0, 3, 5, u32::MAX] {
        refused(tokens(position, &[8]), "where 4 rows are");
    }
    refused_behind(
        |bundle| *bundle = Bundle::new(u32::MAX, bundle.payload.clone()),
        "position 4294967295 where 0 rows are",
    );
}

#[test]
fn of_several_faults_the_first_in_order_is_named() {
    let mut all = hidden(9, 65, 31, &[f32::NAN]);
    all.digest = [0; 32];
    refused(all, "digest");
    refused(hidden(9, 65, 31, &[f32::NAN]), "takes tokens");
    refused(tokens(9, &[256; 65]), "65 tokens");
    refused(tokens(9, &[256]), "token 256");
    refused_behind(|bundle| *bundle = hidden(9, 65, 31, &[f32::NAN]), "65 rows");
    refused_behind(|bundle| *bundle = hidden(9, 1, 31, &[f32::NAN]), "31 columns");
    refused_behind(|bundle| *bundle = hidden(9, 1, 32, &[f32::NAN]), "4 bytes");
    refused_behind(|bundle| *bundle = hidden(9, 1, 32, &[f32::NAN; 32]), "finite");
}

#[test]
fn rows_beyond_the_plan_are_malformed() {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    clock.run(async {
        shard.open(KEY, plan(4)).await.unwrap();
        shard.prefill(KEY, at(0, 0, &PROMPT), tokens(0, &PROMPT)).await.unwrap();
        let out = shard.decode(KEY, at(1, 4, &[8]), tokens(4, &[8])).await;
        assert!(matches!(out, Err(AdapterError::MalformedBundle(_))), "{out:?}");
    });
}

#[test]
fn a_duplicate_step_gives_the_same_output_without_computing() {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    clock.run(async {
        shard.open(KEY, plan(20)).await.unwrap();
        let step = at(0, 0, &PROMPT);
        let first = shard.prefill(KEY, step, tokens(0, &PROMPT)).await.unwrap();
        assert_eq!(shard.prefill(KEY, step, tokens(0, &PROMPT)).await.unwrap(), first);
        assert_eq!(shard.counters().steps_done, 1);
        let done = StepState::Done { fingerprint: step.fingerprint, out: first };
        assert_eq!(shard.query_step(KEY, 0).await, Ok(done));
        let other = shard.prefill(KEY, at(0, 0, &[7, 3, 9, 2]), tokens(0, &[7, 3, 9, 2])).await;
        assert!(matches!(other, Err(AdapterError::Conflict(_))), "{other:?}");
    });
}

#[test]
fn a_process_that_slept_past_its_lease_wakes_up_fenced() {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    clock.run(async {
        shard.open(KEY, plan(20)).await.unwrap();
        shard.prefill(KEY, at(0, 0, &PROMPT), tokens(0, &PROMPT)).await.unwrap();
        clock.advance(9_000);
        shard.beat(&[KEY]);
        clock.advance(9_000);
        shard.decode(KEY, at(1, 4, &[8]), tokens(4, &[8])).await.unwrap();
        clock.advance(60_000);
        let out = shard.decode(KEY, at(2, 5, &[185]), tokens(5, &[185])).await;
        assert_eq!(out, Err(AdapterError::LeaseExpired));
        assert_eq!(shard.usage(), Usage::default());
        assert_eq!(shard.last_beat_ms(), Some(78_000));
    });
}

#[test]
fn a_new_coordinator_finds_nothing_of_the_old_one() {
    let clock = VirtualClock::new();
    let shard = shard((0, 4), &clock);
    shard.hello(3).unwrap();
    clock.run(shard.open(KEY, plan(20))).unwrap();
    assert_eq!(shard.hello(2), Err(StaleCoordinator { have: 3 }));
    assert_eq!(shard.usage().reserved(), 20);
    shard.hello(4).unwrap();
    assert_eq!(shard.usage(), Usage::default());
}

/// A model that does what a test tells it: waits for a permit, fails, panics, or forgets to undo.
struct Puppet {
    next: Mutex<Act>,
    permits: Mutex<u32>,
    permitted: Condvar,
    started: Mutex<mpsc::Sender<()>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Act {
    Run,
    Wait,
    Fail,
    NotFinite,
    Panic,
}

impl ShardModel for Arc<Puppet> {
    type Kv = Vec<u32>;

    fn facts(&self) -> ModelFacts {
        ModelFacts {
            layers: (0, 1),
            model_layers: 1,
            model_digest: [1; 32],
            d_model: 1,
            vocab: 10,
            max_positions: 100,
        }
    }

    fn new_kv(&self, _max_positions: u32) -> Vec<u32> {
        Vec::new()
    }

    fn rows(&self, kv: &Vec<u32>) -> u32 {
        kv.len() as u32
    }

    fn truncate(&self, kv: &mut Vec<u32>, rows: u32) {
        kv.truncate(rows as usize);
    }

    fn forward(
        &self,
        kv: &mut Vec<u32>,
        position: u32,
        input: Input<'_>,
        sampling: Sampling,
    ) -> Result<Output, ModelError> {
        let Input::Tokens(ids) = input else { panic!("activations") };
        kv.extend(ids);
        self.started.lock().unwrap().send(()).unwrap();
        let act = *self.next.lock().unwrap();
        let mut logits = vec![0.0; 10];
        logits[kv.len() % 10] = 1.0;
        match act {
            Act::Run => {}
            Act::Wait => {
                let mut permits = self.permits.lock().unwrap();
                while *permits == 0 {
                    permits = self.permitted.wait(permits).unwrap();
                }
                *permits -= 1;
            }
            Act::Fail => return Err(ModelError::Compute("told to".to_owned())),
            Act::NotFinite => logits[3] = f32::NAN,
            Act::Panic => panic!("told to"),
        }
        Ok(Output::Token { token: pick(&logits, sampling, position + ids.len() as u32)?, logits })
    }
}

fn puppet(compute: Compute) -> (Arc<Puppet>, LocalShard<Arc<Puppet>>, mpsc::Receiver<()>) {
    let (started, starts) = mpsc::channel();
    let model = Arc::new(Puppet {
        next: Mutex::new(Act::Run),
        permits: Mutex::new(0),
        permitted: Condvar::new(),
        started: Mutex::new(started),
    });
    let settings = ShardSettings { compute, ..ShardSettings::new("puppet") };
    (model.clone(), LocalShard::new(model, settings, Arc::new(VirtualClock::new())), starts)
}

#[test]
fn a_model_error_is_internal_and_the_rows_are_as_before() {
    let (model, shard, _starts) = puppet(Compute::Inline);
    VirtualClock::new().run(async {
        shard.open(KEY, plan(20)).await.unwrap();
        shard.prefill(KEY, at(0, 0, &[1, 2]), tokens(0, &[1, 2])).await.unwrap();
        for act in [Act::Fail, Act::NotFinite] {
            *model.next.lock().unwrap() = act;
            let out = shard.decode(KEY, at(1, 2, &[3]), tokens(2, &[3])).await;
            assert!(matches!(out, Err(AdapterError::Internal(_))), "{out:?}");
            assert_eq!(shard.query_step(KEY, 1).await, Ok(StepState::NotSeen { kv_len: 2 }));
        }
        *model.next.lock().unwrap() = Act::Run;
        let out = shard.decode(KEY, at(1, 2, &[3]), tokens(2, &[3])).await.unwrap();
        assert_eq!((token(&out), shard.usage().rows()), (3, 3));
    });
}

#[tokio::test]
async fn a_panic_in_a_step_costs_its_key_and_no_other() {
    let (model, shard, _starts) = puppet(Compute::Threaded);
    let other = KvKey::new(SessionId([8; 16]), 0);
    shard.open(KEY, plan(20)).await.unwrap();
    shard.open(other, plan(20)).await.unwrap();
    *model.next.lock().unwrap() = Act::Panic;
    let out = shard.prefill(KEY, at(0, 0, &[1]), tokens(0, &[1])).await;
    assert!(matches!(out, Err(AdapterError::Internal(_))), "{out:?}");
    assert_eq!(shard.usage().keys.iter().map(|usage| usage.key).collect::<Vec<_>>(), [other]);
    *model.next.lock().unwrap() = Act::Run;
    assert_eq!(token(&shard.prefill(other, at(0, 0, &[1]), tokens(0, &[1])).await.unwrap()), 1);
    let gone = shard.prefill(KEY, at(0, 0, &[1]), tokens(0, &[1])).await;
    assert!(matches!(gone, Err(AdapterError::CacheMiss(_))), "{gone:?}");
}

/// Lets the waiting step go on.
fn permit(model: &Puppet) {
    *model.permits.lock().unwrap() += 1;
    model.permitted.notify_all();
}

#[tokio::test]
async fn nothing_waits_for_a_running_step_and_a_dropped_one_is_still_recorded() {
    let (model, shard, starts) = puppet(Compute::Threaded);
    *model.next.lock().unwrap() = Act::Wait;
    shard.open(KEY, plan(20)).await.unwrap();
    let step = at(0, 0, &[1, 2]);
    {
        let mut future = shard.prefill(KEY, step, tokens(0, &[1, 2]));
        let waiting = tokio::time::timeout(Duration::from_millis(20), &mut future).await;
        assert!(waiting.is_err(), "the model waits for its permit");
    }
    starts.recv_timeout(Duration::from_secs(10)).unwrap();
    shard.beat(&[KEY]);
    shard.reap();
    assert_eq!(shard.counters().busy, [KEY]);
    assert_eq!(shard.usage().buffers(), 1);
    assert_eq!(shard.query_step(KEY, 0).await, Ok(StepState::Unknown));
    assert_eq!(shard.stop(KEY, Cause::Client).await, Ok(StopAck::InFlight { step: 0 }));
    assert_eq!(shard.release(KEY, Cause::Client).await, Ok(ReleaseAck::Busy { step: 0 }));
    permit(&model);
    for _ in 0..1_000 {
        if shard.counters().busy.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let state = shard.query_step(KEY, 0).await.unwrap();
    assert!(matches!(&state, StepState::Done { out, .. } if token(out) == 2), "{state:?}");
    assert_eq!(shard.release(KEY, Cause::Client).await, Ok(ReleaseAck::Released { rows: 2, buffers: 0 }));
    assert_eq!(shard.usage(), Usage::default());
}

#[test]
fn threaded_compute_without_a_runtime_is_an_error_that_leaks_nothing() {
    let (_model, shard, _starts) = puppet(Compute::Threaded);
    VirtualClock::new().run(async {
        shard.open(KEY, plan(20)).await.unwrap();
        let out = shard.prefill(KEY, at(0, 0, &[1]), tokens(0, &[1])).await;
        assert!(matches!(out, Err(AdapterError::Internal(_))), "{out:?}");
    });
    assert_eq!(shard.usage(), Usage::default());
}

#[test]
fn greedy_takes_the_first_of_the_greatest() {
    assert_eq!(pick(&[0.0, 2.0, 2.0, -1.0], Sampling::GREEDY, 0), Ok(1));
    assert_eq!(pick(&[-3.0], Sampling::GREEDY, 0), Ok(0));
    for bad in [&[][..], &[0.0, f32::NAN], &[f32::INFINITY]] {
        assert!(pick(bad, Sampling::GREEDY, 0).is_err(), "{bad:?}");
    }
}

#[test]
fn a_seeded_draw_depends_on_seed_and_position_alone_and_follows_the_softmax() {
    // Odds 1 : 2 : 5.
    let logits = [0.0, 2.0_f32.ln(), 5.0_f32.ln()];
    let draw = |seed, position| pick(&logits, Sampling { greedy: false, seed }, position).unwrap();
    let mut counts = [0_u32; 3];
    for position in 0..8_000 {
        counts[draw(42, position) as usize] += 1;
        assert_eq!(draw(42, position), draw(42, position));
    }
    // Four standard deviations around 1 000, 2 000, 5 000.
    for (count, (mean, deviation)) in counts.iter().zip([(1_000, 30), (2_000, 39), (5_000, 44)]) {
        assert!(count.abs_diff(mean) < 4 * deviation, "{counts:?}");
    }
    let other = (0..100).filter(|position| draw(42, *position) != draw(43, *position)).count();
    assert!(other > 20, "{other} of 100 differ");
    assert_eq!(pick(&[0.0, -200.0], Sampling { greedy: false, seed: 1 }, u32::MAX), Ok(0));
}

#[test]
fn splitmix64_is_that_of_its_author() {
    // First outputs for seed 1234567, from the public reference implementation.
    let expected: [u64; 3] =
        [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
    assert_eq!([0, 1, 2].map(|index| splitmix64(1_234_567, index)), expected);
}
