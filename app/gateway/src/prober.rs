//! Probes: small inferences on the chain for members that a breaker has taken out and that wait for their probe.
//!
//! What a session counts never settles a probe, so without these a network that works by escrows alone would exclude
//! and never restore. One at most for each member and cooldown, noted before it is sent, within a budget of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_host::client;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::serve_response::Event;
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use crate::chain::{Order, ProbeReady, ProbeStart, deliver};
use crate::driver::{GatewayError, Inner, blocking};
use crate::metrics;

/// What is asked.
const BODY: &[u8] = br#"{"messages":[{"role":"user","content":"ping"}],"max_tokens":4}"#;
/// What is paid for: the content, 64 for its message and 64, as any Start counts.
const PROMPT_TOKENS: u32 = 132;
/// As in the body.
const MAX_TOKENS: u32 = 4;

/// Looks for members that wait for a probe until the gateway stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut trouble: Option<String> = None;
    while !inner.stopping() {
        sleep(inner.poll()).await;
        let mut models = BTreeSet::new();
        for model in inner.models.iter().filter(|model| models.insert((*model).clone())) {
            match look(&inner, model).await {
                Ok(()) => trouble = None,
                Err(error) => {
                    // The same trouble again and again is said once.
                    let text = error.to_string();
                    if trouble.as_ref() != Some(&text) {
                        metrics::probe(model, "failed");
                        tracing::warn!(model, error = text, "gateway_probe_not_sent");
                        trouble = Some(text);
                    }
                }
            }
        }
    }
}

async fn look(inner: &Arc<Inner>, model: &str) -> Result<(), GatewayError> {
    let ready = inner.chain.probe_ready(model).await?;
    for member in ready {
        let ProbeReady { participant, cooldown } = member;
        let name = model.to_owned();
        if blocking(inner, move |inner| inner.journal.probed(&name, &participant, cooldown)).await? {
            continue;
        }
        let price = inner.chain.token_price().await?;
        let price = price.saturating_mul(u128::from(PROMPT_TOKENS).saturating_add(MAX_TOKENS.into()));
        let (name, budget) = (model.to_owned(), inner.settings.prober.budget);
        // Noted first: a crash costs at most one probe that is not sent.
        blocking(inner, move |inner| inner.journal.probe(&name, &participant, cooldown, price, budget))
            .await?;
        inner.spawn("probe", probe(Arc::clone(inner), model.to_owned(), member));
    }
    Ok(())
}

async fn probe(inner: Arc<Inner>, model: String, member: ProbeReady) {
    let participant = member.participant.to_bech32(&inner.hrp);
    let result = match serve(&inner, &model, &member).await {
        Ok(()) => "answered",
        Err(ProbeError::Refused(text)) => {
            tracing::warn!(model, participant, error = text, "gateway_probe_refused");
            "refused"
        }
        Err(ProbeError::Host(text)) => {
            tracing::warn!(model, participant, error = text, "gateway_probe_unanswered");
            "unanswered"
        }
    };
    metrics::probe(&model, result);
    tracing::info!(model, participant, result, "gateway_probe");
}

enum ProbeError {
    /// The chain took no Start.
    Refused(String),
    /// The host did not answer.
    Host(String),
}

async fn serve(inner: &Inner, model: &str, member: &ProbeReady) -> Result<(), ProbeError> {
    let (epoch, generation, attempt) = member.cooldown;
    // Names the cooldown, so that a second gateway with this key would be refused; 38 of 64 characters.
    let whose = Sha256::digest([inner.key.address().0, member.participant.0].concat());
    let tag: String = whose.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let model_tag: String = Sha256::digest(model).iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    let inference_id = format!("probe-{model_tag}-{tag}-{epoch}-{generation}-{attempt}");
    let start = ProbeStart {
        inference_id: inference_id.clone(),
        model: model.to_owned(),
        assigned_to: member.participant,
        prompt_hash: Sha256::digest(BODY).into(),
        prompt_tokens: PROMPT_TOKENS,
        max_tokens: MAX_TOKENS,
    };
    let refused = |error: &dyn std::fmt::Display| ProbeError::Refused(error.to_string());
    deliver(&*inner.chain, Order::Probe(start), inner.poll()).await.map_err(|error| refused(&error))?;
    let url = inner.hosts.url(&member.participant).ok_or_else(|| ProbeError::Host("no host_url".into()))?;
    let addr = url.strip_prefix("http://").unwrap_or(&url).trim_end_matches('/').to_owned();
    let deadline_ms = inner.settings.prober.deadline_ms;
    let request = pb::ServeRequest { inference_id, body: BODY.to_vec(), deadline_ms };
    let answer = async {
        let now_ms = inner.clock.now().unix_ms;
        let mut events = client::serve(&addr, &inner.key, &inner.chain_id, request, now_ms).await?;
        while let Some(piece) = events.message().await? {
            match piece.event {
                Some(Event::Finished(_)) => return Ok(None),
                Some(Event::Failed(failed)) => return Ok(Some(failed.kind)),
                _ => {}
            }
        }
        Ok::<_, tonic::Status>(Some(0))
    };
    match timeout(Duration::from_millis(deadline_ms), answer).await {
        Ok(Ok(None)) => Ok(()),
        Ok(Ok(Some(kind))) => Err(ProbeError::Host(format!("failed with kind {kind}"))),
        Ok(Err(status)) => Err(ProbeError::Host(status.message().to_owned())),
        Err(_) => Err(ProbeError::Host("no answer in time".into())),
    }
}
