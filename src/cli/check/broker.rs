//! `tokenway check --online` and the broker of `[cluster]`.

use std::io::{self, Write};

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::cli::style::{Paint, Style};
use crate::cluster::try_broker;
use crate::config::{Config, PoolTls};
use crate::upstream::connect::Connector;

/// What the broker answered.
#[derive(Debug)]
pub(super) struct BrokerAnswer {
    url: String,
    cluster: String,
    /// What it is, or why it cannot be used.
    pub(super) found: Result<String, String>,
}

/// Asks the broker, where there is one.
///
/// # Errors
/// When there is no runtime or no TLS.
pub(super) fn ask_broker(config: &Config) -> io::Result<Option<BrokerAnswer>> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(async {
        let connector = Connector::new(TaskTracker::new()).map_err(io::Error::other)?;
        let tls = PoolTls { ca: cluster.ca.clone(), ..PoolTls::default() };
        match connector.read(Some(&tls)) {
            Ok(tls) => connector.secure(tls),
            Err(fault) => return Ok(Err(fault.to_string())),
        }
        Ok::<_, io::Error>(try_broker(cluster, &connector).await.map_err(|fault| fault.to_string()))
    })?;
    Ok(Some(BrokerAnswer { url: cluster.url.to_string(), cluster: cluster.name.to_string(), found }))
}

impl BrokerAnswer {
    pub(super) fn json(&self) -> Value {
        json!({
            "url": self.url,
            "cluster": self.cluster,
            "ok": self.found.is_ok(),
            "server": self.found.as_ref().ok(),
            "problem": self.found.as_ref().err(),
        })
    }

    /// As text: a line, and one for the problem.
    pub(super) fn write(&self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        let Self { url, cluster, found } = self;
        match found {
            Ok(server) => {
                let answers = style.paint(Paint::Good, "answers");
                writeln!(out, "  broker {url} of cluster {cluster}: {answers}, {server}")
            }
            Err(problem) => {
                writeln!(
                    out,
                    "  broker {url} of cluster {cluster}: {}",
                    style.paint(Paint::Error, "not usable")
                )?;
                writeln!(out, "    {}", style.paint(Paint::Error, problem))
            }
        }
    }
}
