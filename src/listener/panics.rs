//! A panic while a request is served ends that request, not its connection's task.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// What was polled panicked; the panic hook has logged it.
#[derive(Debug, thiserror::Error)]
#[error("a bug of the gateway ended this response")]
pub(super) struct Panicked;

/// Calls `poll` and returns a panic as an error. What panicked must not be polled again.
pub(super) fn caught<T>(poll: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(poll)).map_err(|_| Panicked)
}

/// A future with its panics as an error. Its variables are dropped while the panic unwinds.
pub(super) async fn catching<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panicked> {
    poll_fn(|cx| match caught(|| future.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}
