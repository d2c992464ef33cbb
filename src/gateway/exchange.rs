//! Pick, send, retry: from a prepared request to a response worth relaying, or a failure.
//!
//! The retry rule: a request known not to have been sent may use all of `retry.attempts`; one that may have started is
//! retried once at most, within the retry budget. Deadlines run over all attempts. An exchange owns all its state, so that
//! it can also run inside a response body, behind heartbeats.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;

use super::attempt::{AttemptError, AttemptTimes, Deadlines, UpstreamAttempt, UpstreamResponse};
use super::degrade::degrade;
use super::picker::{self, PickOutcome, QueueWait};
use super::prepare::Prepared;
use super::waiting::Waits;
use super::{Gateway, IncomingRequest, blame};
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record::{self, Served};
use crate::relay::reader::StreamShape;
use crate::relay::usage_filter::AskedUsage;
use crate::relay::watch::{StreamDeadlines, StreamWatch};
use crate::request::trace_context;
use crate::upstream::headers::{self, Credential, Upstream};

/// A prepared request and everything its attempts need.
#[derive(Debug)]
pub struct Exchange {
    pub(super) incoming: Box<IncomingRequest>,
    /// The request as parsed and classified.
    pub prepared: Box<Prepared>,
    /// Its open record.
    pub guard: RecordGuard,
    pub(super) tried: picker::Tried,
    retried_unsent: u32,
    retried_started: bool,
    pub(super) waits: Waits,
}

/// Result of an exchange.
#[derive(Debug)]
pub struct ExchangeResult {
    /// The request's open record.
    pub guard: RecordGuard,
    /// A response worth relaying with the attempt that got it, or a failure.
    pub result: Result<(UpstreamResponse, ActiveAttempt), Failure>,
    /// The request; after a degrade, as prepared for the fallback route.
    pub prepared: Box<Prepared>,
}

/// The attempt whose response is relayed; lives until the end of the body.
#[derive(Debug)]
pub struct ActiveAttempt {
    /// The chosen replica with the load reserved on it.
    pub pick: Box<Pick>,
    /// State shared with the watchdog.
    pub watch: Arc<StreamWatch>,
}

impl Exchange {
    /// An exchange before its first attempt. Boxed: it is moved several times, and each move would copy it whole.
    #[must_use]
    pub fn new(incoming: Box<IncomingRequest>, prepared: Box<Prepared>, guard: RecordGuard) -> Box<Self> {
        Box::new(Self {
            incoming,
            prepared,
            guard,
            tried: picker::Tried::new(),
            retried_unsent: 0,
            retried_started: false,
            waits: Waits::default(),
        })
    }

    /// The shared state of all requests.
    #[must_use]
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.incoming.gateway
    }

    /// Attempts until one replica answers or the retry rule forbids another.
    pub async fn run(mut self: Box<Self>) -> ExchangeResult {
        let result = self.answer().await;
        if let Err(failure) = &result {
            self.incoming.gateway.count_refusal(failure);
        }
        let Self { guard, prepared, .. } = *self;
        ExchangeResult { guard, result, prepared }
    }

    async fn answer(&mut self) -> Result<(UpstreamResponse, ActiveAttempt), Failure> {
        let mut last: Option<Result<(UpstreamResponse, ActiveAttempt), Failure>> = None;
        loop {
            let pick = match picker::pick(
                &self.incoming.gateway,
                &self.prepared,
                self.waits.pick_context(&self.tried),
            ) {
                Some(PickOutcome::Take(pick)) => pick,
                Some(PickOutcome::Wait(hold)) => {
                    self.wait(hold).await?;
                    continue;
                }
                Some(PickOutcome::Degrade) => {
                    if degrade(&mut self.prepared, &mut self.guard, self.incoming.gateway.observer.metrics())
                    {
                        self.waits.reset();
                    }
                    continue;
                }
                None if last.is_none() && self.prepared.may_wait_for_replica() => {
                    let now = self.incoming.gateway.clock.now();
                    self.wait(QueueWait::for_replica(now, self.prepared.read)).await?;
                    continue;
                }
                None => return last.unwrap_or_else(|| Err(self.prepared.no_ready_replica())),
            };
            self.waits.note_admitted(&self.incoming.gateway);
            self.note_decision(&pick);
            match self.attempt(pick).await {
                Ok(answered) => {
                    self.note_blame(&answered);
                    return Ok(answered);
                }
                Err((AttemptError::Overdue(failure) | AttemptError::Ours(failure), _)) => {
                    return Err(failure);
                }
                Err((AttemptError::Replica(failure, answer), active)) => {
                    let may_retry = self.may_retry(&failure, &active.pick);
                    // If this was the last attempt, the client gets the engine's own complete response, if there is one.
                    let result = match answer {
                        Some(answer) => Ok((UpstreamResponse::Buffered(answer), active)),
                        None => Err(Failure::Replica(failure)),
                    };
                    if !may_retry {
                        return result;
                    }
                    last = Some(result);
                }
            }
        }
    }

    /// Holds a relayed error against the replica, where it is the replica's.
    fn note_blame(&self, (answer, active): &(UpstreamResponse, ActiveAttempt)) {
        let UpstreamResponse::Buffered(answer) = answer else { return };
        let pick = &active.pick;
        if let Some(failure) = blame::of_answer(answer, pick, &self.prepared) {
            pick.pool.failed(&pick.replica, &failure, pick.prompt, self.incoming.gateway.clock.now());
        }
    }

    async fn wait(&mut self, hold: QueueWait) -> Result<(), Failure> {
        // Boxed: most requests never wait and should not carry this future's state.
        Box::pin(self.waits.wait(hold, &self.incoming.gateway, &self.prepared, &mut self.guard)).await
    }

    /// Counts the failure against the replica; whether the retry rule allows another attempt.
    pub(super) fn may_retry(&mut self, failure: &ReplicaFailure, pick: &Pick) -> bool {
        let gateway = &self.incoming.gateway;
        let now = gateway.clock.now();
        let was_returned = matches!(failure, ReplicaFailure::ClosedBeforeHead { is_unsent: true, .. });
        if !was_returned {
            pick.pool.failed(&pick.replica, failure, pick.prompt, now);
            picker::note_tried(&mut self.tried, pick);
        }
        let retry = &self.prepared.table.config.retry;
        if failure.is_unsent() {
            self.retried_unsent += 1;
            return self.retried_unsent <= retry.attempts;
        }
        let is_first = !std::mem::replace(&mut self.retried_started, true);
        is_first && retry.attempts > 0 && pick.pool.retries.withdraw(retry, now)
    }

    async fn attempt(
        &mut self,
        pick: Box<Pick>,
    ) -> Result<(UpstreamResponse, ActiveAttempt), (AttemptError, ActiveAttempt)> {
        let clock = self.incoming.gateway.clock;
        let start = clock.now();
        let span = trace_context::new_span_id();
        let deadlines = self.prepared.deadlines();
        let limits = StreamDeadlines {
            inter_token: Some(self.prepared.timeouts.inter_token),
            client_stall: self.prepared.timeouts.client_stall,
            patience: patience(&deadlines, pick.decision.predicted_ttft),
            first_token_at: deadlines.first_token.map(|deadline| deadline.at),
            total_at: deadlines.total.at,
        };
        let vitals = Arc::clone(&pick.replica.vitals);
        let watch = self.incoming.gateway.watchdog.watch(vitals, self.incoming.kill.clone(), limits, start);
        let mut attempt = Box::new(UpstreamAttempt {
            replica: Arc::clone(&pick.replica),
            request: self.request(&pick, span),
            shape: self.shape(&pick),
            watch: Arc::clone(&watch),
            is_stream: self.prepared.is_stream,
            deadlines,
            clock,
        });
        let mut times = AttemptTimes { start, ..AttemptTimes::default() };
        let watch_guard = WatchGuard(Some(&watch));
        let result = attempt.send(&mut times).await;
        watch_guard.disarm();
        self.note_attempt(&pick, span, &times, &result);
        let active = ActiveAttempt { pick, watch };
        match result {
            Ok(answer) => Ok((answer, active)),
            Err(error) => {
                active.watch.close();
                if let AttemptError::Overdue(failure) = &error {
                    self.note_overdue(failure, &active.pick, clock.now());
                }
                Err((error, active))
            }
        }
    }

    /// A deadline passed at a replica: one that kept it waiting for most of `first_token` is no better than one that failed.
    fn note_overdue(&self, failure: &Failure, pick: &Pick, now: Stamp) {
        pick.assignment.censored(now);
        let Failure::Timeout { timer: Timer::FirstToken, after } = failure else { return };
        if now.since(pick.assignment.at) >= *after / 2 {
            let why = ReplicaFailure::Silent { replica: pick.replica.name() };
            pick.pool.failed(&pick.replica, &why, pick.prompt, now);
        }
    }

    fn shape(&mut self, pick: &Pick) -> StreamShape {
        StreamShape {
            dialect: self.guard.record().dialect,
            echo: self.prepared.echo.clone(),
            asked_usage: self.asked_usage(pick),
        }
    }

    /// What to take out of the stream because the gateway asked for it: nothing where the engine sends it unasked.
    fn asked_usage(&self, pick: &Pick) -> Option<AskedUsage> {
        if !self.prepared.asks_usage {
            return None;
        }
        let has_several_choices = self.prepared.has_several_choices;
        let Some(unasked) = pick.replica.unasked.load_full() else {
            return Some(AskedUsage { has_several_choices, ..AskedUsage::default() });
        };
        let fingerprint = unasked.fingerprint.clone();
        (!unasked.sends_usage).then_some(AskedUsage { has_several_choices, fingerprint, is_sure: true })
    }

    /// The upstream request: framing and headers of the gateway, the prepared body.
    pub(super) fn request(&mut self, pick: &Pick, span: u64) -> Request<Full<Bytes>> {
        let record = self.guard.record();
        let config = pick.pool.config();
        let credential = match &config.engine_api_key {
            Some(key) => Credential::Replace(key),
            None if self.prepared.table.tenants.ask_for_keys() => Credential::Remove,
            None => Credential::Forward,
        };
        let has_body = !self.prepared.body.is_empty() || self.incoming.parts.method == http::Method::POST;
        let id = HeaderValue::from_str(&record.request_id);
        let mut request = Request::new(Full::new(self.prepared.body.clone()));
        *request.method_mut() = self.incoming.parts.method.clone();
        *request.uri_mut() = target(&pick.replica.endpoint.base_path, &self.incoming.parts.uri);
        *request.headers_mut() = headers::upstream_request(
            &self.incoming.parts.headers,
            Upstream {
                host: &pick.replica.host,
                body_len: has_body.then_some(self.prepared.body.len()),
                request_id: &id.unwrap_or_else(|_| HeaderValue::from_static("none")),
                traceparent: Some(trace_context::traceparent(&record.trace, span)),
                tracestate: record.trace.state.as_deref().and_then(|s| HeaderValue::from_str(s).ok()),
                credential,
                via: &self.incoming.gateway.via,
            },
        );
        request
    }

    pub(super) fn note_decision(&mut self, pick: &Pick) {
        let record = self.guard.record();
        record.at.routed.get_or_insert(pick.assignment.at);
        if record.decision.is_none() {
            record.decision = Some(pick.decision.clone());
            pick.pool.retries.deposit(&self.prepared.table.config.retry);
        }
    }

    fn note_attempt(
        &mut self,
        pick: &Pick,
        span: u64,
        times: &AttemptTimes,
        result: &Result<UpstreamResponse, AttemptError>,
    ) {
        let (status, error) = match result {
            Ok(answer) => (Some(answer.status().as_u16()), None),
            Err(AttemptError::Replica(failure, answer)) => {
                (answer.as_ref().map(|a| a.head.status.as_u16()), Some(failure.code()))
            }
            Err(AttemptError::Overdue(failure) | AttemptError::Ours(failure)) => (None, Some(failure.code())),
        };
        let end = self.incoming.gateway.clock.now();
        let record = self.guard.record();
        record.at.connected = times.connected;
        record.at.first_byte = times.head;
        record.attempts.push(record::Attempt {
            served: Served::clone(&pick.replica.served()),
            span,
            start: times.start,
            connected: times.connected,
            head: times.head,
            end,
            status,
            error,
            expected: pick.assignment.expected(),
        });
    }
}

/// Closes the watch if the attempt is dropped before its end (the client left).
struct WatchGuard<'w>(Option<&'w StreamWatch>);

impl WatchGuard<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.0 {
            watch.close();
        }
    }
}

/// How long a request waits for its first token, or a unary answer, before evidence against its replica counts: half of the
/// deadline, or three times what was predicted.
fn patience(deadlines: &Deadlines, predicted: Option<Duration>) -> Duration {
    let deadline = deadlines.first_token.unwrap_or(deadlines.total);
    (deadline.after / 2).max(predicted.unwrap_or_default() * 3)
}

/// The client's path and query below the replica's base path, in origin form.
fn target(base_path: &str, uri: &http::Uri) -> http::Uri {
    let path = match uri.path_and_query() {
        Some(path) if base_path.is_empty() => return http::Uri::from(path.clone()),
        path => path.map_or("/", |p| p.as_str()),
    };
    http::Uri::try_from(format!("{base_path}{path}")).unwrap_or_default()
}
