//! The task around the rollouts: takes observations, walks the steps, sets the shares that the data path reads.
//!
//! It owns every rollout; first tokens, records and commands come over bounded channels. A verdict is reached within a quarter of a
//! second of its evidence, and the share is an atomic that the next request reads.

mod feed;
mod processes;
mod rollout;
mod shared;
mod spread;
mod state;
mod webhook;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::feed::{ActError, Feed};
use self::feed::{Command, Observation, Watched};
use self::rollout::Rollout;
use self::state::{Others, Saved, StateFiles};
use self::webhook::Webhook;
use crate::api::canaries::Canary;
use crate::clock::{Clock, Stamp, since_epoch, ticks};
use crate::cluster::Topics;
use crate::config::Config;
use crate::fleet::status::FleetView;
use crate::gateway::table::CarriedOver;
use crate::observe::Surroundings;
use crate::observe::metrics::Metrics;
use crate::rollout::plan::RolloutState;
use crate::state_file::{OVERDUE, Writes};

/// Starts the rollouts of the running configuration: from here on canaries get their shares.
///
/// # Errors
/// When the TLS of webhooks cannot be set up.
pub fn start(
    mut configs: watch::Receiver<Arc<Config>>,
    around: &Surroundings,
    metrics: &Arc<Metrics>,
    data_path: CarriedOver,
    topics: Option<Arc<Topics>>,
) -> Result<Feed, rustls::Error> {
    let (observations, seen) = mpsc::channel(MAX_QUEUED);
    let (commands, asked) = mpsc::channel(MAX_COMMANDS);
    let feed = Feed {
        observations,
        commands,
        watched: Arc::default(),
        board: Arc::default(),
        metrics: Arc::clone(metrics),
    };
    let clock = around.clock;
    let mut service = RolloutService {
        rollouts: Vec::new(),
        watched: Arc::clone(&feed.watched),
        board: Arc::clone(&feed.board),
        data_path,
        fleet: around.fleet.clone(),
        metrics: Arc::clone(metrics),
        webhook: Webhook::start(around, metrics)?,
        gone: HashMap::new(),
        writes: Writes::default(),
        unanswered: Vec::new(),
        settles_until: topics.as_ref().map(|_| clock.now().after(SETTLES_WITHIN)),
        topics,
        clock,
        began: clock.now(),
        last: clock.now(),
    };
    service.take(&Arc::clone(&configs.borrow_and_update()));
    around.background.spawn(service.run(seen, asked, configs));
    Ok(feed)
}

/// Writes the state, within `limit`, and ends the task.
pub async fn end(feed: &Feed, limit: Duration) {
    let (done, saved) = oneshot::channel();
    if feed.commands.try_send(Command::End(done)).is_ok() {
        // Past the limit some seconds of soak are lost.
        let _ = tokio::time::timeout(limit, saved).await;
    }
}

/// Where the result of an action is awaited.
type Answer = oneshot::Sender<Result<(), ActError>>;

/// The task that owns the rollouts.
struct RolloutService {
    rollouts: Vec<Rollout>,
    watched: Arc<ArcSwap<Vec<Watched>>>,
    board: Arc<Mutex<Vec<Canary>>>,
    data_path: CarriedOver,
    fleet: FleetView,
    metrics: Arc<Metrics>,
    webhook: Webhook,
    /// Of routes whose section was taken out: a verdict holds when it comes back.
    gone: HashMap<Arc<str>, Saved>,
    writes: Writes<Others>,
    /// What was done by hand on these routes, until it is written.
    unanswered: Vec<(Arc<str>, Answer)>,
    /// Where there are other gateways.
    topics: Option<Arc<Topics>>,
    /// Until then canaries that are judged get nothing, unless the other gateways are heard of before: they may know better.
    settles_until: Option<Stamp>,
    clock: Clock,
    began: Stamp,
    last: Stamp,
}

impl RolloutService {
    async fn run(
        mut self,
        mut seen: mpsc::Receiver<Observation>,
        mut asked: mpsc::Receiver<Command>,
        mut configs: watch::Receiver<Arc<Config>>,
    ) {
        let mut tick = ticks(TICK);
        let mut ticks = 0_u32;
        loop {
            // Every arm is cancel-safe: a command, a configuration or a tick is taken whole or not at all.
            let command = tokio::select! {
                command = asked.recv() => command,
                // Commands outlive configurations: a gateway that ends changes no more.
                Ok(()) = configs.changed() => {
                    // Arms are those of the canaries before: another revision must not be judged by them.
                    self.drain(&mut seen);
                    self.take(&Arc::clone(&configs.borrow_and_update()));
                    continue;
                }
                _ = tick.tick() => {
                    ticks = ticks.wrapping_add(1);
                    // Observations wait for the tick: a receiver that always waits would be woken by every one, at the
                    // cost of the request that it comes from.
                    self.drain(&mut seen);
                    self.advance();
                    self.save(ticks.is_multiple_of(TICKS_PER_SAVE));
                    self.answer();
                    continue;
                }
                Some((path, written)) = self.writes.ended() => {
                    self.written(&path, written.map_err(|error| error.to_string()));
                    self.save(false);
                    self.answer();
                    continue;
                }
            };
            match command {
                Some(Command::Act { route, action, done }) => {
                    let result = self.act(&route, action);
                    self.save(false);
                    if result.is_ok() {
                        self.unanswered.push((route, done));
                        self.answer();
                    } else {
                        // Nobody may be waiting any more.
                        let _ = done.send(result);
                    }
                }
                Some(Command::Judge) if self.clock.now().since(self.last) < MIN_TICK => {}
                Some(Command::Judge) => {
                    self.drain(&mut seen);
                    self.advance();
                    self.save(false);
                }
                Some(Command::End(done)) => {
                    self.save_all().await;
                    let _ = done.send(());
                    return;
                }
                None => return,
            }
        }
    }

    /// Takes the canaries of a configuration. Those of the same revision go on; their bounds and steps are the new ones.
    fn take(&mut self, config: &Config) {
        let now = self.seconds(self.clock.now());
        let mut old = std::mem::take(&mut self.rollouts);
        let mut files = StateFiles::default();
        for route in &config.routes {
            let Some(canary) = &route.canary else { continue };
            let kept = old.iter().find(|rollout| rollout.route == route.name).map(Rollout::save);
            let kept = kept.or_else(|| self.gone.remove(&route.name));
            let mut read = || read(&mut files, canary.state.as_deref()?, &route.name);
            let (saved, is_lost) =
                kept.map_or_else(|| read().unwrap_or_default(), |kept| (Some(kept), false));
            if let Some(mut rollout) = Rollout::new(config, route, canary, saved) {
                let is_gone = |name: &str| config.routes.iter().all(|route| *route.name != *name);
                let kept = files.others().map(|(name, saved)| (&**name, saved.clone()));
                let gone = self.gone.iter().map(|(name, saved)| (&**name, saved.clone()));
                let former = old.iter().map(|old| (&*old.route, old.save())).chain(gone).chain(kept);
                former.filter(|(name, _)| is_gone(name)).for_each(|(_, saved)| rollout.inherit(&saved));
                if is_lost {
                    rollout.waits();
                }
                if let Some(at) = old.iter().position(|old| old.is_same(&rollout)) {
                    // Of tests that the new configuration has no more nothing is left.
                    self.show(&old[at], false);
                    rollout.go_on(now, old.swap_remove(at));
                } else {
                    rollout.begins(now);
                }
                self.rollouts.push(rollout);
            }
        }
        for gone in &old {
            self.show(gone, false);
            if self.gone.len() < MAX_GONE && self.rollouts.iter().all(|rollout| rollout.route != gone.route) {
                self.gone.insert(Arc::clone(&gone.route), gone.save());
            }
        }
        let is_known = |route: &str, pool: &str| {
            self.rollouts.iter().any(|rollout| *rollout.route == *route && *rollout.pool == *pool)
        };
        self.data_path.canaries.retain(is_known);
        self.data_path.shadows.by_canary.retain(is_known);
        let fleet = self.fleet.statuses();
        self.rollouts.iter_mut().for_each(|rollout| rollout.look_for_earlier(&fleet));
        self.publish();
    }

    fn act(&mut self, route: &str, action: crate::rollout::plan::Action) -> Result<(), ActError> {
        let rollout = self.rollouts.iter_mut().find(|rollout| *rollout.route == *route);
        let rollout = rollout.ok_or_else(|| ActError::NoCanary(route.to_owned()))?;
        let before = rollout.plan.state;
        let now = milliseconds(self.clock.wall(self.clock.now()));
        rollout.act(action, now).map_err(ActError::State)?;
        if rollout.plan.state != before && !rollout.is_judged() {
            deal(&self.data_path, rollout, rollout.shares());
            rollout.note_processes(&self.fleet.statuses());
            let report = rollout.write_report(self.clock.wall(self.clock.now()));
            if let Some(endpoint) = &rollout.canary.webhook {
                self.webhook.send(endpoint, report.to_string());
            }
        }
        tracing::info!(route, revision = %rollout.revision, state = rollout.plan.state.as_str(), "canary changed by hand");
        self.publish();
        Ok(())
    }

    fn drain(&mut self, seen: &mut mpsc::Receiver<Observation>) {
        let now = self.seconds(self.clock.now());
        for _ in 0..MAX_QUEUED {
            let Ok(observation) = seen.try_recv() else { return };
            let arrived = self.seconds(observation.arrived);
            if let Some(rollout) = self.rollouts.iter_mut().find(|r| r.route == observation.route) {
                rollout.observe(now, arrived, &observation);
            }
        }
    }

    /// As rollouts count them.
    fn seconds(&self, at: Stamp) -> f64 {
        at.since(self.began).as_secs_f64()
    }

    fn advance(&mut self) {
        let now = self.clock.now();
        let passed = now.since(self.last).min(MAX_PASSED);
        self.last = now;
        if self.rollouts.is_empty() {
            return;
        }
        self.hear(now);
        let is_any_judged = self.rollouts.iter().any(Rollout::is_judged);
        let fleet = if is_any_judged { self.fleet.statuses() } else { Vec::new() };
        let seconds = self.seconds(now);
        let wall = milliseconds(self.clock.wall(now));
        for rollout in &mut self.rollouts {
            let (before, step) = (rollout.plan.state, rollout.plan.step);
            let breach = rollout.advance(seconds, wall, passed, &fleet);
            // One that is paused already is taken the traffic and stays paused.
            if rollout.plan.state == before && breach.is_none() {
                if rollout.plan.step != step {
                    let (route, revision, step) = (&rollout.route, &rollout.revision, rollout.plan.step + 1);
                    let weight = rollout.plan.share(&rollout.canary) / 100;
                    tracing::info!(%route, %revision, step, weight, "canary began its next step");
                }
                continue;
            }
            // First the traffic, then the talk.
            deal(&self.data_path, rollout, rollout.shares());
            rollout.note_processes(&fleet);
            let report = rollout.write_report(self.clock.wall(now));
            let (route, revision, state) = (&rollout.route, &rollout.revision, rollout.plan.state.as_str());
            if let Some(reason) = &breach {
                tracing::error!(%route, %revision, state, reason, %report, "canary broke a bound");
                let test = reason.split(':').next().unwrap_or_default();
                self.metrics.families.canaries.breaches.inc([route, &rollout.pool, revision, test]);
            } else {
                let reason = &rollout.plan.reason;
                tracing::warn!(%route, %revision, state, reason, "canary ended its step");
            }
            if let Some(endpoint) = &rollout.canary.webhook {
                self.webhook.send(endpoint, report.to_string());
            }
        }
        self.publish();
    }

    /// Takes over what other gateways know, and lets canaries begin once that is clear.
    fn hear(&mut self, now: Stamp) {
        let Some(topics) = &self.topics else { return };
        let mut is_any_heard = false;
        let seconds = self.seconds(now);
        for rollout in &mut self.rollouts {
            let others = topics.others(&topic(&rollout.route), now);
            is_any_heard |= others.is_some();
            let before = rollout.plan.state;
            if rollout.hear(seconds, others.as_deref()) {
                if rollout.plan.state != before && !rollout.is_judged() {
                    rollout.note_processes(&self.fleet.statuses());
                    // The webhook is the one's who found it.
                    rollout.write_report(self.clock.wall(now));
                }
                let (route, revision, state) =
                    (&rollout.route, &rollout.revision, rollout.plan.state.as_str());
                let (step, reason) = (rollout.plan.step + 1, &rollout.plan.reason);
                tracing::warn!(%route, %revision, state, step, reason, "canary follows another gateway's verdict");
            }
        }
        if is_any_heard || self.settles_until.is_some_and(|until| now >= until) {
            self.settles_until = None;
        }
    }

    /// Shares, watched routes, board and gauges as the rollouts are now.
    fn publish(&self) {
        for rollout in &self.rollouts {
            let waits = self.settles_until.is_some() && rollout.is_judged();
            let shares = if waits { [0; 2] } else { rollout.shares() };
            deal(&self.data_path, rollout, shares);
            self.show(rollout, true);
        }
        if let Some(topics) = &self.topics {
            topics.retain(|name| self.rollouts.iter().any(|rollout| topic(&rollout.route) == name));
            self.rollouts.iter().for_each(|rollout| topics.show(&topic(&rollout.route), rollout.shown()));
        }
        let watched: Vec<Watched> = self
            .rollouts
            .iter()
            .filter(|rollout| rollout.is_judged())
            .map(|rollout| Watched {
                route: Arc::clone(&rollout.route),
                pool: Arc::clone(&rollout.pool),
                revision: Arc::clone(&rollout.revision),
            })
            .collect();
        self.watched.store(watched.into());
        *self.board.lock() = self.rollouts.iter().map(Rollout::view).collect();
    }

    /// Sets the gauges of a rollout, or removes them where it is configured no more.
    fn show(&self, rollout: &Rollout, is_configured: bool) {
        let families = &self.metrics.families.canaries;
        let labels: [&str; 3] = [&rollout.route, &rollout.pool, &rollout.revision];
        let [route, pool, revision] = labels;
        let value = |value: f64| is_configured.then_some(value);
        for state in RolloutState::ALL {
            let is_it = state == rollout.plan.state;
            families.state.set([route, pool, revision, state.as_str()], value(f64::from(u8::from(is_it))));
        }
        let [share, shadow_share] = rollout.shares().map(|share| f64::from(share) / 10_000.0);
        families.share.set(labels, value(share));
        families.shadow_share.set(labels, value(shadow_share));
        for test in rollout.judge.evidence() {
            families.evidence.set([route, pool, revision, &test.test], value(test.share));
        }
    }

    /// Begins to write what changed; with `all`, the soaks and the evidence as well, and again what could not be written. A file that is
    /// being written comes after that.
    fn save(&mut self, all: bool) {
        let mut due: BTreeMap<PathBuf, Vec<(Arc<str>, Saved)>> = BTreeMap::new();
        for rollout in &mut self.rollouts {
            let Some(path) = &rollout.canary.state else { continue };
            if self.writes.is_running(path) {
                continue;
            }
            let is_wanted = rollout.is_judged() || rollout.unwritten.is_some();
            if std::mem::take(&mut rollout.is_dirty) || (all && is_wanted) {
                rollout.is_being_written = true;
                due.entry(path.clone()).or_default().push((Arc::clone(&rollout.route), rollout.save()));
            }
        }
        for (path, states) in due {
            self.writes.begin(path, self.clock.now(), move |path| state::write(path, states));
        }
    }

    /// Takes the end of a write of a file.
    fn written(&mut self, path: &Path, written: Result<Others, String>) {
        let is_broken = written == Ok(Others::Lost);
        let error = written.err();
        for rollout in
            self.rollouts.iter_mut().filter(|rollout| rollout.canary.state.as_deref() == Some(path))
        {
            // What a broken file had of the others is known here.
            rollout.is_dirty |= is_broken;
            if std::mem::take(&mut rollout.is_being_written) {
                rollout.unwritten(error.clone());
            }
        }
    }

    /// Writes everything, however long that takes.
    async fn save_all(&mut self) {
        for is_last in [false, true] {
            while let Some((path, written)) = self.writes.ended().await {
                self.written(&path, written.map_err(|error| error.to_string()));
            }
            if !is_last {
                self.save(true);
            }
        }
        self.answer();
    }

    /// Answers for what was done by hand, as soon as it is known whether that outlasts a restart.
    fn answer(&mut self) {
        let now = self.clock.now();
        for rollout in &mut self.rollouts {
            let is_overdue =
                rollout.canary.state.as_ref().is_some_and(|path| self.writes.is_overdue(path, now));
            if is_overdue && rollout.unwritten.is_none() {
                rollout.unwritten(Some(OVERDUE.to_owned()));
            }
        }
        for (route, done) in std::mem::take(&mut self.unanswered) {
            match self.kept(&route, now) {
                None => self.unanswered.push((route, done)),
                // Nobody may be waiting any more.
                Some(result) => drop(done.send(result)),
            }
        }
    }

    /// Whether what was done by hand outlasts a restart; `None` while that is not known.
    fn kept(&self, route: &str, now: Stamp) -> Option<Result<(), ActError>> {
        let rollout = self.rollouts.iter().find(|rollout| *rollout.route == *route);
        let Some((rollout, path)) =
            rollout.and_then(|rollout| Some((rollout, rollout.canary.state.as_ref()?)))
        else {
            return Some(Ok(()));
        };
        let is_being_written = rollout.is_dirty || rollout.is_being_written;
        if is_being_written && !self.writes.is_overdue(path, now) {
            return None;
        }
        let state = rollout.plan.state.as_str();
        let failed = |error: &String| ActError::NotKept {
            state,
            path: path.display().to_string(),
            error: error.clone(),
        };
        Some(rollout.unwritten.as_ref().map_or(Ok(()), |error| Err(failed(error))))
    }
}

/// Gives a canary its share of requests, and of copies.
fn deal(data_path: &CarriedOver, rollout: &Rollout, [share, shadow]: [u32; 2]) {
    data_path.canaries.of(&rollout.route, &rollout.pool).set(share);
    data_path.shadows.by_canary.of(&rollout.route, &rollout.pool).share.set(shadow);
}

/// Since 1970.
fn milliseconds(wall: SystemTime) -> u64 {
    since_epoch(wall).as_millis() as u64
}

/// What gateways show each other of the canary of a route.
fn topic(route: &str) -> String {
    format!("canary:{route}")
}

/// What is kept, and whether there is something that cannot be read. Files are small, and a canary's share depends on it: read before
/// the first request.
fn read(files: &mut StateFiles, path: &Path, route: &str) -> Option<(Option<Saved>, bool)> {
    Some(files.read(path, route).map(|saved| (saved, false)).unwrap_or_else(|error| {
        tracing::warn!(%error, route, "route.canary.state cannot be read: the canary waits to be resumed");
        (None, true)
    }))
}

/// Routes without a section that are remembered.
const MAX_GONE: usize = 64;
const MAX_QUEUED: usize = 16_384;
const MAX_COMMANDS: usize = 16;
const TICK: Duration = Duration::from_millis(250);
/// Clients that ask for models nobody has may bring no more work than this.
const MIN_TICK: Duration = Duration::from_millis(20);
/// A stopped process has not soaked.
const MAX_PASSED: Duration = Duration::from_secs(2);
/// For the other gateways' word after a start: longer than a broker takes that is there.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// Five seconds.
const TICKS_PER_SAVE: u32 = 20;

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::background::Background;
    use crate::config::check::check_str;
    use crate::fleet::status::{ReplicaState, ReplicaStatus};
    use crate::observe::{Judgement, Tap as _, fixture};
    use crate::record::{Outcome, Record, TurnedAway, Unserved};
    use crate::rollout::plan::Action;
    use crate::state_file::hung::{Hung, passes};

    fn config(revision: &str) -> Arc<Config> {
        config_with(revision, "")
    }

    /// The same with further lines of the canary's section.
    fn config_with(revision: &str, more: &str) -> Arc<Config> {
        let text = format!(
            "[[pool]]\nname = \"old\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"llama\"\n\
             revision = \"{revision}\"\nreplicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"llama\"\n\
             pools = [\"old\"]\n[route.canary]\npool = \"llama\"\nsteps = [{{ weight = 50, soak = \"1h\" }}]\n{more}"
        );
        Arc::new(check_str("f.toml", &text, &|_| None).unwrap())
    }

    struct Running {
        feed: Feed,
        metrics: Arc<Metrics>,
        configs: watch::Sender<Arc<Config>>,
    }

    impl Running {
        fn start(config: &Arc<Config>) -> Self {
            Self::over(FleetView::default(), config)
        }

        fn over(fleet: FleetView, config: &Arc<Config>) -> Self {
            let (configs, configured) = watch::channel(Arc::clone(config));
            let clock = Clock::start();
            let background = Background { runtime: Handle::current(), tasks: TaskTracker::new() };
            let around = Surroundings { clock, background, instance: "test".into(), fleet };
            let metrics = Arc::new(Metrics::new(config, clock));
            let feed = start(configured, &around, &metrics, CarriedOver::default(), None).unwrap();
            Self { feed, metrics, configs }
        }

        /// A request of the model `llama` is over; waits until it was judged.
        async fn record(&self, record: &Record) {
            self.feed.record(&Arc::new(record.clone()), &Judgement::of(record));
            tokio::time::sleep(2 * TICK).await;
        }

        fn canary(&self) -> Canary {
            self.feed.canaries()[0].clone()
        }

        fn breaches(&self) -> usize {
            let page = self.metrics.render(&[]);
            page.lines()
                .filter(|line| line.starts_with("tokenway_canary_breaches_total{"))
                .map(|line| usize::from(line.ends_with(" 1")))
                .sum()
        }
    }

    /// An answer of the baseline for the canary's model.
    fn of_baseline() -> Record {
        let mut record = Record { requested_model: Some("llama".into()), ..fixture::stream() };
        Arc::make_mut(&mut record.attempts[0].served).pool = "old".into();
        record
    }

    /// A 404 of the canary.
    fn not_found() -> Record {
        let (outcome, status) = (Outcome::ClientError, 404);
        let unserved = Some(Unserved::Model);
        Record { requested_model: Some("llama".into()), outcome, status, unserved, ..fixture::stream() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_breach_of_a_canary_that_is_paused_already_is_reported_as_any_other() {
        let running = Running::start(&config_with(&fixture::served().revision, "on_breach = \"pause\"\n"));
        running.feed.act("llama", Action::Pause).await.unwrap();
        assert_eq!((running.canary().weight, running.breaches()), (50.0, 0));
        running.record(&of_baseline()).await;
        running.record(&not_found()).await;
        let broken = running.canary();
        assert_eq!((&*broken.state, broken.weight, running.breaches()), ("paused", 0.0, 1));
        assert!(broken.reason.starts_with("model: "), "{}", broken.reason);
        assert_eq!(broken.report.unwrap()["reason"], *broken.reason);
        running.record(&not_found()).await;
        assert_eq!(running.breaches(), 1, "once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_revision_waits_until_the_pods_that_were_rolled_back_are_gone_over_a_restart_as_well() {
        let pods = Arc::new(Mutex::new(vec!["u1", "u2"]));
        let of = Arc::clone(&pods);
        let pod = |uid: &&str| ReplicaStatus {
            pool: "llama".into(),
            state: ReplicaState::Ready,
            instance: Some((*uid).into()),
            ..ReplicaStatus::default()
        };
        let fleet = FleetView::new(move || of.lock().iter().map(pod).collect(), Vec::new);
        let folder = tempfile::tempdir().unwrap();
        let state = format!("state = \"{}\"\n", folder.path().join("canary.json").display());
        let running = Running::over(fleet.clone(), &config_with("r2", &state));
        running.feed.act("llama", Action::Rollback).await.unwrap();
        let waits = "waits for replicas of r3: 2 of 2 are the processes of r2, which was rolled back";
        let restarted = {
            running.configs.send(config_with("r3", &state)).unwrap();
            passes(8 * TICK, TICK).await;
            let next = running.canary();
            assert_eq!((&*next.state, next.weight, next.soaked), ("running", 0.0, 0.0));
            assert!(next.reason.ends_with(waits), "{}", next.reason);
            end(&running.feed, Duration::from_secs(1)).await;
            Running::over(fleet, &config_with("r3", &state))
        };
        passes(2 * TICK, TICK).await;
        assert!(restarted.canary().reason.ends_with(waits), "{}", restarted.canary().reason);
        *pods.lock() = vec!["u2", "u3"];
        passes(2 * TICK, TICK).await;
        assert!(restarted.canary().reason.contains(": 1 of 2 "), "{}", restarted.canary().reason);
        // It was r3's all the time.
        restarted.feed.act("llama", Action::Resume).await.unwrap();
        passes(2 * TICK, TICK).await;
        let begun = restarted.canary();
        assert!(begun.weight > 0.0 && begun.soaked > 0.0, "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_at_the_canary_and_is_answered_by_the_baseline_is_in_the_report() {
        let running = Running::start(&config(&fixture::served().revision));
        let mut retried = of_baseline();
        let mut failed = fixture::stream().attempts.remove(0);
        (failed.error, failed.status) = (Some("upstream_5xx"), Some(503));
        retried.attempts.insert(0, failed);
        running.record(&retried).await;
        running.record(&of_baseline()).await;
        running.record(&not_found()).await;
        let stopped = running.canary();
        assert_eq!((stopped.requests.baseline, stopped.requests.canary), (2, 2));
        let report = stopped.report.unwrap();
        assert_eq!((&*stopped.state, &report["requests"]["canary"]), ("rolled_back", &2.into()));
        let worst = &report["worst_requests"][0];
        assert_eq!(
            (&worst["error"], &worst["replica"]),
            (&"upstream_5xx".into(), &"gpu-a:8000".into()),
            "{report}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_canary_whose_queue_refuses_what_the_baseline_takes_is_rolled_back() {
        let running = Running::start(&config(&fixture::served().revision));
        for _ in 0..400 {
            let mut moved = of_baseline();
            running.feed.record(&Arc::new(moved.clone()), &Judgement::of(&moved));
            let (pool, revision) = ("llama".into(), Arc::clone(&fixture::served().revision));
            moved.turned_away = Some(Box::new(TurnedAway { pool, revision, limit: "max_wait" }));
            running.record(&moved).await;
        }
        let stopped = running.canary();
        assert_eq!(&*stopped.state, "rolled_back", "{stopped:?}");
        let report = stopped.report.unwrap();
        assert!(report["requests"]["canary"].as_u64() > Some(0), "{report}");
        assert_eq!(report["worst_requests"][0]["error"], "max_wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_holds_up_no_verdict() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("canary.json");
        let state = format!("state = \"{}\"\n", path.display());
        let running = Running::start(&config_with(&fixture::served().revision, &state));
        let hung = Hung::at(&path);
        for (action, within) in [(Action::Pause, Duration::from_secs(6)), (Action::Resume, 2 * TICK)] {
            let (acted, ()) = tokio::join!(running.feed.act("llama", action), passes(within, TICK));
            let error = acted.unwrap_err().to_string();
            assert!(error.contains("canary.json") && error.contains("the disk"), "{action:?}: {error}");
        }
        assert_eq!(&*running.canary().state, "running");
        for record in [of_baseline(), not_found()] {
            running.feed.record(&Arc::new(record.clone()), &Judgement::of(&record));
        }
        passes(2 * TICK, TICK).await;
        assert_eq!((&*running.canary().state, running.breaches()), ("rolled_back", 1));
        running.configs.send(config_with("after-a-reload", &state)).unwrap();
        passes(2 * TICK, TICK).await;
        assert_eq!(&*running.canary().revision, "after-a-reload");
        drop(hung);
        let kept = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("after-a-reload"));
        assert!(crate::background::until(Duration::from_secs(60), TICK, kept).await, "written at last");
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_that_is_named_as_before_again_keeps_to_the_verdict_that_it_had_in_between() {
        let named = |name: &str| {
            let mut config = Config::clone(&config("r2"));
            config.routes[0].name = name.into();
            Arc::new(config)
        };
        let running = Running::start(&named("chat"));
        let is_now = async |name: &str, state: &str, weight: f64| {
            running.configs.send(named(name)).unwrap();
            tokio::time::sleep(2 * TICK).await;
            let canary = running.canary();
            assert_eq!((&*canary.route, &*canary.state, canary.weight), (name, state, weight));
        };
        is_now("talk", "running", 50.0).await;
        running.feed.act("talk", Action::Rollback).await.unwrap();
        is_now("chat", "rolled_back", 0.0).await;
        // An operator's word after that holds.
        running.feed.act("chat", Action::Promote).await.unwrap();
        is_now("chat", "promoted", 100.0).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_before_a_reload_is_judged_as_of_the_revision_before_it() {
        let record = Arc::new(fixture::stream());
        let running = Running::start(&config(&record.served().unwrap().revision));
        // Between two ticks.
        tokio::time::sleep(TICK / 2).await;
        running.feed.record(&record, &Judgement::of(&record));
        tokio::time::sleep(TICK).await;
        assert_eq!(running.canary().requests.canary, 1);
        running.feed.record(&record, &Judgement::of(&record));
        running.configs.send(config("after-a-reload")).unwrap();
        tokio::time::sleep(2 * TICK).await;
        let reloaded = running.canary();
        assert_eq!((&*reloaded.revision, reloaded.requests.canary), ("after-a-reload", 0));
    }
}
