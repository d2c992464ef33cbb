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
    let (mut open, mut elsewhere): (Vec<Block>, usize) = (Vec::new(), 0);
    let mut passes = Vec::new();
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
            ('{', ["upstream", name], _) => {
                let pool = draft.free_name(&[name_of(name)]);
                draft.pools.push(DraftPool { name: pool.clone(), ..DraftPool::default() });
                draft.routes.push(DraftRoute {
                    model: (*name).to_owned(),
                    pools: vec![(pool, 1)],
                    ..DraftRoute::default()
                });
                open.push(Block::Upstream(draft.pools.len() - 1));
            }
            ('{', _, _) => open.push(Block::Other),
            ('}', _, _) => drop(open.pop().ok_or_else(|| format!("line {line}: a }} closes nothing"))?),
            (_, [], _) => {}
            (_, ["server", address, rest @ ..], Block::Upstream(at)) => {
                server(&mut draft.pools[at], address, rest, notes);
            }
            (_, words, Block::Upstream(at)) => upstream_directive(&mut draft, at, words, notes),
            (_, words, _) => {
                elsewhere += 1;
                if let ["proxy_pass", url] = words {
                    passes.extend(url.split_once("://").map(|(scheme, rest)| {
                        (scheme.to_owned(), rest.split('/').next().unwrap_or_default().to_owned())
                    }));
                }
            }
        }
    }
    if !open.is_empty() {
        return Err("a block does not end: the file is cut".to_owned());
    }
    if elsewhere > 0 {
        notes.left(
            format_args!("{elsewhere} directives outside of upstream blocks"),
            "only upstream blocks are read",
        );
    }
    over_tls(&mut draft, &passes, notes);
    drop_empty(&mut draft, notes);
    if let [route] = draft.routes.as_mut_slice() {
        route.model = "*".to_owned();
    } else if draft.routes.len() > 1 {
        notes.add("each upstream's name became the model that clients ask for: set model of each [[route]]");
    }
    Ok(draft)
}

/// Where a directive stands.
#[derive(Clone, Copy)]
enum Block {
    /// In the pool of that index.
    Upstream(usize),
    /// In `stream`, however deep.
    Stream,
    Other,
}

/// Servers that `proxy_pass` asks over TLS have an https:// URL; `passes` are scheme and upstream of each.
fn over_tls(draft: &mut Draft, passes: &[(String, String)], notes: &mut Notes) {
    for (pool, DraftRoute { model: upstream, .. }) in draft.pools.iter_mut().zip(&draft.routes) {
        let of_it = passes.iter().filter(|(_, name)| name == upstream);
        let schemes: Vec<&str> = of_it.map(|(scheme, _)| scheme.as_str()).collect();
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
