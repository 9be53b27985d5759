//! A network without a load, driven by a test.

use std::time::{Duration, Instant};

use holdfast_proto::holdfast::escrow::v1 as escrow;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::gateway_client::GatewayClient;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::client::Client;
use crate::process::{Running, SHORT, command, until};

const POLL: Duration = Duration::from_millis(50);
/// Longest wait for an answer of the HTTP API.
const ANSWER: Duration = Duration::from_secs(60);

/// A running `localnet --gateway --requests 0`.
pub(super) struct Rig {
    running: Running,
    dir: tempfile::TempDir,
    pub(super) escrow_id: u64,
    model: String,
    http: String,
    gateway: GatewayClient<Channel>,
    token: String,
}

/// An answer of the HTTP API.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Lower-case names.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Value,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// The host that computed it.
    pub(super) fn executor(&self) -> &str {
        self.header("x-holdfast-executor")
    }
}

impl Rig {
    /// Starts it and waits until the gateway has its session.
    pub(super) async fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let home = dir.path().join("net").display().to_string();
        let fixed = [
            "localnet",
            "--gateway",
            "--requests",
            "0",
            "--workers",
            "0",
            "--headless",
            "--home",
            &home,
            "--host-arg=--log-level=info,holdfast_host=debug",
        ];
        let mut running = Running::start(&mut command(&[&fixed[..], args].concat()));
        until(2 * SHORT, "the gateway serves", || {
            assert!(running.runs(), "localnet ended: {}", running.err());
            running.out().contains("gateway at http://").then_some(())
        });
        let manifest = manifest(&dir);
        let text = |path: &str| {
            let value = manifest.pointer(path).and_then(Value::as_str);
            value.unwrap_or_else(|| panic!("{path} is not in {manifest}")).to_owned()
        };
        let endpoint =
            Endpoint::from_shared(format!("http://{}", text("/gateway/grpc"))).expect("an address");
        let gateway = GatewayClient::new(endpoint.timeout(ANSWER).connect_lazy());
        Self {
            escrow_id: manifest["escrow_id"].as_u64().expect("an escrow"),
            model: text("/model"),
            http: text("/gateway/http"),
            token: text("/gateway/operator_token"),
            running,
            dir,
            gateway,
        }
    }

    pub(super) fn http(&self) -> &str {
        &self.http
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    fn entry(&self, name: &str) -> Value {
        let manifest = manifest(&self.dir);
        match name {
            "gateway" | "chain" => manifest[name].clone(),
            _ => {
                let hosts = manifest["hosts"].as_array().expect("hosts");
                hosts.iter().find(|host| host["name"] == name).expect("a host of that name").clone()
            }
        }
    }

    /// Address of a host.
    pub(super) fn address(&self, name: &str) -> String {
        self.entry(name)["address"].as_str().expect("an address").to_owned()
    }

    fn pid(&self, name: &str) -> Option<u64> {
        self.entry(name)["pid"].as_u64()
    }

    /// Sends a signal to a process.
    pub(super) fn signal(&self, name: &str, signal: &str) {
        let pid = self.pid(name).expect("it runs");
        let script = format!("kill -{signal} {pid}");
        let status = std::process::Command::new("sh").args(["-c", &script]).status().expect("sh is there");
        assert!(status.success(), "{name}: {script}: {status}");
    }

    /// Sends a signal to the network itself, which keeps its processes.
    pub(super) fn signal_network(&self, signal: &str) {
        self.running.signal(signal);
    }

    /// How often a host has told the gateway that it started.
    fn announcements(&self, name: &str) -> usize {
        let log = self.dir.path().join("net").join(format!("{name}.log"));
        std::fs::read_to_string(log).unwrap_or_default().matches(": announced escrow=").count()
    }

    /// Kills a process as a crash would, and waits until the network has started it again: a gateway has its session, and a
    /// host has told the gateway.
    pub(super) async fn kill(&self, name: &str) {
        let (before, told) = (self.pid(name), self.announcements(name));
        self.signal(name, "KILL");
        self.eventually(&format!("{name} is back"), SHORT, async || {
            let now = self.pid(name);
            if now.is_none() || now == before {
                return None;
            }
            match name {
                "gateway" => self.try_session().await.ok().map(|_| ()),
                "chain" => Some(()),
                _ => (self.announcements(name) > told).then_some(()),
            }
        })
        .await;
    }

    /// Asks until there is an answer.
    pub(super) async fn eventually<T>(
        &self,
        what: &str,
        limit: Duration,
        ask: impl AsyncFn() -> Option<T>,
    ) -> T {
        let end = Instant::now() + limit;
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            assert!(Instant::now() < end, "not within {limit:?}: {what}\n{}", self.running.out());
            sleep(POLL).await;
        }
    }

    /// A client of the chain.
    pub(super) async fn chain(&self) -> Client {
        Client::connect(self.entry("chain")["grpc"].as_str().expect("an address")).await
    }

    pub(super) async fn escrow(&self, chain: &Client) -> escrow::Escrow {
        let request = escrow::QueryEscrowRequest { escrow_id: self.escrow_id };
        let path = "/holdfast.escrow.v1.Query/Escrow";
        let answer: escrow::QueryEscrowResponse =
            chain.call(path, &request).await.expect("the chain knows it");
        answer.escrow.expect("an escrow")
    }

    async fn try_session(&self) -> Result<pb::EscrowSession, Status> {
        let request = pb::EscrowRequest { escrow_id: self.escrow_id };
        let answer = self.gateway.clone().escrow(request).await?.into_inner();
        answer.escrow.ok_or_else(|| Status::not_found("no session"))
    }

    /// The session as the gateway tells it.
    pub(super) async fn session(&self) -> pb::EscrowSession {
        self.try_session().await.expect("the gateway has it")
    }

    /// A host's part in the session.
    pub(super) async fn participant(&self, name: &str) -> pb::Participant {
        let address = self.address(name);
        let session = self.session().await;
        session.participants.into_iter().find(|row| row.address == address).expect("a member")
    }

    /// A host's flag.
    pub(super) async fn flag(&self, name: &str) -> Option<pb::DivergenceFlag> {
        let request = pb::DivergenceRequest { escrow_id: self.escrow_id, participant: self.address(name) };
        match self.gateway.clone().divergence(request).await {
            Ok(answer) => answer.into_inner().flag,
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => panic!("Divergence: {status}"),
        }
    }

    /// The flag once it is as wanted.
    pub(super) async fn flag_when(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&pb::DivergenceFlag) -> bool,
    ) -> pb::DivergenceFlag {
        self.eventually(what, SHORT, async || self.flag(name).await.filter(|flag| is(flag))).await
    }

    /// The flag of a host that goes wrong, once clients have made it.
    pub(super) async fn flagged(&self, name: &str) -> pb::DivergenceFlag {
        self.eventually(&format!("{name} is flagged"), SHORT, async || {
            self.served().await;
            self.flag(name).await
        })
        .await
    }

    /// The flag once its repair is in a state of an attempt. No backoff is waited for.
    pub(super) async fn flag_in(&self, name: &str, phase: pb::RepairPhase) -> pb::DivergenceFlag {
        self.eventually(&format!("the repair of {name} is {}", phase.as_str_name()), SHORT, async || {
            let flag = self.flag(name).await.expect("flagged");
            if flag.phase() == phase {
                return Some(flag);
            }
            if flag.phase() == pb::RepairPhase::Waiting {
                self.force_teach(name).await;
            }
            None
        })
        .await
    }

    /// The flag once the attempt that ran, or one after it, has ended without success.
    pub(super) async fn waits_after(&self, name: &str, held: &pb::DivergenceFlag) -> pb::DivergenceFlag {
        self.flag_when(name, "the attempt is over", |now| {
            now.phase() == pb::RepairPhase::Waiting && now.attempt > held.attempt
        })
        .await
    }

    /// Waits until a host has lost its flag, but for no backoff. All that the gateway told about its flags until then, from
    /// its first day on: the stage, and the flag at it.
    pub(super) async fn restored(&self, name: &str) -> Vec<(String, pb::DivergenceFlag)> {
        self.eventually(&format!("{name} is restored"), SHORT, async || match self.flag(name).await {
            Some(flag) => {
                if flag.phase() == pb::RepairPhase::Waiting {
                    self.force_teach(name).await;
                }
                None
            }
            None => Some(()),
        })
        .await;
        let (address, mut told) = (self.address(name), Vec::new());
        let request = pb::WatchDivergenceRequest { from_seq: 0 };
        let changes = self.gateway.clone().watch_divergence(request).await.expect("WatchDivergence");
        let mut changes = changes.into_inner();
        loop {
            let change = tokio::time::timeout(ANSWER, changes.message()).await.expect("a change in time");
            let change = change.expect("readable").expect("it goes on");
            let flag = change.flag.expect("a flag");
            if flag.participant != address {
                continue;
            }
            let last = change.stage == "escrow_participant_state_unblocked";
            told.push((change.stage, flag));
            if last {
                return told;
            }
        }
    }

    fn with_token<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let value = format!("Bearer {}", self.token).parse().expect("ASCII");
        request.metadata_mut().insert("authorization", value);
        request
    }

    /// Makes the next attempt due; nothing if one runs already, or none is needed any more.
    pub(super) async fn force_teach(&self, name: &str) {
        let request = pb::ForceTeachRequest {
            escrow_id: self.escrow_id,
            participant: self.address(name),
            operator: "test".into(),
            reason: "a test".into(),
        };
        match self.gateway.clone().force_teach(self.with_token(request)).await {
            Ok(_) => {}
            Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "ForceTeach: {status}"),
        }
    }

    fn give_up_request(&self, name: &str) -> pb::GiveUpRequest {
        pb::GiveUpRequest {
            escrow_id: self.escrow_id,
            participant: self.address(name),
            operator: "test".into(),
            reason: "a test".into(),
        }
    }

    pub(super) async fn give_up(&self, name: &str) -> pb::DivergenceFlag {
        let answer =
            self.gateway.clone().give_up(self.with_token(self.give_up_request(name))).await.expect("GiveUp");
        answer.into_inner().flag.expect("a flag")
    }

    /// A verb without the operator's token.
    pub(super) async fn give_up_as_nobody(&self, name: &str) -> Status {
        let request = self.give_up_request(name);
        self.gateway.clone().give_up(request).await.expect_err("it needs a token")
    }

    pub(super) async fn finalize(&self) {
        let (operator, reason) = ("test".into(), "a test".into());
        let request = pb::FinalizeRequest { escrow_id: self.escrow_id, operator, reason };
        self.gateway.clone().finalize(self.with_token(request)).await.expect("Finalize");
    }

    /// One chat; the connection ends with it.
    pub(super) async fn chat(&self, max_tokens: u32) -> Answer {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": "Say hello to Ada." }],
            "max_tokens": max_tokens,
        })
        .to_string();
        let asked = post(&self.http, "/v1/chat/completions", &body);
        tokio::time::timeout(ANSWER, asked).await.expect("an answer in time")
    }

    /// A chat that must be answered, by which host.
    pub(super) async fn served(&self) -> String {
        let answer = self.chat(4).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let choice = &answer.body["choices"][0];
        assert!(
            choice["message"]["content"].is_string() && choice["finish_reason"].is_string(),
            "{answer:?}"
        );
        answer.executor().to_owned()
    }

    /// Begins a streamed chat, reads its first tokens and leaves.
    pub(super) async fn leave(&self, max_tokens: u32) {
        tokio::time::timeout(ANSWER, self.first_tokens(max_tokens)).await.expect("its first tokens in time");
    }

    async fn first_tokens(&self, max_tokens: u32) {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": "Count to a thousand." }],
            "max_tokens": max_tokens,
            "stream": true,
        })
        .to_string();
        let mut connection = TcpStream::connect(&self.http).await.expect("the gateway listens");
        connection
            .write_all(request(&self.http, "/v1/chat/completions", &body).as_bytes())
            .await
            .expect("sent");
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        // The role, then text.
        while text.matches("data: {").count() < 3 {
            let count = connection.read(&mut bytes).await.expect("readable");
            assert!(count > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }

    /// Ends it as ^C does; no process is left.
    pub(super) fn stop(self) {
        let names = ["chain", "gateway", "host0", "host1", "host2"];
        let pids: Vec<u64> = names.iter().filter_map(|name| self.pid(name)).collect();
        assert_eq!(pids.len(), names.len());
        self.running.signal("INT");
        let ran = self.running.wait(2 * SHORT);
        assert_eq!(ran.status.code(), Some(0), "{}\n{}", ran.out, ran.err);
        for pid in pids {
            let gone = !std::path::Path::new(&format!("/proc/{pid}")).exists();
            assert!(gone, "process {pid} is left");
        }
    }
}

fn manifest(dir: &tempfile::TempDir) -> Value {
    let path = dir.path().join("net/localnet.json");
    let text = std::fs::read_to_string(&path).expect("the network describes itself");
    serde_json::from_str(&text).expect("JSON")
}

fn request(host: &str, path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request by hand and reads the answer to its end.
async fn post(addr: &str, path: &str, body: &str) -> Answer {
    let mut connection = TcpStream::connect(addr).await.expect("the gateway listens");
    connection.write_all(request(addr, path, body).as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    connection.read_to_end(&mut bytes).await.expect("readable");
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Answer { status, headers, body: serde_json::from_str(body).unwrap_or_default() }
}
