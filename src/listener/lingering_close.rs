//! Lingering close (RFC 9112 §9.6) of a connection whose client may still be sending.
//!
//! A socket closed with unread bytes answers further ones with a reset, which may overtake the last response: a client
//! whose upload is refused would see a broken connection in place of the 413. So the write side is shut first, and
//! input is discarded until the client closes or [`LINGER`] is over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Progress of a lingering close.
#[derive(Debug, Default)]
pub(super) struct LingeringClose {
    is_shut: bool,
    linger: Option<Pin<Box<Sleep>>>,
}

impl LingeringClose {
    /// Shuts the write side; where the client `may_send`, then discards input.
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
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut discarded = [0; READ_SIZE];
        while linger.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut discarded);
            let read = ready!(stream.as_mut().poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Time for a client that reads only after it has sent everything.
const LINGER: Duration = Duration::from_secs(2);
const READ_SIZE: usize = 16 * 1024;
