//! Connections that ended for a reason that only the log can name.

use std::error::Error;
use std::iter::successors;
use std::net::IpAddr;

use h2::Reason;

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
