//! A connection whose writes must make progress.
//!
//! A scraper that stops reading would hold a page in memory and one of few connections for as long as it likes.
//! hyper has no limit for writes; this wrapper fails a write that is stuck too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pin_project! {
    /// Fails writes that do not get on for `limit`.
    pub(super) struct Patient<S> {
        #[pin]
        inner: S,
        limit: Duration,
        stuck: Option<Pin<Box<Sleep>>>,
    }
}

impl<S> Patient<S> {
    pub(super) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, stuck: None }
    }
}

/// Lets a result through; a pending one starts the timer, or fails when it has run out.
fn bounded<T>(
    result: Poll<io::Result<T>>,
    stuck: &mut Option<Pin<Box<Sleep>>>,
    limit: Duration,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if result.is_ready() {
        *stuck = None;
        return result;
    }
    let timer = stuck.get_or_insert_with(|| Box::pin(sleep(limit)));
    if timer.as_mut().poll(cx).is_ready() {
        return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
    }
    Poll::Pending
}

impl<S: AsyncRead> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_read(cx, buf)
    }
}

impl<S: AsyncWrite> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        bounded(this.inner.poll_write(cx, buf), this.stuck, *this.limit, cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        bounded(this.inner.poll_flush(cx), this.stuck, *this.limit, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        bounded(this.inner.poll_shutdown(cx), this.stuck, *this.limit, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_fails_in_the_end() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut patient = Patient::new(near, Duration::from_secs(10));
        patient.write_all(&[0; 16]).await.unwrap();
        let error = patient.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        far.read_exact(&mut [0; 16]).await.unwrap();
    }
}
