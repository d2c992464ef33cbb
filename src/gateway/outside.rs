//! What goes to an outside provider (`[pool.outside]`): the client's own body with the provider's name of the model and the few headers
//! that say how to read it. Neither what the gateway writes for its own engines, nor what a client or a proxy before the gateway means for
//! this house: cookies, keys, addresses, names of users, the query.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};

use super::Gateway;
use super::prepare::read_fields;
use super::prepared::Prepared;
use crate::fleet::pick::Pick;
use crate::request::dialect::Dialect;
use crate::request::multipart;
use crate::request::pieces::Pieces;
use crate::request::splice::{Edits, splice};

/// The body for the provider, of a client with these headers. The gateway's own engines would get [`Prepared::body`].
pub(super) fn body(prepared: &Prepared, dialect: Dialect, client: &HeaderMap, model: &str) -> Pieces {
    let edits = Edits { model: Some(model), ask_usage: prepared.route.config.ask_usage, ..Edits::default() };
    edited(&prepared.held.bytes, dialect, client, edits)
}

/// A body with these edits; as it is where it cannot be read.
pub(super) fn edited(body: &Bytes, dialect: Dialect, client: &HeaderMap, edits: Edits<'_>) -> Pieces {
    match read_fields(dialect, multipart::boundary(client), body) {
        Ok(fields) => splice(dialect, body, &fields, edits).body,
        Err(_) => body.clone().into(),
    }
}

/// Those of a client's headers that a provider gets.
pub(super) fn headers(client: &HeaderMap) -> HeaderMap {
    let is_passed = |name: &str| PASSED.contains(&name) || name.starts_with("anthropic-");
    let passed = client.iter().filter(|(name, _)| is_passed(name.as_str()));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The path that a provider is asked for.
pub(super) fn uri(client: &Uri) -> Uri {
    PathAndQuery::try_from(client.path()).map(Uri::from).unwrap_or_default()
}

/// Counts an attempt there, apart.
pub(super) fn count(gateway: &Gateway, prepared: &Prepared, pick: &mut Pick) {
    let Some(charge) = &mut pick.outside else { return };
    charge.is_sent = true;
    let labels = [&*prepared.route.config.name, &pick.pool.name, &prepared.share.tenant];
    gateway.observer.metrics.families.requests.outside.inc(labels);
}

/// Besides the `anthropic-` ones, which name versions of the API.
const PASSED: [&str; 6] =
    ["accept", "accept-language", "content-encoding", "content-type", "openai-beta", "user-agent"];
