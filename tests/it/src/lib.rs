//! The program `holdfastd` from outside: real processes on loopback, and clients that know nothing of this workspace.
//!
//! | module | what is tried |
//! |---|---|
//! | `node` | start, stop, kill, restart of a node; ports and folders in use |
//! | `reflection` | grpcurl: services, descriptors, every query as JSON, heights, health |
//! | `messages` | cosmrs signs and broadcasts every message of the chain |
//! | `refusals` | bad transactions and the codes of the Cosmos SDK |
//! | `cli` | keys, transactions and queries from the command line |
//! | `proofs` | proofs of the state, verified by the ICS 23 of Go and JavaScript |
//! | `reads` | a thousand calls of each query change nothing |
//! | `network` | four validators beside real CometBFT: kills, late joiners, votes, proofs, an upgrade |
//! | `crash` | kill -9 at random instants: a node and its twin, a devnet that is resumed |
//! | `runner` | generations while workers, coordinators and upstreams are killed, stopped and cut off |
//! | `host` | an executor as a process: serves, reports once, is killed and comes back |
//! | `escrow` | a gateway and its hosts: forks, repairs, kills, settlements, the official OpenAI clients |
//! | `devnet` | the inference network: repeatable, conserving, and what the breaker does in it |
//!
//! `cargo xtask test` builds the program and grpcurl and names them in `HOLDFASTD` and `GRPCURL`. By hand, after
//! `cargo xtask tools` and `cargo build`, `cargo test -p holdfast-it` finds both below the target folder.
//!
//! Every process has a time limit and is ended with the test that started it.

#[cfg(test)]
mod chain;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod client;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod devnet;
#[cfg(test)]
mod escrow;
#[cfg(test)]
mod host;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod network;
#[cfg(test)]
mod node;
#[cfg(test)]
mod process;
#[cfg(test)]
mod proofs;
#[cfg(test)]
mod reads;
#[cfg(test)]
mod reflection;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod runner;
