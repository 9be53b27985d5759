//! What a settlement pays and tells: coins to the unit, counts that exclude a host, a probe that brings it back.

use std::collections::BTreeMap;
use std::time::Duration;

use cosmrs::AccountId;
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_proto::holdfast::escrow::v1::EscrowStatus;

use super::rig::Rig;
use crate::client::{Client, block_on};
use crate::process::SHORT;

const HOSTS: [&str; 4] = ["host0", "host1", "host2", "host3"];

async fn balances(rig: &Rig, chain: &Client) -> BTreeMap<String, u128> {
    let mut balances = BTreeMap::new();
    for name in HOSTS {
        let address = rig.address(name);
        let id: AccountId = address.parse().expect("an address");
        balances.insert(address, chain.balance(&id).await);
    }
    balances
}

async fn health(rig: &Rig, chain: &Client, name: &str) -> breaker::State {
    let request =
        breaker::QueryCircuitBreakerRequest { participant: rig.address(name), model: rig.model().into() };
    let path = "/holdfast.breaker.v1.Query/CircuitBreaker";
    let answer: breaker::QueryCircuitBreakerResponse = chain.call(path, &request).await.expect("an entry");
    answer.effective_state()
}

#[test]
fn a_settlement_pays_to_the_unit_excludes_who_missed_and_a_probe_brings_it_back() {
    block_on(async {
        let rig =
            Rig::start(&["--hosts", "4", "--block-seconds", "0.1", "--fault", "fork:host2@nonce6"]).await;
        let chain = rig.chain().await;
        let before = balances(&rig, &chain).await;
        rig.eventually("host2 is flagged", SHORT, async || {
            rig.served().await;
            rig.flag("host2").await
        })
        .await;
        // A client that leaves pays for nothing more, and blames nobody.
        rig.leave(400).await;
        rig.eventually("the host signs that it was cancelled", SHORT, async || {
            let session = rig.session().await;
            (session.participants.iter().map(|row| row.released).sum::<u32>() > 0).then_some(())
        })
        .await;
        // Given up it is charged for what it would have got: five misses in a row and more.
        rig.give_up("host2").await;
        // It hangs: awake it would take the work up when voters challenge it, and miss nothing.
        rig.signal("host2", "STOP");
        for _ in 0..30 {
            rig.served().await;
        }
        let missed = rig
            .eventually("its ghosts are voted missed", Duration::from_secs(90), async || {
                let row = rig.participant("host2").await;
                (row.missed >= 6).then_some(row.missed)
            })
            .await;
        rig.signal("host2", "CONT");
        assert_eq!(rig.participant("host2").await.starts_while_flagged, 0, "ghosts are not sent");

        rig.finalize().await;
        let row = rig
            .eventually("the chain settles it", 2 * SHORT, async || {
                let row = rig.escrow(&chain).await;
                row.outcome.is_some().then_some(row)
            })
            .await;
        assert_eq!(row.status(), EscrowStatus::Settled);
        let outcome = row.outcome.expect("an outcome");
        let amount = |text: &str| text.parse::<u128>().expect("an amount");
        let total = amount(&row.config.expect("terms").amount);
        assert_eq!(amount(&outcome.paid) + amount(&outcome.fees) + amount(&outcome.refunded), total);
        let after = balances(&rig, &chain).await;
        for tally in &outcome.hosts {
            assert_eq!(after[&tally.owner] - before[&tally.owner], amount(&tally.cost), "{tally:?}");
        }
        let of_host2 =
            outcome.hosts.iter().find(|tally| tally.owner == rig.address("host2")).expect("its row");
        assert!(of_host2.missed >= u64::from(missed), "{of_host2:?}");

        // The breaker heard of it, of nobody else, and a small inference on the chain lets it back.
        assert_eq!(health(&rig, &chain, "host0").await, breaker::State::Healthy);
        let excluded =
            async || (health(&rig, &chain, "host2").await != breaker::State::Healthy).then_some(());
        rig.eventually("host2 is excluded", SHORT, excluded).await;
        rig.eventually("a probe brings it back", 2 * SHORT, async || {
            (health(&rig, &chain, "host2").await == breaker::State::Healthy).then_some(())
        })
        .await;
        rig.stop();
    });
}
