//! One target: sends streamed chat requests and measures the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tokenway_sim::replay::Measured;
use tokenway_sim::time::Stamp as SimStamp;
use tokio_util::task::TaskTracker;

use super::{BenchArgs, BenchError};
use crate::clock::{Clock, Stamp};
use crate::config::{Endpoint, Secret};
use crate::relay::sse::Scanner;
use crate::relay::stream_state::{Echo, Event, StreamEnd};
use crate::relay::timeline::Timeline;
use crate::request::dialect::Dialect;
use crate::stats::Histogram;
use crate::upstream::call::Call;
use crate::upstream::connect::Connector;
use crate::upstream::streamed::open;

/// A target and what it has answered so far.
pub(super) struct Client {
    pub(super) url: Endpoint,
    pub(super) model: String,
    key: Option<Secret>,
    connector: Connector,
    clock: Clock,
    timeout: Duration,
    pub(super) ended: Mutex<EndedRequests>,
}

#[derive(Default)]
pub(super) struct EndedRequests {
    pub(super) measured: Vec<Measured>,
    /// Inter-token latencies, as the gateway counts them.
    pub(super) itl: Histogram,
    /// Why requests have no complete answer, and how many.
    pub(super) failures: BTreeMap<String, u64>,
}

/// A request that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) at: Stamp,
    /// Of the whole run.
    pub(super) start: Stamp,
    pub(super) output: u64,
    pub(super) prompt_tokens: u64,
}

impl Client {
    /// A client of `url`; asks it for its models where none is given.
    pub(super) async fn new(
        url: &Endpoint,
        args: &BenchArgs,
        key: Option<Secret>,
        clock: Clock,
    ) -> Result<Self, BenchError> {
        let connector = Connector::new(TaskTracker::new())?;
        let call = Call { key: key.as_ref(), path: "/v1/models", ..Call::to(url, LISTED_WITHIN) };
        let model = match &args.model {
            Some(model) => model.clone(),
            None => {
                let listed = call.send(&connector).await;
                let (status, page) =
                    listed.map_err(|error| BenchError::Unreachable { url: url.to_string(), error })?;
                let page: Json = serde_json::from_slice(&page).unwrap_or_default();
                let first = page["data"][0]["id"].as_str().map(str::to_owned);
                first.ok_or_else(|| match (url.to_string(), status.as_u16()) {
                    (url, status @ (401 | 403)) => BenchError::Refused { url, status },
                    (url, status) => BenchError::NoModel { url, status },
                })?
            }
        };
        let (url, timeout) = (url.clone(), args.timeout);
        Ok(Self { url, model, key, connector, clock, timeout, ended: Mutex::default() })
    }

    /// Sends a request and measures its answer.
    pub(super) async fn ask(&self, prompt: &str, due: Due) {
        let sim = |stamp: Stamp| SimStamp::from_nanos(stamp.since(due.start).as_nanos() as u64);
        let mut measured = Measured {
            arrived: sim(due.at),
            sent: Some(sim(self.clock.now())),
            prompt: due.prompt_tokens,
            last_token: sim(due.at),
            ..Measured::default()
        };
        let answer = self.answer(prompt, due.output, &mut measured, &sim);
        let ended = tokio::time::timeout(self.timeout, answer).await;
        let mut all = self.ended.lock();
        if let Err(why) = ended.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout))) {
            measured.is_failed = true;
            *all.failures.entry(why).or_default() += 1;
        }
        all.measured.push(measured);
    }

    async fn answer(
        &self,
        prompt: &str,
        output: u64,
        measured: &mut Measured,
        sim: &impl Fn(Stamp) -> SimStamp,
    ) -> Result<(), String> {
        let request = self.request(prompt, output).map_err(|error| error.to_string())?;
        let answer = open(&self.connector, &self.url, request, self.timeout).await;
        let mut answer = answer.map_err(|error| error.to_string())?;
        if !answer.status.is_success() {
            return Err(format!("status {}", answer.status.as_u16()));
        }
        let (mut scanner, mut timeline) = (Scanner::new(Dialect::Chat, Echo::Off), Timeline::default());
        while let Some(bytes) = answer.chunk().await.map_err(|error| format!("stream broken: {error}"))? {
            let now = self.clock.now();
            scanner.feed(&bytes, |event, _| {
                if let Event::Content { choice, tokens } = event {
                    measured.first_token.get_or_insert(sim(now));
                    measured.last_token = sim(now);
                    measured.tokens += 1;
                    timeline.content(now, choice, tokens);
                }
            });
        }
        let tokens = scanner.state().answer.tokens;
        timeline.finish(self.clock.now(), tokens.output.map(|output| output.0), |gaps| {
            let mut all = self.ended.lock();
            gaps.itl().for_each(|(gap, tokens)| all.itl.add(gap, tokens));
        });
        measured.tokens = tokens.output.map_or(measured.tokens, |output| output.0);
        measured.prompt = tokens.input.map_or(measured.prompt, |input| input.0);
        measured.cached = tokens.cached.map(|cached| cached.0);
        match scanner.finish(true) {
            StreamEnd::Complete if measured.first_token.is_some() => Ok(()),
            StreamEnd::Complete => Err("an answer without content".to_owned()),
            StreamEnd::Failed(_) => Err("an error event in the stream".to_owned()),
            StreamEnd::Truncated => Err("the stream ended early".to_owned()),
        }
    }

    fn request(&self, prompt: &str, output: u64) -> http::Result<Request<Bytes>> {
        let body = json!({
            "model": self.model,
            "stream": true,
            "stream_options": { "include_usage": true },
            "max_tokens": output,
            "ignore_eos": true,
            "messages": [{ "role": "user", "content": prompt }],
        });
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/v1/chat/completions", self.url.base_path))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        request.body(Bytes::from(body.to_string()))
    }
}

const LISTED_WITHIN: Duration = Duration::from_secs(5);
