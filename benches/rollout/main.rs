//! `cargo bench --bench rollout`: how often the judge of canaries is wrong, and how soon it is right.
//!
//! A thousand revisions of each kind by default. `cargo bench --bench rollout -- 100` runs fewer, `-- 500..1000 Noise` those seeds of one
//! kind. The figures are in `docs/rollouts.md`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a program of its own")]

mod traffic;

use tokenway::config::check::check_str;
use traffic::{Revision, run_late};

const FILE: &str = "[[pool]]\nname = \"old\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"new\"\n\
    replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"old\"]\n[route.canary]\npool = \"new\"\n\
    steps = [{ weight = 10, soak = \"1h\" }]\n";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let seeds = args.first().map_or(0..1000, |text| match text.split_once("..") {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..text.parse().unwrap(),
    });
    let count = seeds.end - seeds.start;
    let config = check_str("bench", FILE, &|_| None).unwrap();
    let bounds = config.routes[0].canary.clone().unwrap();
    println!(
        "| revision | requests/s | good before | canary requests at most | stopped | too soon | median | p90 | p99 | by |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    // Canary requests that do not count because it was good, and those in which it has to be found.
    for (revision, rate, good, requests) in [
        (Revision::Fine, 100.0, 0, 20_000),
        (Revision::Noise, 100.0, 0, 20_000),
        (Revision::Sticky, 8.0, 0, 5_000),
        (Revision::Tail, 100.0, 0, 20_000),
        (Revision::Tail, 100.0, 20_000, 20_000),
        (Revision::LongPrompts, 100.0, 0, 20_000),
        (Revision::Failing, 100.0, 0, 20_000),
        (Revision::SlowTokens, 100.0, 0, 20_000),
        (Revision::SlowTokens, 100.0, 20_000, 20_000),
        (Revision::SlowTokensAmongStalls, 100.0, 0, 20_000),
        (Revision::Hanging, 100.0, 0, 3_000),
        (Revision::Short, 100.0, 0, 3_000),
        (Revision::SlowUnary, 100.0, 0, 3_000),
        (Revision::StickyBroken, 8.0, 0, 1_000),
        (Revision::Broken, 1500.0, 0, 3_000),
        (Revision::Stuck, 1500.0, 0, 3_000),
        (Revision::Fine, 2.0, 0, 3_000),
        (Revision::Stuck, 2.0, 0, 3_000),
        (Revision::Broken, 2.0, 0, 3_000),
    ] {
        if args.get(1).is_some_and(|kind| *kind != format!("{revision:?}")) {
            continue;
        }
        let ends: Vec<_> =
            seeds.clone().map(|seed| run_late(&bounds, revision, rate, seed, [good, requests])).collect();
        let too_soon = ends.iter().filter(|ending| ending.is_false).count();
        let ends: Vec<_> = ends
            .iter()
            .filter(|ending| !ending.is_false)
            .filter_map(|ending| ending.stopped.as_ref())
            .collect();
        let mut when: Vec<u64> = ends.iter().map(|(requests, _)| *requests).collect();
        when.sort_unstable();
        let at = |share: f64| {
            let rank = (share * count as f64) as usize;
            when.get(rank).map_or("never".to_owned(), u64::to_string)
        };
        let mut tests: Vec<_> = ends.iter().map(|(_, test)| &**test).collect();
        tests.sort_unstable();
        tests.dedup();
        println!(
            "| {revision:?} | {rate} | {good} | {requests} | {} of {count} | {too_soon} | {} | {} | {} | {} |",
            ends.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            tests.join(", ")
        );
    }
}
