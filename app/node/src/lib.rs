//! The node `holdfastd`: command line, solo engine, development network.
//!
//! | module | holds |
//! |---|---|
//! | [`comet`] | a validator beside CometBFT: the ABCI server |
//! | [`cli`] | the commands; every failure is one line with a stable code |
//! | [`solo`] | one validator in this process, persistent |
//! | [`upkeep`] | pruning and snapshots after each commit, in a thread of their own |
//! | [`localnet`] | a network of validators on this machine, each beside its CometBFT |
//! | [`workers`], [`stage`] | worker processes, and what is done to them in the failure matrix |
//! | [`devnet`] | a request load against a solo node while executors fail, and the report on it |

pub mod cli;
pub mod comet;
pub mod devnet;
pub mod localnet;
mod node_api;
mod open;
mod program;
mod say;
pub mod solo;
pub mod stage;
pub mod upkeep;
pub mod workers;

pub use program::Program;
