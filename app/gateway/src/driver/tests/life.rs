//! Lives of sessions: settlement, restarts, rotation, probes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_escrow::session::FrozenConfig;
use holdfast_host::store::{Fault, FjallDb};
use holdfast_types::Address;

use super::chain::Mishap;
use super::{Scene, ask, nothing, until, within};
use crate::chain::{EscrowStatus, NewEscrow, ProbeReady};
use crate::driver::{CoreOpener, Ended, GatewayError, Opener};
use crate::openai::Event;

async fn settled(scene: &Scene) {
    until("the escrow is paid", || scene.chain.world().rows[&1].status == EscrowStatus::Settled).await;
}

fn entry(gateway: &crate::driver::Gateway, id: u64) -> crate::driver::EscrowEntry {
    gateway.0.journal.escrow(id).unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_is_spent_finalized_and_paid_to_the_last_coin_and_nothing_of_it_stays() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    for _ in 0..5 {
        assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    }
    gateway.finalize(1).await.unwrap();
    settled(&scene).await;
    until("the session is over", || gateway.escrows().is_empty()).await;
    let payout = scene.chain.world().paid[&1].clone();
    // 3 + 4 tokens at a coin each, five times; the rest by the rules of conservation.
    assert_eq!(payout.earned.values().sum::<u128>(), 35);
    assert_eq!(payout.earned.values().sum::<u128>() + payout.fees + payout.refund, 1_000_000);
    let kept = entry(&gateway, 1);
    assert_eq!((kept.ended, kept.owed.clone()), (Some(Ended::Settled), None));
    let last = kept.shown(1);
    assert_eq!((last.phase.as_str(), last.cost.as_str(), last.participants.len()), ("settled", "35", 3));
    assert!(matches!(gateway.open(1).await, Err(GatewayError::Ended(1))));
    until("only upkeep is left", || gateway.counts().tasks == 2).await;
    let counts = gateway.counts();
    assert_eq!((counts.sessions, counts.calls, counts.hosts, counts.connections), (0, 0, 0, 0));
    within(gateway.stop()).await;
    assert_eq!(gateway.counts(), nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_goes_on_at_the_next_nonce_and_finishes_what_was_being_ended() {
    let mut scene = Scene::new().await;
    let gateway = scene.open().await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    let before = gateway.view(1).await.unwrap().session;
    within(gateway.stop()).await;
    scene.disks = scene.disks.restart();
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    let after = gateway.view(1).await.unwrap().session;
    assert!(after.nonce >= before.nonce && before.nonce >= 1, "{before:?} {after:?}");
    let (text, _) = ask(&gateway).await;
    assert_eq!(text, "w0 w1 w2 w3 ");
    // It is told to end, and is gone before anything came of it.
    scene.hosts.iter().for_each(|host| host.manner.away.store(true, Ordering::Relaxed));
    gateway.finalize(1).await.unwrap();
    within(gateway.stop()).await;
    scene.disks = scene.disks.restart();
    scene.hosts.iter().for_each(|host| host.manner.away.store(false, Ordering::Relaxed));
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    settled(&scene).await;
    assert_eq!(scene.chain.world().paid[&1].earned.values().sum::<u128>(), 14);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_is_sent_until_it_is_paid_and_paid_once() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    ask(&gateway).await;
    let mishaps = [Mishap::Lost, Mishap::Void, Mishap::LostAnswer];
    scene.chain.world().mishaps.extend(mishaps);
    gateway.finalize(1).await.unwrap();
    settled(&scene).await;
    until("the session is over", || gateway.escrows().is_empty()).await;
    // Executed once: after the lost answer the row said that it was paid.
    assert_eq!(scene.chain.world().settles, 1);
    assert!(scene.chain.world().mishaps.is_empty());
    assert_eq!(entry(&gateway, 1).ended, Some(Ended::Settled));
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_between_finalization_and_settlement_leaves_it_to_the_next() {
    let mut scene = Scene::new().await;
    scene.settings.settle.first_ms = 60_000;
    let gateway = scene.open().await;
    ask(&gateway).await;
    scene.chain.world().mishaps.push_back(Mishap::Lost);
    gateway.finalize(1).await.unwrap();
    until("it is owed", || entry(&gateway, 1).owed.is_some()).await;
    until("it was tried", || scene.chain.world().mishaps.is_empty()).await;
    within(gateway.stop()).await;
    assert_eq!(scene.chain.world().settles, 0);
    scene.disks = scene.disks.restart();
    // Nobody is there to sign again: what is on disk is enough.
    scene.hosts.iter().for_each(|host| host.manner.away.store(true, Ordering::Relaxed));
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    settled(&scene).await;
    until("it is over", || entry(&gateway, 1).ended == Some(Ended::Settled)).await;
    assert_eq!(scene.chain.world().settles, 1);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_near_its_end_is_replaced_within_the_budget_and_nothing_of_it_stays() {
    let mut scene = Scene::new().await;
    // 40 nonces: below 10 % of them after the 33rd or so.
    let terms = FrozenConfig { max_nonce: 40, ..scene.chain.world().rows[&1].config.clone() };
    scene.chain.world().rows.clear();
    scene.chain.world().template = Some(FrozenConfig { max_nonce: 20_000, ..terms.clone() });
    scene.add(terms);
    scene.settings.rotation.budget = 1_500_000;
    let gateway = scene.open().await;
    let mut asked = 0;
    while scene.chain.world().creates == 0 {
        ask(&gateway).await;
        asked += 1;
        assert!(asked < 60, "never replaced");
    }
    until("the next is open", || gateway.escrows().contains(&2)).await;
    scene.meet();
    settled(&scene).await;
    until("only the next is open", || gateway.escrows() == [2]).await;
    until("its tasks are gone", || gateway.counts().tasks == 3).await;
    let (text, end) = ask(&gateway).await;
    assert!(matches!(end, Some(Event::Finished { .. })), "{text} {end:?}");
    until("its connections are those of three hosts", || gateway.counts().connections <= 6).await;
    assert_eq!((gateway.counts().hosts, gateway.counts().sessions), (3, 1));
    // What is left of the budget, 500,000, pays no further escrow of 1,000,000.
    let new = NewEscrow { model: "m1".into(), amount: 1_000_000, slots: 3, gateway_url: String::new() };
    let budget = Some(("rotation", 1_500_000));
    assert!(matches!(gateway.create(new, budget).await, Err(GatewayError::Journal(_))));
    assert_eq!(scene.chain.world().creates, 1);
    within(gateway.stop()).await;
    assert_eq!(gateway.counts(), nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_that_could_pay_no_request_is_refused_before_it_is_paid() {
    let scene = Scene::new().await;
    scene.chain.world().rows.clear();
    let gateway = scene.gateway();
    let new = |amount| NewEscrow { model: "m1".into(), amount, slots: 3, gateway_url: String::new() };
    // A creation costs 10; 66 tokens and a nonce at a coin each: 77.
    let refused = gateway.create_first(new(76)).await.unwrap_err();
    assert!(
        matches!(refused, GatewayError::TooSmall { amount: 76, create_fee: 10, smallest: 67 }),
        "{refused}"
    );
    assert!(refused.to_string().contains("give at least 77"), "{refused}");
    assert_eq!((scene.chain.world().creates, gateway.0.journal.intent().unwrap()), (0, None));
    let id = gateway.create_first(new(77)).await.unwrap();
    assert_eq!((scene.chain.world().creates, gateway.escrows()), (1, vec![id]));
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_whose_creation_was_not_heard_of_is_taken_up_and_not_paid_twice() {
    let mut scene = Scene::new().await;
    let gateway = scene.gateway();
    scene.chain.world().mishaps.push_back(Mishap::LostAnswer);
    let new = || NewEscrow { model: "m1".into(), amount: 77_000, slots: 3, gateway_url: String::new() };
    assert!(gateway.create(new(), None).await.is_err());
    within(gateway.stop()).await;
    scene.disks = scene.disks.restart();
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    assert_eq!((gateway.escrows(), scene.chain.world().creates), (vec![2], 1));
    // One that never was in a block is no escrow, and the next is paid for.
    scene.chain.world().mishaps.push_back(Mishap::Void);
    assert!(matches!(gateway.create(new(), None).await, Err(GatewayError::Deliver(_))));
    assert_eq!(gateway.create(new(), None).await.unwrap(), 3);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cooldown_is_probed_once_within_the_budget() {
    let mut scene = Scene::new().await;
    // 136 tokens at a coin each: two probes.
    scene.settings.prober.budget = 2 * 136 + 135;
    let gateway = scene.open().await;
    let member = scene.hosts[2].key.address();
    let cooldown = |attempt| ProbeReady { participant: member, cooldown: (4, 1, attempt) };
    let served = || scene.hosts[2].manner.served.load(Ordering::Relaxed);
    scene.chain.world().ready = vec![cooldown(0)];
    until("the first cooldown is probed", || served() == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(scene.chain.world().probes.len(), 1);
    scene.chain.world().ready = vec![cooldown(1)];
    until("the second is probed", || served() == 2).await;
    scene.chain.world().ready = vec![cooldown(2)];
    tokio::time::sleep(Duration::from_millis(300)).await;
    let probes = scene.chain.world().probes.clone();
    assert_eq!((served(), probes.len()), (2, 2));
    assert!(probes.iter().all(|probe| probe.assigned_to == member && probe.max_tokens == 4));
    assert_ne!(probes[0].inference_id, probes[1].inference_id);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_escrow_is_refused_and_an_unknown_one_too() {
    let scene = Scene::new().await;
    let terms = scene.chain.world().rows[&1].config.clone();
    scene.add(FrozenConfig { escrow_id: 5, gateway: Address([9; 20]), ..terms.clone() });
    scene.add(FrozenConfig { escrow_id: 6, model: "m2".into(), ..terms });
    let gateway = scene.gateway();
    assert!(matches!(gateway.open(5).await, Err(GatewayError::NotOurs { escrow_id: 5, .. })));
    assert!(matches!(gateway.open(6).await, Err(GatewayError::Model { escrow_id: 6, .. })));
    assert!(matches!(gateway.open(7).await, Err(GatewayError::Unknown(7))));
    assert_eq!(gateway.counts(), nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_disk_failed_is_opened_again_and_spends_nothing_twice() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    until("its transactions are published", || {
        let nonce = scene.chain.world().height;
        nonce > 3
    })
    .await;
    let disk = scene.disks.sessions.lock().unwrap()[&1].clone();
    disk.fault(1, Fault::Full);
    let (text, _) = ask(&gateway).await;
    assert_eq!(text, "", "nothing was sent that is not on disk");
    // There is room again: the next process of the disk.
    let again = disk.reopen(true);
    scene.disks.sessions.lock().unwrap().insert(1, again);
    within(async {
        while !matches!(ask(&gateway).await.1, Some(Event::Finished { .. })) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    gateway.finalize(1).await.unwrap();
    settled(&scene).await;
    assert_eq!(scene.chain.world().paid[&1].earned.values().sum::<u128>(), 14);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_gateway_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::new().await;
    let terms = scene.chain.world().rows[&1].config.clone();
    let opener =
        CoreOpener::new(folder.path().into(), scene.settings.core.clone(), Arc::clone(&scene.key), 8);
    let now = super::Clock::start().now();
    let opened = opener.open(terms.clone(), now).unwrap();
    let second = opener.open(terms.clone(), now).err().expect("refused").to_string();
    assert!(second.contains("another process"), "{second}");
    drop(opened);
    assert!(opener.open(terms, now).is_ok());
    let journal = FjallDb::open(&folder.path().join("journal"), "gateway journal").unwrap();
    assert!(FjallDb::open(&folder.path().join("journal"), "gateway journal").is_err());
    drop(journal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_panics_fails_its_requests_and_is_opened_again_from_its_disk() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    let before = gateway.view(1).await.unwrap().session.nonce;
    scene.disks.panics.store(true, Ordering::Relaxed);
    let (text, end) = ask(&gateway).await;
    assert!(matches!(end, Some(Event::Failed(_)) | None), "{text} {end:?}");
    // The disk's next process.
    let again = scene.disks.sessions.lock().unwrap()[&1].reopen(true);
    scene.disks.sessions.lock().unwrap().insert(1, again);
    within(async {
        while !matches!(ask(&gateway).await.1, Some(Event::Finished { .. })) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(gateway.view(1).await.unwrap().session.nonce > before);
    within(gateway.stop()).await;
    assert_eq!(gateway.counts(), nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_lost_its_disk_takes_its_diffs_back_from_hosts_before_it_signs_another() {
    let mut scene = Scene::new().await;
    let gateway = scene.open().await;
    for _ in 0..4 {
        assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    }
    let before = gateway.view(1).await.unwrap().session;
    within(gateway.stop()).await;
    scene.disks = super::Disks::default();
    let gateway = scene.gateway();
    gateway.open(1).await.unwrap();
    let after = gateway.view(1).await.unwrap().session;
    // What no host was told is lost with nobody the wiser; a request's diff reached its host.
    assert!(after.nonce >= 4 && after.nonce <= before.nonce, "{} {}", after.nonce, before.nonce);
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    within(gateway.stop()).await;
}
