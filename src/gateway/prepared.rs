//! A request ready to be routed: what every attempt of it, its wait and its body share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Deadlines;
use super::carrier::Carrier;
use super::table::{RouteState, RoutingTable};
use crate::admission::{Outlook, Rules, Share, WaitReason, Waiter, grows_old_after};
use crate::clock::Stamp;
use crate::config::Timeouts;
use crate::error::{Failure, Timer};
use crate::fleet::outside::OutsideDemand;
use crate::fleet::pool::{AT_OUTSIDE_LIMITS, PoolState};
use crate::fleet::replica::Replica;
use crate::record::{Record, SloBounds};
use crate::relay::stream_state::Echo;
use crate::relay::watch::{Deadline, MayBeSilent};
use crate::request::body::HeldBody;
use crate::request::class::Class;
use crate::request::dialect::Computes;
use crate::request::engine_priority::EnginePriority;
use crate::request::pieces::Pieces;
use crate::request::prompt::RequestPrompt;
use crate::request::tenant::TenantRef;
use crate::routing::Sampling;
use crate::units::Tokens;

/// A request ready to be routed.
#[derive(Debug)]
pub struct Prepared {
    /// Configuration snapshot for the whole life of the request.
    pub table: Arc<RoutingTable>,
    /// The route of its model.
    pub route: Arc<RouteState>,
    /// Whose it is.
    pub tenant: TenantRef,
    /// What becomes of the client's `priority`.
    pub engine_priority: EnginePriority,
    /// Body as sent upstream: the client's bytes with model and usage option spliced in.
    pub body: Pieces,
    /// Body as received, with its share of the memory budget.
    pub held: HeldBody,
    /// Hash of its tenant, its prompt and what changes an engine's work for it: a request that is sent again has the same one.
    pub identity: u64,
    /// Prefix chain and size of its prompt.
    pub prompt: RequestPrompt,
    /// Estimated input tokens.
    pub tokens: Tokens,
    /// Predicted tokens of its answer.
    pub output: Tokens,
    /// Whether that is what the client's own bound allows, which is below what is usual.
    pub is_output_bounded: bool,
    /// `stream: true` on a path that generates.
    pub is_stream: bool,
    /// What its engine computes for it.
    pub computes: Computes,
    /// Whether the end of its prefill is observable: streams, and answers that come with it.
    pub shows_first_token: bool,
    /// Whether the gateway asked for usage, of which the client is to see nothing.
    pub asks_usage: bool,
    /// Whether it asked for the usage of every chunk, of which the client is to see nothing either.
    pub asks_running: bool,
    /// Whether the client asked for usage that every chunk has.
    pub owes_usage: bool,
    /// Characters of its answer that an engine which watches for stop strings keeps to itself.
    pub held_back: usize,
    /// Choices that it asks for: `n` of each prompt.
    pub choices: u32,
    /// `echo` of completions.
    pub echo: Echo,
    /// Model name as sent upstream.
    pub model: Option<Arc<str>>,
    /// Label `model`.
    pub label: Arc<str>,
    /// The route's timeouts, `total` lowered by `x-request-timeout`.
    pub timeouts: Timeouts,
    /// Whose `timeouts.total` is: the route's, or the client's own.
    pub total_timer: Timer,
    /// Hash of `x-session-id` under `routing.seed`, of its tenant alone where that is isolated.
    pub session: Option<u64>,
    /// What it says of its answer.
    pub sampling: Sampling,
    /// The replica that stores `previous_response_id`: the only one that can serve it.
    pub pinned: Option<Arc<Replica>>,
    /// Whether its engine may hold the text of tokens back for long: it has tools, or its client wants no reasoning.
    pub may_be_silent: MayBeSilent,
    /// Sent twice it would act twice: a stored or background response, one with tools of the server, a POST on
    /// `server.extra_paths` (RFC 9110 §9.2.2). It is retried only where it is known not to have been sent, and never hedged.
    pub is_sent_once: bool,
    /// Why no canary may get a copy (label `reason`).
    pub not_copied: Option<&'static str>,
    /// Why its prompt is to be computed where it is decoded (label `reason`), on a route with `[route.prefill]`.
    pub stays: Option<&'static str>,
    /// When the body was read: deadlines count from here.
    pub read: Stamp,
    /// Bounds of its SLO class, for its prompt length.
    pub slo: SloBounds,
    /// Class of its prompt.
    pub class: Class,
    /// Admission rules of its route.
    pub rules: Rules,
    /// Its tenant's part of a pool.
    pub share: Share,
    /// Takes it to its replica; `None` for the gateway's own connections.
    pub carrier: Option<Arc<dyn Carrier>>,
}

impl Prepared {
    /// Writes what is known now into the record.
    pub(super) fn note(&self, record: &mut Record) {
        record.route = Arc::clone(&self.route.config.name);
        record.model = Arc::clone(&self.label);
        record.is_stream = self.is_stream;
        record.estimated_input = self.tokens;
        record.class = self.class;
        record.conversation = self.conversation();
    }

    /// How long its prompt is, where that is one text: what engines compare with the most that they take.
    pub(super) fn length(&self) -> Option<Tokens> {
        let is_one = self.computes == Computes::Answer && self.choices == 1 && self.prompt.size.media == 0;
        is_one.then_some(self.tokens)
    }

    /// What it belongs to with other requests: its session, else the conversation that its prompt continues.
    pub(super) fn conversation(&self) -> Option<u64> {
        self.session.or(self.prompt.conversation)
    }

    /// The request as its pool's queue sees it, without a prediction.
    pub fn waiter(&self, reason: WaitReason) -> Waiter {
        Waiter {
            reason,
            route: Arc::clone(&self.route.config.name),
            share: self.share.clone(),
            limits: self.rules.queue,
            is_long: self.class == Class::Long,
            bytes: self.held.bytes.len(),
            old_at: Some(self.read.after(self.grows_old_after())),
            outlook: Outlook::default(),
        }
    }

    fn grows_old_after(&self) -> Duration {
        grows_old_after(self.slo.ttft, self.timeouts.first_token.min(self.timeouts.total))
    }

    /// What it needs of an outside provider's limits.
    pub(super) fn outside_demand(&self) -> OutsideDemand {
        OutsideDemand { prompt: self.tokens, output: self.output }
    }

    /// Deadlines over all attempts.
    pub(super) fn deadlines(&self) -> Deadlines {
        let at = |after: Duration| Deadline { at: self.read.after(after), after };
        Deadlines {
            connect: self.timeouts.connect,
            first_token: self.is_stream.then(|| at(self.timeouts.first_token)),
            total: at(self.timeouts.total),
        }
    }

    /// Ends the whole after `bound`, if it would take longer.
    pub(super) fn end_within(&mut self, bound: Duration, timer: Timer) {
        if bound < self.timeouts.total {
            (self.timeouts.total, self.total_timer) = (bound, timer);
        }
    }

    /// The failure if no replica is ready. Tenants are not the operator: the addresses of replicas are not theirs to see.
    pub(super) fn no_ready_replica(&self) -> Failure {
        let probe = self.route.pools.first().map(|pool| pool.config().probe.interval);
        let has_tenants = self.table.tenants.ask_for_keys();
        Failure::NoReadyReplica {
            route: Arc::clone(&self.route.config.name),
            detail: match &self.pinned {
                _ if has_tenants => self.why_for_tenants().to_owned(),
                Some(maker) => maker.why_unready(),
                None => match self.subset() {
                    Some(subset) => self.why_within(subset),
                    None => self.route.why_unready(self.model.as_deref()),
                },
            },
            retry_after: probe.unwrap_or(Duration::from_secs(1)).min(MAX_RETRY_AFTER),
        }
    }

    /// Without names of replicas.
    fn why_for_tenants(&self) -> &'static str {
        let is_at_limit = |pool: &PoolState| pool.is_outside() && pool.is_ready();
        let is_any = self.route.pools.iter().any(|pool| is_at_limit(pool));
        if is_any { AT_OUTSIDE_LIMITS } else { FOR_TENANTS }
    }

    /// Where alone its carrier lets it go.
    fn subset(&self) -> Option<&[SocketAddr]> {
        self.carrier.as_ref()?.subset()
    }

    /// Why no replica of `subset` takes it.
    fn why_within(&self, subset: &[SocketAddr]) -> String {
        let replicas: Vec<_> = self.route.used().flat_map(|pool| pool.replicas().to_vec()).collect();
        let allowed = replicas.iter().filter(|replica| self.allows(replica));
        let reasons: Vec<String> = allowed.take(MAX_NAMED).map(|replica| replica.why_unready()).collect();
        if !reasons.is_empty() {
            return format!("of the proxy's subset, {}", reasons.join("; "));
        }
        let mut named: Vec<String> = subset.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        match subset.len().saturating_sub(MAX_NAMED) {
            0 if subset.is_empty() => named.push("no address".to_owned()),
            0 => {}
            more => named.push(format!("and {more} more")),
        }
        format!("no replica of the route is in the proxy's subset ({})", named.join(", "))
    }

    /// Whether its carrier lets it go there.
    pub(super) fn allows(&self, replica: &Replica) -> bool {
        self.carrier.as_ref().is_none_or(|carrier| carrier.allows(replica))
    }

    /// Whether it may wait in the queue until a replica is ready.
    pub(super) fn may_wait_for_replica(&self) -> bool {
        let queues = self.rules.queue.is_some_and(|queue| queue.max_requests > 0);
        self.subset().is_none() && self.pinned.is_none() && (queues || self.cold_wait().is_some())
    }

    /// Sets the bounds of an SLO class.
    pub(super) fn apply_slo(&mut self, class: &str) {
        self.slo = self.table.slo(class, self.tokens);
        self.rules.base_ttft = self.slo.ttft_base.unwrap_or_default();
    }
}

/// In place of the reasons, which name replicas.
const FOR_TENANTS: &str = "try again later; the gateway's operator finds the reasons under /readyz";
/// Replicas or addresses of a subset in a message.
const MAX_NAMED: usize = 3;
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);
