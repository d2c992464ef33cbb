//! Records for the unit tests of this room.

use std::time::Duration;

use crate::clock::Stamp;
use crate::record::{
    Attempt, AttemptCause, ClientInfo, DecisionSummary, Moments, Opening, Outcome, Record, Served,
    TokenCounts,
};
use crate::request::class::Class;
use crate::request::dialect::Dialect;
use crate::request::trace_context::Trace;
use crate::units::Tokens;

fn at(ms: u64) -> Stamp {
    Stamp::from_nanos(ms * 1_000_000)
}

/// Replica `gpu-a:8000`.
pub(crate) fn served() -> Served {
    Served {
        pool: "llama".into(),
        revision: "v1".into(),
        replica: "gpu-a:8000".into(),
        engine: "vllm".into(),
        host: "gpu-a".into(),
        port: 8000,
        is_outside: false,
        is_standby: false,
    }
}

fn attempt() -> Attempt {
    Attempt {
        served: served().into(),
        span: 0xa1,
        cause: Default::default(),
        is_canceled: false,
        start: at(1012),
        connected: Some(at(1015)),
        head: Some(at(1020)),
        end: at(2300),
        status: Some(200),
        error: None,
        broken: None,
        expected: None,
        ahead: 0.0,
        seen: None,
        is_empty: false,
        engine_error: None,
    }
}

/// A good chat stream: read 10 ms, TTFT 200 ms, 1 s of decode, 1.3 s in all.
pub(crate) fn stream() -> Record {
    let trace_id = 0x1234_5678_9abc_def0_1234_5678_9abc_def0;
    let trace = Trace { trace_id, root: 0xb2, parent: None, flags_upstream: 0, state: None };
    let opening = Opening {
        client: ClientInfo::default(),
        request_id: "req-1".into(),
        trace,
        dialect: Dialect::Chat,
        path: "/v1/chat/completions".into(),
        head: at(1000),
    };
    Record {
        route: "llama".into(),
        model: "llama".into(),
        tenant: "acme".into(),
        slo_class: "interactive".into(),
        class: Class::Short,
        is_stream: true,
        outcome: Outcome::Ok,
        status: 200,
        at: Moments {
            head: at(1000),
            read: Some(at(1010)),
            admitted: Some(at(1011)),
            routed: Some(at(1012)),
            connected: Some(at(1015)),
            first_byte: Some(at(1020)),
            first_token: Some(at(1210)),
            last_token: Some(at(2210)),
            end: at(2300),
        },
        attempts: vec![attempt()],
        decision: Some(DecisionSummary {
            policy: "latency",
            reason: "prefix",
            waited: Duration::from_millis(1),
            predicted_ttft: Some(Duration::from_millis(150)),
            pace: 1.0,
            predicted_hit: Tokens(64),
            candidates: 2,
            is_cold: false,
            is_filling: false,
            longest_fill: Duration::ZERO,
            is_filling_beside: false,
            is_alone: false,
            weighed: Box::default(),
        }),
        tokens: TokenCounts { input: Some(Tokens(100)), cached: Some(Tokens(64)), output: Some(Tokens(21)) },
        estimated_input: Tokens(96),
        estimated_output: Tokens(0),
        side_by_side: 1.0,
        content_events: 21,
        longest_gap: Duration::from_millis(80),
        longest_gap_at: Some(at(1500)),
        response_model: Some("llama".into()),
        response_id: Some("chatcmpl-1".into()),
        finish_reasons: vec!["stop".into()],
        bytes_in: 500,
        bytes_out: 9000,
        ..Record::open(opening)
    }
}

/// The same where replica `gpu-b:8000` was silent, and after 100 ms a hedge was sent that won.
pub(crate) fn hedged() -> Record {
    let mut record = stream();
    let late = Attempt {
        served: Served { replica: "gpu-b:8000".into(), ..served() }.into(),
        span: 0xa0,
        is_canceled: true,
        connected: Some(at(1014)),
        head: None,
        end: at(1210),
        status: None,
        ..attempt()
    };
    let (start, connected, head) = (at(1112), Some(at(1115)), Some(at(1120)));
    let won = Attempt { cause: AttemptCause::Hedge, start, connected, head, ..attempt() };
    record.attempts = vec![late, won];
    (record.at.connected, record.at.first_byte) = (connected, head);
    record
}
