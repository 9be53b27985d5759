//! A repair goes on where it was, whoever is killed.

use holdfast_proto::holdfast::gateway::v1::RepairPhase;

use super::rig::Rig;
use crate::client::block_on;
use crate::process::SHORT;

#[test]
fn a_repair_survives_kills_of_gateway_and_host_in_each_of_its_states() {
    block_on(async {
        let rig = Rig::start(&["--hosts", "4", "--fault", "fork:host2@nonce6"]).await;
        let forked = rig.address("host2");
        // It is asked, refuses by its signature, and another host answers the client.
        let flag = rig
            .eventually("host2 is flagged", SHORT, async || {
                rig.served().await;
                rig.flag("host2").await
            })
            .await;
        assert_eq!((flag.generation, flag.diverged_nonce), (1, 6), "{flag:?}");
        assert_eq!(flag.reason, "escrow_state_root_diverged");
        assert!(flag.our_root != flag.their_root && flag.signature.len() == 65);

        // Answers of others clear nothing, and none of them is its own.
        let before = rig.participant("host2").await;
        for _ in 0..8 {
            assert_ne!(rig.served().await, forked);
        }
        let flag = rig.flag_when("host2", "the attempt finds the fork", |flag| flag.forked).await;
        assert_eq!(flag.generation, 1);
        let now = rig.participant("host2").await;
        assert_eq!((now.started, now.starts_while_flagged), (before.started, 0));
        assert!(now.passes > before.passes, "its nonces are passed");

        // Waiting, and the gateway is killed.
        rig.kill("gateway").await;
        let again = rig.flag("host2").await.expect("a restart is no amnesty");
        assert_eq!((again.generation, again.forked, again.restored), (1, true, 0), "{again:?}");
        assert!(again.attempt >= flag.attempt, "{again:?} after {flag:?}");
        assert_ne!(rig.served().await, forked);

        // Waiting, and the host is killed: the same store, the same state.
        rig.kill("host2").await;
        let again = rig.flag("host2").await.expect("flagged");
        assert_eq!(again.generation, 1);

        // Teaching: the host hangs in the middle of it, and the gateway is killed.
        rig.signal("host2", "STOP");
        let busy = |flag: &holdfast_proto::holdfast::gateway::v1::DivergenceFlag| {
            matches!(flag.phase(), RepairPhase::Teaching | RepairPhase::Verifying)
        };
        rig.eventually("an attempt hangs", SHORT, async || {
            let flag = rig.flag("host2").await.expect("flagged");
            if busy(&flag) {
                return Some(());
            }
            rig.force_teach("host2").await;
            None
        })
        .await;
        let hangs = rig.flag("host2").await.expect("flagged");
        rig.kill("gateway").await;
        let again = rig.flag("host2").await.expect("flagged");
        assert_eq!(again.generation, 1);
        assert!(again.attempt >= hangs.attempt, "{again:?} after {hangs:?}");
        assert_ne!(rig.served().await, forked, "and clients are served meanwhile");
        // The same with the host killed instead.
        rig.signal("host2", "CONT");
        rig.kill("host2").await;
        let again =
            rig.flag_when("host2", "it waits again", |flag| flag.phase() == RepairPhase::Waiting).await;
        assert_eq!(again.generation, 1);

        // Given up: by an operator only, and for good.
        assert_eq!(rig.give_up_as_nobody("host2").await.code(), tonic::Code::Unauthenticated);
        let given = rig.give_up("host2").await;
        assert_eq!(given.phase(), RepairPhase::GaveUp);
        rig.kill("gateway").await;
        let again = rig.flag("host2").await.expect("flagged");
        assert_eq!((again.phase(), again.generation), (RepairPhase::GaveUp, 1));
        // A host that says that it started again gets another chance, which it misses.
        rig.kill("host2").await;
        let again = rig.flag_when("host2", "it is taught again", |flag| flag.generation == 2).await;
        assert_ne!(again.phase(), RepairPhase::GaveUp);
        assert_eq!(rig.participant("host2").await.accountable_ghosts_during_repair, 0);
        rig.stop();
    });
}
