//! Takes out the usage chunk that the gateway, not the client, asked for, and puts back what asking for it had moved.
//!
//! Used only where the gateway adds `stream_options.include_usage`: the engine then sends one more event, with no choices
//! and with `usage`, which the client did not ask for and may not expect. Exactly that event and its blank line go. What engines
//! write into their last chunk moves into it from the chunk that finishes a choice (`system_fingerprint` of vLLM, `timings` of
//! llama.cpp): it is spliced back as that chunk's last members, so that the client's bytes are those of an engine that was not asked.
//!
//! Frames are of whole events ([`super::whole_events`]). Every other byte passes as it came, in the frames it came in, without a
//! copy. Of a stream of one choice the finishing chunk is held until the next event, which engines
//! send at once. Where several choices may finish at different times nothing can wait for the end: there the fingerprint
//! is what the replica's probe told.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::relay::chunk::ChunkView;
use crate::relay::frame::{Boundaries, SseFields, without_bom};
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};

/// What is known of the engine and of the request whose usage the gateway asked for.
#[derive(Clone, Debug, Default)]
pub struct AskedUsage {
    /// The stream has one choice, or may have several.
    pub has_several_choices: bool,
    /// `system_fingerprint` as the engine writes it when nobody asks for usage, quotes included.
    pub fingerprint: Option<Arc<str>>,
    /// A probe told that the engine sends no usage unasked. Without it a first chunk that counts already tells the contrary:
    /// we never ask for that.
    pub is_sure: bool,
}

/// Filters one stream. The scanner must read the bytes first: it needs the usage.
#[derive(Debug, Default)]
pub struct UsageFilter {
    boundaries: Boundaries,
    asked: AskedUsage,
    /// The last frame stopped within an event, which is too long to be held or will not end.
    is_within: bool,
    /// A chunk that finishes the only choice, until the next event.
    finish: Option<Finish>,
    /// The withheld event ended in a CR, so an LF that follows is its own.
    drops_line_feed: bool,
    has_choices: bool,
    /// The engine sends usage unasked: everything is the client's.
    is_off: bool,
}

/// A chunk with a finish reason.
#[derive(Debug)]
struct Finish {
    event: Bytes,
    /// Behind its last member.
    insert_at: usize,
}

impl UsageFilter {
    /// A filter for one stream.
    pub fn new(asked: AskedUsage) -> Self {
        Self { asked, ..Self::default() }
    }

    /// Puts what may pass now of a frame into `out`, in order; nothing where all of it is held or withheld. What has begun in it and
    /// does not end passes.
    pub fn filter(&mut self, frame: Bytes, out: &mut SmallVec<[Bytes; 4]>) {
        let mut start = self.boundaries.begin(&frame);
        // What passes is collected as one run as long as it is contiguous.
        let mut run = start;
        if start == 1 {
            // The LF of a CRLF that two frames share goes where its CR went.
            match &mut self.finish {
                Some(finish) => finish.event = [&finish.event[..], b"\n"].concat().into(),
                None if self.drops_line_feed => {}
                None => run = 0,
            }
        }
        self.drops_line_feed &= frame.is_empty();
        while let Some(end) = self.boundaries.next_end(&frame, start) {
            let event = frame.slice(start..end);
            let is_rest = std::mem::take(&mut self.is_within);
            match self.judge(&event).filter(|_| !is_rest) {
                None => out.extend(self.release()),
                Some(verdict) => {
                    push(out, &frame, run..start);
                    run = end;
                    self.settle(verdict, event, end == frame.len(), out);
                }
            }
            start = end;
        }
        if start < frame.len() {
            self.is_within = true;
            out.extend(self.release());
        }
        push(out, &frame, run..frame.len());
    }

    /// Nothing is held or begun: a frame of whole events without the usage chunk may bypass the filter.
    #[inline]
    pub fn is_between_events(&self) -> bool {
        self.boundaries.is_between_events() && self.finish.is_none() && !self.drops_line_feed
    }

    /// The finishing chunk, where no usage chunk followed it: it is relayed as it came.
    pub fn release(&mut self) -> Option<Bytes> {
        self.finish.take().map(|finish| finish.event)
    }

    /// Relays an event that does not simply pass.
    fn settle(&mut self, verdict: Verdict, event: Bytes, ends_frame: bool, out: &mut SmallVec<[Bytes; 4]>) {
        match verdict {
            Verdict::UsageOnly => {
                if let Some(finish) = &mut self.finish {
                    let mut joined = Vec::new();
                    let moved = members(&event, &mut joined).into_iter().filter(is_moved);
                    finish.add(moved.map(|(key, value)| (key.text(), value.text())));
                }
                // Only a CR that ends its frame may be followed by an LF of its own in the next one.
                self.drops_line_feed = ends_frame && event.last() == Some(&b'\r');
                out.extend(self.release());
            }
            Verdict::Finish { insert_at } => {
                out.extend(self.release());
                let mut finish = Finish { event, insert_at };
                if !self.asked.has_several_choices {
                    self.finish = Some(finish);
                    return;
                }
                finish.add(self.asked.fingerprint.iter().map(|known| (FINGERPRINT, &**known)));
                out.push(finish.event);
            }
        }
    }

    /// `None` where it is simply relayed.
    fn judge(&mut self, event: &[u8]) -> Option<Verdict> {
        if self.is_off || event.len() > MAX_LEN {
            return None;
        }
        let mut joined = Vec::new();
        let chunk = ChunkView::of_event(event, &mut joined)?;
        if chunk.has_choices() && !std::mem::replace(&mut self.has_choices, true) {
            self.is_off = chunk.usage.is_some() && !self.asked.is_sure;
        }
        if self.is_off { None } else { Verdict::of(&chunk) }
    }
}

impl Finish {
    /// Adds the members, each by its key and value as they are written, that it has not.
    fn add<'a>(&mut self, given: impl Iterator<Item = (&'a str, &'a str)>) {
        let (mut joined, mut added) = (Vec::new(), String::new());
        {
            let own = members(&self.event, &mut joined);
            for (key, value) in given.filter(|(key, _)| own.iter().all(|(name, _)| name.text() != *key)) {
                [",", key, ":", value].into_iter().for_each(|part| added.push_str(part));
            }
        }
        let (before, after) = self.event.split_at(self.insert_at);
        self.event = [before, added.as_bytes(), after].concat().into();
    }
}

/// The members of an event's object.
fn members<'a>(event: &'a [u8], joined: &'a mut Vec<u8>) -> SmallVec<[(Raw<'a>, Raw<'a>); 8]> {
    let mut found = SmallVec::new();
    let data = SseFields::of(without_bom(event), joined).data.and_then(|data| std::str::from_utf8(data).ok());
    // Both events were read before: what cannot be read has no members to move.
    let _read = Cursor::new(data.unwrap_or_default()).object(|key, value| {
        found.push((key, value.value()?));
        Ok::<_, JsonError>(())
    });
    found
}

/// Whether a member of the usage chunk is none that it has as a chunk of usage.
fn is_moved((key, value): &(Raw<'_>, Raw<'_>)) -> bool {
    let is_its_own = key.escaped().is_some_and(|name| USAGE_CHUNK.contains(&name));
    !is_its_own && value.kind() != JsonKind::Null
}

fn push(out: &mut SmallVec<[Bytes; 4]>, frame: &Bytes, range: Range<usize>) {
    if !range.is_empty() {
        out.push(frame.slice(range));
    }
}

/// What becomes of an event that is not simply relayed.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The usage-only chunk: no choices or none but null, `usage`, no error.
    UsageOnly,
    /// It finishes a choice. Where what it lacks belongs.
    Finish { insert_at: usize },
}

impl Verdict {
    fn of(chunk: &ChunkView<'_>) -> Option<Self> {
        if chunk.error.is_some() {
            return None;
        }
        if !chunk.has_choices() {
            return chunk.usage.map(|_| Self::UsageOnly);
        }
        let is_finish = chunk.choices.iter().any(|choice| choice.finish_reason().is_some());
        // Behind the last member; only data of one line stands in the event as it was read.
        let end = chunk.data.rfind('}').and_then(|end| chunk.in_event(&(end..end)))?;
        is_finish.then_some(Self::Finish { insert_at: end.start })
    }
}

/// No such chunk is longer; what is longer passes.
const MAX_LEN: usize = 64 * 1024;
/// vLLM has `metrics` beside usage alone.
const USAGE_CHUNK: [&str; 7] = ["id", "object", "created", "model", "choices", "usage", "metrics"];
const FINGERPRINT: &str = "\"system_fingerprint\"";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::sse::Scanner;
    use crate::relay::stream_state::Echo;
    use crate::relay::whole_events::WholeEvents;
    use crate::request::dialect::Dialect;

    const CONTENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"say \\\"choices\\\":[] \"}}]}\n\n";
    const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}] }\n\n";
    const USAGE: &str = "data: {\"id\":\"a\",\"choices\": [ ],\"usage\":{\"prompt_tokens\":1}}\n\n";
    const MARKED_USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"system_fingerprint\":\"fp\\\"1\"}\n\n";
    const MARKED: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}] ,\"system_fingerprint\":\"fp\\\"1\"}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn through<'a>(asked: AskedUsage, frames: impl Iterator<Item = &'a [u8]>) -> String {
        let (mut scanner, mut whole) = (Scanner::new(Dialect::Chat, Echo::Off), WholeEvents::default());
        let mut filter = UsageFilter::new(asked);
        let mut out = SmallVec::new();
        for frame in frames {
            let end = scanner.feed(frame, |_, _| {}).end;
            filter.filter(whole.cut(Bytes::copy_from_slice(frame), end), &mut out);
        }
        filter.filter(whole.rest(), &mut out);
        out.extend(filter.release());
        String::from_utf8(out.concat()).unwrap()
    }

    /// What becomes of a stream, the same for every way to cut it.
    fn filtered(asked: &AskedUsage, events: &[&str]) -> String {
        let whole = events.concat();
        let expected = through(asked.clone(), std::iter::once(whole.as_bytes()));
        for size in 1..whole.len() {
            assert_eq!(through(asked.clone(), whole.as_bytes().chunks(size)), expected, "frames of {size}");
        }
        expected
    }

    #[test]
    fn the_usage_chunk_goes_and_its_fingerprint_returns_however_lines_end() {
        let cr = |text: &str| text.replace('\n', "\r");
        let crlf = |text: &str| text.replace('\n', "\r\n");
        let plain = |text: &str| text.to_owned();
        let styles: [&dyn Fn(&str) -> String; 3] = [&plain, &crlf, &cr];
        for style in styles {
            for (usage, finish) in [(USAGE, FINISH), (MARKED_USAGE, MARKED)] {
                let events = [": ping\n\n", CONTENT, FINISH, usage, DONE].map(style);
                let all = events.each_ref().map(String::as_str);
                let expected = style(&[": ping\n\n", CONTENT, finish, DONE].concat());
                assert_eq!(filtered(&AskedUsage::default(), &all), expected);
            }
        }
    }

    #[test]
    fn what_the_last_chunk_has_beside_usage_returns_to_the_one_that_finishes() {
        let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"model\":\"m\",\"system_fingerprint\":\"b1\"}\n\n";
        let usage = "data: {\"choices\":[],\"model\":\"m\",\"system_fingerprint\":\"b1\",\"usage\":{\"total_tokens\":3},\"service_tier\":null,\"timings\":{\"cache_n\":0},\"__tool_call_incomplete\":true}\n\n";
        let whole = finish.replace("}\n", ",\"timings\":{\"cache_n\":0},\"__tool_call_incomplete\":true}\n");
        let through = filtered(&AskedUsage::default(), &[CONTENT, finish, usage, DONE]);
        assert_eq!(through, [CONTENT, &whole, DONE].concat());
    }

    #[test]
    fn choices_that_finish_at_different_times_have_the_known_fingerprint() {
        let asked =
            AskedUsage { has_several_choices: true, fingerprint: Some("\"fp\\\"1\"".into()), is_sure: true };
        let events = [CONTENT, FINISH, CONTENT, FINISH, MARKED_USAGE, DONE];
        assert_eq!(filtered(&asked, &events), [CONTENT, MARKED, CONTENT, MARKED, DONE].concat());
        let unknown = AskedUsage { fingerprint: None, ..asked };
        assert_eq!(filtered(&unknown, &events), [CONTENT, FINISH, CONTENT, FINISH, DONE].concat());
    }

    #[test]
    fn an_engine_that_counts_unasked_is_left_alone_unless_a_probe_said_that_it_does_not() {
        let counted =
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}],\"usage\":{\"prompt_tokens\":1}}\n\n";
        let events = [counted, FINISH, MARKED_USAGE, DONE];
        assert_eq!(filtered(&AskedUsage::default(), &events), events.concat());
        let sure = AskedUsage { is_sure: true, ..AskedUsage::default() };
        assert_eq!(filtered(&sure, &events), [counted, MARKED, DONE].concat());
    }

    #[test]
    fn what_only_resembles_them_passes() {
        let cases: [&[&str]; 12] = [
            &["data: {\"choices\":[],\"usage\":null}\n\n"],
            &["data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n"],
            &["data: {\"choices\":[{\"index\":0}],\"usage\":{\"prompt_tokens\":1}}\n\n"],
            &["data: {\"error\":{\"message\":\"x\"},\"choices\":[],\"usage\":{}}\n\n"],
            &["data: {\"x\":{\"choices\":[],\"usage\":{}}}\n\n"],
            &["data: {\"choices\":[],\"usage\":{\n\n"],
            &["data: {\"choices\":[],\"usage\":{}"],
            &[": \"choices\":[],\"usage\":{}\n\n"],
            &["\n\n\n"],
            &[FINISH, DONE],
            &[FINISH, ": ping\n\n", CONTENT],
            &[FINISH],
        ];
        for case in cases {
            assert_eq!(filtered(&AskedUsage::default(), case), case.concat());
        }
        assert_eq!(filtered(&AskedUsage::default(), &[MARKED, MARKED_USAGE, DONE]), [MARKED, DONE].concat());
    }

    #[test]
    fn data_of_several_lines_gets_no_splice() {
        let lines = "data: {\"choices\":[{\"finish_reason\":\ndata: \"stop\"}]}\n\n";
        assert_eq!(filtered(&AskedUsage::default(), &[lines, MARKED_USAGE]), lines);
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
    fn an_event_too_long_to_hold_passes() {
        let long = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(3 << 20));
        for size in [1000, 100_000, 2_000_000, long.len()] {
            assert_eq!(through(AskedUsage::default(), long.as_bytes().chunks(size)), long);
        }
    }
}
