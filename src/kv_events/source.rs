//! Follows one engine: finds out where it publishes, connects, reads, asks for what it missed, and comes back when it was lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::batch::{self, Batch, Event};
use super::engine_time::EngineTime;
use super::listen::{Arrived, Topics};
use super::numbers::{Due, Numbers};
use super::replay::Replay;
use super::wire::{Socket, Wire, WireError};
use super::{EventKind, GapOutcome};
use crate::clock::{Stamp, doubled};
use crate::cluster::Deps;
use crate::config::{Endpoint, KvEvents};
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::upstream::call::Call;

/// What a follower is to know.
#[derive(Debug)]
pub(super) struct Signal {
    pub(super) slot: usize,
    /// Number of the source: what an earlier one of the slot sent does not count.
    pub(super) source: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The engine is followed.
    Connected,
    /// Events, with when they were stored.
    Events(Vec<Event>, Stamp),
    /// Events are missing that cannot be replayed.
    Lost,
    /// Another process publishes.
    Restarted,
    /// The engine is not followed.
    Disconnected,
}

pub(super) struct Source {
    pub(super) id: u64,
    pub(super) pool: Arc<PoolState>,
    pub(super) replica: Arc<Replica>,
    pub(super) config: KvEvents,
    pub(super) deps: Arc<Deps>,
    pub(super) signals: mpsc::Sender<Signal>,
    pub(super) topics: Arc<Topics>,
    pub(super) numbers: Numbers,
    pub(super) time: EngineTime,
}

/// Where an engine publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Published {
    /// `None` where it connects itself.
    port: Option<u16>,
    replay_port: Option<u16>,
    topic: Option<String>,
}

/// Why an engine is not followed.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it answered /kv_event_sources with {0}: set pool.kv_events.port")]
    NoSources(String),
    #[error("it publishes no KV events: start it with --kv-events-config")]
    PublishesNone,
    #[error("it connects to a subscriber: set pool.kv_events.listen, or its endpoint to \"tcp://*:PORT\"")]
    Connects,
    #[error("{MAX_UNDECODABLE} messages in a row that are no events")]
    Undecodable,
}

impl Source {
    pub(super) async fn run(mut self) {
        let (sender, mut arriving) = mpsc::channel(2);
        let (mut tries, mut is_logged) = (0_u32, false);
        loop {
            let mut is_good = false;
            let lost = match self.session(&sender, &mut arriving, &mut is_good).await {
                Ok(()) => return,
                Err(lost) => lost,
            };
            if is_good {
                (tries, is_logged) = (0, false);
            }
            self.note_connected(false);
            self.signal(What::Disconnected).await;
            if !std::mem::replace(&mut is_logged, true) {
                let (pool, replica) = (&*self.pool.name, &*self.replica.name());
                tracing::warn!(pool, replica, error = %lost, "kv_events: not followed; its cache is estimated until it is");
            }
            let pause = doubled(FIRST_BACKOFF, tries, MAX_BACKOFF);
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            tries = tries.saturating_add(1);
        }
    }

    /// Connects and reads until the connection is lost; `Ok` where there is no one to report to.
    async fn session(
        &mut self,
        sender: &mpsc::Sender<Arrived>,
        arriving: &mut mpsc::Receiver<Arrived>,
        is_good: &mut bool,
    ) -> Result<(), Lost> {
        let published = match self.published().await {
            // Those that connect may be known by their names.
            Err(Lost::NoSources(_) | Lost::PublishesNone) if self.config.listen.is_some() => {
                Published { replay_port: self.config.replay_port, ..Published::default() }
            }
            published => published?,
        };
        match published.port {
            Some(port) => {
                let endpoint = self.at(port);
                let opening = async {
                    let stream = self.deps.connector.open(&endpoint).await.map_err(WireError::from)?;
                    Wire::open(stream, Socket::Sub).await
                };
                let silent = |_| WireError::Io(std::io::ErrorKind::TimedOut.into());
                let wire = tokio::time::timeout(CONNECT_WITHIN, opening).await.map_err(silent)??;
                self.follow(wire, None, &published, is_good).await
            }
            None if self.config.listen.is_some() => {
                let name = self.replica.name();
                let topics = [published.topic.clone(), Some(format!("kv@{name}")), Some(name.to_string())];
                self.topics.expect(topics.into_iter().flatten().filter(|topic| !topic.is_empty()), sender);
                let Some((wire, first)) = arriving.recv().await else { return Ok(()) };
                self.follow(wire, Some(first), &published, is_good).await
            }
            None => Err(Lost::Connects),
        }
    }

    /// A port on the replica's host, whatever host its engine names.
    fn at(&self, port: u16) -> Endpoint {
        Endpoint { is_tls: false, ..self.replica.identity.endpoint.at_port(port) }
    }

    async fn published(&self) -> Result<Published, Lost> {
        let rank = self.replica.identity.rank.map_or(0, |rank| rank.index);
        if let Some(port) = self.config.port {
            let of_rank = |port: u16| u16::try_from(rank).ok().and_then(|rank| port.checked_add(rank));
            return Ok(Published {
                port: of_rank(port),
                replay_port: self.config.replay_port.and_then(of_rank),
                topic: None,
            });
        }
        let config = self.pool.config();
        let call = Call {
            key: config.engine_api_key.as_ref(),
            path: SOURCES,
            ..Call::to(&self.replica.identity.endpoint, CONNECT_WITHIN)
        };
        let answer = match call.send(&self.deps.connector).await {
            Ok((StatusCode::OK, body)) => body,
            Ok((status, _)) => return Err(Lost::NoSources(status.to_string())),
            Err(error) => return Err(Lost::NoSources(error.to_string())),
        };
        let published = read_sources(&answer, rank).ok_or(Lost::PublishesNone)?;
        Ok(Published { replay_port: self.config.replay_port.or(published.replay_port), ..published })
    }

    async fn follow<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        mut wire: Wire<S>,
        first: Option<Vec<BytesMut>>,
        published: &Published,
        is_good: &mut bool,
    ) -> Result<(), Lost> {
        self.numbers.connected();
        let now = self.deps.gateway.clock.now();
        self.time = EngineTime::new(now, self.deps.gateway.clock.wall(now));
        self.signal(What::Connected).await;
        self.note_connected(true);
        let replay_at = published.replay_port.map(|port| self.at(port));
        // What it stored before there was a listener.
        self.catch_up(replay_at.as_ref()).await;
        let (mut next, mut undecodable) = (first, 0);
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => wire.message().await?,
            };
            if self.take(message, replay_at.as_ref()).await {
                (*is_good, undecodable) = (true, 0);
            } else {
                self.count(EventKind::Undecodable, 1);
                undecodable += 1;
                if undecodable >= MAX_UNDECODABLE {
                    return Err(Lost::Undecodable);
                }
            }
            if self.signals.is_closed() {
                return Ok(());
            }
        }
    }

    /// Takes a message in; false where it is no batch of events.
    async fn take(&mut self, message: Vec<BytesMut>, replay_at: Option<&Endpoint>) -> bool {
        let [_, number, payload] = &message[..] else { return false };
        let Some(number) = number.first_chunk().filter(|_| number.len() == 8) else { return false };
        let number = u64::from_be_bytes(*number);
        match self.numbers.judge(number) {
            Due::Next => {}
            Due::Known => return true,
            Due::Missing => self.fill(replay_at, number).await,
            Due::Restarted => {
                self.gap(GapOutcome::Restarted);
                self.numbers = Numbers::default();
                self.signal(What::Restarted).await;
                if number > 0 {
                    self.catch_up(replay_at).await;
                }
            }
        }
        if self.numbers.judge(number) == Due::Known {
            true
        } else {
            self.digest(number, payload, false).await
        }
    }

    /// Replays what is known to be missing; what stays so is lost.
    async fn fill(&mut self, replay_at: Option<&Endpoint>, until: u64) {
        self.catch_up(replay_at).await;
        let is_filled = self.numbers.next() >= until && self.numbers.is_gapless();
        self.gap(if is_filled { GapOutcome::Replayed } else { GapOutcome::Lost });
        if !is_filled {
            self.signal(What::Lost).await;
        }
    }

    /// Takes in what the publisher still has of all that was not taken in.
    async fn catch_up(&mut self, replay_at: Option<&Endpoint>) {
        let Some(endpoint) = replay_at else { return };
        if let Err(error) = self.replay(endpoint).await {
            let (pool, replica) = (&*self.pool.name, &*self.replica.name());
            tracing::debug!(pool, replica, %error, "kv_events: no replay");
        }
    }

    async fn replay(&mut self, endpoint: &Endpoint) -> Result<(), WireError> {
        let mut replay = Replay::ask(&self.deps.connector, endpoint, self.numbers.next()).await?;
        while let Some((number, payload)) = replay.next().await? {
            match self.numbers.judge(number) {
                Due::Next => {}
                // The buffer no longer has all that is missing.
                Due::Missing => self.signal(What::Lost).await,
                Due::Known | Due::Restarted => continue,
            }
            self.digest(number, &payload, true).await;
        }
        Ok(())
    }

    async fn digest(&mut self, number: u64, payload: &[u8], is_replayed: bool) -> bool {
        let Ok(Batch { ts, events, skipped, unreadable }) = batch::read(payload) else { return false };
        self.count(EventKind::Skipped, skipped);
        self.count(EventKind::Undecodable, unreadable);
        self.numbers.took(number);
        for event in &events {
            self.count(
                match event {
                    Event::Stored(_) | Event::Copied { .. } => EventKind::Stored,
                    Event::Removed { .. } => EventKind::Removed,
                    Event::Cleared => EventKind::Cleared,
                },
                1,
            );
            if *event == Event::Cleared {
                self.numbers.is_complete = true;
            }
        }
        self.note_complete();
        let now = self.deps.gateway.clock.now();
        let at = if is_replayed { self.time.replayed(ts, now) } else { self.time.arrived(ts, now) };
        self.signal(What::Events(events, at)).await;
        true
    }

    async fn signal(&self, what: What) {
        let signal = Signal { slot: self.replica.slot(), source: self.id, what };
        let _ = self.signals.send(signal).await;
    }
}

impl Source {
    fn families(&self) -> &crate::observe::metrics::KvEvents {
        &self.deps.gateway.observer.metrics.families.kv_events
    }

    fn note_connected(&self, is_connected: bool) {
        let replica = self.replica.name();
        self.families().connected.set([&self.pool.name, &replica], Some(f64::from(u8::from(is_connected))));
    }

    fn note_complete(&self) {
        let (replica, is_complete) = (self.replica.name(), self.numbers.is_complete);
        self.families().complete.set([&self.pool.name, &replica], Some(f64::from(u8::from(is_complete))));
    }

    fn count(&self, kind: EventKind, count: u64) {
        if count > 0 {
            self.families().events.inc_by([&self.pool.name, &self.replica.name(), kind.as_str()], count);
        }
    }

    fn gap(&self, outcome: GapOutcome) {
        self.families().gaps.inc_by([&self.pool.name, &self.replica.name(), outcome.as_str()], 1);
    }
}

/// What `/kv_event_sources` has of one engine: `{"0": {"endpoint": "tcp://*:5557", …}}`.
fn read_sources(answer: &[u8], rank: u32) -> Option<Published> {
    let sources: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let source = sources.get(rank.to_string())?;
    let endpoint = source.get("endpoint")?.as_str()?;
    let port = |endpoint: &str| endpoint.rsplit_once(':')?.1.parse::<u16>().ok();
    // As vLLM decides whether it binds.
    let binds = endpoint.contains('*') || endpoint.contains("::");
    let has_port = |port: &u16| *port > 0;
    Some(Published {
        port: port(endpoint).filter(|_| binds).filter(has_port),
        replay_port: source.get("replay_endpoint").and_then(|it| port(it.as_str()?)).filter(has_port),
        topic: source.get("topic").and_then(|topic| Some(topic.as_str()?.to_owned())),
    })
}

const SOURCES: &str = "/kv_event_sources";
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A publisher that sends so much that is no batch is left until the next try.
const MAX_UNDECODABLE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_names_where_it_publishes() {
        let answer = br#"{"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":""},
            "1":{"endpoint":"tcp://10.0.0.1:5600","replay_endpoint":null,"topic":"kv@one"}}"#;
        let of = |rank| read_sources(answer, rank);
        let binds = Published { port: Some(5557), replay_port: Some(5558), topic: Some(String::new()) };
        let connects = Published { port: None, replay_port: None, topic: Some("kv@one".to_owned()) };
        assert_eq!((of(0), of(1), of(2)), (Some(binds), Some(connects), None));
        assert_eq!(read_sources(b"{}", 0), None);
        assert_eq!(read_sources(b"<html>", 0), None);
    }
}
