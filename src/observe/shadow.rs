//! Copies of requests for canaries, as observers see them.
//!
//! No client sees their answers, so none of the metrics, windows and logs of requests has them: only their own two metrics, the judges of
//! canaries, and spans of their own trace that link to the original's.

use std::sync::Arc;

use super::metrics::StreamKey;
use super::spans::Seen;
use super::{Judgement, Observer, Tap};
use crate::record::{FirstToken, Gaps, Record};

impl Observer {
    /// Observes a copy's first content event.
    pub fn shadow_first_token(&self, first: &FirstToken<'_>) {
        let FirstToken { record, served, ttft, .. } = first;
        let family = &self.metrics.families.canaries.shadow_ttft;
        family.get([&record.route, &served.pool, &served.revision]).observe(ttft.as_secs_f64());
        self.judges().for_each(|tap| tap.first_token(first));
    }

    /// Observes gaps of a copy's stream.
    pub fn shadow_gaps(&self, stream: &StreamKey, gaps: &Gaps<'_>) {
        self.judges().for_each(|tap| tap.gaps(stream, gaps));
    }

    /// Observes a copy's end.
    pub fn shadow_record(&self, record: &Arc<Record>) {
        if let Some(served) = record.served() {
            let labels = [&*record.route, &*served.pool, &*served.revision, record.outcome.as_str()];
            self.metrics.families.canaries.shadow_requests.inc(labels);
        }
        let judgement = Judgement::of(record);
        let seen = Seen { is_canary: self.taps.iter().any(|tap| tap.is_canary(record)), ..Seen::default() };
        let spans = self.settled.spans.as_ref();
        if let Some(spans) = spans.filter(|spans| spans.keeps(record, &judgement, seen)) {
            spans.queue(record);
        }
        self.judges().for_each(|tap| tap.record(record, &judgement));
    }

    fn judges(&self) -> impl Iterator<Item = &Arc<dyn Tap>> {
        self.taps.iter().filter(|tap| tap.sees_copies())
    }
}
