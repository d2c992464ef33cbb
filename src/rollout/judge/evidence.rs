//! What the tests have against a canary, and what of it is kept.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::rate::RateWealth;
use super::tail::TailWealth;

/// A test with its evidence, as other gateways are shown it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// `ttft_p99`, `errors`, …
    pub test: Cow<'static, str>,
    /// The bound of this gateway's file.
    #[serde(skip)]
    pub bound: f64,
    /// Logarithm of the evidence against the canary, as a share of what stops it: 1 is a breach.
    pub share: f64,
    /// The same of its trial, in this step: at 1 a breach would have been seen. `None` where the baseline had nothing to compare with.
    pub trial: Option<f64>,
}

/// A judge's evidence, kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedEvidence {
    pub(super) tails: Vec<(String, TailWealth)>,
    pub(super) rates: Vec<(String, RateWealth)>,
    pub(super) tails_alike: Vec<(String, TailWealth)>,
    pub(super) rates_alike: Vec<(String, RateWealth)>,
}

/// The wealth of one test in a list, or what a test begins with.
pub(super) fn known<W: Clone + Default>(saved: &[(String, W)], name: &str) -> W {
    saved.iter().find(|(known, _)| known == name).map(|(_, wealth)| wealth.clone()).unwrap_or_default()
}
