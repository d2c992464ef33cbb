//! Whether a client takes its response: over HTTP/2 it may close the window of one stream and keep the connection.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::socket::UserTimeout;

/// How far hyper has taken the body of one HTTP/2 stream. Written by its one task.
#[derive(Debug, Default)]
pub(super) struct Taking {
    /// hyper has all of it.
    handed: CancellationToken,
    frames: AtomicU32,
    /// The next frame is hyper's to ask for, which it does as the client takes what came before.
    waits_for_client: AtomicBool,
}

impl Taking {
    /// There is a body, and hyper may ask for its first frame.
    pub(super) fn begins(&self) {
        self.waits_for_client.store(true, Ordering::Relaxed);
    }

    /// hyper asked, and got a frame or has to wait for one.
    #[inline]
    pub(super) fn asked(&self, got_one: bool) {
        self.waits_for_client.store(got_one, Ordering::Relaxed);
        if got_one {
            self.frames.store(self.frames.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// hyper has all of it.
    pub(super) fn handed(&self) {
        self.handed.cancel();
    }

    /// Waits until the client has taken nothing for too long: for `stall` while there may be more, for `linger` once hyper has all of it.
    pub(super) async fn stalled(&self, stall: &UserTimeout, linger: Duration) {
        loop {
            let before = self.frames.load(Ordering::Relaxed);
            let waited = self.waits_for_client.load(Ordering::Relaxed);
            // Cancel-safe: waiting alone.
            if tokio::time::timeout(stall.get(), self.handed.cancelled()).await.is_ok() {
                return tokio::time::sleep(linger).await;
            }
            let waits = self.waits_for_client.load(Ordering::Relaxed);
            if waited && waits && self.frames.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}
