//! A Kubernetes API that refuses, goes back in time, or has no port of the configured name.

use serde_json::{Value, json};
use tokenway::config::{KubernetesObject, ServicePort};

use super::api_server::{Answer, ApiServer, Feed};
use super::{event, has, inference_pool, list, names, of_object, pod, pods, ready, slice, source};
use crate::support::{Gateway, until};

fn refusal(status: u16, message: &str) -> Answer {
    Answer::Page(status, json!({ "kind": "Status", "code": status, "message": message }).to_string())
}

fn bookmark(version: &str) -> Feed {
    event("BOOKMARK", &json!({ "metadata": { "resourceVersion": version } }))
}

fn error(gateway: &Gateway) -> String {
    source(gateway, "kubernetes").failing.map(|(_, error)| error.to_string()).unwrap_or_default()
}

/// A gateway on the Service `vllm`.
fn on_service(api: &ApiServer, port: ServicePort) -> Gateway {
    Gateway::start_unready(of_object(api, KubernetesObject::Service { name: "vllm".into(), port }))
}

#[tokio::test]
async fn a_version_that_the_server_refuses_or_goes_back_behind_is_forgotten_and_the_list_read_anew() {
    let engines = pods(3).await;
    let api = ApiServer::start().await;
    api.next(list("5000", "", &[slice("4999", &[(1, ready())])]));
    let watch = api.next_watch();
    let gateway = on_service(&api, ServicePort::Number(engines[0].addr.port()));
    has(&gateway, &["vllm-1"]).await;

    // Restored from a backup: the version is one of the future, which is no 410.
    for _ in 0..2 {
        api.next(refusal(504, "Too large resource version: 5000, current: 202"));
    }
    api.next(list("202", "", &[slice("201", &[(2, ready())])]));
    let restored = api.next_watch();
    watch.send(Feed::Drop).await.unwrap();
    has(&gateway, &["vllm-2"]).await;
    until("that is well", || source(&gateway, "kubernetes").failing.is_none()).await;

    // A server that lets the watch of such a version begin shows its own with the first bookmark.
    api.next(list("100", "", &[slice("99", &[(3, ready())])]));
    let last = api.next_watch();
    restored.send(bookmark("203")).await.unwrap();
    restored.send(bookmark("101")).await.unwrap();
    has(&gateway, &["vllm-3"]).await;
    drop(last);
}

#[tokio::test]
async fn a_server_that_lists_and_refuses_each_watch_has_failed_and_its_lists_are_followed() {
    let engines = pods(2).await;
    let api = ApiServer::start().await;
    let forbidden = || refusal(403, "cannot watch endpointslices");
    api.next_of("&limit", list("10", "", &[slice("9", &[(1, ready())])]));
    for _ in 0..2 {
        api.next_of("watch=1", forbidden());
    }
    api.next_of("&limit", list("20", "", &[slice("19", &[(2, ready())])]));
    api.next_of("watch=1", forbidden());
    // The server waits there.
    let _list = api.next_watch();
    let gateway = on_service(&api, ServicePort::Number(engines[0].addr.port()));
    has(&gateway, &["vllm-2"]).await;
    assert!(error(&gateway).contains("cannot watch endpointslices"), "{}", error(&gateway));
    assert!(source(&gateway, "kubernetes").age.is_none(), "no watch has begun yet");
}

#[tokio::test]
async fn a_list_whose_rest_is_always_expired_is_a_failure() {
    let api = ApiServer::start().await;
    for _ in 0..2 {
        api.next(list("9", "more", &[]));
        api.next(refusal(410, "the provided continue parameter is too old"));
    }
    // The server waits there.
    let _rest = api.next_watch();
    let gateway = on_service(&api, ServicePort::Number(1));
    until("the failure is noted", || error(&gateway).contains("expired")).await;
}

#[tokio::test]
async fn a_pool_that_cannot_be_read_stays_a_failure_while_its_pods_are_followed() {
    let engines = pods(2).await;
    let api = ApiServer::start().await;
    let pools = || list("10", "", &[inference_pool("9", "vllm", engines[0].addr.port())]);
    api.next_of("/inferencepools", pools());
    let pool = api.next_watch_of("/inferencepools");
    api.next_of("app%3Dvllm", list("20", "", &[pod("11", 1, "True")]));
    let members = api.next_watch_of("app%3Dvllm");
    let gateway =
        Gateway::start_unready(of_object(&api, KubernetesObject::InferencePool { name: "llama".into() }));
    has(&gateway, &["vllm-1"]).await;

    for _ in 0..2 {
        api.next_of("/inferencepools", refusal(403, "inferencepools is forbidden"));
    }
    // The server waits at the third request until the script has more.
    let held = api.next_watch_of("/inferencepools");
    pool.send(Feed::Drop).await.unwrap();
    let refused = || api.asked().iter().filter(|path| path.contains("/inferencepools")).count() == 5;
    until("the pool is refused twice", refused).await;
    assert!(error(&gateway).contains("inferencepools is forbidden"), "{}", error(&gateway));
    members.send(event("ADDED", &pod("21", 2, "True"))).await.unwrap();
    has(&gateway, &["vllm-1", "vllm-2"]).await;
    assert!(error(&gateway).contains("inferencepools is forbidden"), "{}", error(&gateway));

    api.next_of("/inferencepools", pools());
    let _pool = api.next_watch_of("/inferencepools");
    held.send(Feed::Drop).await.unwrap();
    until("the pool is read again", || source(&gateway, "kubernetes").failing.is_none()).await;
    assert_eq!(names(&gateway).len(), 2);
}

#[tokio::test]
async fn a_port_that_no_endpoint_has_is_a_failure_that_names_those_there_are() {
    let engines = pods(1).await;
    let at = engines[0].addr.port();
    let ports = |names: &[&str]| -> Value {
        let port = |name: &&str| json!({ "name": name, "port": at });
        let mut slice = slice("10", &[(1, ready())]);
        slice["ports"] = names.iter().map(port).collect();
        slice
    };
    for (port, expected) in [
        (
            ServicePort::Named("htttp".into()),
            "no endpoint has a port named \"htttp\"; there are http, metrics",
        ),
        (ServicePort::Only, "no port is configured and no slice has just one; there are http, metrics"),
    ] {
        let api = ApiServer::start().await;
        api.next(list("10", "", &[ports(&["http", "metrics"])]));
        let watch = api.next_watch();
        let gateway = on_service(&api, port.clone());
        until("that is noted", || error(&gateway).contains(expected)).await;
        watch.send(event("MODIFIED", &ports(&["htttp"]))).await.unwrap();
        has(&gateway, &["vllm-1"]).await;
        until("that is well", || source(&gateway, "kubernetes").failing.is_none()).await;
        // What it names already stays while the port is gone; no endpoint lacks none.
        watch.send(event("MODIFIED", &ports(&[]))).await.unwrap();
        until("that is noted", || error(&gateway).contains("there are none")).await;
        has(&gateway, &["vllm-1"]).await;
        let mut empty = ports(&[]);
        empty["endpoints"] = Value::Null;
        watch.send(event("MODIFIED", &empty)).await.unwrap();
        until("that is well", || source(&gateway, "kubernetes").failing.is_none()).await;
        assert_eq!(source(&gateway, "kubernetes").targets, 0);
    }
}
