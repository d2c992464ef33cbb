//! Attribution of SLO misses to stages: real requests against bounds that they cannot meet.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::replica::{Replica, Step};
use crate::support::wire::{DONE, FINISH, ROLE, begun_then, content, event, sse_head, stream};
use crate::support::{CHAT, Gateway, PATH, UNARY, config, until};
use tokenway::config::{Config, ItlBounds, Slo};
use tokenway::stage::{Stage, StageBudget};

/// A chat stream whose engine reports its own timings: 5 ms of queue, 8 ms to the first token.
fn telling_stream() -> Vec<Step> {
    let usage = r#"data: {"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3},"metrics":{"time_to_first_token_ms":8.0,"queue_time_ms":5.0}}"#;
    vec![
        sse_head(),
        // Longer than what the engine claims, so that nothing of its claim is cut off.
        Step::Tick,
        Step::Tick,
        event(content("a")),
        Step::Tick,
        event(content("b")),
        Step::Tick,
        event(content("c")),
        event(FINISH),
        event(format!("{usage}\n\n")),
        event(DONE),
        Step::End,
    ]
}

fn with_slo(replica: &Replica, slo: Slo, budget: &[(Stage, Duration)]) -> Config {
    let mut config = config::of(&[replica]);
    config.slo.insert("strict".into(), slo);
    config.routes[0].slo = "strict".into();
    let mut shares = StageBudget::default();
    budget.iter().for_each(|(stage, share)| shares.set(*stage, *share));
    config.routes[0].stage_budget = Some(Arc::new(shares));
    config
}

async fn ended(gateway: &Gateway, requests: f64) {
    until("the records are in", || gateway.sum("tokenway_requests_total", &[]) == requests).await;
}

#[tokio::test]
async fn a_miss_names_its_bound_its_stage_and_the_stages_over_their_share() {
    let replica = Replica::start().await;
    replica.always(telling_stream());
    let itl = ItlBounds::new([None, None, None, Some(Duration::from_millis(1))]);
    let budget = [(Stage::EngineQueue, Duration::from_millis(1)), (Stage::Relay, Duration::from_secs(60))];
    let gateway = Gateway::start(with_slo(&replica, Slo { itl, ..Slo::default() }, &budget)).await;

    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    ended(&gateway, 1.0).await;
    assert_eq!(gateway.sum("tokenway_slo_missed_requests_total", &[r#"reason="itl""#]), 1.0);
    let by_stage = [r#"reason="itl""#, r#"stage="decode""#];
    assert_eq!(gateway.sum("tokenway_slo_missed_by_stage_total", &by_stage), 1.0);
    assert_eq!(gateway.sum("tokenway_stage_over_budget_total", &[]), 1.0);
    assert_eq!(gateway.sum("tokenway_stage_over_budget_total", &[r#"stage="engine_queue""#]), 1.0);
    assert_eq!(gateway.sum("tokenway_goodput_requests_total", &[]), 0.0);
    let measured = |stage: &str| {
        let labels = [r#"source="measured""#, stage];
        gateway.sum("tokenway_stage_duration_seconds_sum", &labels)
    };
    assert!((measured(r#"stage="engine_queue""#) - 0.005).abs() < 1e-9);
    assert!((measured(r#"stage="prefill""#) - 0.003).abs() < 1e-9);
}

#[tokio::test]
async fn within_its_bounds_the_same_request_is_good() {
    let replica = Replica::start().await;
    replica.always(telling_stream());
    let itl = ItlBounds::new([None, None, None, Some(Duration::from_secs(60))]);
    let gateway = Gateway::start(with_slo(&replica, Slo { itl, ..Slo::default() }, &[])).await;
    gateway.post(PATH, CHAT).await;
    ended(&gateway, 1.0).await;
    assert_eq!(gateway.sum("tokenway_goodput_requests_total", &[]), 1.0);
    assert_eq!(gateway.sum("tokenway_slo_missed_by_stage_total", &[]), 0.0);
}

#[tokio::test]
async fn the_stages_of_all_requests_add_up_to_their_durations() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(telling_stream());
    // Streams, an answer in one piece, a malformed request, and one whose replica dies on it.
    for body in [CHAT, CHAT, UNARY, "{", r#"{"messages":[]}"#] {
        gateway.post(PATH, body).await;
    }
    replica.always(vec![Step::Reset]);
    gateway.post(PATH, CHAT).await;
    ended(&gateway, 6.0).await;
    let stages = gateway.sum("tokenway_stage_duration_seconds_sum", &[]);
    let whole = gateway.sum("tokenway_request_duration_seconds_sum", &[]);
    assert!(whole > 0.0 && (stages / whole - 1.0).abs() < 0.01, "{stages} of {whole}");
}

#[tokio::test]
async fn a_request_that_waits_past_its_bound_is_late_now_and_not_only_when_it_ends() {
    let replica = Replica::start().await;
    // A head, and then nothing for as long as the client waits.
    replica.always(vec![sse_head(), Step::Hang]);
    let slo = Slo { e2e: Some(Duration::from_millis(50)), ..Slo::default() };
    let gateway = Gateway::start(with_slo(&replica, slo, &[])).await;
    let overdue = || gateway.sum("tokenway_requests_overdue", &[]);
    assert_eq!(overdue(), 0.0);

    let client = gateway.sent(PATH, CHAT).await;
    until("it is past its bound", || overdue() == 1.0).await;
    assert_eq!(gateway.sum("tokenway_requests_total", &[r#"outcome="ok""#]), 0.0);
    drop(client);
    until("who has left waits no longer", || overdue() == 0.0).await;
}

#[tokio::test]
async fn a_stream_whose_tokens_come_too_slowly_is_a_miss_while_it_runs() {
    let replica = Replica::start().await;
    let counted = r#"data: {"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":160}}"#;
    let texts = std::iter::repeat_n(content("a"), 160);
    replica.next(stream(texts.chain([FINISH.to_owned(), format!("{counted}\n\n"), DONE.to_owned()])));
    // Ten milliseconds for each, and then nothing more.
    let slow = std::iter::repeat_n([Step::Tick, event(content("x"))], 120).flatten();
    replica.always(begun_then("x", slow.chain([Step::Hang])));
    let slo = Slo { tpot: Some(Duration::from_millis(2)), ..Slo::default() };
    let gateway = Gateway::start(with_slo(&replica, slo, &[])).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    ended(&gateway, 1.0).await;

    let client = gateway.begun(PATH, CHAT).await;
    let late = || {
        let observer = &gateway.app.gateway.observer;
        let routes = observer.metrics.overdue.by_route(observer.clock.now());
        routes
            .into_values()
            .flatten()
            .map(|late| (late.missed.as_str(), late.stage, late.waits_for.is_some()))
            .collect::<Vec<_>>()
    };
    until("it is a miss", || late() == [("tpot", Stage::Decode, false)]).await;
    assert_eq!(
        gateway.sum("tokenway_requests_overdue", &[]),
        0.0,
        "it waits for nothing that is past its bound"
    );
    drop(client);
    until("it has ended", || late().is_empty()).await;

    // As slow, and each event has the text of many tokens: what a draft model foresees differs from answer to answer.
    let long = "lorem ipsum ".repeat(40);
    let slow = std::iter::repeat_n([Step::Tick, event(content(&long))], 120).flatten();
    replica.next(begun_then("x", slow.chain([event(content("the last")), Step::Hang])));
    let mut client = gateway.begun(PATH, CHAT).await;
    client.read_until("the last").await;
    assert_eq!(late(), []);
}

#[tokio::test]
async fn who_leaves_a_stream_that_stands_still_has_waited_for_its_next_token() {
    for (waits, missed) in [(Duration::from_millis(1_100), 1.0), (Duration::ZERO, 0.0)] {
        let replica = Replica::start().await;
        let bound = Duration::from_secs(1);
        let slo = Slo { itl: ItlBounds::new([None, None, None, Some(bound)]), ..Slo::default() };
        let gateway = Gateway::start(with_slo(&replica, slo, &[])).await;
        replica.next(begun_then("x", [event(content("y")), Step::Hang]));
        let mut client = gateway.begun(PATH, CHAT).await;
        client.read_until("\"y\"").await;
        tokio::time::sleep(waits).await;
        drop(client);
        ended(&gateway, 1.0).await;
        let labels = [r#"reason="itl""#];
        assert_eq!(gateway.sum("tokenway_slo_missed_requests_total", &labels), missed, "{waits:?}");
    }
}

#[tokio::test]
async fn who_leaves_before_the_first_token_waited_at_the_engine_and_not_for_a_connection() {
    let stages = |gateway: &Gateway, stage: &str| {
        gateway.sum("tokenway_stage_duration_seconds_sum", &[&format!("stage=\"{stage}\"")])
    };
    let silent = vec![sse_head(), event(ROLE), Step::Hang];
    for (body, script, at_the_engine) in [
        (CHAT, silent.clone(), "prefill"),
        (CHAT, vec![Step::Hang], "prefill"),
        (UNARY, vec![Step::Hang], "engine_other"),
    ] {
        let ([replica], gateway) = Gateway::before(|_| {}).await;
        replica.always(script);
        let client = gateway.sent(PATH, body).await;
        replica.got(1).await;
        drop(client);
        ended(&gateway, 1.0).await;
        let (connect, whole) =
            (stages(&gateway, "connect"), gateway.sum("tokenway_stage_duration_seconds_sum", &[]));
        assert!(stages(&gateway, at_the_engine) > 0.0, "{body}: connect {connect} of {whole}");
    }
}
