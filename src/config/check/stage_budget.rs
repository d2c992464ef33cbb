//! `route.stage_budget`: a duration per stage, checked against the bounds of the route's SLO class.
//!
//! The sum over the stages before the first token must not exceed the TTFT bound, the sum over all stages not the e2e bound.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Slo, TtftBound};
use crate::stage::{Stage, StageBudget};

use super::section::{Item, Section};
use super::values::POSITIVE_DURATION;

/// Reads the budget of a route whose class has these bounds.
pub(super) fn stage_budget(route: &Section<'_>, slo: Slo) -> Option<Arc<StageBudget>> {
    let item = route.get("stage_budget")?;
    let section = item.section("route.stage_budget")?;
    let mut budget = StageBudget::default();
    for stage in Stage::ALL {
        if let Some(share) = section.parse(stage.as_str(), &POSITIVE_DURATION) {
            budget.set(stage, share);
        }
    }
    if section.items().next().is_none() {
        item.fault("the budget has no stage", "give one its share: stage_budget = { prefill = \"300ms\" }");
    }
    let before_first_token = budget.total(Stage::is_before_first_token);
    // The bound of an empty prompt: the budget does not grow with the prompt.
    if let Some(TtftBound { base, .. }) = slo.ttft {
        check_total(&item, "the stages before the first token", before_first_token, "ttft", base);
    }
    if let Some(e2e) = slo.e2e {
        check_total(&item, "all stages", budget.total(|_| true), "e2e", e2e);
    }
    Some(Arc::new(budget))
}

fn check_total(item: &Item<'_>, which: &str, total: Duration, key: &str, bound: Duration) {
    if total > bound {
        let percent = (total.as_nanos() * 100).div_ceil(bound.as_nanos().max(1));
        item.fault(
            format!("{which} have {total:?}, {percent} % of the route's {key} bound of {bound:?}"),
            format!("shares must not exceed the bound together: lower them, or raise {key} in the slo class"),
        );
    }
}
