//! Several escrows for a model: the next is opened before nonces, coins or time of the old one end; the old one is
//! finalized and settled.
//!
//! | an escrow that takes requests | with a budget | without |
//! |---|---|---|
//! | has less than `left_bp` of its nonces or coins, or less than `blocks` until it expires | the next is opened, then this one is finalized | – |
//! | has no nonce, no coins for the smallest request, or less than `blocks` until it expires | the next is opened, this one is finalized | finalized |
//! | has less than `left_bp`, and refused the last [`REFUSED`] ordinary requests as too dear | as above | finalized |
//!
//! A request that no escrow can take waits while the next one is being opened, see [`renews`].
//!
//! The budget is kept beside the sessions: a restart does not spend it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::chain::NewEscrow;
use crate::driver::{Gateway, GatewayError, Glance, Inner, JournalError, blocking};
use crate::metrics;
use crate::settings::{Retry, Rotation};

/// Name of the budget.
const BUDGET: &str = "rotation";
/// After a failure to open the next one.
const RETRY: Retry = Retry { first_ms: 5_000, max_ms: 300_000, attempts: u32::MAX };

/// Ordinary requests in a row, refused as too dear, after which what is left of an escrow counts as nothing.
const REFUSED: u64 = 4;
/// Between two looks that requests ask for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// An escrow as rotation sees it.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) escrow_id: u64,
    pub(crate) model: String,
    pub(crate) amount: u128,
    pub(crate) max_nonce: u64,
    pub(crate) slots: u32,
    pub(crate) blocks_left: u64,
    pub(crate) glance: Glance,
    /// Coins that the smallest request reserves, with its fee.
    pub(crate) smallest: u128,
    /// Ordinary requests in a row that it refused as too dear.
    pub(crate) too_dear: u64,
    /// It takes no more requests for good.
    pub(crate) over: bool,
    /// It is over because an operator wanted that.
    pub(crate) dismissed: bool,
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
    if standing.over || glance.nonces_left == 0 || standing.blocks_left < rotation.blocks {
        return Due::End;
    }
    // Coins that requests under way have reserved may come back.
    if glance.balance.saturating_add(glance.reserved) < standing.smallest {
        return Due::End;
    }
    let below =
        |left: u128, whole: u128| left.saturating_mul(10_000) < whole.saturating_mul(rotation.left_bp.into());
    if below(glance.nonces_left.into(), standing.max_nonce.into()) || below(glance.balance, standing.amount) {
        return if standing.too_dear >= REFUSED && glance.reserved == 0 { Due::End } else { Due::Next };
    }
    Due::Nothing
}

/// Whether a request that reserves `reserve` is one that an escrow of `amount` is there for, and no reason to give it up.
pub(crate) fn ordinary(reserve: u128, amount: u128, rotation: &Rotation) -> bool {
    reserve.saturating_mul(10_000) <= amount.saturating_mul(rotation.left_bp.into())
}

/// Whether the budget allows a further escrow in place of those of `model`.
pub(crate) async fn renews(inner: &Arc<Inner>, model: &str) -> bool {
    let rotation = &inner.settings.rotation;
    if rotation.budget == 0 {
        return false;
    }
    let gateway = Gateway(Arc::clone(inner));
    // The price of the next: as set, or as dear as the newest.
    let newest = gateway.standings(0).into_iter().rfind(|standing| standing.model == model);
    let Some(newest) = newest else { return false };
    // A request too dear for an escrow that goes on is refused at once.
    if newest.dismissed || due(&newest, rotation) == Due::Nothing {
        return false;
    }
    let price = if rotation.amount == 0 { newest.amount } else { rotation.amount };
    // One that is being opened has taken its price already.
    if inner.renewing.load(Ordering::Acquire) {
        return true;
    }
    let budget = rotation.budget;
    blocking(inner, |inner| inner.journal.spent(BUDGET))
        .await
        .is_ok_and(|spent| spent.saturating_add(price) <= budget)
}

/// Looks after the escrows of every model until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let inner = gateway.0.clone();
    let mut failures: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    while !inner.stopping() {
        if timeout(inner.poll(), inner.wanted.notified()).await.is_ok() {
            sleep(LOOK_AGAIN).await;
        }
        let Ok(height) = inner.chain.height().await else { continue };
        let standings = gateway.standings(height);
        // One that came to its end between two looks is replaced all the same.
        let left_alone = |over: &Standing| {
            let later = |other: &Standing| other.escrow_id > over.escrow_id || other.glance.active;
            over.over && !over.dismissed && !standings.iter().any(|s| s.model == over.model && later(s))
        };
        for standing in standings.iter().filter(|s| s.glance.active || left_alone(s)) {
            look(&gateway, standing, height, &mut failures).await;
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
            gateway.0.renewing.store(true, Ordering::Release);
            let opened = open_next(gateway, standing).await;
            gateway.0.renewing.store(false, Ordering::Release);
            gateway.0.renewals.send_modify(|renewals| {
                renewals.failed.remove(model);
                if opened.is_err() {
                    renewals.failed.insert(model.clone());
                }
            });
            replaced = match opened {
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
    if !standing.over && (replaced || due == Due::End) {
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
            blocks_left,
            glance: Glance { active: true, nonces_left, balance, ..Glance::default() },
            smallest: 166,
            too_dear: 0,
            over: false,
            dismissed: false,
        };
        for (nonces, coins, blocks, wanted) in [
            (2_000, 100_000, 50, Due::Nothing),
            (1_999, 100_000, 50, Due::Next),
            (2_000, 99_999, 50, Due::Next),
            (0, 100_000, 50, Due::End),
            (2_000, 166, 50, Due::Next),
            (2_000, 165, 50, Due::End),
            (2_000, 100_000, 49, Due::End),
        ] {
            assert_eq!(due(&standing(nonces, coins, blocks), &rotation), wanted, "{nonces} {coins} {blocks}");
        }
    }

    #[test]
    fn an_escrow_below_a_tenth_that_only_refuses_ordinary_requests_is_ended_and_one_with_work_is_not() {
        let rotation = Rotation { left_bp: 1_000, blocks: 50, ..Rotation::default() };
        let standing = |balance, reserved, too_dear| Standing {
            escrow_id: 1,
            model: "m".into(),
            amount: 8_000,
            max_nonce: 20_000,
            slots: 4,
            blocks_left: 1_000,
            glance: Glance { active: true, nonces_left: 9_000, balance, reserved, ..Glance::default() },
            smallest: 76,
            too_dear,
            over: false,
            dismissed: false,
        };
        for (balance, reserved, too_dear, wanted) in [
            (160, 0, 3, Due::Next),
            (160, 0, 4, Due::End),
            (160, 1, 4, Due::Next),
            (800, 0, 9, Due::Nothing),
            (7, 69, 0, Due::Next),
            (7, 68, 0, Due::End),
        ] {
            assert_eq!(
                due(&standing(balance, reserved, too_dear), &rotation),
                wanted,
                "{balance} {reserved}"
            );
        }
        assert!(ordinary(800, 8_000, &rotation) && !ordinary(801, 8_000, &rotation));
    }
}
