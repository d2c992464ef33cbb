//! Preflights that the engines decide on (no `server.cors_origins`).
//!
//! They carry no key, so they must cost an engine next to nothing: one at a time goes there, a few a second, without credentials,
//! cookies or any header that is not the question itself. What an engine said is kept for the same question.

use std::time::Duration;

use bytes::Bytes;
use hashlink::LruCache;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response, header};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::models;
use super::table::RoutingTable;
use crate::clock::{Clock, Stamp};
use crate::error::Failure;
use crate::relay::body::ReplyBody;
use crate::request::dialect::Dialect;
use crate::stats::PerSecond;
use crate::upstream::headers::{self, X_REQUEST_ID};

/// What engines said to preflights, and the turn of the next one.
#[derive(Debug)]
pub struct Preflights {
    known: Mutex<LruCache<Question, Answer>>,
    asked: PerSecond,
    turn: Semaphore,
}

impl Default for Preflights {
    fn default() -> Self {
        let known = Mutex::new(LruCache::new(MAX_KNOWN));
        Self { known, asked: PerSecond::default(), turn: Semaphore::new(1) }
    }
}

/// Path, origin, method and headers of a preflight.
type Question = [Box<[u8]>; 4];

#[derive(Debug)]
struct Answer {
    response: Response<Bytes>,
    asked: Stamp,
}

/// A preflight whose turn it is to go to an engine.
#[derive(Debug)]
pub(super) struct Asked<'p> {
    preflights: &'p Preflights,
    question: Question,
    clock: Clock,
    _turn: SemaphorePermit<'p>,
}

impl Preflights {
    /// Whether a preflight goes to an engine; `None` on a path that has none. Its head then holds the question alone.
    ///
    /// # Errors
    /// What an engine said to the same question.
    pub(super) async fn ask(
        &self,
        table: &RoutingTable,
        parts: &mut Parts,
        clock: Clock,
    ) -> Result<Option<Asked<'_>>, Preflight> {
        let Some(question) = question(table, parts) else { return Ok(None) };
        if let Some(answer) = self.answer(&question, FRESH, clock.now()) {
            return Err(Preflight::Known(answer));
        }
        let turn = tokio::time::timeout(MAX_WAIT, self.turn.acquire()).await;
        let now = clock.now();
        // Another one may have asked it meanwhile.
        if let Some(answer) = self.answer(&question, FRESH, now) {
            return Err(Preflight::Known(answer));
        }
        match turn {
            Ok(Ok(turn)) if self.asked.takes(now, MAX_PER_SECOND) => {
                parts.headers = question_alone(&parts.headers);
                Ok(Some(Asked { preflights: self, question, clock, _turn: turn }))
            }
            _ => {
                let stale = self.answer(&question, Duration::MAX, now);
                Err(stale.map_or(Preflight::Refused, Preflight::Known))
            }
        }
    }

    /// The answer that an engine gave to this question, if it is not older than `age`.
    fn answer(&self, question: &Question, age: Duration, now: Stamp) -> Option<Response<Bytes>> {
        let mut known = self.known.lock();
        let answer = known.get(question).filter(|answer| now.since(answer.asked) < age)?;
        Some(answer.response.clone())
    }
}

/// A preflight that no engine is asked about.
#[derive(Debug)]
pub(super) enum Preflight {
    /// An engine's answer to the same question.
    Known(Response<Bytes>),
    /// Too many new questions.
    Refused,
}

impl Preflight {
    /// The failure of one that is refused.
    pub(super) fn too_many() -> Failure {
        let message = format!(
            "more than {MAX_PER_SECOND} new preflights a second: server.cors_origins lets the gateway answer them itself"
        );
        Failure::NotAdmitted { limit: "preflights", message, retry_after: Some(Duration::from_secs(1)) }
    }
}

impl Asked<'_> {
    /// Keeps what an engine said.
    pub(super) fn learn(self, response: &mut Response<ReplyBody>) {
        let (status, headers) = (response.status(), response.headers().clone());
        let ReplyBody::Whole(whole) = response.body_mut() else { return };
        let body = whole.bytes().clone();
        let Some(guard) = whole.guard() else { return };
        let size = self.question.iter().map(|part| part.len()).sum::<usize>() + body.len();
        if status.is_server_error() || guard.record().served().is_none() || size > MAX_SIZE {
            return;
        }
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        let ours: Vec<HeaderName> = answer.headers().keys().filter(|name| is_ours(name)).cloned().collect();
        for name in ours {
            answer.headers_mut().remove(name);
        }
        let answer = Answer { response: answer, asked: self.clock.now() };
        self.preflights.known.lock().insert(self.question, answer);
    }
}

fn question(table: &RoutingTable, parts: &Parts) -> Option<Question> {
    let path = parts.uri.path();
    let pattern = match Dialect::of_path(path, &table.config.server.extra_paths) {
        Some((pattern, _)) => pattern,
        None if models::is_path(path) => models::LIST,
        None if matches!(path, "/health" | "/version") => path,
        None => return None,
    };
    let given = |name| {
        let values: Vec<&[u8]> = parts.headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        values.join(&b"\n"[..]).into()
    };
    let [origin, method, headers] =
        [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS]
            .map(given);
    Some([pattern.as_bytes().into(), origin, method, headers])
}

/// The headers that a preflight is made of, and those that the gateway itself reads.
fn question_alone(given: &HeaderMap) -> HeaderMap {
    let keeps = [
        header::HOST,
        header::VIA,
        X_REQUEST_ID,
        header::ORIGIN,
        header::ACCESS_CONTROL_REQUEST_METHOD,
        header::ACCESS_CONTROL_REQUEST_HEADERS,
    ];
    let each = keeps.iter().flat_map(|name| given.get_all(name).iter().map(move |value| (name, value)));
    each.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Headers of one answer alone.
fn is_ours(name: &HeaderName) -> bool {
    headers::is_ours(name)
        || *name == X_REQUEST_ID
        || *name == "server-timing"
        || matches!(*name, header::DATE | header::SET_COOKIE)
}

/// How long an answer holds.
const FRESH: Duration = Duration::from_secs(60);
/// How long a preflight waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// New questions: pages ask a handful.
const MAX_PER_SECOND: u32 = 10;
const MAX_KNOWN: usize = 256;
/// Bytes of a question and its answer that are worth keeping.
const MAX_SIZE: usize = 4096;
/// How long an engine may take for one, as the others wait for it.
pub(super) const MAX_TIME: Duration = Duration::from_secs(5);
