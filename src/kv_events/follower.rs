//! One pool: keeps a source for each replica, and writes what they and the answers bring into the prefix index.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::PromptOutcome;
use super::engine_time::EngineTime;
use super::ledger::{Ledger, Look};
use super::listen::{Topics, listen};
use super::numbers::Numbers;
use super::source::{Signal, Source, What};
use crate::clock::{Stamp, ticks};
use crate::cluster::Deps;
use crate::config::KvEvents;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::reports::PromptReport;

/// Follows the engines of one pool.
pub(super) struct Follower {
    pool: Arc<PoolState>,
    config: KvEvents,
    deps: Arc<Deps>,
    ledger: Ledger,
    reports: Receiver<PromptReport>,
    sender: mpsc::Sender<Signal>,
    topics: Arc<Topics>,
    sources: HashMap<usize, Following>,
    next: u64,
    /// Answered prompts whose blocks are looked for.
    open: VecDeque<Open>,
    stopped: CancellationToken,
}

/// An answered prompt whose blocks are looked for.
struct Open {
    report: PromptReport,
    answered: Stamp,
    /// Looks so far, and when the next one is due.
    looks: usize,
    due: Stamp,
}

struct Following {
    /// How often it had become ready: its process may be another one since.
    life: u64,
    source: u64,
    replica: Arc<Replica>,
    _stop: DropGuard,
}

impl Follower {
    /// Follows until `stopped`; then the pool's index is left to itself.
    pub(super) async fn run(
        pool: Arc<PoolState>,
        config: KvEvents,
        deps: Arc<Deps>,
        stopped: CancellationToken,
    ) {
        let (reports, receiver) = sync_channel(MAX_REPORTS);
        let reports = Arc::new(reports);
        pool.dispatcher.index.exact.forget();
        pool.dispatcher.reports.store(Some(Arc::clone(&reports)));
        let (sender, mut signals) = mpsc::channel(MAX_SIGNALS);
        let topics = Arc::<Topics>::default();
        if let Some(at) = config.listen {
            let listening = listen(at, Arc::clone(&topics), deps.background.tasks.clone(), stopped.clone());
            deps.background.spawn_until(&stopped, listening);
        }
        let mut follower = Self {
            pool,
            config,
            deps,
            ledger: Ledger::default(),
            reports: receiver,
            sender,
            topics,
            sources: HashMap::new(),
            next: 0,
            open: VecDeque::new(),
            stopped,
        };
        let mut ticks = ticks(TICK);
        let (mut looked, ended) = (Stamp::default(), follower.stopped.clone());
        loop {
            // Every arm is cancel-safe: a signal not taken stays in the channel.
            let signal = tokio::select! {
                () = ended.cancelled() => break,
                signal = signals.recv() => signal,
                _ = ticks.tick() => None,
            };
            let now = follower.deps.gateway.clock.now();
            if let Some(signal) = signal {
                follower.take(signal);
                continue;
            }
            if looked == Stamp::default() || now.since(looked) >= LOOK_EVERY {
                looked = now;
                follower.look();
            }
            follower.digest(now);
        }
        follower.end(&reports);
    }

    /// Keeps a source for each replica.
    fn look(&mut self) {
        let replicas = self.pool.replicas();
        let is_there =
            |known: &Following| replicas.iter().any(|replica| Arc::ptr_eq(replica, &known.replica));
        let gone: Vec<usize> =
            self.sources.iter().filter(|(_, known)| !is_there(known)).map(|(slot, _)| *slot).collect();
        gone.into_iter().for_each(|slot| self.leave(slot));
        for replica in replicas.iter() {
            let slot = replica.slot();
            let life = replica.life().number;
            match self.sources.get_mut(&slot) {
                None => self.follow(replica),
                Some(known) if known.life != life => {
                    // Of what was not ready before, nothing was lost.
                    if std::mem::replace(&mut known.life, life) > 0 {
                        self.ledger.doubt(slot);
                    }
                }
                Some(_) => {}
            }
            if let Some(blocks) = replica.target.page().and_then(|page| page.total_blocks) {
                self.ledger.set_gpu_capacity(slot, blocks);
            }
            let (in_gpu, other) = self.ledger.counts(slot);
            let dispatcher = &self.pool.dispatcher;
            dispatcher.index.exact.set_in_tiers(slot, other as u64);
            dispatcher.learn_capacity(&replica.target, self.pool.ratio.bytes_per_token());
            let (families, name) = (self.families(), replica.name());
            families.blocks.set([&self.pool.name, &name, "gpu"], Some(in_gpu as f64));
            families.blocks.set([&self.pool.name, &name, "other"], Some(other as f64));
        }
    }

    fn follow(&mut self, replica: &Arc<Replica>) {
        self.next += 1;
        let stopped = self.stopped.child_token();
        let source = Source {
            id: self.next,
            pool: Arc::clone(&self.pool),
            replica: Arc::clone(replica),
            config: self.config.clone(),
            deps: Arc::clone(&self.deps),
            signals: self.sender.clone(),
            topics: Arc::clone(&self.topics),
            numbers: Numbers::default(),
            time: EngineTime::default(),
        };
        self.deps.background.spawn_until(&stopped, source.run());
        let (life, replica, _stop) = (replica.life().number, Arc::clone(replica), stopped.drop_guard());
        self.sources.insert(replica.slot(), Following { life, source: self.next, replica, _stop });
    }

    fn leave(&mut self, slot: usize) {
        let Some(known) = self.sources.remove(&slot) else { return };
        self.ledger.close(slot, &self.pool.dispatcher.index);
        let (families, name) = (self.families(), known.replica.name());
        let labels = [&*self.pool.name, &*name];
        families.connected.set(labels, None);
        families.complete.set(labels, None);
        for medium in ["gpu", "other"] {
            families.blocks.set([labels[0], labels[1], medium], None);
        }
    }

    fn take(&mut self, signal: Signal) {
        let Signal { slot, source, what } = signal;
        if self.sources.get(&slot).is_none_or(|known| known.source != source) {
            return;
        }
        let index = &self.pool.dispatcher.index;
        match what {
            What::Connected => self.ledger.open(slot, index),
            What::Events(events, at) => {
                for event in &events {
                    self.ledger.take(slot, event, at, index);
                }
            }
            What::Lost => self.ledger.doubt(slot),
            What::Restarted => self.ledger.emptied(slot, index),
            What::Disconnected => index.exact.follow(slot, false),
        }
    }

    /// Takes in what was answered, and looks for the blocks of that.
    fn digest(&mut self, now: Stamp) {
        let index = &self.pool.dispatcher.index;
        for report in self.reports.try_iter().take(MAX_REPORTS) {
            if self.sources.contains_key(&report.slot) {
                self.ledger.answered(&report, index);
                self.open.push_back(Open {
                    report,
                    answered: now,
                    looks: 0,
                    due: now.after(FIRST_LOOK_AFTER),
                });
            }
        }
        for _ in 0..self.open.len() {
            let Some(mut open) = self.open.pop_front() else { break };
            if now < open.due {
                self.open.push_back(open);
                continue;
            }
            let look = Look { answered: open.answered, is_last: open.looks == PAUSES.len() };
            let outcome = self.ledger.join(&open.report, look, index);
            // What it stored last may come a moment after its answer.
            let is_open = matches!(outcome, PromptOutcome::Unknown | PromptOutcome::Ambiguous);
            if let Some(wait) = PAUSES.get(open.looks).filter(|_| is_open && self.open.len() < MAX_OPEN) {
                (open.looks, open.due) = (open.looks + 1, now.after(*wait));
                self.open.push_back(open);
                continue;
            }
            if let Some(known) = self.sources.get(&open.report.slot) {
                let labels = [&*self.pool.name, &*known.replica.name(), outcome.as_str()];
                self.families().prompts.inc_by(labels, 1);
            }
        }
    }

    fn end(&mut self, reports: &Arc<crate::routing::reports::Reports>) {
        let slots: Vec<usize> = self.sources.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.leave(slot));
        let own = self.pool.dispatcher.reports.load();
        if own.as_ref().is_some_and(|known| Arc::ptr_eq(known, reports)) {
            self.pool.dispatcher.reports.store(None);
        }
    }

    fn families(&self) -> &crate::observe::metrics::KvEvents {
        &self.deps.gateway.observer.metrics.families.kv_events
    }
}

/// Between two looks at what was answered.
const TICK: Duration = Duration::from_millis(5);
/// Between two looks at which replicas there are.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Prompts that wait for a look: what does not fit is estimated.
const MAX_REPORTS: usize = 4096;
/// Prompts whose blocks are looked for.
const MAX_OPEN: usize = 1024;
/// Events follow answers by a moment.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(10);
/// Between two looks for the blocks of one.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(25), Duration::from_millis(100), Duration::from_millis(400)];
/// Batches that wait; then the publisher does.
const MAX_SIGNALS: usize = 256;
