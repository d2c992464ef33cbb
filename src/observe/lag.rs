//! How late this process runs: a gateway without CPU makes every other figure worse, and no replica is to blame.
//!
//! A task on the threads of the data path sleeps and measures by how much it is woken late, which is how long any
//! request's next step waits for a thread.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::latency::{IN_MINUTE, Step};
use crate::clock::{Clock, Stamp};
use crate::stats::Ring;

/// Lateness of the last five minutes.
#[derive(Debug, Default)]
pub struct Lag(Mutex<Ring<Slot>>);

/// How late the process ran in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    /// Longest wait for a thread.
    pub worst: Duration,
    /// Share of the looks that came late, 0 to 1: of the time in which a request's next step waits.
    pub late: f64,
}

impl Lateness {
    /// Whether requests wait for the gateway itself.
    pub fn is_starved(&self) -> bool {
        self.late >= STARVED
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    worst: Duration,
    late: u32,
    looks: u32,
}

impl Lag {
    /// Measures until `stop`; to be run on the threads of the data path.
    pub async fn measure(self: Arc<Self>, clock: Clock, stop: CancellationToken) {
        loop {
            let due = clock.now().after(EVERY);
            // Cancel-safe: a look that is not made is missing, nothing else.
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
            let now = clock.now();
            self.note(now.since(due), now);
        }
    }

    /// Lateness of the last minute.
    pub fn of_minute(&self, now: Stamp) -> Lateness {
        let newest = Step::TenSeconds.slot(now);
        let mut sum = Slot::default();
        for (_, slot) in self.0.lock().range(newest - IN_MINUTE, newest) {
            sum.worst = sum.worst.max(slot.worst);
            sum.late += slot.late;
            sum.looks += slot.looks;
        }
        let late = if sum.looks == 0 { 0.0 } else { f64::from(sum.late) / f64::from(sum.looks) };
        Lateness { worst: sum.worst, late }
    }

    fn note(&self, lateness: Duration, now: Stamp) {
        let mut slots = self.0.lock();
        let slot = slots.at(Step::TenSeconds.slot(now), IN_MINUTE + 1);
        slot.worst = slot.worst.max(lateness);
        // One look after a long wait stands for all those that were not made in it.
        let looks = 1 + u32::try_from(lateness.as_millis() / EVERY.as_millis()).unwrap_or(u32::MAX);
        slot.looks = slot.looks.saturating_add(looks);
        slot.late = slot.late.saturating_add(if lateness > LATE { looks } else { 0 });
    }
}

/// Seconds for which the process' cgroup was kept from running by its CPU limit, since the group began; `None` without a limit.
pub fn throttled() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // In a container the path may be one of the host; the root of the mount is then the container's own group.
    let read = |path: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}/cpu.stat")).ok();
    microseconds(&read(group).or_else(|| read(""))?).map(|us| us as f64 / 1e6)
}

fn microseconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("throttled_usec "))?.trim().parse().ok()
}

const EVERY: Duration = Duration::from_millis(50);
/// Above what timers and a busy worker are late by: a page of metrics or a large body takes some 10 ms of a thread.
const LATE: Duration = Duration::from_millis(50);
/// Share of time at which the wait for a thread is what users notice.
pub(crate) const STARVED: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;

    #[test]
    fn a_process_that_is_woken_on_time_is_not_starved_and_one_that_waits_a_tenth_of_its_time_is() {
        let lag = Lag::default();
        for look in 0..1000 {
            lag.note(Duration::from_millis(2), at(look * 50));
        }
        assert!(!lag.of_minute(at(50_000)).is_starved());
        // Eight seconds of standstill, by a look that came once.
        lag.note(Duration::from_secs(8), at(58_000));
        let lateness = lag.of_minute(at(58_000));
        assert_eq!(lateness.worst, Duration::from_secs(8));
        assert!(lateness.is_starved() && lateness.late < 0.2, "{lateness:?}");
        // It is over a minute later.
        assert_eq!(lag.of_minute(at(200_000)), Lateness::default());
    }

    #[test]
    fn throttling_is_read_from_the_group_s_figures() {
        let text = "usage_usec 5\nuser_usec 4\nnr_throttled 3\nthrottled_usec 1500000\n";
        assert_eq!(microseconds(text), Some(1_500_000));
        assert_eq!(microseconds("usage_usec 5\n"), None);
    }
}
