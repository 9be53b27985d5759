//! Genesis: the whole state of the module, checked, written and read back.

use std::collections::BTreeMap;

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Context, Hrp, ModuleError};

use crate::Params;
use crate::calc::cost_of;
use crate::errors::EscrowError;
use crate::keeper::module_account;
use crate::state::{BY_OWNER, ESCROWS, NEXT_ESCROW_ID, PARAMS};
use crate::types::{Dispute, Escrow, EscrowId, HostTally, Outcome, Status};

/// A parsed and checked genesis state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Genesis {
    params: Params,
    next_id: EscrowId,
    escrows: Vec<(EscrowId, Escrow)>,
}

impl Default for Genesis {
    fn default() -> Self {
        Self { params: Params::default(), next_id: 1, escrows: Vec::new() }
    }
}

fn check_hosts(escrow: &Escrow, hosts: &[HostTally]) -> Result<u128, &'static str> {
    if !hosts.iter().map(|host| host.owner).eq(escrow.config.owners().into_keys()) {
        return Err("hosts must be the owners of the slots, ascending by raw address");
    }
    for host in hosts {
        let ends = [host.completed, host.missed, host.errored, host.released, host.drained];
        let ended = ends.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n));
        if ended.is_none_or(|ended| ended > host.started) {
            return Err("hosts.started must be at least the sum of what ended");
        }
    }
    cost_of(hosts).ok_or("hosts.cost must not pass 2^128 - 1")
}

fn check_dispute(escrow: &Escrow, dispute: &Dispute) -> Result<(), &'static str> {
    let cost = check_hosts(escrow, &dispute.hosts)?;
    if cost.checked_add(dispute.fees).is_none_or(|spent| spent > escrow.config.amount) {
        return Err("dispute: costs and fees must be at most the amount");
    }
    if !escrow.is_party(&dispute.sender) {
        return Err("dispute.sender must be the creator or an owner of a slot");
    }
    let closes_at = dispute.opened_at.checked_add(escrow.dispute_window);
    if dispute.opened_at < escrow.expires_at || closes_at != Some(dispute.closes_at) {
        return Err("dispute must open at expires_at_height or later, and close a window after that");
    }
    Ok(())
}

fn check_outcome(escrow: &Escrow, outcome: &Outcome) -> Result<(), &'static str> {
    let paid = match escrow.status {
        Status::Expired => {
            let nothing = outcome.hosts.is_empty() && outcome.nonce == 0;
            if !nothing || outcome.fees != escrow.config.create_fee {
                return Err("an expired escrow pays its create_fee, and nothing to hosts");
            }
            0
        }
        _ => check_hosts(escrow, &outcome.hosts)?,
    };
    let all = paid.checked_add(outcome.fees).and_then(|sum| sum.checked_add(outcome.refunded));
    if outcome.paid != paid || all != Some(escrow.config.amount) {
        return Err(
            "outcome: paid must be the sum of the costs; with fees and refunded it must be the amount",
        );
    }
    if outcome.end_height < escrow.created_at {
        return Err("outcome.end_height must not be before created_at_height");
    }
    Ok(())
}

/// Whether the parts of an escrow fit each other.
fn check_escrow(escrow: &Escrow) -> Result<(), &'static str> {
    // Destructured so that a new field forces a decision here. The terms were checked when they were read.
    let Escrow {
        status,
        config,
        denom: _,
        gateway_url: _,
        epoch: _,
        created_at,
        expires_at,
        dispute_window,
        stamps,
        dispute,
        outcome,
    } = escrow;
    if *created_at < 1 || expires_at <= created_at || *dispute_window < 1 {
        return Err("heights must ascend from 1: created, expires; dispute_window_blocks must be above 0");
    }
    if !stamps.iter().map(|(owner, _)| *owner).eq(config.owners().into_keys()) {
        return Err("stamps must be those of the owners of the slots, ascending by raw address");
    }
    match (status, dispute, outcome) {
        (Status::Open, None, None) => Ok(()),
        (Status::Disputed, Some(dispute), None) => check_dispute(escrow, dispute),
        (Status::Settled | Status::Expired, None, Some(outcome)) => check_outcome(escrow, outcome),
        _ => Err("dispute and outcome do not fit the status"),
    }
}

impl Genesis {
    /// Reads and checks the protobuf form; errors are code 16.
    pub(crate) fn from_pb(given: &pb::GenesisState, hrp: &Hrp) -> Result<Self, EscrowError> {
        let params = given.params.as_ref().ok_or_else(|| EscrowError::genesis("params", "must be given"))?;
        let params = Params::from_pb(params).map_err(|e| EscrowError::genesis("params", e))?;
        let mut escrows: Vec<(EscrowId, Escrow)> = Vec::with_capacity(given.escrows.len());
        for (n, row) in given.escrows.iter().enumerate() {
            let field = || format!("escrows[{n}]");
            let escrow = Escrow::from_pb(row, hrp).map_err(|e| EscrowError::genesis(field(), e))?;
            check_escrow(&escrow).map_err(|rule| EscrowError::genesis(field(), rule))?;
            let id = escrow.config.escrow_id;
            let follows = escrows.last().map_or(id > 0, |(last, _)| *last < id);
            if !follows || id >= given.next_escrow_id {
                let rule = "escrow_id must ascend from 1 and stay below next_escrow_id";
                return Err(EscrowError::genesis(field(), rule));
            }
            escrows.push((id, escrow));
        }
        if given.next_escrow_id == 0 {
            return Err(EscrowError::genesis("next_escrow_id", "must be at least 1"));
        }
        Ok(Self { params, next_id: given.next_escrow_id, escrows })
    }

    /// The protobuf form.
    pub(crate) fn to_pb(&self, hrp: &Hrp) -> pb::GenesisState {
        pb::GenesisState {
            params: Some(self.params.to_pb()),
            next_escrow_id: self.next_id,
            escrows: self.escrows.iter().map(|(_, escrow)| escrow.to_pb(hrp)).collect(),
        }
    }

    /// Writes the state; indexes follow. Code 16 unless the module account holds exactly the coins of open and disputed
    /// escrows.
    pub(crate) fn init(&self, ctx: &mut Context<'_>, bank: &dyn BankKeeper) -> Result<(), ModuleError> {
        let mut held = BTreeMap::from([(self.params.denom.clone(), 0_u128)]);
        PARAMS.set(ctx.store, &self.params)?;
        NEXT_ESCROW_ID.set(ctx.store, self.next_id)?;
        for (id, escrow) in &self.escrows {
            ESCROWS.set(ctx.store, id, escrow)?;
            for owner in escrow.config.owners().into_keys() {
                BY_OWNER.insert(ctx.store, &(owner, *id))?;
            }
            if escrow.status.holds_coins() {
                let sum = held.entry(escrow.denom.clone()).or_default();
                let more = sum.checked_add(escrow.config.amount);
                *sum = more.ok_or_else(|| EscrowError::genesis("escrows", "amounts pass 2^128 - 1"))?;
            }
        }
        for (denom, sum) in held {
            let balance = bank.balance(&*ctx.store, &module_account(), &denom)?;
            if balance != sum {
                let rule =
                    format!("escrows hold {sum}{denom}, but the account of the module has {balance}{denom}");
                return Err(EscrowError::genesis("escrows", rule).into());
            }
        }
        Ok(())
    }

    /// Reads the state back.
    pub(crate) fn read(store: &dyn KvRead) -> Result<Self, ModuleError> {
        Ok(Self {
            params: PARAMS.load(store)?,
            next_id: NEXT_ESCROW_ID.peek(store)?,
            escrows: ESCROWS.entries().iter(store, Order::Ascending).collect::<Result<_, _>>()?,
        })
    }
}
