//! Figures of a replica's GPUs, and how long they count.

use std::time::Duration;

use crate::clock::Stamp;

/// What the GPUs of one replica say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuFigures {
    /// How many there are on the page.
    pub gpus: u32,
    /// Mean share of time in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of framebuffer in use, of all.
    pub memory_used: Option<f64>,
    /// Bytes of framebuffer that are free, of all.
    pub memory_free: Option<f64>,
    /// Why clocks are lowered, of any.
    pub throttling: Option<Throttling>,
    /// The last XID error of any that had one; `Some(0)` is none.
    pub xid: Option<u32>,
}

/// Reasons for which clocks are below what was asked for, as bits (`DCGM_FI_DEV_CLOCKS_EVENT_REASONS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling(pub(super) u64);

impl Throttling {
    /// The reasons that slow a busy GPU down, by name. An idle one, and what was configured, is none.
    pub const REASONS: [(u64, &str); 5] = [
        (0x04, "sw_power_cap"),
        (0x08, "hw_slowdown"),
        (0x20, "sw_thermal"),
        (0x40, "hw_thermal"),
        (0x80, "hw_power_brake"),
    ];

    /// Whether each reason holds.
    pub fn each(self) -> impl Iterator<Item = (&'static str, bool)> {
        Self::REASONS.into_iter().map(move |(bit, name)| (name, self.0 & bit != 0))
    }

    /// Whether any does.
    pub fn is_any(self) -> bool {
        self.each().any(|(_, holds)| holds)
    }
}

/// The last figures of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuReading {
    pub(super) at: Stamp,
    pub(super) figures: GpuFigures,
}

impl GpuReading {
    /// The figures, unless they are too old.
    pub(super) fn figures(&self, now: Stamp) -> Option<GpuFigures> {
        (now.since(self.at) < MAX_AGE).then_some(self.figures)
    }
}

/// Four intervals of the scrape without a page.
const MAX_AGE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_figures_are_no_figures() {
        let reading = GpuReading { at: Stamp::default(), figures: GpuFigures::default() };
        let after = |seconds| reading.figures(Stamp::default().after(Duration::from_secs(seconds)));
        assert!(after(119).is_some() && after(120).is_none());
    }
}
