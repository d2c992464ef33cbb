//! What was measured, for people and as JSON.

use std::time::Duration;

use serde_json::{Value as Json, json};

/// One measured cold start. Times are as a client sees them, from sending on.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) route: String,
    pub(super) model: String,
    /// Median TTFT of requests to the warm pool.
    pub(super) warm_before: Duration,
    /// From when replicas were taken away to when none was ready.
    pub(super) gone_after: Duration,
    /// Of the first request after it: its head, and ...
    pub(super) head: Duration,
    /// ... its first token.
    pub(super) first_token: Duration,
    /// The cold start as the gateway measured it.
    pub(super) measured: Option<Duration>,
    /// Median TTFT of requests after the first.
    pub(super) warm_after: Duration,
}

impl Report {
    /// What the first request waits beyond a warm one.
    fn added(&self) -> Duration {
        self.first_token.saturating_sub(self.warm_before)
    }

    pub(super) fn to_text(&self) -> String {
        let seconds = |span: Duration| format!("{:.3} s", span.as_secs_f64());
        let lines = [
            ("TTFT of a warm request", seconds(self.warm_before)),
            ("TTFT of the first request after zero", seconds(self.first_token)),
            ("its head came after", seconds(self.head)),
            ("cold start by the gateway's measure", self.measured.map_or_else(|| "-".to_owned(), seconds)),
            ("TTFT of a warm request after it", seconds(self.warm_after)),
            ("added by the scale to zero", seconds(self.added())),
        ];
        let title = format!("route {}, model {}\n", self.route, self.model);
        lines.iter().fold(title, |text, (what, value)| text + &format!("{what:<38}{value:>12}\n"))
    }

    pub(super) fn to_json(&self) -> Json {
        json!({
            "route": self.route,
            "model": self.model,
            "warm_ttft": self.warm_before.as_secs_f64(),
            "gone_after": self.gone_after.as_secs_f64(),
            "first_head": self.head.as_secs_f64(),
            "first_ttft": self.first_token.as_secs_f64(),
            "cold_start": self.measured.map(|span| span.as_secs_f64()),
            "warm_ttft_after": self.warm_after.as_secs_f64(),
            "added": self.added().as_secs_f64(),
        })
    }
}
