//! Where a prompt was computed, on a route with `[route.prefill]`.

use std::time::Duration;

use crate::units::Tokens;

/// The two ways of a request in seconds, and why it took the one that it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ways {
    /// Another pool computed the prompt.
    pub is_apart: bool,
    /// Label `reason`.
    pub reason: &'static str,
    /// Cost of computing it where it is decoded; `None` where that was not asked.
    pub together: Option<f64>,
    /// Cost of computing it in the prefill pool; `None` where that was not asked, or cannot be.
    pub apart: Option<ApartCost>,
    /// Prompt tokens that the prefill replica found in its cache; the decoding engine reports zero.
    pub cached: Option<Tokens>,
    /// From the decoding request to its first content, less what decoding was expected to take; `None` without a stream.
    pub transfer: Option<Duration>,
}

/// The cost of two legs in its parts, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ApartCost {
    /// At the replica that computes, as a candidate's cost.
    pub prefill: f64,
    /// To move the KV.
    pub transfer: f64,
    /// At the replica that decodes, as a candidate's cost without the transfer.
    pub decode: f64,
}

impl Ways {
    /// Value of the label `way`.
    pub fn way(&self) -> &'static str {
        if self.is_apart { "apart" } else { "together" }
    }
}

impl ApartCost {
    /// The cost.
    pub fn total(&self) -> f64 {
        self.prefill + self.transfer + self.decode
    }
}
