//! The table at the end: medians of each proxy, and the ratio repetition by repetition.
//!
//! A ratio is taken between neighbours in time and then its median, because the machine's speed moves more
//! between two minutes than the two proxies differ.

use std::collections::BTreeMap;
use std::io::Write;

use crate::Failure;
use crate::workload::Figure;

/// Collected figures of all repetitions.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

struct Row {
    workload: &'static str,
    figure: &'static str,
    unit: &'static str,
    goal: Option<f64>,
    values: BTreeMap<&'static str, Vec<f64>>,
}

impl Report {
    /// Takes the figures of one run.
    pub(crate) fn add(&mut self, workload: &'static str, proxy: &'static str, figures: Vec<Figure>) {
        for figure in figures {
            let is_same = |row: &&mut Row| row.workload == workload && row.figure == figure.name;
            if let Some(row) = self.rows.iter_mut().find(is_same) {
                row.values.entry(proxy).or_default().push(figure.value);
            } else {
                let values = BTreeMap::from([(proxy, vec![figure.value])]);
                let Figure { name, unit, goal, .. } = figure;
                self.rows.push(Row { workload, figure: name, unit, goal, values });
            }
        }
    }

    /// Prints the table.
    pub(crate) fn print(&self, pinned: bool, out: &mut impl Write) -> Result<(), Failure> {
        let place = if pinned { "proxies on CPU 0, engine and client on CPU 1" } else { "not pinned" };
        writeln!(out, "relay: medians; ratio = gateway / floor with its range over repetitions; {place}")?;
        writeln!(
            out,
            "{:<12} {:<18} {:>12} {:>12} {:>20} {:>6}",
            "workload", "figure", "floor", "gateway", "ratio", "goal"
        )?;
        for row in &self.rows {
            row.print(out)?;
        }
        Ok(())
    }
}

impl Row {
    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let of = |proxy: &str| self.values.get(proxy).map(Vec::as_slice).unwrap_or_default();
        let (floor, gateway) = (of("floor"), of("gateway"));
        let ratios: Vec<f64> = gateway.iter().zip(floor).map(|(ours, theirs)| ours / theirs).collect();
        let ratio = ratios.iter().copied().reduce(f64::min).zip(ratios.iter().copied().reduce(f64::max));
        let ratio = match ratio {
            Some((least, most)) => format!("{:.2} ({least:.2}-{most:.2})", median(&ratios)),
            None => "-".to_owned(),
        };
        let shown = |values: &[f64]| match values {
            [] => "-".to_owned(),
            values => format!("{:.2} {}", median(values), self.unit),
        };
        writeln!(
            out,
            "{:<12} {:<18} {:>12} {:>12} {ratio:>20} {:>6}",
            self.workload,
            self.figure,
            shown(floor),
            shown(gateway),
            self.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal}"))
        )?;
        Ok(())
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}
