//! Many sessions at once: batches, threads, random arrivals and faults.

use futures_util::future::{join, join_all};
use proptest::prelude::*;

use super::*;
use crate::adapter::BoundaryAdapter;

#[test]
fn batch_composition_never_changes_the_bytes_of_a_session() {
    let oracle = Oracle::new(13);
    let prompts: Vec<Vec<u32>> =
        (0..16_u32).map(|n| (0..1 + n * 9 % 80).map(|i| (n * 31 + i * 17) % 256).collect()).collect();
    let world = World::new();
    world.add("a", (0, 1));
    world.add("b", (1, 4));
    let alone: Vec<Vec<u32>> = prompts.iter().map(|prompt| oracle.generate(prompt, 6)).collect();
    let batched = world.run(async |runner| {
        let runs = prompts
            .iter()
            .enumerate()
            .map(|(n, prompt)| runner.run(GenerateRequest::new(format!("batch {n}"), prompt.clone(), 6)));
        join_all(runs).await
    });
    for (n, outcome) in batched.iter().enumerate() {
        assert_eq!(outcome.as_ref().unwrap().tokens, alone[n], "session {n}");
    }
}

#[test]
fn it_runs_on_threads_of_tokio_with_a_ledger_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock::new());
        let store = crate::ledger::FileStore::open(folder.path()).unwrap();
        let (ledger, _) = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref()).unwrap();
        let shard = LocalShard::new(model((0, 4)), ShardSettings::new("a"), clock.clone());
        let pool: Vec<Arc<dyn BoundaryAdapter>> = vec![Arc::new(shard)];
        let (runner, driver) =
            HardenedSessionRunner::new(RunnerConfig::default(), clock, ledger, Arc::new(pool));
        let driver = tokio::spawn(driver);
        let runs = (0..32).map(|n| {
            let runner = runner.clone();
            tokio::spawn(async move { runner.run(request(&format!("thread {n}"))).await })
        });
        for outcome in join_all(runs).await {
            assert_eq!(outcome.unwrap().unwrap().tokens, GOLDEN);
        }
        assert_eq!(runner.work().await.unwrap().billable_tokens, 32 * 8);
        runner.stop(0);
        driver.await.unwrap().unwrap();
        assert!(runner.usage()[0].1.keys.is_empty());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random arrivals, cancels and faults: who completes has the oracle's bytes, who does not has a prefix of them,
    /// and nothing is left anywhere.
    #[test]
    fn random_mixes_give_the_oracles_bytes_and_leave_nothing(
        sessions in prop::collection::vec((1_u32..40, 1_u32..9, 0_u64..400, prop::option::of(0_u64..300)), 1..14),
        faults in prop::collection::vec((0_u32..3, 0_u32..6, 0_usize..7), 0..5),
    ) {
        let kinds = [
            Fault::Block, Fault::Late(60), Fault::Die, Fault::ResetBefore, Fault::ResetAfter, Fault::Evict,
            Fault::Panic,
        ];
        let mut world = World::new();
        world.capacity = 200;
        for (id, layers) in [("a0", (0, 2)), ("b0", (2, 4)), ("a1", (0, 2)), ("b1", (2, 4)), ("c", (0, 4))] {
            let shard = world.add(id, layers);
            for (epoch, step, kind) in &faults {
                if usize::from(id.as_bytes()[0]) % 2 == kind % 2 {
                    shard.fault(*epoch, *step, kinds[*kind]);
                }
            }
        }
        let oracle = Oracle::new(13);
        let outcomes = world.run(async |runner| {
            let runs = sessions.iter().enumerate().map(async |(n, (prompt, max_new, at_ms, cancel_ms))| {
                world.sleep(*at_ms).await;
                let prompt: Vec<u32> = (0..*prompt).map(|i| (i * 5 + n as u32) % 256).collect();
                let request = GenerateRequest::new(format!("{n}"), prompt, *max_new);
                let session = request.session();
                let cancel = async {
                    if let Some(ms) = cancel_ms {
                        world.sleep(*ms).await;
                        runner.cancel(session, Cause::Client).await.unwrap();
                    }
                };
                (request.clone(), join(runner.run_with_failover(request), cancel).await.0)
            });
            let outcomes = join_all(runs).await;
            world.sleep(45_000).await;
            let load = runner.telemetry().await.unwrap().load;
            assert_eq!(load, crate::telemetry::Load::default());
            outcomes
        });
        prop_assert_eq!(world.keys_left(), 0);
        for (request, outcome) in outcomes {
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(SubmitError::NoRoute) => continue,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            let full = oracle.generate(&request.prompt, request.max_new as usize);
            prop_assert_eq!(&outcome.tokens[..], &full[..outcome.tokens.len()]);
            if outcome.status == WorkStatus::Completed {
                prop_assert_eq!(&outcome.tokens, &full);
            }
            let epochs: Vec<u32> = outcome.records.iter().map(|record| record.key.epoch).collect();
            prop_assert_eq!(epochs, (0..outcome.records.len() as u32).collect::<Vec<_>>());
        }
    }
}
