//! Work of ours that a replica has: counted at decision time, released by a guard inside the response body.
//!
//! A request counts from the moment it was decided, not from when it was sent or when the head came: a burst
//! would see an idle replica otherwise and herd. Its uncached prompt tokens count until its first token, the
//! request itself until the end; every end drops the guard. Work of others is [`super::foreign`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::Tokens;

/// What one replica has to do for us.
#[derive(Debug, Default)]
pub struct ReplicaLoad {
    inflight: AtomicU64,
    awaiting: AtomicU64,
    waiting_tokens: AtomicU64,
}

/// A [`ReplicaLoad`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadView {
    /// Requests in flight.
    pub inflight: u64,
    /// Those of them that have no first token yet.
    pub awaiting: u64,
    /// Uncached prompt tokens of those.
    pub waiting_tokens: Tokens,
}

impl LoadView {
    /// Requests that have their first token: sequences being decoded.
    #[must_use]
    pub fn decoding(&self) -> u64 {
        self.inflight.saturating_sub(self.awaiting)
    }
}

impl ReplicaLoad {
    /// A replica with nothing to do.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The load now. The three figures are read one by one: a decision may see a request half counted, which
    /// moves it by one request at most.
    #[must_use]
    pub fn view(&self) -> LoadView {
        LoadView {
            inflight: self.inflight.load(Ordering::Relaxed),
            awaiting: self.awaiting.load(Ordering::Relaxed),
            waiting_tokens: Tokens(self.waiting_tokens.load(Ordering::Relaxed)),
        }
    }
}

/// One request's share of a replica's load; dropping it releases what is left of it, exactly once.
#[derive(Debug)]
#[must_use = "dropping the guard releases the load at once"]
pub struct LoadGuard {
    load: Arc<ReplicaLoad>,
    uncached: Tokens,
    is_awaiting: bool,
}

impl LoadGuard {
    /// Counts a request that was just decided, with the prompt tokens that the replica must compute for it.
    pub fn reserve(load: &Arc<ReplicaLoad>, uncached: Tokens) -> Self {
        load.inflight.fetch_add(1, Ordering::Relaxed);
        load.awaiting.fetch_add(1, Ordering::Relaxed);
        load.waiting_tokens.fetch_add(uncached.0, Ordering::Relaxed);
        Self { load: Arc::clone(load), uncached, is_awaiting: true }
    }

    /// The first token came: the prompt is computed. Further calls do nothing.
    pub fn first_token(&mut self) {
        if std::mem::take(&mut self.is_awaiting) {
            self.load.awaiting.fetch_sub(1, Ordering::Relaxed);
            self.load.waiting_tokens.fetch_sub(self.uncached.0, Ordering::Relaxed);
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.first_token();
        self.load.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(inflight: u64, awaiting: u64, waiting_tokens: u64) -> LoadView {
        LoadView { inflight, awaiting, waiting_tokens: Tokens(waiting_tokens) }
    }

    #[test]
    fn counts_from_the_decision_and_gives_back_in_two_steps() {
        let load = ReplicaLoad::new();
        let mut first = LoadGuard::reserve(&load, Tokens(700));
        let second = LoadGuard::reserve(&load, Tokens(50));
        assert_eq!(load.view(), view(2, 2, 750));
        first.first_token();
        assert_eq!(load.view(), view(2, 1, 50));
        assert_eq!(load.view().decoding(), 1);
        first.first_token();
        assert_eq!(load.view(), view(2, 1, 50), "a second first token changes nothing");
        drop(second);
        assert_eq!(load.view(), view(1, 0, 0), "a request without any token releases both");
        drop(first);
        assert_eq!(load.view(), view(0, 0, 0));
    }

    #[test]
    fn a_panic_in_the_stream_releases_its_load() {
        let load = ReplicaLoad::new();
        let inside = Arc::clone(&load);
        let ended = std::thread::spawn(move || {
            let _guard = LoadGuard::reserve(&inside, Tokens(9));
            panic!("a stream's task fell over");
        });
        assert!(ended.join().is_err());
        assert_eq!(load.view(), LoadView::default());
    }

    #[test]
    fn many_threads_leave_nothing_behind() {
        let load = ReplicaLoad::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let load = &load;
                scope.spawn(move || {
                    for i in 0..500 {
                        let mut guard = LoadGuard::reserve(load, Tokens(i + thread));
                        if i % 2 == 0 {
                            guard.first_token();
                        }
                    }
                });
            }
        });
        assert_eq!(load.view(), LoadView::default());
    }

    #[test]
    fn a_guard_may_move_between_threads() {
        fn is_send<T: Send + 'static>() {}
        is_send::<LoadGuard>();
    }
}
