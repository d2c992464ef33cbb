//! What a client of a bare vLLM expects: every path, its own models, its stream, forms, WebSockets, web pages.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokenway::config::{ProbeKind, Slo, Tenant};

use crate::admission::{chat, one_at_a_time, taught, waiting};
use crate::support::client::Client;
use crate::support::replica::{Gate, Probes, Received, Replica, Step};
use crate::support::{FORM, Gateway, PATH, config, until, wire};

const KEYED: [(&str, &str); 1] = [("authorization", "Bearer ka")];

fn tenants() -> Vec<Tenant> {
    vec![config::tenant("a", "ka"), config::tenant("b", "kb")]
}

#[tokio::test]
async fn every_listed_path_reaches_an_engine_and_no_other_does() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(wire::json(200, "{\"ok\" : 1}"));
    for path in [
        "/v1/chat/completions/batch", "/v2/rerank", "/v2/embed", "/v1/score", "/classify",
        "/generative_scoring", "/detokenize", "/tokenizer_info", "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] {
        let reply = gateway.ask("POST", path, &[], br#"{"model":"tiny"}"#).await;
        assert_eq!((reply.status(), reply.text()), (200, "{\"ok\" : 1}"), "{path}");
        let reply = gateway.ask("DELETE", path, &[], b"").await;
        assert_eq!((reply.status(), &*reply.code()), (405, "method_not_allowed"));
        assert_eq!(reply.field("allow"), Some("GET, HEAD, OPTIONS, POST"), "{path}");
    }
    let relayed = replica.count();
    for path in
        ["/v1/classify", "/sleep", "/v1/load_lora_adapter", "/v1/responses/", "/metrics", "/v1/things/1"]
    {
        assert_eq!(gateway.ask("POST", path, &[], b"").await.status(), 404, "{path}");
    }
    assert_eq!(replica.count(), relayed);
    gateway.idle().await;
}

#[tokio::test]
async fn extra_paths_take_names_and_are_opaque_but_for_their_model() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.routes = vec![config::route("tiny", &[0]), config::route("alias", &[0])];
    config.routes[1].upstream_model = Some("tiny".into());
    config.server.extra_paths = vec!["/v1/things/{id}".into()];
    let gateway = Gateway::start(config).await;
    let body = br#"{"stream":1,"stream":"2","model":"alias","messages":7}"#;
    assert_eq!(gateway.ask("POST", "/v1/things/a?x=1", &[], body).await.status(), 200);
    assert_eq!(replica.only().line(), "POST /v1/things/a?x=1 HTTP/1.1");
    assert_eq!(replica.only().text(), r#"{"stream":1,"stream":"2","model":"tiny","messages":7}"#);
    let twice = gateway.ask("POST", "/v1/things/a", &[], br#"{"model":"a","model":"b"}"#).await;
    assert_eq!((twice.status(), &*twice.code()), (400, "invalid_request"));
    for path in
        ["/v1/things", "/v1/things/..", "/v1/things/%2e%2e", "/v1/things/..%2Fsleep", "/v1/things/a/b"]
    {
        assert_eq!(gateway.ask("POST", path, &[], b"").await.status(), 404, "{path}");
    }
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn what_may_not_be_repeated_takes_no_connection_that_the_engine_may_be_about_to_close() {
    let replica = Replica::start().await;
    replica.always(wire::json(200, "{}"));
    let mut config = config::of(&[&replica]);
    config.server.extra_paths = vec!["/v1/things".into()];
    config.pools[0].max_connections = NonZeroUsize::new(2).unwrap();
    let gateway = Gateway::start(config).await;
    for count in 1..=6 {
        assert_eq!(gateway.ask("POST", "/v1/things", &[], b"{}").await.status(), 200);
        gateway.idle().await;
        assert_eq!(replica.connections(), count);
    }
    assert_eq!(gateway.replicas()[0].connections, 2, "idle ones count, too");
}

#[tokio::test]
async fn a_stream_that_we_do_not_understand_is_relayed_from_its_head_on() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.extra_paths = vec!["/v1/custom".into()]).await;
    let lines = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    for head in [wire::sse_head(), Step::Raw(lines.as_bytes().to_vec())] {
        let (one, two) = (Gate::new(), Gate::new());
        let events =
            [wire::event("data: 1\n\n"), Step::Wait(two.clone()), wire::event("data: 2\n\n"), Step::End];
        replica.next([head, Step::Wait(one.clone())].into_iter().chain(events).collect());
        let mut client = gateway.client().await;
        client.post("/v1/custom", &[], br#"{"model":"tiny"}"#).await;
        assert_eq!(client.head().await.status, 200, "the head comes before any event");
        one.cancel();
        client.read_until("data: 1\n\n").await;
        assert!(gateway.inflight() > 0, "it counts as load");
        two.cancel();
        let rest = client.rest().await;
        assert!(rest.is_complete && rest.bytes == b"data: 2\n\n");
    }
    replica.next(vec![wire::sse_head(), wire::event("data: 1\n\n"), Step::Close]);
    let cut = gateway.ask("POST", "/v1/custom", &[], b"").await;
    assert!(!cut.body.is_complete, "an answer that broke off does not look complete");
    gateway.idle().await;
}

#[tokio::test]
async fn models_are_the_engines_own_objects_with_base_models_first() {
    let [one, two] = Replica::several().await;
    let sql = r#"{"id":"sql","object":"model", "parent":"zeta"}"#;
    let zeta = r#"{"id":"zeta","object":"model","created":7,"root":"/m/zeta","parent":null,"permission":[{"id":"p1"}]}"#;
    let alpha = r#"{"id":"alpha","max_model_len":9}"#;
    one.lists(&format!(r#"{{"object":"list","data":[{sql},{zeta}]}}"#));
    two.lists(&format!(r#"{{"object":"list","data":[{alpha}]}}"#));
    let mut config = config::of(&[&one]);
    config.pools.push(config::pool("second", &[&two]));
    config.routes[0].pools = config::route("*", &[0, 1]).pools;
    config.routes.push(config::route("nick/name", &[0]));
    let gateway = Gateway::start(config).await;
    let page = gateway.call("GET", "/v1/models").await;
    let nick = zeta.replacen("zeta", "nick/name", 1);
    assert_eq!(page.text(), format!(r#"{{"object":"list","data":[{zeta},{alpha},{nick},{sql}]}}"#));
    for (path, object) in [("zeta", zeta), ("nick/name", &*nick), ("nick%2Fname", &*nick), ("sql", sql)] {
        let reply = gateway.call("GET", &format!("/v1/models/{path}")).await;
        assert_eq!((reply.status(), reply.text()), (200, object), "{path}");
    }
    let unknown = gateway.call("GET", "/v1/models/nobody").await;
    assert_eq!((unknown.status(), &*unknown.code()), (404, "model_not_found"));
    assert_eq!(gateway.call("DELETE", "/v1/models/zeta").await.status(), 405);
}

#[tokio::test]
async fn an_engine_with_a_key_lists_its_models_to_who_has_it() {
    const LIST: &str = r#"{"object":"list","data":[{"id":"tiny","object":"model"}]}"#;
    let replica = Replica::start().await;
    replica.probes(Probes::Refused(401));
    replica.answers(|request| match request.header("authorization") {
        Some("Bearer sk-engine") => wire::json(200, LIST),
        _ => wire::json(401, r#"{"error":"Unauthorized"}"#),
    });
    let mut config = config::of(&[&replica]);
    config.pools[0].probe.kind = ProbeKind::Auto;
    let gateway = Gateway::start(config).await;
    let keyed = [("authorization", "Bearer sk-engine")];
    let list = gateway.ask("GET", "/v1/models", &keyed, b"").await;
    assert_eq!((list.status(), list.text()), (200, LIST));
    assert_eq!(gateway.ask("GET", "/v1/models", &[], b"").await.status(), 401);
    assert_eq!(gateway.ask("DELETE", "/v1/models", &keyed, b"").await.status(), 405);
    assert_eq!(replica.received()[0].line(), "GET /v1/models HTTP/1.1");
    for path in ["org/tiny", "org%2Ftiny", "tiny:a-1"] {
        let one = gateway.ask("GET", &format!("/v1/models/{path}"), &keyed, b"").await;
        assert_eq!(one.status(), 200, "{path}");
    }
    assert_eq!(replica.count(), 5);
    for path in ["../../metrics", "..%2f..%2fsleep", "/sleep", "tiny/", "%252e%252e/metrics", "a%5Cb", "./x"]
    {
        let one = gateway.ask("GET", &format!("/v1/models/{path}"), &keyed, b"").await;
        assert_eq!((one.status(), one.code().as_str()), (404, "model_not_found"), "{path}");
    }
    assert_eq!(replica.count(), 5, "none of them reaches the engine");
}

#[tokio::test]
async fn a_trusted_header_counts_on_every_path_and_a_preflight_needs_no_key() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.tenants = tenants();
    config.server.trust_headers = vec!["x-tenant".parse().unwrap()];
    let gateway = Gateway::start(config).await;
    for path in ["/v1/models", "/v1/models/tiny", "/tokenizer_info"] {
        assert_eq!(gateway.ask("GET", path, &[("x-tenant", "a")], b"").await.status(), 200, "{path}");
        assert_eq!(gateway.ask("GET", path, &[("x-tenant", "nobody")], b"").await.status(), 401, "{path}");
        assert_eq!(gateway.ask("GET", path, &KEYED, b"").await.status(), 200, "{path}");
        assert_eq!(gateway.ask("GET", path, &[], b"").await.status(), 401, "{path}");
        for twice in [[("x-tenant", "b"), ("x-tenant", "a")], [("x-tenant", "a"), ("x-tenant", "a")]] {
            let reply = gateway.ask("GET", path, &twice, b"").await;
            assert_eq!((reply.status(), &*reply.code()), (401, "invalid_api_key"), "{path} {twice:?}");
        }
    }
    let preflight = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let allowed = "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\ncontent-length: 2\r\n\r\nOK";
    for path in [PATH, "/v1/models"] {
        let before = replica.count();
        replica.next(vec![Step::Raw(allowed.into())]);
        let reply = gateway.ask("OPTIONS", path, &preflight, b"").await;
        assert_eq!((reply.status(), reply.text()), (200, "OK"), "{path}");
        assert_eq!(reply.field("access-control-allow-origin"), Some("*"), "what the engine says passes");
        assert_eq!(replica.received()[before].line(), format!("OPTIONS {path} HTTP/1.1"));
    }
    assert_eq!(gateway.ask("OPTIONS", PATH, &[], b"").await.status(), 401, "no preflight, no exception");
}

#[tokio::test]
async fn preflights_reach_an_engine_seldom_and_without_what_is_not_their_question() {
    let ([replica], mut config) = config::fresh().await;
    let allowed = "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\nvary: Origin\r\nset-cookie: lb=1\r\ncontent-length: 2\r\n\r\nOK";
    replica.always(vec![Step::Raw(allowed.into())]);
    config.tenants = tenants();
    let gateway = Gateway::start(config).await;
    let ask = async |path: &str, origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
            ("cookie", "session=secret"),
            ("authorization", "Bearer stolen"),
            ("x-custom", "1"),
        ];
        gateway.ask("OPTIONS", path, &headers, b"").await
    };
    for n in 0..20 {
        let reply = ask(PATH, "https://app.example").await;
        assert_eq!((reply.status(), reply.text()), (200, "OK"));
        assert_eq!(reply.field("access-control-allow-origin"), Some("*"));
        assert_eq!(reply.field("vary"), Some("Origin"));
        assert!(reply.field("x-request-id").is_some());
        assert_eq!(reply.field("set-cookie").is_some(), n == 0, "of the client that the engine saw");
    }
    let sent = replica.only();
    assert_eq!(sent.header("origin"), Some("https://app.example"));
    assert_eq!(sent.header("access-control-request-headers"), Some("authorization"));
    for gone in ["cookie", "authorization", "x-custom"] {
        assert_eq!(sent.header(gone), None, "{gone}");
    }
    let mut refused = 0;
    for n in 0..200 {
        let reply = ask("/v1/models", &format!("https://{n}.example")).await;
        refused += u32::from(reply.status() == 429 && reply.code() == "preflights");
    }
    assert!(refused >= 100 && replica.count() <= 101, "{refused} refused, {} sent", replica.count());
    assert_eq!(ask(PATH, "https://app.example").await.status(), 200, "a flood takes no answer that is used");
    assert_eq!(ask("/nowhere", "https://app.example").await.status(), 404);
    gateway.idle().await;
}

#[tokio::test]
async fn a_replica_s_redirect_to_itself_leads_tenants_through_the_gateway() {
    for (has_tenants, elsewhere) in [(false, false), (true, false), (true, true)] {
        let ([replica], mut config) = config::fresh().await;
        let host =
            if elsewhere { "http://example.com".to_owned() } else { format!("http://{}", replica.name()) };
        let moved = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: {host}/v1/embeddings/\r\ncontent-length: 0\r\n\r\n"
        );
        replica.always(vec![Step::Raw(moved.into())]);
        config.server.root_path = "/llm".into();
        config.tenants = if has_tenants { tenants() } else { Vec::new() };
        let gateway = Gateway::start(config).await;
        let key = [("authorization", "Bearer ka"), ("content-type", "application/json")];
        let body = br#"{"model":"tiny","input":"hi"}"#;
        let reply = gateway.ask("POST", "/v1/embeddings", &key, body).await;
        let shown = if has_tenants && !elsewhere { "/llm".to_owned() } else { host };
        let location = format!("{shown}/v1/embeddings/");
        assert_eq!((reply.status(), reply.field("location")), (307, Some(&*location)));
    }
}

#[tokio::test]
async fn configured_origins_are_answered_and_marked_by_the_gateway() {
    let ([replica], mut config) = config::fresh().await;
    let marked = "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\ncontent-length: 2\r\n\r\n{}";
    replica.always(vec![Step::Raw(marked.into())]);
    config.tenants = tenants();
    config.server.cors_origins = Some(vec!["https://app.example".parse().unwrap()]);
    let gateway = Gateway::start(config).await;
    let origin = ("origin", "https://app.example");
    let asks = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let preflight = gateway.ask("OPTIONS", PATH, &asks, b"").await;
    assert_eq!(preflight.status(), 200);
    assert_eq!(preflight.field("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(preflight.field("access-control-allow-headers"), Some("authorization"));
    let strange = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let refused = gateway.ask("OPTIONS", PATH, &strange, b"").await;
    assert_eq!((refused.status(), refused.field("access-control-allow-origin")), (400, None));
    assert_eq!(replica.count(), 0);

    let unknown_key = gateway.ask("POST", PATH, &[origin], b"{}").await;
    let relayed = gateway.ask("POST", PATH, &[origin, KEYED[0]], b"{}").await;
    let models = gateway.ask("GET", "/v1/models", &[origin, KEYED[0]], b"").await;
    for (reply, status) in [(unknown_key, 401), (relayed, 200), (models, 200)] {
        assert_eq!(reply.status(), status);
        assert_eq!(reply.field("access-control-allow-origin"), Some("https://app.example"));
        let exposed = reply.field("access-control-expose-headers").unwrap();
        for name in ["x-request-id", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"] {
            assert!(exposed.split(", ").any(|header| header == name), "{name}: {exposed}");
        }
        assert_eq!(reply.field("vary"), Some("origin"));
    }
    let strange = gateway.ask("POST", PATH, &[strange[0], KEYED[0]], b"{}").await;
    assert_eq!(strange.field("access-control-allow-origin"), None, "the engine's `*` would let it read");
}

#[tokio::test]
async fn a_form_names_its_model_and_passes_untouched() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.routes = vec![config::route("tiny", &[0]), config::route("alias", &[0])];
    config.routes[1].upstream_model = Some("tiny".into());
    let gateway = Gateway::start(config).await;
    let form = |model: &str| {
        let file = "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\u{0}\r\n--\r\n";
        format!("{file}{model}--B--\r\n")
    };
    let part =
        |name: &str| format!("--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{name}\r\n");
    let send = async |body: String| {
        gateway.post_with("/v1/audio/transcriptions", &[("content-type", FORM)], body).await
    };
    assert_eq!(send(form(&part("tiny"))).await.status(), 200);
    assert_eq!(send(form(&part("alias"))).await.status(), 200);
    let received = replica.received();
    assert_eq!(received[0].text(), form(&part("tiny")));
    assert_eq!(received[0].header("content-type"), Some(FORM));
    assert_eq!(received[1].text(), form(&part("tiny")), "the name is mapped, nothing else changes");
    let missing = send(form("")).await;
    assert_eq!((missing.status(), &*missing.code()), (400, "missing_model"));
    assert!(missing.text().contains("tiny, alias"), "{}", missing.text());
    assert_eq!(send(form(&part("nobody"))).await.status(), 404);
    assert_eq!(send(form(&format!("{}{}", part("tiny"), part("alias")))).await.status(), 400);
    assert_eq!(send("no form at all".to_owned()).await.status(), 400);
    assert_eq!(replica.count(), 2);
    gateway.idle().await;
}

#[tokio::test]
async fn a_body_that_an_engine_may_read_otherwise_is_refused_where_models_matter() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.server.extra_paths = vec!["/v1/custom".into()];
    let drop_in = Gateway::start(config.clone()).await;
    config.routes = vec![config::route("mine", &[0]), config::route("theirs", &[0])];
    config.tenants = tenants();
    config.tenants[1].routes = Some(vec!["mine".into()]);
    let strict = Gateway::start(config).await;
    let send = async |gateway: &Gateway, path: &str, kind: &str, body: &[u8]| {
        gateway.post_with(path, &[("authorization", "Bearer kb"), ("content-type", kind)], body).await
    };
    let (json, form) = ("application/json", FORM);
    let part = |name: &str| {
        format!("--B\r\ncontent-disposition: form-data; {name}\r\n\r\ntheirs\r\n--B--\r\n").into_bytes()
    };
    let deep = format!(r#"{{"model":"theirs","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let utf16: Vec<u8> = r#"{"model":"theirs"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (path, kind, body) in [
        ("/v1/custom", json, b"\xef\xbb\xbf{\"model\":\"theirs\"}".to_vec()),
        ("/v1/custom", json, utf16),
        ("/v1/custom", json, br#"{"model":"theirs","x":NaN}"#.to_vec()),
        ("/v1/custom", json, deep.into_bytes()),
        ("/v1/custom", json, br#"[{"model":"theirs"}]"#.to_vec()),
        ("/v1/custom", "application/x-www-form-urlencoded", b"model=theirs".to_vec()),
        ("/v1/custom", form, part("name=\"x\"; name=\"model\"")),
        ("/v1/audio/transcriptions", form, part("name=\"x\"; name=\"model\"")),
        ("/v1/audio/transcriptions", form, part("name=\"x\"; name*=utf-8''model")),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=C; boundary=B", part("name=model")),
        ("/v1/audio/transcriptions", "application/x-www-form-urlencoded", b"model=theirs".to_vec()),
    ] {
        let refused = send(&strict, path, kind, &body).await;
        let shown = String::from_utf8_lossy(&body).into_owned();
        assert_eq!((refused.status(), &*refused.code()), (400, "invalid_request"), "{path} {kind} {shown}");
        assert_eq!(replica.count(), 0, "{path} {kind} {shown}");
    }
    let hidden = send(&strict, "/v1/custom", form, br#" {"model":"theirs"}"#).await;
    assert_eq!((hidden.status(), &*hidden.code()), (404, "model_not_found"), "JSON under a form's type");
    for body in [&b""[..], br#"{"x":1}"#, br#"{"model":"mine"}"#] {
        assert_eq!(send(&strict, "/v1/custom", json, body).await.status(), 200);
    }
    for body in [&b"\xff\x00 any bytes"[..], b"[1]", br#"{"x":NaN}"#] {
        assert_eq!(send(&drop_in, "/v1/custom", json, body).await.status(), 200, "one model for everybody");
        assert_eq!(replica.received().pop().unwrap().body, body);
    }
}

#[tokio::test]
async fn what_is_not_relayed_of_an_api_is_refused_in_its_shape() {
    let gateway = Gateway::start(config::of(&[&Replica::start().await])).await;
    for (path, kind) in [("/v1/messages/batches", Some("error")), ("/v1/messagesx", None)] {
        let reply = gateway.ask("POST", path, &[], b"{}").await;
        assert_eq!((reply.status(), reply.json()["type"].as_str()), (404, kind), "{path}");
        assert_eq!(reply.json()["error"]["code"], "unknown_path");
    }
}

#[tokio::test]
async fn a_request_without_a_model_goes_to_the_only_route_it_can_mean() {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.routes = vec![config::route("mine", &[0]), config::route("theirs", &[0])];
    config.tenants = tenants();
    config.tenants[1].routes = Some(vec!["mine".into()]);
    let gateway = Gateway::start(config).await;
    for (key, status) in [("Bearer ka", 400), ("Bearer kb", 200)] {
        for body in [r#"{"messages":[]}"#, r#"{"model":null}"#, r#"{"model":""}"#] {
            let reply = gateway.ask("POST", PATH, &[("authorization", key)], body.as_bytes()).await;
            assert_eq!(reply.status(), status, "{key} {body}");
        }
    }
    let refused = gateway.ask("POST", PATH, &KEYED, b"{}").await;
    assert_eq!(refused.code(), "missing_model");
    assert!(refused.text().contains("mine, theirs"), "{}", refused.text());
    assert_eq!(replica.received()[0].text(), r#"{"messages":[]}"#, "not one byte is added");
}

#[tokio::test]
async fn a_stored_response_is_read_cancelled_and_continued_where_its_tenant_made_it() {
    let ([one, two], gateway) = Gateway::before(|config| config.tenants = tenants()).await;
    let queued =
        |id: &str| wire::json(200, &format!(r#"{{"id":"{id}","object":"response","status":"queued"}}"#));
    let body = r#"{"model":"tiny","input":"hi","background":true}"#;
    let mut homes = Vec::new();
    for id in ["resp_1", "resp_2"] {
        for replica in [&one, &two] {
            replica.always(queued(id));
        }
        let made = gateway.ask("POST", "/v1/responses", &KEYED, body.as_bytes()).await;
        assert_eq!(made.status(), 200);
        homes.push(made.field("x-tokenway-replica").unwrap().to_owned());
    }
    assert_ne!(homes[0], homes[1], "round robin");
    for replica in [&one, &two] {
        replica.always(wire::json(200, "{}"));
    }
    for (id, home) in [("resp_1", &homes[0]), ("resp_2", &homes[1])] {
        let path = format!("/v1/responses/{id}");
        for (method, path) in [
            ("GET", format!("{path}?stream=true&starting_after=2")),
            ("POST", format!("{path}/cancel")),
            ("DELETE", path.clone()),
            ("GET", path),
        ] {
            let reply = gateway.ask(method, &path, &KEYED, b"").await;
            assert_eq!(reply.status(), 200, "{method} {path}");
            assert_eq!(reply.field("x-tokenway-replica"), Some(&**home), "{method} {path}");
            let replica = if *home == one.name() { &one } else { &two };
            assert_eq!(replica.received().last().unwrap().line(), format!("{method} {path} HTTP/1.1"));
        }
    }
    for (key, path) in [("Bearer kb", "/v1/responses/resp_1"), ("Bearer ka", "/v1/responses/resp_9")] {
        let reply = gateway.ask("GET", path, &[("authorization", key)], b"").await;
        assert_eq!((reply.status(), &*reply.code()), (404, "response_not_found"), "{key} {path}");
    }
    let continued = r#"{"model":"tiny","input":"hi","previous_response_id":"resp_1"}"#;
    for (key, status) in [("Bearer ka", 200), ("Bearer kb", 404)] {
        let reply =
            gateway.ask("POST", "/v1/responses", &[("authorization", key)], continued.as_bytes()).await;
        assert_eq!(reply.status(), status, "{key}");
    }
    assert_eq!(gateway.ask("DELETE", "/v1/responses/resp_1/cancel", &KEYED, b"").await.status(), 405);
    gateway.idle().await;
}

#[tokio::test]
async fn a_response_id_that_a_client_chooses_is_its_tenants_own() {
    let ([replica], gateway) = Gateway::before(|config| config.tenants = tenants()).await;
    let body = r#"{"model":"tiny","input":"hi", "request\u005fid" : "resp_1","n":1}"#;
    let id_of = |received: &Received| {
        let sent: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
        sent["request_id"].as_str().unwrap().to_owned()
    };
    // As vLLM does: the answer is stored under the id of the body.
    let post = async |key: &str, chosen_by_header: bool| {
        let headers = [("authorization", key), ("x-request-id", "resp_1")];
        let headers = if chosen_by_header { &headers[..] } else { &headers[..1] };
        replica.next(wire::json(200, r#"{"id":"resp_of_the_engine","object":"response"}"#));
        let reply = gateway.ask("POST", "/v1/responses", headers, body.as_bytes()).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.field("x-request-id"), Some("resp_1"), "what the client sees is its own");
        let received = replica.received().pop().unwrap();
        let id = id_of(&received);
        assert_eq!(received.text(), body.replace("resp_1", &id), "nothing else changes");
        assert_ne!(received.header("x-request-id"), Some("resp_1"));
        id
    };
    let of_a = post("Bearer ka", false).await;
    assert!(of_a.starts_with("resp_") && of_a.len() == 37, "{of_a}");
    assert_eq!(post("Bearer ka", true).await, of_a, "one tenant's choice stays one id");
    assert_ne!(post("Bearer kb", true).await, of_a);

    replica.always(wire::json(200, "{}"));
    let path = "/v1/responses/resp_of_the_engine";
    for (key, status) in [("Bearer ka", 200), ("Bearer kb", 404)] {
        let reply = gateway.ask("GET", path, &[("authorization", key)], b"").await;
        assert_eq!(reply.status(), status, "who had an id first keeps it: {key}");
    }
    for odd in [r#"{"model":"tiny","request_id":7}"#, r#"{"model":"tiny","request_id":null}"#] {
        gateway.ask("POST", "/v1/responses", &KEYED, odd.as_bytes()).await;
        assert_eq!(replica.received().pop().unwrap().text(), odd, "the engine says what is wrong with it");
    }
    let chat = r#"{"model":"tiny","request_id":"mine"}"#;
    gateway.ask("POST", PATH, &KEYED, chat.as_bytes()).await;
    assert_eq!(replica.received().pop().unwrap().text(), chat, "nothing is stored under it");

    let open = Gateway::start(config::of(&[&replica])).await;
    open.ask("POST", "/v1/responses", &[], body.as_bytes()).await;
    let received = replica.received().pop().unwrap();
    assert_eq!((received.text(), received.header("x-request-id")), (body, Some("resp_1")));
}

#[tokio::test]
async fn a_body_s_own_request_id_stands_where_no_header_names_one() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(wire::json(200, "{}"));
    for (header, body, expected) in [
        (None, r#"{"model":"tiny","request_id":"mine.1"}"#, Some("mine.1")),
        (Some("theirs"), r#"{"model":"tiny","request_id":"mine.1"}"#, Some("theirs")),
        (Some("not harmless"), r#"{"model":"tiny","request_id":"mine.1"}"#, Some("mine.1")),
        (None, r#"{"model":"tiny","request_id":"not harmless"}"#, None),
    ] {
        let headers: Vec<_> = header.into_iter().map(|id| ("x-request-id", id)).collect();
        let reply = gateway.ask("POST", PATH, &headers, body.as_bytes()).await;
        let received = replica.received();
        let sent = received.last().unwrap().header("x-request-id").unwrap().to_owned();
        assert_eq!(reply.field("x-request-id"), Some(&*sent));
        match expected {
            Some(expected) => assert_eq!(sent, expected),
            None => assert_eq!(sent.len(), 32),
        }
    }
}

#[tokio::test]
async fn a_root_path_is_stripped_from_every_path() {
    let ([replica], gateway) = Gateway::before(|config| config.server.root_path = "/llm".into()).await;
    replica.always(wire::json(200, "{}"));
    for path in ["/llm/health", "/llm/v1/models", "/health"] {
        assert_eq!(gateway.call("GET", path).await.status(), 200, "{path}");
    }
    assert_eq!(gateway.post("/llm/v1/chat/completions?x=1", r#"{"model":"tiny"}"#).await.status(), 200);
    assert_eq!(replica.only().line(), "POST /v1/chat/completions?x=1 HTTP/1.1");
    assert_eq!(gateway.post("/llm/sleep", "").await.status(), 404);
}

#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_502() {
    let replica = Replica::start().await;
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    replica.always(vec![Step::Raw(switch.into()), Step::Close]);
    let gateway = Gateway::start(config::of(&[&replica])).await;
    let reply = gateway.post(PATH, r#"{"model":"tiny"}"#).await;
    assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"));
    gateway.idle().await;
}

#[tokio::test]
async fn an_engine_s_stream_comes_as_if_nobody_had_asked_for_usage() {
    let ([replica], mut config) = config::fresh().await;
    config.routes[0].ask_usage = true;
    let marked_usage = wire::USAGE.replace("}}\n", "},\"system_fingerprint\":\"fp-1\"}\n");
    let bare = wire::FINISH.replace("}]}\n", "}],\"system_fingerprint\":\"fp-1\"}\n");
    replica.streams_unasked(&[&bare, wire::DONE].concat());
    let gateway = Gateway::start(config).await;
    let several = wire::FINISH.replace("\"index\":0", "\"index\":1");
    let body = r#"{"model":"tiny","stream":true,"messages":[]}"#;
    let two = r#"{"model":"tiny","stream":true,"n":2,"messages":[]}"#;
    let begin = [wire::ROLE, &wire::content("a")].concat();
    for (body, finish, expected) in [
        (body, wire::FINISH.to_owned(), bare.clone()),
        (
            two,
            [wire::FINISH, &several].concat(),
            [&*bare, &bare.replace("\"index\":0", "\"index\":1")].concat(),
        ),
    ] {
        for size in [7, 4000] {
            let sent = [&*begin, &finish, &marked_usage, wire::DONE].concat();
            replica.next(wire::stream(sent.as_bytes().chunks(size)));
            let reply = gateway.post(PATH, body).await;
            assert_eq!(reply.text(), [&*begin, &expected, wire::DONE].concat());
        }
        assert!(replica.received().last().unwrap().text().contains(r#""include_usage":true"#));
    }
    gateway.idle().await;
}

#[tokio::test]
async fn usage_that_an_engine_sends_unasked_is_the_client_s() {
    let ([replica], mut config) = config::fresh().await;
    config.routes[0].ask_usage = true;
    replica.streams_unasked(&[wire::FINISH, wire::USAGE, wire::DONE].concat());
    let gateway = Gateway::start(config.clone()).await;
    let sent = [wire::ROLE, &wire::content("a"), wire::FINISH, wire::USAGE, wire::DONE].concat();
    for pool in [None, Some("another name")] {
        if let Some(name) = pool {
            config.pools[0].name = name.into();
            gateway.app.reload(Arc::new(config.clone())).unwrap();
        }
        replica.next(wire::stream([&sent]));
        let reply = gateway.post(PATH, r#"{"model":"tiny","stream":true,"messages":[]}"#).await;
        assert_eq!(reply.text(), sent, "{pool:?}");
    }
    let continuous = r#"{"model":"tiny","stream":true,"stream_options":{"continuous_usage_stats":true}}"#;
    gateway.post(PATH, continuous).await;
    assert_eq!(replica.received()[2].text(), continuous, "not asked where chunks would then count");
}

const UPGRADE: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

async fn websocket(gateway: &Gateway, target: &str) -> Client {
    let mut client = gateway.client().await;
    client.send("GET", target, &UPGRADE, b"").await;
    let head = String::from_utf8(client.raw_until(b"\r\n\r\n").await).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    assert!(head.to_lowercase().contains("\r\nconnection: upgrade\r\n"), "{head}");
    client
}

#[tokio::test]
async fn a_websocket_is_a_tunnel_that_counts_as_load() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.routes = vec![config::route("tiny", &[0]), config::route("other", &[0])];
    })
    .await;
    let hello = b"\x81\x05hello".to_vec();
    let masked = b"\x81\x82\x00\x00\x00\x00hi".to_vec();
    let bye = b"\x88\x02\x03\xe8".to_vec();
    replica.next(vec![
        Step::Raw([SWITCH.as_bytes(), &hello].concat()),
        Step::Expect(masked.clone()),
        Step::Raw(bye.clone()),
        Step::Close,
    ]);
    let mut client = websocket(&gateway, "/v1/realtime?model=tiny").await;
    client.raw_until(&hello).await;
    assert!(gateway.replicas()[0].inflight > 0, "an open tunnel is load");
    let received = replica.only();
    assert_eq!(received.line(), "GET /v1/realtime?model=tiny HTTP/1.1");
    assert_eq!(received.header("upgrade"), Some("websocket"));
    assert_eq!(received.header("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    client.send_raw(&masked).await;
    client.raw_until(&bye).await;
    client.until_closed().await;
    gateway.idle().await;

    for (target, status, code) in [
        ("/v1/realtime", 400, "missing_model"),
        ("/v1/realtime?model=nobody", 404, "model_not_found"),
        ("/v1/realtime?model=tiny&%6dodel=other", 400, "invalid_request"),
        ("/v1/realtime?mod%65l=nobody", 404, "model_not_found"),
    ] {
        let reply = gateway.ask("GET", target, &UPGRADE, b"").await;
        assert_eq!((reply.status(), &*reply.code()), (status, code));
    }
    replica.next(wire::json(403, "{\"no\":1}"));
    let refused = gateway.ask("GET", "/v1/realtime?model=tiny", &UPGRADE, b"").await;
    assert_eq!((refused.status(), refused.text()), (403, "{\"no\":1}"), "an engine's own refusal passes");
    gateway.idle().await;
}

#[tokio::test]
async fn how_long_a_websocket_is_open_is_no_miss_of_its_route_s_slo() {
    let bound = Some(Duration::from_millis(1));
    let ([replica], gateway) = Gateway::before(|config| {
        config.slo.insert("chat".into(), Slo { e2e: bound, ..Slo::default() });
        config.routes[0].slo = "chat".into();
    })
    .await;
    let bye = b"\x88\x02\x03\xe8".to_vec();
    let gate = Gate::new();
    replica.next(vec![
        Step::Raw(SWITCH.into()),
        Step::Wait(gate.clone()),
        Step::Raw(bye.clone()),
        Step::Close,
    ]);
    let mut client = websocket(&gateway, "/v1/realtime?model=tiny").await;
    let clock = gateway.app.gateway.clock;
    let later = clock.now().after(Duration::from_secs(5));
    assert!(gateway.app.gateway.observer.metrics.overdue.by_route(later).is_empty());
    gate.cancel();
    client.raw_until(&bye).await;
    drop(client);
    gateway.idle().await;
    assert_eq!(gateway.sum("tokenway_slo_missed_requests_total", &[]), 0.0);
}

#[tokio::test]
async fn a_handshake_that_a_replica_refuses_with_an_error_goes_to_another_one() {
    let ([good, bad], gateway) = Gateway::before(|_| {}).await;
    good.always(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    bad.always(wire::json(503, r#"{"error":"starting"}"#));
    for _ in 0..6 {
        drop(websocket(&gateway, "/v1/realtime?model=tiny").await);
        gateway.idle().await;
    }
    assert!(bad.count() > 0);
    good.always(wire::json(503, r#"{"error":"starting"}"#));
    let refused = gateway.ask("GET", "/v1/realtime?model=tiny", &UPGRADE, b"").await;
    assert_eq!((refused.status(), refused.text()), (503, r#"{"error":"starting"}"#), "where none takes it");
}

#[tokio::test]
async fn a_websocket_opens_in_the_delay_of_a_drain() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    gateway.app.gateway.drain.begin();
    let _open = websocket(&gateway, "/v1/realtime?model=tiny").await;
}

#[tokio::test]
async fn a_websocket_that_outlives_the_drain_is_closed_as_going_away() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.drain_timeout = Duration::from_millis(100)).await;
    replica.next(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    let mut client = websocket(&gateway, "/v1/realtime?model=tiny").await;
    let closed = client.raw_until(b"\x88\x0f\x03\xe9drain_timeout");
    tokio::join!(gateway.app.drain(Duration::ZERO), closed);
}

#[tokio::test]
async fn a_websocket_waits_for_nobody_where_prompts_do() {
    let ([replica], gateway) = Gateway::before(one_at_a_time).await;
    taught(&gateway, &replica).await;
    let (gate, before) = (Gate::new(), replica.count());
    replica.next(wire::behind(&gate, wire::chat_stream(&["first"])));
    let _chats = [gateway.sent(PATH, &chat("tiny", "1")).await, gateway.sent(PATH, &chat("tiny", "2")).await];
    replica.got(before + 1).await;
    waiting(&gateway, 1).await;
    replica.next(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    let _open = websocket(&gateway, "/v1/realtime?model=tiny").await;
    gate.cancel();
}

#[tokio::test]
async fn a_websocket_that_never_speaks_is_closed_by_a_named_deadline() {
    let ([replica], gateway) =
        Gateway::before(|config| config.routes[0].timeouts.client_stall = Duration::from_millis(200)).await;
    replica.next(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    let mut client = websocket(&gateway, "/v1/realtime").await;
    client.raw_until(b"\x88\x16\x03\xf3timeout_client_stall").await;
    client.until_closed().await;
    replica.abandoned(1).await;
    gateway.idle().await;
    let page = gateway.page();
    let ends =
        page.lines().filter(|line| line.starts_with("tokenway_requests_total{") && !line.ends_with(" 0"));
    let ends: Vec<_> = ends.collect();
    assert!(ends.len() == 1 && ends[0].contains(r#"outcome="canceled""#), "{ends:?}");
}

#[tokio::test]
async fn a_client_that_leaves_its_websocket_ends_it_at_the_engine() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(vec![Step::Raw(SWITCH.into()), Step::Hang]);
    let client = websocket(&gateway, "/v1/realtime").await;
    drop(client);
    replica.abandoned(1).await;
    gateway.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_under_what_its_engine_sends_is_no_failure_of_that() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let frames = [&b"\x82\x7d"[..], &[b'x'; 125]].concat().repeat(20_000);
    for _ in 0..20 {
        replica.next(vec![Step::Raw(SWITCH.into()), Step::Raw(frames.clone()), Step::Hang]);
        let mut client = websocket(&gateway, "/v1/realtime").await;
        client.raw_until(b"xxx").await;
        drop(client);
    }
    gateway.idle().await;
    let page = gateway.page();
    let failed = |line: &&str| line.contains(r#"outcome="failed""#) && !line.ends_with(" 0");
    assert_eq!(page.lines().filter(failed).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn a_switch_to_anything_but_websocket_is_502() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for upgrade in
        ["upgrade: h2c\r\n", "", "upgrade: websocket, h2c\r\n", "upgrade: websocket\r\nupgrade: h2c\r\n"]
    {
        let switch =
            format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}connection: Upgrade\r\n\r\nsecret words");
        replica.always(vec![Step::Raw(switch.into_bytes()), Step::Hang]);
        let reply = gateway.ask("GET", "/v1/realtime", &UPGRADE, b"").await;
        assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"), "{upgrade:?}");
    }
    gateway.idle().await;
}

#[tokio::test]
async fn an_upgrade_is_refused_with_a_reason_where_there_is_none() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let elsewhere = gateway.ask("GET", PATH, &UPGRADE, b"").await;
    assert_eq!((elsewhere.status(), &*elsewhere.code()), (400, "upgrade_not_supported"));
    let plain = gateway.ask("GET", "/v1/realtime", &[], b"").await;
    assert_eq!((plain.status(), &*plain.code()), (426, "upgrade_required"));
    assert_eq!(plain.field("upgrade"), Some("websocket"));
    let mut old = gateway.client().await;
    let lines: String = UPGRADE.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    old.send_raw(format!("GET /v1/realtime HTTP/1.0\r\nhost: a\r\n{lines}\r\n").as_bytes()).await;
    old.raw_until(b"upgrade_required").await;
    assert_eq!(replica.count(), 0);
    gateway.idle().await;
    until("no connection is left open", || gateway.inflight() == 0).await;
}

/// The page for people who come from a bare vLLM: its tables are what the code and these tests say.
#[test]
fn the_compatibility_page_lists_every_path_and_names_a_test_for_every_difference() {
    let page = include_str!("../../../docs/compatibility.md");
    let first_cell = |line: &'static str| line.strip_prefix("| `/")?.split('`').next();
    let section = |title: &str| page.split(title).nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: Vec<String> =
        section("## Paths\n").lines().filter_map(first_cell).map(|path| format!("/{path}")).collect();
    let served = tokenway::request::dialect::SERVED.iter().map(|(pattern, _)| *pattern);
    let mut expected: Vec<&str> =
        served.chain(["/v1/models", "/v1/models/{id}", "/health", "/version"]).collect();
    let mut listed: Vec<&str> = listed.iter().map(String::as_str).collect();
    expected.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, expected);
    let tests = [
        include_str!("dropin.rs"),
        include_str!("../relay.rs"),
        include_str!("../../http/listener.rs"),
        include_str!("../failures.rs"),
        include_str!("../tenants.rs"),
    ]
    .concat();
    let rows = section("## Where an answer differs\n").lines().filter(|line| line.starts_with("| ")).skip(1);
    for row in rows {
        let test = row.trim_end_matches(" |").rsplit("| `").next().unwrap().trim_end_matches('`');
        assert!(tests.contains(&format!("fn {test}()")), "no test {test}: {row}");
    }
}
