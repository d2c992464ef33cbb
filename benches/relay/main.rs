//! What the gateway costs above copying bytes: side by side with a minimal hyper proxy, in one run.
//!
//! `cargo bench --bench relay [-- --quick] [--reps N] [--only floor|gateway] [--workloads a,b] [--gateway PATH]`
//!
//! This process is the mock engine and the load client, on one CPU. Each proxy is a child process on another,
//! so that `/proc` has its CPU time: `floor` is this same file started with `relay-floor`, `gateway` is the
//! `tokenway` binary with its default configuration, built first as a user builds it. Repetitions alternate between
//! the two, because the speed of a shared machine drifts: only ratios of one run mean anything, and nothing here
//! passes or fails.

mod engine;
mod floor;
mod load;
mod proxy;
mod report;
mod workload;

use std::io::Write as _;
use std::path::PathBuf;

use tokenway::clock::Clock;

use engine::Engine;
use proxy::Proxy;
use report::Report;
use workload::Workload;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((role, rest)) = args.split_first()
        && role == floor::ROLE
    {
        return floor::run(rest);
    }
    let options = Options::parse(&args)?;
    if !options.is_bench {
        // `cargo test --benches` and `cargo bench -- --test` only want to know that it starts.
        writeln!(std::io::stdout(), "relay: built; measure with `cargo bench --bench relay`")?;
        return Ok(());
    }
    measure(&options)
}

fn measure(options: &Options) -> Result<(), Failure> {
    // Before this process has a CPU to itself, which a build would inherit.
    let gateway = match options.subject {
        Some(Subject::Floor) => None,
        _ => Some(options.gateway.clone().map_or_else(proxy::build, Ok)?),
    };
    // 500 streams through one process are 1,000 sockets, and ours holds the engine's side too.
    tokenway::app::open_files::raise_limit();
    let pinned = proxy::pin_self();
    let clock = Clock::start();
    let engine = Engine::start(clock)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut proxies = Vec::new();
    if options.subject != Some(Subject::Gateway) {
        proxies.push(Proxy::floor(&engine, pinned)?);
    }
    if let Some(gateway) = &gateway {
        proxies.push(Proxy::gateway(gateway, &engine, pinned)?);
    }
    for proxy in &mut proxies {
        runtime.block_on(proxy.ready(clock))?;
    }
    let mut report = Report::default();
    for workload in Workload::all(options.is_quick) {
        if !options.wants(&workload) {
            continue;
        }
        for repetition in 0..options.repetitions {
            if repetition > 0 {
                proxies.reverse();
            }
            for proxy in &proxies {
                let figures = runtime.block_on(workload.run(&engine, proxy, clock))?;
                report.add(workload.name, proxy.name, figures);
            }
        }
    }
    report.print(pinned, &mut std::io::stdout().lock())?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Floor,
    Gateway,
}

struct Options {
    is_bench: bool,
    is_quick: bool,
    repetitions: usize,
    subject: Option<Subject>,
    workloads: Vec<String>,
    /// Where it is; built if not said.
    gateway: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            is_bench: false,
            is_quick: false,
            repetitions: 3,
            subject: None,
            workloads: Vec::new(),
            gateway: None,
        };
        let mut is_test = false;
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // cargo adds `--bench` when it means to measure.
                "--bench" => options.is_bench = true,
                "--test" => is_test = true,
                "--quick" => options.is_quick = true,
                "--reps" => options.repetitions = value()?.parse()?,
                "--workloads" => options.workloads = value()?.split(',').map(str::to_owned).collect(),
                "--gateway" => options.gateway = Some(PathBuf::from(value()?)),
                "--only" => {
                    options.subject = Some(match value()?.as_str() {
                        "floor" => Subject::Floor,
                        "gateway" => Subject::Gateway,
                        other => return Err(format!("--only {other}: floor or gateway").into()),
                    });
                }
                other => return Err(format!("unknown argument {other}").into()),
            }
        }
        options.is_bench &= !is_test;
        Ok(options)
    }

    fn wants(&self, workload: &Workload) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|name| name == workload.name)
    }
}
