//! Heads in both forms: Envoy's list of fields, and ours; and what is to be changed to get from one head to another.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri, Version};

use super::proto::{self, HeaderAppendAction, HeaderMutation, HeaderValueOption};
use crate::listener::Peer;
use crate::upstream::headers::is_of_connection;

/// A head with its pseudo-headers, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Head {
    method: Option<Method>,
    path: Option<Uri>,
    pub(super) status: Option<StatusCode>,
    is_https: bool,
    pub(super) headers: HeaderMap,
}

impl Head {
    /// Reads Envoy's list; `None` where a name or a value is none.
    pub(super) fn read(list: Option<proto::HeaderMap>) -> Option<Self> {
        let list = list.unwrap_or_default().headers;
        let mut head = Self { headers: HeaderMap::with_capacity(list.len()), ..Self::default() };
        for proto::HeaderValue { key, value, raw_value } in list {
            let raw = if raw_value.is_empty() { Bytes::from(value) } else { raw_value };
            match &*key {
                ":method" => head.method = Some(Method::from_bytes(&raw).ok()?),
                ":path" => head.path = Some(Uri::try_from(&*raw).ok()?),
                ":status" => head.status = Some(StatusCode::from_bytes(&raw).ok()?),
                ":scheme" => head.is_https = &*raw == b"https",
                key if key.starts_with(':') => {}
                key => {
                    let name = HeaderName::from_bytes(key.as_bytes()).ok()?;
                    head.headers.append(name, HeaderValue::from_maybe_shared(raw).ok()?);
                }
            }
        }
        Some(head)
    }

    /// The declared length of its body.
    pub(super) fn length(&self) -> Option<u64> {
        self.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// The client, by what Envoy adds to `x-forwarded-for`.
    pub(super) fn peer(&self) -> Peer {
        let hops = self.headers.get_all("x-forwarded-for").iter().next_back();
        let last = hops.and_then(|hops| hops.to_str().ok()?.rsplit(',').next());
        let address = last.and_then(|address| address.trim().parse::<IpAddr>().ok());
        Peer { address, is_tls: self.is_https }
    }

    /// The head of a request; `None` where method or path is missing. HTTP/2, which needs no `host`.
    pub(super) fn into_request(self) -> Option<Parts> {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) = (self.method?, self.path?, self.headers);
        parts.version = Version::HTTP_2;
        Some(parts)
    }
}

/// What turns the fields `before` into those `after`. Fields of a connection are Envoy's, as is the length of a body that streams.
pub(super) fn changes(before: &HeaderMap, after: &HeaderMap, is_framed: bool) -> HeaderMutation {
    let is_ours = |name: &&HeaderName| !is_envoys(name) && (is_framed || **name != header::CONTENT_LENGTH);
    let mut changes = HeaderMutation::default();
    for name in after.keys().filter(is_ours) {
        if !before.get_all(name).iter().eq(after.get_all(name).iter()) {
            set(&mut changes, name.as_str(), after.get_all(name).iter());
        }
    }
    let is_gone = |name: &&HeaderName| is_ours(name) && !after.contains_key(*name);
    changes.remove_headers.extend(before.keys().filter(is_gone).map(ToString::to_string));
    changes
}

/// Sets a field, or a pseudo-header, to these values.
pub(super) fn set<'v>(
    changes: &mut HeaderMutation,
    name: &str,
    values: impl Iterator<Item = &'v HeaderValue>,
) {
    let mut action = HeaderAppendAction::OverwriteIfExistsOrAdd;
    for value in values {
        let raw_value = Bytes::copy_from_slice(value.as_bytes());
        let header = proto::HeaderValue { key: name.to_owned(), raw_value, value: String::new() };
        changes.set_headers.push(HeaderValueOption { header: Some(header), append_action: action as i32 });
        action = HeaderAppendAction::AppendIfExistsOrAdd;
    }
}

fn is_envoys(name: &HeaderName) -> bool {
    is_of_connection(name) || matches!(name.as_str(), "host" | "via" | "expect")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn only_what_differs_is_changed_and_the_connection_is_left_alone() {
        let before =
            map(&[("a", "1"), ("b", "1"), ("te", "trailers"), ("gone", "1"), ("content-length", "5")]);
        let after = map(&[("a", "1"), ("b", "2"), ("b", "3"), ("host", "x"), ("content-length", "7")]);
        let changed = |is_framed| {
            let changes = changes(&before, &after, is_framed);
            let set = changes.set_headers.into_iter().map(|option| {
                let header = option.header.unwrap();
                (header.key, header.raw_value, option.append_action)
            });
            let mut set: Vec<_> = set.collect();
            set.sort();
            (set, changes.remove_headers)
        };
        let field = |name: &str, value, action| (name.to_owned(), Bytes::from_static(value), action);
        let b = [field("b", b"2", 2), field("b", b"3", 0)];
        assert_eq!(changed(false), (b.to_vec(), vec!["gone".to_owned()]));
        let length = field("content-length", b"7", 2);
        assert_eq!(changed(true), ([&b[..], &[length]].concat(), vec!["gone".to_owned()]));
    }

    #[test]
    fn a_head_is_read_from_raw_or_plain_values_and_not_from_what_is_none() {
        let field = |key: &str, value: &str, raw: &'static [u8]| proto::HeaderValue {
            key: key.into(),
            value: value.into(),
            raw_value: raw.into(),
        };
        let read = |headers| Head::read(Some(proto::HeaderMap { headers }));
        let head = read(vec![
            field(":method", "", b"POST"),
            field(":path", "/v1/x?y", b""),
            field(":authority", "", b"a"),
            field("x-forwarded-for", "", b"9.9.9.9, 10.0.0.7"),
        ]);
        let head = head.unwrap();
        assert_eq!(head.peer().address, Some(IpAddr::from([10, 0, 0, 7])));
        let parts = head.into_request().unwrap();
        assert_eq!((parts.method, parts.uri.path()), (Method::POST, "/v1/x"));
        assert!(read(vec![field(":method", "GET", b"")]).unwrap().into_request().is_none());
        for (key, raw) in [("a b", &b"x"[..]), ("a", b"x\ny"), (":path", b"\xff"), (":status", b"9")] {
            assert!(read(vec![field(key, "", raw)]).is_none(), "{key}");
        }
    }
}
