//! Where the replicas of a pool come from, beside the list in the file.
//!
//! Checked values only: `fleet::discovery` asks the sources. All may be mixed; none of them is asked by `tokenway check`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Endpoint;

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
    Ranks(std::num::NonZeroU32),
}

impl DataParallel {
    /// Whether it is 1 by the file: several engines may stand there, and the gateway picks none.
    pub fn is_left_to_the_engine(self) -> bool {
        self == Self::Ranks(std::num::NonZeroU32::MIN)
    }
}
