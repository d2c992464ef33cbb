//! What a pool should have, as `/api/v1/pools/{pool}/scale` reports it.

use super::judge::{Load, Outcome};
use super::scaler::{Recommendation, Terms};
use crate::api::scale::{PoolScale, ScaleLoad, ScalePrediction, ScaleTerms};

impl Recommendation {
    /// As the admin API answers for this pool.
    pub(crate) fn to_api(&self, pool: &str) -> PoolScale {
        let terms = &self.terms;
        PoolScale {
            desired_replicas: self.replicas,
            ejected_replicas: terms.ejected,
            max_replicas: terms.bounds.1,
            min_replicas: terms.bounds.0,
            needed_replicas: self.needed,
            pool: pool.to_owned(),
            predicted_ttft: terms.predicted_ttft.map(|ttft| ttft.as_secs_f64()),
            ready_replicas: terms.ready,
            reason: self.reason.clone(),
            starting_replicas: terms.starting,
            terms: terms.to_api(),
            waiting_per_replica: terms.waiting_per_replica,
        }
    }
}

impl Terms {
    fn to_api(&self) -> ScaleTerms {
        ScaleTerms {
            arrival_growth: self.rate.growth,
            arrival_rate: self.rate.rate,
            backlog_rate: self.backlog_rate,
            cold_start: self.cold_start.as_secs_f64(),
            cold_start_measured: self.is_cold_start_measured,
            foreign_rate: self.foreign_rate,
            load: self.load.map(load),
            predicted: self.outcome.map(prediction),
            standing_waiting: self.waiting,
            unexplained_running: self.unexplained,
        }
    }
}

fn load(load: Load) -> ScaleLoad {
    ScaleLoad {
        batch_limit: load.batch_limit,
        cache_tokens: load.cache_tokens,
        context_tokens: load.context,
        decode_step: load.typical.step,
        decode_step_per_sequence: load.typical.per_sequence,
        output_tokens: load.typical.output,
        prefill: load.typical.prefill,
        rate: load.rate,
        tpot_bound: load.tpot,
        ttft_bound: load.ttft,
    }
}

fn prediction(outcome: Outcome) -> ScalePrediction {
    ScalePrediction {
        itl: outcome.step,
        prefill_utilisation: outcome.prefill_utilisation,
        running_per_replica: outcome.concurrency,
        ttft_p99: outcome.ttft_p99,
    }
}
