//! Several escrows for a model: the next is opened before nonces, coins or time of the old one end; the old one is
//! finalized and settled.
//!
//! | an escrow that takes requests | with a budget | without |
//! |---|---|---|
//! | has less than `left_bp` of its nonces or coins, or less than `blocks` until it expires | the next is opened, then this one is finalized | – |
//! | has no nonce or no coin for another diff, or less than `blocks` until it expires | finalized | finalized |
//!
//! The budget is kept beside the sessions: a restart does not spend it again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use crate::chain::NewEscrow;
use crate::driver::{Gateway, GatewayError, Glance, JournalError};
use crate::metrics;
use crate::settings::{Retry, Rotation};

/// Name of the budget.
const BUDGET: &str = "rotation";
/// After a failure to open the next one.
const RETRY: Retry = Retry { first_ms: 5_000, max_ms: 300_000, attempts: u32::MAX };

/// An escrow as rotation sees it.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) escrow_id: u64,
    pub(crate) model: String,
    pub(crate) amount: u128,
    pub(crate) max_nonce: u64,
    pub(crate) slots: u32,
    pub(crate) fee_per_nonce: u128,
    pub(crate) blocks_left: u64,
    pub(crate) glance: Glance,
}

/// What is to be done about an escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Nothing yet.
    Nothing,
    /// The next one should be opened.
    Next,
    /// It cannot go on.
    End,
}

fn due(standing: &Standing, rotation: &Rotation) -> Due {
    let Standing { glance, .. } = standing;
    if glance.nonces_left == 0
        || glance.balance < standing.fee_per_nonce
        || standing.blocks_left < rotation.blocks
    {
        return Due::End;
    }
    let below =
        |left: u128, whole: u128| left.saturating_mul(10_000) < whole.saturating_mul(rotation.left_bp.into());
    if below(glance.nonces_left.into(), standing.max_nonce.into()) || below(glance.balance, standing.amount) {
        return Due::Next;
    }
    Due::Nothing
}

/// Looks after the escrows of every model until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let inner = gateway.0.clone();
    let mut failures: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    while !inner.stopping() {
        sleep(inner.poll()).await;
        let Ok(height) = inner.chain.height().await else { continue };
        for standing in gateway.standings(height).into_iter().filter(|s| s.glance.active) {
            look(&gateway, &standing, height, &mut failures).await;
        }
    }
}

async fn look(
    gateway: &Gateway,
    standing: &Standing,
    height: u64,
    failures: &mut BTreeMap<String, (u32, u64)>,
) {
    let rotation = &gateway.0.settings.rotation;
    let due = due(standing, rotation);
    if due == Due::Nothing {
        return;
    }
    let model = &standing.model;
    let mut replaced = gateway.standings(height).iter().any(|other| {
        other.escrow_id != standing.escrow_id
            && other.model == *model
            && other.glance.active
            && self::due(other, rotation) == Due::Nothing
    });
    if !replaced && rotation.budget > 0 {
        let now = gateway.0.clock.now().mono_ms;
        let (failed, again_at) = failures.get(model).copied().unwrap_or_default();
        if now >= again_at {
            replaced = match open_next(gateway, standing).await {
                Ok(next) => {
                    failures.remove(model);
                    metrics::rotation(model, "opened");
                    tracing::info!(old = standing.escrow_id, next, model, "gateway_rotation_opened");
                    true
                }
                Err(error) => {
                    let over = matches!(error, GatewayError::Journal(JournalError::Budget { .. }));
                    metrics::rotation(model, if over { "budget" } else { "failed" });
                    tracing::warn!(escrow = standing.escrow_id, model, %error, "gateway_rotation_failed");
                    let failed = failed.saturating_add(1);
                    failures.insert(model.clone(), (failed, now.saturating_add(RETRY.pause_ms(failed))));
                    false
                }
            };
        }
    }
    if replaced || due == Due::End {
        match gateway.finalize(standing.escrow_id).await {
            Ok(()) => {
                tracing::info!(escrow = standing.escrow_id, model, replaced, "gateway_rotation_finalized")
            }
            Err(error) => tracing::warn!(escrow = standing.escrow_id, %error, "gateway_finalize_failed"),
        }
        // Until it stops taking requests the next look would do it again.
        sleep(Duration::from_millis(100)).await;
    }
}

async fn open_next(gateway: &Gateway, old: &Standing) -> Result<u64, GatewayError> {
    let rotation = &gateway.0.settings.rotation;
    let or = |set: u128, old: u128| if set == 0 { old } else { set };
    let new = NewEscrow {
        model: old.model.clone(),
        amount: or(rotation.amount, old.amount),
        slots: if rotation.slots == 0 { old.slots } else { rotation.slots },
        gateway_url: rotation.gateway_url.clone(),
    };
    gateway.create(new, Some((BUDGET, rotation.budget))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escrow_is_replaced_below_a_tenth_of_nonces_or_coins_and_ended_when_it_cannot_go_on() {
        let rotation = Rotation { budget: 1, left_bp: 1_000, blocks: 50, ..Rotation::default() };
        let standing = |nonces_left, balance, blocks_left| Standing {
            escrow_id: 1,
            model: "m".into(),
            amount: 1_000_000,
            max_nonce: 20_000,
            slots: 4,
            fee_per_nonce: 100,
            blocks_left,
            glance: Glance { active: true, nonces_left, balance, ..Glance::default() },
        };
        for (nonces, coins, blocks, wanted) in [
            (2_000, 100_000, 50, Due::Nothing),
            (1_999, 100_000, 50, Due::Next),
            (2_000, 99_999, 50, Due::Next),
            (0, 100_000, 50, Due::End),
            (2_000, 99, 50, Due::End),
            (2_000, 100_000, 49, Due::End),
        ] {
            assert_eq!(due(&standing(nonces, coins, blocks), &rotation), wanted, "{nonces} {coins} {blocks}");
        }
    }
}
