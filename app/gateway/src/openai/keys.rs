//! API keys: who may ask, for which models, how often and how much.
//!
//! A key is known by the SHA-256 of its text; the text is nowhere kept. Without keys the API is open to everybody who
//! reaches it.
//!
//! A budget counts tokens of prompt and answer. The most that a request may take is held *before* it is queued, and what
//! it took is charged at its end. A process that dies charges nothing for what it was still answering.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::errors::ApiError;
use crate::metrics;

/// Longest key, bytes.
const KEY_BYTES_MAX: usize = 512;
/// When to try again after too many at once.
const AGAIN_MS: u64 = 1000;

/// What was spent, durable. Called with small values, on a worker of the runtime: a write that reaches the operating
/// system is enough, and should take below a few milliseconds.
pub trait KeyBudgets: Send + Sync + 'static {
    /// Tokens that a key has spent; 0 for one that is not known.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be told; the request is refused.
    fn spent(&self, key: &str) -> Result<u64, StoreError>;

    /// Replaces it.
    ///
    /// # Errors
    /// [`StoreError`] when it was not kept; a request that would be charged is refused.
    fn set_spent(&self, key: &str, tokens: u64) -> Result<(), StoreError>;
}

/// A store did not do what it was told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("store: {0}")]
pub struct StoreError(pub String);

/// Budgets in memory: a restart forgets them.
#[derive(Debug, Default)]
pub struct MemBudgets(Mutex<BTreeMap<String, u64>>);

impl KeyBudgets for MemBudgets {
    fn spent(&self, key: &str) -> Result<u64, StoreError> {
        Ok(lock(&self.0).get(key).copied().unwrap_or(0))
    }

    fn set_spent(&self, key: &str, tokens: u64) -> Result<(), StoreError> {
        lock(&self.0).insert(key.to_owned(), tokens);
        Ok(())
    }
}

/// A key and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConfig {
    /// Its name in logs and in the store; not secret.
    pub name: String,
    /// SHA-256 of its text.
    pub sha256: [u8; 32],
    /// Models it may use; none = all.
    pub models: Option<BTreeSet<String>>,
    /// Tokens of prompt and answer that it may take in all; none = no limit.
    pub token_budget: Option<u64>,
    /// Requests per minute, and at once after a minute's rest; none = no limit.
    pub requests_per_minute: Option<u32>,
    /// Requests at a time; none = no limit.
    pub concurrent: Option<u32>,
}

impl KeyConfig {
    /// A key without limits.
    #[must_use]
    pub fn new(name: impl Into<String>, text: &str) -> Self {
        Self {
            name: name.into(),
            sha256: Sha256::digest(text).into(),
            models: None,
            token_budget: None,
            requests_per_minute: None,
            concurrent: None,
        }
    }
}

/// Keys that cannot be told apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("API key `{0}`: its name or its text is that of another key, or the name is empty")]
pub struct DuplicateKey(pub String);

/// All keys.
pub(crate) struct Keyring {
    keys: Vec<Arc<Key>>,
    budgets: Arc<dyn KeyBudgets>,
}

/// One key, or everybody.
#[derive(Debug)]
pub(crate) struct Key {
    config: KeyConfig,
    use_: Mutex<Use>,
}

#[derive(Debug)]
struct Use {
    /// Requests under way.
    running: u32,
    /// Tokens that they may yet take. In memory only: a process that dies has answered none of them.
    held: u64,
    /// Requests that may come now, in 1/60,000 so that a millisecond adds the rate.
    allowed: u64,
    counted_at: Instant,
}

/// A request of a key; ends its part of `concurrent` when dropped.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Key>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut used = lock(&self.0.use_);
        used.running = used.running.saturating_sub(1);
    }
}

/// 1 request.
const REQUEST: u64 = 60_000;

impl Keyring {
    pub(crate) fn new(
        keys: Vec<KeyConfig>,
        budgets: Arc<dyn KeyBudgets>,
        now: Instant,
    ) -> Result<Self, DuplicateKey> {
        let (mut names, mut hashes) = (BTreeSet::new(), BTreeSet::new());
        for key in &keys {
            if key.name.is_empty() || !names.insert(key.name.clone()) || !hashes.insert(key.sha256) {
                return Err(DuplicateKey(key.name.clone()));
            }
        }
        let keys = keys.into_iter().map(|config| Arc::new(Key::new(config, now))).collect();
        Ok(Self { keys, budgets })
    }

    /// Whose request it is, by its `Authorization` header. None in open mode.
    ///
    /// # Errors
    /// 401.
    pub(crate) fn find(&self, header: Option<&[u8]>) -> Result<Option<Arc<Key>>, ApiError> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let Some(header) = header else {
            return Err(ApiError::unauthenticated("send your API key: `Authorization: Bearer KEY`"));
        };
        let wrong = || ApiError::unauthenticated("this API key is not known");
        let text = bearer(header).filter(|text| text.len() <= KEY_BYTES_MAX).ok_or_else(wrong)?;
        let hash: [u8; 32] = Sha256::digest(text).into();
        // Every key is compared in full, so the time tells nothing about any of them.
        let mut found = None;
        for key in &self.keys {
            let equal: Choice = key.config.sha256.ct_eq(&hash);
            if equal.into() {
                found = Some(Arc::clone(key));
            }
        }
        found.map(Some).ok_or_else(wrong)
    }

    /// Charges the most that a request may take.
    ///
    /// # Errors
    /// 402, or 503 when the store fails.
    pub(crate) fn charge(&self, key: Option<&Arc<Key>>, most: u64) -> Result<Charge, ApiError> {
        let budgets = Arc::clone(&self.budgets);
        let Some((key, budget)) = key.and_then(|key| Some((key, key.config.token_budget?))) else {
            return Ok(Charge { key: None, budgets, charged: 0 });
        };
        let mut used = lock(&key.use_);
        let failed = |error: StoreError| {
            tracing::error!(key = key.config.name, %error, "the budget of an API key cannot be charged");
            ApiError::storage()
        };
        let spent = budgets.spent(&key.config.name).map_err(failed)?;
        let left = budget.saturating_sub(spent).saturating_sub(used.held);
        if most > left {
            return Err(ApiError::key_spent(most, left));
        }
        // Nobody is served whose tokens could not be written down afterwards.
        budgets.set_spent(&key.config.name, spent).map_err(failed)?;
        metrics::key_spent(&key.config.name, spent);
        used.held = used.held.saturating_add(most);
        drop(used);
        Ok(Charge { key: Some(Arc::clone(key)), budgets, charged: most })
    }
}

impl Key {
    fn new(config: KeyConfig, now: Instant) -> Self {
        let allowed = config.requests_per_minute.map_or(0, |rate| u64::from(rate) * REQUEST);
        Self { config, use_: Mutex::new(Use { running: 0, held: 0, allowed, counted_at: now }) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.config.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Counts a request.
    ///
    /// # Errors
    /// 429.
    pub(crate) fn enter(self: &Arc<Self>, now: Instant) -> Result<Turn, ApiError> {
        let mut used = lock(&self.use_);
        if self.config.concurrent.is_some_and(|most| used.running >= most) {
            return Err(ApiError::rate_limit("too many requests of this key at a time", AGAIN_MS));
        }
        if let Some(rate) = self.config.requests_per_minute {
            let rate = u64::from(rate);
            let passed = now.saturating_duration_since(used.counted_at).as_millis();
            let earned = u64::try_from(passed).unwrap_or(u64::MAX).saturating_mul(rate);
            used.allowed = used.allowed.saturating_add(earned).min(rate.saturating_mul(REQUEST));
            used.counted_at = now;
            if used.allowed < REQUEST {
                let wait = (REQUEST - used.allowed).checked_div(rate).map_or(60_000, |ms| ms + 1);
                return Err(ApiError::rate_limit("too many requests of this key in a minute", wait));
            }
            used.allowed -= REQUEST;
        }
        used.running = used.running.saturating_add(1);
        Ok(Turn(Arc::clone(self)))
    }
}

/// What a request was charged; when dropped unsettled, nothing of it is kept.
pub(crate) struct Charge {
    key: Option<Arc<Key>>,
    budgets: Arc<dyn KeyBudgets>,
    charged: u64,
}

impl Charge {
    /// The request took `tokens`.
    pub(crate) fn settle(&mut self, tokens: u64) {
        let Some(key) = self.key.take() else { return };
        let mut used = lock(&key.use_);
        used.held = used.held.saturating_sub(self.charged);
        let name = &key.config.name;
        // A host that reports more than its limits is not believed.
        let tokens = tokens.min(self.charged);
        if tokens == 0 {
            return;
        }
        let stored = self.budgets.spent(name).and_then(|spent| {
            let spent = spent.saturating_add(tokens);
            self.budgets.set_spent(name, spent)?;
            metrics::key_spent(name, spent);
            Ok(())
        });
        if let Err(error) = stored {
            tracing::error!(key = name, tokens, %error, "what a request took was not charged to its API key");
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.settle(0);
    }
}

/// The token after `Bearer`, in any case (RFC 9110, 11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = header.split_at_checked(7)?;
    let text = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !text.is_empty()).then_some(text)
}

/// Nothing panics while it holds one of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ring(keys: Vec<KeyConfig>) -> (Keyring, Arc<MemBudgets>, Instant) {
        let (budgets, now) = (Arc::new(MemBudgets::default()), Instant::now());
        (Keyring::new(keys, budgets.clone(), now).unwrap(), budgets, now)
    }

    #[test]
    fn a_key_is_found_by_its_text_and_nothing_else_is() {
        let (ring, _, _) = ring(vec![KeyConfig::new("a", "sk-a"), KeyConfig::new("b", "sk-b")]);
        let name = |header: &[u8]| ring.find(Some(header)).map(|key| key.unwrap().name().to_owned());
        assert_eq!(name(b"Bearer sk-b").unwrap(), "b");
        assert_eq!(name(b"bEARER   sk-a ").unwrap(), "a");
        for header in
            [&b"Bearer sk-"[..], b"Bearer ", b"Bearer", b"", b"Basic sk-a", b"sk-a", b"Bearer\tsk-a"]
        {
            assert_eq!(name(header).unwrap_err().status, 401, "{header:?}");
        }
        assert_eq!(ring.find(None).unwrap_err().code, "authentication_error");
    }

    #[test]
    fn keys_that_cannot_be_told_apart_are_refused() {
        let make = |keys| Keyring::new(keys, Arc::new(MemBudgets::default()), Instant::now()).err();
        assert_eq!(
            make(vec![KeyConfig::new("a", "x"), KeyConfig::new("a", "y")]),
            Some(DuplicateKey("a".into()))
        );
        assert_eq!(
            make(vec![KeyConfig::new("a", "x"), KeyConfig::new("b", "x")]),
            Some(DuplicateKey("b".into()))
        );
        assert_eq!(make(vec![KeyConfig::new("", "x")]), Some(DuplicateKey(String::new())));
    }

    #[test]
    fn a_rate_of_120_a_minute_lets_120_through_at_once_and_then_one_each_half_second() {
        let config = KeyConfig { requests_per_minute: Some(120), ..KeyConfig::new("a", "x") };
        let (ring, _, now) = ring(vec![config]);
        let key = ring.keys[0].clone();
        assert_eq!((0..200).filter(|_| key.enter(now).is_ok()).count(), 120);
        let error = key.enter(now + Duration::from_millis(499)).unwrap_err();
        assert_eq!((error.code, error.retry_after_s), ("rate_limit_exceeded", Some(1)));
        assert!(key.enter(now + Duration::from_millis(500)).is_ok());
        assert!(key.enter(now + Duration::from_millis(999)).is_err());
        assert!(key.enter(now + Duration::from_millis(1000)).is_ok());
        assert_eq!((0..200).filter(|_| key.enter(now + Duration::from_secs(3600)).is_ok()).count(), 120);
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_through() {
        let config = KeyConfig { requests_per_minute: Some(0), ..KeyConfig::new("a", "x") };
        let (ring, _, now) = ring(vec![config]);
        assert_eq!(ring.keys[0].enter(now).unwrap_err().retry_after_s, Some(60));
    }

    #[test]
    fn requests_at_a_time_end_when_their_turn_is_dropped() {
        let (ring, _, now) = ring(vec![KeyConfig { concurrent: Some(1), ..KeyConfig::new("a", "x") }]);
        let turn = ring.keys[0].enter(now).unwrap();
        assert_eq!(ring.keys[0].enter(now).unwrap_err().status, 429);
        drop(turn);
        assert!(ring.keys[0].enter(now).is_ok());
    }

    #[test]
    fn a_budget_is_held_in_advance_and_charged_with_what_was_taken() {
        let config = KeyConfig { token_budget: Some(100), ..KeyConfig::new("a", "x") };
        let (ring, budgets, _) = ring(vec![config]);
        let key = Some(&ring.keys[0]);
        let mut charge = ring.charge(key, 60).unwrap();
        assert_eq!(budgets.spent("a"), Ok(0));
        let spent = ring.charge(key, 41).err().unwrap();
        assert_eq!(spent.code, "insufficient_quota");
        assert!(spent.message.contains("take 41 tokens") && spent.message.contains("40 are left"), "{spent}");
        charge.settle(7);
        charge.settle(60);
        assert_eq!(budgets.spent("a"), Ok(7));
        drop(charge);
        assert_eq!(budgets.spent("a"), Ok(7));
        drop(ring.charge(key, 93).unwrap());
        assert_eq!(budgets.spent("a"), Ok(7), "what never ran costs nothing");
        ring.charge(key, 10).unwrap().settle(1000);
        assert_eq!(budgets.spent("a"), Ok(17), "a host that reports too much is not believed");
        assert_eq!(ring.charge(key, u64::MAX).err().unwrap().status, 402);
    }

    #[test]
    fn a_budget_outlives_the_process() {
        let config = KeyConfig { token_budget: Some(10), ..KeyConfig::new("a", "x") };
        let (ring, budgets, now) = ring(vec![config.clone()]);
        ring.charge(Some(&ring.keys[0]), 9).unwrap().settle(9);
        let again = Keyring::new(vec![config], budgets, now).unwrap();
        assert_eq!(again.charge(Some(&again.keys[0]), 2).err().unwrap().status, 402);
    }

    #[test]
    fn what_ran_when_the_process_died_is_not_charged() {
        let config = KeyConfig { token_budget: Some(100), ..KeyConfig::new("a", "x") };
        let (ring, budgets, now) = ring(vec![config.clone()]);
        let lost = Box::leak(Box::new(ring.charge(Some(&ring.keys[0]), 90).unwrap()));
        assert_eq!(lost.charged, 90);
        let again = Keyring::new(vec![config], budgets, now).unwrap();
        assert!(again.charge(Some(&again.keys[0]), 100).is_ok());
    }

    struct Broken;

    impl KeyBudgets for Broken {
        fn spent(&self, _: &str) -> Result<u64, StoreError> {
            Ok(0)
        }
        fn set_spent(&self, _: &str, _: u64) -> Result<(), StoreError> {
            Err(StoreError("disk full".into()))
        }
    }

    #[test]
    fn a_charge_that_is_not_kept_refuses_the_request() {
        let config = KeyConfig { token_budget: Some(10), ..KeyConfig::new("a", "x") };
        let ring = Keyring::new(vec![config], Arc::new(Broken), Instant::now()).unwrap();
        let error = ring.charge(Some(&ring.keys[0]), 1).err().unwrap();
        assert_eq!((error.status.as_u16(), error.code), (503, "storage_unavailable"));
    }
}
