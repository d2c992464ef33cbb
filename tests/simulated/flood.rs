//! What one tenant's flood costs another, in simulated time.

use std::collections::HashMap;
use std::time::SystemTime;

use tokenway_sim::replay::{Arrival, RequestId};

use tokenway::admission::{Demand, TenantLimiter, TenantPermit};
use tokenway::clock::Stamp;
use tokenway::config::{Tenant, TenantLimits};
use tokenway::units::Tokens;

use super::watched::{Fate, Gate, live, merged, poisson, watch_four};

const CHAT: u64 = 400;
const FLOOD: u64 = 2_000;
const SECONDS: f64 = 120.0;

/// The limits of the tenant that floods.
struct Limited {
    limiter: TenantLimiter,
    flood: Tenant,
    permits: HashMap<RequestId, TenantPermit>,
}

impl Gate for Limited {
    fn admits(&mut self, request: &mut Arrival) -> bool {
        if request.prompt != FLOOD {
            return true;
        }
        let now = live(request.at);
        let demand = Demand {
            tokens: Tokens(request.prompt),
            is_counted: false,
            output: Tokens(60),
            is_output_bounded: false,
            is_free: false,
            model: "m",
            key: None,
            wall: SystemTime::UNIX_EPOCH + now.since(Stamp::default()),
        };
        let Ok(permit) = self.limiter.admit(&self.flood, &demand, now).permit else { return false };
        self.permits.extend(permit.map(|permit| (request.id, permit)));
        true
    }

    fn ended(&mut self, request: RequestId) {
        self.permits.remove(&request);
    }
}

/// p99 of the chats' TTFT in seconds beside so many requests a second of the other tenant.
fn chats_beside(per_second: f64, limits: TenantLimits, seed: u64) -> f64 {
    let chats = poisson(20.0, 0.0, SECONDS, CHAT, 2 * seed);
    let flood = poisson(per_second, 10.0, SECONDS, FLOOD, 2 * seed + 1);
    let limited = Limited {
        limiter: TenantLimiter::default(),
        flood: Tenant { name: "flood".into(), limits, ..Tenant::default() },
        permits: HashMap::new(),
    };
    let (fates, _) = watch_four(&merged(vec![chats, flood]), seed, limited);
    let chats = fates.iter().filter(|fate| fate.prompt == CHAT);
    let mut ttfts: Vec<_> = chats.filter_map(Fate::ttft).collect();
    ttfts.sort();
    ttfts[ttfts.len() * 99 / 100].as_secs_f64()
}

/// A hundred long prompts a second of a tenant that may have two at once, beside the two a second that it would send in order.
#[test]
fn a_flood_over_a_tenant_s_limit_costs_others_no_more_than_what_the_limit_allows() {
    let (none, two) =
        (TenantLimits::default(), TenantLimits { concurrency: Some(2), ..TenantLimits::default() });
    let mean =
        |per_second, limits| (1..=3).map(|seed| chats_beside(per_second, limits, seed)).sum::<f64>() / 3.0;
    let (orderly, flooded) = (mean(2.0, none), mean(100.0, two));
    eprintln!("p99 {:.1} ms beside 2/s, {:.1} ms beside 100/s", orderly * 1e3, flooded * 1e3);
    assert!(flooded <= 1.05 * orderly, "{flooded} s instead of {orderly} s");
    let unlimited = chats_beside(100.0, none, 1);
    assert!(unlimited > 3.0 * flooded, "a flood that nothing would notice: {unlimited} s");
}
