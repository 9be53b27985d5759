//! All state of the module.

use holdfast_store::{Item, Map};
use holdfast_types::Epoch;
use holdfast_types::traits::EpochInfo;

use crate::{Params, keys};

/// Lengths in force when the current epoch began.
pub const PARAMS: Item<Params> = Item::new(keys::PARAMS);

/// Lengths accepted since, in force from the next epoch; absent when there are none.
pub const STAGED_PARAMS: Item<Params> = Item::new(keys::STAGED_PARAMS);

/// Index of the current epoch.
pub const CURRENT: Item<Epoch> = Item::new(keys::CURRENT);

/// Schedules by index: the current epoch and the three before it.
pub const EPOCHS: Map<Epoch, EpochInfo> = Map::new(keys::EPOCHS);
