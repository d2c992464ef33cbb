//! URLs and names of replicas as people and files write them.
//!
//! Beside `check`, because sources of replicas bring new ones while the gateway runs.

use std::sync::Arc;

use super::Endpoint;

/// Reads the base URL of a replica.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let endpoint = parse_target(text)?;
    let base_path = endpoint.base_path.trim_end_matches('/');
    if base_path.ends_with("/v1") {
        return Err(format!("\"{text}\" must end before /v1, which clients' paths bring along"));
    }
    Ok(Endpoint { base_path: base_path.into(), ..endpoint })
}

/// Reads a URL whose path is asked for as it is written.
pub(super) fn parse_target(text: &str) -> Result<Endpoint, String> {
    let uri = absolute_url(text)?;
    let is_tls = uri.scheme_str() == Some("https");
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    Ok(Endpoint {
        is_tls,
        host: host.to_ascii_lowercase().into(),
        port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
        base_path: Some(uri.path()).filter(|path| *path != "/").unwrap_or_default().into(),
    })
}

/// Reads a URL that has a host and neither user nor query.
pub(super) fn absolute_url(text: &str) -> Result<http::Uri, String> {
    let uri: http::Uri = text.parse().map_err(|_| format!("\"{text}\" is not a URL"))?;
    let Some(authority) = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https")))
    else {
        return Err(format!("\"{text}\" does not start with http:// or https://"));
    };
    if authority.as_str().contains('@') {
        return Err("a URL must not carry a user or a password".to_owned());
    }
    if uri.query().is_some() || text.contains('#') {
        return Err(format!("\"{text}\" must have no query and no fragment"));
    }
    let after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let has_port = after_host.strip_prefix(':').map(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if has_port == Some(false) {
        return Err(format!("\"{text}\" has no port between 1 and 65535"));
    }
    if authority.host().is_empty() {
        return Err(format!("\"{text}\" has no host"));
    }
    Ok(uri)
}

/// Reads a name that goes into headers, labels and logs.
pub fn parse_name(text: &str) -> Result<Arc<str>, String> {
    let fits = (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | ',' | ';'));
    if fits { Ok(text.into()) } else { Err(format!("{text:?} is not a name")) }
}

/// Text as one segment of a path, or as a value of a query (RFC 3986).
pub fn segment(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Text without its percent-encoding (RFC 3986); what is no such encoding stays.
pub(crate) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = escape(part).unwrap_or((b'%', part));
        bytes.push(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

/// The byte of an escape, whose `%` stands before the text, and what is behind it.
pub(super) fn escape(text: &str) -> Option<(u8, &str)> {
    let (hex, rest) = text.split_at_checked(2)?;
    // A number may have a sign.
    let hex = Some(hex).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((u8::from_str_radix(hex, 16).ok()?, rest))
}

/// The longest name, in characters.
pub const MAX_NAME: usize = 128;
/// What [`parse_name`] takes, for people.
pub const NAME_FORM: &str =
    "use 1 to 128 visible ASCII characters without spaces, quotes, commas or semicolons";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_two_hexadecimal_digits() {
        for (text, decoded) in
            [("a%2Fb%2f", "a/b/"), ("%+5", "%+5"), ("%2", "%2"), ("%é2", "%é2"), ("%%41", "%A")]
        {
            assert_eq!(percent_decoded(text), decoded.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(segment("meta/llama 8b"), "meta%2Fllama%208b");
        assert_eq!(segment("chat-1.0_x~"), "chat-1.0_x~");
        assert_eq!(segment("a/b?c é"), "a%2Fb%3Fc%20%C3%A9");
        assert_eq!(segment("../drain?x"), "..%2Fdrain%3Fx");
        assert_eq!(segment("eyJ2+/=&é"), "eyJ2%2B%2F%3D%26%C3%A9");
    }

    #[test]
    fn endpoints_are_taken_apart() {
        for (text, shown) in [
            ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
            ("http://gpu-1/", "http://gpu-1:80"),
            ("https://GPU.example/base/", "https://gpu.example:443/base"),
            ("http://[::1]:8000", "http://[::1]:8000"),
        ] {
            assert_eq!(parse_endpoint(text).unwrap().to_string(), shown, "{text}");
        }
        let webhook = parse_target("https://hooks.example/services/T0/secret").unwrap();
        assert_eq!(webhook.origin(), "https://hooks.example:443");
        for (text, path) in
            [("http://a", ""), ("http://a/", ""), ("http://a/before/", "/before/"), ("http://a/v1", "/v1")]
        {
            assert_eq!(&*parse_target(text).unwrap().base_path, path, "{text}");
        }
        for text in [
            "", "127.0.0.1:8001", "ftp://a:1", "http://", "http://u:p@a:1", "http://a:1?x=1", "http://a:1#x",
            "http://a:99999", "http://a:0", "http://a:", "http://:80", "http://a:1/v1", "http://a b:1",
        ] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
    }
}
