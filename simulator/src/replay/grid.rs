//! Runs of a grid, several at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::tally::Figures;

/// Runs every cell of a grid on up to `threads` threads; figures come in the order of `cells`.
///
/// Runs share nothing, so the figures do not depend on the number of threads.
#[must_use]
pub fn run_grid<C: Sync>(cells: &[C], threads: usize, run: impl Fn(&C) -> Figures + Sync) -> Vec<Figures> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Figures)>> = Mutex::new(Vec::with_capacity(cells.len()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(at) else { return };
            let figures = run(cell);
            results.lock().push((at, figures));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, cells.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, figures)| figures).collect()
}
