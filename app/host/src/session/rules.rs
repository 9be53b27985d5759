//! By which rules a replica applies diffs: those of the session, and for tests and drills some that go wrong on purpose.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use holdfast_escrow::session::{ApplyError, Diff, Hash, State, apply, compose};

/// Which call brought a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Teach.
    Teach,
    /// Infer: live traffic.
    Infer,
    /// VoteTimeout or ChallengeStart.
    Peer,
    /// The own log, read back.
    Replay,
}

/// Where a diff is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// How often the replica was dropped by ResetSession.
    pub resets: u32,
    /// Which call brought the diff.
    pub via: Via,
}

/// How a replica applies a diff.
pub trait Rules: Send + Sync {
    /// The state after `diff`, and its root.
    ///
    /// # Errors
    /// [`ApplyError`]; the replica stays as it was.
    fn apply(&self, place: Place, state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError>;
}

/// The rules of the session.
#[derive(Debug, Clone, Copy, Default)]
pub struct Honest;

impl Rules for Honest {
    fn apply(&self, _: Place, state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError> {
        apply(state, diff)
    }
}

/// A replica that parts from the others at a nonce: it refuses that diff once by its signature, and from the next time on
/// applies it and all that follow to a state of its own. Dropping the replica heals it.
#[derive(Debug, Default)]
pub struct Fork {
    at: u64,
    /// Escrows in which it has refused.
    refused: Mutex<BTreeSet<u64>>,
}

impl Fork {
    /// Parts at nonce `at`.
    #[must_use]
    pub fn new(at: u64) -> Self {
        Self { at, refused: Mutex::default() }
    }
}

impl Rules for Fork {
    fn apply(&self, place: Place, state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError> {
        if place.resets > 0 || diff.nonce < self.at {
            return apply(state, diff);
        }
        let other = if diff.nonce == self.at { another(state) } else { state.clone() };
        let mismatch = match apply(&other, diff) {
            Err(error @ ApplyError::RootMismatch { .. }) => error,
            applied => return applied,
        };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if diff.nonce == self.at && place.via != Via::Replay && refused.insert(diff.escrow_id) {
            return Err(mismatch);
        }
        // The same transactions on its own state, whatever root the diff names.
        let composed = compose(&other, Vec::new(), diff.txs.clone())?;
        Ok((composed.state, composed.root))
    }
}

/// The same session with another history: its accumulator differs, and so do all roots from here on.
fn another(state: &State) -> State {
    let mut bytes = state.to_bytes();
    // The accumulator stands in front of the keys: a length, and an owner, a key, a number and a signature for each.
    let keys = state.keys().len().saturating_mul(20 + 20 + 4 + 65).saturating_add(4);
    let at = bytes.len().checked_sub(keys.saturating_add(1));
    if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
        *byte ^= 1;
    }
    State::from_bytes(state.config().clone(), &bytes).unwrap_or_else(|_| state.clone())
}

/// A replica that computes as the others do, signs their roots when it is asked, and from a nonce on refuses by its
/// signature what live traffic brings.
#[derive(Debug, Clone, Copy)]
pub struct Lie {
    /// First nonce that it lies about.
    pub from: u64,
}

impl Rules for Lie {
    fn apply(&self, place: Place, state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError> {
        let applied = apply(state, diff)?;
        if place.via != Via::Infer || diff.nonce < self.from {
            return Ok(applied);
        }
        let mut computed = applied.1;
        computed[0] ^= 1;
        let digest = diff.digest(&state.config().chain_id);
        Err(ApplyError::RootMismatch { nonce: diff.nonce, computed, claimed: diff.post_state_root, digest })
    }
}

/// A fault of a host for drills: `fork@nonceK`, `restart-empty@nonceK` (the same rules; whoever ordered it restarts the
/// process with an empty store), `lie@nonceK`, `slow@MS`, `mute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drill {
    /// [`Fork`] at this nonce.
    Fork(u64),
    /// [`Lie`] from this nonce on.
    Lie(u64),
    /// Each call takes so many milliseconds more.
    Slow(u64),
    /// No challenge of a repair is answered, so that the repair stays at its last step.
    Mute,
}

impl Drill {
    /// The rules that go with it.
    #[must_use]
    pub fn rules(self) -> Box<dyn Rules> {
        match self {
            Self::Fork(at) => Box::new(Fork::new(at)),
            Self::Lie(from) => Box::new(Lie { from }),
            Self::Slow(_) | Self::Mute => Box::new(Honest),
        }
    }

    /// What each call takes longer, milliseconds.
    #[must_use]
    pub const fn delay_ms(self) -> u64 {
        match self {
            Self::Slow(ms) => ms,
            Self::Fork(_) | Self::Lie(_) | Self::Mute => 0,
        }
    }
}

impl FromStr for Drill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "mute" {
            return Ok(Self::Mute);
        }
        let wanted = "write fork@nonceK, restart-empty@nonceK, lie@nonceK, slow@MS or mute";
        let (name, number) = text.split_once('@').ok_or(wanted)?;
        let number = if name == "slow" { Some(number) } else { number.strip_prefix("nonce") };
        let number: u64 = number.and_then(|number| number.parse().ok()).filter(|n| *n > 0).ok_or(wanted)?;
        match name {
            "fork" | "restart-empty" => Ok(Self::Fork(number)),
            "lie" => Ok(Self::Lie(number)),
            "slow" if number <= 60_000 => Ok(Self::Slow(number)),
            _ => Err(wanted.into()),
        }
    }
}
