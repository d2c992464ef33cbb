//! Budgets that several gateways share: what one of them may take before it looks again. Pure.
//!
//! Every gateway publishes what it has taken itself, as an absolute number, and how far it may go. It writes how far it wants to go, reads how far
//! the others may, and keeps to what is left of the limit: of two that look at once each sees the other's wish, so that all together
//! stay within the limit however late or seldom any of them looks. The way is its share of what is free, or what its requests asked for
//! where the others leave that. One that has no requests gives up its share when another asks for it. What was not used by
//! [`Lease::until`] is the others' again, for a gateway that was killed gives nothing back.

use super::amounts::{Amounts, Kind};
use super::calendar::Unix;

/// How budgets are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// By this gateway alone, on top of what others had taken.
    #[default]
    Alone,
    /// With `gateways` in all.
    Shared {
        /// Those that take from the budget, this one included.
        gateways: u32,
    },
    /// The others are out of reach: what no lease covers is refused.
    Closed,
}

/// An amount of each kind, in the order of [`Kind::ALL`].
pub type ByKind = [u64; Kind::ALL.len()];

/// What one gateway may take of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    /// What the others know of this gateway, and what they had taken, at the last look.
    pub(super) look: Option<(Amounts, Amounts)>,
    /// What the broker has this gateway's ended requests have used, by the last look.
    pub(super) written: Option<Amounts>,
    parts: [Part; Kind::ALL.len()],
    /// In seconds since 1970.
    until: i64,
    /// What the others had claimed when the broker forgot it, and until when at most that counts.
    forgotten: (ByKind, i64),
    /// A request came since the last look at all accounts, ...
    is_busy: bool,
    /// ... or between the two before.
    was_busy: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Of the last request.
    limit: Option<u64>,
    /// By requests that fit but for what the others may take, within the last second or two, ...
    asked: u64,
    /// ... of which so much is older.
    asked_before: u64,
    /// By the others: taken, or not to be taken by anyone else.
    claimed: u64,
    /// How far this gateway may go, all that it took included.
    level: u64,
    /// It wished for more, as others did, and has not got it yet.
    is_short: bool,
}

impl Lease {
    /// Whether a request that fits may be let in; else its look asks for it.
    pub(super) fn covers(
        &mut self,
        sharing: Sharing,
        (kind, limit): (Kind, u64),
        (own, wanted): (Amounts, u64),
        Unix(now): Unix,
    ) -> bool {
        self.is_busy = true;
        let is_held = self.look.is_some() && (sharing == Sharing::Closed || now <= self.until);
        let part = &mut self.parts[kind as usize];
        part.limit = Some(limit);
        let is_covered = is_held && own.of(kind).saturating_add(wanted) <= part.level;
        if !is_covered {
            part.asked = part.asked.saturating_add(wanted);
        }
        is_covered
    }

    /// What requests asked for in vain.
    pub(super) fn asked(&self) -> ByKind {
        self.parts.map(|part| part.asked)
    }

    /// Whether there were any.
    pub(super) fn is_asked(&self) -> bool {
        self.parts.iter().any(|part| part.asked > 0)
    }

    /// The broker has lost its memory: what the others had claimed counts until they have had the time to write it again.
    pub(super) fn forgotten(&mut self) {
        self.forgotten = (self.parts.map(|part| part.claimed), i64::MAX);
    }

    /// A look at all accounts begins.
    pub(super) fn turn(&mut self) {
        self.was_busy = std::mem::take(&mut self.is_busy);
        for part in &mut self.parts {
            part.asked -= part.asked_before.min(part.asked);
            part.asked_before = part.asked;
        }
    }

    /// How far this gateway, which has taken `own`, would go, and no further from now on; `gateways` is `None` for one that gives its
    /// share up. `is_pressed`: another asks for more than it may. `is_bold` is drawn anew each time: of two that look in step, one is to get
    /// what both wish for.
    pub(super) fn wishes(
        &mut self,
        own: Amounts,
        gateways: Option<u32>,
        is_pressed: bool,
        is_bold: bool,
    ) -> ByKind {
        let others = self.look.unwrap_or_default().1;
        let is_idle = is_pressed && !self.is_busy && !self.was_busy && !self.is_asked();
        Kind::ALL.map(|kind| {
            let (part, own) = (&mut self.parts[kind as usize], own.of(kind));
            let way = part.limit.zip(gateways.filter(|_| !is_idle)).map_or(0, |(limit, gateways)| {
                let free = limit.saturating_sub(own);
                let rest = free.saturating_sub(others.of(kind));
                // All have this at once; the remainder, and more than a share, is whose look comes first.
                let share = rest / u64::from(gateways.max(1));
                let spare = if is_pressed { 0 } else { share + 1 };
                let more = if part.is_short && !is_bold { 0 } else { part.asked.max(spare) };
                share.max(more.min(free.saturating_sub(part.claimed)))
            });
            let wish = own.saturating_add(way);
            // The others may have read it before its look is over.
            part.level = part.level.min(wish);
            wish
        })
    }

    /// The look that published `wishes`, when this gateway had taken `own` and so much was `asked`, found how far the others may go.
    pub(super) fn grant(
        &mut self,
        own: Amounts,
        (asked, wishes): (ByKind, ByKind),
        claimed: ByKind,
        until: i64,
    ) {
        let (forgotten, ends) = &mut self.forgotten;
        *ends = (*ends).min(until.saturating_add(WRITTEN_AGAIN));
        if until > *ends {
            *forgotten = ByKind::default();
        }
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let claimed = claimed[at].max(forgotten[at]);
            let part = &mut self.parts[at];
            part.claimed = claimed;
            part.level = wishes[at].min(part.limit.unwrap_or_default().saturating_sub(claimed));
            part.is_short |= part.level < wishes[at];
            if own.of(kind).saturating_add(asked[at]) <= part.level {
                part.is_short = false;
                part.asked = part.asked.saturating_sub(asked[at]);
            }
        }
        self.until = until;
    }
}

/// Seconds in which gateways are at a broker again that was restarted.
const WRITTEN_AGAIN: i64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    /// One gateway, and what the broker has of it.
    #[derive(Clone, Debug, Default)]
    struct Gateway {
        lease: Lease,
        taken: u64,
        published: (u64, u64),
        /// Of a look that has written and not read yet, and when it reads.
        under_way: Option<(ByKind, ByKind, Amounts, usize)>,
    }

    fn requests(requests: u64) -> Amounts {
        Amounts { requests, ..Amounts::default() }
    }

    const AT: usize = Kind::Requests as usize;

    impl Gateway {
        fn new() -> Self {
            let lease = Lease { look: Some(Default::default()), ..Lease::default() };
            Self { lease, ..Self::default() }
        }

        fn ask(&mut self, wanted: u64) -> bool {
            let (_, others) = self.lease.look.unwrap();
            if self.taken + others.requests + wanted > LIMIT {
                return false;
            }
            let asked = (requests(self.taken), wanted);
            let is_covered =
                self.lease.covers(Sharing::Shared { gateways: 1 }, (Kind::Requests, LIMIT), asked, Unix(0));
            self.taken += if is_covered { wanted } else { 0 };
            is_covered
        }
    }

    fn begin(gateways: &mut [Gateway], at: usize, reads_at: usize, is_bold: bool) {
        let count = u32::try_from(gateways.len()).unwrap();
        let is_pressed = gateways.iter().any(|one| one.lease.is_asked());
        let one = &mut gateways[at];
        let (own, asked) = (requests(one.taken), one.lease.asked());
        let wishes = one.lease.wishes(own, Some(count), is_pressed, is_bold);
        one.published = (one.taken, wishes[AT]);
        one.under_way = Some((asked, wishes, own, reads_at));
    }

    fn end(gateways: &mut [Gateway], at: usize) {
        let others = gateways.iter().enumerate().filter(|(other, _)| *other != at);
        let (mut taken, mut claimed) = (0, [0; Kind::ALL.len()]);
        for (_, other) in others {
            taken += other.published.0;
            claimed[AT] += other.published.0.max(other.published.1);
        }
        let one = &mut gateways[at];
        let (asked, wishes, own, _) = one.under_way.take().unwrap();
        one.lease.look = Some((own, requests(taken)));
        one.lease.grant(own, (asked, wishes), claimed, i64::MAX);
    }

    /// How many requests of 1 to `largest` all gateways take of the limit, each looking as seldom and as late as it does; the last of
    /// them has no requests.
    fn spent(seed: u64, count: usize, largest: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut gateways = vec![Gateway::new(); count];
        let paces: Vec<_> = (0..count).map(|_| (random.usize(2..60), random.usize(0..40))).collect();
        for turn in 0..30_000 {
            let at = random.usize(..count);
            if at + 1 < count {
                gateways[at].ask(random.u64(1..=largest));
            }
            for (at, (every, late)) in paces.iter().enumerate() {
                match gateways[at].under_way {
                    Some((.., reads_at)) if turn >= reads_at => end(&mut gateways, at),
                    None if turn % every == 0 => begin(&mut gateways, at, turn + late, random.bool()),
                    _ => {}
                }
                if turn % 1000 == 0 {
                    gateways[at].lease.turn();
                }
            }
            let taken: u64 = gateways.iter().map(|one| one.taken).sum();
            assert!(taken <= LIMIT, "seed {seed}, {count} gateways: {taken}");
        }
        gateways.iter().map(|one| one.taken).sum()
    }

    #[test]
    fn gateways_that_look_late_and_seldom_take_the_limit_and_no_more() {
        for seed in 0..20 {
            for count in [2, 3, 8] {
                assert_eq!(spent(seed, count, 1), LIMIT, "seed {seed}, {count} gateways");
                let taken = spent(seed, count, 300);
                assert!(taken > LIMIT - 300, "seed {seed}, {count} gateways: {taken}");
            }
        }
    }

    #[test]
    fn what_is_not_looked_at_again_is_the_others() {
        let mut gateways = [Gateway::new(), Gateway::new()];
        gateways[0].ask(1);
        begin(&mut gateways, 0, 0, true);
        end(&mut gateways, 0);
        gateways[0].lease.until = 10;
        let limit = (Kind::Requests, LIMIT);
        let mut covers = |sharing, now| gateways[0].lease.covers(sharing, limit, (requests(0), 1), Unix(now));
        let shared = Sharing::Shared { gateways: 2 };
        assert!(covers(shared, 10) && !covers(shared, 11));
        assert!(covers(Sharing::Closed, 11), "its broker is away, and so it is for the others");
    }

    #[test]
    fn what_others_claimed_counts_for_a_while_after_the_broker_forgot_it() {
        let mut lease = Gateway::new().lease;
        let mut look = |claimed: u64, until: i64, forgets: bool| {
            if forgets {
                lease.forgotten();
            }
            let claimed = [claimed; Kind::ALL.len()];
            let ask = |lease: &mut Lease| {
                lease.covers(Sharing::Closed, (Kind::Requests, LIMIT), (requests(0), 500), Unix(0))
            };
            ask(&mut lease);
            let (asked, wishes) = (lease.asked(), lease.wishes(requests(0), Some(2), true, true));
            lease.grant(requests(0), (asked, wishes), claimed, until);
            ask(&mut lease)
        };
        assert!(!look(900, 3, false));
        assert!(!look(0, 4, true), "the others have yet to write it again");
        assert!(!look(0, 4 + WRITTEN_AGAIN, false));
        assert!(look(0, 5 + WRITTEN_AGAIN, false), "whoever is there has");
    }
}
