//! Lingering close (RFC 9112 §9.6) of a connection whose client may still be sending.
//!
//! A socket closed with unread bytes answers further ones with a reset, which may overtake the last response: a client
//! whose upload is refused would see a broken connection in place of the 413. So the write side is shut first, and
//! input is discarded until the client closes or stops sending, within [`LINGER_TOTAL`] and [`MAX_DISCARDED`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

#[derive(Debug, Default)]
pub(super) struct LingeringClose {
    is_shut: bool,
    linger: Option<Box<Linger>>,
}

/// For how long input is still discarded.
#[derive(Debug)]
struct Linger {
    pause: Pin<Box<Sleep>>,
    total: Pin<Box<Sleep>>,
    discarded: usize,
    /// Of it, what was discarded when the pause began.
    before_pause: usize,
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
        let linger = self.linger.get_or_insert_with(|| Box::new(Linger::begin()));
        let mut discarded = [0; READ_SIZE];
        while !linger.is_over(cx) {
            let mut buffer = ReadBuf::new(&mut discarded);
            let read = ready!(stream.as_mut().poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            linger.discarded += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

impl Linger {
    fn begin() -> Self {
        let (pause, total) = (Box::pin(sleep(LINGER)), Box::pin(sleep(LINGER_TOTAL)));
        Self { pause, total, discarded: 0, before_pause: 0 }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        while self.pause.as_mut().poll(cx).is_ready() {
            if self.discarded == self.before_pause {
                return true;
            }
            self.before_pause = self.discarded;
            self.pause.set(sleep(LINGER));
        }
        self.discarded > MAX_DISCARDED || self.total.as_mut().poll(cx).is_ready()
    }
}

/// Time for a client that reads only after it has sent everything, and longest pause while it sends.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_TOTAL: Duration = Duration::from_secs(30);
/// Twice the default of `server.body_limit`.
const MAX_DISCARDED: usize = 64 << 20;
const READ_SIZE: usize = 16 * 1024;
