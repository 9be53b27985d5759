//! Calls of other processes: ChallengeStart at executors, Announce at gateways; and VoteTimeout, which needs the first.

use std::time::Duration;

use holdfast_proto::holdfast::gateway::v1 as gateway;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use tokio::time::{sleep, timeout};
use tonic::{Request, Status};

use super::{Sessions, VOTE_WAIT};
use crate::client;
use crate::session::{VoteStep, errors};
use crate::wire;

/// Longest wait for an executor's answer (escrow-details 7).
const CHALLENGE: Duration = Duration::from_secs(10);
/// Longest wait for a gateway's answer.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// Tries to reach a gateway, and the first pause between two; it doubles.
const ANNOUNCE_TRIES: u32 = 6;
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(2);

impl Sessions {
    pub(crate) async fn vote_timeout(
        &self,
        call: Request<pb::VoteTimeoutRequest>,
    ) -> Result<pb::VoteTimeoutResponse, Status> {
        let request = call.into_inner();
        let turn = timeout(VOTE_WAIT, self.shared.votes.acquire()).await;
        let _turn = turn
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| wire::status(errors::unavailable("too many votes wait for their turn")))?;
        let unix_s = self.unix_s();
        let (executor, request, ticket) =
            match self.core(move |core| core.vote_timeout(unix_s, &request)).await? {
                VoteStep::Voted(vote) => return Ok(vote),
                VoteStep::Ask { executor, request, ticket } => (executor, request, ticket),
            };
        // Without the chain nobody knows where the executor is: no vote, as it may be there.
        let url = self.shared.source.host_url(executor).await;
        let url = url.map_err(|error| wire::status(errors::unavailable(error.to_string())))?;
        let answer = match url {
            Some(url) => match timeout(CHALLENGE, self.challenge(&url, request)).await {
                Ok(answer) => answer?,
                Err(_) => None,
            },
            None => None,
        };
        self.core(move |core| core.vote_answered(&ticket, answer.as_ref())).await
    }

    /// Asks an executor, and teaches it what it lacks; `None` when it takes nothing up. An error is no vote: the gateway gave
    /// the executor another diff than us.
    async fn challenge(
        &self,
        url: &str,
        mut request: pb::ChallengeStartRequest,
    ) -> Result<Option<pb::ChallengeStartResponse>, Status> {
        let shared = &self.shared;
        let (escrow, inference) = (request.escrow_id, request.inference_id);
        let (mut have, mut looked) = (None, false);
        loop {
            let now_ms = shared.clock.unix_ms();
            let asked =
                client::challenge_start(url, &shared.key, &shared.chain_id, request.clone(), now_ms).await;
            let error = match asked {
                Ok(answer) => return Ok(Some(answer)),
                Err(status) => wire::escrow_error(&status),
            };
            tracing::info!(escrow, inference, cause = ?error.code(), error.message, "a challenged executor refused");
            if error.code() == Cause::DiffFork {
                let mut error = error;
                if error.diff.is_empty() {
                    // Too long for an error.
                    let request = pb::GetDiffsRequest { escrow_id: escrow, from: error.nonce, max: 1 };
                    let asked = client::get_diffs(url, &shared.key, &shared.chain_id, request, now_ms).await;
                    error.diff =
                        asked.ok().and_then(|reply| reply.diffs.into_iter().next()).unwrap_or_default();
                }
                let forked = self.core(move |core| Ok(core.forked_by_gateway(escrow, &error))).await?;
                let text = "the gateway signed another diff for the executor than for this host";
                return if forked { Err(wire::status(errors::policy(text))) } else { Ok(None) };
            }
            let next = if error.code() == Cause::Behind {
                // Each round must bring it further.
                if have.is_some_and(|before| error.have_nonce <= before) {
                    return Ok(None);
                }
                have = Some(error.have_nonce);
                self.core(move |core| core.challenge_with_log(&request, error.have_nonce)).await
            } else if !looked {
                // Where its log would differ from ours: at its end if that is below the start, or else at the start.
                looked = true;
                let at =
                    if (1..inference).contains(&error.have_nonce) { error.have_nonce } else { inference };
                self.core(move |core| core.challenge_at(&request, at).map(Some)).await
            } else {
                return Ok(None);
            };
            let Ok(Some(next)) = next else { return Ok(None) };
            request = next;
        }
    }

    pub(crate) async fn challenge_start(
        &self,
        call: Request<pb::ChallengeStartRequest>,
    ) -> Result<pb::ChallengeStartResponse, Status> {
        let (metadata, _, request) = call.into_parts();
        let caller = self.caller(&metadata, request.escrow_id, "ChallengeStart", &request)?;
        let escrow_id = request.escrow_id;
        if self.core(move |core| Ok(core.terms(escrow_id).is_none())).await? {
            let info = self.shared.source.escrow(escrow_id).await;
            let info = info.map_err(|error| wire::status(errors::unavailable(error.to_string())))?;
            let info = info.ok_or_else(|| wire::status(errors::policy("the chain has no such escrow")))?;
            self.core(move |core| core.adopt(&info.terms, caller)).await?;
        }
        let (this, unix_s) = (self.clone(), self.unix_s());
        self.core(move |core| {
            let step = core.challenge_start(unix_s, &request, caller)?;
            this.begin(request.escrow_id, request.inference_id, step.start, None);
            Ok(step.reply)
        })
        .await
    }

    /// Tells the gateway of each session that this host has started.
    pub(super) async fn announce_all(&self) {
        let Ok(escrows) = self.core(|core| Ok(core.escrows())).await else { return };
        let mut tasks = tokio::task::JoinSet::new();
        for escrow_id in escrows {
            let this = self.clone();
            tasks.spawn(async move { this.announce(escrow_id).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn announce(&self, escrow_id: u64) {
        let shared = &self.shared;
        let mut pause = ANNOUNCE_PAUSE;
        for _ in 0..ANNOUNCE_TRIES {
            let told = async {
                let info = shared.source.escrow(escrow_id).await.map_err(|error| error.to_string())?;
                let Some(url) = info.map(|info| info.gateway_url).filter(|url| !url.is_empty()) else {
                    return Ok(false);
                };
                let request = gateway::AnnounceRequest {
                    escrow_id,
                    participant: shared.owner.to_bech32(&shared.config.hrp),
                    boot_id: shared.boot_id.clone(),
                };
                let now_ms = shared.clock.unix_ms();
                client::announce(&url, &shared.key, &shared.chain_id, request, now_ms)
                    .await
                    .map_err(|status| status.to_string())?;
                Ok::<bool, String>(true)
            };
            match timeout(ANNOUNCE, told).await {
                Ok(Ok(told)) => {
                    tracing::debug!(escrow = escrow_id, told, "announced");
                    return;
                }
                Ok(Err(error)) => tracing::info!(escrow = escrow_id, error, "the gateway was not reached"),
                Err(_) => tracing::info!(escrow = escrow_id, "the gateway did not answer"),
            }
            sleep(pause).await;
            pause *= 2;
        }
    }
}
