//! `/api/v1/canaries`: every canary with its evidence.

use serde_json::Value;

answers! {
    struct Canaries {
        canaries: Vec<Canary>,
    }

    /// `/canaries/{route}/{action}`
    struct CanaryAnswer {
        canary: Option<Canary>,
    }

    struct Canary {
        pool: String,
        /// Why it is in its state.
        reason: String,
        /// Of the last breach, as its state file and webhook have it.
        report: Option<Value>,
        requests: CanaryRequests,
        revision: String,
        route: String,
        /// Percent of new requests of which it gets copies.
        shadow_weight: f64,
        /// Seconds of the step's soak that are over.
        soaked: f64,
        state: String,
        /// From 1 on, 0 for the shadow step.
        step: usize,
        steps: usize,
        tests: Vec<CanaryTest>,
        /// Percent of new requests.
        weight: f64,
    }

    struct CanaryRequests {
        baseline: u64,
        /// Those that failed there and were answered by the baseline count on both sides.
        canary: u64,
        /// Copies that the canary has answered.
        shadow: u64,
    }

    struct CanaryTest {
        bound: f64,
        /// As a share of what stops it: 1 is a breach.
        evidence: f64,
        /// `ttft_p99`, `errors`, …
        test: String,
    }
}
