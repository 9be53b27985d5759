//! The executor: brings the prompt of a started inference to the runner, streams the answer, and tells the chain what
//! became of it, once.
//!
//! | part | what it is |
//! |---|---|
//! | [`auth`] | the `rpc` signature of a call |
//! | [`body`] | the prompt as JSON |
//! | [`chain`] | what is asked of the chain and told to it |
//! | [`config`] | what a host is |
//! | [`host`] | the service `holdfast.host.v1.Host` |
//! | [`client`] | a call of a host, signed |
//! | [`server`], [`intake`] | connections of clients, and what may come in |
//! | [`outbox`] | what became of each inference, reported once |
//! | [`driver`] | escrow sessions of a running host |
//! | [`escrows`] | what is asked of the chain about escrows |
//! | [`owner`] | whose a folder is |
//! | [`session`] | replicas of escrow sessions, sans-I/O |
//! | [`store`] | where sessions are kept |
//! | [`wire`] | the cause of a failed call on the wire |

mod answers;
pub mod auth;
pub mod body;
pub mod chain;
pub mod client;
pub mod config;
pub mod driver;
pub mod escrows;
pub mod host;
pub mod intake;
pub mod outbox;
pub mod owner;
pub mod server;
mod service;
pub mod session;
pub mod store;
mod tape;
mod waiting;
pub mod wire;

pub use config::{HostConfig, Pace};
pub use holdfast_runner::TraceContext;
pub use host::Host;
