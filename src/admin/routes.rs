//! Paths of the admin port.
//!
//! One table: path, methods, answer. Every answer is small and made in memory; errors are JSON. Whoever may ask
//! is decided in `access` before anything else happens, health endpoints excepted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value as Json, json};

use super::access::{self, Denied};
use super::{AdminState, config_view, views};
use crate::observe::metrics::Exposition;
use crate::observe::windows::Window;

type Answer = Response<Full<Bytes>>;

/// What a path is, before its method is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Alive,
    Ready,
    Metrics,
    Asset(&'static str, &'static str),
    Fleet,
    Routes,
    Latency,
    Decisions,
    Drift,
    Config,
    Reload,
    LogLevel,
    Drain,
}

impl Path {
    fn parse(path: &str) -> Option<Self> {
        Some(match path {
            "/healthz" | "/health" | "/liveness" => Self::Alive,
            "/readyz" | "/readiness" => Self::Ready,
            "/metrics" => Self::Metrics,
            "/" => Self::Asset("text/html; charset=utf-8", include_str!("page/page.html")),
            "/page.css" => Self::Asset("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => Self::Asset("text/javascript; charset=utf-8", include_str!("page/page.js")),
            "/api/fleet" => Self::Fleet,
            "/api/routes" => Self::Routes,
            "/api/latency" => Self::Latency,
            "/api/decisions" => Self::Decisions,
            "/api/drift" => Self::Drift,
            "/api/config" => Self::Config,
            "/api/reload" => Self::Reload,
            "/api/log-level" => Self::LogLevel,
            "/api/drain" => Self::Drain,
            _ => return None,
        })
    }

    fn is_open(self) -> bool {
        matches!(self, Self::Alive | Self::Ready)
    }

    fn allows(self) -> &'static str {
        match self {
            Self::Reload | Self::Drain => "POST",
            Self::LogLevel => "GET, HEAD, POST",
            _ => "GET, HEAD",
        }
    }
}

/// Answers one request.
pub(super) async fn answer(admin: &Arc<AdminState>, request: Request<Incoming>) -> Answer {
    let path = Path::parse(request.uri().path());
    let allowed = access::check(admin.token.as_ref(), request.method(), request.headers());
    if let (false, Err(denied)) = (path.is_some_and(Path::is_open), allowed) {
        return refuse(denied);
    }
    let Some(path) = path else {
        return error(StatusCode::NOT_FOUND, "unknown_path", "the admin port has no such path");
    };
    if !path.allows().split(", ").any(|method| method == request.method().as_str()) {
        let message = format!("allowed here: {}", path.allows());
        let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message);
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(path.allows()));
        return answer;
    }
    if *request.method() == Method::POST {
        post(admin, path, request).await
    } else {
        get(admin, path, &request)
    }
}

fn get(admin: &AdminState, path: Path, request: &Request<Incoming>) -> Answer {
    let control = &admin.control;
    match path {
        Path::Alive => json_answer(StatusCode::OK, &json!({ "status": "alive" })),
        Path::Ready => ready(admin),
        Path::Metrics => {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let exposition = Exposition::wanted(accept);
            let page = admin.observer.metrics().render_as(&control.replicas(), exposition);
            with_type(StatusCode::OK, exposition.content_type(), page)
        }
        Path::Asset(content_type, text) => with_type(StatusCode::OK, content_type, text),
        Path::Fleet => {
            json_answer(StatusCode::OK, &views::fleet(&control.replicas(), &control.calibrations()))
        }
        Path::Routes => json_answer(StatusCode::OK, &views::routes(&control.config(), &control.replicas())),
        Path::Latency => latency(admin, request.uri().query()),
        Path::Decisions => json_answer(StatusCode::OK, &views::decisions(&admin.observer)),
        Path::Drift => json_answer(StatusCode::OK, &views::drift(&admin.drift)),
        Path::Config => json_answer(StatusCode::OK, &config_view::config(&control.config())),
        Path::LogLevel => json_answer(StatusCode::OK, &json!({ "level": control.log_level() })),
        // Not GET: refused before.
        Path::Reload | Path::Drain => error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "use POST"),
    }
}

async fn post(admin: &Arc<AdminState>, path: Path, request: Request<Incoming>) -> Answer {
    match path {
        Path::Reload => reload(admin).await,
        Path::Drain => {
            tracing::info!("drain asked for on the admin port");
            admin.control.drain();
            json_answer(StatusCode::ACCEPTED, &json!({ "status": "draining" }))
        }
        _ => set_log_level(admin, request).await,
    }
}

fn ready(admin: &AdminState) -> Answer {
    let readiness = admin.control.readiness();
    if readiness.is_ready() {
        return json_answer(StatusCode::OK, &json!({ "status": "ready", "reasons": [] }));
    }
    let body = json!({ "status": "not ready", "reasons": readiness.reasons });
    json_answer(StatusCode::SERVICE_UNAVAILABLE, &body)
}

fn latency(admin: &AdminState, query: Option<&str>) -> Answer {
    let named = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("window=")));
    let Some(window) = Window::parse(named.unwrap_or("5m")) else {
        return error(StatusCode::BAD_REQUEST, "invalid_window", "window is 1m, 5m or 1h");
    };
    json_answer(StatusCode::OK, &views::latency(&admin.observer, window))
}

async fn reload(admin: &Arc<AdminState>) -> Answer {
    let control = Arc::clone(&admin.control);
    // Reads files, which blocks.
    match tokio::task::spawn_blocking(move || control.reload()).await {
        Ok(Ok(())) => json_answer(StatusCode::OK, &json!({ "status": "reloaded" })),
        Ok(Err(message)) => error(StatusCode::UNPROCESSABLE_ENTITY, "invalid_config", &message),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "reload_failed", "the reload broke off"),
    }
}

/// Takes `{"level":"debug"}` or the bare text.
async fn set_log_level(admin: &AdminState, request: Request<Incoming>) -> Answer {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let Ok(Ok(body)) = tokio::time::timeout(BODY_LIMIT, body).await else {
        return error(StatusCode::BAD_REQUEST, "invalid_body", "the body is late, broken or too long");
    };
    let body = body.to_bytes();
    let parsed = serde_json::from_slice::<Json>(&body).ok();
    let filter = match parsed.as_ref().map(|json| &json["level"]) {
        Some(Json::String(level)) => level.as_str(),
        _ => std::str::from_utf8(&body).unwrap_or_default().trim(),
    };
    match admin.control.set_log_level(filter) {
        Ok(()) => json_answer(StatusCode::OK, &json!({ "level": admin.control.log_level() })),
        Err(message) => error(StatusCode::BAD_REQUEST, "invalid_level", &message),
    }
}

fn refuse(denied: Denied) -> Answer {
    match denied {
        Denied::Token => {
            let message = "send the admin token as authorization: Bearer";
            let mut answer = error(StatusCode::UNAUTHORIZED, "invalid_token", message);
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            answer
        }
        Denied::Host => {
            let message = "without a token the admin port is reached as localhost or by its address only";
            error(StatusCode::FORBIDDEN, "foreign_host", message)
        }
        Denied::Header => {
            error(StatusCode::FORBIDDEN, "missing_header", "POST needs the header x-tokenway-admin: 1")
        }
    }
}

fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    json_answer(status, &json!({ "error": { "code": code, "message": message } }))
}

fn json_answer(status: StatusCode, body: &Json) -> Answer {
    with_type(status, "application/json", body.to_string())
}

fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in ON_EVERY_ANSWER {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

const ON_EVERY_ANSWER: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
];
const MAX_BODY: usize = 4096;
const BODY_LIMIT: Duration = Duration::from_secs(5);
