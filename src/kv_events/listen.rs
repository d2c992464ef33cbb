//! Where engines connect whose endpoint is `tcp://HOST:PORT`: a connection belongs to the replica with the topic of its first message.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::wire::{Socket, Wire};
use crate::background::boxed_until;

/// A publisher's connection and its first message.
pub(super) type Arrived = (Wire<TcpStream>, Vec<bytes::BytesMut>);

/// Replicas by topic.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<HashMap<String, mpsc::Sender<Arrived>>>);

impl Topics {
    /// From now on connections with one of these topics go to `sender`.
    pub(super) fn expect(&self, topics: impl IntoIterator<Item = String>, sender: &mpsc::Sender<Arrived>) {
        let mut known = self.0.lock();
        known.retain(|_, sender| !sender.is_closed());
        known.extend(topics.into_iter().map(|topic| (topic, sender.clone())));
    }

    fn of(&self, topic: &[u8]) -> Option<mpsc::Sender<Arrived>> {
        self.0.lock().get(std::str::from_utf8(topic).ok()?).cloned()
    }
}

/// Accepts publishers until `stopped`.
pub(super) async fn listen(
    at: SocketAddr,
    topics: Arc<Topics>,
    tracker: TaskTracker,
    stopped: CancellationToken,
) {
    let mut is_logged = false;
    loop {
        let listener = match TcpListener::bind(at).await {
            Ok(listener) => listener,
            Err(error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(%at, %error, "kv_events: cannot listen; trying again");
                }
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        };
        is_logged = false;
        let places = Arc::new(tokio::sync::Semaphore::new(MAX_GREETING));
        while let Ok((stream, from)) = listener.accept().await {
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let topics = Arc::clone(&topics);
            let greeting = async move {
                let _ = tokio::time::timeout(GREETED_WITHIN, greet(stream, from, &topics)).await;
                drop(place);
            };
            tracker.spawn(boxed_until(&stopped, greeting));
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn greet(stream: TcpStream, from: SocketAddr, topics: &Topics) {
    let probe = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&probe);
    let Ok(mut wire) = Wire::open(stream, Socket::Sub).await else { return };
    let Ok(first) = wire.message().await else { return };
    match first.first().and_then(|topic| topics.of(topic)) {
        Some(replica) => drop(replica.try_send((wire, first))),
        None => tracing::debug!(%from, "kv_events: a publisher whose topic is no replica's"),
    }
}

const KEEPALIVE: Duration = Duration::from_secs(15);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Connections that have yet to send their first message: engines without traffic stay so, and come back.
const MAX_GREETING: usize = 1024;
const GREETED_WITHIN: Duration = Duration::from_secs(600);
