//! The instrument against a truth that is known: streams whose every arrival is chosen here, in simulated time.
//!
//! Bytes of real wire shapes go through the scanner, the clock and the windows, cut into reads at chosen moments. What must come
//! out is computed beside it from the chosen moments alone: the percentiles of both are within one per cent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::fmt::Write as _;
use std::time::Duration;

use tokenway::clock::Stamp;
use tokenway::observe::latency::{Measure, Window};
use tokenway::observe::windows::{WindowKey, Windows};
use tokenway::relay::sse::Scanner;
use tokenway::relay::stream_state::{Echo, Event};
use tokenway::relay::timeline::Timeline;
use tokenway::request::dialect::Dialect;

/// One chosen arrival: bytes that one read returns, and the events that are whole with it.
struct Read {
    at: Duration,
    bytes: Vec<u8>,
    /// Choice and tokens of each content event that this read completes.
    completes: Vec<(usize, u32)>,
}

/// How a stream encodes the number of tokens per event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// With every event (`continuous_usage_stats`).
    AtOnce,
    /// In the last chunk only.
    AtTheEnd,
}

/// How the events of a stream are put on the wire.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    counts: Counts,
    choices: usize,
    /// Tokens of an event, at most.
    tokens: u32,
    /// Share of events that come in the read of the next one, of a hundred.
    coalesced: u32,
    /// Share of events that are cut in two, the second half a read later.
    split: u32,
    delta: fn(u32) -> String,
    /// Comments, role-only chunks and empty deltas in between.
    noise: bool,
}

fn text(n: u32) -> String {
    format!(r#"{{"content":" word{n}"}}"#)
}

fn reasoning(n: u32) -> String {
    format!(r#"{{"reasoning":"so {n}, ","content":null}}"#)
}

fn tool(n: u32) -> String {
    format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":"{{\"a\":{n}"}}}}]}}"#)
}

const PLAIN: Shape = Shape {
    name: "one token an event, one event a read",
    counts: Counts::AtTheEnd,
    choices: 1,
    tokens: 1,
    coalesced: 0,
    split: 0,
    delta: text,
    noise: false,
};

const SHAPES: &[Shape] = &[
    PLAIN,
    Shape { name: "coalesced and split", coalesced: 20, split: 20, ..PLAIN },
    Shape { name: "several tokens an event", counts: Counts::AtOnce, tokens: 8, ..PLAIN },
    Shape { name: "several tokens, coalesced", counts: Counts::AtOnce, tokens: 5, coalesced: 30, ..PLAIN },
    Shape { name: "reasoning", delta: reasoning, noise: true, ..PLAIN },
    Shape { name: "tool calls", delta: tool, noise: true, split: 30, ..PLAIN },
    Shape { name: "comments, pings, empty deltas", noise: true, coalesced: 10, split: 10, ..PLAIN },
    Shape { name: "three choices", choices: 3, coalesced: 15, split: 15, noise: true, ..PLAIN },
];

/// Waits and gaps as fleets have them: mostly alike, some slow, a few very slow.
struct Times(fastrand::Rng);

impl Times {
    fn heavy_tailed(&mut self, typical_ms: f64) -> Duration {
        let spread = (self.0.f64() + self.0.f64() + self.0.f64()) / 1.5;
        let slow = match self.0.u32(..1000) {
            0..=1 => 40.0,
            2..=19 => 6.0,
            _ => 1.0,
        };
        // Whole microseconds, as no clock is finer for a person.
        Duration::from_micros((typical_ms * 1000.0 * (0.2 + spread) * slow) as u64)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(..100) < percent
    }
}

/// The reads of one stream: the first token after `ttft`, then events at chosen gaps.
fn stream(shape: Shape, times: &mut Times, ttft: Duration) -> Vec<Read> {
    let mut reads = Vec::new();
    let mut held: (Vec<u8>, Vec<(usize, u32)>) =
        (event(r#"{"role":"assistant","content":""}"#, 0, None), Vec::new());
    if shape.noise {
        // Before the first token there is silence with signs of life in it.
        reads.push(Read { at: ttft / 2, bytes: b": keep-alive\n\n".to_vec(), completes: Vec::new() });
    }
    let (mut at, mut running) = (ttft, vec![0; shape.choices]);
    for number in 0..EVENTS {
        let choice = times.0.usize(..shape.choices);
        let tokens = 1 + times.0.u32(..shape.tokens);
        running[choice] += tokens;
        let usage = (shape.counts == Counts::AtOnce).then_some(running[choice]);
        if shape.noise && times.chance(20) {
            held.0.extend(b": ping\n\n");
            held.0.extend(event(r#"{"content":""}"#, choice, None));
        }
        let bytes = event(&(shape.delta)(number), choice, usage);
        let is_last = number + 1 == EVENTS;
        let cut = if times.chance(shape.split) { times.0.usize(1..bytes.len()) } else { bytes.len() };
        held.0.extend(&bytes[..cut]);
        if cut < bytes.len() {
            reads.push(Read {
                at,
                bytes: std::mem::take(&mut held.0),
                completes: std::mem::take(&mut held.1),
            });
            at += times.heavy_tailed(GAP_MS / 4.0);
            held.0.extend(&bytes[cut..]);
        }
        held.1.push((choice, tokens));
        if is_last || !times.chance(shape.coalesced) {
            reads.push(Read {
                at,
                bytes: std::mem::take(&mut held.0),
                completes: std::mem::take(&mut held.1),
            });
        }
        at += times.heavy_tailed(GAP_MS);
    }
    let total: u32 = running.iter().sum();
    let tail = format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{total}}}}}\n\n"
    );
    let bytes = [tail.as_bytes(), b"data: [DONE]\n\n"].concat();
    reads.push(Read { at: at + Duration::from_secs(3), bytes, completes: Vec::new() });
    reads
}

fn event(delta: &str, choice: usize, usage: Option<u32>) -> Vec<u8> {
    let mut text = format!(
        r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":null}}]"#
    );
    if let Some(tokens) = usage {
        write!(
            text,
            r#","usage":{{"prompt_tokens":9,"total_tokens":{},"completion_tokens":{tokens}}}"#,
            tokens + 9
        )
        .unwrap();
    }
    text.push_str("}\n\n");
    text.into_bytes()
}

/// What must come out, from the chosen arrivals alone.
#[derive(Default)]
struct Truth {
    ttft: Vec<Duration>,
    icl: Vec<Duration>,
    itl: Vec<Duration>,
}

impl Truth {
    fn take(&mut self, shape: Shape, reads: &[Read]) {
        let mut last = vec![None; shape.choices];
        let events = reads.iter().flat_map(|read| read.completes.iter().map(|event| (read.at, *event)));
        for (at, (choice, tokens)) in events {
            if last.iter().all(Option::is_none) {
                self.ttft.push(at);
            }
            if let Some(before) = last[choice].replace(at) {
                let gap: Duration = at - before;
                self.icl.push(gap);
                self.itl.extend(std::iter::repeat_n(gap / tokens, tokens as usize));
            }
        }
    }
}

/// The instrument: reads in, windows out; as the relay feeds them, without its sockets.
fn measure(windows: &Windows, reads: &[Read], begin: Duration) {
    let series = &windows.series(&key()).whole;
    let stamp = |at: Duration| Stamp::default().after(begin + at);
    let mut scanner = Scanner::new(Dialect::Chat, Echo::Off);
    let mut timeline = Timeline::default();
    for read in reads {
        let now = stamp(read.at);
        timeline.byte(now);
        scanner.feed(&read.bytes, |event, _| {
            if let Event::Content { choice, tokens } = event
                && timeline.content(now, choice, tokens)
            {
                series.observe(Measure::Ttft, std::iter::once(now.since(stamp(Duration::ZERO))), now);
            }
        });
        if timeline.should_flush(now) {
            timeline.flush(now, |gaps| series.gaps(&gaps, now));
        }
    }
    let end = stamp(reads.last().unwrap().at);
    let output = scanner.state().answer.tokens.output.map(|tokens| tokens.0);
    timeline.finish(end, output, |gaps| series.gaps(&gaps, end));
}

fn key() -> WindowKey {
    WindowKey { route: "r".into(), model: "m".into(), revision: "v".into() }
}

#[track_caller]
fn assert_within_a_percent(what: &str, mut truth: Vec<Duration>, counts: &tokenway::stats::Counts) {
    assert_eq!(counts.count(), truth.len() as u64, "{what}: nothing lost, nothing made up");
    truth.sort_unstable();
    for quantile in [0.5, 0.99, 0.999] {
        let reported = counts.quantile(quantile).unwrap();
        let rank = (quantile * truth.len() as f64).ceil() as usize;
        let truth = truth[rank - 1].as_secs_f64();
        // Ten microseconds are the unit of the windows: a gap of zero has no per cent.
        let error = (reported - truth).abs();
        assert!(
            error <= (truth * 0.01).max(1e-5),
            "{what}: the quantile {quantile} is {truth} and was reported as {reported}"
        );
    }
}

#[test]
fn percentiles_are_within_a_percent_of_what_was_chosen() {
    for (seed, shape) in SHAPES.iter().enumerate() {
        let mut times = Times(fastrand::Rng::with_seed(seed as u64 + 1));
        let (windows, mut truth) = (Windows::default(), Truth::default());
        for number in 0..STREAMS {
            let ttft = times.heavy_tailed(TTFT_MS);
            let reads = stream(*shape, &mut times, ttft);
            truth.take(*shape, &reads);
            measure(&windows, &reads, Duration::from_millis(u64::from(number) * 400));
        }
        let end = Stamp::default().after(Duration::from_secs(1700));
        let [view] = &windows.read(None, Window::Hour, end)[..] else { panic!("one series") };
        assert_within_a_percent(&format!("{}: ttft", shape.name), truth.ttft, view.of(Measure::Ttft));
        assert_within_a_percent(&format!("{}: icl", shape.name), truth.icl, view.of(Measure::Icl));
        assert_within_a_percent(&format!("{}: itl", shape.name), truth.itl, view.of(Measure::Itl));
    }
}

#[test]
fn where_the_count_comes_last_every_event_has_the_mean() {
    // Four tokens in every event but the first, which has one: 41 tokens in 11 events, four each by the mean.
    let windows = Windows::default();
    let mut reads: Vec<Read> = (0..11)
        .map(|n| Read {
            at: Duration::from_millis(100 + 80 * n),
            bytes: event(&text(n as u32), 0, None),
            completes: Vec::new(),
        })
        .collect();
    let usage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":41}}\n\ndata: [DONE]\n\n";
    reads.push(Read { at: Duration::from_secs(2), bytes: usage.into(), completes: Vec::new() });
    measure(&windows, &reads, Duration::ZERO);
    let [view] = &windows.read(None, Window::Minute, Stamp::default().after(Duration::from_secs(3)))[..]
    else {
        panic!("one series")
    };
    assert_eq!((view.of(Measure::Icl).count(), view.of(Measure::Itl).count()), (10, 40));
    for (counts, expected) in [(view.of(Measure::Icl), 0.080), (view.of(Measure::Itl), 0.020)] {
        let median = counts.quantile(0.5).unwrap();
        assert!((median / expected - 1.0).abs() < 0.004, "{median}");
    }
}

const STREAMS: u32 = 1_000;
const EVENTS: u32 = 60;
const TTFT_MS: f64 = 180.0;
const GAP_MS: f64 = 12.0;
