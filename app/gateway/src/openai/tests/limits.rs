//! Clients that send too much, too slowly, or take nothing.

use super::*;

fn with(limits: Limits) -> ApiConfig {
    ApiConfig { limits, ..ApiConfig::default() }
}

fn short(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test]
async fn a_body_of_the_limit_is_read_and_one_byte_more_is_413() {
    let server = Server::with(hello(), with(Limits { body_bytes: 1000, ..Limits::default() })).await;
    let fill = |len: usize| HI.to_owned() + &" ".repeat(len - HI.len());
    assert_eq!(server.chat(&fill(1000)).await.status, 200);
    let got = server.chat(&fill(1001)).await;
    assert_eq!(got.error(), (413, "request_too_large".into(), None));
    assert_eq!(got.header("connection"), Some("close"));
    // As chunks, nothing is declared.
    let body = fill(1001);
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    assert_eq!(Got::read(&server.raw(chunked.as_bytes()).await).status, 413);
    // One that asks first need not send it.
    let asks = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
         content-length: 1001\r\n\r\n"
    );
    assert_eq!(Got::read(&server.raw(asks.as_bytes()).await).status, 413);
    assert_eq!(server.submissions().len(), 1);
}

#[tokio::test]
async fn three_mebibytes_are_read_by_default_and_a_sender_of_more_gets_to_read_why_not() {
    let server = Server::start(hello()).await;
    let fill = |len: usize| HI.to_owned() + &" ".repeat(len - HI.len());
    assert_eq!(server.chat(&fill(3 << 20)).await.status, 200);
    assert_eq!(server.chat(&fill((3 << 20) + 1)).await.status, 413);
    assert_eq!(server.chat(&fill(8 << 20)).await.status, 413);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let server = Server::with(hello(), with(Limits { body_time: short(100), ..Limits::default() })).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{{"
    );
    let got = Got::read(&server.raw(head.as_bytes()).await);
    assert_eq!(got.error(), (408, "request_timeout".into(), None));
}

#[tokio::test]
async fn a_body_that_breaks_off_reaches_nobody() {
    let server = Server::start(hello()).await;
    let mut socket = server.connect().await;
    let whole = request("POST", CHAT, &[], HI);
    socket.write_all(&whole[..whole.len() - 1]).await.unwrap();
    drop(socket);
    sleep(short(50)).await;
    assert_eq!(server.submissions(), []);
}

#[tokio::test]
async fn a_head_that_does_not_arrive_is_given_up() {
    let server = Server::with(hello(), with(Limits { head_time: short(100), ..Limits::default() })).await;
    for begun in ["", "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"] {
        let got = server.raw(begun.as_bytes()).await;
        assert_eq!(got, b"", "{begun:?}");
    }
    // A byte now and then does not help.
    let mut socket = server.connect().await;
    let drip = async {
        for byte in b"GET /healthz HTTP/1.1\r\nx-slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
            if socket.write_all(&[*byte]).await.is_err() || socket.try_read(&mut [0; 1]).is_ok_and(|n| n == 0)
            {
                return true;
            }
            sleep(short(20)).await;
        }
        false
    };
    assert!(timeout(LONG, drip).await.unwrap());
}

#[tokio::test]
async fn a_head_that_is_too_long_is_431() {
    let server = Server::start(hello()).await;
    let long = "a".repeat(17 << 10);
    for headers in [vec![("x-long", long.as_str())], vec![("x-many", "a"); 65]] {
        assert_eq!(server.send("GET", "/healthz", &headers, "").await.status, 431);
    }
    assert_eq!(server.send("GET", "/healthz", &vec![("x-many", "a"); 60], "").await.status, 200);
}

#[tokio::test]
async fn what_is_no_http_is_refused_and_harms_nobody() {
    let server = Server::start(hello()).await;
    let hello_tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n";
    for bytes in
        [&hello_tls[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0\0\0\0\r\n\r\n"]
    {
        let got = server.raw(bytes).await;
        assert!(got.is_empty() || got.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&got));
    }
    let smuggled = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef"
    );
    assert_eq!(Got::read(&server.raw(smuggled.as_bytes()).await).status, 400);
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_told_to_come_back() {
    let server = Server::with(
        vec![dispatched(), delta("a"), Act::Hang],
        with(Limits { requests: 1, ..Limits::default() }),
    )
    .await;
    let mut socket = server.connect().await;
    socket.write_all(&request("POST", CHAT, &[], HI_STREAM)).await.unwrap();
    socket.read_exact(&mut [0; 64]).await.unwrap();
    let got = server.chat(HI).await;
    assert_eq!(got.error(), (429, "rate_limit_exceeded".into(), None));
    assert_eq!(got.header("retry-after"), Some("1"));
    assert_eq!(server.get("/healthz").await.status, 200);
    drop(socket);
    server.left(1).await;
    server.script(hello());
    assert_eq!(server.chat(HI).await.status, 200);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so_and_closed_until_another_leaves() {
    let server = Server::with(hello(), with(Limits { connections: 1, ..Limits::default() })).await;
    let first = server.connect().await;
    sleep(short(50)).await;
    for _ in 0..3 {
        let got = server.chat(HI).await;
        assert_eq!(got.error(), (503, "too_many_connections".into(), None));
        assert_eq!((got.header("retry-after"), got.header("connection")), (Some("1"), Some("close")));
    }
    assert!(server.submissions().is_empty());
    // Whoever says nothing is closed too.
    let mut silent = server.connect().await;
    timeout(LONG, silent.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    drop(first);
    for _ in 0..100 {
        if server.get("/healthz").await.status == 200 {
            return;
        }
        sleep(short(20)).await;
    }
    panic!("its place is never free");
}

#[tokio::test]
async fn arriving_bodies_share_their_memory() {
    let limits = Limits { body_bytes: 4096, bodies_bytes: 4096, body_time: short(200), ..Limits::default() };
    let server = Server::with(hello(), with(limits)).await;
    let mut hog = server.connect().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4096\r\n\r\n"
    );
    hog.write_all(head.as_bytes()).await.unwrap();
    hog.write_all(&[b' '; 4095]).await.unwrap();
    sleep(short(50)).await;
    // It gets what the other gives back when its time is over.
    assert_eq!(server.chat(HI).await.status, 200);
    let mut out = Vec::new();
    hog.read_to_end(&mut out).await.unwrap();
    assert_eq!(Got::read(&out).status, 408);
}

#[tokio::test]
async fn a_body_keeps_its_memory_until_it_is_answered() {
    let limits = Limits { body_bytes: 2048, bodies_bytes: 2048, ..Limits::default() };
    let server = Server::with(vec![dispatched(), delta("a"), Act::Hang], with(limits)).await;
    let mut socket = server.connect().await;
    let big = HI_STREAM.replace("Hi", &"a".repeat(400)) + &" ".repeat(1500);
    socket.write_all(&request("POST", CHAT, &[], &big)).await.unwrap();
    socket.read_exact(&mut [0; 64]).await.unwrap();
    assert_eq!(server.chat(HI).await.error(), (429, "rate_limit_exceeded".into(), None));
    drop(socket);
    server.left(1).await;
    server.script(hello());
    assert_eq!(server.chat(HI).await.status, 200);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_loses_its_stream() {
    // More than the buffers of both sockets hold.
    let mut acts = vec![dispatched()];
    acts.extend((0..400).map(|_| delta(&"a".repeat(32 << 10))));
    acts.push(Act::Hang);
    let server = Server::with(acts, with(Limits { write_time: short(300), ..Limits::default() })).await;
    let mut socket = server.connect().await;
    socket.write_all(&request("POST", CHAT, &[], HI_STREAM)).await.unwrap();
    server.left(1).await;
    drop(socket);
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let server = Server::start(hello()).await;
    let mut socket = server.connect().await;
    let one = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{HI}",
        HI.len()
    );
    socket.write_all(one.as_bytes()).await.unwrap();
    socket.write_all(one.as_bytes()).await.unwrap();
    socket.write_all(&request("GET", "/healthz", &[], "")).await.unwrap();
    let mut out = String::new();
    timeout(LONG, socket.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out.matches("HTTP/1.1 200 OK").count(), 3, "{out}");
    assert_eq!(out.matches("chatcmpl-7-41").count(), 2);
}

#[tokio::test]
async fn a_stopping_server_lets_streams_end_and_takes_no_new_ones() {
    let acts = vec![dispatched(), delta("a"), Act::Sleep(200), finished(FinishReason::Stop, 1, 1)];
    let mut server = Server::start(acts).await;
    let mut socket = server.connect().await;
    socket.write_all(&request("POST", CHAT, &[], HI_STREAM)).await.unwrap();
    socket.read_exact(&mut [0; 15]).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    let mut rest = String::new();
    timeout(LONG, socket.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert!(rest.contains("[DONE]"));
    timeout(LONG, &mut server.serving).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn a_stopping_server_does_not_wait_for_ever() {
    let config = with(Limits { drain: short(100), ..Limits::default() });
    let mut server = Server::with(vec![dispatched(), delta("a"), Act::Hang], config).await;
    let mut socket = server.connect().await;
    socket.write_all(&request("POST", CHAT, &[], HI_STREAM)).await.unwrap();
    socket.read_exact(&mut [0; 15]).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    timeout(LONG, &mut server.serving).await.unwrap().unwrap();
    server.left(1).await;
}

#[tokio::test]
async fn clients_of_a_stopping_server_are_told_that_their_answer_was_ended() {
    let config = with(Limits { drain: short(100), ..Limits::default() });
    let stopped = || failed(Failure::NoAvailableHost { retry_after_ms: 1_000 });
    let mut server = Server::with(vec![Act::Ended, stopped()], config).await;
    let mut queued = server.connect().await;
    queued.write_all(&request("POST", CHAT, &[], HI)).await.unwrap();
    while server.submissions().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    server.script(vec![dispatched(), delta("a"), Act::Ended, stopped()]);
    let mut stream = server.connect().await;
    stream.write_all(&request("POST", CHAT, &[], HI_STREAM)).await.unwrap();
    stream.read_exact(&mut [0; 15]).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();

    let mut said = (String::new(), String::new());
    timeout(LONG, queued.read_to_string(&mut said.0)).await.unwrap().unwrap();
    timeout(LONG, stream.read_to_string(&mut said.1)).await.unwrap().unwrap();
    assert!(said.0.starts_with("HTTP/1.1 503 ") && said.0.contains("retry-after: 1"), "{}", said.0);
    assert!(said.1.contains("\"error\"") && !said.1.contains("[DONE]"), "{}", said.1);
    timeout(LONG, &mut server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn four_hundred_streams_run_at_a_time() {
    let acts =
        vec![dispatched(), delta("a"), Act::Sleep(500), delta("b"), finished(FinishReason::Stop, 1, 2)];
    let server = Arc::new(Server::start(acts).await);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let server = Arc::clone(&server);
        clients.spawn(async move { server.chat(HI_STREAM).await });
    }
    while let Some(got) = clients.join_next().await {
        let got = got.unwrap();
        assert!(got.status == 200 && got.text().ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn limits_that_let_nothing_through_are_refused() {
    let fake = Fake {
        script: Mutex::default(),
        submissions: Mutex::default(),
        left: AtomicUsize::new(0),
        ended: Semaphore::new(0),
        ready: Mutex::new(Readiness { active_escrow: true, self_suspect: false, sign_of_life: true }),
    };
    let fake = Arc::new(fake);
    let make = |limits| {
        let seams = Seams {
            sessions: Arc::new(Arc::clone(&fake)),
            budgets: Arc::new(MemBudgets::default()),
            replies: Arc::new(MemReplies::default()),
            metrics: Arc::new(String::new),
        };
        Api::new(with(limits), seams).err()
    };
    assert_eq!(make(Limits::default()), None);
    for (limits, name) in [
        (Limits { body_bytes: 0, ..Limits::default() }, "body_bytes"),
        (Limits { bodies_bytes: 1, ..Limits::default() }, "bodies_bytes"),
        (Limits { head: (0, 1), ..Limits::default() }, "head"),
        (Limits { connections: 0, ..Limits::default() }, "connections"),
        (Limits { requests: 0, ..Limits::default() }, "requests"),
        (Limits { keep_alive: Duration::ZERO, ..Limits::default() }, "keep_alive"),
    ] {
        assert_eq!(make(limits), Some(ApiConfigError::Limit(name)));
    }
}
