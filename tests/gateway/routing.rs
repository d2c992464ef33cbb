//! Which replica a request goes to, seen from the replicas.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::sync::Arc;
use std::time::Duration;

use tokenway::config::{Config, EngineKind, PolicyName};
use tokenway::fleet::discovery::{ReplicaAction, ReplicaChange};
use tokenway::fleet::status::ReplicaState;

use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, Records, config, until, wire};

const RESPONSES: &str = "/v1/responses";

fn with_policy(replicas: &[&Replica], policy: PolicyName) -> Config {
    let mut config = config::of(replicas);
    config.routes[0].policy = policy;
    config
}

fn prompt(prefix: &str, tail: &str) -> String {
    format!(r#"{{"model":"tiny","stream":true,"messages":[{{"role":"user","content":"{prefix}{tail}"}}]}}"#)
}

#[tokio::test]
async fn prompts_with_the_same_prefix_land_on_the_same_replica_and_others_spread() {
    let [one, two] = Replica::several().await;
    let gateway = Gateway::start(with_policy(&[&one, &two], PolicyName::Prefix)).await;
    for at in 0..24 {
        let prefix = format!("{at} ").repeat(1000);
        let first = gateway.post(PATH, &prompt(&prefix, "a")).await.replica();
        gateway.idle().await;
        for tail in ["b", "c"] {
            let reply = gateway.post(PATH, &prompt(&prefix, tail)).await;
            assert_eq!(reply.replica(), first);
            let decision = reply.field("x-tokenway-decision").unwrap();
            assert_eq!(decision, "policy=prefix; reason=prefix; candidates=2");
            gateway.idle().await;
        }
    }
    assert!(one.count() > 0 && two.count() > 0, "{} and {}", one.count(), two.count());
}

#[tokio::test]
async fn a_replica_that_turned_a_prompt_away_is_not_expected_to_have_it() {
    let [full, free] = Replica::several().await;
    full.always(wire::json(503, r#"{"error":{"message":"queue is full","code":503}}"#));
    let gateway = Gateway::start(with_policy(&[&full, &free], PolicyName::Prefix)).await;
    for at in 0..8 {
        let reply = gateway.post(PATH, &prompt(&format!("{at} ").repeat(1000), "a")).await;
        assert_eq!(reply.replica(), free.name());
        gateway.idle().await;
    }
    assert!(full.count() > 0, "it was asked");
    let pools = gateway.app.fleet.pools();
    let held = (0..2).map(|slot| pools[0].dispatcher.index.held(slot) > 0).collect::<Vec<_>>();
    assert_eq!(held, [false, true]);
}

#[tokio::test]
async fn a_long_prompt_comes_back_to_its_cache_by_default() {
    let [one, two] = Replica::several().await;
    let gateway = Gateway::start(with_policy(&[&one, &two], PolicyName::Latency)).await;
    let prefix = "lorem ipsum ".repeat(10_000);
    let first = gateway.post(PATH, &prompt(&prefix, "a")).await.replica();
    gateway.idle().await;
    let reply = gateway.post(PATH, &prompt(&prefix, "b")).await;
    assert_eq!(reply.replica(), first);
    let decision = reply.field("x-tokenway-decision").unwrap();
    assert!(decision.starts_with("policy=latency; reason=prefix; predicted_ttft_ms="), "{decision}");
}

/// A number of `x-tokenway-decision`.
fn figure(decision: &str, name: &str) -> f64 {
    let found = decision.split("; ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    found.map_or(0.0, |number| number.parse().unwrap())
}

#[tokio::test]
async fn a_decision_adds_up_and_says_why() {
    let [one, two] = Replica::several().await;
    let gateway = Gateway::start(with_policy(&[&one, &two], PolicyName::Latency)).await;
    for tail in ["a", "b"] {
        gateway.post(PATH, &prompt(&"lorem ipsum ".repeat(1000), tail)).await;
        gateway.idle().await;
    }
    let reply = gateway.post(PATH, &prompt(&"lorem ipsum ".repeat(1000), "c")).await;
    let decision = reply.field("x-tokenway-decision").unwrap();
    let parts = ["wait", "prefill", "base", "others", "decoding", "harm", "late", "failure"];
    let sum: f64 = parts.iter().map(|part| figure(decision, &format!("{part}_ms"))).sum();
    let cost = figure(decision, "cost_ms");
    assert!(cost > 0.0 && (cost - sum).abs() < 0.5, "{decision}");
    let (chosen, other) = if reply.replica() == one.name() { (&one, &two) } else { (&two, &one) };
    let names = format!("why=\"{} over {}: ", chosen.name(), other.name());
    assert!(decision.contains(&names) && decision.contains(" less "), "{decision}");
    gateway.idle().await;
    let record = gateway.app.gateway.observer.decisions.latest().remove(0);
    for candidate in &record.decision.as_ref().unwrap().weighed {
        let sum: f64 = candidate.cost.named().iter().map(|(_, seconds)| seconds).sum();
        assert!((candidate.cost.total() - sum).abs() < 1e-9, "{candidate:?}");
    }
}

#[tokio::test]
async fn sessions_go_by_the_seed_alike_on_every_gateway_that_has_it() {
    let replicas = [Replica::start().await, Replica::start().await];
    let start = async |seed: &str| {
        let mut config = config::of(&[&replicas[0], &replicas[1]]);
        config.routing.seed = tokenway::config::Secret::new(seed);
        config.routes[0].policy = PolicyName::Session;
        Gateway::start(config).await
    };
    let homes = async |gateway: &Gateway| {
        let mut homes = Vec::new();
        for session in 0..24 {
            let session = session.to_string();
            homes.push(gateway.post_with(PATH, &[("x-session-id", &session)], CHAT).await.replica());
        }
        homes
    };
    let one = homes(&start("a").await).await;
    assert_eq!(one, homes(&start("a").await).await, "another gateway");
    assert_ne!(one, homes(&start("b").await).await, "who does not know the seed cannot aim");
}

/// By that a canary is judged: what repeats of one session says less each time.
#[tokio::test]
async fn the_record_has_the_session_by_which_a_request_was_dealt() {
    let replica = Replica::start().await;
    let seen = Arc::<Records>::default();
    let gateway = Gateway::start_observed(config::of(&[&replica]), Some(Arc::clone(&seen) as _));
    gateway.ready().await;
    for (session, text) in [("s", "a"), ("s", "b"), ("t", "a")] {
        gateway.post_with(PATH, &[("x-session-id", session)], prompt(text, "")).await;
        gateway.idle().await;
    }
    let seen: Vec<_> = seen.0.lock().iter().map(|record| record.conversation).collect();
    assert!(seen[0].is_some() && seen[0] == seen[1] && seen[0] != seen[2], "{seen:?}");
}

#[tokio::test]
async fn engines_without_prefix_caching_share_the_prompts_that_begin_alike() {
    for policy in [PolicyName::Prefix, PolicyName::Latency] {
        let replicas = [Replica::start().await, Replica::start().await, Replica::start().await];
        for replica in &replicas {
            let page = wire::METRICS.replace("{block", "{enable_prefix_caching=\"False\",block");
            replica.show_page(Some(&page));
        }
        let gateway = Gateway::start(with_policy(&replicas.each_ref(), policy)).await;
        until("the pages were read", || gateway.replicas().iter().all(|r| r.signals.is_some())).await;
        let prefix = "lorem ipsum ".repeat(1_000);
        for at in 0..60 {
            let reply = gateway.post(PATH, &prompt(&prefix, &at.to_string())).await;
            let decision = reply.field("x-tokenway-decision").unwrap();
            assert!(!decision.contains("reason=prefix"), "{decision}");
            gateway.idle().await;
        }
        let counts = replicas.each_ref().map(Replica::count);
        // What they are learned to take varies with the machine.
        let least = if policy == PolicyName::Latency { 1 } else { 20 };
        assert!(counts.iter().all(|count| *count >= least), "{policy:?}: {counts:?}");
        let blocks = gateway.replicas()[0].signals.and_then(|signals| signals.page.total_blocks);
        assert_eq!(blocks, Some(1000), "its KV cache is as large as ever");
    }
}

#[tokio::test]
async fn a_session_stays_with_its_replica() {
    let [one, two] = Replica::several().await;
    let gateway = Gateway::start(with_policy(&[&one, &two], PolicyName::Session)).await;
    let mut homes = Vec::new();
    for session in 0..24 {
        let session = format!("s{session}");
        let mut of_session = Vec::new();
        for at in 0..3 {
            let body = prompt(&format!("question {at}"), "");
            of_session.push(gateway.post_with(PATH, &[("x-session-id", &session)], body).await.replica());
        }
        of_session.dedup();
        assert_eq!(of_session.len(), 1, "{session} moved");
        homes.extend(of_session);
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), 2, "sessions spread");
}

#[tokio::test]
async fn requests_in_flight_count_as_load_from_the_decision_on() {
    for policy in [PolicyName::LeastLoaded, PolicyName::Prefix] {
        let [one, two] = Replica::several().await;
        let gateway = Gateway::start(with_policy(&[&one, &two], policy)).await;
        let gate = Gate::new();
        for replica in [&one, &two] {
            replica.always(wire::behind(&gate, wire::chat_stream(&["x"])));
        }
        // None of them has an answer yet when the next one is decided.
        let mut clients = Vec::new();
        for count in 1..=6 {
            let client = gateway.sent(PATH, &prompt(&count.to_string(), "")).await;
            until("the request is at a replica", || one.count() + two.count() == count).await;
            clients.push(client);
        }
        assert_eq!((one.count(), two.count()), (3, 3), "{policy:?}");
        let mut inflight: Vec<u64> = gateway.replicas().iter().map(|r| r.inflight).collect();
        inflight.sort_unstable();
        assert_eq!(inflight, [3, 3]);
        gate.cancel();
        for mut client in clients {
            assert!(client.reply().await.body.is_complete);
        }
        gateway.idle().await;
    }
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let [one, two] = Replica::several().await;
    let gateway = Gateway::start(with_policy(&[&one, &two], PolicyName::RoundRobin)).await;
    for _ in 0..6 {
        gateway.post(PATH, CHAT).await;
    }
    assert_eq!((one.count(), two.count()), (3, 3));
}

#[tokio::test]
async fn a_model_goes_to_the_pools_of_its_route() {
    let [one, two] = Replica::several().await;
    let mut config = config::of(&[&one]);
    config.pools.push(config::pool("second", &[&two]));
    config.routes = vec![config::route("a", &[0]), config::route("b", &[1])];
    let gateway = Gateway::start(config).await;
    for (model, replica, revision) in [("a", &one, "default"), ("b", &two, "second")] {
        let reply = gateway.post(PATH, &CHAT.replace("tiny", model)).await;
        assert_eq!(reply.replica(), replica.name());
        assert_eq!(reply.field("x-tokenway-revision"), Some(revision));
        assert_eq!(replica.count(), 1);
    }
    assert_eq!(gateway.post(PATH, CHAT).await.code(), "model_not_found");
    let models = gateway.call("GET", "/v1/models").await.json();
    let ids: Vec<&str> = models["data"].as_array().unwrap().iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
}

/// The list of an engine that serves these models.
fn listing(models: &[&str]) -> String {
    let entry = |model: &&str| format!(r#"{{"id":"{model}","object":"model"}}"#);
    format!(r#"{{"object":"list","data":[{}]}}"#, models.iter().map(entry).collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn a_model_whose_only_holder_is_down_is_503_and_not_the_404_of_an_engine_that_lacks_it() {
    // Pools of two models; an adapter on one replica of a pool; the same behind a route of its name.
    for (models, is_one_pool, route) in [
        ([&["m1"][..], &["m2"]], false, "*"),
        ([&["m2", "m1"], &["m2"]], true, "*"),
        ([&["m2", "m1"], &["m2"]], true, "m1"),
    ] {
        let [one, two] = Replica::several().await;
        one.lists(&listing(models[0]));
        two.lists(&listing(models[1]));
        let mut config = config::of(&[&one]);
        if is_one_pool {
            config = config::of(&[&one, &two]);
            config.routes = vec![config::route("m2", &[0]), config::route(route, &[0])];
        } else {
            config.pools.push(config::pool("second", &[&two]));
            config.routes = vec![config::route("*", &[0, 1])];
        }
        let gateway = Gateway::start(config).await;
        let lacks =
            wire::json(404, r#"{"error":{"message":"The model does not exist.","type":"NotFoundError"}}"#);
        two.answers(move |request| match request.text().contains("m1") {
            true => lacks.clone(),
            false => wire::chat_stream(&["a"]),
        });
        let ask = async |model: &str| gateway.post(PATH, &CHAT.replace("tiny", model)).await;
        // Without a connection that is still open to it.
        one.stop_listening().await;
        let refused = async {
            while gateway.state_of(&one) == ReplicaState::Ready {
                ask("m1").await;
            }
        };
        crate::support::soon("it is found gone", refused).await;
        for _ in 0..4 {
            let reply = ask("m1").await;
            assert_eq!(reply.status(), 503, "{models:?} {route}");
            assert_eq!(reply.code(), "no_ready_replica");
            let detail = reply.text();
            assert!(detail.contains(&one.name()) && !detail.contains(&two.name()), "{detail}");
        }
        assert_eq!(ask("m2").await.replica(), two.name());
        assert_eq!(ask("m1-unknown").await.status(), 404);
        one.listen_again().await;
        gateway.ready().await;
        assert_eq!(ask("m1").await.replica(), one.name());
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_failed_pool_is_covered_by_the_other_pool_of_its_route() {
    let [one, two] = Replica::several().await;
    let mut config = config::of(&[&one]);
    config.pools.push(config::pool("second", &[&two]));
    config.routes = vec![config::route("*", &[0, 1])];
    let gateway = Gateway::start(config).await;
    one.always(wire::json(503, "{}"));
    for _ in 0..6 {
        assert_eq!(gateway.post(PATH, CHAT).await.replica(), two.name());
    }
    assert!(one.count() > 0);
}

#[tokio::test]
async fn figures_come_by_the_engines_names_and_what_is_missing_is_said_and_never_zero() {
    let ([replica], mut config) = config::fresh().await;
    replica.show_page(Some(include_str!("../fixtures/engines/sglang.txt")));
    config.pools[0].scrape_interval = Duration::from_millis(20);
    config.pools[0].engine = EngineKind::Sglang;
    config.pools[0].engine_profile = Arc::new(EngineKind::Sglang.profile());
    let gateway = Gateway::start(config).await;
    let status = || gateway.replicas().remove(0);
    until("the page was read", || status().signals.is_some()).await;
    let signals = status().signals.unwrap();
    assert_eq!((signals.page.running, signals.page.waiting), (Some(162.0), Some(2826.0)));
    assert_eq!((signals.page.kv_cache_usage, signals.page.total_blocks), (Some(0.28), None));
    until("what is missing is known", || *status().absent == ["kv_blocks", "process_start"]).await;
    for (page, running, absent) in [
        ("sglang:num_queue_reqs 3\n", None, "running"),
        ("sglang:num_running_reqs -4\nsglang:num_queue_reqs NaN\n", None, "waiting"),
        ("sglang:num_running_reqs 1e300\n", None, "kv_cache_usage"),
    ] {
        replica.show_page(Some(page));
        until("the next page was read", || status().absent.contains(&absent)).await;
        until("its figure is absent", || status().signals.is_some_and(|s| s.page.running == running)).await;
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200, "{page}");
    }
    assert_eq!(status().failures.scrapes, 0);
    replica.show_page(None);
    until("a scrape failed", || status().failures.scrapes > 0).await;
    until("all is absent", || status().absent.len() == EngineKind::Sglang.profile().sources.len()).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
}

#[tokio::test]
async fn figures_that_come_with_the_first_answer_are_not_missed_before_it() {
    let ([replica], mut config) = config::fresh().await;
    replica.probes(Probes::CompletionsUnanswered);
    replica.show_page(Some("vllm:num_requests_running 0\n"));
    config.pools[0].scrape_interval = Duration::from_millis(20);
    let gateway = Gateway::start_unready(config);
    let status = || gateway.replicas().remove(0);
    until("the page was read", || status().signals.is_some()).await;
    assert_eq!(*status().absent, [""; 0]);
    replica.probes(Probes::Answered);
    until("it is ready, and they are missing", || status().absent.contains(&"waiting")).await;
}

/// A responses answer with this id, unary or as a stream.
fn response(id: &str, is_stream: bool) -> Vec<Step> {
    let whole =
        format!(r#"{{"id":"{id}","object":"response","model":"tiny","status":"completed","output":[]}}"#);
    if !is_stream {
        return wire::json(200, &whole);
    }
    let created = format!(
        "event: response.created\ndata: {{\"type\":\"response.created\",\"sequence_number\":0,\"response\":{whole}}}\n\n"
    );
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\
                 \"sequence_number\":1,\"delta\":\"x\"}\n\n";
    let completed = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\"sequence_number\":2,\"response\":{whole}}}\n\n"
    );
    wire::stream([&*created, delta, &*completed])
}

pub(crate) fn follow_up(id: &str) -> String {
    format!(r#"{{"model":"tiny","input":"and then?","previous_response_id":"{id}"}}"#)
}

#[tokio::test]
async fn a_follow_up_goes_to_the_replica_that_made_the_response() {
    for is_stream in [false, true] {
        let [one, two] = Replica::several().await;
        // Also over two pools of one route, where the pool would be dealt out otherwise.
        let mut pools = config::of(&[&one]);
        pools.pools.push(config::pool("second", &[&two]));
        pools.routes = vec![config::route("*", &[0, 1])];
        for (at, config) in [config::of(&[&one, &two]), pools].into_iter().enumerate() {
            let gateway = Gateway::start(config).await;
            for round in 0..3 {
                let id = format!("resp_{at}_{round}");
                one.always(response(&id, is_stream));
                two.always(response(&id, is_stream));
                let body = format!(r#"{{"model":"tiny","stream":{is_stream},"input":"hi"}}"#);
                let maker = gateway.post(RESPONSES, &body).await.replica();
                gateway.idle().await;
                for _ in 0..3 {
                    let reply = gateway.post(RESPONSES, &follow_up(&id)).await;
                    assert_eq!(reply.replica(), maker);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_response_is_read_and_continued_where_it_is_while_its_replica_drains() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    for replica in [&one, &two] {
        replica.always(response("resp_1", false));
    }
    let maker = gateway.post(RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await.replica();
    gateway.idle().await;
    let url = Some(format!("http://{maker}"));
    let action = ReplicaAction::Drain;
    gateway.app.fleet.change(&ReplicaChange { action, pool: None, url, name: None, zone: None }).unwrap();
    for replica in [&one, &two] {
        replica.always(response("resp_2", false));
    }
    until("it drains", || gateway.replicas().iter().any(|one| one.state == ReplicaState::Draining)).await;
    for _ in 0..3 {
        let other = gateway.post(RESPONSES, r#"{"model":"tiny","input":"new"}"#).await;
        assert_ne!(other.replica(), maker, "nothing new goes there");
        let reply = gateway.post(RESPONSES, &follow_up("resp_1")).await;
        assert_eq!((reply.status(), reply.replica()), (200, maker.clone()));
    }
    assert_eq!(gateway.call("GET", "/v1/responses/resp_1").await.replica(), maker);
    gateway.idle().await;
}

#[tokio::test]
async fn a_follow_up_to_a_response_that_nobody_has_is_404_and_says_so() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    let reply = gateway.post(RESPONSES, &follow_up("resp_unknown")).await;
    assert_eq!((reply.status(), &*reply.code()), (404, "previous_response_not_found"));
    assert_eq!(reply.json()["error"]["param"], "previous_response_id");

    one.next(response("resp_1", false));
    two.next(response("resp_1", false));
    let maker = gateway.post(RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await.replica();
    let maker = if maker == one.name() { &one } else { &two };
    let asked = one.count() + two.count();
    maker.stop_listening().await;
    maker.always(vec![Step::Close]);
    let first = gateway.post(RESPONSES, &follow_up("resp_1")).await;
    assert_eq!(first.status(), 502, "its replica is asked, and no other");
    until("the replica is left", || gateway.state_of(maker) == ReplicaState::Unreachable).await;
    let reply = gateway.post(RESPONSES, &follow_up("resp_1")).await;
    assert_eq!((reply.status(), &*reply.code()), (404, "previous_response_not_found"));
    assert!(one.count() + two.count() <= asked + 1);
}

#[tokio::test]
async fn a_reload_moves_requests_and_leaves_streams_alone() {
    let ([one], gateway) = Gateway::before(|_| {}).await;
    let two = Replica::start().await;
    let gate = Gate::new();
    let end =
        [wire::event(wire::content("y")), wire::event(wire::FINISH), wire::event(wire::DONE), Step::End];
    one.next(wire::begun_then("x", wire::behind(&gate, end.to_vec())));
    let mut client = gateway.begun(PATH, CHAT).await;

    gateway.app.reload(Arc::new(config::of(&[&two]))).unwrap();
    gateway.ready().await;
    assert_eq!(gateway.post(PATH, CHAT).await.replica(), two.name());
    gate.cancel();
    assert!(client.rest().await.is_complete);
    assert_eq!((one.count(), two.count()), (1, 1));
    gateway.idle().await;
}

#[tokio::test]
async fn an_unproved_replica_gets_nothing_until_a_probe_is_answered() {
    let [one, two] = Replica::several().await;
    two.stop_listening().await;
    let gateway = Gateway::start_unready(config::of(&[&one, &two]));
    until("the first replica is ready", || gateway.state_of(&one) == ReplicaState::Ready).await;
    for _ in 0..4 {
        assert_eq!(gateway.post(PATH, CHAT).await.replica(), one.name());
    }
    assert_eq!(two.count(), 0);
    two.listen_again().await;
    gateway.ready().await;
    for _ in 0..2 {
        gateway.post(PATH, CHAT).await;
    }
    assert_eq!(two.count(), 1);
}
