//! What clients make up names no series.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use crate::support::{Gateway, config, soon};
use tokenway::config::{ModelMatch, Tenant};

/// The names of all series of the gateway's own metrics, without those of its process.
fn series(gateway: &Gateway) -> Vec<String> {
    let page = gateway.page();
    let own = page.lines().filter(|line| line.starts_with("tokenway_"));
    own.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_random_models_tenants_and_paths_add_no_series() {
    let ([replica], mut config) = config::fresh().await;
    // One route for a model, one for all others: unknown names are labelled by both.
    let mut named = config.routes[0].clone();
    named.name = "tiny".into();
    named.model = ModelMatch::Named("tiny".into());
    config.routes.push(named);
    let gateway = Gateway::start(config).await;
    let known = Tenant { name: "acme".into(), key_digests: vec![[0; 32]], ..Tenant::default() };
    let mut with_tenants = config::of(&[&replica]);
    with_tenants.tenants.push(known);
    let asks_for_keys = Gateway::start(with_tenants).await;

    round(&asks_for_keys, 0).await;
    soon("the stages of an engine, estimated once an answer has taught how fast it is", async {
        while !series(&gateway).iter().any(|series| series.contains("engine_queue")) {
            round(&gateway, 0).await;
        }
    })
    .await;
    let before = (series(&gateway), series(&asks_for_keys));
    assert!(before.0.len() > 100, "{:?}", before.0);
    tokio::join!(
        rounds(&gateway, 1..1_250),
        rounds(&gateway, 1_250..2_500),
        rounds(&asks_for_keys, 1..1_250),
        rounds(&asks_for_keys, 1_250..2_500),
    );
    assert_eq!((series(&gateway), series(&asks_for_keys)), before);
}

async fn rounds(gateway: &Gateway, numbers: std::ops::Range<u32>) {
    for number in numbers {
        round(gateway, number).await;
    }
}

/// Four requests with a model, a key, a tenant and a path that nobody has seen.
async fn round(gateway: &Gateway, number: u32) {
    let mut client = gateway.client().await;
    let (model, name) = (format!("model-{number}"), format!("name-{number}"));
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
    let chat = "/v1/chat/completions";
    for (path, header) in [(chat, "x-api-key"), (chat, "x-tenant"), (chat, "x-session-id")] {
        client.post(path, &[(header, &name), ("traceparent", &name)], body.as_bytes()).await;
        client.reply().await;
    }
    client.send("GET", &format!("/v1/{name}"), &[], b"").await;
    assert_eq!(client.reply().await.status(), 404);
}
