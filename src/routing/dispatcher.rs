//! The one place where a request gets its replica: candidates → judge → reserve → insert → learn.
//!
//! A [`Dispatcher`] is what one pool knows: which replica caches what, and how fast each is. The gateway, `replay`, the
//! scenario tests and the decision bench call it alike; they differ in where time and targets come from. A decision is
//! two steps, because between them the route may hold the request back (`crate::admission`): [`Dispatcher::judge`] weighs,
//! [`Judged::assign`] reserves the load and notes the prompt at once, so that the next decision sees this one. What came of
//! it is learned through the [`Assignment`]. [`Dispatcher::refresh`] is due every [`super::REFRESH_EVERY`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use smallvec::SmallVec;

use super::cache_counters::CacheReport;
use super::float::span;
use super::notice::{Announced, Died, Event, Notice, Outbox, Placed, Prefix, Usage, place};
use super::prefix_index::{PrefixIndex, capacity_of};
use super::query::{Aim, Ask, Sampling};
use super::reports::{Pending, Reports};
use super::target::{EngineLimits, Target};
use super::verdict::{Verdict, judge};
use super::{
    Candidate, Decision, LoadGuard, Pace, Placement, Policy, PoolModel, Prompt, Query, Quote, Terms,
    TimingSample, Waiting, Work, cheapest, longest,
};
use crate::clock::{AtomicStamp, Stamp};
use crate::record::ExpectedWait;
use crate::routing::tuning::{memories, prices};
use crate::units::Tokens;

/// What one pool knows and learns.
#[derive(Debug)]
pub struct Dispatcher {
    /// Which replica caches which prefix.
    pub index: PrefixIndex,
    /// How fast each replica is.
    pub model: PoolModel,
    /// When a replica of the pool last answered.
    last_answer: AtomicStamp,
    /// When a request was last sent to one.
    last_sent: AtomicStamp,
    /// Whether answers name their cached tokens.
    answers_tell_cached: AtomicBool,
    /// Where decisions are published for other gateways, and the pool's name there.
    outbox: OnceLock<(Arc<Outbox>, Box<str>)>,
    /// Where what answers counted is published for who follows KV events.
    pub reports: ArcSwapOption<Reports>,
}

/// A decision that has not been acted on.
pub struct Judged<'a> {
    /// What its pool knows.
    pub dispatcher: &'a Arc<Dispatcher>,
    /// The request.
    pub query: Query<'a>,
    /// Whether the request was tried elsewhere, or nothing is known by which it could be held back.
    pub bypasses_admission: bool,
    /// Every target that was weighed.
    pub candidates: Vec<Candidate<'a>>,
    /// What should be done with the request now.
    pub verdict: Verdict,
}

impl Dispatcher {
    /// For a pool of at most `slots` replicas, of which nothing is known.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            index: PrefixIndex::new(slots),
            model: PoolModel::new(slots),
            last_answer: AtomicStamp::default(),
            last_sent: AtomicStamp::default(),
            answers_tell_cached: AtomicBool::new(false),
            outbox: OnceLock::new(),
            reports: ArcSwapOption::empty(),
        })
    }

    /// Weighs `targets`, those that may take the request. `None` where there is none, or all were tried.
    pub fn judge<'a>(
        self: &'a Arc<Self>,
        policy: &dyn Policy,
        ask: &Ask<'a>,
        limits: &EngineLimits,
        now: Stamp,
        targets: impl Iterator<Item = &'a Target>,
    ) -> Option<Judged<'a>> {
        let mut candidates = Vec::with_capacity(targets.size_hint().1.unwrap_or_default());
        let lacks = |target: &Target| ask.lacks_adapter.is_some_and(|slots| slots.contains(target.slot));
        candidates.extend(
            targets.map(|target| Candidate {
                lacks_adapter: lacks(target),
                ..Candidate::of(target, limits, now)
            }),
        );
        // What no engine can ever hold waits for no room: its engine is to refuse it.
        if candidates.iter().all(|one| one.memory.is_some_and(|memory| memory.is_below(ask.prompt.tokens))) {
            candidates.iter_mut().for_each(|one| one.memory = None);
        }
        let is_open = |one: &Candidate<'_>| !ask.tried.contains(one.slot) && one.may_run_more();
        if ask.queues_late && candidates.iter().any(is_open) {
            candidates.retain(|one| is_open(one));
        }
        // Without prices a policy would go on where the last transfer was lost.
        if let Some(elsewhere) = &ask.elsewhere {
            let is_linked = |one: &Candidate<'_>| !elsewhere.is_avoided(one.identity);
            if candidates.iter().any(|one| is_linked(one) && !ask.tried.contains(one.slot)) {
                candidates.retain(is_linked);
            }
        }
        // What nobody has measured is no reason to wait; and a request that was tried elsewhere has waited enough.
        let bypasses_admission = !ask.tried.is_empty() || !self.model.pool.is_taught();
        let patience = if bypasses_admission { 0.0 } else { prices::PATIENCE };
        let aim =
            Aim { now, waited: ask.waited, slo: ask.slo, patience, has_answers: self.silence(now).is_some() };
        // Prompts that begin alike have nothing to gain from one another.
        let caches_nothing = candidates.iter().all(|one| self.index.credit(one.slot) <= 0.0);
        let chain = if caches_nothing { &[] } else { ask.prompt.chain };
        let ask = Ask { prompt: Prompt { chain, ..ask.prompt }, ..*ask };
        let query = Query { ask, aim, model: &self.model, index: &self.index };
        let verdict = judge(policy, &query, &mut candidates)?;
        Some(Judged { dispatcher: self, query, bypasses_admission, candidates, verdict })
    }

    /// Asks the streams of every target how far they are and notes the backlog: due every [`super::REFRESH_EVERY`], beside
    /// the request path. `ready` are those of `targets` that take requests.
    pub fn refresh<'t>(
        &self,
        targets: impl Iterator<Item = &'t Target>,
        ready: impl Iterator<Item = &'t Target>,
        limits: &EngineLimits,
        now: Stamp,
    ) {
        let waiting = |target: &Target| Waiting::at(&target.load.view(), &target.foreign(now, limits));
        self.model.backlog.note(now, ready.map(waiting));
        for target in targets {
            self.model.refresh(target.slot, &target.load, now);
        }
    }

    /// By the engine's newest page: the index holds for a target as much as its engine can cache, and what its tiers are known to hold
    /// besides; nothing where caching is off.
    pub fn learn_capacity(&self, target: &Target, bytes_per_token: f64) {
        let page = target.page().unwrap_or_default();
        if page.is_caching_off {
            self.index.set_capacity(target.slot, 0);
        } else if let Some((blocks, tokens)) = page.total_blocks.zip(page.block_tokens) {
            let blocks = blocks.saturating_add(self.index.exact.in_tiers(target.slot));
            self.index.set_capacity(target.slot, capacity_of(blocks, tokens, bytes_per_token));
        }
    }

    /// The same, and by the hit counters of that page its hits are worth what they were worth of late, where answers do not tell.
    pub fn learn_cache(&self, target: &Target, bytes_per_token: f64) {
        self.learn_capacity(target, bytes_per_token);
        if self.answers_tell_cached.load(Ordering::Relaxed) {
            return;
        }
        if let Some(CacheReport { requests, promised, found }) = target.cache_report() {
            for _ in 0..requests.min(u64::from(memories::ENOUGH_ANSWERS)) {
                self.index.reported(target.slot, promised, found);
            }
        }
    }

    /// Publishes every decision for other gateways from now on, under the pool's name.
    pub fn announce(&self, outbox: &Arc<Outbox>, pool: &str) {
        self.outbox.get_or_init(|| (Arc::clone(outbox), pool.into()));
    }

    /// Publishes that a replica died while this request was in flight there.
    pub fn died(&self, target: &Target, request: u64, now: Stamp) {
        if let Some((outbox, pool)) = self.outbox.get() {
            let died = Died { place: place(pool, target.identity), request };
            outbox.publish(Notice { id: 0, at: now, event: Event::Died(died) });
        }
    }

    /// An answer reported its cached tokens, where `hit` were expected.
    pub(super) fn reported_cached(&self, slot: usize, hit: Tokens, cached: Tokens) {
        self.answers_tell_cached.store(true, Ordering::Relaxed);
        self.index.reported(slot, hit, cached);
    }

    /// The engine in `slot` is another process: its cache is empty and its speed unknown.
    pub fn forget(&self, slot: usize) {
        self.index.forget(slot);
        self.model.forget(slot);
    }

    /// A replica gave an answer, or the first token of one.
    pub fn answered(&self, now: Stamp) {
        self.last_answer.store(now);
    }

    /// Mean tokens of the pool's answers.
    pub fn expected_output(&self) -> Tokens {
        Tokens(self.model.pool.view().answers.output as u64)
    }

    /// How long no replica of the pool has answered; `None` where none ever has.
    pub fn silence(&self, now: Stamp) -> Option<Duration> {
        self.last_answer.get().map(|last| now.since(last))
    }
}

impl<'a> Judged<'a> {
    /// What the placement would mean, without any; also where it should be held back: what it does to streams is in its cost.
    pub fn quote(&self) -> Option<Quote> {
        let (Verdict::Place(decision) | Verdict::Hold(decision)) = &self.verdict;
        Some(Quote {
            slot: decision.slot,
            identity: self.candidates.get(decision.at)?.identity,
            ttft: decision.terms.ttft(),
            cost: decision.terms.cost.total(),
            transfer: decision.terms.transfer,
            uncached: self.query.ask.prompt.tokens.saturating_sub(decision.hit),
        })
    }

    /// Whether the policy predicts: only then do candidates have costs to show.
    pub fn predicts(&self) -> bool {
        matches!(self.verdict, Verdict::Place(decision) if decision.predicted_ttft.is_some())
    }

    /// By how much the first token comes later than predicted, one in ten excepted, of a prompt that takes `own` itself; zero while too
    /// little is known.
    pub fn late_by(&self, own: Duration) -> Duration {
        span(self.query.model.pool.ledger.lock().late_by(own.as_secs_f64()).unwrap_or_default())
    }

    /// Whether a replica has room for a request: it is begun on there within `lookahead`.
    pub fn has_room(&self, lookahead: Duration) -> bool {
        self.short_of_work(lookahead).any(Candidate::may_run_more)
    }

    /// Whether replicas would have room if it were known that they run more at once.
    pub fn is_held_back(&self, lookahead: Duration) -> bool {
        let mut short = self.short_of_work(lookahead).peekable();
        short.peek().is_some() && !short.any(Candidate::may_run_more)
    }

    fn short_of_work(&self, lookahead: Duration) -> impl Iterator<Item = &Candidate<'a>> {
        let tried = self.query.ask.tried;
        let is_short = move |one: &Candidate<'_>| one.wait <= lookahead.as_secs_f64();
        self.candidates.iter().filter(move |one| !tried.contains(one.slot) && is_short(one))
    }

    /// Whether a replica has so little of ours left to begin on that it should be sent more: the one that was chosen, or another that
    /// takes its ordinary traffic and has nothing of other gateways. One that is full of theirs has nothing of ours for long, and would
    /// open the way to all others.
    pub fn runs_dry(&self, lookahead: Duration) -> bool {
        let Verdict::Place(decision) = &self.verdict else { return false };
        let is_ours = |one: &Candidate<'_>| one.foreign.requests < 1.0 && one.load.view().followed == 0;
        let is_open = |at: usize, one: &Candidate<'_>| at == decision.at || one.share >= 1.0 && is_ours(one);
        let is_short = |one: &Candidate<'_>| one.own_wait <= lookahead.as_secs_f64();
        self.candidates.iter().enumerate().any(|(at, one)| is_open(at, one) && is_short(one))
    }

    /// A step of the pool's engines with nothing in it: what each step costs beside its tokens.
    pub fn step(&self) -> Duration {
        span(self.dispatcher.model.pool.view().step(0))
    }

    /// How long nothing was sent to any replica of the pool; `None` where nothing ever was.
    pub fn pause(&self) -> Option<Duration> {
        self.dispatcher.last_sent.get().map(|last| self.query.aim.now.since(last))
    }

    /// The candidates that came closest, the cheapest first: what a log can hold of a decision.
    pub fn cheapest(&self) -> SmallVec<[(&Candidate<'a>, Terms); super::MAX_LOGGED]> {
        let Verdict::Place(decision) = &self.verdict else { return SmallVec::new() };
        cheapest(&self.query, &self.candidates, decision)
    }

    /// Whether one of these pools has much of the prompt cached that the chosen replica, which could have it, has not.
    pub fn misses_cache_of<'d>(&self, others: impl Iterator<Item = &'d Dispatcher>) -> bool {
        let Verdict::Place(decision) = &self.verdict else { return false };
        let Some(chosen) = self.candidates.get(decision.at) else { return false };
        let Ask { prompt, elsewhere, .. } = &self.query.ask;
        if elsewhere.is_some() || self.query.index.credit(chosen.slot) <= 0.0 {
            return false;
        }
        let longest = others.map(|other| other.index.longest(prompt.chain)).max().unwrap_or(0);
        let cached = |blocks| prompt.cached(blocks, Tokens(0), chosen.block_tokens).0;
        let lacking = cached(longest).saturating_sub(cached(chosen.blocks));
        lacking > LEAST_FILL.max(prompt.tokens.0 / 10)
    }

    /// How long the first token may take where prompts are computed that one of these pools has cached: what is ahead, and three times its
    /// own prompt, as the fastest pool does it. What hangs teaches its own pool that prompts take so long.
    pub fn longest_fill<'d>(&self, others: impl Iterator<Item = &'d Dispatcher>) -> Duration {
        let Verdict::Place(decision) = &self.verdict else { return Duration::ZERO };
        let alone = Terms { ahead: Tokens(0), ..decision.terms };
        let takes = |dispatcher: &Dispatcher| {
            let usual = |terms| dispatcher.model.usual_wait(terms, false);
            usual(&decision.terms) + LEAST_SLACK.max(2.0 * usual(&alone))
        };
        span(others.map(takes).fold(takes(self.dispatcher), f64::min))
    }

    /// Acts on the decision: reserves the load and notes the prompt. `None` where the verdict is to hold the request.
    pub fn assign(&self) -> Option<Assignment> {
        let Verdict::Place(decision) = self.verdict else { return None };
        let Query { ask, aim, .. } = self.query;
        let Ask { prompt, sampling, turn, is_past_engine, .. } = ask;
        let placement = Placement {
            at: aim.now,
            work: decision.terms.work,
            prompt: prompt.tokens,
            tpot: aim.slo.tpot,
            is_stream: ask.shows_first_token,
            has_media: ask.has_media,
            is_elsewhere: ask.elsewhere.is_some(),
            is_followed: false,
            is_untimed: ask.is_untimed,
            is_past_engine,
        };
        let chosen = self.candidates.get(decision.at)?;
        let (ahead, known) = (chosen.ahead(), chosen.blocks);
        let longest = longest(&prompt, &self.candidates);
        let outbox = self.dispatcher.outbox.get().filter(|_| !is_past_engine);
        let announced = outbox.map(|(outbox, pool)| {
            let prefix = Prefix::of(&prompt, chosen.blocks, longest);
            let placed = Placed { place: place(pool, chosen.identity), prefix, ..Placed::of(&placement) };
            Announced::placed(outbox, placed, aim.now)
        });
        // An engine that fetches the KV of a prompt, or samples it several times, counts otherwise.
        let is_reported = !placement.is_elsewhere && !is_past_engine && sampling.n == 1;
        let reports = if is_reported { self.dispatcher.reports.load_full() } else { None };
        let pending = reports.map(|reports| Box::new(Pending::sent(reports, chosen, &prompt, turn, aim.now)));
        let load = LoadGuard::reserve(chosen.load, placement);
        let mut expected = 0;
        if !is_past_engine {
            self.dispatcher.last_sent.store(aim.now);
            self.dispatcher.index.note_longest(longest, aim.now);
            expected = self.dispatcher.index.expect(decision.slot, &prompt);
        }
        let expected = AtomicU64::new(expected);
        let (dispatcher, computed) = (Arc::clone(self.dispatcher), decision.terms.work);
        Some(Assignment {
            dispatcher,
            decision,
            ahead,
            load,
            sampling,
            computed,
            known,
            expected,
            announced,
            pending,
        })
    }
}

/// Tokens, and a tenth of the prompt: what is lacking less is hardly slower.
const LEAST_FILL: u64 = 128;
/// Seconds: gateways, networks and engines pause for longer than a short prompt takes.
const LEAST_SLACK: f64 = 1.0;

/// A request's place at a replica: holds its load until it is dropped, and takes in what came of it.
#[derive(Debug)]
pub struct Assignment {
    dispatcher: Arc<Dispatcher>,
    /// What was decided.
    pub decision: Decision,
    /// Requests that waited there before it; see [`Candidate::ahead`].
    pub ahead: f32,
    load: LoadGuard,
    sampling: Sampling,
    /// What the engine computed of the prompt: as predicted until the answer tells.
    computed: Work,
    /// Leading blocks of its prompt that the replica had before.
    known: usize,
    /// What its prompt adds to that, until it is known to be there.
    expected: AtomicU64,
    /// Other gateways know of it.
    announced: Option<Announced>,
    /// Who follows KV events is to know.
    pending: Option<Box<Pending>>,
}

impl Assignment {
    /// Whether nothing else was in flight at its replica since it was decided.
    pub fn is_alone(&self) -> bool {
        self.load.is_alone()
    }

    /// When it was decided.
    pub fn at(&self) -> Stamp {
        self.load.placement.at
    }

    /// Whether its replica answers it without the engine.
    pub fn is_past_engine(&self) -> bool {
        self.load.placement.is_past_engine
    }

    /// How long it has waited for its engine; `None` where it waits for what another pool computes, or for more than a first token.
    pub fn waited(&self, now: Stamp) -> Option<Duration> {
        self.is_timed().then(|| now.since(self.at()))
    }

    /// Whether times are an observation of this pool's prefill: neither of a prompt that another pool computes nor of a wait for more.
    fn is_timed(&self) -> bool {
        !self.load.placement.is_elsewhere && !self.load.placement.is_untimed
    }

    /// The tokens of the answer.
    pub fn answer_counted(&mut self, output: Option<Tokens>) {
        if let Some(pending) = &mut self.pending {
            pending.report.output = output.unwrap_or_default();
        }
    }

    /// The first token came: the prompt is computed, and the wait for it is an observation as soon as the answer has told how much
    /// of the prompt was cached. Further calls do nothing, and return false.
    pub fn first_token(&mut self, now: Stamp) -> bool {
        if !self.load.first_token(now) && !self.is_past_engine() {
            return false;
        }
        self.dispatcher.answered(now);
        self.settle();
        if let Some(announced) = &mut self.announced {
            announced.first_token(now);
        }
        if let Some((predicted, waited)) = self.decision.predicted_ttft.zip(self.waited(now)) {
            self.dispatcher.model.compare(self.decision.slot, predicted, waited);
        }
        true
    }

    /// Whether others await their first token there: what this request has them expect to be cached may be computed for them.
    pub fn is_counted_on(&self) -> bool {
        self.load.load.view().awaiting > 1
    }

    /// The request was not sent there after all: what the replica did not have of its prompt it does not have, and no other made room for
    /// it. Without effect once its first token came.
    pub fn withdrawn(&self, chain: &[u64]) {
        if self.expected.load(Ordering::Relaxed) > 0 {
            for block in chain.get(self.known..).unwrap_or_default() {
                self.dispatcher.index.release(self.decision.slot, *block);
            }
            self.settle();
        }
    }

    fn settle(&self) {
        let added = self.expected.swap(0, Ordering::Relaxed);
        self.dispatcher.index.settle(self.decision.slot, added);
    }

    /// The wait for the first token that this share of them stays within, by how predictions have fitted of late; `None` where the
    /// policy does not predict, or too little is known.
    pub fn ttft_within(&self, share: f64) -> Option<Duration> {
        let ratio = self.dispatcher.model.pool.ledger.lock().ratio_within(share)?;
        Duration::try_from_secs_f64(self.decision.predicted_ttft?.as_secs_f64() * ratio).ok()
    }

    /// The stream has brought so many content events of each choice by now. Two plain stores: fit for every event.
    #[inline]
    pub fn progress(&self, events: u64, now: Stamp) {
        self.load.progress(events, now);
    }

    /// It waited until now and got no token: a right-censored observation.
    pub fn censored(&self, now: Stamp) {
        if let Some(sample) = self.load.overdue(now).filter(|_| !self.load.placement.is_untimed) {
            self.dispatcher.model.observe_censored(self.decision.slot, &sample);
        }
    }

    /// The whole answer came at once, so its first token was not seen. Its time is shared out as it was predicted, and prefill and
    /// decoding are taken to have been slower, or faster, alike.
    pub fn served_whole(&self, now: Stamp, output: Tokens) {
        if !self.is_timed() {
            return;
        }
        let (slot, model, terms) = (self.decision.slot, &self.dispatcher.model, &self.decision.terms);
        let output = self.sampling.each(output);
        let prefill = terms.prefill * model.pool.view().ratio(&self.computed, &terms.work);
        let context = self.load.load.context();
        let step = model.estimate(slot, now).itl(context);
        let decoding = step.as_secs_f64() * output.saturating_sub(Tokens(1)).0 as f64;
        let expected = terms.wait + prefill + terms.base + decoding;
        if expected <= 0.0 {
            return;
        }
        let slower = now.since(self.at()).as_secs_f64() / expected;
        let (busy, was_idle) = (span(slower * (prefill + terms.base)), terms.wait <= 0.0);
        model.observe(slot, &TimingSample { work: self.computed, busy, was_idle, context, at: now });
        model.observe_paces(slot, now, &[Pace { per_token: slower * step.as_secs_f64(), context }]);
        model.pool.observe_output(output);
    }

    /// When its engine is expected to begin on its answer, of a request that was sent at `sent`.
    pub fn begins(&self, sent: Stamp) -> Stamp {
        sent.after(self.decision.terms.ttft())
    }

    /// Tokens of all sequences that its engine has had the time to write from `begun` on, within what the client allows.
    pub fn written(&self, sequences: u32, begun: Stamp, now: Stamp) -> Tokens {
        let context = self.load.load.context();
        let step = self.dispatcher.model.estimate(self.decision.slot, now).itl(context);
        // A float-to-integer cast saturates, and takes NaN for zero.
        let each = (now.since(begun).as_secs_f64() / step.as_secs_f64()) as u64;
        let each = self.sampling.max_tokens.map_or(each, |most| each.min(most.0));
        Tokens(each.saturating_mul(sequences.into()))
    }

    /// The stream is complete, and brought its tokens in so many content events.
    pub fn served(&self, output: Tokens, events: u64) {
        self.dispatcher.model.pool.observe_events(output, events);
        self.dispatcher.model.pool.observe_output(self.sampling.each(output));
    }

    /// The answer is complete, and its engine counted no tokens: so long it is taken to have been.
    pub fn served_uncounted(&self, output: Tokens) {
        self.dispatcher.model.pool.observe_output(self.sampling.each(output));
    }

    /// The engine counted the prompt, and the part of it that was cached where it reports that. An engine that
    /// fetched the KV reports zero cached tokens whatever it holds: no evidence.
    pub fn prompt_reported(&mut self, prompt: Option<Tokens>, cached: Option<Tokens>) {
        if self.load.placement.is_elsewhere {
            return;
        }
        if let Some(pending) = &mut self.pending {
            pending.counted(prompt, cached);
        }
        let prompt = prompt.unwrap_or(self.load.placement.prompt);
        let found = cached.unwrap_or(self.decision.hit).min(prompt);
        self.computed = Work::of(prompt.saturating_sub(found), found);
        self.load.computed(self.computed);
        if let Some(announced) = &mut self.announced {
            announced.usage = Usage { prompt: Some(prompt), cached };
        }
        if let Some(cached) = cached {
            self.dispatcher.reported_cached(self.decision.slot, self.decision.hit, cached);
        }
    }

    /// The predicted wait in its parts; `None` where nothing was learned yet.
    pub fn expected(&self) -> Option<ExpectedWait> {
        let Terms { wait, prefill, base, .. } = self.decision.terms;
        let is_taught = self.dispatcher.model.pool.is_taught();
        let parts =
            || ExpectedWait { queue: span(wait), prefill: span(prefill + base), ..ExpectedWait::default() };
        is_taught.then(parts)
    }

    /// The same, and what a token takes at `now` in an answer that comes whole.
    pub fn expected_whole(&self, now: Stamp) -> Option<ExpectedWait> {
        let estimate = self.dispatcher.model.estimate(self.decision.slot, now);
        let per_token = estimate.itl(self.load.load.context());
        self.expected().map(|expected| ExpectedWait { per_token, ..expected })
    }
}

impl Drop for Assignment {
    /// However it ended, most of a prompt that was not withdrawn is there.
    fn drop(&mut self) {
        self.settle();
        if let Some(pending) = &mut self.pending {
            pending.ended(&self.dispatcher.index.exact);
        }
    }
}
