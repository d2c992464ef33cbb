//! InferenceObjectives: names that requests give, which stand for priorities in the queue.

use serde_json::{Value, json};
use tokenway::config::{Config, KubernetesObject, QueueLimits};
use tokio::sync::mpsc;

use super::api_server::{ApiServer, Feed};
use super::{PATH, event, has, inference_pool, list, of_object, pod, pods};
use crate::admission::{QUEUE, assert_refused, chat, one_at_a_time, order, taught, waiting};
use crate::support::replica::Replica;
use crate::support::{Gateway, config, soon, until, wire};

const KIND: &str = "/inferenceobjectives";

fn objective(version: &str, name: &str, pool: &str, priority: Option<i64>) -> Value {
    json!({
        "metadata": { "name": name, "resourceVersion": version },
        "spec": { "priority": priority, "poolRef": { "name": pool } },
    })
}

/// An API server with the InferencePool `llama` of one pod and these objectives.
struct Cluster {
    api: ApiServer,
    objectives: mpsc::Sender<Feed>,
    _others: [mpsc::Sender<Feed>; 2],
}

impl Cluster {
    async fn start(replica: &Replica, objectives: &[Value]) -> Self {
        let api = ApiServer::start().await;
        api.next_of("/inferencepools", list("10", "", &[inference_pool("9", "vllm", replica.addr.port())]));
        let pool = api.next_watch_of("/inferencepools");
        api.next_of("app%3Dvllm", list("20", "", &[pod("11", 1, "True")]));
        let members = api.next_watch_of("app%3Dvllm");
        api.next_of(KIND, list("30", "", objectives));
        let objectives = api.next_watch_of(KIND);
        Self { api, objectives, _others: [pool, members] }
    }

    fn config(&self) -> Config {
        of_object(&self.api, KubernetesObject::InferencePool { name: "llama".into() })
    }

    /// A gateway that has read all of it.
    async fn followed_by(&self, config: Config) -> Gateway {
        let gateway = Gateway::start_unready(config);
        has(&gateway, &["vllm-1"]).await;
        let path = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/models/inferenceobjectives?";
        until("the list was taken and is watched", || {
            self.api.asked().iter().any(|asked| asked.starts_with(path) && asked.contains("watch=1"))
        })
        .await;
        gateway
    }
}

#[tokio::test]
async fn a_tenant_s_client_names_an_objective_only_where_it_may_choose_a_priority() {
    let engines = pods(1).await;
    for may in [false, true] {
        let cluster = Cluster::start(&engines[0], &[]).await;
        let mut config = cluster.config();
        config.routes[0].client_may.priority = may;
        config.tenants = vec![config::tenant("a", "k")];
        let gateway = cluster.followed_by(config).await;
        let headers = [("authorization", "Bearer k"), ("x-gateway-inference-objective", "unknown")];
        assert_eq!(gateway.post_with(PATH, &headers, chat("tiny", "hi")).await.status(), 200);
        let looked_up = gateway.sum("tokenway_unknown_objectives_total", &[]) == 1.0;
        assert_eq!(looked_up, may);
    }
}

#[tokio::test]
async fn a_request_has_the_priority_of_the_objective_that_it_names_and_below_zero_it_is_shed_first() {
    let engines = pods(1).await;
    let replica = &engines[0];
    let known = [
        objective("1", "chats", "llama", Some(10)),
        objective("2", "batch", "llama", Some(-1)),
        objective("3", "plain", "llama", None),
        objective("4", "elsewhere", "other", Some(50)),
    ];
    let cluster = Cluster::start(replica, &known).await;
    let mut config = cluster.config();
    one_at_a_time(&mut config);
    config.routes[0].queue = Some(QueueLimits { max_requests: 3, ..QUEUE });
    let gateway = cluster.followed_by(config).await;
    taught(&gateway, replica).await;

    let gate = replica.held(wire::chat_stream(&["first"]));
    let before = replica.count();
    let mut open = vec![gateway.sent(PATH, &chat("tiny", "first")).await];
    replica.got(before + 1).await;
    let named = async |text: &str, header: &str, name: &str| {
        let mut client = gateway.client().await;
        client.post(PATH, &[(header, name)], chat("tiny", text).as_bytes()).await;
        client
    };
    let (current, legacy) = ("x-llm-d-inference-objective", "x-gateway-inference-objective");
    let mut shed = named("low", legacy, "batch").await;
    waiting(&gateway, 1).await;
    open.push(named("ordinary", legacy, "plain").await);
    waiting(&gateway, 2).await;
    open.push(named("unknown", current, "elsewhere").await);
    waiting(&gateway, 3).await;
    open.push(named("high", current, "chats").await);
    assert_refused(&shed.reply().await, "max_requests");
    assert_refused(&named("again", current, "batch").await.reply().await, "max_requests");
    waiting(&gateway, 3).await;
    gate.cancel();
    for mut client in open {
        assert_eq!(client.reply().await.status(), 200);
    }
    assert_eq!(order(replica, before), ["first", "high", "ordinary", "unknown"]);
    let unknown = || gateway.sum("tokenway_unknown_objectives_total", &[]);
    assert_eq!(unknown(), 1.0);

    // What is deleted, or leaves the pool, is known no more.
    let deleted = objective("31", "chats", "llama", Some(10));
    cluster.objectives.send(event("DELETED", &deleted)).await.unwrap();
    cluster.objectives.send(event("MODIFIED", &objective("32", "batch", "other", Some(-1)))).await.unwrap();
    for name in ["chats", "batch"] {
        let counted = unknown();
        soon("it is forgotten", async {
            while unknown() == counted {
                assert_eq!(named("later", current, name).await.reply().await.status(), 200);
            }
        })
        .await;
    }
}
