//! Replicas that come and go while requests run: DNS, a file, Kubernetes, the admin port, and engines behind one URL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]
#![allow(clippy::disallowed_methods, reason = "scripted servers are tasks of the test")]

mod api_server;
mod kubernetes;
mod name_server;
mod objectives;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokenway::clock::Clock;
use tokenway::config::{
    Config, DataParallel, Discovery, DnsRecords, DnsSource, KubernetesObject, KubernetesSource, PolicyName,
    Pool, Role, ServicePort,
};
use tokenway::fleet::discovery::{ChangeError, ReplicaAction, ReplicaChange, SourceStatus};
use tokenway::fleet::status::ReplicaState;
use tokio::net::TcpListener;

use crate::support::replica::{Gate, Probes, Replica};
use crate::support::{CHAT, Gateway, PATH, config, until, wire};
use api_server::{Answer, ApiServer, Feed};
use name_server::{NameServer, Says};

/// Replicas on 127.0.0.1, 127.0.0.2, … that share a port, as pods do.
async fn pods(count: u8) -> Vec<Replica> {
    'ports: loop {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = first.local_addr().unwrap().port();
        let mut listeners = vec![first];
        for at in 2..=count {
            match TcpListener::bind((host(at), port)).await {
                Ok(listener) => listeners.push(listener),
                Err(_) => continue 'ports,
            }
        }
        return listeners.into_iter().map(Replica::start_on).collect();
    }
}

fn host(at: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, at)
}

fn discovering(discovery: Discovery) -> Config {
    let mut config = config::of(&[]);
    config.pools[0].discovery = discovery;
    config
}

/// One pool of what the name server has for this name.
fn on_name(server: &NameServer, name: &str, records: DnsRecords) -> Gateway {
    let (name, base_path, server) = (name.into(), "".into(), Some(server.address));
    let dns = Some(DnsSource { name, is_tls: false, records, base_path, server });
    Gateway::start_unready(discovering(Discovery { dns, ..Discovery::default() }))
}

/// One pool of what this file lists.
fn listed_in(path: &Path) -> Config {
    discovering(Discovery { file: Some(path.into()), ..Discovery::default() })
}

fn names(gateway: &Gateway) -> BTreeSet<String> {
    let ready = gateway.replicas().into_iter().filter(|r| r.state == ReplicaState::Ready);
    ready.map(|r| r.replica.to_string()).collect()
}

async fn has(gateway: &Gateway, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    until(&format!("ready are {expected:?}"), || names(gateway) == expected).await;
}

fn source(gateway: &Gateway, name: &str) -> SourceStatus {
    gateway.app.fleet.sources().into_iter().find(|status| status.source == name).unwrap()
}

fn change(action: ReplicaAction, url: &str) -> ReplicaChange {
    ReplicaChange { action, pool: None, url: Some(url.to_owned()), name: None, zone: None }
}

#[tokio::test]
async fn addresses_of_a_name_are_replicas_and_a_name_server_that_fails_takes_none_away() {
    let pods = pods(3).await;
    let port = pods[0].addr.port();
    let server = NameServer::start(Says::Addresses(vec![host(1), host(2)]), 1).await;
    let gateway = on_name(&server, "vllm.models.test", DnsRecords::Addresses { port });
    let of = |all: &[u8]| all.iter().map(|at| format!("{}:{port}", host(*at))).collect::<Vec<_>>();
    let (first, later) = (of(&[1, 2]), of(&[2, 3]));
    has(&gateway, &[&first[0], &first[1]]).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);

    server.says(Says::Addresses(vec![host(2), host(3)]));
    has(&gateway, &[&later[0], &later[1]]).await;

    for says in [Says::Failure, Says::NoSuchName] {
        server.says(says);
        let (failures, questions) = (source(&gateway, "dns").failures, server.questions());
        until("that is noted", || {
            source(&gateway, "dns").failures > failures && server.questions() > questions
        })
        .await;
        assert_eq!(names(&gateway).len(), 2);
        assert!(source(&gateway, "dns").failing.is_some());
    }
    server.says(Says::Addresses(vec![host(1)]));
    has(&gateway, &[&first[0]]).await;
    assert!(source(&gateway, "dns").failing.is_none());
}

#[tokio::test]
async fn srv_records_bring_host_and_port_and_their_targets_are_asked_of_the_same_server() {
    let replica = Replica::start().await;
    let port = replica.addr.port();
    let says = Says::Services(vec![(0, port, "gpu-1.models.test"), (9, 1, "spare.test")]);
    let server = NameServer::start(says, 60).await;
    let gateway = on_name(&server, "_http._tcp.vllm.models.test", DnsRecords::Services);
    has(&gateway, &[&format!("gpu-1.models.test:{port}")]).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
}

/// Requests without a pause, from now until [`Traffic::end`].
struct Traffic {
    is_over: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

impl Traffic {
    fn begin(gateway: &Arc<Gateway>) -> Self {
        let this = Self { is_over: Arc::default(), failed: Arc::default(), done: Arc::default() };
        for _ in 0..4 {
            let gateway = Arc::clone(gateway);
            let (is_over, failed, done) =
                (Arc::clone(&this.is_over), Arc::clone(&this.failed), Arc::clone(&this.done));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = gateway.post(PATH, CHAT).await;
                    let is_whole = reply.status() == 200 && reply.text().ends_with("data: [DONE]\n\n");
                    failed.fetch_add(usize::from(!is_whole), Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        this
    }

    async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        until("requests go on", || self.done.load(Ordering::Relaxed) > before + 20).await;
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        assert_eq!(self.failed.load(Ordering::Relaxed), 0, "of {}", self.done.load(Ordering::Relaxed));
    }
}

pub(crate) fn write(path: &Path, replicas: &[&Replica]) {
    let groups: Vec<Value> = replicas.iter().map(|r| json!({ "targets": [r.name()] })).collect();
    replace(path, &Value::from(groups).to_string());
}

/// Replaces the file in one step.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn one_file_serves_a_pool_that_computes_prompts_and_one_that_decodes() {
    let [prefill, decode] = Replica::several().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    let label = |first: &str, second: &str| {
        let group = |replica: &Replica, role: &str| json!({ "targets": [replica.addr.to_string()], "labels": { "role": role } });
        let groups = json!([group(&prefill, first), group(&decode, second)]);
        replace(&path, &groups.to_string());
    };
    label("prefill", "decode");
    let mut config = listed_in(&path);
    config.pools[0].role = Role::Decode;
    config.pools.push(Pool { name: "prefill".into(), role: Role::Prefill, ..config.pools[0].clone() });
    let gateway = Gateway::start(config).await;
    let of = |pool: &str| {
        let mine = gateway.replicas().into_iter().filter(|replica| &*replica.pool == pool);
        mine.map(|replica| replica.replica.to_string()).collect::<Vec<_>>()
    };
    let (p, d) = (vec![prefill.addr.to_string()], vec![decode.addr.to_string()]);
    until("each has its own", || (of("prefill"), of("default")) == (p.clone(), d.clone())).await;
    label("both", "both");
    until("both have both", || of("prefill").len() + of("default").len() == 4).await;
    label("prefill", "decoder");
    until("the fault is named", || source(&gateway, "file").failing.is_some()).await;
    let error = source(&gateway, "file").failing.unwrap().1;
    assert!(error.contains("role \"decoder\" is none; there are prefill, decode, both"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_rewritten_under_traffic_fails_no_request() {
    let [one, two, three] = Replica::several().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    write(&path, &[&one]);
    let gateway = Arc::new(Gateway::start_unready(listed_in(&path)));
    has(&gateway, &[&one.name()]).await;
    let traffic = Traffic::begin(&gateway);
    for replicas in [vec![&one, &two], vec![&two], vec![&two, &three], vec![&one], vec![&three, &one]] {
        write(&path, &replicas);
        let names: Vec<String> = replicas.iter().map(|replica| replica.name()).collect();
        has(&gateway, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        traffic.goes_on().await;
    }
    std::fs::write(&path, "[{\"targets\": [\"half").unwrap();
    until("the fault is said", || source(&gateway, "file").failing.is_some()).await;
    assert!(source(&gateway, "file").failing.unwrap().1.contains("replicas.json"));
    traffic.goes_on().await;
    traffic.end();
    assert_eq!(names(&gateway).len(), 2);
}

#[tokio::test]
async fn replicas_whose_source_changes_serve_on_as_they_are() {
    let (one, two) = (Replica::start().await, Replica::start().await);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    let gateway = Gateway::start(config::of(&[&one, &two])).await;
    let all = [&*one.name(), &*two.name()];
    let probes = one.probed();
    let discovered = discovering(Discovery { file: Some(path.clone()), ..Discovery::default() });
    gateway.app.reload(Arc::new(discovered)).unwrap();
    until("the file is missed", || source(&gateway, "file").failing.is_some()).await;
    has(&gateway, &all).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);

    write(&path, &[&one, &two]);
    until("the file is read", || source(&gateway, "file").targets == 2).await;
    has(&gateway, &all).await;
    assert_eq!(one.probed(), probes, "it is the replica that it was");
    write(&path, &[&two]);
    has(&gateway, &all[1..]).await;
}

#[tokio::test]
async fn a_source_that_suddenly_names_none_keeps_the_replicas_that_answer_until_an_operator_or_a_successor() {
    let [one, two] = Replica::several().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    write(&path, &[&one, &two]);
    let gateway = Gateway::start_unready(listed_in(&path));
    has(&gateway, &[&one.name(), &two.name()]).await;
    assert_eq!(source(&gateway, "file").kept, 0);

    write(&path, &[]);
    until("the empty list is read", || source(&gateway, "file").targets == 0).await;
    has(&gateway, &[&one.name(), &two.name()]).await;
    assert_eq!(source(&gateway, "file").kept, 2);
    for _ in 0..4 {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
    let metrics = &gateway.app.gateway.observer.metrics;
    metrics.set_sources(&gateway.app.fleet.sources());
    let page = metrics.render(&gateway.replicas());
    assert!(page.contains("tokenway_discovery_kept_replicas{pool=\"default\",source=\"file\"} 2"), "{page}");

    // Named again, they are kept no more.
    write(&path, &[&one, &two]);
    until("they are named again", || source(&gateway, "file").targets == 2).await;
    assert_eq!(source(&gateway, "file").kept, 0);
    write(&path, &[]);
    until("the empty list is read", || source(&gateway, "file").targets == 0).await;
    assert_eq!(source(&gateway, "file").kept, 2);

    // A reload that does not touch the source changes nothing about that.
    let mut reloaded = listed_in(&path);
    reloaded.pools[0].revision = "r2".into();
    gateway.app.reload(Arc::new(reloaded)).unwrap();
    assert_eq!(names(&gateway).len(), 2);

    // An operator's word counts at once, for each.
    let fleet = &gateway.app.fleet;
    let url = |replica: &Replica| format!("http://{}", replica.name());
    fleet.change(&change(ReplicaAction::Drain, &url(&one))).unwrap();
    has(&gateway, &[&two.name()]).await;

    // A successor that is ready ends it.
    let three = Replica::start().await;
    write(&path, &[&three]);
    has(&gateway, &[&three.name()]).await;
    assert_eq!(source(&gateway, "file").kept, 0);
    let by_name = ReplicaChange { name: Some(three.name()), url: None, ..change(ReplicaAction::Remove, "") };
    fleet.change(&by_name).unwrap();
    has(&gateway, &[]).await;
    let refused = gateway.post(PATH, CHAT).await;
    assert_eq!(refused.status(), 503);
    assert!(
        refused.text().contains("no ready replica for route *: pool default has no replicas"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn the_last_replicas_of_a_canary_leave_at_once_where_as_large_a_baseline_has_most_traffic() {
    // (whether its baseline serves; its own size; its share of the traffic in ten thousandths; how many of its replicas serve on)
    for (serves, size, share, stay) in
        [(true, 1, 1000, 0), (false, 1, 1000, 1), (true, 2, 1000, 2), (true, 1, 10_000, 1)]
    {
        let [baseline, canary, second] = Replica::several().await;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replicas.json");
        let canaries = &[&canary, &second][..size];
        write(&path, canaries);
        let mut config = config::with_canary(&baseline, &canary, "");
        config.pools[1].replicas.clear();
        config.pools[1].discovery = Discovery { file: Some(path.clone()), ..Discovery::default() };
        if !serves {
            baseline.stop_listening().await;
        }
        let gateway = Gateway::start_unready(config);
        let table = gateway.app.gateway.table.load_full();
        table.carried_over.canaries.of(&"*".into(), &"new".into()).set(share);
        let is_ready = |replica: &Replica| names(&gateway).contains(&replica.name());
        let are_ready = || canaries.iter().filter(|canary| is_ready(canary)).count();
        until("all that can be are ready", || are_ready() == size && is_ready(&baseline) == serves).await;
        write(&path, &[]);
        let kept = || -> usize {
            let sources = gateway.app.fleet.sources();
            sources.iter().filter(|one| one.targets == 0).map(|one| one.kept).sum()
        };
        until("they leave, or are kept", || (are_ready(), kept()) == (stay, stay)).await;
    }
}

#[tokio::test]
async fn each_successor_that_is_ready_takes_the_place_of_one_that_left() {
    let (old, new) = (Replica::several::<3>().await, Replica::several::<3>().await);
    for late in &new {
        late.stop_listening().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    let all = |pods: &[Replica]| write(&path, &pods.iter().collect::<Vec<_>>());
    all(&old);
    let gateway = Gateway::start_unready(listed_in(&path));
    has(&gateway, &[&old[0].name(), &old[1].name(), &old[2].name()]).await;
    all(&new);
    for (at, late) in new.iter().enumerate() {
        late.listen_again().await;
        let is_among = || names(&gateway).contains(&late.name());
        until("it is ready", is_among).await;
        let of_old = || old.iter().filter(|pod| names(&gateway).contains(&pod.name())).count();
        until("one that left goes", || of_old() <= 2 - at).await;
        assert_eq!((of_old(), names(&gateway).len()), (2 - at, 3));
    }
    assert_eq!(source(&gateway, "file").kept, 0);
}

#[tokio::test]
async fn addresses_that_never_answered_take_no_replica_away_that_answers() {
    let pods = pods(2).await;
    let port = pods[0].addr.port();
    let server = NameServer::start(Says::Addresses(vec![host(1), host(2)]), 1).await;
    let gateway = on_name(&server, "vllm.models.test", DnsRecords::Addresses { port });
    let of = |at| format!("{}:{port}", host(at));
    has(&gateway, &[&of(1), &of(2)]).await;
    server.says(Says::Addresses(vec![host(9)]));
    until("the wrong address was tried", || {
        gateway.replicas().iter().any(|r| *r.replica == *of(9) && r.failures.probes > 1)
    })
    .await;
    assert_eq!(source(&gateway, "dns").kept, 2);
    for _ in 0..4 {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
    server.says(Says::Addresses(vec![host(2)]));
    has(&gateway, &[&of(2)]).await;
    assert_eq!(source(&gateway, "dns").kept, 0);
}

/// As a pod of a StatefulSet on the host's network does.
#[tokio::test]
async fn a_successor_at_one_address_begins_once_however_often_the_list_changes() {
    let replica = Replica::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replicas.json");
    let list = |uid: &str, zone: &str| {
        let labels = json!({ "__meta_kubernetes_pod_uid": uid, "zone": zone });
        replace(&path, &json!([{ "targets": [replica.name()], "labels": labels }]).to_string());
    };
    list("1", "a");
    let gateway = Gateway::start_unready(listed_in(&path));
    has(&gateway, &[&replica.name()]).await;
    write(&path, &[]);
    until("the empty list is read", || source(&gateway, "file").targets == 0).await;
    replica.probes(Probes::CompletionsUnanswered);
    for zone in ["a", "b", "c", "d"] {
        list("2", zone);
        let has_zone = || gateway.replicas().iter().any(|one| one.life.zone.as_deref() == Some(zone));
        until("the list is read", has_zone).await;
        let all = gateway.replicas().len();
        assert!(all <= 2, "the former one, and its successor: {all}");
    }
}

#[tokio::test]
async fn a_refusal_says_why_nothing_is_ready() {
    let gone = Replica::start().await;
    gone.stop_listening().await;
    let gateway = Gateway::start_unready(config::of(&[&gone]));
    until("it was tried", || gateway.replicas()[0].failures.probes > 1).await;
    let text = gateway.post(PATH, CHAT).await.text().to_owned();
    let why = format!("no ready replica for route *: http://{}: connection refused (", gone.name());
    assert!(text.contains(&why) && text.contains(" tries)"), "{text}");

    // Tenants are not the operator: where replicas are is not theirs to see.
    let mut config = config::of(&[&gone]);
    config.tenants = vec![config::tenant("a", "key")];
    let gateway = Gateway::start_unready(config);
    until("it was tried", || gateway.replicas()[0].failures.probes > 1).await;
    let mut client = gateway.sent_as("key", PATH, CHAT).await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"));
    let text = reply.text();
    assert!(text.contains("no ready replica for route *: ") && !text.contains(&gone.name()), "{text}");

    let mut config = config::of(&[&gone]);
    config.pools[0].replicas[0].endpoint.host = "no-such-name.invalid".into();
    let gateway = Gateway::start_unready(config);
    until("the name was looked up", || gateway.replicas()[0].failures.probes > 0).await;
    let text = gateway.post(PATH, CHAT).await.text().to_owned();
    assert!(text.contains("no-such-name.invalid") && text.contains("lookup"), "{text}");

    let server = NameServer::start(Says::NoSuchName, 1).await;
    let gateway = on_name(&server, "vllm.models.test", DnsRecords::Addresses { port: 1 });
    until("the name was asked for", || source(&gateway, "dns").failing.is_some()).await;
    let text = gateway.post(PATH, CHAT).await.text().to_owned();
    assert!(text.contains("for route *: dns: no such name: vllm.models.test"), "{text}");
}

fn slice(version: &str, pods: &[(u8, Value)]) -> Value {
    let endpoint = |(at, conditions): &(u8, Value)| {
        json!({
            "addresses": [host(*at)],
            "conditions": conditions,
            "targetRef": { "kind": "Pod", "name": format!("vllm-{at}"), "uid": format!("uid-{at}") },
        })
    };
    json!({
        "metadata": { "name": "vllm-abc", "resourceVersion": version },
        "addressType": "IPv4",
        "ports": null,
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn list(version: &str, rest: &str, slices: &[Value]) -> Answer {
    let metadata = json!({ "resourceVersion": version, "continue": rest });
    Answer::Page(
        200,
        json!({ "kind": "EndpointSliceList", "metadata": metadata, "items": slices }).to_string(),
    )
}

fn event(kind: &str, object: &Value) -> Feed {
    Feed::Event(json!({ "type": kind, "object": object }).to_string())
}

fn ready() -> Value {
    json!({ "ready": true, "serving": true, "terminating": false })
}

fn of_object(api: &ApiServer, object: KubernetesObject) -> Config {
    let kubernetes = KubernetesSource {
        namespace: "models".into(),
        object,
        is_tls: false,
        api: Some(tokenway::config::parse_endpoint(&format!("http://{}", api.address)).unwrap()),
    };
    discovering(Discovery { kubernetes: Some(kubernetes), ..Discovery::default() })
}

fn inference_pool(version: &str, app: &str, port: u16) -> Value {
    json!({
        "metadata": { "name": "llama", "resourceVersion": version },
        "spec": {
            "selector": { "matchLabels": { "app": app } },
            "targetPorts": [{ "number": port }],
            "endpointPickerRef": { "name": "tokenway-epp", "port": { "number": 9002 } },
        },
    })
}

fn pod(version: &str, at: u8, ready: &str) -> Value {
    json!({
        "metadata": { "name": format!("vllm-{at}"), "uid": format!("uid-{at}"), "resourceVersion": version },
        "status": {
            "phase": "Running",
            "podIP": host(at),
            "conditions": [{ "type": "Ready", "status": ready }],
        },
    })
}

#[tokio::test]
async fn the_pods_of_an_inference_pool_are_replicas_and_its_selector_is_followed() {
    let engines = pods(3).await;
    let port = engines[0].addr.port();
    let api = ApiServer::start().await;
    api.next_of("/inferencepools", list("10", "", &[inference_pool("9", "vllm", port)]));
    let pool = api.next_watch_of("/inferencepools");
    api.next_of("app%3Dvllm", list("20", "", &[pod("11", 1, "True"), pod("12", 2, "True")]));
    let members = api.next_watch_of("app%3Dvllm");
    let gateway =
        Gateway::start_unready(of_object(&api, KubernetesObject::InferencePool { name: "llama".into() }));
    has(&gateway, &["vllm-1", "vllm-2"]).await;
    let asked = api.asked();
    let path = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools?fieldSelector=metadata.name%3Dllama";
    assert!(asked.contains(&format!("{path}&limit=500")), "{asked:?}");
    // Objectives, which this server does not have, are no part of what a pool needs.
    until("they were asked for", || api.asked().iter().any(|path| path.contains("/inferenceobjectives")))
        .await;
    assert!(source(&gateway, "kubernetes").failing.is_none());
    let path = "/api/v1/namespaces/models/pods?labelSelector=app%3Dvllm";
    assert!(asked.contains(&format!("{path}&limit=500")), "{asked:?}");

    members.send(event("MODIFIED", &pod("21", 2, "False"))).await.unwrap();
    members.send(event("ADDED", &pod("22", 3, "True"))).await.unwrap();
    has(&gateway, &["vllm-1", "vllm-3"]).await;
    members.send(event("DELETED", &pod("23", 1, "True"))).await.unwrap();
    has(&gateway, &["vllm-3"]).await;

    // Another selector: another watch.
    api.next_of("app%3Dother", list("30", "", &[pod("11", 1, "True")]));
    let others = api.next_watch_of("app%3Dother");
    pool.send(event("MODIFIED", &inference_pool("31", "other", port))).await.unwrap();
    has(&gateway, &["vllm-1"]).await;
    assert!(api.asked().iter().any(|path| path.contains("labelSelector=app%3Dother&limit=500")));

    // A pool that is gone takes nobody away, and says so.
    pool.send(event("DELETED", &inference_pool("32", "other", port))).await.unwrap();
    until("that is said", || source(&gateway, "kubernetes").failing.is_some()).await;
    let (_, error) = source(&gateway, "kubernetes").failing.unwrap();
    assert!(error.contains("there is no InferencePool models/llama"), "{error}");
    has(&gateway, &["vllm-1"]).await;
    drop(others);
}

/// Its prober may have backed off while the model was loaded.
#[tokio::test]
async fn a_pod_that_kubernetes_calls_ready_is_asked_at_once() {
    let pods = pods(2).await;
    let api = ApiServer::start().await;
    let not_serving = json!({ "ready": false, "serving": false, "terminating": false });
    api.next(list("10", "", &[slice("8", &[(1, ready()), (2, ready())])]));
    let watch = api.next_watch();
    let port = ServicePort::Number(pods[0].addr.port());
    let mut config = of_object(&api, KubernetesObject::Service { name: "vllm".into(), port });
    config.pools[0].probe.interval = Duration::from_secs(3600);
    let gateway = Gateway::start_unready(config);
    has(&gateway, &["vllm-1", "vllm-2"]).await;
    watch.send(event("MODIFIED", &slice("11", &[(1, not_serving), (2, ready())]))).await.unwrap();
    has(&gateway, &["vllm-2"]).await;
    let before = pods[0].probed();
    watch.send(event("MODIFIED", &slice("12", &[(1, ready()), (2, ready())]))).await.unwrap();
    until("it is asked again", || pods[0].probed() > before).await;
}

/// The page of a process that started now.
fn started_now() -> String {
    let clock = Clock::start();
    let start = clock.wall(clock.now()).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("process_start_time_seconds {}\n", start.as_secs_f64())
}

/// The address of a Service: one process follows another on its pages, and all are there.
#[tokio::test]
async fn engines_behind_one_address_are_no_restarts_of_one() {
    let engine = Replica::start().await;
    engine.show_page(Some("process_start_time_seconds 100\n"));
    let mut config = config::of(&[&engine]);
    config.pools[0].scrape_interval = Duration::from_millis(20);
    let gateway = Gateway::start(config).await;
    let is_seen = |start: f64| {
        gateway.replicas()[0].counters.as_ref().and_then(|page| page.process_start) == Some(start)
    };
    let warmed = || gateway.replicas()[0].life.entered;
    let before = warmed();
    for start in [100.0, 200.0, 100.0, 300.0] {
        engine.show_page(Some(&format!("process_start_time_seconds {start}\n")));
        until("its page is read", || is_seen(start)).await;
        assert_eq!(gateway.state_of(&engine), ReplicaState::Ready);
    }
    assert_eq!(warmed(), before);
    engine.show_page(Some(&started_now()));
    until("another one has taken its place", || warmed() != before).await;
    gateway.ready().await;
}

/// At its address another pod may answer, of another revision.
#[tokio::test]
async fn a_pod_that_is_kept_goes_with_its_process_and_a_listed_url_does_not() {
    for is_pod in [true, false] {
        let engine = pods(1).await.remove(0);
        engine.show_page(Some("process_start_time_seconds 100\n"));
        let (api, directory) = (ApiServer::start().await, tempfile::tempdir().unwrap());
        api.next(list("10", "", &[slice("8", &[(1, ready())])]));
        let watch = api.next_watch();
        let path = directory.path().join("replicas.json");
        write(&path, &[&engine]);
        let port = ServicePort::Number(engine.addr.port());
        let object = KubernetesObject::Service { name: "vllm".into(), port };
        let mut config = if is_pod { of_object(&api, object) } else { listed_in(&path) };
        config.pools[0].scrape_interval = Duration::from_millis(20);
        let gateway = Gateway::start_unready(config);
        let name = if is_pod { "vllm-1".to_owned() } else { engine.name() };
        let kept = || source(&gateway, if is_pod { "kubernetes" } else { "file" }).kept;
        has(&gateway, &[&name]).await;
        until("its page is read", || gateway.replicas()[0].counters.is_some()).await;
        write(&path, &[]);
        watch.send(event("MODIFIED", &slice("11", &[]))).await.unwrap();
        until("it is kept", || kept() == 1).await;
        engine.show_page(Some(&started_now()));
        let left = usize::from(!is_pod);
        until("it left, or is back", || (kept(), names(&gateway).len()) == (left, left)).await;
    }
}

#[tokio::test]
async fn endpoint_slices_are_followed_through_bookmarks_drops_and_expiry() {
    let pods = pods(3).await;
    let api = ApiServer::start().await;
    api.next(list("9", "more", &[]));
    api.next(list("10", "", &[slice("8", &[(1, ready()), (2, ready())])]));
    let watch = api.next_watch();
    let port = ServicePort::Number(pods[0].addr.port());
    let gateway =
        Gateway::start_unready(of_object(&api, KubernetesObject::Service { name: "vllm".into(), port }));
    has(&gateway, &["vllm-1", "vllm-2"]).await;
    api.asked_times(3).await;
    let asked = api.asked();
    let path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dvllm";
    assert_eq!(asked[0], format!("{path}&limit=500"));
    assert_eq!(asked[1], format!("{path}&limit=500&continue=more"));
    assert!(
        asked[2].contains("watch=1&allowWatchBookmarks=true") && asked[2].ends_with("resourceVersion=10")
    );

    // A pod that is not serving gets no new requests, whatever our probe says.
    let not_serving = json!({ "ready": false, "serving": false, "terminating": false });
    let all = [(1, ready()), (2, not_serving), (3, ready())];
    watch.send(event("MODIFIED", &slice("11", &all))).await.unwrap();
    has(&gateway, &["vllm-1", "vllm-3"]).await;
    assert_eq!(
        gateway.replicas().iter().find(|r| &*r.replica == "vllm-2").unwrap().state,
        ReplicaState::NotServing
    );

    // The watch goes on at the bookmark when its connection breaks.
    watch.send(event("BOOKMARK", &json!({ "metadata": { "resourceVersion": "20" } }))).await.unwrap();
    let again = api.next_watch();
    watch.send(Feed::Drop).await.unwrap();
    api.asked_times(4).await;
    assert!(api.asked()[3].ends_with("resourceVersion=20"), "{:?}", api.asked());

    // One that terminates keeps its stream.
    let gate = Gate::new();
    let held = wire::begun_then("a", wire::behind(&gate, wire::ending(wire::FINISH)));
    for pod in &pods {
        pod.always(held.clone());
    }
    let mut client = gateway.sent(PATH, CHAT).await;
    let served = client.head().await.header("x-tokenway-replica").unwrap().to_owned();
    let leaving: u8 = served.trim_start_matches("vllm-").parse().unwrap();
    let staying = 4 - leaving;
    let terminating = json!({ "ready": false, "serving": true, "terminating": true });
    let pods_now = [(leaving, terminating), (2, ready()), (staying, ready())];
    again.send(event("MODIFIED", &slice("21", &pods_now))).await.unwrap();
    let stays = format!("vllm-{staying}");
    has(&gateway, &["vllm-2", &stays]).await;
    let left = || gateway.replicas().into_iter().find(|r| *r.replica == *served);
    assert_eq!(left().map(|r| r.state), Some(ReplicaState::Draining));
    gate.cancel();
    let body = client.rest().await;
    assert!(String::from_utf8_lossy(&body.bytes).ends_with("data: [DONE]\n\n"));
    until("it is gone", || left().is_none()).await;

    // An expired version means a list again; what vanished in between is noticed.
    api.next(list("31", "", &[slice("30", &[(2, ready())])]));
    let last = api.next_watch();
    let expired = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
    again.send(event("ERROR", &expired)).await.unwrap();
    has(&gateway, &["vllm-2"]).await;
    api.asked_times(6).await;
    assert!(api.asked()[4].ends_with("limit=500") && api.asked()[5].ends_with("resourceVersion=31"));
    assert!(source(&gateway, "kubernetes").failing.is_none());

    // A server that refuses keeps the fleet and says why; and then it answers again.
    let refusal = json!({ "kind": "Status", "message": "endpointslices is forbidden" }).to_string();
    for _ in 0..2 {
        api.next(Answer::Page(403, refusal.clone()));
    }
    api.next(list("41", "", &[slice("40", &[(2, ready())])]));
    let answered = api.next_watch();
    last.send(Feed::End).await.unwrap();
    until("the refusal is said", || source(&gateway, "kubernetes").failing.is_some()).await;
    let (_, error) = source(&gateway, "kubernetes").failing.unwrap();
    assert!(error.contains("403") && error.contains("endpointslices is forbidden"), "{error}");
    assert_eq!(names(&gateway).len(), 1);
    until("it answers again", || source(&gateway, "kubernetes").failing.is_none()).await;
    drop(answered);
}

#[tokio::test]
async fn operators_add_drain_and_remove_while_streams_run() {
    let ([one], gateway) = Gateway::before(|_| {}).await;
    let two = Replica::start().await;
    let gate = Gate::new();
    one.next(wire::begun_then("a", wire::behind(&gate, wire::ending(wire::FINISH))));
    let mut client = gateway.begun(PATH, CHAT).await;

    let fleet = &gateway.app.fleet;
    let url = |replica: &Replica| format!("http://{}", replica.name());
    let add = ReplicaChange { zone: Some("eu-1a".into()), ..change(ReplicaAction::Add, &url(&two)) };
    let (pool, added) = fleet.change(&add).unwrap();
    assert_eq!((&*pool, &*added.name), ("default", &*two.name()));
    has(&gateway, &[&one.name(), &two.name()]).await;
    assert_eq!(gateway.replicas()[1].life.zone.as_deref(), Some("eu-1a"));
    fleet.change(&change(ReplicaAction::Drain, &url(&one))).unwrap();
    assert_eq!(gateway.state_of(&one), ReplicaState::Draining);
    for _ in 0..4 {
        assert_eq!(gateway.post(PATH, CHAT).await.field("x-tokenway-replica"), Some(&*two.name()));
    }
    fleet.change(&change(ReplicaAction::Add, &url(&one))).unwrap();
    assert_eq!(gateway.state_of(&one), ReplicaState::Ready);
    let by_name = ReplicaChange { name: Some(one.name()), url: None, ..change(ReplicaAction::Remove, "") };
    fleet.change(&by_name).unwrap();
    assert_eq!(gateway.state_of(&one), ReplicaState::Draining, "its stream runs");
    gate.cancel();
    assert!(String::from_utf8_lossy(&client.rest().await.bytes).ends_with("data: [DONE]\n\n"));
    until("it is gone", || gateway.replicas().len() == 1).await;

    // A reload does not bring back what an operator removed; adding it does.
    gateway.app.reload(Arc::new(config::of(&[&one]))).unwrap();
    assert_eq!(names(&gateway), [two.name()].into());
    fleet.change(&change(ReplicaAction::Add, &url(&one))).unwrap();
    has(&gateway, &[&one.name(), &two.name()]).await;

    for (change, told) in [
        (change(ReplicaAction::Drain, "http://127.0.0.1:1"), "has no replica"),
        (change(ReplicaAction::Add, "127.0.0.1:1"), "does not start with http://"),
        (
            ReplicaChange { name: Some(one.name()), ..change(ReplicaAction::Add, "http://127.0.0.1:1") },
            "has a replica \"127.0.0.1:",
        ),
        (
            ReplicaChange { pool: Some("other".into()), ..by_name },
            "unknown pool \"other\"; name one of: default",
        ),
    ] {
        let error: ChangeError = fleet.change(&change).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn each_engine_behind_one_url_is_a_target_of_its_own() {
    let ([replica], mut config) = config::fresh().await;
    replica.show_page(Some(include_str!("../fixtures/vllm/metrics_dp2.txt")));
    config.routes[0].policy = PolicyName::RoundRobin;
    let gateway = Gateway::start_unready(config.clone());
    let ranks = [format!("{}#0", replica.name()), format!("{}#1", replica.name())];
    has(&gateway, &[&ranks[0], &ranks[1]]).await;
    for _ in 0..4 {
        let mut client = gateway.client().await;
        // What a client asks for would make the load of both ranks wrong.
        client.post(PATH, &[("x-data-parallel-rank", "7")], CHAT.as_bytes()).await;
        let reply = client.reply().await;
        let name = reply.field("x-tokenway-replica").unwrap();
        let pinned = replica.received().pop().unwrap().header("x-data-parallel-rank").unwrap().to_owned();
        assert_eq!(*name, format!("{}#{pinned}", replica.name()));
    }
    let pinned: BTreeSet<String> =
        replica.received().iter().map(|r| r.header("x-data-parallel-rank").unwrap().to_owned()).collect();
    assert_eq!(pinned, ["0".to_owned(), "1".to_owned()].into());
    let replicas = gateway.replicas();
    assert!(
        replicas.iter().all(|r| r.signals.is_some_and(|s| s.page.total_blocks == Some(8192))),
        "{replicas:?}"
    );

    // Told that it is one, it is one again, without a pause, and the engine spreads as it likes.
    config.pools[0].data_parallel = DataParallel::Ranks(std::num::NonZeroU32::MIN);
    gateway.app.reload(Arc::new(config)).unwrap();
    assert_eq!(names(&gateway), [replica.name()].into());
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    assert_eq!(replica.received().pop().unwrap().header("x-data-parallel-rank"), None);
}

#[tokio::test]
async fn a_clients_rank_reaches_the_engine_only_where_the_choice_is_left_to_it() {
    let ([replica], mut config) = config::fresh().await;
    let gateway = Gateway::start(config.clone()).await;
    let rank_there = async || {
        assert_eq!(gateway.post_with(PATH, &[("x-data-parallel-rank", "3")], CHAT).await.head.status, 200);
        replica.received().pop().unwrap().header("x-data-parallel-rank").map(str::to_owned)
    };
    // One engine would answer 400: it has no rank 3.
    assert_eq!(rank_there().await, None);
    config.pools[0].data_parallel = DataParallel::Ranks(std::num::NonZeroU32::MIN);
    gateway.app.reload(Arc::new(config.clone())).unwrap();
    assert_eq!(rank_there().await.as_deref(), Some("3"));
}

#[tokio::test]
async fn replicas_of_a_pool_that_a_reload_drops_are_listed_until_their_streams_have_ended() {
    let [one, two] = Replica::several().await;
    let of_pool = |pool: &str, replica: &Replica| {
        let mut config = config::of(&[replica]);
        config.pools = vec![config::pool(pool, &[replica])];
        config
    };
    let gateway = Gateway::start(of_pool("b", &one)).await;
    let gate = Gate::new();
    one.next(wire::begun_then("a", wire::behind(&gate, wire::ending(wire::FINISH))));
    let mut client = gateway.begun(PATH, CHAT).await;

    gateway.app.reload(Arc::new(of_pool("c", &two))).unwrap();
    let left = || gateway.replicas().into_iter().find(|status| &*status.pool == "b");
    let drains = || left().map(|left| (left.state, left.inflight)) == Some((ReplicaState::Draining, 1));
    until("it drains, once the other serves", drains).await;
    gate.cancel();
    assert!(String::from_utf8_lossy(&client.rest().await.bytes).ends_with("data: [DONE]\n\n"));
    until("it is gone", || left().is_none()).await;
    has(&gateway, &[&two.name()]).await;
}
