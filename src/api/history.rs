//! `/api/v1/history`: a list for each figure of a route, a value for each slot of time; `null` where nothing was measured.

use std::collections::BTreeMap;

answers! {
    /// `/history`
    struct History {
        routes: Vec<RouteColumns>,
        /// Seconds of a slot.
        step: u64,
        /// Start of each slot, in seconds since 1970.
        times: Vec<f64>,
    }

    /// Figures of a route.
    struct RouteColumns {
        /// The route's share for each stage, in seconds.
        budget: BTreeMap<String, f64>,
        good: Vec<u32>,
        heat: Heat,
        itl: ItlColumns,
        judged: Vec<u32>,
        /// By reason.
        missed: BTreeMap<String, Vec<u32>>,
        /// By stage that is blamed, of those that were.
        missed_in: BTreeMap<String, Vec<u32>>,
        /// Who took part, over all slots; by dimension, the most requests first.
        parts: Vec<PartFigures>,
        requests: Vec<u32>,
        route: String,
        /// Of the stages that occurred.
        stages: BTreeMap<String, StageColumns>,
        ttft: TtftColumns,
        ttft_bound: Vec<Option<f64>>,
    }

    /// A revision, tenant or class of a route.
    struct PartFigures {
        /// `revision`, `tenant` or `class`.
        dimension: String,
        /// p50 and p99; of a revision only.
        itl: Option<[f64; 2]>,
        judged: u32,
        missed: u32,
        name: String,
        requests: u32,
        tpot: Option<[f64; 2]>,
        /// p50 and p99.
        ttft: Vec<f64>,
    }

    /// Numbers of requests by TTFT.
    struct Heat {
        /// By slot, then by row.
        counts: Vec<Vec<u64>>,
        /// Lower edge of each row.
        edges: Vec<f64>,
    }

    /// Quantiles of ITL.
    struct ItlColumns {
        p50: Vec<Option<f64>>,
        p99: Vec<Option<f64>>,
    }

    /// Quantiles of TTFT.
    struct TtftColumns {
        p50: Vec<Option<f64>>,
        p95: Vec<Option<f64>>,
        p99: Vec<Option<f64>>,
    }

    /// Time in a stage.
    struct StageColumns {
        mean: Vec<Option<f64>>,
        p50: Vec<Option<f64>>,
        p95: Vec<Option<f64>>,
        p99: Vec<Option<f64>>,
    }
}
