//! `[hook]`: an HTTP service of the operator's that is asked before a request is sent, and learns what was answered.
//!
//! What to allow is its business, guardrails included; the gateway keeps the time limit, and decides as configured where there is no
//! answer. Connections are kept for the next request. What has been answered is posted behind the client's back, from a bounded queue.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use smallvec::SmallVec;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::Gateway;
use super::prepared::Prepared;
use crate::background::Background;
use crate::config::{Endpoint, Hook as Config, OnLoss, Route};
use crate::error::Failure;
use crate::observe::content::{Capture, Reader, fields};
use crate::observe::metrics::{HookOutcome, Metrics};
use crate::observe::record_guard::RecordGuard;
use crate::record::{Record, cut};
use crate::request::dialect::BodyForm;
use crate::request::multipart;
use crate::upstream::call::{Call, CallError, KeptConnection};
use crate::upstream::connect::Connector;

/// The service of `[hook]`.
#[derive(Debug)]
pub struct Hook {
    caller: Caller,
    after: Option<Arc<After>>,
}

#[derive(Clone, Debug)]
struct Caller {
    config: Arc<Config>,
    connector: Connector,
    idle: Arc<Mutex<Vec<KeptConnection>>>,
    metrics: Arc<Metrics>,
}

/// The service's decision about a request.
#[derive(Debug, Deserialize)]
struct Verdict {
    allow: bool,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    status: Option<u16>,
}

impl Hook {
    /// Starts what posts answers, until `stopped`.
    pub fn start(
        config: &Config,
        connector: Connector,
        metrics: &Arc<Metrics>,
        background: &Background,
        stopped: &CancellationToken,
    ) -> Self {
        let (config, metrics) = (Arc::new(config.clone()), Arc::clone(metrics));
        let caller = Caller { config, connector, idle: Arc::default(), metrics };
        let after = caller.config.after.clone().map(|endpoint| {
            let (sender, ended) = mpsc::channel(MAX_QUEUED);
            let posting = post_all(ended, caller.clone(), endpoint, background.clone());
            background.spawn_until(stopped, posting);
            Arc::new(After { sender, caller: caller.clone() })
        });
        Self { caller, after }
    }

    /// Whether a request is one of its routes', or may yet become one by `[route.degrade]`.
    fn is_for(&self, prepared: &Prepared) -> bool {
        // Its routes are those of the newest configuration, all else is as it was at start.
        let config = &prepared.table.config;
        let next = |route: &&Route| config.routes.get(route.degrade.as_ref()?.to);
        std::iter::successors(Some(&prepared.route.config), next)
            .any(|route| config.hook.as_ref().is_none_or(|hook| hook.is_for(&route.name)))
    }

    /// Who reads the answer to a request.
    fn reader(&self, prepared: &Prepared) -> Option<Arc<dyn Reader>> {
        let after = self.after.as_ref().filter(|_| self.is_for(prepared))?;
        Some(Arc::clone(after) as Arc<dyn Reader>)
    }

    /// Asks whether a request may be sent.
    async fn before(&self, prepared: &Prepared, record: &Record, parts: &Parts) -> Result<(), Failure> {
        let config = &self.caller.config;
        let Some(endpoint) = config.before.as_ref().filter(|_| self.is_for(prepared)) else {
            return Ok(());
        };
        let (outcome, result) = if prepared.held.bytes.len() > config.max_body {
            (HookOutcome::TooLarge, self.unasked())
        } else {
            match question(prepared, record, parts) {
                Some(question) => self.verdict(endpoint, &question).await,
                None => {
                    tracing::warn!(
                        "hook.before: a body that is not UTF-8 text cannot be checked (hook.on_failure)"
                    );
                    (HookOutcome::Failed, self.unasked())
                }
            }
        };
        self.caller.count("before", outcome);
        result
    }

    async fn verdict(&self, endpoint: &Endpoint, question: &str) -> (HookOutcome, Result<(), Failure>) {
        match self.caller.call(endpoint, question).await {
            Ok(answer) => match serde_json::from_slice::<Verdict>(&answer) {
                Ok(verdict) if verdict.allow => (HookOutcome::Ok, Ok(())),
                Ok(verdict) => (HookOutcome::Refused, Err(verdict.refusal())),
                Err(_) => {
                    tracing::warn!(
                        "hook.before: the answer is not {{\"allow\": true}} or {{\"allow\": false}}"
                    );
                    (HookOutcome::Failed, self.unasked())
                }
            },
            Err(outcome) => (outcome, self.unasked()),
        }
    }

    fn unasked(&self) -> Result<(), Failure> {
        match self.caller.config.on_failure {
            OnLoss::Open => Ok(()),
            OnLoss::Closed => Err(Failure::HookUnavailable),
        }
    }
}

impl Caller {
    /// Posts to the service; the body of its answer, or why there is none.
    async fn call(&self, endpoint: &Endpoint, body: &str) -> Result<bytes::Bytes, HookOutcome> {
        let path = if endpoint.base_path.is_empty() { "/" } else { "" };
        let call = Call { path, body: Some(body), ..Call::to(endpoint, self.config.timeout) };
        let mut kept = { self.idle.lock().pop() }.unwrap_or_default();
        let result = call.send_on(&self.connector, &mut kept).await;
        if result.is_ok() {
            let mut idle = self.idle.lock();
            if idle.len() < MAX_IDLE {
                idle.push(kept);
            }
        }
        match result {
            Ok((status, body)) if status.is_success() => Ok(body),
            Ok((status, _)) => {
                tracing::warn!(%status, hook = endpoint.origin(), "the hook answered with an error");
                Err(HookOutcome::Failed)
            }
            Err(error) => {
                tracing::warn!(%error, hook = endpoint.origin(), "the hook did not answer");
                Err(if matches!(error, CallError::Timeout) {
                    HookOutcome::Timeout
                } else {
                    HookOutcome::Failed
                })
            }
        }
    }

    fn count(&self, call: &str, outcome: HookOutcome) {
        self.metrics.families.requests.hook.inc([call, outcome.as_str()]);
    }
}

impl Verdict {
    fn refusal(self) -> Failure {
        let message = self.message.unwrap_or_else(|| "the request was refused (hook.before)".to_owned());
        let status = self.status.filter(|status| (400..500).contains(status)).unwrap_or(REFUSED);
        Failure::HookRefused { status, message: cut(&message, MAX_MESSAGE).to_owned() }
    }
}

/// What the service gets of a request: all but the client's credentials. `None` where its body is no text.
fn question(prepared: &Prepared, record: &Record, parts: &Parts) -> Option<String> {
    let body = body_text(record.dialect.body_form(), &parts.headers, &prepared.held.bytes)?;
    let mut headers = Map::new();
    for (name, value) in &parts.headers {
        if !is_secret(name.as_str()) {
            let value = String::from_utf8_lossy(value.as_bytes());
            match headers.get_mut(name.as_str()) {
                Some(Json::String(before)) => *before = format!("{before}, {value}"),
                _ => drop(headers.insert(name.to_string(), value.into())),
            }
        }
    }
    let mut head = fields::asked(record);
    for (name, value) in [
        ("path", json!(parts.uri.path())),
        ("method", json!(parts.method.as_str())),
        ("is_stream", json!(prepared.is_stream)),
        ("headers", headers.into()),
    ] {
        head.insert(name.to_owned(), value);
    }
    let mut question = Json::from(head).to_string();
    // The body stands behind the other members, and is not copied twice.
    question.pop();
    question.reserve(body.len() + 16);
    for part in [",\"body\":", &body, "}"] {
        question.push_str(part);
    }
    Some(question)
}

/// A body as JSON: as it came, or as one text, of a form without the files that are none.
fn body_text<'b>(form: BodyForm, headers: &HeaderMap, body: &'b [u8]) -> Option<Cow<'b, str>> {
    match std::str::from_utf8(body) {
        Ok("") => Some("null".into()),
        // It was read as JSON.
        Ok(text) if form == BodyForm::Json => Some(text.into()),
        // UTF-16 may be UTF-8 with zeros in it.
        Ok(text) if !text.contains('\0') => Some(json!(text).to_string().into()),
        _ => Some(json!(multipart::text(multipart::boundary(headers)?, body)?).to_string().into()),
    }
}

/// Whether a header carries a credential, or may.
fn is_secret(name: &str) -> bool {
    SECRET.iter().any(|part| name.contains(part))
}

/// Begins to capture what readers want of a request and its answer.
pub(super) fn capture(gateway: &Gateway, prepared: &Prepared, guard: &mut RecordGuard) {
    let route = &prepared.route.config;
    let is_recorded = route.content && prepared.tenant.config().content;
    let trail = gateway.observer.content().filter(|_| is_recorded);
    let hook = gateway.hook.as_ref().and_then(|hook| hook.reader(prepared));
    let readers: SmallVec<[_; 2]> = trail.into_iter().chain(hook).collect();
    if !readers.is_empty() {
        guard.capture(Box::new(Capture::new(&prepared.held.bytes, readers)));
    }
}

/// Asks the hook whether a request may be sent; the wait counts to its admission.
pub(super) async fn ask(
    gateway: &Gateway,
    prepared: &Prepared,
    guard: &mut RecordGuard,
    parts: &Parts,
) -> Result<(), Failure> {
    let Some(hook) = &gateway.hook else { return Ok(()) };
    // Boxed: most gateways have none, and its state would be part of every request's future.
    Box::pin(hook.before(prepared, guard.record(), parts)).await?;
    guard.record().at.admitted = Some(gateway.clock.now());
    Ok(())
}

/// Queues answers.
#[derive(Debug)]
struct After {
    sender: mpsc::Sender<(Arc<Record>, Arc<Capture>)>,
    caller: Caller,
}

impl Reader for After {
    fn limit(&self) -> usize {
        self.caller.config.max_body
    }

    fn request_limit(&self) -> usize {
        0
    }

    fn take(&self, record: &Arc<Record>, capture: &Arc<Capture>) {
        if self.sender.try_send((Arc::clone(record), Arc::clone(capture))).is_err() {
            self.caller.count("after", HookOutcome::Dropped);
        }
    }
}

async fn post_all(
    mut ended: mpsc::Receiver<(Arc<Record>, Arc<Capture>)>,
    caller: Caller,
    endpoint: Endpoint,
    background: Background,
) {
    let places = Arc::new(Semaphore::new(MAX_POSTS));
    while let Some((record, capture)) = ended.recv().await {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (caller, endpoint) = (caller.clone(), endpoint.clone());
        let post = async move {
            let report = report(&record, &capture, caller.config.max_body).to_string();
            let outcome =
                caller.call(&endpoint, &report).await.map_or_else(|outcome| outcome, |_| HookOutcome::Ok);
            caller.count("after", outcome);
            drop(place);
        };
        background.spawn(post);
    }
}

fn report(record: &Record, capture: &Capture, limit: usize) -> Json {
    let (answer, is_cut) = capture.answer(limit);
    let mut report = fields::ended(record);
    report.insert("answer".to_owned(), answer);
    report.insert("is_answer_cut".to_owned(), json!(is_cut));
    report.into()
}

/// Parts of the names of headers that the service does not get.
const SECRET: [&str; 12] = [
    "access", "auth", "cookie", "credential", "dpop", "jwt", "key", "pass", "secret",
    // OpenAI's browser clients put their key there.
    "sec-websocket-protocol", "signature", "token",
];
/// Status of a refusal without one.
const REFUSED: u16 = 403;
/// Bytes of the service's message that clients get.
const MAX_MESSAGE: usize = 1024;
/// Answers that wait to be posted.
const MAX_QUEUED: usize = 256;
/// Posted at a time.
const MAX_POSTS: usize = 16;
/// Connections kept open.
const MAX_IDLE: usize = 64;
