//! Paths of the admin port, and the layers around their handlers.
//!
//! Each group of routes has bounds of its own: health and the page's files are open, everything else passes `access` first;
//! streams come without the timeout.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{BoxError, Extension, Router};
use http::StatusCode;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::error::Overloaded;
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, Predicate, SizeAbove};
use tower_http::timeout::RequestBodyTimeoutLayer;

use super::error::AdminError;
use super::live::Live;
use super::openapi::table::{actions, reads, streams};
use super::{AdminState, access, assets, openapi, views};

/// Every path with its handler.
pub(super) fn router(admin: Arc<AdminState>, live: Arc<Live>) -> Router {
    // Versioned, and as it was before the API had a version.
    let under =
        |api: Router<Arc<AdminState>>| Router::new().nest("/api", api.clone()).nest(openapi::BASE, api);
    let plain = Router::new()
        .merge(metrics())
        .route("/api/v1/", get(openapi::index))
        .route("/api/", get(openapi::index));
    let actions =
        actions().layer(DefaultBodyLimit::max(MAX_BODY)).layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT));
    bounded(plain.merge(under(reads())), MAX_READS, READ_TIMEOUT)
        .merge(bounded(under(actions), MAX_ACTIONS, ACTION_TIMEOUT))
        // Without a timeout, and bounded by themselves.
        .merge(under(streams().layer(Extension(live))))
        .fallback(async || AdminError::UnknownPath)
        .layer(from_fn_with_state(Arc::clone(&admin), access::guard))
        .layer(from_fn_with_state(Arc::new(Semaphore::new(MAX_RESPONSES)), under_way))
        .merge(health())
        .merge(assets::router())
        .layer(from_fn(access::one_host))
        .layer(ServiceBuilder::new().layer(CatchPanicLayer::custom(panicked)).layer(compression()))
        .with_state(admin)
}

/// What `admin.metrics_listen` has: nothing that a token guards elsewhere but the metrics.
pub(super) fn metrics_router(admin: Arc<AdminState>) -> Router {
    bounded(metrics(), MAX_READS, READ_TIMEOUT)
        .fallback(async || AdminError::UnknownPath)
        .layer(from_fn_with_state(Arc::new(Semaphore::new(MAX_RESPONSES)), under_way))
        .merge(health())
        .layer(from_fn(access::one_host))
        .layer(ServiceBuilder::new().layer(CatchPanicLayer::custom(panicked)).layer(compression()))
        .with_state(admin)
}

fn metrics() -> Router<Arc<AdminState>> {
    Router::new().route("/metrics", get(views::metrics))
}

fn health() -> Router<Arc<AdminState>> {
    Router::new()
        .route("/healthz", get(views::alive))
        .route("/health", get(views::alive))
        .route("/liveness", get(views::alive))
        .route("/readyz", get(views::ready))
        .route("/readiness", get(views::ready))
        .route("/readyz/any", get(views::ready_for_any))
}

/// A page of 9 MB becomes 0.6 MB in 15 ms; gzip's default level makes 0.4 MB in 90 ms, on a runtime with one worker.
fn compression() -> CompressionLayer<impl Predicate> {
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(DefaultPredicate::new().and(SizeAbove::new(MIN_COMPRESSED)))
}

/// Refuses more than `max` requests of the group at once and ends those that wait for longer than `timeout`.
fn bounded(group: Router<Arc<AdminState>>, max: usize, timeout: Duration) -> Router<Arc<AdminState>> {
    group.layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(out_of_bounds))
            .load_shed()
            // Global: axum applies a layer once per route.
            .layer(GlobalConcurrencyLimitLayer::new(max))
            .timeout(timeout),
    )
}

/// Bounds the responses under way, to the last byte that their clients take.
async fn under_way(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(place) = places.try_acquire_owned() else { return AdminError::Overloaded.into_response() };
    let response = next.run(request).await;
    // The body owns the closure, and it the place.
    response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _held = &place;
            error
        }))
    })
}

async fn out_of_bounds(error: BoxError) -> AdminError {
    if error.is::<Overloaded>() { AdminError::Overloaded } else { AdminError::Timeout }
}

/// The panic hook has logged it.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    AdminError::Panicked.into_response()
}

/// Completes every response. Outside the router, which adds `allow` after its layers, to what `access` refuses as well.
pub(super) fn finish(mut response: Response) -> Response {
    let allow = response.headers_mut().remove(ALLOW);
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = allow.as_ref().and_then(|allow| allow.to_str().ok()).unwrap_or_default();
        response = AdminError::MethodNotAllowed(allowed.replace(',', ", ")).into_response();
    }
    let headers = ON_EVERY_RESPONSE.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

const ON_EVERY_RESPONSE: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
];
/// Bytes; below, gzip may well add to them.
const MIN_COMPRESSED: u64 = 1024;
/// Of what is not health.
const MAX_RESPONSES: usize = 64;
const MAX_READS: usize = 32;
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ACTIONS: usize = 8;
/// A reload reads files.
const ACTION_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY: usize = 4096;
/// Between two pieces of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
