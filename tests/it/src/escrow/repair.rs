//! A repair goes on where it was, whoever is killed with SIGKILL, in each of its states.
//!
//! | killed while the repair is | gateway | host |
//! |---|---|---|
//! | waiting | same flag, same attempts | same flag, same attempts |
//! | teaching | the attempt ends as `gateway_restarted`, the next one follows | the attempt fails, the next one follows |
//! | verifying | the same | the same, and the new process is restored |
//! | given up | given up | taught again, as the host says that it started |

use holdfast_proto::holdfast::gateway::v1::{DivergenceFlag, RepairPhase};

use super::rig::Rig;
use crate::client::block_on;
use crate::process::SHORT;

/// The verdict of an attempt that a restart of the gateway cut off.
const CUT_OFF: &str = "gateway_restarted";

/// What no kill may change.
fn identity(flag: &DivergenceFlag) -> (u64, u64, u64, u64, Vec<u8>) {
    (flag.generation, flag.flagged_at, flag.diverged_nonce, flag.restored, flag.signature.clone())
}

/// Kills the gateway in the middle of an attempt of host2, and says what became of its flag.
async fn kill_gateway_in(rig: &Rig, phase: RepairPhase) {
    let held = rig.flag_in("host2", phase).await;
    rig.kill("gateway").await;
    let again = rig.flag("host2").await.expect("a restart is no amnesty");
    assert_eq!(identity(&again), identity(&held));
    assert!(again.attempt > held.attempt, "{again:?} after {held:?}");
    // On a slow machine the next one may have ended too.
    let next = again.attempt > held.attempt + 1;
    assert!(next || again.last_verdict == CUT_OFF, "{again:?} after {held:?}");
    assert_ne!(rig.served().await, rig.address("host2"), "clients are served meanwhile");
}

#[test]
fn a_repair_survives_kills_of_gateway_and_host_in_each_of_its_states() {
    block_on(async {
        let rig = Rig::start(&["--hosts", "4", "--fault", "fork:host2@nonce6"]).await;
        let forked = rig.address("host2");
        // It is asked, refuses by its signature, and another host answers the client.
        let flag = rig.flagged("host2").await;
        assert_eq!((flag.generation, flag.diverged_nonce, flag.restored), (1, 6, 0), "{flag:?}");
        assert_eq!(flag.reason, "escrow_state_root_diverged");
        assert!(flag.our_root != flag.their_root && flag.signature.len() == 65);

        // Answers of others clear nothing, and none of them is its own.
        let before = rig.participant("host2").await;
        for _ in 0..8 {
            assert_ne!(rig.served().await, forked);
        }
        let waits = |flag: &DivergenceFlag| flag.forked && flag.phase() == RepairPhase::Waiting;
        let flag = rig.flag_when("host2", "the attempt finds the fork", waits).await;
        assert_eq!(flag.generation, 1);
        let now = rig.participant("host2").await;
        assert_eq!((now.started, now.starts_while_flagged), (before.started, 0));
        assert!(now.passes > before.passes, "its nonces are passed");

        // Waiting, minutes to go, and the gateway is killed.
        rig.kill("gateway").await;
        let again = rig.flag("host2").await.expect("a restart is no amnesty");
        assert_eq!((identity(&again), again.forked), (identity(&flag), true));
        assert!(again.attempt >= flag.attempt, "{again:?} after {flag:?}");
        assert_ne!(rig.served().await, forked);

        // Waiting, and the host is killed: the same store, the same state, and no attempt comes of it.
        rig.force_teach("host2").await;
        let held = rig.waits_after("host2", &again).await;
        rig.kill("host2").await;
        let again = rig.flag("host2").await.expect("flagged");
        let stand = |flag: &DivergenceFlag| (identity(flag), flag.phase(), flag.attempt, flag.level);
        assert_eq!(stand(&again), stand(&held));

        // Teaching: the host hangs in the middle of it.
        rig.signal("host2", "STOP");
        kill_gateway_in(&rig, RepairPhase::Teaching).await;
        // The same with the host killed instead.
        let held = rig.flag_in("host2", RepairPhase::Teaching).await;
        rig.kill("host2").await;
        let again = rig.waits_after("host2", &held).await;
        assert_eq!(identity(&again), identity(&held));

        // Given up: by an operator only, and for good.
        assert_eq!(rig.give_up_as_nobody("host2").await.code(), tonic::Code::Unauthenticated);
        let given = rig.give_up("host2").await;
        assert_eq!(given.phase(), RepairPhase::GaveUp);
        rig.kill("gateway").await;
        let again = rig.flag("host2").await.expect("flagged");
        assert_eq!((again.phase(), identity(&again)), (RepairPhase::GaveUp, identity(&given)));
        assert_eq!((again.attempt, again.level), (given.attempt, given.level));
        // A host that says that it started again gets another chance, which it misses.
        rig.kill("host2").await;
        let again = rig.flag_when("host2", "it is taught again", |flag| flag.generation == 2).await;
        assert_ne!(again.phase(), RepairPhase::GaveUp);
        assert_eq!(rig.participant("host2").await.accountable_ghosts_during_repair, 0);
        rig.stop();
    });
}

#[test]
fn a_repair_whose_proof_is_awaited_survives_kills_of_gateway_and_host_and_ends_restored() {
    block_on(async {
        // Once it starts with an empty store it holds whatever it is taught, and signs no proof until it is killed: each
        // attempt stays at verifying for as long as the gateway waits for the signature.
        let rig = Rig::start(&["--hosts", "4", "--fault", "mute:host2@nonce6"]).await;
        // The network comes late: an attempt finds the other state before it is emptied. Nobody waits minutes for the next.
        rig.signal_network("STOP");
        let flag = rig.flagged("host2").await;
        assert_eq!((flag.generation, flag.diverged_nonce, flag.restored), (1, 6, 0), "{flag:?}");
        let waits = |flag: &DivergenceFlag| flag.forked && flag.phase() == RepairPhase::Waiting;
        rig.flag_when("host2", "the attempt finds the fork", waits).await;
        rig.signal_network("CONT");
        rig.flag_when("host2", "its empty store is found", |flag| !flag.forked).await;

        kill_gateway_in(&rig, RepairPhase::Verifying).await;

        let held = rig.flag_in("host2", RepairPhase::Verifying).await;
        assert_eq!(identity(&held), identity(&flag));
        assert_eq!(rig.participant("host2").await.restored, 0, "what it was taught is no proof");
        rig.kill("host2").await;
        // The attempt failed with the process. The next one finds the store as it was, and gets its signature.
        let changes = rig.restored("host2").await;
        let all_of = |stage: &str| changes.iter().filter(|change| change.0 == stage).count();
        assert_eq!(all_of("escrow_participant_state_blocked"), 1, "{changes:?}");
        assert_eq!(all_of("escrow_participant_state_unblocked"), 1, "{changes:?}");
        assert!(changes.iter().all(|change| change.1.generation == 1), "it was one repair: {changes:?}");
        let (_, last) = changes.last().expect("changes");
        assert!(last.attempt > held.attempt, "{last:?} after {held:?}");
        let row = rig.participant("host2").await;
        assert_eq!((row.flagged, row.restored, row.gave_up), (false, 1, 0), "{row:?}");
        let charged = (row.starts_while_flagged, row.ghosts, row.accountable_ghosts_during_repair);
        assert_eq!(charged, (0, 0, 0), "{row:?}");

        // It serves again.
        let address = rig.address("host2");
        rig.eventually("host2 answers a client", SHORT, async || {
            (rig.served().await == address).then_some(())
        })
        .await;
        assert!(rig.flag("host2").await.is_none());
        rig.stop();
    });
}
