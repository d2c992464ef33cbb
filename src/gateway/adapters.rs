//! Prefers the replicas that hold a request's LoRA adapter: elsewhere it has to be loaded first.
//!
//! Loading costs tenths of a second to seconds and pushes another adapter out. So as long as one of the holders has hardly more to
//! do than the others, only holders are compared; beyond that the adapter is worth a second place.

use std::sync::Arc;

use super::prepared::Prepared;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;

/// The adapter among whose holders alone is to be chosen: somebody else could be chosen, and a holder has room.
pub(super) fn adapter_to_keep_to<'r>(
    pool: &PoolState,
    request: &'r Prepared,
    replicas: &[Arc<Replica>],
    may_take: impl Fn(&&Arc<Replica>) -> bool,
) -> Option<&'r str> {
    let model = request.model.as_deref().filter(|_| pool.tells_adapters())?;
    let (mut holders, mut others) = (None, None);
    for replica in replicas.iter().filter(may_take) {
        let least = if replica.adapters.holds(model) { &mut holders } else { &mut others };
        let inflight = replica.target.load.inflight();
        *least = Some(least.map_or(inflight, |least: u64| least.min(inflight)));
    }
    is_worth(holders, others).then_some(model)
}

/// Fewest requests in flight at a holder and at another.
fn is_worth(holders: Option<u64>, others: Option<u64>) -> bool {
    holders.zip(others).is_some_and(|(holder, other)| holder <= other.saturating_add(HEAD_START))
}

/// Requests that a holder may have more than another.
const HEAD_START: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_preferred_until_it_has_far_more_to_do() {
        assert!(is_worth(Some(4), Some(0)) && is_worth(Some(0), Some(9)));
        assert!(!is_worth(Some(5), Some(0)), "then the adapter gets a second place");
        assert!(!is_worth(None, Some(0)) && !is_worth(Some(0), None), "nothing to choose between");
    }
}
