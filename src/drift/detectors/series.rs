//! One series (a route on one revision): its measures, its detectors, its replicas.
//!
//! Observations come in by [`Series::observe`], time by [`Series::tick`]; the detectors are asked at the pace at which
//! they can change their minds: every half minute, quarter of an hour, hour, sixth of a block. What is seen is raised
//! once and stays active until it has not been seen for a while.

use std::collections::HashMap;
use std::sync::Arc;

use super::Settings;
use super::availability::{Burn, HoursOfDay};
use super::blocks::Blocks;
use super::finding::{Finding, Kind};
use super::hours::{HOUR, Hours};
use super::observation::Observation;
use super::peers::{self, Peer, QUARTER};
use super::signals::Book;
use super::slo::SloWatch;
use super::slow::{self, SlowDrift, SlowSetup};
use super::surge::{Source, Surge};
use super::{shift, verdicts};

/// A series and all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) route: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) first_seen: f64,
    /// The revision whose baseline it began with.
    pub(super) follows: Option<Arc<str>>,
    pub(super) ttft: Blocks,
    pub(super) ttft_hours: Hours,
    pub(super) surge: Surge,
    /// Actual over predicted TTFT.
    pub(super) residual: Blocks,
    /// Requests with a TTFT, and those that had a prediction; halved now and then.
    pub(super) predicted: (f64, f64),
    pub(super) itl: Blocks,
    pub(super) itl_hours: Hours,
    pub(super) itl_window: Surge,
    pub(super) slo: SloWatch,
    pub(super) burn: Burn,
    pub(super) hours_of_day: HoursOfDay,
    pub(super) book: Book,
    pub(super) names: Vec<Arc<str>>,
    pub(super) peers: Vec<Peer>,
    places: HashMap<Arc<str>, usize>,
    judged: Judged,
    active: Vec<Active>,
}

/// Up to where the slower detectors have judged.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    quarter: Option<i64>,
    hour: Option<i64>,
    ttft_hour: Option<i64>,
    itl_hour: Option<i64>,
    part: Option<i64>,
}

/// A finding that still holds.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) finding: Finding,
    last_seen: f64,
}

impl Series {
    pub(super) fn new(observation: &Observation<'_>, settings: &Settings) -> Self {
        let blocks = || Blocks::new(settings.block, settings.from + settings.block);
        Self {
            route: observation.route.into(),
            revision: observation.revision.into(),
            first_seen: observation.at,
            follows: None,
            ttft: blocks(),
            ttft_hours: Hours::default(),
            surge: Surge::default(),
            residual: blocks(),
            predicted: (0.0, 0.0),
            itl: blocks(),
            itl_hours: Hours::default(),
            itl_window: Surge::default(),
            slo: SloWatch::default(),
            burn: Burn::default(),
            hours_of_day: HoursOfDay::default(),
            book: Book::default(),
            names: Vec::new(),
            peers: Vec::new(),
            places: HashMap::new(),
            judged: Judged::default(),
            active: Vec::new(),
        }
    }

    /// A new revision of this route: it begins with the old one's baselines, and with nothing else.
    pub(super) fn succeeded_by(&self, observation: &Observation<'_>, settings: &Settings) -> Self {
        Self {
            follows: Some(Arc::clone(&self.revision)),
            ttft: self.ttft.clone(),
            ttft_hours: self.ttft_hours.clone(),
            residual: self.residual.clone(),
            itl: self.itl.clone(),
            itl_hours: self.itl_hours.clone(),
            ..Self::new(observation, settings)
        }
    }

    /// Takes one request.
    pub(super) fn observe(&mut self, observation: &Observation<'_>, settings: &Settings) {
        let at = observation.at;
        let place = self.place(observation.replica, settings);
        if let Some(is_bad) = observation.is_bad() {
            self.burn.add(at, is_bad);
            self.hours_of_day.add(at, is_bad);
            if let Some(peer) = self.peers.get_mut(place) {
                peer.recent.0 += 1.0;
                peer.recent.1 += f64::from(u8::from(is_bad));
            }
        }
        if let Some(itl) = observation.itl {
            self.itl.add(at, itl);
            let source = Source { replica: place, predicted: None };
            self.itl_window.add(at, itl, source, &mut self.itl_hours);
        }
        let Some(ttft) = observation.ttft else { return };
        self.ttft.add(at, ttft);
        let source = Source { replica: place, predicted: observation.predicted };
        self.surge.add(at, ttft, source, &mut self.ttft_hours);
        if let Some(peer) = self.peers.get_mut(place) {
            peer.add(at, ttft);
        }
        self.predicted.0 += 1.0;
        if let Some(predicted) = observation.predicted.filter(|predicted| *predicted > 0.0) {
            self.predicted.1 += 1.0;
            self.residual.add(at, ttft / predicted);
        }
        if let Some(bound) = observation.ttft_bound {
            self.slo.add(at, ttft, bound);
        }
    }

    /// The replica's place; past the limit all share the last one, which is then judged as one.
    pub(super) fn place(&mut self, replica: &str, settings: &Settings) -> usize {
        if let Some(place) = self.places.get(replica) {
            return *place;
        }
        if self.peers.len() >= settings.replicas_per_series {
            return self.peers.len().saturating_sub(1);
        }
        let name: Arc<str> = replica.into();
        self.places.insert(Arc::clone(&name), self.peers.len());
        self.names.push(name);
        self.peers.push(Peer::new(Blocks::new(settings.block, settings.from + settings.block)));
        self.peers.len() - 1
    }

    /// Lets time pass: judges what is due and pushes what is new to `out`.
    pub(super) fn tick(&mut self, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
        self.surge.advance(at, &mut self.ttft_hours);
        self.itl_window.advance(at, &mut self.itl_hours);
        if self.is_active(Kind::TtftDoubled) {
            if self.surge.goes_on(at, &self.ttft_hours) {
                self.keep(Kind::TtftDoubled, at);
            }
        } else if let Some(surged) = self.surge.judge(at, &self.ttft_hours) {
            let finding = verdicts::doubled(self, at, &surged);
            self.raise(at, finding, out);
        }
        if let Some(over) = self.slo.judge(at) {
            let finding = verdicts::over_slo(self, at, &over);
            self.raise(at, finding, out);
        }
        if let Some(burning) = self.burn.judge(at, settings.budget) {
            let finding = verdicts::burning(self, at, &burning);
            self.raise(at, finding, out);
        }
        let quarter = (at / QUARTER).floor() as i64;
        if self.judged.quarter.replace(quarter).is_some_and(|judged| judged < quarter) {
            self.tick_quarter(at, quarter - 1, out);
        }
        let hour = (at / HOUR).floor() as i64;
        if self.judged.hour.replace(hour).is_some_and(|judged| judged < hour) {
            self.tick_hour(at, settings, out);
        }
        self.judge_shifts(at, out);
        self.judge_parts(at, settings, out);
        self.active.retain(|active| at - active.last_seen <= active.finding.kind.hold());
    }

    fn tick_quarter(&mut self, at: f64, quarter: i64, out: &mut Vec<Finding>) {
        for slow in peers::judge(&mut self.peers, quarter) {
            let finding = verdicts::slow_replica(self, at, &slow);
            self.raise(at, finding, out);
        }
    }

    fn tick_hour(&mut self, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
        if let Some(bad) = self.hours_of_day.judge(at, settings.budget) {
            let finding = verdicts::bad_hour(self, at, &bad);
            self.raise(at, finding, out);
        }
        for peer in &mut self.peers {
            peer.recent = (peer.recent.0 / 2.0, peer.recent.1 / 2.0);
        }
        if self.predicted.0 > 1e6 {
            self.predicted = (self.predicted.0 / 2.0, self.predicted.1 / 2.0);
        }
    }

    fn judge_shifts(&mut self, at: f64, out: &mut Vec<Finding>) {
        let hour = self.ttft_hours.latest().next().map(|hour| hour.index);
        if hour != self.judged.ttft_hour {
            self.judged.ttft_hour = hour;
            if shift::goes_on(&self.ttft_hours) {
                self.keep(Kind::TtftShift, at);
            }
            if let Some(shifted) = shift::judge(&self.ttft_hours, shift::LEAST_TTFT) {
                let finding = verdicts::ttft_shift(self, at, &shifted);
                self.raise(at, finding, out);
            }
        }
        let hour = self.itl_hours.latest().next().map(|hour| hour.index);
        if hour != self.judged.itl_hour {
            self.judged.itl_hour = hour;
            if shift::goes_on(&self.itl_hours) {
                self.keep(Kind::ItlShift, at);
                self.keep(Kind::ItlJitter, at);
            }
            if let Some(shifted) = shift::judge(&self.itl_hours, shift::LEAST_ITL) {
                let finding = verdicts::itl_shift(self, at, &shifted);
                self.raise(at, finding, out);
            }
        }
    }

    fn judge_parts(&mut self, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
        for blocks in [&mut self.ttft, &mut self.residual, &mut self.itl] {
            blocks.advance(at);
        }
        for peer in &mut self.peers {
            peer.blocks.advance(at);
        }
        let part = self.ttft.last_closed();
        if part == self.judged.part {
            return;
        }
        self.judged.part = part;
        if let Some((kind, drift)) = self.slow(settings) {
            let finding = verdicts::slow_drift(self, (at, kind), &drift, settings);
            self.raise(at, finding, out);
        } else {
            self.judge_tails_of_replicas(at, settings, out);
        }
        if let Some(drift) = slow::judge(&self.itl, &settings.slow(ITL_THRESHOLD)) {
            let finding = verdicts::slow_drift(self, (at, Kind::ItlDrift), &drift, settings);
            self.raise(at, finding, out);
        }
    }

    /// The drift of TTFT, or of TTFT against its prediction where there is one: then the raw figure, which moves with
    /// every change of prompts and load, must be further out.
    fn slow(&self, settings: &Settings) -> Option<(Kind, SlowDrift)> {
        let is_predicted = self.predicted.1 >= PREDICTED * self.predicted.0;
        let raw = settings.slow(if is_predicted { RAW_BESIDE_RESIDUAL } else { THRESHOLD });
        if let Some(drift) = slow::judge(&self.ttft, &raw) {
            let kind = if drift.median() == "moved" { Kind::TtftDrift } else { Kind::TtftTailDrift };
            return Some((kind, drift));
        }
        let residual = slow::judge(&self.residual, &settings.slow(THRESHOLD)).filter(|_| is_predicted)?;
        Some((Kind::ResidualDrift, residual))
    }

    fn judge_tails_of_replicas(&mut self, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
        let is_known = self.is_active(Kind::TtftTailDrift) || self.is_active(Kind::TtftDrift);
        if self.peers.len() < 2 || is_known {
            return;
        }
        let setup = settings.slow(REPLICA_THRESHOLD);
        let drifts = self.peers.iter().enumerate();
        let drifts: Vec<(usize, SlowDrift)> =
            drifts.filter_map(|(at, peer)| Some((at, slow::judge(&peer.blocks, &setup)?))).collect();
        for (place, drift) in drifts {
            let finding = verdicts::slow_drift_of_replica(self, (at, place), &drift);
            self.raise(at, finding, out);
        }
    }

    fn is_active(&self, kind: Kind) -> bool {
        self.active.iter().any(|active| active.finding.kind == kind)
    }

    /// How many replicas are known to be slower than their peers.
    pub(super) fn slow_replicas(&self) -> usize {
        self.active.iter().filter(|active| active.finding.kind == Kind::ReplicaSlow).count()
    }

    /// What was found is still so.
    fn keep(&mut self, kind: Kind, at: f64) {
        let same = self.active.iter_mut().filter(|active| active.finding.kind == kind);
        same.for_each(|active| active.last_seen = at);
    }

    /// Pushes a finding unless it is active already.
    fn raise(&mut self, at: f64, finding: Finding, out: &mut Vec<Finding>) {
        let is_same = |active: &&mut Active| {
            active.finding.kind == finding.kind && active.finding.series.replica == finding.series.replica
        };
        if let Some(active) = self.active.iter_mut().find(is_same) {
            active.last_seen = at;
            return;
        }
        out.push(finding.clone());
        self.active.push(Active { finding, last_seen: at });
    }

    /// Findings that hold.
    pub(super) fn active(&self) -> impl Iterator<Item = &Finding> {
        self.active.iter().map(|active| &active.finding)
    }
}

impl Settings {
    pub(super) fn slow(&self, threshold: f64) -> SlowSetup {
        let blocks = |seconds: f64| (seconds / self.block).round().max(1.0) as usize;
        SlowSetup { from: blocks(self.from), lag: blocks(self.to), threshold }
    }
}

/// Score of a drift over days; see `docs/drift.md` for the false alarms that each costs.
pub(super) const THRESHOLD: f64 = 3.1;
const RAW_BESIDE_RESIDUAL: f64 = 3.6;
const ITL_THRESHOLD: f64 = 3.6;
pub(super) const REPLICA_THRESHOLD: f64 = 3.6;
/// Share of requests with a prediction from which on residuals are judged.
const PREDICTED: f64 = 0.8;
