//! How single values are written: durations, sizes, addresses, URLs, names, digests.
//!
//! Pure functions from text to a typed value, with the words that a person needs when they do not fit. What depends
//! on the file, on other keys or on the environment is not here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::config::endpoint::{absolute_url, parse_target};
use crate::config::{Endpoint, NAME_FORM, parse_endpoint, parse_name, paths};
use crate::digits::bytes_of;

/// One way to write a value.
pub(in crate::config) struct Form<T> {
    /// What it is, with its article, for messages.
    pub(in crate::config) noun: &'static str,
    /// How to write it.
    pub(in crate::config) hint: &'static str,
    /// Reads it; the error says what is wrong with the text.
    pub(in crate::config) parse: fn(&str) -> Result<T, String>,
}

/// A duration that may be zero.
pub(in crate::config) const DURATION: Form<Duration> =
    Form { noun: "a duration", hint: DURATION_HINT, parse: duration };

pub(in crate::config) const POSITIVE_DURATION: Form<Duration> =
    Form { noun: "a duration", hint: DURATION_HINT, parse: positive_duration };

/// A duration between two requests to an engine. A slip in its unit would flood healthy ones.
pub(in crate::config) const INTERVAL: Form<Duration> =
    Form { noun: "a duration", hint: "write at least \"10ms\"", parse: interval };

/// A duration of which zero is off.
pub(in crate::config) const OFF_AT_ZERO: Form<Option<Duration>> = Form {
    noun: DURATION.noun,
    hint: DURATION.hint,
    parse: |text| duration(text).map(|span| (!span.is_zero()).then_some(span)),
};

/// A number of bytes above zero.
pub(in crate::config) const SIZE: Form<usize> =
    Form { noun: "a size", hint: "write a number with its unit (B, KiB, MiB, GiB): \"32MiB\"", parse: size };

/// A rate in bytes; zero is none.
pub(in crate::config) const BYTES_PER_SECOND: Form<u64> =
    Form { noun: SIZE.noun, hint: SIZE.hint, parse: |text| bytes(text).map(|bytes| bytes as u64) };

pub(in crate::config) const ADDRESS: Form<SocketAddr> = Form {
    noun: "an address",
    hint: "write an IP address and a port: \"127.0.0.1:8080\", \"0.0.0.0:8080\", \"[::]:8080\"",
    parse: |text| text.parse().map_err(|_| format!("\"{text}\" is not an IP address with a port")),
};

/// The base URL of a replica.
pub(in crate::config) const ENDPOINT: Form<Endpoint> = Form {
    noun: "a URL",
    hint: "write scheme, host and port: \"http://127.0.0.1:8000\"",
    parse: parse_endpoint,
};

/// The URL of a service that gets requests at that path.
pub(in crate::config) const TARGET: Form<Endpoint> = Form {
    parse: parse_target,
    hint: "write scheme, host, port and path: \"http://127.0.0.1:9100/before\"",
    ..ENDPOINT
};

/// A URL that requests are sent to as it is.
pub(in crate::config) const HTTP_URL: Form<String> = Form {
    noun: "a URL",
    hint: "write scheme, host and port: \"http://127.0.0.1:4318\"",
    parse: |text| absolute_url(text).map(|_| text.to_owned()),
};

/// A name that goes into headers, labels and logs.
pub(in crate::config) const NAME: Form<Arc<str>> =
    Form { noun: "a name", hint: NAME_FORM, parse: parse_name };

/// The name of a route, tenant, pool, revision or replica.
pub(in crate::config) const LABEL: Form<Arc<str>> = Form {
    parse: |text| match text {
        "none" => Err("\"none\" stands for no name in metrics and logs".to_owned()),
        _ => parse_name(text),
    },
    ..NAME
};

/// The name of a model, as engines give it.
pub(in crate::config) const MODEL: Form<Arc<str>> = Form {
    noun: "a model name",
    hint: "write the name that clients or engines use, up to 256 characters",
    parse: |text| {
        let fits = !text.trim().is_empty() && text.len() <= 256 && !text.chars().any(char::is_control);
        if fits { Ok(text.into()) } else { Err(format!("{text:?} is not a model name")) }
    },
};

pub(in crate::config) const HEADER_NAME: Form<http::HeaderName> = Form {
    noun: "a header name",
    hint: "write the bare name of a header, such as \"x-tenant\"",
    parse: |text| text.parse().map_err(|_| format!("{text:?} is not a header name")),
};

/// A further path of the data port.
pub(in crate::config) const EXTRA_PATH: Form<String> = Form {
    noun: "a path",
    hint: "write a path without query, with {name} for a segment: \"/v1/custom\", \"/v1/things/{id}\"",
    parse: |text| paths::check_extra(text).map(|()| text.to_owned()),
};

/// The prefix in front of every path of the data port.
pub(in crate::config) const ROOT_PATH: Form<String> =
    Form { noun: "a path prefix", hint: "write it as clients do: \"/llm\"", parse: root_path };

/// An origin of web pages, or `*`.
pub(in crate::config) const ORIGIN: Form<HeaderValue> = Form {
    noun: "an origin",
    hint: "write scheme, host and port as browsers send them: \"https://app.example\", or \"*\" for all",
    parse: origin,
};

/// The SHA-256 of an API key.
pub(in crate::config) const DIGEST: Form<[u8; 32]> = Form {
    noun: "a SHA-256 digest",
    hint: "write the 64 hexadecimal digits that `printf %s \"$KEY\" | sha256sum` prints",
    parse: digest,
};

/// Reads a duration, zero included.
pub fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9), ("d", 86400e9)];
    // Timers add durations to instants: what no one waits for must not overflow there.
    measured(text, "duration", &UNITS, (MAX_NANOS, "longer than ten years")).map(Duration::from_nanos)
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    if span.is_zero() { Err(format!("\"{text}\" must be above zero")) } else { Ok(span) }
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    if span < MIN_INTERVAL { Err(format!("\"{text}\" is less than 10ms")) } else { Ok(span) }
}

fn size(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0 => Err(format!("\"{text}\" must be above zero")),
        bytes => Ok(bytes),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    const KIB: f64 = 1024.0;
    const UNITS: [(&str, f64); 7] = [
        ("B", 1.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", KIB),
        ("MiB", KIB * KIB),
        ("GiB", KIB * KIB * KIB),
    ];
    let bytes = measured(text, "size", &UNITS, (MAX_BYTES, "more than a machine has"))?;
    usize::try_from(bytes).map_err(|_| format!("\"{text}\" is not a size"))
}

/// A number with one of the units, in the smallest of them; the most that it may be, and what is over that.
fn measured(
    text: &str,
    noun: &str,
    units: &[(&str, f64)],
    (most, excess): (f64, &str),
) -> Result<u64, String> {
    let not_one = || format!("\"{text}\" is not a {noun}");
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = (&text[..at], text[at..].trim_start());
    let number = digits.starts_with(|c: char| c.is_ascii_digit()).then(|| digits.parse::<f64>().ok());
    let number = number.flatten().ok_or_else(not_one)?;
    if unit.is_empty() {
        return Err(format!("\"{text}\" has no unit"));
    }
    let (_, of) = units.iter().find(|(name, _)| *name == unit).ok_or_else(not_one)?;
    let whole = (number * of).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
    if whole > most { Err(format!("\"{text}\" is {excess}")) } else { Ok(whole as u64) }
}

fn root_path(text: &str) -> Result<String, String> {
    let root = text.strip_suffix('/').unwrap_or(text);
    let is_prefix = root.is_empty()
        || root.starts_with('/')
            && root
                .chars()
                .all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '%' | '\\' | '{' | '}' | '*'))
            && !text.contains("//")
            && !root.split('/').any(|part| part == "." || part == "..");
    if is_prefix { Ok(root.to_owned()) } else { Err(format!("{text:?} is not a path prefix")) }
}

fn origin(text: &str) -> Result<HeaderValue, String> {
    let not_one = || format!("{text:?} is not an origin");
    if text != "*" && text != "null" {
        let uri: http::Uri = text.parse().map_err(|_| not_one())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !text.ends_with('/');
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.authority().is_none() || !is_bare {
            return Err(not_one());
        }
    }
    HeaderValue::from_str(&text.to_ascii_lowercase()).map_err(|_| not_one())
}

fn digest(text: &str) -> Result<[u8; 32], String> {
    let bytes = bytes_of(text).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "a key digest must be 64 hexadecimal digits".to_owned())
}

const DURATION_HINT: &str = "write a number above zero with its unit (us, ms, s, m, h, d): \"250ms\"";
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_NANOS: f64 = 3650.0 * 86400e9;
const MAX_BYTES: f64 = 1e15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_decimals_with_a_unit() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("0.1ms", 100_000),
            ("0.15ms", 150_000),
            ("7us", 7_000),
            ("1.5s", 1_500_000_000),
            ("30m", 1_800_000_000_000),
            ("0s", 0),
            ("10 s", 10_000_000_000),
            ("24h", 86_400_000_000_000),
            ("35d", 3_024_000_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.2.3s", ".5s", "1e3s", "5 parsecs", "1s2", "inf", "9999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0ms").is_err());
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (text, bytes) in
            [("32MiB", 32 << 20), ("1GiB", 1 << 30), ("1.5KiB", 1536), ("2MB", 2_000_000), ("12B", 12)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "32", "0B", "1TiBs", "-1B", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!((BYTES_PER_SECOND.parse)("0B"), Ok(0), "no minimum");
    }

    #[test]
    fn origins_and_path_prefixes_are_taken_as_browsers_and_servers_write_them() {
        for text in ["*", "null", "https://app.example", "http://localhost:3000"] {
            assert!(origin(text).is_ok(), "{text}");
        }
        for text in ["", "app.example", "https://app.example/", "https://app.example/x", "ftp://a"] {
            assert!(origin(text).is_err(), "{text}");
        }
        for (text, root) in [("", ""), ("/", ""), ("/llm", "/llm"), ("/a/b/", "/a/b")] {
            assert_eq!(root_path(text).as_deref(), Ok(root));
        }
        for text in ["llm", "/a//b", "/../x", "/a?b", "//"] {
            assert!(root_path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn digests_are_sixty_four_hex_digits() {
        assert_eq!(digest(&"0f".repeat(32)), Ok([0x0f; 32]));
        for text in ["", "9f86d081884c7d65…", &"g".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            assert!(digest(text).is_err(), "{text}");
        }
    }
}
