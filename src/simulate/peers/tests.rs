//! Each yardstick does what its project documents, on hand-made fleets.

use crate::clock::Stamp;
use crate::config::{Slo, TtftBound};
use crate::routing::EngineSignals;
use crate::simulate::engine::{Engine, EngineConfig};
use crate::simulate::replay::{Ended, Incoming, RequestId, Truth, Verdict, qwen_32b_on_two_h100};
use crate::units::Tokens;
use std::time::Duration;

use super::*;

/// A prompt of so many engine blocks under one root, and its chains.
struct Prompt {
    engine: Vec<u64>,
    chain: Vec<u64>,
    ends: Vec<u64>,
}

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

struct Bench {
    dispatcher: Box<dyn Dispatcher>,
    engines: Vec<Engine>,
    next: u32,
}

impl Bench {
    fn new(peer: Peer, replicas: usize) -> Self {
        let config: EngineConfig = qwen_32b_on_two_h100();
        let engines = (0..replicas).map(|_| Engine::new(config.clone(), 1)).collect();
        Self { dispatcher: peer.dispatcher(replicas, &config, 7), engines, next: 0 }
    }

    fn verdict(&mut self, prompt: &Prompt, at_ms: u64) -> (RequestId, Verdict) {
        let now = Stamp::from_nanos(at_ms * 1_000_000);
        let id = RequestId(self.next);
        self.next += 1;
        let ttft = TtftBound { base: Duration::from_secs(1), per_prompt_token: Duration::from_micros(150) };
        let slo = Slo {
            ttft: Some(ttft),
            tpot: Some(Duration::from_millis(100)),
            e2e: None,
            itl: Default::default(),
        };
        let request = Incoming {
            id,
            arrived: now,
            prompt: Tokens(prompt.engine.len() as u64 * 512 + 1),
            chain: &prompt.chain,
            ends: &prompt.ends,
            slo: &slo,
            engine_chain: &prompt.engine,
            output: 100,
            is_behind_others: false,
        };
        (id, self.dispatcher.place(&request, now, &Truth { engines: &self.engines }))
    }

    fn place(&mut self, prompt: &Prompt) -> (RequestId, usize) {
        let (id, verdict) = self.verdict(prompt, 0);
        let Verdict::Place(placement) = verdict else { panic!("{verdict:?}") };
        (id, placement.replica)
    }

    fn end(&mut self, id: RequestId) {
        self.dispatcher.first_token(id, Stamp::from_nanos(1_000_000_000));
        let ended = Ended { at: Stamp::from_nanos(2_000_000_000), output: 100, cached: Tokens(0) };
        self.dispatcher.ended(id, &ended);
    }
}

#[test]
fn names_are_told_apart_and_understood() {
    for peer in Peer::ALL {
        assert_eq!(Peer::named(peer.as_str()), Some(peer));
    }
    assert_eq!(Peer::named("nobody"), None);
}

#[test]
fn who_knows_of_caches_returns_to_them() {
    for peer in [Peer::SglangCacheAware, Peer::LlmD, Peer::LlmDTokenLoad, Peer::Smetric, Peer::Chwbl] {
        let mut bench = Bench::new(peer, 4);
        let (id, first) = bench.place(&prompt(1, 10));
        bench.end(id);
        for other in 2..6 {
            let (id, _) = bench.place(&prompt(other, 10));
            bench.end(id);
        }
        assert_eq!(bench.place(&prompt(1, 12)).1, first, "{peer:?}");
    }
}

#[test]
fn a_burst_of_new_prompts_is_spread() {
    for peer in [
        Peer::PowerOfTwo,
        Peer::SglangCacheAware,
        Peer::LlmDTokenLoad,
        Peer::Dynamo,
        Peer::DynamoPrefill4,
        Peer::Smetric,
    ] {
        let mut bench = Bench::new(peer, 4);
        let mut counts = [0; 4];
        for root in 0..16 {
            counts[bench.place(&prompt(root + 1, 10)).1] += 1;
        }
        assert!(counts.iter().all(|count| (1..=7).contains(count)), "{peer:?}: {counts:?}");
    }
}

#[test]
fn chwbl_walks_on_from_a_replica_above_its_bound() {
    let mut bench = Bench::new(Peer::Chwbl, 4);
    let alike = prompt(1, 10);
    let mut counts = [0; 4];
    for _ in 0..40 {
        counts[bench.place(&alike).1] += 1;
    }
    // Bounded by 1.25 times the mean, the current request counted.
    assert!(counts.iter().all(|count| *count <= 13), "{counts:?}");
    let mut idle = Bench::new(Peer::Chwbl, 4);
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
    let mut bench = Bench::new(Peer::SglangCacheAware, 2);
    let hot = prompt(1, 10);
    let mut counts = [0; 2];
    for _ in 0..60 {
        counts[bench.place(&hot).1] += 1;
    }
    let (most, least) = (counts[0].max(counts[1]), counts[0].min(counts[1]));
    assert!(most - least <= 33 && least > 0, "{counts:?}");
}

#[test]
fn llm_d_follows_the_scraped_queue_and_cache_use() {
    let mut bench = Bench::new(Peer::LlmD, 3);
    let scraped = |waiting: f64, kv_cache_usage: f64| EngineSignals {
        age: Duration::ZERO,
        running: 1.0,
        waiting,
        kv_cache_usage,
        batch_limit: None,
        block_tokens: None,
        total_blocks: None,
    };
    for (replica, signals) in [scraped(9.0, 0.1), scraped(0.0, 0.9), scraped(0.0, 0.2)].iter().enumerate() {
        bench.dispatcher.scraped(replica, Stamp::default(), signals);
    }
    assert_eq!(bench.place(&prompt(1, 10)).1, 2);
}

#[test]
fn token_load_stays_with_the_cache_until_it_is_saturated() {
    let mut bench = Bench::new(Peer::LlmDTokenLoad, 2);
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
    let mut bench = Bench::new(Peer::Dynamo, 2);
    let (first, a) = bench.place(&prompt(1, 40));
    bench.dispatcher.first_token(first, Stamp::default());
    let (second, b) = bench.place(&prompt(2, 40));
    bench.dispatcher.first_token(second, Stamp::default());
    // Forty blocks are active at each; the first prompt's own add none to those.
    let (_, again) = bench.place(&prompt(1, 40));
    assert_eq!((a == b, again), (false, a));
}

#[test]
fn the_oracle_holds_what_would_break_a_stream() {
    let mut bench = Bench::new(Peer::Oracle, 1);
    let (id, verdict) = bench.verdict(&prompt(1, 1), 0);
    assert!(matches!(verdict, Verdict::Place(_)));
    bench.dispatcher.first_token(id, Stamp::from_nanos(50_000_000));
    // 99 gaps at 100 ms give 9.9 s in all; after 8 s with half of the tokens the stream is near its bound.
    for token in 1..50 {
        bench.dispatcher.token(id, Stamp::from_nanos(token * 160_000_000));
    }
    let (_, verdict) = bench.verdict(&prompt(2, 60), 8_000);
    assert!(matches!(verdict, Verdict::Hold { .. }), "{verdict:?}");
    bench.end(id);
    let (_, verdict) = bench.verdict(&prompt(2, 60), 8_000);
    assert!(matches!(verdict, Verdict::Place(_)), "{verdict:?}");
}
