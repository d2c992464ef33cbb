//! A recorded run against one real replica: JSON lines, one a request.
//!
//! `{"prompt_tokens": 812, "cached_tokens": 512, "output_tokens": 64, "sent": 1.25, "first_token": 1.61, "end": 2.9}`:
//! times in seconds from any start, `first_token` and `end` the arrivals of the first and the last content event,
//! token counts as the engine's `usage` has them. `cached_tokens` may be left out and is zero then; other fields are
//! ignored. `tests/real_fleet/record.py` makes such a file.

use serde::Deserialize;

use super::super::trace::TraceError;

/// One request of a recorded run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Recorded {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Those of them that the engine had cached.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Seconds from the start of the recording.
    pub sent: f64,
    /// Arrival of the first content event, in seconds from the start.
    pub first_token: f64,
    /// Arrival of the last content event, in seconds from the start.
    pub end: f64,
}

impl Recorded {
    pub(super) fn ttft(&self) -> f64 {
        self.first_token - self.sent
    }

    pub(super) fn tpot(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((self.end - self.first_token) / gaps as f64).filter(|tpot| *tpot > 0.0)
    }

    pub(super) fn uncached(&self) -> u64 {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }

    fn fault(&self) -> Option<&'static str> {
        let times = [self.sent, self.first_token, self.end];
        if times.iter().any(|time| !(0.0..LONGEST_RUN).contains(time)) {
            Some("times are seconds from the start of the recording")
        } else if self.sent >= self.first_token || self.first_token > self.end {
            Some("a request is sent, then has a first token, then ends")
        } else if self.prompt_tokens == 0 || self.output_tokens == 0 {
            Some("a request has prompt and output tokens")
        } else if self.prompt_tokens.max(self.output_tokens) > MAX_TOKENS {
            Some("no model has such a context")
        } else if self.cached_tokens >= self.prompt_tokens {
            Some("the last prompt token is always computed: cached_tokens is below prompt_tokens")
        } else {
            None
        }
    }
}

/// A recorded run in the order of sending.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Its requests, at least [`MIN_REQUESTS`].
    pub requests: Vec<Recorded>,
}

impl Recording {
    /// Reads the text of a recording.
    ///
    /// # Errors
    /// The first line that is no recorded request, or too few of them.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        let mut requests = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let fault = |reason: String| TraceError::Line { line: at + 1, reason };
            let request: Recorded = serde_json::from_str(line).map_err(|error| fault(error.to_string()))?;
            if let Some(reason) = request.fault() {
                return Err(fault(reason.to_owned()));
            }
            requests.push(request);
        }
        if requests.len() < MIN_REQUESTS {
            return Err(TraceError::TooFew { found: requests.len(), wanted: MIN_REQUESTS });
        }
        requests.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        Ok(Self { requests })
    }
}

/// The search fits six numbers to half of them.
const MIN_REQUESTS: usize = 24;
const MAX_TOKENS: u64 = 10_000_000;
/// Seconds: four months.
const LONGEST_RUN: f64 = 1e7;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(sent: f64) -> String {
        format!(
            "{{\"prompt_tokens\": 9, \"output_tokens\": 3, \"sent\": {sent}, \"first_token\": {}, \"end\": {}}}\n",
            sent + 0.5,
            sent + 1.0
        )
    }

    #[test]
    fn requests_are_read_in_the_order_in_which_they_were_sent() {
        let text: String = (0..24).rev().map(|n| line(f64::from(n))).collect();
        let recording = Recording::read(&text).unwrap();
        assert_eq!((recording.requests[0].sent, recording.requests[23].sent), (0.0, 23.0));
        let first = &recording.requests[0];
        assert_eq!((first.ttft(), first.tpot(), first.uncached()), (0.5, Some(0.25), 9));
    }

    #[test]
    fn what_cannot_have_happened_is_refused() {
        let cases = [
            (line(1.0), "1 recorded requests"),
            ("{}\n".to_owned(), "line 1: missing field"),
            (line(1.0).replace("\"sent\": 1", "\"sent\": 9"), "line 1: a request is sent"),
            (line(1.0).replace("\"prompt_tokens\": 9", "\"prompt_tokens\": 0"), "has prompt and output"),
            (line(1.0).replace("\"prompt", "\"cached_tokens\": 9, \"prompt"), "below prompt_tokens"),
            (line(1.0).replace("\"sent\": 1", "\"sent\": -1"), "seconds from the start"),
        ];
        for (text, said) in cases {
            let error = Recording::read(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
