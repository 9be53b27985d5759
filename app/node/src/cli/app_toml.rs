//! `config/app.toml`: the settings of one node. Not consensus.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use holdfast_app::mempool::MempoolConfig;
use holdfast_app::state::Pruning;

use super::error::fail;
use super::values;

/// Keys of the file, in its order.
const KEYS: [&str; 13] = [
    "moniker",
    "minimum-gas-prices",
    "pruning",
    "pruning-keep-recent",
    "pruning-interval",
    "min-retain-blocks",
    "grpc.address",
    "state-sync.snapshot-interval",
    "state-sync.snapshot-keep-recent",
    "solo.block-seconds",
    "mempool.max-txs",
    "mempool.max-bytes",
    "mempool.max-per-signer",
];

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppToml {
    pub(crate) moniker: String,
    /// Least gas price in 10^-12 base units a gas unit, and its denomination. An operator has to decide on it.
    pub(crate) min_gas_price: Option<(u128, String)>,
    pub(crate) grpc_listen: SocketAddr,
    pub(crate) block_time: Duration,
    pub(crate) mempool: MempoolConfig,
    /// Heights that stay readable.
    pub(crate) pruning: Pruning,
    /// Blocks that CometBFT keeps at least; 0 keeps all.
    pub(crate) min_retain_blocks: u64,
    /// Heights between two snapshots; 0 makes none.
    pub(crate) snapshot_interval: u64,
    /// Snapshots that are kept; 0 keeps all.
    pub(crate) snapshot_keep_recent: u32,
}

/// The file of a fresh node.
pub(crate) fn fresh(moniker: &str, fee_denom: &str) -> String {
    let MempoolConfig { max_txs, max_bytes, max_per_signer } = MempoolConfig::default();
    let moniker = toml::Value::String(moniker.to_owned());
    format!(
        r#"# Settings of this node. They bind nobody else; what the chain agrees on is in genesis.json.
# Flags of `holdfastd start` and HOLDFASTD_* variables go before this file. Unknown keys are an error.

# Name of this node, 1 to 70 bytes.
moniker = {moniker}

# Least fee for a unit of gas that this node takes into its pool, with at most 12 digits after the point.
# "0{fee_denom}" takes transactions without a fee. Must not be empty.
minimum-gas-prices = "0{fee_denom}"

# Heights that stay readable: "default" keeps the last 362880, "nothing" removes nothing, "everything" keeps the last 2;
# both remove the others at every 10th height only. "custom" goes by the two numbers below it, at least 2 and 10.
pruning = "default"
pruning-keep-recent = 0
pruning-interval = 0

# With the engine comet: blocks that CometBFT keeps at least, beside those that evidence and snapshots need; 0 keeps all.
min-retain-blocks = 0

[state-sync]
# Heights between two snapshots, from which other nodes join; 0 makes none.
snapshot-interval = 0
# Snapshots that are kept; 0 keeps all.
snapshot-keep-recent = 2

[grpc]
# IP and port of the gRPC server; port 0 takes a free one.
address = "127.0.0.1:9090"

[solo]
# Seconds between two blocks, 0.01 to 3600.
block-seconds = 5.0

[mempool]
# Most transactions that wait.
max-txs = {max_txs}
# Most bytes of all of them together.
max-bytes = {max_bytes}
# Most that one account signs.
max-per-signer = {max_per_signer}
"#
    )
}

/// Reads the text of the file at `path`; a key that is left out has the value of a fresh file, but for
/// `minimum-gas-prices`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<AppToml> {
    let file = path.display();
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let at = e.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|b| *b == b'\n').count().saturating_add(1);
        fail(24, format!("{file}:{line}"), format!("{}; correct the line", e.message()))
    })?;
    let mut keys = BTreeMap::new();
    flatten("", &table, &mut keys);
    for key in keys.keys() {
        if !KEYS.contains(&key.as_str()) {
            return Err(fail(
                25,
                format!("{file}: {key}"),
                format!("unknown key; known are {}", KEYS.join(", ")),
            ));
        }
    }
    let reader = Reader { keys, file: file.to_string() };
    let defaults = MempoolConfig::default();
    let word = reader.text("pruning", "default", |word| Ok(word.to_owned()))?;
    let (keep, interval) = (reader.number("pruning-keep-recent", 0)?, reader.number("pruning-interval", 0)?);
    let pruning = Pruning::parse(&word, keep, interval)
        .map_err(|e| fail(26, format!("{}: {}", reader.file, e.field), e.text))?;
    let keep_recent = reader.number("state-sync.snapshot-keep-recent", 2)?;
    Ok(AppToml {
        pruning,
        min_retain_blocks: reader.number("min-retain-blocks", 0)?,
        snapshot_interval: reader.number("state-sync.snapshot-interval", 0)?,
        snapshot_keep_recent: u32::try_from(keep_recent).unwrap_or(u32::MAX),
        moniker: reader.text("moniker", "node", values::moniker)?,
        min_gas_price: match reader.keys.get("minimum-gas-prices") {
            Some(_) => Some(reader.text("minimum-gas-prices", "", values::gas_price)?),
            None => None,
        },
        grpc_listen: reader.text("grpc.address", "127.0.0.1:9090", values::listen)?,
        block_time: reader.text("solo.block-seconds", "5", values::block_time)?,
        mempool: MempoolConfig {
            max_txs: reader.count("mempool.max-txs", defaults.max_txs)?,
            max_bytes: reader.count("mempool.max-bytes", defaults.max_bytes)?,
            max_per_signer: reader.count("mempool.max-per-signer", defaults.max_per_signer)?,
        },
    })
}

/// Turns tables into dotted keys. An empty table has none, an unknown one is found by its keys.
fn flatten(prefix: &str, table: &toml::Table, out: &mut BTreeMap<String, toml::Value>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            toml::Value::Table(inner) if !KEYS.contains(&key.as_str()) => {
                let is_section = KEYS.iter().any(|known| known.starts_with(&format!("{key}.")));
                if inner.is_empty() && !is_section {
                    out.insert(key, value.clone());
                } else {
                    flatten(&format!("{key}."), inner, out);
                }
            }
            _ => {
                out.insert(key, value.clone());
            }
        }
    }
}

struct Reader {
    keys: BTreeMap<String, toml::Value>,
    file: String,
}

impl Reader {
    /// A text, or a number where a text of digits would do.
    fn text<T>(&self, key: &str, default: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T> {
        let given = match self.keys.get(key) {
            Some(toml::Value::String(text)) => text.clone(),
            Some(toml::Value::Integer(number)) => number.to_string(),
            Some(toml::Value::Float(number)) => number.to_string(),
            Some(other) => return Err(self.bad(key, &other.to_string(), "give a text")),
            None => default.to_owned(),
        };
        parse(&given).map_err(|rule| self.bad(key, &given, &rule))
    }

    fn count(&self, key: &str, default: usize) -> Result<usize> {
        let Some(value) = self.keys.get(key) else { return Ok(default) };
        let number = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        number.ok_or_else(|| self.bad(key, &value.to_string(), "give a whole number above 0"))
    }

    fn number(&self, key: &str, default: u64) -> Result<u64> {
        let Some(value) = self.keys.get(key) else { return Ok(default) };
        let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
        number.ok_or_else(|| self.bad(key, &value.to_string(), "give a whole number from 0 up"))
    }

    fn bad(&self, key: &str, given: &str, rule: &str) -> anyhow::Error {
        fail(26, format!("{}: {key}", self.file), format!("{given:?}: {rule}"))
    }
}
