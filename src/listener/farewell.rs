//! The end of a connection whose client is still sending.
//!
//! A socket that is closed with unread bytes answers the next ones with a reset, which may overtake the last answer: a
//! client whose upload is refused would see a broken connection in place of the 413 that says why. So our side is shut
//! first, and what still comes is thrown away for a moment, until the client closes
//! too (RFC 9112 §9.6).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Where a connection is in its end.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    is_shut: bool,
    patience: Option<Pin<Box<Sleep>>>,
}

impl Farewell {
    /// Shuts our side. Where the client `may_send` it is ready when that has stopped or the patience is over.
    pub(super) fn poll<S: AsyncRead + AsyncWrite>(
        &mut self,
        mut stream: Pin<&mut S>,
        cx: &mut Context<'_>,
        may_send: bool,
    ) -> Poll<io::Result<()>> {
        if !self.is_shut {
            ready!(stream.as_mut().poll_shutdown(cx))?;
            self.is_shut = true;
        }
        if !may_send {
            return Poll::Ready(Ok(()));
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        let mut unread = [0; PIECE];
        while patience.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut unread);
            let read = ready!(stream.as_mut().poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                // It has closed too, or is gone.
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// For the answer to reach a client that reads only once it has sent all, or has given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Read in one go.
const PIECE: usize = 16 * 1024;
