//! Connections that ended for a reason that only the log can name.

use std::error::Error;
use std::iter::successors;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use h2::Reason;

use super::Serving;
use super::phase::ConnectionPhase;

/// Logs the end of an HTTP/2 connection whose peer sent more resets or small frames than h2 takes. Where the peer is a proxy, all of its
/// clients are cut.
pub(super) fn note_flood(error: &(dyn Error + 'static), client: Option<IpAddr>) {
    // Not of the reference, which has a source of its own.
    let chain = successors(Some(error), |error| (**error).source());
    let is_flood =
        |error: &h2::Error| error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM);
    if chain.filter_map(|error| error.downcast_ref::<h2::Error>()).any(is_flood) {
        let client = client.map(tracing::field::display);
        tracing::warn!(
            client,
            "HTTP/2 connection ended for a flood of resets or small frames, with all of its streams"
        );
    }
}

/// Logs, once a port, a client that began with a TLS handshake where clear text is read: its proxy has nothing to show but a broken connection.
pub(super) fn note_tls(serving: &Serving, phase: &ConnectionPhase, client: Option<IpAddr>) {
    if phase.is_tls() && serving.tls.is_none() && !serving.has_met_tls.swap(true, Ordering::Relaxed) {
        let client = client.map(tracing::field::display);
        tracing::warn!(
            client,
            "a client speaks TLS to a port in clear text: the data port has TLS by [server.tls]"
        );
    }
}
