//! What a replica has of ours, one by one: prompts that wait for their first token in the order in which they were sent, and
//! the streams that run.
//!
//! The engine computes prompts first come first served, so the time between two first tokens is what the second prompt
//! took: rates can be learned from that without knowing how long anybody waited. First tokens that come in one step of
//! the engine come together and are one sample. How much of a prompt was computed, an answer tells at its end only: after a
//! restart of the gateway, or beside another one, caches hold what nobody here knows of, and an engine that found it there would
//! seem ten times as fast as it is. So samples of a fast engine wait for the ends of their answers. Bounded by the requests in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::Placement;
use super::concurrency::{Concurrency, Shown};
use crate::clock::{AtomicStamp, Stamp};
use crate::routing::float::span;
use crate::routing::hazard::lengths::Survival;
use crate::routing::hazard::{Curve, Running};
use crate::routing::tuning::{memories, priors};
use crate::routing::work::Work;

/// How far a stream is, in content events of one of its choices: written by the stream at every event, read when somebody wants to
/// know.
#[derive(Debug, Default)]
pub(super) struct Progress {
    events: AtomicU64,
    at: AtomicStamp,
}

impl Progress {
    pub(super) fn update(&self, events: u64, at: Stamp) {
        self.events.store(events, Ordering::Relaxed);
        self.at.store(at);
    }
}

/// Prompts that an engine computed, and how long it took: what rates are learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingSample {
    /// What was computed.
    pub work: Work,
    /// How long the engine was at it.
    pub busy: Duration,
    /// Whether nothing was being computed when it was sent: then the way there is part of the time.
    pub was_idle: bool,
    /// Tokens that were in the context of running streams meanwhile.
    pub context: u64,
    /// When it was done.
    pub at: Stamp,
}

/// How long a stream's tokens took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds per token, over a few tokens.
    pub per_token: f64,
    /// Tokens in the context of all running streams.
    pub context: u64,
}

/// What is being computed: the first prompt, and those that went into one step of the engine with it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Head {
    pub(super) work: Work,
    pub(super) since: Stamp,
}

/// Prompts that are computed.
pub(super) type Computed = SmallVec<[Placement; 2]>;

/// Inputs of a refresh.
pub(in crate::routing) struct Known<'a> {
    /// Seconds that a token takes undisturbed.
    pub(in crate::routing) step: f32,
    /// Tokens that a content event brings on average.
    pub(in crate::routing) per_event: f64,
    /// How long answers are.
    pub(in crate::routing) survival: &'a Survival,
    /// Seconds that a prompt takes.
    pub(in crate::routing) seconds: &'a dyn Fn(&Work) -> f64,
}

/// What a refresh finds.
#[derive(Debug, Default)]
pub struct Refreshed {
    pub(super) computed: Computed,
    /// Paces of streams since they were last asked.
    pub paces: SmallVec<[Pace; 8]>,
    /// What was learned of the engine's speed.
    pub samples: SmallVec<[TimingSample; 4]>,
}

#[derive(Debug, Default)]
pub(super) struct InflightLedger {
    next_id: u64,
    waiting: VecDeque<Waiting>,
    /// Overdue ones that are ahead of no other: see [`Self::pass_overdue`].
    overtaken: Vec<Waiting>,
    /// Waiting ones with a lower id are not among the requests on the engine's page.
    unseen_below: u64,
    streams: Vec<Stream>,
    /// Events and seconds behind first tokens of streams that ended too early for a pace of their own.
    short: (u64, f64),
    /// Those that the engine has finished, by its page: their clients have yet to read them.
    pub(super) unread: u32,
    /// Tokens in the context of running streams, as far as they had come at the last refresh.
    pub(super) context: u64,
    /// Those of them that were cached.
    cached: u64,
    last_first_token: Stamp,
    /// The head of the queue left without a token.
    is_disturbed: bool,
    /// Together in one step of the engine; may still grow.
    group: Option<Group>,
    /// Of earlier steps: they wait for what their answers tell.
    unconfirmed: Vec<Group>,
    /// Streams with a bound that no curve knows yet.
    pub(super) fresh: u32,
    /// Answers without a stream that are taken to be computed and have not ended.
    unary: u32,
    /// What was seen of how many run at once.
    pub(super) concurrency: Concurrency,
    /// When a place in a full batch last came free.
    last_free: Stamp,
    /// When one of as many as ever ran at once ended last, while it is not known how many can.
    last_end_at_peak: Stamp,
}

/// Prompts that were computed in one step of the engine.
#[derive(Debug)]
struct Group {
    sample: TimingSample,
    /// Those whose answers go on.
    open: SmallVec<[Waiting; 2]>,
    /// One of them had media, and ended without telling how many tokens they were.
    is_unsized: bool,
    /// How long it took since a stream ended which may have held its place.
    since_end: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    placement: Placement,
    /// A prompt that was sent after it had its first token before.
    is_overtaken: bool,
}

#[derive(Debug)]
struct Stream {
    id: u64,
    progress: Arc<Progress>,
    first: Stamp,
    prompt: u64,
    /// Tokens of it that were cached.
    cached: u64,
    /// Seconds per token; infinite without a bound.
    bound: f32,
    /// Content events when it was last refreshed, ...
    events: u64,
    /// ... and tokens: its share of the context beside the prompt.
    counted: u64,
    /// Events and when, at the last pace.
    asked: (u64, u64),
    /// It has a bound and began after the last refresh: no curve knows it.
    is_fresh: bool,
    /// Another gateway has it: how far it is, is estimated.
    is_followed: bool,
    /// One of the unread.
    is_unread: bool,
}

impl InflightLedger {
    pub(super) fn enter(&mut self, placement: &Placement) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.push_back(Waiting { id, placement: *placement, is_overtaken: false });
        id
    }

    /// How many have entered.
    pub(super) fn entered(&self) -> u64 {
        self.next_id
    }

    /// Whether none has entered since this one.
    pub(super) fn is_last(&self, id: u64) -> bool {
        self.next_id == id + 1
    }

    /// What is being computed at the head of the queue, and since when.
    pub(super) fn head(&self) -> Head {
        let mut queue = self.queue();
        let Some(first) = queue.next() else { return Head::default() };
        let since = first.placement.at.max(self.last_first_token);
        let mut work = first.placement.work;
        // An engine takes what waits when a step begins into that step, as much as fits.
        for next in queue.take_while(|next| next.placement.at <= since) {
            if work.tokens.saturating_add(next.placement.work.tokens) > priors::STEP_TOKENS {
                break;
            }
            work += next.placement.work;
        }
        Head { work, since }
    }

    /// Since when the request of this gateway that is longest without a token has been so.
    pub(super) fn quiet_since(&self) -> Option<Stamp> {
        let waiting = self.waiting.iter().chain(&self.overtaken);
        let waiting = waiting.filter(|one| !one.placement.is_followed).map(|one| one.placement.at);
        let last = |stream: &Stream| stream.first.max(stream.progress.at.load());
        waiting.chain(self.streams.iter().filter(|stream| !stream.is_followed).map(last)).min()
    }

    /// Those whose prompts are computed here, in the order in which they were sent.
    fn queue(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().filter(|waiting| !waiting.placement.is_elsewhere)
    }

    /// A prompt has its first token. Returns whose prompts are computed: its own, and those of answers without a stream that
    /// were sent before it.
    pub(super) fn first_token(&mut self, id: u64, now: Stamp, progress: &Arc<Progress>) -> Computed {
        let context = self.context;
        let mut computed = Computed::new();
        let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
            if let Some(Waiting { placement, .. }) = self.take_overtaken(id) {
                // The engine was at it, and not at what is behind it in the queue.
                self.is_disturbed = true;
                self.last_first_token = self.last_first_token.max(now);
                self.begin(id, now, progress, &placement);
            }
            return computed;
        };
        if let Some(placement) = self.waiting.get(at).map(|own| own.placement).filter(|own| own.is_elsewhere)
        {
            // Its KV came from elsewhere: the engine computed nothing for it.
            self.waiting.remove(at);
            self.begin(id, now, progress, &placement);
            return smallvec![placement];
        }
        let is_followed = self.waiting.get(at).is_some_and(|own| own.placement.is_followed);
        // What others sent before it was computed before it, though its first token is not known yet.
        let is_behind_others =
            self.waiting.iter().take(at).any(|one| one.placement.is_followed && one.placement.is_stream);
        let was_disturbed = std::mem::take(&mut self.is_disturbed) || is_behind_others;
        let mut ahead = 0;
        self.waiting.retain_mut(|waiting| {
            let is_computed = ahead <= at && (waiting.id == id || !waiting.placement.is_stream);
            waiting.is_overtaken |= ahead < at;
            ahead += 1;
            if is_computed {
                computed.push(waiting.placement);
            }
            !is_computed
        });
        let Some(placement) = computed.last().copied() else { return computed };
        if computed.len() > 1 {
            self.unary += u32::try_from(computed.len() - 1).unwrap_or(u32::MAX);
            self.concurrency.began(self.running());
        }
        // An engine that runs all it can turns to a prompt when another sequence ends.
        let since = placement.at.max(self.last_first_token).max(self.last_free);
        let own = Waiting { id, placement, is_overtaken: false };
        match &mut self.group {
            // The same step: the engine computed them side by side.
            Some(Group { sample, open, since_end, .. })
                if !is_followed && now.since(sample.at) <= reach(sample) && placement.at <= sample.at =>
            {
                sample.work += placement.work;
                sample.busy += now.since(sample.at);
                *since_end = since_end.map(|span| span + now.since(sample.at));
                sample.at = sample.at.max(now);
                open.push(own);
            }
            group => {
                self.unconfirmed.extend(group.take());
                let sample = TimingSample {
                    work: placement.work,
                    busy: now.since(since),
                    was_idle: placement.at >= self.last_first_token,
                    context,
                    at: now,
                };
                let is_timed = !is_followed && !placement.is_untimed;
                let is_sample = computed.len() == 1 && !was_disturbed && is_timed;
                let since_end = (self.last_end_at_peak > since).then(|| now.since(self.last_end_at_peak));
                *group =
                    is_sample.then(|| Group { sample, open: smallvec![own], is_unsized: false, since_end });
            }
        }
        self.last_first_token = self.last_first_token.max(now);
        self.begin(id, now, progress, &placement);
        computed
    }

    /// A stream begins.
    fn begin(&mut self, id: u64, now: Stamp, progress: &Arc<Progress>, placement: &Placement) {
        progress.update(1, now);
        self.fresh += u32::from(placement.tpot.is_some());
        // What comes from another pool's engine takes memory, whatever was cached there.
        let own = if placement.is_elsewhere { placement.prompt.0 } else { placement.work.tokens };
        let cached = placement.prompt.0.saturating_sub(own);
        self.streams.push(Stream {
            id,
            progress: Arc::clone(progress),
            first: now,
            prompt: placement.prompt.0,
            cached,
            bound: placement.tpot.map_or(f32::INFINITY, |bound| bound.as_secs_f32()),
            events: 1,
            counted: 1,
            asked: (1, now.as_nanos()),
            is_fresh: placement.tpot.is_some(),
            is_followed: placement.is_followed,
            is_unread: false,
        });
        self.context = self.context.saturating_add(placement.prompt.0).saturating_add(1);
        self.cached = self.cached.saturating_add(cached);
        self.concurrency.began(self.running());
        self.note_rest();
    }

    /// An answer told what was computed of its prompt.
    pub(super) fn computed(&mut self, id: u64, work: Work) {
        for Group { sample, open, .. } in self.unconfirmed.iter_mut().chain(&mut self.group) {
            if let Some(at) = open.iter().position(|one| one.id == id) {
                let placement = open.swap_remove(at).placement;
                sample.work = sample.work - placement.work + work;
                return;
            }
        }
    }

    /// How long a prompt that got no token has kept the engine busy: its sample, if it is the one being computed.
    pub(super) fn overdue(&self, id: u64, now: Stamp) -> Option<TimingSample> {
        self.queue().next().filter(|first| first.id == id)?;
        let head = self.head();
        Some(TimingSample {
            work: head.work,
            busy: now.since(head.since),
            was_idle: false,
            context: self.context,
            at: now,
        })
    }

    /// A request waits no longer, whatever became of it.
    pub(super) fn leave(&mut self, id: u64) -> Option<Placement> {
        if self.take_overtaken(id).is_some() {
            return None;
        }
        let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
            self.unary = self.unary.saturating_sub(1);
            return None;
        };
        // When the engine turned to the next one is not known then.
        let was_first = self.queue().next().is_some_and(|first| first.id == id);
        self.is_disturbed |= was_first;
        let gone = self.waiting.remove(at)?.placement;
        self.note_rest();
        Some(gone)
    }

    fn take_overtaken(&mut self, id: u64) -> Option<Waiting> {
        let at = self.overtaken.iter().position(|one| one.id == id)?;
        Some(self.overtaken.swap_remove(at))
    }

    /// The engine's page, read `now`, shows so many requests that run and that wait; the one before it was read at `since`. What was sent
    /// before that and is not answered must be among them: as many of the oldest prompts as are missing are not in the engine's queue.
    pub(super) fn counted(&mut self, shown: Shown, since: Stamp, now: Stamp) {
        let ours = self.waiting.len() + self.running() as usize;
        let next = now.after(now.since(since).clamp(memories::RECENT, memories::STANDING));
        self.concurrency.paged(shown, ours, next);
        let shown = shown.running as usize + shown.waiting as usize;
        let runs = |stream: &&Stream| {
            !stream.is_followed && stream.first < since && stream.progress.at.load() >= since
        };
        let sent = self.waiting.iter().take_while(|one| one.placement.at < since).count();
        let running = self.streams.iter().filter(runs).count();
        let missing = (running + sent).saturating_sub(shown).min(sent);
        let stands = |stream: &Stream| {
            !stream.is_followed && stream.first < since && stream.progress.at.load() < since
        };
        // Engines do not wait for readers: of the streams that stand still those that the page lacks are over there.
        let standing = self.streams.iter().filter(|stream| stands(stream)).count();
        let mut unread = standing.saturating_sub(shown.saturating_sub(running + sent - missing));
        self.unread = u32::try_from(unread).unwrap_or(u32::MAX);
        for stream in &mut self.streams {
            stream.is_unread = unread > 0 && stands(stream);
            unread -= usize::from(stream.is_unread);
        }
        if missing > 0 {
            let below = self.waiting.get(missing).map_or(self.next_id, |one| one.id);
            self.unseen_below = self.unseen_below.max(below);
        } else if shown >= ours {
            self.unseen_below = 0;
        }
    }

    /// Waiting ones that are not in the engine's queue by its page.
    pub(super) fn unseen(&self) -> u64 {
        self.waiting.partition_point(|one| one.id < self.unseen_below) as u64
    }

    /// A stream ended.
    pub(super) fn end(&mut self, id: u64) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        for group in self.unconfirmed.iter_mut().chain(&mut self.group) {
            group.is_unsized |= group.open.iter().any(|one| one.id == id && one.placement.has_media);
            group.open.retain(|one| one.id != id);
        }
        let running = self.running();
        let gone = self.streams.swap_remove(at);
        self.fresh -= u32::from(gone.is_fresh);
        self.context = self.context.saturating_sub(gone.prompt.saturating_add(gone.counted));
        self.unread = self.unread.saturating_sub(u32::from(gone.is_unread));
        self.cached = self.cached.saturating_sub(gone.cached);
        let end = gone.progress.at.load();
        let events = gone.progress.events.load(Ordering::Relaxed);
        if !gone.is_followed && (2..=memories::PACE_EVENTS).contains(&events) {
            self.short.0 += events - 1;
            self.short.1 += end.since(gone.first).as_secs_f64();
        }
        // What others have passed waits for something else than a place. What ends with its first token was never decoded and held none.
        let is_any_waiting = self.waiting.iter().any(|one| !one.is_overtaken);
        if is_any_waiting && !gone.is_unread && end.since(gone.first) > memories::ONE_STEP {
            let is_unqueued = self.concurrency.is_unqueued(end);
            match self.concurrency.limit() {
                0 if running >= self.concurrency.peak && !is_unqueued => self.last_end_at_peak = end,
                limit if limit > 0 && running >= limit => self.last_free = end,
                _ => {}
            }
            self.concurrency.ended(running, end);
        }
    }

    fn running(&self) -> u32 {
        let streams = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        streams.saturating_sub(self.unread).saturating_add(self.unary)
    }

    fn note_rest(&mut self) {
        if self.waiting.iter().all(|one| one.is_overtaken) {
            self.concurrency.rested();
        }
    }

    /// Tokens in the context of running streams that were not cached.
    pub(super) fn held(&self) -> u64 {
        self.context.saturating_sub(self.cached)
    }

    /// Asks every stream how far it is: the harm that stalls would do, and what was learned meanwhile.
    pub(super) fn refresh(&mut self, now: Stamp, known: &Known<'_>) -> (Curve, Refreshed) {
        let mut curve = Curve::default();
        let mut found = Refreshed { computed: self.take_unary(now, known.seconds), ..Refreshed::default() };
        self.pass_overdue(now, known.seconds, &mut found.computed);
        self.estimate_followed(now, known);
        let context = self.count_context(known.per_event);
        for stream in &mut self.streams {
            let at = stream.progress.at.load().as_nanos();
            let (events_before, at_before) = stream.asked;
            stream.is_fresh = false;
            if !stream.is_followed && stream.events >= events_before + memories::PACE_EVENTS && at > at_before
            {
                let tokens = (stream.events - events_before) as f64 * known.per_event;
                stream.asked = (stream.events, at);
                found.paces.push(Pace { per_token: (at - at_before) as f64 * 1e-9 / tokens, context });
            }
            if stream.bound.is_finite() {
                let elapsed = now.since(stream.first).as_secs_f32();
                let tokens = stream.counted.max(1) as f32;
                let running = Running { tokens, elapsed, bound: stream.bound, step: known.step };
                curve.add(&running, known.survival);
            }
        }
        let (events, seconds) = self.short;
        if events >= memories::PACE_EVENTS {
            self.short = Default::default();
            let per_token = seconds / (events as f64 * known.per_event);
            found.paces.push(Pace { per_token, context });
        }
        self.fresh = 0;
        found.samples = self.take_samples(now, known.seconds);
        (curve, found)
    }

    /// Lessons of which nothing more will be told, or that have waited for it long enough. What took longer than expected is learned at
    /// once: no cache makes an engine slower. Of media nobody knows how much there was to compute until the answer tells.
    fn take_samples(&mut self, now: Stamp, seconds: &dyn Fn(&Work) -> f64) -> SmallVec<[TimingSample; 4]> {
        let is_idle = self.streams.is_empty() && self.waiting.is_empty();
        let is_over = |group: &TimingSample| is_idle || now.since(group.at) > reach(group);
        self.unconfirmed.extend(self.group.take_if(|group| is_over(&group.sample)));
        for group in &mut self.unconfirmed {
            let Some(since_end) = group.since_end.take() else { continue };
            let due = span(priors::OUTLIER * seconds(&group.sample.work) + priors::JITTER);
            let was_late = group.sample.busy > due;
            self.concurrency.handed_over(was_late && since_end <= due);
            if was_late {
                // It may have waited for that place: only what it took from then on was its work.
                group.sample.busy = since_end;
            }
        }
        let is_unsized =
            |group: &Group| group.is_unsized || group.open.iter().any(|one| one.placement.has_media);
        let is_told = |group: &mut Group| {
            let is_slow = group.sample.busy.as_secs_f64() >= seconds(&group.sample.work);
            let is_over = group.open.is_empty() || now.since(group.sample.at) > memories::RECENT;
            is_over || is_slow && !is_unsized(group)
        };
        let snapshot = self.unconfirmed.extract_if(.., is_told);
        snapshot.filter(|group| !is_unsized(group)).map(|group| group.sample).collect()
    }

    /// Streams of others are taken to come along undisturbed.
    fn estimate_followed(&mut self, now: Stamp, known: &Known<'_>) {
        let seconds_per_event = f64::from(known.step) * known.per_event;
        for stream in self.streams.iter().filter(|stream| stream.is_followed && seconds_per_event > 0.0) {
            let events = now.since(stream.first).as_secs_f64() / seconds_per_event;
            stream.progress.update(1 + (events as u64).min(MAX_ESTIMATED_EVENTS), now);
        }
    }

    /// Tokens in the context of running streams by now.
    fn count_context(&mut self, per_event: f64) -> u64 {
        let mut context: u64 = 0;
        for stream in &mut self.streams {
            stream.events = stream.progress.events.load(Ordering::Relaxed);
            stream.counted = (stream.events as f64 * per_event) as u64;
            // What the engine has finished holds nothing beside what it had cached.
            let held =
                if stream.is_unread { stream.cached } else { stream.prompt.saturating_add(stream.counted) };
            context = context.saturating_add(held);
        }
        self.context = context;
        context
    }

    /// Engines begin on prompts in the order in which they came. One that others have overtaken, or that their page does not show, and
    /// that is overdue is lost or held back there for a reason of its own: no other one waits for it.
    fn pass_overdue(&mut self, now: Stamp, seconds: &dyn Fn(&Work) -> f64, passed: &mut Computed) {
        let (overtaken, unseen_below) = (&mut self.overtaken, self.unseen_below);
        self.waiting.retain(|one| {
            let due = || span(priors::OUTLIER * seconds(&one.placement.work)).max(memories::RECENT);
            let is_passed = (one.is_overtaken || one.id < unseen_below)
                && !one.placement.is_elsewhere
                && now.since(one.placement.at) > due();
            if is_passed {
                passed.push(one.placement);
                overtaken.push(*one);
            }
            !is_passed
        });
        self.note_rest();
    }

    /// An answer without a stream shows nothing until its end: its prompt is taken to be computed when its time is over.
    fn take_unary(&mut self, now: Stamp, seconds: &dyn Fn(&Work) -> f64) -> Computed {
        let mut computed = Computed::new();
        while let Some(head) = self.waiting.front().filter(|head| !head.placement.is_stream) {
            let since = head.placement.at.max(self.last_first_token);
            let due = since.after(span(seconds(&head.placement.work)));
            if due > now {
                break;
            }
            self.last_first_token = due;
            self.is_disturbed = true;
            computed.extend(self.waiting.pop_front().map(|head| head.placement));
            self.unary += 1;
            self.concurrency.began(self.running());
        }
        self.note_rest();
        computed
    }
}

/// A long answer.
const MAX_ESTIMATED_EVENTS: u64 = 32_768;

/// How long after the last of its first tokens another one still belongs to a step: too little to have been computed by itself.
fn reach(group: &TimingSample) -> Duration {
    memories::ONE_STEP.max(group.busy / 20)
}
