//! `[timeouts]`, `[retry]`, `[routing]` and `[classes]`: what all requests are held to.

use std::time::Duration;

use super::Secret;
use super::check::codec::{SEED, SHARE, SWITCH};
use super::check::section::Section;
use super::check::values::POSITIVE_DURATION;
use super::declare::{Declared, section};
use crate::units::Tokens;

section! {
    /// a route may override each of them in `[route.timeouts]`
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Timeouts for "[timeouts]" {
        /// a connection to a replica, the wait for a free one included
        connect: Duration as POSITIVE_DURATION, default "1s";
        /// streams: from the request's last byte to the first content event, over all attempts
        first_token: Duration as POSITIVE_DURATION, default "60s";
        /// streams: between two content events
        inter_token: Duration as POSITIVE_DURATION, default "30s";
        /// the whole request
        total: Duration as POSITIVE_DURATION, default "30m";
        /// a client that takes no bytes of its answer, or sends none of its body
        client_stall: Duration as POSITIVE_DURATION, default "60s";
    }
}

section! {
    /// only before the first content event
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Retry for "[retry]" {
        /// further tries of work known not to have been sent; started work gets one
        attempts: u32 as 0..=1_000_000, default 2;
        /// at most this share of recent requests may be retries
        budget: f64 as SHARE, default 0.1;
        /// but always this many
        min_per_second: u32 as 0..=1_000_000, default 3;
    }
}

section! {
    #[derive(Clone, Debug)]
    pub struct Routing for "[routing]" {
        /// of the hashes of prompts, sessions and cache salts, the same on all gateways; a secret where there are tenants
        seed: Secret as SEED, default "tokenway", restart;
        /// `cache_isolation` of every tenant without one of its own
        cache_isolation: bool as SWITCH, default false;
    }
}

impl Routing {
    /// Whether the seed is not the one that everybody knows.
    pub fn has_own_seed(&self) -> bool {
        self.seed != Self::default().seed
    }
}

section! {
    /// prompt class by estimated input tokens
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Classes for "[classes]" {
        /// up to here short
        short: Tokens as 1..=i64::MAX, default 1024;
        /// up to here medium, above it long
        medium: Tokens as 1..=i64::MAX, default 8192;
    }
}

/// Reads `[classes]`, whose bounds rise.
pub(super) fn classes(root: &Section<'_>) -> Classes {
    let section = Classes::open(root);
    let classes = Classes::read(&section, &Classes::default());
    section.fault_if(
        classes.short > classes.medium,
        &["short", "medium"],
        format!("classes.short ({}) is above classes.medium ({})", classes.short.0, classes.medium.0),
        "both are upper bounds in tokens: short, then medium; above medium is long",
    );
    classes
}
