//! Pins of stored responses over all gateways: each keeps those it made as keys with an expiry, and asks for what it does not know.
//!
//! Only a follow-up that would be refused waits for an answer. A key is a hash of tenant and response id under `routing.seed`: no
//! name of a client's is in the broker, and one tenant's id means nothing to another.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::FLUSH_EVERY;
use super::connected::Connected;
use super::link::UntilLost;
use crate::clock::{Clock, Stamp, ticks};
use crate::config::Secret;
use crate::digits;
use crate::relay::pins::{PinAsked, ResponsePins};

/// What this gateway knows of stored responses, and what it asks for.
pub(super) struct SharedPins {
    prefix: String,
    seed: Secret,
    pins: Arc<ResponsePins>,
    asked: mpsc::Receiver<PinAsked>,
    waiting: Vec<(PinAsked, Stamp)>,
}

impl SharedPins {
    pub(super) fn new(cluster: &str, seed: &Secret, pins: &Arc<ResponsePins>) -> Self {
        let (prefix, seed) = (format!("{cluster}:pin:"), seed.clone());
        let (asked, pins) = (pins.share(), Arc::clone(pins));
        Self { prefix, seed, pins, asked, waiting: Vec::new() }
    }

    /// Writes and answers until the connection ends.
    pub(super) async fn run(&mut self, at: &Connected<'_>) -> UntilLost {
        let (mut connection, mut ticks) = (at.connection(), ticks(FLUSH_EVERY));
        let mut refusals = at.refused.of("pins of stored responses are not shared");
        loop {
            let mut asked = Vec::new();
            // Both arms are cancel-safe: a question not taken stays in the channel.
            tokio::select! {
                _ = self.asked.recv_many(&mut asked, MAX_AT_ONCE) => {}
                _ = ticks.tick() => {}
            }
            let began = at.clock.now();
            self.waiting.extend(asked.into_iter().map(|asked| (asked, began)));
            // While it refuses, one at a time shows when it no longer does.
            let most = if refusals.is_refused() { 1 } else { MAX_AT_ONCE };
            let written = self.write(&mut connection, most).await;
            // A broker that takes nothing gives what it has.
            let answered = self.answer(&mut connection, at.clock).await;
            refusals.note(written.and_then(|written| answered.map(|()| written)))?;
        }
    }

    async fn write(&self, connection: &mut MultiplexedConnection, most: usize) -> Result<bool, RedisError> {
        let unshared = self.pins.take_unshared(most);
        if unshared.is_empty() {
            return Ok(false);
        }
        let mut writing = Pipeline::with_capacity(unshared.len());
        for (id, pin) in &unshared {
            let set = writing.cmd("SET").arg(self.key(&pin.tenant, id)).arg(&*pin.replica_url);
            set.arg("EX").arg(KEPT).ignore();
        }
        let written = writing.query_async::<()>(connection).await;
        if written.is_err() {
            self.pins.put_back(unshared.into_iter().map(|(id, _)| id));
        }
        written.map(|()| true)
    }

    async fn answer(
        &mut self,
        connection: &mut MultiplexedConnection,
        clock: Clock,
    ) -> Result<(), RedisError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut asking = Pipeline::with_capacity(self.waiting.len());
        for (asked, _) in &self.waiting {
            asking.cmd("GET").arg(self.key(&asked.tenant, &asked.response));
        }
        let found: Result<Vec<Option<Vec<u8>>>, RedisError> = asking.query_async(connection).await;
        let now = clock.now();
        // Whoever asked has given up by then, and one question that is refused must not stop all others for good.
        self.waiting.retain(|(_, since)| found.is_ok() || now.since(*since) < ON_ITS_WAY);
        let found = found?;
        for ((asked, since), found) in std::mem::take(&mut self.waiting).into_iter().zip(found) {
            let found = found.and_then(|url| String::from_utf8(url).ok());
            // Its maker may be about to write it.
            if found.is_none() && now.since(since) < ON_ITS_WAY {
                self.waiting.push((asked, since));
                continue;
            }
            // The client may have left.
            let _ = asked.answer.send(found.map(Into::into));
        }
        // Many ids that no gateway made: those that have waited longest are given up, which drops their questions.
        let too_many = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..too_many);
        Ok(())
    }

    fn key(&self, tenant: &str, response: &str) -> String {
        let digest = Sha256::new()
            .chain_update(self.seed.reveal())
            .chain_update([0])
            .chain_update(tenant)
            .chain_update([0])
            .chain_update(response)
            .finalize();
        format!("{}{}", self.prefix, digits::half_of(&digest.into()))
    }
}

/// Seconds that a pin is kept: engines forget their responses when they restart.
const KEPT: u32 = 24 * 3600;
const MAX_AT_ONCE: usize = 500;
/// Questions that are asked again.
const MAX_WAITING: usize = 4096;
/// A pin is written within [`FLUSH_EVERY`] of its response, on a busy machine later: an id that no gateway made waits in vain,
/// one that was made must not be refused.
const ON_ITS_WAY: std::time::Duration = FLUSH_EVERY.saturating_mul(40);
