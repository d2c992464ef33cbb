//! A configuration file in the making: what `init` and `import` know, written as commented TOML that passes `check`.

use std::fmt::Write as _;

use crate::config::{MAX_NAME, PolicyName, parse_endpoint};

#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) listen: Option<String>,
    /// `admin.metrics_listen`
    pub(super) metrics_listen: Option<String>,
    /// Further lines of `[server]`.
    pub(super) server: Vec<String>,
    /// `retry.attempts`
    pub(super) attempts: Option<u32>,
    pub(super) pools: Vec<DraftPool>,
    pub(super) routes: Vec<DraftRoute>,
    /// SHA-256 of the key that clients send, in hexadecimal.
    pub(super) client_key: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct DraftPool {
    pub(super) name: String,
    pub(super) replicas: Vec<String>,
    /// Further lines.
    pub(super) keys: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct DraftRoute {
    pub(super) model: String,
    pub(super) upstream_model: Option<String>,
    /// Pools with their weights.
    pub(super) pools: Vec<(String, u64)>,
    pub(super) policy: Option<PolicyName>,
    pub(super) slo: Option<String>,
    /// `timeouts.total`
    pub(super) total: Option<String>,
    /// `prefill`, a table.
    pub(super) prefill: Option<String>,
}

impl Draft {
    /// The first of these names, or the first one with a number, that no pool has.
    pub(super) fn free_name(&self, names: &[String]) -> String {
        let numbered = names.first().into_iter().flat_map(|name| (2..).map(move |n| format!("{name}-{n}")));
        let is_free = |name: &String| self.pools.iter().all(|pool| pool.name != *name);
        names.iter().cloned().chain(numbered).find(is_free).unwrap_or_default()
    }

    /// The text of a file of this name.
    pub(super) fn render(&self, origin: &str, file: &str) -> String {
        let mut out = format!(
            "# {origin}\n# Is it right?  tokenway check {file} --online   Every key: config/reference.toml\n"
        );
        let listen = self.listen.as_deref().unwrap_or("127.0.0.1:8080");
        let _ = write!(
            out,
            "\n[server]\nlisten = {}   # clients' base URL; 0.0.0.0:8080 is for other machines: add a [[tenant]] with keys then\n",
            quoted(listen)
        );
        self.server.iter().for_each(|line| push_line(&mut out, line));
        let _ = write!(
            out,
            "\n[admin]\nlisten = \"127.0.0.1:9090\"   # page, /metrics, /readyz\n\
             # token = \"env:TOKENWAY_ADMIN_TOKEN\"   # needed before admin.listen may leave this machine\n"
        );
        if let Some(address) = &self.metrics_listen {
            let _ = writeln!(
                out,
                "metrics_listen = {}   # /metrics and health, without a token",
                quoted(address)
            );
        }
        if let Some(attempts) = self.attempts {
            let _ = write!(out, "\n[retry]\nattempts = {attempts}\n");
        }
        for pool in &self.pools {
            let _ = write!(
                out,
                "\n[[pool]]   # replicas of one model on one image\nname = {}\nreplicas = [\n",
                quoted(&pool.name)
            );
            pool.replicas.iter().for_each(|url| push_line(&mut out, &format!("  {},", quoted(url))));
            out.push_str("]\n");
            if pool.keys.is_empty() {
                out.push_str(
                    "# engine_api_key = \"env:VLLM_API_KEY\"   # what `vllm serve --api-key` was given\n",
                );
            }
            pool.keys.iter().for_each(|line| push_line(&mut out, line));
        }
        self.routes.iter().for_each(|route| route.render(&mut out));
        if let Some(digest) = &self.client_key {
            let _ = write!(
                out,
                "\n[[tenant]]   # clients send its key; others are refused\nname = \"clients\"\nkey_sha256 = [{}]\n",
                quoted(digest)
            );
        }
        out
    }
}

impl DraftRoute {
    fn render(&self, out: &mut String) {
        let _ = write!(
            out,
            "\n[[route]]\nmodel = {}   # what clients ask for; \"*\" takes every name\n",
            quoted(&self.model)
        );
        if self.model == "none" {
            out.push_str("name = \"model-none\"   # \"none\" stands for no route in metrics and logs\n");
        }
        if let Some(model) = &self.upstream_model {
            let _ = writeln!(out, "upstream_model = {}   # what the engine calls it", quoted(model));
        }
        let weighted = |(pool, weight): &(String, u64)| match self.pools.len() {
            1 => quoted(pool),
            _ => format!("{{ name = {}, weight = {weight} }}", quoted(pool)),
        };
        let pools: Vec<_> = self.pools.iter().map(weighted).collect();
        let policy = self.policy.unwrap_or(PolicyName::Latency);
        let choice = match policy {
            PolicyName::Latency => "cached prefix against queue, by predicted time to first token",
            PolicyName::LeastLoaded => "the fewest requests",
            PolicyName::RoundRobin => "in turn",
            PolicyName::Session => "by x-session-id",
            PolicyName::Prefix => "by prompt prefix",
        };
        let default = match policy {
            PolicyName::Latency => "",
            _ => "; the default, latency, predicts times to first token",
        };
        let policy = policy.as_str();
        let slo = self.slo.as_deref().unwrap_or("standard");
        let _ = write!(
            out,
            "pools = [{}]\npolicy = \"{policy}\"   # {choice}{default}\n\
             slo = {}   # what goodput counts against: interactive, standard, batch, or a [slo.NAME] of your own\n",
            pools.join(", "),
            quoted(slo)
        );
        if let Some(total) = &self.total {
            let _ = writeln!(out, "timeouts = {{ total = {} }}", quoted(total));
        }
        if let Some(prefill) = &self.prefill {
            let _ = writeln!(out, "prefill = {prefill}   # prompts are computed there");
        }
    }
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A pool's name that resembles `text`.
pub(super) fn name_of(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    // With room for a number behind it.
    let name = name[..name.len().min(MAX_NAME - 8)].trim_matches(['-', '.']);
    if name.is_empty() { "main".to_owned() } else { name.to_owned() }
}

/// A replica's URL as a pool lists it: of the host, without `/v1`.
pub(super) fn replica_url(text: &str) -> Result<String, String> {
    let text = text.trim().trim_end_matches('/');
    let text = text.strip_suffix("/v1").unwrap_or(text);
    parse_endpoint(text).map(|endpoint| endpoint.to_string())
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
