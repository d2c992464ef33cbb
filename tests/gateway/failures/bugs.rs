//! A bug of the gateway's own: a panic while a request is served costs that request, and nothing that it held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokenway::observe::metrics::StreamKey;
use tokenway::observe::{Judgement, Tap};
use tokenway::record::{FirstToken, Gaps, Record};

use super::{CHAT, PATH, UNARY};
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{Gateway, config, until, wire};

/// Panics where it is told to, once.
#[derive(Debug, Default)]
struct Buggy {
    at_first_token: AtomicBool,
    at_gaps: AtomicBool,
}

impl Tap for Buggy {
    fn first_token(&self, _: &FirstToken<'_>) {
        assert!(!self.at_first_token.swap(false, Ordering::Relaxed), "a bug at the first token");
    }

    fn gaps(&self, _: &StreamKey, _: &Gaps<'_>) {
        assert!(!self.at_gaps.swap(false, Ordering::Relaxed), "a bug in the stream");
    }

    fn record(&self, _: &Arc<Record>, _: &Judgement) {}
}

/// Why the last attempt of each request broke off.
#[derive(Debug, Default)]
struct Breaks(Mutex<Vec<Option<&'static str>>>);

impl Tap for Breaks {
    fn record(&self, record: &Arc<Record>, _: &Judgement) {
        self.0.lock().unwrap().push(record.attempts.last().and_then(|made| made.broken));
    }
}

#[tokio::test]
async fn why_a_stream_broke_off_is_in_its_attempt() {
    let replica = Replica::start().await;
    let breaks = Arc::new(Breaks::default());
    let tap = Arc::clone(&breaks) as Arc<dyn Tap>;
    let gateway = Gateway::start_observed(config::of(&[&replica]), Some(tap));
    gateway.ready().await;
    replica.next(wire::begun_then("a", [Step::Close]));
    assert!(!gateway.post(PATH, CHAT).await.body.is_complete);
    replica.next(wire::chat_stream(&["a", "b"]));
    assert!(gateway.post(PATH, CHAT).await.body.is_complete);
    until("both are recorded", || breaks.0.lock().unwrap().len() == 2).await;
    assert_eq!(*breaks.0.lock().unwrap(), [Some("truncated"), None]);
}

#[tokio::test]
async fn a_panic_while_a_request_is_served_ends_it_alone_and_its_counts() {
    let replica = Replica::start().await;
    let buggy = Arc::new(Buggy::default());
    let tap = Arc::clone(&buggy) as Arc<dyn Tap>;
    let gateway = Gateway::start_observed(config::of(&[&replica]), Some(tap));
    gateway.ready().await;

    buggy.at_first_token.store(true, Ordering::Relaxed);
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!(reply.status(), 500);
    assert!(reply.text().contains(r#""code":"internal_error""#), "{}", reply.text());
    gateway.idle().await;
    let page = gateway.page();
    assert!(page.contains("tokenway_panics_total 1"), "{page}");

    buggy.at_gaps.store(true, Ordering::Relaxed);
    let rest = Gate::new();
    let more = ["b", "c"].map(|text| wire::event(wire::content(text)));
    replica.next(wire::begun_then("a", [Step::Wait(rest.clone())].into_iter().chain(more)));
    let mut client = gateway.client().await;
    client.post(PATH, &[], CHAT.as_bytes()).await;
    assert_eq!(client.head().await.status, 200, "the head is out");
    rest.cancel();
    let cut = client.rest().await;
    assert!(!cut.is_complete, "a broken stream must not look whole: {cut:?}");
    gateway.idle().await;

    for body in [CHAT, UNARY] {
        assert_eq!(gateway.post(PATH, body).await.status(), 200);
    }
    gateway.idle().await;
}
