//! Messages as domain types, checked as far as no state is needed.

use std::collections::BTreeSet;

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as pb;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::{Any, Message, Name, decode_strict};
use holdfast_types::{Address, Coin, FieldError, Hrp, ModuleError, sdk};

use crate::calc::Share;
use crate::errors::GovError;
use crate::types::{Plan, Vote, VoteOption, WeightedOption};

/// Longest metadata of a proposal or vote, bytes.
pub const METADATA_MAX: usize = 255;
/// Longest title, bytes.
pub const TITLE_MAX: usize = 255;
/// Longest summary, bytes: forty times the metadata, as in the Cosmos SDK.
pub const SUMMARY_MAX: usize = 40 * METADATA_MAX;
/// Most messages of a proposal.
pub const MESSAGES_MAX: usize = 32;
/// Most bytes of a proposal's messages together.
pub const MESSAGES_BYTES_MAX: usize = 1 << 20;
/// How deep proposals may hold proposals.
pub const NESTING_MAX: u32 = 1;
/// Longest name of an upgrade, characters.
pub const PLAN_NAME_MAX: usize = 140;
/// Longest info of an upgrade, bytes.
pub const PLAN_INFO_MAX: usize = 1 << 20;
/// Seconds of the year 1, which Go clients write for "no time".
const GO_ZERO_TIME: i64 = -62_135_596_800;

/// Which field of each message holds its only signer: type, field number, field name.
pub const SIGNERS: &[(&str, u32, &str)] = &[
    ("/cosmos.gov.v1.MsgSubmitProposal", 3, "proposer"),
    ("/cosmos.gov.v1.MsgVote", 2, "voter"),
    ("/cosmos.gov.v1.MsgVoteWeighted", 2, "voter"),
    ("/cosmos.gov.v1.MsgDeposit", 2, "depositor"),
    ("/cosmos.gov.v1.MsgCancelProposal", 2, "proposer"),
    ("/cosmos.gov.v1.MsgUpdateParams", 1, "authority"),
    ("/cosmos.upgrade.v1beta1.MsgSoftwareUpgrade", 1, "authority"),
    ("/cosmos.upgrade.v1beta1.MsgCancelUpgrade", 1, "authority"),
];

pub(crate) fn address(field: &str, text: &str, hrp: &Hrp) -> Result<Address, GovError> {
    let error = |e| ModuleError::sdk(sdk::INVALID_ADDRESS, format!("{field}: {e}: invalid address"));
    Ok(Address::parse(text, hrp).map_err(error)?)
}

/// Positive coins by ascending denomination; may be none. The error is `sdk` 10.
pub(crate) fn coins(field: &str, given: &[PbCoin]) -> Result<Vec<Coin>, GovError> {
    let bad = |n: usize, rule: String| {
        ModuleError::sdk(sdk::INVALID_COINS, format!("{field}[{n}]: {rule}: invalid coins"))
    };
    let mut out: Vec<Coin> = Vec::with_capacity(given.len());
    for (n, coin) in given.iter().enumerate() {
        let coin = Coin::try_from(coin).map_err(|e| bad(n, e.to_string()))?;
        if coin.amount == 0 {
            return Err(bad(n, "amount must be above 0".into()).into());
        }
        if out.last().is_some_and(|last| last.denom >= coin.denom) {
            return Err(bad(n, "sort coins by denom, each once".into()).into());
        }
        out.push(coin);
    }
    Ok(out)
}

pub(crate) fn check_metadata(metadata: &str) -> Result<(), GovError> {
    match metadata.len() {
        found if found > METADATA_MAX => Err(GovError::MetadataTooLong { found, most: METADATA_MAX }),
        _ => Ok(()),
    }
}

/// `cosmos.gov.v1.MsgSubmitProposal`.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// Signer.
    pub proposer: Address,
    /// What the proposal would do.
    pub messages: Vec<Any>,
    /// First deposit; may be nothing.
    pub deposit: Vec<Coin>,
    /// Title.
    pub title: String,
    /// Summary.
    pub summary: String,
    /// Metadata.
    pub metadata: String,
    /// Shorter period, higher threshold.
    pub expedited: bool,
}

impl Submission {
    /// Parses the message. Codes: `sdk` 7, 5, 22, 15, `sdk` 10, 11, 25, 24.
    pub fn from_pb(msg: pb::MsgSubmitProposal, hrp: &Hrp) -> Result<Self, GovError> {
        let proposer = address("proposer", &msg.proposer, hrp)?;
        check_texts(&msg.title, &msg.summary, &msg.metadata)?;
        let deposit = coins("initial_deposit", &msg.initial_deposit)?;
        if msg.messages.is_empty() && msg.metadata.is_empty() {
            return Err(GovError::NoMessages);
        }
        check_size(&msg.messages)?;
        check_nesting(&msg.messages, 0)?;
        Ok(Self {
            proposer,
            messages: msg.messages,
            deposit,
            title: msg.title,
            summary: msg.summary,
            metadata: msg.metadata,
            expedited: msg.expedited,
        })
    }
}

pub(crate) fn check_texts(title: &str, summary: &str, metadata: &str) -> Result<(), GovError> {
    let bad = |field, rule: String| Err(GovError::Content { field, rule });
    if title.is_empty() || title.len() > TITLE_MAX {
        return bad("title", format!("give 1 to {TITLE_MAX} bytes"));
    }
    if summary.is_empty() {
        return bad("summary", "say what it is about".into());
    }
    if summary.len() > SUMMARY_MAX {
        return Err(GovError::SummaryTooLong { found: summary.len(), most: SUMMARY_MAX });
    }
    check_metadata(metadata)
}

pub(crate) fn check_size(messages: &[Any]) -> Result<(), GovError> {
    if messages.len() > MESSAGES_MAX {
        return Err(GovError::TooLarge { found: messages.len(), unit: "messages", most: MESSAGES_MAX });
    }
    let bytes = messages.iter().map(Message::encoded_len).fold(0_usize, usize::saturating_add);
    if bytes > MESSAGES_BYTES_MAX {
        return Err(GovError::TooLarge { found: bytes, unit: "bytes", most: MESSAGES_BYTES_MAX });
    }
    Ok(())
}

/// Recursion ends one level below the limit, whatever the bytes say.
fn check_nesting(messages: &[Any], depth: u32) -> Result<(), GovError> {
    for message in messages.iter().filter(|m| m.type_url == pb::MsgSubmitProposal::type_url()) {
        if depth >= NESTING_MAX {
            return Err(GovError::NestedTooDeep(NESTING_MAX));
        }
        // One that does not decode is refused by the router, with its position.
        if let Ok(inner) = decode_strict::<pb::MsgSubmitProposal>(&message.value) {
            check_nesting(&inner.messages, depth.saturating_add(1))?;
        }
    }
    Ok(())
}

/// The option of a wire number.
fn option(field: &str, number: i32) -> Result<VoteOption, GovError> {
    Ok(match pb::VoteOption::try_from(number) {
        Ok(pb::VoteOption::Yes) => VoteOption::Yes,
        Ok(pb::VoteOption::Abstain) => VoteOption::Abstain,
        Ok(pb::VoteOption::No) => VoteOption::No,
        Ok(pb::VoteOption::NoWithVeto) => VoteOption::NoWithVeto,
        Ok(pb::VoteOption::Unspecified) | Err(_) => {
            let rule = "must be 1 (yes), 2 (abstain), 3 (no) or 4 (no with veto)".into();
            return Err(GovError::Vote { field: field.into(), rule });
        }
    })
}

impl VoteOption {
    /// The wire number.
    pub fn number(self) -> i32 {
        match self {
            Self::Yes => pb::VoteOption::Yes.into(),
            Self::Abstain => pb::VoteOption::Abstain.into(),
            Self::No => pb::VoteOption::No.into(),
            Self::NoWithVeto => pb::VoteOption::NoWithVeto.into(),
        }
    }
}

impl Vote {
    /// A vote of one option. Codes: 7, 15.
    pub fn single(number: i32, metadata: String) -> Result<Self, GovError> {
        check_metadata(&metadata)?;
        let option = option("option", number)?;
        Ok(Self { options: vec![WeightedOption { option, weight: Share::ONE }], metadata })
    }

    /// A vote of parts that add up to 1. Codes: 7, 15.
    pub fn weighted(parts: &[pb::WeightedVoteOption], metadata: String) -> Result<Self, GovError> {
        check_metadata(&metadata)?;
        let bad = |field: String, rule: &str| Err(GovError::Vote { field, rule: rule.into() });
        let (mut options, mut used, mut sum) = (Vec::new(), BTreeSet::new(), Share::ZERO);
        for (n, part) in parts.iter().enumerate() {
            let field = format!("options[{n}]");
            let option = option(&field, part.option)?;
            if !used.insert(option) {
                return bad(field, "names an option twice");
            }
            let weight = match Share::parse(&part.weight) {
                Ok(weight) if weight > Share::ZERO => weight,
                Ok(_) => return bad(format!("{field}.weight"), "must be above 0"),
                Err(e) => return bad(format!("{field}.weight"), &e.to_string()),
            };
            match sum.checked_add(weight) {
                Some(total) => sum = total,
                None => return bad("options".into(), "weights add up to more than 1"),
            }
            options.push(WeightedOption { option, weight });
        }
        if sum != Share::ONE {
            return bad("options".into(), "weights must add up to 1");
        }
        Ok(Self { options, metadata })
    }

    /// The parts in wire form.
    pub(crate) fn options_to_pb(&self) -> Vec<pb::WeightedVoteOption> {
        let part = |o: &WeightedOption| pb::WeightedVoteOption {
            option: o.option.number(),
            weight: o.weight.to_string(),
        };
        self.options.iter().map(part).collect()
    }
}

impl Plan {
    /// Parses a plan. Codes: `sdk` 18.
    pub fn from_pb(plan: upgrade::Plan) -> Result<Self, GovError> {
        let bad = |field, rule: String| Err(FieldError::new(field, rule).into());
        check_plan_name(&plan.name)?;
        if plan.time.is_some_and(|t| (t.seconds, t.nanos) != (GO_ZERO_TIME, 0)) {
            return bad("plan.time", "must not be set: upgrades go by height".into());
        }
        if plan.height < 1 {
            return bad("plan.height", "must be above 0".into());
        }
        if plan.info.len() > PLAN_INFO_MAX {
            return bad("plan.info", format!("at most {PLAN_INFO_MAX} bytes"));
        }
        if plan.upgraded_client_state.is_some() {
            return bad("plan.upgraded_client_state", "must not be set".into());
        }
        Ok(Self { name: plan.name, height: plan.height, info: plan.info })
    }

    /// The wire form.
    pub fn to_pb(&self) -> upgrade::Plan {
        upgrade::Plan {
            name: self.name.clone(),
            height: self.height,
            info: self.info.clone(),
            ..upgrade::Plan::default()
        }
    }
}

/// Printable ASCII, for it becomes a folder's name; no slash, and not only dots.
pub(crate) fn check_plan_name(name: &str) -> Result<(), GovError> {
    let printable = name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'/' && b != b'\\');
    let ok = (1..=PLAN_NAME_MAX).contains(&name.len())
        && printable
        && name.trim() == name
        && !name.bytes().all(|b| b == b'.');
    if ok {
        return Ok(());
    }
    let rule =
        "use 1 to 140 printable ASCII characters without slashes, no space at either end, not dots only";
    Err(FieldError::new("plan.name", rule).into())
}
