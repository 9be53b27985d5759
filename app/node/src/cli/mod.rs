//! The command line of `holdfastd`.
//!
//! ```text
//! holdfastd init | start | devnet | testnet | localnet | worker | host | infer | gateway | generate | matrix | keys | genesis | rollback | snapshot | export | status
//!           tx | query | version | completion
//! ```
//!
//! `tx` and `query` have one command for each rpc of the descriptor set (`catalog`), with one flag for each field
//! (`fields`). Every failure is one line on standard error that names flag, key or file, says what to do and carries
//! a stable code ([`CLI_ERROR_CODES`], or codespace and code of the chain).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

mod app_toml;
mod backend;
mod catalog;
mod devnet;
mod error;
mod export;
mod fields;
mod files;
mod gateway;
mod generate;
mod genesis;
mod host;
mod init;
mod keys;
mod localnet;
mod localnet_gateway;
mod matrix;
mod model;
mod node;
mod output;
mod query;
mod rollback;
mod snapshot;
mod start;
mod status;
mod testnet;
#[cfg(test)]
mod tests;
mod tx;
mod upstream;
mod values;
mod version;
mod what_if;
mod wiring;
mod worker;

pub(crate) use error::in_use;
pub use error::{CLI_ERROR_CODES, CliError};
pub use start::StartConfig;

use crate::program::Program;
use catalog::Method;
use error::{EXIT_USAGE, fail, from_clap, one_line};
use output::Io;

/// A chain for inference networks: node, client and development network in one program
#[derive(Debug, Parser)]
#[command(name = "holdfastd", version, propagate_version = false)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

// Lists the commands that are known at build time; `tx` and `query` come from the descriptor set.
#[derive(Debug, Subcommand)]
enum Verb {
    Init(init::InitArgs),
    Start(start::StartArgs),
    Devnet(Box<devnet::DevnetArgs>),
    Testnet(testnet::TestnetArgs),
    Localnet(Box<localnet::LocalnetArgs>),
    BecomeChild(localnet::BecomeChildArgs),
    Worker(worker::WorkerArgs),
    Host(Box<host::HostArgs>),
    Infer(Box<host::InferArgs>),
    Gateway(Box<gateway::GatewayArgs>),
    Generate(Box<generate::GenerateArgs>),
    Matrix(Box<matrix::MatrixArgs>),
    Upstream(upstream::UpstreamArgs),
    Keys(keys::KeysArgs),
    Genesis(genesis::GenesisArgs),
    Rollback(rollback::RollbackArgs),
    Snapshot(snapshot::SnapshotArgs),
    Export(export::ExportArgs),
    Status(status::StatusArgs),
    Version(version::VersionArgs),
    Completion(CompletionArgs),
}

/// Prints a completion script for a shell
#[derive(Debug, clap::Args)]
struct CompletionArgs {
    /// The shell
    shell: ShellArg,
}

/// Shells with a script; names as their programs are called.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShellArg {
    Bash,
    Zsh,
    Fish,
    #[value(name = "powershell")]
    PowerShell,
    Elvish,
}

/// The whole command tree.
fn command() -> Result<clap::Command> {
    Ok(negative_numbers(Cli::command().subcommand(tx::command()?).subcommand(query::command()?)))
}

/// Lets every flag take a negative number: that it must not be one is then said as any other wrong value, not as a flag that
/// nobody knows.
fn negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(negative_numbers)
}

/// Methods by module, modules ascending.
fn by_module(methods: Vec<Method>) -> BTreeMap<String, Vec<Method>> {
    let mut modules: BTreeMap<String, Vec<Method>> = BTreeMap::new();
    for method in methods {
        modules.entry(method.module.clone()).or_default().push(method);
    }
    modules
}

/// The method that a command path names.
fn find<'m>(methods: &'m [Method], module: &str, name: &str) -> Result<&'m Method> {
    let found = methods.iter().find(|method| method.module == module && method.name == name);
    found.ok_or_else(|| fail(11, "command", format!("{module} has no {name}; see --help")))
}

/// What ended without a result.
enum Stop {
    /// Help or version, asked for.
    Printed(String),
    /// Help, because a subcommand was missing.
    Help(String),
    /// A failure.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Parses and runs one command line.
fn execute(words: &[OsString], io: &mut Io<'_>, connect: node::Connect<'_>) -> Result<(), Stop> {
    parse_and_run(words, io, connect).map_err(|stop| match stop {
        Stop::Failed(error) => Stop::Failed(wiring::coded(error)),
        other => other,
    })
}

fn parse_and_run(words: &[OsString], io: &mut Io<'_>, connect: node::Connect<'_>) -> Result<(), Stop> {
    let mut tree = command()?;
    let shown: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let matches = match tree.clone().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => {
            return Err(match e.kind() {
                clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => {
                    Stop::Printed(e.render().to_string())
                }
                clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    Stop::Help(e.render().to_string())
                }
                _ => {
                    // Names of subcommands that clap adds exist only in a built tree.
                    tree.build();
                    Stop::Failed(from_clap(&e, &tree, &shown).into())
                }
            });
        }
    };
    match matches.subcommand() {
        Some(("tx", matches)) => return Ok(tx::run(matches, io, connect)?),
        Some(("query", matches)) => return Ok(query::run(matches, io, connect)?),
        _ => {}
    }
    match Cli::from_arg_matches(&matches)?.command {
        Verb::Init(args) => init::run(&args, io)?,
        Verb::Start(args) => start::run(&args)?,
        Verb::Devnet(args) => devnet::run(&args, &shown)?,
        Verb::Testnet(args) => testnet::run(&args, io)?,
        Verb::Localnet(args) => localnet::run(&args, &shown)?,
        Verb::BecomeChild(args) => localnet::become_child(&args)?,
        Verb::Worker(args) => worker::run(&args, io)?,
        Verb::Host(args) => host::run(&args, io)?,
        Verb::Infer(args) => host::infer(&args, io)?,
        Verb::Gateway(args) => gateway::run(&args, io)?,
        Verb::Generate(args) => generate::run(&args, io)?,
        Verb::Matrix(args) => matrix::run(&args, io)?,
        Verb::Upstream(args) => upstream::run(&args, io)?,
        Verb::Keys(args) => keys::run(&args, io)?,
        Verb::Genesis(args) => genesis::run(&args, io)?,
        Verb::Rollback(args) => rollback::run(&args, io)?,
        Verb::Snapshot(args) => snapshot::run(&args, io)?,
        Verb::Export(args) => export::run(&args, io)?,
        Verb::Status(args) => status::run(&args, io, connect)?,
        Verb::Version(args) => version::run(&args, io)?,
        Verb::Completion(args) => {
            let shell = match args.shell {
                ShellArg::Bash => Shell::Bash,
                ShellArg::Zsh => Shell::Zsh,
                ShellArg::Fish => Shell::Fish,
                ShellArg::PowerShell => Shell::PowerShell,
                ShellArg::Elvish => Shell::Elvish,
            };
            // Into a buffer: the generator panics on a closed pipe.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut tree, "holdfastd", &mut script);
            io.out.write_all(&script)?;
        }
    }
    Ok(())
}

/// Whether nobody reads what was written any more.
fn is_closed(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// A line for standard error, and the exit code.
fn told(error: &anyhow::Error) -> (String, u8) {
    let known = error.downcast_ref::<CliError>();
    let text = format!("{error:#}");
    // However much is cut, the code stays.
    let code = known.map(|known| format!(" (cli error {})", known.code)).unwrap_or_default();
    let line = format!("Error: {}{code}", one_line(text.strip_suffix(&code).unwrap_or(&text)));
    (line, known.map_or(1, CliError::exit_code))
}

/// Runs the process's command line: 0 when it did what was asked, 1 when that failed, 2 when the command line was not
/// understood.
pub fn run() -> ExitCode {
    run_program(Program::default())
}

/// [`run`] for a node with modules and upgrades of its own.
pub fn run_program(program: Program) -> ExitCode {
    program.set();
    let words: Vec<OsString> = std::env::args_os().collect();
    let (stdin, mut out, mut err) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let terminal = stdin.is_terminal();
    let mut io = Io { out: &mut out, err: &mut err, input: &mut stdin.lock(), terminal };
    let ended = execute(&words, &mut io, &wiring::connect);
    let flushed = std::io::stdout().flush();
    let flushed = flushed.is_ok() || flushed.is_err_and(|error| is_closed(&error));
    match ended {
        Ok(()) if flushed => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        // A reader that has seen enough closes the pipe; that is no failure.
        Err(Stop::Failed(error)) if error.downcast_ref::<std::io::Error>().is_some_and(is_closed) => {
            ExitCode::SUCCESS
        }
        Err(Stop::Printed(text)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Help(text)) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(EXIT_USAGE)
        }
        Err(Stop::Failed(error)) => {
            let (line, code) = told(&error);
            let _ = writeln!(std::io::stderr(), "{line}");
            ExitCode::from(code)
        }
    }
}
