//! The probe: a real answer, because green health proves nothing.
//!
//! A frozen engine core answers `/health`, `/metrics` and `/v1/models` in milliseconds; only a completion tells.
//! `auto` asks for a one-token completion, an embedding, a rerank and, last, `GET /health`, and remembers the
//! first that the engine answers. A probe is skipped while live answers prove the replica.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::call::{Call, CallError};
use super::pool::PoolState;
use super::replica::{Model, Replica};
use super::status::ReplicaState;
use crate::clock::Clock;
use crate::config::{Pool, ProbeKind};
use crate::upstream::connect::Connector;

/// Probes one replica until it is removed.
#[derive(Debug)]
pub struct Prober {
    /// The replica's pool.
    pub pool: Arc<PoolState>,
    /// The replica.
    pub replica: Arc<Replica>,
    /// Opens connections.
    pub connector: Connector,
    /// Time.
    pub clock: Clock,
}

/// What a probe found.
enum Finding {
    Proved(ProbeKind),
    Refused,
    Unanswered,
    Failed(String),
}

impl Prober {
    /// The replica's probe loop.
    pub async fn run(self) {
        let mut known: Option<ProbeKind> = None;
        let mut misses = 0_u32;
        loop {
            let config = self.pool.config();
            let finding = self.probe(&config, &mut known).await;
            let is_proved = matches!(finding, Finding::Proved(_));
            misses = if is_proved { 0 } else { misses.saturating_add(1) };
            self.conclude(&finding, misses);
            if self.wait(misses).await.is_none() {
                return;
            }
        }
    }

    /// Waits until the next probe is due; `None` when the replica was removed.
    async fn wait(&self, misses: u32) -> Option<()> {
        loop {
            let interval = self.pool.config().probe.interval;
            let pause = match self.replica.state() {
                ReplicaState::Ready if misses == 0 => interval,
                ReplicaState::Ejected if misses == 0 => self.replica.hold_off(interval),
                _ => (RETRY * 2_u32.saturating_pow(misses.min(6))).min(interval),
            };
            // Each arm is cancel-safe: a notification not taken stays stored.
            let is_forced = tokio::select! {
                () = self.replica.removed.cancelled() => return None,
                () = self.replica.vitals.check_now.notified() => true,
                () = tokio::time::sleep(pause) => false,
            };
            if self.replica.state() == ReplicaState::Ejected && is_forced && misses == 0 {
                // Ejected by its failed requests just now: a probe at once would bring it back at once.
                tokio::time::sleep(self.replica.hold_off(interval)).await;
            }
            let proved = self.clock.now().since(self.replica.vitals.last_answer()) < interval;
            if is_forced || !self.replica.is_ready() || !proved {
                return Some(());
            }
        }
    }

    fn conclude(&self, finding: &Finding, misses: u32) {
        let replica = &self.replica;
        let now = self.clock.now();
        match finding {
            Finding::Proved(kind) => {
                replica.vitals.cleared();
                let reason =
                    if *kind == ProbeKind::Health { "unproven: only /health answered" } else { "answered" };
                replica.enter(ReplicaState::Ready, reason);
            }
            Finding::Refused => {
                replica.vitals.refused(now);
                self.pool.died(replica, now);
                replica.enter(ReplicaState::Ejected, "connect refused");
            }
            Finding::Unanswered => {
                replica.vitals.frozen(now);
                let is_moving = replica.vitals.frozen_since().is_none();
                // A busy replica may be slow to answer a probe; one whose streams move is not left for it.
                if misses >= MISSES_TO_EJECT && !is_moving {
                    replica.enter(ReplicaState::Ejected, "probe not answered in time");
                } else if replica.state() == ReplicaState::Probing {
                    replica.enter(ReplicaState::Probing, "probe not answered in time");
                }
            }
            Finding::Failed(why) => {
                if replica.state() == ReplicaState::Probing {
                    replica.enter(ReplicaState::Probing, why);
                } else if misses >= MISSES_TO_EJECT {
                    self.pool.died(replica, now);
                    replica.enter(ReplicaState::Ejected, why);
                }
            }
        }
    }

    async fn probe(&self, config: &Pool, known: &mut Option<ProbeKind>) -> Finding {
        if let Err(finding) = self.list_models(config).await {
            return finding;
        }
        let kinds: &[ProbeKind] = match (config.probe.kind, &known) {
            (ProbeKind::Auto, Some(kind)) => &[*kind],
            (ProbeKind::Auto, None) => &AUTO_ORDER,
            (kind, _) => &[kind],
        };
        let mut last = Finding::Failed("no probe was answered".into());
        for kind in kinds {
            match self.ask(config, *kind).await {
                Finding::Proved(kind) => {
                    // `/health` is what is left when nothing real answers; look again next time.
                    *known = (kind != ProbeKind::Health).then_some(kind);
                    return Finding::Proved(kind);
                }
                Finding::Failed(why) => last = Finding::Failed(why),
                gone => return gone,
            }
        }
        last
    }

    async fn ask(&self, config: &Pool, kind: ProbeKind) -> Finding {
        let models = self.replica.models.load_full();
        let model = models.first().map_or("", |m| &*m.id);
        let (path, body) = match kind {
            ProbeKind::Completion | ProbeKind::Auto => {
                ("/v1/completions", json!({ "model": model, "prompt": config.probe.prompt, "max_tokens": 1 }))
            }
            ProbeKind::Embedding => {
                ("/v1/embeddings", json!({ "model": model, "input": config.probe.prompt }))
            }
            ProbeKind::Rerank => (
                "/rerank",
                json!({ "model": model, "query": config.probe.prompt, "documents": [config.probe.prompt] }),
            ),
            ProbeKind::Health => ("/health", serde_json::Value::Null),
        };
        let body = body.to_string();
        let call = self.call(config, path, (kind != ProbeKind::Health).then_some(body.as_str()));
        match call.send(&self.connector).await {
            Ok((status, _)) if status.is_success() => Finding::Proved(kind),
            Ok((status, _)) => Finding::Failed(format!("probe {path} answered {status}")),
            Err(CallError::Refused) => Finding::Refused,
            Err(CallError::Timeout) => Finding::Unanswered,
            Err(CallError::Broken(why)) => Finding::Failed(format!("probe {path}: {why}")),
        }
    }

    /// Which models it serves; an engine that does not list any is probed all the same.
    async fn list_models(&self, config: &Pool) -> Result<(), Finding> {
        let answer = self.call(config, "/v1/models", None).send(&self.connector).await;
        match answer {
            Ok((StatusCode::OK, body)) => {
                let page: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let models = page["data"].as_array().into_iter().flatten().filter_map(|entry| {
                    Some(Model { id: entry["id"].as_str()?.into(), entry: entry.clone() })
                });
                self.replica.models.store(Arc::new(models.take(MAX_MODELS).collect()));
                Ok(())
            }
            Ok(_) | Err(CallError::Broken(_)) => Ok(()),
            Err(CallError::Refused) => Err(Finding::Refused),
            Err(CallError::Timeout) => Err(Finding::Unanswered),
        }
    }

    fn call<'a>(&'a self, config: &'a Pool, path: &'a str, body: Option<&'a str>) -> Call<'a> {
        Call {
            endpoint: &self.replica.endpoint,
            key: config.engine_api_key.as_ref(),
            path,
            body,
            timeout: config.probe.timeout,
        }
    }
}

const AUTO_ORDER: [ProbeKind; 4] =
    [ProbeKind::Completion, ProbeKind::Embedding, ProbeKind::Rerank, ProbeKind::Health];
const RETRY: Duration = Duration::from_millis(250);
const MISSES_TO_EJECT: u32 = 2;
const MAX_MODELS: usize = 1000;
