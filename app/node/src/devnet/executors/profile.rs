//! What an executor does, block by block.

use std::fmt;

use super::error::SpecError;

/// Requests in 10,000 that any executor leaves unanswered, whatever its profile.
pub const BASE_MISS_BP: u64 = 50;

/// Largest block number or number of blocks in a profile.
pub const MAX_BLOCKS: u64 = 1_000_000_000;

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
