//! Headers that few requests have, found in one pass over those that one has: to look each of them up takes as long as the pass.

use http::HeaderMap;

/// Which of these headers there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare(u16);

impl Rare {
    pub(crate) const CONNECTION: Self = Self(1);
    pub(crate) const CONTENT_ENCODING: Self = Self(1 << 1);
    pub(crate) const COOKIE: Self = Self(1 << 2);
    pub(crate) const EXPECT: Self = Self(1 << 3);
    pub(crate) const REQUEST_ID: Self = Self(1 << 4);
    pub(crate) const SESSION_ID: Self = Self(1 << 5);
    pub(crate) const SLO_CLASS: Self = Self(1 << 6);
    pub(crate) const TRACEPARENT: Self = Self(1 << 7);
    pub(crate) const TRANSFER_ENCODING: Self = Self(1 << 8);
    pub(crate) const VIA: Self = Self(1 << 9);
    pub(crate) const VLLM_PRIORITY: Self = Self(1 << 10);
    /// Those by which a body may be refused.
    pub(crate) const CODINGS: Self =
        Self(Self::CONTENT_ENCODING.0 | Self::EXPECT.0 | Self::TRANSFER_ENCODING.0);

    /// Those of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        headers.keys().fold(Self::default(), |all, name| Self(all.0 | Self::named(name.as_str()).0))
    }

    /// Whether one of these is there.
    pub(crate) fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    fn named(name: &str) -> Self {
        match name {
            "connection" => Self::CONNECTION,
            "content-encoding" => Self::CONTENT_ENCODING,
            "cookie" => Self::COOKIE,
            "expect" => Self::EXPECT,
            "traceparent" => Self::TRACEPARENT,
            "transfer-encoding" => Self::TRANSFER_ENCODING,
            "via" => Self::VIA,
            "x-request-id" => Self::REQUEST_ID,
            "x-session-id" => Self::SESSION_ID,
            "x-slo-class" => Self::SLO_CLASS,
            "x-vllm-priority" => Self::VLLM_PRIORITY,
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn each_is_found_by_its_name_alone() {
        let names = [
            ("connection", Rare::CONNECTION),
            ("content-encoding", Rare::CONTENT_ENCODING),
            ("cookie", Rare::COOKIE),
            ("expect", Rare::EXPECT),
            ("traceparent", Rare::TRACEPARENT),
            ("transfer-encoding", Rare::TRANSFER_ENCODING),
            ("via", Rare::VIA),
            ("x-request-id", Rare::REQUEST_ID),
            ("x-session-id", Rare::SESSION_ID),
            ("x-slo-class", Rare::SLO_CLASS),
            ("x-vllm-priority", Rare::VLLM_PRIORITY),
            ("content-type", Rare::default()),
        ];
        for (name, own) in names {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("x"))]);
            let found = names.map(|(_, one)| Rare::of(&headers).has(one));
            assert_eq!(found, names.map(|(_, one)| one.0 == own.0 && own.0 != 0), "{name}");
        }
    }
}
