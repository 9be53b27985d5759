//! Error values that cross a module's border: a codespace and a stable code beside the text.

use holdfast_store::StoreError;
use thiserror::Error;

/// A failed message, hook or block step. `codespace` and `code` are API: never renumbered. The text is not
/// part of consensus.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message} ({codespace} {code})")]
pub struct ModuleError {
    /// Module name, or `sdk` for the common codes.
    pub codespace: &'static str,
    /// Code within the codespace, 2 and up.
    pub code: u32,
    /// What happened, which field, and what to do.
    pub message: String,
}

/// Codes of codespace `sdk`, with the Cosmos SDK's numbers.
pub mod sdk {
    /// The codespace's name.
    pub const CODESPACE: &str = "sdk";
    /// Anything unexpected, corrupt state included.
    pub const INTERNAL: u32 = 1;
    /// Undecodable or non-canonical transaction bytes.
    pub const TX_DECODE: u32 = 2;
    /// Bad signature, or not allowed.
    pub const UNAUTHORIZED: u32 = 4;
    /// Not enough coins.
    pub const INSUFFICIENT_FUNDS: u32 = 5;
    /// No such message, query path or service.
    pub const UNKNOWN_REQUEST: u32 = 6;
    /// Not an address of this chain.
    pub const INVALID_ADDRESS: u32 = 7;
    /// Not a usable public key.
    pub const INVALID_PUBKEY: u32 = 8;
    /// No such account.
    pub const UNKNOWN_ADDRESS: u32 = 9;
    /// Malformed coins.
    pub const INVALID_COINS: u32 = 10;
    /// Gas limit reached.
    pub const OUT_OF_GAS: u32 = 11;
    /// Memo over the limit.
    pub const MEMO_TOO_LARGE: u32 = 12;
    /// Fee below the node's minimum.
    pub const INSUFFICIENT_FEE: u32 = 13;
    /// More signatures than allowed.
    pub const TOO_MANY_SIGNATURES: u32 = 14;
    /// No signature.
    pub const NO_SIGNATURES: u32 = 15;
    /// A field that cannot be.
    pub const INVALID_REQUEST: u32 = 18;
    /// The same bytes are already waiting.
    pub const TX_IN_MEMPOOL: u32 = 19;
    /// No room.
    pub const MEMPOOL_FULL: u32 = 20;
    /// Over the size limit.
    pub const TX_TOO_LARGE: u32 = 21;
    /// Height that cannot be queried.
    pub const INVALID_HEIGHT: u32 = 26;
    /// Past its timeout height.
    pub const TX_TIMEOUT_HEIGHT: u32 = 30;
    /// Extension options are not supported.
    pub const UNKNOWN_EXTENSION_OPTIONS: u32 = 31;
    /// Not the account's next sequence.
    pub const WRONG_SEQUENCE: u32 = 32;
    /// An `Any` that does not decode.
    pub const UNPACK_ANY: u32 = 34;
    /// Broken invariant in the state machine.
    pub const LOGIC: u32 = 35;
    /// Known to the format, not supported here.
    pub const NOT_SUPPORTED: u32 = 37;
    /// Absent.
    pub const NOT_FOUND: u32 = 38;
    /// Gas wanted above the block's limit.
    pub const INVALID_GAS_LIMIT: u32 = 41;
}

impl ModuleError {
    /// An error of a module.
    pub fn new(codespace: &'static str, code: u32, message: impl Into<String>) -> Self {
        Self { codespace, code, message: message.into() }
    }

    /// An error with one of the codes in [`sdk`].
    pub fn sdk(code: u32, message: impl Into<String>) -> Self {
        Self::new(sdk::CODESPACE, code, message)
    }
}

impl From<StoreError> for ModuleError {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::OutOfGas { .. } => sdk::OUT_OF_GAS,
            _ => sdk::INTERNAL,
        };
        Self::sdk(code, error.to_string())
    }
}

/// Kind of a failed query; maps one to one to a gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKind {
    /// Malformed request: fix it.
    InvalidArgument,
    /// Nothing there.
    NotFound,
    /// The state does not allow an answer now.
    FailedPrecondition,
    /// A height that does not exist yet.
    OutOfRange,
    /// No such method.
    Unimplemented,
    /// Not ready; try again.
    Unavailable,
    /// Corrupt state or a failing backend.
    Internal,
}

/// A failed query.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct QueryError {
    /// What kind.
    pub kind: QueryKind,
    /// Text for people.
    pub message: String,
}

impl QueryError {
    /// A failed query of `kind`.
    pub fn new(kind: QueryKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Shorthand for the commonest kind.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(QueryKind::InvalidArgument, message)
    }

    /// Shorthand for an absent object.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(QueryKind::NotFound, message)
    }
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        Self::new(QueryKind::Internal, error.to_string())
    }
}
