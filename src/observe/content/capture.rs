//! One request with its answer, on the way to who reads them.

use std::sync::Arc;

use serde_json::Value as Json;
use smallvec::SmallVec;

use super::answer::StreamText;
use super::redact::{REDACTED, Redact};
use crate::debug::debug_as;
use crate::record::Record;

/// Who takes what was asked and answered, at the end of a request.
pub trait Reader: Send + Sync {
    /// Bytes that it reads of an answer.
    fn limit(&self) -> usize;

    /// The same of a request.
    fn request_limit(&self) -> usize {
        self.limit()
    }

    /// Takes it at once, or drops and counts it.
    fn take(&self, record: &Arc<Record>, capture: &Arc<Capture>);
}

debug_as!(dyn Reader => "Reader");

/// What was asked, and what of the answer has passed.
#[derive(Debug)]
pub struct Capture {
    readers: SmallVec<[Arc<dyn Reader>; 2]>,
    limit: usize,
    /// Beginning of the request's body.
    pub(super) request: Box<[u8]>,
    answer: Answer,
}

/// What of an answer is kept.
#[derive(Debug)]
enum Answer {
    None,
    /// Beginning of a body, and whether that is all.
    Whole(Vec<u8>, bool),
    /// The same of events or lines, in whose frames no pattern finds what spans two of them.
    Pieces(Vec<u8>, bool),
    Stream(StreamText),
}

impl Capture {
    /// Of a request with this body.
    pub fn new(body: &[u8], readers: SmallVec<[Arc<dyn Reader>; 2]>) -> Self {
        let limit = readers.iter().map(|reader| reader.limit()).max().unwrap_or_default();
        let most = readers.iter().map(|reader| reader.request_limit()).max().unwrap_or_default();
        Self { readers, limit, request: body.get(..most).unwrap_or(body).into(), answer: Answer::None }
    }

    /// At most `limit` bytes of the answer, and whether there was more: a body, or the texts of a stream by choice.
    pub fn answer(&self, limit: usize) -> (Json, bool) {
        self.redacted_answer(&Redact::default(), limit)
    }

    /// The same without what `redact` takes out.
    pub(super) fn redacted_answer(&self, redact: &Redact, limit: usize) -> (Json, bool) {
        match &self.answer {
            Answer::None => (Json::Null, false),
            Answer::Pieces(bytes, is_all) if !redact.is_empty() => {
                let mut text = StreamText::default();
                text.push(bytes, self.limit);
                if !is_all {
                    text.cut_short();
                }
                // What cannot be put together may be any secret.
                let json = if text.is_empty() { REDACTED.into() } else { text.json(redact, limit) };
                (json, !is_all || text.is_cut(limit))
            }
            Answer::Whole(bytes, is_all) | Answer::Pieces(bytes, is_all) => {
                (redact.body(bytes, limit), !is_all || bytes.len() > limit)
            }
            Answer::Stream(text) => (text.json(redact, limit), text.is_cut(limit)),
        }
    }

    /// The body is one of events or lines.
    pub(crate) fn comes_in_pieces(&mut self) {
        self.answer = Answer::Pieces(Vec::new(), true);
    }

    /// Bytes of an answer's body went to the client.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if let Answer::None = self.answer {
            self.answer = Answer::Whole(Vec::new(), true);
        }
        if let Answer::Whole(kept, is_all) | Answer::Pieces(kept, is_all) = &mut self.answer {
            let room = self.limit - kept.len().min(self.limit);
            *is_all &= bytes.len() <= room;
            kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// Bytes of a stream of events went to the client.
    pub(crate) fn events(&mut self, bytes: &[u8]) {
        if let Answer::None = self.answer {
            self.answer = Answer::Stream(StreamText::default());
        }
        if let Answer::Stream(text) = &mut self.answer {
            text.push(bytes, self.limit);
        }
    }

    pub(crate) fn deliver(self: Box<Self>, record: &Arc<Record>) {
        let capture: Arc<Self> = Arc::from(self);
        for reader in &capture.readers {
            reader.take(record, &capture);
        }
    }
}
