//! Batches that were missed, from the publisher's buffer.

use std::io;
use std::time::Duration;

use bytes::BytesMut;

use super::wire::{Socket, Wire, WireError};
use crate::config::Endpoint;
use crate::upstream::connect::Connector;
use crate::upstream::socket::Stream;

/// A replay in progress.
#[derive(Debug)]
pub(super) struct Replay {
    wire: Wire<Stream>,
    from: u64,
    left: usize,
}

impl Replay {
    /// Asks for the batches from a number on.
    pub(super) async fn ask(
        connector: &Connector,
        endpoint: &Endpoint,
        from: u64,
    ) -> Result<Self, WireError> {
        let asking = async {
            let mut wire = Wire::open(connector.open(endpoint).await?, Socket::Dealer).await?;
            wire.ask(&from.to_be_bytes()).await?;
            Ok(Self { wire, from, left: MAX_BATCHES })
        };
        within(asking).await
    }

    /// The next batch with its number; `None` behind the last.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, BytesMut)>, WireError> {
        while self.left > 0 {
            self.left -= 1;
            let mut message = within(self.wire.message()).await?;
            let payload = message.pop().unwrap_or_default();
            let number =
                message.last().and_then(|frame| frame.first_chunk().copied().map(u64::from_be_bytes));
            match number.ok_or(WireError::NotZmtp)? {
                END => return Ok(None),
                number if number >= self.from => return Ok(Some((number, payload))),
                _ => {}
            }
        }
        Err(WireError::TooLong)
    }
}

async fn within<T>(asking: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = || WireError::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(WITHIN, asking).await.unwrap_or_else(|_| Err(silent()))
}

/// Marks the end: -1.
const END: u64 = u64::MAX;
/// vLLM keeps 10,000 unless configured otherwise.
const MAX_BATCHES: usize = 1 << 20;
/// For the connection, and for each batch.
const WITHIN: Duration = Duration::from_secs(5);
