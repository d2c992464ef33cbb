//! What an outside pool (`[pool.outside]`) may still get: its own limits, whoever asks.
//!
//! A request reserves its prompt and its predicted answer when it is placed there. At its end it is charged by the provider's usage, else
//! by its prompt and the content that came; one that was never sent is charged nothing.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Outside;
use crate::record::TokenCounts;
use crate::stats::{Refill, TokenBucket};
use crate::units::Tokens;

/// What it got, kept over reloads: requests and tokens.
#[derive(Debug, Default)]
pub(super) struct OutsideUse(Mutex<[TokenBucket; 2]>);

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub struct OutsideDemand {
    /// Estimated tokens of its prompt.
    pub prompt: Tokens,
    /// Predicted tokens of its answer.
    pub output: Tokens,
}

/// A limit has no room for a request.
#[derive(Clone, Copy, Debug)]
pub struct AtLimit;

/// A request's part of the limits, settled when it is dropped.
#[derive(Debug)]
pub struct OutsideCharge {
    state: Arc<OutsideUse>,
    /// Requests and tokens, where they were limited.
    reserved: [Option<f64>; 2],
    prompt: Tokens,
    /// Content events so far.
    pub seen: u64,
    /// What the provider counted.
    pub usage: TokenCounts,
    /// The request goes there.
    pub is_sent: bool,
}

impl OutsideUse {
    /// Whether a request fits into the limits. One of more than a minute's tokens waits for a minute's.
    pub(super) fn has_room(&self, outside: &Outside, demand: OutsideDemand, now: Stamp) -> bool {
        has_room(&self.0.lock(), outside, demand, now)
    }

    /// Reserves.
    ///
    /// # Errors
    /// It does not fit.
    pub(super) fn reserve(
        self: &Arc<Self>,
        outside: &Outside,
        demand: OutsideDemand,
        now: Stamp,
    ) -> Result<OutsideCharge, AtLimit> {
        let mut buckets = self.0.lock();
        if !has_room(&buckets, outside, demand, now) {
            return Err(AtLimit);
        }
        let amounts = amounts(outside, demand);
        for (bucket, (limit, amount)) in buckets.iter_mut().zip(amounts) {
            if let Some(per_minute) = limit {
                bucket.charge(amount, &Refill::per_minute(per_minute), now);
            }
        }
        let reserved = amounts.map(|(limit, amount)| limit.map(|_| amount));
        let (state, prompt) = (Arc::clone(self), demand.prompt);
        let usage = TokenCounts::default();
        Ok(OutsideCharge { state, reserved, prompt, seen: 0, usage, is_sent: false })
    }
}

impl Drop for OutsideCharge {
    fn drop(&mut self) {
        let input = self.usage.input.unwrap_or(self.prompt).0;
        let output = self.usage.output.map_or(self.seen, |output| output.0);
        let used = if self.is_sent { [1.0, input.saturating_add(output) as f64] } else { [0.0; 2] };
        for ((bucket, reserved), used) in self.state.0.lock().iter_mut().zip(self.reserved).zip(used) {
            if let Some(reserved) = reserved {
                bucket.give_back(reserved - used);
            }
        }
    }
}

fn has_room(buckets: &[TokenBucket; 2], outside: &Outside, demand: OutsideDemand, now: Stamp) -> bool {
    buckets.iter().zip(amounts(outside, demand)).all(|(bucket, (limit, amount))| {
        limit.is_none_or(|most| bucket.check(amount.min(most as f64), &Refill::per_minute(most), now).is_ok())
    })
}

/// Limits, with what a request needs of each.
fn amounts(outside: &Outside, demand: OutsideDemand) -> [(Option<u64>, f64); 2] {
    let tokens = demand.prompt.0.saturating_add(demand.output.0);
    [(outside.requests_per_minute, 1.0), (outside.tokens_per_minute, tokens as f64)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn a_request_holds_what_is_predicted_and_is_charged_what_it_used() {
        let outside =
            Outside { requests_per_minute: Some(4), tokens_per_minute: Some(100), ..Outside::default() };
        let demand = OutsideDemand { prompt: Tokens(10), output: Tokens(50) };
        let state = Arc::new(OutsideUse::default());
        let ask = |now| state.reserve(&outside, demand, at(now));
        let mut first = ask(0).unwrap();
        first.is_sent = true;
        assert!(ask(0).is_err(), "60 of 100 are reserved");
        first.usage = TokenCounts { input: Some(Tokens(12)), output: Some(Tokens(8)), cached: None };
        drop(first);
        let unsent = ask(0).unwrap();
        drop(unsent);
        let mut without_usage = ask(0).unwrap();
        without_usage.is_sent = true;
        without_usage.seen = 5;
        drop(without_usage);
        let mut larger = ask(0).unwrap();
        larger.is_sent = true;
        larger.usage = TokenCounts { input: None, output: Some(Tokens(200)), cached: None };
        drop(larger);
        // 20, 15 and 210 were used, of 100 and as many in a minute.
        assert!(ask(100).is_err() && !state.has_room(&outside, demand, at(120)));
        assert!(state.has_room(&outside, demand, at(124)), "three of four requests, long ago");
        let endless = OutsideDemand { output: Tokens(1_000), ..demand };
        assert!(!state.has_room(&outside, endless, at(140)) && state.has_room(&outside, endless, at(148)));
        let requests = Outside { tokens_per_minute: None, ..outside };
        let all: Vec<_> = (0..9).filter_map(|_| state.reserve(&requests, demand, at(200)).ok()).collect();
        assert_eq!(all.len(), 4);
    }
}
