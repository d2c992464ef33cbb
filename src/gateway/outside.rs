//! What goes to an outside provider (`[pool.outside]`): the client's own body with the provider's name of the model, and nothing that
//! the gateway writes for its own engines.

use super::Gateway;
use super::prepared::Prepared;
use crate::fleet::pick::Pick;
use crate::request::dialect::{BodyForm, Dialect};
use crate::request::fields;
use crate::request::pieces::Pieces;
use crate::request::splice::{Edits, splice};

/// The body for the provider; `sent` is what the gateway's own engines would get.
pub(super) fn body(prepared: &Prepared, dialect: Dialect, sent: &Pieces, model: &str) -> Pieces {
    // A continued stream has a body of its own, which is the gateway's.
    let is_first = std::ptr::eq(sent, &raw const prepared.body);
    let own = &if is_first { prepared.held.bytes.clone() } else { sent.whole() };
    if dialect.body_form() != BodyForm::Json || own.is_empty() {
        return sent.clone();
    }
    let Ok(fields) = fields::parse(dialect, own) else { return sent.clone() };
    let ask_usage = prepared.route.config.ask_usage && is_first;
    splice(dialect, own, &fields, Edits { model: Some(model), ask_usage, ..Edits::default() }).body
}

/// Counts an attempt there, apart.
pub(super) fn count(gateway: &Gateway, prepared: &Prepared, pick: &mut Pick) {
    let Some(charge) = &mut pick.outside else { return };
    charge.sent();
    let labels = [&*prepared.route.config.name, &pick.pool.name, &prepared.share.tenant];
    gateway.observer.metrics().families.requests.outside.inc(labels);
}
