//! A future beside a busy one, polled only when it asked for it.
//!
//! A connection's task is woken for every event of its stream; its kill switch, drain and deadlines happen
//! hardly ever. Polling them all each time costs locks and timer look-ups per event, so they have a waker of
//! their own that remembers whether it rang.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;

/// A future that is polled when its own waker rang, and at first.
pub(super) struct Aside<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    waker: Waker,
    /// Whom the bell wakes: nearly always the task that polls.
    task: Option<Waker>,
}

#[derive(Default)]
struct Bell {
    has_rung: AtomicBool,
    task: AtomicWaker,
}

impl<F: Future> Aside<F> {
    pub(super) fn new(future: F) -> Self {
        let bell = Arc::new(Bell { has_rung: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&bell)), bell, task: None }
    }

    /// Polls the future if it asked for it.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<F::Output> {
        let is_known = self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if is_known && !self.bell.has_rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // A bell that rang has forgotten its task. Registered before the flag falls, so that a bell in between wakes
        // the task again.
        self.bell.task.register(cx.waker());
        self.task = Some(cx.waker().clone());
        if !self.bell.has_rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
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
    async fn it_is_polled_when_it_asked_and_not_otherwise() {
        let polls = AtomicU32::new(0);
        let mut sleep = Box::pin(tokio::time::sleep(Duration::from_secs(5)));
        let mut aside = Aside::new(poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            sleep.as_mut().poll(cx)
        }));
        let mut busy = tokio::time::interval(Duration::from_millis(10));
        poll_fn(|cx| {
            while busy.poll_tick(cx).is_ready() {}
            aside.poll(cx)
        })
        .await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
