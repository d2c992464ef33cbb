//! Scrapes one engine's `/metrics`: one request at a time, jittered, with a timeout.
//!
//! A failed scrape makes signals old, never bad: a slow page does not make a replica count as saturated. A refused
//! connect is passed to the prober at once, and whether the engine's counters moved is evidence against a freeze.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::metrics_text;
use super::pool::PoolState;
use super::replica::{Replica, ScrapedCounters};
use super::status::EngineCounters;
use crate::clock::Clock;
use crate::routing::EnginePage;
use crate::upstream::call::{Call, CallError, KeptConnection};
use crate::upstream::connect::Connector;

/// Scrapes one replica.
#[derive(Debug)]
pub(super) struct Scraper {
    pub pool: Arc<PoolState>,
    pub replica: Arc<Replica>,
    pub connector: Connector,
    pub clock: Clock,
}

impl Scraper {
    /// The scrape loop, until the replica is removed.
    pub(super) async fn run(self) {
        let mut kept = KeptConnection::default();
        loop {
            let interval = self.pool.config().scrape_interval;
            if interval > MAX_KEPT {
                kept = KeptConnection::default();
            }
            let has_page = self.scrape(interval, &mut kept).await;
            self.replica.connections.reap();
            let pause = if has_page { interval } else { interval.max(MIN_INTERVAL_WITHOUT_PAGE) };
            // Spreads the scrapes of replicas that started together.
            let pause = pause.mul_f64(0.9 + 0.2 * fastrand::f64());
            tokio::select! {
                () = self.replica.removed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One scrape; `false` when the engine has no `/metrics`.
    async fn scrape(&self, interval: Duration, kept: &mut KeptConnection) -> bool {
        let config = self.pool.config();
        let call = Call {
            endpoint: &self.replica.endpoint,
            key: config.engine_api_key.as_ref(),
            path: "/metrics",
            body: None,
            timeout: interval.max(MIN_TIMEOUT),
        };
        let answer = call.send_on(&self.connector, kept).await;
        if answer.is_ok() && kept.is_fresh() {
            self.connected();
        }
        match answer {
            Ok((StatusCode::OK, page)) => {
                self.apply(&String::from_utf8_lossy(&page));
                true
            }
            Ok(_) => false,
            Err(CallError::Refused) => {
                self.replica.vitals.refused(self.clock.now());
                if self.replica.is_ready() {
                    self.replica.vitals.check_now.notify_one();
                }
                true
            }
            Err(_) => true,
        }
    }

    fn connected(&self) {
        if self.replica.vitals.refused_since().is_some() {
            self.replica.vitals.connected();
            self.replica.vitals.check_now.notify_one();
        }
    }

    fn apply(&self, page: &str) {
        let figures = metrics_text::parse(page);
        let (Some(running), Some(waiting)) = (figures.running, figures.waiting) else { return };
        let replica = &self.replica;
        let now = self.clock.now();
        let before = replica.scraped.load_full();
        let pair = |figure: fn(&ScrapedCounters) -> Option<f64>, new: Option<f64>| {
            before.as_ref().and_then(|before| figure(before)).zip(new)
        };
        // A restarted process has an empty cache.
        if pair(|b| b.process_start, figures.process_start)
            .is_some_and(|(a, b)| (a - b).abs() > START_TOLERANCE)
        {
            self.pool.died(replica, now);
            replica.target.restarted();
        }
        if pair(|b| b.work_done, figures.work_done).is_some_and(|(old, new)| old != new) {
            replica.vitals.engine_moved(now);
        }
        let counters = EngineCounters {
            preemptions: figures.preemptions,
            ttft: figures.ttft_sum.zip(figures.ttft_count),
        };
        let (work_done, process_start) = (figures.work_done, figures.process_start);
        replica.scraped.store(Some(Arc::new(ScrapedCounters { counters, work_done, process_start })));
        let page = EnginePage {
            running,
            waiting,
            kv_cache_usage: figures.kv_cache_usage.unwrap_or(0.0),
            block_tokens: figures.block_tokens,
            total_blocks: figures.total_blocks,
        };
        replica.target.scraped(page, now);
        self.pool.dispatcher.learn_capacity(&replica.target, self.pool.ratio.bytes_per_token());
    }
}

/// Seconds by which two readings of one process' start may differ.
const START_TOLERANCE: f64 = 0.5;
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Engines close connections that are idle for 5 s.
const MAX_KEPT: Duration = Duration::from_secs(4);
const MIN_INTERVAL_WITHOUT_PAGE: Duration = Duration::from_secs(5);
