use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use holdfast_proto::Message;
use holdfast_proto::cosmos::base::v1beta1::Coin;
use http::HeaderMap;
use hyper::body::{Body, Frame};
use prost_types::FileDescriptorSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Health;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1::server_reflection_client::ServerReflectionClient, v1alpha};

use super::wire::{Outgoing, PREFIX_BYTES, Room, frame, receive};
use super::*;

const ECHO: &str = "/toy.v1.Toy/Echo";
const PANIC: &str = "/toy.v1.Toy/Panic";
const SLOW: &str = "/toy.v1.Toy/Slow";
const SLOW_PANIC: &str = "/toy.v1.Toy/SlowPanic";
const LATEST: i64 = 7;

/// Its chain has 7 blocks.
#[derive(Default)]
struct Toy {
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl GrpcBackend for Toy {
    fn call(&self, path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError> {
        if height > LATEST {
            return Err(QueryError::new(
                QueryKind::OutOfRange,
                format!("height {height}: the latest is {LATEST}"),
            ));
        }
        let height = if height == 0 { LATEST } else { height };
        match path {
            ECHO => Ok(GrpcReply { value: request.to_vec(), height }),
            PANIC | SLOW_PANIC => panic!("secret {}", request.len()),
            SLOW => {
                let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
                self.most_running.fetch_max(running, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(200));
                self.running.fetch_sub(1, Ordering::SeqCst);
                Ok(GrpcReply { value: request.to_vec(), height })
            }
            _ => Err(QueryError::new(QueryKind::Unimplemented, format!("{path}: no such method"))),
        }
    }

    fn is_blocking(&self, path: &str, _height: i64) -> bool {
        path == SLOW || path == SLOW_PANIC
    }
}

struct Running {
    addr: String,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), GrpcServeError>>,
}

impl Running {
    async fn at(addr: &str, backend: Arc<dyn GrpcBackend>, limits: GrpcLimits) -> Self {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve_with(listener, backend, limits, async {
            let _ = stopped.await;
        }));
        Self { addr, stop, served }
    }

    async fn toy() -> Self {
        Self::at("127.0.0.1:0", Arc::new(Toy::default()), GrpcLimits::default()).await
    }

    async fn channel(&self) -> GrpcChannel {
        GrpcChannel::connect(&self.addr).await.unwrap()
    }

    /// The client most of the world's Rust programs use.
    async fn tonic(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(6), self.served).await.unwrap().unwrap().unwrap();
    }
}

fn coin() -> Coin {
    Coin { denom: "uhold".into(), amount: "12".into() }
}

/// A call by tonic's client with a height header of any text; gives the coin and the height that came back.
async fn tonic_echo(channel: Channel, height: &[&str]) -> Result<(Coin, String), Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(coin());
    for text in height {
        request.metadata_mut().append(HEIGHT_HEADER, text.parse().unwrap());
    }
    let codec = tonic::codec::ProstCodec::<Coin, Coin>::default();
    let response = grpc.unary(request, ECHO.parse().unwrap(), codec).await?;
    let height = response.metadata().get(HEIGHT_HEADER).unwrap().to_str().unwrap().to_owned();
    Ok((response.into_inner(), height))
}

#[tokio::test]
async fn a_call_is_answered_with_the_height_it_was_read_from() {
    let server = Running::toy().await;
    let channel = server.channel().await;
    assert_eq!(channel.unary::<Coin, Coin>(ECHO, &coin(), None).await.unwrap(), (coin(), LATEST));
    assert_eq!(channel.unary::<Coin, Coin>(ECHO, &coin(), Some(0)).await.unwrap(), (coin(), LATEST));
    assert_eq!(channel.unary::<Coin, Coin>(ECHO, &coin(), Some(3)).await.unwrap(), (coin(), 3));
    assert_eq!(channel.unary_raw(ECHO, b"", Some(2)).await.unwrap(), (Bytes::new(), 2));
    let status = channel.unary_raw(ECHO, b"", Some(8)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "height 8: the latest is 7"));
    server.stop().await;
}

#[tokio::test]
async fn tonics_own_client_is_answered_alike() {
    let server = Running::toy().await;
    let channel = server.tonic().await;
    assert_eq!(tonic_echo(channel.clone(), &[]).await.unwrap(), (coin(), "7".to_owned()));
    assert_eq!(tonic_echo(channel, &["3"]).await.unwrap(), (coin(), "3".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn a_bad_height_header_is_named_and_refused() {
    let server = Running::toy().await;
    let channel = server.tonic().await;
    for bad in ["-1", "", "seven", "+1", "1.0", "0x7", "1 2", "9223372036854775808"] {
        let status = tonic_echo(channel.clone(), &[bad]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{bad:?}");
        assert!(status.message().starts_with("x-cosmos-block-height: must be a decimal height"), "{status}");
    }
    let status = tonic_echo(channel.clone(), &["3", "4"]).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "x-cosmos-block-height: given more than once")
    );
    let status = server.channel().await.unary_raw(ECHO, b"", Some(-5)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    // The largest height is well formed; that it does not exist is the backend's word.
    let status = tonic_echo(channel, &["9223372036854775807"]).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    server.stop().await;
}

#[test]
fn a_long_message_is_cut_to_what_a_header_carries() {
    let status = status(QueryError::new(QueryKind::InvalidArgument, "ä".repeat(100_000)));
    assert_eq!(status.message().chars().count(), 4_097);
    assert!(status.message().ends_with("ä…"));
}

#[tokio::test]
async fn an_unknown_path_is_unimplemented() {
    let server = Running::toy().await;
    let channel = server.channel().await;
    for path in [
        "/toy.v1.Toy/Missing",
        "/",
        "/a/b/c",
        "/grpc.reflection.v1.ServerReflection/Other",
        "/grpc.channelz.v1.X/Y",
    ] {
        assert_eq!(
            channel.unary_raw(path, b"", None).await.unwrap_err().code(),
            Code::Unimplemented,
            "{path}"
        );
    }
    assert_eq!(channel.unary_raw("no slash", b"", None).await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;
}

#[test]
fn each_kind_of_query_error_has_its_own_code() {
    let codes = [
        (QueryKind::InvalidArgument, 3),
        (QueryKind::NotFound, 5),
        (QueryKind::FailedPrecondition, 9),
        (QueryKind::OutOfRange, 11),
        (QueryKind::Unimplemented, 12),
        (QueryKind::Internal, 13),
        (QueryKind::Unavailable, 14),
    ];
    for (kind, code) in codes {
        assert_eq!(i32::from(status(QueryError::new(kind, "x")).code()), code);
    }
}

#[tokio::test]
async fn a_panic_becomes_internal_and_the_server_lives() {
    let server = Running::toy().await;
    let channel = server.channel().await;
    for path in [PANIC, SLOW_PANIC, PANIC, SLOW_PANIC, SLOW_PANIC] {
        let status = channel.unary_raw(path, b"abc", None).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("secret"), "a panic's text stays inside: {status}");
    }
    // On the same connection, and with the blocking permits given back.
    assert_eq!(channel.unary_raw(ECHO, b"abc", None).await.unwrap().0, "abc");
    assert_eq!(channel.unary_raw(SLOW, b"abc", None).await.unwrap().0, "abc");
    server.stop().await;
}

#[tokio::test]
async fn a_request_above_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let limits =
        GrpcLimits { max_request_bytes: 300_000, max_arriving_bytes: 300_000, ..GrpcLimits::default() };
    let server = Running::at("127.0.0.1:0", Arc::new(Toy::default()), limits).await;
    let channel = server.channel().await;
    let body: Vec<u8> = (0..300_001u32).map(|i| i.to_le_bytes()[0]).collect();
    assert_eq!(channel.unary_raw(ECHO, &body[..300_000], None).await.unwrap().0, &body[..300_000]);
    let status = channel.unary_raw(ECHO, &body, None).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert_eq!(status.message(), "a message of 300001 bytes: at most 300000");
    // Eight of the largest at once pass through the room for one, and leave it free.
    let calls = (0..8).map(|_| (channel.clone(), body[..300_000].to_vec()));
    let calls: Vec<_> = calls
        .map(|(c, b)| tokio::spawn(async move { c.unary_raw(ECHO, &b, None).await.unwrap().0.len() }))
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), 300_000);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_default_limit_is_ten_mebibytes() {
    let server = Running::toy().await;
    let channel = server.channel().await;
    let body = vec![1; (10 << 20) + 1];
    assert_eq!(channel.unary_raw(ECHO, &body[1..], None).await.unwrap().0.len(), 10 << 20);
    assert_eq!(channel.unary_raw(ECHO, &body, None).await.unwrap_err().code(), Code::ResourceExhausted);
    server.stop().await;
}

/// A body in given pieces.
struct Pieces(std::vec::IntoIter<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }
}

async fn received(bytes: &[u8], piece: usize) -> Result<Option<Bytes>, Status> {
    let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
    let room = Room::new(1);
    Ok(receive(Pieces(pieces.into_iter()), 16, Some(&room)).await?.message)
}

#[tokio::test]
async fn a_message_is_read_whole_however_it_is_cut() {
    for piece in 1..=12 {
        assert_eq!(
            received(b"\0\0\0\0\x07message", piece).await.unwrap().unwrap(),
            "message",
            "pieces of {piece}"
        );
        assert_eq!(received(b"\0\0\0\0\0", piece).await.unwrap().unwrap(), "", "pieces of {piece}");
    }
    assert!(received(b"", 1).await.unwrap().is_none());
    assert_eq!(frame(7, |out| out.extend_from_slice(b"message")).unwrap(), &b"\0\0\0\0\x07message"[..]);
    assert_eq!(PREFIX_BYTES, 5);
}

#[tokio::test]
async fn broken_framing_is_refused_however_it_is_cut() {
    let bad: [(&[u8], Code, &str); 7] = [
        (b"\0\0\0\0\x07messag", Code::InvalidArgument, "ended inside a message"),
        (b"\0\0\0", Code::InvalidArgument, "ended inside a message"),
        (b"\0\0\0\0\x07messages", Code::InvalidArgument, "takes one message"),
        (b"\0\0\0\0\x01a\0\0\0\0\x01b", Code::InvalidArgument, "takes one message"),
        (b"\x01\0\0\0\x01a", Code::Unimplemented, "grpc-encoding: identity"),
        (b"\x02\0\0\0\x01a", Code::InvalidArgument, "flag 2"),
        (b"\0\xff\xff\xff\xffa", Code::ResourceExhausted, "at most 16"),
    ];
    for (bytes, code, text) in bad {
        for piece in 1..=bytes.len() {
            let status = received(bytes, piece).await.unwrap_err();
            assert_eq!(status.code(), code, "{bytes:?} in pieces of {piece}");
            assert!(status.message().contains(text), "{status}");
        }
    }
}

/// A request as no gRPC client makes it; gives status and headers.
async fn raw(addr: &str, method: &str, kind: Option<&str>, body: Outgoing) -> (u16, HeaderMap) {
    let socket = tokio::net::TcpStream::connect(addr).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(socket);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(format!("http://{addr}{ECHO}"));
    if let Some(kind) = kind {
        request = request.header("content-type", kind);
    }
    let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
    (response.status().as_u16(), response.headers().clone())
}

#[tokio::test]
async fn what_is_no_grpc_call_gets_an_http_status() {
    let server = Running::toy().await;
    let message = || Outgoing::Message(frame(0, |_| ()).unwrap());
    assert_eq!(raw(&server.addr, "GET", Some("application/grpc"), Outgoing::Empty).await.0, 405);
    for kind in [None, Some("application/json"), Some("application/grpc-web"), Some("application/grpc+json")]
    {
        assert_eq!(raw(&server.addr, "POST", kind, message()).await.0, 415, "{kind:?}");
    }
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc; x=y"] {
        let (status, headers) = raw(&server.addr, "POST", Some(kind), message()).await;
        assert_eq!((status, headers[HEIGHT_HEADER].as_bytes()), (200, &b"7"[..]), "{kind}");
    }
    let (_, headers) = raw(&server.addr, "POST", Some("application/grpc"), Outgoing::Empty).await;
    assert_eq!(headers["grpc-status"], "3", "no message at all");
    server.stop().await;
}

#[tokio::test]
async fn blocking_calls_are_bounded_and_hold_up_nobody() {
    let toy = Arc::new(Toy::default());
    let limits = GrpcLimits { max_blocking: 2, max_waiting: 3, ..GrpcLimits::default() };
    let server = Running::at("127.0.0.1:0", Arc::clone(&toy) as Arc<dyn GrpcBackend>, limits).await;
    let channel = server.channel().await;
    let calls: Vec<_> = (0..9)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move {
                channel.unary_raw(SLOW, b"", None).await.map_or_else(|s| s.code(), |_| Code::Ok)
            })
        })
        .collect();
    while toy.running.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    channel.unary_raw(ECHO, b"", None).await.unwrap();
    assert_eq!(toy.running.load(Ordering::SeqCst), 2, "the quick call did not wait for the slow ones");
    let mut codes = Vec::new();
    for call in calls {
        codes.push(call.await.unwrap());
    }
    codes.sort_by_key(|c| i32::from(*c));
    assert_eq!(codes, [[Code::Ok; 5].as_slice(), &[Code::ResourceExhausted; 4]].concat());
    assert_eq!(toy.most_running.load(Ordering::SeqCst), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_stop_lets_calls_under_way_end_and_takes_no_new_ones() {
    let toy = Arc::new(Toy::default());
    let server =
        Running::at("127.0.0.1:0", Arc::clone(&toy) as Arc<dyn GrpcBackend>, GrpcLimits::default()).await;
    let channel = server.channel().await;
    let call = tokio::spawn(async move { channel.unary_raw(SLOW, b"abc", None).await });
    while toy.running.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let addr = server.addr.clone();
    server.stop().await;
    assert_eq!(call.await.unwrap().unwrap().0, "abc");
    assert_eq!(GrpcChannel::connect(&addr).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_stop_waits_for_a_silent_or_endless_client_only_so_long() {
    let limits = GrpcLimits { drain_timeout: Duration::from_millis(300), ..GrpcLimits::default() };
    let server = Running::at("127.0.0.1:0", Arc::new(Toy::default()), limits).await;
    let _silent = tokio::net::TcpStream::connect(&server.addr).await.unwrap();
    let mut reflection = ServerReflectionClient::new(server.tonic().await);
    let mut endless = reflection.server_reflection_info(tokio_stream::pending()).await.unwrap().into_inner();
    let mut health = HealthClient::new(server.tonic().await);
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), Health::Serving);
    server.stop().await;
    assert_eq!(watched.next().await.unwrap().unwrap().status(), Health::NotServing);
    assert!(endless.next().await.unwrap().is_err());
}

#[tokio::test]
async fn silent_connections_beyond_every_slot_keep_nobody_out_for_long() {
    let limits = GrpcLimits {
        max_connections: 8,
        handshake_timeout: Duration::from_millis(150),
        ..GrpcLimits::default()
    };
    let server = Running::at("127.0.0.1:0", Arc::new(Toy::default()), limits).await;
    let mut silent = Vec::new();
    for n in 0..40 {
        let mut socket = tokio::net::TcpStream::connect(&server.addr).await.unwrap();
        // Some begin as a client does, and stop in the middle.
        let begun = if n % 2 == 0 { 0 } else { n % 24 };
        socket.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..begun]).await.unwrap();
        silent.push(socket);
    }
    let call = async { server.channel().await.unary_raw(ECHO, b"abc", None).await.unwrap().0 };
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), call).await.unwrap(), "abc");
    // They were closed, not only passed by.
    let mut byte = [0];
    assert!(matches!(silent[0].read(&mut byte).await, Ok(0) | Err(_)));
    // What cannot become HTTP/2 is not waited for.
    let mut browser = tokio::net::TcpStream::connect(&server.addr).await.unwrap();
    browser.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(matches!(browser.read(&mut byte).await, Ok(0) | Err(_)));
    server.stop().await;
}

#[tokio::test]
async fn a_connection_without_a_call_is_closed_and_one_with_a_call_is_not() {
    let wait = Duration::from_millis(150);
    let limits = GrpcLimits {
        max_connections: 2,
        receive_timeout: wait,
        idle_timeout: wait,
        drain_timeout: Duration::from_millis(300),
        ..GrpcLimits::default()
    };
    let server = Running::at("127.0.0.1:0", Arc::new(Toy::default()), limits).await;
    // An answer that goes on keeps its connection.
    let mut health = HealthClient::new(server.tonic().await);
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), Health::Serving);
    // Each takes the other slot, asks nothing or only once, and would hold it.
    for asks in [false, true, false, true] {
        let channel = tokio::time::timeout(Duration::from_secs(10), server.channel()).await.unwrap();
        if asks {
            assert_eq!(channel.unary_raw(ECHO, b"abc", None).await.unwrap().0, "abc");
        }
        // A client that answers nothing either.
        let mut mute = tokio::net::TcpStream::connect(&server.addr).await.unwrap();
        mute.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut all = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), mute.read_to_end(&mut all)).await.unwrap().ok();
        // The idle one finds its way back.
        let answer = tokio::time::timeout(Duration::from_secs(10), channel.unary_raw(ECHO, b"abc", None));
        assert_eq!(answer.await.unwrap().unwrap().0, "abc");
    }
    assert!(tokio::time::timeout(wait, watched.next()).await.is_err(), "the watch goes on");
    server.stop().await;
    assert_eq!(watched.next().await.unwrap().unwrap().status(), Health::NotServing);
}

#[tokio::test]
async fn a_client_connects_anew_when_the_server_comes_back() {
    let server = Running::toy().await;
    let addr = server.addr.clone();
    let channel = server.channel().await;
    channel.unary_raw(ECHO, b"", None).await.unwrap();
    server.stop().await;
    let status = channel.unary_raw(ECHO, b"", None).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with(&addr), "{status}");
    let server = Running::at(&addr, Arc::new(Toy::default()), GrpcLimits::default()).await;
    assert_eq!(channel.unary_raw(ECHO, b"abc", None).await.unwrap().0, "abc");
    server.stop().await;
}

#[tokio::test]
async fn a_client_gives_up_after_its_timeout_and_refuses_bad_addresses() {
    let server = Running::toy().await;
    let channel = server.channel().await.with_timeout(Duration::from_millis(20));
    assert_eq!(channel.unary_raw(SLOW, b"", None).await.unwrap_err().code(), Code::DeadlineExceeded);
    for bad in ["", "localhost", "https://localhost:9090", "http://a:1/path", "user@host:1", "host:99999"] {
        assert_eq!(GrpcChannel::connect(bad).await.unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
    }
    GrpcChannel::connect(&format!("http://{}/", server.addr)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn limits_that_let_nothing_through_are_refused() {
    let ok = GrpcLimits::default();
    let bad = [
        ("max_request_bytes", GrpcLimits { max_request_bytes: 0, ..ok }),
        ("max_arriving_bytes", GrpcLimits { max_arriving_bytes: ok.max_request_bytes - 1, ..ok }),
        ("max_connections", GrpcLimits { max_connections: 0, ..ok }),
        ("max_streams", GrpcLimits { max_streams: 0, ..ok }),
        ("max_blocking", GrpcLimits { max_blocking: 0, ..ok }),
        ("handshake_timeout", GrpcLimits { handshake_timeout: Duration::ZERO, ..ok }),
        ("receive_timeout", GrpcLimits { receive_timeout: Duration::ZERO, ..ok }),
        ("idle_timeout", GrpcLimits { idle_timeout: Duration::ZERO, ..ok }),
    ];
    for (name, limits) in bad {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let error = serve_with(listener, EchoBackend::shared(), limits, async {}).await.unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

fn asked(message_request: MessageRequest) -> v1::ServerReflectionRequest {
    v1::ServerReflectionRequest { host: "h".into(), message_request: Some(message_request) }
}

async fn reflect(server: &Running, asked: Vec<v1::ServerReflectionRequest>) -> Vec<MessageResponse> {
    let mut client = ServerReflectionClient::new(server.tonic().await);
    let stream = client.server_reflection_info(tokio_stream::iter(asked.clone())).await.unwrap().into_inner();
    let answers: Vec<_> = stream.map(Result::unwrap).collect().await;
    let originals: Vec<_> = answers.iter().map(|a| a.original_request.clone().unwrap()).collect();
    assert_eq!(originals, asked);
    answers.into_iter().map(|a| a.message_response.unwrap()).collect()
}

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(holdfast_proto::FILE_DESCRIPTOR_SET).unwrap()
}

/// Services in the descriptor set that a chain node does not answer for.
const OF_OTHERS: [&str; 3] =
    ["holdfast.gateway.v1.Gateway", "holdfast.host.v1.Host", "holdfast.runner.v1.Worker"];

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let server = Running::toy().await;
    let answers = reflect(&server, vec![asked(MessageRequest::ListServices(String::new()))]).await;
    let MessageResponse::ListServicesResponse(list) = &answers[0] else { panic!("{answers:?}") };
    let listed: Vec<_> = list.service.iter().map(|s| s.name.clone()).collect();
    let defined = descriptors().file.into_iter().flat_map(|file| {
        let package = file.package().to_owned();
        file.service.into_iter().map(move |s| format!("{package}.{}", s.name()))
    });
    let mut expected: BTreeSet<String> = defined.collect();
    for name in [
        "holdfast.inference.v1.Query",
        "holdfast.breaker.v1.Query",
        "cosmos.tx.v1beta1.Service",
        "cosmos.auth.v1beta1.Query",
        "cosmos.bank.v1beta1.Query",
        "cosmos.base.tendermint.v1beta1.Service",
    ] {
        assert!(expected.contains(name), "{name}");
    }
    // Of other processes: described, not served.
    for name in OF_OTHERS {
        assert!(expected.remove(name), "{name}");
    }
    for name in [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ] {
        expected.insert(name.to_owned());
    }
    assert_eq!(listed, Vec::from_iter(expected));

    let mut old = v1alpha::server_reflection_client::ServerReflectionClient::new(server.tonic().await);
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let mut stream = old.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = stream.next().await.unwrap().unwrap().message_response.unwrap();
    let v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(list.service.into_iter().map(|s| s.name).collect::<Vec<_>>(), listed);
    server.stop().await;
}

#[tokio::test]
async fn reflection_gives_each_file_byte_for_byte_and_all_its_imports() {
    let server = Running::toy().await;
    // `repeated bytes` in the place of `repeated FileDescriptorProto`.
    let encoded = v1::FileDescriptorResponse::decode(holdfast_proto::FILE_DESCRIPTOR_SET).unwrap();
    let files = descriptors().file;
    let names: BTreeSet<_> = files.iter().map(|f| f.name().to_owned()).collect();
    let questions = files.iter().map(|f| asked(MessageRequest::FileByFilename(f.name().into()))).collect();
    let answers = reflect(&server, questions).await;
    assert_eq!(answers.len(), files.len());
    for ((answer, bytes), file) in answers.into_iter().zip(encoded.file_descriptor_proto).zip(files) {
        let MessageResponse::FileDescriptorResponse(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.file_descriptor_proto, [bytes], "{}", file.name());
        assert!(file.dependency.iter().all(|d| names.contains(d)), "{}: an import is missing", file.name());
    }
    server.stop().await;
}

#[tokio::test]
async fn reflection_finds_symbols_and_extensions_and_survives_unknown_ones() {
    let server = Running::toy().await;
    let symbol = |name: &str| asked(MessageRequest::FileContainingSymbol(name.into()));
    let extension = |number| {
        asked(MessageRequest::FileContainingExtension(v1::ExtensionRequest {
            containing_type: "google.protobuf.MessageOptions".into(),
            extension_number: number,
        }))
    };
    let numbers = |name: &str| asked(MessageRequest::AllExtensionNumbersOfType(name.into()));
    let answers = reflect(
        &server,
        vec![
            symbol("no.such.Symbol"),
            symbol("holdfast.inference.v1.Msg.StartInference"),
            symbol("holdfast.inference.v1.MsgStartInference"),
            symbol("cosmos.tx.signing.v1beta1.SIGN_MODE_DIRECT"),
            symbol("grpc.health.v1.HealthCheckResponse.ServingStatus"),
            extension(11_110_000),
            extension(5),
            numbers("google.protobuf.MessageOptions"),
            numbers("holdfast.inference.v1.MsgStartInference"),
            numbers("no.such.Message"),
            v1::ServerReflectionRequest::default(),
            asked(MessageRequest::FileByFilename("no/such.proto".into())),
        ],
    )
    .await;
    let told: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            MessageResponse::FileDescriptorResponse(f) => {
                prost_types::FileDescriptorProto::decode(f.file_descriptor_proto[0].as_slice())
                    .unwrap()
                    .name()
                    .to_owned()
            }
            MessageResponse::ErrorResponse(e) => format!("{} {}", e.error_code, e.error_message),
            MessageResponse::AllExtensionNumbersResponse(n) => {
                format!("{} {:?}", n.base_type_name, n.extension_number)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [
            "5 symbol no.such.Symbol: not found",
            "holdfast/inference/v1/tx.proto",
            "holdfast/inference/v1/tx.proto",
            "cosmos/tx/signing/v1beta1/signing.proto",
            // As tonic-health names its only file.
            "health.proto",
            "cosmos/msg/v1/msg.proto",
            "5 extension 5 of google.protobuf.MessageOptions: not found",
            "google.protobuf.MessageOptions [11110000]",
            "holdfast.inference.v1.MsgStartInference []",
            "5 message no.such.Message: not found",
            "3 message_request: set one of its fields",
            "5 file no/such.proto: not found",
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn health_says_serving_for_the_server_and_each_service() {
    let server = Running::toy().await;
    let mut client = HealthClient::new(server.tonic().await);
    for service in ["", "holdfast.inference.v1.Query", "cosmos.tx.v1beta1.Service", "grpc.health.v1.Health"] {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(client.check(request).await.unwrap().into_inner().status(), Health::Serving, "{service}");
    }
    for service in [&["no.such.Service"][..], &OF_OTHERS].concat() {
        let status = client.check(HealthCheckRequest { service: service.into() }).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{service}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_share_one_connection() {
    let server = Running::at("127.0.0.1:0", EchoBackend::shared(), GrpcLimits::default()).await;
    let channel = server.channel().await;
    for (streams, calls) in [(1, 2_000), (64, 20_000), (1_000, 20_000)] {
        let took = repeat_call(&channel, ECHO, Bytes::from_static(&[7; 32]), streams, calls).await.unwrap();
        let rate = u128::from(calls) * 1_000_000 / took.as_micros().max(1);
        println!("{streams} streams: {rate} calls/s");
    }
    let status = repeat_call(&channel, "no path", Bytes::new(), 4, 10).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "a failing call ends the measurement");
    server.stop().await;
}

/// Runs only where `GRPCURL` names the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcurl_lists_describes_and_calls() {
    let Some(program) = std::env::var_os("GRPCURL") else { return };
    let server = Running::at("127.0.0.1:0", EchoBackend::shared(), GrpcLimits::default()).await;
    let addr = server.addr.clone();
    let run = async |args: &[&str]| {
        let mut command = tokio::process::Command::new(&program);
        let output = command.arg("-plaintext").args(args).output().await.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let services = run(&[&addr, "list"]).await;
    for name in ["holdfast.inference.v1.Query", "cosmos.tx.v1beta1.Service", "grpc.health.v1.Health"] {
        assert!(services.lines().any(|line| line == name), "{name} in {services}");
    }
    // Describing everything resolves every import and extension.
    for service in services.lines() {
        assert!(run(&[&addr, "describe", service]).await.contains("service "), "{service}");
    }
    let described = run(&[&addr, "describe", "holdfast.inference.v1.MsgStartInference"]).await;
    assert!(
        described.contains("(.cosmos.msg.v1.signer)") || described.contains("(cosmos.msg.v1.signer)"),
        "{described}"
    );
    let called = run(&[
        "-v",
        "-H",
        "x-cosmos-block-height: 42",
        "-d",
        "{}",
        &addr,
        "holdfast.inference.v1.Query/Params",
    ])
    .await;
    assert!(called.contains("x-cosmos-block-height: 42"), "{called}");
    let health =
        run(&["-d", r#"{"service":"holdfast.inference.v1.Query"}"#, &addr, "grpc.health.v1.Health/Check"])
            .await;
    assert!(health.contains("SERVING"), "{health}");
    server.stop().await;
}
