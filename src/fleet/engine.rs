//! What one replica's engine says of itself: models, adapters, counters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use super::adapters::Adapters;
use super::gpu::GpuReading;
use super::pages::Pages;
use super::status::EngineCounters;
use super::stream_defaults::StreamDefaults;
use crate::clock::Stamp;
use crate::config::ProbeKind;
use crate::record::SeenWait;
use crate::stats::Mean;
use crate::units::{AtomicF64, Tokens};

/// Facts of one engine; written by probes and scrapes.
#[derive(Debug, Default)]
pub struct EngineFacts {
    /// As listed by `/v1/models`.
    pub models: ArcSwap<Vec<EngineModel>>,
    /// It was asked for its models and has no such list.
    pub(super) has_no_list: AtomicBool,
    /// Its list needs a key, of which there is none but the clients'.
    refuses_list: AtomicBool,
    /// Promised models that it does not list, or lists shorter than its peers do.
    pub(super) lacks: ArcSwap<Vec<Arc<str>>>,
    /// Adapters that it was asked to load since it was proved last, whether it did or not.
    pub(super) asked_to_load: Mutex<Vec<Arc<str>>>,
    /// Promised models, of none that it lists, of which it answered one.
    pub(super) proved_any: Mutex<Vec<Arc<str>>>,
    /// The probe that it answers, of those of `auto`.
    pub(super) proved_by: Mutex<Option<ProbeKind>>,
    /// LoRA adapters that it is known to hold.
    pub adapters: Adapters,
    /// What it puts into a stream that asks for nothing; `None` until a probe told.
    pub stream_defaults: ArcSwapOption<StreamDefaults>,
    /// Whether a stream of it that was to be continued had reasoning, since it last came to take requests.
    pub streams_reasoning: AtomicBool,
    /// Whether its chat template heeds `continue_final_message`; `None` until it was asked.
    pub(super) continues_chats: Mutex<Option<bool>>,
    /// Counters of the last scrape.
    pub(super) scraped: ArcSwapOption<EngineCounters>,
    /// Seconds to first tokens of this gateway's requests, probes excluded.
    first_tokens: Mutex<Mean>,
    /// Counters of the last minutes.
    pages: Mutex<Pages>,
    /// When its page was read lately, and which share of our requests without a first token waited there then, oldest first.
    queues: Mutex<Queues>,
    /// Figures that are expected of it and that its page does not have.
    pub(super) absent: ArcSwap<Vec<&'static str>>,
    /// Figures of its GPUs.
    pub(super) gpu: ArcSwapOption<GpuReading>,
    /// Start of the newest process that its page named, and when it named any last: seconds since 1970 as bits; 0 where none did.
    pub(super) newest_process: AtomicF64,
    pub(super) process_seen: AtomicF64,
}

/// A model as an engine lists it.
#[derive(Clone, Debug)]
pub struct EngineModel {
    pub id: Arc<str>,
    /// The whole object as the engine wrote it, for our `/v1/models`.
    pub entry: Box<str>,
    /// Where the value of its `id` stands in `entry`, quotes included.
    pub id_at: std::ops::Range<usize>,
    /// It has no `parent`: it is no adapter.
    pub is_base: bool,
    /// Longest prompt with its answer that it takes, `max_model_len`, where the engine lists that.
    pub max_len: Option<Tokens>,
}

impl EngineFacts {
    /// Takes note of an answer to the question for its models.
    pub(super) fn note_list(&self, has_none: bool, is_refused: bool) {
        self.has_no_list.store(has_none, Ordering::Relaxed);
        self.refuses_list.store(is_refused, Ordering::Relaxed);
    }

    /// Whether it lists its models to clients with a key alone.
    pub fn refuses_list(&self) -> bool {
        self.refuses_list.load(Ordering::Relaxed)
    }

    /// Whether it lists the model.
    pub fn lists(&self, model: &str) -> bool {
        self.models.load().iter().any(|known| &*known.id == model)
    }

    /// Takes note of a page that was read at that time: requests that waited in the engine and that ran there, and ours that had no first
    /// token then.
    pub(super) fn saw_queue(&self, waiting: f64, running: Option<f64>, ours: u64, at: Stamp) {
        let mut queues = self.queues.lock();
        if queues.pages.len() >= QUEUES_KEPT {
            queues.pages.pop_front();
        }
        // One that never shows what runs is not idle for that.
        queues.has_run |= running.is_some_and(|running| running > 0.0);
        let is_idle = queues.has_run && running == Some(0.0) && waiting <= 0.0;
        queues.pages.push_back(QueuePage { at, queued: (waiting / ours.max(1) as f64).min(1.0), is_idle });
    }

    /// What the pages of that time showed of a wait for a first token; a request is as likely in the queue as all without one are. What the
    /// last first tokens took before the engine had them, this one took as well. `None` if neither is known.
    pub fn seen(&self, from: Stamp, to: Stamp) -> Option<SeenWait> {
        let queues = self.queues.lock();
        let pages = queues.pages.iter().rev().take_while(|page| page.at >= from);
        let (mut queued, mut idle, mut all) = (0.0, 0.0, 0.0);
        for page in pages.filter(|page| page.at <= to) {
            all += 1.0;
            queued += page.queued;
            // An engine shows a request when its first step is done.
            idle += f64::from(u8::from(page.is_idle && page.at.since(from) >= FIRST_STEP));
        }
        let on_the_way = self.on_the_way() / to.since(from).as_secs_f64().max(1e-3);
        let outside = (idle / f64::max(all, 1.0)).max(on_the_way).min(1.0);
        let queued = (all > 0.0).then(|| queued / all);
        (all > 0.0 || outside > 0.0).then_some(SeenWait { outside, queued })
    }

    /// Seconds of a first token between gateway and engine, where those are most of it and the engine has no queue.
    fn on_the_way(&self) -> f64 {
        let scraped = self.scraped.load();
        let unqueued = scraped.as_deref().filter(|page| page.recent_waiting.is_none_or(|n| n < 1.0));
        unqueued.and_then(|page| page.way?.outside()).unwrap_or_default()
    }

    /// Waiting requests of this scrape, averaged with those of the scrapes before.
    pub(super) fn smoothed_waiting(&self, now: Option<f64>) -> Option<f64> {
        let before = self.scraped.load_full().and_then(|scraped| scraped.recent_waiting);
        now.map(|now| before.map_or(now, |before| before + OF_A_SCRAPE * (now - before)))
    }

    /// A request of this gateway had its first token so long after it was sent.
    pub(super) fn first_token(&self, waited: Duration) {
        self.first_tokens.lock().add(waited.as_secs_f64());
    }

    /// Adds what the counters did in the last seconds, or in the minute before.
    pub(super) fn with_recent(&self, now: EngineCounters, at: Stamp) -> EngineCounters {
        let ours = *self.first_tokens.lock();
        self.pages.lock().read(now, ours, at)
    }
}

/// Weight of one scrape in what waits on average.
const OF_A_SCRAPE: f64 = 0.2;
/// What the last pages showed of requests without a first token.
#[derive(Debug, Default)]
struct Queues {
    pages: VecDeque<QueuePage>,
    /// Whether one showed a request that runs.
    has_run: bool,
}

#[derive(Clone, Copy, Debug)]
struct QueuePage {
    at: Stamp,
    /// Share of our requests without a first token that waited in the engine.
    queued: f64,
    /// Nothing waited or ran there.
    is_idle: bool,
}

/// Longer than a step of an engine that computes long prompts in pieces.
const FIRST_STEP: Duration = Duration::from_secs(2);
/// Pages that are kept: of a minute, where they are read once a second.
const QUEUES_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;
    use crate::fleet::status::Way;

    fn shares(queued: f64, outside: f64) -> Option<SeenWait> {
        Some(SeenWait { outside, queued: Some(queued) })
    }

    #[test]
    fn what_first_tokens_take_before_their_engine_has_them_is_no_work_of_it() {
        let facts = EngineFacts::default();
        let scraped = |way: (f64, f64), waiting| {
            let (seen, in_engine) = way;
            let way = Some(Way { span: Duration::from_secs(15), seen, counted: in_engine, in_engine });
            let page = EngineCounters { way, recent_waiting: Some(waiting), ..EngineCounters::default() };
            facts.scraped.store(Some(Arc::new(page)));
            facts.seen(at(100), at(102))
        };
        assert_eq!(facts.seen(at(100), at(102)), None);
        assert_eq!(scraped((1.6, 0.1), 0.0), Some(SeenWait { outside: 0.75, queued: None }));
        assert_eq!(scraped((14.0, 0.1), 0.0), Some(SeenWait { outside: 1.0, queued: None }));
        assert_eq!(scraped((1.6, 1.0), 0.0), None, "most of it is the engine's");
        assert_eq!(scraped((0.04, 0.001), 0.0), None, "none notices it");
        assert_eq!(scraped((1.6, 0.1), 3.0), None, "it has a queue");
        facts.saw_queue(1.0, Some(2.0), 2, at(101));
        assert_eq!(scraped((1.6, 0.1), 0.0), shares(0.5, 0.75));
    }

    #[test]
    fn the_share_of_a_wait_in_the_engine_s_queue_is_known_by_the_pages_of_that_time() {
        let facts = EngineFacts::default();
        for second in 0..100 {
            facts.saw_queue(if second % 4 == 0 { 3.0 } else { 0.0 }, Some(2.0), second % 8, at(second));
        }
        // Of four that have no first token three wait, and others' where there are none of ours.
        assert_eq!(facts.seen(at(60), at(60)), shares(0.75, 0.0));
        assert_eq!(facts.seen(at(64), at(64)), shares(1.0, 0.0));
        assert_eq!(facts.seen(at(60), at(67)), shares(1.75 / 8.0, 0.0));
        assert_eq!((facts.seen(at(0), at(20)), facts.seen(at(100), at(101))), (None, None));
    }

    #[test]
    fn a_request_that_an_idle_engine_does_not_have_is_before_it() {
        let facts = EngineFacts::default();
        let idle =
            |from: u64, to: u64| (from..to).for_each(|at_| facts.saw_queue(0.0, Some(0.0), 1, at(at_)));
        idle(0, 10);
        assert_eq!(facts.seen(at(0), at(9)), shares(0.0, 0.0), "it has never shown what runs");
        facts.saw_queue(0.0, Some(1.0), 1, at(10));
        idle(11, 21);
        assert_eq!(facts.seen(at(11), at(20)), shares(0.0, 0.8), "all but those of its first step");
    }
}
