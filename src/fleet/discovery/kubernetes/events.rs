//! The events of a watch: JSON objects, one a line, for minutes.

use bytes::BytesMut;
use serde::Deserialize;

use super::error::{ApiError, Refusal};
use super::object::{Event, Object};
use crate::upstream::call::CallError;
use crate::upstream::streamed::Answer;

/// An open watch.
#[derive(Debug)]
pub(super) struct Events {
    answer: Answer,
    read: BytesMut,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

impl Events {
    /// Reads the answer to a watch.
    pub(super) fn new(answer: Answer) -> Self {
        Self { answer, read: BytesMut::new() }
    }

    /// The next event; `None` when the server ended the watch in order.
    pub(super) async fn next<O: Object>(&mut self) -> Result<Option<Event<O>>, ApiError> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.read) {
                let line = self.read.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return parse(&line).map(Some);
            }
            if self.read.len() > MAX_LINE {
                return Err(ApiError::Protocol("an event is too long".into()));
            }
            match self.answer.chunk().await? {
                Some(chunk) => self.read.extend_from_slice(&chunk),
                None if self.read.is_empty() => return Ok(None),
                None => return Err(CallError::Broken("the watch ended within an event".into()).into()),
            }
        }
    }
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: Option<String>,
}

fn parse<O: Object>(line: &[u8]) -> Result<Event<O>, ApiError> {
    let wrong = |error: serde_json::Error| ApiError::Protocol(error.to_string());
    let Line { kind, object } = serde_json::from_slice(line).map_err(wrong)?;
    let whole = || serde_json::from_str::<O>(object.get()).map_err(wrong);
    match kind {
        "ADDED" | "MODIFIED" => whole().map(Event::Changed),
        "DELETED" => whole().map(Event::Deleted),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(object.get()).map_err(wrong)?;
            bookmark
                .metadata
                .resource_version
                .map(Event::Bookmark)
                .ok_or_else(|| ApiError::Protocol("a bookmark without a version".into()))
        }
        "ERROR" => {
            let refusal: Refusal = serde_json::from_str(object.get()).unwrap_or_default();
            match refusal.code {
                Some(410) => Err(ApiError::Expired),
                _ => Err(ApiError::Protocol(refusal.message)),
            }
        }
        other => Err(ApiError::Protocol(format!("an event of type {other:?}"))),
    }
}

/// A slice of a thousand endpoints has some 500 kB.
const MAX_LINE: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::super::slices::Slice;
    use super::*;

    #[test]
    fn events_are_told_apart_and_an_expired_version_is_no_other_error() {
        let slice =
            r#"{"metadata":{"name":"s","resourceVersion":"7"},"addressType":"IPv4","endpoints":null}"#;
        let event =
            |kind: &str| parse::<Slice>(format!(r#"{{"type":"{kind}","object":{slice}}}"#).as_bytes());
        assert!(matches!(event("ADDED"), Ok(Event::Changed(_))));
        assert!(matches!(event("DELETED"), Ok(Event::Deleted(_))));
        assert_eq!(event("BOOKMARK").unwrap().version(), Some("7"));
        assert!(matches!(event("WHAT"), Err(ApiError::Protocol(_))));
        let error = |code| {
            parse::<Slice>(
                format!(r#"{{"type":"ERROR","object":{{"code":{code},"message":"m"}}}}"#).as_bytes(),
            )
        };
        assert!(matches!(error(410), Err(ApiError::Expired)));
        assert!(matches!(error(500), Err(ApiError::Protocol(_))));
        assert!(parse::<Slice>(b"{").is_err());
    }
}
