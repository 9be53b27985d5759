//! The two clocks of a session.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::core::Now;

/// The machine's clocks. Monotonic time counts from the start of the process.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Both, read once.
    #[must_use]
    pub fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Now { mono_ms: millis(self.0.elapsed()), unix_ms: millis(unix) }
    }

    /// When the monotonic clock shows `mono_ms`.
    #[must_use]
    pub fn instant(&self, mono_ms: u64) -> Instant {
        // A day at most: a later wish is asked for again.
        let later = mono_ms.saturating_sub(self.now().mono_ms).min(86_400_000);
        Instant::now() + Duration::from_millis(later)
    }
}
