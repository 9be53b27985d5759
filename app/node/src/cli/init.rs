//! `holdfastd init`: a home folder with configuration, genesis and validator key.

use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::keys::SecretKey;
use holdfast_types::{Address, Hrp};
use serde_json::{Value, json};

use super::error::{fail, io_failure};
use super::files::{self, Home, HomeArgs};
use super::output::{Format, Io};
use super::{app_toml, values, wiring};
use crate::comet::keys::{Ed25519Key, SECRET_TYPE, fresh_validator_state};

/// Creates the home folder of a new chain with one node
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Name of the node, 1 to 70 bytes
    #[arg(value_parser = values::moniker)]
    moniker: String,
    #[command(flatten)]
    home: HomeArgs,
    /// Id of the chain, 3 to 50 letters, digits or '-'
    #[arg(long, env = "HOLDFASTD_CHAIN_ID", value_name = "ID", value_parser = values::chain_id)]
    chain_id: String,
    /// Prefix of the chain's addresses, 1 to 20 lower-case letters or digits
    #[arg(long, env = "HOLDFASTD_BECH32_PREFIX", value_name = "PREFIX", default_value = "hold", value_parser = values::hrp)]
    bech32_prefix: Hrp,
    /// Replace app.toml and genesis.json of an earlier init; the validator key is kept, and a folder with blocks refused
    #[arg(long)]
    force: bool,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

pub(crate) fn run(args: &InitArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.home.home()?;
    if !holds_no_chain(&home)? {
        let text = "holds a chain; move the folder away, or give another --home";
        return Err(fail(22, home.data().display().to_string(), text));
    }
    let written = [home.genesis(), home.app_toml(), home.validator_key()];
    if let Some(path) = written.iter().find(|path| path.exists())
        && !args.force
    {
        let text = "exists already; add --force to replace configuration and genesis, or give another --home";
        return Err(fail(22, path.display().to_string(), text));
    }
    // All that can be refused is refused before the first write.
    let genesis = wiring::fresh_genesis(&args.chain_id, &args.bech32_prefix)?;
    let key = if home.validator_key().exists() { None } else { Some(wiring::fresh_consensus_key()?) };

    files::create_dir(&home.config())?;
    files::create_dir(&home.data())?;
    if let Some(key) = key {
        files::write_whole(&home.validator_key(), key.validator_json().as_bytes(), true)?;
    }
    if !home.validator_state().exists() {
        files::write_whole(&home.validator_state(), fresh_validator_state().as_bytes(), true)?;
    }
    let validator = validator_address(&home)?;
    files::write_whole(
        &home.app_toml(),
        app_toml::fresh(&args.moniker, &genesis.fee_denom).as_bytes(),
        false,
    )?;
    wiring::write_genesis(&home, &genesis)?;
    let report = json!({
        "moniker": args.moniker,
        "chain_id": args.chain_id,
        "home": home.0.display().to_string(),
        "bech32_prefix": args.bech32_prefix.as_str(),
        "validator_address": hex::encode_upper(validator.0),
    });
    io.print(&report, args.output)
}

/// Whether the data folder has nothing but a validator's record of its votes.
fn holds_no_chain(home: &Home) -> Result<bool> {
    let data = home.data();
    if files::is_vacant(&data)? {
        return Ok(true);
    }
    let mut entries = std::fs::read_dir(&data).map_err(|e| io_failure(&data, &e))?;
    let own = home.validator_state();
    Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.path() == own)))
}

/// Reads `priv_validator_key.json`; gives the validator's consensus address. Keys are ed25519; the secp256k1 ones that an
/// earlier version wrote are taken too.
pub(crate) fn validator_address(home: &Home) -> Result<Address> {
    let path = home.validator_key();
    parse_validator_key(&home.read(&path)?, &path)
}

fn parse_validator_key(text: &str, path: &Path) -> Result<Address> {
    let bad = |field: &str, text: String| fail(28, format!("{}: {field}", path.display()), text);
    let value: Value = serde_json::from_str(text).map_err(|e| bad("JSON", e.to_string()))?;
    let kind = value["priv_key"]["type"].as_str().unwrap_or_default();
    let secret = || {
        let secret = STANDARD.decode(value["priv_key"]["value"].as_str().unwrap_or_default());
        secret.map_err(|_| bad("priv_key.value", "give the key's bytes in base64".into()))
    };
    let own = match kind {
        SECRET_TYPE => {
            Ed25519Key::from_bytes(&secret()?).map_err(|rule| bad("priv_key.value", rule))?.address()
        }
        "tendermint/PrivKeySecp256k1" => {
            SecretKey::from_bytes(&secret()?).map_err(|e| bad("priv_key.value", e.to_string()))?.address()
        }
        _ => {
            let text =
                format!("{kind:?}: only {SECRET_TYPE:?} and \"tendermint/PrivKeySecp256k1\" can be read");
            return Err(bad("priv_key.type", text));
        }
    };
    let stated = hex::decode(value["address"].as_str().unwrap_or_default()).unwrap_or_default();
    if Address::from_slice(&stated) != Ok(own) {
        return Err(bad("address", format!("must be {}, the address of priv_key", hex::encode_upper(own.0))));
    }
    Ok(own)
}
