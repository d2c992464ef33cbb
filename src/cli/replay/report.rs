//! What a replay prints: a table of means over the seeds, or every run as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
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

/// Prints every run.
pub(super) fn json(lines: &[ReportLine], out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, lines).map_err(io::Error::other)?;
    writeln!(out)
}

/// Prints the header, and one row for each contender and setting.
pub(super) fn table(header: &str, lines: &[ReportLine], out: &mut dyn Write) -> io::Result<()> {
    let name = |line: &ReportLine| {
        let config = line.config.as_ref().map_or(String::new(), |config| format!(" ({config})"));
        let gateways = match (line.gateways, line.gateways_alone) {
            (1, _) => String::new(),
            (count, false) => format!(", {count} gateways"),
            (count, true) => format!(", {count} gateways alone"),
        };
        format!("{}{config}{gateways}", line.policy)
    };
    let mut rows = Vec::new();
    for runs in lines.chunk_by(|a, b| a.group == b.group) {
        let Some(first) = runs.first() else { continue };
        let mut cells = vec![name(first)];
        cells.push(match first.prefill_replicas {
            0 => first.replicas.to_string(),
            prefill => format!("{prefill}+{}", first.replicas - prefill),
        });
        cells.push(format!("{}", first.load));
        cells.push(format!("{}", first.signals_age_s));
        cells.extend(figures(runs));
        rows.push(cells);
    }
    writeln!(out, "{header}")?;
    write!(out, "{}", grid(&HEADINGS, &rows))
}

/// A figure with that number of decimals, or a dash where no request has one.
pub(in crate::cli) fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "-".to_owned() }
}

/// Rows below their headings, the first column to the left.
pub(in crate::cli) fn grid(headings: &[&str], rows: &[Vec<String>]) -> String {
    let first = rows.iter().filter_map(|row| row.first()).map(String::len).max().unwrap_or(0);
    let heading = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let mut out = String::new();
    for row in std::iter::once(&heading).chain(rows) {
        for (at, (cell, heading)) in row.iter().zip(headings).enumerate() {
            let _ = match at {
                0 => write!(out, "{cell:<wide$}", wide = first.max(heading.len())),
                _ => write!(out, "  {cell:>wide$}", wide = heading.len().max(WIDEST_FIGURE)),
            };
        }
        out.push('\n');
    }
    out
}

/// Prints the engine file, and on `err` how well it fits.
pub(super) fn fit(fit: &Fit, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &fit.engine).map_err(io::Error::other)?;
    writeln!(out)?;
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

fn figures(runs: &[ReportLine]) -> Vec<String> {
    let mean = |of: &dyn Fn(&Figures) -> f64| {
        runs.iter().map(|line| of(&line.figures)).sum::<f64>() / runs.len().max(1) as f64
    };
    let seconds = |of: &dyn Fn(&Figures) -> f64| figure(mean(of), 3);
    let percent = |of: &dyn Fn(&Figures) -> f64| figure(100.0 * mean(of), 2);
    let predicted = |of: fn(&Prediction) -> f64| {
        let predicts = runs.iter().all(|line| line.figures.prediction.is_some());
        let of_run = |f: &Figures| f.prediction.as_ref().map_or(0.0, of);
        if predicts { figure(100.0 * mean(&of_run), 1) } else { "-".to_owned() }
    };
    vec![
        percent(&|f| f.violations),
        percent(&|f| f.ttft_violations),
        percent(&|f| f.tpot_violations),
        percent(&|f| f.itl_violations),
        figure(mean(&|f| f.goodput_per_second), 2),
        seconds(&|f| f.ttft_p50_s),
        seconds(&|f| f.ttft_p90_s),
        seconds(&|f| f.ttft_p99_s),
        seconds(&|f| f.tpot_p99_s),
        figure(mean(&|f| f.hit_rate), 3),
        format!("{:.2}", mean(&|f| f.load_spread)),
        percent(&|f| f.held_share),
        seconds(&|f| f.held_p99_s),
        percent(&|f| f.refused),
        percent(&|f| f.apart),
        predicted(|p| p.error_p50),
        predicted(|p| p.error_p90),
    ]
}

const HEADINGS: [&str; 21] = [
    "policy", "n", "load", "age s", "miss %", "ttft %", "tpot %", "itl %", "good/s", "ttft p50", "ttft p90",
    "ttft p99", "tpot p99", "hit", "spread", "held %", "held p99", "refused %", "apart %", "err p50 %",
    "err p90 %",
];
const WIDEST_FIGURE: usize = 5;
