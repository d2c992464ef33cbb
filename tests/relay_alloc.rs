//! What the relay allocates for an ordinary event: nothing. Its own process, because the allocator is global.

use std::time::Duration;

use smallvec::SmallVec;
use tokenway::clock::Stamp;
use tokenway::relay::sse::Scanner;
use tokenway::relay::stream_state::{Echo, Event};
use tokenway::relay::timeline::Timeline;
use tokenway::relay::usage_filter::UsageFilter;
use tokenway::request::dialect::Dialect;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// One stream as the body drives it.
struct Stream {
    scanner: Scanner,
    timeline: Timeline,
    filter: UsageFilter,
    now: Stamp,
    contents: u64,
}

impl Stream {
    fn relay(&mut self, frame: &bytes::Bytes) {
        self.now = self.now.after(Duration::from_millis(20));
        let Self { scanner, timeline, filter, now, contents } = self;
        scanner.feed(frame, |event, _| {
            if let Event::Content { choice, tokens } = event {
                timeline.content(*now, choice, tokens);
                *contents += 1;
            }
        });
        if timeline.should_flush(*now) {
            timeline.flush(*now, |_| {});
        }
        let mut out = SmallVec::new();
        filter.filter(frame.clone(), &mut out);
    }
}

#[test]
fn an_ordinary_event_allocates_nothing() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let frames = |make: &dyn Fn(usize) -> String| -> Vec<bytes::Bytes> {
        (0..100).map(|i| bytes::Bytes::from(make(i))).collect()
    };
    let plain = |i: usize| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word{i} \\\"\"}},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n"
        )
    };
    let counted = |i: usize| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{i}\"}},\"token_ids\":[{i},2]}}],\"usage\":{{\"completion_tokens\":{i}}}}}\n\n"
        )
    };
    let several = |i: usize| plain(i) + &plain(i + 1) + ": keep-alive\n\n" + &plain(i + 2);
    for (name, frames, each) in
        [("plain", frames(&plain), 1), ("counted", frames(&counted), 1), ("several", frames(&several), 3)]
    {
        let mut stream = Stream {
            scanner: Scanner::new(Dialect::Chat, Echo::Off),
            timeline: Timeline::default(),
            filter: UsageFilter::default(),
            now: Stamp::default(),
            contents: 0,
        };
        // The first events of a stream make its buffers; gaps that wait for the count fill theirs.
        (0..6).for_each(|_| frames.iter().for_each(|frame| stream.relay(frame)));
        let (before, events) = (dhat::HeapStats::get().total_blocks, stream.contents);
        (0..10).for_each(|_| frames.iter().for_each(|frame| stream.relay(frame)));
        assert_eq!(stream.contents - events, 1000 * each, "{name}");
        assert_eq!(dhat::HeapStats::get().total_blocks, before, "{name}");
    }
}
