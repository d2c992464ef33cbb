//! `tokenway check --online` and the broker of `[cluster]`.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::style::{Paint, Style};
use crate::cluster::try_broker;
use crate::config::Config;
use crate::upstream::connect::Connector;

#[derive(Debug)]
pub(super) struct BrokerAnswer {
    url: String,
    cluster: String,
    /// What it is, or why it cannot be used.
    pub(super) found: Result<String, String>,
}

/// Asks the broker, where there is one.
pub(super) async fn ask_broker(config: &Config, connector: &Connector) -> Option<BrokerAnswer> {
    let cluster = config.cluster.as_ref()?;
    let found = match connector.secured(Some(&cluster.tls())) {
        Ok(connector) => try_broker(cluster, &connector).await.map_err(|fault| fault.to_string()),
        Err(fault) => Err(fault.to_string()),
    };
    Some(BrokerAnswer { url: cluster.url.to_string(), cluster: cluster.name.to_string(), found })
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
        write!(out, "  broker {url} of cluster {cluster}: ")?;
        match found {
            Ok(server) => writeln!(out, "{}, {server}", style.paint(Paint::Good, "answers")),
            Err(problem) => {
                writeln!(out, "{}", style.paint(Paint::Error, "not usable"))?;
                writeln!(out, "    {}", style.paint(Paint::Error, problem))
            }
        }
    }
}
