//! `/api/v1/decisions`, and the candidates of a decision.

use std::collections::BTreeMap;

answers! {
    /// `/decisions`: newest first.
    struct Decisions {
        decisions: Vec<Decision>,
    }

    /// A routing decision beside what happened.
    struct Decision {
        attempts: usize,
        cached_tokens: Option<u64>,
        #[serde(flatten)]
        chosen: Chosen,
        class: String,
        /// The replica had become warm a short while ago.
        cold: bool,
        model: String,
        outcome: String,
        /// Stages that took more than the route's budget.
        over_budget: Vec<String>,
        request_id: String,
        route: String,
        slo_missed: Option<String>,
        /// The stage that is blamed.
        slo_missed_in: Option<String>,
        time: String,
        ttft: Option<f64>,
    }

    /// How a replica was chosen.
    struct Chosen {
        /// Replicas compared.
        candidates: u16,
        policy: String,
        predicted_hit_tokens: u64,
        predicted_ttft: Option<f64>,
        /// What made the replica win.
        reason: String,
        replica: Option<String>,
        /// From arrival to decision.
        waited: f64,
        way: Option<Way>,
        weighed: Vec<Candidate>,
        /// In words.
        why: Option<String>,
    }

    /// Where the prompt was computed, on a route with `[route.prefill]`; costs in seconds, as of candidates.
    struct Way {
        /// Sum of the three below; `None` where it was not asked for, or cannot be.
        apart: Option<f64>,
        apart_decode: Option<f64>,
        apart_prefill: Option<f64>,
        apart_transfer: Option<f64>,
        reason: String,
        /// The prefill replica.
        replica: Option<String>,
        together: Option<f64>,
        /// What the transfer took, of a stream.
        transfer: Option<f64>,
        /// `together` or `apart`, as it went in the end.
        way: String,
    }

    /// A candidate with its predicted cost.
    struct Candidate {
        chosen: bool,
        /// Sum of `cost_seconds`.
        cost: f64,
        /// By addend.
        cost_seconds: BTreeMap<String, f64>,
        /// Expected streams pushed over their bound on time per token.
        harm: f64,
        /// Probability that the first token is late, 0 to 1.
        late: f64,
        /// `kv_events`: counted by the engine's events; `estimate`: by what was sent there.
        predicted_hit_by: String,
        predicted_hit_tokens: u64,
        predicted_ttft: f64,
        prefill: f64,
        replica: String,
        wait: f64,
    }
}
