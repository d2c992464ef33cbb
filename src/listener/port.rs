//! A [`Handler`] behind a pointer, for ports where speed is not worth a copy of the HTTP server for each of them (100 kB of code).

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::tls::HandshakeFault;
use super::{ClientStream, Handler, HeadFault, KillSwitch, Peer};

/// A response's body, whoever made it.
pub type PortBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// What a port does with requests, as [`Handler`] has it.
pub trait Port: Send + Sync + 'static {
    /// Responds to one request; cancelling `kill` ends the response.
    fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
    ) -> Pin<Box<dyn Future<Output = Response<PortBody>> + Send + '_>>;

    /// Responds to a head that could not be parsed.
    fn reject(&self, fault: HeadFault) -> Response<Bytes>;

    /// A client's TLS handshake failed.
    fn handshake_failed(&self, _: HandshakeFault) {}

    /// Responds to a request that is not served because of its head; its connection closes.
    fn refuse(&self, fault: HeadFault) -> Response<PortBody> {
        port_body(self.reject(fault).map(http_body_util::Full::new))
    }

    /// Responds to a request whose handling panicked.
    fn panicked(&self) -> Response<PortBody>;

    /// A connection was opened; what it holds until it closes.
    fn opened(&self) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
}

/// A response whose body has forgotten its type.
pub fn port_body<B>(response: Response<B>) -> Response<PortBody>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    response.map(|body| UnsyncBoxBody::new(body.map_err(Into::into)))
}

/// The handler of a [`Port`].
#[derive(Clone)]
pub struct Boxed(Arc<dyn Port>);

impl Boxed {
    /// Serves it.
    pub fn new(port: impl Port) -> Self {
        Self(Arc::new(port))
    }
}

impl Handler for Boxed {
    type Body = PortBody;
    type Connection = Arc<Option<Box<dyn Any + Send + Sync>>>;
    type Stream<S: ClientStream> = Box<dyn ClientStream>;

    fn hold<S: ClientStream>(stream: S) -> Box<dyn ClientStream> {
        Box::new(stream)
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
        _: &Self::Connection,
    ) -> Response<PortBody> {
        self.0.handle(request, kill).await
    }

    fn reject(&self, fault: HeadFault) -> Response<Bytes> {
        self.0.reject(fault)
    }

    fn handshake_failed(&self, fault: HandshakeFault) {
        self.0.handshake_failed(fault);
    }

    fn refuse(&self, fault: HeadFault) -> Response<PortBody> {
        self.0.refuse(fault)
    }

    fn panicked(&self) -> Response<PortBody> {
        self.0.panicked()
    }

    fn opened(&self, _: Peer) -> Self::Connection {
        Arc::new(self.0.opened())
    }
}
