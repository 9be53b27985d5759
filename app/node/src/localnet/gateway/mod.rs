//! A gateway and its hosts on this machine: a chain of one validator, a gateway that spends an escrow, hosts that serve it,
//! each a process of its own, under a load of HTTP requests, while hosts go wrong on purpose.
//!
//! ```text
//!  localnet ─┬─ chain:   holdfastd start            ◀── escrow, settlement
//!            ├─ host0…:  holdfastd host ─ workers   ◀── diffs, prompts ──┐
//!            ├─ gateway: holdfastd gateway ──────────────────────────────┘
//!            ├─ load:    /v1/chat/completions ──▶ gateway
//!            └─ watch:   sessions, flags ◀── gateway
//! ```
//!
//! What ends by itself or is killed is started again. After the last request the run waits for what is open, and for hosts
//! that can be taught; then the session is finalized, settled, and compared with the balances of the chain.

mod board;
mod chain;
pub mod faults;
pub mod genesis;
mod load;
mod net;
mod page;
mod process;
pub mod report;
mod show;
mod view;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use holdfast_app::keys::SecretKey;
use holdfast_types::Address;

use faults::Fault;
use report::Outcome;

use crate::cli::CliError;

/// Where the run says what it is made of, below its home.
pub const MANIFEST: &str = "localnet.json";

/// A host to run.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// `host0` and so on; also the name of its key.
    pub name: String,
    /// Its address.
    pub address: Address,
    /// Its home folder, with its key.
    pub home: PathBuf,
    /// Where it listens, as the chain has it.
    pub listen: SocketAddr,
}

/// A run. Its folders, keys and genesis are there.
pub struct GatewayNet {
    /// This program.
    pub holdfastd: PathBuf,
    /// Folder of everything.
    pub home: PathBuf,
    /// Whether that goes when the run ends well.
    pub temporary: bool,
    /// Chain id.
    pub chain_id: String,
    /// Seconds between two blocks, as `holdfastd start` takes them.
    pub block_seconds: String,
    /// Pays the escrow in and signs its diffs.
    pub key: SecretKey,
    /// Where the gateway serves hosts and operators, as the escrow has it.
    pub gateway_grpc: SocketAddr,
    /// Where the gateway serves HTTP; port 0 takes a free one.
    pub gateway_http: SocketAddr,
    /// What the verbs of an operator carry.
    pub operator_token: String,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// Worker processes of each host; 0: it computes itself.
    pub workers: u32,
    /// The model on the chain.
    pub model: String,
    /// Flags of `holdfastd host` that say what computes.
    pub backend: Vec<String>,
    /// Tokens that the model takes, prompt and answer together.
    pub context: u32,
    /// Most bytes of text that one of its tokens stands for; 0: not known.
    pub token_bytes: u32,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Whether gateway and hosts agree to drop a replica that has another state.
    pub allow_reset: bool,
    /// Requests of the load; 0: none, until a signal.
    pub requests: u64,
    /// Requests at a time.
    pub clients: usize,
    /// Requests a second at most; 0: as fast as the clients go.
    pub rate: u64,
    /// Every so-manieth client leaves after its first token; 0: none.
    pub cancel_every: u64,
    /// Seed of the load.
    pub seed: u64,
    /// Folder for the report.
    pub report: Option<PathBuf>,
    /// Plain lines instead of the live view.
    pub headless: bool,
    /// The command line, for the report.
    pub command: String,
    /// More arguments of the gateway, as given.
    pub gateway_args: Vec<String>,
    /// More arguments of each host, as given.
    pub host_args: Vec<String>,
}

/// Runs it to its end, or until a signal.
///
/// # Errors
/// A process that does not stay up; SIGINT or SIGTERM before the end. No process is left in any case.
pub async fn run(plan: &GatewayNet) -> Result<Option<Outcome>> {
    let mut signals = crate::solo::Signals::new()?;
    let mut net = net::Net::new(plan);
    let ended = tokio::select! {
        ended = net.whole_run() => ended.map(Some),
        name = signals.next() => {
            net.leave_screen();
            crate::say::notice(format_args!("{name}: stopping"));
            match plan.requests {
                0 => Ok(None),
                _ => Err(CliError { code: 51, field: "localnet".into(), text: "interrupted; there is no report".into() }.into()),
            }
        }
    };
    net.leave_screen();
    net.stop().await;
    ended
}
