//! Reference model of the intra-epoch circuit breaker (breaker.md, breaker-details.md).
//!
//! Written from the two documents alone and for plainness: one [`World`] of ordered maps, nothing cached,
//! nothing incremental. Totals are summed over all members each time they are asked for, due rows are found by
//! looking at every entry. It shares no code with the chain modules, so that an agreement over random histories
//! means that two readers understood the same rules.
//!
//! ```text
//! history::random_history(seed, n) ──Op list──> Driver ──calls──> impl Circuit (World, or the real keeper)
//!                                                  │                     │
//!                                     inference life cycle          entries, events,
//!                                     (expiry, refusals)            tallies, candidates
//! ```
//!
//! The model may panic: a panic is a finding. Where the documents leave a choice, the choice made is written
//! in a doc comment headed `Reading:`.

pub mod calc;
pub mod draw;
pub mod driver;
pub mod entry;
pub mod history;
pub mod params;
pub mod sprt;
pub mod world;

#[cfg(test)]
mod tests;

pub use driver::{BlockReport, Circuit, Driver, Refusal};
pub use entry::{Claim, Entry, Forced, ForcedTo, State, Trip, Window};
pub use history::{BlockOps, Genesis, Op};
pub use params::Params;
pub use world::{
    Availability, BeginBlock, EpochInput, Event, Member, OverrideTo, Ring, Stamp, StartCall, Tallies, World,
};

/// Raw 20-byte participant address.
pub type Address = [u8; 20];

/// A participant of one model: the key of everything inside an epoch.
pub type Pair = (String, Address);

/// Lowercase hex of an address, as events print it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
