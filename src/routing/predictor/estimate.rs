//! What is known of speed, as plain values, and the prediction that it makes for one request at one replica.
//!
//! [`PoolView`] is what all replicas of a pool have in common (one model, one image): how the causes of a prefill compare.
//! [`Estimate`] is one replica's: how fast it is by that measure. Policies know no more of prediction than the
//! [`Terms`] that come out: a better model changes this folder, not them.

use std::time::Duration;

use super::fit::dot;
use crate::record::Addends;
use crate::routing::float::{fast_max, fast_min, float, span};
use crate::routing::foreign::Foreign;
use crate::routing::hazard::Curve;
use crate::routing::load::LoadView;
use crate::routing::tuning::{prices, priors};
use crate::routing::work::Work;
use crate::units::{AtomicF64, Tokens};

/// What the replicas of a pool have in common: read once for a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolView {
    /// Seconds of a step, of a token of context in a step, of a prompt token, of a token attended to.
    rates: [f64; CAUSES],
    /// What a stall does to a stream that has just begun.
    pub(crate) fresh: Curve,
    pub(crate) answers: Answers,
    /// Uncached tokens of a request that we know nothing else of.
    pub(super) uncached: f64,
}

/// What is known of an answer before it is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answers {
    /// Mean tokens.
    pub(crate) output: f64,
    /// Chance, 0 to 1, that it has more than one: an embedding has no time per token.
    pub(crate) goes_on: f64,
}

/// What is known of one replica's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Its time for the pool's second.
    pub(super) slowness: f64,
    /// Seconds that a request takes to an idle replica and back, beyond computing.
    pub(super) round_trip: f64,
    /// Seconds of a decoding step: undisturbed and alone, and more per 100,000 tokens of context.
    pub(super) step: [f64; 2],
}

/// An [`Estimate`] that one writes and many read, number by number: a reader may mix two that follow one another, which differ by one
/// answer.
#[derive(Debug, Default)]
pub(in crate::routing) struct Published {
    pub(in crate::routing) slowness: AtomicF64,
    pub(super) round_trip: AtomicF64,
    pub(super) step: [AtomicF64; 2],
}

impl Published {
    #[inline]
    pub(super) fn load(&self) -> Estimate {
        let step = self.step.each_ref().map(AtomicF64::load);
        Estimate { slowness: self.slowness.load(), round_trip: self.round_trip.load(), step }
    }

    pub(super) fn store(&self, own: &Estimate) {
        self.slowness.store(own.slowness);
        self.round_trip.store(own.round_trip);
        self.step.iter().zip(own.step).for_each(|(cell, figure)| cell.store(figure));
    }
}

/// What a prediction is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Prompt tokens of others that are computed first.
    pub ahead: Tokens,
    /// Own prompt, as far as it is to be computed.
    pub work: Work,
    /// How slow the replica is, of the pool's speed, overdue answers included.
    pub pace: f64,
    /// Seconds until the engine gets to it.
    pub wait: f64,
    /// Seconds to compute it.
    pub prefill: f64,
    /// Share of its prefill that others will use, 0 to 1.
    pub shared: f64,
    /// Seconds of the wait that are for a place in a full batch.
    pub slot_wait: f64,
    /// Seconds until the engine has begun on our own prompts there; none where others have several times as much waiting.
    pub own_wait: f64,
    /// Seconds of the way and of the step it comes with.
    pub base: f64,
    /// Seconds to load its LoRA adapter.
    pub adapter: f64,
    /// Seconds until its KV is there, where another pool computes it.
    pub transfer: f64,
    /// Seconds of the replica that it takes: its prefill, or its share of the places in the batch where those are scarcer.
    pub turn: f64,
    /// Streams that its prefill is expected to push over their bound on the time per token.
    pub harm: f64,
    /// Streams that it is expected to push over it by longer steps, itself included.
    pub slowed: f64,
    /// Streams whose bound on their own gaps it is expected to use up by the stall that its prefill is.
    pub stalled: f64,
    /// Share of its bound on the time per token that a decoding step there leaves; all of it without one.
    pub slack: f64,
    /// The chance that its own first token is late.
    pub late: f64,
    /// Seconds of decoding: its own answer, and what that adds to the streams there. Compared with the best candidate's.
    pub decode: f64,
    /// What a policy makes of it; least wins.
    pub cost: Addends,
}

impl Terms {
    /// Predicted time from the decision to the first token.
    pub fn ttft(&self) -> Duration {
        span(self.seconds())
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.wait + self.prefill + self.base + self.adapter + self.transfer
    }
}

/// The queue at a replica, when a request is to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'a> {
    pub(crate) own: &'a LoadView,
    pub(crate) foreign: &'a Foreign,
    /// Sequences that the engine runs at once, where known.
    pub(crate) batch_limit: Option<u64>,
    /// Share of its KV memory that has to come free before the prompt finds room, 0 where it is not known.
    pub(crate) lacking: f64,
    /// Seconds since the head of the queue is computed.
    pub(crate) head_age: f64,
}

impl Queue<'_> {
    /// Whether a prompt has to wait until others make room, however fast the engine is.
    fn is_full(&self) -> bool {
        let present = float(self.own.inflight) + self.foreign.requests;
        self.batch_limit.is_some_and(|limit| present >= float(limit)) || self.lacking > 0.0
    }
}

/// What makes the engine busy until a first token: a step, the context that it drags along, tokens, attention.
pub(super) fn causes(context: u64, work: &Work) -> [f64; CAUSES] {
    [
        1.0,
        context as f64 / PER_CONTEXT,
        work.tokens as f64 / PER_TOKENS,
        work.attention as f64 / PER_ATTENTION,
    ]
}

impl PoolView {
    /// From seconds per cause, see [`causes`]: divided once here, not for every candidate.
    pub(super) fn new(rates: &[f64; CAUSES], fresh: Curve, answers: Answers, uncached: f64) -> Self {
        let [step, context, tokens, attention] = rates;
        let rates = [*step, context / PER_CONTEXT, tokens / PER_TOKENS, attention / PER_ATTENTION];
        Self { rates, fresh, answers, uncached }
    }

    /// For an answer of at most so many tokens.
    pub(crate) fn bounded(mut self, most: Option<Tokens>) -> Self {
        if let Some(most) = most {
            self.answers.output = fast_min(self.answers.output, float(most.0));
            self.answers.goes_on *= if most.0 > 1 { 1.0 } else { 0.0 };
        }
        self
    }

    /// Nominal seconds of work, the step it comes with included.
    #[inline]
    pub(super) fn seconds(&self, context: u64, work: &Work) -> f64 {
        self.step(context) + self.work(work)
    }

    /// Nominal seconds of one step that drags so much context along.
    #[inline]
    pub(crate) fn step(&self, context: u64) -> f64 {
        let [step, of_context, ..] = self.rates;
        step + of_context * float(context)
    }

    /// Nominal seconds of so many prompt tokens, without what they attend to.
    #[inline]
    fn tokens(&self, tokens: f64) -> f64 {
        self.rates[2] * tokens
    }

    /// How much longer one piece of work takes than another.
    pub(crate) fn ratio(&self, work: &Work, other: &Work) -> f64 {
        let other = self.work(other);
        if other > 0.0 { self.work(work) / other } else { 1.0 }
    }

    /// What so many requests of others wait with.
    #[inline]
    pub(super) fn work_of(&self, waiting: f64) -> Work {
        // Mostly there are none, and floats become whole numbers slowly.
        if waiting > 0.0 {
            Work::of(Tokens((waiting * self.uncached) as u64), Tokens(0))
        } else {
            Work::default()
        }
    }

    /// Nominal seconds of work, without the steps.
    #[inline]
    pub(crate) fn work(&self, work: &Work) -> f64 {
        let [.., token, attended] = self.rates;
        token * float(work.tokens) + attended * float(work.attention)
    }
}

impl Estimate {
    /// What a request with this work would meet at this replica.
    #[inline(always)] // made for every candidate: where only the sum is asked for, the parts need not be put together
    pub(crate) fn terms(&self, pool: &PoolView, queue: &Queue<'_>, work: Work) -> Terms {
        let own = queue.own;
        let others = own.waiting + pool.work_of(queue.foreign.waiting);
        let nominal = pool.step(own.context);
        let step = self.slowness * nominal;
        let is_idle = own.awaiting == 0;
        let head = if is_idle { 0.0 } else { step + self.slowness * pool.work(&own.head) };
        // Overdue: it is slower than it was, and how much so shows before it answers. Unless it waits for room, or is not even there.
        let due = priors::OUTLIER * head + priors::JITTER;
        let is_late = own.awaiting > own.unseen && queue.head_age > due && !queue.is_full();
        let lag = if is_late { queue.head_age / due } else { 1.0 };
        let in_a_step = 1.0 + float(others.tokens) * (1.0 / priors::STEP_TOKENS as f64);
        let steps = fast_min(float(own.awaiting) + queue.foreign.waiting, in_a_step);
        let ahead = self.slowness * (steps * nominal + pool.work(&others));
        let wait = fast_max(lag * ahead - fast_min(queue.head_age, lag * head), 0.0);
        let prefill = lag * self.slowness * pool.work(&work);
        // Prompts are computed while they wait for places: the slower of the two is what counts.
        let in_place = pool.answers.output * self.step(own.context) + prefill;
        let room_wait = fast_max(slot_wait(queue, in_place), queue.lacking * in_place);
        let slot_wait = fast_max(room_wait - wait, 0.0);
        let places = queue.batch_limit.filter(|limit| *limit > 0);
        let own_wait = self.own_wait(pool, queue, Served { lag, head, in_place });
        Terms {
            ahead: Tokens(others.tokens),
            work,
            pace: lag * self.slowness,
            wait: wait + slot_wait,
            prefill,
            slot_wait,
            own_wait,
            turn: fast_max(prefill, places.map_or(step, |limit| in_place / float(limit))),
            base: lag * step + self.way(wait + slot_wait),
            ..Terms::default()
        }
    }

    /// Seconds of the way that a wait does not hide. A request is on its way while others are computed; but they are on theirs as
    /// well, and by chance some arrive with it: so even a short wait costs something, and equal replicas far away share their load.
    #[inline]
    fn way(&self, wait: f64) -> f64 {
        let open = fast_max(self.round_trip - 0.5 * wait, 0.0);
        if open > 0.0 { open * open / self.round_trip } else { 0.0 }
    }

    /// See [`Terms::own_wait`]. What others sent cannot be ordered here, and who waits behind it in the gateway loses its turn to them:
    /// gateways that each keep a part of their own in the engine's queue have equal turns there.
    #[inline]
    fn own_wait(&self, pool: &PoolView, queue: &Queue<'_>, served: Served) -> f64 {
        let own = queue.own;
        let sent = own.awaiting.saturating_sub(own.followed);
        // What is not in the engine's queue need not be waited for.
        let queued = float(own.awaiting.saturating_sub(own.unseen)) / fast_max(float(own.awaiting), 1.0);
        let awaiting = queued * float(sent);
        if awaiting * prices::FOREIGN_PART <= queue.foreign.waiting {
            return 0.0;
        }
        let work = own.waiting - own.followed_waiting;
        let Served { lag, head, in_place } = served;
        let places = queue.batch_limit.filter(|limit| *limit > 0 && queue.is_full());
        let per_place = places.map_or(0.0, |limit| in_place / float(limit));
        let in_a_step = 1.0 + float(work.tokens) * (1.0 / priors::STEP_TOKENS as f64);
        let steps = fast_min(awaiting, in_a_step) * pool.step(own.context);
        // The head may be another gateway's: then nothing of ours is begun.
        let begun = if own.followed == 0 { fast_min(queue.head_age, lag * head) } else { 0.0 };
        let ahead = lag * self.slowness * (steps + queued * pool.work(&work)) - begun;
        fast_max(fast_max(ahead, awaiting * per_place), 0.0)
    }

    /// Predicted time between two tokens of a stream, with so many tokens in the context of all of them.
    pub fn itl(&self, context: u64) -> Duration {
        span(self.step(context))
    }

    /// Seconds of a step there, undisturbed.
    #[inline]
    pub(crate) fn step(&self, context: u64) -> f64 {
        dot(&self.step, &[1.0, float(context) * (1.0 / PER_CONTEXT)])
    }

    /// Seconds that a sequence with so much context adds to each step there. Its token costs about what one of a prompt does:
    /// both pass through the model once.
    #[inline]
    pub(crate) fn sequence(&self, pool: &PoolView, context: f64) -> f64 {
        let [_, per_context] = self.step;
        per_context * context * (1.0 / PER_CONTEXT) + self.slowness * pool.tokens(1.0)
    }
}

/// A full batch gives a place free every `in_place / limit`; whoever stands further back waits for more.
fn slot_wait(queue: &Queue<'_>, in_place: f64) -> f64 {
    let Some(limit) = queue.batch_limit.filter(|limit| *limit > 0) else { return 0.0 };
    let (present, limit) = (float(queue.own.inflight) + queue.foreign.requests, float(limit));
    fast_max(present + 1.0 - limit, 0.0) * in_place / limit
}

/// How fast a replica serves what is there.
#[derive(Clone, Copy)]
struct Served {
    /// By how much it is overdue, 1 if it is not.
    lag: f64,
    /// Seconds that its first step takes.
    head: f64,
    /// Seconds for which a request has a place in its batch.
    in_place: f64,
}

/// How many causes a prefill's time has.
pub(super) const CAUSES: usize = 4;
// Units in which the causes are of one order: then rates are found in a few rounds.
pub(super) const PER_CONTEXT: f64 = 1e5;
const PER_TOKENS: f64 = 1e3;
const PER_ATTENTION: f64 = 1e8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::routing::float::MAX_SPAN;

    fn pool() -> PoolView {
        PoolView::new(
            &[0.02, 0.0, 1.0, 0.0],
            Curve::default(),
            Answers { output: 200.0, goes_on: 1.0 },
            100.0,
        )
    }

    fn estimate() -> Estimate {
        Estimate { slowness: 1.0, round_trip: 0.01, step: [0.02, 0.01] }
    }

    fn own(inflight: u64, waiting_tokens: u64) -> LoadView {
        let waiting = Work::of(Tokens(waiting_tokens), Tokens(0));
        let head_since = Stamp::default();
        LoadView { inflight, awaiting: inflight, waiting, head: waiting, head_since, ..LoadView::default() }
    }

    fn ttft_ms(own: &LoadView, foreign: &Foreign, head_age: f64, limit: Option<u64>) -> u128 {
        let queue = Queue { own, foreign, batch_limit: limit, lacking: 0.0, head_age };
        let terms = estimate().terms(&pool(), &queue, Work::of(Tokens(30), Tokens(0)));
        (terms.ttft() + Duration::from_micros(1)).as_millis()
    }

    #[test]
    fn work_ahead_own_work_and_a_full_batch_add_up() {
        let none = Foreign::default();
        let others = Foreign { requests: 6.0, waiting: 2.0 };
        let cases = [
            ("idle", own(0, 0), none, 0.0, Some(8), 60),
            ("behind our own prompt", own(1, 500), none, 0.0, Some(8), 20 + 500 + 50),
            ("of which half is done", own(1, 500), none, 0.26, Some(8), 260 + 50),
            ("behind other gateways' too", own(1, 500), others, 0.0, Some(8), 20 + 3 + 700 + 50),
            ("two wait for one of eight places", own(3, 0), others, 0.0, Some(8), 50 + 1007),
            ("no limit known", own(300, 0), none, 0.0, None, 20 + 50),
        ];
        for (name, own, foreign, head_age, limit, expected) in cases {
            assert_eq!(ttft_ms(&own, &foreign, head_age, limit), expected, "{name}");
        }
    }

    #[test]
    fn what_waits_far_away_costs_something_before_it_is_as_long_as_the_way() {
        let seconds = |wait| wait + Estimate { round_trip: 0.1, ..estimate() }.way(wait);
        let waits = [0.0, 0.02, 0.05, 0.1, 0.2].map(seconds);
        assert!(waits.is_sorted_by(|less, more| less < more), "equal replicas share the load: {waits:?}");
        assert!((waits[0] - 0.1).abs() < 1e-9 && waits[2] < 0.11, "most of it passes on the way: {waits:?}");
        assert!((seconds(0.3) - 0.3).abs() < 1e-9, "what is beyond hides the way");
    }

    #[test]
    fn a_replica_that_is_overdue_is_taken_for_slow_before_it_answers() {
        let busy = own(2, 500);
        let on_time = ttft_ms(&busy, &Foreign::default(), 0.5, None);
        let overdue = ttft_ms(&busy, &Foreign::default(), 5.0, None);
        assert!(on_time < 100 && overdue > 200, "{on_time} ms, {overdue} ms");
        let hung = ttft_ms(&busy, &Foreign::default(), 500.0, None);
        assert!(hung > 50 * overdue && hung < MAX_SPAN.as_millis(), "{hung} ms");
    }

    #[test]
    fn only_our_own_prompts_are_waited_for_and_only_while_others_leave_us_our_part() {
        let own_wait = |own: &LoadView, waiting: f64, limit| {
            let foreign = Foreign { requests: waiting, waiting };
            let queue = Queue { own, foreign: &foreign, batch_limit: limit, lacking: 0.0, head_age: 0.0 };
            estimate().terms(&pool(), &queue, Work::default()).own_wait
        };
        let busy = LoadView { head_since: Stamp::from_nanos(1), ..own(2, 500) };
        assert_eq!(own_wait(&own(0, 0), 900.0, Some(8)), 0.0, "nothing of ours waits there");
        assert!((own_wait(&busy, 0.0, None) - 0.522).abs() < 0.01, "{}", own_wait(&busy, 0.0, None));
        assert_eq!(own_wait(&busy, 2.0, None), own_wait(&busy, 0.0, None), "others have less waiting");
        assert_eq!(own_wait(&busy, 40.0, None), 0.0, "others have eight times as much waiting");
        assert!(own_wait(&busy, 0.0, Some(2)) > 3.9, "two wait for two places of four seconds");
    }

    #[test]
    fn tokens_take_longer_in_a_full_context() {
        let itl = [0, 100_000, 300_000].map(|context| estimate().itl(context).as_millis());
        assert_eq!(itl, [20, 30, 50]);
    }

    #[test]
    fn absurd_work_is_an_hour_not_a_panic() {
        let terms = Terms { wait: f64::INFINITY, ..Terms::default() };
        assert_eq!(terms.ttft(), MAX_SPAN);
        assert_eq!(span(f64::NAN), Duration::ZERO);
    }
}
