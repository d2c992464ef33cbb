//! What was learned of replicas' speed, so that a gateway that starts does not begin with guesses.
//!
//! One key a pool, written by any gateway that has learned enough, by one of them at a time.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use super::connected::Connected;
use super::link::UntilLost;
use crate::clock::ticks;
use crate::fleet::pool::PoolState;
use crate::fleet::speeds::PoolSpeeds;

/// Writes and reads until the connection ends.
pub(super) async fn run(at: &Connected<'_>) -> UntilLost {
    let (mut ticks, mut refusals) = (ticks(TURN), at.refused.of("learned speeds are not shared"));
    loop {
        ticks.tick().await;
        // One round over all pools: what one of them is refused would otherwise end with the next.
        let mut round = Ok(false);
        for pool in at.fleet.pools().iter() {
            match share(at, pool).await {
                Ok(wrote) => round = round.map(|before| before || wrote),
                Err(error) => round = Err(error),
            }
        }
        refusals.note(round)?;
    }
}

/// Whether it wrote.
async fn share(at: &Connected<'_>, pool: &Arc<PoolState>) -> Result<bool, RedisError> {
    let (connection, clock) = (&mut at.connection(), at.clock);
    let key = format!("{}:speeds:{}", at.cluster, pool.name);
    if pool.dispatcher.model.pool.is_young() {
        let known: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(connection).await?;
        let known = known.and_then(|known| serde_json::from_slice::<PoolSpeeds>(&known).ok());
        if let Some(replicas) = known.and_then(|known| pool.take_speeds(&known, clock.now())) {
            tracing::info!(pool = %pool.name, replicas, "cluster: speeds are known from other gateways");
        }
        return Ok(false);
    }
    let mut asking = redis::cmd("SET");
    asking.arg(format!("{key}:turn")).arg("").arg("NX").arg("PX").arg(TURN_MS);
    let turn: Option<String> = asking.query_async(connection).await?;
    let speeds = turn.and_then(|_| serde_json::to_vec(&pool.speeds(clock.now())?).ok());
    let Some(speeds) = speeds else { return Ok(true) };
    let mut writing = redis::cmd("SET");
    writing.arg(&key).arg(speeds).arg("EX").arg(KEPT);
    writing.query_async::<()>(connection).await.map(|()| true)
}

/// Between two looks, and between two writes of one pool.
const TURN: Duration = Duration::from_millis(TURN_MS);
const TURN_MS: u64 = 5000;
/// Seconds.
const KEPT: u32 = 24 * 3600;
