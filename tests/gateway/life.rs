//! The life of a replica as its pool's clients and operators see it: proof and warm-up before traffic, restarts, slow start,
//! keep-alive.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, config, soon, until, wire};
use tokenway::config::{
    Config, Dcgm, Lora, ModelMatch, ProbeKind, Secret, WarmUp, WarmUpFeature, WarmUpLength,
};
use tokenway::fleet::status::{ReplicaState, ReplicaStatus};

fn with_warm_up(replicas: &[&Replica]) -> Config {
    let mut config = config::of(replicas);
    config.pools[0].warmup = WarmUp {
        requests: 3,
        timeout: Duration::from_secs(5),
        slow_start: Duration::from_secs(600),
        lengths: vec![WarmUpLength::Short],
        ..WarmUp::default()
    };
    config
}

async fn ask(gateway: &Gateway, times: usize) {
    for _ in 0..times {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
}

fn status(gateway: &Gateway, replica: &Replica) -> ReplicaStatus {
    gateway.replicas().into_iter().find(|status| *status.replica == *replica.name()).unwrap()
}

/// How often it entered a state.
fn entered(gateway: &Gateway, replica: &Replica, state: ReplicaState) -> u64 {
    let at = ReplicaState::ALL.iter().position(|one| *one == state).unwrap();
    status(gateway, replica).life.entered[at]
}

fn warm_ups(replica: &Replica) -> usize {
    replica.own().iter().filter(|request| request.text().contains("\"max_tokens\":4")).count()
}

#[tokio::test]
async fn green_health_gets_no_traffic_before_a_real_answer_and_its_warm_up() {
    let [warm, cold] = Replica::several().await;
    cold.probes(Probes::CompletionsUnanswered);
    let gateway = Gateway::start_unready(with_warm_up(&[&warm, &cold]));
    until("one is ready", || gateway.state_of(&warm) == ReplicaState::Ready).await;
    ask(&gateway, 10).await;
    assert_eq!((warm.count(), cold.count()), (10, 0));
    until("its probe failed", || status(&gateway, &cold).failures.probes > 0).await;
    assert_eq!(gateway.state_of(&cold), ReplicaState::Probing);
    assert_eq!((warm_ups(&warm), warm_ups(&cold)), (3, 0));
    cold.probes(Probes::Answered);
    gateway.ready().await;
    assert_eq!(warm_ups(&cold), 3);
    let life = status(&gateway, &cold).life;
    assert_eq!((life.cold_starts.count, life.warm_up.unwrap().requests), (1, 3));
    assert_eq!(status(&gateway, &warm).life.cold_starts.count, 0, "it ran before we came");
}

#[tokio::test]
async fn a_success_that_is_no_answer_proves_nothing_whatever_the_kind_of_probe() {
    let html = ("text/html", "<html><body>It works!</body></html>");
    let bodies = [
        html,
        ("application/json", r#"{"error":{"message":"boom","type":"server_error","code":500}}"#),
        ("application/json", ""),
        ("application/json", r#"{"status":"ok"}"#),
        ("application/json", r#"{"id":"c","choices":[{"index":0,"te"#),
        ("application/json", r#"{"choices":[],"data":[],"results":[]}"#),
    ];
    for kind in [ProbeKind::Auto, ProbeKind::Completion, ProbeKind::Embedding, ProbeKind::Rerank] {
        let mut replicas = Vec::new();
        for (content_type, body) in bodies {
            let replica = Replica::start().await;
            replica.probes(Probes::Says(content_type, body));
            replicas.push(replica);
        }
        let well = Replica::start().await;
        let mut all: Vec<&Replica> = replicas.iter().collect();
        all.push(&well);
        let mut config = config::of(&all);
        config.pools[0].probe.kind = kind;
        let gateway = Gateway::start_unready(config);
        until("the engine is ready", || gateway.state_of(&well) == ReplicaState::Ready).await;
        for replica in &replicas {
            until("its probe was judged", || status(&gateway, replica).failures.probes > 0).await;
            let seen = status(&gateway, replica);
            assert_eq!(seen.state, ReplicaState::Probing, "{kind:?}: {}", seen.reason);
            assert!(seen.reason.contains("answered 200 OK with"), "{kind:?}: {}", seen.reason);
        }
        ask(&gateway, 7).await;
        assert_eq!(well.count(), 7);
    }
}

#[tokio::test]
async fn a_request_that_comes_with_the_start_waits_for_the_first_probes() {
    let replica = Replica::start().await;
    let gateway = Gateway::start_unready(config::of(&[&replica]));
    ask(&gateway, 3).await;
    replica.stop_listening().await;
    let unreachable = Gateway::start_unready(config::of(&[&replica]));
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"x"}]}"#;
    let refused = unreachable.post(PATH, body).await;
    assert_eq!((refused.status(), &*refused.code()), (503, "no_ready_replica"));
}

#[tokio::test]
async fn a_replica_that_fails_every_inference_path_is_not_ready_for_its_green_health() {
    for (status_code, key, is_ready) in [
        (500, None, false),
        (502, None, false),
        (401, Some(Secret::new("sk-engine")), false),
        // Clients have their own keys.
        (401, None, true),
        // It serves something else.
        (404, None, true),
        (400, None, true),
        (501, None, true),
    ] {
        let ([replica], mut config) = config::fresh().await;
        replica.probes(Probes::Refused(status_code));
        (config.pools[0].engine_api_key, config.pools[0].probe.kind) = (key, ProbeKind::Auto);
        let gateway = Gateway::start_unready(config);
        if !is_ready {
            until("its probes were judged", || status(&gateway, &replica).failures.probes > 1).await;
            let seen = status(&gateway, &replica);
            assert_eq!(seen.state, ReplicaState::Probing, "{status_code}: {}", seen.reason);
            assert!(seen.reason.contains(&format!("answered {status_code}")), "{}", seen.reason);
            replica.probes(Probes::Answered);
        }
        until(&format!("it is ready after {status_code}"), || {
            gateway.state_of(&replica) == ReplicaState::Ready
        })
        .await;
    }
}

#[tokio::test]
async fn a_green_health_is_no_proof_where_no_models_are_listed_or_a_peer_proves_more() {
    // A web server, alone: no list, no inference path.
    let ([web], mut config) = config::fresh().await;
    web.probes(Probes::Refused(404));
    web.lists("<html>It works!</html>");
    config.pools[0].probe.kind = ProbeKind::Auto;
    let gateway = Gateway::start_unready(config);
    until("its probes were judged", || status(&gateway, &web).failures.probes > 1).await;
    let seen = status(&gateway, &web);
    assert_eq!(seen.state, ReplicaState::Probing, "{}", seen.reason);
    assert!(seen.reason.contains("set probe.kind = \"health\""), "{}", seen.reason);
    // Of another kind than the rest of its pool, though its list is theirs.
    let ([engine, other], mut config) = config::fresh().await;
    other.probes(Probes::Refused(404));
    config.pools[0].probe.kind = ProbeKind::Auto;
    let gateway = Gateway::start_unready(config);
    until("the engine is ready", || gateway.state_of(&engine) == ReplicaState::Ready).await;
    until("the other does not stay", || {
        let seen = status(&gateway, &other);
        seen.state != ReplicaState::Ready && seen.reason.contains("answers no completion, as ")
    })
    .await;
    ask(&gateway, 6).await;
    assert_eq!((engine.count(), other.count()), (6, 0));
    other.probes(Probes::Answered);
    until("it is ready once it answers as they do", || gateway.state_of(&other) == ReplicaState::Ready).await;
}

#[tokio::test]
async fn a_newcomer_gets_little_traffic_at_first_and_the_decision_says_that_it_is_cold() {
    let [warm, cold] = Replica::several().await;
    cold.stop_listening().await;
    let gateway = Gateway::start_unready(with_warm_up(&[&warm, &cold]));
    until("one is ready", || gateway.state_of(&warm) == ReplicaState::Ready).await;
    until("the other is refused", || status(&gateway, &cold).failures.probes > 0).await;
    assert_eq!(gateway.state_of(&cold), ReplicaState::Starting);
    cold.listen_again().await;
    gateway.ready().await;
    // Its cold start began when it was discovered, before the other was warm.
    assert!(status(&gateway, &cold).life.cold_starts.count == 1);
    // Now it restarts while the other serves.
    let failures = status(&gateway, &cold).failures.probes;
    cold.stop_listening().await;
    ask(&gateway, 4).await;
    until("its process is found gone", || status(&gateway, &cold).failures.probes > failures).await;
    assert_eq!(gateway.state_of(&cold), ReplicaState::Unreachable);
    let before = (cold.count(), warm_ups(&cold));
    cold.listen_again().await;
    gateway.ready().await;
    assert_eq!(warm_ups(&cold), before.1 + 3, "warm-up comes first");
    for state in [ReplicaState::Starting, ReplicaState::Probing, ReplicaState::Warming] {
        assert_eq!(entered(&gateway, &cold, state), 2, "{}", state.as_str());
    }
    let now = status(&gateway, &cold);
    assert!(
        now.life.is_in_slow_start && now.traffic_share < 0.1 && now.life.cold_starts.count == 2,
        "{now:?}"
    );
    ask(&gateway, 60).await;
    assert!(cold.count() - before.0 < 30, "{} of 60", cold.count() - before.0);
    gateway.idle().await;
}

#[tokio::test]
async fn a_failing_feature_is_reported_and_holds_nobody_back() {
    let replica = Replica::start().await;
    let mut config = with_warm_up(&[&replica]);
    config.pools[0].warmup.features = vec![WarmUpFeature::Logprobs, WarmUpFeature::Guided];
    config.pools[0].warmup.prompts = vec!["You are terse.".into()];
    config.pools[0].warmup.slow_start = Duration::ZERO;
    let gateway = Gateway::start(config).await;
    let report = status(&gateway, &replica).life.warm_up.unwrap();
    assert_eq!((report.requests, report.problems.len()), (6, 0));
    let own = replica.own();
    assert!(own.iter().all(|request| request.header("x-tokenway-probe") == Some("1")));
    for expected in ["You are terse.", "\"logprobs\":5", "json_schema"] {
        assert!(own.iter().any(|request| request.text().contains(expected)), "{expected}");
    }
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn a_replica_is_warmed_up_again_when_it_is_asked_for() {
    let [one, other] = Replica::several().await;
    let gateway = Gateway::start(with_warm_up(&[&one, &other])).await;
    let warmed = (warm_ups(&one), warm_ups(&other));
    assert_eq!(gateway.app.fleet.warm_up("default", Some(&one.name())).len(), 1);
    until("it is warmed up again", || warm_ups(&one) == warmed.0 + 3).await;
    gateway.ready().await;
    assert_eq!(entered(&gateway, &one, ReplicaState::Warming), 2, "it leaves the traffic for it");
    assert_eq!(warm_ups(&other), warmed.1);
    assert!(gateway.app.fleet.warm_up("default", Some("nobody")).is_empty());
    assert!(gateway.app.fleet.warm_up("nobody", None).is_empty());
}

/// The list of an engine that serves this model.
fn listing(model: &str) -> String {
    format!(r#"{{"object":"list","data":[{{"id":"{model}","object":"model"}}]}}"#)
}

#[tokio::test]
async fn a_prompt_that_is_longer_than_engines_list_is_no_work_once_they_have_refused_one() {
    let ([replica, _], mut config) = config::fresh().await;
    config.pools[0].replicas.truncate(1);
    let model = r#""object":"model""#;
    replica.lists(&listing("tiny").replace(model, &format!(r#"{model},"max_model_len":1000"#)));
    let gateway = Gateway::start(config).await;
    let chat =
        |words| format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "many words ".repeat(words));
    // Engines take as many prompts in a list as come, each of which they take alone.
    let list =
        format!(r#"{{"prompt":[{}]}}"#, vec![format!("\"{}\"", "many words ".repeat(100)); 50].join(","));
    let asked = [
        (PATH, chat(500), 400, true),
        (PATH, chat(5000), 400, true),
        ("/v1/completions", list, 400, true),
        (PATH, chat(5000), 200, false),
        (PATH, chat(5000), 200, true),
    ];
    for (before, (path, body, status, is_work)) in asked.into_iter().enumerate() {
        let gate = replica.held(wire::json(status, "{}"));
        let mut client = gateway.sent(path, &body).await;
        replica.got(before + 1).await;
        let tokens = gateway.replicas()[0].inflight_prompt_tokens;
        assert_eq!(tokens > 500, is_work, "{before}: {path}, {tokens} tokens");
        gate.cancel();
        client.reply().await;
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_replica_that_comes_back_with_another_model_gets_nothing_and_changes_nobody_s_requests() {
    // The route's name is the engines' own, or stands for the only model that they list.
    for usual in ["tiny", "org/tiny-3.0"] {
        let ([first, second], mut config) = config::fresh().await;
        for replica in [&first, &second] {
            replica.lists(&listing(usual));
        }
        config.routes = vec![config::route("tiny", &[0])];
        config.pools[0].probe.interval = Duration::from_millis(50);
        let gateway = Gateway::start(config).await;
        ask(&gateway, 2).await;
        first.stop_listening().await;
        until("its process is gone", || gateway.state_of(&first) == ReplicaState::Unreachable).await;
        first.lists(&listing("other"));
        first.listen_again().await;
        let seen = || status(&gateway, &first);
        until("its list is read", || seen().reason.contains("serves other")).await;
        assert_eq!(seen().state, ReplicaState::Probing);
        assert_eq!(*seen().reason, format!("serves other, and its pool's other replicas {usual}"));
        assert_eq!(&*seen().life.lacks, [Arc::from("tiny")]);
        let before = (first.count(), second.count());
        ask(&gateway, 10).await;
        assert_eq!((first.count(), second.count()), (before.0, before.1 + 10));
        for request in second.received() {
            assert!(request.text().contains(&format!("\"model\":\"{usual}\"")), "{}", request.text());
        }
        // The right one is not missed for long: it serves as soon as it is back.
        first.lists(&listing(usual));
        gateway.ready().await;
    }
}

#[tokio::test]
async fn each_pool_of_a_route_gets_its_engines_own_name_for_the_model() {
    let (first, second) = (Replica::start().await, Replica::start().await);
    first.lists(&listing("tiny-v1"));
    second.lists(&listing("tiny-v2"));
    let mut config = config::of(&[&first]);
    config.pools.push(config::pool("second", &[&second]));
    config.routes = vec![config::route("tiny", &[0, 1])];
    let gateway = Gateway::start(config).await;
    gateway.ready().await;
    while first.count() == 0 || second.count() == 0 {
        ask(&gateway, 1).await;
    }
    for (replica, name) in [(first, "tiny-v1"), (second, "tiny-v2")] {
        for request in replica.received() {
            assert!(request.text().contains(&format!("\"model\":\"{name}\"")), "{}", request.text());
        }
    }
}

#[tokio::test]
async fn a_pool_that_comes_back_with_another_model_altogether_answers_for_it_in_no_other_name() {
    let replica = Replica::start().await;
    let mut config = config::of(&[&replica]);
    config.routes = vec![config::route("tiny", &[0])];
    config.pools[0].probe.interval = Duration::from_millis(50);
    let gateway = Gateway::start(config).await;
    ask(&gateway, 1).await;
    replica.stop_listening().await;
    until("its process is gone", || gateway.state_of(&replica) == ReplicaState::Unreachable).await;
    replica.lists(&listing("other"));
    replica.listen_again().await;
    until("its list is read", || status(&gateway, &replica).reason.contains("serves other")).await;
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(gateway.post("/v1/chat/completions", body).await.status(), 503);
    replica.lists(&listing("tiny"));
    gateway.ready().await;
    ask(&gateway, 1).await;
}

/// As Ollama does: it loads what it is asked for, and leaves another model for it.
#[tokio::test]
async fn a_server_of_several_models_is_asked_for_none_that_no_route_promises() {
    let replica = Replica::start().await;
    let list = wire::json(200, r#"{"object":"list","data":[{"id":"huge"},{"id":"tiny"},{"id":"other"}]}"#);
    let (whole, broken) = (wire::json(200, TEXT), wire::json(500, r#"{"error":"requires more memory"}"#));
    replica.answers(move |asked| match asked.head.starts_with("GET") {
        true => list.clone(),
        false if asked.text().contains(r#""model":"tiny""#) => whole.clone(),
        false => broken.clone(),
    });
    replica.probes(Probes::Scripted);
    let mut config = with_warm_up(&[&replica]);
    config.routes = vec![config::route("tiny", &[0])];
    config.pools[0].keep_alive = Some(Duration::from_millis(50));
    let gateway = Gateway::start(config).await;
    let asked = || Vec::from_iter(replica.received().into_iter().filter(|one| !one.head.starts_with("GET")));
    let before = asked().len();
    until("it is kept warm", || asked().len() > before + 2).await;
    ask(&gateway, 1).await;
    for request in asked() {
        assert!(request.text().contains(r#""model":"tiny""#), "{}", request.text());
    }
}

#[tokio::test]
async fn a_reload_that_promises_what_an_engine_lacks_takes_it_out() {
    let ([replica], mut config) = config::fresh().await;
    config.routes = vec![config::route("tiny", &[0])];
    let gateway = Gateway::start(config.clone()).await;
    let lacks =
        wire::json(404, r#"{"error":{"message":"The model does not exist.","type":"NotFoundError"}}"#);
    let whole = wire::json(200, TEXT);
    let list = wire::json(200, &listing("tiny"));
    replica.answers(move |asked| match asked.head.starts_with("GET") {
        true => list.clone(),
        false if asked.text().contains("other") => lacks.clone(),
        false => whole.clone(),
    });
    replica.probes(Probes::Scripted);
    config.routes[0].upstream_model = Some("other".into());
    gateway.app.reload(Arc::new(config)).unwrap();
    until("it is left", || gateway.state_of(&replica) == ReplicaState::Ejected).await;
    let reason = status(&gateway, &replica).reason;
    assert!(reason.contains("serves none of the models promised"), "{reason}");
}

#[tokio::test]
async fn a_ready_replica_whose_list_changes_is_left() {
    let ([first, second], mut config) = config::fresh().await;
    config.routes = vec![config::route("tiny", &[0])];
    config.pools[0].probe.interval = Duration::from_millis(50);
    let gateway = Gateway::start(config).await;
    first.lists(&listing("other"));
    until("it is left", || gateway.state_of(&first) == ReplicaState::Ejected).await;
    ask(&gateway, 4).await;
    assert_eq!((first.count(), second.count()), (0, 4));
}

/// A restart with another `--max-model-len`: long prompts would fail there, and nowhere else.
#[tokio::test]
async fn a_replica_that_takes_shorter_prompts_than_its_peers_is_shown() {
    let (first, second) = (Replica::start().await, Replica::start().await);
    let of_length = |tokens: u32| format!(r#"{{"data":[{{"id":"tiny","max_model_len":{tokens}}}]}}"#);
    for replica in [&first, &second] {
        replica.lists(&of_length(4096));
    }
    let mut config = config::of(&[&first, &second]);
    config.pools[0].probe.interval = Duration::from_millis(50);
    let gateway = Gateway::start(config).await;
    let lacks = |replica: &Replica| status(&gateway, replica).life.lacks;
    assert!(lacks(&first).is_empty() && lacks(&second).is_empty());
    first.lists(&of_length(512));
    until("it is found", || *lacks(&first) == [Arc::from("tiny beyond 512 tokens")]).await;
    assert_eq!(gateway.state_of(&first), ReplicaState::Ready);
    first.lists(&of_length(4096));
    until("it is over", || lacks(&first).is_empty()).await;
    assert!(lacks(&second).is_empty());
}

#[tokio::test]
async fn keep_alive_asks_only_replicas_that_nobody_else_asks() {
    let ([idle, busy], gateway) =
        Gateway::before(|config| config.pools[0].keep_alive = Some(Duration::from_millis(50))).await;
    until("both are kept warm", || idle.probed() > 3 && busy.probed() > 3).await;
    let gate = Gate::new();
    let script = wire::begun_then("a", wire::behind(&gate, wire::ending(wire::FINISH)));
    busy.always(script.clone());
    idle.always(wire::chat_stream(&["a"]));
    // Round robin: one of two streams goes to each.
    let mut clients = [gateway.client().await, gateway.client().await];
    for client in &mut clients {
        client.post(PATH, &[], CHAT.as_bytes()).await;
    }
    busy.got(1).await;
    until("it streams", || status(&gateway, &busy).inflight == 1).await;
    // One that was on its way may still come.
    let rounds = idle.probed();
    until("the idle one is kept warm", || idle.probed() > rounds + 1).await;
    let (of_busy, rounds) = (busy.probed(), idle.probed());
    until("the idle one is kept warm", || idle.probed() > rounds + 4).await;
    assert_eq!(busy.probed(), of_busy);
    gate.cancel();
    until("it is kept warm again", || busy.probed() > of_busy).await;
}

#[tokio::test]
async fn adapters_are_loaded_where_that_is_allowed_and_asked_for_where_they_are() {
    let ([with, without], mut config) = config::fresh().await;
    let listed = r#"{"object":"list","data":[{"id":"tiny","object":"model"},{"id":"sql","object":"model","parent":"tiny"}]}"#;
    with.lists(listed);
    config.pools[0].lora = Lora { load: true, adapters: [("sql".into(), "/adapters/sql".into())].into() };
    let gateway = Gateway::start(config.clone()).await;
    let loads = |replica: &Replica| {
        let own = replica.own();
        own.iter().filter(|one| one.line().starts_with("POST /v1/load_lora_adapter ")).count()
    };
    assert_eq!((loads(&with), loads(&without)), (0, 1));
    let load = without.own().into_iter().find(|one| one.line().contains("load_lora")).unwrap();
    assert_eq!(load.text(), r#"{"lora_name":"sql","lora_path":"/adapters/sql"}"#);
    assert!(with.own().iter().any(|one| one.text().contains(r#""model":"sql""#)), "it was proved");
    assert_eq!(&*status(&gateway, &without).life.lacks, [Arc::from("sql")]);
    for _ in 0..4 {
        let reply = gateway.post(PATH, &CHAT.replace("tiny", "sql")).await;
        assert_eq!(reply.status(), 200);
        assert!(reply.field("x-tokenway-decision").is_some_and(|text| text.contains("adapter")), "{reply:?}");
    }
    assert_eq!((with.count(), without.count()), (4, 0));
    // One that a reload adds is loaded at replicas that serve already.
    config.pools[0].lora.adapters.insert("code".into(), "/adapters/code".into());
    gateway.app.reload(Arc::new(config)).unwrap();
    until("it is loaded", || (loads(&with), loads(&without)) == (1, 2)).await;
    assert!(with.own().iter().any(|one| one.text().contains(r#""lora_name":"code""#)));
}

#[tokio::test]
async fn a_route_that_a_reload_gives_another_pool_keeps_the_former_one_until_that_is_ready() {
    let (any, tiny) = (ModelMatch::Any, ModelMatch::Named("tiny".into()));
    for (is_dropped, name, before, after) in [
        (true, "all", &any, &any),
        (false, "all", &any, &any),
        // Of another name, and for the model that its engines have.
        (true, "renamed", &any, &any),
        (true, "renamed", &tiny, &tiny),
        (true, "tiny", &any, &tiny),
    ] {
        let [old, new] = Replica::several().await;
        let mut config = config::of(&[&old]);
        config.routes[0].model = before.clone();
        let gateway = Gateway::start(config.clone()).await;
        new.probes(Probes::Refused(503));
        let mut next = config.clone();
        next.pools = vec![config::pool("next", &[&new])];
        (next.routes[0].name, next.routes[0].model) = (name.into(), after.clone());
        if !is_dropped {
            next.pools.push(config.pools[0].clone());
        }
        gateway.app.reload(Arc::new(next.clone())).unwrap();
        // And once more, as a file that is written in pieces has it.
        gateway.app.reload(Arc::new(next)).unwrap();
        for sent in 1..=20 {
            let reply = gateway.post(PATH, CHAT).await;
            assert_eq!((reply.status(), old.count()), (200, sent), "{}", reply.text());
        }
        new.probes(Probes::Answered);
        let is_ready = || {
            let replicas = gateway.replicas();
            replicas.iter().any(|one| *one.replica == *new.name() && one.state == ReplicaState::Ready)
        };
        until("the new one is ready", is_ready).await;
        for sent in 1..=20 {
            let reply = gateway.post(PATH, CHAT).await;
            assert_eq!((reply.status(), new.count()), (200, sent), "{}", reply.text());
        }
        assert_eq!(old.count(), 20, "it has served its time");
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_shorter_interval_holds_at_once() {
    let ([replica], mut config) = config::fresh().await;
    let set = |config: &mut Config, interval: Duration| {
        config.pools[0].probe.interval = interval;
        config.pools[0].scrape_interval = interval;
    };
    set(&mut config, Duration::from_secs(600));
    replica.show_page(Some("vllm:num_requests_running 1\n"));
    let gateway = Gateway::start(config.clone()).await;
    let running = || gateway.replicas()[0].signals.as_ref().and_then(|signals| signals.page.running);
    until("the page was read", || running() == Some(1.0)).await;
    replica.show_page(Some("vllm:num_requests_running 2\n"));
    let probed = replica.probed();
    set(&mut config, Duration::from_millis(50));
    gateway.app.reload(Arc::new(config)).unwrap();
    until("its page is read", || running() == Some(2.0)).await;
    until("it is probed", || replica.probed() > probed + 2).await;
}

#[tokio::test]
async fn an_adapter_that_is_loaded_under_traffic_is_found() {
    let ([replica], gateway) =
        Gateway::before(|config| config.pools[0].probe.interval = Duration::from_millis(200)).await;
    replica.lists(
        r#"{"object":"list","data":[{"id":"tiny","object":"model"},{"id":"sql","object":"model","parent":"tiny"}]}"#,
    );
    // Its answers prove it: no probe is due.
    let is_found = async {
        while !status(&gateway, &replica).models.iter().any(|model| &**model == "sql") {
            assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
        }
    };
    soon("the adapter is found", is_found).await;
}

#[tokio::test]
async fn requests_for_an_adapter_go_where_the_engine_holds_it() {
    let [one, other] = Replica::several().await;
    let listed = r#"{"object":"list","data":[{"id":"tiny","object":"model"},{"id":"sql","object":"model","parent":"tiny"}]}"#;
    let page = |running: &str| {
        let lora = format!("max_lora=\"1\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"\"");
        format!(
            "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:lora_requests_info{{{lora}}} 1.7e9\n"
        )
    };
    for replica in [&one, &other] {
        replica.lists(listed);
        replica.show_page(Some(&page("")));
    }
    let mut config = config::of(&[&one, &other]);
    config.pools[0].scrape_interval = Duration::from_millis(20);
    let gateway = Gateway::start(config).await;
    let held = |replica: &Replica| -> Vec<String> {
        status(&gateway, replica).adapters.iter().map(|name| name.to_string()).collect()
    };
    let ask_sql = async || {
        let reply = gateway.post(PATH, &CHAT.replace("tiny", "sql")).await;
        assert_eq!(reply.status(), 200);
        reply.field("x-tokenway-decision").unwrap_or_default().to_owned()
    };
    for (holder, before) in [(&other, 0), (&one, 4)] {
        holder.show_page(Some(&page("sql")));
        until("the page was read", || held(holder) == vec!["sql".to_owned()]).await;
        if before > 0 {
            other.show_page(Some(&page("code")));
            until("it was pushed out", || held(&other) == vec!["code".to_owned()]).await;
        }
        let had = holder.count();
        for _ in 0..4 {
            let decision = ask_sql().await;
            assert!(decision.contains("reason=adapter"), "{decision}");
        }
        assert_eq!(holder.count() - had, 4);
    }
    gateway.idle().await;
}

/// A replica of one GPU of two, as dcgm-exporter tells of both.
const GPUS: &str = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\",Hostname=\"n\"} 10\n\
    DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"GPU-b\",Hostname=\"n\"} 98\n\
    DCGM_FI_DEV_FB_USED{gpu=\"1\",UUID=\"GPU-b\",Hostname=\"n\"} 2\n\
    DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu=\"1\",UUID=\"GPU-b\",Hostname=\"n\"} 64\n";

#[tokio::test]
async fn figures_of_a_replica_s_gpus_are_shown_where_an_exporter_tells_them_and_absent_elsewhere() {
    let [told, untold, exporter] = Replica::several().await;
    exporter.show_page(Some(GPUS));
    let mut config = config::of(&[&told, &untold]);
    let dcgm = |url: String| Dcgm { url: url.into(), labels: vec![("gpu".into(), vec!["1".into()])] };
    config.pools[0].dcgm.pool = Some(dcgm(format!("http://{{host}}:{}/metrics", exporter.addr.port())));
    config.pools[0].dcgm.replicas.insert(untold.name().into(), dcgm("http://{host}:1/metrics".to_owned()));
    let gateway = Gateway::start(config).await;
    until("the exporter was asked", || status(&gateway, &told).gpu.is_some()).await;
    let figures = status(&gateway, &told).gpu.unwrap();
    assert_eq!((figures.gpus, figures.utilization, figures.memory_used), (1, Some(0.98), Some(2_097_152.0)));
    assert_eq!((figures.memory_free, figures.xid), (None, None));
    assert!(status(&gateway, &untold).gpu.is_none());
    let page = gateway.app.gateway.observer.metrics.render(&gateway.replicas());
    let series = |name: &str, replica: &Replica| {
        let labels = format!("{name}{{pool=\"default\",replica=\"{}\"", replica.name());
        let line = page.lines().find(|line| line.starts_with(&labels));
        line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    assert_eq!(series("tokenway_replica_gpu_utilization_ratio", &told).as_deref(), Some("0.98"));
    assert_eq!(series("tokenway_replica_gpu_utilization_ratio", &untold), None, "absent, not zero");
    assert_eq!(series("tokenway_replica_gpu_xid", &told), None);
    let throttled: Vec<_> =
        page.lines().filter(|line| line.starts_with("tokenway_replica_gpu_clocks_throttled{")).collect();
    assert!(
        throttled.len() == 5
            && throttled.iter().all(|line| line.ends_with(" 1") == line.contains("hw_thermal")),
        "{throttled:?}"
    );
    ask(&gateway, 10).await;
    assert_eq!((told.count(), untold.count()), (5, 5), "nothing is routed by them");
}

#[tokio::test]
async fn a_client_learns_that_the_only_replica_warms_up() {
    let replica = Replica::start().await;
    let mut config = with_warm_up(&[&replica]);
    config.pools[0].warmup.timeout = Duration::from_secs(600);
    replica.probes(Probes::Scripted);
    replica.answers(|request| match request.line() {
        line if line.starts_with("GET") => wire::json(200, r#"{"object":"list","data":[{"id":"tiny"}]}"#),
        _ if request.text().contains("\"max_tokens\":4") => vec![Step::Hang],
        _ => wire::json(
            200,
            r#"{"choices":[{"index":0,"text":"a","message":{"role":"assistant","content":"a"}}]}"#,
        ),
    });
    let gateway = Gateway::start_unready(config);
    until("it warms up", || gateway.state_of(&replica) == ReplicaState::Warming).await;
    let reply = gateway.post(PATH, CHAT).await;
    let reason = format!("http://{}: warming up", replica.name());
    assert!(reply.status() == 503 && reply.text().contains(&reason), "{}", reply.text());
}

#[tokio::test]
async fn a_request_that_began_before_a_reload_is_answered_by_a_pool_that_it_drops() {
    let ([_replica], mut config) = config::fresh().await;
    let gateway = Gateway::start(config.clone()).await;
    let mut client = gateway.client().await;
    let (begun, rest) = CHAT.split_at(20);
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", CHAT.len());
    client.send_raw(format!("{head}{begun}").as_bytes()).await;
    until("its body is read", || gateway.app.gateway.requests.load(Ordering::Relaxed) == 1).await;

    config.pools[0].name = "renamed".into();
    gateway.app.reload(Arc::new(config)).unwrap();
    let state = |pool: &str| {
        let statuses = gateway.replicas();
        statuses.iter().find(|status| *status.pool == *pool).map(|status| status.state)
    };
    assert_eq!(state("default"), Some(ReplicaState::Ready), "of the pool that is dropped");
    client.send_raw(rest.as_bytes()).await;
    let reply = client.reply().await;
    assert_eq!(reply.status(), 200, "{reply:?}");
    until("no request has the configuration before", || state("default").is_none()).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gateway.idle().await;
}

#[tokio::test]
async fn a_replica_that_computes_a_prompt_of_others_is_busy_and_not_down() {
    let ([replica], gateway) = Gateway::before(|config| {
        let pool = &mut config.pools[0];
        pool.scrape_interval = Duration::from_millis(10);
        (pool.probe.interval, pool.probe.timeout) = (Duration::from_millis(10), Duration::from_millis(100));
    })
    .await;
    replica.probes(Probes::CompletionsUnanswered);
    let mut blocks = 0;
    until("several probes failed", || {
        // Nothing is generated before the prompt is computed, but its blocks fill.
        blocks += 1;
        let page = format!("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.{blocks:06}\n");
        replica.show_page(Some(&page));
        status(&gateway, &replica).failures.probes > 6
    })
    .await;
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready);
    until("nothing moves there any more", || gateway.state_of(&replica) == ReplicaState::Ejected).await;
}

#[tokio::test]
async fn the_first_probe_keeps_its_place_behind_what_others_sent() {
    let ([replica], mut config) = config::fresh().await;
    let pool = &mut config.pools[0];
    pool.scrape_interval = Duration::from_millis(10);
    (pool.probe.interval, pool.probe.timeout) = (Duration::from_millis(10), Duration::from_millis(300));
    replica.probes(Probes::Scripted);
    let (list, whole) = (wire::json(200, &listing("tiny")), wire::json(200, TEXT));
    let asked = Arc::new(AtomicUsize::new(0));
    let (counter, answers) = (Arc::clone(&asked), Gate::new());
    let (is_over, tokens) = (answers.clone(), AtomicUsize::new(0));
    replica.answers(move |request| match request.line() {
        // It generates for others.
        "GET /metrics HTTP/1.1" => {
            let tokens = tokens.fetch_add(1, Ordering::Relaxed);
            vec![Step::Raw(wire::whole(
                200,
                "text/plain",
                &format!("vllm:generation_tokens_total {tokens}\n"),
            ))]
        }
        line if line.starts_with("GET") => list.clone(),
        _ if is_over.is_cancelled() => whole.clone(),
        _ => {
            counter.fetch_add(1, Ordering::Relaxed);
            vec![Step::Hang]
        }
    });
    let gateway = Gateway::start_unready(config);
    until("several more were sent, of which the last one waits beside it", || {
        asked.load(Ordering::Relaxed) >= 4 && replica.busy() == 2
    })
    .await;
    assert_eq!(gateway.state_of(&replica), ReplicaState::Probing);
    // The first one was lost: it has no answer.
    answers.cancel();
    gateway.ready().await;
}

/// A completion of one token.
const TEXT: &str = r#"{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
