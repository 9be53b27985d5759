//! A host for tests: a replica behind a real gRPC server, and what it does wrong on request.

// A status is what a call of tonic gives.
#![allow(clippy::result_large_err)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{Diff, FrozenConfig, Hash, State, Tx, apply, digest};
use holdfast_host::{auth, wire};
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use holdfast_proto::holdfast::host::v1::host_server::{Host, HostServer};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

/// What a host does to answers, and what it saw.
#[derive(Default)]
pub(crate) struct Manner {
    /// Pieces of an answer.
    pub(crate) pieces: AtomicUsize,
    /// Milliseconds between two pieces.
    pub(crate) pause_ms: AtomicU64,
    /// The stream breaks after this many pieces; 0 = never.
    pub(crate) breaks_after: AtomicUsize,
    /// Cancellations that the gateway signed.
    pub(crate) cancels: AtomicUsize,
    /// Inferences of the chain that it served.
    pub(crate) served: AtomicUsize,
    /// The trace context of the last Infer.
    pub(crate) traceparent: Mutex<Option<String>>,
    /// Every call is refused.
    pub(crate) away: AtomicBool,
}

struct Replica {
    state: State,
    roots: BTreeMap<u64, Hash>,
    log: BTreeMap<u64, Vec<u8>>,
    pending: Vec<Tx>,
}

/// One host, over any number of escrows whose terms it was given.
#[derive(Clone)]
pub(crate) struct FakeHost {
    pub(crate) key: Arc<SecretKey>,
    pub(crate) manner: Arc<Manner>,
    terms: Arc<Mutex<BTreeMap<u64, FrozenConfig>>>,
    replicas: Arc<Mutex<BTreeMap<u64, Replica>>>,
}

fn refuse<T>(code: Cause, have_nonce: u64) -> Result<T, Status> {
    Err(wire::status(pb::EscrowError { code: code.into(), have_nonce, ..Default::default() }))
}

fn unix_ms() -> u64 {
    super::super::Clock::start().now().unix_ms
}

impl FakeHost {
    pub(crate) fn new(name: &str) -> Self {
        let manner = Manner::default();
        manner.pieces.store(4, Ordering::Relaxed);
        Self {
            key: Arc::new(SecretKey::from_seed_label(b"driver", name)),
            manner: Arc::new(manner),
            terms: Arc::default(),
            replicas: Arc::default(),
        }
    }

    pub(crate) fn learn(&self, terms: &FrozenConfig) {
        self.terms.lock().unwrap().insert(terms.escrow_id, terms.clone());
    }

    /// Serves until the sender of the answer is dropped.
    pub(crate) async fn listen(&self) -> (SocketAddr, tokio::sync::oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = HostServer::new(self.clone()).max_decoding_message_size(8 << 20);
        tokio::spawn(async move {
            let serving = tonic::transport::Server::builder().add_service(server);
            let serving = serving.serve_with_incoming(TcpListenerStream::new(listener));
            tokio::select! { _ = serving => {}, _ = stopped => {} }
        });
        (address, stop)
    }

    /// Applies what it lacks.
    fn follow(&self, escrow_id: u64, diffs: &[Vec<u8>]) -> Result<pb::Applied, Status> {
        if self.manner.away.load(Ordering::Relaxed) {
            return Err(Status::unavailable("away"));
        }
        let mut replicas = self.replicas.lock().unwrap();
        let Some(replica) = replicas.get_mut(&escrow_id) else { return refuse(Cause::SessionNotFound, 0) };
        for bytes in diffs {
            let diff = Diff::from_bytes(bytes).unwrap();
            if diff.nonce <= replica.state.nonce() {
                continue;
            }
            if diff.nonce > replica.state.nonce() + 1 {
                return refuse(Cause::Behind, replica.state.nonce());
            }
            let (state, root) = apply(&replica.state, &diff).unwrap();
            replica.pending.retain(|tx| !diff.txs.iter().any(|there| there.key() == tx.key()));
            replica.roots.insert(diff.nonce, root);
            replica.log.insert(diff.nonce, bytes.clone());
            replica.state = state;
        }
        Ok(self.applied(replica))
    }

    fn applied(&self, replica: &Replica) -> pb::Applied {
        let (nonce, root) = (replica.state.nonce(), replica.state.root());
        pb::Applied {
            nonce,
            root: root.to_vec(),
            state_signature: self.sign_state(replica.state.config(), nonce, &root),
            pending: replica.pending.iter().map(Tx::to_bytes).collect(),
            ..Default::default()
        }
    }

    fn sign_state(&self, terms: &FrozenConfig, nonce: u64, root: &Hash) -> Vec<u8> {
        let digest = digest::state(&terms.chain_id, terms.escrow_id, nonce, root);
        self.key.sign_recoverable(digest).to_vec()
    }

    fn admit<T: Message>(&self, escrow_id: u64, method: &str, request: &Request<T>) -> Result<(), Status> {
        let credential = request.metadata().get_bin(auth::METADATA).and_then(|value| value.to_bytes().ok());
        let terms = self.terms.lock().unwrap();
        let Some(terms) = terms.get(&escrow_id) else { return refuse(Cause::Policy, 0) };
        let who = auth::verify(
            credential.as_deref(),
            &terms.chain_id,
            escrow_id,
            method,
            request.get_ref(),
            unix_ms(),
        );
        match who {
            Ok(signer) if signer == terms.gateway => Ok(()),
            _ => Err(Status::unauthenticated("not the gateway")),
        }
    }

    /// The receipt and the finish of a Start.
    fn outcome(&self, escrow_id: u64, id: u64, text: &str, tokens: u32) -> (Tx, Tx) {
        let replicas = self.replicas.lock().unwrap();
        let state = &replicas[&escrow_id].state;
        let (terms, record) = (state.config(), state.record(id).unwrap());
        let confirmed_at = unix_ms() / 1000;
        let receipt = digest::receipt(&terms.chain_id, escrow_id, record, confirmed_at);
        let response_hash: Hash = Sha256::digest(text).into();
        let slot = record.executor_slot;
        let finish = digest::finish(&terms.chain_id, escrow_id, id, slot, 3, tokens, &response_hash);
        let sig = self.key.sign_recoverable(receipt);
        let confirm = Tx::ConfirmStart { id, confirmed_at, sig };
        let sig = self.key.sign_recoverable(finish);
        (confirm, Tx::FinishInference { id, input_tokens: 3, output_tokens: tokens, response_hash, sig })
    }

    fn keep(&self, escrow_id: u64, tx: Tx) {
        self.replicas.lock().unwrap().get_mut(&escrow_id).unwrap().pending.push(tx);
    }
}

#[tonic::async_trait]
impl Host for FakeHost {
    type ServeStream = ReceiverStream<Result<pb::ServeResponse, Status>>;
    type InferStream = ReceiverStream<Result<pb::InferResponse, Status>>;

    async fn serve(&self, _: Request<pb::ServeRequest>) -> Result<Response<Self::ServeStream>, Status> {
        self.manner.served.fetch_add(1, Ordering::Relaxed);
        let (sender, pieces) = mpsc::channel(1);
        let event = Some(pb::serve_response::Event::Finished(pb::Finished::default()));
        sender.send(Ok(pb::ServeResponse { event })).await.unwrap();
        Ok(Response::new(ReceiverStream::new(pieces)))
    }

    async fn bind(&self, request: Request<pb::BindRequest>) -> Result<Response<pb::BindResponse>, Status> {
        let escrow_id = request.get_ref().escrow_id;
        self.admit(escrow_id, "Bind", &request)?;
        let terms = self.terms.lock().unwrap()[&escrow_id].clone();
        if terms.digest().as_slice() != request.get_ref().config_digest {
            return refuse(Cause::ConfigMismatch, 0);
        }
        let mut replicas = self.replicas.lock().unwrap();
        let replica = replicas.entry(escrow_id).or_insert_with(|| {
            let state = State::genesis(Arc::new(terms));
            let roots = BTreeMap::from([(0, state.root())]);
            Replica { state, roots, log: BTreeMap::new(), pending: Vec::new() }
        });
        let (nonce, root) = (replica.state.nonce(), replica.state.root().to_vec());
        Ok(Response::new(pb::BindResponse { nonce, root, boot_id: "boot-1".into() }))
    }

    async fn teach(&self, request: Request<pb::TeachRequest>) -> Result<Response<pb::TeachResponse>, Status> {
        let pb::TeachRequest { escrow_id, diffs, .. } = request.into_inner();
        let applied = self.follow(escrow_id, &diffs)?;
        Ok(Response::new(pb::TeachResponse { applied: Some(applied) }))
    }

    async fn infer(&self, request: Request<pb::InferRequest>) -> Result<Response<Self::InferStream>, Status> {
        let trace = request.metadata().get("traceparent").and_then(|value| value.to_str().ok());
        *self.manner.traceparent.lock().unwrap() = trace.map(str::to_owned);
        let pb::InferRequest { escrow_id, target_nonce, diffs, .. } = request.into_inner();
        let applied = self.follow(escrow_id, &diffs)?;
        let (sender, pieces) = mpsc::channel(4);
        let (host, manner) = (self.clone(), Arc::clone(&self.manner));
        tokio::spawn(async move {
            use pb::infer_response::Event;
            let count = manner.pieces.load(Ordering::Relaxed);
            let words: Vec<String> = (0..count).map(|n| format!("w{n} ")).collect();
            let tokens = u32::try_from(count).unwrap();
            let (confirm, finish) = host.outcome(escrow_id, target_nonce, &words.concat(), tokens);
            host.keep(escrow_id, confirm.clone());
            let send = async |event| sender.send(Ok(pb::InferResponse { event: Some(event) })).await.is_ok();
            let mut open = send(Event::Applied(applied)).await;
            open &= send(Event::Receipt(pb::Receipt { tx: confirm.to_bytes() })).await;
            for (n, text) in words.into_iter().enumerate() {
                if !open {
                    return;
                }
                if n > 0 && n == manner.breaks_after.load(Ordering::Relaxed) {
                    let _ = sender.send(Err(Status::unavailable("the host dies"))).await;
                    return;
                }
                tokio::time::sleep(Duration::from_millis(manner.pause_ms.load(Ordering::Relaxed))).await;
                let index = u32::try_from(n).unwrap();
                open = send(Event::Delta(pb::Delta { index, text, token_ids: vec![index] })).await;
            }
            if !open {
                return;
            }
            host.keep(escrow_id, finish.clone());
            let usage = Some(pb::Usage { prompt_tokens: 3, completion_tokens: tokens });
            let (tx, finish_reason) = (finish.to_bytes(), "stop".to_owned());
            send(Event::Finished(pb::InferFinished { tx, finish_reason, usage })).await;
        });
        Ok(Response::new(ReceiverStream::new(pieces)))
    }

    async fn cancel_inference(
        &self,
        request: Request<pb::CancelInferenceRequest>,
    ) -> Result<Response<pb::CancelInferenceResponse>, Status> {
        let escrow_id = request.get_ref().escrow_id;
        self.admit(escrow_id, "CancelInference", &request)?;
        self.manner.cancels.fetch_add(1, Ordering::Relaxed);
        let id = request.get_ref().inference_id;
        let tx = {
            let replicas = self.replicas.lock().unwrap();
            let state = &replicas[&escrow_id].state;
            let slot = u8::try_from(id % state.config().group_size()).unwrap();
            let digest = digest::error(&state.config().chain_id, escrow_id, id, slot, 8, 3, 1);
            let sig = self.key.sign_recoverable(digest);
            Tx::ReportError { id, kind: 8, input_tokens: 3, output_tokens: 1, sig }
        };
        Ok(Response::new(pb::CancelInferenceResponse {
            state: pb::cancel_inference_response::State::Cancelled.into(),
            delivered_tokens: 1,
            pending: vec![tx.to_bytes()],
        }))
    }

    async fn get_signatures(
        &self,
        request: Request<pb::GetSignaturesRequest>,
    ) -> Result<Response<pb::GetSignaturesResponse>, Status> {
        let escrow_id = request.get_ref().escrow_id;
        self.admit(escrow_id, "GetSignatures", &request)?;
        let replicas = self.replicas.lock().unwrap();
        let Some(replica) = replicas.get(&escrow_id) else { return refuse(Cause::SessionNotFound, 0) };
        let have_nonce = replica.state.nonce();
        let nonce = match request.get_ref().nonce {
            0 => have_nonce,
            nonce => nonce.min(have_nonce),
        };
        let root = replica.roots[&nonce];
        Ok(Response::new(pb::GetSignaturesResponse {
            have_nonce,
            nonce,
            root: root.to_vec(),
            state_signature: self.sign_state(replica.state.config(), nonce, &root),
            ..Default::default()
        }))
    }

    async fn get_pending(
        &self,
        request: Request<pb::GetPendingRequest>,
    ) -> Result<Response<pb::GetPendingResponse>, Status> {
        let escrow_id = request.get_ref().escrow_id;
        self.admit(escrow_id, "GetPending", &request)?;
        let replicas = self.replicas.lock().unwrap();
        let Some(replica) = replicas.get(&escrow_id) else { return refuse(Cause::SessionNotFound, 0) };
        Ok(Response::new(pb::GetPendingResponse { txs: replica.pending.iter().map(Tx::to_bytes).collect() }))
    }

    async fn get_diffs(
        &self,
        request: Request<pb::GetDiffsRequest>,
    ) -> Result<Response<pb::GetDiffsResponse>, Status> {
        let escrow_id = request.get_ref().escrow_id;
        self.admit(escrow_id, "GetDiffs", &request)?;
        let replicas = self.replicas.lock().unwrap();
        let Some(replica) = replicas.get(&escrow_id) else { return refuse(Cause::SessionNotFound, 0) };
        let diffs = replica.log.range(request.get_ref().from..).map(|(_, diff)| diff.clone()).collect();
        Ok(Response::new(pb::GetDiffsResponse { diffs }))
    }

    async fn vote_timeout(
        &self,
        _: Request<pb::VoteTimeoutRequest>,
    ) -> Result<Response<pb::VoteTimeoutResponse>, Status> {
        refuse(Cause::Policy, 0)
    }

    async fn challenge_start(
        &self,
        _: Request<pb::ChallengeStartRequest>,
    ) -> Result<Response<pb::ChallengeStartResponse>, Status> {
        refuse(Cause::Policy, 0)
    }

    async fn reset_session(
        &self,
        _: Request<pb::ResetSessionRequest>,
    ) -> Result<Response<pb::ResetSessionResponse>, Status> {
        refuse(Cause::Policy, 0)
    }
}
