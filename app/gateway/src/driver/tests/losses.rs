//! Full disks, lost journals, and escrows that come to their end between two looks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_escrow::session::FrozenConfig;
use holdfast_host::store::Fault;

use super::{Disks, Scene, ask, until, within};
use crate::chain::{EscrowStatus, NewEscrow};
use crate::driver::GatewayError;
use crate::openai::{Event, Failure};

fn first() -> NewEscrow {
    NewEscrow { model: "m1".into(), amount: 1_000_000, slots: 3, gateway_url: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_lost_its_journal_pays_no_second_escrow_while_its_first_is_open() {
    let mut scene = Scene::new().await;
    let gateway = scene.open().await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    within(gateway.stop()).await;
    scene.disks = Disks::default();
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    let refused = gateway.create_first(first()).await;
    assert!(matches!(&refused, Err(GatewayError::Unclaimed { ids, .. }) if ids == &[1]), "{refused:?}");
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("escrow 1 of m1") && text.contains("--escrow"), "{text}");
    assert_eq!(scene.chain.world().creates, 0);
    gateway.open(1).await.unwrap();
    assert!(gateway.serves("m1"));
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_that_cannot_be_opened_is_not_shown_as_over_and_no_other_is_paid_in_its_place() {
    let mut scene = Scene::new().await;
    within(scene.open().await.stop()).await;
    scene.disks = scene.disks.restart();
    scene.disks.refuses.store(true, Ordering::Relaxed);
    let gateway = scene.gateway();
    gateway.resume().await.unwrap();
    assert_eq!((gateway.escrows(), gateway.unopened("m1")), (vec![], vec![1]));
    let refused = gateway.create_first(first()).await;
    assert!(matches!(&refused, Err(GatewayError::Unopened { ids, .. }) if ids == &[1]), "{refused:?}");
    assert_eq!(gateway.0.journal.escrow(1).unwrap().unwrap().shown(1).phase, "not_opened");
    assert_eq!(scene.chain.world().creates, 0);
    scene.disks.refuses.store(false, Ordering::Relaxed);
    gateway.open(1).await.unwrap();
    assert!(gateway.unopened("m1").is_empty());
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_of_a_full_disk_and_of_nothing_else_until_there_is_room() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    scene.disks.sessions.lock().unwrap()[&1].fault(1, Fault::Full);
    for _ in 0..5 {
        let (text, end) = ask(&gateway).await;
        assert!(matches!(end, Some(Event::Failed(Failure::Storage { .. }))), "{text} {end:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again = scene.disks.sessions.lock().unwrap()[&1].reopen(true);
    scene.disks.sessions.lock().unwrap().insert(1, again);
    within(async {
        while !matches!(ask(&gateway).await.1, Some(Event::Finished { .. })) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_next_escrow_is_opened_in_place_of_one_that_is_used_up() {
    let mut scene = Scene::new().await;
    let terms = FrozenConfig { max_nonce: 40, ..scene.chain.world().rows[&1].config.clone() };
    scene.chain.world().rows.clear();
    scene.chain.world().template = Some(FrozenConfig { max_nonce: 20_000, ..terms.clone() });
    scene.add(terms);
    scene.settings.rotation.budget = 1_500_000;
    // Long enough to use up all nonces between two looks.
    scene.settings.poll_ms = 1_500;
    let gateway = scene.open().await;
    let asks = async {
        for n in 0..60 {
            let (text, end) = ask(&gateway).await;
            assert!(matches!(end, Some(Event::Finished { .. })), "{n}: {text} {end:?}");
        }
    };
    let meets = async {
        loop {
            scene.meet();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = asks => {}
        () = meets => {}
    }
    assert_eq!(scene.chain.world().creates, 1);
    within(gateway.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_an_escrow_that_can_pay_no_request_is_settled_without_a_budget_too() {
    let scene = Scene::new().await;
    let terms =
        FrozenConfig { amount: 2_000, create_fee: 1_750, ..scene.chain.world().rows[&1].config.clone() };
    scene.chain.world().rows.clear();
    scene.add(terms);
    let gateway = scene.open().await;
    let (mut served, mut refused) = (0, 0);
    while gateway.serves("m1") {
        match ask(&gateway).await.1 {
            Some(Event::Finished { .. }) => served += 1,
            Some(Event::Failed(Failure::InsufficientBalance { .. })) => {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // Between two looks.
            Some(Event::Failed(Failure::EscrowExhausted { .. })) => {}
            end => panic!("{end:?}"),
        }
        assert!(served < 60 && refused < 1_000, "{served} {refused} {:?}", gateway.standings(9));
    }
    assert!(served > 3 && refused >= 4, "{served} {refused}");
    until("the escrow is paid", || scene.chain.world().rows[&1].status == EscrowStatus::Settled).await;
    assert_eq!(scene.chain.world().creates, 0);
    within(gateway.stop()).await;
}
