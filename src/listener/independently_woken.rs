//! A future with a waker of its own, polled only after that waker was woken.
//!
//! A connection's task is woken for every event of its stream, its kill switch, drain and deadlines hardly ever.
//! Polling those each time would cost locks and timer look-ups per event.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::polled_again::{WOKEN, WakeFlags};

/// Polls its future once at first, then only after a wake-up.
pub(super) struct IndependentlyWoken<F> {
    future: Pin<Box<F>>,
    wakes: Arc<WakeFlags>,
    waker: Waker,
    /// The task that a wake-up is passed on to.
    task: Option<Waker>,
}

impl<F: Future> IndependentlyWoken<F> {
    pub(super) fn new(future: F) -> Self {
        let wakes = Arc::<WakeFlags>::default();
        wakes.flags.store(WOKEN, Ordering::Relaxed);
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&wakes)), wakes, task: None }
    }

    /// Polls the future if it was woken.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<F::Output> {
        // Before the flag is read: whoever sets it afterwards wakes this task.
        self.wakes.register(&mut self.task, cx);
        if self.wakes.flags.load(Ordering::Acquire) == 0 || self.wakes.flags.swap(0, Ordering::AcqRel) == 0 {
            return Poll::Pending;
        }
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_polled_when_it_was_woken_and_not_otherwise() {
        let polls = AtomicU32::new(0);
        let mut sleep = Box::pin(tokio::time::sleep(Duration::from_secs(5)));
        let mut rarely = IndependentlyWoken::new(poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            sleep.as_mut().poll(cx)
        }));
        let mut busy = tokio::time::interval(Duration::from_millis(10));
        poll_fn(|cx| {
            while busy.poll_tick(cx).is_ready() {}
            rarely.poll(cx)
        })
        .await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
