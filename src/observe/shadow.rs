//! Copies of requests for canaries, as observers see them.
//!
//! No client sees their answers, so none of the metrics, windows and logs of requests has them: only their own two metrics, the judges of
//! canaries, and spans of their own trace that link to the original's.

use std::sync::Arc;

use super::Judgement;
use super::Observer;
use super::metrics::StreamKey;
use super::spans::Seen;
use crate::record::{FirstToken, Gaps, Record};

/// Something seen of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Shadowed<'a> {
    /// Its first content event.
    FirstToken(&'a FirstToken),
    /// Gaps of its stream.
    Gaps(&'a StreamKey, &'a Gaps<'a>),
    /// Its end.
    Ended(&'a Record, &'a Judgement),
}

impl Observer {
    /// Observes a copy's first content event.
    pub fn shadow_first_token(&self, first: &FirstToken) {
        let served = &first.served;
        let ttft = &self.metrics.families.canaries.shadow_ttft;
        ttft.get([&first.route, &served.pool, &served.revision]).observe(first.ttft.as_secs_f64());
        self.tell(&Shadowed::FirstToken(first));
    }

    /// Observes gaps of a copy's stream.
    pub fn shadow_gaps(&self, stream: &StreamKey, gaps: &Gaps<'_>) {
        self.tell(&Shadowed::Gaps(stream, gaps));
    }

    /// Observes a copy's end.
    pub fn shadow_record(&self, record: &Arc<Record>) {
        if let Some(served) = record.served() {
            let labels = [&*record.route, &*served.pool, &*served.revision, record.outcome.as_str()];
            self.metrics.families.canaries.shadow_requests.inc(labels);
        }
        let judgement = Judgement::of(record);
        let seen = Seen { is_canary: self.taps.iter().any(|tap| tap.is_canary(record)), ..Seen::default() };
        let spans = self.spans.as_ref();
        if let Some(spans) = spans.filter(|spans| spans.keeps(record, &judgement, seen)) {
            spans.queue(record);
        }
        self.tell(&Shadowed::Ended(record, &judgement));
    }

    fn tell(&self, seen: &Shadowed<'_>) {
        for tap in &*self.taps {
            tap.shadow(seen);
        }
    }
}
