//! Limits of tenants: requests and tokens a minute, and requests at once.
//!
//! Rates are held by a bucket of one minute's allowance that refills steadily, and what was used is held against a limit that a reload
//! changed. Tokens are charged by the prompt's estimate and corrected by the engine's usage at the end, so that a bucket can be
//! in debt. State is kept by the tenant's name: it outlives reloads, and new limits count at once. A [`TenantPermit`] lives in
//! the request's record and gives everything back when it is dropped; a request that was refused costs nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::{Tenant, TenantLimits};
use crate::error::Failure;
use crate::record::{Outcome, Record};
use crate::stats::{Refill, TokenBucket};
use crate::units::Tokens;

/// What every tenant has used.
#[derive(Debug, Default)]
pub struct TenantLimiter {
    tenants: Mutex<HashMap<Arc<str>, Arc<Mutex<TenantUse>>>>,
}

#[derive(Debug, Default)]
struct TenantUse {
    requests: TokenBucket,
    tokens: TokenBucket,
    inflight: u32,
}

/// How long a prompt is, for a limit.
#[derive(Clone, Copy, Debug)]
pub struct PromptTokens {
    /// Counted or estimated.
    pub tokens: Tokens,
    /// The client sent token ids; else it is an estimate.
    pub is_counted: bool,
}

/// A tenant's request that was let in.
#[derive(Debug)]
pub struct TenantPermit {
    state: Arc<Mutex<TenantUse>>,
    limits: TenantLimits,
    /// Tokens charged so far.
    charged: u64,
}

impl TenantLimiter {
    /// Lets a request with so many prompt tokens in, counted or estimated; `None` for a tenant without limits. An estimate is never
    /// reason to refuse for good: one of more than a minute's tokens waits for a minute's, and is charged for all that it used.
    ///
    /// # Errors
    /// The limit that it would exceed. It is charged for nothing then.
    pub fn admit(
        &self,
        tenant: &Tenant,
        prompt: PromptTokens,
        now: Stamp,
    ) -> Result<Option<TenantPermit>, Failure> {
        let limits = tenant.limits;
        if limits == TenantLimits::default() {
            return Ok(None);
        }
        let state = Arc::clone(self.tenants.lock().entry(Arc::clone(&tenant.name)).or_default());
        let mut used = state.lock();
        used.check(&limits, prompt, now).map_err(|refusal| refusal.failure(&tenant.name))?;
        used.inflight += 1;
        if let Some(per_minute) = limits.requests_per_minute {
            used.requests.charge(1.0, &allowance(per_minute), now);
        }
        if let Some(per_minute) = limits.tokens_per_minute {
            used.tokens.charge(prompt.tokens.0 as f64, &allowance(per_minute), now);
        }
        drop(used);
        Ok(Some(TenantPermit { state, limits, charged: prompt.tokens.0 }))
    }

    /// Requests in flight of a tenant with limits.
    #[must_use]
    pub fn inflight(&self, tenant: &str) -> u32 {
        self.tenants.lock().get(tenant).map_or(0, |state| state.lock().inflight)
    }
}

impl TenantPermit {
    /// The request ended: its tokens are charged by what it used, and a refused one by nothing.
    pub fn settle(self, record: &Record) {
        let mut used = self.state.lock();
        let is_refused = record.outcome == Outcome::Refused;
        let tokens = if is_refused || record.at.routed.is_none() { 0 } else { tokens_of(record) };
        if is_refused {
            used.requests.give_back(1.0);
        }
        if let Some(per_minute) = self.limits.tokens_per_minute {
            let (more, less) = (tokens.saturating_sub(self.charged), self.charged.saturating_sub(tokens));
            used.tokens.charge(more as f64, &allowance(per_minute), record.at.end);
            used.tokens.give_back(less as f64);
        }
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        let mut used = self.state.lock();
        used.inflight = used.inflight.saturating_sub(1);
    }
}

/// By the engine's usage, else by the estimated prompt and the content that was seen.
fn tokens_of(record: &Record) -> u64 {
    let input = record.tokens.input.unwrap_or(record.estimated_input).0;
    input.saturating_add(record.tokens.output.map_or(record.content_events, |output| output.0))
}

impl TenantUse {
    fn check(&self, limits: &TenantLimits, prompt: PromptTokens, now: Stamp) -> Result<(), LimitReached> {
        if let Some(max) = limits.concurrency.filter(|max| self.inflight >= *max) {
            return Err(LimitReached::Concurrency { max });
        }
        if let Some(per_minute) = limits.requests_per_minute {
            let admitted = self.requests.check(1.0, &allowance(per_minute), now);
            admitted.map_err(|wait| LimitReached::Requests { per_minute, wait })?;
        }
        if let Some(per_minute) = limits.tokens_per_minute {
            let PromptTokens { tokens: Tokens(prompt), is_counted } = prompt;
            if is_counted && prompt > per_minute {
                return Err(LimitReached::TooLarge { prompt, per_minute });
            }
            let admitted = self.tokens.check(prompt.min(per_minute) as f64, &allowance(per_minute), now);
            admitted.map_err(|wait| LimitReached::Tokens { prompt, per_minute, wait })?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum LimitReached {
    Concurrency { max: u32 },
    Requests { per_minute: u64, wait: Duration },
    Tokens { prompt: u64, per_minute: u64, wait: Duration },
    TooLarge { prompt: u64, per_minute: u64 },
}

impl LimitReached {
    fn failure(self, tenant: &str) -> Failure {
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

/// One minute's allowance, refilled steadily.
fn allowance(per_minute: u64) -> Refill {
    Refill { burst: per_minute as f64, per_second: per_minute as f64 / 60.0 }
}

/// When one of its other requests ends is not known.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;
    use crate::record::{ClientInfo, Opening};
    use crate::request::dialect::Dialect;
    use crate::request::trace_context::trace_of;

    fn tenant(requests: Option<u64>, tokens: Option<u64>, concurrency: Option<u32>) -> Tenant {
        let limits = TenantLimits { requests_per_minute: requests, tokens_per_minute: tokens, concurrency };
        Tenant { name: "acme".into(), limits, ..Tenant::default() }
    }

    fn record(outcome: Outcome, input: u64, output: u64) -> Record {
        let mut record = Record::open(Opening {
            request_id: "r".into(),
            trace: trace_of(&http::HeaderMap::new(), None),
            dialect: Dialect::Chat,
            path: "/".into(),
            head: at(0),
            client: ClientInfo::default(),
        });
        (record.outcome, record.tokens.input) = (outcome, Some(Tokens(input)));
        record.tokens.output = Some(Tokens(output));
        record
    }

    /// Codes and whole seconds of `retry-after` of as many requests as there are.
    fn admit(
        limiter: &TenantLimiter,
        tenant: &Tenant,
        prompt: u64,
        now: Stamp,
    ) -> Result<TenantPermit, (String, Option<u64>)> {
        admit_as(limiter, tenant, prompt, false, now)
    }

    fn admit_as(
        limiter: &TenantLimiter,
        tenant: &Tenant,
        prompt: u64,
        is_counted: bool,
        now: Stamp,
    ) -> Result<TenantPermit, (String, Option<u64>)> {
        match limiter.admit(tenant, PromptTokens { tokens: Tokens(prompt), is_counted }, now) {
            Ok(permit) => Ok(permit.unwrap()),
            Err(failure) => {
                assert!(failure.to_string().contains("acme"), "{failure}");
                let seconds = failure.retry_after().map(|wait| wait.as_secs_f64().ceil() as u64);
                Err((failure.code().to_owned(), seconds))
            }
        }
    }

    #[test]
    fn a_minutes_requests_may_come_at_once_and_then_as_they_refill() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(Some(5), None, None));
        for _ in 0..5 {
            drop(admit(&limiter, &tenant, 1, at(0)).unwrap());
        }
        for (now, wait) in [(0, Some(12)), (5, Some(7)), (12, None), (12, Some(12)), (24, None)] {
            let answer = admit(&limiter, &tenant, 1, at(now)).map(drop);
            let expected = wait.map_or(Ok(()), |wait| Err(("requests_per_minute".into(), Some(wait))));
            assert_eq!(answer, expected, "at {now} s");
        }
    }

    #[test]
    fn tokens_are_charged_by_estimate_and_corrected_by_usage() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(None, Some(600), None));
        let used = |permit: TenantPermit, outcome, input, output| {
            let mut record = record(outcome, input, output);
            record.at.routed = Some(at(0));
            permit.settle(&record);
        };
        let first = admit(&limiter, &tenant, 500, at(0)).unwrap();
        assert_eq!(admit(&limiter, &tenant, 200, at(0)).unwrap_err(), ("tokens_per_minute".into(), Some(10)));
        used(first, Outcome::Ok, 100, 50);
        let second = admit(&limiter, &tenant, 400, at(0)).unwrap();
        used(second, Outcome::Ok, 400, 650);
        // 1,200 of 600: in debt.
        assert_eq!(admit(&limiter, &tenant, 100, at(0)).unwrap_err(), ("tokens_per_minute".into(), Some(70)));
        drop(admit(&limiter, &tenant, 100, at(70)).unwrap());
        let counted = admit_as(&limiter, &tenant, 601, true, at(999));
        assert_eq!(counted.unwrap_err(), ("tokens_per_minute".into(), None), "it never fits");
        used(admit(&limiter, &tenant, 60, at(999)).unwrap(), Outcome::Ok, 60, 0);
        let wait = admit(&limiter, &tenant, 6000, at(999)).unwrap_err();
        assert_eq!(wait, ("tokens_per_minute".into(), Some(6)), "an estimate may be wrong");
        let wrong = admit(&limiter, &tenant, 6000, at(1005)).unwrap();
        assert_eq!(admit(&limiter, &tenant, 1, at(1005)).unwrap_err().1, Some(541));
        used(wrong, Outcome::Ok, 599, 0);
        drop(admit(&limiter, &tenant, 1, at(1006)).unwrap());
    }

    #[test]
    fn what_is_refused_later_costs_nothing_and_counts_go_back_to_zero() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(Some(1), Some(100), Some(1)));
        for _ in 0..3 {
            let permit = admit(&limiter, &tenant, 100, at(0)).unwrap();
            let other = admit(&limiter, &tenant, 1, at(0)).unwrap_err();
            assert_eq!(other, ("concurrency".into(), Some(1)));
            permit.settle(&record(Outcome::Refused, 100, 0));
            assert_eq!(limiter.inflight("acme"), 0);
        }
        let canceled = admit(&limiter, &tenant, 100, at(0)).unwrap();
        canceled.settle(&record(Outcome::Canceled, 100, 0));
        assert_eq!(admit(&limiter, &tenant, 1, at(0)).unwrap_err().0, "requests_per_minute");
        assert!(admit(&limiter, &tenant, 100, at(60)).is_ok(), "it never reached a replica: no tokens");
    }

    #[test]
    fn limits_of_a_reload_count_at_once_for_what_was_used_before() {
        let limiter = TenantLimiter::default();
        let (before, after) = (tenant(Some(2), None, Some(9)), tenant(Some(60), None, Some(2)));
        let _first = admit(&limiter, &before, 1, at(0)).unwrap();
        let _second = admit(&limiter, &before, 1, at(0)).unwrap();
        assert_eq!(admit(&limiter, &after, 1, at(0)).unwrap_err().0, "concurrency");
        drop(_second);
        assert_eq!(admit(&limiter, &before, 1, at(0)).unwrap_err().0, "requests_per_minute");
        assert!(admit(&limiter, &after, 1, at(0)).is_ok());
    }
}
