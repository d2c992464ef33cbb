//! What becomes of requests that cannot be answered in time: they wait, another route answers, or they are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Client, Reply};
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{Gateway, PATH, config, soon, until, wire};
use tokenway::config::{
    ColdWait, Config, Degrade, PolicyName, Pool, QueueLimits, Scale, Slo, Tenant, TenantLimits, TtftBound,
};
use tokenway::fleet::status::ReplicaState;
use tokenway::units::Tokens;
use tokio::sync::Semaphore;

pub(crate) const QUEUE: QueueLimits = QueueLimits {
    max_requests: 10,
    max_bytes: 1 << 20,
    max_wait: Duration::from_secs(60),
    isolate_long: true,
};

pub(crate) fn chat(model: &str, text: &str) -> String {
    format!(r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

/// An engine of one place, and a bound that is easily met: nothing is sent ahead of its turn.
pub(crate) fn one_at_a_time(config: &mut Config) {
    config.pools[0].max_num_seqs = NonZeroU64::new(1);
    let (base, per_prompt_token) = (Duration::from_millis(10), Duration::from_secs(10));
    let ttft = Some(TtftBound { base, per_prompt_token });
    config.slo.insert("patient".into(), Slo { ttft, ..Slo::default() });
    let route = &mut config.routes[0];
    (route.policy, route.slo) = (PolicyName::Latency, "patient".into());
}

/// The first token comes after 30 ms: too late for a bound of one. Then the place in the batch is taken for 50 more.
pub(crate) fn slow() -> Vec<Step> {
    let wait = vec![Step::Tick, Step::Tick, Step::Tick];
    let end = wire::ending(wire::FINISH);
    [wait, wire::begun_then("x", [vec![Step::Tick; 5], end.to_vec()].concat())].concat()
}

pub(crate) fn strict(config: &mut Config, queue: Option<QueueLimits>) {
    let base = Duration::from_millis(1);
    let ttft = Some(TtftBound { base, per_prompt_token: Duration::ZERO });
    config.slo.insert("strict".into(), Slo { ttft, ..Slo::default() });
    let route = &mut config.routes[0];
    (route.policy, route.slo, route.queue) = (PolicyName::Latency, "strict".into(), queue);
}

/// A gateway with this queue whose replica is known to be slow, and the gate behind which its next request sits.
async fn busy(queue: QueueLimits) -> (Gateway, Replica, Gate, Client) {
    let ([replica], mut config) = config::fresh().await;
    config.classes.medium = Tokens(2000);
    // A second request has to wait for the first one's place.
    config.pools[0].max_num_seqs = NonZeroU64::new(1);
    config.routes[0].client_may.timeout = true;
    strict(&mut config, Some(queue));
    let gateway = Gateway::start(config).await;
    taught(&gateway, &replica).await;
    let gate = replica.held(wire::chat_stream(&["first"]));
    let expected = replica.count() + 1;
    let first = gateway.sent(PATH, &chat("tiny", "first")).await;
    replica.got(expected).await;
    (gateway, replica, gate, first)
}

pub(crate) async fn taught(gateway: &Gateway, replica: &Replica) {
    replica.always(slow());
    for n in 0..8 {
        // Without a queue, predictions learned from the first requests would refuse the later ones.
        let lesson = gateway.post(PATH, &chat("tiny", &format!("lesson {n}"))).await;
        assert!(matches!(lesson.status(), 200 | 429), "{}", lesson.text());
        gateway.idle().await;
    }
}

fn admissions(gateway: &Gateway, decision: &str, reason: &str) -> f64 {
    let labels = [format!("decision=\"{decision}\""), format!("reason=\"{reason}\"")];
    gateway.sum("tokenway_admissions_total", &[&labels[0], &labels[1]])
}

pub(crate) async fn waiting(gateway: &Gateway, count: usize) {
    until("all of them wait", || gateway.sum("tokenway_queue_requests", &[]) == count as f64).await;
}

pub(crate) fn assert_refused(reply: &Reply, code: &str) {
    assert_eq!((reply.status(), &*reply.code()), (429, code), "{}", reply.text());
    let seconds: u64 = reply.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains(&format!("route.queue.{code}")));
}

fn admit_ms(reply: &Reply) -> f64 {
    let timing = reply.field("server-timing").unwrap().to_owned();
    let admit = timing.split(", ").find_map(|stage| stage.strip_prefix("admit;dur=")).unwrap();
    admit.parse().unwrap()
}

#[tokio::test]
async fn what_cannot_be_in_time_is_refused_at_once_where_nobody_may_wait() {
    let ([replica], gateway) =
        Gateway::before(|config| strict(config, Some(QueueLimits { max_requests: 0, ..QUEUE }))).await;
    taught(&gateway, &replica).await;
    let answered = replica.count();
    assert!((1..8).contains(&answered), "{answered}");
    assert_refused(&gateway.post(PATH, &chat("tiny", "late")).await, "max_requests");
    assert_eq!(replica.count(), answered, "no replica saw it");
    let refused = (9 - answered) as f64;
    gateway.idle().await;
    assert_eq!(admissions(&gateway, "refuse", "max_requests"), refused);
    assert_eq!(admissions(&gateway, "admit", "ready"), answered as f64);
    let labels = [r#"outcome="refused""#, r#"code="429""#];
    assert_eq!(gateway.sum("tokenway_requests_total", &labels), refused);
    assert_eq!(gateway.sum("tokenway_slo_missed_requests_total", &[r#"reason="refused""#]), refused);
    assert_eq!(gateway.sum("tokenway_requests_total", &[]), 9.0);
}

#[tokio::test]
async fn a_late_request_waits_and_is_answered_when_there_is_room() {
    let (gateway, replica, gate, mut first) = busy(QueueLimits { max_requests: 1, ..QUEUE }).await;
    let sent_before = replica.count();
    let mut second = gateway.sent(PATH, &chat("tiny", "second")).await;
    waiting(&gateway, 1).await;
    assert!(gateway.sum("tokenway_queue_bytes", &[]) > 50.0);
    assert_refused(&gateway.post(PATH, &chat("tiny", "third")).await, "max_requests");
    assert_eq!(replica.count(), sent_before);
    gate.cancel();
    assert_eq!(first.reply().await.status(), 200);
    let reply = second.reply().await;
    assert_eq!(reply.status(), 200);
    assert!(admit_ms(&reply) > 0.5, "{:?}", reply.field("server-timing"));
    gateway.idle().await;
    for (decision, reason, count) in [
        ("queue", "predicted_ttft", 1.0),
        ("admit", "queued", 1.0),
        ("refuse", "max_requests", 1.0),
        ("admit", "ready", 9.0),
    ] {
        assert_eq!(admissions(&gateway, decision, reason), count, "{decision} {reason}");
    }
    assert_eq!(gateway.sum("tokenway_queue_requests", &[]), 0.0);
    assert_eq!(gateway.sum("tokenway_queue_bytes", &[]), 0.0);
    assert_eq!(gateway.sum("tokenway_requests_total", &[]), 11.0);
    let waited = gateway.sum("tokenway_stage_duration_seconds_sum", &[r#"stage="admit""#]);
    let overhead = gateway.sum("tokenway_gateway_overhead_seconds_sum", &[]);
    assert!(overhead < waited, "the wait is not our own work: {overhead} s of {waited} s");
}

#[tokio::test]
async fn a_request_that_no_replica_had_room_for_is_not_answered_as_if_one_were_slow() {
    let ([replica], gateway) = Gateway::before(|config| {
        one_at_a_time(config);
        config.routes[0].queue = Some(QUEUE);
        config.routes[0].timeouts.first_token = Duration::from_millis(300);
    })
    .await;
    let gate = Gate::new();
    replica.next([vec![Step::Wait(gate.clone())], wire::json(200, "{}")].concat());
    // An answer in one piece has no first token.
    let mut first = gateway.sent(PATH, &chat("tiny", "first").replace("true", "false")).await;
    replica.got(1).await;
    let late = gateway.post(PATH, &chat("tiny", "late")).await;
    assert_eq!((late.status(), &*late.code()), (504, "timeout_first_token"));
    let words = "no replica could take the request before its 0.3 s were over (timeouts.first_token)";
    assert!(late.text().contains(words), "{}", late.text());
    assert_eq!(replica.count(), 1, "it was sent to none");
    gate.cancel();
    assert_eq!(first.reply().await.status(), 200);
}

#[tokio::test]
async fn nobody_waits_for_longer_than_max_wait() {
    let (gateway, _replica, gate, mut first) = busy(QUEUE).await;
    let short = QueueLimits { max_wait: Duration::from_millis(30), ..QUEUE };
    let (other, _slow_replica, other_gate, mut other_first) = busy(short).await;
    assert_refused(&other.post(PATH, &chat("tiny", "late")).await, "max_wait");
    waiting(&other, 0).await;
    let mut patient = gateway.sent(PATH, &chat("tiny", "patient")).await;
    waiting(&gateway, 1).await;
    for gate in [gate, other_gate] {
        gate.cancel();
    }
    for client in [&mut first, &mut other_first, &mut patient] {
        assert_eq!(client.reply().await.status(), 200);
    }
}

#[tokio::test]
async fn bodies_that_wait_are_bounded() {
    let (gateway, _replica, _gate, _first) = busy(QueueLimits { max_bytes: 200, ..QUEUE }).await;
    let _waits = gateway.sent(PATH, &chat("tiny", "short")).await;
    waiting(&gateway, 1).await;
    assert_refused(&gateway.post(PATH, &chat("tiny", &"long ".repeat(30))).await, "max_bytes");
}

#[tokio::test]
async fn long_prompts_do_not_fill_the_queue_of_short_ones() {
    for (isolate_long, status) in [(true, 200), (false, 429)] {
        let (gateway, _replica, gate, _first) =
            busy(QueueLimits { max_requests: 1, isolate_long, ..QUEUE }).await;
        let _long = gateway.sent(PATH, &chat("tiny", &"long ".repeat(4000))).await;
        waiting(&gateway, 1).await;
        let mut short = gateway.sent(PATH, &chat("tiny", "short")).await;
        if isolate_long {
            waiting(&gateway, 2).await;
        }
        gate.cancel();
        assert_eq!(short.reply().await.status(), status, "isolate_long = {isolate_long}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_makes_room_at_once() {
    let (gateway, replica, gate, mut first) = busy(QueueLimits { max_requests: 1, ..QUEUE }).await;
    let sent_before = replica.count();
    let leaves = gateway.sent(PATH, &chat("tiny", "leaves")).await;
    waiting(&gateway, 1).await;
    drop(leaves);
    waiting(&gateway, 0).await;
    let mut comes = gateway.sent(PATH, &chat("tiny", "comes")).await;
    waiting(&gateway, 1).await;
    gate.cancel();
    assert_eq!(first.reply().await.status(), 200);
    assert_eq!(comes.reply().await.status(), 200);
    gateway.idle().await;
    assert_eq!(replica.count(), sent_before + 1);
    assert_eq!(gateway.sum("tokenway_requests_total", &[r#"outcome="canceled""#, r#"code="499""#]), 1.0);
}

#[tokio::test]
async fn a_drain_sends_those_that_wait_elsewhere() {
    let (gateway, _replica, gate, mut first) = busy(QUEUE).await;
    let mut second = gateway.sent(PATH, &chat("tiny", "second")).await;
    waiting(&gateway, 1).await;
    let drain = gateway.app.drain(Duration::ZERO);
    let answers = async {
        let reply = second.reply().await;
        assert_eq!((reply.status(), &*reply.code()), (503, "draining"));
        assert!(reply.field("retry-after").is_some());
        gate.cancel();
        assert_eq!(first.reply().await.status(), 200, "what runs is finished");
    };
    soon("the drain is over", async { tokio::join!(drain, answers) }).await;
}

#[tokio::test]
async fn deadlines_hold_in_the_queue() {
    let (gateway, _replica, _gate, _first) = busy(QUEUE).await;
    let mut client = gateway.client().await;
    client.post(PATH, &[("x-request-timeout", "0.2")], chat("tiny", "second").as_bytes()).await;
    waiting(&gateway, 1).await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), &*reply.code()), (504, "timeout_total"));
    assert!(admit_ms(&reply) >= 100.0);
    waiting(&gateway, 0).await;
}

#[tokio::test]
async fn a_route_with_a_queue_waits_for_a_replica_to_become_ready() {
    let ([replica], mut config) = config::fresh().await;
    replica.stop_listening().await;
    config.routes[0].queue = Some(QUEUE);
    let gateway = Gateway::start_unready(config.clone());
    let mut client = gateway.sent(PATH, &chat("tiny", "early")).await;
    waiting(&gateway, 1).await;
    replica.listen_again().await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready);

    replica.stop_listening().await;
    config.routes[0].queue = Some(QueueLimits { max_wait: Duration::from_millis(30), ..QUEUE });
    let gateway = Gateway::start_unready(config);
    let reply = gateway.post(PATH, &chat("tiny", "too early")).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"));
}

/// Route `tiny` on a replica, which degrades to route `small` on another.
pub(crate) async fn large_and_small() -> ([Replica; 2], Config) {
    let [large, small] = Replica::several().await;
    let mut config = config::of(&[&large]);
    config.pools.push(config::pool("small", &[&small]));
    config.routes = vec![config::route("tiny", &[0]), config::route("small", &[1])];
    config.routes[0].degrade = Some(Degrade::above(1.5, 1));
    ([large, small], config)
}

/// The same, with a bound that a slow replica misses.
pub(crate) async fn degrading(
    queue: Option<QueueLimits>,
    tenants: Vec<Tenant>,
) -> (Gateway, Replica, Replica) {
    let ([large, small], mut config) = large_and_small().await;
    strict(&mut config, queue);
    config.routes[1].upstream_model = Some("meta/small".into());
    config.tenants = tenants;
    let gateway = Gateway::start(config).await;
    (gateway, large, small)
}

#[tokio::test]
async fn another_route_answers_what_would_be_far_too_late() {
    for queue in [None, Some(QueueLimits { max_requests: 0, ..QUEUE })] {
        let (gateway, large, small) = degrading(queue, Vec::new()).await;
        large.always(slow());
        // Until the first answer nothing is known, and nothing is degraded.
        until_degraded(&gateway, &large, &small).await;
        let reply = gateway.post(PATH, &chat("tiny", "as a whole")).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.field("x-tokenway-replica"), Some(&*small.name()));
        assert_eq!(reply.field("x-tokenway-degraded-from"), Some("tiny"));
        let sent = small.received().pop().unwrap();
        assert_eq!(sent.text(), chat("meta/small", "as a whole"), "the model's name and nothing else");
        gateway.idle().await;
        let degraded = admissions(&gateway, "degrade", "predicted_ttft");
        assert_eq!(degraded, small.count() as f64);
        assert_eq!(gateway.sum("tokenway_requests_total", &[r#"route="small""#]), degraded);
        let directly = gateway.post(PATH, &chat("small", "x")).await;
        assert_eq!(directly.field("x-tokenway-degraded-from"), None);
    }
}

#[tokio::test]
async fn a_route_that_degrades_says_so_and_who_is_not_meant_stays() {
    let tenant = |name, priority| Tenant { priority, ..config::tenant(name, name) };
    let ([large, small], mut config) = large_and_small().await;
    strict(&mut config, None);
    let named = Some(vec!["free".into(), "urgent".into()]);
    let min_dwell = Duration::from_secs(2);
    config.routes[0].degrade =
        Some(Degrade { tenants: named, max_priority: Some(0), min_dwell, ..Degrade::above(1.5, 1) });
    config.tenants = vec![tenant("free", 0), tenant("paid", 0), tenant("urgent", 1)];
    let gateway = Gateway::start(config).await;
    large.always(slow());
    for key in ["paid", "urgent", "free"] {
        for n in 0..8 {
            let reply = gateway.post_as(key, PATH, &chat("tiny", &format!("{key} {n}"))).await;
            assert_eq!(reply.status(), 200);
            gateway.idle().await;
        }
        assert_eq!(small.count() > 0, key == "free", "{key}: {}", small.count());
    }
    let degraded = small.count() as f64;
    let labels = [r#"route="tiny""#, r#"to="small""#];
    assert_eq!(gateway.sum("tokenway_degraded_requests_total", &labels), degraded);
    let changes = |state: &str| {
        let state = format!("state=\"{state}\"");
        gateway.sum("tokenway_degrade_transitions_total", &[r#"route="tiny""#, &*state])
    };
    until("it is over", || changes("off") == 1.0).await;
    assert_eq!(changes("on"), 1.0, "once, whatever the number of requests");
    assert_eq!(gateway.sum("tokenway_degrade_active", &[r#"route="tiny""#]), 0.0);
}

pub(crate) async fn until_degraded(gateway: &Gateway, large: &Replica, small: &Replica) {
    for n in 0..8 {
        assert_eq!(gateway.post(PATH, &chat("tiny", &format!("lesson {n}"))).await.status(), 200);
        gateway.idle().await;
    }
    assert!(large.count() > 0 && small.count() > 0, "{} and {}", large.count(), small.count());
}

#[tokio::test]
async fn a_tenant_is_not_degraded_to_a_route_that_it_may_not_use() {
    let tenant = |name, routes: &[&str]| {
        let routes = Some(routes.iter().map(|route| (*route).into()).collect());
        Tenant { routes, ..config::tenant(name, name) }
    };
    let tenants = vec![tenant("all", &["tiny", "small"]), tenant("one", &["tiny"])];
    let (gateway, large, small) = degrading(None, tenants).await;
    large.always(slow());
    for (key, at_small) in [("one", 0), ("all", 3)] {
        for n in 0..8 {
            let body = chat("tiny", &format!("{key} {n}"));
            assert_eq!(gateway.post_as(key, PATH, &body).await.status(), 200);
            gateway.idle().await;
        }
        assert!(
            small.count() >= at_small && (at_small > 0 || small.count() == 0),
            "{key}: {}",
            small.count()
        );
    }
}

/// Two tenants, `a` and `b`, by keys of the same names.
fn two_tenants(limits: TenantLimits) -> Vec<Tenant> {
    let tenant = |name, limits| Tenant { limits, ..config::tenant(name, name) };
    vec![tenant("a", limits), tenant("b", TenantLimits::default())]
}

#[tokio::test]
async fn a_tenants_rates_hold_on_every_path_over_a_reload_and_for_nobody_else() {
    let ([replica], mut config) = config::fresh().await;
    config.tenants = two_tenants(TenantLimits { requests_per_minute: Some(3), ..TenantLimits::default() });
    let gateway = Gateway::start(config.clone()).await;
    for n in 0..2 {
        assert_eq!(gateway.post_as("a", PATH, &chat("tiny", &format!("{n}"))).await.status(), 200);
    }
    gateway.app.reload(Arc::new(config.clone())).unwrap();
    assert_eq!(gateway.post_as("a", PATH, &chat("tiny", "third")).await.status(), 200);
    let answered = replica.count();
    let messages = r#"{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"x"}]}"#;
    let embeddings = r#"{"model":"tiny","input":"x"}"#;
    for (path, body) in
        [(PATH, &*chat("tiny", "x")), ("/v1/messages", messages), ("/v1/embeddings", embeddings)]
    {
        let reply = gateway.post_as("a", path, body).await;
        assert_eq!(reply.status(), 429, "{path}: {}", reply.text());
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("tenant.limits.requests_per_minute = 3"), "{message}");
        let seconds: u64 = reply.field("retry-after").unwrap().parse().unwrap();
        assert!((10..=20).contains(&seconds), "{seconds}");
    }
    assert_eq!(replica.count(), answered, "no replica saw them");
    assert_eq!(gateway.post_as("b", PATH, &chat("tiny", "x")).await.status(), 200);
    config.tenants[0].limits.requests_per_minute = Some(600);
    gateway.app.reload(Arc::new(config)).unwrap();
    assert_eq!(gateway.post_as("a", PATH, &chat("tiny", "x")).await.status(), 200, "the new limit counts");
    gateway.idle().await;
    assert_eq!(admissions(&gateway, "refuse", "requests_per_minute"), 3.0);
    assert_eq!(admissions(&gateway, "admit", "ready"), 5.0);
}

#[tokio::test]
async fn a_tenants_tokens_are_charged_by_estimate_and_no_estimate_refuses_for_good() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants =
            two_tenants(TenantLimits { tokens_per_minute: Some(400), ..TenantLimits::default() });
    })
    .await;
    let counted = format!(r#"{{"model":"tiny","prompt":[{}7]}}"#, "7,".repeat(400));
    let reply = gateway.post_as("a", "/v1/completions", &counted).await;
    assert_eq!((reply.status(), &*reply.code()), (429, "tokens_per_minute"), "{}", reply.text());
    assert_eq!(reply.field("retry-after"), None, "waiting does not help where the tokens are known");
    let gate = Gate::new();
    let mut statuses = Vec::new();
    let mut open = Vec::new();
    // All at once, before any usage is known.
    for n in 0..6 {
        replica.next(wire::behind(&gate, wire::chat_stream(&["x"])));
        open.push(gateway.sent_as("a", PATH, &chat("tiny", &format!("{n} {}", "words ".repeat(60)))).await);
    }
    until("some are refused, the others wait", || {
        admissions(&gateway, "refuse", "tokens_per_minute") + replica.count() as f64 >= 7.0
    })
    .await;
    gate.cancel();
    for mut client in open {
        statuses.push(client.reply().await.status());
    }
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!((2..=5).contains(&admitted), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
}

#[tokio::test]
async fn prompts_of_one_script_do_not_change_what_another_is_estimated_at() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants =
            two_tenants(TenantLimits { tokens_per_minute: Some(2000), ..TenantLimits::default() });
    })
    .await;
    let counted = |tokens: usize| {
        let answer = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"x"}}]"#;
        wire::json(200, &format!(r#"{answer},"usage":{{"prompt_tokens":{tokens},"completion_tokens":1}}}}"#))
    };
    let unary = |text: &str| chat("tiny", text).replace(r#""stream":true,"#, "");
    for script in ["\u{1f600}", r"\ud83d\ude00", "                "] {
        replica.always(counted(if script.starts_with(' ') { 300 } else { 1500 }));
        for _ in 0..40 {
            assert_eq!(gateway.post_as("b", PATH, &unary(&script.repeat(500))).await.status(), 200);
        }
    }
    let english = "many words of plain English text, ".repeat(132);
    replica.always(counted(1125));
    let first = gateway.post_as("a", PATH, &unary(&english)).await;
    assert_eq!(first.status(), 200, "{}", first.text());
    let second = gateway.post_as("a", PATH, &unary(&english)).await;
    assert_eq!((second.status(), &*second.code()), (429, "tokens_per_minute"));
    let message = second.json()["error"]["message"].as_str().unwrap().to_owned();
    let tokens: u64 =
        message.split("this request's ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((900..1400).contains(&tokens), "{message}");
    // Far above a minute's allowance by the estimate: it waits, and is not sent away.
    let third = gateway.post_as("a", PATH, &unary(&english.repeat(4))).await;
    assert_eq!(third.status(), 429);
    assert!(third.field("retry-after").is_some(), "{}", third.text());
}

#[tokio::test]
async fn requests_at_once_are_counted_and_given_back_when_clients_leave() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants = two_tenants(TenantLimits { concurrency: Some(2), ..TenantLimits::default() });
    })
    .await;
    let gate = Gate::new();
    for _ in 0..2 {
        replica.next(wire::behind(&gate, wire::chat_stream(&["x"])));
    }
    let (first, mut second) = (
        gateway.sent_as("a", PATH, &chat("tiny", "first")).await,
        gateway.sent_as("a", PATH, &chat("tiny", "second")).await,
    );
    replica.got(2).await;
    let reply = gateway.post_as("a", PATH, &chat("tiny", "third")).await;
    assert_eq!((reply.status(), &*reply.code()), (429, "concurrency"), "{}", reply.text());
    assert!(reply.field("retry-after").is_some());
    drop(first);
    until("the client's end is noticed", || gateway.app.gateway.tenants.inflight("a") == 1).await;
    assert_eq!(gateway.post_as("a", PATH, &chat("tiny", "fourth")).await.status(), 200);
    gate.cancel();
    assert_eq!(second.reply().await.status(), 200);
    gateway.idle().await;
    assert_eq!(gateway.app.gateway.tenants.inflight("a"), 0);
}

#[tokio::test]
async fn a_client_that_has_its_answer_may_ask_again_while_the_body_behind_it_is_open() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants = two_tenants(TenantLimits { concurrency: Some(1), ..TenantLimits::default() });
    })
    .await;
    let gate = Gate::new();
    for _ in 0..2 {
        let mut answer = wire::chat_stream(&["x"]);
        answer.insert(answer.len() - 1, Step::Wait(gate.clone()));
        replica.next(answer);
    }
    let mut first = gateway.sent_as("a", PATH, &chat("tiny", "first")).await;
    assert_eq!(first.head().await.status, 200);
    first.read_until(wire::DONE).await;
    let mut second = gateway.sent_as("a", PATH, &chat("tiny", "second")).await;
    assert_eq!(second.head().await.status, 200);
    gate.cancel();
    drop((first, second));
    gateway.idle().await;
    assert_eq!(gateway.app.gateway.tenants.inflight("a"), 0, "each place is given back once");
}

/// The texts of requests in the order in which they reached the replica, from the `from`-th on.
pub(crate) fn order(replica: &Replica, from: usize) -> Vec<String> {
    let text =
        |body: &str| body.split("\"content\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    replica.received()[from..].iter().map(|received| text(received.text())).collect()
}

#[tokio::test]
async fn all_routes_of_a_pool_wait_in_one_queue_batch_last_and_priorities_first() {
    let ([replica], mut config) = config::fresh().await;
    one_at_a_time(&mut config);
    let mut batch = config::route("batch", &[0]);
    (batch.policy, batch.slo) = (PolicyName::Latency, "batch".into());
    batch.upstream_model = Some("tiny".into());
    config.routes.push(batch);
    let route = &mut config.routes[0];
    route.queue = Some(QUEUE);
    route.client_may.priority = true;
    let gateway = Gateway::start(config.clone()).await;
    taught(&gateway, &replica).await;
    let gate = replica.held(wire::chat_stream(&["first"]));
    let before = replica.count();
    let mut open = vec![gateway.sent(PATH, &chat("tiny", "first")).await];
    replica.got(before + 1).await;
    let priority = |value: &'static str| ("x-priority", value);
    for (n, (model, text, headers)) in [
        ("batch", "batch", vec![]),
        ("tiny", "ordinary", vec![]),
        ("tiny", "low", vec![priority("-1")]),
        ("tiny", "high", vec![priority("5")]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = gateway.client().await;
        client.post(PATH, &headers, chat(model, text).as_bytes()).await;
        open.push(client);
        waiting(&gateway, n + 1).await;
    }
    // Those that wait are not lost to a reload.
    gateway.app.reload(Arc::new(config)).unwrap();
    assert_eq!(gateway.post_with(PATH, &[priority("high")], chat("tiny", "bad")).await.status(), 400);
    gate.cancel();
    for mut client in open {
        assert_eq!(client.reply().await.status(), 200);
    }
    assert_eq!(order(&replica, before), ["first", "high", "ordinary", "low", "batch"]);
    gateway.idle().await;
    assert_eq!(gateway.sum("tokenway_queue_requests", &[]), 0.0);
    assert_eq!(gateway.sum("tokenway_queue_bytes", &[]), 0.0);
}

#[tokio::test]
async fn without_a_section_requests_are_ordered_and_none_is_refused_not_even_by_a_drain() {
    let ([replica], mut config) = config::fresh().await;
    one_at_a_time(&mut config);
    config.routes[0].client_may.priority = true;
    let gateway = Gateway::start(config).await;
    taught(&gateway, &replica).await;
    let gate = replica.held(wire::chat_stream(&["first"]));
    let before = replica.count();
    let mut open = vec![gateway.sent(PATH, &chat("tiny", "first")).await];
    replica.got(before + 1).await;
    for (n, (text, priority)) in [("low", "-1"), ("ordinary", "0"), ("high", "5")].into_iter().enumerate() {
        let mut client = gateway.client().await;
        client.post(PATH, &[("x-priority", priority)], chat("tiny", text).as_bytes()).await;
        open.push(client);
        waiting(&gateway, n + 1).await;
    }
    assert_eq!(replica.count(), before + 1, "they wait here, not in the engine");
    let drain = gateway.app.drain(Duration::ZERO);
    let answers = async {
        gate.cancel();
        for client in &mut open {
            assert_eq!(client.reply().await.status(), 200);
        }
    };
    soon("the drain is over", async { tokio::join!(drain, answers) }).await;
    assert_eq!(order(&replica, before), ["first", "high", "ordinary", "low"]);
    assert_eq!(gateway.sum("tokenway_queue_requests", &[]), 0.0);
}

/// A gateway with this scrape interval whose replica has shown a queue and got prompts that it never answers; what it was sent so far.
async fn with_lost_prompts(scrape_interval: Duration, lost: usize) -> (Gateway, Replica, Vec<Client>) {
    let ([replica], mut config) = config::fresh().await;
    config.pools[0].scrape_interval = scrape_interval;
    config.routes[0].policy = PolicyName::Latency;
    let page = |waiting: u32| {
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n"
        )
    };
    replica.show_page(Some(&page(1)));
    let gateway = Gateway::start(config).await;
    taught(&gateway, &replica).await;
    let waits = || gateway.replicas()[0].signals.is_some_and(|signals| signals.page.waiting == Some(1.0));
    until("its page shows one that waits", waits).await;
    replica.show_page(Some(&page(0)));
    let before = replica.count();
    let mut open = Vec::new();
    for n in 0..lost {
        replica.next(vec![Step::Hang]);
        open.push(gateway.sent(PATH, &chat("tiny", &format!("lost {n} {}", "word ".repeat(400)))).await);
        replica.got(before + n + 1).await;
    }
    (gateway, replica, open)
}

#[tokio::test]
async fn prompts_that_an_engine_lost_hold_up_no_other_once_its_page_shows_that_they_are_not_there() {
    let (gateway, replica, lost) = with_lost_prompts(Duration::from_millis(50), 2).await;
    for n in 0..20 {
        let reply = soon("an answer", gateway.post(PATH, &chat("tiny", &format!("later {n}")))).await;
        assert_eq!(reply.status(), 200);
    }
    assert_eq!(replica.busy(), lost.len(), "those it lost are with it still");
}

/// Requests at five times what an engine of two places can do, which tells nobody of them: how many were answered, and how many of
/// these in time.
async fn at_five_times_the_load(answer: Vec<Step>, is_stream: bool) -> (usize, usize) {
    let ([replica], mut config) = config::fresh().await;
    // In no hurry: what a busy machine adds is little beside it.
    let work = [vec![Step::Take(Arc::new(Semaphore::new(2)))], vec![Step::Tick; 20]].concat();
    replica.always([work, answer].concat());
    let bound = Duration::from_millis(2400);
    strict(&mut config, Some(QUEUE));
    let ttft = Some(TtftBound { base: bound, per_prompt_token: Duration::ZERO });
    config.slo.insert("strict".into(), Slo { ttft, ..Slo::default() });
    let gateway = Gateway::start(config).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..400 {
        let mut client = gateway.client().await;
        let body = chat("tiny", &format!("question {n}")).replace("true", &is_stream.to_string());
        let clock = gateway.app.gateway.clock;
        calls.spawn(async move {
            let began = clock.now();
            client.post(PATH, &[], body.as_bytes()).await;
            // The head is held until the first content.
            let (status, after) = (client.head().await.status, clock.now().since(began));
            client.rest().await;
            (status, after)
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = soon("all are answered or refused", calls.join_all()).await;
    let answered: Vec<_> = ended.into_iter().filter(|(status, _)| *status == 200).collect();
    let in_time = answered.iter().filter(|(_, after)| *after <= bound).count();
    (answered.len(), in_time)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_admitted_on_an_engine_of_two_places_is_in_time_streamed_or_whole() {
    let whole = r#"{"id":"c1","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"a b"},
        "finish_reason":"stop"}],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2}}"#;
    for (answer, is_stream) in [(wire::chat_stream(&["a", "b"]), true), (wire::json(200, whole), false)] {
        let mut tries = Vec::new();
        // A machine that does other things at the same moment says nothing: the best of four.
        let is_met = |&(answered, in_time): &(usize, usize)| answered >= 50 && in_time * 10 >= answered * 9;
        while tries.len() < 4 && !tries.last().is_some_and(is_met) {
            tries.push(at_five_times_the_load(answer.clone(), is_stream).await);
        }
        assert!(tries.last().is_some_and(is_met), "stream {is_stream}: answered, in time: {tries:?}");
    }
}

/// A gateway in front of a pool that may scale to zero and has no replica now.
fn at_zero(replica: &Replica, wait: ColdWait) -> Gateway {
    let mut config = config::of(&[replica]);
    config.pools[0].scale = Scale { min_replicas: 0, wait, ..Scale::default() };
    // Of no effect while nobody could answer.
    config.routes[0].timeouts.first_token = Duration::from_secs(5);
    Gateway::start_unready(config)
}

#[tokio::test]
async fn requests_wait_for_a_pool_at_zero_and_are_let_go_as_the_first_replica_computes_them() {
    let replica = Replica::start().await;
    replica.stop_listening().await;
    let wait = ColdWait { heartbeat: Some(Duration::from_millis(20)), ..ColdWait::default() };
    let gateway = at_zero(&replica, wait);
    let gate = Gate::new();
    replica.always(wire::behind(&gate, wire::chat_stream(&["warm"])));
    let mut early = Vec::new();
    for n in 0..12 {
        early.push(gateway.sent(PATH, &chat("tiny", &format!("early {n}"))).await);
    }
    waiting(&gateway, 12).await;
    assert_eq!(gateway.call("GET", "/health").await.status(), 200, "it takes requests");
    for client in &mut early {
        assert_eq!(client.head().await.status, 200);
        client.read_until(": heartbeat").await;
    }

    replica.listen_again().await;
    replica.got(4).await;
    until("it is ready", || gateway.state_of(&replica) == ReplicaState::Ready).await;
    let mut late = gateway.sent(PATH, &chat("tiny", "late")).await;
    waiting(&gateway, 9).await;
    assert_eq!(replica.count(), 4, "the others wait for their turn, and who comes later behind them");
    gate.cancel();
    for client in &mut early {
        let body = client.rest().await;
        assert!(body.is_complete && String::from_utf8_lossy(&body.bytes).contains("[DONE]"));
    }
    assert_eq!(late.reply().await.status(), 200);
    assert!(replica.received().last().unwrap().text().contains("late"));
    gateway.idle().await;
    assert_eq!(admissions(&gateway, "queue", "no_ready_replica"), 13.0);
}

#[tokio::test]
async fn a_request_for_an_engine_that_has_just_scaled_to_zero_waits_for_the_next_one() {
    let ([replica], gateway) =
        Gateway::before(|config| config.pools[0].scale = Scale { min_replicas: 0, ..Scale::default() }).await;
    replica.stop_listening().await;
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready, "nobody knows yet");
    let mut client = gateway.sent(PATH, &chat("tiny", "cold")).await;
    waiting(&gateway, 1).await;
    replica.always(wire::chat_stream(&["warm"]));
    replica.listen_again().await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn nobody_waits_for_a_pool_at_zero_whose_revision_gets_no_requests() {
    let [baseline, canary] = Replica::several().await;
    baseline.stop_listening().await;
    canary.stop_listening().await;
    let mut config = config::with_canary(&baseline, &canary, "");
    config.pools[1].scale = Scale { min_replicas: 0, ..Scale::default() };
    let gateway = Gateway::start_unready(config);
    let canaries = &gateway.app.gateway.table.load_full().routes[0].wheel;
    assert!(!canaries.uses(1), "its rollout gives it nothing");
    let reply = gateway.post(PATH, &chat("tiny", "in vain")).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"));
    assert_eq!(gateway.call("GET", "/health").await.status(), 503);
}

#[tokio::test]
async fn the_wait_for_a_pool_at_zero_is_bounded() {
    let replica = Replica::start().await;
    replica.stop_listening().await;
    let gateway = at_zero(&replica, ColdWait { max_requests: 2, ..ColdWait::default() });
    let _waiting =
        [gateway.sent(PATH, &chat("tiny", "1")).await, gateway.sent(PATH, &chat("tiny", "2")).await];
    waiting(&gateway, 2).await;
    let reply = gateway.post(PATH, &chat("tiny", "one too many")).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"));
    for wait in [
        ColdWait { max_wait: Duration::from_millis(30), ..ColdWait::default() },
        ColdWait { max_bytes: 10, ..ColdWait::default() },
        ColdWait { max_requests: 0, ..ColdWait::default() },
    ] {
        let gateway = at_zero(&replica, wait);
        let reply = gateway.post(PATH, &chat("tiny", "in vain")).await;
        assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"), "{wait:?}");
    }
}

#[tokio::test]
async fn a_request_that_waits_for_a_pool_at_zero_goes_on_under_another_name_of_the_pool() {
    let [never, replica] = Replica::several().await;
    never.stop_listening().await;
    let at_zero = |name: &str, replica: &Replica| {
        let mut config = config::of(&[replica]);
        config.pools = vec![Pool {
            scale: Scale { min_replicas: 0, wait: ColdWait::default(), ..Scale::default() },
            ..config::pool(name, &[replica])
        }];
        config
    };
    let gateway = Gateway::start_unready(at_zero("before", &never));
    let mut early = Vec::new();
    for n in 0..6 {
        early.push(gateway.sent(PATH, &chat("tiny", &format!("early {n}"))).await);
    }
    waiting(&gateway, 6).await;
    gateway.app.reload(Arc::new(at_zero("after", &replica))).unwrap();
    for client in &mut early {
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        assert_eq!(reply.field("x-tokenway-revision"), Some("after"));
    }
    gateway.idle().await;
    waiting(&gateway, 0).await;
}
