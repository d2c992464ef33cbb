//! Statistics that several rooms share: rate limits. Pure: time is an argument.

mod bucket;

pub use self::bucket::{PerSecond, Refill, TokenBucket};
