//! What a listener of clients hands its requests to.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;

use super::{ClientConnection, Gateway, IncomingRequest, reply};
use crate::error::Failure;
use crate::listener::tls::HandshakeFault;
use crate::listener::{ClientStream, Handler, HeadFault, KillSwitch, Peer};
use crate::relay::body::ReplyBody;
use crate::request::arriving::ArrivingBody;
use crate::request::rare::Rare;
use crate::upstream::headers::X_REQUEST_ID;

/// The listener's handler.
#[derive(Clone, Debug)]
pub struct Service(pub Arc<Gateway>);

impl Handler for Service {
    type Body = ReplyBody;
    type Connection = Arc<ClientConnection>;
    type Stream<S: ClientStream> = S;

    fn hold<S: ClientStream>(stream: S) -> S {
        stream
    }

    fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
        connection: &Arc<ClientConnection>,
    ) -> impl Future<Output = Response<ReplyBody>> + Send {
        let (parts, body) = request.into_parts();
        // A future is copied whole when it is first polled: box its state.
        let (gateway, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        let body = Some(ArrivingBody::Http(body));
        let rare = Rare::of(&parts.headers);
        Box::new(IncomingRequest { gateway, parts, rare, body, kill, connection, carrier: None }).answer()
    }

    fn reject(&self, fault: HeadFault) -> Response<Bytes> {
        let failure = match fault {
            HeadFault::Malformed => Failure::MalformedHead,
            HeadFault::UriTooLong => Failure::UriTooLong,
            HeadFault::TooLarge => Failure::HeadTooLarge,
            HeadFault::Ambiguous => Failure::AmbiguousFraming,
            HeadFault::ClearText => Failure::ClearText,
        };
        self.0.observer.metrics.families.requests.http_rejected.inc([failure.code()]);
        reply::unreadable(&failure)
    }

    fn handshake_failed(&self, fault: HandshakeFault) {
        self.0.observer.metrics.families.process.tls_failures.inc([fault.as_str()]);
    }

    fn panicked(&self) -> Response<ReplyBody> {
        let failure = Failure::Internal;
        let response = reply::unreadable(&failure);
        tracing::error!(request_id = ?response.headers().get(X_REQUEST_ID), "serving a request panicked");
        response.map(ReplyBody::own)
    }

    fn refuse(&self, fault: HeadFault) -> Response<ReplyBody> {
        let mut response = self.reject(fault).map(ReplyBody::own);
        response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        response
    }

    fn opened(&self, peer: Peer) -> Arc<ClientConnection> {
        ClientConnection::of(&self.0, peer, Some(self.0.observer.metrics.open_connection()))
    }
}
