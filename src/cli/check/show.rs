//! What a check found, as text for people and as JSON for tools.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::style::{Paint, Style};
use crate::config::diagnostics::Diagnostic;
use crate::config::{Config, ModelMatch};

/// Whether a finding stops the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error,
    Warning,
}

/// A diagnostic as a compiler shows one: place, message, the line with a mark, a hint.
pub(super) fn diagnostic(
    out: &mut dyn Write,
    style: Style,
    severity: Severity,
    found: &Diagnostic,
) -> io::Result<()> {
    let (paint, word) = match severity {
        Severity::Error => (Paint::Error, ""),
        Severity::Warning => (Paint::Warning, "warning: "),
    };
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

/// A diagnostic as JSON.
pub(super) fn as_json(found: &Diagnostic) -> Value {
    json!({
        "file": found.file,
        "line": found.line,
        "column": found.column,
        "width": found.width,
        "message": found.message,
        "hint": found.hint,
        "source_line": found.source_line,
    })
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
        let model = match &route.model {
            ModelMatch::Any => "*",
            ModelMatch::Named(model) => model,
        };
        let pools: Vec<_> = route
            .pools
            .iter()
            .filter_map(|weighted| Some((config.pools.get(weighted.pool)?, weighted.weight)))
            .map(|(pool, weight)| format!("{} (weight {weight})", pool.name))
            .collect();
        let (policy, pools, slo) = (route.policy.as_str(), pools.join(" and "), &route.slo);
        writeln!(out, "  route {}: model {model} to {pools}, policy {policy}, slo {slo}", route.name)?;
    }
    for tenant in &config.tenants {
        let keys = counted(tenant.key_digests.len(), "key");
        writeln!(out, "  tenant {}: {keys}", tenant.name)?;
    }
    writeln!(out, "  data on {}, admin on {}", config.server.listen, config.admin.listen)
}

/// "1 replica", "2 replicas".
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
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
