//! A request to be queued: whose it is, where it waits, what is predicted of it. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use super::outlook::Outlook;
use super::usage::UsageKey;
use crate::clock::Stamp;
use crate::config::QueueLimits;

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It has slack, and any placement now would break the ITL of running streams.
    Held,
    /// No replica has room for it, or others are before it.
    Late,
    /// No replica is ready.
    NoReplica,
}

/// Whose request it is, and what part of the fleet is theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Name of the tenant.
    pub tenant: Arc<str>,
    /// Its part of the work while others wait as well.
    pub weight: u32,
    /// Higher ones go first, whatever the weights; one below 0 leaves a full queue to those above it.
    pub priority: i32,
}

/// Requests of a lane go before those of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Whether its requests have no bound that can be met.
    pub(super) is_best_effort: bool,
    /// Ordered as lanes are: the lowest priority last.
    pub(super) priority: Reverse<i32>,
}

impl Lane {
    /// That of a request.
    pub(super) fn of(share: &Share, outlook: &Outlook) -> Self {
        Self { is_best_effort: outlook.slack.is_none(), priority: Reverse(share.priority) }
    }
}

/// A request to be queued.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Only `Held` is free of limits.
    pub reason: WaitReason,
    /// Name of its route.
    pub route: Arc<str>,
    /// Whose it is.
    pub share: Share,
    /// `[route.queue]`; without it nothing is refused.
    pub limits: Option<QueueLimits>,
    /// Whether its prompt is of class `long`.
    pub is_long: bool,
    /// Bytes of its body, counted against `max_bytes`.
    pub bytes: usize,
    /// From then on it has a turn now and then, though it is best effort: see [`super::grows_old_after`].
    pub old_at: Option<Stamp>,
    /// Prediction at this time.
    pub outlook: Outlook,
}

impl Waiter {
    /// One that would wait behind all others.
    pub(crate) fn last(outlook: Outlook) -> Self {
        Self {
            reason: WaitReason::Late,
            route: "".into(),
            share: Share { tenant: "".into(), weight: 1, priority: i32::MIN },
            limits: None,
            is_long: false,
            bytes: 0,
            old_at: None,
            outlook,
        }
    }

    /// Where it waits.
    pub fn lane(&self) -> Lane {
        Lane::of(&self.share, &self.outlook)
    }

    pub(super) fn is_apart(&self) -> bool {
        self.is_long && self.limits.is_some_and(|limits| limits.isolate_long)
    }

    pub(super) fn usage(&self) -> UsageKey {
        UsageKey {
            route: Arc::clone(&self.route),
            is_long: self.is_apart(),
            tenant: Arc::clone(&self.share.tenant),
        }
    }
}
