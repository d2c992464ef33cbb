//! The record of one request: the single value that all observers read.
//!
//! Emitted once, from the drop of the response body, so that every end is recorded: complete, client gone, replica gone,
//! panic. Observers have no other input about a request but its first token and its gaps.

mod charge;
mod decision;
mod gaps;
mod rate_limits;
mod ways;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Stamp;
use crate::config::ItlBounds;
use crate::error::{Failure, Timer};
use crate::labels::labels;
use crate::request::class::Class;
use crate::request::dialect::Dialect;
use crate::request::trace_context::Trace;
use crate::stage::{Stage, StageBudget};
use crate::units::Tokens;

pub use self::decision::{Addends, DecisionSummary, Weighed};
pub use self::gaps::{Gap, Gaps};
pub use self::rate_limits::{RateLimit, RateLimits};
pub use self::ways::{ApartCost, Ways};

labels! {
    /// How a request ended (label `outcome`); the five add up to the requests whose head was accepted.
    pub enum Outcome {
        /// Complete response.
        Ok = "ok",
        /// 4xx caused by the request, from the gateway or the engine.
        ClientError = "client_error",
        /// 429 or 503 of the gateway: limits, queue, SLO, drain, no replica.
        Refused = "refused",
        /// No response, or a broken stream (its `code` stays 200).
        Failed = "failed",
        /// The client disconnected, `code` 499 before the head, or its own `x-request-timeout` passed, 504. Never charged to a replica.
        Canceled = "canceled",
    }
}

impl Outcome {
    /// Outcome of a request that ended in this failure.
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::BodyMemory
            | Failure::NoReadyReplica { .. }
            | Failure::NotAdmitted { .. }
            | Failure::Draining
            | Failure::HookUnavailable
            | Failure::NoTokenKeys { .. }
            | Failure::LocalResources
            | Failure::OthersUnreachable { .. }
            | Failure::SuspectedPoison { .. } => Self::Refused,
            // A client that takes nothing, or whose own time is over, has left as far as the fleet is concerned.
            Failure::ClientLeft
            | Failure::Timeout { timer: Timer::ClientStall | Timer::Asked, .. }
            | Failure::NeverPlaced { timer: Timer::Asked, .. } => Self::Canceled,
            Failure::Timeout { .. }
            | Failure::NeverPlaced { .. }
            | Failure::Replica(_)
            | Failure::UnnamedReplica { .. }
            | Failure::DrainCut
            | Failure::Internal => Self::Failed,
            _ => Self::ClientError,
        }
    }
}

/// SLO bounds of one request; `None` is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloBounds {
    /// TTFT, the share per prompt token included.
    pub ttft: Option<Duration>,
    /// TTFT of an empty prompt.
    pub ttft_base: Option<Duration>,
    /// Percentiles of the stream's own ITL.
    pub itl: ItlBounds,
    /// Mean time per output token.
    pub tpot: Option<Duration>,
    /// Duration from head to end.
    pub e2e: Option<Duration>,
}

/// Labels of the replica that served a request.
#[derive(Clone, Debug)]
pub struct Served {
    /// Label `pool`.
    pub pool: Arc<str>,
    /// Label `revision`, of the pool.
    pub revision: Arc<str>,
    /// Label `replica`.
    pub replica: Arc<str>,
    /// Engine kind of the pool (`gen_ai.provider.name`).
    pub engine: Arc<str>,
    /// Host of the replica (`server.address`).
    pub host: Arc<str>,
    /// Port of the replica (`server.port`).
    pub port: u16,
    /// It is an outside provider's (`[pool.outside]`).
    pub is_outside: bool,
    /// Its pool stands by (`pool.standby`).
    pub is_standby: bool,
}

labels! {
    /// Why an attempt was made.
    #[derive(Default)]
    pub enum AttemptCause {
        /// The request came.
        #[default]
        First = "first",
        /// The attempt before failed, and the retry rule allowed another.
        Retry = "retry",
        /// The first token was overdue by the route's `hedge`: a second replica was asked as well.
        Hedge = "hedge",
        /// The stream broke and was continued elsewhere.
        Migration = "migration",
        /// To compute the prompt that another replica decodes.
        Prefill = "prefill",
    }
}

/// Shares of the wait for a first token, by the engine's pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenWait {
    /// In which the engine did not have the request: its server had it, for HTTP, chat template and tokens, or the network.
    pub outside: f64,
    /// Of the rest, in which it stood in the engine's queue; `None` where no page was read meanwhile.
    pub queued: Option<f64>,
}

/// One attempt at one replica.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The chosen replica.
    pub served: Arc<Served>,
    /// Span id, sent upstream in `traceparent`.
    pub span: u64,
    /// Why it was made.
    pub cause: AttemptCause,
    /// Given up because another attempt of a hedge spoke first, because the client left, or by a deadline most of which had passed
    /// before: no failure.
    pub is_canceled: bool,
    /// The replica was chosen.
    pub start: Stamp,
    /// A connection was leased, new or pooled.
    pub connected: Option<Stamp>,
    /// The response head had arrived.
    pub head: Option<Stamp>,
    /// It had failed, or its response could be relayed: see `Record::end_of`.
    pub end: Stamp,
    /// Status of the replica's response head.
    pub status: Option<u16>,
    /// Code of a `ReplicaFailure`; `None` for the attempt that was answered.
    pub error: Option<&'static str>,
    /// Code of the `ReplicaFailure` that ended its answer after it had begun.
    pub broken: Option<&'static str>,
    /// Predicted wait at the engine; `None` before its model is learned.
    pub expected: Option<ExpectedWait>,
    /// Requests that waited at the replica when it was chosen: ours without a first token, others' by the last scrape, and one
    /// more where the batch was full.
    pub ahead: f32,
    /// `None` where no page shows anything of its wait, or nothing came.
    pub seen: Option<SeenWait>,
    /// Its answer was whole and had no content.
    pub is_empty: bool,
    /// The engine's error message, as far as it certainly quotes neither the prompt nor the answer.
    pub engine_error: Option<Box<str>>,
}

/// Error of an attempt whose KV did not come.
pub const LOST_KV: &str = "transfer_failed";

/// How an answer of nothing compares: whole, ended by its model, without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyAnswer {
    /// Nothing speaks against its replica.
    Usual,
    /// Its replica gives more of them than its pool's others.
    OfReplica,
}

/// What an engine does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The model that was asked for.
    Model,
    /// The path: no engine's error names anything that is missing.
    Path,
}

/// Predicted parts of the wait for the first token, and for the rest of an answer that comes whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedWait {
    /// For a place in the batch and for the prompts ahead.
    pub queue: Duration,
    /// For this prompt, on an idle engine.
    pub prefill: Duration,
    /// For each token after the first; zero of a stream, whose tokens are seen.
    pub per_token: Duration,
}

/// Times of one request as the engine reports them, in the response or by its spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// In the engine's queue.
    pub queue: Option<Duration>,
    /// Computing the prompt.
    pub prefill: Option<Duration>,
    /// The engine's TTFT, its queue included.
    pub first_token: Option<Duration>,
    /// From the first to the last token.
    pub generation: Option<Duration>,
}

/// Times of the steps of a request; `None` where it was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// The request head was parsed.
    pub head: Stamp,
    /// The last byte of the request body was read: TTFT counts from here.
    pub read: Option<Stamp>,
    /// Admission was over.
    pub admitted: Option<Stamp>,
    /// The first routing decision was made.
    pub routed: Option<Stamp>,
    /// The attempt that was answered had its connection.
    pub connected: Option<Stamp>,
    /// The response head of the answering replica arrived.
    pub first_byte: Option<Stamp>,
    /// The first content event arrived.
    pub first_token: Option<Stamp>,
    /// The last content event arrived.
    pub last_token: Option<Stamp>,
    /// The last byte was handed to hyper, or the request ended otherwise.
    pub end: Stamp,
}

/// Token counts of the engine's `usage`; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Prompt tokens, cached ones included.
    pub input: Option<Tokens>,
    /// Prompt tokens found in the engine's prefix cache.
    pub cached: Option<Tokens>,
    /// Generated tokens, of all choices.
    pub output: Option<Tokens>,
}

impl TokenCounts {
    /// Those that are known, by the value of the label `kind`.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, Tokens)> {
        let all = [("input", self.input), ("cached", self.cached), ("output", self.output)];
        all.into_iter().filter_map(|(kind, tokens)| Some((kind, tokens?)))
    }
}

/// One ended request.
#[derive(Clone, Debug)]
pub struct Record {
    /// `x-request-id`, the client's or ours.
    pub request_id: Arc<str>,
    /// W3C trace context, the client's continued or a new one.
    pub trace: Trace,
    /// API of the request path.
    pub dialect: Dialect,
    /// Path on the allow-list, never a client's string.
    pub path: Arc<str>,
    /// Label `route`; `none` before it is known.
    pub route: Arc<str>,
    /// Label `model`: as the pool lists it, else `other`; `none` before it is known.
    pub model: Arc<str>,
    /// `gen_ai.request.model`: as the client sent it, cut at [`MAX_MODEL_NAME`] bytes.
    pub requested_model: Option<Box<str>>,
    /// Who sent it.
    pub client: ClientInfo,
    /// Label `tenant`; `none` before it is known.
    pub tenant: Arc<str>,
    /// Name of the API key that it showed; `none` without one.
    pub key: Arc<str>,
    /// SLO class of the route or the client; `none` before it is known.
    pub slo_class: Arc<str>,
    /// Bounds of that class for this prompt.
    pub slo: SloBounds,
    /// Label `class`: size of the prompt.
    pub class: Class,
    /// Session, or what its conversation's turns have in common, on a route with a canary.
    pub conversation: Option<u64>,
    /// Whether the client asked for a stream.
    pub is_stream: bool,
    /// Label `outcome`.
    pub outcome: Outcome,
    /// Status sent to the client; 499 where it left before the head.
    pub status: u16,
    /// Error code (`timeout_inter_token`, `replica_failed`, …) of a request that did not end well.
    pub error: Option<&'static str>,
    /// Times of its steps.
    pub at: Moments,
    /// Time in the admission queue, paced or queued, before the first decision.
    pub held: Duration,
    /// Time in which the stream waited for the client to take bytes.
    pub relay_blocked: Duration,
    /// Every attempt in order; the last one was answered unless it has an `error`. Of a hedge the one that spoke first is the
    /// later; one whose stream broke and was continued has an `error` and a migration behind it.
    pub attempts: Vec<Attempt>,
    /// The first routing decision.
    pub decision: Option<DecisionSummary>,
    /// Where its prompt was computed, on a route with `[route.prefill]`: as it went in the end.
    pub ways: Option<Ways>,
    /// Counts of the engine's `usage`.
    pub tokens: TokenCounts,
    /// Input tokens estimated from the prompt's bytes.
    pub estimated_input: Tokens,
    /// Output tokens of an answer that the engine did not count: of a whole one by its text, of a stream by its events, of one whose count
    /// did not come because its client left, or had no more time, by the time that its engine had.
    pub estimated_output: Tokens,
    /// Choices of its stream that were written side by side, on the mean: at least 1.
    pub side_by_side: f64,
    /// Number of content events relayed.
    pub content_events: u64,
    /// Bytes of the text of its stream, as it stands in the events.
    pub text_bytes: u64,
    /// Longest gap between two content events of one choice.
    pub longest_gap: Duration,
    /// End of the longest gap.
    pub longest_gap_at: Option<Stamp>,
    /// Lowest percentile (50, 90, …) of the stream's own ITL that was over its bound.
    pub itl_missed: Option<u8>,
    /// The pool whose queue refused it, on a route with a canary; of several the first.
    pub turned_away: Option<Box<TurnedAway>>,
    /// How often its stream broke and was continued on another replica.
    pub migrations: u32,
    /// Why its broken stream was not continued, on a route with `migrate`.
    pub migration_refused: Option<&'static str>,
    /// The requested route, where the request was degraded to another.
    pub degraded_from: Option<Arc<str>>,
    /// What its tenant may still use.
    pub rate_limits: RateLimits,
    /// The client's request that this one is a copy of, for a canary: no client sees its answer.
    pub shadow_of: Option<Box<Original>>,
    /// What its engine lacks, by its 404.
    pub unserved: Option<Unserved>,
    /// The answer had no content, though its model ended it.
    pub empty: Option<EmptyAnswer>,
    /// Times reported by the engine.
    pub engine: Option<EngineTimes>,
    /// The route's budget by stage.
    pub stage_budget: Option<Arc<StageBudget>>,
    /// `id` of the engine's response.
    pub response_id: Option<Box<str>>,
    /// `model` of the engine's response.
    pub response_model: Option<Box<str>>,
    /// Distinct finish reasons in order of appearance.
    pub finish_reasons: Vec<Box<str>>,
    /// Bytes of the request body.
    pub bytes_in: u64,
    /// Bytes of the response body handed to the client's connection.
    pub bytes_out: u64,
}

/// A pool whose queue had no place for a request.
#[derive(Clone, Debug)]
pub struct TurnedAway {
    /// Label `pool`.
    pub pool: Arc<str>,
    /// Label `revision`, of the pool.
    pub revision: Arc<str>,
    /// The limit that it was over.
    pub limit: &'static str,
}

/// A request of which a canary gets a copy.
#[derive(Clone, Debug)]
pub struct Original {
    /// `x-request-id`
    pub request_id: Arc<str>,
    /// Its trace.
    pub trace_id: u128,
    /// Span id of its root span.
    pub span: u64,
}

/// Who sent a request, and how (HTTP server conventions of OpenTelemetry).
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// `http.request.method`
    pub method: http::Method,
    /// `url.scheme` is `https`.
    pub is_tls: bool,
    /// `client.address`: of the connection.
    pub address: Option<IpAddr>,
    /// `user_agent.original`, cut at [`MAX_USER_AGENT`] bytes.
    pub user_agent: Option<Box<str>>,
}

impl ClientInfo {
    /// From the head of a request.
    pub fn of(parts: &http::request::Parts) -> Self {
        let user_agent = parts.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        Self {
            method: parts.method.clone(),
            user_agent: user_agent.map(|text| cut(text, MAX_USER_AGENT).into()),
            ..Self::default()
        }
    }
}

/// Whether an answer with these finish reasons ended at its limit of tokens, by any API's word; `None` where it has none.
pub fn is_at_limit(finish_reasons: &[Box<str>]) -> Option<bool> {
    let is_limit = |reason: &str| matches!(reason, "length" | "max_tokens" | "max_output_tokens");
    (!finish_reasons.is_empty()).then(|| finish_reasons.iter().any(|reason| is_limit(reason)))
}

/// The first `bytes` of a text, without half a character.
pub fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    end.and_then(|end| text.get(..end)).unwrap_or_default()
}

/// Longest `user_agent.original` that is kept, in bytes.
pub const MAX_USER_AGENT: usize = 256;
/// Longest model name of a client that is kept, in bytes.
pub const MAX_MODEL_NAME: usize = 256;

/// What is known once the head of a request is parsed.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Who sent it.
    pub client: ClientInfo,
    /// `x-request-id`, the client's or ours.
    pub request_id: Arc<str>,
    /// W3C trace context, the client's continued or a new one.
    pub trace: Trace,
    /// API of the request path.
    pub dialect: Dialect,
    /// Path on the allow-list.
    pub path: Arc<str>,
    /// The request head was parsed.
    pub head: Stamp,
}

impl Attempt {
    /// The stage that all its time was in, where that is none of the attempt that was answered: it computed a prompt for another
    /// replica, or waited for KV that did not come.
    pub fn leg(&self) -> Option<Stage> {
        match self.cause {
            AttemptCause::Prefill => Some(Stage::Prefill),
            _ => (self.error == Some(LOST_KV)).then_some(Stage::KvTransfer),
        }
    }

    /// Whether it computed a prompt for another replica.
    pub fn is_prefill_leg(&self) -> bool {
        self.cause == AttemptCause::Prefill && self.error.is_none()
    }
}

impl Record {
    /// Whether it came to no route: its model is unknown, or it was refused before.
    pub fn has_no_route(&self) -> bool {
        &*self.route == "none"
    }

    /// How an attempt ended; `at` is its place.
    pub fn outcome_of(&self, at: usize, attempt: &Attempt) -> Outcome {
        match attempt.error {
            _ if attempt.is_canceled => Outcome::Canceled,
            None if attempt.cause == AttemptCause::Prefill => {
                let is_refused = attempt.status.is_some_and(|status| status >= 400);
                if is_refused { Outcome::ClientError } else { Outcome::Ok }
            }
            None if at + 1 == self.attempts.len() => self.outcome,
            // The gateway's own limits: nothing was sent to the replica.
            Some("no_free_connection" | "local_resources") => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }

    /// Whether it failed while it was at a replica that is not to blame: most of its time had passed before.
    pub fn is_spared(&self) -> bool {
        self.outcome == Outcome::Failed && self.attempts.last().is_some_and(|last| last.is_canceled)
    }

    /// The attempt whose response went to the client.
    pub fn answered(&self) -> Option<&Attempt> {
        let is_answer = |attempt: &&Attempt| attempt.error.is_none() && attempt.head.is_some();
        self.attempts.last().filter(is_answer).filter(|attempt| attempt.cause != AttemptCause::Prefill)
    }

    /// The attempt that brought the first token: of a stream that was continued elsewhere the one before the break.
    pub fn begun_by(&self) -> Option<&Attempt> {
        let Some(at) = self.attempts.iter().position(|made| made.cause == AttemptCause::Migration) else {
            return self.answered();
        };
        let has_begun = |made: &&Attempt| made.head.is_some() && !made.is_prefill_leg();
        self.attempts.get(..at)?.iter().rfind(has_begun)
    }

    /// The attempt that it counts for, and its place: the longest, which is the last one unless that came after a long wait elsewhere.
    /// One that computed the prompt for another is not, where there is another.
    pub fn charged(&self) -> Option<(usize, &Attempt)> {
        let length = |attempt: &Attempt| (!attempt.is_prefill_leg(), attempt.end.since(attempt.start));
        self.attempts.iter().enumerate().max_by_key(|(_, attempt)| length(attempt))
    }

    /// The attempt that computed its prompt for another replica.
    pub fn prefill_leg(&self) -> Option<&Attempt> {
        self.attempts.iter().rfind(|made| made.is_prefill_leg())
    }

    /// The attempts with a stage of their own, in order: see [`Attempt::leg`].
    pub fn legs(&self) -> impl Iterator<Item = (Stage, &Attempt)> {
        self.attempts.iter().filter_map(|made| Some((made.leg()?, made)))
    }

    /// Whether no other replica had it before that attempt: the wait for the first token was its own.
    pub fn is_first(&self, attempt: &Attempt) -> bool {
        let is_earlier = |made: &Attempt| !made.is_prefill_leg() && made.start < attempt.start;
        self.turned_away.is_none() && !self.attempts.iter().any(is_earlier)
    }

    /// The attempt that was silent, and that of a hedge which brought the first token in its place.
    pub fn outrun(&self) -> Option<(&Attempt, &Attempt)> {
        let won = self.begun_by().filter(|made| made.cause == AttemptCause::Hedge)?;
        let before = self.attempts.iter().rev().skip_while(|made| !std::ptr::eq(*made, won)).nth(1);
        // One that failed by itself was no longer waited for.
        Some((before.filter(|made| made.is_canceled)?, won))
    }

    /// The attempt whose the time to the first token that `begun` brought is; of a hedge it is that of the silent one, at least. `None`
    /// where another replica, or a queue, had the request before.
    pub fn ttft_of<'a>(&'a self, begun: &'a Attempt) -> Option<&'a Attempt> {
        let waited = self.outrun().map_or(begun, |(silent, _)| silent);
        self.is_first(waited).then_some(waited)
    }

    /// Whether it was sent more than once, its two legs apart.
    pub fn is_repeated(&self) -> bool {
        self.attempts.iter().filter(|made| !made.is_prefill_leg()).count() > 1
    }

    /// When the replica was done with it: with the last byte where its response went to the client.
    pub fn end_of(&self, attempt: &Attempt) -> Stamp {
        let is_answered = self.answered().is_some_and(|answered| answered.span == attempt.span);
        if is_answered { self.at.end } else { attempt.end }
    }

    /// The record of a request that ends right after its head: canceled, with status 499.
    pub fn open(opening: Opening) -> Self {
        let none: Arc<str> = "none".into();
        Self {
            request_id: opening.request_id,
            trace: opening.trace,
            dialect: opening.dialect,
            path: opening.path,
            route: Arc::clone(&none),
            model: Arc::clone(&none),
            requested_model: None,
            client: opening.client,
            tenant: Arc::clone(&none),
            key: Arc::clone(&none),
            slo_class: none,
            slo: SloBounds::default(),
            class: Class::None,
            conversation: None,
            is_stream: false,
            outcome: Outcome::Canceled,
            status: 499,
            error: None,
            at: Moments { head: opening.head, ..Moments::default() },
            held: Duration::ZERO,
            relay_blocked: Duration::ZERO,
            attempts: Vec::new(),
            decision: None,
            ways: None,
            tokens: TokenCounts::default(),
            estimated_input: Tokens(0),
            estimated_output: Tokens(0),
            side_by_side: 1.0,
            content_events: 0,
            text_bytes: 0,
            longest_gap: Duration::ZERO,
            longest_gap_at: None,
            itl_missed: None,
            turned_away: None,
            migrations: 0,
            migration_refused: None,
            degraded_from: None,
            rate_limits: RateLimits::default(),
            shadow_of: None,
            unserved: None,
            empty: None,
            engine: None,
            stage_budget: None,
            response_id: None,
            response_model: None,
            finish_reasons: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// The replica of the last attempt.
    pub fn served(&self) -> Option<&Served> {
        self.attempts.last().map(|a| &*a.served)
    }

    /// Label `revision`: of [`Record::served`], or `none`.
    pub fn revision(&self) -> &str {
        self.served().map_or("none", |s| &s.revision)
    }

    /// Whether its replica had become warm a short while ago: its time to first token is no property of its revision.
    pub fn is_cold(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.is_cold)
    }

    /// Whether a tenth of its wait for the first token, or more, was expected to be for prompts ahead of it.
    pub fn has_queued(&self) -> bool {
        let asked = self.outrun().map(|(silent, _)| silent).or(self.attempts.last());
        let expected = asked.and_then(|made| made.expected);
        expected.is_some_and(|expected| expected.queue * 9 > expected.prefill)
    }

    /// Whether its replica computed prompts until its first token that another pool has cached, and it waited no longer than that can
    /// take: a prompt that never gets a token fills nothing.
    pub fn is_filling(&self) -> bool {
        let Some(decision) = self.decision.as_ref().filter(|decision| decision.is_filling) else {
            return false;
        };
        // Of a whole answer it is not known when its prompt was computed.
        let is_whole = self.at.first_token.is_none() && self.outcome == Outcome::Ok;
        let until = self.at.first_token.unwrap_or(self.at.end);
        is_whole || self.at.routed.is_some_and(|from| until.since(from) <= decision.longest_fill)
    }

    /// Whether its client is owed an answer with content.
    pub fn owes_answer(&self) -> bool {
        self.dialect.owes_answer(&self.client.method)
    }

    /// Time to first token: from the last request byte to the first content event; `None` without content.
    pub fn ttft(&self) -> Option<Duration> {
        Some(self.at.first_token?.since(self.at.read?))
    }

    /// Last error message of an engine.
    pub fn engine_error(&self) -> Option<&str> {
        self.attempts.iter().rev().find_map(|attempt| attempt.engine_error.as_deref())
    }

    /// From the parsed head to the end.
    pub fn duration(&self) -> Duration {
        self.at.end.since(self.at.head)
    }

    /// Whether its own tenant's limits refused it: the gateway and the fleet had room, so it says nothing about them.
    pub fn is_over_own_limit(&self) -> bool {
        let is_limit =
            |code| ["budget", "concurrency", "requests_per_minute", "tokens_per_minute"].contains(&code);
        self.outcome == Outcome::Refused && self.error.is_some_and(is_limit)
    }

    /// Time per output token: (last − first content event) / (output tokens − 1), of several choices the longest one's. `None` where
    /// that has one token, and where all came at once.
    pub fn tpot(&self) -> Option<Duration> {
        let longest = self.tokens.output?.0 as f64 / self.side_by_side;
        let span = self.at.last_token?.since(self.at.first_token?);
        (longest > 1.0 && !span.is_zero()).then(|| span.div_f64(longest - 1.0))
    }
}

/// A request at its first content event: observers get it once.
#[derive(Clone, Copy, Debug)]
pub struct FirstToken<'a> {
    /// What is known of it by then.
    pub record: &'a Record,
    /// The replica that serves it.
    pub served: &'a Served,
    /// From the last request byte.
    pub ttft: Duration,
    /// TTFT predicted at the decision for this replica; `None` where the policy does not predict.
    pub predicted: Option<Duration>,
    /// Its replica had become warm a short while ago.
    pub is_cold: bool,
}

impl FirstToken<'_> {
    /// Whose `ttft` is: see [`Record::ttft_of`].
    pub fn waited_at(&self) -> Option<&Served> {
        self.record.ttft_of(self.record.attempts.last()?).map(|made| &*made.served)
    }
}
