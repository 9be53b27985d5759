//! Parameters.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_types::FieldError;

/// Longest epoch in blocks: far from where heights end, so no schedule overflows.
pub const EPOCH_LENGTH_MAX: i64 = 1 << 40;

/// Field names an update mask may hold.
pub const PARAMS_FIELDS: &[&str] = &["epoch_length", "poc_length"];

/// Lengths in blocks.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// Blocks in an epoch, 1 to 2^40.
    pub epoch_length: i64,
    /// Blocks of the PoC phase at its end, 0 to `epoch_length` - 1.
    pub poc_length: i64,
}

impl Default for Params {
    /// 1,000 blocks, no PoC phase.
    fn default() -> Self {
        Self { epoch_length: 1000, poc_length: 0 }
    }
}

impl Params {
    /// Every rule. Genesis, messages and migrations all come through here.
    pub fn validate(&self) -> Result<(), FieldError> {
        let Self { epoch_length, poc_length } = self;
        if !(1..=EPOCH_LENGTH_MAX).contains(epoch_length) {
            return Err(FieldError::new("epoch_length", "must be 1 to 2^40"));
        }
        if !(0..*epoch_length).contains(poc_length) {
            return Err(FieldError::new("poc_length", "must be 0 to epoch_length - 1"));
        }
        Ok(())
    }

    /// These parameters with `fields` taken from `new`.
    pub(crate) fn merged(mut self, new: &Self, fields: &[&str]) -> Self {
        let Self { epoch_length, poc_length } = &mut self;
        for field in fields {
            match *field {
                "epoch_length" => *epoch_length = new.epoch_length,
                "poc_length" => *poc_length = new.poc_length,
                // `fields` come from PARAMS_FIELDS; a test keeps the two lists equal.
                _ => {}
            }
        }
        self
    }
}

impl From<&pb::Params> for Params {
    fn from(params: &pb::Params) -> Self {
        let pb::Params { epoch_length, poc_length } = params;
        Self { epoch_length: *epoch_length, poc_length: *poc_length }
    }
}

impl From<&Params> for pb::Params {
    fn from(params: &Params) -> Self {
        let Params { epoch_length, poc_length } = params;
        Self { epoch_length: *epoch_length, poc_length: *poc_length }
    }
}
