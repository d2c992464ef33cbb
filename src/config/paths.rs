//! Paths of the data port: how a pattern matches, and what controls an engine.
//!
//! A pattern is exact but for segments written `{name}`, each of which stands for one segment of a request's path. The
//! engines' control endpoints are known by name here, so that no entry of `server.extra_paths` can open one; a test holds
//! the names against the endpoints that vLLM itself lists.

use super::endpoint::escape;

/// Whether a request's path has this pattern.
pub fn matches(pattern: &str, path: &str) -> bool {
    if pattern == path {
        return true;
    }
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(name), Some(segment)) if is_name(name) => {
                if !is_plain(segment) {
                    return false;
                }
            }
            (Some(literal), Some(segment)) if literal == segment => {}
            _ => return false,
        }
    }
}

/// Checks an entry of `server.extra_paths`.
pub fn check_extra(text: &str) -> Result<(), String> {
    let is_path = text.len() > 1
        && text.starts_with('/')
        && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '%' | '\\'))
        && !text.contains("//")
        && !text.split('/').any(|segment| segment == "." || segment == "..");
    if !is_path {
        return Err(format!("{text:?} is not a path"));
    }
    if text.contains('*') {
        return Err(format!("{text:?} has a wildcard, which would reach control endpoints of an engine"));
    }
    if text.split('/').any(|segment| segment.contains(['{', '}']) && !is_name(segment)) {
        return Err(format!("{text:?} has a brace that is not one whole segment"));
    }
    if let Some(own) = OWN_PATHS.iter().find(|own| overlap(text, own)) {
        return Err(format!("{text} would take {own}, which is answered by the gateway itself"));
    }
    match control_endpoint(text) {
        Some(control) if control == text => {
            Err(format!("{text} controls an engine and is never relayed from the data port"))
        }
        Some(control) => Err(format!(
            "{text} could reach {control}, which controls an engine and is never relayed from the data port"
        )),
        None => Ok(()),
    }
}

/// The control endpoint that a pattern reaches, or could reach.
pub fn control_endpoint(pattern: &str) -> Option<&str> {
    // A word counts in any segment: engines behind a prefix of their own have their endpoints below it.
    let is_control = |segment: &str| {
        let segment = segment.to_ascii_lowercase();
        CONTROL_WORDS.contains(&&*segment)
            || CONTROL_PREFIXES.iter().any(|prefix| segment.starts_with(prefix))
    };
    if pattern.split('/').any(is_control) {
        return Some(pattern);
    }
    CONTROL_PATHS.iter().find(|control| overlap(pattern, control)).copied()
}

/// Whether some path has both patterns. A trailing slash is none: engines redirect or drop it.
fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.trim_end_matches('/').split('/'), other.split('/'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a.eq_ignore_ascii_case(b) || is_name(a) || is_name(b) => {}
            _ => return false,
        }
    }
}

fn is_name(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// Whether a segment of a request means the same to every parser on its way: no empty one, no step up, no separator or
/// control character that is decoded later.
fn is_plain(segment: &str) -> bool {
    if matches!(segment, "" | "." | "..") || segment.contains('\\') {
        return false;
    }
    let mut escapes = segment.split('%');
    escapes.next();
    escapes.all(|rest| {
        escape(rest).is_some_and(|(byte, _)| !matches!(byte, b'/' | b'\\' | b'.' | b'%' | 0..0x20 | 0x7F))
    })
}

/// Whether a decoded text with slashes is as plain as [`matches`] wants each segment.
pub fn is_plain_path(text: &str) -> bool {
    text.split('/').all(is_plain)
}

/// Paths that the gateway answers itself.
const OWN_PATHS: &[&str] = &["/health", "/version", "/v1/models", "/v1/models/{id}"];

/// Segments that belong to endpoints of vLLM and SGLang which change an engine, or tell about it what is an operator's.
const CONTROL_WORDS: &[&str] = &[
    "abort_request", "abort_requests", "adapters", "close_session", "collective_rpc", "configure_logging",
    "continue_generation", "docs", "fault_tolerance", "flush_cache", "freeze_gc", "get_world_size",
    "is_paused", "is_scaling_elastic_ep", "is_sleeping", "kv_event_sources", "metrics", "open_session",
    "openapi.json", "pause", "pause_generation", "redoc", "resume", "scale_elastic_ep", "server_info",
    "set_internal_state", "get_internal_state", "sleep", "slow_down", "wake_up", "weight_checker",
    "weight_info",
];

const CONTROL_PREFIXES: &[&str] = &[
    "destroy_", "dump_", "finish_", "get_weights", "init_weight", "load_lora", "release_", "reset_",
    "resume_memory", "shutdown_", "start_", "stop_", "unload_lora", "update_weight", "weights_",
];

/// Control endpoints that a segment written `{name}` could stand for.
const CONTROL_PATHS: &[&str] = &[
    "/sleep", "/v1/load_lora_adapter", "/adapters/{name}", "/fault_tolerance/{name}",
    "/inference/v1/abort_requests", "/docs/oauth2-redirect",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_plain_segment() {
        for (pattern, path, expected) in [
            ("/v1/custom", "/v1/custom", true),
            ("/v1/custom", "/v1/custom/", false),
            ("/v1/custom", "/v1/Custom", false),
            ("/v1/things/{id}", "/v1/things/a-1", true),
            ("/v1/things/{id}", "/v1/things/a%20b", true),
            ("/v1/things/{id}", "/v1/things", false),
            ("/v1/things/{id}", "/v1/things/", false),
            ("/v1/things/{id}", "/v1/things/a/b", false),
            ("/v1/things/{id}", "/v1/things/..", false),
            ("/v1/things/{id}", "/v1/things/%2e%2e", false),
            ("/v1/things/{id}", "/v1/things/..%2Fsleep", false),
            ("/v1/things/{id}", "/v1/things/a%5Cb", false),
            ("/v1/things/{id}", "/v1/things/a%252Fb", false),
            ("/v1/things/{id}", "/v1/things/a%2", false),
            ("/v1/{a}/x/{b}", "/v1/1/x/2", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn ordinary_paths_may_be_added() {
        for text in [
            "/v1/custom", "/v1/things/{id}", "/v1/things/{id}/parts/{part_id}", "/inference/v1/generate",
            "/v1/audio/speech", "/cohere/v2/chat", "/invocations",
        ] {
            assert_eq!(check_extra(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn nothing_that_controls_an_engine_may_be_added() {
        for text in [
            "/sleep", "/Sleep", "/sleep/", "/prefix/sleep", "/adapters", "/fault_tolerance/apply",
            "/release_kv_cache_memory", "/finish_weight_update", "/weight_checker", "/reset_prefix_cache",
            "/v1/load_lora_adapter", "/{anything}", "/{anything}/", "/v1/{anything}", "/adapters/{name}",
            "/{a}/{b}", "/inference/v1/{x}", "/metrics",
        ] {
            let fault = check_extra(text).unwrap_err();
            assert!(fault.contains("controls an engine") || fault.contains("answered by"), "{text}: {fault}");
        }
    }

    #[test]
    fn a_pattern_that_is_none_says_why() {
        for (text, fault) in [
            ("", "is not a path"),
            ("/", "is not a path"),
            ("v1/x", "is not a path"),
            ("/a?b=1", "is not a path"),
            ("/a%2fb", "is not a path"),
            ("/a/../sleep", "is not a path"),
            ("//sleep", "is not a path"),
            ("/*", "has a wildcard"),
            ("/v1/*/x", "has a wildcard"),
            ("/v1/x{id}", "is not one whole segment"),
            ("/v1/{}", "is not one whole segment"),
            ("/health", "is answered by the gateway itself"),
            ("/v1/models/{id}", "is answered by the gateway itself"),
        ] {
            assert!(check_extra(text).unwrap_err().contains(fault), "{text}");
        }
    }
}
