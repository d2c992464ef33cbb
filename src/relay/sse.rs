//! Reads an engine's event stream as it passes: one pass over the bytes, whatever way the reads split them.
//!
//! An event that lies whole in one read is looked at in place; one that spans reads is put together in a buffer
//! of bounded size that the stream keeps. The bytes themselves are relayed by somebody else and at once: nothing here
//! holds them up. It tells facts with the position where their event ends, and judges the end of the stream.

use crate::relay::classify::{Echo, Event, Reading, StreamEnd};
use crate::relay::cut;
use crate::relay::frame::{Boundaries, Fields, Tail, without_bom};
use crate::relay::template::{Recognised, Templates};
use crate::request::dialect::Dialect;

/// Scans one stream.
#[derive(Debug)]
pub struct Scanner {
    boundaries: Boundaries,
    templates: Templates,
    reading: Reading,
    /// The event that the last read stopped in.
    carried: Carried,
    /// Several `data` lines of one event, joined.
    joined: Vec<u8>,
    is_at_start: bool,
}

impl Scanner {
    /// A scanner for a stream of this dialect. `echo` tells whether the request asked for its prompt back.
    #[must_use]
    pub fn new(dialect: Dialect, echo: Echo) -> Self {
        Self {
            boundaries: Boundaries::default(),
            templates: Templates::default(),
            reading: Reading::new(dialect, echo),
            carried: Carried::default(),
            joined: Vec::new(),
            is_at_start: true,
        }
    }

    /// Takes the next bytes of the stream and tells each fact, in order, with the position in `read` behind the event
    /// it came from. Events without data (comments) tell nothing. Returns the position behind the last event that
    /// ended in this read: what follows is the beginning of another.
    pub fn feed(&mut self, read: &[u8], mut tell: impl FnMut(Event, usize)) -> usize {
        let mut start = self.boundaries.begin(read);
        while let Some(end) = self.boundaries.next_end(read, start) {
            let piece = read.get(start..end).unwrap_or_default();
            let mut tell = |event| tell(event, end);
            if self.carried.is_empty() {
                self.event(piece, &mut tell);
            } else {
                self.carried_event(piece, &mut tell);
            }
            start = end;
        }
        if let Some(rest) = read.get(start..) {
            self.carried.extend(rest);
        }
        start
    }

    /// What the stream told so far.
    #[must_use]
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Where the stream stands, for whoever must write something after it.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.boundaries.tail()
    }

    /// Judges the stream at its end; `is_clean` where the body's framing ended as it should. An event that has begun
    /// but not ended counts for nothing, as the standard says.
    #[must_use]
    pub fn finish(&self, is_clean: bool) -> StreamEnd {
        self.reading.end(is_clean)
    }

    #[inline]
    fn event(&mut self, raw: &[u8], tell: &mut dyn FnMut(Event)) {
        match self.templates.recognise(raw) {
            Some(Recognised { is_empty: true, .. }) => tell(Event::Other),
            Some(Recognised { choice, .. }) => tell(Event::Content { choice, tokens: None }),
            None => self.parse(raw, tell),
        }
    }

    fn carried_event(&mut self, piece: &[u8], tell: &mut dyn FnMut(Event)) {
        self.carried.extend(piece);
        let mut carried = std::mem::take(&mut self.carried);
        match carried.cut_ends() {
            None => self.event(&carried.bytes, tell),
            Some((head, tail)) => {
                self.is_at_start = false;
                cut::read(&mut self.reading, head, tail, tell);
            }
        }
        carried.reset();
        self.carried = carried;
    }

    fn parse(&mut self, raw: &[u8], tell: &mut dyn FnMut(Event)) {
        let event = if std::mem::take(&mut self.is_at_start) { without_bom(raw) } else { raw };
        let mut repaired = None;
        let mut joined = std::mem::take(&mut self.joined);
        let fields = Fields::of(event, &mut joined);
        let is_text = fields.data.is_none_or(|data| std::str::from_utf8(data).is_ok());
        let fields = if is_text {
            fields
        } else {
            // Readers of event streams replace what is no UTF-8; so do we, to judge what they see.
            let text = fields.data.map(|data| String::from_utf8_lossy(data).into_owned());
            Fields { data: repaired.insert(text).as_deref().map(str::as_bytes), ..fields }
        };
        if let Some(plain) = self.reading.read(fields, tell) {
            let string = plain.string.as_bytes().as_ptr_range();
            let place = raw.as_ptr_range();
            // Only where the string lies in the event itself: not for joined or repaired data.
            if place.contains(&string.start) {
                let start = string.start.addr() - place.start.addr();
                self.templates.learn(raw, start..start + plain.string.len(), plain.choice);
            }
        }
        self.joined = joined;
    }
}

/// An event that spans reads.
#[derive(Debug, Default)]
struct Carried {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Carried {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn extend(&mut self, more: &[u8]) {
        for piece in more.chunks(LONGEST - END) {
            if self.bytes.len() + piece.len() > LONGEST {
                let kept = self.bytes.len().saturating_sub(END).max(END);
                self.bytes.drain(END..kept);
                self.is_cut = true;
            }
            self.bytes.extend_from_slice(piece);
        }
    }

    /// The two ends that are left of an event that was too long.
    fn cut_ends(&self) -> Option<(&[u8], &[u8])> {
        self.is_cut.then(|| self.bytes.split_at(END))
    }

    fn reset(&mut self) {
        self.bytes.clear();
        // One long event must not hold its memory for the rest of a long stream.
        self.bytes.shrink_to(KEPT);
        self.is_cut = false;
    }
}

/// An event is read whole up to this length.
const LONGEST: usize = 1024 * 1024;
/// Of a longer one this much of each end.
const END: usize = 64 * 1024;
const KEPT: usize = 8 * 1024;
