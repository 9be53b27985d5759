//! Parameters: what a new escrow takes its values from.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Coin, FieldError, apply_mask};

use crate::session::MAX_SLOTS;

/// Longest timeout, seconds: a day.
const TIMEOUT_MAX: u32 = 86_400;
/// Basis points of the whole.
const WHOLE_BP: u16 = 10_000;

/// Parameters of the module. A change leaves open escrows as they are.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// The one denomination of escrows.
    pub denom: String,
    /// Price of a creation, base units.
    pub create_fee: u128,
    /// Price of a diff while a session is active, base units.
    pub fee_per_nonce: u128,
    /// Price of one token, base units.
    pub token_price: u128,
    /// Seconds an executor has for its receipt.
    pub refusal_timeout_s: u32,
    /// Seconds from the receipt to the end.
    pub execution_timeout_s: u32,
    /// Share of the weight that can vote which a timeout must exceed, basis points.
    pub vote_threshold_bp: u16,
    /// Share of the price that a cancelled inference costs, basis points.
    pub cancel_charge_bp: u16,
    /// Rounds of the group after which an ended inference is sealed.
    pub seal_grace_rounds: u32,
    /// Highest nonce of a session.
    pub max_nonce: u64,
    /// Most inferences in a session's state at once.
    pub max_live: u32,
    /// Most slots of one owner; 0 = no limit beside that of the quorum.
    pub max_slots_per_owner: u32,
    /// Most slots of a group.
    pub max_slots: u32,
    /// Most blocks until an escrow expires.
    pub max_lifetime_blocks: i64,
    /// Blocks of the window for a first dispute, and of that for a higher one.
    pub dispute_window_blocks: i64,
}

impl Default for Params {
    /// Those of escrow-details 2 and 4; prices in `uhold`, a token as in x/inference.
    fn default() -> Self {
        Self {
            denom: "uhold".to_owned(),
            create_fee: 1_000,
            fee_per_nonce: 10,
            token_price: 1,
            refusal_timeout_s: 60,
            execution_timeout_s: 1_200,
            vote_threshold_bp: 5_000,
            cancel_charge_bp: 0,
            seal_grace_rounds: 3,
            max_nonce: 20_000,
            max_live: 1_024,
            max_slots_per_owner: 0,
            max_slots: 128,
            max_lifetime_blocks: 100_000,
            dispute_window_blocks: 600,
        }
    }
}

/// Paths an update mask may name.
pub(crate) const FIELDS: &[&str] = &[
    "denom",
    "create_fee",
    "fee_per_nonce",
    "token_price",
    "refusal_timeout_s",
    "execution_timeout_s",
    "vote_threshold_bp",
    "cancel_charge_bp",
    "seal_grace_rounds",
    "max_nonce",
    "max_live",
    "max_slots_per_owner",
    "max_slots",
    "max_lifetime_blocks",
    "dispute_window_blocks",
];

fn amount(field: &'static str, text: &str) -> Result<u128, FieldError> {
    Coin::parse_amount(text).map_err(|e| FieldError::new(field, e.to_string()))
}

fn basis_points(field: &'static str, value: u32) -> Result<u16, FieldError> {
    u16::try_from(value).map_err(|_| FieldError::new(field, "must be at most 10000 basis points"))
}

impl Params {
    /// Every rule that needs no other state. Genesis and messages come through here.
    pub fn validate(&self) -> Result<(), FieldError> {
        // Destructured so that a new field forces a decision here.
        let Self {
            denom,
            create_fee: _,
            fee_per_nonce: _,
            token_price: _,
            refusal_timeout_s,
            execution_timeout_s,
            vote_threshold_bp,
            cancel_charge_bp,
            seal_grace_rounds,
            max_nonce,
            max_live,
            max_slots_per_owner,
            max_slots,
            max_lifetime_blocks,
            dispute_window_blocks,
        } = self;
        let check = |ok: bool, field, rule: &str| if ok { Ok(()) } else { Err(FieldError::new(field, rule)) };
        Coin::new(denom, 0).map_err(|e| FieldError::new("denom", e.to_string()))?;
        let timeout = |value: &u32| (1..=TIMEOUT_MAX).contains(value);
        check(timeout(refusal_timeout_s), "refusal_timeout_s", "must be 1 to 86400")?;
        check(timeout(execution_timeout_s), "execution_timeout_s", "must be 1 to 86400")?;
        // It must be exceeded, and no weight exceeds the whole.
        check(*vote_threshold_bp < WHOLE_BP, "vote_threshold_bp", "must be 0 to 9999")?;
        check(*cancel_charge_bp <= WHOLE_BP, "cancel_charge_bp", "must be 0 to 10000")?;
        check((1..=1_000).contains(seal_grace_rounds), "seal_grace_rounds", "must be 1 to 1000")?;
        check((3..=10_000_000).contains(max_nonce), "max_nonce", "must be 3 to 10000000")?;
        check((1..=65_536).contains(max_live), "max_live", "must be 1 to 65536")?;
        let slots_max = u32::try_from(MAX_SLOTS).unwrap_or(u32::MAX);
        check(*max_slots_per_owner <= slots_max, "max_slots_per_owner", "must be 0 to 128; 0 for no limit")?;
        check((1..=slots_max).contains(max_slots), "max_slots", "must be 1 to 128")?;
        check((1..=1 << 40).contains(max_lifetime_blocks), "max_lifetime_blocks", "must be 1 to 2^40")?;
        check(
            (1..=1_000_000).contains(dispute_window_blocks),
            "dispute_window_blocks",
            "must be 1 to 1000000",
        )
    }

    /// The protobuf form.
    pub fn to_pb(&self) -> pb::Params {
        pb::Params {
            denom: self.denom.clone(),
            create_fee: self.create_fee.to_string(),
            fee_per_nonce: self.fee_per_nonce.to_string(),
            token_price: self.token_price.to_string(),
            refusal_timeout_s: self.refusal_timeout_s,
            execution_timeout_s: self.execution_timeout_s,
            vote_threshold_bp: self.vote_threshold_bp.into(),
            cancel_charge_bp: self.cancel_charge_bp.into(),
            seal_grace_rounds: self.seal_grace_rounds,
            max_nonce: self.max_nonce,
            max_live: self.max_live,
            max_slots_per_owner: self.max_slots_per_owner,
            max_slots: self.max_slots,
            max_lifetime_blocks: self.max_lifetime_blocks,
            dispute_window_blocks: self.dispute_window_blocks,
        }
    }

    /// Reads and validates the protobuf form.
    pub fn from_pb(given: &pb::Params) -> Result<Self, FieldError> {
        let params = Self::default().with_fields(given, FIELDS)?;
        params.validate()?;
        Ok(params)
    }

    /// These parameters with the fields named by `mask` taken from `given`, validated as a whole. Fields not named are
    /// not read.
    pub fn updated(&self, given: &pb::Params, mask: &[String]) -> Result<Self, FieldError> {
        let params = self.with_fields(given, &apply_mask(mask, FIELDS)?)?;
        params.validate()?;
        Ok(params)
    }

    fn with_fields(&self, given: &pb::Params, fields: &[&'static str]) -> Result<Self, FieldError> {
        let mut new = self.clone();
        for field in fields.iter().copied() {
            match field {
                "denom" => new.denom = given.denom.clone(),
                "create_fee" => new.create_fee = amount(field, &given.create_fee)?,
                "fee_per_nonce" => new.fee_per_nonce = amount(field, &given.fee_per_nonce)?,
                "token_price" => new.token_price = amount(field, &given.token_price)?,
                "refusal_timeout_s" => new.refusal_timeout_s = given.refusal_timeout_s,
                "execution_timeout_s" => new.execution_timeout_s = given.execution_timeout_s,
                "vote_threshold_bp" => {
                    new.vote_threshold_bp = basis_points(field, given.vote_threshold_bp)?;
                }
                "cancel_charge_bp" => new.cancel_charge_bp = basis_points(field, given.cancel_charge_bp)?,
                "seal_grace_rounds" => new.seal_grace_rounds = given.seal_grace_rounds,
                "max_nonce" => new.max_nonce = given.max_nonce,
                "max_live" => new.max_live = given.max_live,
                "max_slots_per_owner" => new.max_slots_per_owner = given.max_slots_per_owner,
                "max_slots" => new.max_slots = given.max_slots,
                "max_lifetime_blocks" => new.max_lifetime_blocks = given.max_lifetime_blocks,
                "dispute_window_blocks" => new.dispute_window_blocks = given.dispute_window_blocks,
                // `fields` come from FIELDS; a test keeps the two lists equal.
                _ => {}
            }
        }
        Ok(new)
    }
}
