//! What one routing decision costs: hashing the prompt, reading every target, lookup, choice, reservation, insert.
//!
//! A fleet in full operation: every replica has taught the model, holds streams and waiting prompts, and the prefix index
//! has a million blocks in all. Prints nanoseconds a decision by fleet size and prompt length, for the whole and for its
//! parts, and what a round of scrapes and of looks at running streams costs beside it. A figure for people to compare on one machine, never a test.

use std::hint::black_box;
use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokenway::clock::{Clock, Stamp};
use tokenway::config::{EngineProfile, PolicyName, PrefillWhen, Secret};
use tokenway::fleet::metrics_text;
use tokenway::record::SloBounds;
use tokenway::request::chain::{ChainBuilder, ChainSeed, PrefixChain, Root};
use tokenway::routing::policies::named;
use tokenway::routing::prefix_index::Hits;
use tokenway::routing::ways::{Rule, weigh};
use tokenway::routing::{
    Ask, Dispatcher, Elsewhere, EngineLimits, EnginePage, Judged, LoadGuard, Offers, Placement, Policy,
    Prompt, Quote, SlotSet, Target, TimingSample, Transfers, Work, rendezvous,
};
use tokenway::units::Tokens;

/// The gateway's own: how far apart it lays things is part of what a look-up costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Fleet {
    dispatcher: Arc<Dispatcher>,
    targets: Vec<Target>,
    /// What runs and waits.
    _busy: Vec<LoadGuard>,
}

impl Fleet {
    fn new(replicas: usize) -> Self {
        let dispatcher = Dispatcher::new(replicas);
        let identity = |slot: usize| rendezvous::identity(1, &slot.to_le_bytes());
        let targets: Vec<_> = (0..replicas).map(|slot| Target::new(slot, identity(slot))).collect();
        let model = &dispatcher.model;
        let mut busy = Vec::new();
        for Target { slot, load, .. } in &targets {
            let slot = *slot;
            for n in 0..STREAMS + WAITING {
                let work = Work::of(Tokens(300 + 70 * n), Tokens(0));
                let tpot = Some(Duration::from_millis(100));
                let prompt = Tokens(4000);
                let placement =
                    Placement { at: NOW, work, prompt, tpot, is_stream: true, ..Placement::default() };
                let mut guard = LoadGuard::reserve(load, placement);
                if n < STREAMS {
                    guard.first_token(NOW.after(Duration::from_millis(40 * n)));
                }
                busy.push(guard);
                let taken = Duration::from_millis(30 + 5 * n + slot as u64);
                let lesson = TimingSample { work, busy: taken, was_idle: false, context: 90_000, at: NOW };
                model.observe(slot, &lesson);
            }
            model.refresh(slot, load, NOW.after(Duration::from_secs(1)));
        }
        targets.iter().for_each(|target| target.scraped(page(), NOW));
        Self { dispatcher, targets, _busy: busy }
    }

    /// A million blocks in all, so that the lookup misses the processor's caches as in life.
    fn fill(&self) {
        let each = MILLION / self.targets.len() as u64;
        for slot in 0..self.targets.len() {
            self.dispatcher.index.set_capacity(slot, each as usize);
            for prompt in 0..each / 64 {
                let text = ((slot as u64) << 32 | prompt).to_le_bytes().repeat(2048);
                self.insert(slot, chain(&text).hashes());
            }
        }
    }

    fn insert(&self, slot: usize, chain: &[u64]) {
        self.dispatcher.index.insert(slot, &prompt(chain, chain.len() * 256));
    }

    /// All that the live path does: signals, candidates, verdict, reservation, insert.
    fn decide(&self, policy: &dyn Policy, chain: &[u64], bytes: usize) {
        let tried = SlotSet::new();
        drop(black_box(self.judge(policy, &ask(chain, bytes, &tried)).and_then(|judged| judged.assign())));
    }

    fn judge<'a>(&'a self, policy: &dyn Policy, ask: &Ask<'a>) -> Option<Judged<'a>> {
        self.dispatcher.judge(policy, ask, &LIMITS, NOW.after(Duration::from_secs(1)), self.targets.iter())
    }
}

fn ask<'a>(chain: &'a [u64], bytes: usize, tried: &'a SlotSet) -> Ask<'a> {
    let ms = |n| Some(Duration::from_millis(n));
    Ask {
        session: Some(9),
        slo: SloBounds { ttft: ms(3000), tpot: ms(100), ..SloBounds::default() },
        ..Ask::of(prompt(chain, bytes), tried)
    }
}

/// The two pools of a route with `[route.prefill]`.
struct Sides<'a> {
    decode: &'a Fleet,
    prefill: &'a Fleet,
    policy: &'a dyn Policy,
    whole: Ask<'a>,
}

impl Sides<'_> {
    /// All that the live path does where it goes apart: both ways weighed, both legs placed.
    fn decide(&self, transfers: &Transfers) {
        let (now, none) = (NOW.after(Duration::from_secs(1)), SlotSet::new());
        let (when, model) = (PrefillWhen::Auto, &self.prefill.dispatcher.model);
        let rule = Rule { when, min_uncached_tokens: 0, model, transfers, tried: &none };
        let choice = weigh(self, &rule, self.whole.prompt.tokens, now);
        let after = choice.prefill.map_or(Duration::from_millis(300), |prefill| prefill.ttft);
        let transfer = |_: u64, tokens: Tokens| tokens.0 as f64 * 1e-5;
        let second = self.whole.for_decode(after, Elsewhere { transfer: &transfer });
        drop(black_box(
            self.prefill.judge(self.policy, &self.whole.for_prefill()).and_then(|judged| judged.assign()),
        ));
        drop(black_box(self.decode.judge(self.policy, &second).and_then(|judged| judged.assign())));
    }
}

impl Offers for Sides<'_> {
    fn together(&self) -> Option<Quote> {
        self.decode.judge(self.policy, &self.whole)?.quote()
    }

    fn prefill(&self, closed: &SlotSet) -> Option<Quote> {
        let ask = Ask { tried: closed, ..self.whole.for_prefill() };
        self.prefill.judge(self.policy, &ask)?.quote()
    }

    fn decode(&self, after: Duration, elsewhere: Elsewhere<'_>) -> Option<Quote> {
        self.decode.judge(self.policy, &self.whole.for_decode(after, elsewhere))?.quote()
    }

    fn is_prefill_ready(&self) -> bool {
        true
    }

    fn is_prefill_idle(&self) -> bool {
        false
    }
}

fn page() -> EnginePage {
    EnginePage {
        running: Some(STREAMS as f64),
        waiting: Some(WAITING as f64),
        kv_cache_usage: Some(0.5),
        block_tokens: Some(16),
        total_blocks: Some(50_000),
        is_caching_off: false,
        batch_limit: None,
        cache: None,
    }
}

fn prompt(chain: &[u64], bytes: usize) -> Prompt<'_> {
    Prompt { chain, bytes: bytes as u64, tokens: Tokens(bytes as u64 / 4) }
}

/// A quarter of it the system prompt, the rest its own.
fn session(number: u64, bytes: usize) -> Vec<u8> {
    let (system, own) = (7u64.to_le_bytes(), (number + (3 << 40)).to_le_bytes());
    [system.repeat(bytes / 32), own.repeat(bytes / 32 * 3)].concat()
}

/// As a request's own: the gateway's code, fed at once.
fn chain(text: &[u8]) -> PrefixChain {
    let root = Root { model: "m", cache_salt: "", template: 0 };
    let mut builder = ChainBuilder::new(&SEED, root, text.len());
    builder.feed(text);
    builder.finish()
}

/// Measures what the command line names, or everything.
fn measure(out: &mut impl Write, name: &str, rounds: u32, mut work: impl FnMut(u32)) -> std::io::Result<()> {
    let mut wanted = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    if wanted.peek().is_some() && !wanted.any(|part| name.contains(&part)) {
        return Ok(());
    }
    (0..rounds / 10).for_each(&mut work);
    let clock = Clock::start();
    let start = clock.now();
    (0..rounds).for_each(&mut work);
    let nanos = clock.now().since(start).as_nanos() / u128::from(rounds);
    writeln!(out, "{name:<52} {nanos:>8} ns")
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let sizes = [8_usize, 64, 256, 1000, 2000].map(|replicas| (replicas, 4096));
    for (replicas, bytes) in sizes.into_iter().chain([(64, 16_384), (128, 16_384)]) {
        let rounds = 20_000 * 64 / replicas.max(64) as u32;
        let fleet = Fleet::new(replicas);
        fleet.fill();
        let blocks: usize = (0..replicas).map(|slot| fleet.dispatcher.index.held(slot)).sum();
        writeln!(out, "{blocks} blocks")?;
        // Sessions behind one system prompt, which every replica holds: two replicas hold all of a session but its last
        // turn, and one has lost half of it.
        let texts: Vec<Vec<u8>> = (0..256u64).map(|n| session(n, bytes)).collect();
        (0..replicas).for_each(|slot| fleet.insert(slot, &chain(&texts[0]).hashes()[..bytes / 1024]));
        for (n, text) in texts.iter().enumerate() {
            let chain = chain(text);
            let chain = chain.hashes();
            for (slot, held) in
                [(n, chain.len() - 2), (n * 7 + 1, chain.len() - 2), (n * 5 + 2, chain.len() / 2)]
            {
                fleet.insert(slot % replicas, &chain[..held]);
            }
        }
        let text = |round: u32| &texts[round as usize % texts.len()];
        let title = |part: &str| format!("{replicas} replicas, {bytes} bytes: {part}");
        measure(&mut out, &title("hash only"), rounds, |round| _ = black_box(chain(black_box(text(round)))))?;
        let chains: Vec<_> = texts.iter().map(|text| chain(text)).collect();
        let mut hits = Hits::default();
        measure(&mut out, &title("lookup only"), rounds, |round| {
            fleet.dispatcher.index.lookup(chains[round as usize % chains.len()].hashes(), &mut hits);
        })?;
        // The worst case: every replica parts from the prompt at another block.
        let staircase = chain(&session(1 << 40, bytes));
        let staircase = staircase.hashes();
        for slot in 0..replicas {
            fleet.insert(slot, &staircase[..staircase.len() * (slot + 1) / replicas]);
        }
        measure(&mut out, &title("lookup only, worst case"), rounds, |_| {
            fleet.dispatcher.index.lookup(staircase, &mut hits);
        })?;
        for name in PolicyName::ALL {
            let policy = named(name);
            measure(&mut out, &title(name.as_str()), rounds, |round| {
                fleet.decide(&*policy, chain(black_box(text(round))).hashes(), bytes);
            })?;
        }
        let (prefill, transfers, none) = (Fleet::new(replicas), Transfers::default(), SlotSet::new());
        let policy = named(PolicyName::Latency);
        measure(&mut out, &title("both ways, and both legs"), rounds, |round| {
            let chain = chain(black_box(text(round)));
            let whole = ask(chain.hashes(), bytes, &none);
            Sides { decode: &fleet, prefill: &prefill, policy: &*policy, whole }.decide(&transfers);
        })?;
        measure(&mut out, &title("noting a known prompt"), rounds, |_| fleet.insert(0, chains[0].hashes()))?;
        let profile = EngineProfile::default();
        measure(&mut out, &title("one scrape of every replica"), rounds / 200 + 1, |_| {
            for target in &fleet.targets {
                black_box(metrics_text::parse(black_box(PAGE), &profile, None));
                target.scraped(page(), NOW);
            }
        })?;
        measure(&mut out, &title("one refresh of every replica"), rounds / 20 + 1, |round| {
            let now = NOW.after(Duration::from_millis(1000 + 20 * u64::from(round)));
            for Target { slot, load, .. } in &fleet.targets {
                fleet.dispatcher.model.refresh(*slot, load, now);
            }
        })?;
    }
    Ok(())
}

static SEED: LazyLock<ChainSeed> = LazyLock::new(|| ChainSeed::new(&Secret::new("bench")));
/// Of vLLM under load.
const PAGE: &str = include_str!("../tests/fixtures/vllm/metrics_under_load.txt");
const NOW: Stamp = Stamp::from_nanos(1_000_000_000_000);
const LIMITS: EngineLimits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
const STREAMS: u64 = 24;
const WAITING: u64 = 2;
const MILLION: u64 = 1_000_000;
