//! News of the chain: URLs of hosts, who is excused, escrows that were paid or that only a dispute pays.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_app::grpc::ChainError;
use holdfast_types::Address;
use tokio::time::sleep;

use super::actor::Input;
use super::{Inner, Session};
use crate::core::{ChainNews, Event};
use crate::metrics;

/// What a session was told already.
#[derive(Default)]
struct Told {
    absent: Vec<Address>,
    expired: bool,
    settled: bool,
}

/// Looks at every new height until the gateway stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut told: BTreeMap<u64, Told> = BTreeMap::new();
    let (mut seen, mut trouble) = (0, None);
    while !inner.stopping() {
        match inner.chain.height().await {
            Ok(height) if height != seen => match look(&inner, height, &mut told).await {
                Ok(()) => (seen, trouble) = (height, None),
                Err(error) => say(&mut trouble, error),
            },
            Ok(_) => trouble = None,
            Err(error) => say(&mut trouble, error),
        }
        metrics::counts(&super::Gateway(Arc::clone(&inner)).counts());
        sleep(inner.poll()).await;
    }
}

/// The same trouble again and again is said once.
fn say(trouble: &mut Option<ChainError>, error: ChainError) {
    metrics::chain_error("watch");
    if trouble.as_ref() != Some(&error) {
        tracing::warn!(%error, "gateway_chain_not_watched");
        *trouble = Some(error);
    }
}

/// When an escrow can only be paid by dispute: a settlement is still taken after the expiry, so that its finalization,
/// which begins before it, has half of the window in which hosts may dispute.
fn last_resort(expires_at: u64, window: u64) -> u64 {
    expires_at.saturating_add(window / 2)
}

async fn look(inner: &Arc<Inner>, height: u64, told: &mut BTreeMap<u64, Told>) -> Result<(), ChainError> {
    inner.hosts.set_urls(inner.chain.host_urls().await?);
    let sessions: Vec<Arc<Session>> = inner.sessions().values().cloned().collect();
    told.retain(|id, _| sessions.iter().any(|session| session.escrow_id == *id));
    let mut absent: BTreeMap<String, Vec<Address>> = BTreeMap::new();
    for session in sessions {
        let model = &session.row.config.model;
        let list = match absent.get(model) {
            Some(list) => list.clone(),
            None => absent.entry(model.clone()).or_insert(inner.chain.absent(model).await?).clone(),
        };
        let told = told.entry(session.escrow_id).or_default();
        // The next height brings what an inbox that is full does not take.
        let tell = |news| session.inbox.try_send(Input::Event(Event::Chain(news))).is_ok();
        if told.absent != list && tell(ChainNews::Absent(list.clone())) {
            told.absent = list;
        }
        let row = inner.chain.escrow(session.escrow_id).await?;
        if !told.settled && row.is_some_and(|row| row.status.is_final()) {
            told.settled = tell(ChainNews::Settled);
        } else if !told.expired && height >= last_resort(session.row.expires_at, session.row.dispute_window) {
            told.expired = tell(ChainNews::Expired);
        }
    }
    Ok(())
}
