//! A bug of the gateway's own: a panic while a request is served costs that request, and nothing that it held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokenway::observe::metrics::StreamKey;
use tokenway::observe::{Judgement, Tap};
use tokenway::record::{FirstToken, Gaps, Record};

use super::{CHAT, PATH, UNARY};
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{Gateway, config, wire};

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
