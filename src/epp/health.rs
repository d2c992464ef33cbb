//! `grpc.health.v1`: what probes of Kubernetes and health checks of Envoy ask.
//!
//! The names are those of the extension's own picker. `Watch` is not served, which clients take for «ask by Check».

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use super::codec::Proto;
use super::proto::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::gateway::{Gateway, local};

pub(super) async fn check(gateway: Arc<Gateway>, request: Request<Incoming>) -> Response<Body> {
    let answer = move |asked: tonic::Request<HealthCheckRequest>| {
        let status = match &*asked.into_inner().service {
            "liveness" => Ok(ServingStatus::Serving),
            "" | "readiness" | "envoy.service.ext_proc.v3.ExternalProcessor" => Ok(readiness(&gateway)),
            _ => Err(Status::not_found("no such service: liveness and readiness are")),
        };
        let answer = status.map(|status| HealthCheckResponse { status: status as i32 });
        std::future::ready(answer.map(tonic::Response::new))
    };
    tonic::server::Grpc::new(Proto::<HealthCheckResponse, HealthCheckRequest>::default())
        .unary(tower::service_fn(answer), request)
        .await
}

/// As `/health` of the data port.
fn readiness(gateway: &Gateway) -> ServingStatus {
    let health = local::health(&gateway.table.load(), gateway.drain.is_on());
    if health.status().is_success() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
