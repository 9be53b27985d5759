//! All state of the module.

use holdfast_store::{Index, IndexedMap, Item, KeyCodec, KvRead, Map, StoreError, Transient};
use holdfast_types::{Address, Coin, Epoch, Height};

use crate::keys;
use crate::{EpochStats, Inference, Params, SprtIncrements, SprtState};

/// Parameters in force from the next block on (and in this one, unless this block changed them).
pub(crate) const PARAMS: Item<Params> = Item::new(keys::PARAMS);

/// Inferences by id. An open one has a row in [`BY_TIMEOUT`], an ended one a row in [`BY_END`].
pub(crate) const INFERENCES: IndexedMap<String, Inference, 2> = IndexedMap::new(
    keys::INFERENCES,
    [Index::multi(keys::INFERENCES_BY_TIMEOUT, timeout_key), Index::multi(keys::INFERENCES_BY_END, end_key)],
);
/// Index of open inferences by the height at whose end they time out.
pub(crate) const BY_TIMEOUT: usize = 0;
/// Index of ended inferences by the height at which they ended: the order of pruning.
pub(crate) const BY_END: usize = 1;

/// What each participant did in each epoch, all models together.
pub(crate) const STATS: Map<(Epoch, Address), EpochStats> = Map::new(keys::STATS);

/// The slow breaker's ratio per epoch and participant.
pub(crate) const SPRT: Map<(Epoch, Address), SprtState> = Map::new(keys::SPRT);

/// Logarithms of the slow breaker, kept with the parameters they belong to.
pub(crate) const SPRT_INCREMENTS: Item<SprtIncrements> = Item::new(keys::SPRT_INCREMENTS);

/// Participants whose counts of the current epoch changed in this block.
pub(crate) const CHANGED: Map<Address, ()> = Transient::map(keys::CHANGED);

/// Token price of this block, copied in B1 so that a change waits for the next block.
pub(crate) const BLOCK_PRICE: Map<(), Coin> = Transient::map(keys::BLOCK_PRICE);

fn timeout_key(_: &String, inference: &Inference) -> Option<Vec<u8>> {
    inference.status.is_open().then(|| inference.expires_at.to_bytes())
}

fn end_key(_: &String, inference: &Inference) -> Option<Vec<u8>> {
    (!inference.status.is_open()).then(|| inference.end_height.to_bytes())
}

/// Raw key of an index row, to remove a row whose entry cannot be read.
pub(crate) fn index_row(prefix: holdfast_store::Prefix, at: Height, id: &str) -> Vec<u8> {
    let mut row = prefix.bytes();
    at.encode(&mut row);
    id.to_owned().encode(&mut row);
    row
}

/// The price that starts of this block pay.
pub(crate) fn block_price(store: &dyn KvRead) -> Result<Coin, StoreError> {
    match BLOCK_PRICE.get(store, &())? {
        Some(price) => Ok(price),
        None => Ok(PARAMS.load(store)?.token_price),
    }
}
