//! What a gateway writes for its tenants into requests, into errors, and into the bill.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokenway::config::{Budget, Slo, Tenant, Window};

use crate::support::client::Reply;
use crate::support::replica::{Gate, Received, Replica, Step};
use crate::support::{FORM, Gateway, PATH, config, wire};

fn tenant(name: &str, engine_priority: Option<i32>) -> Tenant {
    Tenant { engine_priority, ..config::tenant(name, name) }
}

/// What the engine gets of a body that a tenant sends with a header that asks for a priority.
async fn sent(gateway: &Gateway, replica: &Replica, tenant: &str, body: &str) -> Received {
    let before = replica.count();
    let headers = [("authorization", &*format!("Bearer {tenant}")), ("x-vllm-priority", "-99")];
    assert_eq!(gateway.post_with(PATH, &headers, body).await.status(), 200);
    assert_eq!(replica.count(), before + 1);
    replica.received().pop().unwrap()
}

#[tokio::test]
async fn a_client_s_engine_priority_counts_only_where_it_may() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::chat_stream(&["x"]));
    config.slo.insert("batch".into(), Slo { engine_priority: Some(9), ..Slo::default() });
    config.tenants = vec![tenant("vip", Some(-5)), tenant("plain", None)];
    for (class, may, tenant, priority, header) in [
        ("standard", false, "vip", "-5", Some("-5")),
        ("batch", false, "vip", "-5", Some("-5")),
        ("batch", false, "plain", "9", Some("9")),
        ("standard", false, "plain", "0", None),
        ("batch", true, "plain", "-7", Some("-99")),
    ] {
        (config.routes[0].slo, config.routes[0].client_may.engine_priority) = (class.into(), may);
        let gateway = Gateway::start(config.clone()).await;
        let body = |priority: &str| {
            format!(r#"{{"model":"tiny","priority":{priority},"stream":true,"messages":[]}}"#)
        };
        let got = sent(&gateway, &replica, tenant, &body("-7")).await;
        let name = format!("{tenant} of class {class}");
        assert_eq!(got.text(), body(priority), "{name}: nothing else of the body changes");
        assert_eq!(got.header("x-vllm-priority"), header, "{name}");
    }
}

/// A form has no members: what looks like an object in a file is the client's.
#[tokio::test]
async fn a_form_keeps_its_bytes_and_gets_the_priority_as_a_header() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants = vec![Tenant { cache_isolation: true, ..tenant("vip", Some(-5)) }];
    })
    .await;
    replica.always(wire::json(200, r#"{"text":"x"}"#));
    let form = "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{\"a\":1}\r\n\
                --B\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--B--\r\n";
    let headers = [("authorization", "Bearer vip"), ("content-type", FORM)];
    let reply = gateway.post_with("/v1/audio/transcriptions", &headers, form).await;
    assert_eq!(reply.status(), 200);
    let got = replica.received().pop().unwrap();
    assert_eq!((got.text(), got.header("x-vllm-priority")), (form, Some("-5")));
}

/// The engine keeps what it made of a picture under that name, for all.
#[tokio::test]
async fn an_isolated_tenant_names_no_media() {
    let ([_replica], gateway) = Gateway::before(|config| {
        config.tenants =
            vec![Tenant { cache_isolation: true, ..tenant("apart", None) }, tenant("plain", None)];
    })
    .await;
    let named = r#"{"type":"image_url","image_url":null,"uuid":"logo"}"#;
    let own = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"},"uuid":null}"#;
    let spelt = named.replace("uuid", r"\u0075uid");
    let chat = |key: &str, part: &str| format!(r#"[{{"role":"user","{key}":[{part}]}}]"#);
    let batch = |part: &str| format!("[{}]", chat("content", part));
    let messages = |messages: String| format!(r#""messages":{messages}"#);
    let rerank =
        |part: &str, more: &str| format!(r#""query":{{"content":[{part}]}},"documents":["d"]{more}"#);
    // Which of two names an engine takes is not known, whichever is longer.
    let other = format!(r#","data_1":"{}""#, "x".repeat(400));
    for (path, members, is_refused) in [
        (PATH, messages(chat("content", named)), true),
        (PATH, messages(chat("content", &spelt)), true),
        (PATH, messages(chat(r"\u0063ontent", named)), true),
        (PATH, messages(chat("content", own)), false),
        ("/v1/chat/completions/batch", messages(batch(named)), true),
        ("/v1/chat/completions/batch", messages(batch(own)), false),
        ("/rerank", rerank(named, ""), true),
        ("/rerank", rerank(own, ""), false),
        ("/rerank", rerank(named, &other), true),
        ("/v1/score", rerank(own, r#","items":["d"]"#), true),
    ] {
        for (who, is_refused) in [("apart", is_refused), ("plain", false)] {
            let body = format!(r#"{{"model":"tiny",{members}}}"#);
            let mut client = gateway.sent_as(who, path, &body).await;
            let (reply, expected) = (client.reply().await, if is_refused { 400 } else { 200 });
            assert_eq!(reply.status(), expected, "{who} {path} {members}: {}", reply.text());
        }
    }
}

/// No salt guards blocks that are named by number, and the host is one that the engine would connect to.
#[tokio::test]
async fn an_isolated_tenant_names_no_kv_of_other_engines() {
    let ([replica], mut config) = config::fresh().await;
    config.tenants = vec![Tenant { cache_isolation: true, ..tenant("apart", None) }, tenant("plain", None)];
    config.server.extra_paths = vec!["/v1/custom".into()];
    let gateway = Gateway::start(config).await;
    for (member, is_refused) in [
        (
            r#""kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[7]],"remote_host":"10.0.0.1"}"#,
            true,
        ),
        (r#""kv_transfer\u005fparams":{"do_remote_decode":true}"#, true),
        (r#""bootstrap_host":"10.0.0.1""#, true),
        (r#""ec_transfer_params":{"remote":1}"#, true),
        (r#""kv_transfer_params":null"#, false),
        (r#""seed":7"#, false),
    ] {
        let body = format!(r#"{{{member},"model":"tiny","messages":[{{"role":"user","content":"hi"}}]}}"#);
        for (who, path, is_refused) in
            [("apart", PATH, is_refused), ("apart", "/v1/custom", is_refused), ("plain", PATH, false)]
        {
            let before = replica.count();
            let mut client = gateway.sent_as(who, path, &body).await;
            let reply = client.reply().await;
            assert_eq!(reply.status() == 400, is_refused, "{who} {member}: {}", reply.text());
            assert_eq!(replica.count() - before, usize::from(!is_refused), "{who} {member}");
        }
    }
}

#[tokio::test]
async fn tokens_and_engine_seconds_are_counted_by_tenant_and_model() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(
        200,
        r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}"#,
    ));
    config.tenants = vec![tenant("a", None)];
    let gateway = Gateway::start(config).await;
    for _ in 0..2 {
        sent(&gateway, &replica, "a", r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}]}"#)
            .await;
    }
    let events = [wire::ROLE, &wire::content("x"), wire::FINISH, wire::USAGE, wire::DONE];
    replica.always(wire::stream(events));
    sent(&gateway, &replica, "a", r#"{"model":"tiny","stream":true,"messages":[]}"#).await;
    gateway.idle().await;
    let page = gateway.page();
    for (kind, tokens) in [("input", 109), ("cached", 64), ("output", 8)] {
        let series = format!(
            "tokenway_tenant_tokens_total{{kind=\"{kind}\",model=\"tiny\",route=\"*\",tenant=\"a\"}}"
        );
        assert!(page.lines().any(|line| line == format!("{series} {tokens}")), "{series} in {page}");
    }
    let decode = page.lines().find(|line| {
        line.starts_with("tokenway_tenant_engine_seconds_total{")
            && line.contains(r#"stage="decode",tenant="a""#)
    });
    assert!(decode.is_some_and(|line| !line.ends_with(" 0")), "{page}");
}

#[tokio::test]
async fn a_budget_is_told_in_headers_and_refuses_until_its_window_ends() {
    let ([replica], mut config) = config::fresh().await;
    let answer = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":10}}"#;
    replica.always(wire::json(200, answer));
    let month = |tokens, hard| Budget { tokens: Some(tokens), hard, ..Budget::default() };
    let mut told = tenant("told", None);
    told.budgets = vec![month(60, false)];
    let mut held = tenant("held", None);
    held.budgets =
        vec![month(100, true), Budget { requests: Some(9), window: Window::Day, ..Budget::default() }];
    config.tenants = vec![held, told, tenant("free", None)];
    let gateway = Gateway::start(config.clone()).await;
    let ask = async |key: &str| {
        let body = r#"{"model":"tiny","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}"#;
        let reply = gateway.post_as(key, PATH, body).await;
        gateway.idle().await;
        reply
    };
    for (limit, left) in [("100", 100 - 11), ("100", 40 - 11)] {
        let reply = ask("held").await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        assert_eq!(reply.field("x-ratelimit-limit-tokens"), Some(limit));
        let remaining: i64 = reply.field("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
        assert!(
            (left - 10..=left + 10).contains(&remaining),
            "{remaining}: reserved by prediction, settled by usage"
        );
    }
    let reply = ask("held").await;
    assert_eq!((reply.status(), &*reply.code()), (429, "budget"), "{}", reply.text());
    assert!(
        reply.json()["error"]["message"].as_str().unwrap().contains("120 of its 100 tokens of this month"),
        "{}",
        reply.text()
    );
    let wait: u64 = reply.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=31 * 86_400).contains(&wait), "{wait}");
    assert_eq!(reply.field("x-ratelimit-remaining-tokens"), Some("0"));
    assert_eq!(reply.field("x-ratelimit-remaining-requests"), Some("7"));
    assert!(reply.field("x-ratelimit-reset-tokens").unwrap().ends_with('s'));
    for _ in 0..3 {
        assert_eq!(ask("told").await.status(), 200, "a soft one refuses nobody");
    }
    assert_eq!(ask("told").await.field("x-ratelimit-remaining-tokens"), Some("0"));
    assert_eq!(ask("free").await.field("x-ratelimit-limit-tokens"), None);
    config.tenants[0].budgets[0].tokens = Some(1_000);
    gateway.app.reload(std::sync::Arc::new(config)).unwrap();
    assert_eq!(ask("held").await.status(), 200, "a raised budget counts at once");
}

#[tokio::test]
async fn a_tenant_named_like_a_label_bomb_is_one_label_and_a_longer_or_quoted_one_is_refused() {
    for name in ["x\"} 1", "a\nb", "a b", "a\\b", "a,b=c", &"x".repeat(129)] {
        assert!(tokenway::config::parse_name(name).is_err(), "{name:?}");
    }
    let bomb = "x}{__name__=y#".to_owned() + &"z".repeat(110);
    assert!(tokenway::config::parse_name(&bomb).is_ok());
    let ([replica], mut config) = config::fresh().await;
    // In one piece: whether a stream has gaps to count depends on how its events fall into reads.
    replica.always(wire::json(200, r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}"#));
    config.tenants = vec![tenant(&bomb, None), tenant("plain", None)];
    let gateway = Gateway::start(config).await;
    for name in [&*bomb, "plain"] {
        sent(&gateway, &replica, name, r#"{"model":"tiny","messages":[]}"#).await;
    }
    gateway.idle().await;
    let page = gateway.page();
    let with = |name: &str| page.lines().filter(|line| line.contains(&format!("tenant=\"{name}\""))).count();
    assert!(with("plain") > 0);
    assert_eq!(with(&bomb), with("plain"), "as many series as another tenant");
    let is_series = |line: &str| line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
    let broken: Vec<_> = page.lines().filter(|line| !line.starts_with('#') && !is_series(line)).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

/// What a client with this key gets for a request, as text; it is an error of the gateway.
async fn refusal(gateway: &Gateway, body: &str) -> String {
    let mut client = gateway.sent_as("a", PATH, body).await;
    let reply = client.reply().await;
    gateway.idle().await;
    reply.text().to_owned()
}

#[tokio::test]
async fn no_error_names_a_replica_to_tenants_and_each_does_to_a_sole_user() {
    let stream = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let unary = r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}]}"#;
    let page = vec![Step::Raw(wire::whole(200, "text/html", "<h1>It works!</h1>"))];
    for (what, script, body, code) in [
        ("502", vec![Step::Reset], unary, "replica_failed"),
        ("502 to a stream", vec![Step::Reset], stream, "replica_failed"),
        ("page", page, unary, "replica_failed"),
        ("broken stream", wire::begun_then("x", [Step::Close]), stream, "replica_failed"),
    ] {
        for has_tenants in [true, false] {
            let ([replica], gateway) = Gateway::before(|config| {
                config.tenants = has_tenants.then(|| tenant("a", None)).into_iter().collect();
            })
            .await;
            replica.always(script.clone());
            let text = refusal(&gateway, body).await;
            assert!(text.contains(&format!(r#""code":"{code}""#)), "{what}: {text}");
            assert_eq!(text.contains(&replica.name()), !has_tenants, "{what}: {text}");
        }
    }
}

#[tokio::test]
async fn an_error_behind_a_heartbeat_names_no_replica_to_tenants() {
    let gate = Gate::new();
    let ([replica], mut config) = config::fresh().await;
    replica.always(vec![Step::Wait(gate.clone()), Step::Reset]);
    config.tenants = vec![tenant("a", None)];
    config.server.heartbeat = Some(Duration::from_millis(10));
    let gateway = Gateway::start(config).await;
    let mut client = gateway.client().await;
    let stream = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    client.post(PATH, &[("authorization", "Bearer a")], stream.as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    gate.cancel();
    let body = client.rest().await;
    let text = String::from_utf8(body.bytes).unwrap();
    assert!(text.contains("replica_failed") && !text.contains(&replica.name()), "{text}");
}

#[tokio::test]
async fn a_connect_timeout_names_no_replica_to_tenants() {
    let gate = Gate::new();
    let replica = Replica::start().await;
    replica.always(wire::begun_then("x", [Step::Wait(gate.clone())]));
    for has_tenants in [true, false] {
        let mut config = config::of(&[&replica]);
        config.pools[0].max_connections = NonZeroUsize::MIN;
        config.routes[0].timeouts.connect = Duration::from_millis(50);
        config.tenants = has_tenants.then(|| tenant("a", None)).into_iter().collect();
        let gateway = Gateway::start(config).await;
        let body = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
        let mut first = gateway.sent_as("a", PATH, body).await;
        first.head().await;
        let mut second = gateway.sent_as("a", PATH, body).await;
        let reply = second.reply().await;
        assert_eq!((reply.status(), &*reply.code()), (504, "timeout_connect"));
        assert_eq!(reply.text().contains(&replica.name()), !has_tenants, "{}", reply.text());
    }
    gate.cancel();
}

/// Two routes whose names and models cross: what clients ask for as `big` is served by route `chat`.
#[tokio::test]
async fn a_tenant_s_route_is_none_whose_model_has_that_name() {
    let [big, small] = Replica::several().await;
    let mut config = config::of(&[&big]);
    config.pools.push(config::pool("second", &[&small]));
    config.routes = vec![config::route("big", &[0]), config::route("small", &[1]), config::route("*", &[1])];
    for (route, name) in config.routes.iter_mut().zip(["chat", "big", "rest"]) {
        route.name = name.into();
    }
    let of = |key: &str, routes: &[&str]| {
        let routes = Some(routes.iter().map(|name| (*name).into()).collect());
        Tenant { routes, ..tenant(key, None) }
    };
    config.tenants = vec![of("one", &["big"]), of("other", &["chat"]), of("rest", &["rest"])];
    let gateway = Gateway::start(config).await;
    for (key, model, status) in [
        ("one", "small", 200),
        ("one", "big", 404),
        ("one", "unknown", 404),
        ("other", "big", 200),
        ("other", "small", 404),
        ("other", "chat", 404),
        ("rest", "big", 404),
        ("rest", "unknown", 200),
    ] {
        let body = format!(r#"{{"model":"{model}","stream":true,"messages":[]}}"#);
        assert_eq!(gateway.post_as(key, PATH, &body).await.status(), status, "{key} asks for {model}");
    }
    let models = gateway.ask("GET", "/v1/models", &[("authorization", "Bearer one")], b"").await.json();
    assert_eq!((&models["data"][0]["id"], models["data"].as_array().unwrap().len()), (&"small".into(), 1));
}

/// Engines without a list of models leave the label at `other`.
#[tokio::test]
async fn a_budget_of_a_model_counts_on_route_star_whatever_the_engine_lists() {
    let ([replica], mut config) = config::fresh().await;
    replica.lists(r#"{"object":"list","data":[]}"#);
    let own = Budget { requests: Some(1), model: Some("m".into()), ..Budget::default() };
    config.tenants = vec![Tenant { budgets: vec![own], ..tenant("a", None) }];
    let gateway = Gateway::start(config).await;
    for (model, status) in [("m", 200), ("n", 200), ("m", 429), ("n", 200)] {
        let body = format!(r#"{{"model":"{model}","stream":true,"messages":[]}}"#);
        let reply = gateway.post_as("a", PATH, &body).await;
        assert_eq!(reply.status(), status, "{model}: {}", reply.text());
        gateway.idle().await;
    }
}

/// The engine answers with the first model that it lists.
#[tokio::test]
async fn a_budget_of_a_model_counts_requests_that_name_none() {
    let ([_replica], mut config) = config::fresh().await;
    let own = Budget { requests: Some(2), model: Some("tiny".into()), ..Budget::default() };
    config.tenants = vec![Tenant { budgets: vec![own], ..tenant("a", None) }];
    let gateway = Gateway::start(config).await;
    for (body, status) in [(r#"{"messages":[]}"#, 200), (r#"{"model":null,"messages":[]}"#, 200), ("{}", 429)]
    {
        let reply = call(&gateway, "POST", PATH, "a", body).await;
        assert_eq!(reply.status(), status, "{body}: {}", reply.text());
        gateway.idle().await;
    }
}

/// A base model and an adapter on it, as vLLM lists them.
const BASE_AND_ADAPTER: &str = r#"{"object":"list","data":[
    {"id":"tiny","object":"model","root":"/models/tiny","parent":null},
    {"id":"sql","object":"model","root":"/adapters/sql","parent":"tiny"}]}"#;

async fn call(gateway: &Gateway, method: &str, path: &str, tenant: &str, body: &str) -> Reply {
    let headers = [("authorization", &*format!("Bearer {tenant}"))];
    gateway.ask(method, path, &headers, body).await
}

#[tokio::test]
async fn a_request_without_a_model_gets_that_of_its_route_and_not_the_engines_first() {
    let ([replica], mut config) = config::fresh().await;
    replica.lists(BASE_AND_ADAPTER);
    replica.always(wire::json(200, "{}"));
    config.routes = vec![config::route("tiny", &[0]), config::route("sql", &[0])];
    config.tenants = vec![
        Tenant { routes: Some(vec!["sql".into()]), ..tenant("limited", None) },
        Tenant { routes: Some(vec!["tiny".into()]), ..tenant("plain", None) },
    ];
    let gateway = Gateway::start(config).await;
    for (body, sent) in [
        ("{}", r#"{"model":"sql"}"#),
        (r#"{ "messages":[]}"#, r#"{"model":"sql", "messages":[]}"#),
        (r#"{"model":null,"messages":[]}"#, r#"{"model":"sql","messages":[]}"#),
        (r#"{"messages":[],"model" : ""}"#, r#"{"messages":[],"model" : "sql"}"#),
        (r#"{"model":"sql"}"#, r#"{"model":"sql"}"#),
    ] {
        for path in [PATH, "/v1/embeddings", "/tokenize"] {
            assert_eq!(call(&gateway, "POST", path, "limited", body).await.status(), 200, "{path} {body}");
            assert_eq!(replica.received().pop().unwrap().text(), sent, "{path} {body}");
        }
    }
    gateway.idle().await;
    let page = gateway.page();
    let counted = page.lines().find(|line| line.starts_with("tokenway_requests_total")).unwrap();
    assert!(counted.contains(r#"model="sql""#), "{counted}");
    for body in ["{}", r#"{"model":null}"#] {
        assert_eq!(call(&gateway, "POST", PATH, "plain", body).await.status(), 200);
        assert_eq!(replica.received().pop().unwrap().text(), body, "the engine takes it by itself");
    }

    let before = replica.count();
    let form =
        "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF\r\n--B--\r\n";
    let headers = [("authorization", "Bearer limited"), ("content-type", FORM)];
    let reply = gateway.post_with("/v1/audio/transcriptions", &headers, form).await;
    assert_eq!((reply.status(), &*reply.code()), (400, "missing_model"), "a form cannot be given one");
    assert_eq!(replica.count(), before);
}

#[tokio::test]
async fn a_tenant_of_any_model_neither_sees_nor_gets_the_one_that_a_route_of_others_claims() {
    let ([replica], mut config) = config::fresh().await;
    replica.lists(BASE_AND_ADAPTER);
    replica.always(wire::json(200, "{}"));
    config.routes = vec![config::route("*", &[0]), config::route("tiny", &[0])];
    let any = config.routes[0].name.to_string();
    config.tenants =
        vec![Tenant { routes: Some(vec![any.into()]), ..tenant("limited", None) }, tenant("all", None)];
    let gateway = Gateway::start(config).await;
    for (tenant, ids, status) in [("limited", &["sql"][..], 404), ("all", &["tiny", "sql"], 200)] {
        let listed = call(&gateway, "GET", "/v1/models", tenant, "").await.json();
        let listed: Vec<_> =
            listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(listed, ids, "{tenant}");
        assert_eq!(call(&gateway, "GET", "/v1/models/tiny", tenant, "").await.status(), status);
        assert_eq!(call(&gateway, "POST", PATH, tenant, r#"{"model":"tiny"}"#).await.status(), status);
        let unnamed = call(&gateway, "POST", PATH, tenant, r#"{"messages":[]}"#).await.status();
        assert_eq!(unnamed, if status == 200 { 200 } else { 400 }, "its engine would take `tiny`");
    }
}
