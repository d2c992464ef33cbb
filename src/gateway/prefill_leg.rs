//! The first of two legs: the prefill pool computes the prompt, and its answer locates the KV.
//!
//! Nothing has been sent to the decoding replica meanwhile, so whatever goes wrong leaves the request whole: the exchange tries
//! another prefill replica, or has the prompt computed where it is decoded. A leg has half of the time that is left for the first
//! token. KV that no decoding replica was asked to fetch is fetched and thrown away ([`HeldKv`]). SGLang's legs fly at once
//! ([`super::prefill_beside`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::asking::Tried;
use super::attempt::{AttemptError, BufferedResponse, Deadlines, UpstreamResponse};
use super::outbound::{ActiveAttempt, Flight, Identity, Outbound};
use super::prefill_beside::{Beside, Landed, learn};
use super::prefill_side::PrefillSide;
use super::prepared::Prepared;
use super::{IncomingRequest, blame, picker};
use crate::background::boxed;
use crate::clock::Stamp;
use crate::config::Connector;
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::fleet::replica::Replica;
use crate::observe::record_guard::RecordGuard;
use crate::record::{Attempt, AttemptCause, LOST_KV, SloBounds, is_at_limit};
use crate::relay::watch::Deadline;
use crate::request::dialect::{Computes, Dialect};
use crate::request::handoff::{self, Handoff, KEEP_KV, MAX_PARAMS, Room};
use crate::request::pieces::Pieces;
use crate::routing::{LATE_TIMES, Pair, UnderWay};
use crate::units::Tokens;

/// What became of the prefill leg.
pub(super) enum Leg {
    /// The prompt is computed.
    Done(Box<HeldKv>),
    /// It is to be computed where it is decoded, for this reason.
    Stays(&'static str),
    /// The replica failed.
    Broken(ReplicaFailure, Box<Pick>),
    /// The request cannot go on.
    Failed(Failure),
}

/// A request between its legs.
pub(super) struct Request<'a> {
    pub(super) incoming: &'a IncomingRequest,
    pub(super) prepared: &'a Prepared,
    pub(super) guard: &'a mut RecordGuard,
}

/// KV at a prefill replica. Dropped before a decoding replica was asked to fetch it (its client left, a connection was refused),
/// it is fetched by a request of one token, because the engine would hold its blocks for minutes. Once one was asked, and has not
/// turned the request away, no other is: an engine lets its blocks go as soon as they are fetched, or the request is aborted, and
/// what is read from them then is another prompt's.
#[derive(Debug)]
pub(super) struct HeldKv {
    /// What the decoding replica is sent.
    pub(super) body: Pieces,
    pair: Pair,
    names: [Arc<str>; 2],
    /// Tokens that move.
    tokens: Tokens,
    /// What the decoding leg takes beside the transfer, in seconds.
    place: f64,
    /// From when on the transfer is taken for lost; `None` where the other leg flies at the same time.
    lost_after: Option<Duration>,
    /// Of a stream: until its first token, others see whether the transfer is late.
    under_way: Option<UnderWay>,
    /// Set as soon as a decoding replica is asked to fetch it.
    pub(super) sent: Arc<AtomicBool>,
    /// `None` where the connector holds nothing.
    release: Option<Box<Release>>,
    /// The first leg, where both fly at once.
    pub(super) beside: Option<Beside>,
}

/// What an attempt came to.
type Attempted<'r> = Result<&'r (UpstreamResponse, ActiveAttempt), &'r AttemptError>;

impl Request<'_> {
    /// Has the prompt computed at `prefill`, for `decode`.
    pub(super) async fn compute_prompt(mut self, prefill: Box<Pick>, decode: &Pick) -> Leg {
        let Some(side) = &self.prepared.route.prefill else { return Leg::Stays("never") };
        let dialect = self.guard.record().dialect;
        let handoff = match self.handoff(dialect).await {
            Ok(handoff) => handoff,
            Err(reason) => return Leg::Stays(reason),
        };
        let pair = (prefill.replica.target.identity, decode.replica.target.identity);
        side.transfers.tries(pair, self.now());
        side.pool.arrivals.note();
        side.pool.arrivals.placed(&prefill.assignment.decision.terms.work, Computes::Prompt);
        side.pool.retries.deposit(self.prepared.table.config.retry.budget);
        let names = [prefill.replica.name(), decode.replica.name()];
        let decision = &decode.assignment.decision;
        let tokens = self.prepared.tokens.saturating_sub(decision.hit);
        let (wait, base) = (decision.terms.wait, decision.terms.base);
        // Replicas that compute no prompts teach no base: of what they take a guess is no part.
        let place = wait + if decode.pool.dispatcher.model.pool.is_taught() { base } else { 0.0 };
        let expected = wait + base + side.transfers.from(pair.0, self.now()).seconds(pair.1, tokens);
        let held = |body: Pieces, release, beside: Option<Beside>| HeldKv {
            body,
            pair,
            names,
            tokens,
            place,
            lost_after: beside.is_none().then(|| lost_after(expected)),
            under_way: None,
            sent: Arc::default(),
            release,
            beside,
        };
        let is_nixl = match side.keys.connector {
            Connector::Sglang => {
                let room = Room::of(&prefill.replica.identity.endpoint.host, side.keys.bootstrap_port);
                let [first, second] = handoff.at_once(&room);
                let beside = Beside::start(self.depart(prefill, &first.into()), &self.incoming.gateway);
                return Leg::Done(Box::new(held(second.into(), None, Some(beside))));
            }
            connector => connector == Connector::Nixl,
        };
        let replica = Arc::clone(&prefill.replica);
        let (landed, pick) = self.fly(prefill, handoff.prefill(is_nixl.then_some(KEEP_KV)).into()).await;
        let answer = match self.received(landed, pick) {
            Ok(answer) => answer,
            Err(leg) => return leg,
        };
        let params = if is_nixl { handoff::params_of(&answer.body) } else { None };
        let is_too_large = params.is_some_and(|params| params.len() > MAX_PARAMS);
        if is_nixl && (params.is_none() || is_too_large) {
            // Some engines keep KV only of answers that end at their limit of tokens.
            let is_of_prompt =
                is_too_large || is_at_limit(&answer.facts(dialect).finish_reasons) == Some(false);
            return if is_of_prompt { Leg::Stays(NO_PARAMS) } else { self.without_params(side, &replica) };
        }
        side.opened(pair.0);
        let release = params.map(|params| self.release(handoff.release(params).into()));
        let mut held = Box::new(held(handoff.decode(params).into(), release, None));
        if self.prepared.deadlines().first_token.is_some() {
            held.under_way = side.transfers.begin(pair, expected, self.now());
        }
        Leg::Done(held)
    }

    /// What a leg beside the decoding one came to; `None` where it computed the prompt.
    pub(super) fn settle_beside(&mut self, landed: Landed) -> Option<Leg> {
        let Landed { result, pick, entry } = landed;
        self.note(entry);
        self.received(result, pick).err()
    }

    /// The answer of a prefill replica, of which its pool has learned.
    fn received(
        &mut self,
        landed: Result<UpstreamResponse, AttemptError>,
        mut pick: Box<Pick>,
    ) -> Result<BufferedResponse, Leg> {
        let now = self.now();
        let answer = match landed {
            Ok(UpstreamResponse::Buffered(answer)) => answer,
            Ok(_) => {
                let side = self.prepared.route.prefill.as_ref();
                return Err(side.map_or(Leg::Stays("never"), |side| self.without_params(side, &pick.replica)));
            }
            Err(AttemptError::Replica(failure, _)) => return Err(Leg::Broken(failure, pick)),
            Err(AttemptError::Ours(failure)) => return Err(Leg::Failed(failure)),
            Err(AttemptError::Overdue(failure)) => {
                pick.assignment.censored(now);
                if !has_time(self.prepared, &failure, now) {
                    return Err(Leg::Failed(failure));
                }
                // Half of the time was the leg's own: none of the request's timers has passed.
                self.note_error(LATE);
                return Err(Leg::Stays(LATE));
            }
        };
        let record = self.guard.record();
        if let Some(failure) = blame::of_answer(&answer, &pick, self.prepared, record) {
            self.note_error(failure.code());
            return Err(Leg::Broken(failure, pick));
        }
        if !answer.head.status.is_success() {
            // The decoding replica's own error is for the client.
            return Err(Leg::Stays("prefill_refused"));
        }
        let tokens = learn(&mut pick, &answer, record.dialect, now);
        if let Some(ways) = &mut record.ways {
            ways.cached = tokens.cached;
        }
        Ok(answer)
    }

    /// Reads the body once more, off the async workers if it is large.
    async fn handoff(&self, dialect: Dialect) -> Result<Handoff, &'static str> {
        let body = self.prepared.body.clone();
        let length = body.len();
        let work = move || Handoff::of(dialect, &body.whole());
        self.incoming
            .gateway
            .body_work
            .run(self.prepared.tenant.name(), length, work)
            .await
            .map_err(|_| "internal")?
    }

    /// An attempt at the prefill replica, in the record from here on, as every attempt.
    fn depart(&mut self, prefill: Box<Pick>, body: &Pieces) -> Flight {
        let identity = Identity::of(self.guard.record());
        let whole = self.prepared.deadlines();
        let end = self.prepared.read.after(self.prepared.timeouts.first_token).min(whole.total.at);
        let deadlines = Deadlines { first_token: None, total: half_until(end, self.now()), ..whole };
        let (incoming, prepared) = (self.incoming, self.prepared);
        let outbound = Outbound { incoming, prepared, identity: &identity, body, deadlines, sent: None };
        let flight = outbound.launch(prefill, AttemptCause::Prefill);
        flight.open(self.guard);
        flight
    }

    async fn fly(
        &mut self,
        prefill: Box<Pick>,
        body: Pieces,
    ) -> (Result<UpstreamResponse, AttemptError>, Box<Pick>) {
        let mut flight = self.depart(prefill, &body);
        let landed = flight.land_in(self.guard.record(), self.prepared.prompt.chain.hashes()).await;
        self.note(flight.entry(&landed, self.now()));
        let ActiveAttempt { pick, watch } = flight.into_active();
        watch.close();
        (landed, pick)
    }

    /// What the leg came to, in the place of its open entry.
    fn note(&mut self, entry: Attempt) {
        let attempts = &mut self.guard.record().attempts;
        if let Some(open) = attempts.iter_mut().rfind(|attempt| attempt.span == entry.span) {
            *open = entry;
        }
    }

    /// What was wrong with the leg that has just ended.
    fn note_error(&mut self, error: &'static str) {
        if let Some(leg) = self.last_leg() {
            leg.error = Some(error);
        }
    }

    /// The decoding engine has spoken, so that the leg beside it has computed the prompt, though its answer is still to come.
    pub(super) fn has_computed(&mut self) {
        let now = self.now();
        if let Some(leg) = self.last_leg() {
            (leg.is_canceled, leg.end) = (false, now);
        }
    }

    fn last_leg(&mut self) -> Option<&mut Attempt> {
        let attempts = &mut self.guard.record().attempts;
        attempts.iter_mut().rfind(|attempt| attempt.cause == AttemptCause::Prefill)
    }

    fn without_params(&self, side: &PrefillSide, replica: &Replica) -> Leg {
        side.close(&self.prepared.route.config.name, replica, self.now());
        Leg::Stays(NO_PARAMS)
    }

    fn release(&mut self, body: Pieces) -> Box<Release> {
        let mut identity = Identity::of(self.guard.record());
        identity.request_id = format!("{}-release", identity.request_id).into();
        let mut prepared = Box::new(self.prepared.copied(self.now()));
        // No client waits for it.
        prepared.slo = SloBounds::default();
        Box::new(Release { incoming: self.incoming.copied(), prepared, identity, body })
    }

    fn now(&self) -> Stamp {
        self.incoming.gateway.clock.now()
    }
}

impl HeldKv {
    /// What the decoding leg came to. Returns why the KV did not come, where that is so: then the request is to be placed anew.
    pub(super) fn settle(self, attempted: Attempted<'_>, request: Request<'_>) -> Option<&'static str> {
        let now = request.now();
        let lost = match attempted {
            Ok((UpstreamResponse::Stream { reader, .. }, _)) => {
                match reader.scanner.state().answer.error {
                    // The KV is not its subject.
                    Some(error) if error.is_of_request() => return None,
                    error => error.map(|_| LOST_KV),
                }
            }
            // With its prompt computed elsewhere it was good enough.
            _ if is_refused(&attempted) => {
                self.sent.store(false, Ordering::Relaxed);
                Some(REFUSED)
            }
            Ok((answer, _)) if answer.status().is_server_error() => Some(LOST_KV),
            Ok(_) => None,
            Err(AttemptError::Replica(
                ReplicaFailure::ErrorEvent { .. } | ReplicaFailure::Status { .. },
                _,
            )) => Some(LOST_KV),
            Err(AttemptError::Overdue(failure)) if has_time(request.prepared, failure, now) => Some(LOST_KV),
            // The replica itself failed, or the request.
            Err(_) => return None,
        };
        let Some(side) = &request.prepared.route.prefill else { return lost };
        let families = &request.incoming.gateway.observer.metrics.families.requests;
        let [prefill, decode] = &self.names;
        let record = request.guard.record();
        if let Some(reason) = lost {
            if reason == LOST_KV {
                side.avoid(&request.prepared.route.config.name, self.pair, &self.names, now);
                families.kv_transfers.inc([prefill, decode, "failed"]);
            }
            if let Some(attempt) = record.attempts.last_mut() {
                // A deadline that passed was half of the request's.
                let own = attempt.error.filter(|_| !matches!(attempted, Err(AttemptError::Overdue(_))));
                attempt.error = own.or(Some(reason));
            }
            return lost;
        }
        let took = record.at.connected.and_then(|connected| self.took(attempted, connected));
        families.kv_transfers.inc([prefill, decode, "worked"]);
        side.transfers.worked(self.pair, self.tokens, took.map(|took| took.as_secs_f64()));
        if let Some(took) = took {
            families.kv_transfer_time.get([prefill, decode]).observe(took.as_secs_f64());
        }
        if let Some(ways) = &mut record.ways {
            ways.transfer = took;
        }
        None
    }

    /// From the connection to the first content, less what decoding was expected to take; `None` without a stream, and where the
    /// prompt was computed meanwhile.
    fn took(&self, attempted: Attempted<'_>, connected: Stamp) -> Option<Duration> {
        self.lost_after?;
        let Ok((UpstreamResponse::Stream { reader, .. }, _)) = attempted else { return None };
        let waited = reader.timeline.first_token()?.since(connected).as_secs_f64();
        Duration::try_from_secs_f64((waited - self.place).max(0.0)).ok()
    }

    /// Deadlines of the decoding leg: what is left after it is for another try. An engine does not notice that the one whose KV it
    /// reads stands still, so a stream is not left there much longer than was expected.
    pub(super) fn deadlines(&self, whole: Deadlines, now: Stamp) -> Deadlines {
        let first_token = whole.first_token.map(|deadline| {
            let half = half_until(deadline.at, now);
            let lost = self.lost_after.map(|after| Deadline { at: now.after(after), after });
            lost.filter(|lost| lost.at < half.at).unwrap_or(half)
        });
        Deadlines { first_token, ..whole }
    }
}

/// Whether the decoding replica turned the request away before its engine had it: nothing has fetched the KV.
fn is_refused(attempted: &Attempted<'_>) -> bool {
    match attempted {
        Ok((answer, _)) => answer.status().is_client_error(),
        Err(AttemptError::Replica(failure, _)) => failure.is_refusal(),
        Err(_) => false,
    }
}

/// Whether a leg's own deadline passed, and not the request's.
fn has_time(prepared: &Prepared, failure: &Failure, now: Stamp) -> bool {
    let is_timer =
        matches!(failure, Failure::Timeout { timer: Timer::FirstToken | Timer::Total | Timer::Asked, .. });
    let Deadlines { first_token, total, .. } = prepared.deadlines();
    is_timer && first_token.is_none_or(|deadline| now < deadline.at) && now < total.at
}

fn half_until(end: Stamp, now: Stamp) -> Deadline {
    let after = end.since(now) / 2;
    Deadline { at: now.after(after), after }
}

/// How long first tokens that were expected after so many seconds are waited for.
fn lost_after(expected: f64) -> Duration {
    Duration::try_from_secs_f64(LATE_TIMES * expected)
        .map_or(Duration::MAX, |times| LOST_AFTER.saturating_add(times))
}

/// A request of one token that fetches KV for no client. Nothing waits for it, so it passes admission.
#[derive(Debug)]
struct Release {
    incoming: Box<IncomingRequest>,
    prepared: Box<Prepared>,
    identity: Identity,
    body: Pieces,
}

impl Release {
    async fn run(self: Box<Self>) {
        let gateway = &self.incoming.gateway;
        let end = gateway.clock.now().after(RELEASE_WITHIN);
        let (mut tried, mut is_fetched) = (Tried::new(), false);
        for _ in 0..RELEASE_ATTEMPTS {
            let Some(pick) = picker::pick_for_release(gateway, &self.prepared, &tried) else { break };
            picker::note_tried(&mut tried, &pick);
            let sent = Arc::new(AtomicBool::new(false));
            is_fetched = self.is_fetched(pick, end, &sent).await;
            if is_fetched || sent.load(Ordering::Relaxed) {
                break;
            }
        }
        let result = if is_fetched { "fetched" } else { "failed" };
        gateway.observer.metrics.families.requests.kv_released.inc([result]);
    }

    async fn is_fetched(&self, pick: Box<Pick>, end: Stamp, sent: &Arc<AtomicBool>) -> bool {
        let Self { incoming, prepared, identity, body } = self;
        let total = Deadline { at: end, after: RELEASE_WITHIN };
        let deadlines = Deadlines { first_token: None, total, ..prepared.deadlines() };
        let outbound = Outbound { incoming, prepared, identity, body, deadlines, sent: Some(sent) };
        let mut flight = outbound.launch(pick, AttemptCause::Retry);
        let landed = flight.land().await;
        let active = flight.into_active();
        active.watch.close();
        let attempted = landed.map(|answer| (answer, active));
        if is_refused(&attempted.as_ref()) {
            sent.store(false, Ordering::Relaxed);
        }
        attempted.is_ok_and(|(answer, _)| answer.status().is_success())
    }
}

impl Drop for HeldKv {
    fn drop(&mut self) {
        if let Some(release) = self.release.take().filter(|_| !self.sent.load(Ordering::Relaxed)) {
            let gateway = Arc::clone(&release.incoming.gateway);
            gateway.tasks.spawn(boxed(release.run()));
        }
    }
}

/// The answer locates no KV.
const NO_PARAMS: &str = "no_params";
/// The prompt was not computed in time.
const LATE: &str = "prefill_late";
/// The decoding replica took no request whose KV is to be fetched.
const REFUSED: &str = "decode_refused";
/// Longer than two engines shake hands (18 s at most on two busy cores), beyond [`LATE_TIMES`] what was expected.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// A transfer that takes longer has failed.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);
/// Decoding replicas that are asked to release KV, as long as none has got the request.
const RELEASE_ATTEMPTS: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn a_stream_is_not_left_for_minutes_where_its_kv_does_not_come() {
        let held = |lost_after: Option<Duration>| HeldKv {
            body: Pieces::default(),
            pair: (1, 2),
            names: ["p".into(), "d".into()],
            tokens: Tokens(900),
            place: 0.0,
            lost_after,
            under_way: None,
            sent: Arc::default(),
            release: None,
            beside: None,
        };
        let deadline = |seconds| Deadline { at: at(seconds), after: Duration::from_secs(seconds) };
        let whole = |first_token| Deadlines {
            connect: Duration::from_secs(1),
            first_token: Some(deadline(first_token)),
            total: deadline(600),
        };
        for (expected, first_token, ends) in [
            (Some(0.0), 300, 30),
            (Some(2.5), 300, 40),
            (Some(1e4), 300, 150),
            (None, 300, 150),
            (Some(0.0), 20, 10),
        ] {
            let leg = held(expected.map(lost_after)).deadlines(whole(first_token), at(0));
            assert_eq!(leg.first_token.map(|leg| leg.at), Some(at(ends)), "{expected:?} {first_token}");
            assert_eq!(leg.total.at, at(600));
        }
    }
}
