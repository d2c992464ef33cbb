//! The engine's behaviour, in simulated time.

use super::*;

fn config() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 2,
        max_batched_tokens: 4_096,
        cost: CostModel {
            prefill_tokens_per_second: 1_000.0,
            step: Duration::from_millis(10),
            step_per_seq: Duration::ZERO,
            jitter: 0.0,
            ..CostModel::default()
        },
        block_size: 16,
        num_blocks: 256,
        ..EngineConfig::default()
    }
}

fn job(first: u32, prompt: usize, output: usize) -> Work {
    rooted(0, first, prompt, output)
}

fn rooted(root: u64, first: u32, prompt: usize, output: usize) -> Work {
    let tokens: Vec<u32> = (first..).take(prompt + output).collect();
    Work::of(&tokens, prompt, root, 16)
}

fn at(ms: u64) -> Stamp {
    Stamp::from_nanos(ms * 1_000_000)
}

fn run(engine: &mut Engine) -> Vec<EngineEvent> {
    let mut out = Vec::new();
    while let Some(next) = engine.next_event_at() {
        engine.advance(next, &mut out);
    }
    out
}

fn first_token_ms(events: &[EngineEvent], id: JobId) -> u128 {
    let first = events.iter().find(|e| e.job == id && e.index == 0).unwrap();
    first.at.since(at(0)).as_millis()
}

#[test]
fn prefill_takes_its_tokens_and_decoding_one_step_a_token() {
    let mut engine = Engine::new(config(), 1);
    let id = engine.submit(at(0), job(0, 101, 3)).unwrap();
    let events = run(&mut engine);
    let times: Vec<u128> = events.iter().map(|e| e.at.since(at(0)).as_millis()).collect();
    assert_eq!(times, [110, 120, 130]);
    assert!(events.iter().all(|e| e.job == id));
    assert_eq!(events.iter().map(|e| e.is_last).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!((engine.gauges().running, engine.stats().finished), (0, 1));
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_seed_other_times() {
    let events = |seed| {
        let mut engine =
            Engine::new(EngineConfig { cost: CostModel { jitter: 0.2, ..config().cost }, ..config() }, seed);
        for n in 0..5 {
            engine.submit(at(0), job(n * 1_000, 200, 20)).unwrap();
        }
        run(&mut engine)
    };
    assert_eq!(events(7), events(7));
    assert_ne!(events(7), events(8));
}

#[test]
fn waiting_jobs_are_served_in_order() {
    let mut engine = Engine::new(config(), 1);
    let ids: Vec<JobId> = (0..5).map(|n| engine.submit(at(0), job(n * 1_000, 50, 4)).unwrap()).collect();
    let gauges = engine.gauges();
    assert_eq!((gauges.running, gauges.waiting), (1, 4), "the first step starts with whoever is there");
    let events = run(&mut engine);
    let order: Vec<JobId> = events.iter().filter(|e| e.index == 0).map(|e| e.job).collect();
    assert_eq!(order, ids);
}

#[test]
fn a_cached_prefix_shortens_prefill_and_another_root_does_not_hit() {
    let mut engine = Engine::new(config(), 1);
    let first = engine.submit(at(0), job(0, 801, 1)).unwrap();
    let miss = first_token_ms(&run(&mut engine), first);
    let again = engine.submit(at(5_000), job(0, 801, 1)).unwrap();
    let events = run(&mut engine);
    let hit = first_token_ms(&events, again) - 5_000;
    assert_eq!((miss, hit), (810, 10));
    assert_eq!(events[0].cached, 800);
    engine.submit(at(9_000), rooted(1, 0, 801, 1)).unwrap();
    assert_eq!(run(&mut engine)[0].cached, 0);
    let stats = engine.stats();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (2_403, 800));
}

#[test]
fn a_fetched_prompt_is_not_computed_but_takes_its_place_and_is_cached_then() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 128, ..config() }, 1);
    let fetched = engine.submit_fetched(at(0), job(0, 801, 3)).unwrap();
    let events = run(&mut engine);
    assert_eq!(first_token_ms(&events, fetched), 10, "one step");
    assert_eq!(events[0].cached, 0, "as vLLM counts it");
    engine.submit(at(1_000), job(0, 801, 3)).unwrap();
    assert_eq!(run(&mut engine)[0].cached, 800);
}

#[test]
fn the_answer_of_one_turn_is_a_cached_prefix_of_the_next() {
    let mut engine = Engine::new(config(), 1);
    engine.submit(at(0), job(0, 100, 61)).unwrap();
    run(&mut engine);
    engine.submit(at(9_000), job(0, 200, 1)).unwrap();
    assert_eq!(run(&mut engine)[0].cached, 160);
}

#[test]
fn cancel_frees_the_slot_for_the_next_in_line() {
    let mut engine = Engine::new(EngineConfig { max_num_seqs: 1, ..config() }, 1);
    let first = engine.submit(at(0), job(0, 10, 1_000)).unwrap();
    let second = engine.submit(at(0), job(5_000, 10, 2)).unwrap();
    let mut out = Vec::new();
    engine.advance(at(100), &mut out);
    assert!(out.iter().all(|e| e.job == first));
    engine.cancel(first);
    engine.cancel(first);
    let after = run(&mut engine);
    assert!(after.iter().all(|e| e.job == second));
    assert_eq!(engine.stats().canceled, 1);
    assert_eq!(engine.gauges().kv_cache_usage, 0.0);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_and_stalls_its_neighbour() {
    let mut engine = Engine::new(EngineConfig { max_batched_tokens: 101, ..config() }, 1);
    let short = engine.submit(at(0), job(0, 2, 50)).unwrap();
    let mut out = Vec::new();
    engine.advance(at(50), &mut out);
    let long = engine.submit(at(50), job(5_000, 300, 1)).unwrap();
    out.extend(run(&mut engine));
    let longest_gap = out.windows(2).map(|pair| pair[1].at.since(pair[0].at)).max().unwrap();
    assert_eq!(longest_gap.as_millis(), 109, "one chunk of 100 prompt tokens, not all 300");
    assert!(first_token_ms(&out, long) > 300);
    assert!(out.iter().any(|e| e.job == short && e.is_last));
}

#[test]
fn a_full_cache_preempts_the_youngest_which_finishes_later() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 8, ..config() }, 1);
    engine.submit(at(0), job(0, 50, 60)).unwrap();
    let young = engine.submit(at(0), job(9_000, 40, 40)).unwrap();
    let events = run(&mut engine);
    let stats = engine.stats();
    assert!(stats.preemptions > 0);
    assert_eq!((stats.finished, stats.generation_tokens), (2, 100));
    let indexes: Vec<u64> = events.iter().filter(|e| e.job == young).map(|e| e.index).collect();
    assert_eq!(indexes, (0..40).collect::<Vec<_>>(), "no token is lost or repeated");
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 2, ..config() }, 1);
    let refused = engine.submit(at(0), job(0, 32, 1)).unwrap_err();
    assert_eq!(refused, Unservable { tokens: 33, capacity: 32 });
    assert!(engine.submit(at(0), job(0, 31, 0)).is_err(), "no output");
    assert!(engine.submit(at(0), job(0, 31, 1)).is_ok());
}
