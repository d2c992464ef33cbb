//! vllm-router's `smetric`: session affinity while the time to first token allows, else prefill work times requests.
//!
//! From `src/policies/smetric.rs` of vllm-project/router (8bef7312). With `hit` by its own record of what was sent
//! where, `n = prompt - hit`: `cost = c_lin n + c_att n (prompt - n / 2)`, `queued = pending work + cost`; rate is the
//! 90th percentile of the last 64 quotients of work and TTFT once there are 8. It takes the replica with the longest
//! hit when that hit exceeds half of what the history would give and `queued / rate` meets the TTFT bound (or meets it
//! nowhere), else the least `queued x requests in flight`, equals in turn.
//!
//! In its favour: its prices are the engine's true ones, its TTFT bound is the SLO, its record knows the true capacity.

use std::collections::VecDeque;

use crate::engine::{CostModel, EngineConfig};
use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};
use crate::time::Stamp;

use super::ledger::Ledger;
use super::prefix_record::PrefixRecord;

#[derive(Debug)]
pub(super) struct Smetric {
    ledger: Ledger,
    record: PrefixRecord,
    rates: Vec<Rate>,
    cost: CostModel,
    turn: usize,
}

impl Smetric {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        Self {
            ledger: Ledger::new(replicas),
            record: PrefixRecord::new(replicas, engine),
            rates: vec![Rate::default(); replicas],
            cost: engine.cost.clone(),
            turn: 0,
        }
    }
}

impl Router for Smetric {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let hits = self.record.hits(&request);
        let bound = request.ttft_bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64());
        let cost = |hit: u64| self.cost.prefill_seconds(hit, request.prompt.saturating_sub(hit));
        let accounts = self.ledger.accounts();
        let queued = |replica: usize| accounts[replica].pending + cost(hits[replica]);
        let meets =
            |replica: usize| self.rates[replica].rate.is_none_or(|rate| queued(replica) / rate <= bound);
        let in_turn = (0..hits.len()).map(|offset| (self.turn + offset) % hits.len());
        let (mut longest, mut cheapest) = (None, None);
        for replica in in_turn {
            let score = queued(replica) * accounts[replica].inflight as f64;
            if longest.is_none_or(|(_, hit)| hits[replica] > hit) {
                longest = Some((replica, hits[replica]));
            }
            if cheapest.is_none_or(|(_, best)| score < best) {
                cheapest = Some((replica, score));
            }
        }
        let (Some((holder, hit)), Some((cheapest, _))) = (longest, cheapest) else { return };
        let is_affine = hit as f64 > HIT_RATIO * self.record.ever(&request) as f64;
        let replica =
            if is_affine && (meets(holder) || !(0..hits.len()).any(meets)) { holder } else { cheapest };
        let work = cost(hits[replica]);
        self.turn += 1;
        self.record.insert(replica, &request);
        self.ledger.note(request.id, replica, fleet.now(), work);
        fleet.send(request.id, replica, None);
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(entry) = self.ledger.first_token(request) else { return };
        let elapsed = at.since(entry.sent).as_secs_f64();
        if elapsed > 0.0 && entry.work > 0.0 {
            self.rates[entry.replica].record(entry.work / elapsed);
        }
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}

#[derive(Clone, Debug, Default)]
struct Rate {
    samples: VecDeque<f64>,
    rate: Option<f64>,
}

impl Rate {
    fn record(&mut self, sample: f64) {
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if self.samples.len() >= MIN_SAMPLES {
            let mut sorted: Vec<f64> = self.samples.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            self.rate = sorted.get(((sorted.len() - 1) as f64 * 0.9).round() as usize).copied();
        }
    }
}

const HIT_RATIO: f64 = 0.5;
const WINDOW: usize = 64;
const MIN_SAMPLES: usize = 8;
