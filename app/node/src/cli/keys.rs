//! `holdfastd keys`: a keyring of plain files, for development.
//!
//! One file a key, `keyring-test/NAME.json` below the home folder. The secret is **not encrypted**; only the file's mode
//! (0600) keeps others out. Like the Cosmos SDK's backend of the same name it is for networks without value.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::PUBKEY_TYPE_URL;
use holdfast_types::{Address, Hrp};
use serde_json::{Value, json};

use super::error::{fail, io_failure};
use super::files::{self, Home, HomeArgs};
use super::output::{Format, Io};
use super::{values, wiring};

/// Keeps keys in unencrypted files, for development
#[derive(Debug, clap::Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// Makes a key, or takes one over from a mnemonic, and stores it unencrypted
    Add(AddArgs),
    /// Lists all keys by name
    List(CommonArgs),
    /// Shows one key
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Name of the key, 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first
    #[arg(value_parser = key_name)]
    name: String,
    /// Read a mnemonic from standard input instead of making one
    #[arg(long)]
    recover: bool,
    /// Last part of the path m/44'/118'/0'/0/INDEX
    #[arg(long, value_name = "INDEX", default_value = "0", value_parser = index)]
    index: u32,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Name of the key
    #[arg(value_parser = key_name)]
    name: String,
    /// Print the address alone
    #[arg(long, short)]
    address: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    home: HomeArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

/// The prefix of addresses.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PrefixArgs {
    /// Prefix of addresses [default: that of the genesis file, or hold]
    #[arg(long, env = "HOLDFASTD_BECH32_PREFIX", value_name = "PREFIX", value_parser = values::hrp)]
    bech32_prefix: Option<Hrp>,
}

impl PrefixArgs {
    /// The flag's prefix, or that of the chain in `home`.
    pub(crate) fn hrp(&self, home: &Home) -> Result<Hrp> {
        match &self.bech32_prefix {
            Some(hrp) => Ok(hrp.clone()),
            None if home.genesis().exists() => wiring::genesis_hrp(home),
            None => Ok(Hrp::default()),
        }
    }
}

fn index(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| *n < 1 << 31)
        .ok_or_else(|| "give a whole number from 0 to 2147483647".into())
}

/// A key's name, which is also a file's name.
pub(crate) fn key_name(text: &str) -> Result<String, String> {
    let ok = (1..=64).contains(&text.len())
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if ok {
        Ok(text.to_owned())
    } else {
        Err("give 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first".into())
    }
}

/// The files.
pub(crate) struct Keyring {
    dir: PathBuf,
}

impl Keyring {
    pub(crate) fn new(home: &Home) -> Self {
        Self { dir: home.keyring() }
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        let name = key_name(name).map_err(|rule| fail(31, "key name", format!("{name:?}: {rule}")))?;
        Ok(self.dir.join(format!("{name}.json")))
    }

    pub(crate) fn add(&self, name: &str, key: &SecretKey) -> Result<()> {
        let path = self.path(name)?;
        if path.exists() {
            let text = format!("{name:?} exists in {}; choose another name", self.dir.display());
            return Err(fail(32, "key name", text));
        }
        files::create_dir(&self.dir)?;
        #[cfg(unix)]
        fs::set_permissions(&self.dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(|e| io_failure(&self.dir, &e))?;
        let value = json!({
            "name": name,
            "type": "local",
            "address": key.address().to_hex(),
            "secret_key": hex::encode(key.to_bytes()),
        });
        files::write_whole(&path, (serde_json::to_string_pretty(&value)? + "\n").as_bytes(), true)
    }

    pub(crate) fn get(&self, name: &str) -> Result<SecretKey> {
        let path = self.path(name)?;
        let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                let text =
                    format!("{name:?} is not in {}; `holdfastd keys list` shows what is", self.dir.display());
                fail(33, "key name", text)
            }
            _ => io_failure(&path, &e),
        })?;
        let bad = |field: &str, text: String| fail(34, format!("{}: {field}", path.display()), text);
        let value: Value = serde_json::from_str(&text).map_err(|e| bad("JSON", e.to_string()))?;
        let secret = hex::decode(value["secret_key"].as_str().unwrap_or_default()).unwrap_or_default();
        let key = SecretKey::from_bytes(&secret).map_err(|e| bad("secret_key", format!("{e}, in hex")))?;
        if value["address"].as_str() != Some(key.address().to_hex().as_str()) {
            return Err(bad(
                "address",
                format!("must be {}, the address of secret_key", key.address().to_hex()),
            ));
        }
        Ok(key)
    }

    /// Names, ascending.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_failure(&self.dir, &e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(|e| io_failure(&self.dir, &e))?.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(".json"));
            names.extend(name.and_then(|name| key_name(name).ok()));
        }
        names.sort();
        Ok(names)
    }

    /// The key of a name, or of an address in the keyring.
    pub(crate) fn find(&self, name_or_address: &str, hrp: &Hrp) -> Result<SecretKey> {
        if let Ok(address) = Address::parse(name_or_address, hrp) {
            for name in self.names()? {
                let key = self.get(&name)?;
                if key.address() == address {
                    return Ok(key);
                }
            }
            let text = format!("no key in {} has the address {name_or_address}", self.dir.display());
            return Err(fail(33, "--from", text));
        }
        self.get(name_or_address)
    }
}

/// A key without its secret, in the form of the Cosmos SDK's `keys show`.
fn shown(name: &str, key: &SecretKey, hrp: &Hrp) -> Value {
    let pubkey = json!({ "@type": PUBKEY_TYPE_URL, "key": STANDARD.encode(key.public_key().to_bytes()) });
    json!({
        "name": name,
        "type": "local",
        "address": key.address().to_bech32(hrp),
        "pubkey": pubkey.to_string(),
    })
}

pub(crate) fn run(args: &KeysArgs, io: &mut Io<'_>) -> Result<()> {
    match &args.command {
        KeysCommand::Add(args) => add(args, io),
        KeysCommand::List(common) => {
            let home = common.home.home()?;
            let (keyring, hrp) = (Keyring::new(&home), common.prefix.hrp(&home)?);
            let names = keyring.names()?;
            let keys = names.iter().map(|name| Ok(shown(name, &keyring.get(name)?, &hrp)));
            io.print(&Value::Array(keys.collect::<Result<_>>()?), common.output)
        }
        KeysCommand::Show(args) => {
            let home = args.common.home.home()?;
            let hrp = args.common.prefix.hrp(&home)?;
            let key = Keyring::new(&home).get(&args.name)?;
            if args.address {
                writeln!(io.out, "{}", key.address().to_bech32(&hrp))?;
                return Ok(());
            }
            io.print(&shown(&args.name, &key, &hrp), args.common.output)
        }
    }
}

fn add(args: &AddArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.common.home.home()?;
    let (keyring, hrp) = (Keyring::new(&home), args.common.prefix.hrp(&home)?);
    if keyring.path(&args.name)?.exists() {
        let text = format!("{:?} exists in {}; choose another name", args.name, home.keyring().display());
        return Err(fail(32, "key name", text));
    }
    let (key, mnemonic) = if args.recover {
        if io.terminal {
            write!(io.err, "mnemonic: ")?;
            io.err.flush()?;
        }
        let mut phrase = String::new();
        // One line at a terminal; piped phrases may span several.
        if io.terminal {
            io.input.read_line(&mut phrase)?;
        } else {
            io.input.read_to_string(&mut phrase)?;
        }
        let key = SecretKey::from_mnemonic(&phrase, args.index)
            .map_err(|e| fail(35, "--recover", e.to_string()))?;
        (key, None)
    } else {
        let (_, mnemonic) = wiring::fresh_key()?;
        let key = SecretKey::from_mnemonic(&mnemonic, args.index)
            .map_err(|e| fail(35, "--index", e.to_string()))?;
        (key, Some(mnemonic))
    };
    keyring.add(&args.name, &key)?;
    let mut value = shown(&args.name, &key, &hrp);
    if let (Some(mnemonic), Some(map)) = (mnemonic, value.as_object_mut()) {
        map.insert("mnemonic".into(), mnemonic.into());
        writeln!(io.err, "The mnemonic is shown this once; write it down. The key file is not encrypted.")?;
    }
    io.print(&value, args.common.output)
}
