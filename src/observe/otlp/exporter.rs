//! Sends exports of any signal, bounded in time; logs failures sparingly.
//!
//! Spans and log records that a collector may take later are sent again with pauses that double, as the OTLP specification asks for, for
//! as long as the timeout of the export lasts. Metrics are not: the next export has them. None is begun before the collector's
//! `retry-after` is over.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request};
use jiff::fmt::rfc2822::DateTimeParser;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::PROTOBUF;
use crate::clock::{Clock, Stamp};
use crate::config::Endpoint;
use crate::upstream::call::{CallError, exchange};
use crate::upstream::connect::Connector;

/// Exports of one signal.
pub(crate) struct Exporter {
    transport: Transport,
    health: Health,
}

impl Exporter {
    pub(super) fn new(transport: Transport, health: Health) -> Self {
        Self { transport, health }
    }

    /// Sends an export.
    ///
    /// # Errors
    /// What did not arrive, or was not taken.
    pub(crate) async fn send<S: Signal>(
        &mut self,
        export: S,
        closing: &CancellationToken,
    ) -> Result<(), Undelivered> {
        self.health.rest(closing).await;
        self.health.watch(self.transport.send(export)).await
    }

    /// The same, sent again where the collector may take it later, until `closing`.
    pub(crate) async fn deliver<S: Signal + Clone>(
        &mut self,
        export: S,
        closing: &CancellationToken,
    ) -> Result<(), Undelivered> {
        self.health.rest(closing).await;
        let (transport, limit) = (&self.transport, self.health.limit());
        self.health.watch(again(closing, limit, || transport.send(export.clone()))).await
    }

    /// The same with spans that are encoded; over gRPC they are encoded anew.
    pub(crate) async fn pass(&mut self, spans: Bytes) -> Result<(), Undelivered> {
        let closing = CancellationToken::new();
        self.health.rest(&closing).await;
        let (transport, limit) = (&self.transport, self.health.limit());
        self.health.watch(again(&closing, limit, || transport.pass(spans.clone()))).await
    }
}

/// An export, or some of its parts, that the collector does not have.
pub(crate) struct Undelivered(Option<u64>);

impl Undelivered {
    /// Whether the collector took the rest: to be sent again it would have to know that rest (OTLP, partial success).
    pub(crate) fn is_partial(&self) -> bool {
        self.0.is_some()
    }

    /// How many, of an export of `all`.
    pub(crate) fn of(&self, all: u64) -> u64 {
        self.0.map_or(all, |rejected| rejected.min(all))
    }
}

/// An export as a collector takes it.
pub(crate) trait Signal: Message + Sized {
    type Answer: Message + Default;
    fn call(
        self,
        channel: Grpc,
        is_gzip: bool,
    ) -> impl Future<Output = Result<Self::Answer, tonic::Status>> + Send;
    /// How many spans, log records or data points the collector did not take, and why.
    fn rejected(answer: Self::Answer) -> Option<(i64, String)>;
}

type Grpc = InterceptedService<Channel, Headers>;

macro_rules! signals {
    ($($Export:ty => $Answer:ty, $Client:ident, $rejected:ident;)+) => {$(
        impl Signal for $Export {
            type Answer = $Answer;

            async fn call(self, channel: Grpc, is_gzip: bool) -> Result<$Answer, tonic::Status> {
                let client = $Client::new(channel);
                let mut client =
                    if is_gzip { client.send_compressed(CompressionEncoding::Gzip) } else { client };
                client.export(self).await.map(tonic::Response::into_inner)
            }

            fn rejected(answer: $Answer) -> Option<(i64, String)> {
                answer.partial_success.map(|partial| (partial.$rejected, partial.error_message))
            }
        }
    )+};
}

signals! {
    ExportTraceServiceRequest => ExportTraceServiceResponse, TraceServiceClient, rejected_spans;
    ExportLogsServiceRequest => ExportLogsServiceResponse, LogsServiceClient, rejected_log_records;
    ExportMetricsServiceRequest => ExportMetricsServiceResponse, MetricsServiceClient, rejected_data_points;
}

pub(super) enum Transport {
    Http(Http),
    Grpc { channel: Channel, headers: Headers, is_gzip: bool },
}

impl Transport {
    async fn send<S: Signal>(&self, export: S) -> Result<(), ExportError> {
        let answer = match self {
            Self::Http(http) => return taken::<S>(http.post(export.encode_to_vec()).await?),
            Self::Grpc { channel, headers, is_gzip } => {
                let channel = InterceptedService::new(channel.clone(), headers.clone());
                export.call(channel, *is_gzip).await.map_err(|status| ExportError::Grpc(Box::new(status)))?
            }
        };
        whole::<S>(answer)
    }

    async fn pass(&self, spans: Bytes) -> Result<(), ExportError> {
        match self {
            Self::Http(http) => taken::<ExportTraceServiceRequest>(http.post(spans.into()).await?),
            Self::Grpc { .. } => self.send(ExportTraceServiceRequest::decode(spans)?).await,
        }
    }
}

/// Sends until it is taken or will never be within the limit, or once more when `closing`.
async fn again<F>(
    closing: &CancellationToken,
    (clock, until): (Clock, Stamp),
    send: impl Fn() -> F,
) -> Result<(), ExportError>
where
    F: Future<Output = Result<(), ExportError>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match send().await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let wait = error.retry_after().max(pause);
        let is_late = clock.now().after(wait) >= until;
        if !error.may_pass() || is_late || closing.is_cancelled() {
            return Err(error);
        }
        closing.run_until_cancelled(tokio::time::sleep(wait)).await;
        pause *= 2;
    }
}

/// Whether all was taken, by the body of a good answer: some collectors answer with an empty one or with JSON.
fn taken<S: Signal>(answer: Bytes) -> Result<(), ExportError> {
    whole::<S>(S::Answer::decode(answer).unwrap_or_default())
}

fn whole<S: Signal>(answer: S::Answer) -> Result<(), ExportError> {
    match S::rejected(answer) {
        Some((parts, message)) if parts > 0 => {
            Err(ExportError::Rejected { parts: parts.unsigned_abs(), message })
        }
        _ => Ok(()),
    }
}

/// Over our outbound connections. A connection lasts for one export: there is at most one a second, and none can have died
/// while idle.
pub(super) struct Http {
    pub(super) connector: Connector,
    pub(super) endpoint: Endpoint,
    pub(super) url: String,
    pub(super) headers: Headers,
    pub(super) timeout: Duration,
    pub(super) is_gzip: bool,
}

impl Http {
    /// Posts an export; the body of a good answer.
    async fn post(&self, export: Vec<u8>) -> Result<Bytes, ExportError> {
        let mut request = Request::post(&self.url).header(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
        let body = if self.is_gzip {
            request = request.header(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(&export)?;
            gzip.finish()?
        } else {
            export
        };
        let mut request = request.body(Bytes::from(body))?;
        self.headers.set(request.headers_mut());
        let answer = exchange(&self.connector, &self.endpoint, request, self.timeout).await;
        let unreachable = |error| ExportError::Call(self.endpoint.to_string(), error);
        let answer = answer.map_err(unreachable)?;
        if answer.status().is_success() {
            Ok(answer.into_body())
        } else {
            Err(ExportError::Status(answer.status(), retry_after(answer.headers())))
        }
    }
}

/// Seconds, or a date beside the collector's own: its clock need not be ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let date = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
    let after = text(RETRY_AFTER)?;
    let seconds = after.parse().ok().or_else(|| {
        let from_date = date(after)?.as_second() - date(text(DATE)?)?.as_second();
        u64::try_from(from_date).ok()
    });
    seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// The configured headers; may be credentials.
#[derive(Clone)]
pub(crate) struct Headers(pub(super) HeaderMap);

impl Headers {
    fn set(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.insert(name, value.clone());
        }
    }
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        self.set(request.metadata_mut().as_mut());
        Ok(request)
    }
}

/// Why an export did not arrive.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector answered {0}")]
    Status(http::StatusCode, Option<Duration>),
    #[error("the collector rejected {parts} of the parts of an export: {message}")]
    Rejected { parts: u64, message: String },
    #[error("{0}")]
    Grpc(Box<tonic::Status>),
    #[error("{0}: {1}")]
    Call(String, CallError),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error("gzip: {0}")]
    Gzip(#[from] std::io::Error),
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
}

impl ExportError {
    /// Whether the collector may take the same export later, as the OTLP specification has it.
    fn may_pass(&self) -> bool {
        match self {
            Self::Status(status, _) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Grpc(status) => matches!(
                status.code(),
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
            ),
            Self::Call(..) => true,
            Self::Rejected { .. } | Self::Request(_) | Self::Gzip(_) | Self::Decode(_) => false,
        }
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Status(_, after) => after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// Bounds exports in time and logs why they fail: at once, then once a minute, and when they work again.
pub(super) struct Health {
    what: &'static str,
    timeout: Duration,
    clock: Clock,
    /// Time of the last warning; `None` once exports work again and that is logged.
    warned: Option<Stamp>,
    /// When the collector's `retry-after` is over.
    resumes: Stamp,
}

impl Health {
    pub(super) fn new(what: &'static str, timeout: Duration, clock: Clock) -> Self {
        Self { what, timeout, clock, warned: None, resumes: Stamp::default() }
    }

    /// Waits as long as the collector has asked for, or until `closing`.
    async fn rest(&self, closing: &CancellationToken) {
        let wait = self.resumes.since(self.clock.now());
        closing.run_until_cancelled(tokio::time::sleep(wait)).await;
    }

    /// When an export that begins now has to be over.
    fn limit(&self) -> (Clock, Stamp) {
        (self.clock, self.clock.now().after(self.timeout))
    }

    async fn watch(
        &mut self,
        export: impl Future<Output = Result<(), ExportError>>,
    ) -> Result<(), Undelivered> {
        let mut rejected = None;
        let failure = match tokio::time::timeout(self.timeout, export).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                if let ExportError::Rejected { parts, .. } = error {
                    rejected = Some(parts);
                }
                self.resumes = self.clock.now().after(error.retry_after());
                Some(error.to_string())
            }
            Err(_) => Some(format!("no answer within {:?}", self.timeout)),
        };
        let (what, now) = (self.what, self.clock.now());
        let is_silent = self.warned.is_none_or(|at| now.since(at) >= REPEAT_WARNING);
        match &failure {
            Some(error) if is_silent => {
                tracing::warn!(error, what, "OTLP export fails; what it loses is counted");
                self.warned = Some(now);
            }
            // A collector that fails now and then is not announced each time.
            None if self.warned.is_some() && is_silent => {
                tracing::info!(what, "OTLP export works again");
                self.warned = None;
            }
            _ => {}
        }
        failure.map_or(Ok(()), |_| Err(Undelivered(rejected)))
    }
}

/// Before an export is sent again for the first time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A longer `retry-after` is no reason to lose more.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Between two warnings about the same exports.
const REPEAT_WARNING: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_that_a_collector_asks_for_is_seconds_or_a_date_and_bounded() {
        let asked = |after: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, after.parse().unwrap());
            headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
            retry_after(&headers).map(|pause| pause.as_secs())
        };
        assert_eq!(asked("30"), Some(30));
        assert_eq!(asked("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:07 GMT"), None, "over");
        assert_eq!((asked("86400"), asked("soon")), (Some(300), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_wants_a_pause_is_given_up_at_once_for_its_reason_and_left_alone() {
        let (clock, closing) = (Clock::start(), CancellationToken::new());
        let mut health = Health::new("spans", Duration::from_secs(10), clock);
        let since = |began: Stamp| clock.now().since(began).as_secs();
        let busy = || async {
            Err(ExportError::Status(http::StatusCode::TOO_MANY_REQUESTS, Some(Duration::from_secs(30))))
        };
        let began = clock.now();
        let error = again(&closing, health.limit(), busy).await.unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), since(began)),
            ("the collector answered 429 Too Many Requests", 0)
        );
        assert!(health.watch(async { Err(error) }).await.is_err());
        health.rest(&closing).await;
        assert_eq!(since(began), 30);
        let refused = || async { Err(ExportError::Call("http://c:4318".to_owned(), CallError::Refused)) };
        let error = again(&closing, health.limit(), refused).await.unwrap_err();
        assert_eq!(error.to_string(), "http://c:4318: connection refused");
        assert!((30..40).contains(&since(began)), "within its timeout");
    }
}
