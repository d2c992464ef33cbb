//! What a replay prints: a table of means over the seeds, or every run as JSON.

use std::io::{self, Write};

use serde::Serialize;
use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{Figures, Fit, Prediction};

use super::plan::{GridCell, Plan};

#[derive(Debug, Serialize)]
pub(super) struct ReportLine {
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    replicas: usize,
    gateways: usize,
    gateways_alone: bool,
    /// Of them, those that compute prompts for the others.
    prefill_replicas: usize,
    load: f64,
    signals_age_s: f64,
    slow: Vec<(usize, f64)>,
    jitter: f64,
    max_batched_tokens: u64,
    seed: u64,
    #[serde(flatten)]
    figures: Figures,
    /// Entrant and setting: what the runs of several seeds have in common.
    #[serde(skip)]
    group: (usize, usize),
}

pub(super) fn lines(plan: &Plan, figures: &[Figures]) -> Vec<ReportLine> {
    let line = |(cell, figures): (&GridCell, &Figures)| {
        let (entrant, setting) = (&plan.entrants[cell.entrant], &plan.settings[cell.setting]);
        ReportLine {
            policy: entrant.contender.as_str(),
            config: entrant.config.clone(),
            replicas: setting.replicas,
            gateways: setting.gateways.0,
            gateways_alone: setting.gateways.1,
            prefill_replicas: entrant.prefill_replicas(setting),
            load: setting.load,
            signals_age_s: setting.scrape_interval.as_secs_f64(),
            slow: setting.slow.clone(),
            jitter: setting.engine.cost.jitter,
            max_batched_tokens: setting.engine.max_batched_tokens,
            seed: cell.seed,
            figures: figures.clone(),
            group: (cell.entrant, cell.setting),
        }
    };
    plan.cells.iter().zip(figures).map(line).collect()
}

pub(super) fn json(lines: &[ReportLine], out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, lines)?;
    writeln!(out)
}

/// Prints the header, and one row for each contender and setting.
pub(super) fn table(header: &str, lines: &[ReportLine], out: &mut dyn Write) -> io::Result<()> {
    let groups = lines.chunk_by(|a, b| a.group == b.group);
    let rows = groups.map(|runs| COLUMNS.map(|(_, cell)| cell(runs)).to_vec());
    let headings = COLUMNS.map(|(heading, _)| heading.to_owned()).to_vec();
    writeln!(out, "{header}")?;
    write!(out, "{}", grid(&Vec::from_iter(std::iter::once(headings).chain(rows)), 1))
}

fn name(runs: &[ReportLine]) -> String {
    let line = &runs[0];
    let config = line.config.as_ref().map_or(String::new(), |config| format!(" ({config})"));
    let gateways = match (line.gateways, line.gateways_alone) {
        (1, _) => String::new(),
        (count, false) => format!(", {count} gateways"),
        (count, true) => format!(", {count} gateways alone"),
    };
    format!("{}{config}{gateways}", line.policy)
}

fn replicas(runs: &[ReportLine]) -> String {
    match (runs[0].replicas, runs[0].prefill_replicas) {
        (all, 0) => all.to_string(),
        (all, prefill) => format!("{prefill}+{}", all - prefill),
    }
}

/// A figure with that number of decimals, or a dash where no request has one.
pub(in crate::cli) fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "-".to_owned() }
}

/// Rows of cells, the first of them headings: `names` to the left, then figures to the right.
pub(in crate::cli) fn grid(rows: &[Vec<String>], names: usize) -> String {
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let cell = |(at, cell): (usize, &String)| match (at < names, width(at).unwrap_or_default()) {
        (true, width) => format!("{cell:<width$}"),
        (false, width) => format!("{cell:>0$}", width.max(NARROWEST_FIGURE)),
    };
    let line = |row: &Vec<String>| row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ") + "\n";
    rows.iter().map(line).collect()
}

/// Prints the engine file, and on `err` how well it fits.
pub(super) fn fit(
    fit: &Fit,
    default: &EngineConfig,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &fit.engine)?;
    writeln!(out)?;
    let open: Vec<_> = fit.engine.open_limits(default).into_iter().map(|(name, _)| name).collect();
    if !open.is_empty() {
        writeln!(err, "not in a recording: add your engine's {} to the file", open.join(", "))?;
    }
    writeln!(err, "outside of the engine: {:.1} ms of each TTFT", 1_000.0 * fit.overhead_s)?;
    for (which, error) in [("fitted", &fit.fitted), ("held out", &fit.held_out)] {
        let percent = |share: f64| 100.0 * share;
        writeln!(
            err,
            "{which}: {} requests, TTFT off by {:.1} % (median) and {:.1} % (p90), TPOT by {:.1} % and {:.1} %; \
             median model / measured {:.3} and {:.3}",
            error.requests,
            percent(error.ttft_p50),
            percent(error.ttft_p90),
            percent(error.tpot_p50),
            percent(error.tpot_p90),
            error.ttft_ratio,
            error.tpot_ratio
        )?;
    }
    Ok(())
}

fn mean(runs: &[ReportLine], of: impl Fn(&Figures) -> f64) -> f64 {
    runs.iter().map(|line| of(&line.figures)).sum::<f64>() / runs.len() as f64
}

fn seconds(runs: &[ReportLine], of: fn(&Figures) -> f64) -> String {
    figure(mean(runs, of), 3)
}

fn percent(runs: &[ReportLine], of: fn(&Figures) -> f64) -> String {
    figure(100.0 * mean(runs, of), 2)
}

fn predicted(runs: &[ReportLine], of: fn(&Prediction) -> f64) -> String {
    let all = mean(runs, |figures| figures.prediction.as_ref().map_or(f64::NAN, of));
    figure(100.0 * all, 1)
}

/// A heading, and what stands below it for the runs of one contender in one setting, of which there is at least one.
type Column = (&'static str, fn(&[ReportLine]) -> String);

const COLUMNS: [Column; 21] = [
    ("policy", name),
    ("n", replicas),
    ("load", |runs| runs[0].load.to_string()),
    ("age s", |runs| runs[0].signals_age_s.to_string()),
    ("miss %", |runs| percent(runs, |f| f.violations)),
    ("ttft %", |runs| percent(runs, |f| f.ttft_violations)),
    ("tpot %", |runs| percent(runs, |f| f.tpot_violations)),
    ("itl %", |runs| percent(runs, |f| f.itl_violations)),
    ("good/s", |runs| figure(mean(runs, |f| f.goodput_per_second), 2)),
    ("ttft p50", |runs| seconds(runs, |f| f.ttft_p50_s)),
    ("ttft p90", |runs| seconds(runs, |f| f.ttft_p90_s)),
    ("ttft p99", |runs| seconds(runs, |f| f.ttft_p99_s)),
    ("tpot p99", |runs| seconds(runs, |f| f.tpot_p99_s)),
    ("hit", |runs| seconds(runs, |f| f.hit_rate)),
    ("spread", |runs| format!("{:.2}", mean(runs, |f| f.load_spread))),
    ("held %", |runs| percent(runs, |f| f.held_share)),
    ("held p99", |runs| seconds(runs, |f| f.held_p99_s)),
    ("refused %", |runs| percent(runs, |f| f.refused)),
    ("apart %", |runs| percent(runs, |f| f.apart)),
    ("err p50 %", |runs| predicted(runs, |p| p.error_p50)),
    ("err p90 %", |runs| predicted(runs, |p| p.error_p90)),
];
const NARROWEST_FIGURE: usize = 5;
