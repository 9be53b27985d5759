//! The service over a socket.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_host::client;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::gateway_client::GatewayClient;
use holdfast_types::{Address, Hrp};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};

use super::{OperatorToken, Operators, TokenError, serve};
use crate::driver::Gateway;
use crate::driver::tests::{Scene, ask};
use crate::openai::{Event, Failure, Sessions};

const TOKEN: &str = "a-token-of-24-characters";

struct Service {
    client: GatewayClient<Channel>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

async fn service(gateway: &Gateway, token: Option<&str>) -> Service {
    let token = token.map(|text| OperatorToken::new(text).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let operators = Operators::new(gateway.clone(), token);
    let serving = tokio::spawn(async move {
        serve(operators, listener, async { drop(stopped.await) }).await.unwrap();
    });
    let client = GatewayClient::connect(format!("http://{address}")).await.unwrap();
    Service { client, address, stop: Some(stop), serving }
}

/// The same words for each verb.
macro_rules! verb {
    ($message:ident, $scene:expr, $authorization:expr) => {{
        let mut request = Request::new(pb::$message {
            escrow_id: 1,
            participant: $scene.hosts[0].key.address().to_bech32(&Hrp::default()),
            operator: "ops".into(),
            reason: "a look".into(),
        });
        let authorization: Option<&str> = $authorization;
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value.parse().unwrap());
        }
        request
    }};
}

#[test]
fn a_token_is_long_and_printable() {
    assert!(OperatorToken::new(TOKEN).is_ok());
    for bad in ["", "short", "fifteen-letters", "a token with spaces", "ein-schlüssel-mit-ü"] {
        assert_eq!(OperatorToken::new(bad).err(), Some(TokenError), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_needs_the_token_and_leaves_a_row_before_it_takes_effect() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, Some(TOKEN)).await;
    let audits = || gateway.0.journal.audits(0, 10).unwrap();
    for authorization in
        [None, Some("Bearer another-token-of-24-chars"), Some(TOKEN), Some("Basic x"), Some("Bearer")]
    {
        let refused =
            service.client.force_teach(verb!(ForceTeachRequest, scene, authorization)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{authorization:?}");
        // One that is sent and wrong is told apart from none.
        let wrong = authorization.is_some_and(|text| text.starts_with("Bearer "));
        assert_eq!(refused.message().contains("is not this gateway's"), wrong, "{refused}");
    }
    assert_eq!(audits().len(), 0);
    // Nobody is flagged: the verb does nothing, and is on record.
    let bearer = format!("Bearer {TOKEN}");
    let refused = service.client.release(verb!(ReleaseRequest, scene, Some(&bearer))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let rows = audits();
    assert_eq!((rows.len(), rows[0].0, rows[0].1.verb.as_str()), (1, 1, "release"));
    assert_eq!((rows[0].1.operator.as_str(), rows[0].1.reason.as_str()), ("ops", "a look"));
    for (operator, reason) in [("", "x"), ("x", ""), ("x", &*"r".repeat(513)), (&*"o".repeat(129), "x")] {
        let mut request = verb!(GiveUpRequest, scene, Some(&bearer));
        request.get_mut().operator = operator.into();
        request.get_mut().reason = reason.into();
        assert_eq!(service.client.give_up(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let mut unknown = verb!(GiveUpRequest, scene, Some(&bearer));
    unknown.get_mut().escrow_id = 9;
    assert_eq!(service.client.give_up(unknown).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(audits().len(), 1);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_no_verb_is_taken() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, None).await;
    let refused =
        service.client.force_teach(verb!(ForceTeachRequest, scene, Some("Bearer "))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut finalize =
        Request::new(pb::FinalizeRequest { escrow_id: 1, operator: "o".into(), reason: "r".into() });
    finalize.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    assert_eq!(service.client.finalize(finalize).await.unwrap_err().code(), Code::PermissionDenied);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_counts_only_with_its_hosts_signature() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, None).await;
    let (host, other) = (&scene.hosts[0].key, &scene.hosts[1].key);
    let request = |boot_id: &str| pb::AnnounceRequest {
        escrow_id: 1,
        participant: host.address().to_bech32(&Hrp::default()),
        boot_id: boot_id.into(),
    };
    let now = gateway.0.clock.now().unix_ms;
    let sign = |key, boot_id, at| client::signed(key, "driver-1", 1, "Announce", request(boot_id), at);
    let code = |status: tonic::Status| status.code();
    assert!(service.client.announce(sign(host, "b-1", now)).await.is_ok());
    let forged = service.client.announce(sign(other, "b-1", now)).await.map_err(code);
    assert_eq!(forged.err(), Some(Code::PermissionDenied));
    let late = service.client.announce(sign(host, "b-1", now - 120_000)).await.map_err(code);
    assert_eq!(late.err(), Some(Code::Unauthenticated));
    let bare = service.client.announce(Request::new(request("b-1"))).await.map_err(code);
    assert_eq!(bare.err(), Some(Code::Unauthenticated));
    let empty = service.client.announce(sign(host, "", now)).await.map_err(code);
    assert_eq!(empty.err(), Some(Code::InvalidArgument));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_watched_from_any_number_on_and_a_watcher_that_leaves_leaves_nothing() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, None).await;
    let event = |n: u64| {
        let flag = pb::DivergenceFlag { escrow_id: 1, generation: n, ..Default::default() };
        gateway.0.journal.event("stage", n, flag, (1, Address([1; 20])), true).unwrap()
    };
    (1..=150).for_each(|n| assert_eq!(event(n), n));
    let request = pb::WatchDivergenceRequest { from_seq: 20 };
    let mut rows = service.client.watch_divergence(request).await.unwrap().into_inner();
    for seq in 20..=150 {
        assert_eq!(rows.message().await.unwrap().unwrap().seq, seq);
    }
    event(151);
    let row = tokio::time::timeout(Duration::from_secs(10), rows.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((row.seq, row.flag.unwrap().generation), (151, 151));
    let with = gateway.counts().tasks;
    drop(rows);
    for _ in 0..500 {
        if gateway.counts().tasks < with {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(gateway.counts().tasks, with - 1);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_flags_are_shown_and_pages_are_checked() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, None).await;
    let all = service.client.escrows(pb::EscrowsRequest {}).await.unwrap().into_inner().escrows;
    assert_eq!((all.len(), all[0].escrow_id, all[0].phase.as_str()), (1, 1, "active"));
    assert_eq!((all[0].amount.as_str(), all[0].participants.len()), ("1000000", 3));
    let one = service.client.escrow(pb::EscrowRequest { escrow_id: 1 }).await.unwrap().into_inner();
    assert_eq!(one.escrow.unwrap().model, "m1");
    let none = service.client.escrow(pb::EscrowRequest { escrow_id: 2 }).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    let unknown = pb::DivergencesRequest { escrow_id: 9, ..Default::default() };
    assert_eq!(service.client.divergences(unknown).await.unwrap_err().code(), Code::NotFound);
    let known = pb::DivergencesRequest { escrow_id: 1, ..Default::default() };
    assert_eq!(service.client.divergences(known).await.unwrap().into_inner().flags.len(), 0);
    let flags = service.client.divergences(pb::DivergencesRequest::default()).await.unwrap().into_inner();
    assert_eq!(flags, pb::DivergencesResponse::default());
    let participant = scene.hosts[0].key.address().to_bech32(&Hrp::default());
    let flag = service.client.divergence(pb::DivergenceRequest { escrow_id: 1, participant }).await;
    assert_eq!(flag.unwrap_err().code(), Code::NotFound);
    for bad in [
        pb::DivergencesRequest { page_limit: 101, ..Default::default() },
        pb::DivergencesRequest { page_key: vec![1], ..Default::default() },
        pb::DivergencesRequest { phase: 77, ..Default::default() },
    ] {
        assert_eq!(service.client.divergences(bad).await.unwrap_err().code(), Code::InvalidArgument);
    }
    gateway.stop().await;
    drop(service.stop.take());
    tokio::time::timeout(Duration::from_secs(5), service.serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_says_what_follows_who_is_missing_and_what_its_requests_meet() {
    let mut scene = Scene::new().await;
    scene.settings.core.drain_ms = 100;
    let gateway = scene.open().await;
    let mut service = service(&gateway, Some(TOKEN)).await;
    assert!(matches!(ask(&gateway).await.1, Some(Event::Finished { .. })));
    assert!(gateway.models()[0].open);
    let lost = &scene.hosts[1];
    lost.manner.away.store(true, Ordering::Relaxed);
    // Its listener is gone too.
    let name = lost.key.address().to_bech32(&Hrp::default());
    scene.chain.world().urls.insert(lost.key.address(), "http://127.0.0.1:9".into());
    let urls = scene.chain.world().urls.clone();
    gateway.0.hosts.set_urls(urls);
    let finalize = || {
        let body = pb::FinalizeRequest { escrow_id: 1, operator: "ops".into(), reason: "over".into() };
        let mut request = Request::new(body);
        request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
        request
    };
    let first = service.client.finalize(finalize()).await.unwrap().into_inner();
    assert!(first.next.contains("3 of 3 slots sign"), "{}", first.next);
    let mut shown = pb::EscrowSession::default();
    for _ in 0..1_000 {
        let asked = service.client.escrow(pb::EscrowRequest { escrow_id: 1 }).await.unwrap().into_inner();
        shown = asked.escrow.unwrap();
        if shown.signatures_have == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((shown.phase.as_str(), shown.signatures_have, shown.signatures_need), ("frozen", 2, 3));
    assert_eq!(shown.expires_at, 1_000_000);
    let row = shown.participants.iter().find(|row| row.address == name).unwrap();
    assert_eq!((row.reachable, row.signed, row.url.as_str()), (Some(false), false, "http://127.0.0.1:9"));
    assert!(row.unreachable_cause.contains("refused"), "{row:?}");
    assert!(shown.participants.iter().filter(|row| row.signed && row.reachable == Some(true)).count() == 2);
    // Asked again, it says what it waits for.
    let again = service.client.finalize(finalize()).await.unwrap().into_inner();
    assert!(again.next.contains("2 of 3 signatures are there"), "{}", again.next);
    assert!(again.next.contains(&format!("missing: {name} (not reached)")), "{}", again.next);
    assert!(again.next.contains("from block 1000000 on"), "{}", again.next);
    // Requests meet what is so: it is being ended, not used up, and the model is not offered.
    assert!(matches!(ask(&gateway).await.1, Some(Event::Failed(Failure::EscrowEnding { .. }))));
    assert!(!gateway.models()[0].open);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_about_an_escrow_that_is_over_says_so() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let mut service = service(&gateway, Some(TOKEN)).await;
    gateway.finalize(1).await.unwrap();
    for _ in 0..1_000 {
        if gateway.escrows().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let bearer = format!("Bearer {TOKEN}");
    let refused = service.client.give_up(verb!(GiveUpRequest, scene, Some(&bearer))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("is over (settled)"), "{refused}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_names_the_service() {
    let scene = Scene::new().await;
    let gateway = scene.gateway();
    let service = service(&gateway, None).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", service.address));
    let mut reflection = ServerReflectionClient::new(channel.unwrap().connect().await.unwrap());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    let named = |service: &ServiceResponse| service.name == "holdfast.gateway.v1.Gateway";
    assert!(list.service.iter().any(named), "{list:?}");
}
