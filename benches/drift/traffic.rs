//! A route on four replicas whose truth is known: load, tail, noise, and what goes wrong from when on.
//!
//! TTFT is `60 ms * exp(shape * G(u))` with one `G` per family, p99 at 180 ms. Noise scales the share of requests over
//! 180 ms, from hour to hour and from day to day, by bending the shape; the median never moves. Load swings by 60 %
//! over the day. Same seed, same requests.

use std::f64::consts::{LN_2, TAU};
use std::fmt;

use tokenway::diagnosis::Diagnosis;
use tokenway::drift::detectors::{Detectors, Finding, Kind, Observation, Settings};
use tokenway::record::Outcome;

pub(crate) const HOUR: f64 = 3600.0;
pub(crate) const DAY: f64 = 24.0 * HOUR;
pub(crate) const REPLICAS: [&str; 4] = ["a", "b", "c", "d"];

/// Shape of the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Lognormal,
    /// A power law: the heaviest tail.
    LogLogistic,
    /// The lightest.
    Weibull,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Nothing,
    /// p99 grows from 180 to 240 ms in eleven days.
    TailGrows,
    /// Every TTFT doubles.
    Doubles,
    /// One replica takes 1.6 times as long.
    OneSlow,
    /// 5 % of the requests take three seconds.
    OverSlo,
}

impl Event {
    pub(crate) fn takes_days(self) -> bool {
        self == Self::TailGrows
    }

    /// The findings that it should cause.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Nothing => &[],
            Self::TailGrows => &[Kind::TtftTailDrift, Kind::TtftDrift],
            Self::Doubles => &[Kind::TtftDoubled],
            Self::OneSlow => &[Kind::ReplicaSlow],
            Self::OverSlo => &[Kind::TtftP99OverSlo],
        }
    }
}

/// Requests of a route while nothing goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) family: Family,
    /// Mean requests per hour.
    pub(crate) per_hour: f64,
    /// Standard deviation of the logarithm of the share of slow requests, between hours and again between days.
    pub(crate) dispersion: f64,
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {}/h, od {}", self.family, self.per_hour, self.dispersion)
    }
}

/// A route and its truth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) traffic: Traffic,
    pub(crate) event: Event,
    /// When the event begins, in seconds.
    pub(crate) start: f64,
}

impl Route {
    /// Runs the detectors until `end`, or until `is_enough` says so of a finding; all findings.
    pub(crate) fn findings(&self, seed: u64, end: f64, is_enough: impl Fn(&Finding) -> bool) -> Vec<Finding> {
        let Traffic { family, per_hour, dispersion } = self.traffic;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut detectors = Detectors::new(Settings::default());
        let (mut all, mut new) = (Vec::new(), Vec::new());
        let (mut at, mut hour, mut day, mut day_noise) = (0.0, -1.0, -1.0, 0.0);
        let mut shape = self.shape(0.0, 0.0);
        while at < end {
            if (at / DAY).floor() != day {
                day = (at / DAY).floor();
                day_noise = dispersion * normal(&mut random);
            }
            if (at / HOUR).floor() != hour {
                hour = (at / HOUR).floor();
                // A lognormal factor of mean 1, in both.
                let noise = day_noise + dispersion * normal(&mut random) - dispersion.powi(2);
                shape = self.shape(at, noise);
            }
            let replica = random.usize(..REPLICAS.len());
            let ttft = 0.06 * (shape * family.draw(&mut random)).exp();
            let observation = Observation {
                at,
                route: "chat",
                revision: "r1",
                is_standby: false,
                replica: REPLICAS[replica],
                waited_at: None,
                failed_at: &[],
                ttft: Some(self.disturbed(&mut random, at, ttft, replica)),
                itl: Some(0.02 * (0.3 * normal(&mut random)).exp()),
                prompt: None,
                predicted: None,
                pace: 1.0,
                ttft_bound: Some((0.5, 0.5)),
                outcome: if random.f64() < 0.0005 { Outcome::Failed } else { Outcome::Ok },
            };
            detectors.observe(&observation, &mut new);
            let is_done = new.iter().any(&is_enough);
            all.append(&mut new);
            if is_done {
                break;
            }
            let load = 1.0 + 0.6 * ((at / HOUR - 8.0) / 24.0 * TAU).sin();
            at += -(1.0 - random.f64()).ln() * HOUR / (per_hour * load);
        }
        all
    }

    fn disturbed(&self, random: &mut fastrand::Rng, at: f64, ttft: f64, replica: usize) -> f64 {
        if at < self.start {
            return ttft;
        }
        match self.event {
            Event::Doubles => 2.0 * ttft,
            Event::OneSlow if replica == 2 => 1.6 * ttft,
            Event::OverSlo if random.f64() < 0.05 => 3.0,
            _ => ttft,
        }
    }

    /// The shape of the hour that begins at `at`; `noise` is the logarithm of a factor on the share over 180 ms.
    fn shape(&self, at: f64, noise: f64) -> f64 {
        let family = self.traffic.family;
        let days = if self.event == Event::TailGrows { (at - self.start) / DAY } else { 0.0 };
        let p99 = 0.18 + 0.06 * (days / 11.0).clamp(0.0, 1.0);
        let shape = (p99 / 0.06_f64).ln() / family.quantile(0.99);
        let over = (1.0 - family.cdf(3.0_f64.ln() / shape)) * noise.exp();
        3.0_f64.ln() / family.quantile(1.0 - over.clamp(1e-5, 0.3))
    }
}

/// What happens on a route with a new revision every day at noon, on its fourth day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// The new revision takes twice as long.
    AtDeploy,
    /// 2.2 times the requests three hours after it, and 2.4 times the TTFT from a quarter of an hour later on.
    LoadAfterDeploy,
    /// Twice the TTFT three hours after it, with nothing else to see.
    SlowerAfterDeploy,
    /// One replica at three times its TTFT, three hours after it.
    ReplicaAfterDeploy,
    /// The same work at twice the time on a route of embeddings: no tokens, no bound, no prediction.
    UnaryAfterDeploy,
    /// Prompts nine times as long, with TTFT in proportion to a bound that grows with the prompt.
    LongerPrompts,
    /// One replica gets prompts of twice the work, and takes twice as long for them.
    ColderReplica,
}

impl Case {
    pub(crate) const ALL: [Self; 7] = [
        Self::AtDeploy,
        Self::LoadAfterDeploy,
        Self::SlowerAfterDeploy,
        Self::ReplicaAfterDeploy,
        Self::UnaryAfterDeploy,
        Self::LongerPrompts,
        Self::ColderReplica,
    ];

    /// `None`: nothing is to be found.
    pub(crate) fn expected(self) -> Option<Diagnosis> {
        match self {
            Self::AtDeploy => Some(Diagnosis::Revision),
            Self::LoadAfterDeploy => Some(Diagnosis::Capacity),
            Self::SlowerAfterDeploy | Self::UnaryAfterDeploy => Some(Diagnosis::Unknown),
            Self::ReplicaAfterDeploy => Some(Diagnosis::Replica),
            Self::LongerPrompts | Self::ColderReplica => None,
        }
    }

    /// The first within four hours.
    pub(crate) fn finding(self, seed: u64) -> Option<Finding> {
        let deploy = 3.5 * DAY;
        let start = if self == Self::AtDeploy { deploy } else { deploy + 3.0 * HOUR };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut detectors = Detectors::new(Settings::default());
        let (mut at, mut new) = (0.0, Vec::new());
        while at < start + 4.0 * HOUR {
            let is_on = at >= start;
            let replica = random.usize(..REPLICAS.len());
            let load = if is_on && self == Self::LoadAfterDeploy { 2.2 } else { 1.0 };
            let is_one = replica == 2;
            let (slower, longer) = match self {
                _ if !is_on => (1.0, 1.0),
                Self::LoadAfterDeploy if at < start + 900.0 => (1.0, 1.0),
                Self::LoadAfterDeploy => (2.4, 1.0),
                Self::ReplicaAfterDeploy => (if is_one { 3.0 } else { 1.0 }, 1.0),
                Self::LongerPrompts => (1.0, 2.8),
                Self::ColderReplica => (1.0, if is_one { 2.0 } else { 1.0 }),
                _ => (2.0, 1.0),
            };
            let is_unary = self == Self::UnaryAfterDeploy;
            let revision = format!("r{}", (at / DAY + 0.5).floor());
            let observation = Observation {
                at,
                route: "chat",
                revision: &revision,
                is_standby: false,
                replica: REPLICAS[replica],
                waited_at: None,
                failed_at: &[],
                ttft: Some(0.06 * slower * longer * (0.47 * normal(&mut random)).exp()),
                itl: (!is_unary).then(|| 0.02 * (0.3 * normal(&mut random)).exp()),
                prompt: Some(1000.0 * longer),
                predicted: (self == Self::ColderReplica).then_some(0.06 * longer),
                pace: 1.0,
                ttft_bound: (!is_unary)
                    .then_some((if self == Self::LongerPrompts { 0.5 * longer } else { 0.5 }, 0.5)),
                outcome: Outcome::Ok,
            };
            detectors.observe(&observation, &mut new);
            if let Some(found) = new.iter().find(|found| found.at >= start) {
                return Some(found.clone());
            }
            at += -(1.0 - random.f64()).ln() * HOUR / (1000.0 * load);
        }
        None
    }
}

impl Family {
    fn draw(self, random: &mut fastrand::Rng) -> f64 {
        match self {
            Self::Lognormal => normal(random),
            family => family.quantile(random.f64().clamp(1e-9, 1.0 - 1e-9)),
        }
    }

    /// `G(u)`.
    fn quantile(self, u: f64) -> f64 {
        match self {
            Self::Lognormal => normal_quantile(u),
            Self::LogLogistic => (u / (1.0 - u)).ln(),
            Self::Weibull => (-(1.0 - u).ln() / LN_2).ln(),
        }
    }

    /// The inverse of [`Self::quantile`].
    fn cdf(self, g: f64) -> f64 {
        match self {
            Self::Lognormal => normal_cdf(g),
            Self::LogLogistic => 1.0 / (1.0 + (-g).exp()),
            Self::Weibull => 1.0 - (-(g.exp() * LN_2)).exp(),
        }
    }
}

/// A standard normal number (Box-Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (TAU * random.f64()).cos()
}

/// Abramowitz and Stegun 26.2.17, within 1e-7.
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let upper = (-z * z / 2.0).exp() / TAU.sqrt() * poly;
    if z > 0.0 { 1.0 - upper } else { upper }
}

/// By bisection: one is drawn for each hour.
fn normal_quantile(u: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if normal_cdf(middle) < u {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}
