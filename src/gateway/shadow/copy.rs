//! One copy of a request, from its making to the end of its answer, which is read and thrown away.
//!
//! It is sent and timed by what sends and times clients' requests, so that the two can be compared. What differs: one attempt, no
//! queue, an end by what becomes of the original, and no failure of a copy is held against a replica outside of the judge, because the
//! suspicion of a poisonous prompt, or an ejection, would reach clients.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::super::attempt::{AttemptError, BufferedResponse, UpstreamResponse};
use super::super::blame;
use super::super::outbound::{Identity, Outbound};
use super::super::picker;
use super::super::prepared::Prepared;
use super::super::{Gateway, IncomingRequest};
use super::shares::Place;
use crate::clock::{Clock, Stamp};
use crate::error::Failure;
use crate::fleet::pick::Pick;
use crate::observe::Observer;
use crate::observe::metrics::StreamKey;
use crate::observe::record_guard::OriginalEnd;
use crate::record::{AttemptCause, ClientInfo, Gaps, Opening, Original, Outcome, Record};
use crate::relay::pump::{Pumped, StreamPump, StreamSink, note_first_token, record_facts};
use crate::relay::reader::StreamReader;
use crate::relay::stream_state::StreamEnd;
use crate::relay::usage::EngineError;
use crate::relay::verdict;
use crate::request::body::HeldBody;

/// A copy before it is sent.
pub(super) struct Copy {
    incoming: Box<IncomingRequest>,
    prepared: Box<Prepared>,
    record: Record,
    /// Place of the canary's pool in the route.
    at: usize,
    /// Given back when the copy is over.
    _place: Place,
    original: OriginalEnd,
}

impl Copy {
    pub(super) fn new(
        incoming: &IncomingRequest,
        prepared: &Prepared,
        record: &Record,
        (at, place): (usize, Place),
        original: OriginalEnd,
    ) -> Self {
        let gateway = &incoming.gateway;
        let now = gateway.clock.now();
        let opening = Opening {
            client: ClientInfo { method: incoming.parts.method.clone(), ..ClientInfo::default() },
            request_id: format!("{}-shadow", record.request_id).into(),
            trace: gateway.observer.trace_of(&HeaderMap::new()),
            dialect: record.dialect,
            path: Arc::clone(&record.path),
            head: now,
        };
        let shadow_of = Original {
            request_id: Arc::clone(&record.request_id),
            trace_id: record.trace.trace_id,
            span: record.trace.root,
        };
        let mut copied = Record::open(opening);
        copied.at.read = Some(now);
        copied.shadow_of = Some(Box::new(shadow_of));
        copied.route = Arc::clone(&record.route);
        copied.model = Arc::clone(&record.model);
        copied.requested_model.clone_from(&record.requested_model);
        copied.tenant = Arc::clone(&record.tenant);
        copied.slo_class = Arc::clone(&record.slo_class);
        (copied.slo, copied.class, copied.is_stream) = (record.slo, record.class, record.is_stream);
        copied.conversation = record.conversation;
        (copied.estimated_input, copied.bytes_in) = (record.estimated_input, record.bytes_in);
        let prepared = Box::new(prepared.copied(now));
        Self { incoming: incoming.copied(), prepared, record: copied, at, _place: place, original }
    }

    pub(super) async fn run(mut self) {
        let gateway = Arc::clone(&self.incoming.gateway);
        if let Some(reason) = self.prepared.not_copied {
            return self.not_sent(reason);
        }
        let Some(pick) = picker::pick_for_copy(&gateway, &self.prepared, self.at) else {
            return self.not_sent("no_replica");
        };
        self.record.at.routed = Some(pick.assignment.at());
        self.record.decision = Some(pick.decision.clone());
        let identity = Identity::of(&self.record);
        let outbound = Outbound::of(&self.incoming, &self.prepared, &identity);
        let mut flight = outbound.launch(pick, AttemptCause::First);
        let result = tokio::select! {
            biased;
            result = flight.land() => Some(result),
            () = given_up(&self.original, gateway.clock) => None,
        };
        let now = gateway.clock.now();
        (self.record.at.connected, self.record.at.first_byte) = (flight.times.connected, flight.times.head);
        let Some(result) = result else {
            self.record.attempts.push(flight.lost_entry(now));
            self.fail(&Failure::ClientLeft);
            self.record.at.end = now;
            return gateway.observer.shadow_record(&Arc::new(self.record));
        };
        self.record.attempts.push(flight.entry(&result, now));
        let mut active = flight.into_active();
        if let Ok(answer) = &result {
            self.record.status = answer.status().as_u16();
        }
        match result {
            Ok(UpstreamResponse::Stream { reader, .. }) => {
                self.read(&gateway, reader, active.pick).await;
            }
            Ok(UpstreamResponse::Buffered(answer)) => self.whole(&answer, &mut active.pick, now),
            // More than anybody wants to read: its head says whether it is an answer.
            Ok(UpstreamResponse::Large { head, .. }) => self.settle(head.status, false, None),
            Err(AttemptError::Replica(failure, _)) => self.fail(&Failure::Replica(failure)),
            Err(AttemptError::Overdue(failure)) => {
                active.pick.assignment.censored(now);
                self.fail(&failure);
            }
            Err(AttemptError::Ours(_)) => {
                active.watch.close();
                return self.not_sent("local_resources");
            }
        }
        active.watch.close();
        self.record.at.end = gateway.clock.now();
        gateway.observer.shadow_record(&Arc::new(self.record));
    }

    /// Counts a copy that no replica got.
    fn not_sent(&self, reason: &'static str) {
        if let Some(pool) = self.prepared.route.pools.get(self.at) {
            super::count(&self.incoming.gateway, &self.record.route, pool, reason);
        }
    }

    fn fail(&mut self, failure: &Failure) {
        (self.record.outcome, self.record.error) = (Outcome::of(failure), Some(failure.code()));
    }

    fn settle(&mut self, status: StatusCode, is_empty: bool, error: Option<EngineError>) {
        (self.record.outcome, self.record.error) = verdict::of_answer(&self.record, status, is_empty, error);
    }

    fn whole(&mut self, answer: &BufferedResponse, pick: &mut Pick, now: Stamp) {
        let error = answer.error_under_success(self.record.dialect, self.record.owes_answer());
        self.settle(answer.head.status, answer.body.is_empty(), error);
        self.record.unserved = blame::unserved(answer);
        if self.record.outcome != Outcome::Ok {
            return;
        }
        if !self.record.dialect.generates() {
            return pick.first_token(now);
        }
        let facts = answer.facts(self.record.dialect);
        pick.learn(facts.tokens);
        pick.used(facts.tokens);
        if let Some(output) = facts.tokens.output {
            pick.assignment.served_whole(now, output);
        }
        record_facts(&mut self.record, facts.clone());
    }

    /// Reads a stream to its end.
    async fn read(&mut self, gateway: &Gateway, reader: Box<StreamReader>, pick: Box<Pick>) {
        let record = &mut self.record;
        let key = StreamKey::new(record, &pick.replica.served());
        let mut sink = ShadowSink { record, observer: &gateway.observer, key };
        let mut pump = StreamPump::new(reader, pick);
        pump.note_first_token(&mut sink);
        let left = self.original.left.clone().cancelled_owned();
        tokio::pin!(left);
        let failure = loop {
            // A read is taken whole or not at all; the watchdog wakes this task where it has to end.
            let next = tokio::select! {
                biased;
                () = &mut left => break Some(Failure::ClientLeft),
                next = poll_fn(|cx| pump.poll(cx, &mut sink)) => next,
            };
            match next {
                Pumped::Bytes(..) => {}
                Pumped::End(StreamEnd::Complete) => break None,
                Pumped::End(end) => break Some(Failure::Replica(pump.failure_of_end(end))),
                Pumped::Expired(expiry) => break Some(pump.failure_of_expiry(expiry)),
            }
        };
        let now = gateway.clock.now();
        let failure = failure.filter(|_| !pump.reader.is_whole());
        if failure.is_none() {
            pump.learn();
        }
        let tokens = pump.facts().tokens;
        pump.finish(now, tokens, &mut sink);
        match failure {
            None => self.record.outcome = Outcome::Ok,
            Some(failure) => self.fail(&failure),
        }
    }
}

/// What is observed of a copy's stream.
struct ShadowSink<'a> {
    record: &'a mut Record,
    observer: &'a Observer,
    key: StreamKey,
}

impl StreamSink for ShadowSink<'_> {
    fn record(&mut self) -> &mut Record {
        self.record
    }

    fn first_token(&mut self, at: Stamp, pick: &Pick) {
        self.record.at.first_token = Some(at);
        if let Some(first) = note_first_token(self.record, pick, at) {
            self.observer.shadow_first_token(&first);
        }
    }

    fn gaps(&mut self, gaps: &Gaps<'_>, _: &Pick, _: f64) {
        self.observer.shadow_gaps(&self.key, gaps);
    }
}

/// Waits until nothing more is to be learned of a copy without content: the client of the original left, or the copy has waited for
/// twice as long as the original took from its first byte to its last, and [`GRACE`].
async fn given_up(original: &OriginalEnd, clock: Clock) {
    let began = clock.now();
    tokio::select! {
        () = original.left.cancelled() => return,
        () = original.over.cancelled() => {}
    }
    tokio::time::sleep(clock.now().since(began) + GRACE).await;
}

impl Prepared {
    /// The same request again, at this moment: outside of every queue, without other routes, and without the body as it was received.
    pub(in crate::gateway) fn copied(&self, now: Stamp) -> Self {
        Self {
            table: Arc::clone(&self.table),
            route: Arc::clone(&self.route),
            tenant: self.tenant.clone(),
            carrier: None,
            body: self.body.clone(),
            held: HeldBody::empty(),
            prompt: self.prompt.clone(),
            echo: self.echo.clone(),
            model: self.model.clone(),
            label: Arc::clone(&self.label),
            pinned: None,
            read: now,
            rules: crate::admission::Rules::default(),
            share: self.share.clone(),
            ..*self
        }
    }
}

/// Differences that say nothing: fast answers may take several times as long.
const GRACE: Duration = Duration::from_secs(1);
