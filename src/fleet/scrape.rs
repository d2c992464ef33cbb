//! Scrapes the metrics page of one URL: one request at a time, jittered, with a timeout.
//!
//! A failed scrape makes signals old, never bad: a slow page does not make a replica count as saturated. A refused
//! connect is passed to the prober at once, as is a page that stays away while no token comes from there; whether the engine's counters
//! moved is evidence against a freeze. Where the page is and what its figures are called is `[pool.engine_profile]`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use super::discovery::deps::Deps;
use super::life::Event;
use super::metrics_text;
use super::pool::PoolState;
use super::probe::CONFIG_LOOK;
use super::replica::Replica;
use super::status::{EngineCounters, START_TOLERANCE};
use crate::clock::{Clock, Stamp, since_epoch};
use crate::config::{DataParallel, EngineKind, EngineProfile, Figure, Pool};
use crate::routing::EnginePage;
use crate::stats::Mean;
use crate::upstream::call::{Call, CallError, KeptConnection};
use crate::upstream::connect::Connector;

/// Scrapes the page of one URL.
pub(super) struct Scraper {
    saw_ranks: SawRanks,
    pool: Arc<PoolState>,
    /// The first of them, for what is the URL's affair.
    replica: Arc<Replica>,
    /// Every target of the URL, in the order of its ranks.
    targets: Vec<Arc<Replica>>,
    connector: Connector,
    clock: Clock,
    alone: Mutex<Alone>,
}

/// Takes note of how many engines a page shows.
pub(super) type SawRanks = Box<dyn Fn(u32) + Send + Sync>;

/// How one scrape ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Read,
    /// The engine has no page.
    Absent,
    /// Nothing came from the engine's own port in time.
    Silent,
    Failed,
}

impl Scraper {
    /// For the targets of one URL; `None` without any.
    pub(super) fn new(
        saw_ranks: SawRanks,
        pool: &Arc<PoolState>,
        targets: Vec<Arc<Replica>>,
        deps: &Deps,
    ) -> Option<Self> {
        let replica = Arc::clone(targets.first()?);
        let (pool, connector) = (Arc::clone(pool), deps.connector.clone());
        Some(Self {
            saw_ranks,
            pool,
            replica,
            targets,
            connector,
            clock: deps.clock,
            alone: Mutex::default(),
        })
    }

    /// The scrape loop, until the replica is removed.
    pub(super) async fn run(self) {
        let mut kept = KeptConnection::default();
        loop {
            let interval = self.pool.config().scrape_interval;
            if interval > MAX_KEPT {
                kept = KeptConnection::default();
            }
            let sent = self.clock.now();
            let outcome = self.scrape(interval, &mut kept).await;
            self.note_silence(outcome == Outcome::Silent, sent);
            self.replica.connections.reap();
            if self.rest(outcome == Outcome::Absent).await.is_none() {
                return;
            }
        }
    }

    /// Waits until the next scrape is due; `None` once the replica is removed.
    async fn rest(&self, is_absent: bool) -> Option<()> {
        let since = self.clock.now();
        // Spreads the scrapes of replicas that started together.
        let spread = 0.9 + 0.2 * fastrand::f64();
        loop {
            let least = if is_absent { MIN_INTERVAL_WITHOUT_PAGE } else { Duration::ZERO };
            let pause = self.pool.config().scrape_interval.max(least).mul_f64(spread);
            let left = pause.saturating_sub(self.clock.now().since(since));
            if left.is_zero() {
                return Some(());
            }
            let nap = tokio::time::sleep(left.min(CONFIG_LOOK));
            self.replica.removed().run_until_cancelled(nap).await?;
        }
    }

    /// A page that does not come is all that shows a frozen engine before requests wait long: a whole answer may take as long as it likes.
    fn note_silence(&self, is_silent: bool, sent: Stamp) {
        for replica in &self.targets {
            let vitals = &replica.health.vitals;
            if vitals.page(is_silent, self.clock.now()) && vitals.last_progress() < sent {
                replica.doubt(false, self.pool.config().probe.timeout, self.clock.now());
            }
        }
    }

    async fn scrape(&self, interval: Duration, kept: &mut KeptConnection) -> Outcome {
        let config = self.pool.config();
        let profile = &config.engine_profile;
        let Some(path) = profile.metrics_path.as_deref().filter(|_| !profile.sources.is_empty()) else {
            self.note_absent(&[]);
            return Outcome::Absent;
        };
        let own = &self.replica.identity.endpoint;
        let elsewhere = profile.metrics_port.map(|port| own.at_port(port));
        let endpoint = elsewhere.as_ref().unwrap_or(own);
        let key = config.engine_api_key.as_ref();
        let call = Call { key, path, ..Call::to(endpoint, interval.max(MIN_TIMEOUT)) };
        let answer = call.send_on(&self.connector, kept).await;
        if !matches!(answer, Ok((StatusCode::OK, _))) {
            self.replica.own.failed_scrapes.fetch_add(1, Ordering::Relaxed);
            self.alone.lock().shows(None, self.clock.now());
        }
        // What another port says is no evidence about the engine's own.
        let is_own_port = elsewhere.is_none();
        if answer.is_ok() && kept.is_fresh() {
            self.connected(is_own_port);
        }
        match answer {
            Ok((StatusCode::OK, page)) => {
                let page = String::from_utf8_lossy(&page);
                self.find_ranks(&page, &config);
                for replica in &self.targets {
                    self.apply(replica, &page, profile);
                    if config.engine == EngineKind::Vllm {
                        self.note_adapters(replica, &page);
                    }
                }
                // Each of several engines behind the URL is to see that this process is new.
                for replica in &self.targets {
                    self.note_process(replica.process_start());
                }
                Outcome::Read
            }
            Ok(_) => {
                let expected: Vec<_> = profile.sources.iter().map(|(figure, _)| figure.as_str()).collect();
                self.note_absent(&expected);
                Outcome::Absent
            }
            Err(CallError::Refused) if is_own_port => {
                for replica in &self.targets {
                    replica.health.vitals.refused(self.clock.now());
                    if replica.is_ready() {
                        replica.health.vitals.check_now.notify_one();
                    }
                }
                Outcome::Failed
            }
            Err(CallError::Timeout | CallError::NoRoute) if is_own_port => Outcome::Silent,
            Err(_) => Outcome::Failed,
        }
    }

    fn connected(&self, is_own_port: bool) {
        for replica in self.targets.iter().filter(|_| is_own_port) {
            if replica.health.vitals.refused_since().is_some() {
                replica.health.vitals.connected();
                replica.health.vitals.check_now.notify_one();
            }
        }
    }

    /// A page of several engines makes each of them a target, unless the configuration says how many there are.
    fn find_ranks(&self, page: &str, config: &Pool) {
        if config.engine == EngineKind::Vllm && config.data_parallel == DataParallel::Auto {
            let seen = metrics_text::ranks(page);
            let is_alone = self.alone.lock().shows(seen, self.clock.now());
            if let Some(ranks) = seen.filter(|ranks| *ranks > 1 || is_alone) {
                (self.saw_ranks)(ranks);
            }
        }
    }

    fn apply(&self, replica: &Arc<Replica>, page: &str, profile: &EngineProfile) {
        let figures = metrics_text::parse(page, profile, replica.identity.rank);
        if Arc::ptr_eq(replica, &self.replica) {
            self.note_absent(&figures.absent(profile));
        }
        let counters = EngineCounters {
            preemptions: figures.get(Figure::Preemptions),
            generated: figures.get(Figure::GeneratedTokens),
            ttft: figures
                .get(Figure::TtftSum)
                .zip(figures.get(Figure::TtftCount))
                .map(|(sum, count)| Mean { sum, count }),
            kv: figures.kv(),
            recent_waiting: replica.engine.smoothed_waiting(figures.get(Figure::Waiting)),
            process_start: figures.get(Figure::ProcessStart),
            ..EngineCounters::default()
        };
        let counters = replica.engine.with_recent(counters, self.clock.now());
        let before = replica.engine.scraped.swap(Some(Arc::new(counters)));
        // A restarted process has an empty cache.
        if before.as_ref().is_some_and(|before| is_another_process(before, &counters)) {
            self.pool.forgets(replica, self.clock.now());
            replica.target.restarted();
            if self.is_restart(counters.process_start) {
                replica
                    .health
                    .warmth
                    .lost(replica.health.vitals.refused_since().unwrap_or_else(|| self.clock.now()));
                replica.apply(Event::Restarted, "its process is another one");
                replica.health.vitals.check_now.notify_one();
            }
        }
        let done = before.as_ref().and_then(|before| before.generated).zip(counters.generated);
        // A long prompt has no token until it is computed, and fills its blocks meanwhile, whoever sent it.
        let filled = replica.target.page().and_then(|page| page.kv_cache_usage).zip(figures.kv_cache_usage());
        if [done, filled].into_iter().flatten().any(|(old, new)| old != new) {
            replica.health.vitals.engine_moved(self.clock.now());
        }
        let page = EnginePage {
            running: figures.get(Figure::Running),
            waiting: figures.get(Figure::Waiting),
            kv_cache_usage: figures.kv_cache_usage(),
            block_tokens: figures.count(Figure::BlockTokens),
            total_blocks: figures.count(Figure::KvBlocks),
            is_caching_off: figures.get(Figure::PrefixCaching) == Some(0.0),
            batch_limit: figures.count(Figure::BatchLimit),
            cache: figures.cache(),
        };
        replica.target.scraped(page, self.clock.now());
        if let Some(EnginePage { waiting: Some(waiting), running, .. }) = replica.target.page() {
            let ours = replica.target.load.view().awaiting;
            replica.engine.saw_queue(waiting, running, ours, self.clock.now());
        }
        self.pool.dispatcher.learn_cache(&replica.target, self.pool.ratio.bytes_per_token());
    }

    fn note_adapters(&self, replica: &Replica, page: &str) {
        if let Some(told) = metrics_text::lora_requests(page, replica.identity.rank) {
            replica.engine.adapters.seen(told.adapters(), told.max);
            self.pool.tells_adapters.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this process took the place of one that has ended.
    fn is_restart(&self, start: Option<f64>) -> bool {
        let facts = &self.replica.engine;
        start.is_some_and(|start| took_over(start, facts.newest_process.load(), facts.process_seen.load()))
    }

    fn note_process(&self, start: Option<f64>) {
        let Some(start) = start else { return };
        let facts = &self.replica.engine;
        facts.newest_process.store(start.max(facts.newest_process.load()));
        facts.process_seen.store(since_epoch(self.clock.wall(self.clock.now())).as_secs_f64());
    }

    /// Says once what the engine does not tell. Pages of several API servers have their figures with the first answer.
    fn note_absent(&self, absent: &[&'static str]) {
        let replica = &self.replica;
        if **replica.engine.absent.load() == absent || !absent.is_empty() && !replica.is_ready() {
            return;
        }
        replica.engine.absent.store(Arc::new(absent.into()));
        let served = replica.served();
        let (pool, name) = (&served.pool, &served.replica);
        if absent.is_empty() {
            tracing::info!(%pool, replica = %name, "engine tells every expected figure");
        } else if absent != [Figure::ProcessStart.as_str()] {
            // Nor have they ever a start, and that is no wrong profile.
            let figures = absent.join(", ");
            tracing::warn!(%pool, replica = %name, figures, "engine does not tell these figures; check pool.engine and [pool.engine_profile]");
        }
    }
}

/// Whether the process started at another time than that of `before`, or, where no page has that, counts less.
fn is_another_process(before: &EngineCounters, now: &EngineCounters) -> bool {
    if let Some((old, new)) = before.process_start.zip(now.process_start) {
        return (old - new).abs() > START_TOLERANCE;
    }
    let fell = |old: Option<f64>, new: Option<f64>| old.zip(new).is_some_and(|(old, new)| new < old);
    fell(before.generated, now.generated)
        || fell(before.ttft.map(|ttft| ttft.count), now.ttft.map(|ttft| ttft.count))
}

/// Whether a process that started at `start` is the successor of others, of which the newest started at `newest` and one was `seen` last:
/// all in seconds since 1970. Behind the address of a Service or a proxy there are several at a time: one that has run beside what was
/// seen there is no restart, nor is an older one.
fn took_over(start: f64, newest: f64, seen: f64) -> bool {
    newest > 0.0 && start > newest + START_TOLERANCE && start + BESIDE > seen
}

/// Since when a page has shown one engine, and been there all the while.
#[derive(Debug, Default)]
struct Alone(Option<Stamp>);

impl Alone {
    /// Whether a page with this number of engines shows all that there are: a process that restarts shows one while its others start.
    fn shows(&mut self, ranks: Option<u32>, now: Stamp) -> bool {
        self.0 = self.0.or(Some(now)).filter(|_| ranks == Some(1));
        self.0.is_some_and(|since| now.since(since) >= ALONE_FOR)
    }
}

const ALONE_FOR: Duration = Duration::from_secs(60);
/// Seconds that the clocks of engine and gateway may be apart; an engine takes longer to load before a Service has it.
const BESIDE: f64 = 30.0;
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Engines close connections that are idle for 5 s.
const MAX_KEPT: Duration = Duration::from_secs(4);
const MIN_INTERVAL_WITHOUT_PAGE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn a_process_that_ran_beside_others_is_no_restart() {
        for (start, newest, seen, expected) in [
            (1000.0, 0.0, 0.0, false),
            (1000.0, 500.0, 999.0, true),
            (1000.0, 500.0, 1025.0, true),
            (1000.0, 500.0, 1100.0, false),
            (400.0, 500.0, 1100.0, false),
        ] {
            assert_eq!(took_over(start, newest, seen), expected, "{start} after {newest}, seen at {seen}");
        }
    }

    #[test]
    fn one_engine_is_believed_after_a_minute_of_pages_with_one() {
        let mut alone = Alone::default();
        for (ranks, second, expected) in [
            (Some(4), 0, false),
            (Some(1), 1, false),
            (Some(1), 60, false),
            (None, 61, false),
            (Some(1), 62, false),
            (Some(1), 121, false),
            (Some(1), 122, true),
            (Some(2), 123, false),
        ] {
            assert_eq!(alone.shows(ranks, at(second)), expected, "{second}");
        }
    }
}
