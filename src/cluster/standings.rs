//! Which replicas this gateway has left, so that the others hear of it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Stamp;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::notice::{Event, Left, Notice, place};

/// The replicas at the last look, by [`place`], and whether each was left.
#[derive(Debug, Default)]
pub(super) struct Standings(HashMap<u64, (Arc<Replica>, bool)>);

impl Standings {
    /// Those of the fleet now. What was left before it was known here is no news.
    pub(super) fn renew(&mut self, pools: &[Arc<PoolState>]) {
        let mut former = std::mem::take(&mut self.0);
        for pool in pools {
            for replica in pool.replicas().iter() {
                let at = place(&pool.name, replica.target.identity);
                let known = former.remove(&at).filter(|(before, _)| Arc::ptr_eq(before, replica));
                let is_left = known.map_or_else(|| replica.state().is_left(), |(_, is_left)| is_left);
                self.0.insert(at, (Arc::clone(replica), is_left));
            }
        }
    }

    /// Replicas that were left since the last look.
    pub(super) fn news(&mut self, now: Stamp) -> impl Iterator<Item = Notice> {
        self.0.iter_mut().filter_map(move |(place, (replica, was_left))| {
            let is_left = replica.state().is_left();
            let is_news = !std::mem::replace(was_left, is_left) && is_left;
            let is_failing = replica.health.is_due_for_trial();
            is_news.then_some(Notice {
                id: 0,
                at: now,
                event: Event::Left(Left { place: *place, is_failing }),
            })
        })
    }
}
