//! What one routing decision costs: hashing the prompt, reading every candidate, lookup, choice, reservation.
//!
//! Prints nanoseconds a decision by fleet size and prompt length, for the whole and for its parts. A figure for
//! people to compare on one machine, never a test.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;

use tokenway::clock::{Clock, Stamp};
use tokenway::config::PolicyName;
use tokenway::routing::policies::named;
use tokenway::routing::{
    Aim, Candidate, LoadGuard, Placement, PoolModel, PrefixIndex, Prompt, Query, ReplicaLoad, SlotSet, decide,
    rendezvous,
};
use tokenway::units::Tokens;
use xxhash_rust::xxh3::xxh3_64_with_seed;

struct Fleet {
    index: PrefixIndex,
    model: PoolModel,
    loads: Vec<Arc<ReplicaLoad>>,
    identities: Vec<u64>,
}

impl Fleet {
    fn new(replicas: usize) -> Self {
        Self {
            index: PrefixIndex::new(replicas),
            model: PoolModel::new(replicas),
            loads: (0..replicas).map(|_| ReplicaLoad::new()).collect(),
            identities: (0..replicas as u64).map(|i| rendezvous::identity(1, &i.to_le_bytes())).collect(),
        }
    }

    /// Ten thousand blocks on every replica, so that the lookup misses the processor's caches as in life.
    fn fill(&self) {
        for slot in 0..self.loads.len() as u64 {
            for prompt in 0..625u64 {
                let text = (slot << 32 | prompt).to_le_bytes().repeat(512);
                self.index.insert(slot as usize, &chain(&text));
            }
        }
    }

    fn candidates(&self, into: &mut Vec<Candidate>) {
        into.clear();
        into.extend(self.loads.iter().zip(&self.identities).enumerate().map(|(slot, (load, identity))| {
            Candidate::new(slot, *identity, load.view(), self.model.estimate(slot, Stamp::default()))
        }));
    }
}

fn chain(text: &[u8]) -> Vec<u64> {
    let mut hash = 1;
    let link = |block: &[u8]| {
        hash = xxh3_64_with_seed(block, hash);
        hash
    };
    text.chunks(256).map(link).collect()
}

fn measure(out: &mut impl Write, name: &str, rounds: u32, mut work: impl FnMut()) -> std::io::Result<()> {
    for _ in 0..rounds / 10 {
        work();
    }
    let clock = Clock::start();
    let start = clock.now();
    for _ in 0..rounds {
        work();
    }
    let nanos = clock.now().since(start).as_nanos() / u128::from(rounds);
    writeln!(out, "{name:<52} {nanos:>8} ns")
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (replicas, bytes) in [(8, 4096), (64, 4096), (64, 16_384), (128, 4096)] {
        let fleet = Fleet::new(replicas);
        fleet.fill();
        let text = 3u64.to_le_bytes().repeat(bytes / 8);
        (0..replicas).step_by(3).for_each(|slot| fleet.index.insert(slot, &chain(&text)));
        let (excluded, block_end) = (SlotSet::new(), |block: usize| 256 * (block as u64 + 1));
        let (size, tokens) = (bytes as u64, Tokens(bytes as u64 / 4));
        let mut candidates = Vec::with_capacity(replicas);
        let title = |part: &str| format!("{replicas} replicas, {bytes} bytes: {part}");
        measure(&mut out, &title("hash only"), 20_000, || {
            black_box(chain(black_box(&text)));
        })?;
        for name in PolicyName::ALL {
            let policy = named(name);
            measure(&mut out, &title(name.as_str()), 20_000, || {
                let chain = chain(black_box(&text));
                fleet.candidates(&mut candidates);
                let prompt = Prompt { chain: &chain, block_end: &block_end, bytes: size, tokens };
                let query = Query {
                    prompt,
                    session: Some(9),
                    aim: Aim::default(),
                    pool: fleet.model.view(),
                    index: &fleet.index,
                    excluded: &excluded,
                };
                if let Some(decision) = decide(&*policy, &query, &mut candidates) {
                    let placement = Placement { work: decision.terms.work, ..Placement::default() };
                    drop(black_box(LoadGuard::reserve(&fleet.loads[decision.slot], placement)));
                }
            })?;
        }
        let known = chain(&text);
        measure(&mut out, &title("noting a known prompt"), 20_000, || fleet.index.insert(0, &known))?;
    }
    Ok(())
}
