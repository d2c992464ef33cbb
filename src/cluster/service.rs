//! The task that holds the connection: publishes batches, follows those of the others, and comes back when the broker does.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::connected::Connected;
use super::journal::Journal;
use super::keys::KeyRing;
use super::link::{Link, LinkError, Messages, UntilLost};
use super::peers::{self, Peers};
use super::pins::SharedPins;
use super::places::Places;
use super::refusals::Refused;
use super::standings::Standings;
use super::topics::Topics;
use super::{FLUSH_EVERY, HEARTBEAT, budgets, fingerprint, speeds, wire};
use crate::admission::Sharing;
use crate::background::Background;
use crate::clock::{Stamp, doubled, ticks};
use crate::config::{Cluster, OnLoss, Secret};
use crate::fleet::registry::Fleet;
use crate::gateway::Gateway;
use crate::identity::KeyStore;
use crate::labels::labels;
use crate::routing::notice::{Notice, Outbox, queue};
use crate::upstream::connect::Connector;

/// What the task works with, as do followers of KV events.
#[derive(Clone)]
pub struct Deps {
    /// The pools whose decisions are published, or whose engines are followed.
    pub fleet: Arc<Fleet>,
    /// Its tenants' budgets, and its metrics.
    pub gateway: Arc<Gateway>,
    /// What its parts show the other gateways.
    pub topics: Arc<Topics>,
    /// Keys made at run time.
    pub keys: Arc<KeyStore>,
    /// Its name over restarts, where it keeps its budgets over them.
    pub instance: Option<Arc<str>>,
    /// Secured for the broker; to engines in clear text.
    pub connector: Connector,
    /// Where it runs, ...
    pub background: Background,
    /// ... and its end.
    pub stopped: CancellationToken,
}

/// Begins to publish, and to look for the broker.
pub fn start(config: &Cluster, seed: &Secret, deps: Deps) {
    let (outbox, notices) = queue(MAX_QUEUED, true);
    Places::announce(&deps.fleet.pools(), &outbox);
    let pins = SharedPins::new(&config.name, seed, &deps.gateway.pins);
    let keys = KeyRing::new(&config.name, seed, Arc::clone(&deps.keys));
    let (own, seed) = (fastrand::u64(..), fingerprint(seed));
    if config.on_loss == OnLoss::Closed {
        // Requests wait for the first look, and are refused once the broker has failed to answer.
        deps.gateway.tenants.share(Sharing::Shared { gateways: UNHEARD });
    }
    let field = deps.instance.as_deref().map_or_else(|| format!("{own:016x}"), ToOwned::to_owned);
    let head = wire::Head { sender: own, sequence: 0, seed };
    let service = Service {
        field,
        has_twin: AtomicBool::new(false),
        journal: Journal::new(&config.name, head),
        gateways: AtomicU32::default(),
        channel: channel(config),
        config: config.clone(),
        keys,
        deps,
        outbox,
        notices: Mutex::new(notices),
        head: Mutex::new(head),
        sent: Mutex::default(),
        pins: tokio::sync::Mutex::new(pins),
        refused: Refused::default(),
    };
    let background = service.deps.background.clone();
    background.spawn(service.run());
}

/// At how many gateways shares of budgets are cut, so long after it connected; `before` is how many there were, 0 at a start.
fn least_gateways(before: u32, connected: Duration) -> u32 {
    if connected < peers::SILENT && before > 0 {
        // They are heard of one by one, as they find the broker again.
        before
    } else if connected < HEARTBEAT {
        UNHEARD
    } else {
        1
    }
}

/// Channels belong to no database: its number keeps two clusters of one name apart, as their keys are.
fn channel(config: &Cluster) -> String {
    match config.url.database {
        0 => format!("{}:notices", config.name),
        database => format!("{}:notices:{database}", config.name),
    }
}

struct Service {
    channel: String,
    /// Its field in the hashes of budgets.
    field: String,
    has_twin: AtomicBool,
    /// Those alive, this one included; 0 before any can have been heard of.
    gateways: AtomicU32,
    config: Cluster,
    keys: KeyRing,
    deps: Deps,
    outbox: Arc<Outbox>,
    notices: Mutex<Receiver<Notice>>,
    head: Mutex<wire::Head>,
    /// The newest batch, and when it was sent.
    sent: Mutex<(u32, Stamp)>,
    pins: tokio::sync::Mutex<SharedPins>,
    refused: Refused,
    journal: Journal,
}

labels! {
    /// Why notices are dropped.
    enum Dropped {
        QueueFull = "queue_full",
        Disconnected = "disconnected",
        UnknownReplica = "unknown_replica",
        UnknownKind = "unknown_kind",
        Unreadable = "unreadable",
        Lost = "lost",
    }
}

impl Service {
    async fn run(self) {
        let (mut tries, mut logged) = (0_u32, None);
        let identity = { *self.head.lock() };
        let mut peers = Peers::new(identity.sender, identity.seed);
        let stopped = self.deps.stopped.clone();
        loop {
            self.note_connected(false, 0);
            let opening = Link::open(&self.config.url, &self.deps.connector, &self.deps.background.tasks);
            let error = match stopped.run_until_cancelled(opening).await {
                Some(Ok((link, messages))) => {
                    let Err(lost) = self.follow(&link, messages, &mut peers, &mut logged, &mut tries).await;
                    lost
                }
                Some(Err(error)) => error,
                None => return,
            };
            if stopped.is_cancelled() {
                return;
            }
            self.deps.gateway.pins.others_known(false);
            self.deps.topics.lost();
            peers.forget();
            self.share_no_budgets();
            // One that was lost and now refuses the password has a reason to add.
            let is_refusal = matches!(&error, LinkError::Broker(error) if !error.is_io_error() && !error.is_connection_dropped());
            if logged < Some(is_refusal) {
                let broker = self.config.url.to_string();
                tracing::warn!(broker, %error, "cluster: the broker is away; this gateway routes alone until it is back");
                logged = Some(is_refusal);
            }
            let pause = self.wait(doubled(FIRST_BACKOFF, tries, MAX_BACKOFF));
            if stopped.run_until_cancelled(pause).await.is_none() {
                return;
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Budgets are as `on_loss` has them, until the next look.
    fn share_no_budgets(&self) {
        self.deps.gateway.tenants.share(match self.config.on_loss {
            OnLoss::Open => Sharing::Alone,
            OnLoss::Closed => Sharing::Closed,
        });
    }

    /// Lets time pass, and drops notices meanwhile.
    async fn wait(&self, backoff: Duration) {
        self.note_connected(false, 0);
        let mut left = backoff.mul_f64(0.75 + fastrand::f64() / 2.0);
        while !left.is_zero() {
            let step = left.min(FLUSH_EVERY);
            tokio::time::sleep(step).await;
            left -= step;
            self.discard();
        }
    }

    fn discard(&self) {
        let discarded = { self.notices.lock().try_iter().take(MAX_QUEUED).count() };
        self.lost(Dropped::Disconnected, discarded as u64);
    }

    /// Notices that followers will not get: a number without a batch lets them forget what they know of running requests, whose ends
    /// may be among them.
    fn lost(&self, why: Dropped, notices: u64) {
        if notices > 0 {
            self.count(why, notices);
            let mut head = self.head.lock();
            head.sequence = head.sequence.wrapping_add(1);
        }
    }

    /// Publishes and follows until the connection ends.
    async fn follow(
        &self,
        link: &Link,
        mut messages: Messages,
        peers: &mut Peers,
        logged: &mut Option<bool>,
        tries: &mut u32,
    ) -> UntilLost {
        let at = &Connected {
            link,
            cluster: &self.config.name,
            field: &self.field,
            fleet: &self.deps.fleet,
            clock: self.deps.gateway.clock,
            refused: &self.refused,
            has_twin: &self.has_twin,
        };
        at.connection().subscribe(&self.channel).await?;
        // What waited is as old as the loss was long.
        self.discard();
        let broker = self.config.url.to_string();
        tracing::info!(broker, cluster = %self.config.name, "cluster: connected; decisions are shared");
        (*logged, *tries) = (None, 0);
        self.deps.gateway.pins.others_known(true);
        let mut pins = self.pins.lock().await;
        // Every arm is cancel-safe: each ends the connection.
        tokio::select! {
            () = self.deps.stopped.cancelled() => self.settle(at).await,
            lost = self.publish(at) => lost,
            lost = self.share_budgets(at) => lost,
            lost = self.keys.share(at) => lost,
            lost = self.take_in(&mut messages, peers) => lost,
            lost = pins.run(at) => lost,
            lost = self.journal.run(at) => lost,
            lost = speeds::run(at) => lost,
            lost = self.deps.topics.run(at) => lost,
        }
    }

    /// A batch every [`FLUSH_EVERY`], where there is something to publish; else a sign of life every [`HEARTBEAT`].
    async fn publish(&self, at: &Connected<'_>) -> UntilLost {
        let mut connection = at.connection();
        let mut ticks = ticks(FLUSH_EVERY);
        let (mut batch, mut last) = (Vec::with_capacity(MAX_BATCH), Stamp::default());
        let mut dropped = self.outbox.dropped();
        let mut standings = Standings::default();
        for tick in 0u32.. {
            ticks.tick().await;
            if tick.is_multiple_of(RENEW_EVERY) {
                standings.renew(&at.fleet.pools());
            }
            let (now, lost) = (at.clock.now(), self.outbox.dropped());
            self.lost(Dropped::QueueFull, lost - dropped);
            dropped = lost;
            standings.news(now).for_each(|notice| self.outbox.publish(notice));
            loop {
                let count = self.fill(&mut batch, now);
                let is_due = count > 0 || last == Stamp::default() || now.since(last) >= HEARTBEAT;
                if !is_due {
                    break;
                }
                last = now;
                self.number(now);
                let publishing = redis::cmd("PUBLISH").arg(&self.channel).arg(&batch[..]).to_owned();
                publishing.query_async::<()>(&mut connection).await?;
                self.notices_total("sent", count);
                if batch.len() < MAX_BATCH {
                    break;
                }
            }
        }
        Err(LinkError::Closed)
    }

    /// Makes the next batch of what waits; returns how many notices are in it.
    fn fill(&self, batch: &mut Vec<u8>, now: Stamp) -> u64 {
        wire::begin(&self.head.lock(), batch);
        let notices = self.notices.lock();
        let mut count = 0;
        while batch.len() < MAX_BATCH
            && let Ok(notice) = notices.try_recv()
        {
            wire::push(&notice, now, batch);
            self.journal.note(&notice, now);
            count += 1;
        }
        count
    }

    /// The batch that was filled is sent: the next one has the next number.
    fn number(&self, now: Stamp) {
        let mut head = self.head.lock();
        *self.sent.lock() = (head.sequence, now);
        head.sequence = head.sequence.wrapping_add(1);
    }

    /// A look every [`LOOK_EVERY`] at budgets that were used, and at all of them every [`LOOKS`].
    async fn share_budgets(&self, at: &Connected<'_>) -> UntilLost {
        let tenants = &self.deps.gateway.tenants;
        let mut ticks = ticks(LOOK_EVERY);
        let mut refusals = self.refused.of("budgets are not shared");
        // Until the first look no more is taken of what others may have spent.
        tenants.share(Sharing::Shared { gateways: self.gateways() });
        for look in 0u32.. {
            ticks.tick().await;
            let mut looking =
                pin!(budgets::look(at, tenants, Some(self.gateways()), look.is_multiple_of(LOOKS)));
            let looked = match tokio::time::timeout(LOOK_LATE, &mut looking).await {
                Ok(looked) => looked,
                // Requests wait for it at the turn of a window, though not as long as it takes to give a broker up.
                Err(_) => {
                    self.share_no_budgets();
                    looking.await
                }
            };
            refusals.note(looked)?;
            if refusals.is_refused() {
                self.share_no_budgets();
            } else {
                tenants.share(Sharing::Shared { gateways: self.gateways() });
            }
        }
        Err(LinkError::Closed)
    }

    /// Writes what the last requests have used in place of what they had reserved: after a restart it would be held against their
    /// tenants.
    async fn settle(&self, at: &Connected<'_>) -> UntilLost {
        let tenants = &self.deps.gateway.tenants;
        // Its shares are the others' from the last look on.
        tenants.share(Sharing::Closed);
        let looked = async {
            // A first look writes nothing over what it finds, and one that was under way may have written what was reserved.
            budgets::look(at, tenants, None, true).await?;
            budgets::look(at, tenants, None, true).await
        };
        if !matches!(tokio::time::timeout(LAST_LOOK, looked).await, Ok(Ok(_))) {
            tracing::warn!(
                "cluster: what the last requests used is not shared: their reservations count until the gateway is back"
            );
        }
        Err(LinkError::Closed)
    }

    async fn take_in(&self, messages: &mut Messages, peers: &mut Peers) -> UntilLost {
        let mut places = Places::of(&self.deps.fleet.pools(), &self.outbox);
        let connected = self.deps.gateway.clock.now();
        let count = (self.gateways.load(Ordering::Relaxed), connected);
        let mut ticks = ticks(HEARTBEAT);
        loop {
            // Both arms are cancel-safe: a message not taken stays in the channel.
            let message = tokio::select! {
                message = messages.recv() => Some(message),
                _ = ticks.tick() => None,
            };
            let now = self.deps.gateway.clock.now();
            match message {
                None => {
                    places = Places::of(&self.deps.fleet.pools(), &self.outbox);
                    self.note_connected(true, self.count_gateways(count, peers, now));
                }
                Some(None) => return Err(LinkError::Closed),
                Some(Some(message)) => {
                    // One that joins counts from its first message on: its share is the others' no more.
                    if self.fold(&message, &places, peers, now) {
                        self.count_gateways(count, peers, now);
                    }
                }
            }
        }
    }

    fn gateways(&self) -> u32 {
        match self.gateways.load(Ordering::Relaxed) {
            0 => UNHEARD,
            known => known,
        }
    }

    /// How many of the others are alive.
    fn count_gateways(&self, (before, connected): (u32, Stamp), peers: &mut Peers, now: Stamp) -> usize {
        let peers = peers.alive(now);
        let all = u32::try_from(peers).unwrap_or(u32::MAX).saturating_add(1);
        self.gateways.store(all.max(least_gateways(before, now.since(connected))), Ordering::Relaxed);
        peers
    }

    /// Whether it is from a gateway that was unknown.
    fn fold(&self, message: &[u8], places: &Places, peers: &mut Peers, now: Stamp) -> bool {
        let folded = peers.fold(message, places, now);
        self.notices_total("received", folded.taken);
        self.count(Dropped::UnknownReplica, folded.unknown);
        self.count(Dropped::UnknownKind, folded.skipped);
        self.count(Dropped::Unreadable, folded.unreadable);
        self.count(Dropped::Lost, folded.lost);
        let (sequence, at) = *self.sent.lock();
        if folded.own == Some(sequence) {
            let lag = now.since(at).as_secs_f64();
            self.families().lag.set([&*self.config.name], Some(lag));
        }
        folded.is_new
    }

    fn families(&self) -> &crate::observe::metrics::Cluster {
        &self.deps.gateway.observer.metrics.families.cluster
    }

    fn note_connected(&self, is_connected: bool, peers: usize) {
        let (families, name) = (self.families(), [&*self.config.name]);
        families.connected.set(name, Some(f64::from(u8::from(is_connected))));
        families.peers.set(name, Some(peers as f64));
        families.refused.set(name, Some(self.refused.count() as f64));
        if !is_connected {
            families.lag.set(name, None);
        }
    }

    fn notices_total(&self, direction: &str, count: u64) {
        self.families().notices.inc_by([&*self.config.name, direction], count);
    }

    fn count(&self, why: Dropped, count: u64) {
        if count > 0 {
            self.families().dropped.inc_by([&*self.config.name, why.as_str()], count);
        }
    }
}

/// Gateways that there may be before each has given its first sign of life: shares of budgets are small until then.
const UNHEARD: u32 = 8;
/// Between two looks at budgets that are used.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Below the patience of requests that wait for a look.
const LOOK_LATE: Duration = Duration::from_millis(500);
/// At the end, for a broker that answers late.
const LAST_LOOK: Duration = Duration::from_millis(500);
/// After as many the others' use of idle ones is read: once a second.
const LOOKS: u32 = 50;
/// Flushes between two looks at which replicas there are: half a second.
const RENEW_EVERY: u32 = 25;
/// Notices that wait for the next batch: 1.5 MB, allocated once.
const MAX_QUEUED: usize = 16_384;
/// Bytes of a batch; more than fit are in the next one.
const MAX_BATCH: usize = 64 * 1024;
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Back within seconds of the broker's return.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_heard_of_one_by_one() {
        let least = |before, ms| least_gateways(before, Duration::from_millis(ms));
        assert_eq!([least(3, 0), least(3, 1900), least(3, 2000)], [3, 3, 1]);
        assert_eq!([490, 510].map(|ms| least(0, ms)), [8, 1], "at a start each shows itself by then");
    }
}
