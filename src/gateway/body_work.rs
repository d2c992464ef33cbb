//! Where the work on a body runs: small ones at once, large ones off the async workers.
//!
//! To parse, hash and splice 32 MiB takes long enough to be seen as a pause by every stream of the same worker. Large
//! bodies are therefore worked on by threads that no stream waits for, a few at a time, so that streams keep a core.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::Failure;

/// Bounds the work on large bodies.
#[derive(Clone, Debug)]
pub struct BodyWork {
    threads: Arc<Semaphore>,
}

impl Default for BodyWork {
    /// Half of the cores, at least one.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { threads: Arc::new(Semaphore::new((cores / 2).max(1))) }
    }
}

impl BodyWork {
    /// Does the work on a body of `bytes`. Cancel-safe: work that has begun runs to its end and its result is dropped.
    ///
    /// # Errors
    /// [`Failure::Draining`] when the runtime ends.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if bytes <= MAX_INLINE {
            return Ok(work());
        }
        // The semaphore is never closed. The thread holds the permit, also when nobody waits for it any more.
        let permit = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| Failure::Draining)?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        done.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Failure::Draining,
        })
    }
}

/// Bodies up to this size are worked on where they are: 1 MiB takes up to 40 ms as token ids, 0.2 ms as text.
const MAX_INLINE: usize = 1 << 20;
