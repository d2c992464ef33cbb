//! Autoscaling from outside: what the binary tells an autoscaler, and the manifests that ask for it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a failed expectation fails the test"
)]

use std::fs;
use std::path::PathBuf;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::serve_support::{DeadPort, Fleet, Gateway, Process, chat, get, post_chat, replace, until};

fn scale(gateway: &Gateway, pool: &str) -> (u16, Json) {
    let answer = get(&gateway.admin, &format!("/api/v1/pools/{pool}/scale"));
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

fn manifest(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docker/kubernetes").join(name);
    fs::read_to_string(path).unwrap()
}

/// The text at `path`, its steps separated by dots.
fn text_at(node: &Yaml<'_>, path: &str) -> String {
    let mut node = node.clone();
    for key in path.split('.') {
        node = match key.parse::<usize>() {
            Ok(at) => node.as_sequence_get(at).unwrap_or_else(|| panic!("{path}")).clone(),
            Err(_) => node.as_mapping_get(key).unwrap_or_else(|| panic!("{path}")).clone(),
        };
    }
    node.as_str().unwrap_or_else(|| panic!("{path}")).to_owned()
}

#[test]
fn the_wanted_number_is_told_with_its_reason_and_its_terms() {
    let (fleet, folder) = (Fleet::start(&[]), TempDir::new().unwrap());
    let file = folder.path().join("gateway.toml");
    let text = |scale: &str| {
        format!("[[pool]]\nname = \"llama-8b\"\nreplicas = {}\n[pool.scale]\n{scale}\n", fleet.toml())
    };
    replace(&file, &text("max_replicas = 3"));
    let gateway = Gateway::ready_with(&file);
    let before = until("a first look", || {
        Some(scale(&gateway, "llama-8b"))
            .filter(|(status, body)| *status == 200 && body["ready_replicas"] == 2)
    });
    assert_eq!(before.1["desired_replicas"], 2, "{}", before.1);
    assert_eq!(before.1["reason"], "no answer has been measured yet: as many as there are");
    for n in 0..20 {
        assert_eq!(post_chat(&gateway.data, &chat("sim", &format!("prompt {n}"), 4), "key").status, 200);
    }
    let after = until("the load is measured", || {
        Some(scale(&gateway, "llama-8b").1).filter(|body| body["terms"]["load"].is_object())
    });
    assert!(after["terms"]["load"]["prefill"].as_f64().unwrap() > 0.0, "{after}");
    assert!(after["predicted_ttft"].as_f64().unwrap() > 0.0, "{after}");
    assert!(after["desired_replicas"].is_u64() && after["terms"]["arrival_rate"].as_f64().unwrap() > 0.0);
    assert!((1.0..=3.0).contains(&gateway.metric("tokenway_desired_replicas{pool=\"llama-8b\"}")));
    assert!(gateway.metric("tokenway_pool_predicted_ttft_seconds{pool=\"llama-8b\"}") > 0.0);

    replace(&file, &text("min_replicas = 3\nmax_replicas = 3"));
    until("a reload raises it", || {
        Some(()).filter(|()| scale(&gateway, "llama-8b").1["desired_replicas"] == 3)
    });
    let (status, unknown) = scale(&gateway, "llama-9b");
    assert_eq!((status, &unknown["error"]["code"]), (404, &"unknown_pool".into()), "{unknown}");

    let url = format!("http://{}", gateway.admin);
    let (code, _, err) = Process::run(&["canary", &url, "promote", "--route", "nope"]);
    assert_eq!((code, &*err), (1, "error: route nope has no canary"));
}

#[test]
fn the_manifests_are_yaml_and_ask_for_what_there_is() {
    for name in ["keda-metrics-api.yaml", "keda-prometheus.yaml", "hpa.yaml"] {
        let text = manifest(name);
        let documents = Yaml::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!documents.is_empty(), "{name}");
        for document in &documents {
            for key in ["apiVersion", "kind", "metadata"] {
                assert!(document.as_mapping_get(key).is_some(), "{name} has a document without {key}");
            }
        }
    }
    // What the API and the page have: the test above reads both from a running gateway.
    let text = manifest("keda-metrics-api.yaml");
    let keda = &Yaml::load_from_str(&text).unwrap()[0];
    assert!(text_at(keda, "spec.triggers.0.metadata.url").ends_with(":9090/api/v1/pools/llama-8b/scale"));
    assert_eq!(text_at(keda, "spec.triggers.0.metadata.valueLocation"), "desired_replicas");
    let text = manifest("keda-prometheus.yaml");
    let keda = &Yaml::load_from_str(&text).unwrap()[0];
    assert_eq!(
        text_at(keda, "spec.triggers.0.metadata.query"),
        "max(tokenway_desired_replicas{pool=\"llama-8b\"})"
    );
    let text = manifest("hpa.yaml");
    let hpa = Yaml::load_from_str(&text).unwrap();
    assert_eq!(text_at(&hpa[0], "spec.metrics.0.external.metric.name"), "tokenway_desired_replicas");
    let rules = hpa[1].as_mapping_get("data").and_then(|data| data.as_mapping_get("config.yaml"));
    let rules = rules.and_then(|text| text.as_str()).unwrap();
    let rules = &Yaml::load_from_str(rules).unwrap()[0];
    assert!(text_at(rules, "externalRules.0.metricsQuery").starts_with("max(tokenway_desired_replicas{"));
}

#[test]
fn the_gateway_s_manifest_stays_in_its_service_while_any_model_is_ready_and_makes_what_others_ask_for() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes/tokenway.yaml");
    let text = fs::read_to_string(path).unwrap();
    let documents = Yaml::load_from_str(&text).unwrap();
    let of_kind = |kind: &str| -> Vec<String> {
        let name = |document: &Yaml<'_>| {
            let is_it = document.as_mapping_get("kind")?.as_str()? == kind;
            let metadata = document.as_mapping_get("metadata")?;
            let text = |key: &str| Some(metadata.as_mapping_get(key)?.as_str()?.to_owned());
            is_it.then_some(format!("{}.{}", text("name")?, text("namespace")?))
        };
        documents.iter().filter_map(name).collect()
    };
    assert_eq!(of_kind("PodDisruptionBudget"), ["tokenway.models"]);
    assert_eq!(of_kind("Service"), ["tokenway.models", "tokenway-admin.models"]);
    assert!(manifest("keda-metrics-api.yaml").contains("http://tokenway-admin.models.svc:9090/"));
    let kind = |document: &&Yaml<'_>| text_at(document, "kind") == "Deployment";
    let gateways = documents.iter().find(kind).unwrap();
    let probe = "spec.template.spec.containers.0.readinessProbe.httpGet";
    assert_eq!(text_at(gateways, &format!("{probe}.path")), "/readyz/any");
    assert_eq!(text_at(gateways, &format!("{probe}.port")), "admin");
    // The Secret that it mounts is made by a command that it gives.
    assert!(text.contains("secretName: tokenway\n") && text.contains("create secret generic tokenway "));
    for of_container in ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [\"ALL\"]", "limits:"] {
        assert!(text.contains(of_container), "{of_container}");
    }
}

#[test]
fn a_canary_s_pool_at_zero_is_asked_for_while_the_canary_has_a_share() {
    let (old, folder) = (Fleet::start(&[]), TempDir::new().unwrap());
    fs::write(folder.path().join("none.json"), "[]").unwrap();
    let file = folder.path().join("gateway.toml");
    let text = format!(
        "[[pool]]\nname = \"old\"\nreplicas = {}\n[[pool]]\nname = \"new\"\nfile = \"none.json\"\n\
         [pool.scale]\nmin_replicas = 0\nscale_down_after = \"1s\"\n[[route]]\nname = \"chat\"\nmodel = \"sim\"\npools = [\"old\"]\n\
         [route.canary]\npool = \"new\"\nsteps = [{{ weight = 10, soak = \"1h\" }}]\n",
        old.toml()
    );
    replace(&file, &text);
    let gateway = Gateway::ready_with(&file);
    let asks_for = |replicas: u64, why: &str| {
        until("the wanted number of replicas", || {
            let told = scale(&gateway, "new").1;
            let is_why = told["reason"].as_str().is_some_and(|reason| reason.contains(why));
            (is_why && told["desired_replicas"] == replicas).then_some(())
        });
    };
    asks_for(1, "a canary asks for 1");
    assert_eq!(crate::rollouts::act(&gateway, "rollback").0, 200);
    asks_for(0, "no request came yet");
}

#[test]
fn bench_measures_what_the_first_request_after_a_scale_to_zero_waits() {
    let (absent, folder) = (DeadPort::new(), TempDir::new().unwrap());
    let port = absent.port().to_string();
    let file = folder.path().join("gateway.toml");
    let pool = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:{port}\"]\n");
    replace(&file, &format!("{pool}[pool.probe]\ninterval = \"1s\"\n[pool.scale]\nmin_replicas = 0\n"));
    let gateway = Gateway::with_file(&file);
    let one = ["--model", "sim", "--rate", "0.01", "--duration", "1s", "--json"];
    let mut bench = Process::start(&[&["bench", &gateway.data], &one[..]].concat());
    until("the request waits for a replica", || {
        (get(&gateway.admin, "/metrics").body.contains("tokenway_desired_replicas{pool=\"p\"} 1"))
            .then_some(())
    });
    drop(absent);
    let _replica = Process::start(&["sim", "--port", &port, "--replicas", "1"]);
    assert_eq!(bench.exit_code(), 0);
    let told: Json = serde_json::from_str(&bench.out.rest()).unwrap();
    let figures = &told[0]["figures"];
    assert_eq!((&figures["requests"], &figures["failed"]), (&1.into(), &0.0.into()), "{told}");
    let waited = figures["ttft_p50_s"].as_f64().unwrap();
    let cold = gateway.metric("tokenway_cold_start_seconds_sum");
    assert!(gateway.metric("tokenway_cold_start_seconds_count") == 1.0 && waited > 0.0, "{waited} {cold}");
}
