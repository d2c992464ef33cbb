//! A waiting room in operation: requests sleep in it until they are called, and leave it however they end.
//!
//! A [`Seat`] is a place that gives itself back. While anybody waits, one task ticks and begins rounds; each who is
//! called asks routing again and answers by staying or leaving, which calls the next. So a thousand who wait cost one
//! timer and a few decisions a tick. What they wait for, and for how long, is decided in `crate::gateway`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Refusal;
use super::room::{Guest, Kind, Limits, Place, Room};
use crate::clock::Stamp;

/// The room of one route.
#[derive(Debug)]
pub struct WaitingRoom {
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    room: Room<Arc<Notify>>,
    /// A task begins rounds.
    is_driven: bool,
}

/// A place in a room, for as long as it lives.
#[derive(Debug)]
pub struct Seat {
    room: Arc<WaitingRoom>,
    place: Place,
    kind: Kind,
    call: Arc<Notify>,
}

impl WaitingRoom {
    /// An empty room.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { inside: Mutex::new(Inside { room: Room::new(limits), is_driven: false }) })
    }

    /// Takes a request in. The second value says that nobody drives the room: the caller is to run [`WaitingRoom::drive`]
    /// beside it.
    ///
    /// # Errors
    /// The limit that speaks against it.
    pub fn enter(self: &Arc<Self>, guest: &Guest) -> Result<(Seat, bool), Refusal> {
        let call = Arc::new(Notify::new());
        let mut inside = self.inside.lock();
        let place = inside.room.enter(guest, Arc::clone(&call))?;
        let is_first = !std::mem::replace(&mut inside.is_driven, true);
        drop(inside);
        Ok((Seat { room: Arc::clone(self), place, kind: guest.kind, call }, is_first))
    }

    /// Whether somebody late waits before such a request.
    #[must_use]
    pub fn has_queued_before(&self, is_long: bool, deadline: Stamp) -> bool {
        self.inside.lock().room.has_queued_before(is_long, deadline)
    }

    /// Begins rounds until nobody waits any more. Once the gateway is closed everybody late is called at once.
    pub async fn drive(self: Arc<Self>, is_closed: impl Fn() -> bool) {
        let mut driver = Driver { room: &self, is_done: false };
        loop {
            tokio::time::sleep(TURN).await;
            let mut inside = self.inside.lock();
            if inside.room.is_empty() {
                inside.is_driven = false;
                driver.is_done = true;
                return;
            }
            if is_closed() {
                inside.room.queued().for_each(|call| call.notify_one());
            }
            inside.room.round(STAY_IN_A_ROUND, |call| call.notify_one());
        }
    }
}

/// Says that nobody drives the room any more, should its task end before its time.
struct Driver<'r> {
    room: &'r WaitingRoom,
    is_done: bool,
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.room.inside.lock().is_driven = false;
        }
    }
}

impl Seat {
    /// Why it is taken.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Until its owner is to ask routing again. Cancel-safe: a call that nobody heard is heard by the next wait.
    pub async fn called(&self) {
        self.call.notified().await;
    }

    /// Its owner asked and must stay: the next in line is called.
    pub fn stays(&self) {
        if let Some(next) = self.room.inside.lock().room.stays(self.place) {
            next.notify_one();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(next) = self.room.inside.lock().room.leave(self.place) {
            next.notify_one();
        }
    }
}

/// Between two rounds: half a decoding step; the picture does not change faster.
const TURN: Duration = Duration::from_millis(10);
/// Of those that are called, how many may have to stay before the others are not even asked.
const STAY_IN_A_ROUND: usize = 16;
