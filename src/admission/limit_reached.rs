//! A limit of a tenant that a request would exceed, as the client reads it.

use std::time::Duration;

use crate::error::Failure;

#[derive(Clone, Copy, Debug)]
pub(super) enum LimitReached {
    Concurrency { max: u32 },
    Requests { per_minute: u64, wait: Duration },
    Tokens { prompt: u64, per_minute: u64, wait: Duration },
    TooLarge { prompt: u64, per_minute: u64 },
}

impl LimitReached {
    pub(super) fn failure(self, tenant: &str) -> Failure {
        let seconds = |wait: Duration| wait.as_secs_f64().ceil();
        let (limit, message, retry_after) = match self {
            Self::Concurrency { max } => (
                "concurrency",
                format!(
                    "tenant {tenant} has {max} requests in flight already (tenant.limits.concurrency = {max})"
                ),
                Some(AGAIN),
            ),
            Self::Requests { per_minute, wait } => (
                "requests_per_minute",
                format!(
                    "tenant {tenant} has used its {per_minute} requests a minute (tenant.limits.requests_per_minute = \
                     {per_minute}); the next one is let in in {} s",
                    seconds(wait)
                ),
                Some(wait),
            ),
            Self::Tokens { prompt, per_minute, wait } => (
                "tokens_per_minute",
                format!(
                    "tenant {tenant} has used its {per_minute} tokens a minute (tenant.limits.tokens_per_minute = \
                     {per_minute}); this request's {prompt} are let in in {} s",
                    seconds(wait)
                ),
                Some(wait),
            ),
            Self::TooLarge { prompt, per_minute } => (
                "tokens_per_minute",
                format!(
                    "the prompt has {prompt} tokens, more than tenant {tenant} may send in a minute \
                     (tenant.limits.tokens_per_minute = {per_minute}); send a shorter one"
                ),
                None,
            ),
        };
        Failure::NotAdmitted { limit, message, retry_after }
    }
}

/// When one of its other requests ends is not known.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
