//! The app as a whole: every module wired together, over the in-memory state database.

mod breaker;
mod docs;
mod escrow;
mod genesis;
mod gov;
mod load;
mod net;
mod params;
mod queries;
mod replicas;
mod sessions;
mod transactions;
mod views;
mod what_if;
mod wiring;
