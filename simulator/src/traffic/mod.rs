//! Chat traffic against any OpenAI endpoint: sessions of many turns with shared system prompts.
//!
//! Arrivals are Poisson. Requests in flight are bounded; an arrival beyond the bound is counted and skipped, so that a
//! slow server does not slow its clients down (open loop). Latencies are the clients'.

mod client;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::time::{Clock, Stamp};

/// Shape of the traffic.
#[derive(Clone, Debug)]
pub struct TrafficConfig {
    /// `http://HOST:PORT` of the server.
    pub base_url: String,
    /// Requests a second, on average.
    pub rate: f64,
    /// Seed of arrivals and texts.
    pub seed: u64,
    /// Requests in flight at most.
    pub max_in_flight: usize,
    /// Share of the requests that ask once about a document of their own.
    pub documents: f64,
}

impl Default for TrafficConfig {
    fn default() -> Self {
        Self {
            base_url: "http://127.0.0.1:8080".into(),
            rate: 8.0,
            seed: 1,
            max_in_flight: 256,
            documents: 0.0,
        }
    }
}

/// Counts and latencies as clients see them.
#[derive(Debug)]
pub struct TrafficStats(Mutex<Tally>);

#[derive(Debug)]
struct Tally {
    counts: TrafficSummary,
    ttft: Histogram<u64>,
    gaps: Histogram<u64>,
}

/// A snapshot of [`TrafficStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSummary {
    /// Requests sent.
    pub sent: u64,
    /// Complete answers.
    pub ok: u64,
    /// Answers with 429.
    pub refused: u64,
    /// Other errors and broken streams.
    pub failed: u64,
    /// Arrivals skipped because too many requests were in flight.
    pub skipped: u64,
    /// Median time to the first content.
    pub ttft_p50: Option<Duration>,
    /// Its 99th percentile.
    pub ttft_p99: Option<Duration>,
    /// Median gap between two contents.
    pub gap_p50: Option<Duration>,
    /// Its 99th percentile.
    pub gap_p99: Option<Duration>,
}

impl Default for TrafficStats {
    fn default() -> Self {
        let (ttft, gaps) = (microseconds(), microseconds());
        Self(Mutex::new(Tally { counts: TrafficSummary::default(), ttft, gaps }))
    }
}

impl TrafficStats {
    /// A snapshot.
    #[must_use]
    pub fn summary(&self) -> TrafficSummary {
        let tally = self.0.lock();
        TrafficSummary {
            ttft_p50: quantile(&tally.ttft, 0.5),
            ttft_p99: quantile(&tally.ttft, 0.99),
            gap_p50: quantile(&tally.gaps, 0.5),
            gap_p99: quantile(&tally.gaps, 0.99),
            ..tally.counts
        }
    }

    fn sent(&self) {
        self.0.lock().counts.sent += 1;
    }

    fn skipped(&self) {
        self.0.lock().counts.skipped += 1;
    }

    fn ended(&self, sent: Stamp, answer: Result<&client::Answer, &client::ClientError>) {
        let mut tally = self.0.lock();
        let answer = match answer {
            Ok(answer) => answer,
            Err(client::ClientError::Status(StatusCode::TOO_MANY_REQUESTS)) => {
                return tally.counts.refused += 1;
            }
            Err(_) => return tally.counts.failed += 1,
        };
        tally.counts.ok += 1;
        if let Some(first) = answer.contents.first() {
            tally.ttft.saturating_record(micros(first.since(sent)));
        }
        for (before, after) in answer.contents.iter().zip(answer.contents.iter().skip(1)) {
            tally.gaps.saturating_record(micros(after.since(*before)));
        }
    }
}

/// One conversation.
#[derive(Clone, Debug)]
struct Session {
    messages: Vec<Value>,
    turns: usize,
    /// Bytes of a question.
    question: Range<usize>,
    /// Forked, so that its texts do not depend on the other sessions' timing.
    random: fastrand::Rng,
}

impl Session {
    fn start(config: &TrafficConfig, random: &mut fastrand::Rng) -> Self {
        let system = random.usize(..SYSTEM_PROMPTS) as u64;
        let mut prompt = fastrand::Rng::with_seed(config.seed.wrapping_add(system));
        let content = text(&mut prompt, SYSTEM_PROMPT_BYTES);
        let messages = vec![json!({"role": "system", "content": content})];
        Self { messages, turns: 0, question: QUESTION, random: random.fork() }
    }

    /// One question about a document of its own.
    fn about_a_document(random: &mut fastrand::Rng) -> Self {
        Self { messages: Vec::new(), turns: TURNS - 1, question: DOCUMENT, random: random.fork() }
    }

    /// Adds a question; returns the request's body.
    fn ask(&mut self) -> String {
        let length = self.random.usize(self.question.clone());
        let question = text(&mut self.random, length);
        self.messages.push(json!({"role": "user", "content": question}));
        let max_tokens = self.random.u32(20..120);
        json!({
            "model": "sim", "messages": self.messages, "max_tokens": max_tokens,
            "stream": true, "stream_options": {"include_usage": true},
        })
        .to_string()
    }

    fn reply(&mut self, answer: &str) {
        self.messages.push(json!({"role": "assistant", "content": answer}));
        self.turns += 1;
    }
}

/// Sends traffic until `shutdown`; requests in flight then end on `tracker`.
pub async fn run_traffic(
    config: TrafficConfig,
    stats: Arc<TrafficStats>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    let clock = Clock::start();
    let mut random = fastrand::Rng::with_seed(config.seed);
    let places = Arc::new(Semaphore::new(config.max_in_flight));
    let waiting: Arc<Mutex<Vec<Session>>> = Arc::default();
    let config = Arc::new(config);
    let mut next = clock.now();
    loop {
        next = next.after(exponential(&mut random, config.rate));
        // Both arms are cancel-safe.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep_until(clock.instant(next)) => {}
        }
        let Ok(place) = places.clone().try_acquire_owned() else {
            stats.skipped();
            continue;
        };
        let session = choose(&config, &waiting, &mut random);
        let (config, stats, waiting) = (config.clone(), stats.clone(), waiting.clone());
        let shutdown = shutdown.clone();
        tracker.spawn(async move {
            let _place = place;
            // A turn that is dropped closes its connection, which is what a leaving client does.
            let session = tokio::select! {
                () = shutdown.cancelled() => return,
                session = turn(&config, &stats, session, clock) => session,
            };
            let mut waiting = waiting.lock();
            if let Some(session) = session
                && waiting.len() < WAITING_SESSIONS
            {
                waiting.push(session);
            }
        });
    }
}

/// A document now and then, else a new session with probability 1 / [`TURNS`], else one that waits for its next turn.
fn choose(config: &TrafficConfig, waiting: &Mutex<Vec<Session>>, random: &mut fastrand::Rng) -> Session {
    if config.documents > 0.0 && random.f64() < config.documents {
        return Session::about_a_document(random);
    }
    let (is_new, place) = (random.f64() * TURNS as f64 <= 1.0, random.f64());
    let fresh = Session::start(config, random);
    let mut waiting = waiting.lock();
    if is_new || waiting.is_empty() {
        return fresh;
    }
    let place = (place * waiting.len() as f64) as usize;
    let last = waiting.len() - 1;
    waiting.swap_remove(place.min(last))
}

/// One turn; returns the session while it has turns left.
async fn turn(
    config: &TrafficConfig,
    stats: &TrafficStats,
    mut session: Session,
    clock: Clock,
) -> Option<Session> {
    let body = session.ask();
    stats.sent();
    let sent = clock.now();
    let answer = tokio::time::timeout(TIMEOUT, client::chat(&config.base_url, body, clock)).await;
    let answer = answer.unwrap_or(Err(client::ClientError::Timeout));
    if let Err(error) = &answer {
        tracing::debug!(%error, "a demo request failed");
    }
    stats.ended(sent, answer.as_ref());
    session.reply(&answer.ok()?.text);
    (session.turns < TURNS).then_some(session)
}

/// A histogram of microseconds up to ten minutes.
fn microseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 2)
        .expect("invariant: the bounds are constants that hdrhistogram accepts")
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn quantile(histogram: &Histogram<u64>, quantile: f64) -> Option<Duration> {
    (!histogram.is_empty()).then(|| Duration::from_micros(histogram.value_at_quantile(quantile)))
}

fn exponential(random: &mut fastrand::Rng, rate: f64) -> Duration {
    let gap = -(1.0 - random.f64()).ln() / rate.max(1e-6);
    Duration::try_from_secs_f64(gap.min(3_600.0)).unwrap_or_default()
}

/// About `bytes` bytes of words.
fn text(random: &mut fastrand::Rng, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes + 8);
    while out.len() < bytes {
        for _ in 0..random.usize(2..8) {
            out.push(random.lowercase());
        }
        out.push(' ');
    }
    out
}

/// Shared by the sessions.
const SYSTEM_PROMPTS: usize = 6;
const SYSTEM_PROMPT_BYTES: usize = 6_000;
/// Of a session.
const TURNS: usize = 6;
/// Bytes of a question in a chat, and of one about a document.
const QUESTION: Range<usize> = 40..400;
const DOCUMENT: Range<usize> = 20_000..30_001;
/// Of a request.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Sessions that wait for their next turn.
const WAITING_SESSIONS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_system_prompts_and_repeat_under_a_seed() {
        let config = TrafficConfig::default();
        let bodies = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..8).map(|_| Session::start(&config, &mut random).ask()).collect::<Vec<_>>()
        };
        assert_eq!(bodies(3), bodies(3));
        assert_ne!(bodies(3), bodies(4));
        let system = |body: &String| {
            let body: Value = serde_json::from_str(body).unwrap();
            body["messages"][0]["content"].as_str().unwrap().to_owned()
        };
        let distinct: std::collections::BTreeSet<String> = bodies(3).iter().map(system).collect();
        assert!(distinct.len() <= SYSTEM_PROMPTS, "of eight sessions");
    }

    #[test]
    fn documents_come_among_the_chats_and_are_asked_about_once() {
        let config = TrafficConfig { documents: 0.25, ..TrafficConfig::default() };
        let (mut random, waiting) = (fastrand::Rng::with_seed(1), Mutex::default());
        let bodies: Vec<_> = (0..400)
            .map(|_| {
                let mut session = choose(&config, &waiting, &mut random);
                let is_long = session.ask().len() > 20_000;
                session.reply("yes");
                (is_long, session.turns < TURNS)
            })
            .collect();
        let documents = bodies.iter().filter(|(is_long, _)| *is_long).count();
        assert!((70..130).contains(&documents), "{documents}");
        assert!(bodies.iter().all(|(is_long, goes_on)| is_long != goes_on));
    }

    #[test]
    fn arrivals_have_the_asked_mean() {
        let mut random = fastrand::Rng::with_seed(1);
        let total: Duration = (0..10_000).map(|_| exponential(&mut random, 8.0)).sum();
        assert!((1_150.0..1_350.0).contains(&total.as_secs_f64()), "{total:?}");
    }

    #[test]
    fn each_turn_repeats_the_history() {
        let mut session = Session::start(&TrafficConfig::default(), &mut fastrand::Rng::with_seed(1));
        let first = session.ask();
        session.reply("yes");
        let second = session.ask();
        let messages = |body: &str| serde_json::from_str::<Value>(body).unwrap()["messages"].clone();
        let (first, second) = (messages(&first), messages(&second));
        assert_eq!(second.as_array().unwrap()[..2], first.as_array().unwrap()[..]);
        assert_eq!(second[2], json!({"role": "assistant", "content": "yes"}));
    }
}
