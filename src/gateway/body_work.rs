//! Where the work on a body runs: small ones at once, large ones off the async workers.
//!
//! To parse, hash and splice 1 MiB takes long enough to be seen as a pause by every stream of the same worker. Such
//! bodies are therefore worked on by threads behind every other thread, a few at a time in the order in which they came,
//! so that streams and shorter prompts keep the cores. The largest have a queue of their own: medium ones do not wait
//! for them. Nor does a tenant wait for all that another one sends: whoever has as many bodies in a queue as it has threads
//! has the next one wait outside.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use dashmap::DashMap;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::Failure;

/// Bounds the work on bodies that are not small.
#[derive(Clone, Debug)]
pub struct BodyWork {
    medium: Threads,
    large: Threads,
}

/// A queue for some threads.
#[derive(Clone, Debug)]
struct Threads {
    count: usize,
    free: Arc<Semaphore>,
    /// As many places for each tenant that ever came.
    of_tenants: Arc<DashMap<Arc<str>, Arc<Semaphore>>>,
}

/// A thread that is taken, and a place of its tenant.
type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Default for BodyWork {
    /// Half of the cores for each size, at least one.
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = || Threads::new((cores / 2).max(1));
        Self { medium: threads(), large: threads() }
    }
}

impl Threads {
    fn new(count: usize) -> Self {
        Self { count, free: Arc::new(Semaphore::new(count)), of_tenants: Arc::default() }
    }

    /// Waits for a turn of this tenant.
    async fn turn(&self, tenant: &Arc<str>) -> Result<Turn, AcquireError> {
        let places = || Arc::new(Semaphore::new(self.count));
        let own = Arc::clone(&*self.of_tenants.entry(Arc::clone(tenant)).or_insert_with(places));
        let place = own.acquire_owned().await?;
        Ok((Arc::clone(&self.free).acquire_owned().await?, place))
    }
}

impl BodyWork {
    /// Whether a body of this size is worked on where it is.
    pub fn is_at_once(bytes: usize) -> bool {
        bytes <= MAX_INLINE
    }

    /// Does the work on a body of `bytes` that a tenant sent. Cancel-safe: work that has begun runs to its end and its result is dropped.
    ///
    /// # Errors
    /// [`Failure::Internal`] when no thread can be started.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &Arc<str>,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if Self::is_at_once(bytes) {
            return Ok(work());
        }
        let (told, done) = oneshot::channel();
        let work = move || {
            // Nobody waits where the client has left.
            let _ = told.send(catch_unwind(AssertUnwindSafe(work)));
        };
        let threads = if bytes <= MAX_MEDIUM { &self.medium } else { &self.large };
        // The semaphores are never closed. The thread holds the turn, also when nobody waits for it any more.
        let turn = threads.turn(tenant).await.map_err(|_| Failure::Draining)?;
        // A thread of its own: what steps back cannot step forward again, so one of the runtime's would stay slow.
        let thread = thread::Builder::new().name("body".to_owned()).spawn(move || {
            step_back();
            work();
            drop(turn);
        });
        thread.map_err(|_| Failure::Internal)?;
        done.await.map_err(|_| Failure::Internal)?.map_err(|panic| resume_unwind(panic))
    }
}

/// Lets every other thread go first. On Linux a priority is a thread's, elsewhere it would be the process's.
fn step_back() {
    #[cfg(target_os = "linux")]
    // Where it is not allowed the work is merely done at the usual priority.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// Of nice(2): a tenth of the time of a thread of the usual niceness, 0, that wants the same core.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Bodies up to this size are worked on where they are: 256 KiB take 2 ms as token ids, 0.2 ms as text.
const MAX_INLINE: usize = 256 << 10;
/// Bodies up to this size, 30 ms of work at most, do not wait for larger ones.
const MAX_MEDIUM: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use parking_lot::Mutex;
    use tokio_util::task::TaskTracker;

    use super::*;

    fn tenant() -> Arc<str> {
        "a".into()
    }

    #[tokio::test]
    async fn a_tenant_with_many_bodies_waits_for_itself() {
        let (work, tasks) = (BodyWork { medium: Threads::new(1), ..BodyWork::default() }, TaskTracker::new());
        let (done, order) = mpsc::channel();
        // The first one is at work until all have come.
        let (all_came, begins) = mpsc::channel::<()>();
        let begins = Arc::new(Mutex::new(begins));
        for name in ["many", "many", "many", "many", "one"] {
            let (work, done, tenant) = (work.clone(), done.clone(), Arc::from(name));
            let begins = Arc::clone(&begins);
            tasks.spawn(async move {
                let body = move || {
                    let _ = begins.lock().recv();
                    done.send(name).unwrap();
                };
                work.run(&tenant, MAX_INLINE + 1, body).await.unwrap();
            });
        }
        tokio::task::yield_now().await;
        drop(all_came);
        tasks.close();
        tasks.wait().await;
        let order: Vec<_> = order.try_iter().collect();
        assert_eq!(order, ["many", "one", "many", "many", "many"]);
    }

    #[tokio::test]
    async fn each_size_has_its_threads_and_a_panic_comes_through() {
        let (work, tasks) = (BodyWork::default(), TaskTracker::new());
        let (release, held) = mpsc::channel::<()>();
        let waits = {
            let work = work.clone();
            tasks.spawn(async move { work.run(&tenant(), MAX_MEDIUM + 1, move || held.recv().is_ok()).await })
        };
        // The test's runtime has one thread: what came back did not wait for the one above.
        for bytes in [0, MAX_INLINE, MAX_INLINE + 1, MAX_MEDIUM] {
            assert_eq!(work.run(&tenant(), bytes, move || bytes).await.unwrap(), bytes);
        }
        assert!(!waits.is_finished());
        release.send(()).unwrap();
        assert!(waits.await.unwrap().unwrap());
        for bytes in [MAX_MEDIUM, MAX_MEDIUM + 1] {
            let work = work.clone();
            let panic =
                tasks.spawn(async move { work.run(&tenant(), bytes, || -> u8 { panic!("too much") }).await });
            assert!(panic.await.unwrap_err().is_panic(), "as on the task itself");
        }
        // Its place is free again.
        assert_eq!(work.run(&tenant(), MAX_MEDIUM + 1, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn medium_bodies_are_worked_on_a_few_at_a_time_and_in_order() {
        let (work, tasks) = (BodyWork { medium: Threads::new(1), ..BodyWork::default() }, TaskTracker::new());
        let running = Arc::new(AtomicUsize::new(0));
        let (done, order) = mpsc::channel();
        for n in 0..8 {
            let (work, running, done) = (work.clone(), Arc::clone(&running), done.clone());
            tasks.spawn(async move {
                let alone = move || {
                    let others = running.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    done.send((n, others)).unwrap();
                };
                work.run(&tenant(), MAX_INLINE + 1, alone).await.unwrap();
            });
        }
        tasks.close();
        tasks.wait().await;
        assert!(order.try_iter().eq((0..8).map(|n| (n, 0))));
    }
}
