//! TLS towards the collector, from the files that `OTEL_EXPORTER_OTLP_CERTIFICATE`, `…_CLIENT_CERTIFICATE` and
//! `…_CLIENT_KEY` name (`…_TRACES_…` or `…_METRICS_…` first): our configuration has no key for them.

use std::ffi::OsString;
use std::path::PathBuf;

use tokio_util::task::TaskTracker;

use crate::config::{PoolIdentity, PoolTls};
use crate::listener::tls::TlsError;
use crate::upstream::connect::Connector;

/// A connector with these certificates, or with the system's and none of its own.
pub(super) fn connector(signal: &str, tracker: TaskTracker) -> Result<Connector, TlsError> {
    let file = |what| variable(signal, what).map(PathBuf::from);
    let own = file("CLIENT_CERTIFICATE").zip(file("CLIENT_KEY"));
    let identity = own.map(|(cert, key)| PoolIdentity { cert, key });
    let files = PoolTls { ca: file("CERTIFICATE"), identity, server_name: None };
    let has_any = files != PoolTls::default();
    Connector::new(tracker)?.secured(has_any.then_some(&files))
}

/// `signal`: `TRACES_`, `LOGS_` or `METRICS_`.
pub(super) fn variable(signal: &str, what: &str) -> Option<OsString> {
    let of =
        |prefix| std::env::var_os(format!("OTEL_EXPORTER_OTLP_{prefix}{what}")).filter(|p| !p.is_empty());
    of(signal).or_else(|| of(""))
}
