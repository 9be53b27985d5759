//! The context builder.

use holdfast_store::{MemKv, StoreError};
use holdfast_types::{
    Address, BlockContext, Context, Event, Height, ModuleError, QueryContext, ValidationParams,
};

/// A chain reduced to what a module sees: its store, the block, and the events emitted so far.
#[derive(Debug, Clone)]
pub struct TestChain {
    /// State.
    pub store: MemKv,
    /// The block that [`TestChain::ctx`] hands out. Change it freely.
    pub block: BlockContext,
    /// Events of every call, in order.
    pub events: Vec<Event>,
}

impl TestChain {
    /// An empty state at `height`, epoch 0, default parameters, prefix `hold`.
    pub fn new(height: Height) -> Self {
        let mut block = BlockContext::new(height, ValidationParams::default());
        block.chain_id = "test-1".into();
        Self { store: MemKv::default(), block, events: Vec::new() }
    }

    /// Runs `step` on the state as a block step would: what it writes before it fails stays.
    pub fn ctx<T>(&mut self, step: impl FnOnce(&mut Context<'_>) -> T) -> T {
        step(&mut Context::new(&self.block, &mut self.store, &mut self.events))
    }

    /// Runs `step` as a message: on a branch, kept on `Ok`, dropped whole on `Err`.
    pub fn message<T, E: From<StoreError>>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        Context::new(&self.block, &mut self.store, &mut self.events).branch(step)
    }

    /// Runs `step` as a message that must fail: returns the codespace and code of its error, having checked
    /// that state and events are as before.
    pub fn refused<T>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>) -> Result<T, ModuleError>,
    ) -> (&'static str, u32) {
        let (store, events) = (self.store.clone(), self.events.len());
        let Err(error) = self.message(step) else { panic!("the message was accepted") };
        assert!(self.store == store, "a refused message changed state");
        assert_eq!(self.events.len(), events, "a refused message left events");
        (error.codespace, error.code)
    }

    /// What a query handler gets.
    pub fn query(&self) -> QueryContext<'_> {
        QueryContext { block: &self.block, store: &self.store }
    }

    /// Takes the events collected so far.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// `address` as text of this chain.
    pub fn bech32(&self, address: &Address) -> String {
        address.to_bech32(&self.block.hrp)
    }
}

/// The address of twenty times byte `n`.
pub fn addr(n: u8) -> Address {
    Address([n; 20])
}

/// The address whose last eight bytes are `n`, the others zero: for groups above 256.
pub fn addr_n(n: u64) -> Address {
    let mut bytes = [0; 20];
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    Address(bytes)
}
