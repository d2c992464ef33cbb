//! When a wait in a pool's queue ends without a place, and what is told then. One rule for the live gateway and for replay.

use std::time::Duration;

use super::outlook::Outlook;
use super::refusal::{Exceeded, Refusal};
use super::waiter::WaitReason;
use crate::clock::Stamp;
use crate::config::QueueLimits;

/// Why a wait ends without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfWait {
    /// `max_wait` of the queue.
    MaxWait(Duration),
    /// It can no longer meet its bound on TTFT.
    Late,
}

impl EndOfWait {
    /// When a request that has waited `since` then gives up, and why; `None` where no limit of the queue ends its wait.
    pub fn of(
        reason: WaitReason,
        limits: Option<&QueueLimits>,
        since: Stamp,
        outlook: &Outlook,
    ) -> Option<(Stamp, Self)> {
        let limits = limits.filter(|_| reason != WaitReason::Held)?;
        let waited = (since.after(limits.max_wait), Self::MaxWait(limits.max_wait));
        let is_bound = reason == WaitReason::Late && outlook.slack.is_some();
        Some(if is_bound && outlook.latest < waited.0 { (outlook.latest, Self::Late) } else { waited })
    }

    /// What its client is told.
    pub fn refusal(self, outlook: &Outlook, retry_after: Duration) -> Refusal {
        let exceeded = match self {
            Self::MaxWait(max) => Exceeded::Waited { max, wait: outlook.drain },
            Self::Late => Exceeded::WaitedLate { bound: outlook.bound },
        };
        Refusal { exceeded, retry_after }
    }
}
