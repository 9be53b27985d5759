//! Idempotency keys over sockets.

use super::*;

const KEY: [(&str, &str); 1] = [("Idempotency-Key", "order-1")];

fn another_nonce() -> Vec<Act> {
    let other = Act::Send(Event::Dispatched(Dispatch { nonce: 99, ..DISPATCH }));
    vec![other, delta("Other"), finished(FinishReason::Stop, 1, 1)]
}

#[tokio::test]
async fn the_same_request_gets_the_same_bytes_and_runs_once() {
    for body in [HI, HI_STREAM] {
        let server = Server::start(hello()).await;
        let first = server.send("POST", CHAT, &KEY, body).await;
        server.script(another_nonce());
        let again = server.send("POST", CHAT, &KEY, body).await;
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(String::from_utf8_lossy(&again.body), String::from_utf8_lossy(&first.body));
        for header in ["content-type", "x-holdfast-escrow", "x-holdfast-nonce", "x-holdfast-executor"] {
            assert_eq!(again.header(header), first.header(header), "{header}");
        }
        assert_eq!(
            (first.header("idempotent-replayed"), again.header("idempotent-replayed")),
            (None, Some("true"))
        );
        assert_eq!(server.submissions().len(), 1);
        let free = server.chat(body).await;
        assert!(free.text().contains("Other"), "without the key it runs");
    }
}

#[tokio::test]
async fn a_replayed_stream_has_no_comments() {
    let limits = Limits { keep_alive: Duration::from_millis(20), ..Limits::default() };
    let acts = vec![dispatched(), delta("a"), Act::Sleep(100), finished(FinishReason::Stop, 1, 1)];
    let server = Server::with(acts, ApiConfig { limits, ..ApiConfig::default() }).await;
    let first = server.send("POST", CHAT, &KEY, HI_STREAM).await;
    let again = server.send("POST", CHAT, &KEY, HI_STREAM).await;
    assert!(first.text().contains(": wait"));
    assert_eq!(again.text(), first.text().replace(": wait\n\n", ""));
}

#[tokio::test]
async fn another_request_under_the_key_is_a_conflict_that_clients_do_not_repeat() {
    let server = Server::start(hello()).await;
    server.send("POST", CHAT, &KEY, HI).await;
    let got = server.send("POST", CHAT, &KEY, HI_STREAM).await;
    assert_eq!(got.error(), (409, "idempotency_conflict".into(), None));
    assert_eq!(got.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn a_running_request_is_in_progress_until_its_client_leaves() {
    let server = Server::start(vec![dispatched(), delta("a"), Act::Hang]).await;
    let mut socket = server.connect().await;
    socket.write_all(&request("POST", CHAT, &KEY, HI_STREAM)).await.unwrap();
    socket.read_exact(&mut [0; 64]).await.unwrap();
    let got = server.send("POST", CHAT, &KEY, HI_STREAM).await;
    assert_eq!(got.error(), (409, "idempotency_in_progress".into(), None));
    assert_eq!(got.header("retry-after"), Some("1"));
    assert_eq!(server.send("POST", CHAT, &KEY, HI).await.error().1, "idempotency_conflict");
    drop(socket);
    server.left(1).await;
    server.script(hello());
    assert_eq!(server.send("POST", CHAT, &KEY, HI_STREAM).await.status, 200);
}

#[tokio::test]
async fn what_failed_is_not_kept() {
    let host = Failure::Host(FailureKind::WorkerDeath);
    let server = Server::start(vec![dispatched(), delta("a"), failed(host)]).await;
    assert!(server.send("POST", CHAT, &KEY, HI_STREAM).await.text().contains("worker-death"));
    assert_eq!(server.send("POST", CHAT, &KEY, HI).await.error().0, 502);
    assert_eq!(server.send("POST", CHAT, &KEY, "{").await.error().0, 400);
    server.script(hello());
    assert_eq!(server.send("POST", CHAT, &KEY, HI).await.status, 200);
    assert_eq!(server.replies.marks().unwrap().len(), 1);
}

#[tokio::test]
async fn a_reply_is_there_after_a_restart() {
    let server = Server::start(hello()).await;
    let first = server.send("POST", CHAT, &KEY, HI_STREAM).await;
    let replies = Arc::clone(&server.replies);
    drop(server);
    let server = Server::over(another_nonce(), ApiConfig::default(), replies).await;
    assert_eq!(server.send("POST", CHAT, &KEY, HI_STREAM).await.text(), first.text());
    assert_eq!(server.submissions(), []);
}

#[tokio::test]
async fn each_api_key_has_keys_of_its_own() {
    let keys = vec![KeyConfig::new("a", "sk-a"), KeyConfig::new("b", "sk-b")];
    let server = Server::with(hello(), ApiConfig { keys, ..ApiConfig::default() }).await;
    for key in ["Bearer sk-a", "Bearer sk-b"] {
        let headers = [KEY[0], ("authorization", key)];
        let got = server.send("POST", CHAT, &headers, HI).await;
        assert_eq!(got.header("idempotent-replayed"), None);
    }
    assert_eq!(server.submissions().len(), 2);
}

#[tokio::test]
async fn the_key_itself_is_checked() {
    let server = Server::start(hello()).await;
    let got = server.send("POST", CHAT, &[("idempotency-key", "a b")], HI).await;
    assert_eq!(got.error(), (400, "invalid_request_error".into(), Some("Idempotency-Key".into())));
}
