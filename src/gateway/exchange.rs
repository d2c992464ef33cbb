//! Route, send, try again: from a prepared request to an answer worth relaying, or a failure.
//!
//! The retry rule: work known not to have been sent may use all of `retry.attempts`; work that may have
//! started is retried once in all, within the budget. Deadlines run over all attempts. It owns everything it
//! needs, so that it can also run inside a response body, behind heartbeats.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;

use super::attempt::{Answer, AttemptError, AttemptMoments, Order};
use super::degrade::degrade;
use super::picker::{self, Choice, Hold};
use super::prepare::Prepared;
use super::waiting::{NO_REPLICA, Waits};
use super::{Asked, Gateway};
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record;
use crate::relay::reader::StreamShape;
use crate::relay::watch::{StreamDeadlines, StreamWatch};
use crate::request::dialect::Dialect;
use crate::request::trace_context;
use crate::upstream::headers::{self, Credential, Upstream};

/// A prepared request and everything its attempts need.
#[derive(Debug)]
pub struct Exchange {
    asked: Box<Asked>,
    /// The request.
    pub prepared: Box<Prepared>,
    /// Its record in the making.
    pub guard: RecordGuard,
    pub(super) tried: picker::Tried,
    retried_unsent: u32,
    retried_started: bool,
    pub(super) waits: Waits,
}

/// What came of it.
#[derive(Debug)]
pub struct Exchanged {
    /// The request's record in the making.
    pub guard: RecordGuard,
    /// An answer worth relaying with who gave it, or a failure.
    pub result: Result<(Answer, Winner), Failure>,
    /// How the exchange was prepared.
    pub prepared: Box<Prepared>,
}

/// Who answers, and what goes on until the end of the answer.
#[derive(Debug)]
pub struct Winner {
    /// The choice; holds the load.
    pub pick: Box<Pick>,
    /// The watchdog's view.
    pub watch: Arc<StreamWatch>,
}

impl Exchange {
    /// Begins.
    #[must_use]
    pub fn new(asked: Box<Asked>, prepared: Box<Prepared>, guard: RecordGuard) -> Box<Self> {
        // It goes through several hands, and every move of it would copy it whole.
        Box::new(Self {
            asked,
            prepared,
            guard,
            tried: picker::Tried::new(),
            retried_unsent: 0,
            retried_started: false,
            waits: Waits::default(),
        })
    }

    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.asked.gateway
    }

    /// Tries replicas until one answers or none may be tried any more.
    pub async fn run(mut self: Box<Self>) -> Exchanged {
        let result = self.answer().await;
        if let Err(failure) = &result {
            self.asked.gateway.count_refusal(failure);
        }
        let Self { guard, prepared, .. } = *self;
        Exchanged { guard, result, prepared }
    }

    async fn answer(&mut self) -> Result<(Answer, Winner), Failure> {
        let mut last: Option<Result<(Answer, Winner), Failure>> = None;
        loop {
            let pick = match picker::pick(&self.asked.gateway, &self.prepared, self.waits.asking(&self.tried))
            {
                Some(Choice::Take(pick)) => pick,
                Some(Choice::Wait(hold)) => {
                    self.wait(hold).await?;
                    continue;
                }
                Some(Choice::Degrade) => {
                    if degrade(&mut self.prepared, &mut self.guard, self.asked.gateway.observer.metrics()) {
                        self.waits.begin_anew();
                    }
                    continue;
                }
                None if last.is_none() && self.prepared.may_wait_for_a_replica() => {
                    self.wait(NO_REPLICA).await?;
                    continue;
                }
                None => return last.unwrap_or_else(|| Err(self.prepared.nobody())),
            };
            self.waits.note_admitted(&self.asked.gateway);
            self.note_decision(&pick);
            match self.attempt(pick).await {
                Ok(answered) => return Ok(answered),
                Err((AttemptError::Overdue(failure), _)) => return Err(failure),
                Err((AttemptError::Replica(failure, answer), winner)) => {
                    let may_go_on = self.may_retry(&failure, &winner.pick);
                    // What the client gets if this was the last try: the engine's own whole answer, if it gave one.
                    let result = match answer {
                        Some(answer) => Ok((Answer::Whole(answer), winner)),
                        None => Err(Failure::Replica(failure)),
                    };
                    if !may_go_on {
                        return result;
                    }
                    last = Some(result);
                }
            }
        }
    }

    async fn wait(&mut self, hold: Hold) -> Result<(), Failure> {
        // Boxed, so that the many requests that need not wait do not carry the memory for it.
        Box::pin(self.waits.wait(hold, &self.asked.gateway, &self.prepared, &mut self.guard)).await
    }

    /// Counts the failure against the replica and says whether another try is allowed.
    fn may_retry(&mut self, failure: &ReplicaFailure, pick: &Pick) -> bool {
        let gateway = &self.asked.gateway;
        let now = gateway.clock.now();
        let was_handed_back = matches!(failure, ReplicaFailure::ClosedBeforeHead { is_unsent: true, .. });
        if !was_handed_back {
            pick.pool.failed(&pick.replica, failure, pick.prompt, now);
            picker::note_tried(&mut self.tried, pick);
        }
        let retry = &self.prepared.table.config.retry;
        if failure.is_unsent() {
            self.retried_unsent += 1;
            return self.retried_unsent <= retry.attempts;
        }
        let is_first = !std::mem::replace(&mut self.retried_started, true);
        is_first && retry.attempts > 0 && gateway.retries.withdraw(retry, now)
    }

    async fn attempt(&mut self, pick: Box<Pick>) -> Result<(Answer, Winner), (AttemptError, Winner)> {
        let clock = self.asked.gateway.clock;
        let start = clock.now();
        let span = trace_context::new_span_id();
        let deadlines = self.prepared.deadlines();
        let limits = StreamDeadlines {
            inter_token: Some(self.prepared.timeouts.inter_token),
            client_stall: self.prepared.timeouts.client_stall,
            first_token_at: deadlines.first_token.map(|(at, _)| at),
            total_at: deadlines.total.0,
        };
        let vitals = Arc::clone(&pick.replica.vitals);
        let watch = self.asked.gateway.watchdog.watch(vitals, self.asked.kill.clone(), limits, start);
        let asks_load = self.asks_load(&pick, start);
        let mut order = Box::new(Order {
            replica: Arc::clone(&pick.replica),
            request: self.request(&pick, span, asks_load),
            shape: self.shape(),
            watch: Arc::clone(&watch),
            deadlines,
            asks_load,
            clock,
        });
        let mut moments = AttemptMoments { start, ..AttemptMoments::default() };
        let watching = WatchGuard(Some(&watch));
        let result = order.send(&mut moments).await;
        watching.disarm();
        self.note_attempt(&pick, span, &moments, &result);
        let winner = Winner { pick, watch };
        match result {
            Ok(answer) => Ok((answer, winner)),
            Err(error) => {
                winner.watch.close();
                if matches!(error, AttemptError::Overdue(_)) {
                    winner.pick.assignment.censored(clock.now());
                }
                Err((error, winner))
            }
        }
    }

    fn shape(&mut self) -> StreamShape {
        StreamShape {
            dialect: self.guard.record().dialect,
            echo: self.prepared.echo.clone(),
            withhold_usage: self.prepared.withhold_usage,
        }
    }

    /// Whether the engine should tell its load with the answer: only unary ones do, and a scrape that is on time is cheaper.
    fn asks_load(&mut self, pick: &Pick, now: Stamp) -> bool {
        let tells = matches!(self.guard.record().dialect, Dialect::Chat | Dialect::Completions);
        tells
            && !self.prepared.is_stream
            && pick.replica.target.is_overdue(now, pick.pool.config().scrape_interval)
            && !headers::has_asked_load(&self.asked.parts.headers)
    }

    /// The upstream request: our framing, our header list, the client's bytes.
    fn request(&mut self, pick: &Pick, span: u64, asks_load: bool) -> Request<Full<Bytes>> {
        let record = self.guard.record();
        let config = pick.pool.config();
        let credential = match &config.engine_api_key {
            Some(key) => Credential::Replace(key),
            None if self.prepared.table.tenants.ask_for_keys() => Credential::Remove,
            None => Credential::Forward,
        };
        let has_body = !self.prepared.body.is_empty() || self.asked.parts.method == http::Method::POST;
        let id = HeaderValue::from_str(&record.request_id);
        let mut request = Request::new(Full::new(self.prepared.body.clone()));
        *request.method_mut() = self.asked.parts.method.clone();
        *request.uri_mut() = target(&pick.replica.endpoint.base_path, &self.asked.parts.uri);
        *request.headers_mut() = headers::upstream_request(
            &self.asked.parts.headers,
            Upstream {
                host: &pick.replica.host,
                body_len: has_body.then_some(self.prepared.body.len()),
                request_id: &id.unwrap_or_else(|_| HeaderValue::from_static("none")),
                traceparent: Some(trace_context::traceparent(&record.trace, span)),
                tracestate: record.trace.state.as_deref().and_then(|s| HeaderValue::from_str(s).ok()),
                credential,
                via: &self.asked.gateway.via,
                asks_load,
            },
        );
        request
    }

    fn note_decision(&mut self, pick: &Pick) {
        let record = self.guard.record();
        record.at.routed.get_or_insert(pick.assignment.at);
        record.decision.get_or_insert_with(|| pick.decision.clone());
    }

    fn note_attempt(
        &mut self,
        pick: &Pick,
        span: u64,
        moments: &AttemptMoments,
        result: &Result<Answer, AttemptError>,
    ) {
        let (status, error) = match result {
            Ok(answer) => (Some(answer.status().as_u16()), None),
            Err(AttemptError::Replica(failure, answer)) => {
                (answer.as_ref().map(|a| a.head.status.as_u16()), Some(failure.code()))
            }
            Err(AttemptError::Overdue(failure)) => (None, Some(failure.code())),
        };
        let end = self.asked.gateway.clock.now();
        let record = self.guard.record();
        record.at.connected = moments.connected;
        record.at.first_byte = moments.head;
        record.attempts.push(record::Attempt {
            served: pick.replica.served.clone(),
            span,
            start: moments.start,
            connected: moments.connected,
            head: moments.head,
            end,
            status,
            error,
            expected: pick.assignment.expected(),
        });
    }
}

/// Ends the watchdog's interest if the attempt is dropped half-way (the client left).
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

/// The client's path and query below the replica's base path, in origin form.
fn target(base_path: &str, uri: &http::Uri) -> http::Uri {
    let path = match uri.path_and_query() {
        Some(path) if base_path.is_empty() => return http::Uri::from(path.clone()),
        path => path.map_or("/", |p| p.as_str()),
    };
    http::Uri::try_from(format!("{base_path}{path}")).unwrap_or_default()
}
