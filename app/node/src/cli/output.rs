//! Printing a JSON value as JSON, or as indented text in the manner of YAML.

use std::fmt::Write as _;
use std::io::{BufRead, Write};

use anyhow::Result;
use serde_json::Value;

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Proto3 JSON, for programs.
    Json,
    /// Indented text, for people.
    Text,
}

/// Where a command reads and writes; tests give buffers.
pub(crate) struct Io<'a> {
    /// Results.
    pub(crate) out: &'a mut dyn Write,
    /// Questions and notes.
    pub(crate) err: &'a mut dyn Write,
    /// Answers, mnemonics, transactions.
    pub(crate) input: &'a mut dyn BufRead,
    /// Whether a person sits at `input`.
    pub(crate) terminal: bool,
}

impl Io<'_> {
    /// Writes a value in the form asked for.
    pub(crate) fn print(&mut self, value: &Value, format: Format) -> Result<()> {
        match format {
            Format::Json => writeln!(self.out, "{}", serde_json::to_string_pretty(value)?)?,
            Format::Text => self.out.write_all(text(value).as_bytes())?,
        }
        Ok(())
    }
}

/// The value as indented text, with a line end.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(&mut out, value, 0),
        Value::Array(list) if !list.is_empty() => block(&mut out, value, 0),
        _ => {
            out.push_str(&scalar(value));
            out.push('\n');
        }
    }
    out
}

fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let _ = write!(out, "{:indent$}{key}:", "");
                after(out, value, indent.saturating_add(2), indent);
            }
        }
        Value::Array(list) => {
            for value in list {
                let _ = write!(out, "{:indent$}-", "");
                match value {
                    // The first key of an object stands on the line of its dash.
                    Value::Object(map) if !map.is_empty() => {
                        let mut inner = String::new();
                        block(&mut inner, value, indent.saturating_add(2));
                        out.push(' ');
                        out.push_str(inner.trim_start());
                    }
                    _ => after(out, value, indent.saturating_add(2), indent.saturating_add(2)),
                }
            }
        }
        _ => {}
    }
}

/// What follows `key:` or `-`: a scalar on the same line, or a block below. Lists are not indented below their key.
fn after(out: &mut String, value: &Value, object_indent: usize, list_indent: usize) {
    let indent = match value {
        Value::Object(map) if !map.is_empty() => object_indent,
        Value::Array(list) if !list.is_empty() => list_indent,
        _ => {
            let _ = writeln!(out, " {}", scalar(value));
            return;
        }
    };
    out.push('\n');
    block(out, value, indent);
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if plain(text) => text.clone(),
        // A JSON string is a YAML string.
        other => other.to_string(),
    }
}

/// Whether YAML reads the bare text as the same string.
fn plain(text: &str) -> bool {
    let first_ok = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let rest_ok = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+= ".contains(c));
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    first_ok && rest_ok && !text.ends_with(' ') && !word
}
