//! A grid of runs: every contender in every setting under every seed, several runs at a time.
//!
//! Each run is single threaded and knows nothing of the others, so the figures do not depend on how many run at once;
//! results come in the order of the grid.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::{PolicyName, Slo};
use crate::simulate::engine::EngineConfig;
use crate::simulate::peers::Peer;

use super::dispatch::{Admission, Dispatcher};
use super::gateway::Gateway;
use super::run::{Scenario, run};
use super::tally::Figures;
use super::trace::Trace;
use super::workload::Demand;

/// Who chooses the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The product's routing with a policy.
    Product(PolicyName),
    /// A yardstick.
    Peer(Peer),
}

impl Contender {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Product(policy) => policy.as_str(),
            Self::Peer(peer) => peer.as_str(),
        }
    }

    fn dispatcher(self, scenario: &Scenario) -> Box<dyn Dispatcher> {
        let Demand { replicas, seed, .. } = scenario.demand;
        match self {
            Self::Product(policy) => {
                let gateway = Gateway::new(policy, replicas, &scenario.engine);
                Box::new(gateway.with_admission(scenario.admission))
            }
            Self::Peer(peer) => peer.dispatcher(replicas, &scenario.engine, seed),
        }
    }
}

/// A contender with what it is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Entrant {
    /// Who.
    pub contender: Contender,
    /// For tables: the configuration file, where it is from one.
    pub config: Option<String>,
    /// Bounds.
    pub slo: Slo,
    /// The route's queue, where it has one.
    pub admission: Option<Admission>,
}

/// What the fleet and its traffic are, but for the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Replicas.
    pub replicas: usize,
    /// See [`Demand::load`].
    pub load: f64,
    /// Between two scrapes.
    pub scrape_interval: Duration,
    /// Replicas that are slower, by how much.
    pub slow: Vec<(usize, f64)>,
    /// The engine of every replica.
    pub engine: EngineConfig,
}

/// One run of the grid.
#[derive(Clone, Debug)]
pub struct Race {
    /// Index into the entrants.
    pub entrant: usize,
    /// Index into the settings.
    pub setting: usize,
    /// The seed.
    pub seed: u64,
}

/// Runs the grid on so many threads; figures in the order of `races`.
#[must_use]
pub fn contest(
    trace: &Trace,
    (entrants, settings): (&[Entrant], &[Setting]),
    races: &[Race],
    threads: usize,
) -> Vec<Figures> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Figures)>> = Mutex::new(Vec::with_capacity(races.len()));
    let work = || {
        while let Some((at, race)) = take(&next, races) {
            let (Some(entrant), Some(setting)) = (entrants.get(race.entrant), settings.get(race.setting))
            else {
                continue;
            };
            let figures = one(trace, entrant, setting, race.seed);
            results.lock().push((at, figures));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, races.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, figures)| figures).collect()
}

fn take<'a>(next: &AtomicUsize, races: &'a [Race]) -> Option<(usize, &'a Race)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, races.get(at)?))
}

fn one(trace: &Trace, entrant: &Entrant, setting: &Setting, seed: u64) -> Figures {
    let scenario = Scenario {
        engine: setting.engine.clone(),
        demand: Demand { replicas: setting.replicas, load: setting.load, seed },
        slow: setting.slow.clone(),
        scrape_interval: setting.scrape_interval,
        slo: entrant.slo,
        admission: entrant.admission,
    };
    run(trace, &scenario, &mut *entrant.contender.dispatcher(&scenario))
}
