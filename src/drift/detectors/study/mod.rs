//! The study behind `docs/drift.md`: false alarms and delays of the detectors, on fleets whose truth is known.
//!
//! Ignored by default, because it takes minutes; the document has the commands. Nothing outside tests uses it.

mod bound;
mod faults;
mod minutes;
mod tails;
mod whole;

use super::blocks::{Blocks, PARTS};
use super::histogram::{BINS, Dense, Sparse};
use super::scale::normal;
use super::series::{REPLICA_THRESHOLD, THRESHOLD};
use super::slow::{self, SlowSetup};
use tails::{Family, Shape, bins_of_the_tail, sample};

const SETUP: SlowSetup = SlowSetup { from: 35, lag: 7, threshold: THRESHOLD };
const BURN_IN: usize = 60;
const QUIET_DAYS: usize = 14;

/// Load and overdispersion of a fleet, as in the research that set the goals: requests an hour, and the standard
/// deviation (logarithm) of the share of slow requests from hour to hour and again from day to day.
#[derive(Clone, Copy)]
struct Cell {
    per_hour: f64,
    dispersion: f64,
}

const CELLS: [Cell; 4] = [
    Cell { per_hour: 500.0, dispersion: 0.2 },
    Cell { per_hour: 2000.0, dispersion: 0.2 },
    Cell { per_hour: 2000.0, dispersion: 0.35 },
    Cell { per_hour: 10_000.0, dispersion: 0.35 },
];

#[derive(Clone, Copy)]
struct World {
    cell: Cell,
    family: Family,
    /// Whether single days are now and then far off (Student's t with 5 degrees of freedom).
    has_bad_days: bool,
    /// Share of the noise that all four replicas have in common.
    common: f64,
}

const REPLICAS: usize = 4;

/// Parts of the route and of each replica for `days`; p99 drifts from `start` on.
fn fleet(random: &mut fastrand::Rng, world: &World, days: usize, start: Option<usize>) -> Vec<Vec<Sparse>> {
    let mut all = vec![Vec::new(); REPLICAS + 1];
    let (od, grid) = (world.cell.dispersion, bins_of_the_tail());
    for day in 0..days {
        let days_noise = shared(random, world);
        let (mut route, mut dense) = (Dense::default(), Dense::default());
        let mut expected = vec![[0.0; BINS]; REPLICAS];
        for hour in 0..24 {
            let hours_noise = shared(random, world);
            let load = 1.0 + 0.6 * ((hour as f64 - 8.0) / 24.0 * std::f64::consts::TAU).sin();
            let drifted = start.map_or(0.0, |start| day as f64 + hour as f64 / 24.0 - start as f64);
            for (replica, expected) in expected.iter_mut().enumerate() {
                let noise = od * (days_noise[replica] + hours_noise[replica]) - od * od;
                // Where all noise is common, the second stands for all replicas but the first: that is all that is
                // looked at, and half of the time.
                let share = match (world.common == 1.0, replica) {
                    (false, _) | (true, 0) => 1.0,
                    (true, 1) => REPLICAS as f64 - 1.0,
                    (true, _) => continue,
                };
                let requests = world.cell.per_hour * load * share / REPLICAS as f64;
                Shape::new(world.family, drifted, noise).expect(requests, &grid, expected);
            }
            if (hour + 1) % (24 / PARTS) == 0 {
                for (expected, parts) in expected.iter_mut().zip(&mut all[1..]) {
                    sample(random, expected, &mut dense);
                    *expected = [0.0; BINS];
                    let part = dense.take();
                    route.merge(&part);
                    parts.push(part);
                }
                all[0].push(route.take());
            }
        }
    }
    all
}

fn shared(random: &mut fastrand::Rng, world: &World) -> [f64; REPLICAS] {
    let draw = |random: &mut fastrand::Rng| {
        let z = normal(random);
        if !world.has_bad_days {
            return z;
        }
        let chi: f64 = (0..5).map(|_| normal(random).powi(2)).sum();
        z / (chi / 5.0).sqrt() / (5.0_f64 / 3.0).sqrt()
    };
    let common = draw(random);
    let mut own = [0.0; REPLICAS];
    for value in &mut own {
        *value = world.common.sqrt() * common + (1.0 - world.common).sqrt() * draw(random);
    }
    own
}

/// Days at which a series alarms, judged after every part from the burn-in on.
fn alarms(parts: &[Sparse], threshold: f64, first_only: bool) -> Vec<f64> {
    let setup = SlowSetup { threshold, ..SETUP };
    let mut rolling = Blocks::new(86_400.0, 36.0 * 86_400.0);
    let (mut found, mut quiet) = (Vec::new(), BURN_IN * PARTS);
    for (at, part) in parts.iter().enumerate() {
        rolling.restore(at as i64, part.clone());
        if at + 1 < quiet {
            continue;
        }
        if slow::judge(&rolling, &setup).is_some() {
            found.push((at + 1) as f64 / PARTS as f64);
            quiet = at + QUIET_DAYS * PARTS;
            if first_only {
                return found;
            }
        }
    }
    found
}

struct Row {
    false_alarms: f64,
    of_replicas: f64,
    /// In days, ascending; infinite where it was missed.
    delays: Vec<f64>,
}

impl Row {
    fn new(false_alarms: f64, of_replicas: f64, mut delays: Vec<f64>) -> Self {
        delays.sort_by(f64::total_cmp);
        Self { false_alarms, of_replicas, delays }
    }

    fn at(&self, share: f64) -> f64 {
        self.delays[(self.delays.len() as f64 * share) as usize]
    }

    fn print(&self, world: &World, fleets: usize) {
        println!(
            "{:<14} {:<7} {:<7} {:<6} {:<5} {fleets:<7} {:<11.2} {:<13.2} {:<7.1} {:<5.1} {}",
            format!("{:?}", world.family),
            if world.has_bad_days { "t5" } else { "normal" },
            world.common,
            world.cell.per_hour,
            world.cell.dispersion,
            self.false_alarms,
            self.of_replicas,
            self.at(0.5),
            self.at(0.9),
            self.delays.iter().filter(|day| day.is_infinite()).count(),
        );
    }
}

/// Half of the fleets on each of two threads.
fn measure_halves(world: &World, fleets: usize, thresholds: (f64, f64), seed: u64) -> Row {
    let (one, other) = std::thread::scope(|scope| {
        let half = scope.spawn(|| measure(world, fleets / 2, thresholds, seed));
        let rest = measure(world, fleets - fleets / 2, thresholds, seed + 500);
        (half.join().unwrap(), rest)
    });
    let (a, b) = (one.delays.len() as f64, other.delays.len() as f64);
    let mean = |pick: fn(&Row) -> f64| (a * pick(&one) + b * pick(&other)) / (a + b);
    let (of_series, of_replicas) = (mean(|row| row.false_alarms), mean(|row| row.of_replicas));
    Row::new(of_series, of_replicas, one.delays.into_iter().chain(other.delays).collect())
}

/// `fleets` fleets for a year without drift, and as many that drift.
fn measure(world: &World, fleets: usize, thresholds: (f64, f64), seed: u64) -> Row {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut route, mut replicas, mut delays) = (0, 0, Vec::new());
    for _ in 0..fleets {
        let year = fleet(&mut random, world, BURN_IN + 365, None);
        route += alarms(&year[0], thresholds.0, false).len();
        replicas += alarms(&year[1], thresholds.1, false).len();
        let drifting = fleet(&mut random, world, BURN_IN + 25, Some(BURN_IN));
        let found = alarms(&drifting[0], thresholds.0, true);
        delays.push(found.first().map_or(f64::INFINITY, |day| day - BURN_IN as f64));
    }
    let of = |count: usize| count as f64 / fleets.max(1) as f64;
    Row::new(of(route), of(replicas), delays)
}

/// False alarms and delays of the slow detector over cells, families and kinds of noise.
#[test]
#[ignore = "takes minutes; run by hand as docs/drift.md says"]
fn slow_drift() {
    let from_env = |name: &str, or: f64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let most = from_env("FLEETS", 40.0) as usize;
    let others = from_env("OTHERS", (most / 5) as f64) as usize;
    let thresholds = (from_env("THRESHOLD", THRESHOLD), from_env("REPLICA_THRESHOLD", REPLICA_THRESHOLD));
    // The score was chosen on the fleets of the default: others say whether it was chosen for them.
    let seed = from_env("SEED", 1000.0) as u64;
    println!(
        "family         noise   common  req/h  od    fleets  false/year  of a replica  median  p90   missed"
    );
    for (family, has_bad_days, common) in [
        (Family::Lognormal, false, 1.0),
        (Family::Lognormal, true, 1.0),
        (Family::LogLogistic, false, 1.0),
        (Family::Weibull, false, 1.0),
        (Family::Lognormal, false, 0.5),
    ] {
        // The generator that the goals name gets most of the time; the others show that nothing was fitted to it.
        let is_named = matches!(family, Family::Lognormal) && !has_bad_days && common == 1.0;
        let fleets = if is_named { most } else { others };
        if fleets == 0 {
            continue;
        }
        let mut all = Vec::new();
        for (at, cell) in CELLS.into_iter().enumerate() {
            let world = World { cell, family, has_bad_days, common };
            let row = measure_halves(&world, fleets, thresholds, seed + at as u64);
            row.print(&world, fleets);
            all.push(row);
        }
        let rows = all.len() as f64;
        let mean = |pick: fn(&Row) -> f64| all.iter().map(pick).sum::<f64>() / rows;
        let pooled = Row::new(
            mean(|row| row.false_alarms),
            mean(|row| row.of_replicas),
            all.iter().flat_map(|row| row.delays.iter().copied()).collect(),
        );
        println!(
            "{:<14} all of them: {:.2} false alarms a series and year, of a replica {:.2}; found on day {:.1} / {:.1}",
            "",
            pooled.false_alarms,
            pooled.of_replicas,
            pooled.at(0.5),
            pooled.at(0.9),
        );
    }
}
