//! The life of an escrow on the chain: created, settled or disputed, paid.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{DrawnGroup, EscrowCounts, GroupRequest};
use holdfast_types::{Address, Coin, Context, Height, ModuleError, sdk};

use crate::errors::EscrowError;
use crate::msgs::{BringState, CreateEscrow};
use crate::session::FrozenConfig;
use crate::session::settle::{Mode, verify};
use crate::state::{BY_OWNER, ESCROWS, NEXT_ESCROW_ID, PARAMS};
use crate::types::{Dispute, Escrow, EscrowId, HostTally, Outcome, Status};
use crate::{Deps, MODULE_NAME, Params, calc, events};

/// The module's writes. Holds nothing. A call that fails may have written: run it on a branch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

/// The account that holds the coins of open and disputed escrows.
pub fn module_account() -> Address {
    Address::module(MODULE_NAME)
}

/// How an escrow is paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payment {
    /// [`Status::Settled`] or [`Status::Expired`].
    pub(crate) status: Status,
    /// Cause in the event.
    pub(crate) cause: &'static str,
    /// Nonce of the state.
    pub(crate) nonce: u64,
    /// Each owner's part.
    pub(crate) hosts: Vec<HostTally>,
    /// To the fee collector.
    pub(crate) fees: u128,
}

impl Keeper {
    /// An escrow, until it is pruned.
    pub fn escrow(&self, store: &dyn KvRead, id: EscrowId) -> Result<Option<Escrow>, StoreError> {
        ESCROWS.get(store, &id)
    }

    /// The parameters in force.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        PARAMS.load(store)
    }

    /// Takes coins and draws the group that will earn them. Refusals: 3 · 4 · 5 · 3 (terms that carry no session) · 6.
    pub fn create(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: CreateEscrow,
    ) -> Result<EscrowId, ModuleError> {
        let params = PARAMS.load(&*ctx.store)?;
        check_terms(&params, &msg)?;
        let id = NEXT_ESCROW_ID.next(ctx.store)?;
        let block = ctx.block;
        let cap = calc::slot_cap(msg.slots, params.max_slots_per_owner);
        let seed = calc::group_seed(&block.chain_id, id, &block.previous_app_hash);
        let request = GroupRequest { model: &msg.model, seed, slots: msg.slots, cap };
        let slots = match deps.groups.draw_group(&*ctx.store, block, &request)? {
            DrawnGroup::Slots(slots) => slots,
            DrawnGroup::ModelUnknown => {
                return Err(EscrowError::ModelUnknown(msg.model.chars().take(80).collect()).into());
            }
            DrawnGroup::TooFew { owners } => {
                return Err(EscrowError::TooFewOwners { slots: msg.slots, cap, owners }.into());
            }
        };
        let config = FrozenConfig {
            chain_id: block.chain_id.clone(),
            escrow_id: id,
            creator: msg.creator,
            gateway: msg.gateway,
            model: msg.model,
            slots,
            amount: msg.amount.amount,
            create_fee: params.create_fee,
            fee_per_nonce: params.fee_per_nonce,
            token_price: params.token_price,
            refusal_timeout_s: params.refusal_timeout_s,
            execution_timeout_s: params.execution_timeout_s,
            vote_threshold_bp: params.vote_threshold_bp,
            cancel_charge_bp: params.cancel_charge_bp,
            seal_grace_nonces: params.seal_grace_rounds.saturating_mul(msg.slots.into()),
            max_nonce: params.max_nonce,
            max_live: params.max_live,
        };
        config.validate().map_err(EscrowError::from)?;

        deps.bank.send(ctx, &msg.creator, &module_account(), &msg.amount).map_err(|error| {
            if error.codespace != sdk::CODESPACE || error.code != sdk::INSUFFICIENT_FUNDS {
                return error;
            }
            let needed = format!("{}{}", msg.amount.amount, msg.amount.denom);
            EscrowError::InsufficientFunds { needed, reason: error.message }.into()
        })?;
        let epoch = deps.epochs.epoch(&*ctx.store, block.epoch)?;
        let epoch = epoch.ok_or(EscrowError::Corrupt("the current epoch has no schedule"))?;
        let next_length = deps.epochs.next_length(&*ctx.store, block.epoch)?.unwrap_or(epoch.length);
        let stamp = |owner: &Address| -> Result<_, StoreError> {
            Ok((*owner, deps.stamps.stamp(&*ctx.store, block, &config.model, owner)?))
        };
        let stamps = config.owners().keys().map(stamp).collect::<Result<Vec<_>, _>>()?;
        for (owner, _) in &stamps {
            BY_OWNER.insert(ctx.store, &(*owner, id))?;
        }
        let escrow = Escrow {
            status: Status::Open,
            config,
            denom: params.denom,
            gateway_url: msg.gateway_url,
            epoch: block.epoch,
            created_at: block.height,
            expires_at: calc::expires_at(block.height, params.max_lifetime_blocks, epoch.end(), next_length),
            dispute_window: params.dispute_window_blocks,
            stamps,
            dispute: None,
            outcome: None,
        };
        ESCROWS.set(ctx.store, &id, &escrow)?;
        events::created(ctx, id, &escrow, &msg.amount);
        Ok(id)
    }

    /// Ends a session by its frozen state, and pays it. Refusals: 7 · 8 · 2 · 12 to 15.
    pub fn settle(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        msg: &BringState,
    ) -> Result<(), ModuleError> {
        let id = msg.settlement.escrow_id;
        let escrow = with_coins(ctx, id)?;
        check_party(ctx, &escrow, &msg.sender)?;
        let payout = verify(&escrow.config, &msg.settlement, Mode::Settle).map_err(EscrowError::from)?;
        let payment = Payment {
            status: Status::Settled,
            cause: "settle",
            nonce: msg.settlement.nonce,
            hosts: calc::tallies(&payout),
            fees: payout.fees,
        };
        self.pay(ctx, deps, id, escrow, payment, true)
    }

    /// Brings the highest state that a quorum signed, when the session was left. It is paid when the window is over,
    /// unless a higher one or a settlement comes. Refusals: 7 · 8 · 2 · 9 · 10 · 11 · 12 · 14 · 15.
    pub fn dispute(&self, ctx: &mut Context<'_>, msg: &BringState) -> Result<(), ModuleError> {
        let (id, nonce, height) = (msg.settlement.escrow_id, msg.settlement.nonce, ctx.block.height);
        let mut escrow = with_coins(ctx, id)?;
        check_party(ctx, &escrow, &msg.sender)?;
        if height < escrow.expires_at {
            return Err(EscrowError::NotExpired { id, from: escrow.expires_at }.into());
        }
        // Waits behind a backlog perhaps, but its time is over all the same.
        let last = escrow.due_at().ok_or(EscrowError::Corrupt("an escrow with coins is never due"))?;
        if height > last {
            return Err(EscrowError::WindowOver { id, at: last }.into());
        }
        if let Some(best) = escrow.dispute.as_ref().map(|d| d.nonce).filter(|best| nonce <= *best) {
            return Err(EscrowError::NotHigher { nonce, best }.into());
        }
        let payout = verify(&escrow.config, &msg.settlement, Mode::Dispute).map_err(EscrowError::from)?;
        let window = escrow.dispute_window;
        let (opened_at, closes_at) = match &escrow.dispute {
            Some(before) => (before.opened_at, before.closes_at),
            None => (height, height.saturating_add(window)),
        };
        let (sender, hosts, fees) = (msg.sender, calc::tallies(&payout), payout.fees);
        let dispute = Dispute { nonce, sender, fees, hosts, opened_at, closes_at };
        events::disputed(ctx, id, &sender, &dispute);
        escrow.status = Status::Disputed;
        escrow.dispute = Some(dispute);
        Ok(ESCROWS.set(ctx.store, &id, &escrow)?)
    }

    /// Pays an escrow, all of it: hosts, fees, the rest to the creator. Then the counts of each host are handed over, under
    /// the stamps of the creation; `notify` false leaves that out (a discarded step).
    pub(crate) fn pay(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: EscrowId,
        mut escrow: Escrow,
        payment: Payment,
        notify: bool,
    ) -> Result<(), ModuleError> {
        let over = EscrowError::Corrupt("an escrow pays more than it holds");
        let paid = calc::cost_of(&payment.hosts).ok_or_else(|| over.clone())?;
        let spent = paid.checked_add(payment.fees);
        let refunded = spent.and_then(|spent| escrow.config.amount.checked_sub(spent)).ok_or(over)?;

        let earned = payment.hosts.iter().map(|host| (host.owner, host.cost));
        let rest = [(deps.fee_collector, payment.fees), (escrow.config.creator, refunded)];
        for (to, amount) in earned.chain(rest) {
            if amount > 0 {
                deps.accounts.ensure_account(ctx, &to)?;
                let coin = Coin { denom: escrow.denom.clone(), amount };
                deps.bank.send(ctx, &module_account(), &to, &coin)?;
            }
        }
        let Payment { status, cause, nonce, hosts, fees } = payment;
        let outcome = Outcome { nonce, paid, fees, refunded, hosts, end_height: ctx.block.height };
        match status {
            Status::Expired => events::expired(ctx, id, &outcome),
            _ => events::settled(ctx, id, cause, &outcome),
        }
        escrow.status = status;
        escrow.dispute = None;
        escrow.outcome = Some(outcome.clone());
        ESCROWS.set(ctx.store, &id, &escrow)?;
        if notify {
            for host in &outcome.hosts {
                self.hand_over(ctx, deps, id, &escrow, host)?;
            }
        }
        Ok(())
    }

    fn hand_over(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: EscrowId,
        escrow: &Escrow,
        host: &HostTally,
    ) -> Result<(), ModuleError> {
        let stamp = escrow.stamps.iter().find(|(owner, _)| *owner == host.owner);
        let (_, stamp) = stamp.ok_or(EscrowError::Corrupt("an owner without a stamp"))?;
        let counts = EscrowCounts {
            model: escrow.config.model.clone(),
            participant: host.owner,
            stamp: *stamp,
            assigned: host.started,
            ok: host.completed,
            missed: host.missed.saturating_add(host.errored),
            released: host.released.saturating_add(host.drained),
            earned: host.cost,
        };
        events::host_settled(ctx, id, &counts);
        deps.hooks.after_escrow_settled(ctx, &counts)
    }

    /// Pays what is due at the end of a block: the dispute, or nobody's claim.
    pub(crate) fn close(
        &self,
        ctx: &mut Context<'_>,
        deps: &Deps<'_>,
        id: EscrowId,
        notify: bool,
    ) -> Result<(), ModuleError> {
        let escrow = ESCROWS.load(&*ctx.store, &id)?;
        let payment = match (escrow.status, &escrow.dispute) {
            (Status::Open, None) => Payment {
                status: Status::Expired,
                cause: "expiry",
                nonce: 0,
                hosts: Vec::new(),
                fees: escrow.config.create_fee,
            },
            (Status::Disputed, Some(dispute)) => Payment {
                status: Status::Settled,
                cause: "dispute",
                nonce: dispute.nonce,
                hosts: dispute.hosts.clone(),
                fees: dispute.fees,
            },
            _ => return Err(EscrowError::Corrupt("an escrow that is due has ended").into()),
        };
        self.pay(ctx, deps, id, escrow, payment, notify)
    }
}

/// What the parameters say of a message (code 3).
fn check_terms(params: &Params, msg: &CreateEscrow) -> Result<(), EscrowError> {
    if msg.amount.denom != params.denom {
        return Err(EscrowError::invalid("amount", format!("must be in {}", params.denom)));
    }
    if msg.amount.amount == 0 {
        return Err(EscrowError::invalid("amount", "must be above 0"));
    }
    if u32::from(msg.slots) > params.max_slots {
        return Err(EscrowError::invalid("slots", format!("must be at most {}", params.max_slots)));
    }
    Ok(())
}

/// The escrow, if it still holds coins; 7 or 8 otherwise.
fn with_coins(ctx: &Context<'_>, id: EscrowId) -> Result<Escrow, ModuleError> {
    let escrow = ESCROWS.get(&*ctx.store, &id)?.ok_or(EscrowError::NotFound(id))?;
    if escrow.status.holds_coins() {
        return Ok(escrow);
    }
    Err(EscrowError::Closed { id, status: escrow.status.as_str() }.into())
}

/// Code 2 unless `sender` may bring states.
fn check_party(ctx: &Context<'_>, escrow: &Escrow, sender: &Address) -> Result<(), EscrowError> {
    if escrow.is_party(sender) {
        return Ok(());
    }
    let creator = ctx.bech32(&escrow.config.creator);
    Err(EscrowError::InvalidSigner {
        field: "sender",
        allowed: format!("the creator {creator} and owners of slots"),
    })
}

/// Rows of an index up to height `last`, oldest first, at most `max`.
pub(crate) fn due(
    store: &dyn KvRead,
    index: usize,
    last: Height,
    max: usize,
) -> Result<Vec<(Height, EscrowId)>, StoreError> {
    let mut rows = Vec::new();
    ESCROWS.walk_up_to(store, index, &last, |at, id| {
        rows.push((at, id));
        if rows.len() < max { std::ops::ControlFlow::Continue(()) } else { std::ops::ControlFlow::Break(()) }
    })?;
    Ok(rows)
}
