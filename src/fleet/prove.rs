//! What a prober asks beyond its probe: proofs of all that is promised, warm-up, keep-alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::life::Event;
use super::probe::{AUTO_ORDER, ProbeResult, Prober, UNPROVEN};
use super::status::WarmUpReport;
use super::warmup::{self, WarmUpRequest};
use crate::config::{EngineKind, Pool, ProbeKind};
use crate::request::fields;
use crate::request::prompt::RequestPrompt;
use crate::routing::Prompt;
use crate::units::Tokens;
use crate::upstream::call::{Call, CallError};

impl Prober {
    /// Asks for every promised model and adapter, after its probe was answered. Adapters that may be loaded are.
    pub(super) async fn prove(&self, config: &Pool, kind: ProbeKind) -> ProbeResult {
        if kind == ProbeKind::Health {
            return ProbeResult::Answered(kind);
        }
        self.replica.engine.asked_to_load.lock().clear();
        if self.load_adapters(config).await
            && let Err(failed) = self.list_models(config).await
        {
            return failed;
        }
        let proofs = self.pool.proofs(&self.replica);
        self.note_lacks(&proofs.lacks);
        if let Some(other) = proofs.other {
            return ProbeResult::Failed(other);
        }
        for model in &proofs.all {
            match self.ask_for(config, kind, model).await {
                ProbeResult::Answered(_) => {}
                ProbeResult::NoAnswer(why) | ProbeResult::Failed(why) => {
                    return ProbeResult::Failed(format!("model {model}: {why}"));
                }
                other => return other,
            }
        }
        let mut last = ProbeResult::Answered(kind);
        for model in &proofs.any {
            last = match self.ask_for(config, kind, model).await {
                ProbeResult::NoAnswer(why) | ProbeResult::Failed(why) => {
                    ProbeResult::Failed(format!("serves none of the models promised; {model}: {why}"))
                }
                answered => answered,
            };
            if !matches!(last, ProbeResult::Failed(_)) {
                break;
            }
        }
        if matches!(last, ProbeResult::Answered(_)) {
            *self.replica.engine.proved_any.lock() = proofs.any;
        }
        last
    }

    /// Whether nothing that it lists is promised by now, and it was not asked for that yet.
    pub(super) fn owes_proof(&self) -> bool {
        let any = self.pool.proofs(&self.replica).any;
        !any.is_empty() && *self.replica.engine.proved_any.lock() != any
    }

    /// Why an answer to this probe is no proof, where `auto` chose it: another server than an engine has a `/health` too, and replicas
    /// of a pool serve the same.
    pub(super) fn lack(&self, config: &Pool, kind: ProbeKind) -> Option<String> {
        if config.probe.kind != ProbeKind::Auto {
            return None;
        }
        let rank = |kind: ProbeKind| AUTO_ORDER.iter().position(|other| *other == kind);
        let peers = self.pool.replicas();
        let proved = peers.iter().filter(|peer| peer.slot() != self.replica.slot() && peer.is_ready());
        let better = proved
            .filter_map(|peer| Some((peer, (*peer.engine.proved_by.lock())?)))
            .find(|(_, other)| rank(*other) < rank(kind));
        if let Some((peer, other)) = better {
            let (peer, other, own) = (peer.name(), other.as_str(), kind.as_str());
            return Some(format!("answers no {other}, as {peer} of its pool does, but {own}"));
        }
        let is_nothing = kind == ProbeKind::Health && self.replica.engine.has_no_list.load(Ordering::Relaxed);
        is_nothing.then(|| NO_ENGINE.to_owned())
    }

    /// What it serves instead of its pool's model, which a restart behind the same address may have brought.
    pub(super) fn serves_another(&self) -> Option<String> {
        let proofs = self.pool.proofs(&self.replica);
        self.note_lacks(&proofs.lacks);
        proofs.other
    }

    /// Asks its engine to load the pool's adapters that it does not list, once each; returns whether it loaded any.
    pub(super) async fn load_adapters(&self, config: &Pool) -> bool {
        let path = match config.engine {
            EngineKind::Sglang => "/load_lora_adapter",
            _ => "/v1/load_lora_adapter",
        };
        let mut has_loaded = false;
        for (name, source) in config.lora.adapters.iter().filter(|_| config.lora.load) {
            if self.replica.engine.lists(name) || self.replica.engine.asked_to_load.lock().contains(name) {
                continue;
            }
            self.replica.engine.asked_to_load.lock().push(Arc::clone(name));
            let body = json!({ "lora_name": &**name, "lora_path": &**source }).to_string();
            let call = Call {
                timeout: config.warmup.timeout.max(config.probe.timeout),
                ..self.call(config, path, Some(&body))
            };
            let answer = call.send(&self.connector).await;
            let is_loaded = matches!(&answer, Ok((status, _)) if status.is_success());
            let (pool, replica) = (&self.pool.name, self.replica.name());
            if is_loaded {
                tracing::info!(%pool, %replica, adapter = %name, "engine loaded an adapter");
            } else {
                let answer = answer.map_or_else(|error| error.to_string(), |(status, _)| status.to_string());
                tracing::warn!(%pool, %replica, adapter = %name, answer, "engine did not load an adapter");
            }
            has_loaded |= is_loaded;
        }
        has_loaded
    }

    /// Says once what is promised and not there.
    fn note_lacks(&self, lacks: &[Arc<str>]) {
        if **self.replica.engine.lacks.load() == lacks {
            return;
        }
        self.replica.engine.lacks.store(Arc::new(lacks.into()));
        if !lacks.is_empty() {
            let (pool, replica) = (&self.pool.name, self.replica.name());
            let models = lacks.join(", ");
            tracing::warn!(%pool, %replica, models, "replica does not list all that its routes or its pool's other replicas promise");
        }
    }

    /// Begins another warm-up where one was asked for: outside of the traffic if another replica takes it meanwhile.
    pub(super) fn begin_again(&self) -> bool {
        if !self.replica.own.warm_again.swap(false, Ordering::Relaxed) || !self.replica.is_ready() {
            return false;
        }
        let others = self.pool.replicas();
        if others.iter().any(|other| other.slot() != self.replica.slot() && other.is_ready()) {
            self.replica.apply(Event::WarmAgain, "to be warmed up again");
        }
        true
    }

    /// Sends the warm-up; then it takes traffic. What fails is reported, and only a refused connect is an error.
    pub(super) async fn warm_up(&self, config: &Pool, kind: ProbeKind) -> Result<(), ProbeResult> {
        let requests = {
            let promised = self.pool.promised.load();
            warmup::requests(&config.warmup, &promised.classes, kind, &self.model())
        };
        let began = self.clock.now();
        let mut report = WarmUpReport::default();
        for (at, request) in requests.iter().enumerate() {
            let left = config.warmup.timeout.saturating_sub(self.clock.now().since(began));
            if left.is_zero() {
                report.problems.push(format!("{} requests were left out", requests.len() - at));
                break;
            }
            self.send_one(config, request, left, &mut report).await?;
        }
        report.took = self.clock.now().since(began);
        let reason = match report.problems.as_slice() {
            [] if requests.is_empty() && kind == ProbeKind::Health => UNPROVEN.to_owned(),
            [] => "answered its warm-up".to_owned(),
            problems => format!("warm-up: {}", problems.join("; ")),
        };
        if !report.problems.is_empty() {
            let (pool, replica) = (&self.pool.name, self.replica.name());
            tracing::warn!(%pool, %replica, problems = report.problems.join("; "), "warm-up was not answered as it should be");
        }
        self.replica.own.warm_up.store(Some(Arc::new(report)));
        self.pool.warmed(&self.replica, &reason, self.clock.now());
        Ok(())
    }

    async fn send_one(
        &self,
        config: &Pool,
        request: &WarmUpRequest,
        left: Duration,
        report: &mut WarmUpReport,
    ) -> Result<(), ProbeResult> {
        let sent = self.clock.now();
        report.requests += 1;
        let problem = match self.send_own(config, request, left).await {
            Ok(()) => None,
            Err(CallError::Refused) => return Err(ProbeResult::Refused),
            Err(error) => Some(format!("{}: {error}", request.what)),
        };
        report.slowest = report.slowest.max(self.clock.now().since(sent));
        if let Some(problem) = problem.filter(|problem| !report.problems.contains(problem)) {
            report.problems.push(problem);
        }
        Ok(())
    }

    /// Sends what keeps an idle replica warm.
    pub(super) async fn keep_warm(&self, config: &Pool, kind: ProbeKind) {
        for request in warmup::keep_alive(&config.warmup, kind, &self.model()) {
            // Whether it works is the probe's affair.
            let _ = self.send_own(config, &request, config.probe.timeout).await;
        }
    }

    async fn send_own(
        &self,
        config: &Pool,
        request: &WarmUpRequest,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let call = Call { timeout, ..self.call(config, request.path, Some(&request.body)) };
        let (status, _) = call.send(&self.connector).await?;
        if !status.is_success() {
            return Err(CallError::Broken(status.to_string()));
        }
        self.note_cached(request);
        Ok(())
    }

    /// Notes a prompt that clients share in the prefix index: its replica holds it now.
    fn note_cached(&self, request: &WarmUpRequest) {
        let Some(dialect) = request.shared_prompt else { return };
        let Ok(fields) = fields::parse(dialect, request.body.as_bytes()) else { return };
        let model = self.model();
        let read =
            RequestPrompt::read(dialect, &fields, &model, None, &self.pool.promised.load().seed, false);
        let chain = &read.chain;
        let bytes = chain.bytes();
        let prompt = Prompt { chain: chain.hashes(), bytes, tokens: Tokens(bytes / 4) };
        self.pool.dispatcher.index.insert(self.replica.slot(), &prompt);
    }
}

const NO_ENGINE: &str = "it lists no models and answers no inference path, only /health: if that is an engine, set probe.kind = \"health\"";
