//! One streamed chat request to the data port, and when its first token came.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use serde_json::json;

use crate::clock::Clock;
use crate::config::{Endpoint, Secret};
use crate::relay::sse::Scanner;
use crate::relay::stream_state::{Echo, Event};
use crate::request::dialect::Dialect;
use crate::upstream::call::CallError;
use crate::upstream::connect::Connector;
use crate::upstream::streamed::{Answer, open};

/// Whom to ask.
pub(super) struct Asker {
    pub(super) data: Endpoint,
    pub(super) key: Option<Secret>,
    pub(super) model: String,
    pub(super) connector: Connector,
    pub(super) clock: Clock,
}

/// When the answer came, from sending on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Its head.
    pub(super) head: Duration,
    /// Its first content.
    pub(super) first_token: Duration,
}

/// Why there was no first token.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskFailure {
    #[error("the data port {0}: {1}")]
    Unreachable(String, CallError),
    #[error("the gateway answered {0}: {1}")]
    Refused(u16, String),
    #[error("the answer ended without a token")]
    Empty,
    #[error("the answer had an error: {0}")]
    Broken(String),
    #[error("no first token within {0:?}")]
    Late(Duration),
    #[error("the request cannot be written: {0}")]
    Request(#[from] http::Error),
}

impl Asker {
    /// Asks for a few tokens with a prompt that no cache has, and reads to the end.
    pub(super) async fn ask(&self, within: Duration) -> Result<Asked, AskFailure> {
        let began = self.clock.now();
        let answer = async {
            let unreachable = |error| AskFailure::Unreachable(self.data.to_string(), error);
            let mut answer =
                open(&self.connector, &self.data, self.request()?, within).await.map_err(unreachable)?;
            let head = self.clock.now().since(began);
            if !answer.status().is_success() {
                return Err(refusal(&mut answer).await);
            }
            let (mut scanner, mut first_token) = (Scanner::new(Dialect::Chat, Echo::Off), None);
            while let Some(bytes) = answer.chunk().await.map_err(unreachable)? {
                let mut is_broken = false;
                scanner.feed(&bytes, |event, _| match event {
                    Event::Content { .. } => {
                        first_token = first_token.or(Some(self.clock.now().since(began)));
                    }
                    Event::Error(_) => is_broken = true,
                    _ => {}
                });
                if is_broken {
                    return Err(AskFailure::Broken(String::from_utf8_lossy(&bytes).trim().to_owned()));
                }
            }
            first_token.map(|first_token| Asked { head, first_token }).ok_or(AskFailure::Empty)
        };
        tokio::time::timeout(within, answer).await.unwrap_or(Err(AskFailure::Late(within)))
    }

    fn request(&self) -> http::Result<Request<Bytes>> {
        let prompt = format!("{:032x}: say a word", fastrand::u128(..));
        let body = json!({
            "model": self.model,
            "stream": true,
            "max_tokens": MAX_TOKENS,
            "messages": [{ "role": "user", "content": prompt }],
        });
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/v1/chat/completions", self.data.base_path))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        request.body(Bytes::from(body.to_string()))
    }
}

async fn refusal(answer: &mut Answer) -> AskFailure {
    let mut body = Vec::new();
    while body.len() < MAX_ERROR {
        match answer.chunk().await {
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    let json: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let message = json.as_ref().and_then(|json| json["error"]["message"].as_str()).unwrap_or(&text);
    AskFailure::Refused(answer.status().as_u16(), message.trim().to_owned())
}

const MAX_TOKENS: u32 = 4;
const MAX_ERROR: usize = 4096;
