//! What a fleet that changes all the time costs: 2,000 replicas in four pools, one change after the other, and decisions
//! beside them.
//!
//! Prints microseconds a change, the share of a core that ten changes a second take, and how long a decision over one pool takes
//! while the fleet changes ten times a second, beside the same without changes, in turns. Nothing is probed: probes are
//! what a fleet costs whether it changes or not. Figures for people to compare on one machine, never a test.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokenway::app::App;
use tokenway::app::foundation::Foundation;
use tokenway::background::Background;
use tokenway::clock::{Clock, Stamp};
use tokenway::config::PolicyName;
use tokenway::config::check::check_str;
use tokenway::fleet::discovery::{ReplicaAction, ReplicaChange};
use tokenway::fleet::status::FleetView;
use tokenway::observe::{Observer, Surroundings};
use tokenway::routing::policies::named;
use tokenway::routing::{Ask, EngineLimits, Prompt, SlotSet};
use tokenway::units::Tokens;
use tokio_util::task::TaskTracker;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = Arc::new(start(&runtime)?);
    let clock = Clock::start();
    for round in 0..ROUNDS / 10 {
        change(&app, round)?;
    }
    let mut each: Vec<Duration> = Vec::new();
    for round in 0..ROUNDS {
        let began = clock.now();
        change(&app, round)?;
        each.push(clock.now().since(began));
    }
    each.sort_unstable();
    let mean = each.iter().sum::<Duration>().as_secs_f64() / each.len() as f64;
    let p99 = each.get(each.len() * 99 / 100).copied().unwrap_or_default();
    writeln!(
        out,
        "a change of {} replicas in {POOLS} pools: mean {:.0} us, p99 {} us",
        POOLS * EACH,
        mean * 1e6,
        p99.as_micros()
    )?;
    writeln!(out, "ten changes a second: {:.2} % of a core", mean * 10.0 * 100.0)?;

    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let still = decisions(&app, clock);
        let is_over = AtomicBool::new(false);
        let changing = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let _ = change(&app, round);
                    round += 1;
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let taken = decisions(&app, clock);
            is_over.store(true, Ordering::Relaxed);
            taken
        });
        ratios.push(changing / still);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let at =
        |share: f64| ratios.get((share * (ratios.len() - 1) as f64) as usize).copied().unwrap_or_default();
    writeln!(
        out,
        "a decision while the fleet changes, to one while it is still: median {:.3} ({:.3}-{:.3})",
        at(0.5),
        at(0.0),
        at(1.0)
    )?;
    Ok(())
}

fn start(runtime: &tokio::runtime::Runtime) -> Result<App, Box<dyn std::error::Error>> {
    let pools: Vec<String> = (0..POOLS).map(pool).collect();
    let names: Vec<String> = (0..POOLS).map(|pool| format!("\"p{pool}\"")).collect();
    let ports = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let route = format!("[[route]]\nmodel = \"*\"\npools = [{}]\n", names.join(", "));
    let config = check_str("bench.toml", &format!("{ports}{}{route}", pools.concat()), &|_| None)?;
    let clock = Clock::start();
    let background = Background { runtime: runtime.handle().clone(), tasks: TaskTracker::new() };
    let around = Surroundings { clock, background, instance: "bench".into(), fleet: FleetView::default() };
    let _entered = runtime.enter();
    let observer = Arc::new(Observer::start(&config, around)?);
    // Nobody drives this runtime: probes and scrapes stay in its queue.
    Ok(App::on(Foundation::lay(Arc::new(config), clock, runtime.handle().clone())?, observer))
}

fn pool(pool: usize) -> String {
    let urls: Vec<String> = (0..EACH).map(|at| format!("\"{}\"", url(pool, at))).collect();
    format!("[[pool]]\nname = \"p{pool}\"\nreplicas = [{}]\n", urls.join(", "))
}

fn url(pool: usize, at: usize) -> String {
    format!("http://10.{pool}.{}.{}:8000", at / 256, at % 256)
}

/// By turns a replica leaves and one that had left comes back.
fn change(app: &App, round: usize) -> Result<(), Box<dyn std::error::Error>> {
    let action = if round.is_multiple_of(2) { ReplicaAction::Remove } else { ReplicaAction::Add };
    let which = round / 2;
    let (pool, at) = (which % POOLS, which / POOLS % EACH);
    let (name, url) = (Some(format!("p{pool}")), Some(url(pool, at)));
    app.fleet.change(&ReplicaChange { action, pool: name, url, name: None, zone: None })?;
    Ok(())
}

/// Mean seconds of a decision over the first pool.
fn decisions(app: &App, clock: Clock) -> f64 {
    let policy = named(PolicyName::Latency);
    let pools = app.fleet.pools();
    let tried = SlotSet::new();
    let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
    let began = clock.now();
    for _ in 0..DECISIONS {
        let prompt = Prompt { chain: &[1, 2, 3, 4], bytes: 1024, tokens: Tokens(256) };
        let ask = Ask::of(prompt, &tried);
        for pool in pools.iter().take(1) {
            let replicas = pool.replicas();
            let targets = replicas.iter().map(|replica| &replica.target);
            let now = Stamp::from_nanos(1_000_000_000);
            let judged = pool.dispatcher.judge(policy.as_ref(), &ask, &limits, now, targets);
            drop(judged.and_then(|judged| judged.assign()));
        }
    }
    clock.now().since(began).as_secs_f64() / f64::from(DECISIONS)
}

const POOLS: usize = 4;
const EACH: usize = 500;
const ROUNDS: usize = 2_000;
const TURNS: usize = 11;
const DECISIONS: u32 = 20_000;
