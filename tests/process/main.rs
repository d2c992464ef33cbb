//! The binary as a child process: commands, signals, files, rollouts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod autoscale;
mod documents;
mod keys;
mod one_verdict;
#[path = "../support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
mod redis;
mod replay;
mod rollouts;
mod serve;
#[path = "../serve_support/mod.rs"]
mod serve_support;
mod states;
mod tenants;
mod warm;

use self::one_verdict::soon;
