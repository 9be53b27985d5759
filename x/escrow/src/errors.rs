//! Errors of codespace `escrow`. Codes are never renumbered.

use holdfast_store::StoreError;
use holdfast_types::{FieldError, Height, ModuleError, sdk};
use thiserror::Error;

use crate::MODULE_NAME;
use crate::session::ConfigError;
use crate::session::settle::SettleError;
use crate::types::EscrowId;

/// A refused message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EscrowError {
    /// The signer may not do this.
    #[error("{field}: only {allowed} may sign this message")]
    InvalidSigner {
        /// Field that names the signer.
        field: &'static str,
        /// Who may.
        allowed: String,
    },
    /// A field that cannot be.
    #[error("{field}: {rule}")]
    InvalidRequest {
        /// Field name as in the protobuf message.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// No such model.
    #[error("model: {0:?} is not registered; see the models of x/participants")]
    ModelUnknown(String),
    /// Not enough hosts for the group.
    #[error(
        "slots: {slots} with at most {cap} for one owner need more healthy members than {owners}; ask for fewer"
    )]
    TooFewOwners {
        /// Asked for.
        slots: u8,
        /// Most slots of one owner.
        cap: u8,
        /// Healthy members.
        owners: usize,
    },
    /// The creator cannot pay.
    #[error("creator: needs {needed}: {reason}")]
    InsufficientFunds {
        /// Amount and denomination.
        needed: String,
        /// What the bank said.
        reason: String,
    },
    /// No such escrow.
    #[error("escrow_id: no escrow {0}, or it ended two epochs ago")]
    NotFound(EscrowId),
    /// Ended already.
    #[error("escrow_id: {id} is closed ({status})")]
    Closed {
        /// Its id.
        id: EscrowId,
        /// Where it stands.
        status: &'static str,
    },
    /// A dispute before the expiry.
    #[error("escrow_id: {id} can be disputed from height {from} on; until then settle it")]
    NotExpired {
        /// Its id.
        id: EscrowId,
        /// First height of disputes.
        from: Height,
    },
    /// A dispute after its window.
    #[error("escrow_id: the window for disputes of {id} ended at height {at}")]
    WindowOver {
        /// Its id.
        id: EscrowId,
        /// Last height of disputes.
        at: Height,
    },
    /// Not above the state that was brought before.
    #[error("settlement.nonce: {nonce} is not above {best}, which was brought before")]
    NotHigher {
        /// Given.
        nonce: u64,
        /// Highest so far.
        best: u64,
    },
    /// The summary does not add up.
    #[error("settlement.{0}")]
    Summary(SettleError),
    /// The session has not ended.
    #[error("settlement.{0}")]
    NotFrozen(SettleError),
    /// A signature that does not count.
    #[error("settlement.{0}")]
    BadSignature(SettleError),
    /// Too few of the slots signed.
    #[error("settlement.{0}")]
    ShortSigned(SettleError),
    /// Genesis.
    #[error("escrow genesis: {field}: {rule}")]
    Genesis {
        /// Field name.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// State that no message makes.
    #[error("corrupt escrow state: {0}")]
    Corrupt(&'static str),
    /// Storage.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Every code of the codespace with its meaning.
pub const CODES: &[(u32, &str)] = &[
    (2, "invalid signer"),
    (3, "invalid request"),
    (4, "model unknown"),
    (5, "too few healthy owners for the group"),
    (6, "insufficient funds"),
    (7, "escrow not found"),
    (8, "escrow closed"),
    (9, "not expired yet"),
    (10, "window for disputes is over"),
    (11, "nonce not above the disputed one"),
    (12, "settlement does not add up"),
    (13, "session not frozen"),
    (14, "bad signature in a settlement"),
    (15, "too few slots signed a settlement"),
    (16, "genesis"),
];

impl EscrowError {
    /// Code within codespace `escrow`; `None` for internal failures.
    pub fn code(&self) -> Option<u32> {
        Some(match self {
            Self::InvalidSigner { .. } => 2,
            Self::InvalidRequest { .. } => 3,
            Self::ModelUnknown(_) => 4,
            Self::TooFewOwners { .. } => 5,
            Self::InsufficientFunds { .. } => 6,
            Self::NotFound(_) => 7,
            Self::Closed { .. } => 8,
            Self::NotExpired { .. } => 9,
            Self::WindowOver { .. } => 10,
            Self::NotHigher { .. } => 11,
            Self::Summary(_) => 12,
            Self::NotFrozen(_) => 13,
            Self::BadSignature(_) => 14,
            Self::ShortSigned(_) => 15,
            Self::Genesis { .. } => 16,
            Self::Corrupt(_) | Self::Store(_) => return None,
        })
    }

    pub(crate) fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::InvalidRequest { field: field.into(), rule: rule.into() }
    }

    pub(crate) fn genesis(field: impl Into<String>, rule: impl ToString) -> Self {
        Self::Genesis { field: field.into(), rule: rule.to_string() }
    }
}

impl From<FieldError> for EscrowError {
    fn from(error: FieldError) -> Self {
        Self::invalid(error.field, error.rule)
    }
}

impl From<ConfigError> for EscrowError {
    /// The text of a [`ConfigError`] begins with the field.
    fn from(error: ConfigError) -> Self {
        let text = error.to_string();
        match text.split_once(": ") {
            Some((field, rule)) => Self::invalid(field, rule),
            None => Self::invalid("slots", text),
        }
    }
}

impl From<SettleError> for EscrowError {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::NotFrozen { .. } => Self::NotFrozen(error),
            SettleError::UnboundKey(_) | SettleError::DuplicateSlot(_) | SettleError::BadSignature(_) => {
                Self::BadSignature(error)
            }
            SettleError::ShortSigned { .. } => Self::ShortSigned(error),
            _ => Self::Summary(error),
        }
    }
}

impl From<EscrowError> for ModuleError {
    fn from(error: EscrowError) -> Self {
        match (error.code(), error) {
            (Some(code), error) => Self::new(MODULE_NAME, code, error.to_string()),
            (None, EscrowError::Store(error)) => error.into(),
            (None, error) => Self::sdk(sdk::LOGIC, error.to_string()),
        }
    }
}
