//! Why a list of executors is refused.

/// Code and meaning of every [`SpecError`], for the error table of the documentation.
pub const EXECUTOR_ERROR_CODES: &[(u32, &str)] = &[
    (121, "executor specification malformed"),
    (122, "executor profile unknown"),
    (123, "executor profile argument malformed or out of range"),
    (124, "executor count out of range"),
    (125, "executor weight malformed or out of range"),
    (126, "executor models malformed"),
    (127, "executor setting unknown or given twice"),
    (128, "executor file cannot be read"),
    (129, "executor file is no valid TOML of this form"),
];

/// Why an executor list was refused: where, which field, what should stand there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--executors: {place}: {field}: expected {expected}, found {found} (devnet error {code})")]
pub struct SpecError {
    /// The stable code, as listed in [`EXECUTOR_ERROR_CODES`].
    pub code: u32,
    /// "character N" of the short form, or the entry of the file, both from 1.
    pub place: String,
    /// The field that is wrong.
    pub field: &'static str,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}
