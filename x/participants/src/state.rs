//! All state of the module.

use holdfast_store::{Index, IndexedMap, Item, KeyCodec, KeySet, Map, Transient};
use holdfast_types::{Address, Epoch, Height};

use crate::keys;
use crate::params::Params;
use crate::types::{
    Interval, MemberRecord, NextTotals, NextWeight, Participant, PowerTotals, Validator, Window,
};

/// Parameters.
pub const PARAMS: Item<Params> = Item::new(keys::PARAMS);

/// Registered models.
pub const MODELS: KeySet<String> = KeySet::new(keys::MODELS);

/// The registry; index 0: validator key.
pub const PARTICIPANTS: IndexedMap<Address, Participant, 1> = IndexedMap::new(
    keys::PARTICIPANTS,
    [Index::unique(keys::PARTICIPANTS_BY_KEY, |_, p| Some(p.validator_key.to_bytes()))],
);

/// Weight of each (model, participant) in this epoch and the next; rows stay when the weight is 0.
pub const MEMBERS: Map<(String, Address), MemberRecord> = Map::new(keys::MEMBERS);

/// Sums over a model's members as the next epoch will begin: weight of the next epoch, not in maintenance now.
pub const NEXT_TOTALS: Map<String, NextTotals> = Map::new(keys::NEXT_TOTALS);

/// The epoch in which the slow breaker took a participant out.
pub const INACTIVE: Map<Address, Epoch> = Map::new(keys::INACTIVE);

/// Participants whose maintenance window is open, with its start.
pub const IN_MAINTENANCE: Map<Address, Height> = Map::new(keys::IN_MAINTENANCE);

/// Announced windows that have not ended, by (participant, start).
pub const WINDOWS: Map<(Address, Height), Window> = Map::new(keys::WINDOWS);

/// When a window opens (`false`) or closes (`true`): (height, closes, participant, start).
pub const DUE: KeySet<(Height, bool, Address, Height)> = KeySet::new(keys::DUE);

/// Key of an interval: participant, first height, model (empty = all), cause.
pub type IntervalKey = (Address, Height, String, u8);

/// When a participant could not serve without fault; kept two epochs. Index 0: last height.
pub const UNAVAILABILITY: IndexedMap<IntervalKey, Interval, 1> = IndexedMap::new(
    keys::UNAVAILABILITY,
    [Index::multi(keys::UNAVAILABILITY_BY_END, |_, interval| Some(interval.to_height.to_bytes()))],
);

/// The participant after which the weight sweep goes on; absent = no sweep under way.
pub const REFRESH_CURSOR: Item<Option<Address>> = Item::new(keys::REFRESH_CURSOR);

/// The validators, by consensus key: what the consensus engine has been told.
pub const VALIDATORS: Map<Vec<u8>, Validator> = Map::new(keys::VALIDATORS);

/// Weight of a participant in the next epoch, whatever the model; no row at 0. Index 0: those that can validate,
/// the heaviest first, ties by address.
pub const NEXT_WEIGHTS: IndexedMap<Address, NextWeight, 1> = IndexedMap::new(
    keys::NEXT_WEIGHTS,
    [Index::multi(keys::NEXT_WEIGHTS_BY_WEIGHT, |_, next| {
        next.can_validate().then(|| (!next.weight).to_bytes())
    })],
);

/// Sums over the weights of all participants, in this epoch and the next.
pub const POWER_TOTALS: Item<PowerTotals> = Item::new(keys::POWER_TOTALS);

/// The heaviest of the epoch that began in this block, from B2 to E4; no rows in any other block.
pub(crate) const CANDIDATES: Map<Address, NextWeight> = Transient::map(keys::CANDIDATES);
