//! An outside provider as the last pool: what it gets, when, and how much.

use tokenway::config::{Config, EngineKind, Outside, Pool, Secret, Tenant, WeightedPool};

use crate::support::client::Client;
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{FORM, Gateway, PATH, config, wire};

/// A route over a local pool with an outside one behind it, for one tenant whose prompts are kept apart.
async fn with_provider(
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
) -> (Gateway, Replica, Replica) {
    let [local, provider] = Replica::several().await;
    for replica in [&local, &provider] {
        replica.always(answer(1));
    }
    let mut config = configured(&local, &[&provider]);
    let outside = Outside { model: "gpt-x".into(), requests_per_minute, tokens_per_minute };
    config.pools[1].outside = Some(outside);
    (Gateway::start(config).await, local, provider)
}

fn configured(local: &Replica, providers: &[&Replica]) -> Config {
    let mut config = config::of(&[local]);
    let outside = Outside { model: "gpt-x".into(), requests_per_minute: None, tokens_per_minute: None };
    config.pools.push(Pool {
        standby: true,
        outside: Some(outside),
        engine: EngineKind::Generic,
        engine_profile: EngineKind::Generic.profile().into(),
        engine_api_key: Some(Secret::new("sk-provider")),
        ..config::pool("provider", providers)
    });
    let route = &mut config.routes[0];
    route.pools.push(WeightedPool { pool: 1, weight: 0 });
    route.outside = true;
    let tenant = config::tenant("a", "own-key");
    config.tenants = vec![Tenant { cache_isolation: true, engine_priority: Some(3), ..tenant }];
    config
}

fn answer(output: u64) -> Vec<Step> {
    wire::json(
        200,
        &format!(
            r#"{{"id":"c","choices":[{{"index":0,"message":{{"content":"x"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":7,"completion_tokens":{output}}}}}"#
        ),
    )
}

async fn ask(gateway: &Gateway) -> u16 {
    asking(gateway, BODY).await.reply().await.status()
}

async fn asking(gateway: &Gateway, body: &str) -> Client {
    gateway.sent_as("own-key", PATH, body).await
}

const BODY: &str = r#"{"model":"tiny","temperature":0.5,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn a_provider_gets_the_clients_body_with_its_own_model_and_key_while_the_house_is_down() {
    let (gateway, local, provider) = with_provider(None, None).await;
    for _ in 0..5 {
        assert_eq!(ask(&gateway).await, 200);
    }
    assert_eq!((local.count(), provider.count()), (5, 0), "nothing leaves while the house's own serve");
    // Without a connection that is still open to the replica that goes.
    let (gateway, local, provider) = with_provider(None, None).await;
    local.stop_listening().await;
    assert_eq!(ask(&gateway).await, 200);
    let got = provider.received().pop().unwrap();
    assert_eq!(got.text(), BODY.replace("tiny", "gpt-x"), "no cache_salt, no priority");
    assert_eq!(got.header("authorization"), Some("Bearer sk-provider"));
    assert_eq!(got.header("x-vllm-priority"), None);
    gateway.idle().await;
    let labels = r#"pool="provider",route="*",tenant="a"}"#;
    assert_eq!(gateway.sum("tokenway_outside_requests_total", &[labels]), 1.0);
    assert_eq!(gateway.sum("tokenway_outside_tokens_total", &[r#"{kind="input""#, labels]), 7.0);
}

#[tokio::test]
async fn a_provider_gets_a_form_with_its_own_model() {
    let [local, provider] = Replica::several().await;
    provider.always(answer(1));
    let mut config = configured(&local, &[&provider]);
    // What the house's own engines call it is nothing to the provider.
    config.routes[0].upstream_model = Some("large-v3".into());
    let gateway = Gateway::start(config).await;
    local.stop_listening().await;
    let part = |name: &str, value: &str| {
        format!("--B\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let form = |model: &str| format!("{}{}--B--\r\n", part("file", "RIFF"), part("model", model));
    let headers = [("authorization", "Bearer own-key"), ("content-type", FORM)];
    let reply = gateway.post_with("/v1/audio/transcriptions", &headers, form("tiny")).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(provider.received().pop().unwrap().text(), form("gpt-x"));
}

#[tokio::test]
async fn a_provider_gets_nothing_that_a_client_means_for_this_house() {
    let (gateway, local, provider) = with_provider(None, None).await;
    local.stop_listening().await;
    let private = ["cookie", "x-goog-api-key", "x-user-email", "x-forwarded-for", "referer", "tracestate"];
    let passed = ("anthropic-version", "2023-06-01");
    let mut headers = vec![("authorization", "Bearer own-key")];
    headers.extend(private.iter().map(|name| (*name, "house=secret")));
    headers.push(("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    headers.push(passed);
    assert_eq!(gateway.post_with(&format!("{PATH}?api_key=secret"), &headers, BODY).await.status(), 200);
    let got = provider.received().pop().unwrap();
    assert_eq!(got.line(), format!("POST {PATH} HTTP/1.1"));
    for name in private {
        assert_eq!(got.header(name), None, "{name}");
    }
    assert_eq!(got.header(passed.0), Some(passed.1));
    assert_eq!(got.header("content-type"), Some("application/json"));
    gateway.idle().await;
}

/// A continuation needs fields that engines of this house know, in a body that the gateway writes.
#[tokio::test]
async fn a_stream_that_breaks_at_a_provider_is_not_continued_there() {
    let [local, one, two] = Replica::several().await;
    for provider in [&one, &two] {
        provider.always(wire::begun_then("he", [wire::event(wire::content("llo")), Step::Close]));
    }
    let mut config = configured(&local, &[&one, &two]);
    config.routes[0].migrate = true;
    let gateway = Gateway::start(config).await;
    local.stop_listening().await;
    let body = BODY.replace("0.5", "0.5,\"stream\":true");
    let reply = asking(&gateway, &body).await.reply().await;
    assert!(reply.text().contains("llo") && !reply.text().contains("[DONE]"), "{}", reply.text());
    gateway.idle().await;
    let got: Vec<String> =
        [one.received(), two.received()].concat().iter().map(|got| got.text().to_owned()).collect();
    assert_eq!(got, [body.replace("tiny", "gpt-x")]);
}

#[tokio::test]
async fn a_provider_gets_no_more_than_its_own_limit() {
    let (gateway, local, provider) = with_provider(Some(2), None).await;
    local.stop_listening().await;
    assert_eq!([ask(&gateway).await, ask(&gateway).await], [200, 200]);
    let refusal = asking(&gateway, BODY).await.reply().await;
    assert_eq!(refusal.status(), 503, "then it is as if it were not there");
    assert!(refusal.text().contains("at the limits of [pool.outside]"), "{}", refusal.text());
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn a_provider_gets_no_more_tokens_than_its_own_limit_answers_included() {
    let (gateway, local, provider) = with_provider(None, Some(150)).await;
    local.stop_listening().await;
    let gate = Gate::new();
    let held = [Step::Wait(gate.clone())].into_iter().chain(answer(60)).collect();
    provider.next(held);
    let body = BODY.replace("0.5", "0.5,\"max_tokens\":100");
    let mut first = asking(&gateway, &body).await;
    provider.got(1).await;
    assert_eq!(asking(&gateway, &body).await.reply().await.status(), 503, "the first may need 100 of 150");
    gate.cancel();
    assert_eq!(first.reply().await.status(), 200);
    gateway.idle().await;
    let small = BODY.replace("0.5", "0.5,\"max_tokens\":40");
    provider.next(answer(90));
    assert_eq!(asking(&gateway, &small).await.reply().await.status(), 200, "the first used 67");
    gateway.idle().await;
    assert_eq!(asking(&gateway, &small).await.reply().await.status(), 503, "by the answers all are used");
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn a_stream_without_usage_is_charged_to_a_provider_by_what_came() {
    let (gateway, local, provider) = with_provider(None, Some(150)).await;
    local.stop_listening().await;
    provider.next(wire::chat_stream(&["word"; 120]));
    let body = BODY.replace("0.5", "0.5,\"stream\":true,\"max_tokens\":60");
    assert_eq!(asking(&gateway, &body).await.reply().await.status(), 200);
    gateway.idle().await;
    assert_eq!(asking(&gateway, &body).await.reply().await.status(), 503, "120 of 150 are used");
    let small = BODY.replace("0.5", "0.5,\"max_tokens\":1");
    assert_eq!(asking(&gateway, &small).await.reply().await.status(), 200);
}
