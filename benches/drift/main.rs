//! False alarms, detection delays and diagnoses of the drift detectors, held to what `docs/drift.md` promises.
//!
//! `cargo bench --bench drift [-- --only false-alarms|delays|diagnosis]`
//!
//! Traffic whose truth is known goes through [`tokenway::drift::detectors`] request by request, in simulated time. Seeds
//! are fixed: the same code gives the same figures, and a figure that moved was moved by a change. Exits with 1 when a
//! threshold is crossed, naming it. Thresholds leave room above what was measured; they are not goals.

mod faults;
mod traffic;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenway::drift::detectors::{Diagnosis, Finding, Kind};

use faults::FAULTS;
use traffic::{DAY, Event, Family, HOUR, REPLICAS, Route};

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut report = Report { out: io::stdout(), crossed: Vec::new() };
    if !args.iter().any(|arg| arg == "--bench") {
        // `cargo test --benches` only wants to know that it starts.
        writeln!(report.out, "drift: built; measure with `cargo bench --bench drift`")?;
        return Ok(ExitCode::SUCCESS);
    }
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1);
    for (name, section) in SECTIONS {
        if only.is_none_or(|only| only == name) {
            section(&mut report)?;
        }
    }
    for crossed in &report.crossed {
        writeln!(io::stderr(), "drift: threshold crossed: {crossed}")?;
    }
    Ok(if report.crossed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Section = fn(&mut Report) -> io::Result<()>;

const SECTIONS: [(&str, Section); 3] =
    [("false-alarms", false_alarms), ("delays", delays), ("diagnosis", diagnosis)];

/// Prints figures and remembers those beyond their threshold.
struct Report {
    out: io::Stdout,
    crossed: Vec<String>,
}

impl Report {
    fn at_most(&mut self, figure: &str, value: f64, threshold: f64) {
        if value > threshold {
            self.crossed.push(format!("{figure}: {value:.2}, at most {threshold:.2} expected"));
        }
    }
}

/// Series-years without any event, all detectors on.
fn false_alarms(report: &mut Report) -> io::Result<()> {
    writeln!(report.out, "false alarms, {YEARS} series-years each (four replicas)")?;
    writeln!(
        report.out,
        "{:<13} {:>6} {:>5} {:>12} {:>13}  by kind",
        "tail", "req/h", "od", "series-year", "replica-year"
    )?;
    for (family, per_hour, dispersion, max_per_year) in QUIET {
        let route = Route { family, per_hour, dispersion, event: Event::Nothing, start: 0.0 };
        let years = parallel(YEARS, |seed| route.findings(seed, (BURN_IN + 365.0) * DAY, |_| false));
        let counted = || years.iter().flatten().filter(|finding| finding.at > BURN_IN * DAY);
        let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
        counted().for_each(|finding| *kinds.entry(finding.kind).or_default() += 1);
        let of_replicas = counted().filter(|finding| finding.series.replica.is_some()).count();
        let per_series = (counted().count() - of_replicas) as f64 / YEARS as f64;
        let per_replica = of_replicas as f64 / (YEARS as usize * REPLICAS.len()) as f64;
        let by_kind: Vec<String> =
            kinds.iter().map(|(kind, count)| format!("{} {count}", kind.as_str())).collect();
        let name = format!("{family:?}");
        writeln!(
            report.out,
            "{name:<13} {per_hour:>6} {dispersion:>5} {per_series:>12.2} {per_replica:>13.2}  {}",
            by_kind.join(", ")
        )?;
        let figure = format!("false alarms per series-year, {name}, {per_hour} req/h, od {dispersion}");
        report.at_most(&figure, per_series, max_per_year);
        report.at_most(&figure.replace("series", "replica"), per_replica, MAX_PER_REPLICA_YEAR);
    }
    Ok(())
}

/// From the beginning of an event to its finding.
fn delays(report: &mut Report) -> io::Result<()> {
    writeln!(report.out, "delay from the event to the finding")?;
    writeln!(report.out, "{:<52} {:>4} {:>8} {:>8} {:>6}", "", "runs", "median", "p90", "missed")?;
    for (kinds, event, runs, cells) in DELAYS {
        let is_days = event == Event::TailGrows;
        let (unit, name) = if is_days { (DAY, "d") } else { (1.0, "s") };
        for (family, per_hour, dispersion, max_median, max_p90) in cells.iter().copied() {
            let mut delays = parallel(runs, |seed| {
                let start = if is_days {
                    BURN_IN * DAY
                } else {
                    // Another time of the day each.
                    2.0 * DAY + HOUR * (seed % 24) as f64 + 60.0 * (seed * 7 % 60) as f64
                };
                let end = start + if is_days { 25.0 * DAY } else { 2.0 * HOUR };
                let route = Route { family, per_hour, dispersion, event, start };
                let is_it = |finding: &Finding| finding.at >= start && kinds.contains(&finding.kind);
                let found = route.findings(seed, end, is_it);
                found.iter().find(|finding| is_it(finding)).map_or(f64::INFINITY, |f| (f.at - start) / unit)
            });
            delays.sort_by(f64::total_cmp);
            let of = |share: f64| delays[((runs - 1) as f64 * share) as usize];
            let missed = delays.iter().filter(|delay| delay.is_infinite()).count();
            let figure = format!("{event:?}, {family:?}, {per_hour} req/h, od {dispersion}");
            writeln!(
                report.out,
                "{figure:<52} {runs:>4} {:>6.1} {name} {:>6.1} {name} {missed:>6}",
                of(0.5),
                of(0.9)
            )?;
            report.at_most(&format!("median delay in {name}, {figure}"), of(0.5), max_median);
            report.at_most(&format!("p90 delay in {name}, {figure}"), of(0.9), max_p90);
        }
    }
    Ok(())
}

/// Faults in simulated engines, and how many of each are diagnosed otherwise.
fn diagnosis(report: &mut Report) -> io::Result<()> {
    writeln!(report.out, "diagnosis seven minutes after a fault, {FLEETS} fleets each")?;
    for (fault, expected) in FAULTS {
        let mut diagnoses: BTreeMap<&str, u64> = BTreeMap::new();
        for diagnosis in parallel(FLEETS, |seed| faults::diagnose(fault, 1000 + seed)) {
            *diagnoses.entry(diagnosis.map_or("none", Diagnosis::as_str)).or_default() += 1;
        }
        let wrong = FLEETS - diagnoses.get(expected.as_str()).copied().unwrap_or_default();
        let counts: Vec<String> = diagnoses.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let fault = format!("{fault:?}");
        writeln!(report.out, "{fault:<13} {}", counts.join(", "))?;
        report.at_most(&format!("wrong diagnoses of {fault}"), wrong as f64, MAX_WRONG);
    }
    Ok(())
}

/// Runs `run` for every seed below `runs` on all cores; results by seed.
fn parallel<T: Send>(runs: u64, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let worker = || {
        let seeds =
            std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|seed| *seed < runs);
        seeds.map(|seed| (seed, run(seed))).collect::<Vec<_>>()
    };
    let mut results: Vec<(u64, T)> = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no run panics")).collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Days before anything counts: the reach of the baseline, and one.
const BURN_IN: f64 = 36.0;
const YEARS: u64 = 4;
const FLEETS: u64 = 20;
const MAX_WRONG: f64 = 1.0;
const MAX_PER_REPLICA_YEAR: f64 = 0.3;

/// Tail, requests per hour, dispersion; most false alarms per series-year.
const QUIET: [(Family, f64, f64, f64); 6] = [
    (Family::Lognormal, 500.0, 0.2, 1.0),
    (Family::Lognormal, 2000.0, 0.2, 1.0),
    (Family::Lognormal, 500.0, 0.35, 3.0),
    (Family::Lognormal, 2000.0, 0.35, 3.0),
    (Family::LogLogistic, 500.0, 0.2, 1.0),
    (Family::Weibull, 500.0, 0.2, 1.0),
];

/// Tail, requests per hour, dispersion; longest median and p90.
type Cell = (Family, f64, f64, f64, f64);

const SLOW: [Kind; 2] = [Kind::TtftTailDrift, Kind::TtftDrift];
const DELAYS: [(&[Kind], Event, u64, &[Cell]); 4] = [
    (
        &SLOW,
        Event::TailGrows,
        40,
        &[
            (Family::Lognormal, 500.0, 0.2, 5.0, 8.0),
            (Family::Lognormal, 2000.0, 0.35, 6.0, 9.0),
            (Family::LogLogistic, 500.0, 0.2, 6.5, 9.0),
            (Family::Weibull, 500.0, 0.2, 4.5, 6.0),
        ],
    ),
    (
        &[Kind::TtftDoubled],
        Event::Doubles,
        96,
        &[
            (Family::Lognormal, 500.0, 0.35, 150.0, 320.0),
            (Family::Lognormal, 2000.0, 0.35, 60.0, 100.0),
            (Family::LogLogistic, 500.0, 0.35, 120.0, 260.0),
            (Family::Weibull, 500.0, 0.35, 360.0, 3600.0),
        ],
    ),
    (
        &[Kind::TtftP99OverSlo],
        Event::OverSlo,
        60,
        &[
            (Family::Lognormal, 500.0, 0.2, 2000.0, f64::INFINITY),
            (Family::Lognormal, 2000.0, 0.2, 700.0, 1500.0),
        ],
    ),
    (
        &[Kind::ReplicaSlow],
        Event::OneSlow,
        60,
        &[
            (Family::Lognormal, 500.0, 0.2, 5000.0, f64::INFINITY),
            (Family::Lognormal, 2000.0, 0.2, 4000.0, 4600.0),
        ],
    ),
];
