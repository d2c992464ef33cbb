//! TTFT at twice its baseline alone, request by request: more years than all detectors together could be given.

use super::super::hours::{HOUR, Hours, Ordinary};
use super::super::scale::normal;
use super::super::surge::{Source, Surge};
use super::tails::{Family, Shape};
use super::{CELLS, Cell};

const DAY: f64 = 24.0 * HOUR;
/// Scores that are held against each other.
const SURE: [f64; 6] = [5.2, 5.3, 5.4, 5.5, 5.6, 5.7];
/// Seconds between two looks of a running gateway.
const LOOK: f64 = 5.0;

struct Run {
    random: fastrand::Rng,
    family: Family,
    cell: Cell,
    /// When everything begins to take twice as long.
    doubles: f64,
}

impl Run {
    /// When it was found to have doubled by each score, each time after half an hour of silence.
    fn found(&mut self, from: f64, end: f64) -> Vec<Vec<f64>> {
        let (mut surge, mut hours, mut found) =
            (Surge::default(), Hours::default(), vec![Vec::new(); SURE.len()]);
        let (mut at, mut look, mut hour, mut shape) = (0.0, 0.0, -1.0, None);
        let (mut day, mut of_day, mut quiet) = (-1.0, 0.0, [from; SURE.len()]);
        let od = self.cell.dispersion;
        while at < end {
            if (at / DAY).floor() != day {
                day = (at / DAY).floor();
                of_day = od * normal(&mut self.random);
            }
            if (at / HOUR).floor() != hour {
                hour = (at / HOUR).floor();
                let noise = of_day + od * normal(&mut self.random) - od * od;
                shape = Some(Shape::new(self.family, 0.0, noise));
            }
            let ttft = shape.as_ref().map_or(0.06, |shape| shape.draw(&mut self.random));
            let ttft = if at < self.doubles { ttft } else { 2.0 * ttft };
            surge.add(at, ttft, Source::default(), &mut hours);
            // Nothing changes between two requests but that old ones leave: so the first look after each is enough.
            if at >= look {
                look = at + LOOK;
                let ordinary = surge.ordinary(at, &hours).filter(Ordinary::is_enough);
                let score = ordinary.and_then(|o| surge.strongest(at, &o)).map_or(0.0, |surged| surged.score);
                for (place, sure) in SURE.into_iter().enumerate() {
                    if score >= sure && at >= quiet[place] {
                        found[place].push(at);
                        quiet[place] = at + HOUR / 2.0;
                    }
                }
            }
            let load = 1.0 + 0.6 * ((at / HOUR - 8.0) / 24.0 * std::f64::consts::TAU).sin();
            at += -(1.0 - self.random.f64()).ln() * HOUR / (self.cell.per_hour * load);
        }
        found
    }
}

#[test]
#[ignore = "takes minutes; run by hand as docs/drift.md says"]
fn doubled() {
    let from_env = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let (years, runs) = (from_env("YEARS", 20), from_env("RUNS", 240));
    let spread = Cell { per_hour: 500.0, dispersion: 0.35 };
    for (family, cell) in [
        (Family::LogLogistic, spread),
        (Family::Lognormal, spread),
        (Family::Lognormal, CELLS[0]),
        (Family::Lognormal, CELLS[2]),
        (Family::Weibull, spread),
    ] {
        let years = if cell.per_hour > 1000.0 { years.div_ceil(4) } else { years };
        let run =
            |seed: u64, doubles: f64| Run { random: fastrand::Rng::with_seed(seed), family, cell, doubles };
        let quiet: Vec<_> =
            (0..years).map(|seed| run(seed, f64::INFINITY).found(3.0 * DAY, 368.0 * DAY)).collect();
        let doubling = |seed: u64| {
            // At another time of the day each.
            let doubles = 2.0 * DAY + HOUR * (seed % 24) as f64 + (seed * 7 % 60) as f64 * 60.0;
            let found = run(seed, doubles).found(doubles, doubles + 3600.0);
            found
                .into_iter()
                .map(|at| at.first().map_or(f64::INFINITY, |at| at - doubles))
                .collect::<Vec<f64>>()
        };
        let doubled: Vec<Vec<f64>> = (0..runs).map(doubling).collect();
        println!("{family:?}, {} an hour, od {}; {years} years, {runs} runs", cell.per_hour, cell.dispersion);
        for (place, sure) in SURE.into_iter().enumerate() {
            let alarms: usize = quiet.iter().map(|found| found[place].len()).sum();
            let mut delays: Vec<f64> = doubled.iter().map(|delays| delays[place]).collect();
            delays.sort_by(f64::total_cmp);
            let of = |share: f64| delays[((runs - 1) as f64 * share) as usize];
            println!(
                "  score {sure}: {:.2} false alarms a year; found after {:.0} s (median), {:.0} s (p90), {:.0} s (p99)",
                alarms as f64 / years as f64,
                of(0.5),
                of(0.9),
                of(0.99),
            );
        }
    }
}
