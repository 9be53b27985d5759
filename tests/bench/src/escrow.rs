//! Escrow sessions, from one diff through the state machine to a gateway under load.
//!
//! | part | ours | beside it, in the same run |
//! |---|---|---|
//! | [`session`] | a diff through the state machine, a replica that catches up | the signature checks in it |
//! | `core` | diffs of a gateway on disk; a host on disk that is taught all of them | raw signatures, raw fsync; pure apply |
//! | `first_token` | the first token through the HTTP API | the same request straight at the same hosts |
//! | `streams` | a thousand streams at a time through the HTTP API | as many straight at one host |
//! | `repair` | requests while a host of the group is repaired in a loop | the same requests without |
//!
//! The last three run the real HTTP API, driver and host service with the reference model over loopback sockets, all in
//! this process, on disk, with the settings that `holdfastd` has. Both sides take turns.

mod client;
mod core;
mod first_token;
mod net;
mod repair;
pub mod session;
mod streams;

use anyhow::Result;
use serde_json::json;
use tokio::runtime::Builder;

use crate::Outcome;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The state machine alone.
    pub session: session::Size,
    /// Diffs of a gateway, which a host then catches up with.
    pub diffs: u64,
    /// Rounds of both.
    pub rounds: usize,
    /// Rounds of first tokens, and requests of each way in each.
    pub first: (usize, usize),
    /// Streams at a time, tokens of each, rounds.
    pub streams: (usize, u32, usize),
    /// Repairs.
    pub repair: repair::Size,
}

impl Size {
    /// The measurement.
    pub const FULL: Self = Self {
        session: session::Size::FULL,
        diffs: 10_000,
        rounds: 5,
        first: (5, 200),
        streams: (1_000, 32, 5),
        repair: repair::Size::FULL,
    };
    /// A check that everything runs.
    pub const QUICK: Self = Self {
        session: session::Size::QUICK,
        diffs: 40,
        rounds: 1,
        first: (1, 6),
        streams: (24, 8, 1),
        repair: repair::Size::QUICK,
    };
}

/// Runs all of them.
///
/// # Errors
/// What is not as it should be.
pub fn run(size: Size) -> Result<Outcome> {
    let Outcome { mut rows, details } = session::run(size.session)?;
    let core = core::run(size.diffs, size.rounds, &mut rows)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let net = runtime.block_on(async {
        let net = net::Net::start().await?;
        let details = json!({
            "first_token": first_token::run(&net, size.first, &mut rows).await?,
            "streams": streams::run(&net, size.streams, &mut rows).await?,
            "repair": repair::run(&net, size.repair, &mut rows).await?,
        });
        net.stop().await;
        anyhow::Ok(details)
    })?;
    Ok(Outcome { rows, details: json!({ "session": details, "core": core, "net": net }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_and_nothing_fails_on_the_way() {
        let outcome = run(Size::QUICK).unwrap();
        let value = |name: &str| outcome.rows.iter().find(|row| row.name == name).unwrap().value;
        assert_eq!(value("escrow.streams_failed"), 0.0);
        assert_eq!(value("escrow.repair_failed"), 0.0);
        assert!(value("escrow.repair_attempts") >= 1.0);
        assert!(value("escrow.gateway_diffs") > 0.0 && value("escrow.taught") > 0.0);
    }
}
