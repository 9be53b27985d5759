//! What hosts ask the chain about escrows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use holdfast_app::grpc::{ChainError, ChainFuture};
use holdfast_escrow::session::settle::Settlement;
use holdfast_types::Address;

use crate::session::Terms;

/// An escrow on the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscrowInfo {
    /// Its terms, and where it stands.
    pub terms: Terms,
    /// Where the gateway listens for hosts; empty when nowhere.
    pub gateway_url: String,
}

/// An escrow that may be disputed: its time is over, and nothing is paid yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// First height of disputes.
    pub from: u64,
    /// The present one.
    pub height: u64,
    /// Nonce of the state that was brought; 0 for none.
    pub brought: u64,
}

/// Where escrows and the addresses of hosts come from.
pub trait EscrowSource: Send + Sync + 'static {
    /// One escrow; `None` if the chain has none of this id.
    fn escrow(&self, escrow_id: u64) -> ChainFuture<'_, Option<EscrowInfo>>;
    /// URL at which a participant's host listens; `None` if the chain knows none.
    fn host_url(&self, participant: Address) -> ChainFuture<'_, Option<String>>;
    /// Whether an escrow may be disputed now.
    fn overdue(&self, escrow_id: u64) -> ChainFuture<'_, Option<Overdue>>;
    /// Brings a state by `MsgDisputeEscrow`; being taken is not being executed.
    fn dispute(&self, settlement: Settlement) -> ChainFuture<'_, ()>;
}

/// Escrows in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryEscrows {
    state: Mutex<MemoryState>,
}

#[derive(Debug, Default)]
struct MemoryState {
    escrows: BTreeMap<u64, EscrowInfo>,
    hosts: BTreeMap<Address, String>,
    overdue: BTreeMap<u64, Overdue>,
    disputes: Vec<Settlement>,
    unreachable: bool,
}

impl MemoryEscrows {
    fn with<T>(&self, change: impl FnOnce(&mut MemoryState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts an escrow, or replaces it.
    pub fn put(&self, info: EscrowInfo) {
        self.with(|state| state.escrows.insert(info.terms.config.escrow_id, info));
    }

    /// Says where a participant's host listens.
    pub fn put_host(&self, participant: Address, url: impl Into<String>) {
        self.with(|state| state.hosts.insert(participant, url.into()));
    }

    /// Says that an escrow may be disputed.
    pub fn put_overdue(&self, escrow_id: u64, overdue: Overdue) {
        self.with(|state| state.overdue.insert(escrow_id, overdue));
    }

    /// States that were brought.
    #[must_use]
    pub fn disputes(&self) -> Vec<Settlement> {
        self.with(|state| state.disputes.clone())
    }

    /// Whether the chain is out of reach.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.with(|state| state.unreachable = unreachable);
    }

    fn ask<T>(&self, look: impl FnOnce(&MemoryState) -> T) -> Result<T, ChainError> {
        self.with(|state| match state.unreachable {
            true => Err(ChainError::Unreachable("cut".into())),
            false => Ok(look(state)),
        })
    }
}

impl EscrowSource for MemoryEscrows {
    fn escrow(&self, escrow_id: u64) -> ChainFuture<'_, Option<EscrowInfo>> {
        Box::pin(async move { self.ask(|state| state.escrows.get(&escrow_id).cloned()) })
    }

    fn host_url(&self, participant: Address) -> ChainFuture<'_, Option<String>> {
        Box::pin(async move { self.ask(|state| state.hosts.get(&participant).cloned()) })
    }

    fn overdue(&self, escrow_id: u64) -> ChainFuture<'_, Option<Overdue>> {
        Box::pin(async move { self.ask(|state| state.overdue.get(&escrow_id).copied()) })
    }

    fn dispute(&self, settlement: Settlement) -> ChainFuture<'_, ()> {
        Box::pin(async move {
            self.with(|state| {
                if let Some(overdue) = state.overdue.get_mut(&settlement.escrow_id) {
                    overdue.brought = settlement.nonce;
                }
                state.disputes.push(settlement);
            });
            Ok(())
        })
    }
}
