//! An HTTP/2 client of single frames: it takes and grants exactly what a test says.
//!
//! Header blocks are written without compression and read no further than `:status 200`, which is one byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;

/// The client preface (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// One frame.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The error code of RST_STREAM; of GOAWAY that after the last stream.
    pub fn reason(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// One connection.
pub struct Connection {
    socket: TcpStream,
}

impl Connection {
    /// Connects and introduces itself; the connection's window is opened wide.
    pub async fn open(addr: SocketAddr) -> Self {
        let mut this = Self { socket: soon("a connection", TcpStream::connect(addr)).await.unwrap() };
        this.send(PREFACE).await;
        this.begin().await;
        this
    }

    /// Connects, and answers nothing by itself.
    pub async fn silent(addr: SocketAddr) -> Self {
        let mut this = Self { socket: soon("a connection", TcpStream::connect(addr)).await.unwrap() };
        this.send(PREFACE).await;
        this.send(&frame(SETTINGS, 0, 0, &[])).await;
        this
    }

    /// The settings of the other side, by their numbers (RFC 9113 §6.5.2).
    pub async fn settings(&mut self) -> BTreeMap<u16, u32> {
        let frame = soon("settings", self.read()).await.unwrap();
        assert_eq!(frame.kind, SETTINGS);
        let entry = |entry: &[u8]| {
            let value = [entry[2], entry[3], entry[4], entry[5]];
            (u16::from_be_bytes([entry[0], entry[1]]), u32::from_be_bytes(value))
        };
        frame.payload.chunks_exact(6).map(entry).collect()
    }

    /// The same without the preface.
    pub async fn begin(&mut self) {
        self.send(&frame(SETTINGS, 0, 0, &[])).await;
        self.send(&window_update(0, 1 << 30)).await;
    }

    /// On a socket whose preface the test sends by itself.
    pub fn over(socket: TcpStream) -> Self {
        Self { socket }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = soon("the client may write", self.socket.write_all(bytes)).await;
    }

    /// A POST with its body.
    pub async fn post(&mut self, stream: u32, script: &str, body: &str) {
        let fields = [("content-type", "application/json"), ("x-script", script)];
        self.send(&headers(stream, "POST", "/v1/chat/completions", &fields, false)).await;
        self.send(&frame(DATA, END_STREAM, stream, body.as_bytes())).await;
    }

    /// The next frame that is not housekeeping; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = soon("a frame", self.read()).await?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.send(&frame_ack()).await,
                PING if frame.flags & ACK == 0 => {
                    let pong = self::frame(PING, ACK, 0, &frame.payload);
                    self.send(&pong).await;
                }
                DATA | HEADERS | RST_STREAM | GOAWAY => return Some(frame),
                _ => {}
            }
        }
    }

    /// Reads on to the first frame of this kind on this stream.
    pub async fn until(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            let Some(frame) = self.next().await else { panic!("closed before frame {kind} on {stream}") };
            if frame.kind == kind && frame.stream == stream {
                return frame;
            }
        }
    }

    pub async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.socket.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn frame_ack() -> Vec<u8> {
    frame(SETTINGS, ACK, 0, &[])
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// A whole header block: pseudo-header fields, then these.
pub fn headers(stream: u32, method: &str, path: &str, fields: &[(&str, &str)], ends_stream: bool) -> Vec<u8> {
    let mut block = Vec::new();
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", "gateway"), (":path", path)];
    for (name, value) in pseudo.iter().chain(fields) {
        // Literal without indexing, new name, no Huffman (RFC 7541 §6.2.2).
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|n| *n < 127).unwrap());
            block.extend(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS | if ends_stream { END_STREAM } else { 0 }, stream, &block)
}

/// Whether a HEADERS frame begins with `:status 200` (static table, RFC 7541 appendix A).
pub fn is_ok(frame: &Frame) -> bool {
    frame.kind == HEADERS && frame.payload.first() == Some(&0x88)
}
