//! `tokenway epp`: what Envoy is asked to do over ext_proc, and what the gateway learns from what Envoy shows it.

#[path = "../../src/epp/codec.rs"]
mod codec;
mod destination;
mod envoy;
#[allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#[path = "../listener_support/frames.rs"]
mod frames;
mod own_answers;
#[path = "../../src/epp/proto.rs"]
mod proto;
mod served;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokenway::config::{Config, PolicyName, Tenant, TenantLimits};
use tokenway::fleet::status::ReplicaState;
use tokenway::observe::{Judgement, Tap};
use tokenway::record::{Outcome, Record};
use tonic::Code;

use self::envoy::{DUPLEX, Envoy, Placed, changed, destination_of, fields, health, post};
use self::frames::Connection;
use self::proto::{
    BodySendMode, HttpHeaders, HttpTrailers, Kind, ListValue, Metadata, Mutation, Order, ProcessingRequest,
    Seen, Struct, Value,
};
use crate::support::replica::Replica;
use crate::support::{Gateway, config, soon, until, wire};

const BODY: &str = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const WHOLE: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"hello"}]}"#;
const SSE: &str = "text/event-stream; charset=utf-8";

/// Keeps how requests ended.
#[derive(Default)]
struct Ends(Mutex<Vec<Record>>);

impl Tap for Ends {
    fn record(&self, record: &Arc<Record>, _: &Judgement) {
        self.0.lock().push(Record::clone(record));
    }
}

struct Picker {
    gateway: Gateway,
    ends: Arc<Ends>,
}

impl Picker {
    async fn start(config: Config) -> Self {
        let this = Self::start_unready(config);
        this.gateway.ready().await;
        this
    }

    /// The same as [`Gateway::before`].
    async fn before<const N: usize>(change: impl FnOnce(&mut Config)) -> ([Replica; N], Self) {
        let (replicas, config) = config::before(change).await;
        (replicas, Self::start(config).await)
    }

    fn start_unready(config: Config) -> Self {
        let ends = Arc::<Ends>::default();
        let gateway = Gateway::start_picker(config, Some(Arc::clone(&ends) as _));
        Self { gateway, ends }
    }

    async fn request(&self, head: HttpHeaders, modes: [BodySendMode; 2], body: &str) -> Envoy {
        let envoy = Envoy::request(&self.gateway.app, head, modes).await;
        envoy.body(body, true).await;
        envoy
    }

    async fn placed(&self, body: &str) -> (Envoy, Placed) {
        let mut envoy = self.request(post(&[]), DUPLEX, body).await;
        let placed = envoy.placed().await;
        (envoy, placed)
    }

    /// The only record, once everything that its request held is released.
    async fn end(&self) -> Record {
        self.gateway.idle().await;
        until("the request's record", || self.ends.0.lock().len() == 1).await;
        self.ends.0.lock().remove(0)
    }
}

fn hint(endpoints: &[&str]) -> Option<Metadata> {
    let value = |text: &&str| Value { kind: Some(Kind::Text((*text).into())) };
    let list = ListValue { values: endpoints.iter().map(value).collect() };
    let key = "x-gateway-destination-endpoint-subset".to_owned();
    let fields = HashMap::from([(key, Value { kind: Some(Kind::List(list)) })]);
    Some(Metadata {
        filter_metadata: HashMap::from([("envoy.lb.subset_hint".to_owned(), Struct { fields })]),
    })
}

#[tokio::test]
async fn a_stream_goes_where_the_dispatcher_wants_it_and_comes_back_unchanged() {
    let ([one, two, three], picker) = Picker::before(|_| {}).await;
    let head = post(&[("x-request-id", "own-id"), ("accept-encoding", "gzip"), ("x-custom", "kept")]);
    let mut envoy = Envoy::request(&picker.gateway.app, head, DUPLEX).await;
    let (first, rest) = BODY.split_at(20);
    envoy.body(first, false).await;
    envoy.body(rest, true).await;
    let placed = envoy.placed().await;
    assert_eq!(placed.body, BODY.as_bytes());
    assert!(placed.selects_route_again);
    let mut endpoints = placed.endpoints();
    endpoints.sort_unstable();
    let mut names = [one.name(), two.name(), three.name()];
    names.sort_unstable();
    assert_eq!(endpoints, names, "the chosen one and two to fall back to");
    assert_eq!(placed.value("accept-encoding"), Some("identity"));
    assert!(placed.value("traceparent").is_some() && placed.removed.is_empty());
    assert!(placed.value("x-custom").is_none() && placed.value("x-request-id").is_none(), "as they are");
    assert_eq!(picker.gateway.replicas().iter().map(|r| r.inflight).sum::<u64>(), 1);
    envoy.answer_head("200", SSE).await;
    let events = wire::chat_events(&["a", "b"]);
    for (at, event) in events.iter().enumerate() {
        envoy.answer_body(event, at + 1 == events.len()).await;
    }
    let (set, removed) = envoy.answered().await;
    assert!(set.iter().any(|field| *field == ("x-request-id".into(), "own-id".into())), "{set:?}");
    assert_eq!(removed, [""; 0]);
    assert_eq!(envoy.answer().await, events.concat());
    envoy.close();
    assert!(envoy.next().await.unwrap().is_none());
    let record = picker.end().await;
    assert_eq!((record.outcome, record.status, record.content_events), (Outcome::Ok, 200, 2));
    assert!(record.at.first_token.is_some() && record.is_stream);
    assert_eq!(&*record.served().unwrap().replica, placed.endpoints()[0]);
    assert_eq!(one.count() + two.count() + three.count(), 0, "Envoy sends it, not the gateway");
}

#[tokio::test]
async fn usage_is_asked_for_where_the_answer_passes_and_taken_out_again() {
    let ([_replica], picker) = Picker::before(|config| config.routes[0].ask_usage = true).await;
    for (modes, is_asked) in [(DUPLEX, true), ([DUPLEX[0], BodySendMode::Streamed], false)] {
        let mut envoy = picker.request(post(&[]), modes, BODY).await;
        let placed = envoy.placed().await;
        assert_eq!(String::from_utf8(placed.body).unwrap().contains("include_usage"), is_asked);
        envoy.answer_head("200", SSE).await;
        let mut events = wire::chat_events(&["a", "b"]);
        let expected = events.concat();
        if is_asked {
            events.insert(events.len() - 1, wire::USAGE.to_owned());
            envoy.answer_body(&events.concat(), true).await;
            envoy.answered().await;
            assert_eq!(envoy.answer().await, expected);
        } else {
            envoy.answered().await;
            envoy.answer_body(&expected, true).await;
            // An empty message lets the piece pass.
            let Some(Order::ResponseBody(part)) = envoy.order().await.order else { panic!() };
            assert_eq!(part.response.unwrap().body_mutation, None);
        }
        let record = picker.end().await;
        assert_eq!((record.outcome, record.content_events), (Outcome::Ok, 2));
        assert_eq!(record.tokens.input.map(|tokens| tokens.0), is_asked.then_some(9));
    }
}

#[tokio::test]
async fn a_buffered_body_is_decided_on_in_one_message() {
    let ([replica], mut config) = config::fresh().await;
    config.routes = vec![config::route("tiny", &[0])];
    config.routes[0].upstream_model = Some("engine".into());
    let picker = Picker::start(config).await;
    let length = WHOLE.len().to_string();
    let modes = [BodySendMode::Buffered, BodySendMode::Buffered];
    let mut envoy = Envoy::request(&picker.gateway.app, post(&[("content-length", &length)]), modes).await;
    let Some(Order::RequestHeaders(part)) = envoy.order().await.order else { panic!() };
    assert_eq!(part.response.unwrap().header_mutation, None);
    envoy.body(WHOLE, true).await;
    let order = envoy.order().await;
    let Some(Order::RequestBody(part)) = order.order else { panic!("{order:?}") };
    let common = part.response.unwrap();
    let (set, _) = changed(common.header_mutation);
    assert_eq!(destination_of(&set, order.dynamic_metadata), replica.name());
    let expected = WHOLE.replace("tiny", "engine");
    assert!(set.contains(&("content-length".into(), expected.len().to_string())), "{set:?}");
    assert_eq!(common.body_mutation.unwrap().mutation, Some(Mutation::Body(expected.into())));
    envoy.answer_head("200", "application/json").await;
    envoy.answered().await;
    envoy.answer_body(r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":3}}"#, true).await;
    assert!(matches!(envoy.order().await.order, Some(Order::ResponseBody(_))));
    let record = picker.end().await;
    assert_eq!((record.outcome, record.tokens.input.map(|tokens| tokens.0)), (Outcome::Ok, Some(3)));
}

#[tokio::test]
async fn trailers_end_a_body_as_well() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), DUPLEX).await;
    envoy.body(WHOLE, false).await;
    envoy.send(Seen::RequestTrailers(HttpTrailers {})).await;
    assert_eq!(envoy.placed().await.body, WHOLE.as_bytes());
    envoy.answer_head("200", "application/json").await;
    let answer = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}"#;
    envoy.answer_body(answer, false).await;
    envoy.send(Seen::ResponseTrailers(HttpTrailers {})).await;
    envoy.answered().await;
    assert_eq!(envoy.answer().await, answer);
    assert_eq!(picker.end().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_buffered_body_is_whole_before_its_trailers_come() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let modes = [BodySendMode::Buffered, DUPLEX[1]];
    let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), modes).await;
    assert!(matches!(envoy.order().await.order, Some(Order::RequestHeaders(_))));
    // Envoy keeps the trailers until the body is answered.
    envoy.body(WHOLE, false).await;
    assert!(matches!(envoy.order().await.order, Some(Order::RequestBody(_))));
    envoy.send(Seen::RequestTrailers(HttpTrailers {})).await;
    assert!(matches!(envoy.order().await.order, Some(Order::RequestTrailers(_))));
    envoy.answer_head("200", "application/json").await;
    let answer = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}"#;
    envoy.answer_body(answer, true).await;
    envoy.answered().await;
    assert_eq!(envoy.answer().await, answer);
    assert_eq!(picker.end().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_subset_is_kept_to_and_one_without_a_replica_is_refused() {
    let ([_one, two], picker) = Picker::before(|_| {}).await;
    for _ in 0..4 {
        let metadata = hint(&["10.9.9.9:1", &two.name()]);
        let mut envoy = Envoy::hinted(&picker.gateway.app, post(&[]), DUPLEX, metadata).await;
        envoy.body(BODY, true).await;
        assert_eq!(envoy.placed().await.destination, two.name(), "and no fallback outside of it");
    }
    for (endpoints, named) in
        [(&[][..], "no address"), (&["10.9.9.9:1", "10.9.9.9:2"], "10.9.9.9:1, 10.9.9.9:2")]
    {
        let mut envoy = Envoy::hinted(&picker.gateway.app, post(&[]), DUPLEX, hint(endpoints)).await;
        envoy.body(BODY, true).await;
        let (status, headers, body) = envoy.immediate().await;
        assert_eq!(status, 503, "{body}");
        assert!(headers.iter().any(|(name, _)| name == "retry-after"), "{headers:?}");
        assert!(body.contains("no_ready_replica"), "{body}");
        let why = format!("no replica of the route is in the proxy's subset ({named})");
        assert!(body.contains(&why) && !body.contains(": ready"), "{body}");
    }
    picker.gateway.idle().await;
}

#[tokio::test]
async fn what_the_line_refuses_envoy_answers_with_our_error() {
    let ([_replica], mut config) = config::fresh().await;
    let limits = TenantLimits { requests_per_minute: Some(1), ..TenantLimits::default() };
    config.tenants = vec![Tenant { limits, ..config::tenant("a", "k") }];
    let picker = Picker::start(config).await;
    let key = ("authorization", "Bearer k");
    let mut first = picker.request(post(&[key]), DUPLEX, BODY).await;
    first.placed().await;
    let path = |path: &str| {
        let pairs = [(":method", "POST"), (":path", path)];
        HttpHeaders { headers: Some(fields(&pairs)), end_of_stream: false }
    };
    for (head, body, status, code) in [
        (post(&[key]), BODY, 429, "requests_per_minute"),
        (post(&[]), BODY, 401, "invalid_api_key"),
        (post(&[key]), "no json", 400, "invalid_request"),
        (path("/v1/unknown"), BODY, 404, "unknown_path"),
        (
            HttpHeaders { headers: Some(fields(&[(":method", "POST")])), end_of_stream: false },
            BODY,
            400,
            "malformed_head",
        ),
        (post(&[("a b", "c")]), BODY, 400, "malformed_head"),
    ] {
        let mut envoy = picker.request(head, DUPLEX, body).await;
        let (answered, headers, body) = envoy.immediate().await;
        assert_eq!(answered, status, "{body}");
        assert!(body.contains(&format!("\"code\":\"{code}\"")), "{code}: {body}");
        assert!(headers.contains(&("content-type".into(), "application/json".into())), "{headers:?}");
        assert_eq!(headers.iter().any(|(name, _)| name == "retry-after"), status == 429, "{headers:?}");
        envoy.close();
        assert!(envoy.next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_websocket_is_refused_before_an_engine_is_asked() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
    let get = [(":method", "GET"), (":path", "/v1/realtime?model=tiny"), (":authority", "a")];
    for pairs in [&[&get[..], &upgrade].concat()[..], &get] {
        let head = HttpHeaders { headers: Some(fields(pairs)), end_of_stream: true };
        let mut envoy = Envoy::request(&picker.gateway.app, head, DUPLEX).await;
        let (status, _, body) = envoy.immediate().await;
        assert!(status == 400 && body.contains("\"code\":\"upgrade_not_supported\""), "{status} {body}");
        assert!(body.contains("endpoint picker"), "{body}");
        let record = picker.end().await;
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::ClientError, 0));
    }
}

#[tokio::test]
async fn a_body_in_one_message_over_the_limit_is_refused_as_one_in_pieces() {
    let ([_replica], picker) = Picker::before(|config| config.server.body_limit = 100_000).await;
    let long = "x".repeat(400_000);
    let buffered = [BodySendMode::Buffered, DUPLEX[1]];
    for (modes, size) in [(buffered, 400_000), (DUPLEX, 400_000), (DUPLEX, 30_000)] {
        let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), modes).await;
        let mut left = &*long;
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(size));
            envoy.body(piece, rest.is_empty()).await;
            left = rest;
        }
        if modes == buffered {
            let order = envoy.order().await.order;
            assert!(matches!(order, Some(Order::RequestHeaders(_))), "the head of a buffered body passes");
        }
        let (status, _, body) = envoy.immediate().await;
        assert!(
            status == 413 && body.contains("\"code\":\"body_limit\""),
            "{modes:?} {size}: {status} {body}"
        );
        envoy.close();
        assert!(envoy.next().await.unwrap().is_none());
        let record = picker.end().await;
        assert_eq!((record.outcome, record.status), (Outcome::ClientError, 413), "{modes:?} {size}");
    }
}

/// All clients of a worker of Envoy share its connection to the picker.
#[tokio::test]
async fn clients_that_come_or_leave_by_the_thousand_do_not_end_the_connection_of_envoy() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let mut envoy = Connection::open(picker.gateway.app.data).await;
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    let head = |stream, path| frames::headers(stream, "POST", path, &fields, false);
    let leave = |stream| [head(stream, "/a/Process"), frames::reset(stream)].concat();
    envoy.send(&(1..20_001).step_by(2).map(leave).collect::<Vec<_>>().concat()).await;
    let process = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
    envoy
        .send(&(20_001..30_001).step_by(2).map(|stream| head(stream, process)).collect::<Vec<_>>().concat())
        .await;
    envoy.send(&head(30_001, "/grpc.health.v1.Health/Check")).await;
    envoy.send(&frames::frame(frames::DATA, 1, 30_001, &[0; 5])).await;
    loop {
        let frame = envoy.next().await.expect("the connection stays open");
        // One that was answered before it left is reset as its answer has it.
        let is_cut = frame.kind == frames::RST_STREAM && frame.stream > 20_000;
        assert!(!is_cut && frame.kind != frames::GOAWAY, "{frame:?}");
        if frame.stream == 30_001 && frame.kind == frames::DATA {
            assert_eq!(frame.payload, [0, 0, 0, 0, 2, 8, 1], "SERVING");
            break;
        }
    }
}

#[tokio::test]
async fn a_list_of_models_is_answered_without_an_engine() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let headers = Some(fields(&[(":method", "GET"), (":path", "/v1/models"), (":authority", "a")]));
    let head = HttpHeaders { headers, end_of_stream: true };
    let mut envoy = Envoy::request(&picker.gateway.app, head, DUPLEX).await;
    let (status, _, body) = envoy.immediate().await;
    assert!(status == 200 && body.contains("\"tiny\""), "{status} {body}");
}

#[tokio::test]
async fn an_envoy_that_leaves_holds_nothing() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    // In the middle of the body, behind the decision, behind the answer's head, in the middle of a stream.
    for stage in 0..4 {
        for is_reset in [false, true] {
            let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), DUPLEX).await;
            envoy.body(&BODY[..10], false).await;
            if stage > 0 {
                envoy.body(&BODY[10..], true).await;
                envoy.placed().await;
            }
            if stage > 1 {
                envoy.answer_head("200", SSE).await;
            }
            if stage > 2 {
                envoy.answer_body(&[wire::ROLE, &wire::content("a")].concat(), false).await;
                envoy.answered().await;
            }
            let requests = &picker.gateway.app.gateway.requests;
            until("the request is under way", || requests.load(Ordering::Relaxed) == 1).await;
            if is_reset {
                drop(envoy);
            } else {
                envoy.close();
                while envoy.next().await.unwrap().is_some() {}
            }
            let record = picker.end().await;
            assert_eq!(record.outcome, Outcome::Canceled, "{stage} {is_reset}");
        }
    }
}

/// One after the other, until a replica is ejected; those in `cuts` break off half way, which Envoy does not blame on anybody.
async fn ejected(picker: &Picker, replicas: &[Replica; 2], cuts: [bool; 2]) -> Option<usize> {
    let mut ended = [0; 2];
    while ended[0] < 20 {
        let request = ended[0] + ended[1];
        let body = BODY.replace("hello", &format!("prompt {request}"));
        let (mut envoy, placed) = picker.placed(&body).await;
        envoy.answer_head("200", SSE).await;
        envoy.answer_body(&[wire::ROLE, &wire::content("a")].concat(), false).await;
        envoy.answered().await;
        envoy.order().await;
        let at = usize::from(placed.endpoints()[0] == replicas[1].name());
        if !cuts[at] {
            envoy.answer_body(wire::DONE, true).await;
            while !envoy.answer().await.contains("[DONE]") {}
        }
        drop(envoy);
        picker.gateway.idle().await;
        ended[at] += 1;
        let left = replicas.iter().position(|one| picker.gateway.state_of(one) != ReplicaState::Ready);
        if left.is_some() {
            return left;
        }
    }
    None
}

#[tokio::test]
async fn a_replica_whose_streams_end_half_way_more_often_than_its_peer_s_is_ejected() {
    for (cuts, expected) in [([true, false], Some(0)), ([true, true], None)] {
        let (replicas, picker) = Picker::before(|config| {
            config.routes[0].policy = PolicyName::RoundRobin;
            config.pools[0].probe.interval = Duration::from_secs(10);
        })
        .await;
        assert_eq!(ejected(&picker, &replicas, cuts).await, expected, "{cuts:?}");
    }
}

#[tokio::test]
async fn a_stream_that_makes_no_sense_ends_with_a_clear_status() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let app = &picker.gateway.app;
    let ends = |mut envoy: Envoy| async move {
        loop {
            match envoy.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a proper end"),
                Err(status) => return status.code(),
            }
        }
    };
    let envoy = Envoy::open(app).await;
    envoy.body(BODY, true).await;
    assert_eq!(ends(envoy).await, Code::InvalidArgument, "a body comes first");
    let envoy = Envoy::open(app).await;
    envoy.send_message(ProcessingRequest::default()).await;
    assert_eq!(ends(envoy).await, Code::InvalidArgument, "a message of a kind that is not known");
    let envoy = Envoy::request(app, post(&[]), DUPLEX).await;
    envoy.send(Seen::RequestHeaders(post(&[]))).await;
    assert_eq!(ends(envoy).await, Code::InvalidArgument, "two heads");
    let envoy = Envoy::request(app, post(&[]), [BodySendMode::Streamed, DUPLEX[0]]).await;
    assert_eq!(ends(envoy).await, Code::FailedPrecondition, "a body that would be decided on by halves");
    let envoy = Envoy::request(app, post(&[]), [BodySendMode::Unsent, DUPLEX[0]]).await;
    assert_eq!(ends(envoy).await, Code::FailedPrecondition, "a body that never comes");
    let models = Some(fields(&[(":method", "GET"), (":path", "/v1/models"), (":authority", "a")]));
    let head = HttpHeaders { headers: models, end_of_stream: true };
    let mut envoy = Envoy::request(app, head, [BodySendMode::Unsent, DUPLEX[0]]).await;
    assert_eq!(envoy.immediate().await.0, 200, "what has none needs no mode");
    let envoy = Envoy::open(app).await;
    let seen = Some(Seen::RequestHeaders(post(&[])));
    envoy.send_message(ProcessingRequest { seen, observability_mode: true, ..Default::default() }).await;
    assert_eq!(ends(envoy).await, Code::FailedPrecondition);
    let (envoy, _) = picker.placed(BODY).await;
    envoy.answer_head("no status", SSE).await;
    assert_eq!(ends(envoy).await, Code::InvalidArgument);
    picker.gateway.idle().await;
}

#[tokio::test]
async fn an_answer_that_is_an_engine_s_death_becomes_an_error_while_its_head_is_held() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let (mut envoy, _) = picker.placed(BODY).await;
    envoy.answer_head("200", SSE).await;
    envoy.answer_body(&[wire::ENGINE_DEAD, wire::DONE].concat(), true).await;
    let (status, _, body) = envoy.immediate().await;
    assert!(status == 502 && body.contains("replica_failed"), "{status} {body}");
    assert_eq!(picker.end().await.outcome, Outcome::Failed);
    // An error of the proxy itself, which found no connection.
    let (mut envoy, _) = picker.placed(BODY).await;
    envoy.answer_head("503", "text/plain").await;
    envoy.answer_body("upstream connect error", true).await;
    envoy.answered().await;
    assert_eq!(envoy.answer().await, "upstream connect error");
    assert_eq!(picker.end().await.outcome, Outcome::Failed);
}

#[tokio::test]
async fn an_engine_that_is_silent_is_given_up_in_time() {
    let ([_replica], picker) = Picker::before(|config| {
        config.routes[0].timeouts.first_token = Duration::from_millis(200);
    })
    .await;
    let (mut envoy, _) = picker.placed(BODY).await;
    let (status, _, body) = envoy.immediate().await;
    assert!(status == 504 && body.contains("timeout_first_token"), "{status} {body}");
    assert_eq!(picker.end().await.status, 504);
}

#[tokio::test]
async fn a_long_prompt_comes_back_whole_in_pieces_that_every_proxy_takes() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let long = format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(80_000)
    );
    let mut envoy = Envoy::request(&picker.gateway.app, post(&[]), DUPLEX).await;
    let mut left = &*long;
    while !left.is_empty() {
        let (piece, rest) = left.split_at(left.len().min(30_000));
        envoy.body(piece, rest.is_empty()).await;
        left = rest;
    }
    assert!(envoy.placed().await.body == long.as_bytes());
}

#[tokio::test]
async fn probes_see_whether_a_replica_is_ready() {
    let ([_replica], picker) = Picker::before(|_| {}).await;
    let app = &picker.gateway.app;
    for service in ["", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"] {
        assert_eq!(health(app, service).await.unwrap(), 1, "{service}");
    }
    assert_eq!(health(app, "other").await.unwrap_err().code(), Code::NotFound);
    app.begin_drain();
    assert_eq!(health(app, "readiness").await.unwrap(), 2);
    assert_eq!(health(app, "liveness").await.unwrap(), 1);
}
