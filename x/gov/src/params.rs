//! Parameters.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::Duration;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::cosmos::gov::v1 as pb;
use holdfast_types::{Address, Coin, FieldError, Hrp};

use crate::calc::{Limits, Share};
use crate::keys::MODULE_NAME;
use crate::types::TimeNs;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Shortest period.
const PERIOD_MIN: TimeNs = SECOND;
/// Longest period: a year of 365 days.
const PERIOD_MAX: TimeNs = SECOND * 86_400 * 365;
/// Most denominations of deposits.
pub(crate) const DENOMS_MAX: usize = 4;

/// Parameters of the module.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// Deposit at which voting begins, by ascending denomination.
    pub min_deposit: Vec<Coin>,
    /// Time to collect it.
    pub max_deposit_period_ns: TimeNs,
    /// Time for votes.
    pub voting_period_ns: TimeNs,
    /// Share of all power that must vote.
    pub quorum: Share,
    /// Share of Yes among those not abstaining that must be exceeded.
    pub threshold: Share,
    /// Share of vetoes among the votes that must not be exceeded.
    pub veto_threshold: Share,
    /// Share of the minimum to be paid with the proposal.
    pub min_initial_deposit_ratio: Share,
    /// Share of the deposits lost by a cancellation.
    pub proposal_cancel_ratio: Share,
    /// Who gets it; nobody = it is burned.
    pub proposal_cancel_dest: Option<Address>,
    /// Time for votes on an expedited proposal.
    pub expedited_voting_period_ns: TimeNs,
    /// `threshold` of an expedited proposal.
    pub expedited_threshold: Share,
    /// `min_deposit` of an expedited proposal.
    pub expedited_min_deposit: Vec<Coin>,
    /// Burn deposits when the quorum is missed.
    pub burn_vote_quorum: bool,
    /// Burn deposits when the deposit period ends without enough.
    pub burn_proposal_deposit_prevote: bool,
    /// Burn deposits after a veto.
    pub burn_vote_veto: bool,
    /// Share of the minimum that each deposit must reach in one of its denominations.
    pub min_deposit_ratio: Share,
}

impl Default for Params {
    /// The Cosmos SDK's, in `uhold`.
    fn default() -> Self {
        let uhold = |amount| vec![Coin { denom: "uhold".into(), amount }];
        Self {
            min_deposit: uhold(10_000_000),
            max_deposit_period_ns: 2 * 86_400 * SECOND,
            voting_period_ns: 2 * 86_400 * SECOND,
            quorum: Share::per_mille(334),
            threshold: Share::per_mille(500),
            veto_threshold: Share::per_mille(334),
            min_initial_deposit_ratio: Share::ZERO,
            proposal_cancel_ratio: Share::per_mille(500),
            proposal_cancel_dest: None,
            expedited_voting_period_ns: 86_400 * SECOND,
            expedited_threshold: Share::per_mille(667),
            expedited_min_deposit: uhold(50_000_000),
            burn_vote_quorum: false,
            burn_proposal_deposit_prevote: false,
            burn_vote_veto: true,
            min_deposit_ratio: Share::per_mille(10),
        }
    }
}

/// Fields an update can name.
pub(crate) const FIELDS: &[&str] = &[
    "min_deposit",
    "max_deposit_period",
    "voting_period",
    "quorum",
    "threshold",
    "veto_threshold",
    "min_initial_deposit_ratio",
    "proposal_cancel_ratio",
    "proposal_cancel_dest",
    "expedited_voting_period",
    "expedited_threshold",
    "expedited_min_deposit",
    "burn_vote_quorum",
    "burn_proposal_deposit_prevote",
    "burn_vote_veto",
    "min_deposit_ratio",
];

/// Positive coins by ascending denomination.
fn check_coins(field: &'static str, coins: &[Coin]) -> Result<(), FieldError> {
    let bad = |rule: &str| Err(FieldError::new(field, rule));
    if coins.is_empty() || coins.len() > DENOMS_MAX {
        return bad("must hold 1 to 4 coins");
    }
    if !coins.is_sorted_by(|a, b| a.denom < b.denom) {
        return bad("sort coins by denom, each once");
    }
    if coins.iter().any(|coin| coin.amount == 0) { bad("amounts must be above 0") } else { Ok(()) }
}

fn coins(field: &'static str, coins: &[PbCoin]) -> Result<Vec<Coin>, FieldError> {
    coins.iter().map(|c| Coin::try_from(c).map_err(|e| FieldError::new(field, e.to_string()))).collect()
}

fn share(field: &'static str, text: &str) -> Result<Share, FieldError> {
    Share::parse(text).map_err(|e| FieldError::new(field, e.to_string()))
}

fn period(field: &'static str, duration: Option<&Duration>) -> Result<TimeNs, FieldError> {
    let whole = duration.and_then(|d| {
        let nanos = u64::try_from(d.nanos).ok().filter(|nanos| *nanos < SECOND)?;
        u64::try_from(d.seconds).ok()?.checked_mul(SECOND)?.checked_add(nanos)
    });
    whole.ok_or_else(|| FieldError::new(field, "give a duration of 1 second to 365 days"))
}

fn duration(period: TimeNs) -> Duration {
    let seconds = period.checked_div(SECOND).and_then(|s| i64::try_from(s).ok()).unwrap_or(0);
    let nanos = period.checked_rem(SECOND).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    Duration { seconds, nanos }
}

impl Params {
    /// Every rule that needs no other state. Parameters that pass let proposals be made, voted on and passed, so
    /// governance can always mend them; that somebody owns the deposit is not known here.
    pub fn validate(&self) -> Result<(), FieldError> {
        // Destructured so that a new field forces a decision here. A share is 0 to 1 by its type.
        let Self {
            min_deposit,
            max_deposit_period_ns,
            voting_period_ns,
            quorum: _,
            threshold,
            veto_threshold,
            min_initial_deposit_ratio: _,
            proposal_cancel_ratio: _,
            proposal_cancel_dest,
            expedited_voting_period_ns,
            expedited_threshold,
            expedited_min_deposit,
            burn_vote_quorum: _,
            burn_proposal_deposit_prevote: _,
            burn_vote_veto: _,
            min_deposit_ratio: _,
        } = self;
        let check = |ok: bool, field, rule: &str| if ok { Ok(()) } else { Err(FieldError::new(field, rule)) };
        check_coins("min_deposit", min_deposit)?;
        for (field, period) in [
            ("max_deposit_period", max_deposit_period_ns),
            ("voting_period", voting_period_ns),
            ("expedited_voting_period", expedited_voting_period_ns),
        ] {
            check((PERIOD_MIN..=PERIOD_MAX).contains(period), field, "must be 1 second to 365 days")?;
        }
        // It must be exceeded, and nothing exceeds 1.
        let reachable = |share: &Share| Share::ZERO < *share && *share < Share::ONE;
        check(reachable(threshold), "threshold", "must be above 0 and below 1")?;
        check(*veto_threshold > Share::ZERO, "veto_threshold", "must be above 0")?;
        check(
            *proposal_cancel_dest != Some(Address::module(MODULE_NAME)),
            "proposal_cancel_dest",
            "must not be the gov account, which holds deposits only",
        )?;
        check(
            expedited_voting_period_ns < voting_period_ns,
            "expedited_voting_period",
            "must be shorter than voting_period",
        )?;
        check(reachable(expedited_threshold), "expedited_threshold", "must be above 0 and below 1")?;
        check(expedited_threshold > threshold, "expedited_threshold", "must be above threshold")?;
        check_coins("expedited_min_deposit", expedited_min_deposit)?;
        let higher = |(a, b): (&Coin, &Coin)| a.denom == b.denom && a.amount > b.amount;
        check(
            expedited_min_deposit.len() == min_deposit.len()
                && expedited_min_deposit.iter().zip(min_deposit).all(higher),
            "expedited_min_deposit",
            "must have the denoms of min_deposit and more of each",
        )
    }

    /// Takes the named fields from the wire form; the others need not be there.
    pub(crate) fn with_fields(
        &self,
        given: &pb::Params,
        fields: &[&'static str],
        hrp: &Hrp,
    ) -> Result<Self, FieldError> {
        let mut new = self.clone();
        for field in fields.iter().copied() {
            match field {
                "min_deposit" => new.min_deposit = coins(field, &given.min_deposit)?,
                "max_deposit_period" => {
                    new.max_deposit_period_ns = period(field, given.max_deposit_period.as_ref())?;
                }
                "voting_period" => new.voting_period_ns = period(field, given.voting_period.as_ref())?,
                "quorum" => new.quorum = share(field, &given.quorum)?,
                "threshold" => new.threshold = share(field, &given.threshold)?,
                "veto_threshold" => new.veto_threshold = share(field, &given.veto_threshold)?,
                "min_initial_deposit_ratio" => {
                    new.min_initial_deposit_ratio = share(field, &given.min_initial_deposit_ratio)?;
                }
                "proposal_cancel_ratio" => {
                    new.proposal_cancel_ratio = share(field, &given.proposal_cancel_ratio)?;
                }
                "proposal_cancel_dest" => {
                    let text = given.proposal_cancel_dest.as_str();
                    let address = (!text.is_empty()).then(|| Address::parse(text, hrp)).transpose();
                    new.proposal_cancel_dest = address.map_err(|e| FieldError::new(field, e.to_string()))?;
                }
                "expedited_voting_period" => {
                    new.expedited_voting_period_ns = period(field, given.expedited_voting_period.as_ref())?;
                }
                "expedited_threshold" => new.expedited_threshold = share(field, &given.expedited_threshold)?,
                "expedited_min_deposit" => {
                    new.expedited_min_deposit = coins(field, &given.expedited_min_deposit)?;
                }
                "burn_vote_quorum" => new.burn_vote_quorum = given.burn_vote_quorum,
                "burn_proposal_deposit_prevote" => {
                    new.burn_proposal_deposit_prevote = given.burn_proposal_deposit_prevote;
                }
                "burn_vote_veto" => new.burn_vote_veto = given.burn_vote_veto,
                "min_deposit_ratio" => new.min_deposit_ratio = share(field, &given.min_deposit_ratio)?,
                _ => {}
            }
        }
        Ok(new)
    }

    /// From the wire form, complete, not validated.
    pub fn from_pb(given: &pb::Params, hrp: &Hrp) -> Result<Self, FieldError> {
        Self::default().with_fields(given, FIELDS, hrp)
    }

    /// The wire form.
    pub fn to_pb(&self, hrp: &Hrp) -> pb::Params {
        let coins = |coins: &[Coin]| coins.iter().map(PbCoin::from).collect();
        pb::Params {
            min_deposit: coins(&self.min_deposit),
            max_deposit_period: Some(duration(self.max_deposit_period_ns)),
            voting_period: Some(duration(self.voting_period_ns)),
            quorum: self.quorum.to_string(),
            threshold: self.threshold.to_string(),
            veto_threshold: self.veto_threshold.to_string(),
            min_initial_deposit_ratio: self.min_initial_deposit_ratio.to_string(),
            proposal_cancel_ratio: self.proposal_cancel_ratio.to_string(),
            proposal_cancel_dest: self.proposal_cancel_dest.map(|a| a.to_bech32(hrp)).unwrap_or_default(),
            expedited_voting_period: Some(duration(self.expedited_voting_period_ns)),
            expedited_threshold: self.expedited_threshold.to_string(),
            expedited_min_deposit: coins(&self.expedited_min_deposit),
            burn_vote_quorum: self.burn_vote_quorum,
            burn_proposal_deposit_prevote: self.burn_proposal_deposit_prevote,
            burn_vote_veto: self.burn_vote_veto,
            min_deposit_ratio: self.min_deposit_ratio.to_string(),
        }
    }

    /// Deposit at which voting begins.
    pub fn min_deposit(&self, expedited: bool) -> &[Coin] {
        if expedited { &self.expedited_min_deposit } else { &self.min_deposit }
    }

    /// Time for votes.
    pub fn voting_period_ns(&self, expedited: bool) -> TimeNs {
        if expedited { self.expedited_voting_period_ns } else { self.voting_period_ns }
    }

    /// What a count is measured with.
    pub fn limits(&self, expedited: bool) -> Limits {
        Limits {
            quorum: self.quorum,
            veto_threshold: self.veto_threshold,
            threshold: if expedited { self.expedited_threshold } else { self.threshold },
        }
    }
}
