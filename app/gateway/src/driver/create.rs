//! Escrows that this gateway creates: paid for once, whatever is heard of the transaction.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_app::grpc::{ChainError, TX_LIFE_BLOCKS};
use tokio::time::sleep;

use super::{Gateway, GatewayError, Inner, Intent, Result, SMALLEST_TOKENS, blocking};
use crate::chain::{DeliverError, NewEscrow, Order, deliver_until};

impl Gateway {
    /// [`Self::create`] for a gateway that begins: not when it has an escrow of the model already, open or not here.
    ///
    /// # Errors
    /// [`GatewayError::Unopened`], [`GatewayError::Unclaimed`], [`GatewayError::TooSmall`]: nothing was spent.
    pub async fn create_first(&self, new: NewEscrow) -> Result<u64> {
        let inner = &self.0;
        let model = new.model.clone();
        let ids = self.unopened(&model);
        if !ids.is_empty() {
            return Err(GatewayError::Unopened { model, ids });
        }
        let known: BTreeSet<u64> =
            blocking(inner, |inner| inner.journal.escrows()).await?.into_iter().map(|(id, _)| id).collect();
        let rows = inner.chain.own_open(&model).await?;
        let ids: Vec<u64> =
            rows.iter().map(|row| row.config.escrow_id).filter(|id| !known.contains(id)).collect();
        if !ids.is_empty() {
            return Err(GatewayError::Unclaimed { model, ids });
        }
        let prices = inner.chain.prices().await?;
        let tokens = SMALLEST_TOKENS.min(inner.settings.offer.context_length);
        let smallest = prices.token_price.saturating_mul(tokens.into()).saturating_add(prices.fee_per_nonce);
        if new.amount < prices.create_fee.saturating_add(smallest) {
            return Err(GatewayError::TooSmall {
                amount: new.amount,
                create_fee: prices.create_fee,
                smallest,
            });
        }
        self.create(new, None).await
    }

    /// Creates an escrow and opens its session; `budget` is a budget that pays it.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn create(&self, new: NewEscrow, budget: Option<(&'static str, u128)>) -> Result<u64> {
        let inner = &self.0;
        let _one = inner.creating.lock().await;
        let earlier = blocking(inner, |inner| inner.journal.intent()).await?;
        if let Some(id) = inner.finish_intent(budget.map(|(name, _)| name)).await? {
            // What an earlier attempt paid for, though it did not hear of it.
            self.open_new(id, true).await?;
            if earlier.is_some_and(|intent| intent.model == new.model && intent.amount == new.amount) {
                return Ok(id);
            }
        }
        let from = inner.chain.height().await?;
        let until = from.saturating_add(TX_LIFE_BLOCKS);
        let intent = Intent { model: new.model.clone(), amount: new.amount, from, until };
        blocking(inner, move |inner| inner.journal.intend(&intent, budget)).await?;
        let delivered = deliver_until(&*inner.chain, Order::Create(new), inner.poll(), until).await;
        let refund = budget.map(|(name, _)| name);
        let escrow_id = match delivered {
            Ok(outcome) => match outcome.escrow_id {
                Some(id) => id,
                // In a block, without its event: the rows tell.
                None => inner.finish_intent(refund).await?.ok_or_else(|| {
                    GatewayError::Internal("an escrow was created that nobody finds".into())
                })?,
            },
            // Nothing was done, for certain.
            Err(error @ (DeliverError::Void { .. } | DeliverError::Chain(ChainError::Refused { .. }))) => {
                blocking(inner, move |inner| inner.journal.give_up_intent(refund)).await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        self.open_new(escrow_id, true).await?;
        Ok(escrow_id)
    }
}

impl Inner {
    /// Waits until it is known what became of an escrow that an earlier process was about to create; opens nothing.
    pub(super) async fn settle_intent(self: &Arc<Self>) -> Result<()> {
        let _one = self.creating.lock().await;
        self.finish_intent(Some("rotation")).await.map(drop)
    }

    /// The escrow of the intent, if there is one: found among the chain's rows, or given up once its transaction is
    /// void. `refund` is the budget that gets its coins back then.
    async fn finish_intent(self: &Arc<Self>, refund: Option<&'static str>) -> Result<Option<u64>> {
        loop {
            let Some(intent) = blocking(self, |inner| inner.journal.intent()).await? else { return Ok(None) };
            // The height first: at `until + 1` or above the rows are complete.
            let height = self.chain.height().await?;
            let known: BTreeSet<u64> = blocking(self, |inner| inner.journal.escrows())
                .await?
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            let rows = self.chain.own_open(&intent.model).await?;
            let found = rows.iter().find(|row| {
                row.created_at > intent.from
                    && row.config.amount == intent.amount
                    && !known.contains(&row.config.escrow_id)
            });
            if let Some(row) = found {
                let (id, model, now_s) = (row.config.escrow_id, intent.model, self.clock.now().unix_s());
                blocking(self, move |inner| inner.journal.adopt(id, &model, now_s)).await?;
                return Ok(Some(id));
            }
            if height > intent.until {
                blocking(self, move |inner| inner.journal.give_up_intent(refund)).await?;
                return Ok(None);
            }
            sleep(self.poll()).await;
        }
    }
}
