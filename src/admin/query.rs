//! How handlers read requests, and parameters that queries of several endpoints have in common.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use bytes::Bytes;
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::AdminState;
use super::error::AdminError;

pub(super) type Admin = State<Arc<AdminState>>;
pub(super) type Answer<T> = Result<Json<T>, AdminError>;

/// The query of a request.
pub(super) struct Asked<Q>(pub(super) Q);

impl<S: Send + Sync, Q: DeserializeOwned> FromRequestParts<S> for Asked<Q> {
    type Rejection = AdminError;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, AdminError> {
        let query = Query::from_request_parts(head, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| AdminError::InvalidQuery(error.body_text()))
    }
}

/// The body of a request.
pub(super) struct Sent(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = AdminError;

    async fn from_request(request: Request, state: &S) -> Result<Self, AdminError> {
        Bytes::from_request(request, state).await.map(Self).map_err(|_| AdminError::InvalidBody)
    }
}

/// How many an answer has at most.
pub(super) fn parse_limit(asked: Option<&str>, default: usize, max: usize) -> Result<usize, AdminError> {
    let limit = asked.map_or(Some(default), |asked| asked.parse().ok());
    limit
        .filter(|limit| (1..=max).contains(limit))
        .ok_or_else(|| AdminError::InvalidQuery(format!("limit is 1 to {max}")))
}

/// Refuses a value that nothing can have: an empty list would read as good news.
pub(super) fn one_of(name: &str, value: Option<&str>, known: &[&str]) -> Result<(), AdminError> {
    match value.filter(|value| !known.contains(value)) {
        Some(value) => {
            Err(AdminError::InvalidQuery(format!("{name}={value}: {name} is one of {}", known.join(", "))))
        }
        None => Ok(()),
    }
}
