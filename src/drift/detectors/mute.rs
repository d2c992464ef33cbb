//! Mutes: findings of a route and a kind that nobody is told of for a while. They are found and shown all the same.

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::kind::Kind;
use super::table::MAX_FINDINGS;

/// Silence about some findings.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Mute {
    /// Name of the route; `None` is every route.
    pub route: Option<String>,
    /// `None` is every kind.
    pub kind: Option<Kind>,
    /// Seconds since the epoch.
    pub until: f64,
}

impl Mute {
    /// Whether it is about this finding, at `at`.
    pub fn covers(&self, finding: &Finding, at: f64) -> bool {
        let is_route = self.route.as_deref().is_none_or(|route| *route == *finding.series.route);
        at < self.until && is_route && self.kind.is_none_or(|kind| kind == finding.kind)
    }
}

/// Puts a mute in place of those about the same findings, or a part of them; one that has ended is forgotten.
pub(crate) fn put(mutes: &mut Vec<Mute>, mute: Mute, at: f64) {
    let is_part = |old: &Mute| {
        (mute.route.is_none() || mute.route == old.route) && (mute.kind.is_none() || mute.kind == old.kind)
    };
    mutes.retain(|old| !is_part(old) && at < old.until);
    if at < mute.until && mutes.len() < MAX_FINDINGS * Kind::ALL.len() {
        mutes.push(mute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mute_takes_the_place_of_one_about_the_same_and_ends_it_where_it_is_over() {
        let of = |route: &str, until: f64| Mute { route: Some(route.to_owned()), kind: None, until };
        let mut mutes = Vec::new();
        put(&mut mutes, of("a", 9.0), 1.0);
        put(&mut mutes, of("b", 5.0), 1.0);
        put(&mut mutes, of("a", 20.0), 1.0);
        assert_eq!(mutes, [of("b", 5.0), of("a", 20.0)]);
        put(&mut mutes, of("a", 2.0), 2.0);
        assert_eq!(mutes, [of("b", 5.0)], "of no seconds");
        put(&mut mutes, Mute { kind: Some(Kind::ALL[0]), ..of("b", 9.0) }, 5.0);
        assert_eq!(mutes.len(), 1, "the other one had ended");
        put(&mut mutes, Mute { route: None, kind: Some(Kind::ALL[1]), until: 9.0 }, 6.0);
        assert_eq!(mutes.len(), 2, "of another kind");
        put(&mut mutes, Mute { route: None, kind: None, until: 6.0 }, 6.0);
        assert!(mutes.is_empty(), "all of them");
    }
}
