//! What the app needs to know of a module beside its keeper.

use holdfast_store::{KvRead, Prefix};

use crate::{Context, Hrp, ModuleError, sdk};

/// One row of the app's module table. Genesis crosses as encoded protobuf (`holdfast.<name>.v1.GenesisState`).
pub trait Module {
    /// Module name: store space, codespace, package name.
    fn name(&self) -> &'static str;

    /// Version of the stored format; a change needs a migration.
    fn consensus_version(&self) -> u64 {
        1
    }

    /// Brings the stored state from format `from` to the next one, in place; called once for each step up to
    /// [`Module::consensus_version`]. Old formats are read through frozen types of their own.
    ///
    /// # Errors
    /// No migration from that version, or state that does not read as it.
    fn migrate(&self, _ctx: &mut Context<'_>, from: u64) -> Result<(), ModuleError> {
        Err(ModuleError::sdk(sdk::LOGIC, format!("{}: no migration from version {from}", self.name())))
    }

    /// Every collection, for docs and debugging.
    fn collections(&self) -> &'static [Prefix];

    /// Every error: code and one-line meaning.
    fn error_codes(&self) -> Vec<(u32, String)>;

    /// Encoded genesis of a fresh chain.
    fn default_genesis(&self) -> Vec<u8>;

    /// Checks a genesis state by itself: fields, cross-fields, duplicates.
    fn validate_genesis(&self, genesis: &[u8], hrp: &Hrp) -> Result<(), ModuleError>;

    /// Writes a genesis state, rebuilding indexes.
    fn init_genesis(&self, ctx: &mut Context<'_>, genesis: &[u8]) -> Result<(), ModuleError>;

    /// Reads the whole state back. `init_genesis` of it gives the same state.
    fn export_genesis(&self, store: &dyn KvRead, hrp: &Hrp) -> Result<Vec<u8>, ModuleError>;
}

/// Whether the module's collections all lie in its own space; for tests.
pub fn check_prefix_table(module: &dyn Module) -> bool {
    module.collections().iter().all(|p| p.space == module.name())
}
