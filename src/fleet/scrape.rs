//! Scrapes one engine's `/metrics`: one request at a time, jittered, with a timeout.
//!
//! A failed scrape makes signals old, never bad: a slow page does not make a replica count as saturated. A refused
//! connect is passed to the prober at once.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::metrics_text;
use super::pool::PoolState;
use super::replica::{Replica, ScrapedCounters};
use super::status::EngineCounters;
use crate::clock::Clock;
use crate::routing::EnginePage;
use crate::upstream::call::{Call, CallError};
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
        loop {
            let interval = self.pool.config().scrape_interval;
            let has_page = self.scrape(interval).await;
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
    async fn scrape(&self, interval: Duration) -> bool {
        let config = self.pool.config();
        let call = Call {
            endpoint: &self.replica.endpoint,
            key: config.engine_api_key.as_ref(),
            path: "/metrics",
            body: None,
            timeout: interval.max(MIN_TIMEOUT),
        };
        match call.send(&self.connector).await {
            Ok((StatusCode::OK, page)) => {
                self.apply(&String::from_utf8_lossy(&page));
                self.connected();
                true
            }
            Ok(_) => {
                self.connected();
                false
            }
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
            self.replica.vitals.check_now.notify_one();
        }
    }

    fn apply(&self, page: &str) {
        let figures = metrics_text::parse(page);
        let (Some(running), Some(waiting)) = (figures.running, figures.waiting) else { return };
        let replica = &self.replica;
        let before = replica.scraped.load().as_ref().and_then(|scraped| scraped.process_start);
        // A restarted process has an empty cache.
        if before.zip(figures.process_start).is_some_and(|(old, new)| (old - new).abs() > START_TOLERANCE) {
            self.pool.dispatcher.forget(replica.slot());
            replica.target.restarted();
        }
        let counters = EngineCounters {
            preemptions: figures.preemptions,
            ttft: figures.ttft_sum.zip(figures.ttft_count),
        };
        replica
            .scraped
            .store(Some(Arc::new(ScrapedCounters { counters, process_start: figures.process_start })));
        let page = EnginePage {
            running,
            waiting,
            kv_cache_usage: figures.kv_cache_usage.unwrap_or(0.0),
            block_tokens: figures.block_tokens,
            total_blocks: figures.total_blocks,
        };
        replica.target.scraped(page, self.clock.now());
        self.pool.dispatcher.learn_capacity(&replica.target, self.pool.ratio.bytes_per_token());
    }
}

/// Seconds by which two readings of one process' start may differ.
const START_TOLERANCE: f64 = 0.5;
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const MIN_INTERVAL_WITHOUT_PAGE: Duration = Duration::from_secs(5);
