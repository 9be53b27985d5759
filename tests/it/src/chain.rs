//! A chain in a folder of its own: made by `init`, filled by editing its genesis file, run by `start`.

use std::path::PathBuf;
use std::time::Duration;

use cosmrs::AccountId;
use cosmrs::crypto::secp256k1::SigningKey;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::process::{self, Ran, Running, SHORT, holdfast, until};

/// Bech32 prefix of every chain here.
pub(crate) const PREFIX: &str = "hold";
/// Coins of everything.
pub(crate) const DENOM: &str = "uhold";
/// Coins of each account of [`Chain::new`].
pub(crate) const FUNDS: u128 = 1_000_000_000;
/// The models of every chain here.
pub(crate) const MODELS: [&str; 2] = ["model-1", "model-2"];
/// Blocks of an epoch of every chain here.
pub(crate) const EPOCH: i64 = 25;

/// Deposit at which voting on a proposal begins.
pub(crate) const DEPOSIT: u128 = 10_000_000;
/// The same of an expedited one.
pub(crate) const EXPEDITED: u128 = 50_000_000;

/// The secret key number `number`.
pub(crate) fn key(number: u8) -> SigningKey {
    SigningKey::from_slice(&[number; 32]).expect("a number from 1 to 255, 32 times, is a key")
}

/// Its address.
pub(crate) fn address(number: u8) -> AccountId {
    key(number).public_key().account_id(PREFIX).expect("a secp256k1 key has an address")
}

/// Address of a module's account: the first 20 bytes of SHA-256 of its name.
pub(crate) fn module_address(name: &str) -> AccountId {
    AccountId::new(PREFIX, &Sha256::digest(name)[..20]).expect("20 bytes are an address")
}

/// The folder of a chain.
pub(crate) struct Chain {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) id: &'static str,
}

impl Chain {
    /// A chain on which the keys of these numbers have [`FUNDS`] each. [`MODELS`] are registered, epochs are [`EPOCH`]
    /// blocks long, one unit of collateral gives one of weight.
    pub(crate) fn new(id: &'static str, funded: &[u8]) -> Self {
        let chain = Self { dir: tempfile::tempdir().expect("a temporary folder"), id };
        holdfast(&["init", "a-node", "--home", &chain.home(), "--chain-id", id]).ok();
        for number in funded {
            let coins = format!("{FUNDS}{DENOM}");
            let address = address(*number).to_string();
            holdfast(&["genesis", "add-account", &address, &coins, "--home", &chain.home()]).ok();
        }
        chain.edit_genesis(|genesis| {
            let state = &mut genesis["app_state"];
            state["epochs"]["params"]["epoch_length"] = EPOCH.to_string().into();
            // A cooldown has to fit into an epoch.
            let validation = &mut state["inference"]["params"]["validation"];
            validation["health_cb_initial_cooldown_blocks"] = "10".into();
            validation["health_cb_max_cooldown_blocks"] = EPOCH.to_string().into();
            state["participants"]["params"]["collateral_per_weight"] = "1".into();
            state["participants"]["models"] = MODELS.iter().map(|id| json!({ "id": id })).collect();
        });
        chain
    }

    /// The same with executors that serve [`MODELS`] from the first block on.
    pub(crate) fn with_executors(id: &'static str, funded: &[u8], executors: &[(u8, u64)]) -> Self {
        let chain = Self::new(id, funded);
        let mut executors: Vec<_> = executors.iter().map(|(n, weight)| (address(*n), *n, *weight)).collect();
        executors.sort_by_key(|executor| executor.0.to_bytes());
        chain.edit_genesis(|genesis| {
            let state = &mut genesis["app_state"];
            let rows = executors.iter().map(|(address, number, weight)| {
                json!({
                    "address": address.to_string(),
                    "validator_key": validator_key(*number),
                    "models": MODELS,
                    "collateral": weight.to_string(),
                    "unbonding": "0",
                    "status": "PARTICIPANT_STATUS_ACTIVE",
                })
            });
            state["participants"]["participants"] = rows.collect();
            let members = MODELS.iter().flat_map(|model| {
                executors.iter().map(move |(address, _, weight)| {
                    let (address, weight) = (address.to_string(), weight.to_string());
                    json!({ "model": model, "participant": address, "weight": weight, "next_weight": weight })
                })
            });
            state["participants"]["members"] = members.collect();
            let bonded: u64 = executors.iter().map(|executor| executor.2).sum();
            add_balance(&mut state["bank"], &module_address("participants"), bonded.into());
        });
        chain
    }

    /// Seconds to vote on a proposal, and on an expedited one. Deposits are [`DEPOSIT`] and [`EXPEDITED`].
    pub(crate) fn vote_within(&self, seconds: u32, expedited: u32) {
        self.edit_genesis(|genesis| {
            let params = &mut genesis["app_state"]["gov"]["params"];
            params["voting_period"] = format!("{seconds}s").into();
            params["expedited_voting_period"] = format!("{expedited}s").into();
        });
    }

    /// Begins with the proposal 1, made by account `proposer`, on which the executor `voter` has voted Yes; the vote
    /// ends in the year 2100. An upgrade is planned for a height that no test reaches.
    pub(crate) fn with_proposal(self, proposer: u8, voter: u8) -> Self {
        let (proposer, voter) = (address(proposer).to_string(), address(voter).to_string());
        self.edit_genesis(|genesis| {
            let state = &mut genesis["app_state"];
            let deposit = json!([{ "denom": DENOM, "amount": DEPOSIT.to_string() }]);
            state["gov"]["next_proposal_id"] = "2".into();
            state["gov"]["proposals"] = json!([{
                "id": "1",
                "messages": [{
                    "@type": "/holdfast.participants.v1.MsgRegisterModel",
                    "authority": module_address("gov").to_string(),
                    "model": { "id": "model-3" },
                }],
                "status": "PROPOSAL_STATUS_VOTING_PERIOD",
                "submit_time": "2026-01-01T00:00:00Z",
                "deposit_end_time": "2026-01-03T00:00:00Z",
                "total_deposit": deposit,
                "voting_start_time": "2026-01-02T00:00:00Z",
                "voting_end_time": "2100-01-01T00:00:00Z",
                "title": "A third model",
                "summary": "Registers it.",
                "proposer": proposer,
            }]);
            state["gov"]["deposits"] =
                json!([{ "proposal_id": "1", "depositor": proposer, "amount": deposit }]);
            let yes = json!([{ "option": "VOTE_OPTION_YES", "weight": "1" }]);
            state["gov"]["votes"] = json!([{ "proposal_id": "1", "voter": voter, "options": yes }]);
            state["gov"]["plan"] = json!({ "name": "v9", "height": "1000000" });
            add_balance(&mut state["bank"], &module_address("gov"), DEPOSIT);
        });
        self
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn home(&self) -> String {
        self.path().to_str().expect("temporary folders are UTF-8").to_owned()
    }

    /// Changes the genesis file, which must be good afterwards.
    pub(crate) fn edit_genesis(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.path().join("config/genesis.json");
        let mut genesis = serde_json::from_str(&std::fs::read_to_string(&path).expect("init wrote it"))
            .expect("genesis.json is JSON");
        edit(&mut genesis);
        std::fs::write(&path, genesis.to_string()).expect("can be written");
        holdfast(&["genesis", "validate", "--home", &self.home()]).ok();
    }

    /// Runs the node with a block every `seconds`, and waits until it serves.
    #[track_caller]
    pub(crate) fn start(&self, seconds: &str) -> Node {
        self.start_with(seconds, &[])
    }

    #[track_caller]
    pub(crate) fn start_with(&self, seconds: &str, more: &[&str]) -> Node {
        let home = self.home();
        let mut args =
            vec!["start", "--home", &home, "--grpc-listen", "127.0.0.1:0", "--block-seconds", seconds];
        args.extend(["--log-level", "holdfast_node=info"]);
        args.extend(more);
        let mut running = Running::start(&mut process::command(&args));
        let addr = until(SHORT, "the node serves", || {
            let out = running.out();
            assert!(running.runs(), "the node ended: {out}\n{}", running.err());
            let line = out.lines().find_map(|line| line.strip_prefix("gRPC listens on "));
            // Only a whole line holds the whole address.
            line.filter(|_| out.ends_with('\n')).map(str::to_owned)
        });
        Node { running, addr }
    }
}

/// An ed25519 key in base64 that no other number has: its 32 bytes are all this number.
fn validator_key(number: u8) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Three bytes are four letters; the last two of 32 are three, padded.
    let bits = u32::from_be_bytes([0, number, number, number]);
    let letter = |bits: u32, shift: u32| char::from(LETTERS[(bits >> shift) as usize & 63]);
    let whole: String = [18, 12, 6, 0].into_iter().map(|shift| letter(bits, shift)).collect();
    let rest: String = [18, 12, 6].into_iter().map(|shift| letter(bits & 0xff_ff00, shift)).collect();
    whole.repeat(10) + &rest + "="
}

fn add_balance(bank: &mut Value, address: &AccountId, amount: u128) {
    let coins = json!([{ "denom": DENOM, "amount": amount.to_string() }]);
    let rows = bank["balances"].as_array_mut().expect("a list");
    rows.push(json!({ "address": address.to_string(), "coins": coins }));
    rows.sort_by_key(|row| {
        let address: AccountId = row["address"].as_str().and_then(|a| a.parse().ok()).expect("an address");
        address.to_bytes()
    });
    let supply = &mut bank["supply"][0]["amount"];
    let before: u128 = supply.as_str().and_then(|s| s.parse().ok()).expect("a supply");
    *supply = (before + amount).to_string().into();
}

/// A node that runs.
pub(crate) struct Node {
    pub(crate) running: Running,
    pub(crate) addr: String,
}

impl Node {
    /// Blocks it said it committed, with their app hashes in upper-case hex.
    pub(crate) fn committed(&self) -> Vec<(i64, String)> {
        committed(&self.running.err())
    }

    /// Waits until it has committed `height` or a later one.
    #[track_caller]
    pub(crate) fn reach(&self, height: i64) {
        until(SHORT, &format!("height {height}"), || (self.height() >= height).then_some(()));
    }

    /// The last committed height.
    pub(crate) fn height(&self) -> i64 {
        self.committed().last().map_or(0, |block| block.0)
    }

    /// Asks it to stop and waits for it.
    #[track_caller]
    pub(crate) fn stop(self, signal: &str) -> Ran {
        self.running.signal(signal);
        self.running.wait(Duration::from_secs(30))
    }
}

/// Blocks a node's log tells of.
pub(crate) fn committed(log: &str) -> Vec<(i64, String)> {
    let lines = log.lines().filter(|line| line.contains("committed block"));
    let field = |line: &str, name: &str| {
        let rest = &line[line.find(name)? + name.len()..];
        let text: String =
            rest.chars().skip_while(|c| *c == '"').take_while(|c| c.is_ascii_hexdigit()).collect();
        Some(text)
    };
    lines
        .filter_map(|line| {
            let hash = field(line, "app_hash=").filter(|hash| hash.len() == 64)?;
            Some((field(line, "height=")?.parse().ok()?, hash))
        })
        .collect()
}
