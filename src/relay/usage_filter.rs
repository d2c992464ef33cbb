//! Takes out the usage chunk that the gateway, not the client, asked for.
//!
//! Used only where a route adds `stream_options.include_usage`: the engine then sends one more event, with no choices
//! and with `usage`, which the client did not ask for and may not expect. Exactly that event and its blank line go;
//! every other byte passes as it came, in the frames it came in, without a copy. An event that a frame ends
//! within is held only until its `choices` show that it is not the one.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::relay::frame::{Boundaries, SseFields, without_bom};
use crate::request::json::{Cursor, JsonError, JsonKind};

/// Filters one stream. The scanner must read the bytes first: it needs the usage.
#[derive(Debug, Default)]
pub struct UsageFilter {
    boundaries: Boundaries,
    event: PartialEvent,
    /// The withheld event ended in a CR, so an LF that follows is its own.
    drops_line_feed: bool,
}

/// The event that the last frame stopped in.
#[derive(Debug, Default)]
enum PartialEvent {
    /// The last frame ended between events.
    #[default]
    None,
    /// It may be the usage chunk: its bytes so far.
    Held(Vec<u8>),
    /// It is not, and passes.
    Passing,
}

impl UsageFilter {
    /// Puts what may pass now of a frame into `out`, in order; nothing where all of it is held or withheld.
    pub fn filter(&mut self, frame: Bytes, out: &mut SmallVec<[Bytes; 4]>) {
        let mut start = self.boundaries.begin(&frame);
        // What passes is collected as one run as long as it is contiguous.
        let mut run = start;
        if start == 1 {
            // The LF of a CRLF that two frames share goes where its CR went.
            match &mut self.event {
                PartialEvent::Held(held) => held.push(b'\n'),
                _ if self.drops_line_feed => {}
                _ => run = 0,
            }
        }
        self.drops_line_feed &= frame.is_empty();
        while let Some(end) = self.boundaries.next_end(&frame, start) {
            let piece = frame.get(start..end).unwrap_or_default();
            match std::mem::take(&mut self.event) {
                PartialEvent::None if UsageCheck::of(piece) == UsageCheck::UsageOnly => {
                    push(out, &frame, run..start);
                    run = end;
                    self.note_withheld(&frame, end);
                }
                PartialEvent::None | PartialEvent::Passing => {}
                PartialEvent::Held(mut held) => {
                    held.extend_from_slice(piece);
                    push(out, &frame, run..start);
                    run = end;
                    if UsageCheck::of(&held) == UsageCheck::UsageOnly {
                        self.note_withheld(&frame, end);
                    } else {
                        out.push(held.into());
                    }
                }
            }
            start = end;
        }
        self.begun(&frame, run, start, out);
    }

    /// Nothing is held or begun: a frame of whole events without the usage chunk may bypass the filter.
    #[must_use]
    #[inline]
    pub fn is_between_events(&self) -> bool {
        self.boundaries.is_between_events()
            && matches!(self.event, PartialEvent::None)
            && !self.drops_line_feed
    }

    /// What is still held when the stream ends: an event that never ended, which is relayed like all else.
    pub fn finish(&mut self) -> Option<Bytes> {
        match std::mem::take(&mut self.event) {
            PartialEvent::Held(held) if !held.is_empty() => Some(held.into()),
            _ => None,
        }
    }

    /// Decides about the event that `frame` stops in, from `start` on.
    fn begun(&mut self, frame: &Bytes, run: usize, start: usize, out: &mut SmallVec<[Bytes; 4]>) {
        let rest = frame.get(start..).unwrap_or_default();
        if rest.is_empty() || matches!(self.event, PartialEvent::Passing) {
            return push(out, frame, run..frame.len());
        }
        if let PartialEvent::Held(held) = &mut self.event {
            held.extend_from_slice(rest);
            if UsageCheck::of(held) == UsageCheck::Relayed {
                out.push(std::mem::take(held).into());
                self.event = PartialEvent::Passing;
            }
            return;
        }
        if UsageCheck::of(rest) == UsageCheck::Relayed {
            push(out, frame, run..frame.len());
            self.event = PartialEvent::Passing;
        } else {
            push(out, frame, run..start);
            self.event = PartialEvent::Held(rest.to_vec());
        }
    }

    /// Only a CR that ends its frame may be followed by an LF of its own in the next one.
    fn note_withheld(&mut self, frame: &[u8], end: usize) {
        self.drops_line_feed = end == frame.len() && frame.last() == Some(&b'\r');
    }
}

fn push(out: &mut SmallVec<[Bytes; 4]>, frame: &Bytes, range: std::ops::Range<usize>) {
    if !range.is_empty() {
        out.push(frame.slice(range));
    }
}

/// What is known of an event, from all of it or from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsageCheck {
    /// The usage-only chunk: no choices, `usage`, no error.
    UsageOnly,
    /// Any other event: it is relayed.
    Relayed,
    /// An event that ends before its JSON does: either may come of it.
    Undecided,
}

impl UsageCheck {
    fn of(raw: &[u8]) -> Self {
        if raw.len() > MAX_LEN {
            return Self::Relayed;
        }
        let mut joined = Vec::new();
        let data = SseFields::of(without_bom(raw), &mut joined).data.unwrap_or_default();
        // A frame may end inside a character.
        let valid = std::str::from_utf8(data).map_or_else(|error| error.valid_up_to(), |_| data.len());
        let text = data.get(..valid).and_then(|data| std::str::from_utf8(data).ok()).unwrap_or_default();
        Self::read(text).unwrap_or_else(|decided| decided)
    }

    /// `Err` as soon as it is decided, or where the text ends.
    fn read(data: &str) -> Result<Self, Self> {
        let (mut has_choices, mut has_usage, mut has_error) = (false, false, false);
        let mut cursor = Cursor::new(data);
        cursor.object(|key, value| {
            match key.escaped().unwrap_or_default() {
                "choices" if value.ahead() == JsonKind::Array => {
                    has_choices = true;
                    value.array(|choice| {
                        // Also what is ahead where the text ends: then this is a fault.
                        if choice.ahead() == JsonKind::Null {
                            choice.value()?;
                        }
                        Err(Self::Relayed)
                    })?;
                }
                "usage" => has_usage = value.value()?.kind() != JsonKind::Null,
                "error" => has_error = value.value()?.kind() != JsonKind::Null,
                _ => {}
            }
            Ok::<_, Self>(())
        })?;
        cursor.end()?;
        Ok(if has_choices && has_usage && !has_error { Self::UsageOnly } else { Self::Relayed })
    }
}

impl From<JsonError> for UsageCheck {
    fn from(_: JsonError) -> Self {
        Self::Undecided
    }
}

/// No usage chunk is longer; what is longer passes.
const MAX_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"say \\\"choices\\\":[] \"}}]}\n\n";
    const USAGE: &str = "data: {\"id\":\"a\",\"choices\": [ ],\"usage\":{\"prompt_tokens\":1}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn through<'a>(frames: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<Bytes>>, Vec<u8>) {
        let mut filter = UsageFilter::default();
        let mut passed = Vec::new();
        for frame in frames {
            let mut out = SmallVec::new();
            filter.filter(Bytes::copy_from_slice(frame), &mut out);
            passed.push(out.into_vec());
        }
        passed.push(filter.finish().into_iter().collect());
        let all = passed.iter().flatten().flatten().copied().collect();
        (passed, all)
    }

    #[test]
    fn only_the_usage_chunk_goes_however_the_frames_are_cut() {
        let cr = |text: &str| text.replace('\n', "\r");
        let crlf = |text: &str| text.replace('\n', "\r\n");
        let plain = |text: &str| text.to_owned();
        let styles: [&dyn Fn(&str) -> String; 3] = [&plain, &crlf, &cr];
        for style in styles {
            let whole = style(&[": ping\n\n", CONTENT, USAGE, DONE].concat());
            let expected = style(&[": ping\n\n", CONTENT, DONE].concat());
            for size in 1..=whole.len() {
                let (_, all) = through(whole.as_bytes().chunks(size));
                assert_eq!(String::from_utf8(all).unwrap(), expected, "frames of {size}");
            }
        }
    }

    #[test]
    fn what_only_resembles_it_passes() {
        let cases = [
            "data: {\"choices\":[],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
            "data: {\"choices\":[{\"index\":0}],\"usage\":{\"prompt_tokens\":1}}\n\n",
            "data: {\"error\":{\"message\":\"x\"},\"choices\":[],\"usage\":{}}\n\n",
            "data: {\"x\":{\"choices\":[],\"usage\":{}}}\n\n",
            "data: {\"choices\":[],\"usage\":{\n\n",
            "data: {\"choices\":[],\"usage\":{}",
            ": \"choices\":[],\"usage\":{}\n\n",
            "\n\n\n",
        ];
        for case in cases {
            for size in 1..=case.len() {
                let (_, all) = through(case.as_bytes().chunks(size));
                assert_eq!(String::from_utf8(all).unwrap(), case, "frames of {size}");
            }
        }
    }

    #[test]
    fn whole_events_pass_in_the_frames_they_came_in() {
        let frame = [CONTENT, CONTENT].concat();
        let bytes = Bytes::from(frame);
        let mut out = SmallVec::new();
        UsageFilter::default().filter(bytes.clone(), &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].as_ptr(), bytes.as_ptr(), "not copied");
    }

    #[test]
    fn half_an_event_passes_as_soon_as_it_has_a_choice() {
        let frames = ["data: {\"choi", "ces\":", "[", "{\"delta\":", "{}}]}\n\n"];
        let (passed, _) = through(frames.iter().map(|frame| frame.as_bytes()));
        let lens: Vec<usize> = passed.iter().map(Vec::len).collect();
        assert_eq!(lens, [0, 0, 0, 1, 1, 0]);
    }
}
