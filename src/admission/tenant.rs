//! Limits of tenants: requests and tokens a minute, requests at once, and budgets ([`super::budget`]).
//!
//! Rates are held by a bucket of one minute's allowance that refills steadily; a limit that a reload lowered is as far used as it was.
//! Tokens are charged by the prompt's estimate and corrected by the engine's usage at the end, so that a bucket can be
//! in debt. State is kept by the tenant's name: it outlives reloads, and new limits count at once. A [`TenantPermit`] lives in
//! the request's record and gives everything back when it is dropped; a request that was refused costs nothing.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tokio::sync::watch;

use super::amounts::{Amounts, Kind, Wanted};
use super::budget::{Ledger, Reservation};
use super::lease::Sharing;
use super::limit_reached;
use crate::clock::Stamp;
use crate::config::{Budget, Tenant, TenantLimits};
use crate::error::Failure;
use crate::record::{RateLimit, RateLimits, Record, TokenCounts};
use crate::request::api_keys::ApiKey;
use crate::state_file::Version;
use crate::stats::{Refill, TokenBucket};
use crate::units::Tokens;

/// What every tenant has used.
#[derive(Debug, Default)]
pub struct TenantLimiter {
    tenants: Mutex<HashMap<Arc<str>, Arc<Mutex<TenantUse>>>>,
    /// As in [`Ledgers`].
    gateway: OnceLock<Box<str>>,
    /// Sent again with every look at what other gateways took.
    sharing: watch::Sender<Sharing>,
}

#[derive(Debug, Default)]
struct TenantUse {
    /// In force, as of the last request.
    limits: TenantLimits,
    requests: TokenBucket,
    tokens: TokenBucket,
    inflight: u32,
    ledger: Ledger,
    /// Of its keys with budgets, by name.
    keys: HashMap<Arc<str>, Ledger>,
    /// Nanoseconds of engines that are not charged yet: less than a millisecond.
    engine_rest: i128,
}

impl TenantUse {
    /// Whole milliseconds by which engine time changes; what is less is charged with later requests.
    fn whole_ms(&mut self, before: Duration, now: Duration) -> i64 {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 2);
        self.engine_rest += nanos(now) - nanos(before);
        let whole = self.engine_rest.div_euclid(NANOS_IN_MS);
        self.engine_rest = self.engine_rest.rem_euclid(NANOS_IN_MS);
        i64::try_from(whole).unwrap_or(i64::MAX)
    }
}

/// What all tenants have used of their budgets, and their keys of theirs: kept over restarts.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Ledgers {
    version: Version<1>,
    /// Of the gateway, for others that share budgets with it: they know under it what is counted here.
    pub gateway: Option<Box<str>>,
    /// By name of the tenant.
    pub tenants: HashMap<Box<str>, Ledger>,
    /// By name of the tenant and of the key.
    pub keys: HashMap<Box<str>, HashMap<Box<str>, Ledger>>,
}

/// What a request needs, for a limit.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Prompt tokens, counted or estimated.
    pub tokens: Tokens,
    /// The client sent token ids; else it is an estimate.
    pub is_counted: bool,
    /// Predicted tokens of the answer.
    pub output: Tokens,
    /// It is what the client's own bound allows.
    pub is_output_bounded: bool,
    /// Its engine computes nothing for it: tokens and budgets that are spent refuse it nothing.
    pub is_free: bool,
    /// As the client asks for it.
    pub model: &'a str,
    /// The key that it came with, for the key's own budgets.
    pub key: Option<&'a ApiKey>,
    /// For the calendar of budgets.
    pub wall: SystemTime,
}

/// Whether a tenant's request is let in, and what is left of the tenant's limits.
#[derive(Debug)]
pub struct Admission {
    /// `None` for a tenant without limits; an error names the limit that it would exceed.
    pub permit: Result<Option<TenantPermit>, Failure>,
    /// For the response's headers.
    pub limits: RateLimits,
}

/// A tenant's request that was let in.
#[derive(Debug)]
pub struct TenantPermit {
    state: Arc<Mutex<TenantUse>>,
    /// Tokens charged so far; `None` where no limit counted them.
    charged: Option<u64>,
    reserved: Reserved,
    /// Since when, by the clock and by the calendar.
    began: (Stamp, SystemTime),
    /// Whether it takes a place of the tenant's `concurrency`.
    has_place: bool,
}

/// What a request was charged of time at engines, for a correction once its engine has reported it.
#[derive(Debug)]
pub struct EngineCharge {
    state: Arc<Mutex<TenantUse>>,
    reserved: Reserved,
    charged: Amounts,
    engine: Duration,
    /// When the request ended.
    wall: SystemTime,
}

/// In the tenant's ledger, and in that of the key with this name.
type Reserved = SmallVec<[(Option<Arc<str>>, Reservation); 2]>;

impl TenantLimiter {
    /// Lets a request in, unless a limit or a hard budget of its tenant has no room for it; then it is charged for nothing. An estimate
    /// is never reason for a limit to refuse for good: one of more than a minute's tokens waits for a minute's, and is charged for
    /// all that it used.
    pub fn admit(&self, tenant: &Tenant, demand: &Demand<'_>, now: Stamp) -> Admission {
        let has_budgets = budgets(tenant, demand).any(|(_, budgets)| !budgets.is_empty());
        if tenant.limits == TenantLimits::default() && !has_budgets {
            return Admission { permit: Ok(None), limits: RateLimits::default() };
        }
        let state = Arc::clone(self.tenants.lock().entry(Arc::clone(&tenant.name)).or_default());
        let sharing = self.sharing();
        let mut used = state.lock();
        let admitted = used.admit(tenant, demand, sharing, now);
        let limits = used.left(tenant, demand, now);
        drop(used);
        let permit = admitted.map(|reserved| {
            let charged = tenant.limits.tokens_per_minute.map(|_| demand.tokens.0);
            Some(TenantPermit { state, charged, reserved, began: (now, demand.wall), has_place: true })
        });
        Admission { permit, limits }
    }

    /// Waits until it is known what other gateways have taken of the hard budgets of a request that was refused, at most [`LOOKS`] of at
    /// most [`PATIENCE`]; `false` where it was known.
    pub async fn looked(&self, tenant: &Tenant, demand: &Demand<'_>) -> bool {
        let mut looks = self.sharing.subscribe();
        let awaits_look = |sharing| {
            let state = self.tenants.lock().get(&tenant.name).cloned();
            state.is_some_and(|state| state.lock().awaits_look(tenant, demand, sharing))
        };
        if demand.is_free || !awaits_look(*looks.borrow_and_update()) {
            return false;
        }
        // A broker that answers late, or not, is told of before that: what holds then is for the caller. One wait for each look, however long
        // that takes; where this process stands still, it misses one and no more.
        let mut missed = 0;
        for _ in 0..LOOKS {
            missed += u32::from(tokio::time::timeout(PATIENCE, looks.changed()).await.is_err());
            if missed > 1 || !awaits_look(*looks.borrow_and_update()) {
                break;
            }
        }
        true
    }

    /// What was used of budgets. What a key used is left out once its windows are over.
    pub fn ledgers(&self, now: SystemTime) -> Ledgers {
        let mut all = Ledgers { gateway: self.gateway.get().cloned(), ..Ledgers::default() };
        for (name, state) in &*self.tenants.lock() {
            let (name, mut state) = (Box::from(&**name), state.lock());
            state.keys.retain(|_, ledger| !ledger.is_over(now));
            if !state.ledger.is_empty() {
                all.tenants.insert(Box::clone(&name), state.ledger.clone());
            }
            if !state.keys.is_empty() {
                let of_keys = state.keys.iter().map(|(key, ledger)| (Box::from(&**key), ledger.clone()));
                all.keys.insert(name, of_keys.collect());
            }
        }
        all
    }

    /// Whether no tenant with limits or budgets was here yet.
    pub fn is_empty(&self) -> bool {
        self.tenants.lock().is_empty()
    }

    /// How budgets are counted.
    pub(super) fn sharing(&self) -> Sharing {
        *self.sharing.borrow()
    }

    /// Counts budgets so from now on.
    pub fn share(&self, sharing: Sharing) {
        self.sharing.send_replace(sharing);
    }

    /// Every ledger, with the names of its tenant and of its key.
    pub(super) fn each_ledger(&self, mut each: impl FnMut(&str, Option<&str>, &mut Ledger)) {
        let tenants: Vec<_> =
            self.tenants.lock().iter().map(|(name, state)| (Arc::clone(name), Arc::clone(state))).collect();
        for (name, state) in tenants {
            let mut state = state.lock();
            each(&name, None, &mut state.ledger);
            for (key, ledger) in &mut state.keys {
                each(&name, Some(key), ledger);
            }
        }
    }

    /// One of them, where it is there.
    pub(super) fn with_ledger(&self, tenant: &str, key: Option<&str>, then: impl FnOnce(&mut Ledger)) {
        let Some(state) = self.tenants.lock().get(tenant).cloned() else { return };
        let mut state = state.lock();
        let ledger = match key {
            None => Some(&mut state.ledger),
            Some(key) => state.keys.get_mut(key),
        };
        if let Some(ledger) = ledger {
            then(ledger);
        }
    }

    /// Continues from an earlier process.
    pub fn restore(&self, ledgers: Ledgers) {
        if let Some(name) = ledgers.gateway {
            let _ = self.gateway.set(name);
        }
        let mut tenants = self.tenants.lock();
        for (name, ledger) in ledgers.tenants {
            tenants.entry(Arc::from(name)).or_default().lock().ledger = ledger;
        }
        for (name, keys) in ledgers.keys {
            let keys = keys.into_iter().map(|(key, ledger)| (Arc::from(key), ledger));
            tenants.entry(Arc::from(name)).or_default().lock().keys = keys.collect();
        }
    }

    /// Requests in flight of a tenant with limits.
    pub fn inflight(&self, tenant: &str) -> u32 {
        self.tenants.lock().get(tenant).map_or(0, |state| state.lock().inflight)
    }
}

impl TenantPermit {
    /// Its client has the whole answer, and may send the next request before the rest of this one is done.
    pub fn give_place_back(&mut self) {
        if mem::take(&mut self.has_place) {
            let mut used = self.state.lock();
            used.inflight = used.inflight.saturating_sub(1);
        }
    }

    /// The request ended after so much time at engines: it is charged by what it used ([`Record::charged_tokens`]), and a refused one
    /// by nothing.
    pub fn settle(mut self, record: &Record, engine: Duration) -> EngineCharge {
        let mut used = self.state.lock();
        if record.is_refused() {
            used.requests.give_back(1.0);
        }
        let engine_ms = used.whole_ms(Duration::ZERO, engine);
        let amounts = Amounts { engine_ms: u64::try_from(engine_ms).unwrap_or(0), ..amounts_of(record) };
        let tokens = amounts.of(Kind::Tokens);
        // Those of its admission would make the bucket of a tenant whose limit was lowered since as large as it was.
        if let Some((per_minute, charged)) = used.limits.tokens_per_minute.zip(self.charged) {
            let (more, less) = (tokens.saturating_sub(charged), charged.saturating_sub(tokens));
            used.tokens.charge(more as f64, &Refill::per_minute(per_minute), record.at.end);
            used.tokens.give_back(less as f64);
        }
        let (began, wall) = self.began;
        let wall = wall + record.at.end.since(began);
        used.each_of(&self.reserved, |ledger, reserved| ledger.settle(reserved, amounts, wall));
        drop(used);
        let (state, reserved) = (Arc::clone(&self.state), mem::take(&mut self.reserved));
        EngineCharge { state, reserved, charged: amounts, engine, wall }
    }
}

impl EngineCharge {
    /// The engine reported this time.
    pub fn correct(self, engine: Duration) {
        let mut used = self.state.lock();
        let engine_ms = self.charged.engine_ms.saturating_add_signed(used.whole_ms(self.engine, engine));
        let measured = Amounts { engine_ms, ..self.charged };
        used.each_of(&self.reserved, |ledger, reserved| {
            ledger.correct(reserved, self.charged, measured, self.wall);
        });
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        self.give_place_back();
    }
}

/// For how long a limit refuses; what waiting does not help lasts longest.
fn lasts(failure: &Failure) -> Duration {
    match failure {
        Failure::NotAdmitted { retry_after: Some(wait), .. } => *wait,
        _ => Duration::MAX,
    }
}

/// The budgets that hold for a request: the tenant's, and with its name those of its key, where it has any.
fn budgets<'a>(
    tenant: &'a Tenant,
    demand: &Demand<'a>,
) -> impl Iterator<Item = (Option<&'a Arc<str>>, &'a [Budget])> {
    let key = demand.key.filter(|key| !key.budgets.is_empty());
    std::iter::once((None, &*tenant.budgets)).chain(key.map(|key| (Some(&key.name), &*key.budgets)))
}

/// All but the time of engines.
fn amounts_of(record: &Record) -> Amounts {
    let TokenCounts { input, cached, output } = record.charged_tokens();
    Amounts {
        input: input.unwrap_or_default().0,
        cached: cached.unwrap_or_default().0,
        output: output.unwrap_or_default().0,
        requests: u64::from(!record.is_refused()),
        engine_ms: 0,
    }
}

const NANOS_IN_MS: i128 = 1_000_000;

impl Demand<'_> {
    fn wanted(&self) -> Wanted {
        if self.is_free {
            return Wanted::default();
        }
        let expected =
            Amounts { input: self.tokens.0, output: self.output.0, requests: 1, ..Amounts::default() };
        let input = if self.is_counted { expected.input } else { 0 };
        let output = if self.is_output_bounded { expected.output } else { 0 };
        Wanted { expected, counted: Amounts { input, output, ..expected } }
    }
}

impl TenantUse {
    fn admit(
        &mut self,
        tenant: &Tenant,
        demand: &Demand<'_>,
        sharing: Sharing,
        now: Stamp,
    ) -> Result<Reserved, Failure> {
        let Tenant { limits, name, .. } = tenant;
        self.limits = *limits;
        let mut refusals = Vec::from_iter(self.check(tenant, demand, now).err());
        let (mut reserved, wanted) = (Reserved::new(), demand.wanted());
        for (key, budgets) in budgets(tenant, demand) {
            match self.ledger(key).check(budgets, demand.model, wanted, sharing, demand.wall) {
                Ok(reservation) => reserved.push((key.cloned(), reservation)),
                Err(spent) => refusals.push(match key {
                    None => spent.failure(&format!("tenant {name}")),
                    Some(key) => spent.failure(&format!("API key {key} of tenant {name}")),
                }),
            }
        }
        // A client that comes back when one of them is over is not to find the next.
        if let Some(longest) = refusals.into_iter().max_by_key(lasts) {
            return Err(longest);
        }
        self.each_of(&reserved, Ledger::hold);
        self.inflight += 1;
        if let Some(per_minute) = limits.requests_per_minute {
            self.requests.charge(1.0, &Refill::per_minute(per_minute), now);
        }
        if let Some(per_minute) = limits.tokens_per_minute {
            self.tokens.charge(demand.tokens.0 as f64, &Refill::per_minute(per_minute), now);
        }
        Ok(reserved)
    }

    /// The tenant's ledger, or that of a key.
    fn ledger(&mut self, key: Option<&Arc<str>>) -> &mut Ledger {
        match key {
            None => &mut self.ledger,
            Some(key) => self.keys.entry(Arc::clone(key)).or_default(),
        }
    }

    /// The ledgers in which this is reserved, with the reservation of each.
    fn each_of(&mut self, reserved: &Reserved, then: impl Fn(&mut Ledger, &Reservation)) {
        for (key, reservation) in reserved {
            then(self.ledger(key.as_ref()), reservation);
        }
    }

    fn awaits_look(&mut self, tenant: &Tenant, demand: &Demand<'_>, sharing: Sharing) -> bool {
        budgets(tenant, demand)
            .any(|(key, budgets)| self.ledger(key).awaits_look(budgets, demand.model, sharing, demand.wall))
    }

    /// The tightest limits that hold for a request.
    fn left(&mut self, tenant: &Tenant, demand: &Demand<'_>, now: Stamp) -> RateLimits {
        let of_bucket = |per_minute: Option<u64>, bucket: &TokenBucket| {
            let limit = per_minute?;
            let (left, reset) = bucket.left(&Refill::per_minute(limit), now);
            Some(RateLimit { limit, remaining: left as u64, reset })
        };
        let requests = of_bucket(tenant.limits.requests_per_minute, &self.requests);
        let tokens = of_bucket(tenant.limits.tokens_per_minute, &self.tokens);
        budgets(tenant, demand).fold(RateLimits { requests, tokens }, |limits, (key, budgets)| {
            self.ledger(key).tightest(budgets, demand.model, limits, demand.wall)
        })
    }

    fn check(&self, tenant: &Tenant, demand: &Demand<'_>, now: Stamp) -> Result<(), Failure> {
        let Tenant { limits, name, .. } = tenant;
        if let Some(max) = limits.concurrency.filter(|max| self.inflight >= *max) {
            return Err(limit_reached::concurrency(name, max));
        }
        if let Some(per_minute) = limits.requests_per_minute {
            let admitted = self.requests.check(1.0, &Refill::per_minute(per_minute), now);
            admitted.map_err(|wait| limit_reached::requests(name, per_minute, wait))?;
        }
        if let Some(per_minute) = limits.tokens_per_minute.filter(|_| !demand.is_free) {
            let Demand { tokens: Tokens(prompt), is_counted, .. } = *demand;
            if is_counted && prompt > per_minute {
                return Err(limit_reached::too_large(name, prompt, per_minute));
            }
            let admitted =
                self.tokens.check(prompt.min(per_minute) as f64, &Refill::per_minute(per_minute), now);
            admitted.map_err(|wait| limit_reached::tokens(name, prompt, per_minute, wait))?;
        }
        Ok(())
    }
}

/// For one look at what other gateways have taken: 20 ms and two round trips, or what they have is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks until another gateway has left what it does not use: one under way, one that asks, one of the other's, one that takes; and the
/// first of a window.
const LOOKS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;
    use crate::config::Window;
    use crate::record::{ClientInfo, Opening, Outcome};
    use crate::request::dialect::Dialect;
    use crate::request::trace_context::trace_of;

    const DEMAND: Demand<'_> = Demand {
        tokens: Tokens(1),
        is_counted: false,
        output: Tokens(0),
        is_output_bounded: false,
        is_free: false,
        model: "m",
        key: None,
        wall: SystemTime::UNIX_EPOCH,
    };

    fn tenant(requests: Option<u64>, tokens: Option<u64>, concurrency: Option<u32>) -> Tenant {
        let limits = TenantLimits { requests_per_minute: requests, tokens_per_minute: tokens, concurrency };
        Tenant { name: "acme".into(), limits, ..Tenant::default() }
    }

    fn record(outcome: Outcome, input: u64, output: u64) -> Record {
        let mut record = Record::open(Opening {
            request_id: "r".into(),
            trace: trace_of(&http::HeaderMap::new(), None),
            dialect: Dialect::Chat,
            path: "/".into(),
            head: at(0),
            client: ClientInfo::default(),
        });
        (record.outcome, record.tokens.input) = (outcome, Some(Tokens(input)));
        record.tokens.output = Some(Tokens(output));
        record
    }

    /// Codes and whole seconds of `retry-after` of as many requests as there are.
    fn admit(
        limiter: &TenantLimiter,
        tenant: &Tenant,
        prompt: u64,
        now: Stamp,
    ) -> Result<TenantPermit, (String, Option<u64>)> {
        admit_as(limiter, tenant, prompt, false, now)
    }

    fn admit_as(
        limiter: &TenantLimiter,
        tenant: &Tenant,
        prompt: u64,
        is_counted: bool,
        now: Stamp,
    ) -> Result<TenantPermit, (String, Option<u64>)> {
        let wall = SystemTime::UNIX_EPOCH + now.since(Stamp::default());
        let demand = Demand { tokens: Tokens(prompt), is_counted, wall, ..DEMAND };
        match limiter.admit(tenant, &demand, now).permit {
            Ok(permit) => Ok(permit.unwrap()),
            Err(failure) => {
                assert!(failure.to_string().contains("acme"), "{failure}");
                let seconds = failure.retry_after().map(|wait| wait.as_secs_f64().ceil() as u64);
                Err((failure.code().to_owned(), seconds))
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_waits_for_as_many_looks_of_a_slow_broker_as_of_a_fast_one() {
        let budgets =
            vec![Budget { requests: Some(1), window: Window::Day, hard: true, ..Budget::default() }];
        let tenant = Tenant { name: "acme".into(), budgets, ..Tenant::default() };
        // (time of a look in ms, looks that come, looks after which it is known that the broker is away; ms waited)
        for (length, looks, away, waited) in
            [(20, 9, 9, 100), (400, 9, 9, 2000), (400, 9, 2, 800), (20, 0, 9, 2000)]
        {
            let limiter = TenantLimiter::default();
            let shared = Sharing::Shared { gateways: 2 };
            limiter.share(shared);
            drop(limiter.admit(&tenant, &DEMAND, at(0)));
            let looking = async {
                for look in 1..=looks {
                    tokio::time::sleep(Duration::from_millis(length)).await;
                    limiter.share(if look < away { shared } else { Sharing::Closed });
                }
                std::future::pending::<()>().await;
            };
            let clock = crate::clock::Clock::start();
            let began = clock.now();
            tokio::select! {
                waits = limiter.looked(&tenant, &DEMAND) => assert!(waits),
                () = looking => {}
            }
            let took = clock.now().since(began).as_millis();
            assert!((waited..waited + 10).contains(&took), "{length} ms, {looks} looks: {took} ms");
        }
    }

    #[test]
    fn a_minutes_requests_may_come_at_once_and_then_as_they_refill() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(Some(5), None, None));
        for _ in 0..5 {
            drop(admit(&limiter, &tenant, 1, at(0)).unwrap());
        }
        for (now, wait) in [(0, Some(12)), (5, Some(7)), (12, None), (12, Some(12)), (24, None)] {
            let answer = admit(&limiter, &tenant, 1, at(now)).map(drop);
            let expected = wait.map_or(Ok(()), |wait| Err(("requests_per_minute".into(), Some(wait))));
            assert_eq!(answer, expected, "at {now} s");
        }
    }

    #[test]
    fn tokens_are_charged_by_estimate_and_corrected_by_usage() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(None, Some(600), None));
        let used = |permit: TenantPermit, outcome, input, output| {
            let mut record = record(outcome, input, output);
            record.at.routed = Some(at(0));
            permit.settle(&record, Duration::ZERO);
        };
        let first = admit(&limiter, &tenant, 500, at(0)).unwrap();
        assert_eq!(admit(&limiter, &tenant, 200, at(0)).unwrap_err(), ("tokens_per_minute".into(), Some(10)));
        used(first, Outcome::Ok, 100, 50);
        let second = admit(&limiter, &tenant, 400, at(0)).unwrap();
        used(second, Outcome::Ok, 400, 650);
        // 1,200 of 600: in debt.
        assert_eq!(admit(&limiter, &tenant, 100, at(0)).unwrap_err(), ("tokens_per_minute".into(), Some(70)));
        drop(admit(&limiter, &tenant, 100, at(70)).unwrap());
        let counted = admit_as(&limiter, &tenant, 601, true, at(999));
        assert_eq!(counted.unwrap_err(), ("tokens_per_minute".into(), None), "it never fits");
        used(admit(&limiter, &tenant, 60, at(999)).unwrap(), Outcome::Ok, 60, 0);
        let wait = admit(&limiter, &tenant, 6000, at(999)).unwrap_err();
        assert_eq!(wait, ("tokens_per_minute".into(), Some(6)), "an estimate may be wrong");
        let wrong = admit(&limiter, &tenant, 6000, at(1005)).unwrap();
        assert_eq!(admit(&limiter, &tenant, 1, at(1005)).unwrap_err().1, Some(541));
        used(wrong, Outcome::Ok, 599, 0);
        drop(admit(&limiter, &tenant, 1, at(1006)).unwrap());
    }

    #[test]
    fn requests_from_before_a_reload_make_a_smaller_bucket_no_larger() {
        let limiter = TenantLimiter::default();
        let [none, large, small] =
            [None, Some(100_000), Some(1000)].map(|limit| tenant(Some(99), limit, None));
        let ends = |permit: TenantPermit, input| {
            let mut record = record(Outcome::Ok, input, 0);
            record.at.routed = Some(at(0));
            permit.settle(&record, Duration::ZERO);
        };
        let uncounted = admit(&limiter, &none, 5000, at(0)).unwrap();
        let streams: Vec<_> = (0..5).map(|_| admit(&limiter, &large, 10, at(0)).unwrap()).collect();
        let _last = admit(&limiter, &small, 900, at(0)).unwrap();
        for stream in streams {
            assert_eq!(admit(&limiter, &small, 900, at(0)).unwrap_err().0, "tokens_per_minute");
            ends(stream, 10);
        }
        ends(uncounted, 10);
        assert!(admit(&limiter, &small, 100, at(0)).is_err(), "nothing comes back that was not charged");
        assert!(admit(&limiter, &small, 99, at(0)).is_ok());
    }

    #[test]
    fn no_more_is_charged_as_cached_than_the_prompt_has() {
        let mut record = record(Outcome::Ok, 10, 1);
        record.at.routed = Some(at(0));
        for (reported, charged) in [(7, 7), (100, 10)] {
            record.tokens.cached = Some(Tokens(reported));
            assert_eq!(record.charged_tokens().cached, Some(Tokens(charged)));
        }
    }

    #[test]
    fn what_is_refused_later_costs_nothing_and_counts_go_back_to_zero() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(Some(1), Some(100), Some(1)));
        for _ in 0..3 {
            let permit = admit(&limiter, &tenant, 100, at(0)).unwrap();
            let other = admit(&limiter, &tenant, 1, at(0)).unwrap_err();
            assert_eq!(other, ("concurrency".into(), Some(1)));
            permit.settle(&record(Outcome::Refused, 100, 0), Duration::ZERO);
            assert_eq!(limiter.inflight("acme"), 0);
        }
        let canceled = admit(&limiter, &tenant, 100, at(0)).unwrap();
        canceled.settle(&record(Outcome::Canceled, 100, 0), Duration::ZERO);
        assert_eq!(admit(&limiter, &tenant, 1, at(0)).unwrap_err().0, "requests_per_minute");
        assert!(admit(&limiter, &tenant, 100, at(60)).is_ok(), "it never reached a replica: no tokens");
    }

    #[test]
    fn of_several_limits_the_one_that_lasts_longest_is_named() {
        let (limiter, mut tenant) = (TenantLimiter::default(), tenant(Some(1), None, None));
        let budget = |window, requests| Budget { requests: Some(requests), window, ..Budget::default() };
        tenant.budgets = vec![budget(Window::Minute, 1), budget(Window::Day, 1)];
        let _first = admit(&limiter, &tenant, 1, at(0)).unwrap();
        let (limit, wait) = admit(&limiter, &tenant, 1, at(0)).unwrap_err();
        assert!(
            limit == "budget" && wait > Some(3600),
            "the day's, though a minute is over as well: {wait:?}"
        );
        let output = Budget { tokens: Some(100), window: Window::Hour, ..Budget::default() };
        let small = Tenant { budgets: vec![output], limits: TenantLimits::default(), ..tenant };
        let too_large = admit_as(&limiter, &small, 101, true, at(0)).unwrap_err();
        assert_eq!(too_large, ("budget".into(), None), "it fits into no hour");
    }

    #[test]
    fn engine_time_below_a_millisecond_adds_up_and_corrections_are_exact() {
        let (limiter, mut tenant) = (TenantLimiter::default(), tenant(None, None, None));
        let budget = Budget { engine_seconds: Some(1), window: Window::Month, ..Budget::default() };
        tenant.budgets = vec![budget];
        let micros = Duration::from_micros;
        let charge = |engine| {
            let permit = admit(&limiter, &tenant, 1, at(0)).unwrap();
            permit.settle(&record(Outcome::Ok, 1, 0), micros(engine))
        };
        let used_ms = || {
            limiter.tenants.lock()["acme"]
                .lock()
                .ledger
                .used(&tenant.budgets[0], SystemTime::UNIX_EPOCH)
                .engine_ms
        };
        for _ in 0..1000 {
            charge(220).correct(micros(220));
        }
        assert_eq!(used_ms(), 220);
        charge(900).correct(micros(100));
        charge(900).correct(micros(5_300));
        assert_eq!(used_ms(), 225, "5.4 ms more, .4 of them not charged yet");
    }

    #[test]
    fn an_error_as_the_whole_answer_gives_its_tokens_back_and_a_broken_stream_keeps_what_it_used() {
        let (limiter, tenant) = (TenantLimiter::default(), tenant(None, Some(100), None));
        let ended = |outcome, status, content_events| {
            let mut record = Record { outcome, status, content_events, ..record(outcome, 0, 0) };
            (record.at.routed, record.tokens) = (Some(at(0)), TokenCounts::default());
            record.estimated_input = Tokens(90);
            record
        };
        let late_head = Record { is_stream: true, ..ended(Outcome::ClientError, 200, 0) };
        let free = [ended(Outcome::ClientError, 400, 0), ended(Outcome::Failed, 503, 0), late_head];
        for record in &free {
            let permit = admit(&limiter, &tenant, 90, at(0)).unwrap();
            assert!(admit(&limiter, &tenant, 90, at(0)).is_err(), "while it runs it is charged");
            permit.settle(record, Duration::ZERO);
        }
        for (record, tokens) in [
            (Record { is_stream: true, ..ended(Outcome::Failed, 200, 7) }, 97),
            (ended(Outcome::Failed, 200, 0), 90),
            (Record { is_stream: true, ..ended(Outcome::Canceled, 499, 0) }, 90),
        ] {
            assert_eq!(amounts_of(&record).of(Kind::Tokens), tokens, "{:?}", record.outcome);
        }
    }

    #[test]
    fn a_hard_budget_refuses_until_its_window_ends_and_is_kept() {
        let budget = Budget { window: Window::Minute, requests: Some(2), ..Budget::default() };
        let tenant = Tenant { name: "acme".into(), budgets: vec![budget], ..Tenant::default() };
        let limiter = TenantLimiter::default();
        let first = admit(&limiter, &tenant, 1, at(0)).unwrap();
        drop(admit(&limiter, &tenant, 1, at(1)).unwrap());
        first.settle(&record(Outcome::Ok, 1, 1), Duration::ZERO);
        assert_eq!(admit(&limiter, &tenant, 1, at(20)).unwrap_err(), ("budget".into(), Some(40)));
        let after = TenantLimiter::default();
        let kept = serde_json::to_string(&limiter.ledgers(SystemTime::UNIX_EPOCH)).unwrap();
        after.restore(serde_json::from_str(&kept).unwrap());
        let admission = after.admit(&tenant, &DEMAND, at(20));
        assert_eq!(admission.limits.requests.map(|it| (it.limit, it.remaining)), Some((2, 0)));
        assert!(admission.permit.is_ok(), "what was under way at the end of the process is not charged");
        assert!(admit(&limiter, &tenant, 1, at(60)).is_ok());
        for (own, other) in [("\"version\":1", "\"version\":2"), ("\"version\":1,", "")] {
            let foreign = kept.replace(own, other);
            assert!(foreign != kept && serde_json::from_str::<Ledgers>(&foreign).is_err(), "{foreign}");
        }
    }

    #[test]
    fn budgets_that_change_while_requests_run_count_each_request_once_and_hold_nothing_for_good() {
        let limiter = TenantLimiter::default();
        let of = |budgets: &[Budget]| Tenant {
            name: "acme".into(),
            budgets: budgets.to_vec(),
            ..Tenant::default()
        };
        let hour = |requests| Budget { window: Window::Hour, requests: Some(requests), ..Budget::default() };
        let day = |requests| Budget { window: Window::Day, requests: Some(requests), ..Budget::default() };
        let under_way = [of(&[hour(3)]), of(&[day(9), hour(3)])]
            .map(|before| admit(&limiter, &before, 1, at(0)).unwrap());
        // A lower limit counts what runs; one that is new counts what it was there for.
        assert_eq!(admit(&limiter, &of(&[hour(2)]), 1, at(1)).unwrap_err().0, "budget");
        assert_eq!(admit(&limiter, &of(&[day(1)]), 1, at(1)).unwrap_err().0, "budget");
        let [first, second] = under_way;
        first.settle(&record(Outcome::Ok, 1, 1), Duration::ZERO);
        second.settle(&record(Outcome::Refused, 1, 1), Duration::ZERO);
        let third = admit(&limiter, &of(&[day(1), hour(2)]), 1, at(2)).unwrap();
        third.settle(&record(Outcome::Ok, 1, 1), Duration::ZERO);
        for spent in [hour(2), day(1)] {
            assert_eq!(admit(&limiter, &of(&[spent]), 1, at(3)).unwrap_err().0, "budget");
        }
        assert!(admit(&limiter, &of(&[hour(3), day(2)]), 1, at(3)).is_ok(), "two and one have run");
    }

    #[test]
    fn limits_of_a_reload_count_at_once_for_what_was_used_before() {
        let limiter = TenantLimiter::default();
        let (before, after) = (tenant(Some(2), None, Some(9)), tenant(Some(60), None, Some(2)));
        let _first = admit(&limiter, &before, 1, at(0)).unwrap();
        let _second = admit(&limiter, &before, 1, at(0)).unwrap();
        assert_eq!(admit(&limiter, &after, 1, at(0)).unwrap_err().0, "concurrency");
        drop(_second);
        assert_eq!(admit(&limiter, &before, 1, at(0)).unwrap_err().0, "requests_per_minute");
        assert!(admit(&limiter, &after, 1, at(0)).is_ok());
    }
}
