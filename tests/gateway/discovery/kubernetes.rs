//! A Kubernetes API that refuses.

use serde_json::json;
use tokenway::config::KubernetesObject;

use super::api_server::{Answer, ApiServer, Feed};
use super::{event, has, inference_pool, list, names, of_object, pod, pods, source};
use crate::support::{Gateway, until};

fn refusal(status: u16, message: &str) -> Answer {
    Answer::Page(status, json!({ "kind": "Status", "code": status, "message": message }).to_string())
}

fn error(gateway: &Gateway) -> String {
    source(gateway, "kubernetes").failing.map(|(_, error)| error.to_string()).unwrap_or_default()
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
