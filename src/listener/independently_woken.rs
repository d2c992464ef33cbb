//! A future with a waker of its own, polled only after that waker was woken.
//!
//! A connection's task is woken for every event of its stream, its kill switch, drain and deadlines hardly ever.
//! Polling those each time would cost locks and timer look-ups per event.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;

/// Polls its future once at first, then only after a wake-up.
pub(super) struct IndependentlyWoken<F> {
    future: Pin<Box<F>>,
    flag: Arc<WakeFlag>,
    waker: Waker,
    /// The task that a wake-up is passed on to.
    task: Option<Waker>,
}

#[derive(Default)]
struct WakeFlag {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl<F: Future> IndependentlyWoken<F> {
    pub(super) fn new(future: F) -> Self {
        let flag = Arc::new(WakeFlag { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&flag)), flag, task: None }
    }

    /// Polls the future if it was woken.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<F::Output> {
        let is_known = self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if is_known && !self.flag.is_woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // A wake-up unregisters the task. Registered again before the flag is cleared, so that a wake-up in between
        // is not lost.
        self.flag.task.register(cx.waker());
        self.task = Some(cx.waker().clone());
        if !self.flag.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
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
