//! Where weights come from.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::Address;
use holdfast_types::traits::WeightSource;

use crate::state::PARAMS;

/// Participants whose weight is asked again in one block, while a sweep is under way.
pub const REFRESH_MAX: usize = 256;

/// The default source: bonded collateral divided by `collateral_per_weight`, rounded down.
#[derive(Debug, Clone, Copy, Default)]
pub struct CollateralWeight;

impl WeightSource for CollateralWeight {
    fn weight(
        &self,
        store: &dyn KvRead,
        _participant: &Address,
        collateral: u128,
    ) -> Result<u64, StoreError> {
        let per_weight = PARAMS.load(store)?.collateral_per_weight;
        let weight = collateral.checked_div(per_weight).unwrap_or(0);
        // Messages refuse collateral beyond this; a smaller parameter may still lead here.
        Ok(u64::try_from(weight).unwrap_or(u64::MAX))
    }
}
