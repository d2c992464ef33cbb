//! What this gateway has taken of budgets, for the other gateways, and what they have taken.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::amounts::{Amounts, Kind};
use super::lease::ByKind;
use super::tenant::TenantLimiter;
use crate::clock::since_epoch;

/// What one gateway has taken of one budget, for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Tenant, key if it is a key's, and window.
    pub name: String,
    /// Used so far, by requests that have ended.
    pub used: Amounts,
    /// What the last look wrote; `None` before the first, by which what an earlier process of this gateway wrote stands.
    pub written: Option<Amounts>,
    /// When it may be dropped, in seconds since 1970.
    pub until: i64,
    /// How far it would go, where that was asked, ...
    pub wish: Option<Wish>,
    /// ... and that its requests ask for more than it may.
    pub is_pressing: bool,
    tenant: Box<str>,
    key: Option<Box<str>>,
    account: String,
    /// With what those under way have reserved.
    own: Amounts,
}

/// How far a gateway would go with one budget, by kind, what it took included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// So far; the rest of the limit is the others'.
    pub levels: ByKind,
    /// Until when it keeps to it, in seconds since 1970.
    pub until: i64,
    /// What its requests asked for.
    asked: ByKind,
}

/// What the other gateways have of one budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Taken.
    pub taken: Amounts,
    /// Taken, or theirs to take; by kind.
    pub claimed: ByKind,
}

impl Others {
    /// One more, which has taken this and may go so far.
    pub fn add(&mut self, taken: Amounts, levels: Option<ByKind>) {
        self.taken = self.taken.plus(taken);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let level = levels.map_or(0, |levels| levels[at]);
            self.claimed[at] = self.claimed[at].saturating_add(level.max(taken.of(kind)));
        }
    }
}

impl TenantLimiter {
    /// What others have yet to learn, and what those `pressed` by name are to be looked at for; `is_due` claims everything. `gateways`
    /// is `None` for one that gives its shares up.
    pub fn claims(
        &self,
        gateways: Option<u32>,
        is_due: bool,
        pressed: &HashSet<Vec<u8>>,
        now: SystemTime,
    ) -> Vec<Claim> {
        let leased = i64::try_from(since_epoch(now + LEASED).as_secs()).unwrap_or(i64::MAX);
        let mut claims = Vec::new();
        self.each_ledger(|tenant, key, ledger| {
            for account in ledger.accounts() {
                let is_new = is_due || account.is_to_be_shared();
                if !is_new && pressed.is_empty() {
                    continue;
                }
                let Some(until) = account.until(now) else { continue };
                let account_name = account.name();
                let name = format!("{}:{}:{account_name}", part(tenant), part(key.unwrap_or_default()));
                let is_pressed = pressed.contains(name.as_bytes());
                if !is_new && !is_pressed {
                    continue;
                }
                let wishes = account.wishes(gateways, is_due, is_pressed);
                claims.push(Claim {
                    name,
                    used: account.used,
                    own: account.own(),
                    written: account.written(),
                    until,
                    wish: wishes.map(|(asked, levels)| Wish { levels, until: leased, asked }),
                    is_pressing: account.is_asked(),
                    tenant: tenant.into(),
                    key: key.map(Into::into),
                    account: account_name,
                });
            }
        });
        claims
    }

    /// The others know of a claim, where they knew of `before`.
    pub fn claimed(&self, claim: &Claim, others: &Others, before: Option<Amounts>) {
        self.with_ledger(&claim.tenant, claim.key.as_deref(), |ledger| {
            let accounts = ledger.accounts().iter_mut();
            for account in accounts.filter(|account| account.name() == claim.account) {
                account.shared((claim.own, claim.used), others.taken, before);
                if let Some(Wish { levels, until, asked }) = claim.wish {
                    account.granted(claim.own, (asked, levels), others.claimed, until);
                }
            }
        });
    }
}

/// For how long a gateway keeps to what it was granted without another look: some of those that come once a second.
const LEASED: Duration = Duration::from_secs(3);

/// Names may have colons, which separate them here.
fn part(name: &str) -> Cow<'_, str> {
    if name.contains([':', '%']) { name.replace('%', "%25").replace(':', "%3A").into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_colons_share_no_window() {
        let name = |tenant, key| format!("{}:{}:day", part(tenant), part(key));
        assert_eq!(name("acme", "ci"), "acme:ci:day");
        assert_ne!(name("org", "team:ci"), name("org:team", "ci"));
        assert_ne!(name("a:", ""), name("a%3A", ""));
    }
}
