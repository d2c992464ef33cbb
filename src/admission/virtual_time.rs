//! Virtual time of a queue: start-time fair queueing between tenants (Goyal, Vin, Cheng 1996). Pure.
//!
//! A request is worth its predicted work over its tenant's weight. A tenant's next one starts at max(virtual time, finish of its
//! last), the earliest start goes first, and virtual time is the start of the last that was placed. A finish counts for as long as
//! it lies ahead, also while nothing of its tenant waits: a queue that keeps emptying deals by weights like one that never does.
//! Who was away starts at virtual time and is owed nothing; who was served is behind by one request at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::waiter::Share;
use crate::clock::Stamp;

/// Virtual time, and where tenants are in it: nanoseconds of work over weight.
#[derive(Debug, Default)]
pub(super) struct VirtualTime {
    now: u64,
    /// Of tenants that wait, and of those that are ahead; apart those of long prompts, where these are a flow of their own.
    tags: [HashMap<Arc<str>, Tag>; 2],
    /// The work placed so far may keep the pool busy until then.
    busy_until: Stamp,
}

#[derive(Debug)]
struct Tag {
    /// Start of its next request.
    start: u64,
    /// Flows that wait, one for each lane.
    flows: usize,
}

impl VirtualTime {
    /// A request comes to an empty queue. After an idle time all are equal again.
    pub(super) fn resume(&mut self, at: Stamp) {
        if at > self.busy_until {
            self.tags.iter_mut().for_each(|tags| tags.clear());
            self.now = 0;
        }
    }

    /// A flow of the tenant begins to wait.
    pub(super) fn enter(&mut self, tenant: &Arc<str>, is_long: bool) {
        let now = self.now;
        let tag = self.tag(tenant, is_long);
        (tag.start, tag.flows) = (tag.start.max(now), tag.flows + 1);
    }

    /// A flow of the tenant waits no more.
    pub(super) fn leave(&mut self, tenant: &Arc<str>, is_long: bool) {
        let tag = self.tag(tenant, is_long);
        tag.flows = tag.flows.saturating_sub(1);
        self.forget_passed();
    }

    /// When the tenant's next request starts.
    pub(super) fn start(&self, tenant: &str, is_long: bool) -> u64 {
        let [short, long] = &self.tags;
        let known = if is_long { long } else { short }.get(tenant);
        known.map_or(self.now, |tag| tag.start)
    }

    /// Work over weight that others had since it was the tenant's turn.
    pub(super) fn behind(&self, tenant: &str, is_long: bool) -> Duration {
        Duration::from_nanos(self.now.saturating_sub(self.start(tenant, is_long)))
    }

    /// A request was placed.
    pub(super) fn charge(&mut self, share: &Share, is_long: bool, work: Duration, at: Stamp) {
        self.busy_until = self.busy_until.max(at.after(work.saturating_mul(BUSY)));
        let start = self.start(&share.tenant, is_long).max(self.now);
        let work = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        let finish = start.saturating_add((work / u64::from(share.weight.max(1))).max(1));
        self.now = start;
        self.tag(&share.tenant, is_long).start = finish;
        self.forget_passed();
        let all = || self.tags.iter().flat_map(|tags| tags.values());
        if self.len() > MAX_TAGS
            && let Some(next) = all().filter(|tag| tag.flows == 0).map(|tag| tag.start).min()
        {
            self.now = next;
            self.forget_passed();
        }
    }

    fn tag(&mut self, tenant: &Arc<str>, is_long: bool) -> &mut Tag {
        let [short, long] = &mut self.tags;
        let tags = if is_long { long } else { short };
        tags.entry(Arc::clone(tenant)).or_insert(Tag { start: self.now, flows: 0 })
    }

    fn len(&self) -> usize {
        self.tags.iter().map(HashMap::len).sum()
    }

    /// Without a tag a tenant starts at virtual time, and so would one that it has passed.
    fn forget_passed(&mut self) {
        let now = self.now;
        self.tags.iter_mut().for_each(|tags| tags.retain(|_, tag| tag.flows > 0 || tag.start > now));
    }
}

/// Multiple of a request's work for which it may keep the pool busy: places come free at random, and of one replica one in fifty
/// takes longer than four times the mean.
const BUSY: u32 = 4;
/// Tenants remembered beyond those that wait. With more, virtual time moves on to the earliest.
const MAX_TAGS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;

    fn share(tenant: &str, weight: u32) -> Share {
        Share { tenant: tenant.into(), weight, priority: 0 }
    }

    const WORK: Duration = Duration::from_millis(100);

    #[test]
    fn tags_that_virtual_time_has_passed_go() {
        let mut time = VirtualTime::default();
        time.charge(&share("a", 1), false, WORK, at(0));
        for _ in 0..5 {
            time.charge(&share("b", 1), false, WORK / 10, at(0));
        }
        assert_eq!((time.len(), time.start("a", false)), (2, 100_000_000));
        time.enter(&"c".into(), false);
        for _ in 0..10 {
            time.charge(&share("b", 1), false, WORK / 10, at(0));
        }
        assert_eq!(time.len(), 2, "a has been passed, c waits");
        assert!(time.start("c", false) < time.now, "and who waits is not put back");
        time.leave(&"c".into(), false);
        assert_eq!((time.len(), time.start("a", false)), (1, time.now));
    }

    #[test]
    fn tenants_that_come_once_take_no_more_memory_than_so_much() {
        let mut time = VirtualTime::default();
        for tenant in 0..10 * MAX_TAGS as u64 {
            let work = WORK + Duration::from_millis(tenant % 7);
            time.charge(&share(&tenant.to_string(), 1), tenant % 2 == 0, work, at(0));
            assert!(time.len() <= MAX_TAGS);
        }
        time.resume(at(400 + 4 * 6));
        assert!(time.len() > 0, "busy with what was placed");
        time.resume(at(425));
        assert!(time.len() == 0 && time.now == 0);
    }
}
