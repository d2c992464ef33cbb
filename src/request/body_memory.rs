//! Memory of request bodies, charged as their bytes arrive.
//!
//! Three budgets bound a body: that of its connection, of its tenant and of all bodies (`server.body_memory`). An upload
//! that gets no more waits with what it holds, so uploads could wait for each other for ever. Each budget therefore
//! keeps a reserve for one of them, its finisher, which takes what it needs without waiting any more. Whoever finishes
//! a budget is bounded by no inner one: the finisher of all bodies always gets on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use crate::error::Failure;

/// The memory that all request bodies share.
#[derive(Debug)]
pub struct BodyMemory {
    all: Arc<BodyBudget>,
    by_tenant: Mutex<HashMap<Arc<str>, Arc<BodyBudget>>>,
    /// Size of a connection's or tenant's budget in bytes.
    share: usize,
    reserve: usize,
}

/// The bodies of one connection, of one tenant or of all.
#[derive(Debug)]
pub struct BodyBudget {
    /// In units of [`UNIT`].
    free: Semaphore,
    /// One permit: the right to the reserve.
    finisher: Semaphore,
}

/// What one body holds; given back on drop.
#[derive(Debug, Default)]
pub struct Charge {
    /// From the innermost budget to that of all bodies.
    shares: SmallVec<[Share; 3]>,
}

#[derive(Debug)]
struct Share {
    budget: Arc<BodyBudget>,
    units: usize,
    is_finisher: bool,
}

impl BodyMemory {
    /// `bytes` for all bodies together, of which each has at most `body_limit`.
    #[must_use]
    pub fn new(bytes: usize, body_limit: usize) -> Self {
        // A finisher may need a copy of its body beside it (see `request::splice`).
        let reserve = body_limit.saturating_mul(2).min(bytes / 2);
        Self {
            all: BodyBudget::new(bytes, reserve),
            by_tenant: Mutex::default(),
            share: bytes / MAX_SHARE,
            reserve,
        }
    }

    /// The budget of a connection's bodies.
    #[must_use]
    pub fn of_connection(&self) -> Arc<BodyBudget> {
        BodyBudget::new(self.share, self.reserve.min(self.share / 2))
    }

    /// An empty charge for a body; `tenant` is `None` where there are no tenants.
    #[must_use]
    pub fn open(&self, connection: Option<&Arc<BodyBudget>>, tenant: Option<&Arc<str>>) -> Charge {
        let tenant = tenant.map(|name| self.of_tenant(name));
        let budgets = [connection.cloned(), tenant, Some(Arc::clone(&self.all))];
        let share = |budget| Share { budget, units: 0, is_finisher: false };
        Charge { shares: budgets.into_iter().flatten().map(share).collect() }
    }

    /// Tenants come from the configuration, so the table is bounded.
    fn of_tenant(&self, name: &Arc<str>) -> Arc<BodyBudget> {
        let mut tenants = self.by_tenant.lock();
        if let Some(known) = tenants.get(name) {
            return Arc::clone(known);
        }
        Arc::clone(tenants.entry(Arc::clone(name)).or_insert(self.of_connection()))
    }
}

impl BodyBudget {
    fn new(bytes: usize, reserve: usize) -> Arc<Self> {
        let free = Semaphore::new(units(bytes - reserve));
        Arc::new(Self { free, finisher: Semaphore::new(1) })
    }
}

impl Charge {
    /// Charges further bytes, waiting for up to [`WAIT_FOR_MEMORY`] where there are none.
    ///
    /// # Errors
    /// 503 `body_memory`.
    pub async fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        let mut left = units(bytes);
        while left > 0 {
            // In steps, so that a large body does not wait for much at once.
            let step = if self.try_take(left) { left } else { self.wait(left.min(STEP)).await? };
            left -= step;
        }
        Ok(())
    }

    /// Charges further bytes if that needs no wait.
    #[must_use]
    pub fn try_add(&mut self, bytes: usize) -> bool {
        self.try_take(units(bytes))
    }

    /// Gives bytes back that were charged before.
    pub fn give_back(&mut self, bytes: usize) {
        for share in &mut self.shares {
            let returned = units(bytes).min(share.units);
            share.units -= returned;
            share.budget.free.add_permits(returned);
        }
    }

    /// Bytes held of the budget of all bodies, the reserve not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shares.last().map_or(0, |share| share.units * UNIT)
    }

    fn try_take(&mut self, units: usize) -> bool {
        let first = self.first_bounding();
        let Ok(wanted) = u32::try_from(units) else { return false };
        let open = self.shares.get_mut(first..).unwrap_or_default();
        for at in 0..open.len() {
            let is_taken = open.get_mut(at).is_some_and(|share| share.try_take(wanted));
            if !is_taken {
                for share in open.iter_mut().take(at) {
                    share.units -= units;
                    share.budget.free.add_permits(units);
                }
                return false;
            }
        }
        true
    }

    async fn wait(&mut self, units: usize) -> Result<usize, Failure> {
        // Boxed: rare, and its state would be most of what every request's future carries around.
        Box::pin(tokio::time::timeout(WAIT_FOR_MEMORY, async {
            let mut at = self.first_bounding();
            while let Some(share) = self.shares.get_mut(at) {
                share.take(units).await;
                at = self.first_bounding().max(at + 1);
            }
        }))
        .await
        .map_err(|_| Failure::BodyMemory)?;
        Ok(units)
    }

    /// The innermost budget that still bounds this body.
    fn first_bounding(&self) -> usize {
        self.shares.iter().rposition(|share| share.is_finisher).map_or(0, |at| at + 1)
    }
}

impl Share {
    fn try_take(&mut self, units: u32) -> bool {
        let Ok(taken) = self.budget.free.try_acquire_many(units) else { return false };
        taken.forget();
        self.units += units as usize;
        true
    }

    /// Waits for the units, or for the right to the reserve.
    async fn take(&mut self, units: usize) {
        let wanted = u32::try_from(units).unwrap_or(u32::MAX);
        // Both arms are cancel-safe: they lose their place in a queue. The semaphores are never closed.
        tokio::select! {
            biased;
            Ok(taken) = self.budget.free.acquire_many(wanted) => {
                taken.forget();
                self.units += units;
            }
            Ok(right) = self.budget.finisher.acquire() => {
                right.forget();
                self.is_finisher = true;
            }
            else => {}
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.free.add_permits(self.units);
        if self.is_finisher {
            self.budget.finisher.add_permits(1);
        }
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS >> 1)
}

const UNIT: usize = 1024;
/// In units: 64 KiB.
const STEP: usize = 64;
/// One connection or one tenant has at most one in this many parts of the memory.
const MAX_SHARE: usize = 2;
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// 8 MiB for all, 4 MiB for a connection, bodies of 1 MiB: reserves of 2 MiB each.
    fn memory() -> BodyMemory {
        BodyMemory::new(8 * MIB, MIB)
    }

    fn free(memory: &BodyMemory) -> usize {
        memory.all.free.available_permits() * UNIT
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_charged_comes_back() {
        let memory = memory();
        let before = free(&memory);
        let mut charge = memory.open(Some(&memory.of_connection()), Some(&"a".into()));
        charge.add(3000).await.unwrap();
        assert_eq!((charge.bytes(), free(&memory)), (3072, before - 3072));
        charge.give_back(1024);
        assert_eq!(free(&memory), before - 2048);
        drop(charge);
        assert_eq!(free(&memory), before);
    }

    #[tokio::test(start_paused = true)]
    async fn of_uploads_that_wait_for_each_other_one_always_finishes() {
        let memory = memory();
        // Twelve half bodies fill what there is without the reserve.
        let mut half = Vec::new();
        for _ in 0..12 {
            let mut charge = memory.open(None, None);
            charge.add(MIB / 2).await.unwrap();
            half.push(charge);
        }
        assert_eq!(free(&memory), 0);
        let rests = half
            .into_iter()
            .map(|mut charge| async move { charge.add(MIB / 2).await.map(|()| drop(charge)) });
        let mut running = tokio::task::JoinSet::new();
        rests.for_each(|rest| drop(running.spawn(rest)));
        while let Some(ended) = running.join_next().await {
            assert!(ended.unwrap().is_ok());
        }
        assert_eq!((free(&memory), memory.all.finisher.available_permits()), (6 * MIB, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_or_tenant_that_holds_its_share_stops_nobody_else() {
        let memory = memory();
        let (hog, tenant) = (memory.of_connection(), Arc::from("a"));
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut charge = memory.open(Some(&hog), Some(&tenant));
            charge.add(MIB).await.unwrap();
            held.push(charge);
        }
        assert!(held.iter().any(|charge| charge.shares[0].is_finisher));
        let mut refused = memory.open(Some(&hog), Some(&tenant));
        assert_eq!(refused.add(1).await.unwrap_err().code(), "body_memory");
        let mut other = memory.open(Some(&memory.of_connection()), Some(&"b".into()));
        other.add(MIB).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_finishes_all_bodies_is_not_held_up_by_its_connection() {
        let memory = memory();
        let hog = memory.of_connection();
        let mut filler = memory.open(None, None);
        filler.add(6 * MIB).await.unwrap();
        let mut first = memory.open(Some(&hog), None);
        first.add(MIB).await.unwrap();
        assert!(first.shares[1].is_finisher);
        let mut second = memory.open(Some(&hog), None);
        assert!(second.add(MIB).await.is_err(), "the memory is full");
        first.add(MIB).await.unwrap();
    }
}
