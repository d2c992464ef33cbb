//! The traffic of one run: a trace, copied to the size of the fleet and compressed in time.
//!
//! There is one copy of the trace for every four replicas, so that load 1 means the same work for each replica whatever
//! the size of the fleet. Copies share no prefixes and are shifted against each other around the clock, so that their
//! bursts do not meet. Load is speed: at load 0.6 the trace's hour takes 1 h / 0.6. A fleet that is no multiple of four
//! is given its share by speed too. Requests that a trace's coarse clock gives one time are spread over its tick.

use std::time::Duration;

use crate::clock::Stamp;

use super::trace::{BLOCK_TOKENS, Trace, TraceRequest};

/// What is asked of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Replicas in the fleet.
    pub replicas: usize,
    /// The trace's speed, 1 being its own on four replicas.
    pub load: f64,
    /// Shifts the copies.
    pub seed: u64,
}

/// One request of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    /// When it comes.
    pub(super) at: Stamp,
    /// What it asks.
    pub(super) request: &'a TraceRequest,
    /// Names its prompt where the trace has no blocks, and its answer.
    serial: u64,
    /// Prompts of different copies share nothing.
    copy: u64,
}

/// Every request of a run in the order of arrival.
#[must_use]
pub(super) fn arrivals<'a>(trace: &'a Trace, demand: &Demand) -> Vec<Arrival<'a>> {
    let copies = (demand.replicas / REPLICAS_PER_COPY).max(1);
    let fit = demand.replicas as f64 / (copies * REPLICAS_PER_COPY) as f64;
    let speed = (demand.load * fit).max(1e-6);
    let mut random = fastrand::Rng::with_seed(demand.seed);
    let mut all = Vec::with_capacity(copies * trace.requests.len());
    for copy in 0..copies {
        // Evenly around the clock, less evenly with another seed.
        let place = (copy as f64 + (random.f64() - 0.5) * SHIFT_SPREAD) / copies as f64;
        let shift = trace.duration.mul_f64(place.rem_euclid(1.0));
        for (serial, request) in (0u64..).zip(&trace.requests) {
            let at = request.at + shift + trace.grain.mul_f64(random.f64());
            let at = around(at, trace.duration).div_f64(speed);
            let at = Stamp::default().after(at);
            all.push(Arrival { at, request, serial, copy: copy as u64 });
        }
    }
    all.sort_by_key(|arrival| (arrival.at, arrival.copy, arrival.serial));
    all
}

fn around(at: Duration, period: Duration) -> Duration {
    if at >= period { at.saturating_sub(period) } else { at }
}

impl Arrival<'_> {
    /// Hashes of the engine's blocks: the prompt's full ones, then the answer's, which are like no others.
    #[must_use]
    pub(super) fn engine_chain(&self) -> Vec<u64> {
        let TraceRequest { prompt, output, .. } = *self.request;
        let full = prompt / BLOCK_TOKENS;
        let all = (prompt + output) / BLOCK_TOKENS;
        (0..all).map(|block| if block < full { self.block(block) } else { self.own(block) }).collect()
    }

    /// Hashes of the gateway's blocks: finer than the engine's, coarser far out, as those of the prefix chain are.
    /// With each goes the prompt token at which it ends.
    pub(super) fn gateway_chain(&self, chain: &mut Vec<u64>, ends: &mut Vec<u64>) {
        chain.clear();
        ends.clear();
        let mut end = 0;
        loop {
            let size = if end < FINE_UP_TO { FINE_TOKENS } else { BLOCK_TOKENS };
            if end + size > self.request.prompt {
                return;
            }
            let part = (end % BLOCK_TOKENS) / FINE_TOKENS;
            chain.push(mix(self.block(end / BLOCK_TOKENS).wrapping_add(part)));
            end += size;
            ends.push(end);
        }
    }

    fn block(&self, block: u64) -> u64 {
        let id = usize::try_from(block).ok().and_then(|block| self.request.blocks.get(block));
        id.map_or_else(|| self.own(block), |id| mix(mix(*id) ^ mix(self.copy.wrapping_add(SALT))))
    }

    fn own(&self, block: u64) -> u64 {
        mix(mix(self.serial ^ (self.copy << 40)).wrapping_add(block.wrapping_mul(SALT)))
    }
}

/// A good mix of 64 bits (the finaliser of splitmix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(SALT);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Replicas that share one copy of the trace.
const REPLICAS_PER_COPY: usize = 4;
/// By how much of their distance copies are moved at random.
const SHIFT_SPREAD: f64 = 0.5;
/// The gateway's block: 256 bytes of prompt are some 64 tokens.
const FINE_TOKENS: u64 = 64;
/// Where the gateway's blocks become coarse: 128 KiB.
const FINE_UP_TO: u64 = 32_768;
/// The golden ratio's fraction.
const SALT: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let request = |second: u64, blocks: &[u64]| TraceRequest {
            at: Duration::from_secs(second),
            prompt: 1_100,
            output: 600,
            blocks: blocks.to_vec(),
        };
        let requests = vec![request(0, &[1, 2, 3]), request(5, &[1, 2, 4]), request(9, &[])];
        Trace { requests, duration: Duration::from_secs(10), grain: Duration::ZERO }
    }

    fn demand(replicas: usize, load: f64) -> Demand {
        Demand { replicas, load, seed: 1 }
    }

    #[test]
    fn work_for_each_replica_depends_on_the_load_alone() {
        let trace = trace();
        for (replicas, load, requests, seconds) in
            [(4, 1.0, 3, 10.0), (8, 1.0, 6, 10.0), (8, 0.5, 6, 20.0), (2, 1.0, 3, 20.0), (6, 1.0, 3, 6.67)]
        {
            let all = arrivals(&trace, &demand(replicas, load));
            assert_eq!(all.len(), requests, "{replicas} replicas");
            assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
            let last = all.last().unwrap().at.since(Stamp::default()).as_secs_f64();
            assert!(last <= seconds, "{replicas} replicas at load {load}: {last} s");
        }
    }

    #[test]
    fn prompts_share_what_the_trace_says_and_copies_share_nothing() {
        let trace = trace();
        let all = arrivals(&trace, &demand(8, 1.0));
        let of = |copy, serial| all.iter().find(|a| (a.copy, a.serial) == (copy, serial)).unwrap();
        let chains = |arrival: &Arrival<'_>| {
            let (mut chain, mut ends) = (Vec::new(), Vec::new());
            arrival.gateway_chain(&mut chain, &mut ends);
            (arrival.engine_chain(), chain, ends)
        };
        let (first, second, other) = (chains(of(0, 0)), chains(of(0, 1)), chains(of(1, 0)));
        assert_eq!(first.0.len(), 3, "two full blocks of the prompt, one of the answer");
        assert_eq!(first.0[..2], second.0[..2]);
        assert_ne!(first.0[2], second.0[2]);
        assert_eq!((first.1.len(), first.2.last()), (17, Some(&1088)));
        assert_eq!(first.1[..16], second.1[..16]);
        assert_ne!(first.1[16], second.1[16]);
        assert!(first.0.iter().all(|hash| !other.0.contains(hash)));
        assert!(first.1.iter().all(|hash| !other.1.contains(hash)));
        assert_ne!(chains(of(0, 2)).0[0], chains(of(1, 2)).0[0]);
    }

    #[test]
    fn another_seed_shifts_the_copies() {
        let trace = trace();
        let times = |seed| {
            let all = arrivals(&trace, &Demand { seed, ..demand(8, 1.0) });
            all.iter().map(|arrival| arrival.at).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
