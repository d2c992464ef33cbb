//! `pool.dcgm`: where the figures of the replicas' GPUs are.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::DeValue;

use super::Endpoint;
use super::check::section::Item;
use super::check::shape::Kind;
use super::check::values::Form;
use super::endpoint::parse_endpoint;

/// NVIDIA DCGM exporters of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcgmSources {
    /// Of every replica that has none of its own.
    pub pool: Option<Dcgm>,
    /// Of single ones, by name.
    pub replicas: BTreeMap<Arc<str>, Dcgm>,
}

impl DcgmSources {
    /// That of a replica.
    pub fn of(&self, replica: &str) -> Option<&Dcgm> {
        self.replicas.get(replica).or(self.pool.as_ref())
    }
}

/// One exporter's page, and what on it is about a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dcgm {
    /// URL of the page; may have `{host}` and `{replica}`.
    pub url: Arc<str>,
    /// Labels of the replica's GPUs with the values that each may have, which may have `{replica}`; none: every GPU of the page.
    pub labels: Vec<(Arc<str>, Vec<Arc<str>>)>,
}

impl Dcgm {
    /// The page of a replica.
    pub fn endpoint(&self, host: &str, replica: &str) -> Result<Endpoint, String> {
        // An IPv6 address stands in brackets in a URL.
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let url = self.url.replace("{host}", &host).replace("{replica}", replica);
        if url.contains(['{', '}']) {
            return Err(format!("\"{}\" has a placeholder other than {{host}} and {{replica}}", self.url));
        }
        parse_endpoint(&url)
    }

    /// Whether a series with these labels is about a GPU of the replica; `label` tells their values.
    pub fn is_of<'l>(&self, replica: &str, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.labels.iter().all(|(name, values)| {
            let value = label(name);
            values.iter().any(|wanted| value == Some(&*wanted.replace("{replica}", replica)))
        })
    }
}

/// Reads `dcgm`: a URL, or a table with `labels` beside it.
pub(super) fn dcgm(item: &Item<'_>) -> Option<Dcgm> {
    item.accepts([Kind::Text { hint: URL.hint }, Kind::Section { header: "pool.dcgm" }]);
    if !matches!(item.value, DeValue::Table(_)) {
        return Some(Dcgm { url: item.parse(&URL)?, labels: Vec::new() });
    }
    let section = item.section("pool.dcgm")?;
    let url = section.require("url", &URL);
    let labels = section.get("labels").map(|item| labels(&item)).unwrap_or_default();
    Some(Dcgm { url: url?, labels })
}

fn labels(item: &Item<'_>) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
    let values = |text: &str| text.split(',').map(|value| value.trim().into()).collect();
    let label = |entry: Item<'_>| Some((entry.key.into(), values(entry.text()?)));
    item.entries("a table", LABELS_HINT).filter_map(label).collect()
}

fn url(text: &str) -> Result<Arc<str>, String> {
    let dcgm = Dcgm { url: text.into(), labels: Vec::new() };
    dcgm.endpoint("gpu-node", "gpu-0")?;
    Ok(dcgm.url)
}

const URL: Form<Arc<str>> = Form {
    noun: "the URL of a DCGM exporter's page",
    hint: "write it with its path: \"http://{host}:9400/metrics\"; {host} is that of each replica's URL",
    parse: url,
};
const LABELS_HINT: &str =
    "write which GPUs are the replica's: labels = { gpu = \"0,1\" }, or { pod = \"{replica}\" }";
