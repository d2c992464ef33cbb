//! Statistics that several rooms share: the histogram of latencies, means, the ring of time slots, robust statistics, rate limits.
//! Pure: time is an argument.

mod bucket;
mod counts;
mod histogram;
mod mean;
mod peers;
mod ring;
mod robust;

pub use self::bucket::{PerSecond, Refill, TokenBucket};
pub use self::counts::Counts;
pub use self::histogram::Histogram;
pub use self::mean::Mean;
pub use self::peers::Peers;
pub use self::ring::Ring;
pub use self::robust::{
    INTERVAL_90, MEDIAN_ERROR, Noise, P90_ERROR, Prior, TRIMMED, ln_binomial_tail, lower_quantile, median,
    normal, robust, trimmed_mean, upper_quantile,
};
