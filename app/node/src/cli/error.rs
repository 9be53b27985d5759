//! What the command line says when it refuses: one line with the flag or key, the remedy and a stable code.

use clap::error::ErrorKind;
use holdfast_app::echo::{MESSAGE_CHARS, cut};

/// Code and meaning of every error of the command line itself, for the error table of the documentation. Errors of the
/// chain keep their codespace and code.
pub const CLI_ERROR_CODES: &[(u32, &str)] = &[
    (11, "command line malformed"),
    (12, "value of a flag malformed or out of range"),
    (13, "flag or field unknown"),
    (14, "required flag missing"),
    (15, "flags exclude one another"),
    (21, "file or folder cannot be read or written"),
    (22, "home folder already in use"),
    (23, "home folder not initialised"),
    (24, "configuration file is no valid TOML"),
    (25, "configuration key unknown"),
    (26, "configuration value missing, malformed or out of range"),
    (27, "genesis file malformed or inconsistent"),
    (28, "validator key file malformed"),
    (31, "key name malformed"),
    (32, "key name already taken"),
    (33, "key not in the keyring"),
    (34, "key file malformed"),
    (35, "mnemonic malformed"),
    (36, "no randomness available"),
    (41, "node cannot be reached"),
    (42, "node refused a call"),
    (43, "transaction refused"),
    (44, "transaction not found in a block in time"),
    (45, "transaction not confirmed by its sender"),
    (46, "transaction file malformed"),
    (47, "node answered with bytes that are no such message"),
    (51, "interrupted"),
    (62, "height not kept by this node"),
    (71, "snapshot missing"),
    (72, "snapshot malformed, damaged or refused"),
    (73, "state database cannot be used"),
    (81, "port or socket already in use"),
    (82, "CometBFT's program not found"),
    (83, "process or network that does not stay up"),
    (91, "backend not available, or its model cannot be loaded"),
    (92, "address cannot be listened on"),
    (93, "runner or its workers cannot do it"),
    (94, "generation not completed"),
    (95, "work ledger cannot be used"),
    (96, "gateway's store cannot be used"),
    (97, "escrow cannot be opened by this gateway"),
    (98, "escrow not settled, or coins that do not add up"),
];

/// A refusal. `Display` gives the line that the user sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {text} (cli error {code})")]
pub struct CliError {
    /// The stable code, as listed in [`CLI_ERROR_CODES`].
    pub code: u32,
    /// The flag, key or file that is wrong.
    pub field: String,
    /// What is wrong with it, and what to do.
    pub text: String,
}

/// Exit code of a command line that was not understood; all else that fails gives 1.
pub(crate) const EXIT_USAGE: u8 = 2;

impl CliError {
    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        if (11..=15).contains(&self.code) { EXIT_USAGE } else { 1 }
    }
}

/// An error of the command line, for `?`.
pub(crate) fn fail(code: u32, field: impl Into<String>, text: impl Into<String>) -> anyhow::Error {
    refusal(code, field, text).into()
}

/// The same as a plain value.
pub(crate) fn refusal(code: u32, field: impl Into<String>, text: impl Into<String>) -> CliError {
    CliError { code, field: field.into(), text: text.into() }
}

/// A file that could not be read or written.
pub(crate) fn io_failure(path: &std::path::Path, error: &std::io::Error) -> anyhow::Error {
    fail(
        21,
        path.display().to_string(),
        format!("{error}; check the path, its permissions and the free space"),
    )
}

/// Longest word of a line, in characters: a long path is shown whole, a file given in place of its name is not.
const WORD_CHARS: usize = 512;

/// An address on which this process cannot listen.
pub(crate) fn in_use(
    field: &str,
    addr: impl std::fmt::Display,
    error: &dyn std::error::Error,
) -> anyhow::Error {
    let text =
        format!("cannot listen on {addr}: {error}; stop the program that uses it, or give another address");
    fail(81, field, text)
}

/// A message on one line of bounded length, control characters and runs of spaces as one space.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty());
    cut(&words.map(|word| cut(word, WORD_CHARS)).collect::<Vec<_>>().join(" "), MESSAGE_CHARS)
}

/// What clap found, on one line. `words` are the arguments as typed, `command` the whole tree: where a name is unknown,
/// the names that exist are listed.
pub(crate) fn from_clap(error: &clap::Error, command: &clap::Command, words: &[String]) -> CliError {
    let rendered = error.render().to_string();
    let mut said = Vec::new();
    for paragraph in rendered.split("\n\n") {
        let line = one_line(paragraph);
        if !line.starts_with("Usage:") && !line.starts_with("For more information") && !line.is_empty() {
            said.push(line.strip_prefix("error: ").unwrap_or(&line).trim_start_matches("tip: ").to_owned());
        }
    }
    let (path, leaf) = leaf(command, words);
    let code = match error.kind() {
        ErrorKind::InvalidValue
        | ErrorKind::ValueValidation
        | ErrorKind::TooManyValues
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::NoEquals
        | ErrorKind::InvalidUtf8 => 12,
        ErrorKind::UnknownArgument => 13,
        ErrorKind::MissingRequiredArgument => 14,
        ErrorKind::ArgumentConflict => 15,
        _ => 11,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => said.push(format!("known flags: {}", flags(leaf))),
        ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand => {
            let shown = leaf.get_subcommands().filter(|command| !command.is_hide_set());
            let names = shown.map(clap::Command::get_name).filter(|name| *name != "help");
            let names: Vec<&str> = names.collect();
            said.push(format!("choose one of: {}", names.join(", ")));
        }
        _ => said.push(format!("see `{path} --help`")),
    }
    refusal(code, path, said.join("; "))
}

/// The deepest command that the words name, with its path.
fn leaf<'c>(command: &'c clap::Command, words: &[String]) -> (String, &'c clap::Command) {
    let mut path = vec![command.get_name().to_owned()];
    let mut at = command;
    for word in words.iter().skip(1).filter(|word| !word.starts_with('-')) {
        if let Some(next) = at.find_subcommand(word) {
            path.push(next.get_name().to_owned());
            at = next;
        }
    }
    (path.join(" "), at)
}

fn flags(command: &clap::Command) -> String {
    let (mut fields, mut others) = (Vec::new(), Vec::new());
    for arg in command.get_arguments() {
        if let Some(long) = arg.get_long() {
            let list =
                if arg.get_id().as_str().starts_with(super::fields::ID) { &mut fields } else { &mut others };
            list.push(format!("--{long}"));
        }
    }
    fields.extend(others);
    fields.join(", ")
}
