//! `dcgm` of a pool and of single replicas.

use std::sync::Arc;

use toml::de::DeValue;

use crate::config::Dcgm;

use super::section::Item;
use super::shape::Kind;
use super::values::Form;

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
