//! Every fault in every phase, from both sides: what the client got, what the engines saw, what was counted.

use super::{CHAT, PATH, Pair, UNARY};
use crate::support::replica::Step;
use crate::support::wire;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    BeforeHead,
    BeforeFirstToken,
    MidStream,
    Unary,
}

/// What the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The other replica's answer: it sees nothing of the fault.
    Elsewhere,
    /// What the bad replica said, under this status, complete.
    Relayed(u16),
    /// 200, the content so far, an error event, an abort.
    Broken,
}

/// One cell: fault, phase, what the client gets, and the retry's reason where there is one.
type Cell = (&'static str, Phase, Client, Option<&'static str>);

use Client::{Broken, Elsewhere, Relayed};
use Phase::{BeforeFirstToken, BeforeHead, MidStream, Unary};

#[rustfmt::skip]
const CELLS: &[Cell] = &[
    ("close",       BeforeHead,       Elsewhere,    Some("closed_before_head")),
    ("close",       BeforeFirstToken, Elsewhere,    Some("truncated")),
    ("close",       MidStream,        Broken,       None),
    ("close",       Unary,            Elsewhere,    Some("truncated")),
    ("reset",       BeforeHead,       Elsewhere,    Some("closed_before_head")),
    ("reset",       BeforeFirstToken, Elsewhere,    Some("truncated")),
    ("reset",       MidStream,        Broken,       None),
    ("reset",       Unary,            Elsewhere,    Some("truncated")),
    ("clean end",   BeforeFirstToken, Elsewhere,    Some("truncated")),
    ("clean end",   MidStream,        Broken,       None),
    ("dead event",  BeforeFirstToken, Elsewhere,    Some("engine_down")),
    ("dead event",  MidStream,        Broken,       None),
    ("abort event", BeforeFirstToken, Elsewhere,    Some("engine_down")),
    ("abort event", MidStream,        Broken,       None),
    ("error event", BeforeFirstToken, Relayed(200), None),
    ("error event", MidStream,        Broken,       None),
    ("dead 500",    BeforeHead,       Elsewhere,    Some("engine_down")),
    ("dead 500",    Unary,            Elsewhere,    Some("engine_down")),
    ("500",         BeforeHead,       Relayed(500), None),
    ("500",         Unary,            Relayed(500), None),
    ("502",         BeforeHead,       Elsewhere,    Some("status_502")),
    ("502",         Unary,            Elsewhere,    Some("status_502")),
    ("503",         BeforeHead,       Elsewhere,    Some("status_503")),
    ("503",         Unary,            Elsewhere,    Some("status_503")),
    ("504",         BeforeHead,       Elsewhere,    Some("status_504")),
    ("504",         Unary,            Elsewhere,    Some("status_504")),
    ("400",         BeforeHead,       Relayed(400), None),
    ("400",         Unary,            Relayed(400), None),
    ("429",         BeforeHead,       Relayed(429), None),
    ("429",         Unary,            Relayed(429), None),
    ("page",        BeforeHead,       Elsewhere,    Some("not_an_answer")),
    ("page",        Unary,            Elsewhere,    Some("not_an_answer")),
    ("302",         BeforeHead,       Elsewhere,    Some("not_an_answer")),
    ("302",         Unary,            Elsewhere,    Some("not_an_answer")),
    ("204",         BeforeHead,       Elsewhere,    Some("not_an_answer")),
    ("204",         Unary,            Elsewhere,    Some("not_an_answer")),
    ("dead 200",    BeforeHead,       Elsewhere,    Some("engine_down")),
    ("dead 200",    Unary,            Elsewhere,    Some("engine_down")),
    ("error 200",   BeforeHead,       Relayed(200), None),
    ("error 200",   Unary,            Relayed(200), None),
];

fn answer(fault: &str) -> Vec<Step> {
    match fault {
        "close" => vec![Step::Close],
        "reset" => vec![Step::Reset],
        "clean end" => vec![Step::End],
        "dead event" => wire::ending(wire::ENGINE_DEAD),
        "abort event" => wire::ending(wire::ABORTED),
        "error event" => wire::ending(wire::ENGINE_ERROR),
        "dead 500" => wire::json(500, wire::SHUTTING_DOWN),
        "dead 200" => wire::json(200, wire::SHUTTING_DOWN),
        "error 200" => wire::json(200, r#"{"error":{"message":"no"}}"#),
        "204" => vec![Step::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())],
        "page" => vec![Step::Raw(wire::whole(200, "text/html", "<html>"))],
        status => wire::json(status.parse().unwrap(), r#"{"error":{"message":"no"}}"#),
    }
}

fn script(fault: &str, phase: Phase) -> Vec<Step> {
    let half = wire::whole(200, "application/json", r#"{"id":"x"}"#);
    let before = match phase {
        BeforeFirstToken => vec![wire::sse_head(), wire::event(wire::ROLE)],
        MidStream => wire::begun("x"),
        Unary if matches!(fault, "close" | "reset") => vec![Step::Raw(half[..half.len() - 3].to_vec())],
        BeforeHead | Unary => Vec::new(),
    };
    [before, answer(fault)].concat()
}

#[tokio::test]
async fn every_fault_in_every_phase_is_what_the_contract_says_from_both_sides() {
    for (fault, phase, client, retry) in CELLS {
        let name = format!("{fault}, {phase:?}");
        let pair = Pair::start(script(fault, *phase)).await;
        let (body, good) = match phase {
            Unary => (UNARY, wire::json(200, r#"{"id":"good"}"#)),
            _ => (CHAT, wire::chat_stream(&["a", "b"])),
        };
        pair.good.always(good);
        let reply = pair.gateway.post(PATH, body).await;

        let (status, is_complete, outcome) = match client {
            Elsewhere => (200, true, "ok"),
            Relayed(status @ 400..500) if *status != 429 => (*status, true, "client_error"),
            Relayed(status) => (*status, true, "failed"),
            Broken => (200, false, "failed"),
        };
        assert_eq!((reply.status(), reply.body.is_complete), (status, is_complete), "{name}");
        let is_told = reply.text().contains(r#""code":"replica_failed""#) && !reply.text().contains("[DONE]");
        assert_eq!(is_told, *client == Broken, "{name}: {}", reply.text());

        pair.gateway.idle().await;
        let elsewhere = usize::from(*client == Elsewhere);
        assert_eq!(
            (pair.bad.count(), pair.good_requests()),
            (1, elsewhere),
            "{name}: requests at the engines"
        );
        // The pair's first request is the other one that was counted.
        let expected = if outcome == "ok" { 2.0 } else { 1.0 };
        assert_eq!(pair.gateway.ended(outcome), expected, "{name}");
        let retries = pair.gateway.sum("tokenway_retries_total", &[]);
        assert_eq!(retries, f64::from(u8::from(retry.is_some())), "{name}");
        if let Some(reason) = retry {
            let label = format!(r#"reason="{reason}""#);
            assert_eq!(pair.gateway.sum("tokenway_retries_total", &[&label]), 1.0, "{name}");
        }
    }
}
