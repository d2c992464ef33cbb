//! Thresholds of what differs and of what changed, each with its reason: the page and every finding go by these.

/// A replica or revision against its peers while its usual difference is unknown: affinity alone makes 1.3.
pub(crate) const DIFFERS: f64 = 1.6;
/// The same where it is known.
pub(crate) const DIFFERS_FROM_USUAL: f64 = 1.3;
/// A ratio below which nothing has moved.
pub(crate) const UNMOVED: f64 = 1.15;

/// Minutes before an onset in which an event can be its cause: a start, with its first requests, takes some.
pub(super) const EVENT_BEFORE: i64 = 15;
/// Minutes by which an event may seem to follow the onset: both are known by the minute.
pub(super) const EVENT_AFTER: i64 = 2;
/// Minutes after a start in which an engine is cold: what it is slow at later was configured so.
pub(super) const COLD: i64 = 5;
/// Share of a rise that decides where it is.
pub(super) const MAJORITY: f64 = 0.5;

/// Requests, now over before: more than the swing of ten minutes.
pub(crate) const BUSIER: f64 = 1.3;
/// Mean length of prompts or answers, now over before.
pub(crate) const LONGER: f64 = 1.25;
/// Hit rate, now over before: of prompts that share less (the cache has room), and of a cache that evicts.
pub(super) const SHARES_LESS: f64 = 0.7;
pub(super) const EVICTS: f64 = 0.8;
/// KV cache in use: below, nothing is evicted for want of room; now over before, of a cache that evicts.
pub(super) const KV_ROOM: f64 = 0.3;
pub(super) const KV_FULLER: f64 = 1.5;
/// Preemptions a minute and replica, now minus before.
pub(super) const PREEMPTIONS: f64 = 0.5;

/// Events of a part in a window: fewer are chance.
pub(super) const FEW: u32 = 3;
/// Misses or failures of a route, or a part's own, that count: fewer are one hiccup. Alerts (`rules.yml`) ask for as many.
pub(crate) const MISSES: u32 = 5;
/// Tokens of a part, and how many times as long as its peers' they take, from which fewer misses are enough.
pub(super) const TOKENS: f64 = 100.0;
pub(super) const FAR_SLOWER: f64 = 3.0;
/// Logarithm of the chance that a part with the others' share has as much as it: the page asks every second.
pub(super) const LN_CHANCE: f64 = -6.0;
/// Share of all failed attempts that makes them one replica's.
pub(super) const FAILURES_OF_ONE: f64 = 0.6;
/// Share of answers without text beside that of peers, or of the route before, and how many times theirs it is.
pub(crate) const EMPTY: f64 = 0.2;
pub(crate) const EMPTIER: f64 = 4.0;
/// Seconds by which means differ noticeably, and below which a difference concerns no user.
pub(super) const MIN_DIFFERENCE: f64 = 0.05;
pub(super) const NOISE: f64 = 0.003;
/// Waiting requests of the one engine that has a queue.
pub(super) const QUEUE: f64 = 4.0;
/// Share of the prompt tokens of a tenant or class that floods.
pub(super) const FLOOD: f64 = 0.35;
/// Share of its ordinary traffic below which a replica is demoted, and of its last answers that failed.
pub(super) const DEMOTED: f64 = 0.5;
pub(super) const FAILING: f64 = 0.05;
