//! What is sent, and when it is due.

use std::time::Duration;

use tokenway_sim::replay::{BLOCK_TOKENS, Trace, TraceRequest};

use super::{BenchArgs, BenchError};
use crate::cli::replay::read;

/// Requests in the order in which they are due, at least one.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) requests: Vec<TraceRequest>,
    seed: u64,
    /// Another for every run: what one leaves in the caches, the next would be served from.
    run: u64,
}

impl Schedule {
    pub(super) fn read(args: &BenchArgs) -> Result<Self, BenchError> {
        let mut requests = match &args.trace {
            Some(path) => read(path, Trace::read)?.requests,
            None => arrivals(args),
        };
        if args.trace.is_some() {
            requests.iter_mut().for_each(|request| request.at = request.at.div_f64(args.load));
        }
        if let Some(duration) = args.duration {
            requests.retain(|request| request.at <= duration);
        }
        if requests.is_empty() {
            return Err(BenchError::Nothing);
        }
        Ok(Self { requests, seed: args.seed, run: fastrand::u64(..) })
    }

    /// A request's prompt: about one token a word; equal blocks of a trace have equal words, and what
    /// is in no such block has words of this run alone.
    pub(super) fn prompt(&self, serial: usize, request: &TraceRequest) -> String {
        let mut prompt = String::new();
        let blocks = request.prompt.div_ceil(BLOCK_TOKENS);
        for (at, block) in (0..blocks).enumerate() {
            let own = || ((serial as u64) << 20 | 1 << 63 | block) ^ self.run;
            let id = request.blocks.get(at).copied().unwrap_or_else(own);
            let left = request.prompt - block * BLOCK_TOKENS;
            let mut random = fastrand::Rng::with_seed(id ^ self.seed.rotate_left(32));
            for _ in 0..left.min(BLOCK_TOKENS) {
                prompt.push_str(WORDS[random.usize(..WORDS.len())]);
                prompt.push(' ');
            }
        }
        prompt
    }
}

fn arrivals(args: &BenchArgs) -> Vec<TraceRequest> {
    let duration = args.duration.unwrap_or(DURATION);
    let mut random = fastrand::Rng::with_seed(args.seed);
    let (mut at, mut requests) = (Duration::ZERO, Vec::new());
    while at <= duration {
        requests.push(TraceRequest {
            at,
            prompt: args.input_tokens,
            output: args.output_tokens,
            blocks: Vec::new(),
        });
        let gap = -(1.0 - random.f64()).ln() / args.rate;
        at += Duration::try_from_secs_f64(gap).unwrap_or(Duration::MAX / 4);
    }
    requests
}

const DURATION: Duration = Duration::from_secs(30);
/// One token each, with the space before it, in the usual vocabularies.
const WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home",
];
