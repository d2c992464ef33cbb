//! The traffic of one run: a trace, copied to the size of the fleet and compressed in time.
//!
//! There is one copy of the trace for every four replicas, so that load 1 is the same work per replica at any fleet
//! size; what is left of a fleet that is no multiple of four scales the speed. Copies share no prefixes and are shifted
//! against each other, wrapping around, so that their bursts do not coincide. Load is speed: at load 0.6 the trace's hour
//! takes 1 h / 0.6. Requests to which a trace's coarse clock gives the same time are spread over its tick.

use std::time::Duration;

use crate::time::Stamp;

use super::trace::{BLOCK_TOKENS, Trace, TraceRequest};

/// Traffic and the fleet that serves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Replicas in the fleet.
    pub replicas: usize,
    /// Speed of the trace; at 1, four replicas get it at its own pace.
    pub load: f64,
    /// Of the shifts between copies and of the engines.
    pub seed: u64,
    /// The trace is all of the fleet's traffic, whatever its size: one copy of it, from its first request on, at `load` times its pace.
    pub is_whole: bool,
}

/// One request of a run, before it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned<'a> {
    pub(super) at: Stamp,
    pub(super) request: &'a TraceRequest,
    /// Seeds the hashes of its output, and of its prompt where the trace has no blocks.
    serial: u64,
    /// Seeds all hashes: prompts of different copies share nothing.
    copy: u64,
}

/// Every request of a run in the order of arrival.
#[must_use]
pub(super) fn plan<'a>(trace: &'a Trace, demand: &Demand) -> Vec<Planned<'a>> {
    let copies = if demand.is_whole { 1 } else { (demand.replicas / REPLICAS_PER_COPY).max(1) };
    let fit = demand.replicas as f64 / (copies * REPLICAS_PER_COPY) as f64;
    let speed = (demand.load * if demand.is_whole { 1.0 } else { fit }).max(1e-6);
    let mut random = fastrand::Rng::with_seed(demand.seed);
    let mut all = Vec::with_capacity(copies * trace.requests.len());
    for copy in 0..copies {
        let phase = (copy as f64 + (random.f64() - 0.5) * SHIFT_SPREAD) / copies as f64;
        let phase = if demand.is_whole { 0.0 } else { phase };
        let shift = trace.duration.mul_f64(phase.rem_euclid(1.0));
        for (serial, request) in (0u64..).zip(&trace.requests) {
            let at = request.at + shift + trace.grain.mul_f64(random.f64());
            let at = wrapped(at, trace.duration).div_f64(speed);
            let at = Stamp::default().after(at);
            all.push(Planned { at, request, serial, copy: copy as u64 });
        }
    }
    all.sort_by_key(|planned| (planned.at, planned.copy, planned.serial));
    all
}

fn wrapped(at: Duration, period: Duration) -> Duration {
    if at >= period { at.saturating_sub(period) } else { at }
}

impl Planned<'_> {
    /// Hashes of the engine's full blocks: the prompt's, then the output's, which no other request shares.
    #[must_use]
    pub(super) fn engine_chain(&self) -> Vec<u64> {
        let TraceRequest { prompt, output, .. } = *self.request;
        let full = prompt / BLOCK_TOKENS;
        let all = (prompt + output) / BLOCK_TOKENS;
        (0..all)
            .map(|block| if block < full { self.prompt_block(block) } else { self.own_block(block) })
            .collect()
    }

    /// Hashes of a gateway's blocks, and the prompt token at which each ends: finer than the engine's up to
    /// `FINE_UP_TO`, then as coarse.
    pub(super) fn gateway_chain(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut chain, mut ends) = (Vec::new(), Vec::new());
        let mut end = 0;
        loop {
            let size = if end < FINE_UP_TO { FINE_TOKENS } else { BLOCK_TOKENS };
            if end + size > self.request.prompt {
                return (chain, ends);
            }
            let part = (end % BLOCK_TOKENS) / FINE_TOKENS;
            chain.push(mix(self.prompt_block(end / BLOCK_TOKENS).wrapping_add(part)));
            end += size;
            ends.push(end);
        }
    }

    fn prompt_block(&self, block: u64) -> u64 {
        let id = usize::try_from(block).ok().and_then(|block| self.request.blocks.get(block));
        id.map_or_else(|| self.own_block(block), |id| mix(mix(*id) ^ mix(self.copy.wrapping_add(SALT))))
    }

    fn own_block(&self, block: u64) -> u64 {
        mix(mix(self.serial ^ (self.copy << 40)).wrapping_add(block.wrapping_mul(SALT)))
    }
}

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(SALT);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Replicas that share one copy of the trace.
const REPLICAS_PER_COPY: usize = 4;
/// Random part of the distance between copies.
const SHIFT_SPREAD: f64 = 0.5;
/// 256 bytes of English.
const FINE_TOKENS: u64 = 64;
/// 128 KiB of English.
const FINE_UP_TO: u64 = 32_768;
/// 2^64 over the golden ratio.
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
        Demand { replicas, load, seed: 1, is_whole: false }
    }

    #[test]
    fn work_for_each_replica_depends_on_the_load_alone() {
        let trace = trace();
        for (replicas, load, requests, seconds) in
            [(4, 1.0, 3, 10.0), (8, 1.0, 6, 10.0), (8, 0.5, 6, 20.0), (2, 1.0, 3, 20.0), (6, 1.0, 3, 6.67)]
        {
            let all = plan(&trace, &demand(replicas, load));
            assert_eq!(all.len(), requests, "{replicas} replicas");
            assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
            let last = all.last().unwrap().at.since(Stamp::default()).as_secs_f64();
            assert!(last <= seconds, "{replicas} replicas at load {load}: {last} s");
        }
    }

    #[test]
    fn a_whole_trace_keeps_its_own_pace_in_front_of_any_fleet() {
        let trace = trace();
        for replicas in [1, 9] {
            let all = plan(&trace, &Demand { is_whole: true, ..demand(replicas, 1.0) });
            let seconds: Vec<u64> = all.iter().map(|a| a.at.as_nanos() / 1_000_000_000).collect();
            assert_eq!(seconds, [0, 5, 9]);
        }
    }

    #[test]
    fn prompts_share_what_the_trace_says_and_copies_share_nothing() {
        let trace = trace();
        let all = plan(&trace, &demand(8, 1.0));
        let of = |copy, serial| all.iter().find(|a| (a.copy, a.serial) == (copy, serial)).unwrap();
        let chains = |planned: &Planned<'_>| {
            let (chain, ends) = planned.gateway_chain();
            (planned.engine_chain(), chain, ends)
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
            let all = plan(&trace, &Demand { seed, ..demand(8, 1.0) });
            all.iter().map(|planned| planned.at).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
