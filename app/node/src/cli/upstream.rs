//! `holdfastd upstream`: a small server that speaks the OpenAI completions API and fails on purpose.

use std::net::SocketAddr;

use anyhow::Result;
use holdfast_runner::backends::openai_http::upstream::{FaultPlan, LoadStyle, Upstream, serve_upstream};
use serde_json::json;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use super::error::fail;
use super::output::Io;
use super::{start, values, wiring};

/// Serves made-up text as an upstream of --backend openai-http until SIGINT or SIGTERM: for rehearsals
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct UpstreamArgs {
    /// IP and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = values::listen)]
    listen: SocketAddr,
    /// What goes wrong, such as `reset@tokens:3` or `status:429:1@request x1`
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,
    /// Milliseconds for each piece of text
    #[arg(long, value_name = "MS", default_value = "5", value_parser = token_ms)]
    token_ms: u64,
    /// What to log on standard error
    #[arg(long, value_name = "LEVEL", default_value = "error", value_parser = start::log_level)]
    log_level: String,
}

fn token_ms(text: &str) -> Result<u64, String> {
    values::within(text, 0, 60_000)
}

pub(crate) fn run(args: &UpstreamArgs, io: &mut Io<'_>) -> Result<()> {
    wiring::worker(EnvFilter::builder().parse(&args.log_level)?, async {
        let upstream = Upstream::new(LoadStyle::Vllm, args.token_ms, None);
        upstream.set_fault(args.fault);
        // Before the line: whoever reads it may send a signal at once.
        let mut signals = crate::solo::Signals::new()?;
        let listener = TcpListener::bind(args.listen)
            .await
            .map_err(|e| fail(92, "--listen", format!("{}: {e}; give another address", args.listen)))?;
        let address = listener.local_addr()?;
        writeln!(io.out, "{}", json!({ "address": address.to_string() }))?;
        io.out.flush()?;
        tokio::select! {
            ended = serve_upstream(listener, upstream) => Ok(ended?),
            _ = signals.next() => Ok(()),
        }
    })
}
