//! A Kubernetes API server that says what a script says, over loopback HTTP.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::until;

/// The answer to one GET.
pub(crate) enum Answer {
    Page(u16, String),
    /// A watch that goes on until its sender says how it ends.
    Watch(mpsc::Receiver<Feed>),
}

pub(crate) enum Feed {
    Event(String),
    /// In order.
    End,
    /// Without the last chunk.
    Drop,
}

pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// With a part of the target that each is for.
    answers: Mutex<VecDeque<(&'static str, Answer)>>,
    asked: Mutex<Vec<String>>,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let accepting = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&accepting)));
            }
        });
        Self { address, state }
    }

    pub(crate) fn next(&self, answer: Answer) {
        self.next_of("", answer);
    }

    /// The next GET whose target has this in it.
    pub(crate) fn next_of(&self, part: &'static str, answer: Answer) {
        self.state.answers.lock().push_back((part, answer));
    }

    /// The next GET is a watch, which the sender feeds.
    pub(crate) fn next_watch(&self) -> mpsc::Sender<Feed> {
        self.next_watch_of("")
    }

    pub(crate) fn next_watch_of(&self, part: &'static str) -> mpsc::Sender<Feed> {
        let (feed, events) = mpsc::channel(16);
        self.next_of(part, Answer::Watch(events));
        feed
    }

    /// Targets of the requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.state.asked.lock().clone()
    }

    pub(crate) async fn asked_times(&self, count: usize) {
        until("the API server is asked", || self.asked().len() >= count).await;
    }
}

async fn serve(mut socket: TcpStream, state: Arc<State>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(!head.to_ascii_lowercase().contains("authorization"), "credentials in the clear: {head}");
    let target = head.split(' ').nth(1).unwrap().to_owned();
    let answer = {
        let mut answers = state.answers.lock();
        let place = answers.iter().position(|(part, _)| target.contains(part));
        place.and_then(|place| answers.remove(place)).map(|(_, answer)| answer)
    };
    state.asked.lock().push(target);
    match answer {
        // Out of script: the server is away.
        None => {}
        Some(Answer::Page(status, body)) => {
            let head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
        }
        Some(Answer::Watch(mut feed)) => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let _ = socket.write_all(head.as_bytes()).await;
            while let Some(what) = feed.recv().await {
                match what {
                    Feed::Event(line) => {
                        // Cut in two: events do not come as they were written.
                        let (one, two) = line.split_at(line.len() / 2);
                        for part in [one, two, "\n"] {
                            let chunk = format!("{:x}\r\n{part}\r\n", part.len());
                            let _ = socket.write_all(chunk.as_bytes()).await;
                        }
                    }
                    Feed::End => {
                        let _ = socket.write_all(b"0\r\n\r\n").await;
                        return;
                    }
                    Feed::Drop => return,
                }
            }
        }
    }
}
