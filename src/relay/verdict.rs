//! How a request ends whose answer is relayed as its engine sent it.
//!
//! A server error is the replica's, any other error the request's own, whether its status or only its body shows it: proxies
//! answer errors with 200. A redirect, and a success without content, are no answer where one is owed.

use http::StatusCode;

use super::usage::EngineError;
use crate::record::{Outcome, Record};
use crate::request::dialect::{BodyForm, Dialect};

/// Outcome and error code by an answer's status, whether its body is empty, and the error that it reports under a status of success.
pub fn of_answer(
    record: &Record,
    status: StatusCode,
    is_empty: bool,
    error: Option<EngineError>,
) -> (Outcome, Option<&'static str>) {
    match error {
        _ if status.is_server_error() => FAILED,
        _ if status.is_client_error() => REJECTED,
        _ if record.owes_answer() && is_no_answer(record.dialect, status, is_empty) => {
            (Outcome::Failed, Some("not_an_answer"))
        }
        Some(error) => of_error(error),
        None => (Outcome::Ok, None),
    }
}

/// The same for an error that the engine reported under a status of success.
pub fn of_error(error: EngineError) -> (Outcome, Option<&'static str>) {
    if error.is_of_request() { REJECTED } else { FAILED }
}

/// Whether an answer is none, where one is owed.
pub fn is_no_answer(dialect: Dialect, status: StatusCode, is_empty: bool) -> bool {
    let has_no_body = matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT);
    // The text of a recording may be empty, JSON is not.
    let lacks_json = is_empty && status.is_success() && dialect.body_form() == BodyForm::Json;
    // A tunnel is not relayed as an answer.
    dialect == Dialect::Realtime || status.is_redirection() || has_no_body || lacks_json
}

const FAILED: (Outcome, Option<&str>) = (Outcome::Failed, Some("replica_error"));
const REJECTED: (Outcome, Option<&str>) = (Outcome::ClientError, Some("engine_rejected"));
