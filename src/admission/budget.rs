//! Budgets of a tenant: what it has used in the windows of `[[tenant.budget]]`. Pure.
//!
//! A request reserves its estimated prompt and its predicted answer, and is charged by the engine's usage when it ends, in the
//! window of that moment. What is used is counted by window, zone and model whatever the limits are, so that a reload changes a limit under
//! what was used. Nothing here is forgotten by a clock that jumps back over the beginning of a window.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::amounts::{Amounts, Kind, Wanted};
use super::calendar::{Period, Unix};
use super::lease::{ByKind, Lease, Sharing};
use super::limit_reached::AGAIN;
use crate::config::{Budget, Window, Zone};
use crate::error::Failure;
use crate::record::{RateLimit, RateLimits};

impl Budget {
    /// Its limits.
    pub fn limits(&self) -> impl Iterator<Item = (Kind, u64)> {
        let all = [
            (Kind::Tokens, self.tokens),
            (Kind::Input, self.input_tokens),
            (Kind::Cached, self.cached_tokens),
            (Kind::Output, self.output_tokens),
            (Kind::Requests, self.requests),
            (Kind::Engine, self.engine_seconds),
        ];
        all.into_iter().filter_map(|(kind, limit)| Some((kind, limit?)))
    }
}

/// What was used in one window, of all models or of one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Account {
    window: Window,
    zone: Zone,
    model: Option<Box<str>>,
    /// Since when, in seconds since 1970.
    from: i64,
    /// Used since then.
    pub used: Amounts,
    /// Reserved by requests under way.
    #[serde(skip)]
    held: Amounts,
    /// What other gateways leave it, where there are some.
    #[serde(skip)]
    lease: Option<Box<Lease>>,
    /// What others had taken before the broker lost its memory: some of them may not be there to write it again.
    #[serde(skip)]
    lost: Amounts,
    /// A request was let in before there was one.
    #[serde(skip)]
    is_ahead: bool,
    /// The window of the last look.
    #[serde(skip)]
    period: Option<Period>,
}

/// The accounts of one tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger(Vec<Account>);

/// What a request reserved, and where.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    accounts: SmallVec<[usize; 4]>,
    amounts: Amounts,
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    kind: Kind,
    window: Window,
    limit: u64,
    used: u64,
    /// Reserved by requests under way, where it would fit without those, or without what other gateways may take meanwhile.
    held: Option<u64>,
    /// What it needs at least, where that is more than a whole window has.
    needs: Option<u64>,
    wait: Duration,
}

impl Ledger {
    /// What a request would reserve, in every budget of the model, if every hard one has room for it; else the limit that is in its way
    /// for the longest time.
    pub(super) fn check(
        &mut self,
        budgets: &[Budget],
        model: &str,
        wanted: Wanted,
        sharing: Sharing,
        now: SystemTime,
    ) -> Result<Reservation, Spent> {
        let (mut accounts, now) = (SmallVec::new(), Unix::from(now));
        let mut longest: Option<Spent> = None;
        let is_bounded = wanted.expected != Amounts::default();
        for budget in budgets.iter().filter(|budget| budget.is_of(model)) {
            let (at, account) = self.account(budget, now);
            let (taken, next) = (account.taken(), account.period(now).left(now));
            // It may be all that is taken until it is known what the others took.
            let is_first =
                matches!(sharing, Sharing::Shared { .. }) && account.is_unknown() && !account.is_ahead;
            for (kind, limit) in budget.limits().filter(|_| is_bounded && budget.hard) {
                // One that is under way may use all that it reserved.
                let left = match account.held.of(kind) {
                    0 => limit.saturating_sub(taken.of(kind)),
                    _ => limit,
                };
                let asked = wanted.of(kind, left);
                let has_room = taken.of(kind).saturating_add(asked) <= limit;
                if has_room && (account.is_leased(sharing, (kind, limit), asked, now) || is_first) {
                    continue;
                }
                // A request under way is one that will be used; of its tokens less may be.
                let held = if kind == Kind::Requests { 0 } else { account.held.of(kind) };
                let used = taken.of(kind).saturating_sub(held);
                let fits = used.saturating_add(wanted.of(kind, limit.saturating_sub(used))) <= limit;
                let wait = if fits { AGAIN } else { next };
                let held = fits.then_some(held);
                let needs = Some(wanted.of(kind, limit)).filter(|needs| *needs > limit);
                let spent = Spent { kind, window: budget.window, limit, used, held, needs, wait };
                longest = Some(longest.filter(|known| known.lasts() >= spent.lasts()).unwrap_or(spent));
            }
            // Two budgets of one window share an account.
            if !accounts.contains(&at) {
                accounts.push(at);
            }
        }
        match longest {
            Some(spent) => Err(spent),
            None => Ok(Reservation { accounts, amounts: wanted.expected }),
        }
    }

    pub(super) fn hold(&mut self, reservation: &Reservation) {
        for at in &reservation.accounts {
            let Some(account) = self.0.get_mut(*at) else { continue };
            account.held = account.held.each(reservation.amounts, u64::saturating_add);
            account.is_ahead |= reservation.amounts != Amounts::default();
        }
    }

    /// The request is over and used this.
    pub(super) fn settle(&mut self, reservation: &Reservation, used: Amounts, now: SystemTime) {
        for at in &reservation.accounts {
            let Some(account) = self.0.get_mut(*at) else { continue };
            // Never back: by a clock that was set forward meanwhile another window has begun.
            if account.from < account.period(now.into()).from {
                account.roll(now.into());
            }
            account.held = account.held.each(reservation.amounts, u64::saturating_sub);
            account.used = account.used.each(used, u64::saturating_add);
        }
    }

    /// Of a request that ended at `end`, `charged` is to be `used`. Nothing is corrected in a window that is over.
    pub(super) fn correct(
        &mut self,
        reservation: &Reservation,
        charged: Amounts,
        used: Amounts,
        end: SystemTime,
    ) {
        for at in &reservation.accounts {
            let Some(account) = self.0.get_mut(*at) else { continue };
            if account.from == Period::of(account.window, &account.zone, end.into()).from {
                let others = account.used.each(charged, u64::saturating_sub);
                account.used = others.plus(used);
            }
        }
    }

    /// The tightest limits on requests and on tokens that hold for a model, hard or soft, `others` among them.
    pub(super) fn tightest(
        &mut self,
        budgets: &[Budget],
        model: &str,
        others: RateLimits,
        now: SystemTime,
    ) -> RateLimits {
        let (mut tightest, now) = (others, Unix::from(now));
        for budget in budgets.iter().filter(|budget| budget.is_of(model)) {
            let (_, account) = self.account(budget, now);
            let taken = account.taken();
            let reset = account.period(now).left(now);
            for (kind, limit) in budget.limits().filter(|(kind, _)| *kind != Kind::Engine) {
                let own = RateLimit { limit, remaining: limit.saturating_sub(taken.of(kind)), reset };
                let known = if kind.is_tokens() { &mut tightest.tokens } else { &mut tightest.requests };
                *known = Some(own.tighter(*known));
            }
        }
        tightest
    }

    /// What is used of a budget in its window at this moment.
    pub fn used(&mut self, budget: &Budget, now: SystemTime) -> Amounts {
        let (_, account) = self.account(budget, now.into());
        account.used.plus(account.others())
    }

    /// Whether a look at the other gateways is to come before a hard budget of the model is known to have no room.
    pub(super) fn awaits_look(
        &mut self,
        budgets: &[Budget],
        model: &str,
        sharing: Sharing,
        now: SystemTime,
    ) -> bool {
        let mut hard = budgets.iter().filter(|budget| budget.hard && budget.is_of(model));
        hard.any(|budget| self.account(budget, now.into()).1.awaits_look(sharing))
    }

    /// Whether nothing was ever counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every window that it has counted in has ended, and nothing is under way.
    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.0.iter().all(|account| {
            account.held == Amounts::default()
                && account.from < Period::of(account.window, &account.zone, now.into()).from
        })
    }

    pub(super) fn accounts(&mut self) -> &mut [Account] {
        &mut self.0
    }

    fn account(&mut self, budget: &Budget, now: Unix) -> (usize, &mut Account) {
        let is_it = |account: &Account| {
            account.window == budget.window
                && account.zone == budget.time_zone
                && account.model.as_deref() == budget.model.as_deref()
        };
        let at = self.0.iter().position(is_it).unwrap_or(self.0.len());
        if at == self.0.len() {
            // Of one to four budgets, and for each of ten thousand tenants.
            self.0.reserve_exact(1);
            self.0.push(Account {
                window: budget.window,
                zone: budget.time_zone.clone(),
                model: budget.model.as_deref().map(Into::into),
                from: i64::MIN,
                ..Account::default()
            });
        }
        let account = self.0.get_mut(at).expect("invariant: it was found, or pushed just now");
        account.roll(now);
        (at, account)
    }
}

impl Account {
    /// Looked up once a window: the calendar of a zone costs more than all else here.
    fn period(&mut self, now: Unix) -> Period {
        match self.period.filter(|period| period.holds(now)) {
            Some(period) => period,
            None => *self.period.insert(Period::of(self.window, &self.zone, now)),
        }
    }

    /// Used or reserved by this gateway.
    pub(super) fn own(&self) -> Amounts {
        self.used.plus(self.held)
    }

    /// Used or reserved by all gateways, as far as known.
    fn taken(&self) -> Amounts {
        self.own().plus(self.others())
    }

    /// What other gateways have taken, by the last look.
    fn others(&self) -> Amounts {
        self.look().unwrap_or_default().1
    }

    /// What they know of this gateway, and what they have taken.
    fn look(&self) -> Option<(Amounts, Amounts)> {
        self.lease.as_ref().and_then(|lease| lease.look)
    }

    /// Whether the others leave room for a request that fits.
    fn is_leased(&mut self, sharing: Sharing, limit: (Kind, u64), wanted: u64, now: Unix) -> bool {
        let own = self.own();
        sharing == Sharing::Alone
            || self.lease.get_or_insert_default().covers(sharing, limit, (own, wanted), now)
    }

    /// Name of its window for all gateways, without the tenant's.
    pub(super) fn name(&self) -> String {
        let model = self.model.as_deref().unwrap_or("*");
        format!("{}:{}:{}:{model}", self.window.as_str(), self.zone.name(), self.from)
    }

    /// When its window ends, in seconds since 1970; `None` where it is over. A clock that was ahead has begun the next one, which counts.
    pub(super) fn until(&mut self, now: SystemTime) -> Option<i64> {
        let period = self.period(now.into());
        let own = if self.from == period.until { period.next(self.window, &self.zone) } else { period };
        (own.from == self.from).then_some(own.until)
    }

    /// Whether others have yet to learn of something, or are asked for more.
    pub(super) fn is_to_be_shared(&self) -> bool {
        self.look().is_none_or(|(known, _)| known != self.own()) || self.is_asked()
    }

    /// Whether there was no look at it yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.look().is_none()
    }

    /// Whether requests that fit wait for what the others leave.
    pub(super) fn is_asked(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_asked())
    }

    /// Whether a look is about to come that may let a request in.
    fn awaits_look(&self, sharing: Sharing) -> bool {
        matches!(sharing, Sharing::Shared { .. }) && (self.is_unknown() || self.is_asked())
    }

    /// What its requests asked for in vain, and how far it would go; nothing before its first look, which shows what an earlier process took.
    pub(super) fn wishes(
        &mut self,
        gateways: Option<u32>,
        is_due: bool,
        is_pressed: bool,
    ) -> Option<(ByKind, ByKind)> {
        let own = self.own();
        let lease = self.lease.as_mut().filter(|lease| lease.look.is_some())?;
        if is_due {
            lease.turn();
        }
        Some((lease.asked(), lease.wishes(own, gateways, is_pressed, fastrand::bool())))
    }

    /// What the broker has this gateway's ended requests have used; `None` before the first look.
    pub(super) fn written(&self) -> Option<Amounts> {
        self.lease.as_ref().and_then(|lease| lease.written)
    }

    /// The others know of `own`, of which so much is `used`, and have taken `others`; `before` is what they knew of this gateway, and know
    /// yet after the first look.
    pub(super) fn shared(
        &mut self,
        (own, used): (Amounts, Amounts),
        others: Amounts,
        before: Option<Amounts>,
    ) {
        // Nothing of what was written, or less: the broker is back with no memory, or with an older one.
        let has_lost =
            |written: Amounts| before.is_none_or(|before| before.each(written, u64::max) != before);
        if self.written().is_some_and(has_lost) {
            self.lost = self.others();
            self.lease.get_or_insert_default().forgotten();
        }
        let (mut known, mut written) = (own, used);
        if let Some(before) = before.filter(|_| self.is_unknown()) {
            // A process that was killed kept less than the others know.
            self.used = self.used.each(before, u64::max);
            (known, written) = (before, before);
        }
        let others = others.each(self.lost, u64::max);
        let lease = self.lease.get_or_insert_default();
        (lease.look, lease.written) = (Some((known, others)), Some(written));
    }

    /// The look at how far the others may go is over.
    pub(super) fn granted(&mut self, own: Amounts, wishes: (ByKind, ByKind), claimed: ByKind, until: i64) {
        let others = self.others();
        let claimed = Kind::ALL.map(|kind| claimed[kind as usize].max(others.of(kind)));
        if let Some(lease) = &mut self.lease {
            lease.grant(own, wishes, claimed, until);
        }
    }

    /// Begins anew in a new window. The one before this counts on, where a clock was set back; what lies further ahead is an error of
    /// the clock that wrote it.
    fn roll(&mut self, now: Unix) {
        let period = self.period(now);
        if self.from < period.from || self.from > period.until {
            (self.from, self.used) = (period.from, Amounts::default());
            (self.lease, self.lost, self.is_ahead) = (None, Amounts::default(), false);
        }
    }
}

impl Spent {
    /// For how long; what waiting does not help lasts longest.
    fn lasts(&self) -> (bool, Duration) {
        (self.needs.is_some(), self.wait)
    }

    /// `who` has spent it: a tenant, or one of its keys.
    pub(super) fn failure(self, who: &str) -> Failure {
        let Self { kind, window, limit, used, held, needs, wait } = self;
        let (kind, window) = (kind.as_str(), window.as_str());
        if let Some(needs) = needs {
            let message = format!(
                "{who} has {limit} {kind} in a whole {window} (budget.{kind} = {limit}), and this request may need {needs}; send a \
                 smaller one"
            );
            return Failure::NotAdmitted { limit: "budget", message, retry_after: None };
        }
        let rest = match held {
            Some(0) => format!(
                "and until gateways know what the others took each has a share of the rest (budget.{kind} = {limit})"
            ),
            Some(held) => format!(
                "{held} are reserved for its requests under way, and this one needs more than the rest \
                 (budget.{kind} = {limit}); it may fit when they have ended"
            ),
            None => format!(
                "and this request may need more (budget.{kind} = {limit}); the next {window} begins in {} s",
                wait.as_secs()
            ),
        };
        let message = format!("{who} has used {used} of its {limit} {kind} of this {window}, {rest}");
        Failure::NotAdmitted { limit: "budget", message, retry_after: Some(wait) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        // A full hour.
        UNIX_EPOCH + Duration::from_secs(1_795_525_200 + seconds)
    }

    fn amounts(input: u64, output: u64) -> Amounts {
        Amounts { input, output, requests: 1, ..Amounts::default() }
    }

    /// A counted prompt and an answer that the client bounded.
    fn wanted(input: u64, output: u64) -> Wanted {
        Wanted { expected: amounts(input, output), counted: amounts(input, output) }
    }

    fn budget(window: Window, tokens: u64) -> Budget {
        Budget { window, tokens: Some(tokens), ..Budget::default() }
    }

    fn reserved(
        ledger: &mut Ledger,
        budgets: &[Budget],
        model: &str,
        wanted: Wanted,
        now: SystemTime,
    ) -> Reservation {
        let reservation = ledger.check(budgets, model, wanted, Sharing::Alone, now).unwrap();
        ledger.hold(&reservation);
        reservation
    }

    #[test]
    fn what_is_under_way_is_held_and_settled_by_what_was_used() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Hour, 100)]);
        let ask = |ledger: &mut Ledger, seconds| {
            ledger
                .check(&budgets, "m", wanted(20, 30), Sharing::Alone, at(seconds))
                .map(drop)
                .map_err(|s| s.wait.as_secs())
        };
        let first = reserved(&mut ledger, &budgets, "m", wanted(20, 30), at(0));
        let second = reserved(&mut ledger, &budgets, "m", wanted(20, 30), at(0));
        assert_eq!(ask(&mut ledger, 1), Err(1), "100 are reserved, of which some may be free soon");
        ledger.settle(&first, amounts(20, 5), at(2));
        assert_eq!(ask(&mut ledger, 2), Err(1), "25 are used and 50 reserved");
        ledger.settle(&second, amounts(20, 5), at(3));
        assert_eq!(ask(&mut ledger, 3), Ok(()), "50 are used");
        let shared = Sharing::Shared { gateways: 2 };
        let spent = ledger.check(&budgets, "m", wanted(20, 30), shared, at(3)).unwrap_err();
        assert_eq!((spent.used, spent.held, spent.wait.as_secs()), (50, Some(0), 1), "of two gateways");
        let spent = ledger.check(&budgets, "m", wanted(20, 31), Sharing::Alone, at(3)).unwrap_err();
        assert_eq!((spent.used, spent.held, spent.wait.as_secs()), (50, None, 3597), "in the next hour");
        assert_eq!(ledger.used(&budgets[0], at(3)), Amounts { requests: 2, ..amounts(40, 10) });
        let limit = ledger.tightest(&budgets, "m", RateLimits::default(), at(3)).tokens.unwrap();
        assert_eq!((limit.limit, limit.remaining, limit.reset.as_secs()), (100, 50, 3597));
    }

    #[test]
    fn before_the_first_look_of_a_window_one_request_is_let_in() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 100)]);
        let shared = Sharing::Shared { gateways: 2 };
        for from in [0, 60] {
            let ask = |ledger: &mut Ledger| ledger.check(&budgets, "m", wanted(1, 0), shared, at(from));
            let first = ask(&mut ledger).unwrap();
            ledger.hold(&first);
            let awaits_look = |ledger: &mut Ledger| ledger.awaits_look(&budgets, "m", shared, at(from));
            assert!(awaits_look(&mut ledger));
            assert_eq!(ask(&mut ledger).unwrap_err().wait, AGAIN);
            ledger.settle(&first, amounts(1, 0), at(from));
            assert_eq!(ask(&mut ledger).unwrap_err().wait, AGAIN, "it may have been the last one");
            for _ in 0..2 {
                let account = &mut ledger.0[0];
                let (own, wishes) = (account.own(), account.wishes(Some(2), false, false));
                account.shared((own, account.used), amounts(96, 0), None);
                if let Some(wishes) = wishes {
                    account.granted(own, wishes, ByKind::default(), i64::MAX);
                }
            }
            assert!(!awaits_look(&mut ledger) && ask(&mut ledger).is_ok());
        }
    }

    #[test]
    fn a_request_that_waits_for_what_others_leave_is_not_let_in_as_the_first() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 100)]);
        let shared = Sharing::Shared { gateways: 2 };
        let ask = |ledger: &mut Ledger| ledger.check(&budgets, "m", wanted(50, 0), shared, at(0));
        let reservation = ask(&mut ledger).unwrap();
        drop(reservation);
        // The look shows that another gateway, which knew it before this one began, has reserved all of it.
        let account = &mut ledger.0[0];
        let (own, _) = (account.own(), account.wishes(Some(2), false, false));
        account.shared((own, account.used), Amounts::default(), None);
        for _ in 0..3 {
            assert_eq!(ask(&mut ledger).unwrap_err().wait, AGAIN);
        }
    }

    #[test]
    fn what_others_took_outlasts_the_memory_of_the_broker() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 100)]);
        reserved(&mut ledger, &budgets, "m", wanted(1, 0), at(0));
        let mut look = |others: u64, before: Option<u64>| {
            let account = &mut ledger.0[0];
            let before = before.map(|own| amounts(own, 0));
            account.shared((amounts(3, 0), amounts(2, 0)), amounts(others, 0), before);
            account.others().input
        };
        assert_eq!(look(60, None), 60);
        assert_eq!(look(50, Some(2)), 50, "they had reserved more than they used");
        assert_eq!(look(0, None), 50, "this gateway's own field is gone, and theirs with it");
        assert_eq!(look(20, Some(2)), 50, "one of them is back");
        assert_eq!(look(70, Some(2)), 70);
        assert_eq!(look(30, Some(1)), 70, "it is back with what it had some time ago");
        assert_eq!(look(35, Some(2)), 70, "and the others have yet to write theirs again");
        assert_eq!(ledger.used(&budgets[0], at(60)).input, 0, "in the next window");
    }

    #[test]
    fn a_window_begins_anew_and_a_request_counts_where_it_ends() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 10)]);
        let over = reserved(&mut ledger, &budgets, "m", wanted(9, 0), at(59));
        assert!(
            ledger.check(&budgets, "m", wanted(2, 0), Sharing::Alone, at(60)).is_err(),
            "it may use the next minute's"
        );
        ledger.settle(&over, amounts(9, 0), at(61));
        assert_eq!(ledger.used(&budgets[0], at(61)).input, 9);
        assert_eq!(ledger.used(&budgets[0], at(59)).input, 9, "a clock set back by seconds forgets nothing");
        assert_eq!(ledger.used(&budgets[0], at(120)).input, 0);
        // A file of a clock that was a year ahead.
        assert_eq!(ledger.used(&budgets[0], at(31_536_000)).input, 0);
        assert_eq!(ledger.used(&budgets[0], at(200)).input, 0);
    }

    #[test]
    fn a_clock_that_leaves_its_window_behind_takes_nothing_back_at_the_end_of_a_request() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 10)]);
        let long = reserved(&mut ledger, &budgets, "m", wanted(1, 0), at(59));
        let later = reserved(&mut ledger, &budgets, "m", wanted(4, 0), at(10_000));
        ledger.settle(&later, amounts(4, 0), at(10_000));
        // It began before the step, and its end is counted from there.
        ledger.settle(&long, amounts(1, 0), at(85));
        assert_eq!(ledger.used(&budgets[0], at(10_001)).input, 5);
    }

    #[test]
    fn the_next_window_that_a_clock_was_ahead_in_is_shared_until_it_ends() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 10)]);
        let held = reserved(&mut ledger, &budgets, "m", wanted(1, 0), at(65));
        ledger.settle(&held, amounts(1, 0), at(66));
        let account = &mut ledger.0[0];
        let until = account.until(at(66)).unwrap();
        assert_eq!(account.until(at(30)), Some(until), "the clock is right again");
        assert_eq!(account.until(at(130)), None, "it is over");
    }

    #[test]
    fn engine_time_is_corrected_in_the_window_that_it_was_charged_in() {
        let (mut ledger, budgets) = (Ledger::default(), [budget(Window::Minute, 99)]);
        let time = |engine_ms| Amounts { engine_ms, ..amounts(9, 0) };
        let held = reserved(&mut ledger, &budgets, "m", wanted(9, 0), at(0));
        ledger.settle(&held, time(2500), at(50));
        ledger.correct(&held, time(2500), time(100), at(50));
        assert_eq!(ledger.used(&budgets[0], at(55)), time(100));
        let next = reserved(&mut ledger, &budgets, "m", wanted(9, 0), at(61));
        ledger.settle(&next, time(700), at(62));
        ledger.correct(&held, time(100), time(5000), at(50));
        assert_eq!(ledger.used(&budgets[0], at(63)), time(700), "the minute of the other is over");
    }

    #[test]
    fn budgets_of_a_model_hold_for_it_and_soft_ones_refuse_nobody() {
        let mut ledger = Ledger::default();
        let of_model = Budget { model: Some("large".into()), requests: Some(1), ..Budget::default() };
        let soft = Budget { hard: false, ..budget(Window::Day, 1) };
        let budgets = [of_model, soft];
        let held = reserved(&mut ledger, &budgets, "large", wanted(5, 5), at(0));
        ledger.settle(&held, amounts(5, 5), at(0));
        assert!(ledger.check(&budgets, "small", wanted(5, 5), Sharing::Alone, at(0)).is_ok());
        let spent = ledger.check(&budgets, "large", wanted(5, 5), Sharing::Alone, at(0)).unwrap_err();
        assert_eq!((spent.kind, spent.limit, spent.used), (Kind::Requests, 1, 1));
        let soft = ledger.tightest(&budgets, "small", RateLimits::default(), at(0)).tokens.unwrap();
        assert_eq!((soft.limit, soft.remaining), (1, 0), "a soft one is in the headers");
        let kept: Ledger = serde_json::from_str(&serde_json::to_string(&ledger).unwrap()).unwrap();
        assert_eq!(
            kept.clone().used(&budgets[0], at(0)),
            ledger.used(&budgets[0], at(0)),
            "kept over a restart"
        );
    }

    #[test]
    fn an_estimate_alone_is_no_reason_to_refuse_while_anything_is_left() {
        let mut ledger = Ledger::default();
        let budgets = [budget(Window::Hour, 50)];
        let open = |input| Wanted { expected: amounts(input, 500), counted: amounts(input, 0) };
        let held = reserved(&mut ledger, &budgets, "m", open(10), at(0));
        let beside = ledger.check(&budgets, "m", wanted(10, 0), Sharing::Alone, at(1)).unwrap_err();
        assert_eq!((beside.held, beside.wait), (Some(510), AGAIN), "the first may use all");
        ledger.settle(&held, amounts(10, 20), at(2));
        let held = reserved(&mut ledger, &budgets, "m", open(10), at(3));
        ledger.settle(&held, amounts(10, 10), at(4));
        let spent = ledger.check(&budgets, "m", open(1), Sharing::Alone, at(5)).unwrap_err();
        assert_eq!((spent.used, spent.held), (50, None));
        assert!(ledger.check(&budgets, "m", wanted(51, 0), Sharing::Alone, at(7_200)).is_err(), "counted");
    }

    #[test]
    fn engine_seconds_are_charged_at_the_end_and_a_day_ends_by_its_zone() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let budget =
            Budget { window: Window::Day, engine_seconds: Some(2), time_zone: berlin, ..Budget::default() };
        let (mut ledger, budgets) = (Ledger::default(), [budget]);
        // 2026-11-24T13:00:00Z is 14:00 there.
        for (used, is_full) in [(1_900, false), (200, true)] {
            assert!(ledger.check(&budgets, "m", wanted(9, 9), Sharing::Alone, at(0)).is_ok(), "{used}");
            let held = reserved(&mut ledger, &budgets, "m", wanted(9, 9), at(0));
            ledger.settle(&held, Amounts { engine_ms: used, ..amounts(9, 9) }, at(1));
            let spent = ledger.check(&budgets, "m", wanted(9, 9), Sharing::Alone, at(1));
            assert_eq!(spent.is_err(), is_full, "{used}");
            if let Err(spent) = spent {
                assert_eq!((spent.kind, spent.used, spent.wait.as_secs()), (Kind::Engine, 2, 10 * 3600 - 1));
            }
        }
        assert_eq!(ledger.tightest(&budgets, "m", RateLimits::default(), at(1)).tokens, None, "no tokens");
        let text = serde_json::to_string(&ledger).unwrap();
        assert!(text.contains("Europe/Berlin"), "{text}");
        let mut kept: Ledger = serde_json::from_str(&text).unwrap();
        assert!(kept.check(&budgets, "m", wanted(9, 9), Sharing::Alone, at(1)).is_err() && kept.0.len() == 1);
        assert!(kept.check(&budgets, "m", wanted(9, 9), Sharing::Alone, at(10 * 3600)).is_ok(), "tomorrow");
        // A system that does not know the zone keeps what was used of it.
        let unknown = text.replace("Berlin", "Bern-1");
        let kept: Ledger = serde_json::from_str(&unknown).unwrap();
        assert_eq!(serde_json::to_string(&kept).unwrap(), unknown);
    }
}
