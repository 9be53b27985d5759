//! `holdfastd worker`: a process that holds some layers of a model and computes for coordinators.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use holdfast_runner::fault::{Fault, FaultyHost};
use holdfast_runner::worker::{WorkerLimits, WorkerServer};
use holdfast_runner::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use super::backend::BackendArgs;
use super::error::{fail, in_use};
use super::output::{Format, Io};
use super::{model, start, values, wiring};

/// Serves some layers of a model to coordinators until SIGINT or SIGTERM
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    verb: Option<WorkerVerb>,
    /// IP and port to listen on; port 0 takes a free one. Whoever reaches it can use it: keep it in a private network
    #[arg(long, env = "HOLDFASTD_WORKER_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9100", value_parser = values::listen)]
    listen: SocketAddr,
    /// Layers from A up to, but without, B [default: all]
    #[arg(long, value_name = "A..B", value_parser = layers)]
    layers: Option<(u32, u32)>,
    /// Name of the shard in records: 1 to 64 letters, digits, '.', '_' or '-'
    #[arg(long, env = "HOLDFASTD_WORKER_NAME", value_name = "NAME", default_value = "worker", value_parser = name)]
    name: String,
    #[command(flatten)]
    backend: BackendArgs,
    /// Fails on purpose, as KIND@STEP or KIND@STEP/EPOCH: for rehearsals
    #[arg(long, value_name = "FAULT", hide = true)]
    fault: Vec<Fault>,
    /// Form of the line that says where it listens
    #[arg(
        long,
        short,
        alias = "format",
        env = "HOLDFASTD_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    output: Format,
    /// What to log on standard error: error, warn, info, debug, trace, or pairs such as holdfast_runner=debug with commas
    #[arg(long, env = "HOLDFASTD_LOG_LEVEL", value_name = "LEVEL", default_value = "info", value_parser = start::log_level)]
    log_level: String,
}

#[derive(Debug, clap::Subcommand)]
enum WorkerVerb {
    MakeModel(model::MakeModelArgs),
}

/// Layers as `0..2`, without the last.
pub(crate) fn layers(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| digits)
    };
    let parts = text.split_once("..").and_then(|(from, to)| number(from).zip(number(to)));
    parts
        .filter(|(from, to)| from < to)
        .ok_or_else(|| "give A..B with A below B, such as 0..2 for the first two layers".to_owned())
}

fn name(text: &str) -> Result<String, String> {
    let ok = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if ok { Ok(text.to_owned()) } else { Err("give 1 to 64 letters, digits, '.', '_' or '-'".to_owned()) }
}

pub(crate) fn run(args: &WorkerArgs, io: &mut Io<'_>) -> Result<()> {
    if let Some(WorkerVerb::MakeModel(args)) = &args.verb {
        return model::run(args, io);
    }
    let backend = args.backend.backend.name();
    let opened = args.backend.open()?;
    wiring::worker(EnvFilter::builder().parse(&args.log_level)?, async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut host = opened.shard(&args.name, args.layers, clock.clone()).await?;
        if !args.fault.is_empty() {
            let faulty = Arc::new(FaultyHost::new(host, clock, args.fault.iter().copied()));
            tokio::spawn(tell_of_a_stall(faulty.clone()));
            host = faulty;
        }
        let server = WorkerServer::new(host, backend, WorkerLimits::default())
            .map_err(|e| fail(36, "worker", e.to_string()))?;
        // Before the line: whoever reads it may send a signal at once.
        let mut signals = crate::solo::Signals::new()?;
        let listener = TcpListener::bind(args.listen).await.map_err(|e| cannot_listen(args.listen, &e))?;
        let address = listener.local_addr()?;
        say(args, io, &server, address, backend)?;
        server
            .serve(listener, async {
                let signal = signals.next().await;
                tracing::info!(signal, "worker: stops");
            })
            .await;
        Ok(())
    })
}

/// Says on standard output when a fault holds a step back, for whoever is to act then.
async fn tell_of_a_stall(faulty: Arc<FaultyHost>) {
    while !faulty.stalled() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Nobody may be listening any more.
    let _ = writeln!(io::stdout(), "{}", json!({"stalled": true}));
}

pub(super) fn cannot_listen(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => in_use("--listen", address, error),
        _ => fail(92, "--listen", format!("{address}: {error}; give an address of this machine")),
    }
}

/// One line, whatever its form: a program that starts workers reads it and goes on.
fn say(
    args: &WorkerArgs,
    io: &mut Io<'_>,
    server: &WorkerServer,
    address: SocketAddr,
    backend: &str,
) -> Result<()> {
    let info = server.info();
    let (from, to) = info.layers;
    match args.output {
        Format::Json => {
            let value: Value = json!({
                "address": address.to_string(),
                "boot_id": server.boot_id().to_string(),
                "name": info.shard_id,
                "backend": backend,
                "first_layer": from,
                "end_layer": to,
                "model_layers": info.model_layers,
                "model_digest": hex::encode(info.model_digest),
                "capacity": info.capacity,
            });
            writeln!(io.out, "{value}")?;
        }
        Format::Text => writeln!(
            io.out,
            "worker {} listens on {address}: {backend}, layers {from}..{to} of {}, boot id {}",
            info.shard_id,
            info.model_layers,
            server.boot_id()
        )?,
    }
    io.out.flush()?;
    Ok(())
}
