//! Memory of request bodies and of the answers that are held for their clients, charged as their bytes arrive.
//!
//! Three budgets bound a body: that of its connection, of its tenant and of all bodies (`server.body_memory`). An upload
//! that gets no more waits with what it holds, so uploads could wait for each other for ever. Each budget therefore
//! keeps a reserve for one of them, its finisher, which takes what it needs without waiting any more. Whoever finishes
//! a budget is bounded by no inner one: the finisher of all bodies always gets on. Small bodies have a reserve of their
//! own, and the slowest upload ends where others wait ([`super::uploads`]). Answers have a quarter of each budget and
//! never wait: one that gets no memory is relayed as it comes.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use super::uploads::{BudgetId, UploadEntry, Uploads};
use crate::clock::Clock;
use crate::error::Failure;

/// The memory that all request bodies share.
#[derive(Debug)]
pub struct BodyMemory {
    all: Arc<BodyBudget>,
    by_tenant: Mutex<HashMap<Arc<str>, Arc<BodyBudget>>>,
    /// Size of a connection's or tenant's budget in bytes.
    share: usize,
    reserve: usize,
    table: Arc<Table>,
}

/// The bodies of one connection, of one tenant or of all.
#[derive(Debug)]
pub struct BodyBudget {
    /// In units of [`UNIT`].
    free: Semaphore,
    /// One permit: the right to the reserve.
    finisher: Semaphore,
    /// In units: what small bodies take where `free` is empty; none but in the budget of all.
    small: Semaphore,
    /// The part that answers may take.
    answers: Option<Arc<Self>>,
    table: Arc<Table>,
}

/// What all budgets share.
#[derive(Debug)]
struct Table {
    uploads: Arc<Uploads>,
    /// Places to wait for memory: each holds up to a read buffer or stream window of data that is in no budget.
    waiting: Semaphore,
}

/// The budgets that bound the answer to a request.
#[derive(Clone, Debug, Default)]
pub struct AnswerBudgets(SmallVec<[Arc<BodyBudget>; 3]>);

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
    /// Units of the small bodies' reserve.
    small: usize,
    is_finisher: bool,
}

impl BodyMemory {
    /// `bytes` for all bodies together, of which each has at most `body_limit`.
    pub fn new(bytes: usize, body_limit: usize, clock: Clock) -> Self {
        // Two bodies: that of the finisher, and as much again that uploads cannot take from the small ones.
        let reserve = body_limit.saturating_mul(2).min(bytes / 2);
        let table = Arc::new(Table { uploads: Uploads::new(clock), waiting: Semaphore::new(MAX_WAITING) });
        Self {
            all: BodyBudget::new(bytes, reserve, bytes / SMALL_SHARE, &table),
            by_tenant: Mutex::default(),
            share: bytes / MAX_SHARE,
            reserve,
            table,
        }
    }

    /// The budget of a connection's bodies.
    pub fn of_connection(&self) -> Arc<BodyBudget> {
        BodyBudget::new(self.share, self.reserve.min(self.share / 2), 0, &self.table)
    }

    /// An empty charge for a body; `tenant` is `None` where there are no tenants.
    #[must_use]
    pub fn open(&self, connection: Option<&Arc<BodyBudget>>, tenant: Option<&Arc<str>>) -> Charge {
        let tenant = tenant.map(|name| self.of_tenant(name));
        let budgets = [connection.cloned(), tenant, Some(Arc::clone(&self.all))];
        Charge::of(budgets.into_iter().flatten())
    }

    /// Of thousands of tenants few have a body at any moment: where the table would grow, those without one are forgotten.
    fn of_tenant(&self, name: &Arc<str>) -> Arc<BodyBudget> {
        let mut tenants = self.by_tenant.lock();
        if let Some(known) = tenants.get(name) {
            return Arc::clone(known);
        }
        if tenants.len() == tenants.capacity() {
            tenants.retain(|_, budget| Arc::strong_count(budget) > 1);
            let used = tenants.len();
            tenants.reserve(used.max(1));
        }
        Arc::clone(tenants.entry(Arc::clone(name)).or_insert(self.of_connection()))
    }
}

impl BodyBudget {
    fn new(bytes: usize, reserve: usize, small: usize, table: &Arc<Table>) -> Arc<Self> {
        let budget = |bytes, small, answers| Self {
            free: Semaphore::new(units(bytes)),
            finisher: Semaphore::new(1),
            small: Semaphore::new(units(small)),
            answers,
            table: Arc::clone(table),
        };
        let answers = Arc::new(budget(bytes / ANSWER_SHARE, 0, None));
        Arc::new(budget(bytes - reserve - small, small, Some(answers)))
    }

    fn id(self: &Arc<Self>) -> BudgetId {
        BudgetId(Arc::as_ptr(self).addr())
    }
}

impl AnswerBudgets {
    /// An empty charge for an answer.
    #[must_use]
    pub fn open(&self) -> Charge {
        Charge::of(
            self.0.iter().flat_map(|budget| [budget.answers.clone(), Some(Arc::clone(budget))]).flatten(),
        )
    }
}

impl Charge {
    fn of(budgets: impl Iterator<Item = Arc<BodyBudget>>) -> Self {
        let share = |budget| Share { budget, units: 0, small: 0, is_finisher: false };
        Self { shares: budgets.map(share).collect() }
    }

    /// The same budgets, for the answer to the request.
    pub fn of_answer(&self) -> AnswerBudgets {
        AnswerBudgets(self.shares.iter().map(|share| Arc::clone(&share.budget)).collect())
    }

    /// Enters the upload that this is charged for, which may be ended from now on; `None` where nothing is charged.
    pub(super) fn enter(&self) -> Option<UploadEntry> {
        let uploads = &self.shares.first()?.budget.table.uploads;
        Some(uploads.enter(self.shares.iter().map(|share| share.budget.id()).collect()))
    }

    /// Bytes that hold the charge for as long as any part of them lives.
    pub fn around(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
    }

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
    pub fn try_add(&mut self, bytes: usize) -> bool {
        self.try_take(units(bytes))
    }

    /// Gives bytes back that were charged before.
    pub fn give_back(&mut self, bytes: usize) {
        for share in &mut self.shares {
            share.give_back(units(bytes));
        }
    }

    fn try_take(&mut self, units: usize) -> bool {
        let first = self.first_bounding();
        let open = self.shares.get_mut(first..).unwrap_or_default();
        for at in 0..open.len() {
            let is_taken = open.get_mut(at).is_some_and(|share| share.try_take(units));
            if !is_taken {
                open.iter_mut().take(at).for_each(|share| share.give_back(units));
                return false;
            }
        }
        true
    }

    async fn wait(&mut self, units: usize) -> Result<usize, Failure> {
        let Some(table) = self.shares.first().map(|share| Arc::clone(&share.budget.table)) else {
            return Ok(units);
        };
        let _place = table.waiting.try_acquire().map_err(|_| Failure::BodyMemory)?;
        // Boxed: rare, and its state would be most of what every request's future carries around.
        Box::pin(tokio::time::timeout(WAIT_FOR_MEMORY, async {
            let mut at = self.first_bounding();
            while let Some(share) = self.shares.get_mut(at) {
                let budget = share.budget.id();
                {
                    let mut taken = pin!(share.take(units));
                    while tokio::time::timeout(EVICT_EVERY, taken.as_mut()).await.is_err() {
                        table.uploads.evict_slowest(budget);
                    }
                }
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
    fn try_take(&mut self, units: usize) -> bool {
        let Ok(wanted) = u32::try_from(units) else { return false };
        if let Ok(taken) = self.budget.free.try_acquire_many(wanted) {
            taken.forget();
            self.units += units;
            return true;
        }
        if self.units + self.small + units > SMALL {
            return false;
        }
        let Ok(taken) = self.budget.small.try_acquire_many(wanted) else { return false };
        taken.forget();
        self.small += units;
        true
    }

    /// Gives units back, those of the reserve first.
    fn give_back(&mut self, units: usize) {
        let small = units.min(self.small);
        let free = (units - small).min(self.units);
        self.small -= small;
        self.units -= free;
        self.budget.small.add_permits(small);
        self.budget.free.add_permits(free);
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
        self.give_back(self.units + self.small);
        if self.is_finisher {
            self.budget.finisher.add_permits(1);
        }
    }
}

/// Bytes and the memory that they are charged to.
struct Charged {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
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
/// Answers have one in this many parts of each budget.
const ANSWER_SHARE: usize = 4;
/// The reserve of small bodies is one in this many parts of the memory.
const SMALL_SHARE: usize = 16;
/// In units: a body of 256 KiB.
const SMALL: usize = 256;
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(5);
const MAX_WAITING: usize = 1024;
const EVICT_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// 8 MiB for all, 4 MiB for a connection, bodies of 1 MiB: reserves of 2 MiB each, half a MiB for small bodies.
    fn memory() -> BodyMemory {
        BodyMemory::new(8 * MIB, MIB, Clock::start())
    }

    /// Takes all but the reserves.
    async fn fill(memory: &BodyMemory) -> Charge {
        let mut charge = memory.open(None, None);
        charge.add(free(memory)).await.unwrap();
        charge
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
        assert_eq!(free(&memory), before - 3072);
        charge.give_back(1024);
        assert_eq!(free(&memory), before - 2048);
        drop(charge);
        assert_eq!(free(&memory), before);
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_are_remembered_for_as_long_as_they_hold_something() {
        let memory = memory();
        let mut held = memory.open(None, Some(&"held".into()));
        held.add(3 * MIB).await.unwrap();
        for n in 0..10_000 {
            drop(memory.open(None, Some(&format!("tenant-{n}").into())));
        }
        assert!(memory.by_tenant.lock().len() < 100);
        let mut more = memory.open(None, Some(&"held".into()));
        assert_eq!(more.shares[0].budget.id(), held.shares[0].budget.id());
        assert_eq!(more.add(2 * MIB).await.unwrap_err().code(), "body_memory", "its share is 4 MiB");
    }

    #[tokio::test(start_paused = true)]
    async fn of_uploads_that_wait_for_each_other_one_always_finishes() {
        let memory = memory();
        // Eleven half bodies fill what there is without the reserves.
        let mut half = Vec::new();
        for _ in 0..11 {
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
        assert_eq!((free(&memory), memory.all.finisher.available_permits()), (11 * MIB / 2, 1));
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
        let _filler = fill(&memory).await;
        let mut first = memory.open(Some(&hog), None);
        first.add(MIB).await.unwrap();
        assert!(first.shares[1].is_finisher);
        let mut second = memory.open(Some(&hog), None);
        assert!(second.add(MIB).await.is_err(), "the memory is full");
        first.add(MIB).await.unwrap();
    }
    #[tokio::test(start_paused = true)]
    async fn small_bodies_have_a_reserve_that_large_ones_do_not_take() {
        let memory = memory();
        let _filler = fill(&memory).await;
        let small = || memory.open(None, None);
        let (mut first, mut second, mut third) = (small(), small(), small());
        assert!(first.try_add(MIB / 4) && !first.try_add(1), "its part of the reserve");
        assert!(second.try_add(MIB / 8) && second.try_add(MIB / 8) && !third.try_add(1));
        second.give_back(MIB / 8);
        assert!(third.try_add(MIB / 8));
        drop((first, second, third));
        assert_eq!(memory.all.small.available_permits() * UNIT, MIB / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_memory_of_the_slowest_upload() {
        let memory = memory();
        let filler = fill(&memory).await;
        let (paused, moving) = (filler.enter().unwrap(), filler.enter().unwrap());
        paused.received(MIB);
        tokio::time::advance(Duration::from_secs(10)).await;
        moving.received(MIB);
        // The right to finish is taken, so that this one has to wait.
        let _finisher = memory.all.finisher.try_acquire().unwrap();
        assert_eq!(memory.open(None, None).add(MIB).await.unwrap_err().code(), "body_memory");
        assert!(paused.evicted().is_cancelled() && !moving.evicted().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_have_a_quarter_and_hold_it_as_long_as_any_of_their_bytes() {
        let memory = memory();
        let request = memory.open(None, None);
        let mut charge = request.of_answer().open();
        assert!(charge.try_add(2 * MIB) && !charge.try_add(1));
        let before = free(&memory);
        let mut bytes = charge.around(vec![0; 2 * MIB]);
        let end = bytes.split_off(MIB);
        drop(bytes);
        assert_eq!(free(&memory), before);
        drop(end);
        assert_eq!(free(&memory), before + 2 * MIB);
    }
}
