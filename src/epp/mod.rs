//! `tokenway epp`: an endpoint picker for Envoy (Gateway API Inference Extension), in front of the same line as `serve`.
//!
//! Envoy opens one gRPC stream for each HTTP request and sends what it receives over it: head and body of the request, then those of
//! the answer. A [`session`] turns that into a request of the line ([`crate::gateway`]) whose carrier is Envoy: the decision goes out
//! as a header, the answer comes back over the same stream and is relayed, timed and recorded as if it had come over a connection of
//! ours. There is no second router here.
//!
//! Protocol: `docs/proposals/004-endpoint-picker-protocol` of the extension, and `envoy.service.ext_proc.v3` of Envoy.

mod codec;
mod fields;
mod health;
mod metadata;
mod proto;
mod session;
mod transfer;

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Status, Streaming};

use self::codec::Proto;
use self::proto::{ProcessingRequest, ProcessingResponse};
use self::session::Session;
use crate::config::{Config, Route};
use crate::error::Failure;
use crate::gateway::{Gateway, reply};
use crate::listener::{HeadFault, KillSwitch, Port, PortBody, port_body};

/// The gRPC port.
#[derive(Debug)]
pub struct EndpointPicker {
    gateway: Arc<Gateway>,
    warned: Arc<Warned>,
}

/// What was logged of Envoy's configuration, which is the same for every request.
#[derive(Debug, Default)]
struct Warned {
    /// It hides answers.
    of_answers: AtomicBool,
    /// No request can be placed with it.
    of_requests: AtomicBool,
}

impl EndpointPicker {
    /// Decides by this gateway.
    pub fn new(gateway: Arc<Gateway>) -> Self {
        let idle = without_effect(&gateway.table.load().config);
        if !idle.is_empty() {
            tracing::warn!(
                "behind Envoy these keys have no effect, its connections are not ours: {}",
                idle.join(", ")
            );
        }
        Self { gateway, warned: Arc::default() }
    }

    async fn process(&self, request: Request<Incoming>, kill: KillSwitch) -> Response<Body> {
        let limit = self.gateway.table.load().config.server.body_limit.saturating_add(ENVELOPE);
        let open = |messages: tonic::Request<Streaming<ProcessingRequest>>| {
            let warned = Arc::clone(&self.warned);
            let session =
                Session::new(Arc::clone(&self.gateway), messages.into_inner(), kill.clone(), warned);
            std::future::ready(Ok::<_, Status>(tonic::Response::new(session)))
        };
        tonic::server::Grpc::new(Proto::<ProcessingResponse, ProcessingRequest>::default())
            .max_decoding_message_size(limit)
            .streaming(tower::service_fn(open), request)
            .await
    }
}

impl Port for EndpointPicker {
    fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
    ) -> Pin<Box<dyn Future<Output = Response<PortBody>> + Send + '_>> {
        Box::pin(async move {
            port_body(match request.uri().path() {
                PROCESS => self.process(request, kill).await,
                health::CHECK => health::check(Arc::clone(&self.gateway), request).await,
                _ => Status::unimplemented("this port has ext_proc v3 and grpc.health.v1 Check").into_http(),
            })
        })
    }

    fn reject(&self, _: HeadFault) -> Response<Bytes> {
        reply::unreadable(&Failure::MalformedHead)
    }

    fn panicked(&self) -> Response<PortBody> {
        tracing::error!("serving a stream of Envoy panicked");
        port_body(Status::internal("internal error of the endpoint picker").into_http::<Body>())
    }

    fn opened(&self) -> Option<Box<dyn Any + Send + Sync>> {
        Some(Box::new(self.gateway.observer.metrics.open_connection()))
    }
}

/// Keys of the file that ask for what only a connection of ours can do.
fn without_effect(config: &Config) -> Vec<&'static str> {
    let has = |uses: fn(&Route) -> bool| config.routes.iter().any(uses);
    let keys = [
        ("server.heartbeat", config.server.heartbeat.is_some()),
        ("route.hedge", has(|route| route.hedge.is_some())),
        ("route.migrate", has(|route| route.migrate)),
        ("route.prefill", has(|route| route.prefill.is_some())),
        ("pool.outside", config.pools.iter().any(|pool| pool.outside.is_some())),
    ];
    keys.into_iter().filter_map(|(key, is_used)| is_used.then_some(key)).collect()
}

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// Bytes of a message beside the body in it.
const ENVELOPE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    #[test]
    fn keys_that_envoys_connections_leave_idle_are_named() {
        let of = |keys: &str| {
            let pool = "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"m\"\npools = [\"p\"]\n";
            without_effect(&check_str("gateway.toml", &format!("{pool}{keys}"), &|_| None).unwrap())
        };
        assert!(of("").is_empty());
        assert_eq!(of("migrate = true\nhedge = { after = \"1s\" }"), ["route.hedge", "route.migrate"]);
        assert_eq!(of("[server]\nheartbeat = \"1s\""), ["server.heartbeat"]);
    }
}
