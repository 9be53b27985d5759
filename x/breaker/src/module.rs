//! The module's row in the app's table.

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_proto::{Message, decode_strict};
use holdfast_store::{KvRead, Prefix};
use holdfast_types::traits::ParticipantsRead;
use holdfast_types::{Context, Hrp, Module, ModuleError, sdk};

use crate::errors::CODES;
use crate::genesis::{Genesis, export};
use crate::keeper::Keeper;
use crate::keys::{MODULE, PREFIXES};

/// The breaker as a [`Module`], over a membership.
pub struct BreakerModule<G>(pub G);

fn decode(genesis: &[u8]) -> Result<pb::GenesisState, ModuleError> {
    decode_strict(genesis)
        .map_err(|e| ModuleError::sdk(sdk::INVALID_REQUEST, format!("breaker genesis: {e}")))
}

impl<G: ParticipantsRead> Module for BreakerModule<G> {
    fn name(&self) -> &'static str {
        MODULE
    }

    fn collections(&self) -> &'static [Prefix] {
        PREFIXES
    }

    fn error_codes(&self) -> Vec<(u32, String)> {
        CODES.iter().map(|(code, meaning)| (*code, (*meaning).to_owned())).collect()
    }

    fn default_genesis(&self) -> Vec<u8> {
        pb::GenesisState::default().encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, hrp).map(|_| ())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, &ctx.block.hrp)?.init(ctx, &Keeper::new(&self.0))
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(export(store, hrp)?.encode_to_vec())
    }
}
