//! Whether an answer that is relayed as it is speaks against its replica.
//!
//! A server error does, also one under a status of success, and a full queue; a model that is missing there alone, and a key of
//! ours that it refuses. Any other 4xx is the request's own. Pure but for the lists of models.

use http::StatusCode;
use memchr::memmem;

use super::attempt::BufferedResponse;
use super::prepared::Prepared;
use crate::error::ReplicaFailure;
use crate::fleet::pick::Pick;
use crate::record::{Record, Unserved};

/// What the answer says against the replica; `None` where it is the request's own, or good.
pub(super) fn of_answer(
    answer: &BufferedResponse,
    pick: &Pick,
    prepared: &Prepared,
    record: &Record,
) -> Option<ReplicaFailure> {
    let status = answer.head.status;
    if let Some(error) = answer.error_under_success(record.dialect, record.owes_answer()) {
        return (!error.is_of_request()).then(|| ReplicaFailure::ErrorEvent { replica: pick.replica.name() });
    }
    let has_our_key = || pick.pool.config().engine_api_key.is_some();
    let is_bad = match status {
        StatusCode::NOT_IMPLEMENTED => false,
        StatusCode::TOO_MANY_REQUESTS => true,
        // The key was ours, or none: the client's own stays with us where tenants are configured.
        StatusCode::UNAUTHORIZED => has_our_key() || prepared.table.tenants.ask_for_keys(),
        // Our key may lack a right; without a key it is the request that is forbidden.
        StatusCode::FORBIDDEN => has_our_key(),
        StatusCode::NOT_FOUND => {
            let is_elsewhere = |model| pick.pool.others_list(&pick.replica, model);
            names_missing_model(&answer.body) && prepared.model.as_deref().is_some_and(is_elsewhere)
        }
        status => status.is_server_error(),
    };
    is_bad.then(|| ReplicaFailure::Status { replica: pick.replica.name(), status: status.as_u16() })
}

/// Whether it is the answer that a model is missing which this replica does not list and another of its route does: the request is as good as one
/// for whose model no replica is ready. Beside a canary the answer stays as it is: a revision without the model is to be seen as one.
pub(super) fn is_for_another(answer: &BufferedResponse, pick: &Pick, prepared: &Prepared) -> bool {
    let is_elsewhere = |model: &str| !pick.replica.engine.lists(model) && prepared.route.is_known(model);
    answer.head.status == StatusCode::NOT_FOUND
        && prepared.route.config.canary.is_none()
        && prepared.model.as_deref().is_some_and(is_elsewhere)
        && names_missing_model(&answer.body)
}

/// What the engine does not serve, by its answer; `None` also where something else that the request names is missing.
pub(super) fn unserved(answer: &BufferedResponse) -> Option<Unserved> {
    if answer.head.status != StatusCode::NOT_FOUND {
        None
    } else if names_missing_model(&answer.body) {
        Some(Unserved::Model)
    } else {
        memmem::find(&answer.body, b"\"error\"").is_none().then_some(Unserved::Path)
    }
}

/// Whether the body of a 404 says that the model is missing, as engines and OpenAI word it.
fn names_missing_model(body: &[u8]) -> bool {
    let start = body.get(..MAX_ERROR.min(body.len())).unwrap_or_default();
    let text = String::from_utf8_lossy(start).to_lowercase();
    text.contains("model") && MISSING.iter().any(|words| text.contains(words))
}

const MISSING: [&str; 4] = ["not_found", "notfound", "not found", "does not exist"];
/// Bytes of an error body that are looked at.
const MAX_ERROR: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_model_is_told_from_a_missing_path() {
        let vllm = br#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        let openai = br#"{"error":{"message":"no","code":"model_not_found"}}"#;
        assert!(names_missing_model(vllm) && names_missing_model(openai));
        for other in [
            &br#"{"detail":"Not Found"}"#[..],
            b"",
            b"\xff\xfe",
            br#"{"error":{"message":"Response 'r' not found"}}"#,
        ] {
            assert!(!names_missing_model(other));
        }
    }
}
