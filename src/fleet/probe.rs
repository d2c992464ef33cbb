//! Probes one replica with a real inference request.
//!
//! A frozen engine core still answers `/health`, `/metrics` and `/v1/models` in milliseconds; a completion times out.
//! `auto` tries a one-token completion, a chat, an embedding, a rerank and, last, `GET /health`, and remembers the first that
//! the engine answers; a success without what was asked for ([`super::probe_answer`]) is none. Probes are skipped while live responses prove the replica. A full queue, and a prompt that the engine is
//! busy with, keep probes from being answered too: neither is a reason to leave while anything moves.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::engine::EngineModel;
use super::health::REFUSED_TWICE;
use super::health::vitals::BUSY_FOR;
use super::life::{Event, ReplicaState};
use super::model_list;
use super::pool::PoolState;
use super::probe_answer;
use super::probe_request;
use super::replica::Replica;
use super::stream_defaults::StreamDefaults;
use crate::clock::{Clock, Stamp, doubled};
use crate::config::{Pool, ProbeKind};
use crate::request::json::Cursor;
use crate::upstream::call::{Call, CallError};
use crate::upstream::connect::Connector;

/// Probes one replica.
#[derive(Debug)]
pub(super) struct Prober {
    pub pool: Arc<PoolState>,
    pub replica: Arc<Replica>,
    pub connector: Connector,
    pub clock: Clock,
}

pub(super) enum ProbeResult {
    Answered(ProbeKind),
    Refused,
    /// 503 or 429.
    Busy(String),
    TimedOut,
    /// Not even its list of models came, which computes nothing.
    Silent(CallError),
    /// The gateway has no descriptor left: nothing was learned.
    NotSent,
    /// It serves this path, and not with an engine's answer: `/health` proves nothing then.
    NoAnswer(String),
    Failed(String),
}

impl Prober {
    /// The probe loop, until the replica is removed, and then what its last streams need.
    pub(super) async fn run(self) {
        self.keep_asking().await;
        self.see_off().await;
    }

    async fn keep_asking(&self) {
        let now = self.clock.now();
        let mut rhythm = Rhythm { looked: now, kept: now };
        let mut due = Due::Probe;
        loop {
            let config = self.pool.config();
            // A probe that hangs is part of its interval: what is well again is found within one.
            let began = self.clock.now();
            let turn = async {
                match due {
                    Due::KeepAlive => {
                        let known = *self.replica.engine.proved_by.lock();
                        self.keep_warm(&config, known.unwrap_or(config.probe.kind)).await;
                        rhythm.kept = self.clock.now();
                    }
                    Due::List if !self.lists_another(&config).await => rhythm.looked = began,
                    Due::Probe | Due::List => {
                        self.turn(&config).await;
                        rhythm.looked = began;
                    }
                }
            };
            if self.replica.removed().run_until_cancelled(turn).await.is_none() {
                return;
            }
            match self.wait(&mut rhythm).await {
                Some(next) => due = next,
                None => return,
            }
        }
    }

    /// A replica that was removed still answers what it began, or its process is gone already: where a stream there is silent, connects
    /// show which. Its list of models is asked for, which computes nothing.
    async fn see_off(&self) {
        let vitals = &self.replica.health.vitals;
        // A request that was given it before it was removed may be on its way.
        tokio::time::sleep(FIRST_RETRY).await;
        while self.replica.target.load.own() > 0 {
            let config = self.pool.config();
            let was_refused = vitals.refused_since().is_some();
            let pause = if was_refused { FIRST_RETRY * 2 } else { config.probe.interval };
            let is_asked = tokio::select! {
                () = vitals.check_now.notified() => true,
                () = tokio::time::sleep(pause) => was_refused,
            };
            if is_asked {
                let sent = self.clock.now();
                match self.list_models(&config).await {
                    Ok(()) => vitals.connected(),
                    Err(result) => self.apply(&result, 0, sent),
                }
            }
        }
    }

    /// One probe, and what it leads to: proofs and warm-up before traffic.
    async fn turn(&self, config: &Pool) {
        let replica = &self.replica;
        let warms_again = self.begin_again();
        replica.apply(Event::Asked, "no answer yet");
        let sent = self.clock.now();
        let mut result = self.probe(config).await;
        let mut is_another = false;
        if let ProbeResult::Answered(kind) = result {
            self.probe_template(config).await;
            if !replica.is_ready() {
                if kind.generates() {
                    self.probe_stream_defaults(config).await;
                }
                result = self.prove(config, kind).await;
            } else if kind != ProbeKind::Health {
                (result, is_another) = self.look_again(config, kind).await;
            }
        }
        let is_proved = matches!(result, ProbeResult::Answered(_));
        replica.own.failed_probes.fetch_add(u64::from(!is_proved), Ordering::Relaxed);
        let misses = match result {
            ProbeResult::Answered(_) => 0,
            ProbeResult::NotSent => self.misses(),
            _ if is_another => MISSES_TO_EJECT.max(self.misses()),
            _ => self.misses().saturating_add(1),
        };
        self.apply(&result, misses, sent);
        if misses == MISSES_TO_WARN && replica.state().is_coming() {
            self.warn_of_misses();
        }
        if let ProbeResult::Answered(kind) = result
            && (warms_again || replica.state() == ReplicaState::Warming)
            && let Err(lost) = self.warm_up(config, kind).await
        {
            self.apply(&lost, 1, sent);
        }
    }

    /// Of a ready replica that was answered: whether it still serves what is promised, which a reload may have changed, and whether
    /// that is another thing, which needs no second miss.
    async fn look_again(&self, config: &Pool, kind: ProbeKind) -> (ProbeResult, bool) {
        if self.load_adapters(config).await
            && let Err(failed) = self.list_models(config).await
        {
            return (failed, false);
        }
        if let Some(another) = self.serves_another() {
            return (ProbeResult::Failed(another), true);
        }
        let result =
            if self.owes_proof() { self.prove(config, kind).await } else { ProbeResult::Answered(kind) };
        let is_another = matches!(result, ProbeResult::Failed(_));
        (result, is_another)
    }

    /// It has answered no probe yet, and no change of state would ever say so.
    fn warn_of_misses(&self) {
        let (pool, replica, why) = (&*self.pool.name, &*self.replica.name(), self.replica.why_unready());
        tracing::warn!(pool, replica, "{why}; it gets no traffic until it answers a probe");
    }

    /// Waits until something is due; `None` once the replica is removed.
    async fn wait(&self, rhythm: &mut Rhythm) -> Option<Due> {
        let misses = self.misses();
        loop {
            let config = self.pool.config();
            let interval = config.probe.interval;
            let state = self.replica.state();
            let pause = match state {
                ReplicaState::Ready if misses == 0 => interval,
                _ if state.is_left() && misses == 0 => self.replica.health.hold_off(interval),
                // Requests there wait to learn whether their process is gone.
                _ if self.replica.health.vitals.refused_since().is_some()
                    && self.replica.target.load.own() > 0 =>
                {
                    FIRST_RETRY * 2
                }
                _ => doubled(FIRST_RETRY, misses.min(6), interval),
            };
            let left = pause.saturating_sub(self.clock.now().since(rhythm.looked));
            let idle = config.keep_alive.map_or(left, |interval| self.until_idle(interval, rhythm.kept));
            // Each arm is cancel-safe: a notification not taken stays stored.
            let is_forced = tokio::select! {
                () = self.replica.removed().cancelled() => return None,
                () = self.replica.health.vitals.check_now.notified() => true,
                () = tokio::time::sleep(left.min(idle).min(CONFIG_LOOK)) => false,
            };
            if self.replica.state().is_left() && is_forced && misses == 0 {
                // Just ejected by failed requests: an immediate probe would reinstate it at once.
                let hold_off = self.replica.health.hold_off(interval);
                self.replica.removed().run_until_cancelled(tokio::time::sleep(hold_off)).await?;
            }
            if is_forced {
                return Some(Due::Probe);
            }
            let is_idle = |interval| self.until_idle(interval, rhythm.kept).is_zero();
            if self.replica.is_ready() && config.keep_alive.is_some_and(is_idle) {
                return Some(Due::KeepAlive);
            }
            if idle < left || CONFIG_LOOK < left {
                continue;
            }
            let now = self.clock.now();
            let is_proved = now.since(self.replica.health.vitals.last_answer()) < interval;
            if !self.replica.is_ready() || !is_proved {
                return Some(Due::Probe);
            }
            return Some(Due::List);
        }
    }

    /// Reads the models of a replica that its answers prove: adapters come and go while it has traffic. Whether they are another's.
    async fn lists_another(&self, config: &Pool) -> bool {
        self.probe_template(config).await;
        let is_listed = config.outside.is_none() && self.list_models(config).await.is_ok();
        is_listed && (self.serves_another().is_some() || self.owes_proof())
    }

    /// How long until nobody has asked it for `interval`, its own keep-alive included.
    fn until_idle(&self, interval: Duration, kept: Stamp) -> Duration {
        let last = self.replica.health.vitals.last_answer().max(kept);
        if self.replica.target.load.own() > 0 || !self.replica.is_ready() {
            return interval;
        }
        interval.saturating_sub(self.clock.now().since(last))
    }

    /// Probes in a row without an answer.
    fn misses(&self) -> u32 {
        self.replica.own.misses.load(Ordering::Relaxed)
    }

    fn apply(&self, result: &ProbeResult, misses: u32, sent: Stamp) {
        let replica = &self.replica;
        replica.own.misses.store(misses, Ordering::Relaxed);
        let now = self.clock.now();
        match result {
            ProbeResult::Silent(_) => replica.health.vitals.silent(sent),
            ProbeResult::NotSent => {}
            ProbeResult::TimedOut => replica.health.vitals.listed(),
            _ => replica.health.vitals.spoke(),
        }
        match result {
            ProbeResult::Answered(kind) => {
                replica.health.vitals.cleared(now);
                if *kind != ProbeKind::Health {
                    replica.health.vitals.proved(now);
                }
                replica.health.answers.believe();
                let reason = match kind {
                    ProbeKind::Health => UNPROVEN,
                    _ if replica.health.is_due_for_trial() => "answered; on trial after failed requests",
                    _ => "answered",
                };
                let is_cold = replica.health.warmth.cold().is_some();
                replica.apply(if is_cold { Event::ProvedCold } else { Event::Proved }, reason);
            }
            ProbeResult::Refused => {
                replica.health.vitals.refused(now);
                // A listener that is away for a moment takes no cache with it.
                if replica.target.load.own() == 0 || replica.health.vitals.is_gone(REFUSED_TWICE) {
                    self.pool.died(replica, now);
                }
                replica.apply(Event::Refused, "connection refused");
            }
            ProbeResult::TimedOut | ProbeResult::Silent(_) => {
                let why = match result {
                    ProbeResult::Silent(CallError::NoRoute) => "no route to its host",
                    _ => "probe not answered in time",
                };
                let vitals = &replica.health.vitals;
                vitals.frozen(sent);
                vitals.stands_still(self.is_still_with_all(sent), now);
                let is_still = vitals.frozen_since().is_some();
                let may_compute = self.is_computing(now) && !vitals.is_stopped();
                if replica.state().is_coming() {
                    replica.apply(Event::Unproved, why);
                } else if misses >= MISSES_TO_EJECT && is_still && !may_compute {
                    replica.apply(Event::Unproved, &format!("{why}, and nothing moves"));
                } else if is_still {
                    // Where anything moves the probe waits its turn, as it does at every engine with a queue.
                    replica.health.answers.pause(now, self.pool.config().probe.timeout);
                }
            }
            ProbeResult::Busy(why) => {
                let is_moving = now.since(replica.health.vitals.last_sign()) < BUSY_FOR;
                match replica.state() {
                    ReplicaState::Ready if is_moving => replica.health.answers.refused(now),
                    ReplicaState::Ready if misses < MISSES_TO_EJECT => {}
                    _ => replica.apply(Event::Unproved, why),
                }
            }
            ProbeResult::NotSent => {}
            ProbeResult::NoAnswer(why) | ProbeResult::Failed(why) => {
                let is_expected = replica.health.vitals.is_reported_down();
                if replica.state().is_coming() || misses >= MISSES_TO_EJECT || is_expected {
                    replica.apply(Event::Unproved, why);
                }
            }
        }
    }

    /// Whether there are other ready replicas where its requests could go, and none of them was heard since this probe was sent, or since
    /// all began to stand still. They are asked then: one that is idle and has no page is heard by its probes alone.
    fn is_still_with_all(&self, sent: Stamp) -> bool {
        let since = self.replica.health.vitals.still_since().map_or(sent, |since| since.min(sent));
        let others = self.others_ready();
        let is_still =
            !others.is_empty() && others.iter().all(|other| !other.health.vitals.was_heard_since(since));
        if is_still {
            others.iter().for_each(|other| other.health.vitals.suspect(self.clock.now()));
        }
        is_still
    }

    /// The other ready replicas of its pool and of those beside it.
    fn others_ready(&self) -> Vec<Arc<Replica>> {
        let beside = self.pool.beside.load();
        let beside = beside.iter().filter_map(Weak::upgrade).map(|pool| pool.replicas());
        let all = std::iter::once(self.pool.replicas()).chain(beside);
        let all = all.flat_map(|replicas| replicas.iter().cloned().collect::<Vec<_>>());
        all.filter(|other| !Arc::ptr_eq(other, &self.replica) && other.is_ready()).collect()
    }

    /// Whether prompts of ours wait there that may well take so long.
    fn is_computing(&self, now: Stamp) -> bool {
        let load = self.replica.target.load.view();
        load.awaiting > 0 && self.replica.health.vitals.may_compute(load.head_since, now)
    }

    async fn probe(&self, config: &Pool) -> ProbeResult {
        if config.outside.is_some() {
            return self.probe_outside(config).await;
        }
        if let Err(failed) = self.list_models(config).await {
            return failed;
        }
        let known = *self.replica.engine.proved_by.lock();
        let kinds: &[ProbeKind] = match (config.probe.kind, known) {
            (ProbeKind::Auto, Some(kind)) => &[kind],
            (ProbeKind::Auto, None) => &AUTO_ORDER,
            (kind, _) => &[kind],
        };
        let model = self.model();
        let mut last = ProbeResult::Failed("no probe was answered".into());
        for kind in kinds {
            // What serves inference paths without answers serves nobody, however healthy it is.
            if kinds.len() > 1 && *kind == ProbeKind::Health && matches!(last, ProbeResult::NoAnswer(_)) {
                break;
            }
            match self.ask_for(config, *kind, &model).await {
                ProbeResult::Answered(kind) => {
                    let lack = self.lack(config, kind);
                    // `/health` is the last resort: try the real probes again next time.
                    let proves = lack.is_none() && kind != ProbeKind::Health;
                    *self.replica.engine.proved_by.lock() = proves.then_some(kind);
                    return lack.map_or(ProbeResult::Answered(kind), ProbeResult::Failed);
                }
                failed @ ProbeResult::NoAnswer(_) => last = failed,
                failed @ ProbeResult::Failed(_) => {
                    if !matches!(last, ProbeResult::NoAnswer(_)) {
                        last = failed;
                    }
                }
                unreachable => return unreachable,
            }
        }
        // Its successor may serve other paths.
        *self.replica.engine.proved_by.lock() = None;
        last
    }

    /// An outside provider is asked for its models only: that proves the key and costs nothing. They are not kept: a provider lists
    /// hundreds, and this pool has one.
    async fn probe_outside(&self, config: &Pool) -> ProbeResult {
        let path = &*config.engine_profile.models_path;
        match self.call(config, path, None).send(&self.connector).await {
            Ok((status, _)) if status.is_success() => {
                self.spoke();
                ProbeResult::Answered(ProbeKind::Health)
            }
            Ok((status @ (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS), _)) => {
                ProbeResult::Busy(format!("{path} answered {status}"))
            }
            Ok((status, _)) => {
                ProbeResult::Failed(format!("{path} answered {status}; engine_api_key is its key?"))
            }
            Err(error) => unanswered(path, error),
        }
    }

    /// Asks for the least that proves that this model is answered.
    pub(super) async fn ask_for(&self, config: &Pool, kind: ProbeKind, model: &str) -> ProbeResult {
        let least = probe_request::least(kind, model, &config.probe.prompt, &json!({ "max_tokens": 1 }));
        let body = least.as_ref().map(|(_, body)| body.to_string());
        let path = least.map_or(&*config.engine_profile.health_path, |(path, _)| path);
        match self.send_proof(self.call(config, path, body.as_deref())).await {
            Ok((status, body)) if status.is_success() => match probe_answer::fault(kind, &body) {
                None => ProbeResult::Answered(kind),
                Some(fault) => ProbeResult::NoAnswer(format!("probe {path} answered {status} with {fault}")),
            },
            Ok((status @ (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS), _)) => {
                ProbeResult::Busy(format!("probe {path} answered {status}"))
            }
            Ok((status, _)) if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
                ProbeResult::NoAnswer(format!("probe {path} answered {status}"))
            }
            // Without a key of ours clients may have theirs.
            Ok((status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _))
                if config.engine_api_key.is_some() =>
            {
                ProbeResult::NoAnswer(format!("probe {path} answered {status}; engine_api_key is its key?"))
            }
            Ok((status, _)) => ProbeResult::Failed(format!("probe {path} answered {status}")),
            Err(error) => unanswered(path, error),
        }
    }

    /// Sends a request whose answer brings a replica into traffic. It stands behind all that others sent there, so it keeps its place
    /// while the engine moves: each new one would begin at the end again, and a busy fleet would not be taken up before it is idle.
    /// Another one stands beside it, a new one after each timeout: the first may have been lost.
    async fn send_proof(&self, call: Call<'_>) -> Result<(StatusCode, Bytes), CallError> {
        let patience = call.timeout;
        if self.replica.is_ready() {
            return call.send(&self.connector).await;
        }
        let call = Call { timeout: LONGEST_PROOF.max(patience), ..call };
        let mut first = std::pin::pin!(call.send(&self.connector));
        let mut works_for_others = false;
        loop {
            let began = self.clock.now();
            let another =
                async { if works_for_others { call.send(&self.connector).await } else { pending().await } };
            let answered = tokio::select! {
                biased;
                answer = &mut first => Some(answer),
                answer = another => Some(answer),
                () = tokio::time::sleep(patience) => None,
            };
            match answered {
                Some(answer) => {
                    // It worked all the while that this one waited: it is warm.
                    if works_for_others && answer.as_ref().is_ok_and(|(status, _)| status.is_success()) {
                        self.replica.health.warmth.adopted(self.clock.now());
                    }
                    return answer;
                }
                None if self.replica.health.vitals.last_sign() > began => works_for_others = true,
                None => return Err(CallError::Timeout),
            }
        }
    }

    /// Learns what its engine streams unasked, before it takes requests: a restart may have changed its flags.
    async fn probe_stream_defaults(&self, config: &Pool) {
        let model = self.model();
        let streamed = json!({ "max_tokens": 1, "stream": true });
        let mut unasked = None;
        // An engine without completions may have chat.
        for kind in [ProbeKind::Completion, ProbeKind::Chat] {
            let least = probe_request::least(kind, &model, &config.probe.prompt, &streamed);
            let Some((path, body)) = least else { continue };
            let body = body.to_string();
            if let Ok((StatusCode::OK, stream)) =
                self.call(config, path, Some(&body)).send(&self.connector).await
            {
                unasked = StreamDefaults::read(&stream);
            }
            if unasked.is_some() {
                break;
            }
        }
        self.replica.engine.stream_defaults.store(unasked.map(Arc::new));
        self.replica.engine.streams_reasoning.store(false, Ordering::Relaxed);
    }

    /// Learns whether its chat template heeds `continue_final_message`, where broken streams are continued: some of vLLM's renderers
    /// (DeepSeek V3.2 and V4) end the message whatever is asked for.
    async fn probe_template(&self, config: &Pool) {
        let known = &self.replica.engine.continues_chats;
        if !self.replica.is_ready() {
            *known.lock() = None;
        }
        // A provider's streams are never continued.
        let may_continue = config.outside.is_none() && config.engine.continues_chats();
        if !may_continue || !self.pool.migrates.load(Ordering::Relaxed) || known.lock().is_some() {
            return;
        }
        let model = self.model();
        let mut lengths = [None; 2];
        for (length, continues) in lengths.iter_mut().zip([true, false]) {
            let chat = json!({
                "model": &*model,
                "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }],
                "continue_final_message": continues,
                "add_generation_prompt": !continues,
            });
            let chat = chat.to_string();
            let Ok((status, answer)) = self.call(config, TOKENIZE, Some(&chat)).send(&self.connector).await
            else {
                return;
            };
            let answer = std::str::from_utf8(&answer).ok().filter(|_| status.is_success());
            let count = answer.and_then(|answer| Cursor::new(answer).members(["count"]).ok());
            *length = count.and_then(|[count]| count?.text().parse::<u64>().ok());
        }
        // What goes on is shorter than what is answered: it lacks an end, and the head of an answer.
        let is_ignored = lengths[0].is_some() && lengths[0] == lengths[1];
        *known.lock() = Some(!is_ignored);
    }

    /// What it is asked for where one model stands for all: see [`Promised::probed`](super::promise::Promised::probed).
    pub(super) fn model(&self) -> Arc<str> {
        let models = self.replica.engine.models.load();
        let promised = self.pool.promised.load();
        promised.probed(&models).map_or_else(|| "".into(), |model| Arc::clone(&model.id))
    }

    fn spoke(&self) {
        if self.replica.health.warmth.cold().is_some() {
            self.replica.apply(Event::Listens, "listens again");
        }
        self.replica.apply(Event::Spoke, "answers HTTP");
    }

    /// Reads `/v1/models`; an engine without it is probed all the same.
    pub(super) async fn list_models(&self, config: &Pool) -> Result<(), ProbeResult> {
        match self.call(config, &config.engine_profile.models_path, None).send(&self.connector).await {
            Ok((StatusCode::OK, body)) => {
                self.spoke();
                let before = self.replica.engine.models.swap(Arc::new(model_list::parse(&body)));
                let ids = |models: &[EngineModel]| {
                    models.iter().map(|model| Arc::clone(&model.id)).collect::<Vec<_>>()
                };
                if ids(&before) != ids(&self.replica.engine.models.load()) {
                    self.pool.settle_names();
                }
                let has_none = self.replica.engine.models.load().is_empty();
                self.replica.engine.note_list(has_none, false);
                Ok(())
            }
            Ok((StatusCode::SERVICE_UNAVAILABLE, _)) | Err(CallError::Broken(_)) => Ok(()),
            Ok((status, _)) => {
                // Clients may have the key that it asks for.
                let may_list = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                self.replica.engine.note_list(!may_list, may_list && config.engine_api_key.is_none());
                self.spoke();
                Ok(())
            }
            Err(CallError::Refused) => Err(ProbeResult::Refused),
            Err(error @ (CallError::Timeout | CallError::NoRoute)) => Err(ProbeResult::Silent(error)),
            Err(CallError::NoResources) => Err(ProbeResult::NotSent),
        }
    }

    pub(super) fn call<'a>(&'a self, config: &'a Pool, path: &'a str, body: Option<&'a str>) -> Call<'a> {
        Call {
            key: config.engine_api_key.as_ref(),
            path,
            body,
            rank: self.replica.identity.rank.map(|rank| rank.index),
            ..Call::to(&self.replica.identity.endpoint, config.probe.timeout)
        }
    }
}

/// What the loop does next.
#[derive(Clone, Copy)]
enum Due {
    Probe,
    /// Its list of models alone.
    List,
    KeepAlive,
}

/// What the loop has done.
struct Rhythm {
    /// The last probe, or when it was not needed.
    looked: Stamp,
    /// The last keep-alive.
    kept: Stamp,
}

fn unanswered(path: &str, error: CallError) -> ProbeResult {
    match error {
        CallError::Refused => ProbeResult::Refused,
        CallError::Timeout => ProbeResult::TimedOut,
        CallError::NoResources => ProbeResult::NotSent,
        CallError::NoRoute | CallError::Broken(_) => ProbeResult::Failed(format!("probe {path}: {error}")),
    }
}

pub(super) const AUTO_ORDER: [ProbeKind; 5] =
    [ProbeKind::Completion, ProbeKind::Chat, ProbeKind::Embedding, ProbeKind::Rerank, ProbeKind::Health];
pub(super) const UNPROVEN: &str = "unproven: only /health answered";
/// How soon what waits for an interval sees that a reload made it shorter.
pub(super) const CONFIG_LOOK: Duration = Duration::from_secs(1);
const TOKENIZE: &str = "/tokenize";
/// Doubled for each miss in a row, up to the probe interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const MISSES_TO_EJECT: u32 = 2;
/// In a row, of one that has not answered yet: some four seconds of refused connects.
const MISSES_TO_WARN: u32 = 3;
/// A first answer is waited for so long while its engine moves.
const LONGEST_PROOF: Duration = Duration::from_secs(600);
