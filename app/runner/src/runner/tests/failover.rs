//! Failed epochs: which are begun again, from where, and how often.

use futures_util::future::join;

use super::*;
use crate::adapter::{BoundaryAdapter, Bundle, OpenPlan, StepRef};
use crate::ledger::{BeginError, StepKey};

#[test]
fn alpha_failover_restarts_from_token_zero_and_completes_at_every_step() {
    for cut in [&[(0, 4)][..], &[(0, 2), (2, 4)], &[(0, 1), (1, 3), (3, 4)]] {
        for step in 0..8 {
            for faulty in 0..cut.len() {
                let world = World::new();
                for (index, layers) in cut.iter().enumerate() {
                    let shard = world.add(&format!("a{index}"), *layers);
                    world.add(&format!("b{index}"), *layers);
                    if index == faulty {
                        shard.fault(0, step, Fault::Die);
                    }
                }
                let (outcome, old) = world.run(async |runner| {
                    let outcome = runner.run_with_failover(request("failover")).await.unwrap();
                    world.sleep(31_000).await;
                    assert_eq!(world.keys_left(), 0);
                    let mut old = Vec::new();
                    for shard in world.pool.live() {
                        let plan = OpenPlan {
                            max_positions: 1,
                            lease_ms: 1,
                            sampling: request("").sampling,
                            trace: None,
                        };
                        old.push(shard.open(KvKey::new(outcome.session, 0), plan).await.is_err());
                    }
                    (outcome, old)
                });
                assert_eq!(outcome.tokens, GOLDEN, "cut {cut:?}, step {step}, shard {faulty}");
                let [first, second] = &outcome.records[..] else { panic!("{:?}", outcome.records) };
                assert_eq!(first.status, WorkStatus::Unverified);
                assert_eq!(first.uncertain_step, Some(step));
                assert_eq!(first.excluded_node, Some(format!("a{faulty}")));
                assert_eq!(first.tokens, (step > 0).then_some(step));
                assert_eq!(
                    (second.key.epoch, second.tokens, second.status),
                    (1, Some(8), WorkStatus::Completed)
                );
                // Shards that ran both epochs, or the second, are fenced.
                assert!(old.iter().filter(|stale| **stale).count() >= cut.len(), "{old:?}");
            }
        }
    }
}

#[test]
fn failover_refuses_to_import_unverified_kv() {
    let world = World::new();
    let dying = world.add("a", (0, 4));
    let dirty = world.add("b", (0, 4));
    dying.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let session = request("dirty").session();
        // Somebody put rows of the next epoch there.
        let key = KvKey::new(session, 1);
        let plan =
            OpenPlan { max_positions: 12, lease_ms: 10_000, sampling: request("").sampling, trace: None };
        dirty.shard.open(key, plan).await.unwrap();
        let model = dirty.describe().model_digest;
        let fingerprint = crate::adapter::fingerprint(&model, session, 0, &[5], plan.sampling);
        let bundle = Bundle::new(0, crate::adapter::Payload::Tokens(vec![5]));
        dirty.shard.prefill(key, StepRef { step: 0, fingerprint }, bundle).await.unwrap();
        let outcome = runner.run_with_failover(request("dirty")).await.unwrap();
        world.sleep(2_000).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Failed, Some(FailureKind::Internal)));
    assert_eq!(outcome.records.len(), 2, "{:?}", outcome.records);
    assert_eq!((outcome.records[1].tokens, outcome.records[1].restartable), (None, Some(false)));
    assert_eq!(outcome.tokens, GOLDEN[..3]);
}

#[test]
fn non_restartable_failure_is_not_retried() {
    let world = World::new();
    let shard = world.add("a", (0, 4));
    world.add("b", (0, 4));
    shard.fault(0, 2, Fault::Malformed);
    let outcome = world.run(async |runner| runner.run_with_failover(request("malformed")).await.unwrap());
    let kind = Some(FailureKind::MalformedBundle);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(2), Some(false), KvOutcome::Released, Some(2)));
}

#[test]
fn worker_death_midstream_is_unverified_and_marks_step_uncertain() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| runner.run(request("death")).await.unwrap());
    let kind = Some(FailureKind::WorkerDeath);
    assert_eq!(
        row(&outcome),
        (WorkStatus::Unverified, kind, Some(3), Some(true), KvOutcome::Released, Some(3))
    );
    let key = KvKey::new(outcome.session, 0);
    assert!(matches!(world.ledger().begin(StepKey::new(key, 3), [0; 32]), Err(BeginError::Uncertain(_))));
}

#[test]
fn stream_reset_is_restartable_failure() {
    let (world, shard) = World::single();
    shard.fault(0, 0, Fault::ResetBefore);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("reset")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::StreamReset);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, None, Some(true), KvOutcome::Released, Some(0)));
}

#[test]
fn a_broken_stream_is_asked_about_and_the_epoch_goes_on() {
    for fault in [Fault::ResetBefore, Fault::ResetAfter] {
        for step in 0..8 {
            let (world, shard) = World::single();
            shard.fault(0, step, fault);
            let outcome = world.run(async |runner| runner.run_with_failover(request("ask")).await.unwrap());
            assert_eq!(outcome.tokens, GOLDEN);
            assert_eq!(row(&outcome).0, WorkStatus::Completed, "{fault:?} at {step}");
        }
    }
    // Shard 0 ran the step and shard 1 did not: only another epoch helps.
    let world = World::new();
    world.add("a", (0, 2));
    world.add("b", (2, 4)).fault(0, 2, Fault::ResetBefore);
    world.add("c", (2, 4));
    let outcome = world.run(async |runner| runner.run_with_failover(request("ask")).await.unwrap());
    assert_eq!(outcome.tokens, GOLDEN);
    assert_eq!(outcome.records.len(), 2);
    assert_eq!(outcome.records[0].uncertain_step, Some(2));
}

#[test]
fn stale_epoch_reference_is_rejected() {
    let (world, shard) = World::single();
    let outcome = world.run(async |runner| {
        let key = KvKey::new(request("stale").session(), 1);
        let plan =
            OpenPlan { max_positions: 12, lease_ms: 10_000, sampling: request("").sampling, trace: None };
        shard.shard.open(key, plan).await.unwrap();
        shard.shard.release(key, Cause::Node).await.unwrap();
        runner.run_with_failover(request("stale")).await.unwrap()
    });
    let kind = Some(FailureKind::StaleEpoch);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, None, Some(false), KvOutcome::NeverOpened, None));
}

#[test]
fn cache_miss_midstream_is_restartable() {
    let (world, shard) = World::single();
    shard.fault(0, 4, Fault::Evict);
    let outcome = world.run(async |runner| runner.run(request("evicted")).await.unwrap());
    let kind = Some(FailureKind::CacheMiss);
    let kv = KvOutcome::AlreadyEvicted;
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(4), Some(true), kv, Some(4)));
    let world = World::new();
    world.add("a", (0, 4)).fault(0, 4, Fault::Evict);
    world.add("b", (0, 4));
    let outcome = world.run(async |runner| runner.run_with_failover(request("evicted")).await.unwrap());
    assert_eq!((outcome.tokens.as_slice(), outcome.status), (&GOLDEN[..], WorkStatus::Completed));
}

#[test]
fn a_second_run_that_differs_from_what_the_client_has_is_unverified() {
    let world = World::new();
    world.add("a", (0, 4)).fault(0, 5, Fault::Die);
    world.add("b", (0, 4)).fault(1, 3, Fault::WrongToken);
    let outcome = world.run(async |runner| runner.run_with_failover(request("differs")).await.unwrap());
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Unverified, Some(FailureKind::PrefixMismatch)));
    assert_eq!(outcome.tokens, GOLDEN[..5]);
    assert_eq!(outcome.records.len(), 2);
}

#[test]
fn failover_stops_at_its_budget_and_backs_off() {
    let world = World::new();
    for (epoch, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        world.add(id, (0, 4)).fault(u32::try_from(epoch).unwrap(), 1, Fault::Die);
    }
    let outcome = world.run(async |runner| runner.run_with_failover(request("budget")).await.unwrap());
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Unverified, Some(FailureKind::WorkerDeath)));
    let times: Vec<(u64, u64)> =
        outcome.records.iter().map(|record| (record.started_ms, record.ended_ms)).collect();
    assert_eq!(times, [(0, 20), (20, 40), (540, 560)]);
}

#[test]
fn a_session_without_a_route_ends_at_its_queue_deadline_with_the_record_it_has() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let outcome = runner.run_with_failover(request("alone")).await.unwrap();
        assert_eq!(world.clock.now_ms(), 30_040);
        let refused = runner.run(request("next")).await.unwrap_err();
        assert_eq!(refused.code(), "no-route");
        outcome
    });
    assert_eq!(row(&outcome).1, Some(FailureKind::WorkerDeath));
    // A restarted worker, under another name, is enough.
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let restart = async {
            world.sleep(5_000).await;
            world.add("a-again", (0, 4));
        };
        join(runner.run_with_failover(request("alone")), restart).await.0.unwrap()
    });
    assert_eq!((outcome.tokens.as_slice(), outcome.status), (&GOLDEN[..], WorkStatus::Completed));
}
