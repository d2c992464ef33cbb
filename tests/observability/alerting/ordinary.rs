//! Thirty ordinary days as tests of promtool: none of them may raise an alert.
//!
//! A small model writes what gateways would export on such a day, minute by minute: Poisson arrivals with the load of the hour, misses
//! and failures within what the SLO allows, and the states that replicas, pools and gateways pass in deploys, restarts,
//! scale-downs and retirements. Names, labels and bucket edges are those of a real page. Days drawn by a seed (`drawn`) are mixes
//! that no rule was made with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tokenway::stats::normal;

pub(crate) const STATES: [&str; 10] = [
    "discovered", "starting", "probing", "warming", "ready", "ejected", "unreachable", "not_serving",
    "draining", "gone",
];
const READY: usize = 4;
const HOUR: usize = 60;

/// What a replica does at one minute; `None`: the gateway does not know it.
#[derive(Clone, Copy, PartialEq)]
struct Replica {
    state: usize,
    share: f64,
    queue: f64,
    cache: f64,
    scrape_age: f64,
}

impl Replica {
    fn in_state(state: &str) -> Self {
        let state = STATES.iter().position(|known| *known == state).unwrap();
        Self { state, share: 1.0, queue: 0.0, cache: 0.4, scrape_age: 0.3 }
    }
}

/// What happens on a day; times in minutes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Gateways start again one after the other, each away for half a minute.
    GatewayRestart(usize),
    /// The same as new pods, under new names.
    GatewayPods(usize),
    /// Engines of `v1` restart one after the other where they are, and load for so many minutes each.
    EngineRestart(usize, usize),
    /// Replicas of `v1` leave: three minutes of draining.
    ScaleDown(usize, usize),
    /// New replicas join `v1` and load for so many minutes.
    ScaleUp(usize, usize, usize),
    /// `v2` comes, loads for so many minutes, takes the traffic in an hour, and `v1` is retired.
    Rollout(usize, usize),
    /// The pool `v1` scales to zero for two hours, and comes back with new replicas that load for four minutes.
    ToZero(usize),
    /// A tenant is over its own limits for so many minutes.
    TenantLimited(usize, usize),
    /// Load times so much for so many minutes: a batch job.
    Burst(usize, usize, f64),
    /// Prompts become longer for so many minutes: first tokens take so many times as long, within their own bounds.
    LongPrompts(usize, usize, f64),
    /// One engine answers a probe late and comes back after a minute.
    Hiccup(usize),
    /// One scrape of a gateway fails.
    MissedScrape(usize),
    /// All day this fraction of the answers is late: within what the bound on the p99 allows, but not by much.
    NearBound(f64),
}

/// One day, or more.
pub(crate) struct Day {
    pub(crate) name: String,
    pub(crate) gateways: usize,
    pub(crate) hours: usize,
    /// Requests a minute at noon of a working day.
    pub(crate) rate: f64,
    /// First day of the week, 0 for Monday.
    pub(crate) weekday: usize,
    pub(crate) events: Vec<Event>,
}

#[rustfmt::skip]
pub(crate) fn days() -> Vec<Day> {
    use Event::{Burst, EngineRestart, GatewayPods, GatewayRestart, Hiccup, LongPrompts, MissedScrape, Rollout, ScaleDown, ScaleUp, TenantLimited, ToZero};
    let day = |name: &str, gateways, rate, weekday, events| Day { name: name.to_owned(), gateways, hours: 24, rate, weekday, events };
    let long = |name: &str, gateways, rate, weekday, events| Day { name: name.to_owned(), gateways, hours: 50, rate, weekday, events };
    let at = |hour: usize| hour * HOUR;
    vec![
        day("nothing happens", 1, 300.0, 1, vec![]),
        day("nothing happens, two gateways", 2, 600.0, 2, vec![]),
        day("nothing happens, three gateways", 3, 3000.0, 3, vec![]),
        day("three requests a minute", 1, 3.0, 1, vec![]),
        day("three requests a minute, three gateways", 3, 3.0, 2, vec![GatewayRestart(at(10))]),
        day("a request every few minutes, and a deploy", 1, 0.3, 1, vec![Rollout(at(9), 5)]),
        long("a weekend and its Monday", 1, 300.0, 6, vec![]),
        long("a weekend and its Monday, three gateways", 3, 1200.0, 6, vec![GatewayPods(at(26))]),
        long("Friday to Sunday", 2, 600.0, 4, vec![ScaleDown(at(20), 2)]),
        long("a holiday's traffic, and a working day after it", 2, 60.0, 6, vec![ScaleUp(at(30), 2, 5)]),
        day("gateways restart", 1, 300.0, 0, vec![GatewayRestart(at(11))]),
        day("gateways restart three times", 2, 600.0, 0, vec![GatewayRestart(at(10)), GatewayRestart(at(11)), GatewayRestart(at(16))]),
        day("gateways are new pods", 3, 900.0, 0, vec![GatewayPods(at(14))]),
        day("engines restart and load for two minutes", 1, 300.0, 1, vec![EngineRestart(at(3), 2)]),
        day("engines restart and load for four minutes", 3, 900.0, 1, vec![EngineRestart(at(13), 4)]),
        day("a new revision loads for five minutes", 1, 300.0, 2, vec![Rollout(at(10), 5)]),
        day("a new revision, two gateways", 2, 600.0, 2, vec![Rollout(at(15), 5)]),
        day("a new revision, three gateways, which restart next", 3, 1500.0, 2, vec![Rollout(at(9), 5), GatewayRestart(at(12))]),
        day("a new revision that loads for twelve minutes", 1, 300.0, 3, vec![Rollout(at(2), 12)]),
        day("scale-down at night", 1, 300.0, 3, vec![ScaleDown(at(22), 2)]),
        day("scale-up in the morning, down at night", 2, 900.0, 3, vec![ScaleUp(at(8), 2, 5), ScaleDown(at(21), 2)]),
        day("scaled to zero and back", 1, 3.0, 5, vec![ToZero(at(2))]),
        day("scaled to zero and back, two gateways", 2, 6.0, 5, vec![ToZero(at(3)), GatewayRestart(at(4))]),
        day("a tenant over its limits for three hours", 1, 300.0, 4, vec![TenantLimited(at(9), 180)]),
        day("a tenant over its limits, three gateways", 3, 900.0, 4, vec![TenantLimited(at(9), 600)]),
        day("a batch job doubles the load", 2, 600.0, 1, vec![Burst(at(13), 45, 2.0)]),
        day("longer prompts in the afternoon", 1, 300.0, 1, vec![LongPrompts(at(13), 240, 1.7)]),
        day("hiccups of engines and of scrapes", 2, 600.0, 2, vec![Hiccup(at(9)), MissedScrape(at(10)), Hiccup(at(15)), MissedScrape(at(15) + 1)]),
        day("much at once", 3, 1800.0, 4, vec![Rollout(at(9), 5), TenantLimited(at(9), 90), MissedScrape(at(10)), Burst(at(14), 30, 1.8), ScaleUp(at(14), 2, 6), GatewayPods(at(17)), ScaleDown(at(22), 1)]),
        day("much at once, one gateway", 1, 200.0, 4, vec![EngineRestart(at(4), 3), LongPrompts(at(10), 120, 1.5), GatewayRestart(at(11)), Hiccup(at(12)), Rollout(at(15), 5), ScaleDown(at(20), 1)]),
    ]
}

/// Days whose size, weekday, load and events are drawn; none of them was looked at when the rules were made.
pub(crate) fn drawn(seed: u64, count: usize) -> Vec<Day> {
    let mut random = fastrand::Rng::with_seed(seed);
    let day = |n: usize| {
        let gateways = random.usize(1..=3);
        let rate = 20.0 * 100.0_f64.powf(random.f64());
        let mut kinds: Vec<usize> = (0..11).collect();
        random.shuffle(&mut kinds);
        kinds.truncate(random.usize(1..=5));
        let mut at = || random.usize(HOUR..22 * HOUR);
        let events: Vec<Event> = kinds
            .iter()
            .map(|kind| match kind {
                0 => Event::GatewayRestart(at()),
                1 => Event::GatewayPods(at()),
                2 => Event::EngineRestart(at(), 2 + at() % 4),
                3 => Event::ScaleDown(at(), 1 + at() % 2),
                4 => Event::ScaleUp(at(), 1 + at() % 2, 3 + at() % 6),
                5 => Event::Rollout(at(), 3 + at() % 10),
                6 => Event::TenantLimited(at(), 60 + at() % 300),
                7 => Event::Burst(at(), 20 + at() % 60, 1.5 + (at() % 10) as f64 / 10.0),
                8 => Event::LongPrompts(at(), 30 + at() % 200, 1.2 + (at() % 6) as f64 / 10.0),
                9 => Event::Hiccup(at()),
                _ => Event::NearBound(0.002 + (at() % 6) as f64 / 1000.0),
            })
            .collect();
        let name = format!("drawn {seed}.{n}: {gateways} gateways, {rate:.0} a minute, {events:?}");
        Day { name, gateways, hours: 24, rate, weekday: n % 7, events }
    };
    (0..count).map(day).collect()
}

/// Series of a day: name with labels, and a value for each minute where it was scraped.
struct Series {
    minutes: usize,
    all: BTreeMap<String, Vec<Option<f64>>>,
}

impl Series {
    fn set(&mut self, series: String, minute: usize, value: f64) {
        let values = self.all.entry(series).or_insert_with(|| vec![None; self.minutes]);
        values[minute] = Some(value);
    }
}

/// One gateway: its counters since its start.
struct Gateway {
    instance: String,
    counters: BTreeMap<String, f64>,
    /// Buckets of TTFT by revision.
    ttft: BTreeMap<&'static str, Vec<f64>>,
    overhead: Vec<f64>,
    /// Minutes until it answers scrapes; for one that is a new pod, until it is a target at all.
    is_away: bool,
    started: usize,
}

pub(crate) struct Writer<'a> {
    /// Edges of the histograms, as labels `le`.
    pub(crate) ttft_edges: &'a [String],
    pub(crate) overhead_edges: &'a [String],
}

impl Writer<'_> {
    /// The test of promtool, and the names and labels that it uses.
    pub(crate) fn test(&self, day: &Day, seed: u64) -> (String, BTreeMap<String, BTreeSet<String>>) {
        let minutes = day.hours * HOUR;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut series = Series { minutes, all: BTreeMap::new() };
        let mut gateways: Vec<Gateway> =
            (0..day.gateways).map(|n| Gateway::new(format!("gateway-{n}:9090"), 0)).collect();
        for minute in 0..minutes {
            for (n, gateway) in gateways.iter_mut().enumerate() {
                day.restarts(gateway, n, minute, &mut series);
                if !gateway.is_away {
                    self.minute(day, gateway, minute, &mut random, &mut series);
                }
            }
        }
        let used = series.all.keys().map(|series| {
            let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap();
            let labels = labels.split("\", ").filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
            (name.to_owned(), labels.collect())
        });
        (text(day, &series), used.collect())
    }

    /// What one gateway does in a minute, and its page at the end of it.
    fn minute(
        &self,
        day: &Day,
        gateway: &mut Gateway,
        minute: usize,
        random: &mut fastrand::Rng,
        series: &mut Series,
    ) {
        let load = day.load(minute);
        let is_limited = day.is_limited(minute);
        let trouble = day.trouble(minute);
        for (revision, share) in day.shares(minute) {
            let n = poisson(day.rate * load * share / day.gateways as f64, random);
            let mut left = n;
            // Within what the SLO and the error budget allow; more of both around a deploy.
            let mut some = |p: f64| {
                let k = binomial(left, p, random);
                left -= k;
                k as f64
            };
            let of = |rest: &str| {
                format!(
                    "route=\"chat\", model=\"m\", tenant=\"acme\", revision=\"{revision}\", class=\"short\"{rest}"
                )
            };
            let (failed, ttft, tpot, canceled) =
                (some(0.0001 + 0.001 * trouble), some(day.late() + 0.004 * trouble), some(0.001), some(0.01));
            for (reason, stage, n) in
                [("error", "connect", failed), ("ttft", "engine_queue", ttft), ("tpot", "decode", tpot)]
            {
                let of = format!(
                    "route=\"chat\", model=\"m\", revision=\"{revision}\", class=\"short\", reason=\"{reason}\", stage=\"{stage}\""
                );
                gateway.add("tokenway_slo_missed_by_stage_total", of, n);
            }
            let slow = day.slowness(minute) * (1.0 + 0.6 * load * load);
            gateway.add("tokenway_requests_total", of(", outcome=\"failed\", code=\"502\""), failed);
            gateway.add("tokenway_slo_missed_requests_total", of(", reason=\"error\""), failed);
            gateway.add("tokenway_slo_missed_requests_total", of(", reason=\"ttft\""), ttft);
            gateway.add("tokenway_slo_missed_requests_total", of(", reason=\"tpot\""), tpot);
            gateway.add("tokenway_requests_total", of(", outcome=\"canceled\", code=\"200\""), canceled);
            gateway.add("tokenway_goodput_requests_total", of(""), left as f64);
            gateway.add(
                "tokenway_requests_total",
                of(", outcome=\"ok\", code=\"200\""),
                left as f64 + ttft + tpot,
            );
            gateway.add(
                "tokenway_retries_total",
                "reason=\"connect_refused\"".to_owned(),
                binomial(n, 0.001 + 0.03 * trouble, random) as f64,
            );
            let buckets = gateway.ttft.entry(revision).or_insert_with(|| vec![0.0; self.ttft_edges.len()]);
            observe(buckets, self.ttft_edges, n, 0.12 * slow, random);
            observe(&mut gateway.overhead, self.overhead_edges, n, 0.0004, random);
        }
        let limited =
            if is_limited { poisson(day.rate * 0.3 / day.gateways as f64, random) as f64 } else { 0.0 };
        let none = "route=\"chat\", model=\"m\", tenant=\"flood\", revision=\"none\", class=\"short\"";
        gateway.add("tokenway_requests_total", format!("{none}, outcome=\"refused\", code=\"429\""), limited);
        gateway.add("tokenway_slo_missed_requests_total", format!("{none}, reason=\"refused\""), limited);
        for (name, labels) in [
            ("tokenway_access_log_dropped_total", ""),
            ("tokenway_spans_dropped_total", "reason=\"queue_full\""),
            ("tokenway_drift_observations_dropped_total", ""),
            ("tokenway_drift_webhook_posts_total", "result=\"failed\""),
        ] {
            gateway.add(name, labels.to_owned(), 0.0);
        }
        let attempts = (day.rate * load / (FLEET * day.gateways) as f64).ceil();
        for ((pool, name), replica) in day.fleet(minute, minute - gateway.started) {
            let of = |outcome: &str| format!("pool=\"{pool}\", replica=\"{name}\", outcome=\"{outcome}\"");
            let (ok, failed) = match STATES[replica.state] {
                "ready" => {
                    (poisson(attempts * replica.share, random), binomial(attempts as u64, 0.001, random))
                }
                // Streams that its end broke, in the first minute without it.
                "unreachable" | "ejected" => (0, poisson(attempts * 0.05, random)),
                _ => (0, 0),
            };
            // Fuller batches and younger processes are slower, and no two replicas are alike.
            let own = 0.8 + 0.1 * (name.bytes().last().unwrap_or_default() % 6) as f64;
            let young = if replica.share < 1.0 { 1.5 } else { 1.0 };
            let (tokens, itl) = (40.0 * ok as f64, 0.02 * own * young * (1.0 + 0.6 * load * load));
            let labels = format!("pool=\"{pool}\", replica=\"{name}\"");
            gateway.add("tokenway_replica_inter_token_latency_seconds_count", labels.clone(), tokens);
            gateway.add("tokenway_replica_inter_token_latency_seconds_sum", labels, tokens * itl);
            gateway.add("tokenway_replica_requests_total", of("ok"), ok as f64);
            gateway.add("tokenway_replica_requests_total", of("failed"), failed as f64);
        }
        self.page(day, gateway, minute, series);
    }

    fn page(&self, day: &Day, gateway: &Gateway, minute: usize, series: &mut Series) {
        let instance = &gateway.instance;
        if day.is_scrape_missed(minute, instance) {
            series.set(format!("up{{instance=\"{instance}\", job=\"tokenway\"}}"), minute, 0.0);
            return;
        }
        let full = |name: &str, labels: &str| {
            let comma = if labels.is_empty() { "" } else { ", " };
            format!("{name}{{{labels}{comma}instance=\"{instance}\", job=\"tokenway\"}}")
        };
        for (series_of, value) in &gateway.counters {
            let (name, labels) = series_of.split_once('{').unwrap();
            series.set(full(name, labels), minute, *value);
        }
        for (revision, buckets) in &gateway.ttft {
            for (le, count) in self.ttft_edges.iter().zip(buckets) {
                let labels = format!(
                    "route=\"chat\", model=\"m\", tenant=\"acme\", revision=\"{revision}\", class=\"short\", le=\"{le}\""
                );
                series.set(full("tokenway_time_to_first_token_seconds_bucket", &labels), minute, *count);
            }
        }
        for (le, count) in self.overhead_edges.iter().zip(&gateway.overhead) {
            let labels =
                format!("route=\"chat\", model=\"m\", revision=\"v1\", class=\"short\", le=\"{le}\"");
            series.set(full("tokenway_gateway_overhead_seconds_bucket", &labels), minute, *count);
        }
        let mut gauge = |name: &str, labels: &str, value: f64| series.set(full(name, labels), minute, value);
        gauge("up", "", 1.0);
        gauge("tokenway_availability_target_ratio", "", 0.999);
        gauge("tokenway_config_last_reload_successful", "", 1.0);
        gauge("tokenway_certificate_expiry_seconds", "file=\"server.pem\"", 2e9);
        gauge("tokenway_pool_queue_target", "pool=\"v1\"", 8.0);
        for ((pool, name), replica) in day.fleet(minute, minute - gateway.started) {
            let of = format!("pool=\"{pool}\", replica=\"{name}\"");
            for (at, state) in STATES.iter().enumerate() {
                gauge(
                    "tokenway_replica_state",
                    &format!("{of}, state=\"{state}\""),
                    f64::from(u8::from(at == replica.state)),
                );
            }
            if STATES[replica.state] != "gone" {
                gauge("tokenway_replica_traffic_share_ratio", &of, replica.share);
            }
            if replica.state == READY {
                gauge("tokenway_replica_queue_depth", &of, replica.queue);
                gauge("tokenway_replica_kv_cache_usage_ratio", &of, replica.cache);
                gauge("tokenway_replica_scrape_age_seconds", &of, replica.scrape_age);
            }
        }
        for (state, is_it) in day.canary(minute) {
            gauge(
                "tokenway_canary_state",
                &format!("route=\"chat\", pool=\"v2\", revision=\"v2\", state=\"{state}\""),
                f64::from(u8::from(is_it)),
            );
        }
    }
}

impl Gateway {
    fn new(instance: String, started: usize) -> Self {
        Self {
            instance,
            counters: BTreeMap::new(),
            ttft: BTreeMap::new(),
            overhead: Vec::new(),
            is_away: false,
            started,
        }
    }

    fn add(&mut self, name: &str, labels: String, n: f64) {
        *self.counters.entry(format!("{name}{{{labels}")).or_default() += n;
    }
}

impl Day {
    /// Load of the hour: a fifth at night, a third on a weekend.
    fn load(&self, minute: usize) -> f64 {
        let hour = (minute % (24 * HOUR)) as f64 / 60.0;
        let by_hour = 0.2 + 0.8 * (-((hour - 14.0) / 4.5).powi(2)).exp();
        let is_weekend = (self.weekday + minute / (24 * HOUR)) % 7 >= 5;
        let more = self.events.iter().map(|event| match *event {
            Event::Burst(from, lasts, times) if (from..from + lasts).contains(&minute) => times,
            _ => 1.0,
        });
        by_hour * if is_weekend { 0.35 } else { 1.0 } * more.product::<f64>()
    }

    /// Fraction of the answers that are late when nothing happens.
    fn late(&self) -> f64 {
        let of = |event: &Event| if let Event::NearBound(late) = *event { Some(late) } else { None };
        self.events.iter().find_map(of).unwrap_or(0.002)
    }

    fn slowness(&self, minute: usize) -> f64 {
        let more = self.events.iter().map(|event| match *event {
            Event::LongPrompts(from, lasts, times) if (from..from + lasts).contains(&minute) => times,
            _ => 1.0,
        });
        more.product()
    }

    fn is_limited(&self, minute: usize) -> bool {
        let is_it = |event: &Event| matches!(*event, Event::TenantLimited(from, lasts) if (from..from + lasts).contains(&minute));
        self.events.iter().any(is_it)
    }

    fn is_scrape_missed(&self, minute: usize, instance: &str) -> bool {
        let is_it = |event: &Event| matches!(*event, Event::MissedScrape(at) if at == minute);
        instance.starts_with("gateway-0") && self.events.iter().any(is_it)
    }

    /// 1 while replicas or gateways go and come.
    fn trouble(&self, minute: usize) -> f64 {
        let within = |from: usize, lasts: usize| (from..from + lasts).contains(&minute);
        let is_it = self.events.iter().any(|event| match *event {
            Event::EngineRestart(from, loads) => within(from, FLEET * (loads + 3)),
            Event::GatewayRestart(from) | Event::GatewayPods(from) => within(from, 6),
            Event::ScaleDown(from, _) | Event::Rollout(from, _) => within(from, 5),
            Event::Hiccup(from) => within(from, 2),
            _ => false,
        });
        f64::from(u8::from(is_it))
    }

    /// Traffic by revision.
    fn shares(&self, minute: usize) -> Vec<(&'static str, f64)> {
        let mut of_new = 0.0_f64;
        for event in &self.events {
            match *event {
                Event::Rollout(from, loads) if minute >= from + loads + 2 => {
                    of_new = ((minute - from - loads - 1) as f64 / 60.0).min(1.0);
                }
                Event::ToZero(from) if (from..from + 125).contains(&minute) => return vec![("v1", 0.0)],
                _ => {}
            }
        }
        vec![("v1", 1.0 - of_new), ("v2", of_new)].into_iter().filter(|(_, share)| *share > 0.0).collect()
    }

    /// States of the canary of a rollout.
    fn canary(&self, minute: usize) -> Vec<(&'static str, bool)> {
        let begun = self.events.iter().find_map(|event| match *event {
            Event::Rollout(from, loads) if minute >= from => Some((from, loads)),
            _ => None,
        });
        let Some((from, loads)) = begun else { return Vec::new() };
        let is_over = minute >= from + loads + 62;
        vec![("running", !is_over), ("promoted", is_over), ("paused", false), ("rolled_back", false)]
    }

    /// A gateway that is restarted begins anew; as a pod under another name.
    fn restarts(&self, gateway: &mut Gateway, n: usize, minute: usize, series: &mut Series) {
        gateway.is_away = false;
        for event in &self.events {
            match *event {
                Event::GatewayRestart(from) if minute == from + 2 * n => {
                    let instance = gateway.instance.clone();
                    *gateway = Gateway::new(instance.clone(), minute + 1);
                    gateway.is_away = true;
                    series.set(format!("up{{instance=\"{instance}\", job=\"tokenway\"}}"), minute, 0.0);
                }
                Event::GatewayPods(from) if minute == from + 2 * n => {
                    *gateway = Gateway::new(format!("gateway-{n}-new:9090"), minute);
                }
                _ => {}
            }
        }
    }

    /// Replicas as a gateway that has run for `uptime` minutes knows them.
    fn fleet(&self, minute: usize, uptime: usize) -> Vec<((&'static str, String), Replica)> {
        let mut fleet: BTreeMap<(&'static str, String), Option<Replica>> = BTreeMap::new();
        let ready = Replica {
            queue: if minute.is_multiple_of(97) { 9.0 } else { 1.0 },
            ..Replica::in_state("ready")
        };
        for n in 0..FLEET {
            fleet.insert(("v1", format!("r{n}")), Some(ready));
        }
        for event in &self.events {
            self.happens(*event, minute, &mut fleet);
        }
        let known = fleet.into_iter().filter_map(|(key, replica)| Some((key, replica?)));
        // Just started, it proves every replica first, and has never known one that is gone.
        known
            .filter(|(_, replica)| minute == uptime || STATES[replica.state] != "gone")
            .map(|(key, replica)| match uptime {
                0 if minute > 0 && replica.state == READY => (key, Replica::in_state("probing")),
                _ => (key, replica),
            })
            .collect()
    }

    fn happens(
        &self,
        event: Event,
        minute: usize,
        fleet: &mut BTreeMap<(&'static str, String), Option<Replica>>,
    ) {
        let since = |from: usize| minute.checked_sub(from);
        match event {
            Event::EngineRestart(from, loads) => {
                for n in 0..FLEET {
                    let begins = from + n * (loads + 3);
                    if let Some(replica) = since(begins).and_then(|age| restarting(age, loads)) {
                        fleet.insert(("v1", format!("r{n}")), Some(replica));
                    }
                }
            }
            Event::ScaleDown(from, count) => {
                if let Some(age) = since(from) {
                    for n in 0..count {
                        fleet.insert(("v1", format!("r{}", FLEET - 1 - n)), leaving(age));
                    }
                }
            }
            Event::ScaleUp(from, count, loads) => {
                if let Some(age) = since(from) {
                    for n in 0..count {
                        fleet.insert(("v1", format!("more{n}")), Some(joining(age, loads)));
                    }
                }
            }
            Event::Rollout(from, loads) => {
                if let Some(age) = since(from) {
                    for n in 0..FLEET {
                        fleet.insert(("v2", format!("s{n}")), Some(joining(age, loads)));
                    }
                }
                if let Some(age) = since(from + loads + 70) {
                    for n in 0..FLEET {
                        fleet.insert(("v1", format!("r{n}")), leaving(age));
                    }
                }
            }
            Event::ToZero(from) => {
                if let Some(age) = since(from) {
                    for n in 0..FLEET {
                        fleet.insert(("v1", format!("r{n}")), leaving(age));
                    }
                }
                if let Some(age) = since(from + 120) {
                    for n in 0..2 {
                        fleet.insert(("v1", format!("again{n}")), Some(joining(age, 4)));
                    }
                }
            }
            Event::Hiccup(from) => {
                if since(from) == Some(0) {
                    fleet.insert(("v1", "r0".to_owned()), Some(Replica::in_state("ejected")));
                }
                if let Some(age @ 1..4) = since(from) {
                    let queue = if age == 1 { 12.0 } else { 3.0 };
                    let late = Replica { scrape_age: 6.0, cache: 0.97, queue, ..Replica::in_state("ready") };
                    fleet.insert(("v1", "r0".to_owned()), Some(late));
                }
            }
            _ => {}
        }
    }
}

/// In place: refused while it loads, then proved and warmed, then in slow start.
fn restarting(age: usize, loads: usize) -> Option<Replica> {
    match age {
        age if age < loads => Some(Replica::in_state("unreachable")),
        age => proving(age - loads),
    }
}

fn joining(age: usize, loads: usize) -> Replica {
    match age {
        0 => Replica::in_state("discovered"),
        age if age < loads => Replica::in_state("starting"),
        age => proving(age - loads).unwrap_or_else(|| Replica::in_state("ready")),
    }
}

fn proving(age: usize) -> Option<Replica> {
    match age {
        0 => Some(Replica::in_state("probing")),
        1 => Some(Replica::in_state("warming")),
        // The orchestrator's own probe comes later.
        2 => Some(Replica::in_state("not_serving")),
        3 => Some(Replica { share: 0.0025, ..Replica::in_state("ready") }),
        4 => Some(Replica { share: 0.3, ..Replica::in_state("ready") }),
        _ => None,
    }
}

/// Three minutes of draining, five in the state `gone`, then nothing.
fn leaving(age: usize) -> Option<Replica> {
    match age {
        0..3 => Some(Replica::in_state("draining")),
        3..8 => Some(Replica::in_state("gone")),
        _ => None,
    }
}

/// Adds `n` values around `median` to cumulative buckets.
fn observe(buckets: &mut Vec<f64>, edges: &[String], n: u64, median: f64, random: &mut fastrand::Rng) {
    buckets.resize(edges.len(), 0.0);
    // Of many, a sample stands for all: what is rounded away moves no median.
    let drawn = n.min(40);
    for _ in 0..drawn {
        let value = median * (0.5 * normal(random)).exp();
        for (le, bucket) in edges.iter().zip(buckets.iter_mut()) {
            if le.parse::<f64>().unwrap_or(f64::INFINITY) >= value {
                *bucket += n as f64 / drawn as f64;
            }
        }
    }
}

fn poisson(mean: f64, random: &mut fastrand::Rng) -> u64 {
    if mean > 50.0 {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u64;
    }
    let (limit, mut product, mut n) = ((-mean).exp(), random.f64(), 0);
    while product > limit {
        product *= random.f64();
        n += 1;
    }
    n
}

fn binomial(n: u64, p: f64, random: &mut fastrand::Rng) -> u64 {
    poisson(n as f64 * p, random).min(n)
}

/// Values in promtool's notation, equal ones together; a series that ends is marked so, as by a scrape without it.
fn values(of: &[Option<f64>]) -> String {
    let mut text = String::new();
    for run in of.chunk_by(|a, b| a == b) {
        let (first, more) = (run[0], run.len() - 1);
        let one = first.map_or_else(|| "_".to_owned(), |value| format!("{}", (value * 1e4).round() / 1e4));
        let _ = match (first, more) {
            (None, 0) if !text.is_empty() => write!(text, "stale "),
            (_, 0) => write!(text, "{one} "),
            (None, _) if !text.is_empty() => write!(text, "stale _x{more} "),
            (None, _) => write!(text, "_x{more} "),
            (Some(_), _) => write!(text, "{one}x{more} "),
        };
    }
    text
}

fn text(day: &Day, series: &Series) -> String {
    let mut text = format!(
        "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n  - name: \"{}\"\n    interval: 1m\n    input_series:\n",
        day.name
    );
    for (name, of) in &series.all {
        let _ = write!(text, "      - series: '{name}'\n        values: '{}'\n", values(of).trim_end());
    }
    // Prometheus keeps what fired as a series: one question covers every alert at every minute.
    text.push_str("    promql_expr_test:\n");
    let _ = write!(
        text,
        "      - expr: 'sum by (alertname) (count_over_time(ALERTS{{alertstate=\"firing\"}}[{}m]))'\n        eval_time: {}m\n        exp_samples: []\n",
        series.minutes,
        series.minutes - 1
    );
    text
}

const FLEET: usize = 4;
