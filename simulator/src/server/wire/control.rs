//! Control endpoints on the replica's own port: inject faults, clear them, read the request log.
//!
//! `POST /sim/fault` with a fault as JSON, `DELETE /sim/fault`, `GET /sim/requests`. A gateway never relays
//! these paths.

use std::sync::Arc;

use http::Method;
use http::StatusCode;
use http::request::Parts;
use hyper::body::Incoming;
use serde_json::json;

use crate::server::faults::Fault;
use crate::server::replica::Replica;

use super::{SimResponse, json_response, read};

pub(super) async fn serve(replica: &Arc<Replica>, head: &Parts, body: Incoming) -> SimResponse {
    match (&head.method, head.uri.path()) {
        (&Method::POST, "/sim/fault") => set(replica, body).await,
        (&Method::DELETE, "/sim/fault") => match replica.clear_faults().await {
            Ok(()) => json_response(StatusCode::OK, json!({"faults": "cleared"}).to_string()),
            Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        (&Method::GET, "/sim/requests") => {
            let stats = serde_json::to_string(&replica.seen.stats()).unwrap_or_default();
            json_response(StatusCode::OK, stats)
        }
        (_, "/sim/fault" | "/sim/requests") => refuse(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
        _ => refuse(StatusCode::NOT_FOUND, "Not Found"),
    }
}

async fn set(replica: &Arc<Replica>, body: Incoming) -> SimResponse {
    let Ok(body) = read(body).await else { return refuse(StatusCode::BAD_REQUEST, "unreadable body") };
    match serde_json::from_slice::<Fault>(&body) {
        Ok(fault) => {
            replica.set_fault(fault.clone()).await;
            json_response(StatusCode::OK, json!({"fault": fault}).to_string())
        }
        Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

fn refuse(status: StatusCode, why: &str) -> SimResponse {
    json_response(status, json!({"detail": why}).to_string())
}
