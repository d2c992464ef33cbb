//! A panic while a request is served ends that request, not its connection's task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// What was polled panicked; the panic hook has logged it.
#[derive(Debug, thiserror::Error)]
#[error("a bug of the gateway ended this response")]
pub(super) struct Panicked;

/// Calls `poll` and returns a panic as an error. What panicked must not be polled again.
pub(super) fn caught<T>(poll: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(poll)).map_err(|_| Panicked)
}

pin_project! {
    /// A future whose panics are its error. Its variables are dropped while the panic unwinds.
    pub(super) struct Caught<F> {
        #[pin]
        pub(super) future: F,
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        match caught(|| future.poll(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}
