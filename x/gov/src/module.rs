//! The module's row in the app's table.

use holdfast_proto::holdfast::gov::v1 as pb;
use holdfast_proto::{Message, decode_strict};
use holdfast_store::{KvRead, Prefix};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Context, Hrp, Module, ModuleError};

use crate::errors::{CODES, GovError};
use crate::genesis::{Genesis, export};
use crate::keys::{COLLECTIONS, MODULE_NAME};
use crate::params::Params;

/// Governance as a [`Module`].
pub struct GovModule<'a> {
    /// Genesis checks that the gov account holds the deposits.
    pub bank: &'a dyn BankKeeper,
}

fn decode(genesis: &[u8]) -> Result<pb::GenesisState, ModuleError> {
    let error = |e: holdfast_proto::StrictDecodeError| GovError::Genesis {
        field: "bytes".into(),
        rule: e.to_string(),
    };
    Ok(decode_strict(genesis).map_err(error)?)
}

impl Module for GovModule<'_> {
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
        // The default parameters hold no address, so the prefix does not matter.
        let params = Some(Params::default().to_pb(&Hrp::default()));
        pb::GenesisState { params, next_proposal_id: 1, ..pb::GenesisState::default() }.encode_to_vec()
    }

    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError> {
        Genesis::from_pb(decode(genesis)?, hrp)?;
        Ok(())
    }

    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError> {
        Genesis::from_pb(decode(genesis)?, &ctx.block.hrp)?.init(ctx, self.bank)
    }

    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError> {
        Ok(export(store, hrp)?.encode_to_vec())
    }
}
