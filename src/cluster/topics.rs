//! What gateways show each other: by topic, a text of each gateway, in a hash of the broker with a field a gateway.
//!
//! Texts are whole statements, so that a command that was lost or came twice changes nothing, and a broker that lost its memory
//! has it again after one look. What a text means is the affair of whoever shows it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Pipeline, RedisError};

use super::connected::Connected;
use super::link::UntilLost;
use super::peers::SILENT;
use crate::clock::{Stamp, ticks};

/// Every topic of this gateway.
#[derive(Debug, Default)]
pub struct Topics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<String, Topic>,
    /// Number of the next look.
    beat: u64,
    is_connected: bool,
}

#[derive(Debug, Default)]
struct Topic {
    own: String,
    others: HashMap<String, Seen>,
    /// Of this gateway before it restarted.
    former: Option<String>,
    is_looked_at: bool,
}

#[derive(Debug)]
struct Seen {
    text: String,
    beat: String,
    moved: Stamp,
}

/// What another gateway shows, or this one before it restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its text.
    pub text: String,
    /// It was renewed a moment ago.
    pub is_alive: bool,
}

impl Topics {
    /// Shows a text from the next look on.
    pub fn show(&self, topic: &str, text: String) {
        let mut state = self.0.lock();
        match state.topics.get_mut(topic) {
            Some(known) => known.own = text,
            None => drop(state.topics.insert(topic.to_owned(), Topic { own: text, ..Topic::default() })),
        }
    }

    /// Shows no other topics any more.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        self.0.lock().topics.retain(|topic, _| is_kept(topic));
    }

    /// What others show. `None` before the first look, and while the broker is away.
    pub fn others(&self, topic: &str, now: Stamp) -> Option<Vec<Shown>> {
        let state = self.0.lock();
        let topic = state.topics.get(topic).filter(|topic| state.is_connected && topic.is_looked_at)?;
        let alive = |seen: &Seen| Shown { text: seen.text.clone(), is_alive: seen.is_alive(now) };
        let former = topic.former.iter().map(|text| Shown { text: text.clone(), is_alive: false });
        let mut others: Vec<&Seen> = topic.others.values().collect();
        if others.len() > MAX_GATEWAYS {
            others.sort_unstable_by_key(|seen| Reverse(seen.moved));
            others.truncate(MAX_GATEWAYS);
        }
        Some(others.into_iter().map(alive).chain(former).collect())
    }

    /// Looks every [`LOOK_EVERY`] until the connection ends.
    pub(super) async fn run(&self, at: &Connected<'_>) -> UntilLost {
        let mut ticks = ticks(LOOK_EVERY);
        let mut refusals = at.refused.of("verdicts on canaries are not shared");
        // Before, a field that never moves looks as alive as any.
        let mut sweep_at = at.clock.now().after(2 * SILENT);
        loop {
            ticks.tick().await;
            let mut result = self.look(at).await;
            let now = at.clock.now();
            if result.is_ok() && now >= sweep_at {
                sweep_at = now.after(SWEEP_EVERY);
                result = self.sweep(at, now).await.and(result);
            }
            refusals.note(result)?;
        }
    }

    /// The broker is away: nothing of the others counts until it is back.
    pub(super) fn lost(&self) {
        let mut state = self.0.lock();
        state.is_connected = false;
        for topic in state.topics.values_mut() {
            topic.others.clear();
            topic.is_looked_at = false;
        }
    }

    async fn look(&self, at: &Connected<'_>) -> Result<bool, RedisError> {
        let (beat, own): (u64, Vec<(String, String)>) = {
            let mut state = self.0.lock();
            state.beat += 1;
            state.is_connected = true;
            (state.beat, state.topics.iter().map(|(name, topic)| (name.clone(), topic.own.clone())).collect())
        };
        if own.is_empty() {
            return Ok(false);
        }
        let mut asking = Pipeline::with_capacity(3 * own.len());
        for (topic, text) in &own {
            let key = format!("{}:{topic}", at.cluster);
            asking.cmd("HGETALL").arg(&key);
            asking.cmd("HSET").arg(&key).arg(at.field).arg(format!("{beat} {text}")).ignore();
            asking.cmd("EXPIRE").arg(&key).arg(KEPT).ignore();
        }
        let read: Vec<HashMap<Vec<u8>, Vec<u8>>> = asking.query_async(&mut at.connection()).await?;
        let now = at.clock.now();
        let mut state = self.0.lock();
        for ((topic, _), fields) in own.iter().zip(read) {
            if let Some(topic) = state.topics.get_mut(topic) {
                topic.take(in_text(fields), at.field, now);
            }
        }
        Ok(true)
    }

    /// Drops fields that were not renewed for [`KEPT`]: those who are alive keep the hash itself from expiring. When a field was
    /// renewed is in a sorted set beside it, by the broker's clock, noted by all who see it move: an earlier version notes nothing.
    async fn sweep(&self, at: &Connected<'_>, now: Stamp) -> Result<(), RedisError> {
        let (connection, cluster) = (&mut at.connection(), at.cluster);
        let topics: Vec<(String, Vec<String>, Vec<String>)> = {
            let state = self.0.lock();
            let looked_at = state.topics.iter().filter(|(_, topic)| topic.is_looked_at);
            looked_at.map(|(name, topic)| topic.renewed_or_silent(name, at.field, now)).collect()
        };
        // A pipeline of nothing is an error.
        if topics.is_empty() {
            return Ok(());
        }
        let (seconds, _micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
        let renewed = |topic: &str| format!("{cluster}:renewed:{topic}");
        let mut noting = Pipeline::new();
        for (topic, moving, silent) in &topics {
            let key = renewed(topic);
            let scored =
                |fields: &[String]| fields.iter().map(|one| (seconds, one.clone())).collect::<Vec<_>>();
            noting.cmd("ZADD").arg(&key).arg(scored(moving)).ignore();
            if !silent.is_empty() {
                noting.cmd("ZADD").arg(&key).arg("NX").arg(scored(silent)).ignore();
            }
            noting.cmd("EXPIRE").arg(&key).arg(KEPT).ignore();
            noting.cmd("ZRANGEBYSCORE").arg(&key).arg("-inf").arg(seconds - i64::from(KEPT));
        }
        let gone: Vec<Vec<String>> = noting.query_async(connection).await?;
        let mut dropping = Pipeline::new();
        for ((topic, ..), gone) in topics.iter().zip(&gone).filter(|(_, gone)| !gone.is_empty()) {
            dropping.cmd("HDEL").arg(format!("{cluster}:{topic}")).arg(gone).ignore();
            dropping.cmd("ZREM").arg(renewed(topic)).arg(gone).ignore();
            tracing::info!(
                topic,
                gateways = gone.len(),
                "cluster: what gateways have shown that are gone is dropped"
            );
        }
        if dropping.is_empty() { Ok(()) } else { dropping.query_async(connection).await }
    }
}

impl Seen {
    /// The text of a gateway that is gone is still read.
    fn is_alive(&self, now: Stamp) -> bool {
        now.since(self.moved) < SILENT
    }
}

impl Topic {
    /// With its name: fields that were just renewed, `own` among them, and the others.
    fn renewed_or_silent(&self, name: &str, own: &str, now: Stamp) -> (String, Vec<String>, Vec<String>) {
        let (mut renewed, silent): (Vec<_>, Vec<_>) =
            self.others.keys().cloned().partition(|gateway| self.others[gateway].is_alive(now));
        renewed.push(own.to_owned());
        (name.to_owned(), renewed, silent)
    }

    fn take(&mut self, fields: HashMap<String, String>, own: &str, now: Stamp) {
        self.others.retain(|gateway, _| fields.contains_key(gateway));
        for (gateway, shown) in fields {
            let Some((beat, text)) = shown.split_once(' ') else { continue };
            if gateway == own {
                // What this process wrote itself is no news.
                if !self.is_looked_at && self.own != text {
                    self.former = Some(text.to_owned());
                }
                continue;
            }
            let moved = match self.others.get(&gateway) {
                Some(seen) if seen.beat == beat => seen.moved,
                _ => now,
            };
            self.others.insert(gateway, Seen { text: text.to_owned(), beat: beat.to_owned(), moved });
        }
        self.is_looked_at = true;
    }
}

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Seconds that a topic outlives the last gateway that shows it.
const KEPT: u32 = 7 * 24 * 3600;
/// Between two looks for fields of gateways that are gone.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Others that count: those who moved last.
const MAX_GATEWAYS: usize = 256;

/// A field that is no text is nonsense, and the others are read all the same.
fn in_text(fields: HashMap<Vec<u8>, Vec<u8>>) -> HashMap<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    fields.into_iter().map(|(gateway, shown)| (text(gateway), text(shown))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    fn fields(of: &[(&str, &str)]) -> HashMap<String, String> {
        of.iter().map(|(gateway, text)| ((*gateway).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn others_are_alive_while_their_beat_moves_and_the_own_field_is_news_after_a_restart_only() {
        let topics = Topics::default();
        topics.show("t", "mine".to_owned());
        assert_eq!(topics.others("t", at(9)), None, "nothing was looked at yet");
        let look = |of: &[(&str, &str)], now: Stamp| {
            let mut state = topics.0.lock();
            state.is_connected = true;
            state.topics.get_mut("t").unwrap().take(fields(of), "me", now);
        };
        look(&[("me", "9 before"), ("a", "1 x"), ("b", "1 y"), ("c", "nonsense")], at(9));
        look(&[("me", "10 mine"), ("a", "1 x"), ("b", "2 z")], at(12));
        let mut shown = topics.others("t", at(12)).unwrap();
        shown.sort_by(|one, other| one.text.cmp(&other.text));
        let of = |text: &str, is_alive| Shown { text: text.to_owned(), is_alive };
        assert_eq!(shown, [of("before", false), of("x", false), of("z", true)]);
        topics.lost();
        assert_eq!(topics.others("t", at(12)), None);
        topics.retain(|_| false);
        assert!(topics.0.lock().topics.is_empty());
    }

    #[test]
    fn one_field_that_is_no_text_hides_no_other() {
        let read = [(b"a".to_vec(), b"1 x".to_vec()), (b"b".to_vec(), b"\xff".to_vec())];
        assert_eq!(in_text(HashMap::from(read)), fields(&[("a", "1 x"), ("b", "\u{fffd}")]));
    }

    #[test]
    fn gateways_that_are_alive_count_however_many_are_gone() {
        let topics = Topics::default();
        topics.show("t", "mine".to_owned());
        let look = |beat: u64, second: u64| {
            let gone = (0..2 * MAX_GATEWAYS).map(|n| (format!("gone-{n}"), "1 gone".to_owned()));
            let alive = (0..40).map(|n| (format!("alive-{n}"), format!("{beat} alive")));
            let mut state = topics.0.lock();
            state.is_connected = true;
            state.topics.get_mut("t").unwrap().take(gone.chain(alive).collect(), "me", at(second));
        };
        look(1, 9);
        look(2, 12);
        let shown = topics.others("t", at(12)).unwrap();
        assert_eq!(shown.len(), MAX_GATEWAYS);
        assert_eq!(shown.iter().filter(|one| one.is_alive && one.text == "alive").count(), 40);
    }
}
