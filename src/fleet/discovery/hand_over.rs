//! Replicas that left a pool and serve until a new one is ready.
//!
//! Sources never take the last replicas that answer: they serve until a new one is ready, until they answer no more, or until an
//! operator says so. A canary has a baseline for that: replicas of another revision never serve in its name.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::membership::{Cause, LOOK_EVERY, Leaving, Membership};
use super::sources::Source;
use crate::config::{Endpoint, ReplicaSpec};
use crate::fleet::replica::Replica;
use crate::routing::SlotSet;

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

    /// Stores the new list; those that left drain, at once or when one of the others is ready.
    pub(super) fn publish(
        self: &Arc<Self>,
        before: &[Arc<Replica>],
        mut after: Vec<Arc<Replica>>,
        cause: Cause<'_>,
    ) {
        let stays: SlotSet = after.iter().map(|replica| replica.slot()).collect();
        let gone: Vec<_> = before.iter().filter(|old| !stays.contains(old.slot())).cloned().collect();
        let (mut at_once, gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|old| match cause {
            Cause::Ordered { taken_out: Some(url) } if *url == old.identity.endpoint => true,
            _ => self.is_of_another_revision(old),
        });
        let leaving = self.leaving.load();
        let may_serve = |old: &Arc<Replica>| old.is_ready() || leaving.slots.contains(old.slot());
        // What a reload does not touch goes on as it was: the source that named them no more is still there.
        let is_kept = leaving.slots != SlotSet::default()
            && !leaving.is_configured
            && Source::all(&self.pool.config().discovery).next().is_some();
        let is_bridged = gone.iter().any(may_serve)
            && !has_ready(&after)
            && match cause {
                Cause::HandedOver => false,
                Cause::Configured { .. } => !after.is_empty() || is_kept,
                Cause::Changed | Cause::Ordered { .. } => true,
            };
        if is_bridged {
            let slots: SlotSet = gone.iter().map(|replica| replica.slot()).collect();
            let is_configured = match cause {
                Cause::Configured { .. } => !is_kept,
                _ => leaving.is_configured,
            };
            let is_news = leaving.slots != slots;
            let since = if is_news { self.deps.clock.now() } else { leaving.since };
            self.leaving.store(Arc::new(Leaving { slots, is_configured, since }));
            if is_news && !is_configured {
                let (pool, kept, named) = (&*self.pool.name, gone.len(), after.len());
                tracing::warn!(
                    pool,
                    kept,
                    named,
                    "the sources of a pool name no replica that is ready: those that are serve on"
                );
            }
            after.extend(gone);
        } else {
            self.leaving.store(Arc::default());
            at_once.extend(gone);
        }
        self.pool.replicas.store(Arc::new(after));
        self.pool.drain(at_once);
        if is_bridged && !self.is_handing_over.swap(true, Ordering::AcqRel) {
            let task = Arc::clone(self).hand_over();
            self.deps.background.spawn(task);
        }
    }

    /// Whether a canary's replica was started for another revision than the canary is of by now.
    fn is_of_another_revision(&self, replica: &Replica) -> bool {
        let is_canary = self.is_canary.load(Ordering::Relaxed);
        is_canary && replica.identity.began_as != self.pool.config().revision
    }

    /// Lets those that left go once one of the others is ready; after [`HAND_OVER`] also when they answer no more, or if the
    /// configuration dropped them.
    async fn hand_over(self: Arc<Self>) {
        let is_over = || {
            let leaving = self.leaving.load();
            let replicas = self.pool.replicas.load();
            let is_old = |replica: &&Arc<Replica>| leaving.slots.contains(replica.slot());
            let mut old = replicas.iter().filter(is_old).peekable();
            let mut new = replicas.iter().filter(|replica| !is_old(replica));
            let has_time = self.deps.clock.now().since(leaving.since) < HAND_OVER;
            old.peek().is_none()
                || new.any(|replica| replica.is_ready())
                || !has_time && (leaving.is_configured || !old.any(|replica| replica.is_ready()))
        };
        loop {
            {
                let mut roster = self.roster.lock();
                if is_over() {
                    self.is_handing_over.store(false, Ordering::Release);
                    return self.match_roster(&mut roster, Cause::HandedOver);
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

fn has_ready(replicas: &[Arc<Replica>]) -> bool {
    replicas.iter().any(|replica| replica.is_ready())
}

/// How long replicas serve on at least that are named no more, where none of their successors is ready; and those of a dropped pool, where
/// requests have the configuration before.
pub(in crate::fleet) const HAND_OVER: Duration = Duration::from_secs(60);
