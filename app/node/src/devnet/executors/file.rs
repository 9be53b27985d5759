//! The TOML form, and the choice between the two.

use std::path::Path;

use serde::Deserialize;

use super::entry::{Entry, Place, check_count, check_models, check_weight};
use super::error::SpecError;
use super::short_form::{Part, parse_profile, parse_spec};
use super::spec::ExecutorSpec;

/// Largest executor file, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The value of `--executors`: a file if it ends in `.toml`, otherwise the short form.
pub fn load(argument: &str) -> Result<Vec<ExecutorSpec>, SpecError> {
    if !argument.ends_with(".toml") {
        return parse_spec(argument);
    }
    let unreadable = |expected: &str, found: String| SpecError {
        code: 128,
        place: argument.to_owned(),
        field: "file",
        expected: expected.to_owned(),
        found,
    };
    let path = Path::new(argument);
    let size =
        std::fs::metadata(path).map_err(|error| unreadable("a readable file", error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(unreadable(&format!("at most {MAX_FILE_BYTES} bytes"), format!("{size} bytes")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| unreadable("a readable text file", error.to_string()))?;
    parse_toml(&text)
}

/// Reads the TOML form.
pub fn parse_toml(text: &str) -> Result<Vec<ExecutorSpec>, SpecError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        executor: Vec<Item>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Item {
        profile: String,
        #[serde(default = "one")]
        count: u64,
        weight: Option<u64>,
        models: Option<Vec<String>>,
    }
    fn one() -> u64 {
        1
    }

    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.get(..at).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        SpecError {
            code: 129,
            place: format!("line {line}, column {column}"),
            field: "file",
            expected: "[[executor]] tables with profile, count, weight and models".to_owned(),
            found: error.message().trim().replace('\n', " "),
        }
    })?;
    let mut executors = Vec::new();
    for (index, item) in file.executor.iter().enumerate() {
        let place = Place::File { entry: index + 1 };
        let entry = Entry {
            profile: parse_profile(Part { text: &item.profile, at: 0 }, place)?,
            weight: item.weight.map(|weight| check_weight(weight, || place.at(0))).transpose()?,
            models: item
                .models
                .as_ref()
                .map(|models| check_models(models.iter().map(|name| (name.as_str(), 0)), place))
                .transpose()?,
        };
        let count = check_count(item.count, || place.at(0))?;
        entry.push_to(&mut executors, count, || place.at(0))?;
    }
    if executors.is_empty() {
        return Err(SpecError {
            code: 129,
            place: "the file".to_owned(),
            field: "executor",
            expected: "at least one [[executor]] table".to_owned(),
            found: "none".to_owned(),
        });
    }
    Ok(executors)
}
