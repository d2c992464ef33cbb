//! `/v1/realtime`: a WebSocket between client and engine, relayed as bytes.
//!
//! The handshake goes to a replica like any request, with its load reserved for as long as the tunnel lasts. From then on
//! bytes pass in both directions. A tunnel ends with either side, at `timeouts.total`, after `timeouts.client_stall`
//! without a byte in either direction, or when the drain is over; in the last three the client gets a Close frame
//! that names the reason. Its record is published when it is over.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode, response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::attempt::{AttemptTimes, BufferedResponse, UpstreamResponse, head_fault, no_connection};
use super::exchange::{Exchange, ExchangeResult};
use super::outbound::{ActiveAttempt, Identity, Outbound, open_entry};
use super::outside;
use super::picker;
use super::{ClientConnection, Gateway, reply};
use crate::admission::Rules;
use crate::background::boxed;
use crate::error::{Closed, Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::listener::{KillSwitch, Tunnel};
use crate::observe::record_guard::RecordGuard;
use crate::record::{Attempt, Outcome};
use crate::relay::body::ReplyBody;
use crate::relay::watch::{MayBeSilent, StreamDeadlines, StreamWatch};
use crate::relay::ws_frames::{self, Frames};
use crate::request::trace_context;
use crate::upstream::headers::{strip_response, switches_to_websocket, upgrade};
use crate::upstream::pool::Lease;

/// Shakes hands with a replica; the response is its own, or our failure.
pub(super) async fn respond(mut exchange: Box<Exchange>) -> Response<ReplyBody> {
    let gateway = Arc::clone(exchange.gateway());
    // What would wait in a queue lasts: nothing predicts its end.
    exchange.prepared.rules = Rules::default();
    let result = match shake_hands(&mut exchange).await {
        Ok(shaken) if shaken.answer.status == StatusCode::SWITCHING_PROTOCOLS => {
            return open(&gateway, *exchange, shaken);
        }
        Ok(shaken) => refused(&gateway, &exchange, shaken).await,
        Err(failure) => {
            gateway.count_refusal(&failure);
            Err(failure)
        }
    };
    let Exchange { guard, prepared, incoming, .. } = *exchange;
    reply::response(ExchangeResult { guard, result, prepared, incoming })
}

/// A replica's answer to the handshake.
struct Shaken {
    answer: response::Parts,
    lease: Lease,
    pick: Box<Pick>,
}

async fn shake_hands(exchange: &mut Exchange) -> Result<Shaken, Failure> {
    let gateway = Arc::clone(exchange.gateway());
    let mut last = None;
    loop {
        let context = exchange.waits.pick_context(&exchange.tried);
        let Some(mut pick) = picker::pick_at_once(&gateway, &exchange.prepared, context) else {
            return last.unwrap_or_else(|| Err(exchange.prepared.no_ready_replica()));
        };
        exchange.note_decision(&pick);
        outside::count(&gateway, &exchange.prepared, &mut pick);
        match ask(exchange, &pick).await {
            Ok((answer, lease)) => {
                let status = answer.status;
                let shaken = Shaken { answer, lease, pick };
                let replica = shaken.pick.replica.name();
                let failure = ReplicaFailure::Status { replica, status: status.as_u16() };
                // It has begun nothing: another replica may take the client.
                if !status.is_server_error() || !exchange.may_retry(&failure, &shaken.pick) {
                    return Ok(shaken);
                }
                last = Some(Ok(shaken));
            }
            Err(Failure::Replica(failure)) => {
                let may_retry = exchange.may_retry(&failure, &pick);
                if !may_retry {
                    return Err(Failure::Replica(failure));
                }
                last = Some(Err(Failure::Replica(failure)));
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// One handshake: `timeouts.connect` for the connection, `timeouts.first_token` for the answer.
async fn ask(exchange: &mut Exchange, pick: &Pick) -> Result<(response::Parts, Lease), Failure> {
    let clock = exchange.gateway().clock;
    let timeouts = exchange.prepared.timeouts;
    let replica = pick.replica.name();
    let span = trace_context::new_span_id();
    let start = clock.now();
    let deadline = clock.instant(start.after(timeouts.connect));
    let mut connected = None;
    let cause = exchange.cause();
    let identity = Identity::of(exchange.guard.record());
    let asked = async {
        let lease = pick.replica.connections.fresh(deadline).await;
        let mut lease = lease.map_err(|e| no_connection(e, Arc::clone(&replica), timeouts.connect))?;
        connected = Some(clock.now());
        let mut request = Outbound::of(&exchange.incoming, &exchange.prepared, &identity).request(pick, span);
        for (name, value) in upgrade() {
            request.head.push(&name, value.as_bytes());
        }
        let name = Arc::clone(&replica);
        let closed = Failure::Replica(ReplicaFailure::ClosedBeforeHead { replica, closed: Closed::Asked });
        match tokio::time::timeout(timeouts.first_token, lease.connection.ask(request)).await {
            Ok(Ok(answer)) => match switch_fault(&answer) {
                None => Ok((answer, lease)),
                Some(what) => Err(Failure::Replica(ReplicaFailure::InvalidHead { replica: name, what })),
            },
            Ok(Err(error)) => Err(head_fault(&error).map_or(closed, |what| {
                Failure::Replica(ReplicaFailure::InvalidHead { replica: name, what })
            })),
            Err(_) => Err(Failure::Timeout { timer: Timer::FirstToken, after: timeouts.first_token }),
        }
    };
    let result = asked.await;
    let end = clock.now();
    let status = result.as_ref().ok().map(|(answer, _)| answer.status.as_u16());
    exchange.note_demand(cause, pick, status);
    let record = exchange.guard.record();
    record.at.connected = connected;
    let times = AttemptTimes { start, connected, head: result.is_ok().then_some(end) };
    record.attempts.push(Attempt {
        status,
        error: result.as_ref().err().map(Failure::code),
        ..open_entry(pick, span, cause, &times, end)
    });
    result
}

/// What is wrong with an answer that switches protocols.
fn switch_fault(answer: &response::Parts) -> Option<&'static str> {
    let is_other =
        answer.status == StatusCode::SWITCHING_PROTOCOLS && !switches_to_websocket(&answer.headers);
    is_other.then_some("switched to another protocol than websocket (101)")
}

/// Any other answer than 101 is relayed like that of an ordinary request.
async fn refused(
    gateway: &Gateway,
    exchange: &Exchange,
    shaken: Shaken,
) -> Result<(UpstreamResponse, ActiveAttempt), Failure> {
    let Shaken { answer: head, mut lease, pick } = shaken;
    let after = exchange.prepared.timeouts.first_token;
    let replica = pick.replica.name();
    let read = tokio::time::timeout(after, lease.connection.read_body(MAX_REFUSAL)).await;
    drop(lease);
    let body = match read {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return Err(Failure::Replica(ReplicaFailure::Truncated { replica })),
        Err(_) => return Err(Failure::Timeout { timer: Timer::FirstToken, after }),
    };
    let watch = watch(gateway, exchange, &pick);
    let answer = BufferedResponse::new(Box::new(head), body);
    Ok((UpstreamResponse::Buffered(answer), ActiveAttempt { pick, watch }))
}

/// Lets the watchdog keep the tunnel's deadlines: both sides count as one that is waited for.
fn watch(gateway: &Gateway, exchange: &Exchange, pick: &Pick) -> Arc<StreamWatch> {
    let timeouts = exchange.prepared.timeouts;
    let limits = StreamDeadlines {
        inter_token: None,
        client_stall: timeouts.client_stall,
        patience: timeouts.total,
        first_token: None,
        may_be_silent: MayBeSilent::Never,
        total: exchange.prepared.deadlines().total,
        total_timer: exchange.prepared.total_timer,
    };
    let now = gateway.clock.now();
    let vitals = Arc::clone(&pick.replica.health.vitals);
    let watch = gateway.watchdog.watch(vitals, exchange.incoming.kill.clone(), limits, now);
    watch.waits_for_client(now);
    watch
}

/// Answers 101 and leaves the tunnel to a task of its own.
fn open(gateway: &Arc<Gateway>, mut exchange: Exchange, shaken: Shaken) -> Response<ReplyBody> {
    let Shaken { answer, lease, pick } = shaken;
    let watch = watch(gateway, &exchange, &pick);
    let Some(client) = exchange.incoming.parts.extensions.remove::<OnUpgrade>() else {
        return reply::failure(exchange.guard, &Failure::UpgradeRequired);
    };
    exchange.guard.head_sent(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let mut headers = answer.headers;
    strip_response(&mut headers);
    headers.extend(upgrade());
    reply::write_own_headers(&mut headers, exchange.guard.record());
    if exchange.prepared.table.config.server.route_info_headers {
        reply::write_route_info(&mut headers, exchange.guard.record());
    }
    let over = CancellationToken::new();
    let tunnel = RealtimeTunnel {
        kill: exchange.incoming.kill.clone(),
        guard: exchange.guard,
        watch,
        pick,
        _connection: Arc::clone(&exchange.incoming.connection),
    };
    let guard = over.clone().drop_guard();
    gateway.tasks.spawn(boxed(async move {
        let _over = guard;
        tunnel.run(client, lease).await;
    }));
    let mut response = Response::new(ReplyBody::own(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(Tunnel(over));
    response
}

/// An open tunnel, with everything that lives as long.
struct RealtimeTunnel {
    kill: KillSwitch,
    guard: RecordGuard,
    watch: Arc<StreamWatch>,
    pick: Box<Pick>,
    /// It stays open, and counts among those that are.
    _connection: Arc<ClientConnection>,
}

/// Who ended a tunnel.
enum Ended {
    Client,
    Engine,
    /// A deadline, the drain, or the connection was killed.
    Gateway,
}

/// Which side of one direction ended it.
enum CopyEnd {
    Source,
    Target,
}

/// What passed in one direction.
#[derive(Default)]
struct Passed {
    frames: Frames,
    bytes: u64,
}

impl RealtimeTunnel {
    async fn run(mut self, client: OnUpgrade, engine: Lease) {
        // Every arm is cancel-safe: what is dropped is closed.
        let client = tokio::select! {
            client = client => client.ok(),
            () = self.kill.cancelled() => None,
        };
        let Some(client) = client else {
            return self.guard.settle(Outcome::Canceled, None);
        };
        self.relay(TokioIo::new(client), engine).await;
    }

    async fn relay(&mut self, client: TokioIo<Upgraded>, mut lease: Lease) {
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (mut from_engine, mut to_engine) = tokio::io::split(&mut *lease.connection);
        let (mut up, mut down) = (Passed::default(), Passed::default());
        // The copies are dropped with what they hold; a frame cut by it is followed by no other.
        let ended = tokio::select! {
            end = self.copy(&mut from_client, &mut to_engine, &mut up) => match end {
                CopyEnd::Source => Ended::Client,
                CopyEnd::Target => Ended::Engine,
            },
            end = self.copy(&mut from_engine, &mut to_client, &mut down) => match end {
                CopyEnd::Source => Ended::Engine,
                CopyEnd::Target => Ended::Client,
            },
            () = self.kill.cancelled() => Ended::Gateway,
        };
        self.watch.close();
        let failure = self.settle(&ended, up.frames.is_closing() || down.frames.is_closing());
        let record = self.guard.record();
        record.bytes_in = up.bytes;
        record.bytes_out = down.bytes;
        // A dropped connection cancels the engine's work.
        drop(lease);
        let farewell = async {
            if let Some(failure) = failure.filter(|_| down.frames.is_between()) {
                let code = if matches!(failure, Failure::DrainCut) { GOING_AWAY } else { INTERNAL_ERROR };
                let _ = to_client.write_all(&ws_frames::close(code, failure.code())).await;
            }
            let _ = to_client.shutdown().await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Copies one direction to its end; every byte restarts the wait for the next.
    async fn copy(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        passed: &mut Passed,
    ) -> CopyEnd {
        let mut buffer = vec![0; BUFFER];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let mut left = buffer.get(..read).unwrap_or_default();
            while !left.is_empty() {
                let Ok(written @ 1..) = to.write(left).await else { return CopyEnd::Target };
                self.watch.waits_for_client(self.guard.clock().now());
                let (done, rest) = left.split_at(written);
                passed.frames.feed(done);
                passed.bytes += written as u64;
                left = rest;
            }
            if to.flush().await.is_err() {
                return CopyEnd::Target;
            }
        }
        CopyEnd::Source
    }

    /// Records the end; the failure that the client is told, where it is ours.
    fn settle(&mut self, ended: &Ended, is_closing: bool) -> Option<Failure> {
        let now = self.guard.clock().now();
        let failure = match (ended, self.watch.expiry()) {
            (Ended::Gateway, Some(expiry)) => self.watch.failure(expiry, self.pick.replica.name()),
            (Ended::Client | Ended::Engine, _) if is_closing => {
                self.pick.answered(false, now);
                self.guard.settle(Outcome::Ok, None);
                return None;
            }
            (Ended::Client, _) | (Ended::Gateway, None) => {
                self.guard.settle(Outcome::Canceled, None);
                return None;
            }
            (Ended::Engine, _) => {
                let replica = self.pick.replica.name();
                let failure = ReplicaFailure::Truncated { replica };
                self.pick.failed(&failure, now);
                Failure::Replica(failure)
            }
        };
        self.guard.fail(&failure);
        Some(failure)
    }
}

/// Close codes (RFC 6455 §7.4.1). Clients take 1001 for an end in order, as they take 1000.
const GOING_AWAY: u16 = 1001;
const INTERNAL_ERROR: u16 = 1011;
const BUFFER: usize = 16 * 1024;
const FAREWELL: Duration = Duration::from_secs(1);
const MAX_REFUSAL: usize = 1 << 20;
