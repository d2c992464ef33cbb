//! Several gateways before one simulated fleet, with or without what `[cluster]` shares.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{Arrival, Ended, Fleet, RequestId, Router};
use tokenway_sim::time::Stamp as SimStamp;

use super::ProductRouter;
use crate::routing::FollowedRequests;
use crate::routing::notice::{Notice, queue};

/// Gateways that each get a random part of the requests, so that the turns of a conversation meet any of them.
///
/// Notices are sent every 20 ms, as the gateway does, and arrive 20 ms later. Learned speeds are not shared: each gateway has only what
/// its own requests taught it.
pub struct ReplayedGateways {
    gateways: Vec<Gateway>,
    next_batch: Option<SimStamp>,
}

struct Gateway {
    router: ProductRouter,
    notices: Receiver<Notice>,
    on_the_way: Vec<Notice>,
    /// Requests of each gateway.
    followed: Vec<FollowedRequests>,
}

impl ReplayedGateways {
    /// At least one; `shares` as in one `[cluster]`, otherwise each routes alone.
    pub fn new(routers: Vec<ProductRouter>, shares: bool) -> Self {
        let count = routers.len();
        let gateway = |router: ProductRouter| {
            let (outbox, notices) = queue(MOST_NOTICES, true);
            if shares {
                router.announce(&outbox);
            }
            let followed = (0..count).map(|_| FollowedRequests::default()).collect();
            Gateway { router, notices, on_the_way: Vec::new(), followed }
        };
        let gateways: Vec<_> = routers.into_iter().map(gateway).collect();
        Self { gateways, next_batch: shares.then(SimStamp::default) }
    }

    /// The gateway that a request comes to, counted from 0.
    pub fn gateway_of(&self, request: RequestId) -> usize {
        let drawn = xxhash_rust::xxh3::xxh3_64(&request.0.to_le_bytes());
        (drawn % self.gateways.len() as u64) as usize
    }

    fn of(&mut self, request: RequestId) -> &mut ProductRouter {
        let at = self.gateway_of(request);
        &mut self.gateways.get_mut(at).expect("invariant: a replay has a gateway").router
    }

    fn routers(&mut self) -> impl Iterator<Item = &mut ProductRouter> {
        self.gateways.iter_mut().map(|gateway| &mut gateway.router)
    }

    /// The batches that were sent at the last time arrive, and the next are sent.
    fn exchange(&mut self) {
        for from in 0..self.gateways.len() {
            let Some(sender) = self.gateways.get_mut(from) else { continue };
            let sent = sender.notices.try_iter().collect();
            let batch = std::mem::replace(&mut sender.on_the_way, sent);
            for (at, gateway) in self.gateways.iter_mut().enumerate() {
                if at != from {
                    batch.iter().for_each(|notice| gateway.fold(from, notice));
                }
            }
        }
    }
}

impl Gateway {
    fn fold(&mut self, from: usize, notice: &Notice) {
        if let Some(requests) = self.followed.get_mut(from) {
            requests.take(notice, |placed| self.router.follow(placed, notice.at));
        }
    }
}

impl Router for ReplayedGateways {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.of(request.id).arrive(request, fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        self.of(request).first_token(request, at);
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        self.of(request).token(request, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        self.of(request).ended(request, end);
    }

    fn prefilled(&mut self, request: RequestId, end: &Ended) {
        self.of(request).prefilled(request, end);
    }

    fn transfer_failed(&mut self, request: RequestId, fleet: &mut dyn Fleet) {
        self.of(request).transfer_failed(request, fleet);
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        self.routers().for_each(|router| router.scraped(replica, at, gauges));
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.routers().for_each(|router| router.reconsider(fleet));
    }

    fn next_tick(&self) -> Option<SimStamp> {
        let ticks = self.gateways.iter().filter_map(|gateway| gateway.router.next_tick());
        ticks.chain(self.next_batch).min()
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        let now = fleet.now();
        if self.next_batch.is_some_and(|at| at <= now) {
            self.exchange();
            self.next_batch = Some(now.after(BATCH_EVERY));
        }
        for router in self.routers().filter(|router| router.next_tick().is_some_and(|at| at <= now)) {
            router.tick(fleet);
        }
    }

    fn decisions(&self) -> Option<u64> {
        self.gateways.iter().map(|gateway| gateway.router.decisions()).sum()
    }
}

/// As the gateway sends them.
const BATCH_EVERY: Duration = Duration::from_millis(20);
/// Between two batches of one gateway.
const MOST_NOTICES: usize = 1 << 14;
