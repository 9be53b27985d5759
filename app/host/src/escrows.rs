//! What hosts ask the chain about escrows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use holdfast_app::grpc::{ChainError, ChainFuture};
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

/// Where escrows and the addresses of hosts come from.
pub trait EscrowSource: Send + Sync + 'static {
    /// One escrow; `None` if the chain has none of this id.
    fn escrow(&self, escrow_id: u64) -> ChainFuture<'_, Option<EscrowInfo>>;
    /// URL at which a participant's host listens; `None` if the chain knows none.
    fn host_url(&self, participant: Address) -> ChainFuture<'_, Option<String>>;
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
}
