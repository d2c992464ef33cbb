//! `[route.queue]` and `[route.degrade]`: what becomes of requests that cannot be answered in time.
//!
//! Both act on predictions of the first token, so both need a policy that predicts. A route to degrade to is resolved
//! when all routes are read; a chain of them is allowed to be written, a circle is not, and a request walks one step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Declared, Degrade, MAX_PRIORITY, ModelMatch, PolicyName, QueueLimits, Route, Slo};

use super::section::{Item, Section};
use super::values::DURATION;

/// Reads `[route.queue]`; the section switches admission by prediction on, even if it is empty.
pub(super) fn queue(route: &Section<'_>) -> Option<QueueLimits> {
    let (section, queue) = QueueLimits::opened(route)?;
    section.fault_if(
        queue.max_wait.is_zero() && queue.max_requests > 0,
        &["max_wait"],
        "max_wait is zero, so that nobody could ever wait",
        "give it a length, or write max_requests = 0 to refuse at once",
    );
    Some(queue)
}

/// Reads every `[route.degrade]`, now that all routes are known, and says what cannot work.
pub(super) fn resolve(
    sections: &[Section<'_>],
    routes: &mut [Route],
    slo: &BTreeMap<Arc<str>, Slo>,
    tenants: &[&str],
) {
    let mut found = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        let Some(route) = routes.get(at) else { continue };
        if let Some(item) = section.get("queue").filter(|_| route.queue.is_some()) {
            expect_prediction(route, &item);
        }
        let Some(item) = section.get("degrade") else { continue };
        expect_prediction(route, &item);
        if !route.client_may.slo_class && slo.get(&route.slo).is_some_and(|slo| slo.ttft.is_none()) {
            item.fault_at_key(
                format!("slo class \"{}\" has no ttft, so that nothing is ever over it", route.slo),
                "give the class a ttft, or choose another class for the route",
            );
        }
        let Some(inner) = item.section("[route.degrade]") else { continue };
        let read = conditions(&inner, tenants);
        if let Some((to, item)) = target(&inner, at, routes) {
            found.push((at, item));
            if let Some(route) = routes.get_mut(at) {
                route.degrade = Some(Degrade { to, ..read });
            }
        }
    }
    for (at, item) in found {
        if leads_back(at, routes) {
            item.fault(
                "this chain of [route.degrade] leads back to its own beginning",
                "let the last route of the chain degrade to none",
            );
        }
    }
}

fn expect_prediction(route: &Route, item: &Item<'_>) {
    if route.policy != PolicyName::Latency {
        item.fault_at_key(
            format!(
                "policy \"{}\" predicts no time to first token, which {} acts on",
                route.policy.as_str(),
                item.key
            ),
            "use policy = \"latency\", or remove the section",
        );
    }
}

/// The route that `to` names, by its name or else by its model.
fn target<'a>(section: &Section<'a>, own: usize, routes: &[Route]) -> Option<(usize, Item<'a>)> {
    let Some(item) = section.get("to") else {
        section.fault("[route.degrade] has no \"to\"", "name a route: to = \"llama-1b\"");
        return None;
    };
    let name = item.text()?;
    let to = route_named(&item, name, routes)?;
    if to == own {
        item.fault("a route cannot degrade to itself", "name another route");
        return None;
    }
    if routes.get(to).is_some_and(|route| route.model == ModelMatch::Any) {
        item.fault(
            format!("route \"{name}\" takes every model, so that none would be asked for"),
            "name a route of one model",
        );
        return None;
    }
    Some((to, item))
}

/// The place of the route that an item names, by its name or else by its model.
fn route_named(item: &Item<'_>, name: &str, routes: &[Route]) -> Option<usize> {
    Route::position(routes, name).or_else(|| {
        let names: Vec<_> = routes.iter().map(|route| &*route.name).collect();
        item.place_of("route", name, &names)
    })
}

/// The own names of the routes that the list `routes` of a section names, some of them by their models.
pub(in crate::config) fn own_names(section: &Section<'_>, routes: &[Route]) -> Vec<Arc<str>> {
    let own_name = |item: &Item<'_>| {
        let route = routes.get(route_named(item, item.value.as_str()?, routes)?)?;
        Some(Arc::clone(&route.name))
    };
    section.list("routes").iter().filter_map(own_name).collect()
}

/// When it begins, for whom, and when it ends.
fn conditions(section: &Section<'_>, known: &[&str]) -> Degrade {
    let when = section.section("when", "route.degrade.when");
    let over = multiple(&when).unwrap_or_else(|| {
        section.fault(
            "[route.degrade] does not say when",
            "write when = { predicted_ttft_over_slo = 1.5 }: above one and a half times its bound",
        );
        1.0
    });
    let names = when.list("tenants");
    let named = |item: &Item<'_>| {
        let name = item.text()?;
        item.place_of("tenant", name, known).map(|_| Arc::from(name))
    };
    let tenants = when.get("tenants").map(|_| names.iter().filter_map(named).collect());
    let most = i64::from(MAX_PRIORITY);
    let max_priority = when.value("max_priority", &(-most..=most));
    let until_section = section.section("until", "route.degrade.until");
    let until = multiple(&until_section).unwrap_or(1.0);
    let message = "until is above when, so that it would end before it begins";
    until_section.fault_if(
        until > over,
        &["predicted_ttft_over_slo"],
        message,
        "write a lower multiple: 1.0",
    );
    let min_dwell = section.parse("min_dwell", &DURATION).unwrap_or(Duration::from_secs(10));
    let is_short = min_dwell < Duration::from_secs(1);
    section.fault_if(is_short, &["min_dwell"], "min_dwell is below 1s", "min_dwell = \"10s\"");
    Degrade { tenants, max_priority, until, min_dwell, ..Degrade::above(over, 0) }
}

/// `predicted_ttft_over_slo`; `None` where it is absent.
fn multiple(section: &Section<'_>) -> Option<f64> {
    let item = section.get("predicted_ttft_over_slo")?;
    let Some(number) = item.number("a number", "write it without quotes: 1.5") else { return Some(1.0) };
    let is_valid = (1.0..=MOST_BOUNDS).contains(&number);
    if !is_valid {
        item.fault(
            "predicted_ttft_over_slo must be 1 to 1,000: below it requests are in time",
            "1.5 is one and a half times the bound on TTFT",
        );
    }
    Some(if is_valid { number } else { 1.0 })
}

/// Ten minutes, where the bound is below a second.
const MOST_BOUNDS: f64 = 1000.0;

fn leads_back(start: usize, routes: &[Route]) -> bool {
    let next = |at: usize| routes.get(at).and_then(|route| route.degrade.as_ref()).map(|degrade| degrade.to);
    // A walk that is longer than there are routes is in a circle that began later.
    std::iter::successors(next(start), |at| next(*at)).take(routes.len()).any(|at| at == start)
}

#[cfg(test)]
mod tests {
    use crate::config::check::faults_with_pool;

    const WHEN: &str = "when = { predicted_ttft_over_slo = 1.5 }";

    fn two(first: &str, second: &str) -> String {
        format!("[[route]]\nmodel = \"a\"\n{first}\n[[route]]\nmodel = \"b\"\n{second}\n")
    }

    #[test]
    fn faults_of_admission() {
        for (rest, expected) in [
            (
                two("[route.queue]\nmax_wait = \"0s\"", ""),
                &["f.toml:7:12: max_wait is zero, so that nobody could ever wait"][..],
            ),
            (two("[route.queue]\nmax_wait = \"0s\"\nmax_requests = 0", ""), &[]),
            (two("[route.queue]\nmax_wait = \"-1s\"", ""), &["f.toml:7:12: \"-1s\" is not a duration"]),
            (two("[route.queue]\nmax_requests = -1", ""), &["f.toml:7:16: max_requests is out of range"]),
            (
                two("[route.queue]\nmax_byte = \"1MiB\"", ""),
                &["f.toml:7:1: unknown key \"max_byte\" in [route.queue]; did you mean \"max_bytes\"?"],
            ),
            (
                two("policy = \"prefix\"\n[route.queue]", ""),
                &["f.toml:7:8: policy \"prefix\" predicts no time to first token, which queue acts on"],
            ),
            (two(&format!("[route.degrade]\nto = \"b\"\n{WHEN}"), ""), &[]),
            (two(&format!("[route.degrade]\nto = \"c\"\n{WHEN}"), ""), &["f.toml:7:6: unknown route \"c\""]),
            (
                two(&format!("[route.degrade]\nto = \"a\"\n{WHEN}"), ""),
                &["f.toml:7:6: a route cannot degrade to itself"],
            ),
            (two(&format!("[route.degrade]\n{WHEN}"), ""), &["f.toml:6:1: [route.degrade] has no \"to\""]),
            (two("[route.degrade]\nto = \"b\"", ""), &["f.toml:6:1: [route.degrade] does not say when"]),
            (
                two("[route.degrade]\nto = \"b\"\nwhen = { predicted_ttft_over_slo = 0.9 }", ""),
                &["f.toml:8:36: predicted_ttft_over_slo must be 1 to 1,000: below it requests are in time"],
            ),
            (
                two(&format!("slo = \"batch\"\n[route.degrade]\nto = \"b\"\n{WHEN}"), ""),
                &["f.toml:7:8: slo class \"batch\" has no ttft, so that nothing is ever over it"],
            ),
            (
                two(
                    &format!("[route.degrade]\nto = \"b\"\n{WHEN}"),
                    &format!("[route.degrade]\nto = \"a\"\n{WHEN}"),
                ),
                &[
                    "f.toml:7:6: this chain of [route.degrade] leads back to its own beginning",
                    "f.toml:12:6: this chain of [route.degrade] leads back to its own beginning",
                ],
            ),
            (
                format!(
                    "[[route]]\nmodel = \"*\"\n[[route]]\nmodel = \"a\"\n[route.degrade]\nto = \"*\"\n{WHEN}\n"
                ),
                &["f.toml:9:6: route \"*\" takes every model, so that none would be asked for"],
            ),
        ] {
            assert_eq!(faults_with_pool(&rest), expected, "{rest}");
        }
    }

    #[test]
    fn faults_of_the_conditions_to_degrade() {
        for (rest, expected) in [
            (
                two(
                    &format!(
                        "[route.degrade]\nto = \"b\"\n{WHEN}\nuntil = {{ predicted_ttft_over_slo = 2.0 }}"
                    ),
                    "",
                ),
                &["f.toml:9:37: until is above when, so that it would end before it begins"],
            ),
            (
                two(&format!("[route.degrade]\nto = \"b\"\n{WHEN}\nmin_dwell = \"10ms\""), ""),
                &["f.toml:9:13: min_dwell is below 1s"],
            ),
            (
                two(
                    "[route.degrade]\nto = \"b\"\nwhen = { predicted_ttft_over_slo = 1.5, tenants = [\"x\"] }",
                    "",
                ),
                &["f.toml:8:52: unknown tenant \"x\""],
            ),
        ] {
            assert_eq!(faults_with_pool(&rest), expected, "{rest}");
        }
    }
}
