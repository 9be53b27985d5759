//! The module's row in the app's table.

use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_proto::{Message, decode_strict};
use holdfast_store::{KvRead, Prefix};
use holdfast_types::{Context, Hrp, Module, ModuleError, sdk};

use crate::errors::CODES;
use crate::genesis::{Genesis, export};
use crate::keeper::Keeper;
use crate::keys::{COLLECTIONS, MODULE_NAME};
use crate::migrations::v1;
use crate::params::Params;

/// Participants as a [`Module`].
pub struct ParticipantsModule<'a> {
    /// Its keeper: genesis asks the weight source.
    pub keeper: Keeper<'a>,
}

fn decode(genesis: &[u8]) -> Result<pb::GenesisState, ModuleError> {
    let text = |e| ModuleError::sdk(sdk::INVALID_REQUEST, format!("participants genesis: {e}"));
    decode_strict(genesis).map_err(text)
}

impl Module for ParticipantsModule<'_> {
    fn name(&self) -> &'static str {
        MODULE_NAME
    }

    fn consensus_version(&self) -> u64 {
        2
    }

    fn migrate(&self, ctx: &mut Context<'_>, from: u64) -> Result<(), ModuleError> {
        match from {
            1 => v1::migrate(ctx),
            _ => Err(ModuleError::sdk(sdk::LOGIC, format!("participants: no migration from version {from}"))),
        }
    }

    fn collections(&self) -> &'static [Prefix] {
        COLLECTIONS
    }

    fn error_codes(&self) -> Vec<(u32, String)> {
        CODES.iter().map(|(code, meaning)| (*code, (*meaning).to_owned())).collect()
    }

    fn default_genesis(&self) -> Vec<u8> {
        let params = Some(Params::default().to_pb());
        pb::GenesisState { params, ..pb::GenesisState::default() }.encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, hrp).map(|_| ())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode(genesis)?, &ctx.block.hrp)?.init(ctx, &self.keeper)
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(export(store, hrp)?.encode_to_vec())
    }
}
