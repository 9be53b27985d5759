//! How much history a node keeps, in the words of the Cosmos SDK's `app.toml`.

use std::fmt;
use std::num::NonZero;

use thiserror::Error;

/// Which heights stay readable, and how often the others are removed. Node-local: it changes no app hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pruning {
    /// Keeps the last 362,880 heights, removes every 10 heights.
    #[default]
    Default,
    /// Keeps every height.
    Nothing,
    /// Keeps the last 2 heights, removes every 10 heights.
    Everything,
    /// Keeps and removes as the operator says; made by [`Pruning::custom`].
    Custom {
        /// Latest heights kept, at least [`Pruning::KEEP_LEAST`].
        keep_recent: u64,
        /// Heights between two removals, at least [`Pruning::INTERVAL_LEAST`].
        interval: u64,
    },
}

/// A policy that cannot be. The field is a key of `app.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {text}")]
pub struct PruningError {
    /// `pruning`, `pruning-keep-recent` or `pruning-interval`.
    pub field: &'static str,
    /// The rule, with what to write instead.
    pub text: String,
}

impl Pruning {
    /// Fewest heights a custom policy keeps: a proof needs the height before the latest.
    pub const KEEP_LEAST: u64 = 2;
    /// Shortest interval of a custom policy.
    pub const INTERVAL_LEAST: u64 = 10;

    /// The policy of `app.toml`. The two numbers matter for `custom` only, as in the Cosmos SDK.
    ///
    /// # Errors
    /// An unknown word, or numbers below the least.
    pub fn parse(word: &str, keep_recent: u64, interval: u64) -> Result<Self, PruningError> {
        match word {
            "default" => Ok(Self::Default),
            "nothing" => Ok(Self::Nothing),
            "everything" => Ok(Self::Everything),
            "custom" => Self::custom(keep_recent, interval),
            _ => Err(PruningError {
                field: "pruning",
                text: format!("{word:?}: give default, nothing, everything or custom"),
            }),
        }
    }

    /// A policy of the operator's own.
    ///
    /// # Errors
    /// Numbers below the least.
    pub fn custom(keep_recent: u64, interval: u64) -> Result<Self, PruningError> {
        let least = |field, given: u64, least: u64| {
            if given < least {
                let text = format!("{given}: give a whole number from {least} up for the pruning \"custom\"");
                return Err(PruningError { field, text });
            }
            Ok(())
        };
        least("pruning-keep-recent", keep_recent, Self::KEEP_LEAST)?;
        least("pruning-interval", interval, Self::INTERVAL_LEAST)?;
        Ok(Self::Custom { keep_recent, interval })
    }

    /// Latest heights kept, for [`super::StateOptions::keep_recent`]; 0 keeps all.
    pub fn keep_recent(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Default => 362_880,
            Self::Everything => 2,
            Self::Custom { keep_recent, .. } => keep_recent,
        }
    }

    /// Heights between two removals; `None`: nothing is removed.
    pub fn interval(self) -> Option<NonZero<u64>> {
        match self {
            Self::Nothing => None,
            Self::Default | Self::Everything => NonZero::new(10),
            Self::Custom { interval, .. } => NonZero::new(interval),
        }
    }

    /// Whether a removal is due after the commit of `height`.
    pub fn is_due(self, height: i64) -> bool {
        let height = u64::try_from(height).unwrap_or(0);
        height > 0 && self.interval().is_some_and(|interval| height.is_multiple_of(interval.get()))
    }
}

impl fmt::Display for Pruning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Nothing => f.write_str("nothing"),
            Self::Everything => f.write_str("everything"),
            Self::Custom { keep_recent, interval } => {
                write!(f, "custom (keep {keep_recent}, every {interval})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_app_toml_mean_what_they_mean_in_the_sdk() {
        let parsed = |word| Pruning::parse(word, 0, 0).unwrap();
        assert_eq!(
            (parsed("default").keep_recent(), parsed("default").interval()),
            (362_880, NonZero::new(10))
        );
        assert_eq!(
            (parsed("everything").keep_recent(), parsed("everything").interval()),
            (2, NonZero::new(10))
        );
        assert_eq!((parsed("nothing").keep_recent(), parsed("nothing").interval()), (0, None));
        let custom = Pruning::parse("custom", 2, 10).unwrap();
        assert_eq!((custom.keep_recent(), custom.interval()), (2, NonZero::new(10)));
        assert_eq!(Pruning::custom(100, 17).unwrap().to_string(), "custom (keep 100, every 17)");
    }

    #[test]
    fn a_policy_below_the_least_names_its_key_and_the_least() {
        let field = |word, keep, every| {
            let error = Pruning::parse(word, keep, every).unwrap_err();
            (error.field, error.text)
        };
        assert_eq!(
            field("sometimes", 9, 99),
            ("pruning", "\"sometimes\": give default, nothing, everything or custom".into())
        );
        assert_eq!(field("custom", 1, 10).0, "pruning-keep-recent");
        let (key, text) = field("custom", 2, 9);
        assert_eq!(key, "pruning-interval");
        assert!(text.starts_with("9: give a whole number from 10 up"), "{text}");
    }

    #[test]
    fn a_removal_is_due_at_multiples_of_the_interval() {
        let policy = Pruning::custom(5, 15).unwrap();
        let due: Vec<i64> = (-15..46).filter(|height| policy.is_due(*height)).collect();
        assert_eq!(due, [15, 30, 45]);
        assert!((0..100).all(|height| !Pruning::Nothing.is_due(height)));
    }
}
