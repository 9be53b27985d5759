//! What is owed to the chain: kept before it is sent, sent again until it is paid, also by the next process.
//!
//! ```text
//!  frozen, quorum ──► kept (durable) ──► row settled? ──► MsgSettleEscrow ──► row settled ──► ended (durable)
//!                                          ▲   └ yes: somebody did ────────────────┘
//!                                          └── pause, bounded ◄── refused, void, unreachable
//! ```

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::actor::Input;
use super::journal::{Ended, Owed};
use super::{GatewayError, Inner, blocking};
use crate::chain::{DeliverError, Order, deliver};
use crate::core::{ChainNews, Event};
use crate::metrics;

impl Inner {
    /// Keeps what is owed and sees to it that it is paid. One that is under way already stays.
    pub(super) fn owe(self: &Arc<Self>, escrow_id: u64, owed: Owed) {
        if self.settling().insert(escrow_id) {
            self.spawn("settlement", pay(Arc::clone(self), escrow_id, owed));
        }
    }

    fn settling(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeSet<u64>> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes an escrow off the list of those that are being paid, whatever ends the task.
struct Under(Arc<Inner>, u64);

impl Drop for Under {
    fn drop(&mut self) {
        self.0.settling().remove(&self.1);
    }
}

async fn pay(inner: Arc<Inner>, escrow_id: u64, owed: Owed) {
    let _under = Under(Arc::clone(&inner), escrow_id);
    let retry = inner.settings.settle;
    let kept = owed.clone();
    let mut failed = 0;
    // Before anything is sent: a restart goes on from here.
    while let Err(error) = {
        let kept = kept.clone();
        blocking(&inner, move |inner| inner.journal.update(escrow_id, |entry| entry.owed = Some(kept))).await
    } {
        failed += 1;
        tracing::error!(escrow = escrow_id, %error, "gateway_settlement_not_kept");
        if failed >= retry.attempts {
            return;
        }
        sleep(Duration::from_millis(retry.pause_ms(failed))).await;
    }
    failed = 0;
    loop {
        match attempt(&inner, escrow_id, &owed).await {
            Ok(Step::Paid(result)) => {
                metrics::settlement(result);
                tracing::info!(escrow = escrow_id, nonce = owed.settlement.nonce, result, "gateway_settled");
                return finish(&inner, escrow_id).await;
            }
            Ok(Step::Wait) => {
                failed = 0;
                sleep(inner.poll()).await;
            }
            Err(error) => {
                failed += 1;
                let refused = matches!(&error, GatewayError::Deliver(DeliverError::Chain(e))
                    if matches!(e, holdfast_app::grpc::ChainError::Refused { .. }));
                metrics::settlement(if refused { "refused" } else { "failed" });
                if failed >= retry.attempts {
                    tracing::error!(
                        escrow = escrow_id, attempts = failed, %error,
                        "gateway_settlement_given_up: finalize the escrow again, or restart the gateway"
                    );
                    return;
                }
                tracing::warn!(escrow = escrow_id, attempt = failed, %error, "gateway_settlement_failed");
                sleep(Duration::from_millis(retry.pause_ms(failed))).await;
            }
        }
    }
}

enum Step {
    /// The coins are gone.
    Paid(&'static str),
    /// Not yet time, or the dispute's window runs.
    Wait,
}

async fn attempt(inner: &Arc<Inner>, escrow_id: u64, owed: &Owed) -> Result<Step, GatewayError> {
    use crate::chain::EscrowStatus::Disputed;
    let row = inner.chain.escrow(escrow_id).await?.ok_or(GatewayError::Unknown(escrow_id))?;
    if row.status.is_final() {
        return Ok(Step::Paid("already"));
    }
    if !owed.dispute {
        deliver(&*inner.chain, Order::Settle(Box::new(owed.settlement.clone())), inner.poll()).await?;
        return Ok(Step::Paid("settled"));
    }
    // A dispute that was brought is paid at the end of its window.
    let brought =
        row.status == Disputed && row.disputed_nonce.is_some_and(|nonce| nonce >= owed.settlement.nonce);
    if brought || inner.chain.height().await? < row.expires_at {
        return Ok(Step::Wait);
    }
    deliver(&*inner.chain, Order::Dispute(Box::new(owed.settlement.clone())), inner.poll()).await?;
    Ok(Step::Wait)
}

async fn finish(inner: &Arc<Inner>, escrow_id: u64) {
    let kept = blocking(inner, move |inner| {
        inner.journal.update(escrow_id, |entry| (entry.owed, entry.ended) = (None, Some(Ended::Settled)))
    });
    if let Err(error) = kept.await {
        // The next start finds the row settled.
        tracing::error!(escrow = escrow_id, %error, "gateway_end_not_kept");
    }
    if let Some(session) = inner.session(escrow_id) {
        let _ = session.inbox.send(Input::Event(Event::Chain(ChainNews::Settled))).await;
    }
}
