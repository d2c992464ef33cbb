//! `[route.degrade]`: another route answers a request that its own could answer only far too late.
//!
//! The request is read again as one of the other route: its model's name, prompt identity, pools, SLO and deadlines are
//! that route's; what the client may set stays as it is, and the clock does not start anew. It happens once: the
//! other route's own `[route.degrade]` does not apply.

use std::sync::Arc;

use super::exchange::Exchange;
use super::prepare::{self, Prepared};
use super::table::RouteState;
use crate::config::ModelMatch;
use crate::request::body::HeldBody;

impl Exchange {
    /// Moves the request to the route that answers instead.
    pub(super) fn degrade(&mut self) {
        let degrade = self.prepared.rules.degrade.take();
        let to = degrade.and_then(|degrade| self.prepared.table.routes.get(degrade.to)).cloned();
        let Some(prepared) = to.and_then(|to| self.prepared_for(&to)) else { return };
        self.waits.begin_anew();
        self.gateway().observer.metrics().admission("degrade", "predicted_ttft");
        let asked = Arc::clone(&self.prepared.route.config.name);
        let held = std::mem::replace(&mut self.prepared.held, HeldBody::empty());
        self.prepared = prepared;
        self.prepared.held = held;
        let record = self.journal.record();
        record.degraded_from = Some(asked);
        record.slo = self.prepared.slo;
        record.slo_class = Arc::clone(&self.prepared.route.config.slo);
        record.stage_budget.clone_from(&self.prepared.route.config.stage_budget);
    }

    /// The request as one of another route. `None` where its body cannot be read again, which it could once.
    fn prepared_for(&mut self, to: &Arc<RouteState>) -> Option<Box<Prepared>> {
        let before = &self.prepared;
        let dialect = self.journal.record().dialect;
        let fields = prepare::parse(dialect, &before.held.bytes).ok()?;
        let named = match &to.config.model {
            ModelMatch::Named(model) => Some(Arc::clone(model)),
            ModelMatch::Any => None,
        };
        let model = to.engine_model().or(named);
        let mut after =
            prepare::classify(&before.table, to, &mut self.journal, (&fields, model), &before.held.bytes);
        after.timeouts.total = after.timeouts.total.min(before.timeouts.total);
        (after.session, after.read) = (before.session, before.read);
        (after.slo, after.rules.quick) = prepare::bounds(&after, &to.config.slo);
        Some(after)
    }
}
