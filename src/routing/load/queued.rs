//! What an engine's page and our own streams show together of how many it runs at once: engines in simulated time.

use std::collections::VecDeque;

use super::tests::placed;
use super::*;
use crate::clock::millis as ms;
use crate::routing::{EngineLimits, EnginePage, Target};

/// An engine that computes prompts side by side.
#[derive(Clone, Copy)]
struct Engine {
    /// Requests that it takes at once.
    places: usize,
    /// Milliseconds from a place to the first token.
    first: u64,
    /// Milliseconds between its pages.
    every: u64,
    /// What its page shows of those that have a place: with a first token, without one; and of those that have none.
    page: fn(f64, f64, f64) -> EnginePage,
}

const DECODES: u64 = 200;

/// Behind a place.
struct Served {
    guard: LoadGuard,
    first: u64,
    has_begun: bool,
}

/// Its limit at the end of each second, with requests at random `gaps` of so many milliseconds on average, by the second.
fn limits(engine: Engine, seconds: u64, gap: impl Fn(u64) -> u64) -> Vec<Option<u64>> {
    let target = Target::new(0, 1);
    let (mut queue, mut served) = (VecDeque::new(), Vec::<Served>::new());
    let (mut limits, mut next, mut random) = (Vec::new(), 1, 7u64);
    for now in 1..=seconds * 1000 {
        served.retain_mut(|one| {
            if now == one.first {
                one.guard.first_token(ms(now));
                one.has_begun = true;
            }
            if one.has_begun {
                one.guard.progress(1 + (now - one.first) / 20, ms(now));
            }
            now < one.first + DECODES
        });
        if now == next {
            queue.push_back(LoadGuard::reserve(&target.load, placed(now, 100)));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (random >> 33) as f64 / f64::from(1u32 << 31);
            next = now + 1 + (-(gap(now / 1000) as f64) * (1.0 - share).ln()) as u64;
        }
        while served.len() < engine.places {
            let Some(guard) = queue.pop_front() else { break };
            served.push(Served { guard, first: now + engine.first, has_begun: false });
        }
        if now % engine.every == 0 {
            let begun = served.iter().filter(|one| one.has_begun).count();
            let page = (engine.page)(begun as f64, (served.len() - begun) as f64, queue.len() as f64);
            target.scraped(page, ms(now));
        }
        if now % 1000 == 0 {
            limits.push(target.load.batch_limit());
        }
    }
    limits
}

fn page(running: f64, waiting: f64) -> EnginePage {
    EnginePage { running: Some(running), waiting: Some(waiting), ..EnginePage::default() }
}

/// A vLLM with many places, whose first tokens take 100 ms whatever it does.
const ROOMY: Engine = Engine {
    places: 256,
    first: 100,
    every: 1000,
    page: |begun, computed, queued| page(begun + computed, queued),
};
const FULL: Engine = Engine { places: 4, ..ROOMY };
/// What it has not got to is with its server, which has no figure for it.
const IN_FRONT: fn(f64, f64, f64) -> EnginePage = |begun, computed, _| page(begun + computed, 0.0);

#[test]
fn first_tokens_that_take_their_time_are_no_queue_where_the_page_shows_none() {
    let surge = |second| if second < 30 { 100 } else { 25 };
    let engines = [
        ("a network between", ROOMY),
        (
            "pictures are prepared by the server in front",
            Engine { first: 500, page: |begun, _, _| page(begun, 0.0), ..ROOMY },
        ),
        ("a page is read rarely", Engine { every: 15_000, ..ROOMY }),
    ];
    for (name, engine) in engines {
        let found = limits(engine, 120, surge);
        // Before the first page nothing speaks against a queue.
        let known = &found[engine.every as usize / 1000..];
        assert!(known.iter().all(Option::is_none), "{name}: {found:?}");
    }
}

#[test]
fn a_full_engine_is_found_whatever_it_was_before_and_whatever_its_page_leaves_out() {
    let engines = [
        ("vLLM", FULL, 5),
        ("its server holds back what it has no place for", Engine { page: IN_FRONT, ..FULL }, 15),
        (
            "no waiting figure",
            Engine {
                page: |begun, computed, _| EnginePage { waiting: None, ..page(begun + computed, 0.0) },
                ..FULL
            },
            5,
        ),
        ("a page is read rarely", Engine { every: 15_000, ..FULL }, 20),
    ];
    for (name, engine, within) in engines {
        let found = limits(engine, 60, |second| if second < 30 { 500 } else { 40 });
        assert!(found[..30].iter().all(Option::is_none), "{name}: {found:?}");
        assert!(found[30 + within..].iter().all(|limit| matches!(limit, Some(3..=5))), "{name}: {found:?}");
    }
}

#[test]
fn what_others_pass_teaches_no_limit() {
    let target = Target::new(0, 1);
    // A grammar that compiles, an adapter that loads.
    let _slow = LoadGuard::reserve(&target.load, placed(0, 100));
    let mut running: VecDeque<LoadGuard> = VecDeque::new();
    for n in 1..100 {
        let mut guard = LoadGuard::reserve(&target.load, placed(n * 100, 100));
        guard.first_token(ms(n * 100 + 10));
        guard.progress(9, ms(n * 100 + 500));
        running.push_back(guard);
        if running.len() > 5 {
            running.pop_front();
        }
    }
    assert_eq!(target.load.batch_limit(), None);
}

#[test]
fn a_limit_is_let_go_once_more_than_that_run_and_none_waits() {
    let mut guards: VecDeque<_> = VecDeque::new();
    let target = Target::new(0, 1);
    let mut waits = None;
    let mut begin = |at| {
        let mut guard = LoadGuard::reserve(&target.load, placed(at, 100));
        // The next one.
        waits.replace(LoadGuard::reserve(&target.load, placed(at + 1, 100)));
        guard.first_token(ms(at + 10));
        guard.progress(9, ms(at + 500));
        guards.push_back(guard);
        if guards.len() > 3 { guards.pop_front() } else { None }
    };
    (0..20).for_each(|n| drop(begin(n * 1000)));
    assert_eq!(target.load.batch_limit(), Some(4));
    target.scraped(page(4.0, 0.0), ms(20_000));
    let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
    let shown = target.signals(ms(20_000), &limits).unwrap();
    assert_eq!((shown.page.batch_limit, shown.set_batch_limit), (Some(4), None), "it is not configured");
    target.scraped(page(9.0, 2.0), ms(21_000));
    assert_eq!(target.load.batch_limit(), Some(4), "where some wait it may be full of others'");
    target.scraped(page(5.0, 0.0), ms(22_000));
    assert_eq!(target.load.batch_limit(), None);
}
