//! `/api/v1/slo`: the verdict over each route, with the numbers behind it.

use std::collections::BTreeMap;

answers! {
    /// `/slo`, and each event of `/events`.
    struct Slo {
        /// Fingerprint of the page's files.
        page: String,
        replicas: ReplicaCounts,
        /// The worst first.
        routes: Vec<RouteVerdict>,
        /// For people.
        sentence: String,
        /// `ok`, `bad` or `unknown`.
        status: String,
        time: String,
        /// Of the gateway.
        version: String,
    }

    /// How many replicas there are.
    struct ReplicaCounts {
        all: usize,
        /// The first of them.
        not_ready: Vec<NotReady>,
        ready: usize,
    }

    /// A replica that is not ready.
    struct NotReady {
        pool: String,
        reason: String,
        replica: String,
        state: String,
    }

    struct RouteVerdict {
        bound: BoundMeans,
        burn: Burn,
        cause: Option<MissCause>,
        goodput: Goodput,
        itl: Quantiles,
        /// By reason; none is 0.
        missed: BTreeMap<String, u32>,
        /// By stage that is blamed, or as `cause` has it; none is 0.
        missed_in: BTreeMap<String, u32>,
        route: String,
        sentence: String,
        /// Seconds that it has missed its SLO without a pause of a minute; `None` unless it is `bad`.
        since: Option<f64>,
        /// Who differs from the others.
        standing_out: Vec<StandingOut>,
        /// `ok`, `bad` or `unknown`.
        status: String,
        tpot: Quantiles,
        ttft: Quantiles,
        /// Seconds that the figures are of.
        window: u64,
    }

    /// Means of bounds that grow with the prompt.
    struct BoundMeans {
        tpot: Option<f64>,
        ttft: Option<f64>,
    }

    /// Misses as a multiple of those that the SLO allows, by window.
    struct Burn {
        #[serde(rename = "1h")]
        hour: Option<f64>,
        #[serde(rename = "1m")]
        minute: Option<f64>,
        #[serde(rename = "5m")]
        five_minutes: Option<f64>,
    }

    /// Where most misses come from.
    struct MissCause {
        /// Blamed by the engines' queues as scraped.
        by_scrape: bool,
        misses: u32,
        reason: String,
        replicas: Vec<StandingOut>,
        /// Of all misses.
        share: f64,
        stage: String,
    }

    /// Somebody who differs from the others, with the numbers that say so.
    struct StandingOut {
        /// `replica`, `tenant`, …
        dimension: String,
        evidence: String,
        name: String,
    }

    /// Requests that met every bound.
    struct Goodput {
        good: u32,
        judged: u32,
        missed: u32,
        per_second: f64,
        requests: u32,
        /// Of all requests.
        requests_per_second: f64,
        /// `None` where none was judged.
        share: Option<f64>,
    }

    /// Quantiles of a latency.
    struct Quantiles {
        count: u64,
        p50: Option<f64>,
        p95: Option<f64>,
        p99: Option<f64>,
    }
}
