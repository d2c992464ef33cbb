//! The last decisions of all gateways in a stream of the broker, so that one that starts knows which prompts are cached where.
//!
//! Each adds what it decided once a second; one that connects reads what it missed. A replica whose process started after a
//! decision has lost that prompt, and one that shows no page has yet to prove what it is: their decisions are left out.

use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::connected::Connected;
use super::link::UntilLost;
use super::places::Places;
use super::{wait_for_pages, wire};
use crate::clock::{Clock, Stamp, ticks};
use crate::routing::notice::{Event, Notice};

/// Decisions of this gateway that are not in the stream yet, and how far it has been read.
#[derive(Debug)]
pub(super) struct Journal {
    key: String,
    head: wire::Head,
    unwritten: Mutex<Vec<u8>>,
    /// Id of the newest entry that is known here.
    newest: Mutex<String>,
}

impl Journal {
    pub(super) fn new(cluster: &str, head: wire::Head) -> Self {
        let (unwritten, newest) = (Mutex::default(), Mutex::new("-".to_owned()));
        Self { key: format!("{cluster}:decisions"), head, unwritten, newest }
    }

    /// Notes a decision; one that finds no room is left out.
    pub(super) fn note(&self, notice: &Notice, now: Stamp) {
        if !matches!(notice.event, Event::Placed(_)) {
            return;
        }
        let unwritten = &mut *self.unwritten.lock();
        if unwritten.is_empty() {
            wire::begin(&self.head, unwritten);
        }
        if unwritten.len() < MAX_ENTRY {
            wire::push(notice, now, unwritten);
        }
    }

    /// Reads what was missed, then writes until the connection ends.
    pub(super) async fn run(&self, at: &Connected<'_>) -> UntilLost {
        // What waited is older than the time that the broker would give it.
        self.unwritten.lock().clear();
        wait_for_pages(at.fleet).await;
        let mut connection = at.connection();
        if let Err(error) = self.read(at, &mut connection).await {
            // Others find out whether the connection is at fault; without what was missed this gateway works all the same.
            tracing::warn!(%error, "cluster: the last decisions of other gateways cannot be read");
        }
        let mut ticks = ticks(WRITE_EVERY);
        let mut refusals = at.refused.of("decisions are not kept for gateways that start");
        loop {
            ticks.tick().await;
            refusals.note(self.write(&mut connection).await)?;
        }
    }

    /// Whether there was anything to write.
    async fn write(&self, connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        let entry = std::mem::take(&mut *self.unwritten.lock());
        if entry.is_empty() {
            return Ok(false);
        }
        let most = (MAX_BYTES / entry.len()).min(MAX_ENTRIES);
        let mut adding = redis::cmd("XADD");
        adding.arg(&self.key).arg("MAXLEN").arg("~").arg(most).arg("*").arg(FIELD).arg(&entry[..]);
        let id: String = adding.query_async(connection).await?;
        *self.newest.lock() = id;
        redis::cmd("EXPIRE").arg(&self.key).arg(KEPT).query_async::<()>(connection).await.map(|()| true)
    }

    async fn read(
        &self,
        at: &Connected<'_>,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), RedisError> {
        let places = Places::known(&at.fleet.pools());
        let mut decisions = 0;
        loop {
            let from = { self.newest.lock().clone() };
            let mut asking = redis::cmd("XRANGE");
            asking.arg(&self.key).arg(after(&from)).arg("+").arg("COUNT").arg(AT_ONCE);
            // Ids, with names and values of fields in turn.
            let page: Vec<(String, Vec<Vec<u8>>)> = asking.query_async(connection).await?;
            for (id, fields) in &page {
                decisions += fields.get(1).map_or(0, |batch| self.replay(id, batch, &places, at.clock));
            }
            let Some((last, _)) = page.last() else { break };
            last.clone_into(&mut self.newest.lock());
        }
        if decisions > 0 {
            tracing::info!(
                decisions,
                "cluster: cached prompts are known from the last decisions of all gateways"
            );
        }
        Ok(())
    }

    /// Takes in an entry, whose id is the broker's time; returns how many decisions of it count here.
    fn replay(&self, id: &str, batch: &[u8], places: &Places, clock: Clock) -> usize {
        let Some(millis) = id.split('-').next().and_then(|millis| millis.parse().ok()) else { return 0 };
        places.replay(batch, &self.head, Duration::from_millis(millis), clock.now()).unwrap_or(0)
    }
}

/// The first id after this one; Redis knows bounds that leave out their id since 6.2 only.
fn after(id: &str) -> String {
    let next = || {
        let (millis, sequence) = id.split_once('-')?;
        let (millis, sequence): (u64, u64) = (millis.parse().ok()?, sequence.parse().ok()?);
        Some(match sequence.checked_add(1) {
            Some(sequence) => format!("{millis}-{sequence}"),
            None => format!("{}-0", millis.checked_add(1)?),
        })
    };
    // Nothing was read yet: from the beginning.
    next().unwrap_or_else(|| id.to_owned())
}

/// As long as a decision takes to be kept: what is lost with a gateway that is killed.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Bytes of an entry, of all together, and how many there are, about: some hundred thousand decisions.
const MAX_ENTRY: usize = 64 * 1024;
const MAX_BYTES: usize = 8 << 20;
const MAX_ENTRIES: usize = 8192;
/// Entries of one answer: a megabyte at most.
const AT_ONCE: usize = 16;
/// Seconds: no engine's cache is older.
const KEPT: u32 = 24 * 3600;
const FIELD: &str = "d";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_after_the_last_entry_that_is_known() {
        for (id, next) in [
            ("-", "-"),
            ("1700000000000-0", "1700000000000-1"),
            ("1700000000000-9", "1700000000000-10"),
            ("5-18446744073709551615", "6-0"),
        ] {
            assert_eq!(after(id), next);
        }
    }
}
