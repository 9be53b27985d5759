//! What a settlement pays and tells: coins to the unit, counts that exclude a host, a probe that brings it back.

use std::time::Duration;

use holdfast_proto::Message;
use holdfast_proto::cosmos::bank::v1beta1::{QueryBalanceRequest, QueryBalanceResponse};
use holdfast_proto::holdfast::breaker::v1 as breaker;
use holdfast_proto::holdfast::escrow::v1::EscrowStatus;

use super::rig::Rig;
use crate::client::{Client, block_on};
use crate::process::SHORT;

/// Longest wait for timeouts of ten seconds and two rounds of votes a minute apart, with challenges that nobody answers.
const VOTES: Duration = Duration::from_secs(180);

/// What an account had after the block at a height.
async fn balance_at(chain: &Client, denom: &str, address: &str, height: i64) -> u128 {
    let request = QueryBalanceRequest { address: address.to_owned(), denom: denom.to_owned() };
    let path = "/cosmos.bank.v1beta1.Query/Balance";
    let (answer, _) =
        chain.raw(path, request.encode_to_vec(), Some(&height.to_string())).await.expect("a balance");
    let answer = QueryBalanceResponse::decode(answer.as_slice()).expect("the answer decodes");
    answer.balance.and_then(|coin| coin.amount.parse().ok()).expect("an amount")
}

async fn health(rig: &Rig, chain: &Client, name: &str) -> (breaker::State, u32) {
    let request =
        breaker::QueryCircuitBreakerRequest { participant: rig.address(name), model: rig.model().into() };
    let path = "/holdfast.breaker.v1.Query/CircuitBreaker";
    let answer: breaker::QueryCircuitBreakerResponse = chain.call(path, &request).await.expect("an entry");
    (answer.effective_state(), answer.entry.map_or(0, |entry| entry.generation))
}

#[test]
fn a_settlement_pays_to_the_unit_excludes_who_missed_and_a_probe_brings_it_back() {
    block_on(async {
        let rig =
            Rig::start(&["--hosts", "4", "--block-seconds", "0.1", "--fault", "fork:host2@nonce6"]).await;
        let chain = rig.chain().await;
        rig.flagged("host2").await;
        // A client that leaves pays for nothing more, and blames nobody. On a busy machine the answer may be whole before the
        // gateway sees that nobody listens; then another one leaves.
        rig.eventually("the host signs that it was cancelled", SHORT, async || {
            rig.leave(400).await;
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
            .eventually("its ghosts are voted missed", VOTES, async || {
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
        assert_eq!(outcome.hosts.len(), 4, "{outcome:?}");
        let host2 = rig.address("host2");
        for tally in &outcome.hosts {
            if tally.owner == host2 {
                assert!(tally.missed >= u64::from(missed), "{tally:?}");
            } else {
                assert_eq!((tally.missed, tally.errored), (0, 0), "{tally:?}");
            }
            // By the block that paid: a probe pays soon after it.
            let [before, after] = [outcome.end_height - 1, outcome.end_height];
            let before = balance_at(&chain, &row.denom, &tally.owner, before).await;
            let after = balance_at(&chain, &row.denom, &tally.owner, after).await;
            assert_eq!(after - before, amount(&tally.cost), "{tally:?}");
        }

        // The breaker heard of it, of nobody else, and a small inference on the chain lets it back. Each exclusion and each
        // return is a generation, so that none is missed by who asks late.
        rig.eventually("host2 is excluded", SHORT, async || {
            (health(&rig, &chain, "host2").await.1 >= 1).then_some(())
        })
        .await;
        rig.eventually("a probe brings it back", 2 * SHORT, async || {
            let (state, generation) = health(&rig, &chain, "host2").await;
            (state == breaker::State::Healthy && generation >= 2).then_some(())
        })
        .await;
        for name in ["host0", "host1", "host3"] {
            assert_eq!(health(&rig, &chain, name).await, (breaker::State::Healthy, 0), "{name}");
        }
        rig.stop();
    });
}
