//! The module's row in the app's table.

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_proto::{Message, decode_strict};
use holdfast_store::{KvRead, Prefix};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Context, Hrp, Module, ModuleError};

use crate::errors::{CODES, EscrowError};
use crate::genesis::Genesis;
use crate::keys::{COLLECTIONS, MODULE_NAME};

/// Escrows as a [`Module`].
pub struct EscrowModule<'a> {
    /// Genesis checks that the module account holds the coins.
    pub bank: &'a dyn BankKeeper,
}

fn decode(genesis: &[u8]) -> Result<pb::GenesisState, ModuleError> {
    Ok(decode_strict(genesis).map_err(|e| EscrowError::genesis("bytes", e))?)
}

impl Module for EscrowModule<'_> {
    fn name(&self) -> &'static str {
        MODULE_NAME
    }

    fn collections(&self) -> &'static [Prefix] {
        COLLECTIONS
    }

    fn error_codes(&self) -> Vec<(u32, String)> {
        CODES.iter().map(|(code, meaning)| (*code, (*meaning).to_owned())).collect()
    }

    fn default_genesis(&self) -> Vec<u8> {
        Genesis::default().to_pb(&Hrp::default()).encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, hrp)?;
        Ok(())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, &ctx.block.hrp)?.init(ctx, self.bank)
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(Genesis::read(store)?.to_pb(hrp).encode_to_vec())
    }
}
