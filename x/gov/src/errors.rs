//! Errors with stable codes.

use holdfast_store::StoreError;
use holdfast_types::{FieldError, ModuleError, sdk};
use thiserror::Error;

use crate::keys::MODULE_NAME;

/// Every code of this codespace with its meaning. 3 to 23 are the Cosmos SDK's numbers, 2 is that of its earlier
/// versions, 24 and up are this chain's.
pub const CODES: &[(u32, &str)] = &[
    (2, "proposal unknown"),
    (3, "proposal inactive: it takes no deposits or votes now"),
    (5, "invalid content: title or summary missing or too long"),
    (7, "invalid vote option or weight"),
    (8, "invalid genesis"),
    (10, "message of a proposal not routable"),
    (11, "no messages and no metadata"),
    (12, "message of a proposal invalid, or its rehearsal failed"),
    (13, "expected the gov account as only signer"),
    (15, "metadata too long"),
    (16, "deposit too small"),
    (18, "not the proposer, or a proposer that cannot be"),
    (20, "voting period ended"),
    (21, "proposal cannot be cancelled any more"),
    (22, "summary too long"),
    (23, "denomination not taken as a deposit"),
    (24, "proposals nested too deep"),
    (25, "too many or too large messages in a proposal"),
    (26, "no voting power"),
    (27, "no upgrade is planned"),
];

/// A refused message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GovError {
    /// No such proposal; also one that was dropped or cancelled.
    #[error("proposal_id: {0} is unknown")]
    UnknownProposal(u64),
    /// Not in the period the message needs.
    #[error("proposal_id: {id} {why}")]
    Inactive {
        /// Proposal.
        id: u64,
        /// What it is not.
        why: &'static str,
    },
    /// Texts of a proposal.
    #[error("{field}: {rule}")]
    Content {
        /// Field name.
        field: &'static str,
        /// What is allowed.
        rule: String,
    },
    /// Options of a vote.
    #[error("{field}: {rule}")]
    Vote {
        /// Field name.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// Genesis.
    #[error("gov genesis: {field}: {rule}")]
    Genesis {
        /// Field name.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// No module takes it.
    #[error("messages[{index}]: {reason}")]
    Unroutable {
        /// Position.
        index: usize,
        /// What the router says.
        reason: String,
    },
    /// Nothing to decide.
    #[error("messages: give messages, or metadata that says what is decided")]
    NoMessages,
    /// Undecodable, or refused by its module.
    #[error("messages[{index}]: would fail now: {reason}")]
    InvalidMessage {
        /// Position.
        index: usize,
        /// Why.
        reason: String,
    },
    /// Signed by somebody else.
    #[error("{field}: expected the gov account {expected} as only signer, got {found}")]
    InvalidSigner {
        /// Field name.
        field: String,
        /// Gov account.
        expected: String,
        /// Signers.
        found: String,
    },
    /// Metadata.
    #[error("metadata: {found} bytes, at most {most}")]
    MetadataTooLong {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        most: usize,
    },
    /// Deposit.
    #[error("{field}: {found} is too small; needed: {needed}")]
    DepositTooSmall {
        /// Field name.
        field: &'static str,
        /// Given.
        found: String,
        /// Needed.
        needed: String,
    },
    /// Proposer or depositor.
    #[error("{field}: {rule}")]
    Proposer {
        /// Field name.
        field: &'static str,
        /// What is allowed.
        rule: String,
    },
    /// Too late.
    #[error("proposal_id: voting on {0} has ended")]
    VotingEnded(u64),
    /// Decided already.
    #[error("proposal_id: {0} is decided and cannot be cancelled")]
    NotCancellable(u64),
    /// Summary.
    #[error("summary: {found} bytes, at most {most}")]
    SummaryTooLong {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        most: usize,
    },
    /// Denomination of a deposit.
    #[error("{field}: {found:?} is not taken; use {accepted}")]
    DepositDenom {
        /// Field name.
        field: &'static str,
        /// Given.
        found: String,
        /// Those of the parameters.
        accepted: String,
    },
    /// A proposal in a proposal in a proposal.
    #[error("messages: a proposal may hold proposals {0} deep; submit the inner ones by themselves")]
    NestedTooDeep(u32),
    /// Size of a proposal.
    #[error("messages: {found} {unit}, at most {most}; split the proposal")]
    TooLarge {
        /// Given.
        found: usize,
        /// `messages` or `bytes`.
        unit: &'static str,
        /// Allowed.
        most: usize,
    },
    /// Who votes.
    #[error("voter: {0} has no voting power in this epoch")]
    NoPower(String),
    /// Nothing to cancel.
    #[error("authority: no upgrade is planned")]
    NoPlan,
    /// A field that cannot be: `sdk` 18.
    #[error("{0}")]
    Invalid(#[from] FieldError),
    /// Refused by a neighbour, or one of the `sdk` codes.
    #[error("{0}")]
    Module(#[from] ModuleError),
    /// State that no message makes.
    #[error("corrupt gov state: {0}")]
    Corrupt(&'static str),
    /// Storage.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl GovError {
    /// Code within the codespace; `None` for `sdk` codes, neighbours' errors and internal failures.
    pub fn code(&self) -> Option<u32> {
        Some(match self {
            Self::UnknownProposal(_) => 2,
            Self::Inactive { .. } => 3,
            Self::Content { .. } => 5,
            Self::Vote { .. } => 7,
            Self::Genesis { .. } => 8,
            Self::Unroutable { .. } => 10,
            Self::NoMessages => 11,
            Self::InvalidMessage { .. } => 12,
            Self::InvalidSigner { .. } => 13,
            Self::MetadataTooLong { .. } => 15,
            Self::DepositTooSmall { .. } => 16,
            Self::Proposer { .. } => 18,
            Self::VotingEnded(_) => 20,
            Self::NotCancellable(_) => 21,
            Self::SummaryTooLong { .. } => 22,
            Self::DepositDenom { .. } => 23,
            Self::NestedTooDeep(_) => 24,
            Self::TooLarge { .. } => 25,
            Self::NoPower(_) => 26,
            Self::NoPlan => 27,
            Self::Invalid(_) | Self::Module(_) | Self::Corrupt(_) | Self::Store(_) => return None,
        })
    }
}

impl From<GovError> for ModuleError {
    fn from(error: GovError) -> Self {
        match (error.code(), error) {
            (Some(code), error) => Self::new(MODULE_NAME, code, error.to_string()),
            (None, GovError::Module(error)) => error,
            (None, GovError::Store(error)) => error.into(),
            (None, GovError::Invalid(error)) => Self::sdk(sdk::INVALID_REQUEST, error.to_string()),
            (None, error) => Self::sdk(sdk::LOGIC, error.to_string()),
        }
    }
}
