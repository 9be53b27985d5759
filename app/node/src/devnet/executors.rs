//! Executor profiles: how each simulated executor answers, and the two ways to write a list of them.
//!
//! # The short form
//!
//! ```text
//! SPEC     = ENTRY { ("," | ";") ENTRY }
//! ENTRY    = [ COUNT "*" ] PROFILE { "@weight=" NUMBER | "@models=" NAME { "+" NAME } }
//! PROFILE  = healthy | degraded(MISS) | dying(WHEN) | flapping(UP,DOWN) | recovering(WHEN..WHEN)
//!          | late(BLOCKS) | refusing | liar
//! WHEN     = BLOCK | PERCENT "%"        block of the run, from 1, or per cent of the run
//! MISS     = per cent of its requests, at most two decimals; a "%" may follow
//! ```
//!
//! Spaces between the parts are ignored. `11*healthy,degraded(20),dying(40%)@weight=120@models=model-a` is 13
//! executors. Without `@weight` executor i (from 0) weighs 80 + 10·(7i mod 5); without `@models` it serves
//! [`DEFAULT_MODELS`].
//!
//! # The TOML form
//!
//! ```toml
//! [[executor]]
//! profile = "dying(40%)"        # as in the short form
//! count = 2                     # optional, default 1
//! weight = 120                  # optional
//! models = ["model-a"]          # optional
//! ```
//!
//! # Profiles
//!
//! | profile | fault | what it does |
//! |---|---|---|
//! | `healthy` | none | answers |
//! | `degraded(20)` | from block 1 | leaves 20 % of its requests unanswered |
//! | `dying(at)` | from block `at` | never answers again |
//! | `flapping(80,30)` | from block 81 | answers for 80 blocks, is down for 30, and so on |
//! | `recovering(from..to)` | from block `from` | down in the blocks `from` to `to` - 1 |
//! | `late(25)` | from block 1 | answers 25 blocks after the Start at the earliest |
//! | `refusing` | from block 1 | reports a failure instead of answering |
//! | `liar` | from block 1 | signs answers to others' requests, never to its own |
//!
//! Under every profile [`BASE_MISS_BP`] of the requests stay unanswered besides. An executor that is down in the
//! block in which it would answer a request never answers it.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

/// Requests in 10,000 that any executor leaves unanswered, whatever its profile.
pub const BASE_MISS_BP: u64 = 50;

/// The models an executor serves if its entry names none.
pub const DEFAULT_MODELS: [&str; 2] = ["model-a", "model-b"];

/// The default executors in the short form.
pub const DEFAULT_SPEC: &str = "11*healthy,degraded(20),dying(40%),dying(50%),dying(60%),flapping(80,30),\
                                recovering(30%..45%),late(25),refusing,liar";

/// Most executors in one devnet.
pub const MAX_EXECUTORS: usize = 10_000;

/// Largest weight of one executor; [`MAX_EXECUTORS`] of them stay far inside a `u64`.
pub const MAX_WEIGHT: u64 = 1_000_000_000_000;

/// Most models one executor serves.
pub const MAX_MODELS: usize = 16;

/// Longest model name, in bytes.
pub const MAX_MODEL_BYTES: usize = 64;

/// Largest block number or number of blocks in a profile.
pub const MAX_BLOCKS: u64 = 1_000_000_000;

/// Largest executor file, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Code and meaning of every [`SpecError`], for the error table of the documentation.
pub const EXECUTOR_ERROR_CODES: &[(u32, &str)] = &[
    (121, "executor specification malformed"),
    (122, "executor profile unknown"),
    (123, "executor profile argument malformed or out of range"),
    (124, "executor count out of range"),
    (125, "executor weight malformed or out of range"),
    (126, "executor models malformed"),
    (127, "executor setting unknown or given twice"),
    (128, "executor file cannot be read"),
    (129, "executor file is no valid TOML of this form"),
];

/// Why an executor list was refused: where, which field, what should stand there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--executors: {place}: {field}: expected {expected}, found {found} (devnet error {code})")]
pub struct SpecError {
    /// The stable code, as listed in [`EXECUTOR_ERROR_CODES`].
    pub code: u32,
    /// "character N" of the short form, or the entry of the file, both from 1.
    pub place: String,
    /// The field that is wrong.
    pub field: &'static str,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

/// A point of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A block of the run, from 1.
    Block(u64),
    /// Hundredths of a per cent of the run, 0 to 10,000.
    Share(u32),
}

impl At {
    /// The block of a run of `run_blocks`: a share is rounded down, and never before block 1.
    pub fn block(self, run_blocks: u64) -> u64 {
        match self {
            At::Block(block) => block,
            At::Share(share) => {
                let block = u128::from(run_blocks) * u128::from(share) / 10_000;
                u64::try_from(block).unwrap_or(u64::MAX).max(1)
            }
        }
    }
}

/// How an executor behaves, as written. `Display` gives the short form back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Answers everything but the base miss.
    Healthy,
    /// Leaves this many in 10,000 requests unanswered besides.
    Degraded {
        /// Misses in 10,000.
        miss_bp: u32,
    },
    /// Down for good from a point of the run.
    Dying {
        /// First block down.
        at: At,
    },
    /// Up and down in turn, from block 1.
    Flapping {
        /// Blocks up.
        up: u64,
        /// Blocks down.
        down: u64,
    },
    /// Down once.
    Recovering {
        /// First block down.
        from: At,
        /// First block up again.
        to: At,
    },
    /// Answers no earlier than this many blocks after the Start.
    Late {
        /// Blocks.
        blocks: u64,
    },
    /// Reports a failure instead of answering.
    Refusing,
    /// Answers others' requests instead of its own.
    Liar,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Block(block) => write!(f, "{block}"),
            At::Share(share) => write!(f, "{}%", Hundredths(*share)),
        }
    }
}

/// Prints hundredths without needless decimals: 4000 as 40, 1250 as 12.5.
struct Hundredths(u32);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Profile::Healthy => write!(f, "healthy"),
            Profile::Degraded { miss_bp } => write!(f, "degraded({})", Hundredths(*miss_bp)),
            Profile::Dying { at } => write!(f, "dying({at})"),
            Profile::Flapping { up, down } => write!(f, "flapping({up},{down})"),
            Profile::Recovering { from, to } => write!(f, "recovering({from}..{to})"),
            Profile::Late { blocks } => write!(f, "late({blocks})"),
            Profile::Refusing => write!(f, "refusing"),
            Profile::Liar => write!(f, "liar"),
        }
    }
}

impl Profile {
    /// Turns shares of the run into blocks. Fails if an outage would end before it begins.
    ///
    /// An outage that begins and ends in the same block of a short run never happens.
    pub fn resolve(&self, run_blocks: u64) -> Result<ResolvedProfile, SpecError> {
        Ok(match *self {
            Profile::Healthy => ResolvedProfile::Healthy,
            Profile::Degraded { miss_bp } => ResolvedProfile::Degraded { miss_bp: u64::from(miss_bp) },
            Profile::Dying { at } => ResolvedProfile::Dying { at: height(at.block(run_blocks)) },
            Profile::Flapping { up, down } => {
                ResolvedProfile::Flapping { up: height(up), down: height(down) }
            }
            Profile::Recovering { from, to } => {
                let (begin, end) = (from.block(run_blocks), to.block(run_blocks));
                if begin > end {
                    return Err(SpecError {
                        code: 123,
                        place: format!("a run of {run_blocks} blocks"),
                        field: "profile",
                        expected: "an outage that ends after it begins".to_owned(),
                        found: format!("{self}, block {begin} to block {end}"),
                    });
                }
                ResolvedProfile::Recovering { from: height(begin), to: height(end) }
            }
            Profile::Late { blocks } => ResolvedProfile::Late { blocks: height(blocks) },
            Profile::Refusing => ResolvedProfile::Refusing,
            Profile::Liar => ResolvedProfile::Liar,
        })
    }

    /// True for every profile but `healthy`.
    pub fn is_faulty(&self) -> bool {
        *self != Profile::Healthy
    }
}

/// Blocks as a height. Values are at most [`MAX_BLOCKS`] or a share of the run, so nothing is lost.
fn height(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}

/// A profile with every point of the run as a height; block 1 of the run has height 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolvedProfile {
    /// See [`Profile::Healthy`].
    Healthy,
    /// See [`Profile::Degraded`].
    Degraded {
        /// Misses in 10,000.
        miss_bp: u64,
    },
    /// See [`Profile::Dying`].
    Dying {
        /// First block down.
        at: i64,
    },
    /// See [`Profile::Flapping`].
    Flapping {
        /// Blocks up.
        up: i64,
        /// Blocks down.
        down: i64,
    },
    /// See [`Profile::Recovering`].
    Recovering {
        /// First block down.
        from: i64,
        /// First block up again.
        to: i64,
    },
    /// See [`Profile::Late`].
    Late {
        /// Blocks.
        blocks: i64,
    },
    /// See [`Profile::Refusing`].
    Refusing,
    /// See [`Profile::Liar`].
    Liar,
}

impl ResolvedProfile {
    /// Whether the executor is down in the block at `height`.
    pub fn is_down(&self, height: i64) -> bool {
        match *self {
            ResolvedProfile::Dying { at } => height >= at,
            ResolvedProfile::Flapping { up, down } => {
                (height.max(1) - 1).rem_euclid(up.saturating_add(down).max(1)) >= up
            }
            ResolvedProfile::Recovering { from, to } => (from..to).contains(&height),
            _ => false,
        }
    }

    /// The block in which the fault begins; `None` if it does not within `run_blocks`.
    pub fn first_fault_block(&self, run_blocks: u64) -> Option<i64> {
        let first = match *self {
            ResolvedProfile::Healthy | ResolvedProfile::Degraded { miss_bp: 0 } => return None,
            ResolvedProfile::Dying { at } => at,
            ResolvedProfile::Flapping { up, .. } => up.saturating_add(1),
            ResolvedProfile::Recovering { from, to } if from < to => from,
            ResolvedProfile::Recovering { .. } => return None,
            _ => 1,
        };
        (first <= height(run_blocks)).then_some(first)
    }

    /// Spans of blocks, first and last counted, in which the fault is present; at most `limit` of them.
    pub fn fault_spans(&self, run_blocks: u64, limit: usize) -> Vec<(i64, i64)> {
        let last = height(run_blocks);
        let Some(first) = self.first_fault_block(run_blocks) else {
            return Vec::new();
        };
        match *self {
            ResolvedProfile::Flapping { up, down } => {
                let period = up.saturating_add(down);
                (0..)
                    .map_while(|cycle: i64| {
                        let begin = cycle.checked_mul(period)?.checked_add(first)?;
                        (begin <= last).then(|| (begin, begin.saturating_add(down - 1).min(last)))
                    })
                    .take(limit)
                    .collect()
            }
            ResolvedProfile::Recovering { to, .. } => vec![(first, (to - 1).min(last))],
            _ => vec![(first, last)],
        }
    }
}

/// What an executor does about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Signs the answer in its block.
    Answer,
    /// Does nothing, ever.
    Silent,
    /// Signs the answer in a later block; past the expiry the chain refuses it.
    AnswerLate {
        /// That block.
        height: i64,
    },
    /// Signs `MsgReportFailure` in the block of the answer.
    ReportFailure,
    /// In the block of the answer, signs an answer to a request that another executor holds, which the chain
    /// refuses; its own stays unanswered.
    FinishOthers,
}

/// Decides what an executor does about one request. Pure: the caller brings the randomness.
///
/// `start_height` is the block that holds the Start, `answer_height` the one in which an executor without fault
/// would answer, both counted from block 1 of the run; `draw` is a number from 0 to 9,999 that belongs to this
/// request alone. The base miss takes the draws under [`BASE_MISS_BP`], `degraded` the next ones.
pub fn behaviour(profile: &ResolvedProfile, start_height: i64, answer_height: i64, draw: u64) -> Action {
    if draw < BASE_MISS_BP || profile.is_down(answer_height) {
        return Action::Silent;
    }
    match *profile {
        ResolvedProfile::Degraded { miss_bp } if draw < BASE_MISS_BP + miss_bp => Action::Silent,
        ResolvedProfile::Late { blocks } => match start_height.saturating_add(blocks) {
            height if height > answer_height => Action::AnswerLate { height },
            _ => Action::Answer,
        },
        ResolvedProfile::Refusing => Action::ReportFailure,
        ResolvedProfile::Liar => Action::FinishOthers,
        _ => Action::Answer,
    }
}

/// One executor of the devnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorSpec {
    /// How it behaves.
    pub profile: Profile,
    /// Its weight in every epoch group.
    pub weight: u64,
    /// The models it serves, in the order written.
    pub models: Vec<String>,
}

/// The weight of executor `index` (from 0) whose entry gives none: 80 + 10·(7·index mod 5).
pub fn default_weight(index: usize) -> u64 {
    80 + 10 * (index as u64 % 5 * 7 % 5)
}

/// The 20 executors of a run without `--executors`: 11 healthy and 9 with a fault, 46 % of the weight.
pub fn default_executors() -> Vec<ExecutorSpec> {
    use At::Share;
    let faulty = [
        Profile::Degraded { miss_bp: 2_000 },
        Profile::Dying { at: Share(4_000) },
        Profile::Dying { at: Share(5_000) },
        Profile::Dying { at: Share(6_000) },
        Profile::Flapping { up: 80, down: 30 },
        Profile::Recovering { from: Share(3_000), to: Share(4_500) },
        Profile::Late { blocks: 25 },
        Profile::Refusing,
        Profile::Liar,
    ];
    [Profile::Healthy; 11]
        .into_iter()
        .chain(faulty)
        .enumerate()
        .map(|(index, profile)| ExecutorSpec {
            profile,
            weight: default_weight(index),
            models: DEFAULT_MODELS.map(str::to_owned).to_vec(),
        })
        .collect()
}

/// Every model that some executor serves, in order of first appearance. Requests ask for these.
pub fn models_served(executors: &[ExecutorSpec]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for model in executors.iter().flat_map(|executor| &executor.models) {
        if !models.contains(model) {
            models.push(model.clone());
        }
    }
    models
}

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

/// Where an error lies: a character of the short form or an entry of the file.
#[derive(Clone, Copy)]
enum Place<'a> {
    Short { spec: &'a str },
    File { entry: usize },
}

impl Place<'_> {
    fn at(self, byte: usize) -> String {
        match self {
            Place::Short { spec } => {
                let before = spec.get(..byte).map_or(0, |text| text.chars().count());
                format!("character {}", before + 1)
            }
            Place::File { entry } => format!("executor entry {entry}"),
        }
    }

    fn error(self, code: u32, byte: usize, field: &'static str, expected: &str, found: &str) -> SpecError {
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

/// A piece of the specification and the byte it begins at.
#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    at: usize,
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

struct Entry {
    profile: Profile,
    weight: Option<u64>,
    models: Option<Vec<String>>,
}

impl Entry {
    fn push_to(
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

fn parse_profile(part: Part<'_>, place: Place<'_>) -> Result<Profile, SpecError> {
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

fn check_count(count: u64, place: impl Fn() -> String) -> Result<usize, SpecError> {
    usize::try_from(count).ok().filter(|count| (1..=MAX_EXECUTORS).contains(count)).ok_or_else(|| SpecError {
        code: 124,
        place: place(),
        field: "count",
        expected: format!("a number from 1 to {MAX_EXECUTORS}"),
        found: count.to_string(),
    })
}

fn check_weight(weight: u64, place: impl Fn() -> String) -> Result<u64, SpecError> {
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

fn check_models<'a>(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn one(spec: &str) -> ExecutorSpec {
        let mut executors = parse_spec(spec).expect("good spec");
        assert_eq!(executors.len(), 1, "{spec}");
        executors.remove(0)
    }

    fn refused(spec: &str) -> SpecError {
        parse_spec(spec).expect_err(spec)
    }

    #[test]
    fn the_default_executors_are_those_of_the_default_spec() {
        let executors = default_executors();
        assert_eq!(parse_spec(DEFAULT_SPEC).expect("default"), executors);
        assert_eq!(executors.len(), 20);
        let total: u64 = executors.iter().map(|executor| executor.weight).sum();
        let faulty: u64 =
            executors.iter().filter(|e| e.profile.is_faulty()).map(|executor| executor.weight).sum();
        assert_eq!((total, faulty * 100 / total), (2_000, 46));
        assert_eq!(faulty, 920);
        // 7i mod 5 for i = 0..5 is 0, 2, 4, 1, 3.
        let weights: Vec<u64> = executors.iter().take(6).map(|executor| executor.weight).collect();
        assert_eq!(weights, [80, 100, 120, 90, 110, 80]);
        assert!(executors.iter().all(|executor| executor.models == ["model-a", "model-b"]));
        assert_eq!(models_served(&executors), ["model-a", "model-b"]);
    }

    #[test]
    fn every_profile_is_read_and_printed_back() {
        for spec in [
            "healthy",
            "degraded(20)",
            "degraded(12.5)",
            "degraded(0.05)",
            "dying(40%)",
            "dying(300)",
            "flapping(80,30)",
            "recovering(30%..45%)",
            "recovering(100..200)",
            "recovering(10..45.25%)",
            "late(25)",
            "refusing",
            "liar",
        ] {
            assert_eq!(one(spec).profile.to_string(), spec);
        }
        assert_eq!(one("degraded(20%)").profile, Profile::Degraded { miss_bp: 2_000 });
        assert_eq!(one("dying(0.5%)").profile, Profile::Dying { at: At::Share(50) });
    }

    #[test]
    fn counts_weights_models_separators_and_spaces_are_read() {
        let executors = parse_spec(
            " 2*healthy @weight=120 ; flapping( 8 , 3 )@models=a+b@weight=7,late(2)@models=c/d-1.5 ",
        )
        .expect("good");
        assert_eq!(executors.len(), 4);
        assert_eq!((executors[0].weight, executors[1].weight), (120, 120));
        assert_eq!(executors[2].profile, Profile::Flapping { up: 8, down: 3 });
        assert_eq!((executors[2].weight, executors[2].models.join(" ").as_str()), (7, "a b"));
        assert_eq!((executors[3].weight, executors[3].models.join(" ").as_str()), (90, "c/d-1.5"));
        assert_eq!(models_served(&executors), ["model-a", "model-b", "a", "b", "c/d-1.5"]);
    }

    #[test]
    fn every_malformed_spec_has_its_code_field_and_position() {
        let cases: &[(&str, u32, &str, usize)] = &[
            ("", 122, "profile", 1),
            ("healthy,", 122, "profile", 9),
            ("healthy,,liar", 122, "profile", 9),
            ("healthi", 122, "profile", 1),
            ("healthy,Liar", 122, "profile", 9),
            ("liar,3*dead(4)", 122, "profile", 8),
            ("dying(4", 121, "profile", 8),
            ("dying(4))", 121, "profile", 10),
            ("dying(4)x", 121, "profile", 10),
            ("healthy()", 123, "profile", 9),
            ("liar(3)", 123, "profile", 6),
            ("degraded", 123, "profile", 9),
            ("degraded()", 123, "profile", 10),
            ("degraded(101)", 123, "profile", 10),
            ("degraded(-1)", 123, "profile", 10),
            ("degraded(1.234)", 123, "profile", 10),
            ("degraded(1.)", 123, "profile", 10),
            ("degraded(.5)", 123, "profile", 10),
            ("dying(0)", 123, "profile", 7),
            ("dying(100.01%)", 123, "profile", 7),
            ("dying(x%)", 123, "profile", 7),
            ("dying(1000000001)", 123, "profile", 7),
            ("flapping(80)", 123, "profile", 10),
            ("flapping(80,0)", 123, "profile", 13),
            ("flapping(80,3,4)", 123, "profile", 13),
            ("recovering(30%)", 123, "profile", 12),
            ("recovering(45%..30%)", 123, "profile", 12),
            ("recovering(30..30)", 123, "profile", 12),
            ("recovering(30%..)", 123, "profile", 17),
            ("late(0)", 123, "profile", 6),
            ("late(1.5)", 123, "profile", 6),
            ("0*healthy", 124, "count", 1),
            ("x*healthy", 124, "count", 1),
            ("10001*healthy", 124, "count", 1),
            ("liar,10000*healthy", 124, "count", 6),
            ("healthy@weight=0", 125, "weight", 16),
            ("healthy@weight=", 125, "weight", 16),
            ("healthy@weight=-5", 125, "weight", 16),
            ("healthy@weight=1000000000001", 125, "weight", 16),
            ("healthy@weight=99999999999999999999", 125, "weight", 16),
            ("healthy@models=", 126, "models", 16),
            ("healthy@models=a++b", 126, "models", 18),
            ("healthy@models=a+b+a", 126, "models", 20),
            ("healthy@models=a b", 126, "models", 16),
            ("healthy@models=m\u{e4}dchen", 126, "models", 16),
            ("healthy@speed=3", 127, "setting", 9),
            ("healthy@weight", 127, "setting", 9),
            ("healthy@weight=1@weight=2", 127, "setting", 18),
            ("healthy@", 127, "setting", 9),
        ];
        for (spec, code, field, character) in cases {
            let error = refused(spec);
            assert_eq!((error.code, error.field), (*code, *field), "{spec}: {error}");
            assert_eq!(error.place, format!("character {character}"), "{spec}: {error}");
            assert!(EXECUTOR_ERROR_CODES.iter().any(|(known, _)| known == code));
        }
        let many = (0..17).map(|n| format!("m{n}")).collect::<Vec<_>>().join("+");
        assert_eq!(refused(&format!("liar@models={many}")).code, 126);
        let long = "m".repeat(65);
        assert_eq!(refused(&format!("liar@models={long}")).code, 126);
    }

    #[test]
    fn an_error_reads_as_one_sentence_with_the_flag() {
        assert_eq!(
            refused("healthy,late(0)").to_string(),
            "--executors: character 14: profile: expected a number of blocks from 1 to 1000000000, found \"0\" \
             (devnet error 123)"
        );
    }

    #[test]
    fn the_toml_form_gives_the_same_list_as_the_short_form() {
        let text = "
            [[executor]]
            profile = \"healthy\"
            count = 11
            [[executor]]
            profile = \"degraded(20)\"
            weight = 7
            [[executor]]
            profile = \"recovering(30%..45%)\"
            models = [\"a\", \"b\"]
        ";
        let short = parse_spec("11*healthy,degraded(20)@weight=7,recovering(30%..45%)@models=a+b");
        assert_eq!(parse_toml(text), short);
    }

    #[test]
    fn every_malformed_file_has_its_code_and_place() {
        let entry =
            |text: &str| parse_toml(&format!("[[executor]]\nprofile = \"liar\"\n{text}")).expect_err(text);
        let error = entry("speed = 3\n");
        assert_eq!((error.code, error.place.as_str()), (129, "line 3, column 1"), "{error}");
        assert_eq!(entry("weight = \"heavy\"\n").code, 129);
        assert_eq!(entry("weight = -1\n").code, 129);
        assert_eq!(entry("weight = 0\n").code, 125);
        assert_eq!(entry("count = 0\n").code, 124);
        assert_eq!(entry("count = 10001\n").code, 124);
        assert_eq!(entry("models = []\n").code, 126);
        assert_eq!(entry("models = [\"a\", \"a\"]\n").code, 126);
        let error = entry("[[executor]]\nprofile = \"dying(0)\"\n");
        assert_eq!((error.code, error.place.as_str()), (123, "executor entry 2"));
        assert_eq!(parse_toml("").expect_err("empty").code, 129);
        assert_eq!(parse_toml("executor = []").expect_err("none").code, 129);
        assert_eq!(parse_toml("[[executor]\n").expect_err("syntax").code, 129);
        assert_eq!(parse_toml("[[executor]]\ncount = 1\n").expect_err("no profile").code, 129);
    }

    #[test]
    fn load_takes_a_toml_file_or_the_short_form() {
        assert_eq!(load("2*liar").expect("short").len(), 2);
        let error = load("no-such-file.toml").expect_err("missing");
        assert_eq!((error.code, error.field), (128, "file"));
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("executors.toml");
        std::fs::write(&path, "[[executor]]\nprofile = \"liar\"\n").expect("write");
        let loaded = load(path.to_str().expect("text path"));
        assert_eq!(loaded.expect("file").len(), 1);
    }

    #[test]
    fn shares_of_the_run_become_blocks_rounded_down_but_never_before_block_one() {
        assert_eq!(At::Share(4_000).block(709), 283);
        assert_eq!(At::Share(10_000).block(709), 709);
        assert_eq!(At::Share(0).block(709), 1);
        assert_eq!(At::Share(3_000).block(u64::MAX), 5_534_023_222_112_865_484);
        assert_eq!(At::Block(12).block(3), 12);
    }

    #[test]
    fn first_fault_blocks_are_those_of_the_profile() {
        let first =
            |spec: &str, run: u64| one(spec).profile.resolve(run).expect("resolves").first_fault_block(run);
        assert_eq!(first("healthy", 709), None);
        assert_eq!(first("degraded(20)", 709), Some(1));
        assert_eq!(first("degraded(0)", 709), None);
        assert_eq!(first("dying(40%)", 709), Some(283));
        assert_eq!(first("dying(800)", 709), None);
        assert_eq!(first("flapping(80,30)", 709), Some(81));
        assert_eq!(first("flapping(80,30)", 80), None);
        assert_eq!(first("recovering(30%..45%)", 709), Some(212));
        assert_eq!(first("recovering(30%..45%)", 3), None);
        assert_eq!(first("late(25)", 709), Some(1));
        assert_eq!(first("refusing", 709), Some(1));
        assert_eq!(first("liar", 709), Some(1));
        let error = one("recovering(500..10%)").profile.resolve(709).expect_err("backwards");
        assert_eq!(error.code, 123);
        assert!(error.to_string().contains("block 500 to block 70"), "{error}");
    }

    #[test]
    fn fault_spans_cover_exactly_the_blocks_that_are_down() {
        for spec in [
            "dying(40%)",
            "flapping(80,30)",
            "flapping(1,1)",
            "recovering(30%..45%)",
            "recovering(100..9999)",
        ] {
            let profile = one(spec).profile.resolve(709).expect("resolves");
            let spans = profile.fault_spans(709, 1_000);
            for height in 1..=709 {
                let inside = spans.iter().any(|(from, to)| (*from..=*to).contains(&height));
                assert_eq!(inside, profile.is_down(height), "{spec} at {height}");
            }
        }
        let flapping = one("flapping(80,30)").profile.resolve(709).expect("resolves");
        assert_eq!(flapping.fault_spans(709, 2), [(81, 110), (191, 220)]);
        let refusing = ResolvedProfile::Refusing;
        assert_eq!(refusing.fault_spans(709, 9), [(1, 709)]);
        assert!(ResolvedProfile::Healthy.fault_spans(709, 9).is_empty());
        // A huge period neither overflows nor loops.
        let huge = ResolvedProfile::Flapping { up: i64::MAX - 1, down: i64::MAX };
        assert!(!huge.is_down(5));
        assert!(huge.fault_spans(709, 9).is_empty());
    }

    #[test]
    fn behaviour_follows_the_profile_in_the_block_of_the_answer() {
        use Action::*;
        let at = |spec: &str, start: i64, answer: i64, draw: u64| {
            behaviour(&one(spec).profile.resolve(1_000).expect("resolves"), start, answer, draw)
        };
        assert_eq!(at("healthy", 1, 2, 50), Answer);
        assert_eq!(at("dying(400)", 398, 399, 9_999), Answer);
        assert_eq!(at("dying(400)", 399, 400, 9_999), Silent);
        assert_eq!(at("flapping(80,30)", 79, 80, 9_999), Answer);
        assert_eq!(at("flapping(80,30)", 80, 81, 9_999), Silent);
        assert_eq!(at("flapping(80,30)", 109, 110, 9_999), Silent);
        // Down when it started, up when the answer is due: it answers.
        assert_eq!(at("flapping(80,30)", 110, 111, 9_999), Answer);
        assert_eq!(at("flapping(80,30)", 190, 191, 9_999), Silent);
        assert_eq!(at("recovering(300..450)", 1, 299, 9_999), Answer);
        assert_eq!(at("recovering(300..450)", 1, 300, 9_999), Silent);
        assert_eq!(at("recovering(300..450)", 1, 449, 9_999), Silent);
        assert_eq!(at("recovering(300..450)", 1, 450, 9_999), Answer);
        assert_eq!(at("late(25)", 10, 11, 9_999), AnswerLate { height: 35 });
        assert_eq!(at("late(25)", 10, 35, 9_999), Answer);
        assert_eq!(at("late(25)", 10, 40, 9_999), Answer);
        assert_eq!(at("refusing", 10, 11, 9_999), ReportFailure);
        assert_eq!(at("liar", 10, 11, 9_999), FinishOthers);
        assert_eq!(at("degraded(20)", 10, 11, 2_049), Silent);
        assert_eq!(at("degraded(20)", 10, 11, 2_050), Answer);
        assert_eq!(at("degraded(100)", 10, 11, 9_999), Silent);
    }

    #[test]
    fn the_base_miss_holds_under_every_profile() {
        for executor in default_executors() {
            let profile = executor.profile.resolve(1_000).expect("resolves");
            assert_eq!(behaviour(&profile, 1, 2, 0), Action::Silent);
            assert_eq!(behaviour(&profile, 1, 2, BASE_MISS_BP - 1), Action::Silent);
        }
        let silent = (0..10_000)
            .filter(|draw| behaviour(&ResolvedProfile::Healthy, 1, 2, *draw) == Action::Silent)
            .count();
        assert_eq!(silent, 50);
    }
}
