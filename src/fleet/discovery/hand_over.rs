//! Replicas that left a pool and serve until new ones are ready.
//!
//! Sources never take the last replicas that answer: they serve until new ones are ready, until they answer no more, or until an
//! operator says so. Each that is ready takes the place of one: the first alone would get the load of all. A canary has a baseline
//! for that: while that has most of the traffic and as many replicas ready, those that a canary's sources name no more leave at once,
//! and those of another revision never serve in its name. A pod that is kept goes as soon as its process does: its address may be another pod's next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::membership::{Cause, LOOK_EVERY, Leaving, Membership};
use super::sources::Source;
use crate::config::{Endpoint, ReplicaSpec};
use crate::fleet::replica::Replica;
use crate::routing::{SlotSet, WHOLE};

impl Membership {
    /// A replica that no source names any more and that serves on.
    pub(super) fn leaving_spec(&self, url: Option<&Endpoint>, name: Option<&str>) -> Option<ReplicaSpec> {
        let leaving = self.leaving.load();
        let replicas = self.pool.replicas.load();
        let is_it = |replica: &&Arc<Replica>| {
            leaving.slots.contains(replica.slot())
                && url.map_or_else(|| Some(&*replica.name()) == name, |url| replica.identity.endpoint == *url)
        };
        let found = replicas.iter().find(is_it)?;
        Some(ReplicaSpec { name: found.name(), endpoint: found.identity.endpoint.clone(), zone: None })
    }

    /// Replicas that serve on although the sources name them no more.
    pub(super) fn kept(&self) -> usize {
        let leaving = self.leaving.load();
        if leaving.is_configured {
            return 0;
        }
        self.pool.replicas.load().iter().filter(|replica| leaving.slots.contains(replica.slot())).count()
    }

    /// Stores the new list; those that left drain, at once or one for each of the others that is ready.
    pub(super) fn publish(
        self: &Arc<Self>,
        before: &[Arc<Replica>],
        mut after: Vec<Arc<Replica>>,
        cause: Cause<'_>,
    ) {
        let stays: SlotSet = after.iter().map(|replica| replica.slot()).collect();
        let gone: Vec<_> = before.iter().filter(|old| !stays.contains(old.slot())).cloned().collect();
        let former = self.leaving.load();
        let has_successor = has_ready(&after);
        // What a configuration leaves out is not going.
        let has_baseline = !matches!(cause, Cause::Configured { .. }) && self.has_baseline_for(&gone);
        let (mut at_once, mut gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|old| match cause {
            Cause::Ordered { taken_out: Some(url) } if *url == old.identity.endpoint => true,
            _ if has_successor && !former.slots.contains(old.slot()) => true,
            _ => has_baseline || self.is_of_another_revision(old) || former.has_lost(old),
        });
        // What a reload does not touch goes on as it was: the source that named them no more is still there.
        let is_kept = former.slots != SlotSet::default()
            && !former.is_configured
            && Source::all(&self.pool.config().discovery).next().is_some();
        let may_serve = match cause {
            Cause::Configured { .. } => !after.is_empty() || is_kept,
            Cause::Changed | Cause::Ordered { .. } | Cause::HandedOver => true,
        };
        let is_news = gone.iter().any(|old| !former.slots.contains(old.slot()));
        let mut leaving = Leaving {
            slots: SlotSet::default(),
            count: if is_news { gone.len() } else { former.count },
            is_configured: match cause {
                Cause::Configured { .. } => !is_kept,
                _ => former.is_configured,
            },
            since: if is_news { self.deps.clock.now() } else { former.since },
        };
        let is_bridged =
            may_serve && gone.iter().any(|old| old.is_ready() || former.slots.contains(old.slot()));
        let serve_on = if is_bridged { self.serve_on(&leaving, &gone, &after) } else { 0 };
        gone.sort_by_key(|old| !old.is_ready());
        at_once.extend(gone.split_off(serve_on));
        leaving.slots = gone.iter().map(|replica| replica.slot()).collect();
        if is_news && serve_on > 0 && !leaving.is_configured {
            let (pool, kept, named) = (&*self.pool.name, gone.len(), after.len());
            tracing::warn!(
                pool,
                kept,
                named,
                "the sources of a pool name no replica that is ready: those that are serve on"
            );
        }
        self.leaving.store(Arc::new(if gone.is_empty() { Leaving::default() } else { leaving }));
        after.extend(gone);
        self.pool.replicas.store(Arc::new(after));
        self.pool.drain(at_once);
        if serve_on > 0 && !self.is_handing_over.swap(true, Ordering::AcqRel) {
            let task = Arc::clone(self).hand_over();
            self.deps.background.spawn(task);
        }
    }

    /// How many of those that left serve on: one less for each successor that is ready, none once all are. After [`HAND_OVER`] none where
    /// a successor is ready, where none of theirs answers any more, or if the configuration dropped them.
    fn serve_on(&self, leaving: &Leaving, old: &[Arc<Replica>], new: &[Arc<Replica>]) -> usize {
        let ready = ready(new);
        let has_time = self.deps.clock.now().since(leaving.since) < HAND_OVER;
        let is_over = !has_time && (ready > 0 || leaving.is_configured || !has_ready(old));
        match ready {
            _ if is_over => 0,
            0 => old.len(),
            ready if ready == new.len() => 0,
            ready => leaving.count.saturating_sub(ready).min(old.len()),
        }
    }

    /// Whether a canary's baseline takes over what these have. What a source names no more is going, though it may be said by mistake: the
    /// baseline is to be as large, and to have half of the traffic. A promoted canary is no trial any more.
    fn has_baseline_for(&self, gone: &[Arc<Replica>]) -> bool {
        let baseline: usize = self.baselines.load().iter().map(|pool| ready(&pool.replicas())).sum();
        let has_most = self.deps.canaries.any(&self.pool.name, |share| 2 * share.get() > WHOLE);
        !has_most && baseline >= ready(gone).max(1)
    }

    /// Whether a canary's replica was started for another revision than the canary is of by now.
    fn is_of_another_revision(&self, replica: &Replica) -> bool {
        let is_canary = self.is_canary.load(Ordering::Relaxed);
        is_canary && replica.identity.began_as != self.pool.config().revision
    }

    /// Lets those that left go as [`Self::serve_on`] has it.
    async fn hand_over(self: Arc<Self>) {
        loop {
            {
                let mut roster = self.roster.lock();
                let (leaving, replicas) = (self.leaving.load_full(), self.pool.replicas.load_full());
                let (old, new): (Vec<_>, Vec<_>) =
                    replicas.iter().cloned().partition(|replica| leaving.slots.contains(replica.slot()));
                let has_lost = old.iter().any(|replica| leaving.has_lost(replica));
                if has_lost || self.serve_on(&leaving, &old, &new) < old.len() {
                    self.match_roster(&mut roster, Cause::HandedOver);
                }
                if old.is_empty() || self.leaving.load().slots == SlotSet::default() {
                    return self.is_handing_over.store(false, Ordering::Release);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// There is no room for a third generation: the first goes, ready successors or not.
    pub(super) fn without_leaving(&self, before: &[Arc<Replica>]) -> Arc<Vec<Arc<Replica>>> {
        let leaving = self.leaving.swap(Arc::default());
        let (gone, stay): (Vec<_>, Vec<_>) =
            before.iter().cloned().partition(|replica| leaving.slots.contains(replica.slot()));
        let stay = Arc::new(stay);
        self.pool.replicas.store(Arc::clone(&stay));
        self.pool.drain(gone);
        stay
    }
}

impl Leaving {
    /// Whether the process of one of these is gone.
    fn has_lost(&self, replica: &Replica) -> bool {
        self.slots.contains(replica.slot()) && replica.has_lost_pod_since(self.since)
    }
}

fn has_ready(replicas: &[Arc<Replica>]) -> bool {
    ready(replicas) > 0
}

fn ready(replicas: &[Arc<Replica>]) -> usize {
    replicas.iter().filter(|replica| replica.is_ready()).count()
}

/// How long replicas serve on at least that are named no more, where none of their successors is ready; and those of a dropped pool, where
/// requests have the configuration before.
pub(in crate::fleet) const HAND_OVER: Duration = Duration::from_secs(60);
