//! The life of a replica: its states, what moves it from one to the next, and what it went through.
//!
//! ```text
//! discovered ─asked─▶ starting ─HTTP answer─▶ probing ─answer─▶ warming ─warm─▶ ready ─removed─▶ draining ─▶ gone
//!                        ▲                       ▲                               │ ▲
//!      listens again     │        new process    └───────────────────────────────┤ │ answer
//!   unreachable ─────────┘◀──────────────── connects refused ────────────────────┤ │
//!                                                  ejected ◀──── failures ───────┘ │
//!                                                     └────────────────────────────┘
//! ```
//! [`ReplicaState::after`] is the whole table, and pure; docs/fleet.md draws it. A process that has not been warm yet passes
//! `warming`, one that was only away or sick does not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::Stamp;
use crate::labels::labels;

labels! {
    /// The replica's state, as the label `state` names it.
    #[derive(Default)]
    pub enum ReplicaState {
        /// Nothing was asked of it yet.
        #[default]
        Discovered = "discovered",
        /// Nobody listens yet, or the engine still loads.
        Starting = "starting",
        /// It answers HTTP; no inference request was answered yet.
        Probing = "probing",
        /// Its engine answers; warm-up requests are sent.
        Warming = "warming",
        /// Gets new requests.
        Ready = "ready",
        /// Gets no new requests after failures; reinstated by a probe.
        Ejected = "ejected",
        /// Gets no new requests: nobody listens there any more.
        Unreachable = "unreachable",
        /// Shown in place of `ready`, and no step of its life: its source keeps new requests away.
        NotServing = "not_serving",
        /// No longer part of the fleet: its streams run to their end.
        Draining = "draining",
        /// The last of its streams has ended.
        Gone = "gone",
    }
}

labels! {
    /// Why a replica gets no new requests, whatever its probes find.
    pub(crate) enum Hold {
        /// An operator drained it.
        Drained = "drained on the admin port",
        /// Its source does not let it have traffic.
        NotServing = "not serving, says its orchestrator",
    }
}

impl Hold {
    /// The state that people see of one that would be ready.
    pub(super) fn shown(self) -> ReplicaState {
        match self {
            Self::Drained => ReplicaState::Draining,
            Self::NotServing => ReplicaState::NotServing,
        }
    }
}

/// What happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first own request goes out.
    Asked,
    /// A connect was refused.
    Refused,
    /// A new process listens where connects were refused.
    Listens,
    /// An HTTP answer came, and it was not that the engine loads.
    Spoke,
    /// Inference requests for all that is promised were answered by a process that was not warm before.
    ProvedCold,
    /// A probe was answered by a process that was warm before.
    Proved,
    /// Warm-up is over.
    Warmed,
    /// A probe was not answered as a working engine does.
    Unproved,
    /// Failed requests or probes prove it sick.
    Sick,
    /// Its process is another one.
    Restarted,
    /// It is to be warmed up again.
    WarmAgain,
    /// It was ready in another pool.
    Adopted,
    /// The fleet has it no longer.
    Removed,
    /// Nothing refers to it any more.
    Released,
}

impl ReplicaState {
    /// Whether it has yet to take its first request in this life.
    pub fn is_coming(self) -> bool {
        matches!(self, Self::Discovered | Self::Starting | Self::Probing | Self::Warming)
    }

    /// Whether it gets no new request whatever its engine does.
    pub fn is_away(self) -> bool {
        matches!(self, Self::NotServing | Self::Draining | Self::Gone)
    }

    /// Whether it was left: it is back once a probe is answered.
    pub fn is_left(self) -> bool {
        matches!(self, Self::Ejected | Self::Unreachable)
    }

    /// The state after an event; the same one where only the reason is news, `None` where the event means nothing.
    #[must_use]
    pub fn after(self, event: Event) -> Option<Self> {
        let next = match (self, event) {
            (Self::Gone, _) => return None,
            (Self::Draining, Event::Released) => Self::Gone,
            (Self::Draining, _) | (_, Event::Released) => return None,
            (_, Event::Removed) => Self::Draining,
            (Self::Discovered, Event::Asked) => Self::Starting,
            (_, Event::Asked) => return None,
            (Self::Ready | Self::Ejected | Self::Unreachable, Event::Refused) => Self::Unreachable,
            (_, Event::Refused) => Self::Starting,
            (Self::Unreachable, Event::Listens) => Self::Starting,
            (_, Event::Listens) => return None,
            (Self::Discovered | Self::Starting, Event::Spoke) => Self::Probing,
            (_, Event::Spoke) => return None,
            (Self::Ready, Event::ProvedCold) | (Self::Warming, Event::ProvedCold | Event::Proved) => self,
            (_, Event::ProvedCold) => Self::Warming,
            (_, Event::Proved | Event::Adopted) | (Self::Warming, Event::Warmed) => Self::Ready,
            (_, Event::Warmed) => return None,
            (Self::Warming, Event::Unproved | Event::Sick) => Self::Probing,
            (Self::Ready | Self::Ejected | Self::Unreachable, Event::Unproved | Event::Sick) => Self::Ejected,
            (_, Event::Unproved | Event::Sick) => self,
            (Self::Ready | Self::Ejected | Self::Warming, Event::Restarted) => Self::Probing,
            (_, Event::Restarted) => return None,
            (Self::Ready, Event::WarmAgain) => Self::Warming,
            (_, Event::WarmAgain) => return None,
        };
        Some(next)
    }
}

/// The state that one replica is in.
#[derive(Debug, Default)]
pub(super) struct LifeCycle {
    /// Index into [`ReplicaState::ALL`], for the data path.
    at: AtomicU8,
    now: Mutex<Passage>,
    /// Index into [`Hold::ALL`], one more: it is held, unless this is 0.
    held: AtomicU8,
    /// Cancelled when the configuration drops it: probes and scrapes end.
    pub(super) removed: CancellationToken,
}

/// A state with its history.
#[derive(Clone, Debug, Default)]
pub(super) struct Passage {
    pub(super) state: ReplicaState,
    pub(super) reason: Arc<str>,
    pub(super) since: Stamp,
    /// How often each of [`ReplicaState::ALL`] was entered.
    pub(super) entered: [u64; ReplicaState::ALL.len()],
    /// When it was last refused a connect, or its process another one.
    pub(super) process_lost: Option<Stamp>,
}

impl Passage {
    /// How often this state was entered.
    pub(super) fn entered(&self, state: ReplicaState) -> u64 {
        self.entered.get(state as usize).copied().unwrap_or_default()
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: ReplicaState,
    pub(super) to: ReplicaState,
    /// How long it was in the former state.
    pub(super) after: Duration,
}

impl LifeCycle {
    /// Begins as [`ReplicaState::Discovered`].
    pub(super) fn new(now: Stamp) -> Self {
        let mut entered = [0; ReplicaState::ALL.len()];
        entered[0] = 1;
        let passage = Passage { reason: "not asked yet".into(), since: now, entered, ..Passage::default() };
        Self { now: Mutex::new(passage), ..Self::default() }
    }

    /// Why new requests are kept away, where they are.
    pub(super) fn held(&self) -> Option<Hold> {
        let at = usize::from(self.held.load(Ordering::Relaxed)).checked_sub(1)?;
        Hold::ALL.get(at).copied()
    }

    /// Keeps new requests away for as long as there is a reason; returns whether that is a change.
    pub(super) fn hold(&self, reason: Option<Hold>) -> bool {
        let before = self.held.swap(reason.map_or(0, |reason| reason as u8 + 1), Ordering::Relaxed);
        (before > 0) != reason.is_some()
    }

    pub(super) fn state(&self) -> ReplicaState {
        let at = usize::from(self.at.load(Ordering::Acquire));
        ReplicaState::ALL.get(at).copied().unwrap_or(ReplicaState::Discovered)
    }

    /// State, reason and history together.
    pub(super) fn passage(&self) -> Passage {
        self.now.lock().clone()
    }

    /// Takes an event; returns the change of state, if it is one.
    pub(super) fn apply(&self, event: Event, reason: &str, now: Stamp) -> Option<Change> {
        let mut passage = self.now.lock();
        let from = passage.state;
        let to = from.after(event)?;
        if matches!(event, Event::Refused | Event::Restarted) {
            passage.process_lost = Some(now);
        }
        if *passage.reason != *reason {
            passage.reason = reason.into();
        }
        if from == to {
            return None;
        }
        let after = now.since(passage.since);
        (passage.state, passage.since) = (to, now);
        passage.entered[to as usize] += 1;
        self.at.store(to as u8, Ordering::Release);
        Some(Change { from, to, after })
    }
}

/// Cold starts of a replica that came to their end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColdStarts {
    /// How many so far.
    pub count: u64,
    /// How long the latest of them took, the newest last: from discovery or the first refusal to the end of warm-up.
    pub latest: VecDeque<Duration>,
}

impl ColdStarts {
    /// Another one is over.
    pub fn note(&mut self, took: Duration) {
        self.count += 1;
        self.latest.push_back(took);
        if self.latest.len() > KEPT_COLD_STARTS {
            self.latest.pop_front();
        }
    }

    /// The latest that came since there were `before`; all, where that is more than there are: the name was another's then.
    pub fn since(&self, before: u64) -> impl Iterator<Item = Duration> {
        let new = usize::try_from(self.count.checked_sub(before).unwrap_or(self.count)).unwrap_or(usize::MAX);
        self.latest.iter().rev().take(new).copied()
    }
}

/// Between two scrapes of our metrics there are fewer.
const KEPT_COLD_STARTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 14] = [
        Event::Asked,
        Event::Refused,
        Event::Listens,
        Event::Spoke,
        Event::ProvedCold,
        Event::Proved,
        Event::Warmed,
        Event::Unproved,
        Event::Sick,
        Event::Restarted,
        Event::WarmAgain,
        Event::Adopted,
        Event::Removed,
        Event::Released,
    ];

    fn walk(from: ReplicaState, events: &[Event]) -> Vec<&'static str> {
        let mut state = from;
        let step = |event: &Event| {
            state = state.after(*event).unwrap_or(state);
            state.as_str()
        };
        events.iter().map(step).collect()
    }

    #[test]
    fn a_new_process_passes_every_state_on_its_way_to_traffic() {
        use Event::{Asked, Listens, ProvedCold, Refused, Released, Removed, Spoke, Warmed};
        let life = [Asked, Refused, Spoke, ProvedCold, Warmed, Refused, Listens, Spoke, ProvedCold, Warmed];
        assert_eq!(
            walk(ReplicaState::Discovered, &life),
            [
                "starting", "starting", "probing", "warming", "ready", "unreachable", "starting", "probing",
                "warming", "ready"
            ]
        );
        assert_eq!(
            walk(ReplicaState::Ready, &[Removed, Refused, Released]),
            ["draining", "draining", "gone"]
        );
    }

    #[test]
    fn one_that_was_away_or_sick_comes_back_by_a_probe() {
        use Event::{Proved, Refused, Sick, Unproved};
        assert_eq!(walk(ReplicaState::Ready, &[Sick, Unproved, Proved]), ["ejected", "ejected", "ready"]);
        assert_eq!(
            walk(ReplicaState::Ready, &[Refused, Unproved, Proved]),
            ["unreachable", "ejected", "ready"]
        );
    }

    #[test]
    fn only_a_probe_or_warm_up_leads_to_traffic_and_nothing_leads_back_from_the_end() {
        for state in ReplicaState::ALL {
            for event in EVENTS {
                let next = state.after(event);
                if next == Some(ReplicaState::Ready) && state != ReplicaState::Ready {
                    assert!(
                        matches!(event, Event::Proved | Event::Warmed | Event::Adopted),
                        "{state:?} {event:?}"
                    );
                }
                if matches!(state, ReplicaState::Draining | ReplicaState::Gone) {
                    assert!(matches!(next, None | Some(ReplicaState::Gone)), "{state:?} {event:?}");
                }
            }
        }
    }

    #[test]
    fn what_it_went_through_is_counted_and_a_new_reason_alone_is_no_change() {
        let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
        let life = LifeCycle::new(at(0));
        assert_eq!(life.apply(Event::Warmed, "never", at(1)), None);
        let change = life.apply(Event::Asked, "asked", at(2)).unwrap();
        assert_eq!(
            (change.from.as_str(), change.to.as_str(), change.after.as_secs()),
            ("discovered", "starting", 2)
        );
        assert_eq!(life.apply(Event::Refused, "connect refused", at(3)), None);
        let passage = life.passage();
        assert_eq!((&*passage.reason, passage.since), ("connect refused", at(2)));
        assert_eq!(passage.entered[ReplicaState::Starting as usize], 1);
        assert_eq!(life.state(), ReplicaState::Starting);
    }
}
