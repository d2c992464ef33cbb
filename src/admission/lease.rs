//! Budgets that several gateways share: what one of them may take before it looks again. Pure.
//!
//! Every gateway publishes what it has taken itself, as an absolute number, and reads the others'. Until the next look each may take
//! its share of what was free: so all together stay within the limit, whatever each sees of the others meanwhile, and the
//! shares shrink with what is free. Before its first look at a window a gateway takes one request, and others wait for the look: no
//! request waits for a later one.

use super::amounts::{Amounts, Kind};

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
    Closed {
        /// As of before.
        gateways: u32,
    },
}

/// The last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// What this gateway had taken, which the others know.
    pub(super) own: Amounts,
    /// What they have taken.
    pub(super) others: Amounts,
}

impl Sharing {
    /// Whether a request fits into this gateway's share.
    pub(super) fn covers(
        self,
        lease: Option<&Lease>,
        kind: Kind,
        limit: u64,
        own: Amounts,
        wanted: u64,
    ) -> bool {
        let (lease, gateways) = match (self, lease) {
            (Self::Alone, _) => return true,
            (Self::Shared { .. } | Self::Closed { .. }, None) => return false,
            (Self::Shared { gateways } | Self::Closed { gateways }, Some(lease)) => {
                (lease, u64::from(gateways.max(1)))
            }
        };
        let (known, others) = (lease.own.of(kind), lease.others.of(kind));
        let free = limit.saturating_sub(known).saturating_sub(others);
        let since = own.of(kind).saturating_sub(known);
        // A request that is larger than a share may be the only one until the next look.
        since.saturating_add(wanted) <= free.div_ceil(gateways) || since == 0 && wanted <= free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(requests: u64) -> Amounts {
        Amounts { requests, ..Amounts::default() }
    }

    fn covers(sharing: Sharing, known: u64, own: u64, others: u64, wanted: u64) -> bool {
        let lease = Lease { own: requests(known), others: requests(others) };
        sharing.covers(Some(&lease), Kind::Requests, 100, requests(own), wanted)
    }

    #[test]
    fn until_the_next_look_a_gateway_has_its_share_of_what_was_free() {
        let two = Sharing::Shared { gateways: 2 };
        for (known, own, others, wanted, is_covered) in [
            (0, 49, 0, 1, true),
            (0, 50, 0, 1, false),
            (30, 45, 40, 1, false),
            (30, 44, 40, 1, true),
            (30, 30, 40, 20, true), // alone until the next look
            (30, 31, 40, 20, false),
            (30, 30, 70, 1, false),
            (99, 99, 0, 1, true),
        ] {
            let name = format!("{known} {own} {others} {wanted}");
            assert_eq!(covers(two, known, own, others, wanted), is_covered, "{name}");
            assert_eq!(
                covers(Sharing::Closed { gateways: 2 }, known, own, others, wanted),
                is_covered,
                "{name}"
            );
            assert!(covers(Sharing::Alone, known, own, others, wanted), "{name}");
        }
        let never = |sharing: Sharing| sharing.covers(None, Kind::Requests, 100, requests(0), 1);
        assert!(!never(two) && !never(Sharing::Closed { gateways: 2 }));
    }

    #[test]
    fn gateways_that_look_at_different_times_stay_within_two_percent() {
        let two = Sharing::Shared { gateways: 2 };
        let limit = 1000;
        // Published, taken, others as seen.
        let mut gateways = [[0u64; 3]; 2];
        for turn in 0..20_000 {
            let at = turn % 2;
            let [known, own, others] = gateways[at];
            let lease = Lease { own: requests(known), others: requests(others) };
            if own + others < limit && two.covers(Some(&lease), Kind::Requests, limit, requests(own), 1) {
                gateways[at][1] += 1;
            }
            // 50 looks a second at 1,000 requests/s, out of step.
            for look in 0..2 {
                if turn % 20 == 10 * look + 3 {
                    gateways[look][2] = gateways[1 - look][0];
                    gateways[look][0] = gateways[look][1];
                }
            }
        }
        let all = gateways[0][1] + gateways[1][1];
        assert!((limit..=limit + limit / 50).contains(&all), "{all}");
    }
}
