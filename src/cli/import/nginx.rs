//! The upstream blocks of an nginx.conf: a pool and a route each.

use super::super::draft::{Draft, DraftPool, DraftRoute, name_of};
use super::Notes;
use crate::config::PolicyName;

/// Maps the file.
///
/// # Errors
/// Which block does not end.
pub(super) fn import(text: &str, notes: &mut Notes) -> Result<Draft, String> {
    let mut draft = Draft::default();
    let (mut open, mut passes): (Vec<Block>, Vec<Pass>) = (Vec::new(), Vec::new());
    for (line, words, end) in directives(text) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let block = open.last().copied().unwrap_or(Block::Other);
        match (end, words.as_slice(), block) {
            ('{', ["stream"], _) => open.push(Block::Stream),
            ('{', [kind, rest @ ..], Block::Stream) => {
                if *kind == "upstream" {
                    notes.left(format_args!("upstream {}", rest.join(" ")), "of TCP streams, not of HTTP");
                }
                open.push(Block::Stream);
            }
            ('{', _, Block::Skipped) => open.push(Block::Skipped),
            ('{', ["upstream", name], _) => {
                let pool = DraftPool { name: draft.free_name(&[name_of(name)]), ..DraftPool::default() };
                add(&mut draft, name, pool);
                open.push(Block::Upstream(draft.pools.len() - 1));
            }
            ('{', [kind, ..], _) if has_own_form(kind) => {
                notes.left(
                    format_args!("line {line}: {kind}"),
                    "only upstream blocks and proxy_pass are read",
                );
                open.push(Block::Skipped);
            }
            ('{', _, _) => open.push(Block::Other),
            ('}', _, _) => drop(open.pop().ok_or_else(|| format!("line {line}: a }} closes nothing"))?),
            (_, [], _) | (_, _, Block::Skipped) => {}
            (_, ["server", address, rest @ ..], Block::Upstream(at)) => {
                server(&mut draft.pools[at], address, rest, notes);
            }
            (_, words, Block::Upstream(at)) => upstream_directive(&mut draft, at, words, notes),
            (_, ["proxy_pass", url], Block::Other) => match Pass::read(url) {
                Some(pass) => passes.push(pass),
                None => {
                    notes.left(format_args!("line {line}: proxy_pass {url}"), "no http:// or https:// URL");
                }
            },
            (_, [name, ..], _) => notes.left(format_args!("line {line}: {name}"), why(name)),
        }
    }
    if !open.is_empty() {
        return Err("a block does not end: the file is cut".to_owned());
    }
    over_tls(&mut draft, &passes, notes);
    straight(&mut draft, &passes, notes);
    drop_empty(&mut draft, notes);
    if let [route] = draft.routes.as_mut_slice() {
        route.model = "*".to_owned();
    } else if draft.routes.len() > 1 {
        notes.add("each upstream's name became the model that clients ask for: set model of each [[route]]");
    }
    Ok(draft)
}

/// Adds a pool with a route of its own.
fn add(draft: &mut Draft, model: &str, pool: DraftPool) {
    let pools = vec![(pool.name.clone(), 1)];
    draft.routes.push(DraftRoute { model: model.to_owned(), pools, ..DraftRoute::default() });
    draft.pools.push(pool);
}

/// Where a directive stands.
#[derive(Clone, Copy)]
enum Block {
    /// In the pool of that index.
    Upstream(usize),
    /// In `stream`, however deep.
    Stream,
    /// In one whose entries are no directives.
    Skipped,
    Other,
}

/// Whether a block has entries of its own form: tables, and programs.
fn has_own_form(kind: &str) -> bool {
    matches!(kind, "types" | "map" | "geo" | "split_clients" | "match") || kind.ends_with("_block")
}

/// Where a `proxy_pass` leads.
#[derive(PartialEq, Eq)]
struct Pass {
    scheme: String,
    /// The name of an upstream, or a host with its port.
    host: String,
}

impl Pass {
    fn read(url: &str) -> Option<Self> {
        let (scheme, rest) =
            url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
        let host = rest.split('/').next().filter(|host| !host.is_empty() && *host != "unix:")?;
        Some(Self { scheme: scheme.to_owned(), host: host.to_owned() })
    }
}

/// Why a directive outside of upstream blocks is not in the result.
fn why(name: &str) -> &'static str {
    match name {
        "auth_basic" | "auth_basic_user_file" | "auth_request" | "auth_jwt" | "auth_jwt_key_file" => {
            "without a [[tenant]] with keys, or [auth.jwt], everybody is let in"
        }
        "allow" | "deny" => "no counterpart: everybody who reaches the port is let in",
        "client_max_body_size" => "see server.body_limit",
        "proxy_read_timeout" | "proxy_send_timeout" | "proxy_connect_timeout" => "see [timeouts]",
        "limit_req" | "limit_req_zone" | "limit_conn" | "limit_conn_zone" => "see tenant.limits",
        "listen" | "server_name" => "see server.listen",
        "ssl_certificate" | "ssl_certificate_key" => "see server.tls",
        "proxy_buffering" | "proxy_cache" | "proxy_http_version" => {
            "not needed: answers are streamed as they come"
        }
        _ => "only upstream blocks and proxy_pass are read",
    }
}

/// Hosts that `proxy_pass` names itself are replicas, each of a pool of its own.
fn straight(draft: &mut Draft, passes: &[Pass], notes: &mut Notes) {
    for (at, pass) in passes.iter().enumerate() {
        let Pass { scheme, host } = pass;
        let is_known = draft.routes.iter().any(|route| route.model == *host);
        if is_known || passes[..at].contains(pass) {
            continue;
        }
        if host.contains('$') {
            notes.left(
                format_args!("proxy_pass {scheme}://{host}"),
                "its host is known by each request alone",
            );
            continue;
        }
        let name = draft.free_name(&[name_of(host)]);
        let mut pool = DraftPool { name: name.clone(), ..DraftPool::default() };
        notes.add_replica(&mut pool.replicas, &format!("{scheme}://{host}"));
        if !pool.replicas.is_empty() {
            add(draft, &name, pool);
        }
    }
}

/// Servers that `proxy_pass` asks over TLS have an https:// URL.
fn over_tls(draft: &mut Draft, passes: &[Pass], notes: &mut Notes) {
    for (pool, DraftRoute { model: upstream, .. }) in draft.pools.iter_mut().zip(&draft.routes) {
        let of_it = passes.iter().filter(|pass| pass.host == *upstream);
        let schemes: Vec<&str> = of_it.map(|pass| pass.scheme.as_str()).collect();
        if !schemes.contains(&"https") {
            continue;
        }
        if schemes.contains(&"http") {
            notes.left(format_args!("proxy_pass http://{upstream}"), "https:// is taken, which asks it too");
        }
        notes.add(format!("proxy_pass https://{upstream}: its servers are https:// here"));
        for url in &mut pool.replicas {
            *url = url.replacen("http://", "https://", 1);
        }
    }
}

/// A pool needs a replica: an upstream of which none was taken is none.
fn drop_empty(draft: &mut Draft, notes: &mut Notes) {
    let (pools, empty): (Vec<_>, Vec<_>) =
        draft.pools.drain(..).partition(|pool: &DraftPool| !pool.replicas.is_empty());
    draft.pools = pools;
    for pool in empty {
        draft.routes.retain(|route| route.pools.iter().all(|(name, _)| *name != pool.name));
        notes.left(format_args!("upstream {}", pool.name), "none of its servers was taken");
    }
}

fn server(pool: &mut DraftPool, address: &str, rest: &[&str], notes: &mut Notes) {
    let what = format!("server {address}");
    if rest.contains(&"down") {
        return notes.left(what, "it is marked down");
    }
    if rest.contains(&"backup") {
        return notes.left(
            what,
            "it is a backup: list it in a pool of its own with standby = true, which the route names too",
        );
    }
    if address.starts_with("unix:") {
        return notes.left(what, "a socket file is no URL");
    }
    for parameter in rest {
        notes.left(format_args!("{what} {parameter}"), "replicas are weighed and ejected by how they answer");
    }
    notes.add_replica(&mut pool.replicas, &format!("http://{address}"));
}

fn upstream_directive(draft: &mut Draft, at: usize, words: &[&str], notes: &mut Notes) {
    let Some(name) = words.first() else { return };
    // `random two least_conn` is the last of its words.
    let name = if *name == "random" { words.get(2).unwrap_or(name) } else { name };
    match PolicyName::from_elsewhere(name) {
        Some(_) => draft.routes[at].policy = notes.policy(&words.join(" "), name),
        None if *name == "keepalive" => notes.add("keepalive: connections are always kept"),
        None => notes.left(words.join(" "), "no counterpart"),
    }
}

/// Directives with the line where they end and what ended them: `;`, `{` or `}`. In quotes, after a backslash and in `${name}` these
/// are ordinary characters; `#` begins a comment where a word would begin.
fn directives(text: &str) -> Vec<(usize, Vec<String>, char)> {
    let (mut found, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    let (mut line, mut rest) = (1, text.chars());
    while let Some(c) = rest.next() {
        line += usize::from(c == '\n');
        match (quote, c) {
            (_, '\\') => word.get_or_insert_default().extend(rest.next()),
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') if word.is_none() => (word, quote) = (Some(String::new()), Some(c)),
            (None, '#') if word.is_none() => {
                line += usize::from(rest.any(|c| c == '\n'));
            }
            (None, '{') if word.as_deref().is_some_and(|word| word.ends_with('$')) => {
                let name = rest.by_ref().take_while(|c| *c != '}');
                word.get_or_insert_default().extend(name);
            }
            (None, ';' | '{' | '}') => {
                words.extend(word.take());
                found.push((line, std::mem::take(&mut words), c));
            }
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    found
}
