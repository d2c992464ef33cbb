//! `[pool.scale]`: bounds on the number of replicas that the gateway asks for.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use croner::Cron;

use super::MAX_REPLICAS;

/// `[pool.scale]`
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Never fewer; 0 allows scale to zero.
    pub min_replicas: usize,
    /// Never more, at least 1.
    pub max_replicas: usize,
    /// Without a request for so long, a pool that may scale to zero does.
    pub idle_after: Duration,
    /// A lower number is asked for when none higher was needed for so long.
    pub scale_down_after: Duration,
    /// How long a replica takes to become warm, until that was measured.
    pub cold_start: Duration,
    /// More replicas at certain hours.
    pub windows: Vec<ScaleWindow>,
    /// `[pool.scale.wait]`: how requests wait while a pool that may scale to zero has no ready replica.
    pub wait: ColdWait,
}

/// `[pool.scale.wait]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdWait {
    /// Requests of one route that may wait; 0 refuses at once.
    pub max_requests: usize,
    /// Bytes of their bodies.
    pub max_bytes: usize,
    /// Longest wait.
    pub max_wait: Duration,
    /// Interval of SSE comments to waiting streams; `None` is off.
    pub heartbeat: Option<Duration>,
}

impl Default for ColdWait {
    fn default() -> Self {
        Self {
            max_requests: 1000,
            max_bytes: 256 << 20,
            max_wait: Duration::from_secs(600),
            heartbeat: Some(Duration::from_secs(15)),
        }
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: MAX_REPLICAS,
            idle_after: Duration::from_secs(900),
            scale_down_after: Duration::from_secs(300),
            cold_start: Duration::from_secs(120),
            windows: Vec::new(),
            wait: ColdWait::default(),
        }
    }
}

/// `pool.scale.windows`: from each time that `start` names to the next that `end` names, in UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleWindow {
    /// Cron expression.
    pub start: Cron,
    /// Cron expression.
    pub end: Cron,
    /// Never fewer meanwhile.
    pub min_replicas: usize,
}

impl ScaleWindow {
    /// Whether a time is within: the next end is before the next start.
    #[must_use]
    pub fn is_open(&self, at: SystemTime) -> bool {
        let at: DateTime<Utc> = at.into();
        let next = |cron: &Cron| cron.find_next_occurrence(&at, false).ok();
        match (next(&self.start), next(&self.end)) {
            (Some(start), Some(end)) => end < start,
            // It begins never again and ends some time: it has begun.
            (None, Some(_)) => true,
            _ => false,
        }
    }
}

impl Scale {
    /// How requests wait for the first replica; `None` where the pool is not to be without one.
    #[must_use]
    pub fn cold_wait(&self) -> Option<&ColdWait> {
        (self.min_replicas == 0 && self.wait.max_requests > 0).then_some(&self.wait)
    }

    /// The least number from now until `lead` later, so that replicas are warm when a window begins.
    #[must_use]
    pub fn least(&self, now: SystemTime, lead: Duration) -> usize {
        let soon = now.checked_add(lead).unwrap_or(now);
        let open = self.windows.iter().filter(|window| window.is_open(now) || window.is_open(soon));
        let least = open.map(|window| window.min_replicas).max().unwrap_or(0).max(self.min_replicas);
        least.min(self.max_replicas)
    }
}
