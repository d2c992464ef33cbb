//! The Kubernetes API as far as it is needed: list and watch one kind of object, by labels or by name.
//!
//! In a cluster address, token and CA are those of the pod's service account; the token is read for every request, because the
//! kubelet replaces it. Nothing here knows what is in an object.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::{ApiError, Refusal};
use super::events::Events;
use super::object::{Listed, Objects, or_null};
use crate::config::{Endpoint, PoolTls, segment};
use crate::upstream::call::CallError;
use crate::upstream::connect::Connector;
use crate::upstream::streamed::{Answer, open};

/// The API server, for one list of objects.
#[derive(Debug)]
pub(super) struct Api {
    endpoint: Endpoint,
    connector: Connector,
    path: String,
}

#[derive(Deserialize)]
struct Page<'p> {
    metadata: PageMetadata,
    #[serde(borrow, default, deserialize_with = "or_null")]
    items: Vec<&'p RawValue>,
}

/// Of one page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) rest: Option<String>,
}

impl Api {
    /// Finds the server, in the cluster where none is given; reads the CA of the cluster. `path` is that of the list, with its
    /// selector.
    pub(super) async fn open(
        server: Option<&Endpoint>,
        path: &str,
        connector: &Connector,
    ) -> Result<Self, ApiError> {
        let endpoint = server.cloned().map_or_else(in_cluster, Ok)?;
        let ca = PathBuf::from(ACCOUNT).join("ca.crt");
        // Outside of a cluster the system's store; what the pool trusts is for its engines.
        let has_ca = endpoint.is_tls && tokio::fs::try_exists(&ca).await.unwrap_or(false);
        let tls = PoolTls { ca: has_ca.then_some(ca), ..PoolTls::default() };
        let secured = connector.secured(endpoint.is_tls.then_some(&tls));
        let connector = secured.map_err(|error| ApiError::Credentials(error.to_string()))?;
        Ok(Self { endpoint, connector, path: path.to_owned() })
    }

    /// Adds the objects of a page of the list; `rest` is the token of the page before.
    pub(super) async fn list<O: DeserializeOwned>(
        &self,
        rest: Option<&str>,
        objects: &mut Objects<O>,
    ) -> Result<PageMetadata, ApiError> {
        let rest = rest.map(|rest| format!("&continue={}", segment(rest))).unwrap_or_default();
        let mut answer = self.get(&format!("{}&limit=500{rest}", self.path), LIST_TIMEOUT).await?;
        let mut page = Vec::new();
        let whole = async {
            while let Some(chunk) = answer.chunk().await? {
                if page.len() + chunk.len() > MAX_PAGE {
                    return Err(ApiError::Protocol("a page of the list is too long".into()));
                }
                page.extend_from_slice(&chunk);
            }
            Ok(())
        };
        tokio::time::timeout(LIST_TIMEOUT, whole).await.map_err(|_| CallError::Timeout)??;
        let wrong = |error: serde_json::Error| ApiError::Protocol(error.to_string());
        let Page { metadata, items } = serde_json::from_slice(&page).map_err(wrong)?;
        for item in items {
            let Listed { metadata } = serde_json::from_str(item.get()).map_err(wrong)?;
            objects.insert(metadata.name, serde_json::from_str(item.get()).map_err(wrong)?);
        }
        Ok(metadata)
    }

    /// Everything that changes after `version` within `span`.
    pub(super) async fn watch(&self, version: &str, span: Duration) -> Result<Events, ApiError> {
        let seconds = span.as_secs();
        let version = segment(version);
        let query =
            format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let answer = self.get(&format!("{}&{query}", self.path), HEAD_TIMEOUT).await?;
        Ok(Events::new(answer))
    }

    async fn get(&self, path: &str, timeout: Duration) -> Result<Answer, ApiError> {
        let mut request = Request::get(format!("{}{path}", self.endpoint.base_path))
            .header(header::ACCEPT, "application/json");
        // Never in the clear.
        if self.endpoint.is_tls
            && let Some(token) = token().await?
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Bytes::new()).map_err(|error| ApiError::Protocol(error.to_string()))?;
        let mut answer = open(&self.connector, &self.endpoint, request, timeout).await?;
        match answer.status {
            StatusCode::OK => Ok(answer),
            StatusCode::GONE => Err(ApiError::Expired),
            status => {
                let text = answer.chunk().await.ok().flatten().unwrap_or_default();
                let refusal: Refusal = serde_json::from_slice(&text).unwrap_or_default();
                Err(ApiError::Refused { status, message: refusal.message })
            }
        }
    }
}

fn in_cluster() -> Result<Endpoint, ApiError> {
    let read = |name: &str| {
        std::env::var(name).map_err(|_| {
            ApiError::Credentials(format!(
                "{name} is not set: this is no pod; say kubernetes.api = \"https://…\""
            ))
        })
    };
    let host: Arc<str> = read("KUBERNETES_SERVICE_HOST")?.into();
    let port = read("KUBERNETES_SERVICE_PORT")?;
    let port = port.parse().map_err(|_| ApiError::Credentials(format!("{port:?} is no port")))?;
    Ok(Endpoint { is_tls: true, host, port, base_path: "".into() })
}

async fn token() -> Result<Option<String>, ApiError> {
    let path = PathBuf::from(ACCOUNT).join("token");
    match tokio::fs::read_to_string(&path).await {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ApiError::Credentials(format!("{}: {error}", path.display()))),
    }
}

/// Where a pod finds its credentials.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Of a watch.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a page of a list until its head, and then until its end: a server with much to do takes long for either.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// After this the server ends the watch, with a bookmark: short, because a server that is frozen says nothing either.
pub(super) const WATCH_FOR: Duration = Duration::from_secs(40);
const MAX_PAGE: usize = 64 << 20;
