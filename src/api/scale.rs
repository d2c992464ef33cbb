//! `/api/v1/pools/{pool}/scale`: replicas that a pool should have, flat where an autoscaler looks, with the terms beside.

answers! {
    /// `/pools/{pool}/scale`
    struct PoolScale {
        desired_replicas: usize,
        ejected_replicas: usize,
        max_replicas: usize,
        min_replicas: usize,
        /// For the load of now, before bounds and stabilisation.
        needed_replicas: usize,
        pool: String,
        predicted_ttft: Option<f64>,
        ready_replicas: usize,
        /// For people.
        reason: String,
        starting_replicas: usize,
        terms: ScaleTerms,
        waiting_per_replica: f64,
    }

    /// Figures behind a number of replicas; rates are requests a second.
    struct ScaleTerms {
        /// Until a replica that is asked for now is warm.
        arrival_growth: f64,
        arrival_rate: f64,
        backlog_rate: f64,
        cold_start: f64,
        cold_start_measured: bool,
        /// Of other gateways, by what runs at the engines.
        foreign_rate: f64,
        /// `None` before anything is measured.
        load: Option<ScaleLoad>,
        predicted: Option<ScalePrediction>,
        standing_waiting: f64,
        /// Running sequences as a multiple of those that `load` explains.
        unexplained_running: f64,
    }

    /// Costs of a request, limits of an engine, bounds.
    struct ScaleLoad {
        batch_limit: Option<f64>,
        /// That fit into an engine's KV cache.
        cache_tokens: Option<f64>,
        /// Of a running sequence.
        context_tokens: f64,
        decode_step: f64,
        decode_step_per_sequence: f64,
        output_tokens: f64,
        prefill: f64,
        rate: f64,
        tpot_bound: Option<f64>,
        ttft_bound: Option<f64>,
    }

    /// What the number of replicas is predicted to mean.
    struct ScalePrediction {
        itl: f64,
        prefill_utilisation: f64,
        running_per_replica: f64,
        ttft_p99: f64,
    }
}
