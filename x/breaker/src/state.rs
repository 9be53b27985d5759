//! All state of the module.

use holdfast_store::{KeySet, KvWrite, Map, StoreError, Transient};
use holdfast_types::{Address, Epoch, Height};

use crate::keys;
use crate::types::{Entry, ModelTally, Override, Tally, TripRing};

/// Key of an entry: epoch, model, participant.
pub type EntryKey = (Epoch, String, Address);

/// Circuit breaker entries; absent = Healthy, generation 0. Rows of past epochs are invisible and pruned.
pub const ENTRIES: Map<EntryKey, Entry> = Map::new(keys::ENTRIES);

/// When an entry changes by itself: exactly one row per entry that is excluded, claimed or forced.
pub const DUE: KeySet<(Height, Epoch, String, Address)> = KeySet::new(keys::DUE);

/// Running sums over a model's members, independent of the PoC phase.
pub const MODEL_TALLIES: Map<(Epoch, String), ModelTally> = Map::new(keys::MODEL_TALLIES);

/// Keeps `tally`; one of zeros has no row, for an imported chain would have none either and charge other gas for reading it.
pub(crate) fn set_model_tally(
    store: &mut dyn KvWrite,
    epoch: Epoch,
    model: &str,
    tally: &ModelTally,
) -> Result<(), StoreError> {
    let key = (epoch, model.to_owned());
    if *tally == ModelTally::default() {
        return MODEL_TALLIES.remove(store, &key);
    }
    MODEL_TALLIES.set(store, &key, tally)
}

/// Weight that met a trip rule lately, by model: the mass-failure detector. Kept while it is on.
pub const TRIP_RINGS: Map<(Epoch, String), TripRing> = Map::new(keys::TRIP_RINGS);

/// Live governance overrides; they outlast an epoch.
pub const OVERRIDES: Map<(String, Address), Override> = Map::new(keys::OVERRIDES);

/// Outcomes of this block, summed per entry; drained by the judge.
pub const TALLIES: Map<(String, Address), Tally> = Transient::map(keys::TALLIES);
