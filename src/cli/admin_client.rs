//! A client of the admin API of a running gateway, for the subcommands that look at one or steer it.
//!
//! Each failure says what to do: a wrong address, a missing token and a gateway of another version are different things.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, Request, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::api::failure::{Failure, FailureError};
use crate::config::check::secret_of;
use crate::config::{Endpoint, Secret, parse_endpoint};
use crate::upstream::call::{CallError, exchange};
use crate::upstream::connect::Connector;

/// Which gateway, and how to be let in.
#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// URL of the gateway's admin port
    #[arg(value_name = "URL", value_parser = endpoint)]
    pub url: Endpoint,
    #[command(flatten)]
    pub(super) token: AdminToken,
}

/// The same for commands whose words are other than a URL.
#[derive(Args, Clone, Debug)]
pub struct AdminFlags {
    /// URL of the gateway's admin port
    #[arg(long = "admin", env = "TOKENWAY_ADMIN_URL", value_name = "URL", value_parser = endpoint, default_value = OWN, global = true)]
    pub url: Endpoint,
    #[command(flatten)]
    pub(super) token: AdminToken,
}

/// What lets in.
#[derive(Args, Clone, Debug, Default)]
pub struct AdminToken {
    /// Its admin.token, or admin.read_token to look: env:NAME, file:PATH or the token itself
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN", global = true)]
    token: Option<String>,
}

/// A connection to one gateway.
#[derive(Clone, Debug)]
pub struct AdminClient {
    endpoint: Endpoint,
    token: Option<Secret>,
    connector: Connector,
}

/// Why there is no answer.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("the token: {0}")]
    NoToken(String),
    #[error("cannot be asked for: {0}")]
    Request(#[from] http::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The gateway's own words.
    #[error("{0}")]
    NotFound(String),
    #[error("{0} {1}")]
    At(String, Trouble),
}

/// What is wrong with a gateway or its answer.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("does not answer: {0}\nhint: give the admin port, {OWN} by default, not the data port")]
    Unreachable(CallError),
    #[error(
        "wants its admin token\nhint: --token env:NAME or file:PATH, or TOKENWAY_ADMIN_TOKEN: what admin.token says"
    )]
    Forbidden,
    #[error(
        "takes this token for reading only\nhint: --token env:NAME or file:PATH, or TOKENWAY_ADMIN_TOKEN: the value of admin.token, not of admin.read_token"
    )]
    ReadOnly,
    #[error("has no {0}: it is an older tokenway than this ({own}), or no admin port of one", own = env!("CARGO_PKG_VERSION"))]
    NoSuchPath(String),
    #[error("answers {0} in a form that this tokenway ({own}) does not read: {1}", own = env!("CARGO_PKG_VERSION"))]
    Form(String, serde_json::Error),
    #[error("answered {0}: {1}")]
    Status(u16, String),
}

impl AdminClient {
    /// A client; `env` looks up environment variables for the token.
    pub fn new(
        url: &Endpoint,
        AdminToken { token }: &AdminToken,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, AskError> {
        let token = token.as_deref().map(|token| read_token(token, env)).transpose()?;
        let connector = Connector::new(TaskTracker::new())?;
        Ok(Self { endpoint: url.clone(), token, connector })
    }

    /// The gateway's URL.
    pub fn url(&self) -> String {
        self.endpoint.to_string()
    }

    /// Reads a path of `/api/v1`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Changes something.
    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.ask(Method::POST, path, Bytes::new()).await
    }

    /// Changes something as `order` says.
    pub async fn send<T: DeserializeOwned>(&self, path: &str, order: &impl Serialize) -> Result<T, AskError> {
        // A struct of strings and booleans is always JSON.
        let order = serde_json::to_vec(order).unwrap_or_default();
        self.ask(Method::POST, path, order.into()).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, AskError> {
        let answer = self.answer(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            let path = path.to_owned();
            let is_ours = error.is_data();
            self.at(if is_ours { Trouble::Form(path, error) } else { Trouble::NoSuchPath(path) })
        })
    }

    fn at(&self, trouble: Trouble) -> AskError {
        AskError::At(self.url(), trouble)
    }

    /// What a path answers with success.
    async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, AskError> {
        // The header tells a change from a form on a stranger's web page.
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.base_path))
            .header("x-tokenway-admin", "1");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let answer = exchange(&self.connector, &self.endpoint, request.body(body)?, TIMEOUT).await;
        let answer = answer.map_err(|error| self.at(Trouble::Unreachable(error)))?;
        let (status, body) = (answer.status(), answer.into_body());
        if status.is_success() {
            return Ok(body);
        }
        let FailureError { code, message } =
            serde_json::from_slice::<Failure>(&body).unwrap_or_default().error;
        Err(self.at(match status {
            StatusCode::FORBIDDEN if code == "read_only" => Trouble::ReadOnly,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Forbidden,
            // Another program, or another version, has no such path; this one says what it lacks.
            StatusCode::NOT_FOUND if !["", "unknown_path"].contains(&code.as_str()) => {
                return Err(AskError::NotFound(message));
            }
            StatusCode::NOT_FOUND => Trouble::NoSuchPath(path.to_owned()),
            status => Trouble::Status(status.as_u16(), message),
        }))
    }
}

pub(super) fn read_token(token: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Secret, AskError> {
    secret_of(token, env).map_err(AskError::NoToken)
}

pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.contains("://") { parse_endpoint(text) } else { parse_endpoint(&format!("http://{text}")) }
}

const TIMEOUT: Duration = Duration::from_secs(10);
/// The admin port of a gateway on this machine.
pub(super) const OWN: &str = "http://127.0.0.1:9090";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_named_or_given() {
        let env = |name: &str| (name == "T").then(|| "from env\n".to_owned());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from file\n").unwrap();
        let path = format!("file:{}", file.path().display());
        for (given, token) in [("env:T", "from env"), (path.as_str(), "from file"), ("plain", "plain")] {
            assert_eq!(read_token(given, &env).unwrap().reveal(), token);
        }
        let error = read_token("env:U", &env).unwrap_err().to_string();
        assert_eq!(error, "the token: environment variable U is not set");
    }

    #[test]
    fn a_url_may_leave_out_its_scheme() {
        assert_eq!(endpoint("127.0.0.1:9090").unwrap().to_string(), "http://127.0.0.1:9090");
        assert_eq!(endpoint("https://gw.example").unwrap().to_string(), "https://gw.example:443");
    }
}
