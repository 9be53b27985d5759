use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use proptest::prelude::*;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::site::request;
use super::sse::{Decoder, Event};
use super::upstream::{Fault, FaultPlan, LoadStyle, Phase, Upstream, piece, serve_upstream};
use super::*;
use crate::adapter::{
    AdapterError, BoundaryAdapter, Bundle, Counts, KvKey, OpenPlan, Opened, Payload, ReleaseAck, Sampling,
    SessionId, StepOut, StepRef, StepState, StopAck, Usage, fingerprint,
};
use crate::clock::{SystemClock, VirtualClock};
use crate::failure::Cause;
use crate::kv::StaleCoordinator;
use crate::shard::{ShardCounters, ShardHost};
use crate::text::{TextCodec, TextError};

const PROMPT: &str = "Où est la bibliothèque?";
/// 25 bytes and the end of the prompt.
const ROWS: u32 = 26;

struct Rig {
    upstream: Arc<Upstream>,
    adapter: Arc<OpenAiHttpAdapter>,
    pieces: Arc<PieceTable>,
    clock: VirtualClock,
    server: JoinHandle<std::io::Result<()>>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn rig_with(style: LoadStyle, slots: u32, set: impl FnOnce(&mut OpenAiHttpConfig)) -> Rig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = Upstream::new(style, 0, Some("key".into()));
    let server = tokio::spawn(serve_upstream(listener, upstream.clone()));
    let mut config = OpenAiHttpConfig::new(url, "m", slots, 512);
    config.api_key = Some("key".into());
    config.silence_ms = 300;
    config.stop_wait_ms = 2_000;
    config.retry_after_max_ms = 50;
    config.beat_ms = 20;
    set(&mut config);
    let pieces = Arc::new(PieceTable::new());
    // Leases go by this clock; it stands still unless a test moves it.
    let clock = VirtualClock::new();
    let adapter = OpenAiHttpAdapter::connect(config, pieces.clone(), Arc::new(clock.clone()))
        .await
        .expect("the upstream is up");
    Rig { upstream, adapter: Arc::new(adapter), pieces, clock, server }
}

async fn rig(slots: u32) -> Rig {
    rig_with(LoadStyle::Vllm, slots, |_| ()).await
}

fn key(session: u8, epoch: u32) -> KvKey {
    KvKey::new(SessionId([session; 16]), epoch)
}

fn plan(max_new: u32) -> OpenPlan {
    OpenPlan { max_positions: ROWS + max_new, lease_ms: 10_000, sampling: Sampling::GREEDY, trace: None }
}

impl Rig {
    fn step(&self, key: KvKey, step: u32, tokens: &[u32]) -> (StepRef, Bundle) {
        let position = if step == 0 { 0 } else { ROWS + step - 1 };
        let model = self.adapter.describe().model_digest;
        let fingerprint = fingerprint(&model, key.session, position, tokens, Sampling::GREEDY);
        (StepRef { step, fingerprint }, Bundle::new(position, Payload::Tokens(tokens.to_vec())))
    }

    async fn prefill(&self, key: KvKey) -> Result<u32, AdapterError> {
        let (step, bundle) = self.step(key, 0, &self.pieces.encode(PROMPT).unwrap());
        token(self.adapter.prefill(key, step, bundle).await?)
    }

    async fn decode(&self, key: KvKey, step: u32, last: u32) -> Result<u32, AdapterError> {
        let (step, bundle) = self.step(key, step, &[last]);
        token(self.adapter.decode(key, step, bundle).await?)
    }

    /// Runs a key until it has `max_new` tokens or the upstream ends; what there was, and why it ended early.
    async fn generate(&self, key: KvKey, max_new: u32) -> (Vec<u32>, Option<AdapterError>) {
        let mut tokens = Vec::new();
        let ended = async {
            self.adapter.open(key, plan(max_new)).await?;
            tokens.push(self.prefill(key).await?);
            while tokens.len() < max_new as usize && tokens.last() != Some(&END_TOKEN) {
                let last = *tokens.last().unwrap();
                tokens.push(self.decode(key, tokens.len() as u32, last).await?);
            }
            Ok(())
        };
        let error = ended.await.err();
        (tokens, error)
    }

    async fn release(&self, key: KvKey) -> Result<ReleaseAck, AdapterError> {
        self.adapter.release(key, Cause::Client).await
    }

    fn text(&self, tokens: &[u32]) -> String {
        self.pieces.decode(tokens).unwrap()
    }

    fn free_slots(&self) -> usize {
        self.adapter.site.slots.available_permits()
    }

    async fn assert_idle_soon(&self, slots: u32, what: &str) {
        eventually(what, || self.free_slots() == slots as usize && self.adapter.usage().keys.is_empty())
            .await;
        self.assert_idle(slots, what).await;
    }

    /// Nothing is held here, nothing runs and nobody is connected there.
    async fn assert_idle(&self, slots: u32, what: &str) {
        assert_eq!(self.adapter.usage(), Usage::default(), "{what}");
        assert_eq!(self.free_slots(), slots as usize, "{what}");
        eventually(what, || self.upstream.running() == 0).await;
    }
}

fn token(out: StepOut) -> Result<u32, AdapterError> {
    match out {
        StepOut::Token { token, .. } => Ok(token),
        StepOut::Hidden(_) => panic!("a whole model gives tokens"),
    }
}

fn script(count: u32) -> String {
    (0..count).map(|index| piece(PROMPT, index)).collect()
}

async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    within(what, 3_000, async {
        while !is() {
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn within<T>(what: &str, ms: u64, work: impl Future<Output = T>) -> T {
    timeout(Duration::from_millis(ms), work)
        .await
        .unwrap_or_else(|_| panic!("{what}: still not there after {ms} ms"))
}

fn name(error: &AdapterError) -> &'static str {
    match error {
        AdapterError::WorkerDeath(_) => "worker-death",
        AdapterError::StreamReset(_) => "stream-reset",
        AdapterError::MalformedBundle(_) => "malformed",
        AdapterError::StaleEpoch { .. } => "stale",
        AdapterError::CacheMiss(_) => "miss",
        AdapterError::Full(_) => "full",
        AdapterError::Conflict(_) => "conflict",
        AdapterError::LeaseExpired => "lease",
        AdapterError::Internal(_) if error.is_request_fault() => "request",
        AdapterError::Internal(_) => "internal",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_is_the_upstreams_and_so_are_the_counts() {
    for style in [LoadStyle::Vllm, LoadStyle::Slots] {
        let rig = rig_with(style, 2, |_| ()).await;
        let (tokens, error) = rig.generate(key(1, 0), 8).await;
        assert_eq!((tokens.len(), error), (8, None));
        assert_eq!(rig.text(&tokens), script(8));
        // 25 bytes of prompt: the upstream counts 7 tokens for them.
        assert_eq!(rig.adapter.counts(key(1, 0)), Some(Counts { prompt_tokens: 7, completion_tokens: 8 }));
        let body: serde_json::Value = serde_json::from_str(&rig.upstream.last_body()).unwrap();
        let expected = serde_json::json!({"model": "m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(body, expected);
        let usage = rig.adapter.usage();
        assert_eq!((usage.rows(), usage.reserved(), usage.buffers()), (26 + 7, 26 + 8, 0));
        // An answer of full length has ended.
        assert_eq!(name(&rig.decode(key(1, 0), 8, tokens[7]).await.unwrap_err()), "stream-reset");
        assert_eq!(rig.release(key(1, 0)).await, Ok(ReleaseAck::Released { rows: 33, buffers: 0 }));
        assert_eq!(rig.release(key(1, 0)).await, Ok(ReleaseAck::WasAbsent));
        assert_eq!(rig.adapter.counts(key(1, 0)), None);
        rig.assert_idle(2, "clean").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_stops_by_itself_ends_with_the_end_token() {
    let rig = rig(1).await;
    rig.upstream.set_stop_after(3);
    let (tokens, error) = rig.generate(key(1, 0), 8).await;
    assert_eq!((tokens.len(), error), (4, None));
    assert_eq!(tokens[3], END_TOKEN);
    assert_eq!(rig.text(&tokens), script(3));
    assert_eq!(rig.adapter.counts(key(1, 0)).unwrap().completion_tokens, 4);
    assert_eq!(name(&rig.decode(key(1, 0), 4, END_TOKEN).await.unwrap_err()), "internal");
    assert_eq!(rig.release(key(1, 0)).await, Ok(ReleaseAck::Released { rows: 29, buffers: 0 }));
    rig.assert_idle(1, "stopped by itself").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_in_chunks_is_the_prompt_at_once_wherever_it_is_cut() {
    let rig = rig(1).await;
    let tokens = rig.pieces.encode(PROMPT).unwrap();
    let mut firsts = Vec::new();
    // Also in the middle of a character, and with nothing but the end in the last chunk.
    for (session, size) in [1, 2, 5, 25, 26].into_iter().enumerate() {
        let key = key(session as u8, 0);
        rig.adapter.open(key, plan(8)).await.unwrap();
        let mut first = 0;
        for (step, chunk) in tokens.chunks(size).enumerate() {
            let bundle = Bundle::new((step * size) as u32, Payload::Tokens(chunk.to_vec()));
            let step = StepRef { step: step as u32, fingerprint: bundle.digest };
            first = token(rig.adapter.prefill(key, step, bundle).await.unwrap()).unwrap();
        }
        firsts.push(first);
        let body: serde_json::Value = serde_json::from_str(&rig.upstream.last_body()).unwrap();
        assert_eq!((&body["prompt"], &body["max_tokens"]), (&PROMPT.into(), &8.into()), "chunks of {size}");
        // How many of the 7 further pieces are here by now is a matter of time.
        let ack = rig.release(key).await.unwrap();
        assert!(matches!(ack, ReleaseAck::Released { rows: ROWS, buffers: 0..=7 }), "{ack:?}");
    }
    assert_eq!(rig.text(&firsts), piece(PROMPT, 0).repeat(5));
    assert_eq!(rig.upstream.requests(), 5);
}

#[test]
fn both_halves_of_a_seed_reach_the_upstream() {
    let body = |seed| {
        let body = request("m", "p", 1, Sampling { greedy: false, seed });
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["temperature"], 1);
        body["seed"].as_u64().unwrap()
    };
    assert_eq!(body(5), 5);
    assert_eq!(body((3 << 32) | 5), 6);
    assert_eq!(body(u64::from(u32::MAX)), 0x7fff_ffff);
}

/// Every fault in every phase where it can strike: kind of the error, and the most tokens there may be before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_in_each_phase_has_its_kind_within_a_bound_and_leaves_nothing() {
    use Phase::{Accept, Head, Request, Tokens};
    let rig = rig(2).await;
    let mut cases: Vec<(Fault, Phase, &str, usize)> = Vec::new();
    for fault in [Fault::Silence, Fault::Reset, Fault::EarlyEnd, Fault::GarbageBytes] {
        for (phase, tokens) in
            [(Accept, 0), (Request, 0), (Head, 0), (Tokens(0), 0), (Tokens(3), 3), (Tokens(8), 7)]
        {
            cases.push((fault, phase, "stream-reset", tokens));
        }
    }
    cases.push((Fault::OversizeHead, Request, "stream-reset", 0));
    for fault in [Fault::GarbageJson, Fault::ErrorChunk, Fault::OversizeLine, Fault::EndlessComments] {
        for (phase, tokens) in [(Head, 0), (Tokens(3), 3), (Tokens(8), 7)] {
            cases.push((fault, phase, "stream-reset", tokens));
        }
    }
    for (fault, tokens) in [
        (Fault::EndlessTokens, 7),
        (Fault::NoDone, 7),
        (Fault::NoFinishReason, 7),
        (Fault::NoUsage, 7),
        (Fault::UsageTimes(0), 7),
        (Fault::Duplicates, 7),
        (Fault::ContentType, 0),
    ] {
        cases.push((fault, Request, "stream-reset", tokens));
    }
    for (status, kind) in [
        (400, "request"),
        (413, "request"),
        (422, "request"),
        (401, "internal"),
        (404, "internal"),
        (302, "internal"),
        (500, "stream-reset"),
        (502, "stream-reset"),
        (429, "full"),
        (503, "full"),
    ] {
        cases.push((Fault::Status(status, Some(3600)), Request, kind, 0));
    }
    for (at, (fault, phase, kind, most)) in cases.into_iter().enumerate() {
        let what = format!("{fault:?} at {phase:?}");
        let key = key(at as u8, 0);
        rig.upstream.set_fault(Some(FaultPlan::always(fault, phase)));
        let (tokens, error) = within(&what, 3_000, rig.generate(key, 8)).await;
        let error = error.unwrap_or_else(|| panic!("{what}: no error"));
        assert_eq!(name(&error), kind, "{what}: {error}");
        assert!(tokens.len() <= most, "{what}: {} tokens", tokens.len());
        assert_eq!(rig.adapter.counts(key), None, "{what}: nothing to bill");
        assert_eq!(
            rig.text(&tokens),
            if fault == Fault::Duplicates { rig.text(&tokens) } else { script(tokens.len() as u32) }
        );
        // The first error stays.
        if !tokens.is_empty() {
            let again = rig.decode(key, tokens.len() as u32, tokens[tokens.len() - 1]).await;
            assert_eq!(again, Err(error), "{what}");
        }
        within(&what, 2_500, rig.release(key)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        rig.assert_idle(2, &what).await;
    }
    rig.upstream.set_fault(None);
    assert_eq!(rig.generate(key(200, 0), 8).await.0.len(), 8, "and the adapter works as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_room_is_sent_again_once() {
    let rig = rig(1).await;
    for (session, status) in [(1, 429), (2, 503)] {
        let before = rig.upstream.requests();
        let plan = FaultPlan { fault: Fault::Status(status, Some(0)), phase: Phase::Request, hits: 1 };
        rig.upstream.set_fault(Some(plan));
        let (tokens, error) = rig.generate(key(session, 0), 8).await;
        assert_eq!((rig.text(&tokens), error), (script(8), None));
        assert_eq!(rig.upstream.requests() - before, 2);
        rig.release(key(session, 0)).await.unwrap();
    }
    let before = rig.upstream.requests();
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::Status(429, None), Phase::Request)));
    assert_eq!(name(&rig.generate(key(3, 0), 8).await.1.unwrap()), "full");
    assert_eq!(rig.upstream.requests() - before, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_usage_is_clamped_to_what_was_asked_for() {
    let rig = rig(1).await;
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::UsageTimes(1_000_000), Phase::Request)));
    assert_eq!(rig.generate(key(1, 0), 8).await.1, None);
    assert_eq!(rig.adapter.counts(key(1, 0)), Some(Counts { prompt_tokens: 26, completion_tokens: 8 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_stops_the_upstream_within_one_piece() {
    let rig = rig(1).await;
    rig.upstream.set_token_ms(30);
    let mut pieces_after = Vec::new();
    for session in 0..10 {
        let key = key(session, 0);
        rig.adapter.open(key, plan(400)).await.unwrap();
        let first = rig.prefill(key).await.unwrap();
        rig.decode(key, 1, first).await.unwrap();
        let before = rig.upstream.pieces();
        assert_eq!(rig.adapter.stop(key, Cause::Client).await, Ok(StopAck::Quiescent));
        let ack = within("release", 1_000, rig.release(key)).await.unwrap();
        assert!(matches!(ack, ReleaseAck::Released { rows: 27, .. }), "{ack:?}");
        assert_eq!(rig.upstream.running(), 0, "a release is answered when nothing runs");
        pieces_after.push(rig.upstream.pieces() - before);
        rig.assert_idle(1, "cancelled").await;
    }
    assert!(pieces_after.iter().all(|pieces| *pieces <= 1), "{pieces_after:?}");
    eventually("all connections are closed", || rig.upstream.clients() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_read_blocks_nobody_and_ends_with_a_stop() {
    let rig = rig_with(LoadStyle::Vllm, 2, |config| config.silence_ms = 60_000).await;
    for (session, phase) in
        [Phase::Accept, Phase::Request, Phase::Head, Phase::Tokens(3)].into_iter().enumerate()
    {
        let what = format!("{phase:?}");
        let (stalled, other) = (key(session as u8, 0), key(session as u8 + 100, 0));
        rig.upstream.set_fault(Some(FaultPlan { fault: Fault::Silence, phase, hits: 1 }));
        let (adapter, pieces) = (rig.adapter.clone(), rig.pieces.clone());
        let before = rig.upstream.requests();
        let (tokens, error) = tokio::join!(rig.generate(stalled, 8), async {
            eventually(&what, || rig.upstream.requests() > before).await;
            let (tokens, error) = within(&what, 2_000, rig.generate(other, 8)).await;
            assert_eq!((tokens.len(), error), (8, None), "{what}");
            rig.release(other).await.unwrap();
            let begin = Wall::now();
            assert!(
                matches!(adapter.stop(stalled, Cause::Client).await, Ok(StopAck::InFlight { .. })),
                "{what}"
            );
            begin
        })
        .0;
        assert_eq!(name(&error.unwrap()), "stream-reset", "{what}");
        assert!(tokens.len() <= 3 && pieces.decode(&tokens).is_ok());
        within(&what, 1_000, rig.release(stalled)).await.unwrap();
        rig.assert_idle(2, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_keys_leak_nothing() {
    let rig = rig(8).await;
    rig.upstream.set_token_ms(1);
    // Of this test's runtime: each connection, here and there, lives in a task.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    rig.generate(key(255, 0), 2).await;
    rig.release(key(255, 0)).await.unwrap();
    let before = tasks();
    // Eight at a time, each cancelled after 0 to 4 steps, by turns in the middle of one, with and without a stop.
    let cycle = |lane: u8, round: u32| {
        let rig = &rig;
        async move {
            let key = key(lane, round);
            rig.adapter.open(key, plan(64)).await.unwrap();
            let work = async {
                let mut last = rig.prefill(key).await?;
                for step in 1..=round % 4 {
                    last = rig.decode(key, step, last).await?;
                }
                Ok::<_, AdapterError>(())
            };
            match round % 5 {
                0 => {}
                1 => drop(timeout(Duration::from_micros(u64::from(round) * 13 % 2_000), work).await),
                _ => work.await.unwrap(),
            }
            if round.is_multiple_of(2) {
                rig.adapter.stop(key, Cause::Client).await.unwrap();
            }
            let ack = within("release", 5_000, rig.release(key)).await.unwrap();
            assert!(matches!(ack, ReleaseAck::Released { .. }), "{ack:?}");
        }
    };
    let lanes = (0..8).map(|lane| async move {
        for round in 0..125 {
            cycle(lane, round).await;
        }
    });
    within("a thousand cycles", 60_000, futures_util::future::join_all(lanes)).await;
    rig.assert_idle(8, "after a thousand").await;
    assert!(!rig.adapter.drained());
    eventually("all connections are closed", || rig.upstream.clients() == 0 && tasks() <= before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_runs_on_is_leaked_and_nothing_is_opened_until_it_ends() {
    let rig = rig_with(LoadStyle::Slots, 2, |config| config.stop_wait_ms = 200).await;
    rig.upstream.set_token_ms(1);
    rig.upstream.set_fault(Some(FaultPlan { fault: Fault::RunsOn, phase: Phase::Request, hits: 1 }));
    rig.adapter.open(key(1, 0), plan(400)).await.unwrap();
    rig.prefill(key(1, 0)).await.unwrap();
    assert_eq!(name(&within("release", 1_500, rig.release(key(1, 0))).await.unwrap_err()), "stream-reset");
    assert_eq!(rig.release(key(1, 0)).await, Ok(ReleaseAck::WasAbsent));
    assert!(rig.adapter.drained());
    assert_eq!((rig.adapter.leaked(), rig.free_slots(), rig.upstream.running()), (1, 1, 1));
    assert_eq!(name(&rig.adapter.open(key(2, 0), plan(8)).await.unwrap_err()), "full");
    sleep(Duration::from_millis(100)).await;
    assert!(rig.adapter.drained(), "it still runs");
    // The upstream comes to its senses, which its load shows.
    rig.upstream.set_fault(None);
    eventually("undrained", || !rig.adapter.drained()).await;
    assert_eq!(rig.generate(key(2, 1), 8).await.1, None);
    rig.release(key(2, 1)).await.unwrap();
    rig.assert_idle(2, "leak over").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_its_way_excuses_no_closed_one_before_the_time_is_up() {
    let rig = rig_with(LoadStyle::Slots, 2, |config| {
        config.stop_wait_ms = 400;
        config.silence_ms = 60_000;
    })
    .await;
    rig.upstream.set_token_ms(5);
    for session in 1..=2 {
        rig.adapter.open(key(session, 0), plan(400)).await.unwrap();
    }
    rig.prefill(key(1, 0)).await.unwrap();
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::Silence, Phase::Request)));
    let (result, ()) = tokio::join!(rig.prefill(key(2, 0)), async {
        eventually("the second request is there", || rig.upstream.running() == 2).await;
        // The load of 1 is the second request, but it might as well be the first.
        let begin = Wall::now();
        assert!(matches!(rig.release(key(1, 0)).await, Ok(ReleaseAck::Released { .. })));
        assert!(begin.elapsed() >= Duration::from_millis(400));
        rig.adapter.stop(key(2, 0), Cause::Client).await.unwrap();
    });
    assert_eq!(name(&result.unwrap_err()), "stream-reset");
    assert!(!rig.adapter.drained());
    rig.release(key(2, 0)).await.unwrap();
    rig.assert_idle(2, "both").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_that_stand_still_after_an_abort_are_set_going_by_one_token() {
    let rig = rig_with(LoadStyle::Vllm, 1, |config| config.stop_wait_ms = 1_500).await;
    rig.upstream.set_token_ms(1);
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::StaleGauges, Phase::Request)));
    rig.adapter.open(key(1, 0), plan(400)).await.unwrap();
    rig.prefill(key(1, 0)).await.unwrap();
    let ack = within("release", 1_500, rig.release(key(1, 0))).await.unwrap();
    assert!(matches!(ack, ReleaseAck::Released { rows: 26, .. }));
    assert_eq!(rig.upstream.requests(), 2, "the second is the one token");
    rig.assert_idle(1, "stale gauges").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_counted_and_a_higher_epoch_takes_over_the_slot_of_the_lower() {
    let rig = rig(1).await;
    rig.upstream.set_token_ms(5);
    rig.adapter.open(key(1, 0), plan(100)).await.unwrap();
    rig.prefill(key(1, 0)).await.unwrap();
    assert_eq!(name(&rig.adapter.open(key(2, 0), plan(8)).await.unwrap_err()), "full");
    // The same plan again is ok, another is not; both also while no slot is free.
    assert_eq!(rig.adapter.open(key(1, 0), plan(100)).await, Ok(Opened { kv_len: 26 }));
    assert_eq!(name(&rig.adapter.open(key(1, 0), plan(101)).await.unwrap_err()), "conflict");
    let opened = within("failover", 1_000, rig.adapter.open(key(1, 1), plan(8))).await;
    assert_eq!(opened, Ok(Opened { kv_len: 0 }));
    assert_eq!(rig.upstream.running(), 0, "the old attempt's request is gone");
    assert_eq!(rig.decode(key(1, 0), 1, 0).await, Err(AdapterError::StaleEpoch { have: 1 }));
    assert_eq!(rig.adapter.open(key(1, 0), plan(8)).await, Err(AdapterError::StaleEpoch { have: 1 }));
    assert_eq!(rig.generate(key(1, 1), 8).await.0.len(), 8);
    rig.release(key(1, 1)).await.unwrap();
    assert_eq!(rig.release(key(1, 0)).await, Ok(ReleaseAck::WasAbsent));
    rig.assert_idle(1, "both epochs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_go_in_order_once_and_with_what_the_upstream_gave() {
    let rig = rig(2).await;
    let key = key(1, 0);
    assert_eq!(name(&rig.prefill(key).await.unwrap_err()), "miss");
    rig.adapter.open(key, plan(8)).await.unwrap();
    assert_eq!(name(&rig.decode(key, 1, 0).await.unwrap_err()), "miss");
    let (step, _) = rig.step(key, 0, &[65]);
    let early = Bundle::new(0, Payload::Tokens(vec![65]));
    assert_eq!(
        name(&rig.adapter.decode(key, step, early).await.unwrap_err()),
        "malformed",
        "no end of the prompt"
    );
    let first = rig.prefill(key).await.unwrap();
    assert_eq!(rig.prefill(key).await, Ok(first), "the recorded answer");
    assert_eq!(rig.upstream.requests(), 1, "and no second request");
    assert_eq!(name(&rig.decode(key, 2, first).await.unwrap_err()), "miss");
    assert_eq!(name(&rig.decode(key, 1, first + 1).await.unwrap_err()), "conflict");
    let second = rig.decode(key, 1, first).await.unwrap();
    assert_eq!(rig.decode(key, 1, first).await, Ok(second));
    assert_eq!(name(&rig.decode(key, 1, first + 1).await.unwrap_err()), "conflict");
    // Malformed, in the order of the contract: digest, kind, rows, vocabulary, position.
    let send = |bundle: Bundle| {
        let step = StepRef { step: 2, fingerprint: [7; 32] };
        rig.adapter.decode(key, step, bundle)
    };
    let mut torn = Bundle::new(27, Payload::Tokens(vec![second]));
    torn.digest[0] ^= 1;
    let hidden = Payload::Hidden { rows: 1, cols: 1, data: vec![0; 4] };
    for bad in [
        torn,
        Bundle::new(27, hidden),
        Bundle::new(27, Payload::Tokens(vec![])),
        Bundle::new(27, Payload::Tokens(vec![second, second])),
        Bundle::new(27, Payload::Tokens(vec![u32::MAX])),
        Bundle::new(26, Payload::Tokens(vec![second])),
    ] {
        assert_eq!(name(&send(bad).await.unwrap_err()), "malformed");
    }
    // A prompt that has ended does not go on.
    let (step, bundle) = rig.step(key, 2, &[second]);
    assert_eq!(name(&rig.adapter.prefill(key, step, bundle).await.unwrap_err()), "malformed");
    assert_eq!(rig.adapter.query_step(key, 1).await, Ok(StepState::Unknown));
    let third = rig.decode(key, 2, second).await.unwrap();
    assert_eq!(rig.text(&[first, second, third]), script(3), "and none of that touched the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_no_text_or_leaves_no_row_is_refused_before_the_upstream_sees_it() {
    let rig = rig(1).await;
    let end = PROMPT_END_TOKEN;
    let full: Vec<u32> = [65].repeat(ROWS as usize + 7).into_iter().chain([end]).collect();
    let bad = [vec![0xff, end], vec![300, end], vec![end, 65], vec![END_TOKEN], full];
    for (session, tokens) in bad.into_iter().enumerate() {
        let key = key(session as u8, 0);
        rig.adapter.open(key, plan(8)).await.unwrap();
        let (step, bundle) = rig.step(key, 0, &tokens);
        assert_eq!(name(&rig.adapter.prefill(key, step, bundle).await.unwrap_err()), "malformed");
        rig.release(key).await.unwrap();
    }
    assert_eq!(rig.upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_step_loses_no_token() {
    let rig = rig_with(LoadStyle::Vllm, 1, |config| config.silence_ms = 5_000).await;
    rig.upstream.set_token_ms(20);
    let key = key(1, 0);
    rig.adapter.open(key, plan(12)).await.unwrap();
    let mut tokens: Vec<u32> = Vec::new();
    while tokens.len() < 12 {
        let step = tokens.len() as u32;
        let next = async {
            match tokens.last() {
                None => rig.prefill(key).await,
                Some(last) => rig.decode(key, step, *last).await,
            }
        };
        if let Ok(token) = timeout(Duration::from_millis(7), next).await {
            tokens.push(token.unwrap());
        }
    }
    assert_eq!(rig.text(&tokens), script(12));
    assert_eq!(rig.upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_closes_the_stream_also_in_the_middle_of_a_step() {
    let rig = rig_with(LoadStyle::Vllm, 2, |config| config.silence_ms = 60_000).await;
    rig.upstream.set_token_ms(1);
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::Silence, Phase::Tokens(1))));
    for session in 1..=2 {
        rig.adapter.open(key(session, 0), plan(8)).await.unwrap();
    }
    let first = rig.prefill(key(1, 0)).await.unwrap();
    rig.prefill(key(2, 0)).await.unwrap();
    rig.clock.advance(9_000);
    rig.adapter.beat(&[key(1, 0), key(2, 0)]);
    rig.clock.advance(9_999);
    rig.adapter.beat(&[]);
    assert_eq!(rig.adapter.usage().keys.len(), 2, "renewed, so they live");
    let (result, ()) = tokio::join!(rig.decode(key(1, 0), 1, first), async {
        sleep(Duration::from_millis(20)).await;
        rig.clock.advance(1);
        rig.adapter.beat(&[]);
    });
    assert_eq!(name(&result.unwrap_err()), "stream-reset");
    assert_eq!(rig.decode(key(2, 0), 1, first).await, Err(AdapterError::LeaseExpired));
    rig.assert_idle_soon(2, "leases").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_generation_closes_every_stream_also_in_the_middle_of_a_step() {
    let rig = rig_with(LoadStyle::Vllm, 2, |config| config.silence_ms = 60_000).await;
    rig.upstream.set_fault(Some(FaultPlan::always(Fault::Silence, Phase::Tokens(1))));
    for session in 1..=2 {
        rig.adapter.open(key(session, 0), plan(8)).await.unwrap();
    }
    let first = rig.prefill(key(1, 0)).await.unwrap();
    rig.prefill(key(2, 0)).await.unwrap();
    rig.adapter.hello(1).unwrap();
    let (result, ()) = tokio::join!(rig.decode(key(1, 0), 1, first), async {});
    assert_eq!(name(&result.unwrap_err()), "miss");
    rig.assert_idle_soon(2, "generation 1").await;
    rig.adapter.open(key(3, 0), plan(8)).await.unwrap();
    let first = rig.prefill(key(3, 0)).await.unwrap();
    let (result, ()) = tokio::join!(rig.decode(key(3, 0), 1, first), async {
        sleep(Duration::from_millis(20)).await;
        assert_eq!(
            rig.adapter.counters(),
            ShardCounters { steps_done: 3, busy: vec![key(3, 0)], free_rows: 1024 - 34 }
        );
        rig.adapter.hello(2).unwrap();
    });
    assert_eq!(name(&result.unwrap_err()), "stream-reset");
    rig.assert_idle_soon(2, "generation 2").await;
    assert_eq!(rig.adapter.hello(1), Err(StaleCoordinator { have: 2 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_gone_is_a_worker_death_and_holds_nothing() {
    let rig = rig(1).await;
    rig.upstream.set_token_ms(5);
    rig.adapter.open(key(1, 0), plan(100)).await.unwrap();
    let first = rig.prefill(key(1, 0)).await.unwrap();
    let beat = rig.adapter.last_beat_ms();
    rig.server.abort();
    let error = within("the stream breaks", 1_000, async {
        let (mut last, mut step) = (first, 1);
        loop {
            match rig.decode(key(1, 0), step, last).await {
                Ok(token) => (last, step) = (token, step + 1),
                Err(error) => break error,
            }
        }
    });
    assert_eq!(name(&error.await), "stream-reset");
    within("release", 500, rig.release(key(1, 0))).await.unwrap();
    assert_eq!(name(&rig.generate(key(2, 0), 8).await.1.unwrap()), "worker-death");
    within("release", 500, rig.release(key(2, 0))).await.unwrap();
    assert_eq!(rig.adapter.usage(), Usage::default());
    rig.clock.advance(50);
    sleep(Duration::from_millis(60)).await;
    assert_eq!(rig.adapter.last_beat_ms(), beat, "nobody there, no beat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_beats_by_its_load_and_one_that_shows_none_is_refused() {
    let rig = rig(1).await;
    rig.clock.advance(70);
    eventually("a beat", || rig.adapter.last_beat_ms() == Some(70)).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let hidden = Upstream::new(LoadStyle::Hidden, 0, None);
    let server = tokio::spawn(serve_upstream(listener, hidden));
    let config = OpenAiHttpConfig::new(url, "m", 1, 512);
    let connected = OpenAiHttpAdapter::connect(config, Arc::default(), Arc::new(SystemClock::new())).await;
    assert_eq!(name(&connected.err().unwrap()), "internal");
    server.abort();
}

#[test]
fn a_piece_keeps_its_id_and_the_table_its_bound() {
    let table = PieceTable::new();
    let unknown = |token| Err(TextError::UnknownToken { token, vocab: u32::MAX });
    let the = table.intern(" the").unwrap();
    assert_eq!((the, table.intern(" of"), table.intern(" the")), (258, Some(259), Some(258)));
    assert_eq!(table.token_bytes(258).unwrap(), b" the");
    assert_eq!(table.encode("é"), Ok(vec![0xc3, 0xa9, PROMPT_END_TOKEN]));
    assert_eq!(table.token_bytes(PROMPT_END_TOKEN).unwrap(), b"");
    assert_eq!(table.token_bytes(0xc3).unwrap(), [0xc3]);
    assert_eq!(table.token_bytes(END_TOKEN).unwrap(), b"");
    assert_eq!(table.token_bytes(260), unknown(260));
    // 256 pieces of 64 KiB are 16 MiB: with those two there is no room for the last of them.
    for n in 0..256_u32 {
        table.intern(&format!("{}{n:06}", "x".repeat(65_530))).unwrap();
        table.intern(" the").unwrap();
    }
    assert_eq!(table.token_bytes(258).unwrap(), b" the", "used all the time");
    assert_eq!(table.token_bytes(259), unknown(259), "unused for longest");
    assert_eq!(table.token_bytes(260), unknown(260));
    assert!(table.token_bytes(261).is_ok());
    assert_eq!(table.intern(" of"), Some(258 + 2 + 256), "never an old id");
}

#[test]
fn fault_plans_are_read_from_text() {
    let read = |text: &str| text.parse::<FaultPlan>();
    assert_eq!(read("reset@tokens:3"), Ok(FaultPlan::always(Fault::Reset, Phase::Tokens(3))));
    assert_eq!(
        read("status:429:1@request x2"),
        Ok(FaultPlan { fault: Fault::Status(429, Some(1)), phase: Phase::Request, hits: 2 })
    );
    for bad in ["", "reset@", "reset@tokens", "status:x", "reset x", "usage-times:-1"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

fn decoded(parts: &[&[u8]], max_tokens: u32) -> Result<Vec<Event>, String> {
    let mut decoder = Decoder::new(max_tokens, 10);
    let mut events = VecDeque::new();
    for part in parts {
        decoder.feed(part, &mut events)?;
    }
    decoder.finish()?;
    Ok(events.into())
}

#[test]
fn events_are_read_as_the_format_has_it() {
    let end = Event::End(Counts { prompt_tokens: 3, completion_tokens: 2 });
    // Comments, other fields, lines ended in all three ways, data in two lines, usage with the reason.
    let stream = b": hi\r\nevent: x\nid: 1\r\rdata:{\"choices\":[{\"text\":\r\ndata:  \"a\"}]}\r\n\r\n\
        data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\nwhatever";
    let pieces = |texts: &[&str]| texts.iter().map(|text| Event::Piece((*text).into())).collect::<Vec<_>>();
    assert_eq!(decoded(&[stream], 9), Ok([pieces(&["a", "b"]), vec![end]].concat()));
}

#[test]
fn a_stream_that_cannot_be_right_is_refused() {
    let chunk = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
    let finish = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
    let usage = |n: u32| {
        format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{n}}}}}\n\n")
    };
    let done = "data: [DONE]\n\n";
    let all = |parts: &[&str]| decoded(&parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>(), 2);
    assert!(all(&[&chunk("a"), &chunk("b"), finish, &usage(2), done]).is_ok());
    let big = chunk(&"x".repeat(PIECE_MAX + 1));
    let long = format!(": {}\n", "x".repeat(LINE_MAX));
    let idle = ": x\n\ndata: {}\n\n".repeat(2_000);
    for (parts, says) in [
        (vec![chunk("a"), chunk("b"), chunk("c")], "more tokens"),
        (vec![chunk("a"), finish.into(), chunk("b")], "after the finish"),
        (vec![chunk("a"), finish.into(), usage(2)], "without [DONE]"),
        (vec![chunk("a"), usage(2), done.into()], "without a finish"),
        (vec![chunk("a"), finish.into(), done.into()], "without a usage"),
        (vec![chunk("a"), chunk("b"), finish.into(), usage(1), done.into()], "2 chunks"),
        (vec![finish.replace("length", "abort")], "another reason"),
        (vec!["data: {\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"}]}\n\n".into()], "more choices"),
        (vec!["data: {\"choices\":[{\"index\":1,\"text\":\"a\"}]}\n\n".into()], "more choices"),
        (vec!["data: {\"error\":\"x\"}\n\n".into()], "failed"),
        (vec!["error: x\n".into()], "failed"),
        (vec!["data: {\"usage\":{\"prompt_tokens\":-1}}\n\n".into()], "no JSON"),
        (vec!["<html>\n".into()], "no event stream"),
        (vec![big], "bytes of text"),
        (vec![long], "a line over"),
        (vec![idle], "more chunks"),
    ] {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let error = all(&parts).unwrap_err();
        assert!(error.contains(says), "{error} should say {says}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn where_the_bytes_are_cut_does_not_matter(cuts in prop::collection::vec(0_usize..700, 0..12), crlf: bool) {
        let mut stream = String::new();
        for index in 0..6 {
            stream += &format!("data: {}\n\n", serde_json::json!({"choices": [{"text": piece("x", index)}]}));
        }
        stream += "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n";
        if crlf {
            stream = stream.replace('\n', "\r\n");
        }
        let bytes = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let mut expected: Vec<Event> = (0..6).map(|index| Event::Piece(piece("x", index).into())).collect();
        expected.push(Event::End(Counts { prompt_tokens: 1, completion_tokens: 6 }));
        prop_assert_eq!(decoded(&parts, 6), Ok(expected));
    }

    #[test]
    fn garbage_never_panics(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8)) {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        prop_assert!(decoded(&parts, 4).is_err());
    }
}
