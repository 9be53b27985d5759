//! All state of the module on the chain.

use holdfast_store::{Index, IndexedMap, Item, KeyCodec, KeySet, Prefix, Sequence};
use holdfast_types::{Address, Height};

use crate::keys;
use crate::{Escrow, EscrowId, Params};

/// Parameters.
pub(crate) const PARAMS: Item<Params> = Item::new(keys::PARAMS);

/// Id of the next escrow; ids begin at 1.
pub(crate) const NEXT_ESCROW_ID: Sequence = Sequence::new(keys::NEXT_ESCROW_ID);

/// Escrows by id. One that holds coins has a row in [`BY_DUE`], an ended one a row in [`BY_END`].
pub(crate) const ESCROWS: IndexedMap<EscrowId, Escrow, 2> = IndexedMap::new(
    keys::ESCROWS,
    [Index::multi(keys::ESCROWS_BY_DUE, due_key), Index::multi(keys::ESCROWS_BY_END, end_key)],
);
/// Index of those that hold coins by the height at whose end they are paid without a message.
pub(crate) const BY_DUE: usize = 0;
/// Index of ended ones by the height at which they ended: the order of pruning.
pub(crate) const BY_END: usize = 1;

/// Escrows of each slot owner, as long as the escrow is known.
pub(crate) const BY_OWNER: KeySet<(Address, EscrowId)> = KeySet::new(keys::ESCROWS_BY_OWNER);

fn due_key(_: &EscrowId, escrow: &Escrow) -> Option<Vec<u8>> {
    escrow.due_at().map(|height| height.to_bytes())
}

fn end_key(_: &EscrowId, escrow: &Escrow) -> Option<Vec<u8>> {
    escrow.outcome.as_ref().map(|outcome| outcome.end_height.to_bytes())
}

/// Raw key of an index row, to remove a row whose entry cannot be read.
pub(crate) fn index_row(prefix: Prefix, at: Height, id: EscrowId) -> Vec<u8> {
    let mut row = prefix.bytes();
    at.encode(&mut row);
    id.encode(&mut row);
    row
}
