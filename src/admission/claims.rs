//! What this gateway has taken of budgets, for the other gateways, and what they have taken.

use std::borrow::Cow;
use std::time::SystemTime;

use super::amounts::Amounts;
use super::tenant::TenantLimiter;

/// What one gateway has taken of one budget, for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Tenant, key if it is a key's, and window.
    pub name: String,
    /// Taken so far.
    pub own: Amounts,
    /// No look came before it: what the broker has of this gateway, by an earlier process of it, stands.
    pub is_first: bool,
    /// When it may be dropped, in seconds since 1970.
    pub until: i64,
    tenant: Box<str>,
    key: Option<Box<str>>,
    account: String,
}

impl TenantLimiter {
    /// What others have yet to learn; `is_due` claims everything, to look at what they took.
    pub fn claims(&self, is_due: bool, now: SystemTime) -> Vec<Claim> {
        let mut claims = Vec::new();
        self.each_ledger(|tenant, key, ledger| {
            for account in ledger.accounts().iter_mut().filter(|account| account.is_to_be_shared(is_due)) {
                let Some(until) = account.until(now) else { continue };
                let name = account.name();
                claims.push(Claim {
                    name: format!("{}:{}:{name}", part(tenant), part(key.unwrap_or_default())),
                    own: account.own(),
                    is_first: account.is_unknown(),
                    until,
                    tenant: tenant.into(),
                    key: key.map(Into::into),
                    account: name,
                });
            }
        });
        claims
    }

    /// The others know of a claim, where they knew of `before`, and have taken `others`.
    pub fn claimed(&self, claim: &Claim, others: Amounts, before: Option<Amounts>) {
        self.with_ledger(&claim.tenant, claim.key.as_deref(), |ledger| {
            let accounts = ledger.accounts().iter_mut();
            for account in accounts.filter(|account| account.name() == claim.account) {
                account.shared(claim.own, others, before);
            }
        });
    }
}

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
