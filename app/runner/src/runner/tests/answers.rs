//! What an answer is: its tokens, its record, what is billed of it.

use super::*;

#[test]
fn a_shard_that_counts_tokens_itself_is_billed_by_its_count_up_to_what_was_asked_for() {
    for (completion_tokens, billed) in [(5, 5), (8, 8), (9, 8), (u32::MAX, 8)] {
        let (world, shard) = World::single();
        *shard.counts.lock().unwrap() = Some(Counts { prompt_tokens: 3, completion_tokens });
        let (outcome, work) = world.run(async |runner| {
            let outcome = runner.run(request("counted")).await.unwrap();
            (outcome, runner.work().await.unwrap())
        });
        let record = &outcome.records[0];
        assert_eq!((record.prompt_tokens, record.tokens), (3, Some(billed)));
        assert_eq!((work.billable_tokens, outcome.tokens.len()), (u64::from(billed), 8));
    }
}

#[test]
fn clean_run_matches_stateless_reference_and_is_billable() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("clean")).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        // Leases are renewed while the KV is held.
        world.sleep(29_000).await;
        assert_eq!(world.keys_left(), 1);
        world.sleep(1_100).await;
        assert_eq!(world.keys_left(), 0);
        let work = runner.work().await.unwrap();
        assert_eq!((work.completed, work.billable_tokens), (1, 8));
        let telemetry = runner.telemetry().await.unwrap();
        assert_eq!((telemetry.steps, telemetry.done_with(WorkStatus::Completed)), (8, 1));
        assert_eq!((telemetry.load.active, telemetry.load.kv_rows, telemetry.stale_events), (0, 0, 0));
        assert_eq!((telemetry.first_token.sum_ms, telemetry.inter_token.sum_ms), (10, 70));
        outcome
    });
    assert_eq!(outcome.tokens, GOLDEN);
    assert_eq!(outcome.tokens, Oracle::new(13).generate(&PROMPT, 8));
    assert_eq!(row(&outcome), (WorkStatus::Completed, None, Some(8), None, KvOutcome::Held, None));
    let record = &outcome.records[0];
    assert!(record.billable());
    assert_eq!((record.prompt_tokens, record.shards.as_slice()), (4, &["a".to_owned()][..]));
    assert_eq!((record.started_ms, record.ended_ms), (0, 80));
    assert_eq!(outcome.finish_reason, Some(FinishReason::Length));
}

#[test]
fn stop_tokens_count_and_end_the_answer() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let request = GenerateRequest { stop_tokens: vec![96, 8_u32.pow(2)], ..request("stop") };
        runner.run(request).await.unwrap()
    });
    assert_eq!((outcome.tokens.as_slice(), outcome.finish_reason), (&GOLDEN[..4], Some(FinishReason::Stop)));
    assert_eq!(outcome.records[0].tokens, Some(4));
}

#[test]
fn a_long_prompt_goes_in_chunks_and_gives_the_same_bytes() {
    let prompt: Vec<u32> = (0..150).map(|i| i * 7 % 256).collect();
    let (world, shard) = World::single();
    let outcome =
        world.run(async |runner| runner.run(GenerateRequest::new("long", prompt.clone(), 5)).await.unwrap());
    assert_eq!(outcome.tokens, Oracle::new(13).generate(&prompt, 5));
    // 64 + 64 + 22, then 4 tokens more.
    assert_eq!(shard.steps.load(Ordering::Relaxed), 7);
}

#[test]
fn clients_are_told_to_wait_each_five_seconds() {
    let (mut world, shard) = World::single();
    world.config.session.deadlines.heartbeat_ms = 30_000;
    shard.fault(0, 1, Fault::Late(12_000));
    let waits = world.run(async |runner| {
        let mut generation = runner.submit(request("wait")).await.unwrap();
        let mut waits = Vec::new();
        loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { .. } => {}
                GenerationEvent::Wait => waits.push(world.clock.now_ms()),
                GenerationEvent::Done(done) => {
                    assert_eq!(done.tokens, GOLDEN);
                    break waits;
                }
            }
        }
    });
    assert_eq!(waits, [5_010, 10_010]);
}
