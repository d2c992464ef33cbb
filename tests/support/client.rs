//! Clients that hide nothing: HTTP/1.1 on a raw socket, where chunks and aborts show, and HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{soon, wire};

/// One HTTP/1.1 connection.
pub struct Client<S = TcpStream> {
    socket: S,
    buffer: Vec<u8>,
    framing: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Chunked,
    Length(usize),
}

/// A response head.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub text: String,
}

impl Head {
    /// The value of a header that comes once at most.
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = wire::values(&self.text, name);
        assert!(values.len() < 2, "{name} came twice: {values:?}");
        values.first().copied()
    }
}

/// A body, as far as it came.
#[derive(Clone, Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// Its framing ended as it should.
    pub is_complete: bool,
}

/// A whole answer, as far as it came.
#[derive(Clone, Debug)]
pub struct Reply {
    pub head: Head,
    pub body: Body,
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body.bytes).unwrap()
    }

    /// The value of a header that comes once at most.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The replica that answered with success.
    pub fn replica(&self) -> String {
        assert_eq!(self.status(), 200, "{}", self.text());
        self.field("x-tokenway-replica").unwrap().to_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body.bytes).unwrap()
    }

    /// `error.code` of an error in OpenAI's shape, whose four fields are there.
    pub fn code(&self) -> String {
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        for field in ["message", "type", "param", "code"] {
            assert!(error.contains_key(field), "no {field} in {body}");
        }
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::over(soon("connect", TcpStream::connect(addr)).await.unwrap())
    }

    /// A client with a small receive buffer.
    pub fn connect_narrow(addr: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&addr.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self::over(TcpStream::from_std(socket.into()).unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// On a connection that is open.
    pub fn over(socket: S) -> Self {
        Self { socket, buffer: Vec::new(), framing: Framing::Length(0) }
    }

    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.send("POST", path, headers, body).await;
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let length = body.len().to_string();
        let mut headers = headers.to_vec();
        if !body.is_empty() {
            headers.push(("content-length", &length));
            if !headers.iter().any(|(name, _)| *name == "content-type") {
                headers.push(("content-type", "application/json"));
            }
        }
        self.write(method, path, &headers, body).await;
    }

    /// A request whose body is framed by the test.
    pub async fn write(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: gateway\r\n{headers}\r\n").into_bytes();
        request.extend_from_slice(body);
        self.send_raw(request).await;
    }

    /// These bytes. A server that refuses a request need not read it: that it has closed shows when reading.
    pub async fn send_raw(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = soon("send", self.socket.write_all(bytes.as_ref())).await;
        let _ = self.socket.flush().await;
    }

    /// The next head.
    pub async fn head(&mut self) -> Head {
        let end = loop {
            match wire::head_end(&self.buffer) {
                Some(end) => break end,
                None => assert!(self.fill().await, "closed before the head: {:?}", self.buffer),
            }
        };
        let text = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let head = Head { status, text };
        self.framing = match (head.header("transfer-encoding"), head.header("content-length")) {
            (Some("chunked"), None) => Framing::Chunked,
            (None, Some(length)) => Framing::Length(length.parse().unwrap()),
            (None, None) if matches!(head.status, 100..200 | 204 | 304) => Framing::Length(0),
            other => panic!("unclear framing {other:?} in {}", head.text),
        };
        head
    }

    /// The body's bytes until they contain this text.
    pub async fn read_until(&mut self, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        while memchr::memmem::find(&bytes, text.as_bytes()).is_none() {
            let Some(more) = self.piece().await else {
                panic!("no {text:?} in {:?}", String::from_utf8_lossy(&bytes));
            };
            bytes.extend(more);
        }
        bytes
    }

    /// What comes up to these bytes, with them, whatever the framing.
    pub async fn raw_until(&mut self, bytes: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, bytes) {
                return self.buffer.drain(..at + bytes.len()).collect();
            }
            assert!(self.fill().await, "closed before {bytes:?}: {:?}", self.buffer);
        }
    }

    /// What comes first, if anything comes before the end.
    pub async fn read_some(&mut self) -> bool {
        self.fill().await
    }

    /// The rest of the body.
    pub async fn rest(&mut self) -> Body {
        let mut bytes = Vec::new();
        while let Some(more) = self.piece().await {
            if more.is_empty() {
                return Body { bytes, is_complete: true };
            }
            bytes.extend(more);
        }
        Body { bytes, is_complete: false }
    }

    pub async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        Reply { head, body: self.rest().await }
    }

    /// Everything that comes until the other side closes.
    pub async fn until_closed(&mut self) -> Vec<u8> {
        soon("the end of the connection", async { while self.fill().await {} }).await;
        std::mem::take(&mut self.buffer)
    }

    /// Whether the other side closes without another byte.
    pub async fn is_closed(&mut self) -> bool {
        self.until_closed().await.is_empty()
    }

    /// Whether the other side has closed by now.
    pub async fn has_ended(&mut self) -> bool {
        matches!(tokio::time::timeout(Duration::from_millis(1), self.fill()).await, Ok(false))
    }

    /// The next piece of the body: empty at its proper end, `None` where it was cut.
    async fn piece(&mut self) -> Option<Vec<u8>> {
        match self.framing {
            Framing::Chunked => self.chunk().await,
            Framing::Length(0) => Some(Vec::new()),
            Framing::Length(left) => {
                if self.buffer.is_empty() && !self.fill().await {
                    return None;
                }
                let piece: Vec<u8> = self.buffer.drain(..left.min(self.buffer.len())).collect();
                self.framing = Framing::Length(left - piece.len());
                Some(piece)
            }
        }
    }

    /// One chunk of a chunked body; empty at its end, `None` where it was cut.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line_end = loop {
            match memchr::memmem::find(&self.buffer, b"\r\n") {
                Some(at) => break at,
                None if self.fill().await => {}
                None => return None,
            }
        };
        let length = std::str::from_utf8(&self.buffer[..line_end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        let (start, end) = (line_end + 2, line_end + 2 + length);
        while self.buffer.len() < end + 2 {
            if !self.fill().await {
                return None;
            }
        }
        let chunk = self.buffer[start..end].to_vec();
        self.buffer.drain(..end + 2);
        Some(chunk)
    }

    /// Reads more; `false` at the end of the connection, by a FIN or a RST.
    async fn fill(&mut self) -> bool {
        matches!(soon("bytes of the gateway", self.socket.read_buf(&mut self.buffer)).await, Ok(n) if n > 0)
    }
}

/// One HTTP/2 connection with prior knowledge.
pub struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
}

impl Http2 {
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    pub async fn connect(addr: SocketAddr) -> Self {
        let socket = soon("connect", TcpStream::connect(addr)).await.unwrap();
        let (sender, connection) =
            soon("handshake", http2::handshake(TokioExecutor::new(), TokioIo::new(socket))).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub async fn post(&mut self, path: &str, body: &str) -> http::Response<Incoming> {
        let uri = format!("http://gateway{path}");
        let request = Request::post(uri).body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        soon("response head", self.sender.send_request(request)).await.unwrap()
    }
}

/// The rest of an HTTP/2 body, and the error that ended it.
pub async fn read_http2(mut body: Incoming) -> (Vec<u8>, Option<hyper::Error>) {
    let mut bytes = Vec::new();
    loop {
        match soon("frame", body.frame()).await {
            None => return (bytes, None),
            Some(Err(error)) => return (bytes, Some(error)),
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().unwrap()),
        }
    }
}
