//! W3C Trace Context: `traceparent` and `tracestate`, in and out.
//!
//! Strict, as the recommendation asks: a header that is wrong in any byte is treated as if it had not come, and
//! a new trace begins. Ids are made here without a tracer, because spans are built when the request has ended.

use http::{HeaderMap, HeaderName};

use crate::digits;

/// W3C trace context of a request, and the span ids that its spans use.
#[derive(Clone, Debug)]
pub struct Trace {
    /// 128-bit trace id, the client's or ours; never zero.
    pub trace_id: u128,
    /// Span id of our root (SERVER) span; never zero.
    pub root: u64,
    /// The caller's span id, when a valid `traceparent` came in.
    pub parent: Option<u64>,
    /// The flags that go upstream with the attempts: the caller's as they came.
    pub flags_upstream: u8,
    /// `tracestate`, forwarded as it came.
    pub state: Option<Box<str>>,
}

impl Trace {
    /// Whether the replicas were asked to sample.
    pub fn is_sampled_upstream(&self) -> bool {
        self.flags_upstream & SAMPLED == SAMPLED
    }

    /// Whether the caller asked for that.
    pub fn is_sampled_by_caller(&self) -> bool {
        self.parent.is_some() && self.is_sampled_upstream()
    }
}

/// The trace of a request: the caller's where a valid `traceparent` came, else a new one.
///
/// `routine` is the share of traces that is marked as sampled for the replicas when the caller does not decide;
/// `None` where no spans are exported.
pub fn trace_of(headers: &HeaderMap, routine: Option<f64>) -> Trace {
    let incoming = parent(headers);
    let trace_id = incoming.map_or_else(new_trace_id, |parent| parent.trace_id);
    let head_decision = routine.is_some_and(|share| in_share(trace_id, share));
    Trace {
        trace_id,
        root: new_span_id(),
        parent: incoming.map(|parent| parent.span),
        flags_upstream: incoming.map_or(u8::from(head_decision), |parent| parent.flags),
        state: incoming.and_then(|_| state(headers)),
    }
}

/// Appends the `traceparent` that goes upstream with the attempt whose span is `span`.
pub fn write_traceparent(to: &mut Vec<u8>, trace: &Trace, span: u64) {
    to.extend_from_slice(b"00-");
    digits::hex(to, trace.trace_id, 32);
    to.push(b'-');
    digits::hex(to, u128::from(span), 16);
    to.push(b'-');
    digits::hex(to, u128::from(trace.flags_upstream), 2);
}

/// A span id that is not zero.
pub fn new_span_id() -> u64 {
    fastrand::u64(1..)
}

fn new_trace_id() -> u128 {
    fastrand::u128(1..)
}

/// Whether a trace falls into a share of all traces, by its low 56 bits: those are random in every trace id, and
/// gateways that see the same trace agree.
pub fn in_share(trace_id: u128, share: f64) -> bool {
    const RANDOM_BITS: u32 = 56;
    let low = (trace_id & ((1 << RANDOM_BITS) - 1)) as f64;
    low < share * 2f64.powi(RANDOM_BITS as i32)
}

/// A parsed `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace_id: u128,
    span: u64,
    flags: u8,
}

fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (first, second) = (values.next()?, values.next());
    if second.is_some() {
        return None;
    }
    parse(first.as_bytes())
}

fn parse(text: &[u8]) -> Option<Parent> {
    let version = hex(text.get(0..2)?)?;
    // 255 is forbidden; a later version may add fields after the four that are known.
    let is_whole = match version {
        0 => text.len() == LENGTH,
        255 => false,
        _ => text.len() == LENGTH || text.get(LENGTH) == Some(&b'-'),
    };
    let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
    if !is_whole || !dashes {
        return None;
    }
    let trace_id = hex(text.get(3..35)?)?;
    let span = u64::try_from(hex(text.get(36..52)?)?).ok()?;
    let known = if version == 0 { u8::MAX } else { SAMPLED };
    let flags = known & u8::try_from(hex(text.get(53..55)?)?).ok()?;
    (trace_id != 0 && span != 0).then_some(Parent { trace_id, span, flags })
}

/// Lower-case hexadecimal digits only: the standard parser would take signs and capitals.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0u128, |value, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(nibble))
    })
}

/// `tracestate` as it came, several headers joined; none where it is longer than what we promise to carry.
fn state(headers: &HeaderMap) -> Option<Box<str>> {
    let values: Vec<&str> =
        headers.get_all(TRACESTATE).iter().map(|v| v.to_str()).collect::<Result<_, _>>().ok()?;
    let joined = values.join(",");
    (!joined.is_empty() && joined.len() <= MAX_STATE).then(|| joined.into())
}

/// `traceparent` (W3C Trace Context)
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate` (W3C Trace Context)
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const LENGTH: usize = 55;
/// Bit of the flags.
const SAMPLED: u8 = 1;
const MAX_STATE: usize = 512;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn traceparents() {
        let sampled = |flags| {
            let trace_id = u128::from_str_radix(ID, 16).unwrap();
            Some(Parent { trace_id, span: 0x00f0_67aa_0ba9_02b7, flags })
        };
        let table = [
            ("00-ID-00f067aa0ba902b7-01", sampled(1)),
            ("00-ID-00f067aa0ba902b7-00", sampled(0)),
            ("00-ID-00f067aa0ba902b7-03", sampled(3)),
            ("cc-ID-00f067aa0ba902b7-01-what-the-future-adds", sampled(1)),
            ("cc-ID-00f067aa0ba902b7-01", sampled(1)),
            ("cc-ID-00f067aa0ba902b7-01.later", None),
            ("ff-ID-00f067aa0ba902b7-01", None),
            ("00-ID-00f067aa0ba902b7-01-more", None),
            ("00-ID-00f067aa0ba902b7-1", None),
            ("00-ID-00F067AA0BA902B7-01", None),
            ("00-ID-0000000000000000-01", None),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
            ("00-ID_00f067aa0ba902b7-01", None),
            ("00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text.replace("ID", ID).as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn the_callers_trace_goes_on_with_its_flag_and_state() {
        let parent = format!("00-{ID}-00f067aa0ba902b7-01");
        let headers = headers(&[("traceparent", &parent), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let trace = trace_of(&headers, None);
        assert_eq!(trace.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!((trace.is_sampled_by_caller(), trace.flags_upstream), (true, 1));
        assert_eq!(trace.state.as_deref(), Some("a=1,b=2"));
        let mut text = Vec::new();
        write_traceparent(&mut text, &trace, 7);
        assert_eq!(text, format!("00-{ID}-0000000000000007-01").as_bytes());
    }

    #[test]
    fn without_a_valid_parent_a_trace_begins_and_the_head_ratio_decides() {
        let headers = headers(&[("traceparent", "nonsense"), ("tracestate", "a=1")]);
        for (routine, expected) in [(None, false), (Some(0.0), false), (Some(1.0), true)] {
            let trace = trace_of(&headers, routine);
            assert_eq!((trace.is_sampled_by_caller(), trace.flags_upstream), (false, u8::from(expected)));
            assert!(trace.trace_id != 0 && trace.root != 0 && trace.parent.is_none());
            assert_eq!(trace.state, None, "a state without a parent is meaningless");
        }
    }

    #[test]
    fn two_parents_are_none_and_long_states_are_left_behind() {
        let parent = format!("00-{ID}-00f067aa0ba902b7-01");
        let twice = headers(&[("traceparent", &parent), ("traceparent", &parent)]);
        assert_eq!(trace_of(&twice, None).parent, None);
        let long = format!("a={}", "x".repeat(511));
        let long = headers(&[("traceparent", &parent), ("tracestate", &long)]);
        assert_eq!(trace_of(&long, None).state, None);
    }
}
