//! The short form, character by character.

use super::entry::{Entry, Place, check_count, check_models, check_weight};
use super::error::SpecError;
use super::profile::{At, MAX_BLOCKS, Profile};
use super::spec::{ExecutorSpec, MAX_WEIGHT};

/// Reads the short form.
pub fn parse_spec(spec: &str) -> Result<Vec<ExecutorSpec>, SpecError> {
    let mut executors = Vec::new();
    let mut depth = 0usize;
    let mut start = 0usize;
    for (at, symbol) in spec.char_indices().chain([(spec.len(), ',')]) {
        match symbol {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' | ';' if depth == 0 || at == spec.len() => {
                let place = Place::Short { spec };
                let (count, entry) = parse_entry(Part { text: &spec[start..at], at: start }, place)?;
                entry.push_to(&mut executors, count, || place.at(start))?;
                start = at + 1;
            }
            _ => {}
        }
    }
    Ok(executors)
}

/// A piece of the specification and the byte it begins at.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Part<'a> {
    fn trim(self) -> Part<'a> {
        let begin = self.text.trim_start();
        Part { text: begin.trim_end(), at: self.at + self.text.len() - begin.len() }
    }

    /// The parts before and after the first `separator`, both trimmed.
    fn split(self, separator: &str) -> Option<(Part<'a>, Part<'a>)> {
        let (left, right) = self.text.split_once(separator)?;
        let right_at = self.at + left.len() + separator.len();
        Some((Part { text: left, at: self.at }.trim(), Part { text: right, at: right_at }.trim()))
    }
}

fn parse_entry(part: Part<'_>, place: Place<'_>) -> Result<(usize, Entry), SpecError> {
    let part = part.trim();
    let (head, settings) = match part.split("@") {
        Some((head, settings)) => (head, Some(settings)),
        None => (part, None),
    };
    let (count, profile) = match head.split("*") {
        Some((count, profile)) => {
            let number = whole(count.text).ok_or_else(|| {
                place.error(124, count.at, "count", "a whole number before \"*\"", count.text)
            })?;
            (check_count(number, || place.at(count.at))?, profile)
        }
        None => (1, head),
    };
    let mut entry = Entry { profile: parse_profile(profile, place)?, weight: None, models: None };
    let mut rest = settings;
    while let Some(part) = rest {
        let (setting, next) = match part.split("@") {
            Some((setting, next)) => (setting, Some(next)),
            None => (part.trim(), None),
        };
        rest = next;
        let unknown = || {
            let expected = "weight=NUMBER or models=NAME+NAME, each at most once";
            place.error(127, setting.at, "setting", expected, setting.text)
        };
        let (key, value) = setting.split("=").ok_or_else(unknown)?;
        match key.text {
            "weight" if entry.weight.is_none() => {
                let expected = format!("a whole number from 1 to {MAX_WEIGHT}");
                let weight = whole(value.text)
                    .ok_or_else(|| place.error(125, value.at, "weight", &expected, value.text))?;
                entry.weight = Some(check_weight(weight, || place.at(value.at))?);
            }
            "models" if entry.models.is_none() => {
                let mut at = value.at;
                let names: Vec<(&str, usize)> = value
                    .text
                    .split('+')
                    .map(|name| {
                        let part = Part { text: name, at }.trim();
                        at += name.len() + 1;
                        (part.text, part.at)
                    })
                    .collect();
                entry.models = Some(check_models(names.into_iter(), place)?);
            }
            _ => return Err(unknown()),
        }
    }
    Ok((count, entry))
}

pub(super) fn parse_profile(part: Part<'_>, place: Place<'_>) -> Result<Profile, SpecError> {
    const NAMES: &str = "healthy, degraded(miss), dying(at), flapping(up,down), recovering(from..to), late(blocks), refusing or liar";
    let part = part.trim();
    let (name, arguments) = match part.split("(") {
        None => (part, None),
        Some((name, arguments)) => {
            let end = arguments.at + arguments.text.len();
            let Some(inner) = arguments.text.strip_suffix(')').filter(|inner| !inner.contains(['(', ')']))
            else {
                return Err(place.error(121, end, "profile", "one closing \")\" at the end", part.text));
            };
            (name, Some(Part { text: inner, at: arguments.at }.trim()))
        }
    };
    let bad = |at: usize, expected: &str, found: &str| place.error(123, at, "profile", expected, found);
    let blocks = |part: Part<'_>| match whole(part.text) {
        Some(blocks @ 1..=MAX_BLOCKS) => Ok(blocks),
        _ => Err(bad(part.at, &format!("a number of blocks from 1 to {MAX_BLOCKS}"), part.text)),
    };
    let point = |part: Part<'_>| match part.text.strip_suffix('%') {
        None => blocks(part).map(At::Block),
        Some(share) => hundredths(share.trim_end())
            .map(At::Share)
            .ok_or_else(|| bad(part.at, "a share from 0% to 100%", part.text)),
    };
    let required = |form: &str| arguments.ok_or_else(|| bad(part.at + part.text.len(), form, ""));
    match name.text {
        "healthy" | "refusing" | "liar" => {
            if let Some(arguments) = arguments {
                return Err(bad(arguments.at, &format!("{} without an argument", name.text), arguments.text));
            }
            Ok(match name.text {
                "healthy" => Profile::Healthy,
                "refusing" => Profile::Refusing,
                _ => Profile::Liar,
            })
        }
        "degraded" => {
            let argument = required("degraded(miss), per cent of its requests")?;
            let share = argument.text.strip_suffix('%').unwrap_or(argument.text).trim_end();
            hundredths(share)
                .map(|miss_bp| Profile::Degraded { miss_bp })
                .ok_or_else(|| bad(argument.at, "a share from 0 to 100, at most two decimals", argument.text))
        }
        "dying" => Ok(Profile::Dying { at: point(required("dying(at), a block or a share of the run")?)? }),
        "flapping" => {
            let form = "flapping(up,down), two numbers of blocks";
            let arguments = required(form)?;
            let (up, down) = arguments.split(",").ok_or_else(|| bad(arguments.at, form, arguments.text))?;
            Ok(Profile::Flapping { up: blocks(up)?, down: blocks(down)? })
        }
        "recovering" => {
            let form = "recovering(from..to), blocks or shares of the run";
            let arguments = required(form)?;
            let (from, to) = arguments.split("..").ok_or_else(|| bad(arguments.at, form, arguments.text))?;
            let (from, to) = (point(from)?, point(to)?);
            let ordered = match (from, to) {
                (At::Block(from), At::Block(to)) => from < to,
                (At::Share(from), At::Share(to)) => from < to,
                // Known only once the length of the run is: see Profile::resolve.
                _ => true,
            };
            if !ordered {
                return Err(bad(arguments.at, "an outage that ends after it begins", arguments.text));
            }
            Ok(Profile::Recovering { from, to })
        }
        "late" => Ok(Profile::Late { blocks: blocks(required("late(blocks), blocks after the Start")?)? }),
        _ => Err(place.error(122, name.at, "profile", NAMES, name.text)),
    }
}

/// A whole number in plain digits.
fn whole(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A share from 0 to 100 with at most two decimals, in hundredths.
fn hundredths(text: &str) -> Option<u32> {
    let (units, decimals) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    let scale = match decimals.len() {
        0 => 0,
        1 => 10,
        2 => 1,
        _ => return None,
    };
    let part = if decimals.is_empty() { 0 } else { whole(decimals)? };
    let value = whole(units)?.checked_mul(100)?.checked_add(part * scale)?;
    u32::try_from(value).ok().filter(|value| *value <= 10_000)
}
