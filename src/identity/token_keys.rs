//! Control plane: keeps the keys of the token issuer (`auth.jwt.jwks`) fresh.
//!
//! They are read at start, every `auth.jwt.refresh`, on a reload, and when a token names a key that is not there (rotation),
//! at most once a second. A failure keeps what was read last and is logged; no request waits for the issuer otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use thiserror::Error;

use crate::config::Jwks;
use crate::request::jwt::{KeySet, KeySetError, TokenKeys};
use crate::upstream::call::{CallError, exchange};
use crate::upstream::connect::Connector;
use crate::whole_file;

/// Reads the keys again and again, for as long as the process lives.
pub async fn refresh_keys(keys: Arc<TokenKeys>, connector: Connector) {
    loop {
        let Some(jwt) = keys.settings() else {
            keys.reconfigured().await;
            continue;
        };
        match read(&jwt.jwks, &connector).await {
            // A reload may have changed the issuer meanwhile.
            Ok(set) if keys.settings().is_some_and(|now| now.jwks == jwt.jwks) => keys.publish(set),
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(jwks = %jwt.jwks, %error, "the issuer's keys could not be read; the last ones stay");
            }
        }
        keys.attempted();
        let rest = async {
            tokio::time::sleep(LEAST_INTERVAL).await;
            let _ = tokio::time::timeout(jwt.refresh.saturating_sub(LEAST_INTERVAL), keys.wanted()).await;
        };
        // Both arms only wait, so both are cancel-safe.
        tokio::select! {
            () = keys.reconfigured() => {}
            () = rest => {}
        }
    }
}

/// Why there are no new keys.
#[derive(Debug, Error)]
pub enum JwksError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    File(#[from] std::io::Error),
    /// The issuer gave no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The issuer's answer is none.
    #[error("answered {0}")]
    Status(StatusCode),
    /// The URL makes no request.
    #[error(transparent)]
    Url(#[from] http::Error),
    /// What was read is no key set.
    #[error(transparent)]
    Keys(#[from] KeySetError),
}

async fn read(jwks: &Jwks, connector: &Connector) -> Result<KeySet, JwksError> {
    let json = match jwks {
        Jwks::File(path) => Bytes::from(whole_file::read_in_background(path).await?),
        Jwks::Url { endpoint, target } => {
            let request =
                Request::get(target).header(header::ACCEPT, "application/json").body(Bytes::new())?;
            let (head, body) = exchange(connector, endpoint, request, TIMEOUT).await?.into_parts();
            if head.status != StatusCode::OK {
                return Err(JwksError::Status(head.status));
            }
            body
        }
    };
    Ok(KeySet::parse(&json)?)
}

const TIMEOUT: Duration = Duration::from_secs(5);
/// Tokens with made-up key ids must not become a flood of requests to the issuer.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
