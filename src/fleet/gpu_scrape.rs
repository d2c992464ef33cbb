//! Scrapes the figures of a replica's GPUs from the page of an NVIDIA DCGM exporter (`pool.dcgm`).
//!
//! They are for people and diagnoses: why one replica is slower than its peers. No request is routed and no replica is asked for by them. One
//! request at a time, every half minute, with a timeout; what is not on the page, or is too old, is absent and never zero.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::discovery::deps::Deps;
use super::gpu::{GpuFigures, GpuReading, Throttling};
use super::metrics_text::{label, series};
use super::pool::PoolState;
use super::replica::Replica;
use crate::config::Dcgm;
use crate::upstream::call::Call;
use crate::upstream::connect::Connector;

/// Scrapes the exporter of the targets behind one URL until they are removed.
pub(super) async fn run(pool: Arc<PoolState>, targets: Vec<Arc<Replica>>, deps: Deps) {
    let Some(first) = targets.first() else { return };
    let mut was_failing = false;
    // Spreads the scrapes of replicas that started together.
    let mut pause = FIRST_WITHIN.mul_f64(fastrand::f64());
    loop {
        tokio::select! {
            () = first.removed().cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let problem = match look(&pool, first, &deps.connector).await {
            Some(Ok(figures)) => {
                let reading = Arc::new(GpuReading { at: deps.clock.now(), figures });
                targets.iter().for_each(|target| target.engine.gpu.store(Some(Arc::clone(&reading))));
                None
            }
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        if let Some(problem) = news(&mut was_failing, problem) {
            let served = first.served();
            let (pool, replica) = (&served.pool, &served.replica);
            tracing::warn!(%pool, %replica, problem, "no figures of its GPUs; check pool.dcgm");
        }
        pause = INTERVAL.mul_f64(0.9 + 0.2 * fastrand::f64());
    }
}

/// One scrape: the figures, or why there are none; `None` where no exporter is configured.
async fn look(
    pool: &PoolState,
    replica: &Replica,
    connector: &Connector,
) -> Option<Result<GpuFigures, String>> {
    let (config, name) = (pool.config(), replica.name());
    let dcgm = config.dcgm.of(&name)?;
    let scrape = async {
        let endpoint = dcgm.endpoint(&replica.identity.endpoint.host, &name)?;
        match Call::to(&endpoint, TIMEOUT).send(connector).await {
            Ok((StatusCode::OK, page)) => parse(&String::from_utf8_lossy(&page), dcgm, &name)
                .ok_or_else(|| format!("{endpoint} has no figures of a GPU with these labels")),
            Ok((status, _)) => Err(format!("{endpoint}: {status}")),
            Err(error) => Err(format!("{endpoint}: {error}")),
        }
    };
    Some(scrape.await)
}

/// The problem of a scrape that failed after one that did not.
fn news(was_failing: &mut bool, problem: Option<String>) -> Option<String> {
    let was_failing = std::mem::replace(was_failing, problem.is_some());
    problem.filter(|_| !was_failing)
}

/// One GPU, or an instance of one.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    utilization: Option<f64>,
    memory_used: Option<f64>,
    memory_free: Option<f64>,
    reasons: Option<u64>,
    xid: Option<u32>,
}

/// The figures of a replica's GPUs; `None` where the page has none.
fn parse(page: &str, dcgm: &Dcgm, replica: &str) -> Option<GpuFigures> {
    let mut devices: BTreeMap<[&str; 2], Device> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with(PREFIX)) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
        let Some((labels, value)) = series(rest).filter(|(_, value)| (0.0..MAX_VALUE).contains(value)) else {
            continue;
        };
        if !dcgm.is_of(replica, |name| label(labels, name)) {
            continue;
        }
        // With several pods on a GPU the exporter repeats its series for each.
        let id = label(labels, "UUID").or_else(|| label(labels, "gpu")).unwrap_or_default();
        let device = devices.entry([id, label(labels, "GPU_I_ID").unwrap_or_default()]).or_default();
        match name.strip_prefix(PREFIX).unwrap_or_default() {
            "GPU_UTIL" => device.utilization = Some(value / 100.0).filter(|share| *share <= 1.0),
            "FB_USED" => device.memory_used = Some(value * MIB),
            "FB_FREE" => device.memory_free = Some(value * MIB),
            // The second is what it was called before.
            "CLOCKS_EVENT_REASONS" | "CLOCK_THROTTLE_REASONS" => device.reasons = Some(value as u64),
            "XID_ERRORS" => device.xid = Some(value as u32),
            _ => {}
        }
    }
    let sum = |of: fn(&Device) -> Option<f64>| {
        let known: Vec<f64> = devices.values().filter_map(of).collect();
        (!known.is_empty()).then(|| (known.iter().sum::<f64>(), known.len() as f64))
    };
    let reasons = devices.values().filter_map(|device| device.reasons).reduce(|all, one| all | one);
    let figures = GpuFigures {
        gpus: u32::try_from(devices.len()).unwrap_or(u32::MAX),
        utilization: sum(|device| device.utilization).map(|(sum, n)| sum / n),
        memory_used: sum(|device| device.memory_used).map(|(sum, _)| sum),
        memory_free: sum(|device| device.memory_free).map(|(sum, _)| sum),
        throttling: reasons.map(Throttling),
        xid: devices.values().filter_map(|device| device.xid).max(),
    };
    (figures.gpus > 0).then_some(figures)
}

const PREFIX: &str = "DCGM_FI_DEV_";
/// The exporter itself collects every 30 s unless told otherwise.
const INTERVAL: Duration = Duration::from_secs(30);
const FIRST_WITHIN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);
const MIB: f64 = 1_048_576.0;
/// DCGM's blank values, which mean that nothing is known, are above it.
const MAX_VALUE: f64 = 4_294_967_296.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// As the documentation of dcgm-exporter shows it, with a blank value among others.
    const PAGE: &str = r#"# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-604ac76c",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA H100",Hostname="node-1"} 139
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-604ac76c",device="nvidia0",Hostname="node-1",container="vllm",namespace="models",pod="vllm-0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-7e5b1a22",device="nvidia1",Hostname="node-1",container="vllm",namespace="models",pod="vllm-0"} 70
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-99990000",device="nvidia2",Hostname="node-1",container="vllm",namespace="models",pod="vllm-1"} 9223372036854775794
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-604ac76c",pod="vllm-0"} 1000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-7e5b1a22",pod="vllm-0"} 500
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-604ac76c",pod="vllm-0"} 24
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-604ac76c",pod="vllm-0"} 1
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="1",UUID="GPU-7e5b1a22",pod="vllm-0"} 72
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-7e5b1a22",pod="vllm-0",err_code="79",err_msg="GPU has fallen off the bus"} 79
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-7e5b1a22",pod="vllm-0"} 0.5
DCGM_FI_DEV_GPU_UTIL nonsense
"#;

    fn dcgm(labels: &[(&str, &[&str])]) -> Dcgm {
        let values = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
        let labels = labels.iter().map(|(name, wanted)| (Arc::from(*name), values(wanted)));
        Dcgm { url: "http://{host}:9400/metrics".into(), labels: labels.collect() }
    }

    #[test]
    fn the_figures_of_the_replica_s_gpus_are_read_from_the_exporter_s_page() {
        let of = |labels| parse(PAGE, &dcgm(labels), "vllm-0");
        let both = of(&[("pod", &["{replica}"])]).unwrap();
        assert_eq!(both, of(&[("gpu", &["0", "1"])]).unwrap());
        assert_eq!((both.gpus, both.utilization, both.xid), (2, Some(0.8), Some(79)));
        assert_eq!((both.memory_used, both.memory_free), (Some(1500.0 * MIB), Some(24.0 * MIB)));
        let reasons: Vec<_> = both.throttling.unwrap().each().filter(|(_, holds)| *holds).collect();
        assert_eq!(reasons, [("hw_slowdown", true), ("hw_thermal", true)]);
        let idle = of(&[("UUID", &["GPU-604ac76c"])]).unwrap();
        assert!(!idle.throttling.unwrap().is_any(), "an idle GPU is not throttled");
        assert_eq!(idle.xid, None, "absent is not zero");
    }

    #[test]
    fn a_page_that_stays_unreadable_is_logged_once() {
        let mut was_failing = false;
        let mut logged = |problem: Option<&str>| news(&mut was_failing, problem.map(str::to_owned)).is_some();
        let problems =
            [None, Some("404"), Some("404"), Some("503"), Some("404"), None, Some("404"), Some("404")];
        let logged = problems.map(&mut logged);
        assert_eq!(logged, [false, true, false, false, false, false, true, false]);
    }

    #[test]
    fn what_is_blank_or_of_others_is_absent() {
        let blank = parse(PAGE, &dcgm(&[("pod", &["vllm-1"])]), "vllm-1");
        assert_eq!(blank, None);
        assert_eq!(parse(PAGE, &dcgm(&[("gpu", &["7"])]), "x"), None);
        assert_eq!(parse("", &dcgm(&[]), "x"), None);
        assert_eq!(parse("DCGM_FI_DEV_FB_USED 3\n", &dcgm(&[]), "x").unwrap().utilization, None);
    }
}
