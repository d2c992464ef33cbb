//! Statistics that several rooms share: rate limits and robust statistics. Pure: time is an argument.

mod bucket;
mod peers;
mod robust;

pub use self::bucket::{PerSecond, Refill, TokenBucket};
pub use self::peers::Peers;
#[cfg(test)]
pub(crate) use self::robust::normal;
pub use self::robust::{
    MEDIAN_ERROR, Noise, P90_ERROR, Prior, TRIMMED, ln_binomial_tail, lower_quantile, median, robust,
    trimmed_mean, upper_quantile,
};
