//! The module's row in the app's table.

use holdfast_proto::Message;
use holdfast_store::{KvRead, Prefix};
use holdfast_types::{Context, Hrp, Module, ModuleError, decode_msg};

use crate::genesis::Genesis;
use crate::{CODES, COLLECTIONS, MODULE_NAME};

/// x/inference.
#[derive(Debug, Clone, Copy, Default)]
pub struct InferenceModule;

impl Module for InferenceModule {
    fn name(&self) -> &'static str {
        MODULE_NAME
    }

    fn collections(&self) -> &'static [Prefix] {
        COLLECTIONS
    }

    fn error_codes(&self) -> Vec<(u32, String)> {
        CODES.iter().map(|(code, text)| (*code, (*text).to_owned())).collect()
    }

    fn default_genesis(&self) -> Vec<u8> {
        Genesis::default().to_pb(&Hrp::default()).encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode_msg(genesis)?, hrp)?;
        Ok(())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        Genesis::from_pb(&decode_msg(genesis)?, &ctx.block.hrp)?.write(ctx.store)
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(Genesis::read(store)?.to_pb(hrp).encode_to_vec())
    }
}
