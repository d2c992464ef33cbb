//! A limit of a tenant that a request would exceed, as the client reads it.

use std::time::Duration;

use crate::error::Failure;

pub(super) fn concurrency(tenant: &str, max: u32) -> Failure {
    let message =
        format!("tenant {tenant} has {max} requests in flight already (tenant.limits.concurrency = {max})");
    Failure::NotAdmitted { limit: "concurrency", message, retry_after: Some(AGAIN) }
}

pub(super) fn requests(tenant: &str, per_minute: u64, wait: Duration) -> Failure {
    let message = format!(
        "tenant {tenant} has used its {per_minute} requests a minute (tenant.limits.requests_per_minute = \
         {per_minute}); the next one is let in in {} s",
        wait.as_secs_f64().ceil()
    );
    Failure::NotAdmitted { limit: "requests_per_minute", message, retry_after: Some(wait) }
}

pub(super) fn tokens(tenant: &str, prompt: u64, per_minute: u64, wait: Duration) -> Failure {
    let message = format!(
        "tenant {tenant} has used its {per_minute} tokens a minute (tenant.limits.tokens_per_minute = \
         {per_minute}); this request's {prompt} are let in in {} s",
        wait.as_secs_f64().ceil()
    );
    Failure::NotAdmitted { limit: "tokens_per_minute", message, retry_after: Some(wait) }
}

pub(super) fn too_large(tenant: &str, prompt: u64, per_minute: u64) -> Failure {
    let message = format!(
        "the prompt has {prompt} tokens, more than tenant {tenant} may send in a minute \
         (tenant.limits.tokens_per_minute = {per_minute}); send a shorter one"
    );
    Failure::NotAdmitted { limit: "tokens_per_minute", message, retry_after: None }
}

/// When one of its other requests ends is not known.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
