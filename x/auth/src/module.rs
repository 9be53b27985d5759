//! The module's row in the app's table.

use holdfast_proto::Message;
use holdfast_proto::holdfast::auth::v1::GenesisState;
use holdfast_store::{KvRead, Prefix};
use holdfast_types::{Context, Hrp, Module, ModuleError, decode_msg};

use crate::{CODES, COLLECTIONS, Params, genesis, keys};

/// x/auth.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuthModule;

impl Module for AuthModule {
    fn name(&self) -> &'static str {
        keys::NAME
    }

    fn collections(&self) -> &'static [Prefix] {
        COLLECTIONS
    }

    fn error_codes(&self) -> Vec<(u32, String)> {
        CODES.iter().map(|(code, text)| (*code, (*text).to_owned())).collect()
    }

    fn default_genesis(&self) -> Vec<u8> {
        GenesisState { params: Some((&Params::default()).into()), ..GenesisState::default() }.encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        let genesis = decode_msg(genesis)?;
        genesis::parse(&genesis, hrp)?;
        genesis::params(&genesis)?;
        Ok(())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        genesis::init(ctx, &decode_msg(genesis)?)
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(genesis::export(store, hrp)?.encode_to_vec())
    }
}
