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

mod entry;
mod error;
mod file;
mod profile;
mod short_form;
mod spec;
#[cfg(test)]
mod tests;

pub use self::error::{EXECUTOR_ERROR_CODES, SpecError};
pub use self::file::{MAX_FILE_BYTES, load, parse_toml};
pub use self::profile::{Action, At, BASE_MISS_BP, MAX_BLOCKS, Profile, ResolvedProfile, behaviour};
pub use self::short_form::parse_spec;
pub use self::spec::{
    DEFAULT_MODELS, DEFAULT_SPEC, ExecutorSpec, MAX_EXECUTORS, MAX_MODEL_BYTES, MAX_MODELS, MAX_WEIGHT,
    default_executors, default_weight, models_served,
};
