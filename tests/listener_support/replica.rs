//! The scripted replica of [`crate::support`], obedient to `x-script` about what it answers and strict about what it is sent:
//! one Content-Length, no transfer coding, as the strictest server would be.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::support::replica::{Received, Step};
use crate::support::{self, wire};

/// A replica on a port of its own.
#[derive(Clone)]
pub struct Replica {
    replica: Arc<support::replica::Replica>,
    /// Each permit lets one event of a `gated` stream go.
    events: Arc<Semaphore>,
}

impl Deref for Replica {
    type Target = support::replica::Replica;

    fn deref(&self) -> &Self::Target {
        &self.replica
    }
}

impl Replica {
    pub async fn start() -> Self {
        let events = Arc::new(Semaphore::new(0));
        let replica = Arc::new(support::replica::Replica::start().await);
        replica.lists(r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#);
        let permits = Arc::clone(&events);
        replica.answers(move |request| match fault(request) {
            Some(_) => vec![Step::Close],
            None => script(request.header("x-script").unwrap_or("unary"), &permits),
        });
        Self { replica, events }
    }

    /// Everything that was sent to it so far.
    pub fn seen(&self) -> Vec<Received> {
        self.received()
    }

    /// Lets `count` further events of gated streams go.
    pub fn let_go(&self, count: usize) {
        self.events.add_permits(count);
    }
}

fn script(name: &str, events: &Arc<Semaphore>) -> Vec<Step> {
    let begun = |rest: Vec<Step>| {
        [SSE_HEAD.as_bytes().to_vec(), wire::chunk(event("first").as_bytes())]
            .map(Step::Raw)
            .into_iter()
            .chain(rest)
            .collect()
    };
    match name {
        "flood" => {
            let event = event(&"x".repeat(8000)).into_bytes();
            vec![Step::Raw(SSE_HEAD.into()), Step::Flood(event, usize::MAX)]
        }
        // An event for each permit, 3 after the first one, then the end.
        "gated" => {
            let word = |word| [Step::Permit(Arc::clone(events)), wire::event(event(word))];
            let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
            let end = [wire::event(format!("{end}\n\ndata: [DONE]\n\n")), Step::End];
            begun(["second", "third", "fourth"].into_iter().flat_map(word).chain(end).collect())
        }
        "silent" => vec![Step::Hang],
        // One event, then the end of the connection inside the body.
        "broken" => begun(vec![Step::Close]),
        "medium" => vec![large("200 OK", MEDIUM, MEDIUM)],
        "large" => vec![large("200 OK", LARGE, LARGE)],
        "large-error" => vec![large("500 Error", LARGE, LARGE)],
        "large-cut" => vec![large("200 OK", LARGE, LARGE * 3 / 4), Step::Close],
        _ => wire::json(200, UNARY),
    }
}

/// Bytes of a `large` answer.
pub const LARGE: usize = 2 << 20;

/// Bytes of a `medium` answer: one that is held whole where there is memory.
pub const MEDIUM: usize = 900_000;

/// An answer of `length` bytes, of which only some are sent.
fn large(status: &str, length: usize, sent: usize) -> Step {
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    Step::Raw([head.as_bytes(), &vec![b' '; sent]].concat())
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

/// Why no engine should have been sent this: what the gateway promises never to send.
pub fn fault(seen: &Received) -> Option<String> {
    let line: Vec<&str> = seen.line().split(' ').collect();
    let is_request =
        matches!(line[..], ["GET" | "POST" | "HEAD" | "OPTIONS", path, "HTTP/1.1"] if path.starts_with('/'));
    if !is_request {
        return Some(format!("not a request line: {:?}", seen.line()));
    }
    for gone in ["transfer-encoding", "te", "upgrade", "trailer", "keep-alive", "proxy-connection", "expect"]
    {
        if !seen.all(gone).is_empty() {
            return Some(format!("{gone} crossed"));
        }
    }
    let lengths = seen.all("content-length");
    let is_number = |n: &&str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    if lengths.len() > 1 || !lengths.iter().all(is_number) || (lengths.is_empty() && line[0] == "POST") {
        return Some(format!("content-length {lengths:?}"));
    }
    if seen.all("host").len() != 1 {
        return Some("not exactly one host".into());
    }
    let is_odd = |b: u8| b != b'\r' && b != b'\n' && b != b'\t' && (b < 0x20 || b == 0x7f);
    let bare = seen.head.replace("\r\n", "");
    (bare.contains(['\r', '\n']) || seen.head.bytes().any(is_odd)).then(|| "control bytes in the head".into())
}

const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const UNARY: &str = r#"{"id":"c1","object":"list","data":[{"id":"m","object":"model"}],"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}"#;
