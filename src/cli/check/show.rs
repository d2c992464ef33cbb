//! What a check found, as text for people and as JSON for tools.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::style::{Paint, Style};
use crate::config::diagnostics::Diagnostic;
use crate::config::{Canary, Config, OnBreach, Prefill};

/// A diagnostic as a compiler shows one: place, message behind a `word`, the line with a mark, a hint.
pub(super) fn diagnostic(
    out: &mut dyn Write,
    style: Style,
    (paint, word): (Paint, &str),
    found: &Diagnostic,
) -> io::Result<()> {
    // The text is that of `Display`, so that logs and terminals say the same.
    let text = found.to_string();
    let mut lines = text.lines();
    let place = format!("{}:{}:{}: ", found.file, found.line, found.column);
    let first = lines.next().unwrap_or_default();
    let message = first.strip_prefix(&place).unwrap_or(first);
    writeln!(out, "{}{}", style.paint(Paint::Bold, &place), style.paint(paint, &format!("{word}{message}")))?;
    for line in lines {
        let is_mark = line.trim_start().starts_with('|') && line.ends_with('^');
        match line.strip_prefix("hint: ") {
            Some(hint) => writeln!(out, "{}{hint}", style.paint(Paint::Good, "hint: "))?,
            None if is_mark => writeln!(out, "{}", style.paint(paint, line))?,
            None => writeln!(out, "{}", style.paint(Paint::Faint, line))?,
        }
    }
    Ok(())
}

/// What a checked file says, in a line for each part.
pub(super) fn summary(config: &Config, out: &mut dyn Write) -> io::Result<()> {
    for pool in &config.pools {
        let replicas = counted(pool.replicas.len(), "replica");
        write!(out, "  pool {} (revision {}): {replicas}", pool.name, pool.revision)?;
        for source in pool.discovery.describe() {
            write!(out, ", and those of {source}")?;
        }
        writeln!(out)?;
        if let Some(file) = pool.discovery.file.as_ref().filter(|file| !file.is_file()) {
            let file = file.display();
            writeln!(out, "  warning: {file} cannot be read yet; the pool has no replicas of it until then")?;
        }
    }
    for route in &config.routes {
        let all: f64 = route.pools.iter().map(|weighted| f64::from(weighted.weight)).sum();
        let pools: Vec<_> = route
            .pools
            .iter()
            .filter_map(|weighted| Some((config.pools.get(weighted.pool)?, weighted.weight)))
            .map(|(pool, weight)| {
                // Weights need not add up to 100, and what they come to is what matters.
                let percent = 100.0 * f64::from(weight) / all;
                if pool.standby && weight == 0 {
                    format!("{} (standby)", pool.name)
                } else if route.pools.len() > 1 {
                    format!("{} ({percent:.1} %)", pool.name)
                } else {
                    pool.name.to_string()
                }
            })
            .collect();
        let (policy, pools, slo) = (route.policy.as_str(), pools.join(" and "), &route.slo);
        let model = route.model.as_str();
        writeln!(out, "  route {}: model {model} to {pools}, policy {policy}, slo {slo}", route.name)?;
        if let Some(prefill) = &route.prefill {
            let Prefill { pool_name, when, connector, .. } = prefill;
            let (when, connector) = (when.as_str(), connector.as_str());
            writeln!(out, "    prompts by pool {pool_name}, when {when}, connector {connector}")?;
        }
        if let Some(canary) = &route.canary {
            canary_steps(config, canary, out)?;
        }
    }
    for tenant in &config.tenants {
        let token = config.jwt.as_ref().map(|_| "by JWT".to_owned());
        let names = Some(tenant.client_names.len()).filter(|n| *n > 0);
        let keys = Some(tenant.key_digests.len()).filter(|n| *n > 0);
        let ways = [keys.map(|n| counted(n, "key")), names.map(|n| counted(n, "certificate name")), token];
        let ways: Vec<_> = ways.into_iter().flatten().collect();
        let known = if ways.is_empty() {
            let header = if config.server.trust_headers.is_empty() { "" } else { "by header, or " };
            format!("{header}by keys of `tokenway key add`")
        } else {
            ways.join(", ")
        };
        writeln!(out, "  tenant {}: {known}", tenant.name)?;
    }
    let metrics = config.admin.metrics_listen.map(|addr| format!(", metrics on {addr}")).unwrap_or_default();
    writeln!(out, "  data on {}, admin on {}{metrics}", config.server.listen, config.admin.listen)
}

/// What a canary gets, step by step, and what becomes of a breach.
fn canary_steps(config: &Config, canary: &Canary, out: &mut dyn Write) -> io::Result<()> {
    let Some(pool) = config.pools.get(canary.pool) else { return Ok(()) };
    write!(out, "    canary {} (revision {}): ", pool.name, pool.revision)?;
    if let Some(shadow) = &canary.shadow {
        let (weight, soak) = (shadow.weight, duration(shadow.soak));
        write!(out, "copies of {weight} % for {soak}, at least {} of them; then ", shadow.min_requests)?;
    }
    for step in &canary.steps {
        write!(out, "{} % for {}, ", step.weight, duration(step.soak))?;
    }
    let on_breach = match canary.on_breach {
        OnBreach::Rollback => "is rolled back",
        OnBreach::Pause => "is paused",
    };
    writeln!(out, "then all; on a breach it {on_breach}")
}

/// As the configuration writes it, in its largest unit without a rest.
fn duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (0, millis) => format!("{millis}ms"),
        (secs, 0) if secs.is_multiple_of(3600) => format!("{}h", secs / 3600),
        (secs, 0) if secs.is_multiple_of(60) => format!("{}m", secs / 60),
        (secs, 0) => format!("{secs}s"),
        _ => format!("{duration:?}"),
    }
}

/// "1 replica", "2 replicas".
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn canary_json(config: &Config, canary: &Canary) -> Value {
    let shadow = canary.shadow.map(|shadow| {
        let (soak, least) = (shadow.soak.as_secs_f64(), shadow.min_requests);
        json!({ "weight": shadow.weight, "soak_seconds": soak, "min_requests": least })
    });
    let steps = canary
        .steps
        .iter()
        .map(|step| json!({ "weight": step.weight, "soak_seconds": step.soak.as_secs_f64() }));
    json!({
        "pool": config.pools.get(canary.pool).map(|pool| &*pool.name),
        "shadow": shadow,
        "steps": steps.collect::<Vec<_>>(),
    })
}

/// [`summary`] as JSON.
pub(super) fn summary_json(config: &Config) -> Value {
    let pools: Vec<_> = config
        .pools
        .iter()
        .map(|pool| json!({ "name": &*pool.name, "revision": &*pool.revision, "replicas": pool.replicas.len() }))
        .collect();
    let routes: Vec<_> = config
        .routes
        .iter()
        .map(|route| {
            let pools: Vec<_> = route.pools.iter().filter_map(|w| config.pools.get(w.pool)).collect();
            json!({
                "name": &*route.name,
                "model": route.model.as_str(),
                "pools": pools.iter().map(|pool| &*pool.name).collect::<Vec<_>>(),
                "policy": route.policy.as_str(),
                "slo": &*route.slo,
                "canary": route.canary.as_ref().map(|canary| canary_json(config, canary)),
            })
        })
        .collect();
    let tenants: Vec<_> = config.tenants.iter().map(|tenant| &*tenant.name).collect();
    json!({
        "pools": pools,
        "routes": routes,
        "tenants": tenants,
        "listen": config.server.listen.to_string(),
        "admin_listen": config.admin.listen.to_string(),
    })
}
