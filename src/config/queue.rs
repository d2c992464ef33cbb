//! `[route.queue]`: admission by prediction.

use std::time::Duration;

use super::check::codec::SWITCH;
use super::check::values::{DURATION, SIZE};
use super::declare::section;

section! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QueueLimits for "[route.queue]", optional {
        /// of this route that wait; 0: refuse at once
        max_requests: usize as 0..=1_000_000, default 1000;
        /// of their bodies
        max_bytes: usize as SIZE, default "256MiB";
        /// in the queue; a request that would wait longer is refused at once
        max_wait: Duration as DURATION, default "5s";
        /// prompts of class long are counted and served apart from the others
        isolate_long: bool as SWITCH, default true;
    }
}
