//! The node `holdfastd`: command line, solo engine, development network.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the commands; every failure is one line with a stable code |
//! | [`solo`] | one validator in this process, persistent |
//! | [`devnet`] | a request load against a solo node while executors fail, and the report on it |

pub mod cli;
pub mod devnet;
pub mod solo;
