//! What the baseline's latency is right now: thresholds by class that follow the load.
//!
//! A tail over the last minutes is mostly the tail of the load: nearly all that exceeds it falls into bursts, where a slow canary
//! stands out least. So values are taken relative to the present level, the median of the last few hundred of all classes
//! together, each as a multiple of its class's own median; a threshold is a quantile of that, times the level of now.

use super::GROUPS;
use super::samples::Samples;

/// The baseline's values of one measure.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    classes: [ClassSamples; GROUPS],
    /// Of all classes, for those with too few values of their own.
    relative: Samples,
    /// Last values as multiples of their class's median.
    recent: Samples<LEVEL_OF>,
    /// Median of `recent` at the end of the last block.
    level: f64,
}

#[derive(Clone, Debug, Default)]
struct ClassSamples {
    absolute: Samples,
    /// As multiples of the class's median and the level at their time.
    relative: Samples,
    /// Median of late.
    median: Option<f64>,
}

impl Default for Baseline {
    fn default() -> Self {
        Self {
            classes: Default::default(),
            relative: Samples::default(),
            recent: Samples::default(),
            level: 1.0,
        }
    }
}

impl Baseline {
    pub(super) fn add(&mut self, class: usize, value: f64) {
        let Some(samples) = self.classes.get_mut(class) else { return };
        samples.absolute.add(value);
        let Some(median) = samples.median.filter(|median| *median > 0.0) else { return };
        samples.relative.add(value / (median * self.level));
        self.relative.add(value / (median * self.level));
        self.recent.add(value / median);
    }

    /// Ends a block: medians and level are those of now.
    pub(super) fn refresh(&mut self) {
        self.relative.refresh();
        for samples in &mut self.classes {
            samples.absolute.refresh();
            samples.relative.refresh();
            samples.median = samples.absolute.quantile(0.5).or(samples.median);
        }
        self.recent.sort();
        let level = self.recent.rank(0.5).filter(|level| *level > 0.0 && self.recent.len() >= MIN_LEVEL_OF);
        self.level = level.unwrap_or(self.level);
    }

    /// What a share of `quantile` of the class's values would be below, as of now; `None` of too few.
    pub(super) fn threshold(&self, class: usize, quantile: f64) -> Option<f64> {
        let samples = self.classes.get(class)?;
        let relative = samples.relative.quantile(quantile).or_else(|| self.relative.quantile(quantile))?;
        Some(relative * samples.median? * self.level)
    }

    /// Values by class.
    pub(super) fn samples(&mut self) -> impl Iterator<Item = &mut Samples> {
        self.classes.iter_mut().map(|samples| &mut samples.absolute)
    }
}

/// Values that make the level: a few seconds of a busy route.
const LEVEL_OF: usize = 256;
const MIN_LEVEL_OF: usize = 32;
