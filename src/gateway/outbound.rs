//! One request on its way to one replica: everything that its attempts share, and one attempt as a value.
//!
//! A [`Flight`] owns its pick (the reserved load) and its watch, so that an exchange can fly two at once (a hedge) and a
//! migration can fly one after the exchange is over. Dropping it closes the connection and releases the load.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::attempt::{AttemptError, AttemptTimes, Deadlines, UpstreamAttempt, UpstreamResponse};
use super::outside;
use super::picker;
use super::prepared::Prepared;
use super::{Gateway, IncomingRequest};
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record::{self, AttemptCause, Record};
use crate::relay::reader::StreamShape;
use crate::relay::usage_filter::AskedUsage;
use crate::relay::watch::{MayBeSilent, StreamDeadlines, StreamWatch};
use crate::request::dialect::Dialect;
use crate::request::engine_priority::EnginePriority;
use crate::request::pieces::Pieces;
use crate::request::splice::Edits;
use crate::request::trace_context::{self, Trace};
use crate::units::Tokens;
use crate::upstream::headers::{self, Credential, EngineRank, Upstream};
use crate::upstream::http1::{EngineRequest, RequestHead};

/// A request as its attempts see it.
#[derive(Clone, Copy, Debug)]
pub struct Outbound<'r> {
    /// Head of the client's request.
    pub incoming: &'r IncomingRequest,
    /// The request as parsed and classified.
    pub prepared: &'r Prepared,
    /// Its ids.
    pub identity: &'r Identity,
    /// The body to send.
    pub body: &'r Pieces,
    /// Deadlines of these attempts.
    pub deadlines: Deadlines,
    /// Set as soon as a replica gets it.
    pub sent: Option<&'r Arc<AtomicBool>>,
}

/// Ids of a request that go upstream with every attempt.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `x-request-id`.
    pub request_id: Arc<str>,
    /// W3C trace context.
    pub trace: Trace,
    /// API of the request path.
    pub dialect: Dialect,
}

impl Identity {
    /// The ids of a request, from its record.
    pub fn of(record: &Record) -> Self {
        Self {
            request_id: Arc::clone(&record.request_id),
            trace: record.trace.clone(),
            dialect: record.dialect,
        }
    }
}

/// One attempt under way.
#[derive(Debug)]
pub struct Flight {
    attempt: Box<UpstreamAttempt>,
    /// When its connection was there and when the response head came.
    pub times: AttemptTimes,
    span: u64,
    cause: AttemptCause,
    /// An answer or a failure came.
    has_landed: bool,
    /// `None` once it has been handed on.
    active: Option<ActiveAttempt>,
}

/// An attempt that lands. Dropped before it has, because its client left, it leaves the times that it reached in the record, and what its
/// engine may have written.
#[derive(Debug)]
pub(super) struct Landing<'f> {
    flight: &'f mut Flight,
    record: &'f mut Record,
    chain: &'f [u64],
}

/// The attempt whose response is relayed; lives until the end of the body.
#[derive(Debug)]
pub struct ActiveAttempt {
    /// The chosen replica with the load reserved on it.
    pub pick: Box<Pick>,
    /// State shared with the watchdog.
    pub watch: Arc<StreamWatch>,
}

impl<'r> Outbound<'r> {
    /// A request as it was prepared, within its own deadlines.
    pub fn of(incoming: &'r IncomingRequest, prepared: &'r Prepared, identity: &'r Identity) -> Self {
        Self {
            incoming,
            prepared,
            identity,
            body: &prepared.body,
            deadlines: prepared.deadlines(),
            sent: None,
        }
    }
}

impl Outbound<'_> {
    /// An attempt at the picked replica, ready to fly.
    #[must_use]
    pub fn launch(&self, mut pick: Box<Pick>, cause: AttemptCause) -> Flight {
        let gateway = self.gateway();
        outside::count(gateway, self.prepared, &mut pick);
        let start = gateway.clock.now();
        let span = trace_context::new_span_id();
        let limits = StreamDeadlines {
            inter_token: Some(self.prepared.timeouts.inter_token),
            client_stall: self.prepared.timeouts.client_stall,
            patience: patience(&self.deadlines, pick.decision.predicted_ttft),
            first_token: self.deadlines.first_token,
            may_be_silent: self.prepared.may_be_silent,
            total: self.deadlines.total,
            total_timer: self.prepared.total_timer,
        };
        let vitals = Arc::clone(&pick.replica.health.vitals);
        let watch = gateway.watchdog.watch(vitals, self.incoming.kill.clone(), limits, start);
        let attempt = Box::new(UpstreamAttempt {
            replica: Arc::clone(&pick.replica),
            request: self.request(&pick, span),
            shape: self.shape(&pick),
            watch: Arc::clone(&watch),
            answer_memory: self.prepared.held.answer_budgets(),
            is_stream: self.prepared.is_stream,
            owes_answer: self.identity.dialect.owes_answer(&self.incoming.parts.method),
            takes_idle: matches!(cause, AttemptCause::First | AttemptCause::Prefill)
                && !self.prepared.is_sent_once,
            connect: self.deadlines.connect,
            sent: self.sent.cloned(),
            fallbacks: picker::fallbacks(self.incoming.carrier.as_ref(), self.prepared, &pick, start),
            carrier: self.incoming.carrier.clone(),
            clock: gateway.clock,
        });
        let times = AttemptTimes { start, ..AttemptTimes::default() };
        Flight { attempt, times, span, cause, has_landed: false, active: Some(ActiveAttempt { pick, watch }) }
    }

    fn gateway(&self) -> &Arc<Gateway> {
        &self.incoming.gateway
    }

    fn shape(&self, pick: &Pick) -> StreamShape {
        StreamShape {
            dialect: self.identity.dialect,
            echo: self.prepared.echo.clone(),
            choices: self.prepared.choices,
            asked_usage: self.asked_usage(pick),
            passes_at_once: self.prepared.is_sent_once,
        }
    }

    /// What to take out of the stream because the gateway asked for it: nothing where the engine sends it unasked.
    fn asked_usage(&self, pick: &Pick) -> Option<AskedUsage> {
        if !self.prepared.asks_usage {
            return None;
        }
        let has_several_choices = self.prepared.choices > 1;
        let Some(unasked) = pick.replica.engine.stream_defaults.load_full() else {
            // What counts in every chunk does so because it was asked to.
            let is_sure = self.prepared.asks_running;
            return Some(AskedUsage { has_several_choices, is_sure, ..AskedUsage::default() });
        };
        let fingerprint = unasked.fingerprint.clone();
        (!unasked.sends_usage).then_some(AskedUsage { has_several_choices, fingerprint, is_sure: true })
    }

    /// The prepared body, with the name that the engines of this pool have for the model: those of the route's first may have another.
    fn body_for(&self, pick: &Pick) -> Pieces {
        let Self { prepared, body, .. } = self;
        let name = prepared.route.engine_model_of(&pick.pool);
        match name.filter(|name| prepared.model.as_ref().is_some_and(|sent| sent != name)) {
            Some(name) => outside::edited(
                &body.whole(),
                self.identity.dialect,
                &self.incoming.parts.headers,
                Edits { model: Some(&name), ..Edits::default() },
            ),
            None => Pieces::clone(body),
        }
    }

    /// The upstream request: framing and headers of the gateway, the prepared body.
    pub(super) fn request(&self, pick: &Pick, span: u64) -> EngineRequest {
        let Identity { request_id, trace, .. } = self.identity;
        let config = pick.pool.seen_config();
        let credential = match &config.engine_api_key {
            Some(key) => Credential::Replace(key),
            None if self.prepared.table.tenants.ask_for_keys() => Credential::Remove,
            None => Credential::Forward,
        };
        let parts = &self.incoming.parts;
        let outside = config.outside.as_ref();
        let (body, headers, uri) = match outside {
            Some(outside) => (
                outside::body(self.prepared, self.identity.dialect, &parts.headers, &outside.model),
                Cow::Owned(outside::headers(&parts.headers)),
                Cow::Owned(outside::uri(&parts.uri)),
            ),
            None => (self.body_for(pick), Cow::Borrowed(&parts.headers), Cow::Borrowed(&parts.uri)),
        };
        let state = trace.state.as_deref().filter(|_| outside.is_none());
        let (len, has_body) = (body.len(), !body.is_empty() || parts.method == http::Method::POST);
        let prepared = self.prepared;
        let own_id = prepared.table.own_id(self.identity.dialect, &prepared.share.tenant, request_id);
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let head = headers::upstream_request(
            RequestHead::new(&parts.method, &pick.replica.identity.endpoint.base_path, target),
            &headers,
            &Upstream {
                host: &pick.replica.identity.host,
                body_len: has_body.then_some(len),
                request_id: own_id.as_deref().unwrap_or(request_id),
                trace: Some((trace, span)),
                tracestate: state,
                credential,
                via: &self.gateway().via,
                priority: if outside.is_some() {
                    EnginePriority::default()
                } else {
                    prepared.engine_priority
                },
                rank: match pick.replica.identity.rank {
                    Some(rank) => EngineRank::Ours(rank.index),
                    None if config.data_parallel.is_left_to_the_engine() => EngineRank::Client,
                    None => EngineRank::Unnamed,
                },
                rare: self.incoming.rare,
            },
        );
        EngineRequest { head, body }
    }
}

impl Flight {
    /// The attempt is in the record from here on: a client that leaves now waited for this replica.
    pub(super) fn open(&self, guard: &mut RecordGuard) {
        let open = self.lost_entry(self.times.start);
        guard.asks(&open);
        let attempts = &mut guard.record().attempts;
        // Nearly always it stays the only one, and a list that grows by itself has room for four.
        attempts.reserve_exact(1);
        attempts.push(open);
    }

    /// [`Flight::land`] of an attempt that is open in `record`, at a prompt of this chain.
    pub(super) async fn land_in(
        &mut self,
        record: &mut Record,
        chain: &[u64],
    ) -> Result<UpstreamResponse, AttemptError> {
        let landing = Landing { flight: self, record, chain };
        landing.flight.land().await
    }

    /// Sends the request and waits until the response is worth relaying.
    ///
    /// # Errors
    /// [`AttemptError`], as [`UpstreamAttempt::send`].
    pub async fn land(&mut self) -> Result<UpstreamResponse, AttemptError> {
        let Self { attempt, times, active, .. } = self;
        let mut send = pin!(attempt.send(times));
        let landed = poll_fn(|cx| {
            let landed = send.as_mut().poll(cx);
            if let Some(ActiveAttempt { pick, watch }) = active
                && let Some(at) = watch.begun()
            {
                pick.begun(at);
            }
            landed
        })
        .await;
        self.has_landed = true;
        landed
    }

    /// The chosen replica.
    pub fn pick(&self) -> &Pick {
        &self.active.as_ref().expect(HAS_PICK).pick
    }

    /// The entry of the record for an attempt that came to this.
    pub fn entry(&self, result: &Result<UpstreamResponse, AttemptError>, end: Stamp) -> record::Attempt {
        let (status, error) = match result {
            Ok(answer) => (Some(answer.status().as_u16()), None),
            Err(AttemptError::Replica(failure, answer)) => {
                (answer.as_ref().map(|a| a.head.status.as_u16()), Some(failure.code()))
            }
            Err(AttemptError::Overdue(failure)) if failure.spares_replica(end.since(self.times.start)) => {
                return self.lost_entry(end);
            }
            Err(AttemptError::Overdue(failure) | AttemptError::Ours(failure)) => (None, Some(failure.code())),
        };
        record::Attempt { status, error, ..self.open_entry(end) }
    }

    /// The entry of an attempt that was given up, through no fault of its replica.
    pub fn lost_entry(&self, end: Stamp) -> record::Attempt {
        record::Attempt { is_canceled: true, ..self.open_entry(end) }
    }

    fn open_entry(&self, end: Stamp) -> record::Attempt {
        let (pick, start) = (self.pick(), self.times.start);
        let entry = open_entry(pick, self.span, self.cause, &self.times, end);
        if self.attempt.is_stream {
            return entry;
        }
        // Of a stream its first token and its gaps show as much.
        let seen = if end > start { pick.replica.engine.seen(start, end) } else { None };
        record::Attempt { expected: pick.assignment.expected_whole(end), seen, ..entry }
    }

    /// It is given up, because its client left or is out of time: notes what its engine may have written, and takes a prompt back that it has
    /// had no time to compute.
    pub(super) fn given_up(&self, record: &mut Record, chain: &[u64], now: Stamp) {
        record.estimated_output = self.unseen_output(now);
        if let Some(ActiveAttempt { pick, .. }) = &self.active
            && !pick.assignment.is_counted_on()
            && self.times.connected.is_none_or(|sent| now < pick.assignment.begins(sent))
        {
            pick.assignment.withdrawn(chain);
        }
    }

    /// Output tokens that its engine has had the time to write and no client gets, if it is given up now: all of a whole answer, of a stream
    /// what the engine's parser holds back. No more than an answer usually has, as was reserved: an engine may be stuck.
    fn unseen_output(&self, now: Stamp) -> Tokens {
        let (Some(ActiveAttempt { pick, watch }), Some(sent)) = (&self.active, self.times.connected) else {
            return Tokens(0);
        };
        let StreamShape { dialect, choices, .. } = self.attempt.shape;
        let shows_begin = self.attempt.is_stream && watch.may_be_silent() != MayBeSilent::FromTheStart;
        let begun = watch.begun().or_else(|| (!shows_begin).then(|| pick.assignment.begins(sent)));
        let Some(begun) = begun.filter(|_| dialect.writes() && self.cause != AttemptCause::Prefill) else {
            return Tokens(0);
        };
        let usual = pick.pool.dispatcher.expected_output().0.saturating_mul(choices.into());
        pick.assignment.written(choices, begun, now).min(Tokens(usual))
    }

    /// Its replica and watch, for as long as the answer is relayed.
    pub fn into_active(mut self) -> ActiveAttempt {
        self.active.take().expect(HAS_PICK)
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let Self { flight, record, chain } = self;
        let AttemptTimes { connected, head, .. } = flight.times;
        if let Some(open) = record.attempts.iter_mut().rfind(|attempt| attempt.span == flight.span) {
            (open.connected, open.head) = (connected, head);
        }
        // The request's own stages are those of the replica that answers it.
        if connected.is_some() && flight.cause != AttemptCause::Prefill {
            (record.at.connected, record.at.first_byte) = (connected, head);
        }
        if !flight.has_landed {
            flight.given_up(record, chain, flight.attempt.clock.now());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(active) = &self.active else { return };
        active.watch.close();
        // Dropped in mid-air: its client left, or another attempt of the request spoke first.
        if let Some(sent) = self.times.connected.filter(|_| !self.has_landed) {
            let is_whole = !self.attempt.is_stream;
            active.pick.given_up(sent, is_whole, self.attempt.clock.now());
        }
    }
}

/// The entry of an attempt that came to nothing yet.
pub(super) fn open_entry(
    pick: &Pick,
    span: u64,
    cause: AttemptCause,
    times: &AttemptTimes,
    end: Stamp,
) -> record::Attempt {
    record::Attempt {
        served: pick.replica.served(),
        span,
        cause,
        is_canceled: false,
        start: times.start,
        connected: times.connected,
        head: times.head,
        end,
        status: None,
        error: None,
        broken: None,
        expected: pick.assignment.expected(),
        ahead: pick.assignment.ahead,
        seen: None,
        is_empty: false,
        engine_error: None,
    }
}

/// How long a request waits for its first token, or a unary answer, before evidence against its replica counts: half of the
/// deadline, or three times what was predicted.
fn patience(deadlines: &Deadlines, predicted: Option<Duration>) -> Duration {
    let deadline = deadlines.first_token.unwrap_or(deadlines.total);
    (deadline.after / 2).max(predicted.unwrap_or_default() * 3)
}

const HAS_PICK: &str = "invariant: a flight has its pick and watch until it is handed on";
