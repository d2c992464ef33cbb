//! `/api/v1/routes`: every route with its pools.

answers! {
    /// `/routes`
    struct Routes {
        routes: Vec<Route>,
    }

    /// A route.
    struct Route {
        /// `None` without a `[route.degrade]`.
        is_degrading: Option<bool>,
        model: String,
        policy: String,
        pools: Vec<RoutePool>,
        /// `None` without a `[route.prefill]`.
        prefill: Option<PrefillPool>,
        /// Whether readiness of the gateway needs it.
        required: bool,
        route: String,
        /// Name of its SLO class.
        slo: String,
    }

    /// A pool of a route.
    struct RoutePool {
        pool: String,
        ready: usize,
        replicas: usize,
        revision: String,
        /// Of the route's new requests, 0 to 1: by the weights, and a canary's by the step that it is at.
        share: f64,
        /// As configured.
        weight: u32,
    }

    /// The pool that computes prompts of a route.
    struct PrefillPool {
        pool: String,
        ready: usize,
        replicas: usize,
        /// `auto`, `always` or `never`.
        when: String,
    }
}
