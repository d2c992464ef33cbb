//! Each rival does what its project documents, on hand-made fleets.

use std::time::Duration;

use crate::engine::{Engine, EngineConfig, Gauges};
use crate::replay::{Arrival, Ended, Fleet, RequestId, qwen_32b_on_two_h100};
use crate::time::Stamp;

use super::*;

struct Prompt {
    engine: Vec<u64>,
    chain: Vec<u64>,
    ends: Vec<u64>,
}

/// A prompt of `blocks` engine blocks; equal roots share their prefix.
fn prompt(root: u64, blocks: u64) -> Prompt {
    // Hashes are spread over all their bits, as those of a prefix chain are.
    let hash = |number: u64| xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes());
    let fine = |block: u64| (0..8).map(move |part| hash(root * 1_000_000 + block * 10 + part + 1));
    Prompt {
        engine: (0..blocks).map(|block| root * 1_000_000 + block * 10).collect(),
        chain: (0..blocks).flat_map(fine).collect(),
        ends: (1..=blocks * 8).map(|part| part * 64).collect(),
    }
}

/// A fleet whose engines stay idle: it only notes what is sent.
struct Idle {
    now: Stamp,
    engines: Vec<Engine>,
    sent: Vec<(RequestId, usize)>,
}

impl Fleet for Idle {
    fn now(&self) -> Stamp {
        self.now
    }

    fn send(&mut self, request: RequestId, replica: usize, _: Option<Duration>) {
        self.sent.push((request, replica));
    }

    fn engines(&self) -> &[Engine] {
        &self.engines
    }

    fn engine(&mut self, replica: usize) -> Option<&mut Engine> {
        self.engines.get_mut(replica)
    }
}

struct Bench {
    router: Box<dyn Router>,
    fleet: Idle,
    next: u32,
}

impl Bench {
    fn new(rival: Rival, replicas: usize) -> Self {
        let config: EngineConfig = qwen_32b_on_two_h100();
        let engines = (0..replicas).map(|_| Engine::new(config.clone(), 1)).collect();
        let fleet = Idle { now: Stamp::default(), engines, sent: Vec::new() };
        Self { router: rival.router(replicas, &config, 7), fleet, next: 0 }
    }

    /// Where the request was sent, if it was.
    fn arrive(&mut self, prompt: &Prompt, at_ms: u64) -> (RequestId, Option<usize>) {
        self.fleet.now = Stamp::from_nanos(at_ms * 1_000_000);
        let id = RequestId(self.next);
        self.next += 1;
        let tokens = prompt.engine.len() as u64 * 512 + 1;
        let request = Arrival {
            id,
            at: self.fleet.now,
            prompt: tokens,
            chain: prompt.chain.clone(),
            ends: prompt.ends.clone(),
            engine_chain: prompt.engine.clone(),
            output: 100,
            ttft_bound: Some(Duration::from_secs(1) + Duration::from_micros(150 * tokens)),
            tpot_bound: Some(Duration::from_millis(100)),
        };
        self.router.arrive(request, &mut self.fleet);
        (id, self.fleet.sent.iter().find(|(sent, _)| *sent == id).map(|(_, replica)| *replica))
    }

    fn place(&mut self, prompt: &Prompt) -> (RequestId, usize) {
        let (id, replica) = self.arrive(prompt, 0);
        (id, replica.unwrap())
    }

    fn end(&mut self, id: RequestId) {
        self.router.first_token(id, Stamp::from_nanos(1_000_000_000));
        let ended = Ended { at: Stamp::from_nanos(2_000_000_000), output: 100, cached: 0 };
        self.router.ended(id, &ended);
    }
}

#[test]
fn every_rival_is_found_by_its_name() {
    for rival in Rival::all() {
        assert_eq!(Rival::named(rival.as_str()), Some(rival));
    }
    assert_eq!(Rival::named("nobody"), None);
}

#[test]
fn routers_that_know_of_caches_return_to_them() {
    for rival in [Rival::SglangCacheAware, Rival::LlmD, Rival::LlmDTokenLoad, Rival::Smetric, Rival::Chwbl] {
        let mut bench = Bench::new(rival, 4);
        let (id, first) = bench.place(&prompt(1, 10));
        bench.end(id);
        for other in 2..6 {
            let (id, _) = bench.place(&prompt(other, 10));
            bench.end(id);
        }
        assert_eq!(bench.place(&prompt(1, 12)).1, first, "{rival:?}");
    }
}

#[test]
fn a_burst_of_new_prompts_is_spread() {
    for rival in [
        Rival::PowerOfTwo,
        Rival::SglangCacheAware,
        Rival::LlmDTokenLoad,
        Rival::Dynamo,
        Rival::DynamoPrefill4,
        Rival::Smetric,
    ] {
        let mut bench = Bench::new(rival, 4);
        let mut counts = [0; 4];
        for root in 0..16 {
            counts[bench.place(&prompt(root + 1, 10)).1] += 1;
        }
        assert!(counts.iter().all(|count| (1..=7).contains(count)), "{rival:?}: {counts:?}");
    }
}

#[test]
fn chwbl_walks_on_from_a_replica_above_its_bound() {
    let mut bench = Bench::new(Rival::Chwbl, 4);
    let alike = prompt(1, 10);
    let mut counts = [0; 4];
    for _ in 0..40 {
        counts[bench.place(&alike).1] += 1;
    }
    // Bounded by 1.25 times the mean, the current request counted.
    assert!(counts.iter().all(|count| *count <= 13), "{counts:?}");
    let mut idle = Bench::new(Rival::Chwbl, 4);
    let places: Vec<usize> = (0..5)
        .map(|_| {
            let (id, replica) = idle.place(&alike);
            idle.end(id);
            replica
        })
        .collect();
    assert!(places.windows(2).all(|pair| pair[0] == pair[1]), "{places:?}");
}

#[test]
fn cache_aware_drops_affinity_when_out_of_balance() {
    let mut bench = Bench::new(Rival::SglangCacheAware, 2);
    let hot = prompt(1, 10);
    let mut counts = [0; 2];
    for _ in 0..60 {
        counts[bench.place(&hot).1] += 1;
    }
    let (max, min) = (counts[0].max(counts[1]), counts[0].min(counts[1]));
    assert!(max - min <= 33 && min > 0, "{counts:?}");
}

#[test]
fn llm_d_follows_the_scraped_queue_and_cache_use() {
    let mut bench = Bench::new(Rival::LlmD, 3);
    let gauges =
        |waiting, kv_cache_usage| Gauges { running: 1, waiting, kv_cache_usage, ..Gauges::default() };
    for (replica, gauges) in [gauges(9, 0.1), gauges(0, 0.9), gauges(0, 0.2)].iter().enumerate() {
        bench.router.scraped(replica, Stamp::default(), gauges);
    }
    assert_eq!(bench.place(&prompt(1, 10)).1, 2);
}

#[test]
fn token_load_stays_with_the_cache_until_it_is_saturated() {
    let mut bench = Bench::new(Rival::LlmDTokenLoad, 2);
    let shared = prompt(1, 100);
    let (_, holder) = bench.place(&shared);
    assert_eq!(bench.place(&shared).1, holder, "51,201 tokens ahead are 3 s");
    let with_tail = |root: u64| {
        let (mut whole, tail) = (prompt(1, 100), prompt(root, 24));
        whole.engine.extend(&tail.engine);
        whole.chain.extend(&tail.chain);
        whole.ends.extend(tail.ends.iter().map(|end| end + 100 * 512));
        whole
    };
    // Each brings 12,289 uncached tokens; 18 s are 286,704.
    let placed: Vec<usize> = (2..42).map(|root| bench.place(&with_tail(root)).1).collect();
    assert!(placed[..15].iter().all(|replica| *replica == holder), "{placed:?}");
    assert!(placed[25..].contains(&(1 - holder)), "{placed:?}");
}

#[test]
fn dynamo_adds_prefill_and_distinct_decode_blocks() {
    let mut bench = Bench::new(Rival::Dynamo, 2);
    let (first, a) = bench.place(&prompt(1, 40));
    bench.router.first_token(first, Stamp::default());
    let (second, b) = bench.place(&prompt(2, 40));
    bench.router.first_token(second, Stamp::default());
    // Forty blocks are active at each; the first prompt's own add none to those.
    let (_, again) = bench.place(&prompt(1, 40));
    assert_eq!((a == b, again), (false, a));
}

#[test]
fn the_oracle_holds_what_would_break_a_stream() {
    let mut bench = Bench::new(Rival::Oracle, 1);
    let (id, replica) = bench.arrive(&prompt(1, 1), 0);
    assert_eq!(replica, Some(0));
    bench.router.first_token(id, Stamp::from_nanos(50_000_000));
    // 99 gaps at 100 ms give 9.9 s in all; after 8 s with half of the tokens the stream is near its bound.
    for token in 1..50 {
        bench.router.token(id, Stamp::from_nanos(token * 160_000_000));
    }
    let (held, replica) = bench.arrive(&prompt(2, 60), 8_000);
    assert_eq!((replica, bench.router.next_tick()), (None, Some(Stamp::from_nanos(8_010_000_000))));
    bench.end(id);
    bench.router.reconsider(&mut bench.fleet);
    assert_eq!(bench.fleet.sent.last(), Some(&(held, 0)));
    assert_eq!(bench.router.next_tick(), None);
    assert_eq!(bench.arrive(&prompt(3, 60), 8_000).1, Some(0));
}
