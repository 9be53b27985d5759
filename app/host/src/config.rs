//! What a host is, and how often it looks.

use std::time::Duration;

use holdfast_types::{Address, Hrp};

/// What a host is.
pub struct HostConfig {
    /// Id of the chain.
    pub chain_id: String,
    /// Prefix of its addresses.
    pub hrp: Hrp,
    /// This executor.
    pub executor: Address,
    /// Ids, on the chain, of the models that it runs; empty is whichever it is given.
    pub models: Vec<String>,
    /// Longest answer, tokens.
    pub max_tokens: u32,
    /// How often it looks.
    pub pace: Pace,
}

/// How often a host looks and tells.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two looks for a Start.
    pub look: Duration,
    /// Between two signs of life to a client.
    pub beat: Duration,
    /// Between two looks at whether a running inference was withdrawn.
    pub watch: Duration,
    /// Between two looks at reports under way.
    pub busy: Duration,
    /// Between two looks for reports when none is under way.
    pub idle: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_millis(250),
            beat: Duration::from_secs(2),
            watch: Duration::from_secs(1),
            busy: Duration::from_millis(250),
            idle: Duration::from_secs(2),
        }
    }
}
