//! Whose `priority` an engine goes by, where it schedules by priority (vLLM's `--scheduling-policy priority`).
//!
//! A client that may choose it puts itself before everybody. So the tenant's or the SLO class's stands where either has one, and with
//! tenants a client's own counts only where its route lets it (`client_may = ["engine_priority"]`).

use crate::config::{Config, Route, Tenant};

/// What is done with a client's `priority` in body and header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnginePriority {
    /// It passes, if there is any.
    #[default]
    Client,
    /// This one stands in its place; lower is sooner.
    Ours(i32),
    /// It is taken away: the engine's default holds.
    None,
}

impl EnginePriority {
    /// That of a request of a class; `has_own`: the client wrote one.
    pub fn of(config: &Config, route: &Route, tenant: &Tenant, class: &str, has_own: bool) -> Self {
        if has_own && route.client_may.engine_priority {
            return Self::Client;
        }
        let of_class = || config.slo.get(class).and_then(|slo| slo.engine_priority);
        match tenant.engine_priority.or_else(of_class) {
            Some(priority) => Self::Ours(priority),
            None if config.tenants.is_empty() => Self::Client,
            None => Self::None,
        }
    }

    /// The body's `priority`; `None` leaves it.
    pub fn in_body(self, has_own: bool) -> Option<i32> {
        match self {
            Self::Client => None,
            Self::Ours(priority) => Some(priority),
            Self::None => has_own.then_some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_with_pool;

    #[test]
    fn a_tenant_s_goes_before_a_class_s_and_a_client_s_counts_where_it_may() {
        let text = |rest: &str| {
            let routes =
                "[[route]]\nmodel = \"a\"\n[[route]]\nmodel = \"b\"\nclient_may = [\"engine_priority\"]\n";
            check_with_pool(&format!("{routes}[slo.batch]\nengine_priority = 9\n{rest}"))
                .unwrap_or_else(|faults| panic!("{faults}"))
        };
        let digest = "0".repeat(64);
        let with = text(&format!("[[tenant]]\nname = \"t\"\nkey_sha256 = [\"{digest}\"]\n"));
        let (without, plain) = (text(""), Tenant::default());
        let vip = Tenant { engine_priority: Some(-5), ..Tenant::default() };
        for (config, route, tenant, class, has_own, expected) in [
            (&without, 0, &plain, "standard", true, EnginePriority::Client),
            (&without, 0, &plain, "batch", true, EnginePriority::Ours(9)),
            (&without, 1, &plain, "batch", true, EnginePriority::Client),
            (&without, 1, &plain, "batch", false, EnginePriority::Ours(9)),
            (&with, 0, &plain, "standard", true, EnginePriority::None),
            (&with, 0, &vip, "batch", true, EnginePriority::Ours(-5)),
            (&with, 1, &vip, "batch", true, EnginePriority::Client),
        ] {
            let found = EnginePriority::of(config, &config.routes[route], tenant, class, has_own);
            assert_eq!(found, expected, "{route} {class} {has_own}");
        }
        assert_eq!(EnginePriority::None.in_body(true), Some(0));
        assert_eq!([EnginePriority::None.in_body(false), EnginePriority::Client.in_body(true)], [None; 2]);
    }
}
