//! The four acts: what each does, how long it is watched, and what has to be true of the figures.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::server::{Fault, FaultKind};
use tokenway_sim::traffic::{TrafficConfig, TrafficStats, run_traffic};

use super::meter::Figures;
use super::{Stage, TTFT_BOUND, Verdict};
use crate::background::boxed;

/// The figures before and after an act, and what they have to say.
type Played = io::Result<(Figures, Figures, Vec<Verdict>)>;
type Playing<'s> = Pin<Box<dyn Future<Output = Played> + Send + 's>>;

/// One act, as it is announced.
pub(super) struct Act {
    pub(super) play: fn(&Stage) -> Playing<'_>,
    pub(super) title: &'static str,
    pub(super) happens: &'static str,
    pub(super) look_at: &'static str,
}

pub(super) const ALL: &[Act] = &[
    Act {
        play: |stage| Box::pin(policy(stage)),
        title: "another policy",
        happens: "Requests go round robin, as behind a load balancer. Then the file says policy = \"latency\", and the gateway\n\
                  loads it without dropping a stream: conversations go where their prompt is cached.",
        look_at: "the cached share and TTFT by replica; /api/decisions says why each request went where",
    },
    Act {
        play: |stage| Box::pin(sick_replica(stage)),
        title: "a sick replica",
        happens: "The first replica becomes six times as slow. It still answers every health check.",
        look_at: "its requests in flight and its share of the traffic; nobody has to take it out",
    },
    Act {
        play: |stage| Box::pin(drift(stage)),
        title: "drift",
        happens: "All replicas become four times as slow, as after a bad driver or a throttled GPU. No routing helps.",
        look_at: "the stage that is blamed for late requests; after a minute or two a finding at /api/drift",
    },
    Act {
        play: |stage| Box::pin(overload(stage)),
        title: "overload",
        happens: "Ten times the traffic for a few seconds. What could not begin in time is refused at once with 429 and\n\
                  retry-after, so that what is admitted is in time.",
        look_at: "refused requests against failed ones, and TTFT of those that are answered",
    },
];

async fn policy(stage: &Stage) -> Played {
    stage.switch_policy("round_robin").await?;
    let before = watch(stage, SETTLE, WATCH).await;
    stage.switch_policy("latency").await?;
    let after = watch(stage, SETTLE, WATCH).await;
    let medians = after.ttft(0.5).zip(before.ttft(0.5));
    let verdicts = vec![
        verdict(
            after.hit_share() > before.hit_share(),
            format!(
                "{:.0} % of the prompt tokens are cached, {:.0} % before",
                after.hit_share() * 100.0,
                before.hit_share() * 100.0
            ),
        ),
        median(medians.is_some_and(|(after, before)| after < before), &before, &after),
        none_failed(&after),
    ];
    Ok((before, after, verdicts))
}

async fn sick_replica(stage: &Stage) -> Played {
    let before = watch(stage, Duration::ZERO, SHORT_WATCH).await;
    let Some(sick) = stage.fleet.first() else { return Err(io::Error::other("the demo has no replica")) };
    sick.set_fault(Fault { factor: 6.0, ..Fault::new(FaultKind::Slow) }).await;
    let after = watch(stage, SHORT_SETTLE, SHORT_WATCH).await;
    sick.clear_faults().await?;
    let name = sick.addr().to_string();
    let fair = 1.0 / stage.fleet.len() as f64;
    let verdicts = vec![
        verdict(
            after.share_of(&name) < fair / 2.0 || stage.fleet.len() == 1,
            format!(
                "the sick replica answers {:.0} % of the requests, {:.0} % before; a fair share is {:.0} %",
                after.share_of(&name) * 100.0,
                before.share_of(&name) * 100.0,
                fair * 100.0
            ),
        ),
        none_failed(&after),
    ];
    Ok((before, after, verdicts))
}

async fn drift(stage: &Stage) -> Played {
    let before = watch(stage, SHORT_SETTLE, SHORT_WATCH).await;
    for replica in &stage.fleet {
        replica.set_fault(Fault { factor: 4.0, ..Fault::new(FaultKind::Slow) }).await;
    }
    let after = watch(stage, SHORT_SETTLE, SHORT_WATCH).await;
    for replica in &stage.fleet {
        replica.clear_faults().await?;
    }
    let medians = after.ttft(0.5).zip(before.ttft(0.5));
    let (missed, in_engine) = (after.missed(), after.missed_in_engine());
    let is_longer = medians.is_some_and(|(after, before)| after > before.mul_f64(1.5));
    let verdicts = vec![
        median(is_longer || after.refused > before.refused, &before, &after),
        verdict(
            missed == 0 || in_engine * 2 > missed,
            format!(
                "{in_engine} of {missed} late requests are blamed on a stage of the engine, not on the gateway"
            ),
        ),
    ];
    Ok((before, after, verdicts))
}

async fn overload(stage: &Stage) -> Played {
    let before = watch(stage, SETTLE, SHORT_WATCH).await;
    let burst = TrafficConfig {
        rate: stage.traffic.rate * 10.0,
        seed: stage.traffic.seed.wrapping_add(1),
        max_in_flight: 2_000,
        ..stage.traffic.clone()
    };
    let end = stage.over.child_token();
    let stats = Arc::new(TrafficStats::default());
    let sending = run_traffic(burst, stats, stage.tracker.clone(), end.clone());
    stage.tracker.spawn_on(boxed(sending), &stage.simulation);
    let after = watch(stage, Duration::ZERO, SHORT_WATCH).await;
    end.cancel();
    let p90 = after.ttft(0.9);
    let verdicts = vec![
        verdict(
            after.refused > 0 && after.failed == 0,
            format!(
                "{} of {} requests are refused at once, {} fail",
                after.refused,
                after.all(),
                after.failed
            ),
        ),
        verdict(
            p90.is_some_and(|p90| p90 <= TTFT_BOUND),
            format!(
                "9 of 10 first tokens of the others come within {}; the bound is {TTFT_BOUND:?}",
                ttft_text(p90)
            ),
        ),
    ];
    Ok((before, after, verdicts))
}

/// Lets the fleet settle, then measures.
async fn watch(stage: &Stage, settle: Duration, watch: Duration) -> Figures {
    tokio::time::sleep(settle).await;
    stage.meter.take();
    tokio::time::sleep(watch).await;
    stage.meter.take()
}

fn verdict(is_true: bool, text: String) -> Verdict {
    Verdict { is_true, text }
}

fn median(is_true: bool, before: &Figures, after: &Figures) -> Verdict {
    let [after, before] = [after, before].map(|figures| ttft_text(figures.ttft(0.5)));
    verdict(is_true, format!("the median first token takes {after}, {before} before"))
}

fn none_failed(after: &Figures) -> Verdict {
    verdict(after.failed == 0, format!("{} of {} requests failed", after.failed, after.all()))
}

fn ttft_text(ttft: Option<Duration>) -> String {
    ttft.map_or_else(|| "forever".to_owned(), |ttft| format!("{:.0} ms", ttft.as_secs_f64() * 1e3))
}

const SETTLE: Duration = Duration::from_secs(5);
const WATCH: Duration = Duration::from_secs(8);
const SHORT_SETTLE: Duration = Duration::from_secs(4);
const SHORT_WATCH: Duration = Duration::from_secs(7);
