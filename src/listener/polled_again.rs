//! A future that is polled again at once where it was woken while it was polled.
//!
//! hyper wakes the task of an HTTP/1 connection from within: when a handler asks for the body of its request, and when that body is
//! handed over. Through the scheduler each of these wakes another worker, which takes the connection along to another core.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Passes wake-ups on to its task, but for those from within a poll.
pub(super) struct PolledAgain<F> {
    future: F,
    wakes: Arc<WakeFlags>,
    waker: Waker,
    /// As registered.
    task: Option<Waker>,
}

/// A waker that passes the first wake-up on to its task.
#[derive(Default)]
pub(super) struct WakeFlags {
    /// [`POLLING`] and [`WOKEN`].
    pub(super) flags: AtomicU8,
    /// Stays when it was woken: a task that others woke has nothing to register again.
    task: Mutex<Option<Waker>>,
}

impl WakeFlags {
    /// Wake-ups from here on are passed on to the task of `cx`, which is not the one that is `known`.
    pub(super) fn register(&self, known: &mut Option<Waker>, cx: &Context<'_>) {
        if !known.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *self.task.lock() = Some(cx.waker().clone());
            *known = Some(cx.waker().clone());
        }
    }
}

/// No wake-up is passed on.
const POLLING: u8 = 1;
/// Until whoever polls clears it.
pub(super) const WOKEN: u8 = 2;
/// Polls in a row: the head, the body, and what the body's coming woke. A future that goes on to wake itself lets others run.
const MAX_POLLS: u32 = 3;

impl<F> PolledAgain<F> {
    pub(super) fn new(future: F) -> Self {
        let wakes = Arc::<WakeFlags>::default();
        Self { future, waker: Waker::from(Arc::clone(&wakes)), wakes, task: None }
    }
}

impl<F: Future> PolledAgain<Pin<&mut F>> {
    pub(super) fn inner(&mut self) -> Pin<&mut F> {
        self.future.as_mut()
    }

    /// `begins` is called before each poll of the future.
    pub(super) fn poll(&mut self, cx: &Context<'_>, begins: impl Fn()) -> Poll<F::Output> {
        self.wakes.register(&mut self.task, cx);
        let mut own = Context::from_waker(&self.waker);
        for _ in 0..MAX_POLLS {
            // What was written before a wake that this takes is seen by the poll.
            self.wakes.flags.swap(POLLING, Ordering::AcqRel);
            begins();
            if let Poll::Ready(output) = self.future.as_mut().poll(&mut own) {
                return Poll::Ready(output);
            }
            // Whoever wakes from here on wakes the task.
            if self.wakes.flags.fetch_and(!POLLING, Ordering::AcqRel) & WOKEN == 0 {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for WakeFlags {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.flags.fetch_or(WOKEN, Ordering::AcqRel) == 0
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    /// Polls of a future that wakes itself in each of its first `wakes`, and of the task around it.
    async fn polls(wakes: u32) -> (u32, u32) {
        let (inner, outer) = (AtomicU32::new(0), AtomicU32::new(0));
        let future = poll_fn(|cx| {
            if inner.fetch_add(1, Ordering::Relaxed) < wakes {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        });
        let future = pin!(future);
        let mut again = PolledAgain::new(future);
        poll_fn(|cx| {
            outer.fetch_add(1, Ordering::Relaxed);
            again.poll(cx, || {})
        })
        .await;
        (inner.into_inner(), outer.into_inner())
    }

    #[tokio::test]
    async fn wake_ups_from_within_need_no_scheduler_unless_they_go_on() {
        assert_eq!(polls(2).await, (3, 1));
        assert_eq!(polls(7).await, (8, 3), "others run in between");
    }

    #[tokio::test(start_paused = true)]
    async fn wake_ups_from_without_reach_the_task() {
        let sleep = pin!(tokio::time::sleep(Duration::from_secs(5)));
        let mut again = PolledAgain::new(sleep);
        poll_fn(|cx| again.poll(cx, || {})).await;
    }
}
