//! Escrow sessions of a running host: the replicas behind the service, the runner, and other processes.
//!
//! ```text
//!  call ─► signature ─► HostCore, one call at a time, on a thread that may wait for the disk ─► reply
//!                          │ work to begin                    │ the executor is to be asked
//!                          ▼                                  ▼
//!                   runner ─► tape ─► stream             ChallengeStart
//!                          └─► outcome in the core, durable, then the end of the stream
//! ```
//!
//! A stream that ends, a deadline and a slow reader do not stop a run: only CancelInference does, and the runner's own
//! limits (escrow-details 8).

// A status is what tonic's services return, however large it is.
#![allow(clippy::result_large_err)]

mod admission;
mod dispute;
mod peers;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_app::keys::SecretKey;
use holdfast_proto::Message;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_runner::runner::RunnerHandle;
use holdfast_runner::text::TextCodec;
use holdfast_runner::{Cause, Clock};
use holdfast_types::{Address, Hrp};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::auth;
use crate::escrows::EscrowSource;
use crate::session::{EscrowStatus, HostCore, errors};
use crate::tape::Shelf;
use crate::wire;
use work::Work;

pub use admission::RunnerAdmission;

/// Streams of Infer at a time.
const STREAMS_MAX: usize = 1_024;
/// Votes that ask an executor at a time; more wait.
const VOTES: usize = 8;
/// Longest wait of a vote for its turn: with the challenge it stays within the server's limit of a call.
const VOTE_WAIT: Duration = Duration::from_secs(45);
/// Time between two looks at whether escrows are settled.
const LOOK: Duration = Duration::from_secs(60);

/// What sessions need to know beside their core.
#[derive(Debug, Clone)]
pub struct SessionsConfig {
    /// Prefix of addresses.
    pub hrp: Hrp,
    /// Between two signs of life to a client.
    pub beat: Duration,
    /// What each call takes longer: a drill.
    pub delay: Duration,
}

struct Shared {
    config: SessionsConfig,
    /// One call at a time.
    core: Arc<tokio::sync::Mutex<HostCore>>,
    chain_id: String,
    owner: Address,
    boot_id: String,
    mute: bool,
    key: SecretKey,
    runner: RunnerHandle,
    codec: Arc<dyn TextCodec>,
    clock: Arc<dyn Clock>,
    source: Arc<dyn EscrowSource>,
    admission: RunnerAdmission,
    works: Shelf<(u64, u64), Work>,
    streams: Arc<Semaphore>,
    votes: Semaphore,
    draining: AtomicBool,
}

/// The escrow sessions of a host. Clones are the same.
#[derive(Clone)]
pub struct Sessions {
    shared: Arc<Shared>,
}

impl Sessions {
    /// Sessions over `core`, which was opened with a clone of `admission` and signs with `key`.
    #[must_use]
    pub fn new(
        config: SessionsConfig,
        core: HostCore,
        key: SecretKey,
        admission: RunnerAdmission,
        clock: Arc<dyn Clock>,
        source: Arc<dyn EscrowSource>,
    ) -> Self {
        let about = core.config();
        let (chain_id, owner, boot_id) = (about.chain_id.clone(), about.owner, about.boot_id.clone());
        let mute = about.mute;
        let (runner, codec) = admission.parts();
        let shared = Shared {
            config,
            core: Arc::new(tokio::sync::Mutex::new(core)),
            chain_id,
            owner,
            boot_id,
            mute,
            key,
            runner,
            codec,
            clock,
            source,
            admission,
            works: Shelf::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            votes: Semaphore::new(VOTES),
            draining: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Begins: settles what the last process left unfinished, and then, for ever, tells gateways that this host is there and
    /// lets go of escrows that are settled and disputes those that their gateway left.
    pub async fn run(&self) {
        self.resume().await;
        let announcing = self.announce_all();
        let looking = async {
            let mut look = interval(LOOK);
            loop {
                look.tick().await;
                self.close_settled().await;
                self.dispute_left().await;
            }
        };
        tokio::join!(announcing, looking);
    }

    /// Takes no new work.
    pub fn stop_taking(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.admission.stop_taking();
    }

    /// Whether something runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.shared.works.running().is_empty()
    }

    /// Stops what runs; each is reported as this host's failure.
    pub async fn stop_running(&self) {
        for (_, work) in self.shared.works.running() {
            let _ = self.shared.runner.cancel(work.session, Cause::Node).await;
        }
    }

    /// Asks the core, on a thread that may wait for the disk.
    async fn core<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut HostCore) -> Result<T, pb::EscrowError> + Send + 'static,
    ) -> Result<T, Status> {
        if !self.shared.config.delay.is_zero() {
            sleep(self.shared.config.delay).await;
        }
        let mut core = self.shared.core.clone().lock_owned().await;
        match tokio::task::spawn_blocking(move || ask(&mut core)).await {
            Ok(answer) => answer.map_err(wire::status),
            Err(_) => Err(Status::internal("the host failed at this call")),
        }
    }

    /// Who signed a call.
    fn caller<T: Message>(
        &self,
        metadata: &MetadataMap,
        escrow_id: u64,
        method: &str,
        request: &T,
    ) -> Result<Address, Status> {
        let now_ms = self.shared.clock.unix_ms();
        let chain_id = &self.shared.chain_id;
        auth::verify(credential(metadata).as_deref(), chain_id, escrow_id, method, request, now_ms)
            .map_err(|error| Status::unauthenticated(error.to_string()))
    }

    fn unix_s(&self) -> u64 {
        self.shared.clock.unix_ms() / 1_000
    }

    pub(crate) async fn bind(&self, call: Request<pb::BindRequest>) -> Result<pb::BindResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "Bind", &request)?;
        let terms = match self.shared.source.escrow(request.escrow_id).await {
            Ok(Some(info)) => Some(info.terms),
            Ok(None) => {
                let text = format!("the chain has no escrow {}", request.escrow_id);
                return Err(wire::status(errors::policy(text)));
            }
            Err(error) => {
                tracing::warn!(escrow = request.escrow_id, %error, "bind without the chain");
                None
            }
        };
        self.core(move |core| core.bind(&request, caller, terms.as_ref())).await
    }

    pub(crate) async fn teach(&self, call: Request<pb::TeachRequest>) -> Result<pb::TeachResponse, Status> {
        let request = call.into_inner();
        self.core(move |core| core.teach(&request)).await
    }

    pub(crate) async fn get_signatures(
        &self,
        call: Request<pb::GetSignaturesRequest>,
    ) -> Result<pb::GetSignaturesResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "GetSignatures", &request)?;
        if self.shared.mute && request.challenge.is_some() {
            // Until the caller has waited long enough.
            return std::future::pending().await;
        }
        self.core(move |core| core.get_signatures(&request, caller)).await
    }

    pub(crate) async fn get_pending(
        &self,
        call: Request<pb::GetPendingRequest>,
    ) -> Result<pb::GetPendingResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "GetPending", &request)?;
        self.core(move |core| core.get_pending(&request, caller)).await
    }

    pub(crate) async fn get_diffs(
        &self,
        call: Request<pb::GetDiffsRequest>,
    ) -> Result<pb::GetDiffsResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "GetDiffs", &request)?;
        self.core(move |core| core.get_diffs(&request, caller)).await
    }

    pub(crate) async fn reset_session(
        &self,
        call: Request<pb::ResetSessionRequest>,
    ) -> Result<pb::ResetSessionResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "ResetSession", &request)?;
        self.core(move |core| core.reset_session(&request, caller)).await
    }

    async fn close_settled(&self) {
        let Ok(escrows) = self.core(|core| Ok(core.escrows())).await else { return };
        for escrow_id in escrows {
            let Ok(Some(info)) = self.shared.source.escrow(escrow_id).await else { continue };
            if info.terms.status != EscrowStatus::Closed {
                continue;
            }
            match self.core(move |core| core.close(escrow_id)).await {
                Ok(()) => tracing::info!(escrow = escrow_id, "settled or expired: its replica is gone"),
                Err(error) => tracing::warn!(escrow = escrow_id, %error, "a replica cannot be closed"),
            }
        }
    }
}

/// The credential in the metadata of a call.
fn credential(metadata: &MetadataMap) -> Option<Vec<u8>> {
    metadata.get_bin(auth::METADATA).and_then(|value| value.to_bytes().ok()).map(|bytes| bytes.to_vec())
}
