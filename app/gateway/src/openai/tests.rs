//! The API over real sockets, with sessions that do as they are told.

mod answers;
mod idempotent;
mod limits;
mod refusals;
mod requests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1::FailureKind;
use holdfast_types::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;

/// Nothing here takes that long.
const LONG: Duration = Duration::from_secs(10);

/// What a session does with a request.
#[derive(Debug, Clone)]
enum Act {
    Send(Event),
    Sleep(u64),
    /// Until the client has left.
    Hang,
    /// Until a stop text was found.
    Enough,
    /// Until the sessions are ended.
    Ended,
}

/// Sessions that play one script for every request.
struct Fake {
    script: Mutex<Vec<Act>>,
    submissions: Mutex<Vec<Submission>>,
    /// Requests whose client left.
    left: AtomicUsize,
    ended: Semaphore,
    ready: Mutex<Readiness>,
}

impl Sessions for Arc<Fake> {
    fn models(&self) -> Vec<ModelInfo> {
        let model = |id: &str, context_length, token_bytes_max| ModelInfo {
            id: id.into(),
            created: 1_700_000_000,
            open: true,
            context_length,
            token_bytes_max,
        };
        vec![model("ref-llama", 512, 1), model("org/other", 2048, 0)]
    }

    fn ready(&self) -> Readiness {
        *self.ready.lock().unwrap()
    }

    fn submit(&self, submission: Submission) -> Answer {
        self.submissions.lock().unwrap().push(submission);
        let (sender, events) = mpsc::channel(16);
        let (enough, stopped) = oneshot::channel();
        let script = self.script.lock().unwrap().clone();
        let fake = Arc::clone(self);
        tokio::spawn(async move {
            let mut stopped = Some(stopped);
            for act in script {
                match act {
                    Act::Sleep(ms) => sleep(Duration::from_millis(ms)).await,
                    Act::Hang => sender.closed().await,
                    Act::Ended => drop(fake.ended.acquire().await.unwrap()),
                    Act::Enough => {
                        if let Some(stopped) = stopped.take() {
                            assert_eq!(stopped.await, Ok(()), "no stop text was found");
                        }
                    }
                    Act::Send(event) => {
                        let _ = sender.send(event).await;
                    }
                }
            }
            if sender.is_closed() {
                fake.left.fetch_add(1, Ordering::SeqCst);
            }
        });
        Answer { events, enough }
    }
}

const DISPATCH: Dispatch = Dispatch { escrow: 7, nonce: 41, executor: Address([9; 20]) };

fn dispatched() -> Act {
    Act::Send(Event::Dispatched(DISPATCH))
}

fn delta(text: &str) -> Act {
    Act::Send(Event::Delta { text: text.into(), token_ids: vec![1] })
}

fn finished(finish_reason: FinishReason, prompt_tokens: u32, completion_tokens: u32) -> Act {
    Act::Send(Event::Finished { finish_reason, usage: Usage { prompt_tokens, completion_tokens } })
}

fn failed(failure: Failure) -> Act {
    Act::Send(Event::Failed(failure))
}

/// "Hello" in two deltas.
fn hello() -> Vec<Act> {
    vec![dispatched(), delta("Hel"), delta("lo"), finished(FinishReason::Stop, 5, 2)]
}

struct Server {
    addr: SocketAddr,
    fake: Arc<Fake>,
    budgets: Arc<MemBudgets>,
    replies: Arc<MemReplies>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(script: Vec<Act>) -> Self {
        Self::with(script, ApiConfig::default()).await
    }

    async fn with(script: Vec<Act>, config: ApiConfig) -> Self {
        Self::over(script, config, Arc::default()).await
    }

    async fn over(script: Vec<Act>, config: ApiConfig, replies: Arc<MemReplies>) -> Self {
        let ready = Readiness { active_escrow: true, self_suspect: false, sign_of_life: true };
        let fake = Arc::new(Fake {
            script: Mutex::new(script),
            submissions: Mutex::default(),
            left: AtomicUsize::new(0),
            ended: Semaphore::new(0),
            ready: Mutex::new(ready),
        });
        let budgets = Arc::new(MemBudgets::default());
        let seams = Seams {
            sessions: Arc::new(Arc::clone(&fake)),
            budgets: budgets.clone(),
            replies: replies.clone(),
            metrics: Arc::new(|| "holdfast_up 1\n".into()),
        };
        let api = Api::new(config, seams).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = Arc::clone(&fake);
        let shutdown = async { drop(stopped.await) };
        let serving = tokio::spawn(serve(api, listener, shutdown, async move { ended.ended.add_permits(9) }));
        Self { addr, fake, budgets, replies, stop: Some(stop), serving }
    }

    fn script(&self, script: Vec<Act>) {
        *self.fake.script.lock().unwrap() = script;
    }

    fn submissions(&self) -> Vec<Submission> {
        self.fake.submissions.lock().unwrap().clone()
    }

    /// Waits until that many clients are known to have left.
    async fn left(&self, wanted: usize) {
        let there = async {
            while self.fake.left.load(Ordering::SeqCst) < wanted {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, there).await.expect("the sessions never learnt that the client left");
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends bytes and reads until the server closes.
    async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut socket = self.connect().await;
        // The server may close before it has read everything.
        let _ = socket.write_all(bytes).await;
        let mut out = Vec::new();
        let _ = timeout(LONG, socket.read_to_end(&mut out)).await.expect("the server does not close");
        out
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        Got::read(&self.raw(&request(method, path, headers, body)).await)
    }

    async fn get(&self, path: &str) -> Got {
        self.send("GET", path, &[], "").await
    }

    async fn chat(&self, body: &str) -> Got {
        self.send("POST", CHAT, &[], body).await
    }
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const HI: &str = r#"{"model":"ref-llama","messages":[{"role":"user","content":"Hi"}]}"#;
const HI_STREAM: &str = r#"{"model":"ref-llama","messages":[{"role":"user","content":"Hi"}],"stream":true}"#;

/// A request whose connection ends with it.
fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        text.push_str("content-type: application/json\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    format!("{text}\r\n{body}").into_bytes()
}

/// A reply.
#[derive(Debug)]
struct Got {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Got {
    fn read(bytes: &[u8]) -> Self {
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let at = at.unwrap_or_else(|| panic!("no reply: {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..at]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut body = bytes[at + 4..].to_vec();
        if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            body = unchunk(&body);
        }
        Self { status, headers, body }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Status, code and param of an error, which has all four fields.
    fn error(&self) -> (u16, String, Option<String>) {
        let json = self.json();
        let object = json["error"].as_object().unwrap_or_else(|| panic!("no error: {json}"));
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["code", "message", "param", "type"]);
        assert!(object["message"].as_str().is_some_and(|m| !m.is_empty()));
        assert!(object["type"].is_string());
        (self.status, object["code"].as_str().unwrap().into(), object["param"].as_str().map(str::to_owned))
    }

    /// A stream as it was sent, without `created`, which is the time of day.
    fn frames(&self) -> String {
        let mut out = String::new();
        let mut rest = self.text();
        while let Some(at) = rest.find(r#""created":"#) {
            out.push_str(&rest[..at]);
            rest = rest[at + 10..].trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(',');
        }
        out + rest
    }
}

/// What chunks hold; ends where they do.
fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = rest.windows(2).position(|w| w == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        out.extend_from_slice(&rest[at + 2..at + 2 + len]);
        rest = &rest[at + 4 + len..];
        if len == 0 {
            break;
        }
    }
    out
}
