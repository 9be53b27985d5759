//! Both ways to an answer: through the gateway's HTTP API, and straight to hosts, as a gateway of the simplest kind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{State, Tx, compose};
use holdfast_host::client::signed;
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use holdfast_proto::holdfast::host::v1::infer_response::Event;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::net::{CHAIN, key, terms};

pub(super) const PROMPT: &str = "Hold fast";
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer that came whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Until its first text.
    pub(super) first: Duration,
    /// Until its end.
    pub(super) whole: Duration,
    /// Its tokens.
    pub(super) tokens: u32,
}

/// A connection to the HTTP API, which lives from request to request.
pub(super) struct Http(TcpStream);

impl Http {
    pub(super) async fn connect(api: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(api).await?;
        socket.set_nodelay(true)?;
        Ok(Self(socket))
    }

    /// One streamed completion.
    pub(super) async fn ask(&mut self, model: &str, tokens: u32) -> Result<Answer> {
        tokio::time::timeout(PATIENCE, self.asked(model, tokens)).await.context("no answer in time")?
    }

    async fn asked(&mut self, model: &str, tokens: u32) -> Result<Answer> {
        let body = serde_json::json!({
            "model": model, "prompt": PROMPT, "max_tokens": tokens, "stream": true,
            "stream_options": { "include_usage": true },
        })
        .to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let begun = Instant::now();
        self.0.write_all(request.as_bytes()).await?;
        let (mut got, mut first) = (Vec::with_capacity(16 << 10), None);
        while !got.ends_with(b"\r\n0\r\n\r\n") {
            if self.0.read_buf(&mut got).await? == 0 {
                bail!("the connection ended in: {}", String::from_utf8_lossy(&got));
            }
            if first.is_none() && has_text(&got) {
                first = Some(begun.elapsed());
            }
            // A refusal has its length and no chunks.
            if got.len() > 16 && !got.starts_with(b"HTTP/1.1 200") {
                bail!("refused: {}", String::from_utf8_lossy(&got));
            }
        }
        let whole = begun.elapsed();
        let text = String::from_utf8_lossy(&got);
        ensure!(text.contains("data: [DONE]"), "the answer broke off: {text}");
        let count = text
            .rsplit_once("\"completion_tokens\":")
            .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        Ok(Answer {
            first: first.context("an answer without text")?,
            whole,
            tokens: count.context("an answer without its usage")?,
        })
    }
}

/// Whether a frame with text has come.
fn has_text(got: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"text\":\"";
    got.windows(FIELD.len() + 1).any(|at| at.starts_with(FIELD) && !at.ends_with(b"\""))
}

/// Connections to one host.
pub(super) async fn channels(url: &str, count: usize) -> Result<Vec<Channel>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect().await?);
    }
    Ok(all)
}

/// What is signed goes with the time.
fn call<T: Message>(key: &SecretKey, escrow_id: u64, method: &str, request: T) -> Request<T> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    signed(key, CHAIN, escrow_id, method, request, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Sends one Infer and reads it to its end: the answer, and the transactions of the host.
pub(super) async fn infer(
    channel: &Channel,
    request: Request<pb::InferRequest>,
) -> Result<(Answer, Vec<Tx>)> {
    let mut client = HostClient::new(channel.clone());
    let read = async {
        let begun = Instant::now();
        let mut stream = client.infer(request).await?.into_inner();
        let (mut txs, mut first) = (Vec::new(), None);
        while let Some(item) = stream.message().await? {
            match item.event {
                Some(Event::Receipt(receipt)) => txs.push(Tx::from_bytes(&receipt.tx)?),
                Some(Event::Delta(delta)) if !delta.text.is_empty() && first.is_none() => {
                    first = Some(begun.elapsed());
                }
                Some(Event::Finished(finished)) => {
                    txs.push(Tx::from_bytes(&finished.tx)?);
                    let tokens = finished.usage.context("no usage")?.completion_tokens;
                    let first = first.context("an answer without text")?;
                    return Ok((Answer { first, whole: begun.elapsed(), tokens }, txs));
                }
                Some(Event::Failed(failed)) => bail!("the host failed with kind {}", failed.kind),
                _ => {}
            }
        }
        bail!("the stream broke off")
    };
    tokio::time::timeout(PATIENCE, read).await.context("no answer in time")?
}

/// A session that is spent without a gateway.
pub(super) struct Direct {
    state: State,
    log: Vec<Vec<u8>>,
    key: SecretKey,
    channels: Vec<Channel>,
    /// What each host has.
    have: Vec<usize>,
    /// Transactions for the next diff.
    txs: Vec<Tx>,
}

impl Direct {
    /// Of the escrow of the hosts at `urls`.
    pub(super) async fn open(escrow_id: u64, urls: &[String]) -> Result<Self> {
        let config = terms(escrow_id, "direct", urls.len());
        let (key, config_digest) = (key("gateway"), config.digest().to_vec());
        let mut all = Vec::new();
        for url in urls {
            let channel = channels(url, 1).await?.remove(0);
            let request = pb::BindRequest { escrow_id, config_digest: config_digest.clone() };
            HostClient::new(channel.clone()).bind(call(&key, escrow_id, "Bind", request)).await?;
            all.push(channel);
        }
        let state = State::genesis(Arc::new(config));
        Ok(Self { state, log: Vec::new(), key, have: vec![0; all.len()], channels: all, txs: Vec::new() })
    }

    /// The next diff, with a Start; gives its nonce.
    fn start(&mut self, body: &str, tokens: u32) -> Result<u64> {
        let start = Tx::StartInference {
            prompt_hash: Sha256::digest(body).into(),
            input_limit: 128,
            output_limit: tokens,
            started_at: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        };
        let composed = compose(&self.state, std::mem::take(&mut self.txs), vec![start])?;
        let signature = self.key.sign_recoverable(composed.digest());
        let (diff, state) = composed.into_diff(signature);
        self.log.push(diff.to_bytes());
        self.state = state;
        Ok(self.state.nonce())
    }

    fn request(&self, nonce: u64, diffs: Vec<Vec<u8>>, body: &str) -> Request<pb::InferRequest> {
        let escrow_id = self.state.config().escrow_id;
        let request = pb::InferRequest {
            escrow_id,
            target_nonce: nonce,
            diffs,
            body: body.into(),
            deadline_ms: 120_000,
            request_id: format!("direct-{nonce}"),
        };
        match request.diffs.is_empty() {
            true => call(&self.key, escrow_id, "Infer", request),
            false => Request::new(request),
        }
    }

    /// One answer of the host whose turn it is. Its diff is made before the clock runs.
    pub(super) async fn ask(&mut self, tokens: u32) -> Result<Answer> {
        let body = body(tokens);
        let nonce = self.start(&body, tokens)?;
        let slot = usize::from(self.state.config().executor_slot(nonce));
        let request = self.request(nonce, self.log[self.have[slot]..].to_vec(), &body);
        let (answer, txs) = infer(&self.channels[slot], request).await?;
        self.have[slot] = self.log.len();
        self.txs = txs;
        Ok(answer)
    }

    /// The diffs of as many starts, not yet brought, and their Infers. For a session of one host.
    pub(super) fn many(
        &mut self,
        count: usize,
        tokens: u32,
    ) -> Result<(Vec<pb::TeachRequest>, Vec<Request<pb::InferRequest>>)> {
        let (body, before) = (body(tokens), self.log.len());
        let mut nonces = Vec::new();
        for _ in 0..count {
            nonces.push(self.start(&body, tokens)?);
        }
        let escrow_id = self.state.config().escrow_id;
        let teach =
            |diffs: &[Vec<u8>]| pb::TeachRequest { escrow_id, diffs: diffs.to_vec(), challenge: None };
        let taught = self.log[before..].chunks(200).map(teach).collect();
        Ok((taught, nonces.into_iter().map(|nonce| self.request(nonce, Vec::new(), &body)).collect()))
    }

    /// Puts transactions of the host into diffs of their own.
    pub(super) fn settle(&mut self, txs: Vec<Tx>) -> Result<()> {
        for some in txs.chunks(100) {
            let composed = compose(&self.state, some.to_vec(), Vec::new())?;
            let signature = self.key.sign_recoverable(composed.digest());
            let (diff, state) = composed.into_diff(signature);
            self.log.push(diff.to_bytes());
            self.state = state;
        }
        Ok(())
    }

    /// Diffs from the `from`th on, for one host.
    pub(super) fn log_from(&self, from: usize) -> pb::TeachRequest {
        let escrow_id = self.state.config().escrow_id;
        pb::TeachRequest { escrow_id, diffs: self.log[from..].to_vec(), challenge: None }
    }

    pub(super) fn len(&self) -> usize {
        self.log.len()
    }
}

/// The bytes that a host gets, as the HTTP API makes them.
fn body(tokens: u32) -> String {
    serde_json::json!({ "prompt": PROMPT, "max_tokens": tokens }).to_string()
}

/// Asks the gateway to reset the replica of `escrow_id` at a host, with the gateway's signature.
pub(super) async fn reset(channel: &Channel, escrow_id: u64, generation: u64) -> Result<()> {
    let request = pb::ResetSessionRequest { escrow_id, generation };
    let request = call(&key("gateway"), escrow_id, "ResetSession", request);
    HostClient::new(channel.clone()).reset_session(request).await?;
    Ok(())
}
