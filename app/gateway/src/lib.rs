//! The gateway: spends an escrow by signed diffs over a group of hosts, and speaks the OpenAI API to applications.
//!
//! | part | what it is |
//! |---|---|
//! | [`core`] | one session as a machine without sockets and clock: sequencer, picker, repairs, timeouts, settlement |
//! | [`driver`] | sessions as tasks: calls of hosts, clients, what is owed to the chain |
//! | [`chain`] | what is asked of the chain and sent to it |
//! | [`openai`] | the HTTP API |
//! | [`service`] | the gRPC service for hosts and operators |
//! | [`settings`] | limits and waits |
//!
//! Beside them run the rotation of escrows and the probes of members that a breaker has taken out.

pub mod chain;
pub mod core;
pub mod driver;
mod metrics;
pub mod openai;
mod prober;
mod rotation;
pub mod service;
pub mod settings;
#[cfg(test)]
mod tests;
