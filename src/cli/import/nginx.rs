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
    let (mut open, mut elsewhere): (Vec<Option<usize>>, usize) = (Vec::new(), 0);
    for (line, words, end) in directives(text) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (end, words.as_slice(), open.last().copied().flatten()) {
            ('{', ["upstream", name], _) => {
                draft.pools.push(DraftPool { name: name_of(name), ..DraftPool::default() });
                draft.routes.push(DraftRoute {
                    model: (*name).to_owned(),
                    pools: vec![(name_of(name), 1)],
                    ..DraftRoute::default()
                });
                open.push(Some(draft.pools.len() - 1));
            }
            ('{', _, _) => open.push(None),
            ('}', _, _) => drop(open.pop().ok_or_else(|| format!("line {line}: a }} closes nothing"))?),
            (_, [], _) => {}
            (_, ["server", address, rest @ ..], Some(at)) => {
                server(&mut draft.pools[at], address, rest, notes);
            }
            (_, words, Some(at)) => upstream_directive(&mut draft, at, words, notes),
            _ => elsewhere += 1,
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
    drop_empty(&mut draft, notes);
    if let [route] = draft.routes.as_mut_slice() {
        route.model = "*".to_owned();
    } else if draft.routes.len() > 1 {
        notes.add("each upstream's name became the model that clients ask for: set model of each [[route]]");
    }
    Ok(draft)
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
    match PolicyName::from_elsewhere(name) {
        Some(policy) => {
            notes.add(format!("{}: {} here", words.join(" "), policy.as_str()));
            draft.routes[at].policy = Some(policy);
        }
        None if *name == "keepalive" => notes.add("keepalive: connections are always kept"),
        None => notes.left(words.join(" "), "no counterpart"),
    }
}

/// Directives with the line where they end and what ended them: `;`, `{` or `}`.
fn directives(text: &str) -> Vec<(usize, Vec<String>, char)> {
    let mut found = Vec::new();
    let mut words = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default();
        let mut word = String::new();
        for c in code.chars().chain([' ']) {
            match c {
                ';' | '{' | '}' => {
                    words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                    found.push((at + 1, std::mem::take(&mut words), c));
                }
                c if c.is_whitespace() => {
                    words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                }
                c => word.push(c),
            }
        }
    }
    found
}
