//! Clocks: elapsed time, the processor time of this process and of a thread.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Elapsed and processor time of a piece of work. On a busy machine only the second can be compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Elapsed.
    pub wall: Duration,
    /// Processor time of all threads of this process.
    pub cpu: Duration,
    /// Processor time of the calling thread: about what would elapse if the machine did nothing else.
    pub own: Duration,
}

impl Took {
    /// Elapsed microseconds for each of `n`.
    pub fn wall_us(&self, n: usize) -> f64 {
        self.wall.as_secs_f64() * 1e6 / n as f64
    }

    /// Processor microseconds for each of `n`.
    pub fn cpu_us(&self, n: usize) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / n as f64
    }

    /// Processor microseconds of the calling thread for each of `n`.
    pub fn own_us(&self, n: usize) -> f64 {
        self.own.as_secs_f64() * 1e6 / n as f64
    }
}

impl std::ops::Add for Took {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { wall: self.wall + other.wall, cpu: self.cpu + other.cpu, own: self.own + other.own }
    }
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Runs `work` and says what it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Took) {
    let (cpu, own, wall) = (cpu_so_far(), read(ClockId::ThreadCPUTime), Instant::now());
    let value = work();
    let took = Took {
        wall: wall.elapsed(),
        cpu: cpu_so_far().saturating_sub(cpu),
        own: read(ClockId::ThreadCPUTime).saturating_sub(own),
    };
    (value, took)
}

/// Processor time of this process so far.
pub fn cpu_so_far() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Peak resident memory of this process in bytes; 0 where the system does not say.
pub fn peak_rss_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<f64> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_elapsed_and_processor_time_and_sleep_only_the_first() {
        let (_, sleep) = timed(|| std::thread::sleep(Duration::from_millis(30)));
        // Other tests of the process may work meanwhile; this thread does not.
        assert!(
            sleep.wall >= Duration::from_millis(30) && sleep.own < Duration::from_millis(25),
            "{sleep:?}"
        );
        let (sum, work) = timed(|| (0..2_000_000_u64).fold(0_u64, |a, b| std::hint::black_box(a ^ b)));
        assert!(sum < 1 << 22 && work.own > Duration::ZERO);
        let both = sleep + work;
        assert_eq!(both.wall, sleep.wall + work.wall);
        let took = Took {
            wall: Duration::from_millis(4),
            cpu: Duration::from_millis(2),
            own: Duration::from_millis(1),
        };
        assert_eq!((took.wall_us(4), took.cpu_us(4), took.own_us(4)), (1000.0, 500.0, 250.0));
        assert!(peak_rss_bytes() > 1e6);
    }
}
