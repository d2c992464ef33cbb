//! `/api/v1/requests`: the slowest and the failed of the last hour, and one of them with its stages.

use std::collections::BTreeMap;

use super::decisions::Chosen;

answers! {
    /// `/requests`: newest first.
    struct Requests {
        /// For `after` of the page that follows.
        next: Option<String>,
        requests: Vec<Request>,
    }

    struct Request {
        attempts: usize,
        class: String,
        duration: f64,
        /// Code of its failure.
        error: Option<String>,
        /// Why it is kept: `slow`, `failed` or `refused`.
        kept: String,
        model: String,
        outcome: String,
        replica: Option<String>,
        request_id: String,
        revision: String,
        route: String,
        slo_missed: Option<String>,
        /// The stage that is blamed.
        slo_missed_in: Option<String>,
        /// How slow, as the list ranks it.
        slow: f64,
        /// Of its root span: no other request has it. 16 hexadecimal digits.
        span_id: String,
        status: u16,
        tenant: String,
        time: String,
        tpot: Option<f64>,
        ttft: Option<f64>,
    }

    /// `/requests/{id}`
    struct RequestDetail {
        #[serde(flatten)]
        request: Request,
        attempts_made: Vec<Attempt>,
        bounds: Bounds,
        cached_tokens: Option<u64>,
        /// `None` for a request that ended before a replica was chosen.
        decision: Option<Choice>,
        /// The route that was asked for, of a degraded request.
        degraded_from: Option<String>,
        estimated_prompt_tokens: u64,
        /// Since the head, as all that ends in `_at`.
        first_token_at: Option<f64>,
        /// In the admission queue.
        held: f64,
        longest_gap: f64,
        longest_gap_at: Option<f64>,
        migration_refused: Option<String>,
        migrations: u32,
        /// The others that have the id which was asked for, as retries of a client have: what failed first, then the newest; 20 at most.
        others: Vec<Request>,
        output_tokens: Option<u64>,
        prompt_tokens: Option<u64>,
        /// Waiting for the client to take bytes.
        relay_blocked: f64,
        stages: Vec<StageTime>,
        stream: bool,
        /// 32 hexadecimal digits.
        trace_id: String,
    }

    struct Bounds {
        e2e: Option<f64>,
        /// By percentile: `p50`, …
        itl: BTreeMap<String, f64>,
        tpot: Option<f64>,
        ttft: Option<f64>,
    }

    /// A stage; each starts where the one before ends.
    struct StageTime {
        budget: Option<f64>,
        duration: f64,
        over_budget: bool,
        /// `measured`, `estimated`, …
        source: String,
        stage: String,
        start: f64,
    }

    /// An attempt at one replica; times since the request's head.
    struct Attempt {
        /// Another attempt spoke first, or the client left.
        canceled: bool,
        /// `first`, `retry`, `hedge`, `migration` or `prefill`.
        cause: String,
        connected: Option<f64>,
        end: Option<f64>,
        /// Its answer was whole and had no text.
        empty: bool,
        /// The engine's error message, without what it quotes.
        engine_error: Option<String>,
        error: Option<String>,
        /// Predicted, as `expected_queue`.
        expected_prefill: Option<f64>,
        expected_queue: Option<f64>,
        head: Option<f64>,
        pool: String,
        replica: String,
        revision: String,
        start: f64,
        status: Option<u16>,
    }

    /// The first routing decision of a request.
    struct Choice {
        #[serde(flatten)]
        chosen: Chosen,
        /// Whether its candidates were kept.
        explained: bool,
    }
}
