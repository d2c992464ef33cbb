//! Drives the engine in real time: wakes when a step ends and hands its tokens to their streams.
//!
//! Engine time is exact; delivery has the timer's grain of about a millisecond. Dropping a [`Submission`] cancels its
//! jobs at once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, EngineEvent, EngineStats, JobId, Unservable, Work};
use crate::time::{Clock, Stamp};

/// One engine in real time.
#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<State>,
    wake: Notify,
    clock: Clock,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    streams: HashMap<JobId, mpsc::Sender<EngineEvent>>,
    frozen_at: Option<Stamp>,
    /// Reused buffer.
    events: Vec<EngineEvent>,
}

impl State {
    /// Advances the engine to `now`.
    fn pump(&mut self, now: Stamp) {
        if self.frozen_at.is_some() {
            return;
        }
        let mut events = std::mem::take(&mut self.events);
        self.engine.advance(now, &mut events);
        for event in events.drain(..) {
            let id = event.job;
            let is_last = event.is_last;
            if let Some(stream) = self.streams.get(&id) {
                // The channel has room for every token of its jobs; a stream that has gone cancels by itself.
                let _ = stream.try_send(event);
            }
            if is_last {
                self.streams.remove(&id);
            }
        }
        self.events = events;
    }
}

impl Driver {
    pub(super) fn new(engine: Engine, clock: Clock) -> Arc<Self> {
        let state = State { engine, streams: HashMap::new(), frozen_at: None, events: Vec::new() };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), clock })
    }

    /// Drives the engine until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let next = self.turn();
            let step_end = async {
                match next {
                    Some(stamp) => tokio::time::sleep_until(self.clock.instant(stamp)).await,
                    None => std::future::pending().await,
                }
            };
            // All arms are cancel-safe: a missed wake-up is kept by `Notify`.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.wake.notified() => {}
                () = step_end => {}
            }
        }
    }

    fn turn(&self) -> Option<Stamp> {
        let mut state = self.state.lock();
        state.pump(self.clock.now());
        if state.frozen_at.is_some() { None } else { state.engine.next_event_at() }
    }

    /// Queues the jobs of one request. Their ids are consecutive.
    pub(super) fn submit(self: &Arc<Self>, jobs: Vec<Work>) -> Result<Submission, Unservable> {
        let room: u64 = jobs.iter().map(|job| job.output).sum();
        let (sender, events) = mpsc::channel(usize::try_from(room).unwrap_or(usize::MAX).max(1));
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.pump(now);
        let mut submission = Submission { driver: self.clone(), jobs: Vec::new(), events, submitted: now };
        for job in jobs {
            match state.engine.submit(now, job) {
                Ok(id) => {
                    state.streams.insert(id, sender.clone());
                    submission.jobs.push(id);
                }
                Err(unservable) => {
                    drop(state);
                    return Err(unservable);
                }
            }
        }
        drop(state);
        self.wake.notify_one();
        Ok(submission)
    }

    /// Puts the prompts of jobs into the prefix cache.
    pub(super) fn preload(&self, jobs: &[Work]) {
        let mut state = self.state.lock();
        jobs.iter().for_each(|job| state.engine.preload(job));
    }

    /// Stops engine time.
    pub(super) fn freeze(&self) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.pump(now);
        state.frozen_at.get_or_insert(now);
    }

    /// Resumes where [`Driver::freeze`] stopped.
    pub(super) fn thaw(&self) {
        let mut state = self.state.lock();
        if let Some(since) = state.frozen_at.take() {
            state.engine.postpone(self.clock.now().since(since));
        }
        drop(state);
        self.wake.notify_one();
    }

    pub(super) fn set_slowdown(&self, factor: f64) {
        self.state.lock().engine.set_slowdown(factor);
    }

    /// A new process: every stream's channel closes, cache and counters are empty.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        state.engine.reset();
        state.streams.clear();
        state.frozen_at = None;
        drop(state);
        self.wake.notify_one();
    }

    pub(super) fn stats(&self) -> EngineStats {
        self.state.lock().engine.stats()
    }

    fn cancel(&self, jobs: &[JobId]) {
        let mut state = self.state.lock();
        state.pump(self.clock.now());
        for id in jobs {
            if state.streams.remove(id).is_some() {
                state.engine.cancel(*id);
            }
        }
        drop(state);
        self.wake.notify_one();
    }
}

/// The jobs of one request. Dropping it cancels what is not finished.
#[derive(Debug)]
pub(super) struct Submission {
    driver: Arc<Driver>,
    jobs: Vec<JobId>,
    /// Tokens of all jobs in order. Ends early when the engine died.
    pub(super) events: mpsc::Receiver<EngineEvent>,
    pub(super) submitted: Stamp,
}

impl Submission {
    /// Which of the submitted jobs an event belongs to.
    pub(super) fn place(&self, job: JobId) -> usize {
        self.jobs.iter().position(|id| *id == job).unwrap_or(0)
    }

    /// Delivery time of an event in a stream `factor` times slower than its engine.
    pub(super) fn due(&self, event: &EngineEvent, factor: f64) -> tokio::time::Instant {
        let passed = event.at.since(self.submitted).mul_f64(factor.clamp(0.0, 1e6));
        self.driver.clock.instant(self.submitted.after(passed))
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        self.driver.cancel(&self.jobs);
    }
}
