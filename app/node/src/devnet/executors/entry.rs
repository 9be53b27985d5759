//! An entry of either form, and where its errors lie.

use super::error::SpecError;
use super::profile::Profile;
use super::spec::{
    DEFAULT_MODELS, ExecutorSpec, MAX_EXECUTORS, MAX_MODEL_BYTES, MAX_MODELS, MAX_WEIGHT, default_weight,
};

pub(super) struct Entry {
    pub(super) profile: Profile,
    pub(super) weight: Option<u64>,
    pub(super) models: Option<Vec<String>>,
}

impl Entry {
    pub(super) fn push_to(
        self,
        executors: &mut Vec<ExecutorSpec>,
        count: usize,
        place: impl Fn() -> String,
    ) -> Result<(), SpecError> {
        if executors.len() + count > MAX_EXECUTORS {
            return Err(SpecError {
                code: 124,
                place: place(),
                field: "count",
                expected: format!("at most {MAX_EXECUTORS} executors in all"),
                found: (executors.len() + count).to_string(),
            });
        }
        let models = self.models.unwrap_or_else(|| DEFAULT_MODELS.map(str::to_owned).to_vec());
        for _ in 0..count {
            executors.push(ExecutorSpec {
                profile: self.profile,
                weight: self.weight.unwrap_or_else(|| default_weight(executors.len())),
                models: models.clone(),
            });
        }
        Ok(())
    }
}

/// Where an error lies: a character of the short form or an entry of the file.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Short { spec: &'a str },
    File { entry: usize },
}

impl Place<'_> {
    pub(super) fn at(self, byte: usize) -> String {
        match self {
            Place::Short { spec } => {
                let before = spec.get(..byte).map_or(0, |text| text.chars().count());
                format!("character {}", before + 1)
            }
            Place::File { entry } => format!("executor entry {entry}"),
        }
    }

    pub(super) fn error(
        self,
        code: u32,
        byte: usize,
        field: &'static str,
        expected: &str,
        found: &str,
    ) -> SpecError {
        SpecError {
            code,
            place: self.at(byte),
            field,
            expected: expected.to_owned(),
            found: if found.is_empty() { "nothing".to_owned() } else { format!("\"{}\"", shown(found)) },
        }
    }
}

/// At most 40 characters of what was written, control characters escaped.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().count() > 40 { short + "..." } else { short }
}

pub(super) fn check_count(count: u64, place: impl Fn() -> String) -> Result<usize, SpecError> {
    usize::try_from(count).ok().filter(|count| (1..=MAX_EXECUTORS).contains(count)).ok_or_else(|| SpecError {
        code: 124,
        place: place(),
        field: "count",
        expected: format!("a number from 1 to {MAX_EXECUTORS}"),
        found: count.to_string(),
    })
}

pub(super) fn check_weight(weight: u64, place: impl Fn() -> String) -> Result<u64, SpecError> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        return Ok(weight);
    }
    Err(SpecError {
        code: 125,
        place: place(),
        field: "weight",
        expected: format!("a whole number from 1 to {MAX_WEIGHT}"),
        found: weight.to_string(),
    })
}

pub(super) fn check_models<'a>(
    names: impl Iterator<Item = (&'a str, usize)>,
    place: Place<'_>,
) -> Result<Vec<String>, SpecError> {
    let mut models: Vec<String> = Vec::new();
    for (name, at) in names {
        let error = |expected: &str| Err(place.error(126, at, "models", expected, name));
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        if name.is_empty() || name.len() > MAX_MODEL_BYTES || !plain {
            return error(
                "names of 1 to 64 letters, digits, dots, dashes, underscores or slashes, joined by \"+\"",
            );
        }
        if models.iter().any(|known| known == name) {
            return error("each model once");
        }
        if models.len() == MAX_MODELS {
            return error("at most 16 models");
        }
        models.push(name.to_owned());
    }
    if models.is_empty() {
        return Err(place.error(126, 0, "models", "at least one model", ""));
    }
    Ok(models)
}
