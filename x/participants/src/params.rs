//! Parameters.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_types::{Coin, FieldError};

/// Most models a chain can be set to have.
pub(crate) const MODELS_LIMIT: u32 = 64;
/// Most maintenance windows a participant can be set to have pending.
pub(crate) const WINDOWS_LIMIT: u32 = 64;
/// Most validators a chain can be set to have: bounds the work of an epoch's first block.
pub(crate) const VALIDATORS_LIMIT: u32 = 500;

/// Parameters of the module.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// Denomination of collateral; fixed at genesis.
    pub collateral_denom: String,
    /// Base units of collateral for one unit of weight.
    pub collateral_per_weight: u128,
    /// Most registered models.
    pub max_models: u32,
    /// A window begins at least this many blocks after its announcement.
    pub min_announce_blocks: i64,
    /// Longest window.
    pub max_maintenance_blocks: i64,
    /// Most windows of one participant that have not ended.
    pub max_maintenance_windows: u32,
    /// Most validators.
    pub max_validators: u32,
    /// Share of the validators' total power that may move in one epoch, in thousandths.
    pub max_validator_change_permille: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            collateral_denom: "uhold".into(),
            collateral_per_weight: 1_000_000,
            max_models: 16,
            min_announce_blocks: 20,
            max_maintenance_blocks: 1_000,
            max_maintenance_windows: 4,
            max_validators: 100,
            max_validator_change_permille: 200,
        }
    }
}

/// Fields an update can name.
pub(crate) const FIELDS: &[&str] = &[
    "collateral_denom",
    "collateral_per_weight",
    "max_models",
    "min_announce_blocks",
    "max_maintenance_blocks",
    "max_maintenance_windows",
    "max_validators",
    "max_validator_change_permille",
];

impl Params {
    /// Every rule that needs no other state.
    pub fn validate(&self) -> Result<(), FieldError> {
        let Self {
            collateral_denom,
            collateral_per_weight,
            max_models,
            min_announce_blocks,
            max_maintenance_blocks,
            max_maintenance_windows,
            max_validators,
            max_validator_change_permille,
        } = self;
        let check = |ok: bool, field, rule: &str| if ok { Ok(()) } else { Err(FieldError::new(field, rule)) };
        Coin::new(collateral_denom, 0).map_err(|e| FieldError::new("collateral_denom", e.to_string()))?;
        check(*collateral_per_weight >= 1, "collateral_per_weight", "must be at least 1")?;
        check((1..=MODELS_LIMIT).contains(max_models), "max_models", "must be 1 to 64")?;
        check((1..=1_000_000).contains(min_announce_blocks), "min_announce_blocks", "must be 1 to 1000000")?;
        check(
            (1..=1_000_000).contains(max_maintenance_blocks),
            "max_maintenance_blocks",
            "must be 1 to 1000000",
        )?;
        check(
            (1..=WINDOWS_LIMIT).contains(max_maintenance_windows),
            "max_maintenance_windows",
            "must be 1 to 64",
        )?;
        check((1..=VALIDATORS_LIMIT).contains(max_validators), "max_validators", "must be 1 to 500")?;
        check(
            (10..=333).contains(max_validator_change_permille),
            "max_validator_change_permille",
            "must be 10 to 333: two thirds of the old validators have to stay",
        )
    }

    /// From the wire form, unchecked but for the amount.
    pub fn from_pb(params: &pb::Params) -> Result<Self, FieldError> {
        let amount = Coin::parse_amount(&params.collateral_per_weight);
        Ok(Self {
            collateral_denom: params.collateral_denom.clone(),
            collateral_per_weight: amount
                .map_err(|e| FieldError::new("collateral_per_weight", e.to_string()))?,
            max_models: params.max_models,
            min_announce_blocks: params.min_announce_blocks,
            max_maintenance_blocks: params.max_maintenance_blocks,
            max_maintenance_windows: params.max_maintenance_windows,
            max_validators: params.max_validators,
            max_validator_change_permille: params.max_validator_change_permille,
        })
    }

    /// The wire form.
    pub fn to_pb(&self) -> pb::Params {
        pb::Params {
            collateral_denom: self.collateral_denom.clone(),
            collateral_per_weight: self.collateral_per_weight.to_string(),
            max_models: self.max_models,
            min_announce_blocks: self.min_announce_blocks,
            max_maintenance_blocks: self.max_maintenance_blocks,
            max_maintenance_windows: self.max_maintenance_windows,
            max_validators: self.max_validators,
            max_validator_change_permille: self.max_validator_change_permille,
        }
    }

    /// Takes the named fields from `new`.
    pub(crate) fn merge(&mut self, new: Self, fields: &[&str]) {
        for field in fields {
            match *field {
                "collateral_denom" => self.collateral_denom.clone_from(&new.collateral_denom),
                "collateral_per_weight" => self.collateral_per_weight = new.collateral_per_weight,
                "max_models" => self.max_models = new.max_models,
                "min_announce_blocks" => self.min_announce_blocks = new.min_announce_blocks,
                "max_maintenance_blocks" => self.max_maintenance_blocks = new.max_maintenance_blocks,
                "max_maintenance_windows" => self.max_maintenance_windows = new.max_maintenance_windows,
                "max_validators" => self.max_validators = new.max_validators,
                "max_validator_change_permille" => {
                    self.max_validator_change_permille = new.max_validator_change_permille;
                }
                _ => {}
            }
        }
    }
}
