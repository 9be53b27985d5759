//! Why the gateway does not do it.

use holdfast_app::grpc::ChainError;
use holdfast_types::Address;

use super::journal::JournalError;
use crate::chain::DeliverError;
use crate::core::{OpenError, VerbError};

fn list(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Why the gateway does not do it. Codes are stable.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A transaction.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// The session.
    #[error("escrow {escrow_id}: {source}")]
    Open {
        /// Which.
        escrow_id: u64,
        /// Why.
        source: OpenError,
    },
    /// What is kept beside the sessions.
    #[error("gateway journal: {0}")]
    Journal(#[from] JournalError),
    /// The chain knows no such escrow.
    #[error("escrow_unknown: the chain has no escrow {0}")]
    Unknown(u64),
    /// Another gateway's.
    #[error("wrong_key: escrow {escrow_id} names the gateway {expected:?}, this one's key is {found:?}")]
    NotOurs {
        /// Which.
        escrow_id: u64,
        /// As in its terms.
        expected: Address,
        /// Ours.
        found: Address,
    },
    /// It is over.
    #[error("escrow_ended: escrow {0} is over")]
    Ended(u64),
    /// It is for another model.
    #[error("wrong_model: escrow {escrow_id} is for {found}, which this gateway does not serve")]
    Model {
        /// Which.
        escrow_id: u64,
        /// Its model.
        found: String,
    },
    /// Escrows of this gateway whose sessions could not be opened.
    #[error(
        "not_opened: escrow {} of {model} could not be opened, the log says why; no further escrow is created",
        list(ids)
    )]
    Unopened {
        /// Their model.
        model: String,
        /// Which.
        ids: Vec<u64>,
    },
    /// Open escrows of this key that the journal does not know.
    #[error(
        "not_claimed: on the chain escrow {} of {model} is open for this key, and not known here: take it up with \
         --escrow, unless another gateway has it; no further escrow is created",
        list(ids)
    )]
    Unclaimed {
        /// Their model.
        model: String,
        /// Which.
        ids: Vec<u64>,
    },
    /// An escrow that could not pay one request.
    #[error(
        "too_small: of {amount} base units the chain takes {create_fee} for the escrow, and the smallest request costs \
         {smallest}: give at least {}, or better what many requests cost; nothing was paid",
        create_fee.saturating_add(*smallest)
    )]
    TooSmall {
        /// Coins that were to go in.
        amount: u128,
        /// What the creation costs.
        create_fee: u128,
        /// What the smallest request costs.
        smallest: u128,
    },
    /// No session of it here.
    #[error("no_session: this gateway has no session of escrow {0}")]
    NoSession(u64),
    /// The process stops.
    #[error("stopping: the gateway stops")]
    Stopping,
    /// A verb.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// A defect.
    #[error("internal: {0}")]
    Internal(String),
}
