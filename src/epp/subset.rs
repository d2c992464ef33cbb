//! The endpoints that Envoy lets a request go to: `envoy.lb.subset_hint` of its metadata.

use std::net::SocketAddr;

use super::proto::{Kind, Metadata, Value};

/// The subset of a request; `None` where Envoy gives none. An entry that is no address matches no replica.
pub(super) fn subset_of(metadata: Option<&Metadata>) -> Option<Box<[SocketAddr]>> {
    let hint = metadata?.filter_metadata.get(NAMESPACE)?.fields.get(KEY)?;
    let entries = match &hint.kind {
        Some(Kind::List(list)) => list.values.iter().filter_map(text).collect(),
        _ => Vec::from_iter(text(hint)),
    };
    // A list, or one text with commas, as data planes before list values wrote it.
    let addresses = entries.into_iter().flat_map(|entry| entry.split(','));
    Some(addresses.filter_map(|entry| entry.trim().parse().ok()).collect())
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::Text(text)) => Some(text),
        _ => None,
    }
}

const NAMESPACE: &str = "envoy.lb.subset_hint";
const KEY: &str = "x-gateway-destination-endpoint-subset";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::proto::{ListValue, Struct};
    use super::*;

    fn hint(kind: Option<Kind>) -> Option<Box<[SocketAddr]>> {
        let fields = HashMap::from([(KEY.to_owned(), Value { kind })]);
        let filter_metadata = HashMap::from([(NAMESPACE.to_owned(), Struct { fields })]);
        subset_of(Some(&Metadata { filter_metadata }))
    }

    #[test]
    fn a_subset_is_a_list_or_a_text_and_may_be_empty() {
        let text = |text: &str| Value { kind: Some(Kind::Text(text.into())) };
        let list = |values: &[&str]| {
            Some(Kind::List(ListValue { values: values.iter().map(|value| text(value)).collect() }))
        };
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(subset_of(None), None);
        assert_eq!(subset_of(Some(&Metadata::default())), None);
        assert_eq!(hint(list(&[])), Some([].into()));
        assert_eq!(hint(None), Some([].into()));
        assert_eq!(hint(list(&["10.0.0.1:8000", "x"])), Some([address("10.0.0.1:8000")].into()));
        let both = [address("10.0.0.1:8000"), address("[::1]:80")];
        assert_eq!(hint(text("10.0.0.1:8000, [::1]:80").kind), Some(both.into()));
    }
}
