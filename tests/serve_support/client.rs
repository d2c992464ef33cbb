//! A client of one HTTP/1.1 request a connection; the answer ends where the connection does.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::LIMIT;

/// An answer as it came, chunk sizes included.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole head: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// A stream with its end of the dialect and of the protocol: nothing was cut off.
    pub fn is_complete_stream(&self) -> bool {
        self.body.contains("data: [DONE]\n\n") && self.body.ends_with("0\r\n\r\n")
    }
}

/// A GET; status 0 if the connection is refused.
pub fn get(authority: &str, path: &str) -> Answer {
    match connect(authority) {
        Ok(connection) => exchange(connection, &request("GET", path, "", "")),
        Err(_) => Answer { status: 0, head: String::new(), body: String::new() },
    }
}

/// A GET or POST to the admin port, with a token and the header of changes.
pub fn admin(authority: &str, method: &str, path: &str, token: &str) -> Answer {
    let head = format!("authorization: Bearer {token}\r\nx-tokenway-admin: 1\r\n");
    exchange(connect(authority).unwrap(), &request(method, path, &head, ""))
}

/// A chat request of one user message.
pub fn chat(model: &str, prompt: &str, max_tokens: u32) -> String {
    serde_json::json!({
        "model": model, "stream": true, "max_tokens": max_tokens,
        "messages": [{ "role": "user", "content": prompt }],
    })
    .to_string()
}

/// Posts a chat with an API key and reads the answer to its end.
pub fn post_chat(authority: &str, body: &str, key: &str) -> Answer {
    let head = format!("authorization: Bearer {key}\r\n");
    exchange(connect(authority).unwrap(), &request("POST", CHAT, &head, body))
}

/// A chat whose stream has begun.
pub struct Stream {
    connection: TcpStream,
    read: Vec<u8>,
}

impl Stream {
    /// Posts a chat and reads until the first event is there.
    pub fn begin(authority: &str, body: &str) -> Self {
        let mut connection = connect(authority).unwrap();
        connection.write_all(request("POST", CHAT, "", body).as_bytes()).unwrap();
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains("data: ") {
            let mut buffer = [0; 4_096];
            let n = connection.read(&mut buffer).unwrap();
            assert_ne!(n, 0, "ended before an event: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&buffer[..n]);
        }
        Self { connection, read }
    }

    /// Reads the rest.
    pub fn finish(mut self) -> Answer {
        // A reset keeps what came before it.
        let _ = self.connection.read_to_end(&mut self.read);
        Answer::parse(self.read)
    }
}

/// One request and its answer on a connection of any kind.
pub fn exchange(mut connection: impl Read + Write, request: &str) -> Answer {
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A peer that does not say goodbye is judged by what it said.
    let _ = connection.read_to_end(&mut answer);
    Answer::parse(answer)
}

/// A connection that never waits longer than the limit.
pub fn connect(authority: &str) -> std::io::Result<TcpStream> {
    let connection = TcpStream::connect(authority)?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.set_write_timeout(Some(LIMIT))?;
    Ok(connection)
}

/// The text of a request.
pub fn request(method: &str, path: &str, head: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{head}\r\n{body}",
        body.len()
    )
}

const CHAT: &str = "/v1/chat/completions";
