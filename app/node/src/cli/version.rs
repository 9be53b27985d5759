//! `holdfastd version`.

use anyhow::Result;
use serde_json::json;

use super::output::{Format, Io};

/// Version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints the version
#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {
    /// Print name, commit, platform and build settings too
    #[arg(long)]
    long: bool,
    /// Form of the long result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "text")]
    output: Format,
}

pub(crate) fn run(args: &VersionArgs, io: &mut Io<'_>) -> Result<()> {
    if !args.long {
        writeln!(io.out, "{VERSION}")?;
        return Ok(());
    }
    let value = json!({
        "name": "holdfast",
        "server_name": "holdfastd",
        "version": VERSION,
        // Set by whoever builds a release.
        "commit": option_env!("HOLDFASTD_COMMIT").unwrap_or("unknown"),
        "platform": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        "least_rust_version": env!("CARGO_PKG_RUST_VERSION"),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    });
    io.print(&value, args.output)
}
