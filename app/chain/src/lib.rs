//! The chain: modules composed into one application with ABCI-shaped plain functions.
//!
//! | part | what it is |
//! |---|---|
//! | [`app`] | [`app::App`]: genesis, check, prepare, process, finalize, commit, query |
//! | [`composition`] | the module table, hooks, and the order of a block's steps |
//! | [`router`], [`query`] | messages and queries to their modules |
//! | [`tx`], [`ante`], [`signatures`], [`mempool`] | the transaction pipeline |
//! | [`proofs`] | raw keys and their ICS 23 proofs, at `/store/<module>/key` |
//! | [`state`] | the state database: flat table, Merkle trees, proofs, versions |
//! | [`snapshots`] | one height in chunks, written, served and restored |
//! | [`views`] | what queries read, with the candidate tables of the lottery |
//! | [`what_if`] | what an epoch would have been under other parameters |
//! | [`upgrades`] | plans, migrations, and which binary may run on which state |
//! | [`genesis`], [`settings`] | `genesis.json` |
//! | [`grpc`] | the gRPC server in front of a backend, and a client |
//! | [`files`] | files and folders that are there whole or not at all |
//! | [`keys`] | account keys |
//! | [`echo`] | how much of a stranger's text an answer repeats |
//!
//! A node embeds `App` in its process, behind an ABCI socket server, or in a test; the modules below `x/` also
//! work without it, over an embedder's own store and router.

pub mod ante;
pub mod app;
pub mod composition;
pub mod echo;
pub mod files;
pub mod genesis;
pub mod grpc;
pub mod keys;
pub mod mempool;
pub mod proofs;
pub mod query;
pub mod router;
pub mod settings;
pub mod signatures;
pub mod snapshots;
pub mod state;
#[cfg(test)]
mod tests;
pub mod tx;
pub mod upgrades;
pub mod views;
pub mod what_if;
