//! Several gateways before one fleet that one tenant overloads, in simulated time: each client is served alike, whichever
//! gateway it came to, and the order of the gateways holds at the engines.

use std::time::Duration;

use tokenway_sim::replay::{Arrival, run};

use tokenway::admission::Share;
use tokenway::simulate::{ProductRouter, ReplayedGateways};

use super::watched::{Fate, Open, Watched, four, merged, poisson, trace};

const CHAT: u64 = 400;
const FLOOD: u64 = 3_000;
const BOUND: Duration = Duration::from_secs(2);
const SECONDS: f64 = 90.0;
const END: u64 = 90_000_000_000;

/// Served by one of the gateways while the fleet is overloaded.
#[derive(Debug)]
struct Served {
    chats_in_time: f64,
    floods_answered: usize,
}

fn share(request: &Arrival) -> Share {
    let tenant = if request.prompt == FLOOD { "flood" } else { "chats" };
    Share { tenant: tenant.into(), weight: 1, priority: 0 }
}

/// A quarter of what four engines can prefill are chats; with the flood that begins after 10 s it is 140 %.
fn overloaded(gateways: usize, shares: bool, seed: u64) -> Vec<Served> {
    let chats = poisson(40.0, 0.0, SECONDS, CHAT, 2 * seed);
    let flood = poisson(25.0, 10.0, SECONDS, FLOOD, 2 * seed + 1);
    let (scenario, route) = four(seed);
    let routers = (0..gateways).map(|_| ProductRouter::new(&route, 4).with_shares(share)).collect();
    let mut watched = Watched::new(ReplayedGateways::new(routers, shares), Open);
    let _figures = run(&trace(&merged(vec![chats, flood]), 60), &scenario, &mut watched);
    let served = |gateway: usize| {
        let all = watched.fates.iter().filter(|(id, _)| watched.router.gateway_of(**id) == gateway);
        let all = all.map(|(_, fate)| fate).filter(|fate| fate.arrived.as_nanos() >= 20_000_000_000);
        let (floods, chats): (Vec<_>, Vec<_>) = all.partition(|fate| fate.prompt == FLOOD);
        let is_in_time = |fate: &&&Fate| fate.ttft().is_some_and(|ttft| ttft <= BOUND);
        // Those that wait are answered when the flood is over.
        let is_served = |fate: &&&Fate| fate.first_token.is_some_and(|at| at.as_nanos() <= END);
        Served {
            chats_in_time: chats.iter().filter(is_in_time).count() as f64 / chats.len() as f64,
            floods_answered: floods.iter().filter(is_served).count(),
        }
    };
    (0..gateways).map(served).collect()
}

/// Chats of each gateway are in time for this share at least. The fourth gateway, and pages that are a second old, leave less.
fn in_time(gateways: usize, shares: bool) -> f64 {
    if gateways <= 2 && shares { 0.95 } else { 0.4 }
}

fn served_alike(gateways: usize, shares: bool) {
    for seed in 1..=3 {
        let served = overloaded(gateways, shares, seed);
        let what = format!("{gateways} gateways, cluster {shares}, seed {seed}: {served:?}");
        let least = in_time(gateways, shares);
        assert!(served.iter().all(|one| one.chats_in_time >= least), "{what}");
        let answered = || served.iter().map(|one| one.floods_answered);
        let (least, most) = (answered().min().unwrap(), answered().max().unwrap());
        assert!(gateways > 2 || !shares || 10 * least >= 7 * most, "{what}");
    }
}

#[test]
fn gateways_of_a_cluster_share_an_overloaded_fleet_evenly() {
    for gateways in [1, 2, 4] {
        served_alike(gateways, true);
    }
}

#[test]
fn gateways_that_share_nothing_keep_an_order_in_overload() {
    served_alike(2, false);
}
