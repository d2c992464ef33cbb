//! The upstream blocks of an nginx.conf: a pool and a route each.

use super::super::draft::{Draft, DraftPool, DraftRoute, name_of, quoted};
use super::Notes;
use crate::config::PolicyName;
use crate::request::dialect::SERVED;

/// Maps the file.
///
/// # Errors
/// Which block does not end.
pub(super) fn import(text: &str, notes: &mut Notes) -> Result<Draft, String> {
    let mut draft = Draft::default();
    let (mut open, mut locations): (Vec<Block>, Vec<String>) = (Vec::new(), Vec::new());
    let mut passes = Passes::default();
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
            ('{', ["if", condition @ ..], _) if condition.iter().any(|word| word.contains(AUTHORIZATION)) => {
                notes.left(format_args!("line {line}: if ({AUTHORIZATION}"), LETS_IN);
                open.push(block);
            }
            ('{', ["location", rest @ ..], _) => {
                open.push(Block::Location(locations.len()));
                // A regular expression or a name is no prefix.
                let prefix = rest.last().filter(|_| !rest[0].starts_with(['~', '@']));
                locations.push(prefix.copied().unwrap_or_default().to_owned());
            }
            ('{', _, Block::Location(at)) => open.push(Block::Location(at)),
            ('{', _, _) => open.push(Block::Other),
            ('}', _, _) => drop(open.pop().ok_or_else(|| format!("line {line}: a }} closes nothing"))?),
            (_, [], _) | (_, _, Block::Skipped) => {}
            (_, ["server", address, rest @ ..], Block::Upstream(at)) => {
                server(&mut draft.pools[at], address, rest, notes);
            }
            (_, words, Block::Upstream(at)) => upstream_directive(&mut draft, at, words, notes),
            (_, ["rewrite", ..], Block::Location(at)) => {
                // What is sent on no longer begins with the location.
                locations[at].clear();
                notes.left(format_args!("line {line}: rewrite"), OTHER_PATHS);
            }
            (_, ["proxy_pass", url], Block::Other | Block::Location(_)) => {
                let location = match block {
                    Block::Location(at) => locations.get(at).map_or("", String::as_str),
                    _ => "",
                };
                if let Err(why) = passes.add(url, location) {
                    notes.left(format_args!("line {line}: proxy_pass {url}"), why);
                }
            }
            (_, [name, ..], _) => notes.left(format_args!("line {line}: {name}"), why(name)),
        }
    }
    if !open.is_empty() {
        return Err("a block does not end: the file is cut".to_owned());
    }
    let Passes { all, root } = passes;
    draft
        .server
        .extend(root.map(|root| format!("root_path = {}   # paths may begin with it", quoted(&root))));
    as_passed(&mut draft, &all, notes);
    straight(&mut draft, &all, notes);
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
    /// In the location of that index, however deep.
    Location(usize),
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
    /// What the engines' paths begin with there.
    base: String,
}

#[derive(Default)]
struct Passes {
    all: Vec<Pass>,
    /// What clients' paths may begin with: one for all.
    root: Option<String>,
}

impl Passes {
    /// Adds one that stands in a location; the error is what is not in the result.
    fn add(&mut self, url: &str, location: &str) -> Result<(), &'static str> {
        let url = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
        let (scheme, rest) = url.ok_or(NO_URL)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.is_empty() || host == "unix:" {
            return Err(NO_URL);
        }
        let base = moved(location, path).ok_or(OTHER_PATHS).and_then(|(root, base)| {
            let known: &str =
                if root.is_empty() { root } else { self.root.get_or_insert_with(|| root.to_owned()) };
            if known == root { Ok(base) } else { Err(OTHER_ROOT) }
        });
        let (scheme, host) = (scheme.to_owned(), host.to_owned());
        self.all.push(Pass { scheme, host, base: base.unwrap_or_default().to_owned() });
        base.map(drop)
    }
}

/// What stands before the engine's own paths in clients' requests to a location, and in those that are sent on: the location is
/// replaced by the URL's path. `None` where that is no matter of a prefix.
fn moved<'a>(location: &'a str, path: &'a str) -> Option<(&'a str, &'a str)> {
    if location.is_empty() {
        return path.is_empty().then_some(("", ""));
    }
    let served = || SERVED.iter().map(|(path, _)| *path).chain(["/v1/models", "/health", "/version"]);
    let mut starts = location.match_indices('/').map(|(at, _)| at);
    let own = starts.find(|at| served().any(|served| served.starts_with(&location[*at..])));
    let (root, own) = location.split_at(own.unwrap_or(location.len()));
    let path = match path {
        "" if own.is_empty() => return None,
        "" => location,
        path => path,
    };
    let base = path.strip_suffix(own)?;
    (!path.contains(['$', '?']) && !base.ends_with('/') && !base.ends_with("/v1")).then_some((root, base))
}

const LETS_IN: &str = "without a [[tenant]] with keys, or [auth.jwt], everybody is let in";
const NO_URL: &str = "no http:// or https:// URL";
const AUTHORIZATION: &str = "$http_authorization";
const OTHER_PATHS: &str =
    "what it makes of a path is not what server.root_path and the path of a replica's URL do";
const OTHER_ROOT: &str = "another location has its prefix as server.root_path, which is one for all";

/// Why a directive outside of upstream blocks is not in the result.
fn why(name: &str) -> &'static str {
    match name {
        "auth_basic" | "auth_basic_user_file" | "auth_request" | "auth_jwt" | "auth_jwt_key_file" => LETS_IN,
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
        let Pass { scheme, host, base } = pass;
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
        let url = format!("{scheme}://{host}{base}");
        let of_host = |known: &String| known.strip_prefix(&format!("{scheme}://{host}")).is_some_and(is_path);
        if let Some(pool) = draft.pools.iter().find(|pool| pool.replicas.iter().any(of_host)) {
            notes.left(
                format_args!("proxy_pass {url}"),
                &format!("its host is a replica of pool {}", pool.name),
            );
            continue;
        }
        let name = draft.free_name(&[name_of(host)]);
        let mut pool = DraftPool { name: name.clone(), ..DraftPool::default() };
        notes.add_replica(&mut pool.replicas, &url);
        if !pool.replicas.is_empty() {
            add(draft, &name, pool);
        }
    }
}

fn is_path(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// Servers have `https://` and the path in their URLs with which `proxy_pass` asks them.
fn as_passed(draft: &mut Draft, passes: &[Pass], notes: &mut Notes) {
    for (pool, DraftRoute { model: upstream, .. }) in draft.pools.iter_mut().zip(&draft.routes) {
        let of_it = || passes.iter().filter(|pass| pass.host == *upstream);
        let Some(Pass { base, .. }) = of_it().next() else { continue };
        for Pass { base: other, .. } in of_it().filter(|pass| pass.base != *base) {
            notes.left(
                format_args!("proxy_pass to {upstream}{other}"),
                "another one is taken, which leads there too",
            );
        }
        pool.replicas.iter_mut().for_each(|url| url.push_str(base));
        if of_it().all(|pass| pass.scheme == "http") {
            continue;
        }
        if of_it().any(|pass| pass.scheme == "http") {
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
