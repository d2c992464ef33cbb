//! An engine's publisher of KV events as a test scripts it: PUB and ROUTER of ZeroMQ, by hand.

#![allow(clippy::disallowed_methods, reason = "scripted servers are tasks of the test")]

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use crate::support::until;

/// A publisher; what it sent it replays, from `kept` on.
pub(crate) struct Publisher {
    pub(crate) port: u16,
    pub(crate) replay_port: u16,
    state: Arc<State>,
    tasks: Vec<JoinHandle<()>>,
}

struct State {
    topic: String,
    sending: broadcast::Sender<Vec<u8>>,
    buffer: Mutex<Vec<(u64, Vec<u8>)>>,
    replays: Mutex<Vec<u64>>,
}

impl Publisher {
    /// Waits for subscribers.
    pub(crate) async fn start() -> Self {
        let (live, replay) = (listener().await, listener().await);
        let mut publisher = Self::new("");
        publisher.port = live.local_addr().unwrap().port();
        publisher.replay_port = replay.local_addr().unwrap().port();
        let state = Arc::clone(&publisher.state);
        publisher.tasks.push(tokio::spawn(async move {
            while let Ok((stream, _)) = live.accept().await {
                tokio::spawn(publish(stream, Arc::clone(&state)));
            }
        }));
        let state = Arc::clone(&publisher.state);
        publisher.tasks.push(tokio::spawn(async move {
            while let Ok((stream, _)) = replay.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&state)));
            }
        }));
        publisher
    }

    /// Connects to a subscriber.
    pub(crate) async fn connect(to: SocketAddr, topic: &str) -> Self {
        let mut publisher = Self::new(topic);
        let state = Arc::clone(&publisher.state);
        publisher.tasks.push(tokio::spawn(async move {
            loop {
                if let Ok(stream) = TcpStream::connect(to).await {
                    publish(stream, Arc::clone(&state)).await;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }));
        publisher
    }

    fn new(topic: &str) -> Self {
        let (topic, sending) = (topic.to_owned(), broadcast::channel(64).0);
        let state = State { topic, sending, buffer: Mutex::default(), replays: Mutex::default() };
        Self { port: 0, replay_port: 0, state: Arc::new(state), tasks: Vec::new() }
    }

    pub(crate) async fn subscribed(&self) {
        until("a subscriber is there", || self.state.sending.receiver_count() > 0).await;
    }

    /// Publishes a batch, which stays in the buffer.
    pub(crate) fn send(&self, number: u64, payload: Vec<u8>) {
        self.keep(number, payload.clone());
        self.send_raw(&self.message(number, &payload));
    }

    /// Puts a batch into the buffer that no subscriber gets.
    pub(crate) fn keep(&self, number: u64, payload: Vec<u8>) {
        self.state.buffer.lock().push((number, payload));
    }

    /// Another process: it has nothing in its buffer.
    pub(crate) fn restart(&self) {
        self.state.buffer.lock().clear();
    }

    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        let _ = self.state.sending.send(bytes.to_vec());
    }

    pub(crate) fn message(&self, number: u64, payload: &[u8]) -> Vec<u8> {
        [frame(1, self.state.topic.as_bytes()), frame(1, &number.to_be_bytes()), frame(0, payload)].concat()
    }

    /// From which numbers on replays were asked for.
    pub(crate) fn replays(&self) -> Vec<u64> {
        self.state.replays.lock().clone()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn greet(stream: &mut TcpStream, kind: &str) -> std::io::Result<()> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    stream.write_all(&greeting).await?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await?;
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&u32::try_from(kind.len()).unwrap().to_be_bytes());
    ready.extend_from_slice(kind.as_bytes());
    stream.write_all(&frame(4, &ready)).await?;
    read_frame(stream).await.map(|_| ())
}

async fn publish(mut stream: TcpStream, state: Arc<State>) {
    if greet(&mut stream, "PUB").await.is_err() || read_frame(&mut stream).await.ok() != Some(vec![1]) {
        return;
    }
    let mut messages = state.sending.subscribe();
    let mut byte = [0];
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Ok(message) if stream.write_all(&message).await.is_ok() => {}
                _ => return,
            },
            _ = stream.read(&mut byte) => return,
        }
    }
}

async fn answer(mut stream: TcpStream, state: Arc<State>) {
    if greet(&mut stream, "ROUTER").await.is_err() {
        return;
    }
    let Ok(empty) = read_frame(&mut stream).await else { return };
    assert_eq!(empty, b"", "a delimiter first");
    let Ok(from) = read_frame(&mut stream).await else { return };
    let from = u64::from_be_bytes(from.try_into().unwrap());
    state.replays.lock().push(from);
    let buffer = state.buffer.lock().clone();
    let mut bytes = Vec::new();
    for (number, payload) in buffer.iter().filter(|(number, _)| *number >= from) {
        let parts = [frame(1, b""), frame(1, b""), frame(1, &number.to_be_bytes()), frame(0, payload)];
        bytes.extend(parts.concat());
    }
    bytes.extend([frame(1, b""), frame(1, b""), frame(1, &u64::MAX.to_be_bytes()), frame(0, b"")].concat());
    let _ = stream.write_all(&bytes).await;
    let _ = stream.read(&mut [0]).await;
}

async fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = match u8::try_from(body.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => [vec![flags | 2], (body.len() as u64).to_be_bytes().to_vec()].concat(),
    };
    frame.extend_from_slice(body);
    frame
}
