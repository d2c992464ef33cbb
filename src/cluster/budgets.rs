//! Budgets over all gateways: each writes what it has taken itself into a hash of the window and reads the others' fields.
//!
//! Fields are absolute numbers, so that a command that was lost or came twice changes nothing, and a broker that lost its memory
//! has it again after one look.

use std::collections::HashMap;

use redis::{Pipeline, RedisError};

use super::connected::Connected;
use crate::admission::{Amounts, Claim, TenantLimiter};

/// Publishes what this gateway has taken, and learns what the others have; of every budget where `is_due`. Whether there was any.
pub(super) async fn look(
    at: &Connected<'_>,
    tenants: &TenantLimiter,
    is_due: bool,
) -> Result<bool, RedisError> {
    let claims = tenants.claims(is_due, at.clock.wall(at.clock.now()));
    for claims in claims.chunks(MAX_CLAIMS) {
        let mut asking = Pipeline::with_capacity(3 * claims.len());
        for claim in claims {
            let key = format!("{}:budget:{}", at.cluster, claim.name);
            asking.cmd("HGETALL").arg(&key);
            let writing = if claim.is_first { "HSETNX" } else { "HSET" };
            asking.cmd(writing).arg(&key).arg(at.field).arg(written(&claim.own)).ignore();
            asking.cmd("EXPIREAT").arg(&key).arg(claim.until.saturating_add(KEPT)).ignore();
        }
        let taken: Vec<HashMap<Vec<u8>, Vec<u8>>> = asking.query_async(&mut at.connection()).await?;
        for (claim, taken) in claims.iter().zip(taken) {
            take_in(at.field, tenants, claim, &taken);
        }
    }
    Ok(!claims.is_empty())
}

fn take_in(own: &str, tenants: &TenantLimiter, claim: &Claim, taken: &HashMap<Vec<u8>, Vec<u8>>) {
    let (mut others, mut before) = (Amounts::default(), None);
    for (gateway, amounts) in taken {
        let Some(amounts) = read(amounts) else { continue };
        if gateway == own.as_bytes() {
            before = Some(amounts);
        } else {
            others = others.plus(amounts);
        }
    }
    tenants.claimed(claim, others, before);
}

fn written(amounts: &Amounts) -> String {
    let Amounts { input, cached, output, requests, engine_ms } = amounts;
    format!("{input} {cached} {output} {requests} {engine_ms}")
}

/// `None` where it is no gateway's.
fn read(text: &[u8]) -> Option<Amounts> {
    let mut numbers = std::str::from_utf8(text).ok()?.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let amounts =
        Amounts { input: next()?, cached: next()?, output: next()?, requests: next()?, engine_ms: next()? };
    numbers.next().is_none().then_some(amounts)
}

/// Of one round trip.
const MAX_CLAIMS: usize = 500;
/// Seconds that a window is kept after its end, for clocks that are apart.
const KEPT: i64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_written_and_nonsense_is_none() {
        let amounts = Amounts { input: 1, cached: 2, output: 3, requests: u64::MAX, engine_ms: 5 };
        assert_eq!(read(written(&amounts).as_bytes()), Some(amounts));
        for text in ["", "1 2 3 4", "1 2 3 4 5 6", "a b c d e", "-1 0 0 0 0"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }
}
