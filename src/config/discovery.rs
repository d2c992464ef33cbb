//! Where the replicas of a pool come from, beside the list in the file.
//!
//! `fleet::discovery` asks the sources. All may be mixed; none of them is asked by `tokenway check`: what a source answers is
//! known when it runs.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use toml::de::DeValue;

use super::Endpoint;
use super::check::codec::Own;
use super::check::section::{Item, Section};
use super::check::shape::Kind;
use super::check::values::{ENDPOINT, Form};

/// The sources of one pool; none of them for a static one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// `pool.dns`
    pub dns: Option<DnsSource>,
    /// `pool.file`: Prometheus `file_sd` in JSON.
    pub file: Option<PathBuf>,
    /// `pool.kubernetes`
    pub kubernetes: Option<KubernetesSource>,
}

impl Discovery {
    /// The sources for people, such as `dns http://vllm.models.svc:8000`.
    pub fn describe(&self) -> Vec<String> {
        let dns = self.dns.as_ref().map(|dns| format!("dns {dns}"));
        let file = self.file.as_ref().map(|file| format!("file {}", file.display()));
        let kubernetes = self.kubernetes.as_ref().map(|k| match &k.object {
            KubernetesObject::Service { name, .. } => format!("kubernetes {}/{name}", k.namespace),
            KubernetesObject::InferencePool { name } => {
                format!("kubernetes InferencePool {}/{name}", k.namespace)
            }
        });
        [dns, file, kubernetes].into_iter().flatten().collect()
    }
}

/// A name whose records are replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSource {
    /// The name that is looked up, without scheme and port.
    pub name: Arc<str>,
    /// `https`, `srv+https`
    pub is_tls: bool,
    /// What is looked up.
    pub records: DnsRecords,
    /// Path in front of `/v1/…`.
    pub base_path: Arc<str>,
    /// Name server to ask instead of the system's.
    pub server: Option<SocketAddr>,
}

/// Which records of a name are replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsRecords {
    /// Every A and AAAA record, with this port.
    Addresses {
        /// TCP port of every replica.
        port: u16,
    },
    /// Every SRV record: target and port.
    Services,
}

impl std::fmt::Display for DnsSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        match self.records {
            DnsRecords::Addresses { port } => write!(f, "{scheme}://{}:{port}{}", self.name, self.base_path),
            DnsRecords::Services => write!(f, "srv+{scheme}://{}{}", self.name, self.base_path),
        }
    }
}

/// What a Kubernetes API tells of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSource {
    /// Namespace of the object.
    pub namespace: Arc<str>,
    /// Whose replicas.
    pub object: KubernetesObject,
    /// `scheme = "https"`
    pub is_tls: bool,
    /// API server instead of the cluster's own; without credentials where it is plain http.
    pub api: Option<Endpoint>,
}

/// What selects pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesObject {
    /// The EndpointSlices of a Service.
    Service {
        /// The label `kubernetes.io/service-name` of its slices.
        name: Arc<str>,
        /// Which port of the pods.
        port: ServicePort,
    },
    /// An InferencePool (`inference.networking.k8s.io/v1`): its pods, each of its target ports a replica.
    InferencePool {
        /// Its name.
        name: Arc<str>,
    },
}

/// Port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePort {
    /// The number, whatever the slices say.
    Number(u16),
    /// The port that the slices give this name.
    Named(Arc<str>),
    /// The one port that the slices have.
    Only,
}

/// How many engines stand behind one URL (`pool.data_parallel`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataParallel {
    /// As many as the metrics page of the URL shows.
    #[default]
    Auto,
    /// This many; 1 leaves the choice of a rank to the engine, or to the client.
    Ranks(NonZeroU32),
}

impl DataParallel {
    /// Whether it is 1 by the file: several engines may stand there, and the gateway picks none.
    pub fn is_left_to_the_engine(self) -> bool {
        self == Self::Ranks(NonZeroU32::MIN)
    }
}

/// Reads the sources of a pool.
pub(super) fn discovery(pool: &Section<'_>) -> Discovery {
    Discovery {
        dns: pool.get("dns").and_then(|item| dns(pool, &item)),
        file: pool.get("file").and_then(|item| file(&item)),
        kubernetes: pool.get("kubernetes").and_then(|item| kubernetes(&item)),
    }
}

pub(super) const DATA_PARALLEL: Own<DataParallel> = Own {
    read: data_parallel,
    show: |ranks| match ranks {
        DataParallel::Auto => json!("auto"),
        DataParallel::Ranks(count) => json!(count.get()),
    },
};

fn data_parallel(item: &Item<'_>) -> Option<DataParallel> {
    item.accepts([Kind::Word(vec!["auto"]), Kind::Integer { least: 1, most: MAX_RANKS }]);
    if item.is_written("auto") {
        return Some(DataParallel::Auto);
    }
    if matches!(item.value, DeValue::String(_)) {
        item.fault("data_parallel is \"auto\" or a number of engines", "write a number without quotes");
        return None;
    }
    let count = u32::try_from(item.integer(1..=MAX_RANKS)?).ok()?;
    NonZeroU32::new(count).map(DataParallel::Ranks)
}

fn dns(pool: &Section<'_>, item: &Item<'_>) -> Option<DnsSource> {
    let source = if matches!(item.value, DeValue::Table(_)) {
        let section = item.section("pool.dns")?;
        let server = section.parse("server", &SERVER);
        let source = section.require("url", &DNS)?;
        DnsSource { server, ..source }
    } else {
        item.parse(&DNS)?
    };
    let names_server = || pool.get("tls").is_some_and(|tls| tls.peek("server_name", 0).is_some());
    if source.is_tls && matches!(source.records, DnsRecords::Addresses { .. }) && !names_server() {
        item.fault(
            "replicas found by address have no name that a certificate could hold",
            "say the name in their certificates: tls = { server_name = \"vllm.internal\" }, or use srv+https://",
        );
    }
    Some(source)
}

fn dns_url(text: &str) -> Result<DnsSource, String> {
    let (url, is_service) = match text.strip_prefix("srv+") {
        Some(url) => (url, true),
        None => (text, false),
    };
    let endpoint = (ENDPOINT.parse)(url)?;
    let authority = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
    if endpoint.host.parse::<IpAddr>().is_ok() {
        return Err(format!("\"{text}\" is an address, not a name to look up"));
    }
    if is_service && has_port {
        return Err(format!("\"{text}\" has a port, which SRV records bring along"));
    }
    if !is_service && !has_port {
        return Err(format!("\"{text}\" has no port, and address records tell none"));
    }
    let port = endpoint.port;
    Ok(DnsSource {
        name: endpoint.host,
        is_tls: endpoint.is_tls,
        records: if is_service { DnsRecords::Services } else { DnsRecords::Addresses { port } },
        base_path: endpoint.base_path,
        server: None,
    })
}

fn file(item: &Item<'_>) -> Option<PathBuf> {
    let name = item.text()?;
    if name.is_empty() {
        item.fault("file is empty", FILE_HINT);
        return None;
    }
    let is_json = Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    if !is_json {
        item.fault(format!("\"{name}\" does not end in .json, the one form that is read"), FILE_HINT);
    }
    Some(item.input(name))
}

fn kubernetes(item: &Item<'_>) -> Option<KubernetesSource> {
    let section = item.section("pool.kubernetes")?;
    let namespace = section.require("namespace", &OBJECT);
    let object = match section.get("inference_pool") {
        Some(item) => inference_pool(&section, &item),
        None => service(&section),
    };
    let is_tls = section.get("scheme").and_then(|item| item.one_of("scheme", SCHEMES));
    let api = section.parse("api", &ENDPOINT);
    Some(KubernetesSource { namespace: namespace?, object: object?, is_tls: is_tls.unwrap_or(false), api })
}

fn service(section: &Section<'_>) -> Option<KubernetesObject> {
    let name = section.parse("service", &OBJECT);
    // No key that is always required: an InferencePool has none.
    if section.get("service").is_none() {
        section.fault("pool.kubernetes has no \"service\"", OBJECT.hint);
    }
    let port = section.get("port").map_or(Some(ServicePort::Only), |item| port(section, &item))?;
    Some(KubernetesObject::Service { name: name?, port })
}

fn inference_pool(section: &Section<'_>, item: &Item<'_>) -> Option<KubernetesObject> {
    if let Some(service) = section.get("service") {
        service.fault(
            "replicas are those of a Service or of an InferencePool",
            "remove one of service and inference_pool",
        );
    }
    if let Some(port) = section.get("port") {
        port.fault("the InferencePool's targetPorts tell the ports", "remove port");
    }
    item.parse(&OBJECT).map(|name| KubernetesObject::InferencePool { name })
}

fn port(section: &Section<'_>, item: &Item<'_>) -> Option<ServicePort> {
    if matches!(item.value, DeValue::String(_)) {
        return item.parse(&OBJECT).map(ServicePort::Named);
    }
    section.value("port", &(1..=65_535)).map(ServicePort::Number)
}

/// Name of a namespace, Service or port: a DNS label (RFC 1123), which is all that may stand in a path of the API.
fn object(text: &str) -> Result<Arc<str>, String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = (1..=63).contains(&text.len())
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits { Ok(text.into()) } else { Err(format!("{text:?} is not a name that Kubernetes has")) }
}

const DNS: Form<DnsSource> = Form {
    noun: "a URL",
    hint: "write dns = \"http://vllm.models.svc:8000\", or for SRV records \"srv+http://_http._tcp.vllm.models.svc\"",
    parse: dns_url,
};
const SERVER: Form<SocketAddr> = Form {
    noun: "an address",
    hint: "write address and port of a name server: \"10.96.0.10:53\"",
    parse: |text| text.parse().map_err(|_| format!("\"{text}\" is no address with a port")),
};
const OBJECT: Form<Arc<str>> = Form {
    noun: "a name",
    hint: "use lower-case letters, digits and dashes: kubernetes = { namespace = \"models\", service = \"vllm\", port = 8000 }",
    parse: object,
};
const SCHEMES: &[(&str, bool)] = &[("http", false), ("https", true)];
const FILE_HINT: &str = "name a file in the form of Prometheus' file_sd: file = \"replicas.json\"";
/// Of one URL; far above what one node holds.
const MAX_RANKS: i64 = 64;
