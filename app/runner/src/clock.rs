//! Time as an argument: monotonic milliseconds, real or virtual.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A wait.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the runner gets its time from.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since some moment; never goes back.
    fn now_ms(&self) -> u64;

    /// Ends when [`Clock::now_ms`] has reached `at_ms`.
    fn sleep_until(&self, at_ms: u64) -> Sleep;

    /// Unix milliseconds, for records only; may jump.
    fn unix_ms(&self) -> u64;
}

/// The machine's clock, on tokio's timer.
#[derive(Debug, Clone)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Starts at 0.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep_until(&self, at_ms: u64) -> Sleep {
        // An instant too far away to be represented is as good as a century.
        const CENTURY_MS: u64 = 100 * 365 * 24 * 3600 * 1000;
        let at = self.origin + Duration::from_millis(at_ms.min(CENTURY_MS));
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when told to, or, under [`VirtualClock::run`], when there is nothing else to do.
#[derive(Debug, Clone, Default)]
pub struct VirtualClock {
    inner: Arc<Mutex<Virtual>>,
}

#[derive(Debug, Default)]
struct Virtual {
    now_ms: u64,
    /// Waits by the time they end at, in the order they began.
    waits: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

impl VirtualClock {
    /// Starts at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Virtual> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on by `ms` and wakes what was waiting until then.
    pub fn advance(&self, ms: u64) {
        let mut inner = self.lock();
        let now_ms = inner.now_ms.saturating_add(ms);
        inner.now_ms = now_ms;
        let later = inner.waits.split_off(&(now_ms.saturating_add(1), 0));
        let due = std::mem::replace(&mut inner.waits, later);
        drop(inner);
        due.into_values().for_each(Waker::wake);
    }

    /// Runs `future` to its end on this thread; when it waits for time only, time moves to the first wait's end.
    ///
    /// # Panics
    /// When the future waits for something that is not this clock: it would never end.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        struct Flag(std::sync::atomic::AtomicBool);
        impl Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Release);
            }
        }
        let woken = Arc::new(Flag(true.into()));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            while woken.0.swap(false, std::sync::atomic::Ordering::AcqRel) {
                if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                    return value;
                }
            }
            let next = {
                let inner = self.lock();
                inner.waits.keys().next().map(|(at, _)| at.saturating_sub(inner.now_ms))
            };
            self.advance(next.expect("a future under a virtual clock may wait for that clock only"));
        }
    }
}

impl Clock for VirtualClock {
    fn now_ms(&self) -> u64 {
        self.lock().now_ms
    }

    fn sleep_until(&self, at_ms: u64) -> Sleep {
        Box::pin(VirtualSleep { clock: self.clone(), at_ms, id: None })
    }

    fn unix_ms(&self) -> u64 {
        self.now_ms()
    }
}

struct VirtualSleep {
    clock: VirtualClock,
    at_ms: u64,
    id: Option<u64>,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut inner = clock.lock();
        if inner.now_ms >= self.at_ms {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert(inner.next);
        inner.next = inner.next.max(id + 1);
        inner.waits.insert((self.at_ms, id), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.lock().waits.remove(&(self.at_ms, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_jumps_to_the_first_wait_and_waits_end_in_order() {
        let clock = VirtualClock::new();
        let seen = clock.run(async {
            let mut seen = Vec::new();
            let late = clock.sleep_until(30);
            clock.sleep_until(10).await;
            seen.push(clock.now_ms());
            late.await;
            seen.push(clock.now_ms());
            drop(clock.sleep_until(99));
            clock.advance(5);
            clock.sleep_until(20).await;
            seen.push(clock.now_ms());
            seen
        });
        assert_eq!(seen, [10, 30, 35]);
    }
}
