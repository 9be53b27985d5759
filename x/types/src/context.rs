//! What a message handler, hook or block step may know and touch.

use holdfast_store::{BranchKv, KvWrite, StoreError};

use crate::{Address, Epoch, Event, Height, Hrp, ValidationParams};

/// Values that hold for a whole block; the same for every message in it.
#[derive(Debug, Clone)]
pub struct BlockContext {
    /// Height being executed (or, in a query, the committed height asked about).
    pub height: Height,
    /// Block time, nanoseconds since the Unix epoch, as agreed by consensus.
    pub time_ns: u64,
    /// Chain id.
    pub chain_id: String,
    /// App hash after the previous block.
    pub previous_app_hash: [u8; 32],
    /// Bech32 prefix of this chain.
    pub hrp: Hrp,
    /// Current epoch (from step B2 on: the epoch this block belongs to).
    pub epoch: Epoch,
    /// Whether this block lies in the epoch's PoC phase.
    pub poc: bool,
    /// Parameters committed at the previous height, copied once (breaker-details 0.10).
    pub params: ValidationParams,
}

impl BlockContext {
    /// A context at `height` in epoch 0 with `params`: for embedders and tests to fill in from there.
    pub fn new(height: Height, params: ValidationParams) -> Self {
        Self {
            height,
            time_ns: 0,
            chain_id: String::new(),
            previous_app_hash: [0; 32],
            hrp: Hrp::default(),
            epoch: 0,
            poc: false,
            params,
        }
    }
}

/// The handle a state transition works through.
pub struct Context<'a> {
    /// The block.
    pub block: &'a BlockContext,
    /// The store, usually a branch.
    pub store: &'a mut dyn KvWrite,
    /// Events emitted so far, in order.
    pub events: &'a mut Vec<Event>,
}

impl<'a> Context<'a> {
    /// A context over `store`.
    pub fn new(block: &'a BlockContext, store: &'a mut dyn KvWrite, events: &'a mut Vec<Event>) -> Self {
        Self { block, store, events }
    }

    /// Runs `step` on a branch: its writes and events are kept on `Ok`, dropped on `Err`.
    pub fn branch<T, E: From<StoreError>>(
        &mut self,
        step: impl FnOnce(&mut Context<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut events = Vec::new();
        let mut branch = BranchKv::new(&*self.store);
        let value = step(&mut Context { block: self.block, store: &mut branch, events: &mut events })?;
        let writes = branch.into_writes();
        BranchKv::apply(writes, self.store)?;
        self.events.append(&mut events);
        Ok(value)
    }

    /// The same store and events under another block context: an epoch switch inside a block.
    pub fn with_block<'b>(&'b mut self, block: &'b BlockContext) -> Context<'b> {
        Context { block, store: &mut *self.store, events: &mut *self.events }
    }

    /// Emits an event.
    pub fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// An address in this chain's bech32 form.
    pub fn bech32(&self, address: &Address) -> String {
        address.to_bech32(&self.block.hrp)
    }
}
