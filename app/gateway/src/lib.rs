//! The gateway: spends an escrow by signed diffs over a group of hosts, and speaks the OpenAI API to applications.
//!
//! | part | what it is |
//! |---|---|
//! | [`core`] | one session as a machine without sockets and clock: sequencer, picker, repairs, timeouts, settlement |
//! | [`openai`] | the HTTP API |

pub mod core;
pub mod openai;
