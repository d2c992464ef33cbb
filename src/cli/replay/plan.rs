//! The grid of a replay: every contender in every setting under every seed.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokenway_sim::engine::EngineConfig;
use tokenway_sim::kv_transfer::KvTransfer;
use tokenway_sim::replay::{Bounds, Demand, Figures, KvNetwork, Router, Scenario, Trace, run};

use super::args::Contender;
use super::{Fault, ReplayArgs, ReplayError, engine, engine_file, read};
use crate::config::load::{Source, load};
use crate::config::{Config, ItlBounds, Overrides, QueueLimits, Route, Slo, TtftBound};
use crate::routing::EngineLimits;
use crate::simulate::{ProductRouter, ReplayedGateways, ReplayedPrefill, ReplayedRoute};
use crate::units::Tokens;

/// All runs of one command.
pub(super) struct Plan {
    trace: Trace,
    as_recorded: bool,
    pub(super) entrants: Vec<Entrant>,
    pub(super) settings: Vec<Setting>,
    pub(super) cells: Vec<GridCell>,
    /// What of the routes is not replayed.
    pub(super) notes: Vec<String>,
}

/// A contender with the route it stands for.
pub(super) struct Entrant {
    pub(super) contender: Contender,
    /// For tables: the configuration file, where it is from one.
    pub(super) config: Option<String>,
    slo: Slo,
    queue: Option<QueueLimits>,
    medium: Tokens,
    batch_limit: Option<u64>,
    /// With the share of the replicas that compute prompts.
    prefill: Option<(ReplayedPrefill, f64)>,
}

/// Fleet and traffic, without a seed.
pub(super) struct Setting {
    pub(super) replicas: usize,
    /// Gateways, and whether they share nothing.
    pub(super) gateways: (usize, bool),
    pub(super) load: f64,
    pub(super) scrape_interval: Duration,
    pub(super) slow: Vec<(usize, f64)>,
    /// Replicas that compute prompts; `None` leaves it to the configuration.
    prefill_replicas: Option<usize>,
    network: KvNetwork,
    pub(super) engine: EngineConfig,
}

/// One run: indices into the plan's entrants and settings.
pub(super) struct GridCell {
    pub(super) entrant: usize,
    pub(super) setting: usize,
    pub(super) seed: u64,
}

impl Plan {
    pub(super) fn read(args: &ReplayArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ReplayError> {
        let trace = read(&args.trace, Trace::read)?;
        let mut configs = Vec::new();
        for file in &args.config {
            // Nothing is sent: production's secrets and certificates are not needed.
            let overrides = Overrides { allow_missing_secrets: true, ..Overrides::default() };
            configs.push((file, load(&Source::File(file.clone()), &overrides, env)?));
        }
        let entrants = entrants(args, &configs)?;
        let settings = settings(args, &configs)?;
        let lasts = |load: &f64| trace.duration.as_secs_f64() / load / 86_400.0;
        if let Some(&load) = args.load.iter().find(|load| lasts(load) > MAX_DAYS) {
            let (days, load) = (lasts(&load), format!("{load:?}"));
            return Err(ReplayError::In(args.trace.clone(), Fault::TooLong { load, days, most: MAX_DAYS }));
        }
        let cells = cells(args, entrants.len(), settings.len());
        let mut notes: Vec<String> = open_limits(args)?.into_iter().collect();
        for (file, config) in &configs {
            notes.extend(note(file, route(args, file, config)?));
        }
        Ok(Self { trace, as_recorded: args.as_recorded, entrants, settings, cells, notes })
    }

    /// What all runs have in common, in words: how noisy the engines are decides what the figures are worth.
    pub(super) fn header(&self) -> String {
        let Some(engine) = self.settings.first().map(|setting| &setting.engine) else { return String::new() };
        let mut ages: Vec<_> =
            self.settings.iter().map(|setting| setting.scrape_interval.as_secs_f64()).collect();
        ages.dedup();
        let ages: Vec<_> = ages.into_iter().map(|age| age.to_string()).collect();
        format!(
            "engines: steps of {:.1} ms that vary by {:.0} %, {:.0} prompt tokens/s in chunks of {}; signals {} s old",
            1_000.0 * engine.cost.step.as_secs_f64(),
            100.0 * engine.cost.jitter,
            engine.cost.prefill_tokens_per_second,
            engine.max_batched_tokens,
            ages.join(", ")
        )
    }

    pub(super) fn run(&self, cell: &GridCell) -> Figures {
        let (entrant, setting) = (&self.entrants[cell.entrant], &self.settings[cell.setting]);
        let scenario = Scenario {
            engine: setting.engine.clone(),
            demand: Demand {
                replicas: setting.replicas,
                load: setting.load,
                seed: cell.seed,
                is_whole: self.as_recorded,
            },
            slow: setting.slow.clone(),
            scrape_interval: setting.scrape_interval,
            bounds: bounds(&entrant.slo),
            network: setting.network,
        };
        run(&self.trace, &scenario, &mut *entrant.router(setting, cell.seed))
    }
}

impl Entrant {
    fn router(&self, setting: &Setting, seed: u64) -> Box<dyn Router> {
        let replicas = setting.replicas;
        let apart = self.prefill_replicas(setting);
        match self.contender {
            Contender::Product(policy) => {
                let Self { slo, queue, medium, batch_limit, .. } = *self;
                let limits = EngineLimits { scrape_interval: setting.scrape_interval, batch_limit };
                let route = ReplayedRoute { policy, slo, queue, medium, limits };
                let gateway = || {
                    let router = ProductRouter::new(&route, replicas - apart);
                    match self.prefill {
                        Some((keys, _)) => router.with_prefill(keys, apart),
                        None => router,
                    }
                };
                match setting.gateways {
                    (1, _) => Box::new(gateway()),
                    (count, is_alone) => {
                        let routers = std::iter::repeat_with(gateway).take(count).collect();
                        Box::new(ReplayedGateways::new(routers, !is_alone))
                    }
                }
            }
            Contender::Rival(rival) => rival.router(replicas, &setting.engine, seed),
        }
    }

    /// Replicas that compute prompts; at least one is left to decode.
    pub(super) fn prefill_replicas(&self, setting: &Setting) -> usize {
        let Some((_, share)) = self.prefill else { return 0 };
        let wanted = (share * setting.replicas as f64).round() as usize;
        setting.prefill_replicas.unwrap_or(wanted.max(1)).min(setting.replicas - 1)
    }
}

/// What `--engine` leaves open, in words: too large a batch or cache makes the fleet too small.
fn open_limits(args: &ReplayArgs) -> Result<Option<String>, ReplayError> {
    let (Some(path), Some(file)) = (&args.engine, engine_file(args)?) else { return Ok(None) };
    let open = file.open_limits(&args.hardware.engine());
    let taken: Vec<_> = open.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let note = || {
        format!("{} leaves limits open, those of --hardware are taken: {}", path.display(), taken.join(", "))
    };
    Ok((!taken.is_empty()).then(note))
}

pub(in crate::cli) fn bounds(slo: &Slo) -> Bounds {
    Bounds {
        ttft: slo.ttft.map(|bound| bound.base),
        ttft_per_prompt_token: slo.ttft.map_or(Duration::ZERO, |bound| bound.per_prompt_token),
        tpot: slo.tpot,
        itl_p99: slo.itl.iter().find(|(percent, _)| *percent == 99).map(|(_, bound)| bound),
        e2e: slo.e2e,
    }
}

/// The routes of the configuration files, then the contenders named by `--policies` under the first file's SLO.
fn entrants(args: &ReplayArgs, configs: &[(&PathBuf, Config)]) -> Result<Vec<Entrant>, ReplayError> {
    let mut entrants = Vec::new();
    let mut first_slo = None;
    for (file, file_config) in configs {
        let route = route(args, file, file_config)?;
        let slo = file_config.slo.get(&route.slo).copied().unwrap_or_default();
        first_slo.get_or_insert(slo);
        let contender = Contender::Product(route.policy);
        let config = Some(file.display().to_string());
        let medium = file_config.classes.medium;
        let pool = route.pools.first().and_then(|weighted| file_config.pools.get(weighted.pool));
        let batch_limit = pool.and_then(|pool| pool.max_num_seqs).map(NonZeroU64::get);
        let (slo, queue) = (args.slo_over(slo), route.queue);
        let prefill = prefill(route, file_config);
        entrants.push(Entrant { contender, config, slo, queue, medium, batch_limit, prefill });
    }
    let slo = args.slo_over(first_slo.unwrap_or(DEFAULT_SLO));
    let named = |contender: &Contender| Entrant {
        contender: *contender,
        config: None,
        slo,
        queue: None,
        medium: Tokens(u64::MAX),
        batch_limit: None,
        prefill: None,
    };
    entrants.extend(args.policies.iter().map(named));
    Ok(entrants)
}

/// `[route.prefill]` of a route, with the share of its replicas that compute prompts.
fn prefill(route: &Route, config: &Config) -> Option<(ReplayedPrefill, f64)> {
    let keys = route.prefill.as_ref()?;
    let [apart, decoding] = sizes(route, config).map(|size| size as f64);
    let replayed = ReplayedPrefill { when: keys.when, min_uncached_tokens: keys.min_uncached_tokens };
    Some((replayed, apart / (apart + decoding)))
}

/// Replicas that compute prompts for others, and those that answer. A pool whose replicas are found elsewhere has one.
fn sizes(route: &Route, config: &Config) -> [usize; 2] {
    let of = |pool: usize| config.pools.get(pool).map_or(0, |pool| pool.replicas.len().max(1));
    let apart = route.prefill.as_ref().map_or(0, |keys| of(keys.pool));
    let serving = route.pools.iter().filter(|weighted| weighted.weight > 0);
    [apart, serving.map(|weighted| of(weighted.pool)).sum()]
}

/// Names what of a route is not replayed.
fn note(file: &Path, route: &Route) -> Option<String> {
    let weights = || route.pools.iter().map(|weighted| weighted.weight);
    let first = weights().find(|weight| *weight > 0);
    let parts = [
        ("pools without weight (standby, canary)", weights().any(|weight| weight == 0)),
        ("weights of pools", weights().any(|weight| weight > 0 && Some(weight) != first)),
        ("[route.degrade]", route.degrade.is_some()),
    ];
    let left_out: Vec<&str> = parts.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    let (file, name, parts) = (file.display(), &route.name, left_out.join(", "));
    (!left_out.is_empty()).then(|| format!("{file}: route \"{name}\": not replayed: {parts}"))
}

fn route<'a>(args: &ReplayArgs, file: &Path, config: &'a Config) -> Result<&'a Route, ReplayError> {
    let found = match &args.route {
        Some(name) => config.routes.iter().find(|route| *route.name == **name),
        None => config.routes.first(),
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = config.routes.iter().map(|route| &*route.name).collect();
        let route = args.route.clone().unwrap_or_default();
        ReplayError::In(file.to_owned(), Fault::NoRoute { route, known: known.join(", ") })
    })
}

fn settings(args: &ReplayArgs, configs: &[(&PathBuf, Config)]) -> Result<Vec<Setting>, ReplayError> {
    let configured = match configs.first() {
        Some((file, config)) => sizes(route(args, file, config)?, config).iter().sum(),
        None => DEFAULT_REPLICAS,
    };
    let fleets = if args.replicas.is_empty() { vec![configured] } else { args.replicas() };
    let smallest = fleets.iter().copied().min().unwrap_or(1);
    if let Some((replica, _)) = args.slow.iter().find(|(replica, _)| *replica >= smallest) {
        return Err(ReplayError::NoReplica { replica: *replica, last: smallest - 1 });
    }
    if let Some(prefill) = args.prefill_replicas.filter(|n| n.get() >= smallest) {
        return Err(ReplayError::NoDecoder { prefill: prefill.get(), smallest });
    }
    let engine = engine(args)?;
    let times = KvTransfer {
        handshake: args.kv_handshake,
        base: args.kv_transfer,
        per_token: args.kv_transfer_per_token,
        ..KvTransfer::default()
    };
    let network = KvNetwork { times, lost: args.kv_lost };
    let prefill_replicas = args.prefill_replicas.map(NonZeroUsize::get);
    let with = |replicas, load, scrape_interval, gateways: &NonZeroUsize| Setting {
        replicas,
        gateways: (gateways.get(), args.gateways_alone),
        load,
        scrape_interval,
        slow: args.slow.clone(),
        prefill_replicas,
        network,
        engine: engine.clone(),
    };
    let mut settings = Vec::new();
    for &replicas in &fleets {
        for &load in &args.load {
            for &scrape_interval in &args.signals_age {
                settings
                    .extend(args.gateways.iter().map(|count| with(replicas, load, scrape_interval, count)));
            }
        }
    }
    Ok(settings)
}

/// Setting by setting, so that rows to be compared stand together.
fn cells(args: &ReplayArgs, entrants: usize, settings: usize) -> Vec<GridCell> {
    let mut cells = Vec::new();
    for setting in 0..settings {
        for entrant in 0..entrants {
            cells.extend(args.seeds.iter().map(|seed| GridCell { entrant, setting, seed: *seed }));
        }
    }
    cells
}

/// Where no configuration says more: a bound that grows with the prompt, and a pace faster than people read.
pub(in crate::cli) const DEFAULT_SLO: Slo = Slo {
    ttft: Some(TtftBound { base: Duration::from_secs(1), per_prompt_token: Duration::from_micros(150) }),
    itl: ItlBounds::new([None; 4]),
    tpot: Some(Duration::from_millis(100)),
    e2e: None,
    engine_priority: None,
};
const DEFAULT_REPLICAS: usize = 8;
/// Of simulated time: a year's traffic, while a timestamp in another unit would be simulated for ever.
const MAX_DAYS: f64 = 366.0;
