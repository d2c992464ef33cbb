//! Rooms in which engines that run SGLang's scheme meet: one computes a prompt, the other waits for its KV.
//!
//! All replicas of a process share them: a bootstrap server of their own would be no more true.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The KV of this room's prompt is there.
pub(super) fn open(number: u64) {
    room(number).cancel();
}

/// Waits for it.
pub(super) async fn enter(number: u64) {
    room(number).cancelled().await;
    ROOMS.lock().remove(&number);
}

fn room(number: u64) -> CancellationToken {
    let mut rooms = ROOMS.lock();
    if rooms.len() >= MAX_ROOMS {
        // Left open by requests that nobody joined.
        rooms.retain(|_, room| !room.is_cancelled());
    }
    rooms.entry(number).or_default().clone()
}

static ROOMS: LazyLock<Mutex<HashMap<u64, CancellationToken>>> = LazyLock::new(Mutex::default);
const MAX_ROOMS: usize = 4_096;
