//! Sessions that their gateway left: after the expiry the hosts bring each other to one nonce, sign it and have it paid by
//! `MsgDisputeEscrow` (escrow-details 4). Whoever is not paid by then is paid nothing.
//!
//! ```text
//!  overdue on the chain ─► diffs from and for each peer ─► highest nonce of a quorum ─► signatures ─► chain
//! ```

use std::time::Duration;

use holdfast_escrow::session::settle::Settlement;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Sessions;
use crate::client;

/// Longest time that a peer takes: a log of many nonces comes in pieces.
const LEVEL: Duration = Duration::from_secs(120);
/// Pieces of a log, at most.
const PIECES: usize = 200;
/// Longest wait for one answer.
const ASK: Duration = Duration::from_secs(10);
/// Blocks by which each slot waits for the one before it, so that one state is not brought by all; and for how many slots.
const TURN_BLOCKS: u64 = 5;
const TURNS: u64 = 50;

impl Sessions {
    /// Disputes what is due.
    pub(super) async fn dispute_left(&self) {
        let Ok(escrows) = self.core(|core| Ok(core.escrows())).await else { return };
        for escrow_id in escrows {
            match self.dispute(escrow_id).await {
                Ok(None) => {}
                Ok(Some(nonce)) => tracing::warn!(escrow = escrow_id, nonce, "left by its gateway: disputed"),
                Err(error) => {
                    tracing::warn!(escrow = escrow_id, error, "left by its gateway, not disputed yet")
                }
            }
        }
    }

    /// The nonce that was brought; `None` when nothing is to be done.
    async fn dispute(&self, escrow_id: u64) -> Result<Option<u64>, String> {
        let shared = &self.shared;
        let overdue = shared.source.overdue(escrow_id).await.map_err(|error| error.to_string())?;
        let Some(overdue) = overdue else { return Ok(None) };
        let text = |status: tonic::Status| status.message().to_owned();
        let (config, ours) = self
            .core(move |core| {
                core.expire(escrow_id);
                core.state(escrow_id).map(|state| (state.config().clone(), state.nonce()))
            })
            .await
            .map_err(text)?;
        let turn = config.slots_of(&shared.owner).first().map_or(TURNS, |slot| u64::from(*slot).min(TURNS));
        let begin = overdue.from.saturating_add(turn.saturating_mul(TURN_BLOCKS));
        if overdue.height < begin || ours == 0 {
            return Ok(None);
        }
        let mut peers = JoinSet::new();
        for owner in config.owners().into_keys().filter(|owner| *owner != shared.owner) {
            let this = self.clone();
            peers.spawn(async move {
                let url = this.shared.source.host_url(owner).await.ok().flatten()?;
                let have = timeout(LEVEL, this.level(&url, escrow_id)).await.ok().flatten()?;
                Some((owner, url, have))
            });
        }
        let peers: Vec<(Address, String, u64)> = peers.join_all().await.into_iter().flatten().collect();
        let ours = self.core(move |core| Ok(core.state(escrow_id)?.nonce())).await.map_err(text)?;
        // The highest nonce that a quorum holds.
        let mut held: Vec<(u64, u64)> =
            peers.iter().map(|(owner, _, have)| ((*have).min(ours), config.weight(owner))).collect();
        held.push((ours, config.weight(&shared.owner)));
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut weight = 0u64;
        let quorum = held.iter().find(|(_, slots)| {
            weight = weight.saturating_add(*slots);
            weight >= config.quorum()
        });
        let Some((most, _)) = quorum.copied() else {
            return Err(format!("{weight} slots answer, {} are needed", config.quorum()));
        };
        let peers: Vec<(Address, String)> = peers.into_iter().map(|(owner, url, _)| (owner, url)).collect();
        // A gateway that signed two diffs at one nonce has parted its hosts from there on: whoever agrees at a nonce agrees
        // at all below it.
        let (mut signed, mut parted, mut best) = (overdue.brought, most.saturating_add(1), None);
        let mut nonce = most;
        while signed < nonce && nonce < parted {
            match self.summary_at(escrow_id, nonce, &peers).await? {
                Some(summary) => (signed, best) = (nonce, Some(summary)),
                None => parted = nonce,
            }
            nonce = signed.saturating_add(parted.saturating_sub(signed) / 2);
        }
        match best {
            Some(summary) => {
                shared.source.dispute(summary).await.map_err(|error| error.to_string())?;
                Ok(Some(signed))
            }
            None if most <= overdue.brought => Ok(None),
            None => Err(format!("no quorum signs a nonce above {}", overdue.brought)),
        }
    }

    /// The state at `nonce` with the signatures of a quorum, if they are given.
    async fn summary_at(
        &self,
        escrow_id: u64,
        nonce: u64,
        peers: &[(Address, String)],
    ) -> Result<Option<Settlement>, String> {
        let mut asked = JoinSet::new();
        for (owner, url) in peers.iter().cloned() {
            let this = self.clone();
            asked.spawn(async move {
                let reply = this.signatures_of(&url, escrow_id, nonce).await?;
                (reply.nonce == nonce).then_some((owner, reply.state_signature))
            });
        }
        let given: Vec<(Address, Vec<u8>)> = asked.join_all().await.into_iter().flatten().collect();
        let summary = self.core(move |core| core.summary(escrow_id, nonce, &given)).await;
        summary.map_err(|status| status.message().to_owned())
    }

    async fn signatures_of(
        &self,
        url: &str,
        escrow_id: u64,
        nonce: u64,
    ) -> Option<pb::GetSignaturesResponse> {
        let shared = &self.shared;
        let request = pb::GetSignaturesRequest { escrow_id, nonce, challenge: None };
        let now_ms = shared.clock.unix_ms();
        let asked = client::get_signatures(url, &shared.key, &shared.chain_id, request, now_ms);
        timeout(ASK, asked).await.ok()?.ok()
    }

    /// Brings a peer and this host to one nonce, as far as their logs are one; the peer's in the end.
    async fn level(&self, url: &str, escrow_id: u64) -> Option<u64> {
        let shared = &self.shared;
        let mut have = self.signatures_of(url, escrow_id, 0).await?.have_nonce;
        for _ in 0..PIECES {
            let ours = self.core(move |core| Ok(core.state(escrow_id)?.nonce())).await.ok()?;
            if have > ours {
                let request = pb::GetDiffsRequest { escrow_id, from: ours.saturating_add(1), max: 0 };
                let now_ms = shared.clock.unix_ms();
                let asked = client::get_diffs(url, &shared.key, &shared.chain_id, request, now_ms);
                let Ok(Ok(reply)) = timeout(ASK, asked).await else { break };
                let teach = pb::TeachRequest { escrow_id, diffs: reply.diffs, challenge: None };
                let taken =
                    self.core(move |core| Ok(core.teach(&teach)?.applied.unwrap_or_default().nonce)).await;
                if !taken.is_ok_and(|nonce| nonce > ours) {
                    break;
                }
            } else if have < ours {
                let from = have.saturating_add(1);
                let diffs = self.core(move |core| core.diffs_from(escrow_id, from)).await.ok()?;
                let teach = pb::TeachRequest { escrow_id, diffs, challenge: None };
                let Ok(Ok(reply)) = timeout(ASK, client::teach(url, teach)).await else { break };
                let now = reply.applied.unwrap_or_default().nonce;
                if now <= have {
                    break;
                }
                have = now;
            } else {
                break;
            }
        }
        Some(have)
    }
}
