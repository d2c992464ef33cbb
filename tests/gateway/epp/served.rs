//! Which endpoint served a request: Envoy says so with the answer, and may have gone to another one than was picked.

use std::collections::HashMap;

use tokenway::config::PolicyName;
use tokenway::record::{AttemptCause, Outcome};

use super::envoy::{DUPLEX, Envoy, post};
use super::proto::{BodySendMode, Kind, Metadata, Struct, Value};
use super::{BODY, Picker, SSE, WHOLE};
use crate::support::{until, wire};

/// What a data plane sends with the head of an answer.
fn served_by(endpoint: &str) -> Option<Metadata> {
    let key = "x-gateway-destination-endpoint-served".to_owned();
    let fields = HashMap::from([(key, Value { kind: Some(Kind::Text(endpoint.into())) })]);
    Some(Metadata { filter_metadata: HashMap::from([("envoy.lb".to_owned(), Struct { fields })]) })
}

/// Requests under way by replica.
fn inflight(picker: &Picker, name: &str) -> u64 {
    picker.gateway.replicas().iter().filter(|r| &*r.replica == name).map(|r| r.inflight).sum()
}

/// Answers a stream to its end, from this endpoint.
async fn stream(envoy: &mut Envoy, endpoint: &str) -> String {
    envoy.answer_head_with("200", SSE, served_by(endpoint)).await;
    let events = wire::chat_events(&["a", "b"]).concat();
    envoy.answer_body(&events, true).await;
    envoy.answered().await;
    assert_eq!(envoy.answer().await, events);
    events
}

#[tokio::test]
async fn what_a_fallback_served_counts_for_the_fallback() {
    let ([_one, _two], picker) = Picker::before(|_| {}).await;
    for modes in [DUPLEX, [DUPLEX[0], BodySendMode::Streamed]] {
        let mut envoy = picker.request(post(&[]), modes, BODY).await;
        let placed = envoy.placed().await;
        let [picked, fallback] = placed.endpoints()[..] else { panic!("{placed:?}") };
        assert_eq!((inflight(&picker, picked), inflight(&picker, fallback)), (1, 0));
        envoy.answer_head_with("200", SSE, served_by(fallback)).await;
        until("the load moves with the request", || {
            (inflight(&picker, picked), inflight(&picker, fallback)) == (0, 1)
        })
        .await;
        let events = wire::chat_events(&["a", "b"]).concat();
        envoy.answer_body(&events, true).await;
        envoy.answered().await;
        if modes == DUPLEX {
            assert_eq!(envoy.answer().await, events);
        }
        let record = picker.end().await;
        let attempts: Vec<_> =
            record.attempts.iter().map(|a| (&*a.served.replica, a.error, a.cause)).collect();
        let expected =
            [(picked, Some("bypassed"), AttemptCause::First), (fallback, None, AttemptCause::Retry)];
        assert_eq!(attempts, expected);
        assert_eq!((record.outcome, record.status, record.content_events), (Outcome::Ok, 200, 2));
    }
    let metrics = picker.gateway.page();
    assert!(metrics.contains(r#"tokenway_retries_total{reason="bypassed"} 2"#), "{metrics}");
}

#[tokio::test]
async fn the_prompt_is_cached_where_it_was_served() {
    let ([_one, _two], picker) = Picker::before(|config| config.routes[0].policy = PolicyName::Prefix).await;
    let body = BODY.replace("hello", &"a prompt worth a cache ".repeat(400));
    let (mut envoy, placed) = picker.placed(&body).await;
    let [_, fallback] = placed.endpoints()[..] else { panic!("{placed:?}") };
    stream(&mut envoy, fallback).await;
    picker.end().await;
    for _ in 0..3 {
        let (mut envoy, placed) = picker.placed(&body).await;
        assert_eq!(placed.endpoints()[0], fallback);
        stream(&mut envoy, fallback).await;
        assert_eq!(picker.end().await.attempts.len(), 1, "served where it was placed");
    }
}

#[tokio::test]
async fn a_replica_that_is_passed_over_again_and_again_is_left() {
    let ([sick, _other], picker) = Picker::before(|_| {}).await;
    let sick = sick.name();
    let mut passed_over = Vec::new();
    for request in 0..60 {
        let body = BODY.replace("hello", &format!("hello {request}"));
        let (mut envoy, placed) = picker.placed(&body).await;
        let endpoints = placed.endpoints();
        // It answers at first.
        let is_passed_over = request >= 6 && endpoints[0] == sick;
        stream(&mut envoy, endpoints[usize::from(is_passed_over)]).await;
        picker.end().await;
        passed_over.push(is_passed_over);
    }
    let count = passed_over.iter().filter(|is_over| **is_over).count();
    assert!((1..=6).contains(&count), "{passed_over:?}");
}

#[tokio::test]
async fn a_failure_of_a_fallback_is_the_fallback_s() {
    let ([_one, _two], picker) = Picker::before(|_| {}).await;
    let (mut envoy, placed) = picker.placed(WHOLE).await;
    let [picked, fallback] = placed.endpoints()[..] else { panic!("{placed:?}") };
    envoy.answer_head_with("503", "text/plain", served_by(fallback)).await;
    envoy.answer_body("busy", true).await;
    envoy.answered().await;
    assert_eq!(envoy.answer().await, "busy");
    let record = picker.end().await;
    let attempts: Vec<_> = record.attempts.iter().map(|a| (&*a.served.replica, a.status, a.error)).collect();
    assert_eq!(attempts, [(picked, None, Some("bypassed")), (fallback, Some(503), Some("status_503"))]);
}

#[tokio::test]
async fn an_endpoint_that_is_not_known_changes_nothing_for_the_client() {
    let ([replica], picker) = Picker::before(|_| {}).await;
    for endpoint in ["10.9.9.9:1", "", "engine-0"] {
        let (mut envoy, _) = picker.placed(BODY).await;
        stream(&mut envoy, endpoint).await;
        let record = picker.end().await;
        assert_eq!((record.outcome, &*record.served().unwrap().replica), (Outcome::Ok, &*replica.name()));
    }
}
