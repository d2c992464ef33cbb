//! The floor: the least that a reverse proxy on hyper can do, and nothing else.
//!
//! HTTP/1.1 on both sides, `TCP_NODELAY` on both sides, one thread, round robin over the upstreams, a keep-alive
//! pool, bodies streamed frame by frame. It reads no body, retries nothing, measures nothing. A fair floor needs
//! the pool: a connection per request would make every proxy look cheap.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::Failure;

/// The first argument that makes the bench binary be this proxy.
pub(crate) const ROLE: &str = "relay-floor";

/// Serves `args[0]` in front of the other addresses, until it is killed.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let (listen, upstreams) = args.split_first().ok_or("relay-floor LISTEN UPSTREAM…")?;
    let mut floor = Floor { upstreams: Vec::new(), next: AtomicUsize::new(0), tasks: TaskTracker::new() };
    for address in upstreams {
        floor.upstreams.push(Arc::new(Upstream { address: address.parse()?, idle: Mutex::default() }));
    }
    if floor.upstreams.is_empty() {
        return Err("relay-floor needs an upstream".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(accept(listen.parse()?, Arc::new(floor)))
}

struct Floor {
    upstreams: Vec<Arc<Upstream>>,
    next: AtomicUsize,
    tasks: TaskTracker,
}

struct Upstream {
    address: SocketAddr,
    /// Last in, first out: the warmest connection is used again.
    idle: Mutex<Vec<client::SendRequest<Incoming>>>,
}

async fn accept(listen: SocketAddr, floor: Arc<Floor>) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let shared = Arc::clone(&floor);
        let service = service_fn(move |request| forward(Arc::clone(&shared), request));
        floor.tasks.spawn(server::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

async fn forward(floor: Arc<Floor>, mut request: Request<Incoming>) -> Result<Response<Leased>, Failure> {
    let turn = floor.next.fetch_add(1, Relaxed) % floor.upstreams.len();
    let upstream = Arc::clone(&floor.upstreams[turn]);
    request.headers_mut().remove(header::CONNECTION);
    let mut sender = checkout(&upstream, &floor.tasks).await?;
    let mut response = sender.send_request(request).await?;
    response.headers_mut().remove(header::CONNECTION);
    Ok(response.map(|inner| Leased { inner, lease: Some((sender, upstream)) }))
}

async fn checkout(
    upstream: &Upstream,
    tasks: &TaskTracker,
) -> Result<client::SendRequest<Incoming>, Failure> {
    loop {
        let idle = upstream.idle.lock().pop();
        match idle {
            Some(mut sender) => {
                if sender.ready().await.is_ok() {
                    return Ok(sender);
                }
            }
            None => break,
        }
    }
    let socket = TcpStream::connect(upstream.address).await?;
    socket.set_nodelay(true)?;
    let (sender, connection) = client::handshake(TokioIo::new(socket)).await?;
    tasks.spawn(connection);
    Ok(sender)
}

/// A response body that gives its connection back once it was read to its end.
struct Leased {
    inner: Incoming,
    lease: Option<(client::SendRequest<Incoming>, Arc<Upstream>)>,
}

impl Leased {
    fn give_back(&mut self) {
        if let Some((sender, upstream)) = self.lease.take() {
            upstream.idle.lock().push(sender);
        }
    }
}

impl Body for Leased {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // hyper does not poll a body of known length past its last byte.
        if self.inner.is_end_stream() {
            self.give_back();
        }
    }
}
