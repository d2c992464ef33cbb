//! The latencies of the last hour, in slots of time; pure, time is an argument.
//!
//! Every reader of measured latencies reads these: windows, their split by tenant, class and stage, and the history of a route.
//! A value is added to the histogram of the current 10 s; a full slot keeps its buckets in use only, and six of them make a minute.
//! Both rings are bounded, so memory is.

mod map;
mod series;
mod slots;
mod window;

pub(super) use self::map::{Newest, SeriesMap};
pub use self::series::{LatencySeries, Measure};
pub(super) use self::slots::IN_MINUTE;
pub(super) use self::slots::LatencySlots;
pub use self::slots::{SLOTS, Step};
pub use self::window::Window;
