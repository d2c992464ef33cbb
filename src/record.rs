//! Everything known of one request, at its end: the single value that all observers read.
//!
//! Made once, in the drop of the response body (or when the answer had none), so that every end is recorded:
//! complete, client gone, replica gone, panic. Observers never look anywhere else.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Stamp;
use crate::config::ItlBounds;
use crate::error::Failure;
use crate::request::class::Class;
use crate::request::dialect::Dialect;
use crate::request::trace_context::Trace;
use crate::stage::StageBudget;
use crate::units::Tokens;

/// How a request ended (label `outcome`). The five sum to the requests whose head was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A complete answer.
    Ok,
    /// Any 4xx caused by the request, the gateway's or the engine's.
    ClientError,
    /// The gateway's 429 or 503: limits, queue, SLO, drain, no replica.
    Refused,
    /// No answer, or a broken stream (`code` stays 200 then).
    Failed,
    /// The client left; `code` is 499 before the head. Never charged to a replica.
    Canceled,
}

impl Outcome {
    /// How a request that ended in this failure is counted.
    #[must_use]
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::BodyMemory
            | Failure::NoReadyReplica { .. }
            | Failure::NotAdmitted { .. }
            | Failure::Draining
            | Failure::SuspectedPoison { .. } => Self::Refused,
            Failure::Timeout { .. } | Failure::Replica(_) | Failure::DrainCut | Failure::Internal => {
                Self::Failed
            }
            _ => Self::ClientError,
        }
    }

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

/// The SLO bounds that apply to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloBounds {
    /// Bound on TTFT, the prompt's share included.
    pub ttft: Option<Duration>,
    /// Bounds on percentiles of the stream's own inter-token latencies.
    pub itl: ItlBounds,
    /// Bound on mean time per output token.
    pub tpot: Option<Duration>,
    /// Bound on the whole duration.
    pub e2e: Option<Duration>,
}

/// Who served a request: labels only, resolved once.
#[derive(Clone, Debug)]
pub struct Served {
    /// Pool name.
    pub pool: Arc<str>,
    /// Revision of the pool.
    pub revision: Arc<str>,
    /// Replica name.
    pub replica: Arc<str>,
    /// Engine kind of the pool (`gen_ai.provider.name`).
    pub engine: Arc<str>,
    /// Host of the replica (`server.address`).
    pub host: Arc<str>,
    /// Port of the replica (`server.port`).
    pub port: u16,
}

/// One try at one replica.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Who was tried.
    pub served: Served,
    /// Span id of the attempt; it went upstream in `traceparent`.
    pub span: u64,
    /// When the replica was chosen.
    pub start: Stamp,
    /// When a connection was at hand (fresh or pooled).
    pub connected: Option<Stamp>,
    /// When the response head had arrived.
    pub head: Option<Stamp>,
    /// When the attempt was over.
    pub end: Stamp,
    /// Status of the replica's head, if one came.
    pub status: Option<u16>,
    /// Why it failed (an error code of [`crate::error`]), `None` for the one that answered.
    pub error: Option<&'static str>,
    /// What was expected of the engine, where a model of it was learned.
    pub expected: Option<ExpectedWait>,
}

/// What a learned model says of the wait for a first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedWait {
    /// Behind others: for a place in the batch, and for their prompts.
    pub queue: Duration,
    /// For the own prompt, on an idle engine.
    pub prefill: Duration,
}

/// The engine's own times for one request, in-band or by its spans; each where it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// Time in the engine's queue.
    pub queue: Option<Duration>,
    /// Time in which the prompt was computed.
    pub prefill: Option<Duration>,
    /// Time to first token as the engine counts it, its queue included.
    pub first_token: Option<Duration>,
    /// Time from first to last token.
    pub generation: Option<Duration>,
}

/// What the decision said, for headers, logs and calibration.
#[derive(Clone, Debug)]
pub struct DecisionSummary {
    /// Policy name.
    pub policy: &'static str,
    /// Why the winner won (label `reason`).
    pub reason: &'static str,
    /// From the request's arrival to the decision.
    pub waited: Duration,
    /// Predicted TTFT of the winner, where the policy predicts: like TTFT from the request's arrival, so what was
    /// waited is in it.
    pub predicted_ttft: Option<Duration>,
    /// Prompt tokens that the winner was believed to have cached.
    pub predicted_hit: Tokens,
    /// How many replicas were weighed.
    pub candidates: u16,
    /// The best of them with their terms, the cheapest first; empty where the policy predicts nothing, and for most
    /// requests of a flood.
    pub weighed: Box<[Weighed]>,
}

/// One candidate of a decision. Times are seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed {
    /// Replica name.
    pub replica: Arc<str>,
    /// Predicted TTFT there, from the request's arrival.
    pub predicted_ttft: Duration,
    /// Prompt tokens believed to be cached there.
    pub predicted_hit: Tokens,
    /// Until the engine gets to it.
    pub wait: f64,
    /// To compute the prompt.
    pub prefill: f64,
    /// Streams that it would push over their bound on time per token.
    pub harm: f64,
    /// The chance that its first token is late.
    pub late: f64,
    /// What all that costs; the least wins.
    pub cost: f64,
}

/// Moments in a request's life. `None` where it was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// The request head was parsed.
    pub head: Stamp,
    /// The last byte of the request body was read: TTFT counts from here.
    pub read: Option<Stamp>,
    /// Admission was over.
    pub admitted: Option<Stamp>,
    /// The first decision was made.
    pub routed: Option<Stamp>,
    /// The connection of the attempt that answered was at hand.
    pub connected: Option<Stamp>,
    /// First byte of the answering replica (its response head).
    pub first_byte: Option<Stamp>,
    /// First content event.
    pub first_token: Option<Stamp>,
    /// Last content event.
    pub last_token: Option<Stamp>,
    /// The last byte was handed to hyper, or the request ended otherwise.
    pub end: Stamp,
}

/// Token counts as the engine's `usage` told them; `None` where it did not.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenCounts {
    /// Prompt tokens, cached ones included.
    pub input: Option<Tokens>,
    /// Prompt tokens that came from the engine's prefix cache.
    pub cached: Option<Tokens>,
    /// Generated tokens.
    pub output: Option<Tokens>,
}

/// One request, ended.
#[derive(Clone, Debug)]
pub struct Record {
    /// `x-request-id`, the client's or ours.
    pub request_id: Arc<str>,
    /// Trace context.
    pub trace: Trace,
    /// API that was spoken.
    pub dialect: Dialect,
    /// Path of the request (from the allow-list, never a client's string).
    pub path: Arc<str>,
    /// Route name, or `none`.
    pub route: Arc<str>,
    /// Label-safe model name: as the pool lists it, else `other`; `none` before it was known.
    pub model: Arc<str>,
    /// Tenant name, or `none` before it was known.
    pub tenant: Arc<str>,
    /// SLO class name, or `none`.
    pub slo_class: Arc<str>,
    /// Bounds of that class for this prompt.
    pub slo: SloBounds,
    /// Prompt class.
    pub class: Class,
    /// Whether the answer was (to be) a stream.
    pub is_stream: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Status that the client got; 499 where it left before the head.
    pub status: u16,
    /// Error code (`timeout_inter_token`, `replica_failed`, …), if any.
    pub error: Option<&'static str>,
    /// Moments.
    pub at: Moments,
    /// Waiting for its turn before the first decision, paced or queued.
    pub held: Duration,
    /// Time in which the client's slowness held the stream up.
    pub relay_blocked: Duration,
    /// Every try, in order; the last one answered unless `error` says otherwise.
    pub attempts: Vec<Attempt>,
    /// The first decision, if one was made.
    pub decision: Option<DecisionSummary>,
    /// Token counts.
    pub tokens: TokenCounts,
    /// Input tokens as estimated before the answer.
    pub estimated_input: Tokens,
    /// Content events seen.
    pub content_events: u64,
    /// Longest gap between two content events of one choice.
    pub longest_gap: Duration,
    /// When the longest gap ended.
    pub longest_gap_at: Option<Stamp>,
    /// The percentile of the stream's own inter-token latencies that was over its bound; the lowest such one.
    pub itl_missed: Option<u8>,
    /// The route that was asked for, where another answers for it.
    pub degraded_from: Option<Arc<str>>,
    /// The engine's own times, where it told them.
    pub engine: Option<EngineTimes>,
    /// How long each stage may take, where the route says so.
    pub stage_budget: Option<Arc<StageBudget>>,
    /// Response id as the engine gave it.
    pub response_id: Option<Box<str>>,
    /// Model as the engine names it in its answer.
    pub response_model: Option<Box<str>>,
    /// Distinct finish reasons, in order.
    pub finish_reasons: Vec<Box<str>>,
    /// Bytes of the request body.
    pub bytes_in: u64,
    /// Bytes of the response body handed to the client.
    pub bytes_out: u64,
}

impl Record {
    /// The replica that answered, or the last one tried.
    #[must_use]
    pub fn served(&self) -> Option<&Served> {
        self.attempts.last().map(|a| &a.served)
    }

    /// Revision label: of the replica that answered, or `none`.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.served().map_or("none", |s| &s.revision)
    }

    /// Time to first token: from the last request byte to the first content event. `None` without content.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        Some(self.at.first_token?.since(self.at.read?))
    }

    /// From the parsed head to the end.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.at.end.since(self.at.head)
    }

    /// Time per output token: (last − first content event) / (output tokens − 1). `None` below two tokens.
    #[must_use]
    pub fn tpot(&self) -> Option<Duration> {
        let steps = self.tokens.output?.0.checked_sub(1).filter(|n| *n > 0)?;
        let span = self.at.last_token?.since(self.at.first_token?);
        Some(span.div_f64(steps as f64))
    }
}

/// The value that leaves a request once, at its first content event.
#[derive(Clone, Debug)]
pub struct FirstToken {
    /// Route name.
    pub route: Arc<str>,
    /// Label-safe model name.
    pub model: Arc<str>,
    /// Tenant name.
    pub tenant: Arc<str>,
    /// Prompt class.
    pub class: Class,
    /// Who serves it.
    pub served: Served,
    /// Time to first token.
    pub ttft: Duration,
    /// What was predicted, where the policy predicts.
    pub predicted: Option<Duration>,
}

/// A gap between two content events of one choice, as observed by the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The gap as a person feels it: one ICL observation.
    pub length: Duration,
    /// Tokens that the later event carried, where known at once: `n` ITL observations of `length / n`.
    /// `None`: the count is known only at the end (ITL is then observed by the relay's [`Gaps::late_itl`]).
    pub tokens: Option<u32>,
}

/// Tokens that one event is believed to carry at most: the count is an engine's word, and a wrong one must neither keep a
/// core busy nor drown every other observation.
pub const MOST_TOKENS_AN_EVENT: u32 = 1024;

/// A batch of gaps of one stream, merged into the series at least once a second.
#[derive(Clone, Copy, Debug)]
pub struct Gaps<'a> {
    /// The gaps, oldest first.
    pub gaps: &'a [Gap],
    /// Gaps whose token count became known only at the end: (gap, whole tokens per event).
    pub late_itl: &'a [(Duration, u32)],
}
