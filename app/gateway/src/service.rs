//! The service `holdfast.gateway.v1.Gateway`: hosts announce themselves, operators look and act.
//!
//! Announce is signed by the host (`holdfast-auth-bin`); verbs carry `authorization: Bearer TOKEN`, and are in the audit
//! log before they take effect. Looking needs neither: bind the address where only operators and hosts reach it.

// A status is what a call of tonic gives; it is made once a call.
#![allow(clippy::result_large_err)]

mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use holdfast_host::auth;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_proto::holdfast::gateway::v1::gateway_server::Gateway as GatewayService;
use holdfast_types::Address;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::core::{FlagView, Verb, VerbError};
use crate::driver::{self, Audit, Gateway, GatewayError, blocking};

pub use server::{ReflectionError, serve};

/// Shortest operator token, bytes.
pub const TOKEN_MIN: usize = 16;
/// Connections at a time; more wait in the backlog.
const CONNECTIONS_MAX: usize = 256;
/// Rows of a page at most.
const PAGE_MAX: usize = 100;
/// Watchers at a time.
const WATCHERS: usize = 64;
/// Rows that wait for a watcher.
const WATCH_ROWS: usize = 64;
/// Longest boot id, bytes.
const BOOT_ID_MAX: usize = 128;
/// Ended escrows that are listed.
const ENDED_MAX: usize = 1_000;

/// What operators prove themselves with. Only its hash is kept.
#[derive(Clone)]
pub struct OperatorToken([u8; 32]);

/// A token that is too short to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an operator token has at least {TOKEN_MIN} printable ASCII bytes, without spaces")]
pub struct TokenError;

impl OperatorToken {
    /// # Errors
    /// [`TokenError`].
    pub fn new(text: &str) -> Result<Self, TokenError> {
        if text.len() < TOKEN_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    fn is(&self, text: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(text).into();
        self.0.ct_eq(&given).into()
    }
}

/// The service.
#[derive(Clone)]
pub struct Operators {
    gateway: Gateway,
    token: Option<OperatorToken>,
    watchers: Arc<Semaphore>,
    connections: usize,
}

impl Operators {
    /// Without a token no verb is taken.
    #[must_use]
    pub fn new(gateway: Gateway, token: Option<OperatorToken>) -> Self {
        Self { gateway, token, watchers: Arc::new(Semaphore::new(WATCHERS)), connections: CONNECTIONS_MAX }
    }

    /// Takes at most `connections` at a time, 256 otherwise.
    #[must_use]
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    fn address(&self, text: &str) -> Result<Address, Status> {
        Address::parse(text, &self.gateway.0.hrp).map_err(|error| {
            let remedy = "give the host's address, as `holdfastd gateway escrows` shows it";
            Status::invalid_argument(format!("participant: {error}; {remedy}"))
        })
    }

    /// Whether the caller is an operator.
    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let token = self.token.as_ref().ok_or_else(|| {
            Status::permission_denied("this gateway takes no verbs; start it with --operator-token-file")
        })?;
        let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.split_once(' '));
        match given {
            Some((scheme, text)) if scheme.eq_ignore_ascii_case("bearer") && token.is(text) => Ok(()),
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("bearer") => {
                Err(Status::unauthenticated("authorization: the token is not this gateway's"))
            }
            _ => Err(Status::unauthenticated("authorization: give `Bearer TOKEN` with the operator's token")),
        }
    }

    /// Escrow, participant, operator and reason of a verb.
    async fn verb(
        &self,
        (escrow_id, participant, operator, reason): (u64, String, String, String),
        name: &str,
        verb: Verb,
    ) -> Result<(u64, Option<pb::DivergenceFlag>), Status> {
        let participant = Some(self.address(&participant)?);
        let audit = self.audit(escrow_id, participant, name, operator, reason)?;
        let (audit_seq, flag) = match self.gateway.operate(audit, verb).await {
            Ok(done) => done,
            Err(error) => return Err(self.refusal(error).await),
        };
        Ok((audit_seq, Some(driver::flag(&flag, &self.gateway.0.hrp))))
    }

    fn audit(
        &self,
        escrow_id: u64,
        participant: Option<Address>,
        verb: &str,
        operator: String,
        reason: String,
    ) -> Result<Audit, Status> {
        for (field, text, most) in [("operator", &operator, 128), ("reason", &reason, 512)] {
            if !(1..=most).contains(&text.len()) {
                return Err(Status::invalid_argument(format!("{field}: give 1 to {most} bytes")));
            }
        }
        let at_ms = self.gateway.0.clock.now().unix_ms;
        Ok(Audit { escrow_id, participant, verb: verb.to_owned(), operator, reason, at_ms })
    }

    /// The status of an error; an escrow without a session here may be over, or not open.
    async fn refusal(&self, error: GatewayError) -> Status {
        let GatewayError::NoSession(id) = error else { return status(&error) };
        match blocking(&self.gateway.0, move |inner| inner.journal.escrow(id)).await {
            Ok(Some(entry)) => {
                let text = match entry.shown(id).phase.as_str() {
                    "not_opened" => {
                        format!("not_opened: escrow {id} could not be opened here; the log says why")
                    }
                    phase => format!(
                        "escrow_ended: the session of escrow {id} is over ({phase}): nothing is left to do"
                    ),
                };
                Status::failed_precondition(text)
            }
            Ok(None) => status(&error),
            Err(error) => status(&error),
        }
    }

    /// Flags of one escrow or of all, by escrow and participant.
    async fn flags(&self, escrow_id: u64) -> Result<Vec<FlagView>, Status> {
        let mut flags = Vec::new();
        for id in self.gateway.escrows().into_iter().filter(|id| escrow_id == 0 || *id == escrow_id) {
            match self.gateway.view(id).await {
                Ok(view) => flags.extend(view.flags),
                // It ended in between.
                Err(GatewayError::NoSession(_)) => {}
                Err(error) => return Err(status(&error)),
            }
        }
        flags.sort_by_key(|flag| (flag.escrow_id, flag.participant));
        Ok(flags)
    }

    /// Sessions by id: open ones as they are, ended ones as they ended.
    async fn sessions(&self) -> Result<BTreeMap<u64, pb::EscrowSession>, Status> {
        let ended =
            blocking(&self.gateway.0, |inner| inner.journal.escrows()).await.map_err(|e| status(&e))?;
        let mut ended: Vec<_> = ended.into_iter().map(|(id, entry)| (id, entry.shown(id))).collect();
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        ended.drain(..surplus);
        let mut sessions: BTreeMap<u64, _> = ended.into_iter().collect();
        for id in self.gateway.escrows() {
            match self.gateway.view(id).await {
                Ok(view) => drop(sessions.insert(id, view.session)),
                Err(GatewayError::NoSession(_)) => {}
                Err(error) => return Err(status(&error)),
            }
        }
        Ok(sessions)
    }
}

/// How far the end of a session is, and what it waits for.
fn what_follows(session: &pb::EscrowSession, drain_ms: u64) -> String {
    let id = session.escrow_id;
    let slots: usize = session.participants.iter().map(|row| row.slots.len()).sum();
    let need = match session.signatures_need {
        0 => slots.saturating_mul(2).saturating_div(3).saturating_add(1),
        need => usize::try_from(need).unwrap_or(usize::MAX),
    };
    let text = match session.phase.as_str() {
        "active" | "ending" => format!(
            "no more requests are taken; those under way have up to {} s, then {need} of {slots} slots sign the end, and the \
             chain pays",
            drain_ms.div_ceil(1000)
        ),
        "finalizing" => {
            format!("the last nonces are written, then {need} of {slots} slots sign, and the chain pays")
        }
        "frozen" if session.signatures_have < session.signatures_need => {
            let missing = session.participants.iter().filter(|row| !row.signed).map(|row| {
                let why = match (row.flagged, row.reachable) {
                    (true, _) => "flagged",
                    (false, Some(false)) => "not reached",
                    (false, _) => "asked",
                };
                format!("{} ({why})", row.address)
            });
            let missing = missing.collect::<Vec<_>>().join(", ");
            format!(
                "{} of {need} signatures are there, missing: {missing}; without them a dispute pays, from block {} on",
                session.signatures_have, session.expires_at
            )
        }
        "frozen" => format!("{need} of {slots} slots signed; the settlement is on its way to the chain"),
        phase => format!("the session is {phase}"),
    };
    format!("{text}; `holdfastd gateway escrows {id}` shows how far it is")
}

/// Key of a page: escrow and participant.
fn page_key(flag: &FlagView) -> Vec<u8> {
    [flag.escrow_id.to_be_bytes().as_slice(), &flag.participant.0].concat()
}

fn status(error: &GatewayError) -> Status {
    let text = error.to_string();
    match error {
        GatewayError::NoSession(_) | GatewayError::Unknown(_) => Status::not_found(text),
        GatewayError::Verb(VerbError::NotFlagged | VerbError::WrongPhase) => {
            Status::failed_precondition(text)
        }
        GatewayError::Stopping => Status::unavailable(text),
        _ => Status::internal(text),
    }
}

type Watch = Pin<Box<dyn Stream<Item = Result<pb::WatchDivergenceResponse, Status>> + Send>>;

#[tonic::async_trait]
impl GatewayService for Operators {
    async fn announce(
        &self,
        request: Request<pb::AnnounceRequest>,
    ) -> Result<Response<pb::AnnounceResponse>, Status> {
        let inner = &self.gateway.0;
        let credential = request.metadata().get_bin(auth::METADATA).and_then(|value| value.to_bytes().ok());
        let request = request.into_inner();
        let now_ms = inner.clock.now().unix_ms;
        let signer = auth::verify(
            credential.as_deref(),
            &inner.chain_id,
            request.escrow_id,
            "Announce",
            &request,
            now_ms,
        )
        .map_err(|error| Status::unauthenticated(error.to_string()))?;
        let participant = self.address(&request.participant)?;
        if !(1..=BOOT_ID_MAX).contains(&request.boot_id.len()) {
            return Err(Status::invalid_argument(format!("boot_id: give 1 to {BOOT_ID_MAX} bytes")));
        }
        let heard = self.gateway.announce(request.escrow_id, participant, signer, request.boot_id).await;
        match heard.map_err(|e| status(&e))? {
            true => Ok(Response::new(pb::AnnounceResponse {})),
            false => {
                Err(Status::permission_denied("the signer is neither the participant nor its bound key"))
            }
        }
    }

    async fn divergence(
        &self,
        request: Request<pb::DivergenceRequest>,
    ) -> Result<Response<pb::DivergenceResponse>, Status> {
        let pb::DivergenceRequest { escrow_id, participant } = request.into_inner();
        let participant = self.address(&participant)?;
        let view = self.gateway.view(escrow_id).await.map_err(|e| status(&e))?;
        let flag = view.flags.iter().find(|flag| flag.participant == participant);
        let flag = flag.ok_or_else(|| Status::not_found("the participant is not flagged in this escrow"))?;
        Ok(Response::new(pb::DivergenceResponse { flag: Some(driver::flag(flag, &self.gateway.0.hrp)) }))
    }

    async fn divergences(
        &self,
        request: Request<pb::DivergencesRequest>,
    ) -> Result<Response<pb::DivergencesResponse>, Status> {
        let request = request.into_inner();
        let phase = pb::RepairPhase::try_from(request.phase)
            .map_err(|_| Status::invalid_argument("phase: give one of RepairPhase"))?;
        let limit = match usize::try_from(request.page_limit).unwrap_or(usize::MAX) {
            0 => PAGE_MAX,
            limit if limit <= PAGE_MAX => limit,
            _ => return Err(Status::invalid_argument(format!("page_limit: give 1 to {PAGE_MAX}"))),
        };
        if !matches!(request.page_key.len(), 0 | 28) {
            return Err(Status::invalid_argument("page_key: give next_key of the page before"));
        }
        if request.escrow_id != 0 && !self.gateway.escrows().contains(&request.escrow_id) {
            let id = request.escrow_id;
            let known = blocking(&self.gateway.0, move |inner| inner.journal.escrow(id)).await;
            if known.map_err(|e| status(&e))?.is_none() {
                return Err(status(&GatewayError::NoSession(id)));
            }
        }
        let mut flags = self.flags(request.escrow_id).await?;
        let hrp = &self.gateway.0.hrp;
        flags.retain(|flag| {
            let wanted = phase == pb::RepairPhase::Unspecified || driver::flag(flag, hrp).phase() == phase;
            wanted && (request.page_key.is_empty() || page_key(flag) > request.page_key)
        });
        let more = flags.len() > limit;
        flags.truncate(limit);
        let next_key = flags.last().filter(|_| more).map(page_key).unwrap_or_default();
        let flags = flags.iter().map(|flag| driver::flag(flag, hrp)).collect();
        Ok(Response::new(pb::DivergencesResponse { flags, next_key }))
    }

    type WatchDivergenceStream = Watch;

    async fn watch_divergence(
        &self,
        request: Request<pb::WatchDivergenceRequest>,
    ) -> Result<Response<Watch>, Status> {
        let place = Arc::clone(&self.watchers).try_acquire_owned();
        let place =
            place.map_err(|_| Status::resource_exhausted(format!("at most {WATCHERS} watch at a time")))?;
        let inner = Arc::clone(&self.gateway.0);
        let (sender, rows) = mpsc::channel(WATCH_ROWS);
        let mut next = request.into_inner().from_seq;
        self.gateway.0.spawn("watcher", async move {
            let _place = place;
            let mut last = inner.journal.last_event();
            loop {
                // Seen before it is read: what comes in between wakes us again.
                last.borrow_and_update();
                let page = blocking(&inner, move |inner| inner.journal.events(next, PAGE_MAX)).await;
                let (full, page) = match page {
                    Ok(page) => (page.len() == PAGE_MAX, page),
                    Err(error) => return drop(sender.send(Err(status(&error))).await),
                };
                for row in page {
                    next = row.seq.saturating_add(1);
                    if sender.send(Ok(row)).await.is_err() {
                        return;
                    }
                }
                if full {
                    continue;
                }
                tokio::select! {
                    changed = last.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rows))))
    }

    async fn force_teach(
        &self,
        request: Request<pb::ForceTeachRequest>,
    ) -> Result<Response<pb::ForceTeachResponse>, Status> {
        self.admit(&request)?;
        let pb::ForceTeachRequest { escrow_id, participant, operator, reason } = request.into_inner();
        let asked = (escrow_id, participant, operator, reason);
        let (audit_seq, flag) = self.verb(asked, "force_teach", Verb::ForceTeach).await?;
        Ok(Response::new(pb::ForceTeachResponse { audit_seq, flag }))
    }

    async fn give_up(
        &self,
        request: Request<pb::GiveUpRequest>,
    ) -> Result<Response<pb::GiveUpResponse>, Status> {
        self.admit(&request)?;
        let pb::GiveUpRequest { escrow_id, participant, operator, reason } = request.into_inner();
        let asked = (escrow_id, participant, operator, reason);
        let (audit_seq, flag) = self.verb(asked, "give_up", Verb::GiveUp).await?;
        Ok(Response::new(pb::GiveUpResponse { audit_seq, flag }))
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        self.admit(&request)?;
        let pb::ReleaseRequest { escrow_id, participant, operator, reason } = request.into_inner();
        let asked = (escrow_id, participant, operator, reason);
        let (audit_seq, flag) = self.verb(asked, "release", Verb::Release).await?;
        Ok(Response::new(pb::ReleaseResponse { audit_seq, flag }))
    }

    async fn finalize(
        &self,
        request: Request<pb::FinalizeRequest>,
    ) -> Result<Response<pb::FinalizeResponse>, Status> {
        self.admit(&request)?;
        let pb::FinalizeRequest { escrow_id, operator, reason } = request.into_inner();
        let audit = self.audit(escrow_id, None, "finalize", operator, reason)?;
        let audit_seq = match self.gateway.finalize_audited(audit).await {
            Ok(seq) => seq,
            Err(error) => return Err(self.refusal(error).await),
        };
        let next = match self.gateway.view(escrow_id).await {
            Ok(view) => what_follows(&view.session, self.gateway.0.settings.core.drain_ms),
            // It was quick.
            Err(_) => "the session is over".to_owned(),
        };
        Ok(Response::new(pb::FinalizeResponse { audit_seq, next }))
    }

    async fn escrows(&self, _: Request<pb::EscrowsRequest>) -> Result<Response<pb::EscrowsResponse>, Status> {
        let escrows = self.sessions().await?.into_values().collect();
        Ok(Response::new(pb::EscrowsResponse { escrows }))
    }

    async fn escrow(
        &self,
        request: Request<pb::EscrowRequest>,
    ) -> Result<Response<pb::EscrowResponse>, Status> {
        let id = request.into_inner().escrow_id;
        let session = match self.gateway.view(id).await {
            Ok(view) => view.session,
            Err(GatewayError::NoSession(_)) => {
                let entry = blocking(&self.gateway.0, move |inner| inner.journal.escrow(id)).await;
                let entry = entry.map_err(|e| status(&e))?;
                entry.ok_or_else(|| Status::not_found("not an escrow of this gateway"))?.shown(id)
            }
            Err(error) => return Err(status(&error)),
        };
        Ok(Response::new(pb::EscrowResponse { escrow: Some(session) }))
    }
}
