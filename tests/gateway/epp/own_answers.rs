//! Answers that Envoy gives itself, before the request was placed: its timeouts, while the request waits or uploads.

use tokenway::record::{Outcome, Record};

use super::envoy::{DUPLEX, Envoy, post};
use super::proto::{BodySendMode, HttpTrailers, Order, ProtocolConfiguration, Seen};
use super::{BODY, Picker, SSE, WHOLE};
use crate::admission::{QUEUE, one_at_a_time, waiting};
use crate::support::{config, until, wire};

const MODES: [[BodySendMode; 2]; 2] = [DUPLEX, [BodySendMode::FullDuplexStreamed, BodySendMode::Streamed]];

/// Envoy answers, which passes as it is.
async fn answers(envoy: &mut Envoy, modes: [BodySendMode; 2]) {
    envoy.answer_head("504", "text/plain").await;
    assert_eq!(envoy.answered().await, (vec![], vec![]));
    envoy.answer_body("upstream ", false).await;
    envoy.answer_body("timeout", true).await;
    if modes == DUPLEX {
        assert_eq!(envoy.answer().await, "upstream timeout");
    } else {
        for _ in 0..2 {
            assert!(matches!(envoy.order().await.order, Some(Order::ResponseBody(_))));
        }
    }
}

async fn ends(picker: &Picker, count: usize) -> Vec<Record> {
    until("the requests' records", || picker.ends.0.lock().len() == count).await;
    std::mem::take(&mut *picker.ends.0.lock())
}

#[tokio::test]
async fn an_answer_of_envoy_to_a_request_that_waits_passes_and_ends_the_wait() {
    let ([_replica], mut config) = config::fresh().await;
    one_at_a_time(&mut config);
    config.routes[0].queue = Some(QUEUE);
    let picker = Picker::start(config).await;
    for modes in MODES {
        let (mut first, _) = picker.placed(BODY).await;
        let mut second = picker.request(post(&[]), modes, BODY).await;
        waiting(&picker.gateway, 1).await;
        answers(&mut second, modes).await;
        waiting(&picker.gateway, 0).await;
        let [record] = &ends(&picker, 1).await[..] else { panic!("one record") };
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::Canceled, 0));
        // Its place frees while Envoy has the second stream open: nothing is placed.
        first.answer_head("200", SSE).await;
        first.answer_body(&wire::chat_events(&["a"]).concat(), true).await;
        first.answered().await;
        first.answer().await;
        picker.gateway.idle().await;
        second.close();
        assert!(second.next().await.unwrap().is_none());
        assert_eq!(ends(&picker, 1).await[0].outcome, Outcome::Ok);
    }
}

#[tokio::test]
async fn an_answer_of_envoy_to_a_request_that_uploads_passes() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    for modes in MODES {
        let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), modes).await;
        envoy.body(&WHOLE[..10], false).await;
        answers(&mut envoy, modes).await;
        // What the client sends still makes no request of it.
        envoy.body(&WHOLE[10..], false).await;
        envoy.send(Seen::RequestTrailers(HttpTrailers {})).await;
        envoy.close();
        assert!(envoy.next().await.unwrap().is_none());
        let record = picker.end().await;
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::Canceled, 0));
    }
}

/// Of a filter before the picker, or of Envoy's own to an upgrade: the picker never sees the request.
#[tokio::test]
async fn an_answer_of_envoy_to_a_request_that_the_picker_never_saw_passes() {
    let ([replica], picker) = Picker::before(|_| {}).await;
    for modes in MODES {
        let mut envoy = Envoy::open(&picker.gateway.app).await;
        let [request, response] = modes.map(|mode| mode as i32);
        let configured = ProtocolConfiguration { request_body_mode: request, response_body_mode: response };
        envoy.first_answer_head("403", "text/plain", configured).await;
        assert_eq!(envoy.answered().await, (vec![], vec![]));
        envoy.answer_body("RBAC: access denied", true).await;
        if modes == DUPLEX {
            assert_eq!(envoy.answer().await, "RBAC: access denied");
        } else {
            assert!(matches!(envoy.order().await.order, Some(Order::ResponseBody(_))));
        }
        envoy.close();
        assert!(envoy.next().await.unwrap().is_none());
    }
    assert_eq!(replica.count(), 0);
}
