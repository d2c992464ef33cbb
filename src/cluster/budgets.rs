//! Budgets over all gateways: each writes what its requests have used into a hash of the window, how far it would go, with what those
//! under way have reserved, into another, and reads the others' fields.
//!
//! Fields are absolute numbers, so that a command that was lost or came twice changes nothing, and a broker that lost its memory
//! has it again after one look. A wish is written before those of the others are read: of two looks at once none misses the other. In
//! a set of all budgets are those of which a gateway asks for more than the others leave it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use redis::{Pipeline, RedisError};

use super::connected::Connected;
use crate::admission::{Amounts, Claim, Others, TenantLimiter, Wish};
use crate::clock::since_epoch;

/// Publishes what this gateway has taken, and learns what the others have; of every budget where `is_due`. Whether there was any.
/// `gateways` is `None` for one that gives its shares up.
///
/// Until when a wish holds is by the broker's clock: those of two gateways may be apart.
pub(super) async fn look(
    at: &Connected<'_>,
    tenants: &TenantLimiter,
    gateways: Option<u32>,
    is_due: bool,
) -> Result<bool, RedisError> {
    if tenants.is_empty() {
        return Ok(false);
    }
    let pressing = format!("{}:budgets-asked", at.cluster);
    let now = at.clock.wall(at.clock.now());
    let mut asking = Pipeline::new();
    asking.cmd("TIME").cmd("ZRANGE").arg(&pressing).arg(0).arg(-1).arg("WITHSCORES");
    let (there, asked): ((i64, u32), Asked) = asking.query_async(&mut at.connection()).await?;
    let there = there.0;
    let ahead = there.saturating_sub_unsigned(since_epoch(now).as_secs());
    let pressed = asked.into_iter().filter(|(_, until)| *until >= there as f64);
    let pressed: HashSet<_> = pressed.map(|(name, _)| name).collect();
    let claims = tenants.claims(gateways, is_due, &pressed, now);
    for claims in claims.chunks(MAX_CLAIMS) {
        let mut asking = Pipeline::with_capacity(6 * claims.len());
        for claim in claims {
            let key = format!("{}:budget:{}", at.cluster, claim.name);
            asking.cmd("HGETALL").arg(&key);
            let writing = if claim.written.is_none() { asking.cmd("HSETNX") } else { asking.cmd("HSET") };
            writing.arg(&key).arg(at.field).arg(written(&claim.used)).ignore();
            asking.cmd("EXPIREAT").arg(&key).arg(claim.until.saturating_add(KEPT)).ignore();
            let key = format!("{}:budget-lease:{}", at.cluster, claim.name);
            if let Some(Wish { levels: [a, b, c, d, e, f], until, .. }) = claim.wish {
                let wish =
                    format!("{a} {b} {c} {d} {e} {f} {}", until.saturating_add(ahead).saturating_add(APART));
                asking.cmd("HSET").arg(&key).arg(at.field).arg(wish).ignore();
                asking.cmd("EXPIRE").arg(&key).arg(KEPT).ignore();
            }
            asking.cmd("HGETALL").arg(&key);
            if claim.is_pressing {
                asking.cmd("ZADD").arg(&pressing).arg(there + PRESSED).arg(&claim.name).ignore();
                asking.cmd("ZREMRANGEBYSCORE").arg(&pressing).arg("-inf").arg(there - PRESSED).ignore();
                asking.cmd("EXPIRE").arg(&pressing).arg(KEPT).ignore();
            }
        }
        let fields: Vec<Fields> = asking.query_async(&mut at.connection()).await?;
        for (claim, fields) in claims.iter().zip(fields.chunks_exact(2)) {
            if let [taken, leased] = fields {
                take_in(at, tenants, claim, taken, leased, there);
            }
        }
    }
    Ok(!claims.is_empty())
}

/// Names of pressed budgets, and until when they are.
type Asked = Vec<(Vec<u8>, f64)>;

/// Of a hash at the broker.
type Fields = HashMap<Vec<u8>, Vec<u8>>;

fn take_in(
    at: &Connected<'_>,
    tenants: &TenantLimiter,
    claim: &Claim,
    taken: &Fields,
    leased: &Fields,
    there: i64,
) {
    let (mut others, mut before) = (Others::default(), None);
    for (gateway, text) in taken {
        let Some(amounts) = read(text).map(amounts) else { continue };
        if gateway == at.field.as_bytes() {
            // Only another gateway of this name writes more than this one has. Engine time is corrected, so this one may have used less since.
            let most = claim.written.map(|written| written.each(claim.used, u64::max));
            if most.is_some_and(|most| amounts.each(most, u64::max) != most) {
                note_twin(at);
            }
            before = Some(amounts);
        } else {
            let lease = leased.get(gateway).and_then(|text| read(text));
            let levels =
                lease.and_then(|[a, b, c, d, e, f, until]| holds(until, there).then_some([a, b, c, d, e, f]));
            others.add(amounts, levels);
        }
    }
    tenants.claimed(claim, &others, before);
}

fn note_twin(at: &Connected<'_>) {
    if !at.has_twin.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            gateway = at.field,
            "cluster: another gateway has this one's name: hard budgets are taken twice; a state directory was copied: remove \
             budgets-<admin port>.json from one of the two and start that again"
        );
    }
}

fn written(amounts: &Amounts) -> String {
    let Amounts { input, cached, output, requests, engine_ms } = amounts;
    format!("{input} {cached} {output} {requests} {engine_ms}")
}

fn amounts([input, cached, output, requests, engine_ms]: [u64; 5]) -> Amounts {
    Amounts { input, cached, output, requests, engine_ms }
}

/// `None` where it is no gateway's.
fn read<const N: usize>(text: &[u8]) -> Option<[u64; N]> {
    let numbers = std::str::from_utf8(text).ok()?.split(' ').map(str::parse);
    numbers.collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()
}

fn holds(until: u64, there: i64) -> bool {
    i64::try_from(until).is_ok_and(|until| there <= until)
}

/// Of one round trip.
const MAX_CLAIMS: usize = 500;
/// Seconds that a window is kept after its end, for clocks that are apart.
const KEPT: i64 = 3600;
/// Seconds for which the others leave a gateway what it wished beyond what it keeps to: its looks may be late.
const APART: i64 = 7;
/// Seconds for which the others look at a budget of which one asks for more.
const PRESSED: i64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_written_and_nonsense_is_none() {
        let amounts = Amounts { input: 1, cached: 2, output: 3, requests: u64::MAX, engine_ms: 5 };
        assert_eq!(read(written(&amounts).as_bytes()).map(super::amounts), Some(amounts));
        for text in ["", "1 2 3 4", "1 2 3 4 5 6", "a b c d e", "-1 0 0 0 0"] {
            assert_eq!(read::<5>(text.as_bytes()), None, "{text}");
        }
    }
}
