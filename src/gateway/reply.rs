//! From the result of an exchange to the client's response: status, headers, body.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use memchr::memmem;

use super::attempt::{BufferedResponse, UpstreamResponse, content_type, is_event_stream};
use super::exchange::{Exchange, ExchangeResult};
use super::local::json_response;
use super::migration::ReplicaSuccessor;
use super::outbound::{ActiveAttempt, Identity};
use super::prepared::Prepared;
use super::table::RoutingTable;
use super::{Gateway, IncomingRequest, blame, request_id, stored};
use crate::clock::Stamp;
use crate::digits;
use crate::error::{ErrorShape, Failure, ReplicaFailure};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::observe::stages::{StageSource, at_the_engine};
use crate::record::{DecisionSummary, Outcome, RateLimit, RateLimits, Record, TokenCounts, Ways, cut};
use crate::relay::aborting::AbortingBody;
use crate::relay::answer_ends;
use crate::relay::body::{ReplyBody, WaitingBody};
use crate::relay::error_event;
use crate::relay::large_body::{About, LargeBody};
use crate::relay::migration::Migration;
use crate::relay::pins::StoredAnswer;
use crate::relay::pump::record_facts;
use crate::relay::sse::Scanner;
use crate::relay::stream::StreamBody;
use crate::relay::stream_state::Echo;
use crate::relay::transcript::Transcript;
use crate::relay::usage;
use crate::relay::verdict;
use crate::relay::whole_body::WholeBody;
use crate::request::dialect::{Computes, Dialect};
use crate::units::{Tokens, whole_seconds};
use crate::upstream::headers::{X_REQUEST_ID, redirect_through, strip_length, strip_response};

/// Runs an exchange and builds its response; with a heartbeat the head may be sent before the engine answers.
pub async fn respond(mut exchange: Box<Exchange>) -> Response<ReplyBody> {
    let (clock, prepared) = (exchange.gateway().clock, &exchange.prepared);
    let configured = prepared.table.config.server.heartbeat;
    let heartbeat = || configured.into_iter().chain(prepared.cold_heartbeat()).min();
    let may_beat = prepared.is_stream && prepared.carrier.is_none();
    let Some(every) = may_beat.then(heartbeat).flatten() else {
        return response(exchange.run().await);
    };
    // The record moves into the exchange: an early head carries the stages reached so far.
    let mut headers = HeaderMap::new();
    write_own_headers(&mut headers, exchange.guard.record());
    let is_out = exchange.guard.early_head();
    let mut run = Box::pin(exchange.run());
    // Both arms are cancel-safe: if the timer wins, the exchange continues inside the body.
    tokio::select! {
        done = run.as_mut() => response(done),
        () = tokio::time::sleep(every) => {
            is_out.store(true, Ordering::Relaxed);
            let answer = Box::pin(async move { late_body(run.await) });
            let body = WaitingBody::new(answer, every, clock);
            let mut response = Response::new(ReplyBody::Waiting(Box::new(body)));
            let sse = HeaderValue::from_static("text/event-stream; charset=utf-8");
            headers.insert(header::CONTENT_TYPE, sse);
            write_stream_headers(&mut headers);
            *response.headers_mut() = headers;
            response
        }
    }
}

/// A local response (no inference path): no record is made.
pub fn local(response: Response<Bytes>, parts: &Parts) -> Response<ReplyBody> {
    with_own_headers(response, &parts.headers).map(ReplyBody::own)
}

/// The response to a request head that does not parse, with a generated request id.
pub fn unreadable(failure: &Failure) -> Response<Bytes> {
    with_own_headers(failure_bytes(failure, ErrorShape::OpenAi), &HeaderMap::new())
}

fn with_own_headers(mut response: Response<Bytes>, request: &HeaderMap) -> Response<Bytes> {
    write_request_id(response.headers_mut(), &request_id(request));
    response.headers_mut().insert(SERVER_TIMING, HeaderValue::from_static("read;dur=0"));
    response
}

/// The response to a failure, without a record.
pub fn failure_bytes(failure: &Failure, shape: ErrorShape) -> Response<Bytes> {
    let mut response = json_response(failure.status(), failure.body(shape));
    failure.write_headers(response.headers_mut());
    response.extensions_mut().insert(OwnAnswer);
    response
}

/// In the extensions of a response that no engine made.
#[derive(Clone, Copy, Debug)]
pub struct OwnAnswer;

/// The response to a failure; its body owns the record.
pub fn failure(mut guard: RecordGuard, failure: &Failure) -> Response<ReplyBody> {
    guard.fail(failure);
    guard.head_sent(failure.status().as_u16());
    let shown = guard.shown(failure);
    let record = guard.record();
    let mut response = failure_bytes(&shown, record.dialect.error_shape());
    write_own_headers(response.headers_mut(), record);
    record.bytes_out = response.body().len() as u64;
    response.map(|body| ReplyBody::Whole(WholeBody::new(body, Some(Box::new(guard)))))
}

/// The response to a finished exchange.
pub(super) fn response(exchanged: ExchangeResult) -> Response<ReplyBody> {
    let ExchangeResult { mut guard, result, prepared, incoming } = exchanged;
    let (answer, active) = match result {
        Ok(answered) => answered,
        Err(failed) => {
            let mut response = failure(guard, &failed);
            if prepared.table.config.server.route_info_headers
                && let ReplyBody::Whole(body) = response.body_mut()
                && let Some(guard) = body.guard()
            {
                let mut headers = HeaderMap::new();
                write_route_info(&mut headers, guard.record());
                response.headers_mut().extend(headers);
            }
            return response;
        }
    };
    let status = answer.status();
    guard.head_sent(status.as_u16());
    let (mut headers, body) = relay(guard, active, answer, prepared, incoming);
    if matches!(body, ReplyBody::Stream(_)) || is_event_stream(&headers) {
        write_stream_headers(&mut headers);
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The body of an exchange whose head has been sent: anything but a stream becomes an error event.
fn late_body(exchanged: ExchangeResult) -> ReplyBody {
    let ExchangeResult { mut guard, result, prepared, incoming } = exchanged;
    guard.head_sent(StatusCode::OK.as_u16());
    match result {
        Ok((answer @ UpstreamResponse::Stream { .. }, active)) => {
            relay(guard, active, answer, prepared, incoming).1
        }
        Ok((UpstreamResponse::Buffered(answer), active)) if answer.head.status.is_client_error() => {
            active.watch.close();
            guard.settle(Outcome::ClientError, Some("engine_rejected"));
            let event = error_event::engine_event(guard.record().dialect, &answer.body);
            ReplyBody::Broken(AbortingBody::new(event), Box::new(guard))
        }
        Ok((answer, active)) => {
            let replica = active.pick.replica.name();
            active.watch.close();
            let (status, headers) = (answer.status(), &answer.head().headers);
            let failure = if status.is_success() {
                ReplicaFailure::NotAStream { replica, content_type: content_type(headers) }
            } else {
                ReplicaFailure::Status { replica, status: status.as_u16() }
            };
            ReplyBody::failed(guard, &Failure::Replica(failure))
        }
        Err(failed) => ReplyBody::failed(guard, &failed),
    }
}

/// End-to-end headers of the engine plus ours, and the body to relay.
fn relay(
    mut guard: RecordGuard,
    active: ActiveAttempt,
    answer: UpstreamResponse,
    prepared: Box<Prepared>,
    incoming: Box<IncomingRequest>,
) -> (HeaderMap, ReplyBody) {
    let gateway = &incoming.gateway;
    // A body may never be polled: over HTTP/2 its window may be closed from the start.
    let now = gateway.clock.now();
    active.watch.waits_for_client(now);
    let table = &prepared.table;
    let is_stored = guard.record().dialect == Dialect::StoredResponse;
    let stored = is_stored.then(|| stored::answer(gateway, incoming.parts.uri.path()));
    let is_hidden_redirect = answer.status().is_redirection() && table.tenants.ask_for_keys();
    let redirecting = is_hidden_redirect.then(|| Arc::clone(&active.pick.replica.identity.url));
    let finish = |table: &RoutingTable, record: &Record, mut headers: HeaderMap| {
        let server = &table.config.server;
        strip_response(&mut headers);
        if let Some(replica) = &redirecting {
            redirect_through(&mut headers, replica, &server.root_path);
        }
        write_own_headers(&mut headers, record);
        if server.route_info_headers {
            write_route_info(&mut headers, record);
        }
        headers
    };
    match answer {
        UpstreamResponse::Buffered(mut answer) => {
            let headers = finish(table, guard.record(), std::mem::take(&mut answer.head.headers));
            (headers, whole(gateway, guard, active, answer, stored, now))
        }
        UpstreamResponse::Stream { head, reader } => {
            let (pins, table) = (Arc::clone(&gateway.pins), Arc::clone(table));
            let heartbeat = table.config.server.heartbeat.filter(|_| prepared.carrier.is_none());
            let migration = migration(prepared, incoming, guard.record(), &active.pick);
            let mut body = StreamBody::new(reader, guard, active.pick, pins, migration, heartbeat);
            let mut headers = finish(&table, body.record(), head.headers);
            strip_length(&mut headers);
            (headers, ReplyBody::Stream(Box::new(body)))
        }
        UpstreamResponse::Large { head, first, rest } => {
            let is_stream = is_event_stream(&head.headers);
            let is_in_pieces = is_stream || is_json_lines(&head.headers);
            if is_in_pieces {
                guard.captures(|capture| capture.comes_in_pieces());
            }
            let has_usage = guard.record().dialect.has_own_usage() || stored.is_some();
            let is_counted = !is_in_pieces && head.status.is_success() && has_usage;
            // The stream of a response that was made before, from where its client has it.
            let is_resumed = is_stream && stored.is_some();
            let about = About {
                events: is_resumed.then(|| Box::new(Scanner::new(Dialect::Responses, Echo::Off))),
                ends: is_counted.then(Box::default),
                makes: guard.record().dialect.is_stateful().then(|| Arc::clone(&gateway.pins)),
                stored,
            };
            let record = guard.record();
            if is_counted && record.dialect.writes() {
                // Its count stands at its end, which its client may not take.
                record.estimated_output = output_of(record, &active.pick, &first, prepared.choices, now);
            }
            let headers = finish(table, guard.record(), head.headers);
            let body = LargeBody::new(first, rest, guard, active.watch, active.pick, about);
            (headers, ReplyBody::Large(Box::new(body)))
        }
    }
}

/// Output tokens of an answer that is too large to be held, by the text at its beginning or by the time that it took.
fn output_of(record: &Record, pick: &Pick, first: &[u8], choices: u32, now: Stamp) -> Tokens {
    let by_text = pick.pool.ratio.estimate(&usage::text_of_unary(record.dialect, first));
    let Some(sent) = record.at.connected else { return by_text };
    by_text.max(pick.assignment.written(choices, pick.assignment.begins(sent), now))
}

fn is_json_lines(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    kind.is_some_and(|kind| [&b"ndjson"[..], b"jsonl"].iter().any(|name| memmem::find(&kind, name).is_some()))
}

/// What a stream needs to be continued elsewhere, on a route with `migrate`; else the request is not kept.
fn migration(
    prepared: Box<Prepared>,
    incoming: Box<IncomingRequest>,
    record: &Record,
    pick: &Pick,
) -> Option<Box<Migration>> {
    let may_migrate = prepared.route.config.migrate
        && prepared.is_stream
        && prepared.pinned.is_none()
        && prepared.carrier.is_none()
        && !prepared.is_sent_once;
    may_migrate.then(|| {
        let defaults = pick.replica.engine.stream_defaults.load();
        let sends_unasked = defaults.as_ref().is_some_and(|own| own.sends_usage);
        let running = prepared.asks_running && !sends_unasked;
        let held_back = if pick.pool.config().engine.holds_back_stops() { prepared.held_back } else { 0 };
        let transcript = Transcript::new(record.dialect, running, held_back).owing_usage(prepared.owes_usage);
        let successor = ReplicaSuccessor::new(incoming, prepared, Identity::of(record));
        Migration::new(transcript, successor)
    })
}

fn whole(
    gateway: &Gateway,
    mut guard: RecordGuard,
    mut active: ActiveAttempt,
    mut answer: BufferedResponse,
    stored: Option<StoredAnswer>,
    now: Stamp,
) -> ReplyBody {
    let status = answer.head.status;
    let record = guard.record();
    let error = answer.error_under_success(record.dialect, record.owes_answer());
    let (outcome, why) = verdict::of_answer(record, status, answer.body.is_empty(), error);
    guard.settle(outcome, why);
    guard.record().unserved = blame::unserved(&answer);
    if outcome == Outcome::Ok {
        let computes = guard.record().dialect.computes();
        if guard.record().empty.is_some() {
            active.pick.shows_life(now);
        } else {
            active.pick.answered(computes != Computes::Prompt, now);
        }
        if computes == Computes::Prompt {
            // Nothing is decoded: the response ends the prefill.
            active.pick.first_token(now);
        }
    }
    let record = guard.record();
    record.bytes_out = answer.body.len() as u64;
    if status.is_success() && record.dialect.generates() {
        let facts = answer.take_facts(record.dialect);
        if let Some(id) = facts.id.as_deref().filter(|_| record.dialect.is_stateful()) {
            gateway.pins.remember(&record.tenant, id, &active.pick.replica.identity.url);
        }
        if facts.tokens.output.is_none() {
            let text = usage::text_of_unary(record.dialect, &answer.body);
            record.estimated_output = active.pick.pool.ratio.estimate(&text);
        }
        let output = facts.tokens.output.or(Some(record.estimated_output));
        active.pick.used(TokenCounts { output, ..facts.tokens });
        if outcome == Outcome::Ok {
            active.pick.learn(facts.tokens);
        }
        match facts.tokens.output {
            _ if outcome != Outcome::Ok => {}
            Some(output) => active.pick.assignment.served_whole(now, output),
            None => active.pick.assignment.served_uncounted(record.estimated_output),
        }
        record_facts(record, facts);
        gateway.pins.owe_usage_of(record);
    } else if status.is_success() && (stored.is_some() || record.dialect.has_own_usage()) {
        // It is charged and not learned from: vectors and scores show nothing of how fast text is written.
        let tokens = answer_ends::tokens(&answer.body);
        if record.dialect == Dialect::ChatBatch {
            record_facts(record, answer.take_facts(record.dialect));
        }
        record.tokens = stored.map_or(tokens, |stored| stored.take_owed(&record.tenant, tokens));
        active.pick.used(record.tokens);
    }
    ReplyBody::Whole(WholeBody::watched(answer.body, guard, active.watch))
}

/// Headers of every response, errors included: `x-request-id`, `server-timing`.
pub(super) fn write_own_headers(headers: &mut HeaderMap, record: &Record) {
    write_request_id(headers, &record.request_id);
    if let Ok(timing) = HeaderValue::try_from(server_timing(record)) {
        headers.insert(SERVER_TIMING, timing);
    }
    let RateLimits { requests, tokens } = record.rate_limits;
    write_rate_limit(headers, LIMITS_ON_REQUESTS, requests);
    write_rate_limit(headers, LIMITS_ON_TOKENS, tokens);
}

/// Limit, what is left of it and until when, as OpenAI's API has them.
fn write_rate_limit(headers: &mut HeaderMap, names: [&'static str; 3], limit: Option<RateLimit>) {
    let Some(RateLimit { limit, remaining, reset }) = limit else { return };
    let [of_limit, of_remaining, of_reset] = names.map(HeaderName::from_static);
    headers.insert(of_limit, limit.into());
    headers.insert(of_remaining, remaining.into());
    if let Ok(reset) = HeaderValue::try_from(span(reset)) {
        headers.insert(of_reset, reset);
    }
}

/// `6m0s`
fn span(span: Duration) -> String {
    let seconds = whole_seconds(span);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

const LIMITS_ON_REQUESTS: [&str; 3] =
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
const LIMITS_ON_TOKENS: [&str; 3] =
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];

fn write_request_id(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(X_REQUEST_ID, id);
    }
}

fn write_stream_headers(headers: &mut HeaderMap) {
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}

pub(super) fn write_route_info(headers: &mut HeaderMap, record: &Record) {
    let Some(served) = record.served() else { return };
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(X_TOKENWAY_REPLICA, &served.replica);
    put(X_TOKENWAY_REVISION, &served.revision);
    if let Some(route) = &record.degraded_from {
        put(X_TOKENWAY_DEGRADED_FROM, route);
    }
    if let Some(decision) = &record.decision {
        let mut value = Vec::with_capacity(256);
        for text in ["policy=", decision.policy, "; reason=", decision.reason] {
            value.extend_from_slice(text.as_bytes());
        }
        if let Some(predicted) = decision.predicted_ttft {
            value.extend_from_slice(b"; predicted_ttft_ms=");
            digits::int(&mut value, u64::try_from(predicted.as_millis()).unwrap_or(u64::MAX));
        }
        value.extend_from_slice(b"; candidates=");
        digits::int(&mut value, u64::from(decision.candidates));
        write_cost(&mut value, decision);
        if let Some(ways) = &record.ways {
            write_ways(&mut value, record, ways);
        }
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(X_TOKENWAY_DECISION, value);
        }
    }
}

/// Where the prompt was computed, and both ways in milliseconds.
fn write_ways(value: &mut Vec<u8>, record: &Record, ways: &Ways) {
    for text in ["; way=", ways.way(), "; way_reason=", ways.reason] {
        value.extend_from_slice(text.as_bytes());
    }
    let apart = ways.apart.map(|cost| [cost.prefill, cost.transfer, cost.decode]);
    let parts = apart
        .into_iter()
        .flatten()
        .zip(["; apart_prefill_ms=", "; apart_transfer_ms=", "; apart_decode_ms="]);
    let together = ways.together.map(|seconds| (seconds, "; together_ms="));
    for (seconds, name) in together.into_iter().chain(parts) {
        value.extend_from_slice(name.as_bytes());
        digits::decimal::<1>(value, seconds * 1e3);
    }
    if let Some(leg) = record.prefill_leg() {
        value.extend_from_slice(b"; prefill=");
        value.extend_from_slice(leg.served.replica.as_bytes());
    }
}

/// What the chosen replica cost, as a sum, and why it was the best; only where its candidates were kept.
fn write_cost(value: &mut Vec<u8>, decision: &DecisionSummary) {
    let (Some(chosen), Some(why)) = (decision.chosen(), decision.why()) else { return };
    value.extend_from_slice(b"; cost_ms=");
    digits::decimal::<1>(value, chosen.cost.total() * 1e3);
    for (name, seconds) in chosen.cost.named().into_iter().filter(|(_, seconds)| *seconds != 0.0) {
        for text in ["; ", name, "_ms="] {
            value.extend_from_slice(text.as_bytes());
        }
        digits::decimal::<1>(value, seconds * 1e3);
    }
    value.extend_from_slice(b"; why=\"");
    value.extend(
        cut(&why, MAX_WHY).bytes().map(|byte| if matches!(byte, b'"' | b'\\') { b'\'' } else { byte }),
    );
    value.push(b'"');
}

/// `Server-Timing` (W3C): duration of each stage reached, in milliseconds.
fn server_timing(record: &Record) -> Vec<u8> {
    let at = &record.at;
    let last = record.attempts.last();
    let stages = [
        ("read", Some(at.head), at.read),
        ("admit", at.read, at.admitted),
        ("route", at.admitted, at.routed),
        ("connect", last.map(|a| a.start), last.and_then(|a| a.connected)),
        ("first_token", at.read, at.first_token),
    ];
    let mut value = Vec::with_capacity(192);
    for (name, from, to) in stages {
        if let (Some(from), Some(to)) = (from, to) {
            if !value.is_empty() {
                value.extend_from_slice(b", ");
            }
            value.extend_from_slice(name.as_bytes());
            value.extend_from_slice(b";dur=");
            digits::millis(&mut value, to.since(from));
        }
    }
    for time in at_the_engine(record) {
        value.extend_from_slice(b", ");
        value.extend_from_slice(time.stage.as_str().as_bytes());
        value.extend_from_slice(b";dur=");
        digits::millis(&mut value, time.duration);
        if time.source == StageSource::Estimated {
            value.extend_from_slice(b";desc=\"estimated\"");
        }
    }
    if value.is_empty() {
        // Refused by its head: the body was not read.
        value.extend_from_slice(b"read;dur=0");
    }
    value
}

/// Bytes of `why` in the decision's header: names of replicas may be long.
const MAX_WHY: usize = 256;
const X_TOKENWAY_REPLICA: HeaderName = HeaderName::from_static("x-tokenway-replica");
const X_TOKENWAY_REVISION: HeaderName = HeaderName::from_static("x-tokenway-revision");
const X_TOKENWAY_DECISION: HeaderName = HeaderName::from_static("x-tokenway-decision");
const X_TOKENWAY_DEGRADED_FROM: HeaderName = HeaderName::from_static("x-tokenway-degraded-from");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
