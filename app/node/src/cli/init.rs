//! `holdfastd init`: a home folder with configuration, genesis and validator key.

use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::keys::SecretKey;
use holdfast_types::{Address, Hrp};
use serde_json::{Value, json};

use super::error::fail;
use super::files::{self, Home, HomeArgs};
use super::output::{Format, Io};
use super::{app_toml, values, wiring};

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
    if !files::is_vacant(&home.data())? {
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
    let key = if home.validator_key().exists() { None } else { Some(wiring::fresh_key()?.0) };

    files::create_dir(&home.config())?;
    files::create_dir(&home.data())?;
    if let Some(key) = key {
        files::write_whole(&home.validator_key(), validator_key_json(&key)?.as_bytes(), true)?;
    }
    let validator = validator_key(&home)?.address();
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

/// A secp256k1 validator key as CometBFT writes it.
fn validator_key_json(key: &SecretKey) -> Result<String> {
    let value = json!({
        "address": hex::encode_upper(key.address().0),
        "pub_key": {
            "type": "tendermint/PubKeySecp256k1",
            "value": STANDARD.encode(key.public_key().to_bytes()),
        },
        "priv_key": {
            "type": "tendermint/PrivKeySecp256k1",
            "value": STANDARD.encode(key.to_bytes()),
        },
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

/// Reads `priv_validator_key.json`.
pub(crate) fn validator_key(home: &Home) -> Result<SecretKey> {
    let path = home.validator_key();
    parse_validator_key(&home.read(&path)?, &path)
}

fn parse_validator_key(text: &str, path: &Path) -> Result<SecretKey> {
    let bad = |field: &str, text: String| fail(28, format!("{}: {field}", path.display()), text);
    let value: Value = serde_json::from_str(text).map_err(|e| bad("JSON", e.to_string()))?;
    let kind = value["priv_key"]["type"].as_str().unwrap_or_default();
    if kind != "tendermint/PrivKeySecp256k1" {
        return Err(bad(
            "priv_key.type",
            format!("{kind:?}: only \"tendermint/PrivKeySecp256k1\" can be read"),
        ));
    }
    let secret = STANDARD.decode(value["priv_key"]["value"].as_str().unwrap_or_default());
    let secret = secret.map_err(|_| bad("priv_key.value", "give 32 bytes in base64".into()))?;
    let key = SecretKey::from_bytes(&secret).map_err(|e| bad("priv_key.value", e.to_string()))?;
    let stated = hex::decode(value["address"].as_str().unwrap_or_default()).unwrap_or_default();
    if Address::from_slice(&stated) != Ok(key.address()) {
        let own = hex::encode_upper(key.address().0);
        return Err(bad("address", format!("must be {own}, the address of priv_key")));
    }
    Ok(key)
}
