//! The task that exports metrics at an interval, and once more at the end.
//!
//! The page of metrics and the exponential histograms, encoded here and sent over the same transports as spans: the SDK's
//! reader would want every observation to go through its own instruments, which cost more than the two atomic additions
//! of ours. A collector that hangs, refuses or is gone costs counted exports and nothing else; totals are cumulative, so
//! that the next export that arrives has everything.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1 as proto;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::codec::CompressionEncoding;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::{CollectorError, Headers, Health, Http, PROTOBUF, Route, Transport, resource, tls};
use crate::config::{OtlpMetrics, Temporality};
use crate::fleet::status::FleetView;
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics, since};

/// The running export.
pub(crate) struct MetricsExport {
    closing: CancellationToken,
    done: CancellationToken,
}

impl MetricsExport {
    /// Starts the task.
    ///
    /// # Errors
    /// The endpoint is unusable or TLS cannot be set up. A collector that does not answer is no error.
    pub(crate) fn start(
        config: &OtlpMetrics,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, CollectorError> {
        let background = &around.background;
        let route = Route {
            protocol: config.protocol,
            headers: Headers(config.headers.iter().cloned().collect()),
            timeout: config.timeout,
            connector: tls::connector("METRICS_", background.tasks.clone())?,
            background: background.clone(),
            clock: around.clock,
        };
        let (transport, health) = route.transport(&config.endpoint, "metrics")?;
        let resource = ResourceAttributesWithSchema::from(&resource(around.build, &around.instance));
        let sender = match transport {
            Transport::Http(http) => {
                Sender::Http { http, url: config.endpoint.clone(), is_gzip: config.is_gzip }
            }
            Transport::Grpc(channel, headers) => {
                let client = MetricsServiceClient::with_interceptor(channel, headers);
                let is_gzip = config.is_gzip;
                Sender::Grpc(if is_gzip { client.send_compressed(CompressionEncoding::Gzip) } else { client })
            }
        };
        let this = Self { closing: CancellationToken::new(), done: CancellationToken::new() };
        let task = Task {
            sender,
            health,
            resource: proto::Resource { attributes: resource.attributes.0, ..proto::Resource::default() },
            metrics: Arc::clone(metrics),
            fleet: around.fleet.clone(),
            temporality: config.temporality,
            delivered: Vec::new(),
            closing: this.closing.clone(),
        };
        let (done, interval) = (this.done.clone().drop_guard(), config.interval);
        let run = async move {
            task.run(interval).await;
            drop(done);
        };
        background.tasks.spawn_on(run, &background.runtime);
        Ok(this)
    }

    /// Exports a last time, for at most `limit`.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.closing.cancel();
        if tokio::time::timeout(limit, self.done.cancelled()).await.is_err() {
            tracing::warn!(?limit, "the last metrics were not exported before the end");
        }
    }
}

struct Task {
    sender: Sender,
    health: Health,
    resource: proto::Resource,
    metrics: Arc<Metrics>,
    fleet: FleetView,
    temporality: Temporality,
    /// What the last delta that arrived was counted to.
    delivered: Vec<Metric>,
    closing: CancellationToken,
}

impl Task {
    async fn run(mut self, interval: Duration) {
        let closing = self.closing.clone();
        loop {
            // Cancel-safe: nothing happens while it sleeps.
            let is_last = closing.run_until_cancelled(tokio::time::sleep(interval)).await.is_none();
            // An export that hangs must not keep the last one waiting.
            let export = Box::pin(self.export());
            if is_last {
                export.await;
                return;
            }
            if closing.run_until_cancelled(export).await.is_none() {
                Box::pin(self.export()).await;
                return;
            }
        }
    }

    async fn export(&mut self) {
        let fleet = self.fleet.statuses();
        let metrics = Arc::clone(&self.metrics);
        // Of a large page this takes tens of milliseconds, and probes share the runtime's thread.
        let Ok(now) = tokio::task::spawn_blocking(move || metrics.otlp(&fleet)).await else { return };
        let (export, delivered) = match self.temporality {
            Temporality::Cumulative => (now, Vec::new()),
            Temporality::Delta => (since(&now, &self.delivered), now),
        };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![self.wrapped(export)] };
        let is_sent = self.health.watch(self.sender.send(request)).await;
        let result = if is_sent { DeliveryResult::Sent } else { DeliveryResult::Failed };
        self.metrics.families.process.otlp_exports.inc([result.as_str()]);
        if is_sent {
            self.delivered = delivered;
        }
    }

    fn wrapped(&self, metrics: Vec<Metric>) -> ResourceMetrics {
        let scope = InstrumentationScope {
            name: "tokenway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }
    }
}

enum Sender {
    Http { http: Http, url: String, is_gzip: bool },
    Grpc(MetricsServiceClient<InterceptedService<Channel, Headers>>),
}

impl Sender {
    async fn send(&mut self, export: ExportMetricsServiceRequest) -> Result<(), ExportError> {
        let answer = match self {
            Self::Http { http, url, is_gzip } => {
                let mut request = Request::post(&*url).body(encoded(&export, *is_gzip)?)?;
                request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
                if *is_gzip {
                    request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                }
                let answer = http.send(request).await?;
                if !answer.status().is_success() {
                    return Err(ExportError::Status(answer.status()));
                }
                // Some collectors answer with an empty body or with JSON.
                ExportMetricsServiceResponse::decode(answer.into_body()).unwrap_or_default()
            }
            Self::Grpc(client) => client
                .export(export)
                .await
                .map_err(|status| ExportError::Grpc(Box::new(status)))?
                .into_inner(),
        };
        match answer.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => Err(ExportError::Rejected {
                points: partial.rejected_data_points,
                message: partial.error_message,
            }),
            _ => Ok(()),
        }
    }
}

fn encoded(export: &ExportMetricsServiceRequest, is_gzip: bool) -> Result<Bytes, ExportError> {
    let plain = export.encode_to_vec();
    if !is_gzip {
        return Ok(plain.into());
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain)?;
    Ok(gzip.finish()?.into())
}

/// Why an export did not arrive.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector answered {0}")]
    Status(http::StatusCode),
    #[error("the collector rejected {points} data points: {message}")]
    Rejected { points: i64, message: String },
    #[error("{0}")]
    Grpc(Box<tonic::Status>),
    #[error(transparent)]
    Call(#[from] crate::upstream::call::CallError),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error("gzip: {0}")]
    Gzip(#[from] std::io::Error),
}
