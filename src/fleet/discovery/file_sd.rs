//! Reads the form of Prometheus' `file_sd` (JSON): `[{ "targets": ["host:port"], "labels": { … } }]`. Pure.
//!
//! A target is `host:port`, or a whole URL. Labels that mean something here: `__scheme__`; `name`, else
//! `__meta_kubernetes_pod_name`, as the replica's name where the group has one target; `__meta_kubernetes_pod_uid`, which tells a new
//! process at an old address; `zone`; `role`, else llm-d's pod label. Other labels are for Prometheus. One wrong entry refuses the file: half a fleet is worse than
//! the last whole one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use super::roster::Found;
use crate::config::{Endpoint, ReplicaSpec, Role, parse_endpoint, parse_name};

#[derive(Deserialize)]
struct Group {
    targets: Vec<String>,
    #[serde(default)]
    labels: HashMap<String, String>,
}

/// Why a file says nothing.
#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("it is empty; write [] for no replicas")]
    Empty,
    #[error("it is not a list of {{ \"targets\": [\"host:port\"], \"labels\": {{}} }}: {0}")]
    Form(#[from] serde_json::Error),
    #[error("target \"{0}\": {1}")]
    Target(String, String),
    #[error("target \"{0}\" is listed twice")]
    Twice(String),
}

/// The replicas of a file.
pub(super) fn parse(text: &[u8]) -> Result<Vec<Found>, FileError> {
    if text.trim_ascii().is_empty() {
        return Err(FileError::Empty);
    }
    let groups: Vec<Group> = serde_json::from_slice(text)?;
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for group in &groups {
        for target in &group.targets {
            let found = found(group, target)?;
            if !seen.insert(found.spec.endpoint.clone()) {
                return Err(FileError::Twice(target.clone()));
            }
            all.push(found);
        }
    }
    Ok(all)
}

fn found(group: &Group, target: &str) -> Result<Found, FileError> {
    let refuse = |why: String| FileError::Target(target.to_owned(), why);
    let endpoint = endpoint(group, target).map_err(refuse)?;
    let is_alone = group.targets.len() == 1;
    let label = |name: &str| group.labels.get(name).filter(|value| !value.is_empty());
    let name = label("name").or_else(|| label("__meta_kubernetes_pod_name")).filter(|_| is_alone);
    let name: Arc<str> = match name {
        Some(name) => parse_name(name).map_err(refuse)?,
        None => format!("{}{}", endpoint.authority(), endpoint.base_path).into(),
    };
    let instance = label("__meta_kubernetes_pod_uid").filter(|_| is_alone).map(|uid| uid.as_str().into());
    let zone = label("zone").or_else(|| label("__meta_kubernetes_node_label_topology_kubernetes_io_zone"));
    let zone = zone.and_then(|zone| parse_name(zone).ok());
    let role = label("role").or_else(|| label("__meta_kubernetes_pod_label_llm_d_ai_role"));
    let role = role.map(|text| Role::of_label(text).ok_or_else(|| refuse(no_role(text)))).transpose()?;
    Ok(Found { spec: ReplicaSpec { name, endpoint, zone }, instance, is_serving: true, role })
}

fn no_role(text: &str) -> String {
    format!("role \"{text}\" is none; there are {}", Role::LABELS.join(", "))
}

fn endpoint(group: &Group, target: &str) -> Result<Endpoint, String> {
    if target.contains("://") {
        return parse_endpoint(target);
    }
    let port = target.rsplit_once(':').map(|(_, port)| port);
    if port.is_none_or(|port| port.is_empty() || port.contains(']')) || target.contains('/') {
        return Err("write host:port, or a whole URL".to_owned());
    }
    let scheme = group.labels.get("__scheme__").map_or("http", String::as_str);
    parse_endpoint(&format!("{scheme}://{target}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let found = parse(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(found.iter().map(|f| format!("{} {}", f.spec.name, f.spec.endpoint)).collect())
    }

    #[test]
    fn targets_are_read_as_prometheus_writes_them() {
        for (text, expected) in [
            ("[]", vec![]),
            (r#"[{"targets":[]}]"#, vec![]),
            (
                r#"[{"targets":["10.0.0.1:8000","gpu:8001"]}]"#,
                vec!["10.0.0.1:8000 http://10.0.0.1:8000", "gpu:8001 http://gpu:8001"],
            ),
            (
                r#"[{"targets":["[::1]:8000"],"labels":{"__scheme__":"https","name":"one"}}]"#,
                vec!["one https://[::1]:8000"],
            ),
            (
                r#"[{"targets":["a:1"],"labels":{"__meta_kubernetes_pod_name":"vllm-0","zone":"x"}}]"#,
                vec!["vllm-0 http://a:1"],
            ),
            (
                r#"[{"targets":["http://a:1/base","b:1"],"labels":{"name":"for both"}}]"#,
                vec!["a:1/base http://a:1/base", "b:1 http://b:1"],
            ),
        ] {
            assert_eq!(shown(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_role_is_read_from_a_label_of_the_file_or_of_the_pod() {
        for (labels, expected) in [
            ("{}", None),
            (r#"{"role":"prefill"}"#, Some(Role::Prefill)),
            (r#"{"role":""}"#, None),
            (r#"{"__meta_kubernetes_pod_label_llm_d_ai_role":"decode"}"#, Some(Role::Decode)),
            (r#"{"__meta_kubernetes_pod_label_llm_d_ai_role":"prefill-decode"}"#, Some(Role::Both)),
            (r#"{"role":"both","__meta_kubernetes_pod_label_llm_d_ai_role":"decode"}"#, Some(Role::Both)),
        ] {
            let text = format!(r#"[{{"targets":["a:1","b:1"],"labels":{labels}}}]"#);
            let found = parse(text.as_bytes()).unwrap();
            assert!(found.iter().all(|found| found.role == expected), "{labels}: {found:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_refuses_the_file_and_says_where() {
        for (text, expected) in [
            ("", "it is empty"),
            (" \n", "it is empty"),
            ("[{", "not a list"),
            (r#"{"targets":["a:1"]}"#, "not a list"),
            (r#"[{"targets":["a"]}]"#, "target \"a\": write host:port"),
            (r#"[{"targets":["[::1]"]}]"#, "write host:port"),
            (r#"[{"targets":["a:99999"]}]"#, "target \"a:99999\""),
            (r#"[{"targets":["a:1","http://a:1"]}]"#, "listed twice"),
            (r#"[{"targets":["a:1"],"labels":{"name":"two words"}}]"#, "is not a name"),
            (r#"[{"targets":["a:1"],"labels":{"__scheme__":"ftp"}}]"#, "does not start with http"),
            (r#"[{"targets":["a:1"],"labels":{"role":"prefil"}}]"#, "role \"prefil\" is none"),
        ] {
            let error = shown(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
