//! All detectors together, request by request: false alarms of each kind a series and year, and delays.

use std::collections::BTreeMap;

use super::super::{Detectors, Finding, Kind, Observation, Settings};
use super::CELLS;
use super::Cell;
use super::tails::{Family, Shape};
use crate::drift::detectors::scale::normal;
use crate::record::Outcome;

const DAY: f64 = 86_400.0;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What happens to a fleet of four replicas from `start` on.
#[derive(Clone, Copy)]
enum Event {
    Nothing,
    /// Everything takes twice as long.
    Doubles,
    /// One replica takes 1.6 times as long.
    OneSlow,
    /// A twentieth of the requests takes three seconds.
    OverSlo,
}

struct Run {
    random: fastrand::Rng,
    family: Family,
    cell: Cell,
    event: Event,
    start: f64,
}

impl Run {
    /// Findings until `end`, or the first of `kind`.
    fn findings(&mut self, end: f64, kind: Option<Kind>) -> Vec<Finding> {
        let mut detectors = Detectors::new(Settings::default());
        let (mut at, mut hour, mut shape, mut all, mut new) = (0.0, -1.0, None, Vec::new(), Vec::new());
        let (mut day, mut of_day) = (-1.0, 0.0);
        let od = self.cell.dispersion;
        while at < end {
            if (at / DAY).floor() != day {
                day = (at / DAY).floor();
                of_day = od * normal(&mut self.random);
            }
            if (at / 3600.0).floor() != hour {
                hour = (at / 3600.0).floor();
                let noise = of_day + od * normal(&mut self.random) - od * od;
                shape = Some(Shape::new(self.family, 0.0, noise));
            }
            let ttft = shape.as_ref().map_or(0.06, |shape| shape.draw(&mut self.random));
            let place = self.random.usize(0..4);
            let observation = Observation {
                at,
                route: "chat",
                revision: "r1",
                replica: NAMES[place],
                ttft: Some(self.disturbed(at, ttft, place)),
                itl: Some(0.02 * (0.3 * normal(&mut self.random)).exp()),
                predicted: None,
                ttft_bound: Some(0.5),
                outcome: if self.random.f64() < 0.0005 { Outcome::Failed } else { Outcome::Ok },
            };
            detectors.observe(&observation, &mut new);
            all.append(&mut new);
            if kind.is_some_and(|kind| all.iter().any(|finding| finding.kind == kind)) {
                return all;
            }
            let load = 1.0 + 0.6 * ((at / 3600.0 - 8.0) / 24.0 * std::f64::consts::TAU).sin();
            at += -(1.0 - self.random.f64()).ln() * 3600.0 / (self.cell.per_hour * load);
        }
        all
    }

    fn disturbed(&mut self, at: f64, ttft: f64, place: usize) -> f64 {
        match self.event {
            _ if at < self.start => ttft,
            Event::Nothing => ttft,
            Event::Doubles => 2.0 * ttft,
            Event::OneSlow if place == 2 => 1.6 * ttft,
            Event::OneSlow => ttft,
            Event::OverSlo if self.random.f64() < 0.05 => 3.0,
            Event::OverSlo => ttft,
        }
    }
}

#[test]
#[ignore = "takes minutes; run by hand as docs/drift.md says"]
fn false_alarms() {
    let years = std::env::var("YEARS").ok().and_then(|v| v.parse().ok()).unwrap_or(4);
    let mut counts: BTreeMap<Kind, (usize, usize)> = BTreeMap::new();
    let mut total = 0;
    for (family, cells) in
        [(Family::Lognormal, &CELLS[..3]), (Family::LogLogistic, &CELLS[..1]), (Family::Weibull, &CELLS[..1])]
    {
        for cell in cells {
            for year in 0..years {
                let random = fastrand::Rng::with_seed(year);
                let mut run = Run { random, family, cell: *cell, event: Event::Nothing, start: 0.0 };
                for finding in run.findings(425.0 * DAY, None) {
                    if finding.at > 60.0 * DAY {
                        let count = counts.entry(finding.kind).or_default();
                        if finding.series.replica.is_none() { count.0 += 1 } else { count.1 += 1 }
                    }
                }
                total += 1;
            }
        }
    }
    println!(
        "{total} series-years (four replicas each): false alarms a series and year, and a replica and year"
    );
    for kind in Kind::ALL {
        let (series, replicas) = counts.get(&kind).copied().unwrap_or_default();
        let of = |count: usize, by: usize| count as f64 / by as f64;
        println!(
            "{:<20} {:.2}  {:.2}",
            kind.as_str(),
            of(series, total as usize),
            of(replicas, 4 * total as usize)
        );
    }
}

#[test]
#[ignore = "takes minutes; run by hand as docs/drift.md says"]
fn delays() {
    let runs: u64 = std::env::var("RUNS").ok().and_then(|v| v.parse().ok()).unwrap_or(100);
    for (event, kind, name) in [
        (Event::Doubles, Kind::TtftDoubled, "TTFT doubles"),
        (Event::OverSlo, Kind::TtftP99OverSlo, "5 % of requests over the SLO"),
        (Event::OneSlow, Kind::ReplicaSlow, "one replica 1.6 times as slow"),
    ] {
        for cell in &CELLS[..3] {
            let mut delays: Vec<f64> = (0..runs)
                .map(|seed| {
                    let random = fastrand::Rng::with_seed(seed);
                    // At another time of the day each.
                    let start = 2.0 * DAY + 3600.0 * (seed % 24) as f64;
                    let mut run = Run { random, family: Family::Lognormal, cell: *cell, event, start };
                    let found = run.findings(start + 7200.0, Some(kind));
                    let found = found.iter().find(|finding| finding.kind == kind && finding.at >= start);
                    found.map_or(f64::INFINITY, |finding| finding.at - start)
                })
                .collect();
            delays.sort_by(f64::total_cmp);
            let of = |share: f64| delays[((runs - 1) as f64 * share) as usize];
            println!(
                "{name}, {} an hour: found after {:.0} s (median), {:.0} s (p90), {:.0} s (p99) of {runs}",
                cell.per_hour,
                of(0.5),
                of(0.9),
                of(0.99)
            );
        }
    }
}
