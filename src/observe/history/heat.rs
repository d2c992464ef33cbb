//! Rows of a heat map of latencies: half octaves from 6.4 ms to 105 s.

use crate::stats::Counts;

/// Counts by row; what lies outside counts in the first or the last.
pub fn heat(counts: &Counts) -> Vec<u64> {
    let mut heat = vec![0; ROWS];
    for (seconds, count) in counts.values() {
        // A negative row saturates to the first.
        let row = ((seconds / LOWEST).log2() * 2.0) as usize;
        if let Some(sum) = heat.get_mut(row.min(ROWS - 1)) {
            *sum += u64::from(count);
        }
    }
    heat
}

/// Lower edges of the rows, in seconds.
pub fn heat_edges() -> Vec<f64> {
    (0..ROWS).map(|row| LOWEST * (row as f64 / 2.0).exp2()).collect()
}

/// Seconds.
const LOWEST: f64 = 0.0064;
const ROWS: usize = 28;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Histogram;

    fn heat_of(seconds: f64) -> Vec<u64> {
        let mut histogram = Histogram::default();
        histogram.add(Duration::from_secs_f64(seconds), 1);
        heat(&histogram.counts())
    }

    #[test]
    fn rows_of_the_heat_map_begin_at_their_edges() {
        let edges = heat_edges();
        assert!((edges[0] - 0.0064).abs() < 1e-9 && edges.len() == ROWS);
        for (row, edge) in edges.iter().enumerate() {
            assert_eq!(heat_of(edge * 1.01)[row], 1, "{edge}");
        }
    }

    #[test]
    fn what_is_out_of_range_counts_at_the_ends() {
        assert_eq!((heat_of(0.0).first(), heat_of(86_400.0).last()), (Some(&1), Some(&1)));
    }
}
