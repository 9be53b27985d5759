//! The ABCI 2.0 socket server: frames in, frames out.
//!
//! A frame is an unsigned varint length and a protobuf `tendermint.abci.Request` or `Response` of that length, over TCP
//! and unix sockets alike. Answers leave in the order of the requests of their connection; connections do not wait for
//! one another. This loop is our own, over `tendermint-proto`'s raw types: the ready-made servers lack unix sockets, a
//! bound on frames and a clean stop, or turn a hostile value into a dead connection (ARCHITECTURE 5).
//!
//! | condition | answer |
//! |---|---|
//! | bytes that are no request, or a request without a value | `ResponseException`; the connection lives |
//! | length prefix over [`MAX_FRAME_BYTES`], or no varint | `ResponseException`, then the connection is closed |
//! | the application panics or refuses | the method's own refusal, see [`refusal`] |
//! | `InitChain`, `FinalizeBlock`, `Commit` fail | `ResponseException`, then [`serve`] ends with the reason |
//! | more than [`MAX_CONNECTIONS`] | the newcomer is closed |

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use holdfast_app::app::PANIC;
use holdfast_proto::Message;
use holdfast_types::sdk;
use tendermint_proto::v0_38::abci::{self as pb, request::Value as Q, response::Value as R};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Longest request in bytes. CometBFT caps blocks at 100 MiB; a genesis document can be somewhat longer.
pub const MAX_FRAME_BYTES: usize = 128 << 20;
/// Longest answer in bytes: CometBFT reads no more and takes a longer one for a broken connection.
pub const MAX_REPLY_BYTES: usize = 100 << 20;
/// Most connections at once. CometBFT opens four; a command-line client may want one beside them.
pub const MAX_CONNECTIONS: usize = 16;
/// Bytes a connection's buffer keeps when it is idle.
const IDLE_BUFFER_BYTES: usize = 64 << 10;
/// Pause after a failed accept: out of file descriptors is the usual cause, and it does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for a connection to end after the stop signal: one request, at most a block.
const DRAIN: Duration = Duration::from_secs(10);

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyAddr {
    /// `tcp://HOST:PORT`.
    Tcp(String),
    /// `unix:///path`.
    Unix(PathBuf),
}

impl ProxyAddr {
    /// Reads `tcp://HOST:PORT` or `unix:///PATH`, as CometBFT's `proxy_app` has it.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rule = || "give tcp://HOST:PORT, such as tcp://127.0.0.1:26658, or unix:///PATH".to_owned();
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(rule()) };
        }
        let bare = text.strip_prefix("tcp://").unwrap_or(text);
        let (host, port) = bare.rsplit_once(':').ok_or_else(rule)?;
        let host_ok =
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
        if host_ok && port.parse::<u16>().is_ok() { Ok(Self::Tcp(bare.to_owned())) } else { Err(rule()) }
    }
}

impl fmt::Display for ProxyAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "tcp://{addr}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// A bound socket; a unix socket's file goes with it.
#[derive(Debug)]
pub struct ProxyListener {
    addr: ProxyAddr,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(tokio::net::TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

impl ProxyListener {
    /// Binds `addr`. A unix socket that nobody listens on any more is removed first.
    ///
    /// # Errors
    /// `AddrInUse` and whatever else the system says.
    pub async fn bind(addr: &ProxyAddr) -> std::io::Result<Self> {
        let socket = match addr {
            ProxyAddr::Tcp(text) => Socket::Tcp(tokio::net::TcpListener::bind(text).await?),
            #[cfg(unix)]
            ProxyAddr::Unix(path) => {
                if tokio::net::UnixStream::connect(path).await.is_ok() {
                    return Err(std::io::ErrorKind::AddrInUse.into());
                }
                remove_socket(path)?;
                Socket::Unix(tokio::net::UnixListener::bind(path)?)
            }
            #[cfg(not(unix))]
            ProxyAddr::Unix(_) => return Err(std::io::ErrorKind::Unsupported.into()),
        };
        let addr = match &socket {
            // Port 0 took a free one.
            Socket::Tcp(listener) => ProxyAddr::Tcp(listener.local_addr()?.to_string()),
            #[cfg(unix)]
            Socket::Unix(_) => addr.clone(),
        };
        Ok(Self { addr, socket })
    }

    /// Where it listens.
    pub fn addr(&self) -> &ProxyAddr {
        &self.addr
    }

    async fn accept(&self) -> std::io::Result<(Reader, Writer)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok((Box::new(reader), Box::new(writer)))
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                let (reader, writer) = listener.accept().await?.0.into_split();
                Ok((Box::new(reader), Box::new(writer)))
            }
        }
    }
}

impl Drop for ProxyListener {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let ProxyAddr::Unix(path) = &self.addr {
            let _ = remove_socket(path);
        }
    }
}

/// Removes a socket's file, and nothing that is no socket.
#[cfg(unix)]
fn remove_socket(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(std::io::ErrorKind::AlreadyExists.into()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// What answers requests. Called from all connections at once.
pub trait Application: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    /// A text for the log. For a method that changes the chain the process must end then; all else has a refusal.
    fn handle(&self, request: Q) -> Result<R>;
}

/// Methods, as far as their refusals differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Query.
    Query,
    /// CheckTx.
    CheckTx,
    /// ListSnapshots.
    ListSnapshots,
    /// OfferSnapshot.
    OfferSnapshot,
    /// LoadSnapshotChunk.
    LoadSnapshotChunk,
    /// ApplySnapshotChunk.
    ApplySnapshotChunk,
    /// PrepareProposal.
    PrepareProposal,
    /// ProcessProposal.
    ProcessProposal,
    /// ExtendVote.
    ExtendVote,
    /// VerifyVoteExtension.
    VerifyVoteExtension,
    /// InitChain, FinalizeBlock, Commit: no refusal, the chain cannot go on.
    Fatal,
    /// Echo, Flush, Info.
    Other,
}

impl Method {
    /// The method of a request.
    pub fn of(request: &Q) -> Self {
        match request {
            Q::Query(_) => Self::Query,
            Q::CheckTx(_) => Self::CheckTx,
            Q::ListSnapshots(_) => Self::ListSnapshots,
            Q::OfferSnapshot(_) => Self::OfferSnapshot,
            Q::LoadSnapshotChunk(_) => Self::LoadSnapshotChunk,
            Q::ApplySnapshotChunk(_) => Self::ApplySnapshotChunk,
            Q::PrepareProposal(_) => Self::PrepareProposal,
            Q::ProcessProposal(_) => Self::ProcessProposal,
            Q::ExtendVote(_) => Self::ExtendVote,
            Q::VerifyVoteExtension(_) => Self::VerifyVoteExtension,
            Q::InitChain(_) | Q::FinalizeBlock(_) | Q::Commit(_) => Self::Fatal,
            Q::Echo(_) | Q::Flush(_) | Q::Info(_) => Self::Other,
        }
    }
}

/// The answer that says no in a method's own words; an exception, which makes CometBFT stop, where it has none.
pub fn refusal(method: Method, codespace: &str, code: u32, log: String) -> R {
    let codespace = codespace.to_owned();
    match method {
        Method::Query => R::Query(pb::ResponseQuery { code, codespace, log, ..Default::default() }),
        Method::CheckTx => R::CheckTx(pb::ResponseCheckTx { code, codespace, log, ..Default::default() }),
        Method::ListSnapshots => R::ListSnapshots(pb::ResponseListSnapshots::default()),
        Method::OfferSnapshot => R::OfferSnapshot(pb::ResponseOfferSnapshot {
            result: pb::response_offer_snapshot::Result::Reject.into(),
        }),
        Method::LoadSnapshotChunk => R::LoadSnapshotChunk(pb::ResponseLoadSnapshotChunk::default()),
        Method::ApplySnapshotChunk => R::ApplySnapshotChunk(pb::ResponseApplySnapshotChunk {
            result: pb::response_apply_snapshot_chunk::Result::Abort.into(),
            ..Default::default()
        }),
        // An empty block is always right.
        Method::PrepareProposal => R::PrepareProposal(pb::ResponsePrepareProposal::default()),
        Method::ProcessProposal => R::ProcessProposal(pb::ResponseProcessProposal {
            status: pb::response_process_proposal::ProposalStatus::Reject.into(),
        }),
        Method::ExtendVote => R::ExtendVote(pb::ResponseExtendVote::default()),
        // Refusing a peer's vote stops everybody; an extension means nothing here.
        Method::VerifyVoteExtension => R::VerifyVoteExtension(pb::ResponseVerifyVoteExtension {
            status: pb::response_verify_vote_extension::VerifyStatus::Accept.into(),
        }),
        Method::Fatal | Method::Other => exception(log),
    }
}

fn exception(error: String) -> R {
    R::Exception(pb::ResponseException { error })
}

/// An answer, and the reason to end after it.
struct Answer {
    response: pb::Response,
    fatal: Option<anyhow::Error>,
}

impl From<R> for Answer {
    fn from(response: R) -> Self {
        Self { response: pb::Response { value: Some(response) }, fatal: None }
    }
}

/// Asks the application behind a panic boundary.
fn ask(app: &dyn Application, request: Q) -> Answer {
    let method = Method::of(&request);
    let (codespace, code, error) = match catch_unwind(AssertUnwindSafe(|| app.handle(request))) {
        Ok(Ok(response)) => {
            let answer = Answer::from(response);
            let size = answer.response.encoded_len();
            if size <= MAX_REPLY_BYTES {
                return answer;
            }
            let text = format!("the answer has {size} bytes, the consensus engine takes {MAX_REPLY_BYTES}");
            (sdk::CODESPACE, sdk::INVALID_REQUEST, anyhow::anyhow!(text))
        }
        Ok(Err(error)) => (sdk::CODESPACE, sdk::INTERNAL, error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            (PANIC.0, PANIC.1, anyhow::anyhow!("panic in the application: {text}"))
        }
    };
    let log = format!("{error:#}");
    tracing::warn!(?method, error = %log, "ABCI request refused");
    let fatal = (method == Method::Fatal).then_some(error);
    Answer { fatal, ..refusal(method, codespace, code, log).into() }
}

/// The next frame's place in a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Not whole yet; the frame needs this many bytes in all, as far as known.
    Partial(usize),
    /// Bytes of the prefix, and of the message behind it.
    Whole(usize, usize),
}

/// Finds a frame at the beginning of `bytes`.
pub(super) fn frame(bytes: &[u8]) -> Result<Frame, String> {
    let mut length: u64 = 0;
    for at in 0..10_usize {
        let Some(byte) = bytes.get(at) else { return Ok(Frame::Partial(at.saturating_add(1))) };
        let bits = u64::from(byte & 0x7f);
        let shift = u32::try_from(at.saturating_mul(7)).unwrap_or(u32::MAX);
        // Above 63 bits nothing fits; what does not fit is over the limit anyway.
        let part = bits.checked_shl(shift).filter(|part| part >> shift == bits);
        length |= part.ok_or("frame: the length prefix is no unsigned varint")?;
        if byte & 0x80 == 0 {
            let head = at.saturating_add(1);
            let length = usize::try_from(length).ok().filter(|n| *n <= MAX_FRAME_BYTES);
            let Some(length) = length else {
                return Err(format!("frame: too long, at most {MAX_FRAME_BYTES} bytes are taken"));
            };
            let total = head.saturating_add(length);
            return Ok(if bytes.len() < total { Frame::Partial(total) } else { Frame::Whole(head, length) });
        }
    }
    Err("frame: the length prefix is no unsigned varint".into())
}

async fn write(writer: &mut BufWriter<Writer>, response: &pb::Response) -> std::io::Result<()> {
    writer.write_all(&response.encode_length_delimited_to_vec()).await
}

async fn answer(app: &Arc<dyn Application>, bytes: Bytes) -> Answer {
    match pb::Request::decode(bytes) {
        Err(e) => exception(format!("request: {e}")).into(),
        Ok(pb::Request { value: None }) => {
            exception("request: no method, or one that is not known".into()).into()
        }
        Ok(pb::Request { value: Some(Q::Flush(_)) }) => R::Flush(pb::ResponseFlush {}).into(),
        Ok(pb::Request { value: Some(Q::Echo(echo)) }) => {
            R::Echo(pb::ResponseEcho { message: echo.message }).into()
        }
        Ok(pb::Request { value: Some(request) }) => {
            let app = app.clone();
            let asked = tokio::task::spawn_blocking(move || ask(&*app, request)).await;
            // Fails only while the runtime shuts down.
            asked.unwrap_or_else(|e| exception(e.to_string()).into())
        }
    }
}

/// Waits for the stop signal.
async fn told(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left to give it.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    app: Arc<dyn Application>,
    (mut reader, writer): (Reader, Writer),
    mut stop: watch::Receiver<bool>,
    fatal: mpsc::Sender<anyhow::Error>,
) -> std::io::Result<()> {
    let mut writer = BufWriter::new(writer);
    let mut buffer = BytesMut::with_capacity(IDLE_BUFFER_BYTES);
    loop {
        let wanted = match frame(&buffer) {
            Err(text) => {
                write(&mut writer, &Answer::from(exception(text)).response).await?;
                return writer.shutdown().await;
            }
            Ok(Frame::Whole(head, length)) => {
                let _ = buffer.split_to(head);
                let message = buffer.split_to(length).freeze();
                let Answer { response, fatal: reason } = answer(&app, message).await;
                // CometBFT sends Flush after every request it waits for.
                let flush = matches!(response.value, Some(R::Flush(_) | R::Exception(_)));
                write(&mut writer, &response).await?;
                if flush {
                    writer.flush().await?;
                }
                if let Some(reason) = reason {
                    let _ = fatal.send(reason).await;
                    return Ok(());
                }
                if *stop.borrow() {
                    return writer.shutdown().await;
                }
                continue;
            }
            Ok(Frame::Partial(total)) => total,
        };
        writer.flush().await?;
        if buffer.is_empty() && buffer.capacity() < IDLE_BUFFER_BYTES {
            // A big request's memory is not kept.
            buffer = BytesMut::with_capacity(IDLE_BUFFER_BYTES);
        } else {
            // Room for what has been announced, at most as much again as has arrived: a prefix alone costs nothing.
            let room = wanted.saturating_sub(buffer.len()).min(buffer.len().max(IDLE_BUFFER_BYTES));
            buffer.reserve(room);
        }
        tokio::select! {
            read = reader.read_buf(&mut buffer) => if read? == 0 { return Ok(()) },
            () = told(&mut stop) => return writer.shutdown().await,
        }
    }
}

/// Serves `app` until `stop` holds true, then lets each connection end the request it is at.
///
/// # Errors
/// The reason, when a method failed that must not fail: the process has to end then.
pub async fn serve(
    listener: ProxyListener,
    app: Arc<dyn Application>,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let (fatal, mut failed) = mpsc::channel(1);
    let mut connections = JoinSet::new();
    let ended = loop {
        tokio::select! {
            biased;
            Some(reason) = failed.recv() => break Err(reason),
            () = told(&mut stop) => break Ok(()),
            Some(done) = connections.join_next() => {
                if let Ok(Err(error)) = done {
                    tracing::debug!(%error, "ABCI connection ended");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok(_) if connections.len() >= MAX_CONNECTIONS => {
                    tracing::warn!("ABCI: a connection beyond {MAX_CONNECTIONS} was closed");
                }
                Ok(stream) => {
                    connections.spawn(connection(app.clone(), stream, stop.clone(), fatal.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "ABCI: a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    };
    drop(listener);
    if ended.is_ok() {
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN, drained).await;
        // The last request may have been the one that failed.
        if let Ok(reason) = failed.try_recv() {
            return Err(reason).context("while stopping");
        }
    }
    connections.abort_all();
    ended
}
