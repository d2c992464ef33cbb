//! `Debug` for types that hold only handles to counters and queues: their names.

use std::fmt;

use super::content::Trail;
use super::metrics::{GaugeGuard, Metrics};
use super::{Observer, StreamSeries};

macro_rules! named {
    ($($type:ident),+) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        })+
    };
}

named!(Observer, Metrics, Trail, StreamSeries, GaugeGuard);
