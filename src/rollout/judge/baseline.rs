//! What the baseline's latency is right now: thresholds by class that follow the load.
//!
//! A tail over the last minutes is mostly the tail of the load: nearly all that exceeds it falls into bursts, where a slow canary
//! stands out least. So values are taken relative to the present level, the median of the last few hundred of all classes
//! together, each as a multiple of its class's own median; a threshold is a quantile of that, times the level of now.

use std::collections::VecDeque;

use super::GROUPS;
use super::samples::Samples;

/// The baseline's values of one measure.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    classes: [ClassSamples; GROUPS],
    /// Of all classes, for those with too few values of their own.
    relative: Samples,
    /// Last values as multiples of their class's median.
    recent: VecDeque<f32>,
    sorted: Vec<f32>,
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
            recent: VecDeque::new(),
            sorted: Vec::new(),
            level: 1.0,
        }
    }
}

impl Baseline {
    #[allow(clippy::cast_possible_truncation, reason = "seven digits of a latency are enough")]
    pub(super) fn add(&mut self, class: usize, value: f64) {
        let Some(samples) = self.classes.get_mut(class) else { return };
        samples.absolute.add(value);
        let Some(median) = samples.median.filter(|median| *median > 0.0) else { return };
        samples.relative.add(value / (median * self.level));
        self.relative.add(value / (median * self.level));
        if self.recent.len() == LEVEL_OF {
            self.recent.pop_front();
        }
        self.recent.push_back((value / median) as f32);
    }

    /// Ends a block: medians and level are those of now.
    pub(super) fn refresh(&mut self) {
        self.relative.refresh();
        for samples in &mut self.classes {
            samples.absolute.refresh();
            samples.relative.refresh();
            samples.median = samples.absolute.quantile(0.5).or(samples.median);
        }
        if self.recent.len() < MIN_LEVEL_OF {
            return;
        }
        self.sorted.clear();
        self.sorted.extend(&self.recent);
        let middle = self.sorted.len() / 2;
        let (_, median, _) = self.sorted.select_nth_unstable_by(middle, f32::total_cmp);
        if *median > 0.0 {
            self.level = f64::from(*median);
        }
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
