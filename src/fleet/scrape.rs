//! Scrapes one engine's `/metrics`, gently: one at a time, jittered, bounded.
//!
//! A dead scrape makes signals old, never bad: a replica is not taken for saturated because its page is slow.
//! What a refused connect tells is worth more than the page, so it goes to the prober at once.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::call::{Call, CallError};
use super::metrics_text;
use super::pool::PoolState;
use super::replica::{Counted, Replica};
use super::status::EngineCounters;
use crate::clock::Clock;
use crate::routing::EnginePage;
use crate::upstream::connect::Connector;

/// Scrapes one replica until it is removed.
#[derive(Debug)]
pub struct Scraper {
    /// The replica's pool.
    pub pool: Arc<PoolState>,
    /// The replica.
    pub replica: Arc<Replica>,
    /// Opens connections.
    pub connector: Connector,
    /// Time.
    pub clock: Clock,
}

impl Scraper {
    /// The replica's scrape loop.
    pub async fn run(self) {
        loop {
            let interval = self.pool.config().scrape_interval;
            let has_page = self.scrape(interval).await;
            self.replica.connections.reap();
            let pause = if has_page { interval } else { interval.max(WITHOUT_PAGE) };
            // Replicas started together must not be scraped together.
            let pause = pause.mul_f64(0.9 + 0.2 * fastrand::f64());
            tokio::select! {
                () = self.replica.removed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One scrape; `false` when the engine has no such page.
    async fn scrape(&self, interval: Duration) -> bool {
        let config = self.pool.config();
        let call = Call {
            endpoint: &self.replica.endpoint,
            key: config.engine_api_key.as_ref(),
            path: "/metrics",
            body: None,
            timeout: interval.max(SHORTEST_TIMEOUT),
        };
        match call.send(&self.connector).await {
            Ok((StatusCode::OK, page)) => {
                self.take(&String::from_utf8_lossy(&page));
                self.connects();
                true
            }
            Ok(_) => {
                self.connects();
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

    fn connects(&self) {
        if self.replica.vitals.refused_since().is_some() {
            self.replica.vitals.check_now.notify_one();
        }
    }

    fn take(&self, page: &str) {
        let figures = metrics_text::parse(page);
        let (Some(running), Some(waiting)) = (figures.running, figures.waiting) else { return };
        let replica = &self.replica;
        let before = replica.counted.load().as_ref().and_then(|counted| counted.process_start);
        // Another process has an empty cache.
        if before.zip(figures.process_start).is_some_and(|(old, new)| (old - new).abs() > SAME_START) {
            self.pool.dispatcher.forget(replica.slot());
            replica.target.restarted();
        }
        let counters = EngineCounters {
            preemptions: figures.preemptions,
            ttft: figures.ttft_sum.zip(figures.ttft_count),
        };
        replica.counted.store(Some(Arc::new(Counted { counters, process_start: figures.process_start })));
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
const SAME_START: f64 = 0.5;
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);
const WITHOUT_PAGE: Duration = Duration::from_secs(5);
