//! The events of a watch: JSON objects, one a line, for minutes.

use bytes::BytesMut;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Refusal};
use super::object::Listed;
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
    pub(super) async fn next<O: DeserializeOwned>(&mut self) -> Result<Option<Reached<O>>, ApiError> {
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

/// What a line holds.
pub(super) struct Reached<O> {
    /// The version that the watch has reached.
    pub(super) version: Option<String>,
    /// `None` where nothing changed up to that version.
    pub(super) event: Option<Event<O>>,
}

#[derive(Debug)]
pub(super) enum Event<O> {
    /// The object of this name is new or has changed.
    Changed(String, O),
    /// It is gone, or is selected no more.
    Deleted(String),
}

fn parse<O: DeserializeOwned>(line: &[u8]) -> Result<Reached<O>, ApiError> {
    let wrong = |error: serde_json::Error| ApiError::Protocol(error.to_string());
    let Line { kind, object } = serde_json::from_slice(line).map_err(wrong)?;
    if kind == "ERROR" {
        let refusal: Refusal = serde_json::from_str(object.get()).unwrap_or_default();
        return Err(match refusal.code {
            Some(410) => ApiError::Expired,
            _ => ApiError::Protocol(refusal.message),
        });
    }
    let Listed { metadata } = serde_json::from_str(object.get()).map_err(wrong)?;
    let (name, version) = (metadata.name, metadata.resource_version);
    let event = match kind {
        "ADDED" | "MODIFIED" => {
            Some(Event::Changed(name, serde_json::from_str(object.get()).map_err(wrong)?))
        }
        "DELETED" => Some(Event::Deleted(name)),
        "BOOKMARK" => None,
        other => return Err(ApiError::Protocol(format!("an event of type {other:?}"))),
    };
    if event.is_none() && version.is_none() {
        return Err(ApiError::Protocol("a bookmark without a version".into()));
    }
    Ok(Reached { version, event })
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
        assert!(matches!(event("ADDED").unwrap().event, Some(Event::Changed(name, _)) if name == "s"));
        assert!(matches!(event("DELETED").unwrap().event, Some(Event::Deleted(name)) if name == "s"));
        let bookmark = event("BOOKMARK").unwrap();
        assert_eq!((bookmark.version.as_deref(), bookmark.event.is_none()), (Some("7"), true));
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
