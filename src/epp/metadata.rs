//! What Envoy's metadata holds: where a request may go (`envoy.lb.subset_hint`), and which endpoint answered it (`envoy.lb`).

use std::net::SocketAddr;

use super::proto::{Kind, Metadata, Value};

/// The subset of a request; `None` where Envoy gives none. An entry that is no address matches no replica.
pub(super) fn subset_of(metadata: Option<&Metadata>) -> Option<Box<[SocketAddr]>> {
    let hint = entry(metadata?, SUBSET_NAMESPACE, SUBSET)?;
    let entries = match &hint.kind {
        Some(Kind::List(list)) => list.values.iter().filter_map(text).collect(),
        _ => Vec::from_iter(text(hint)),
    };
    // A list, or one text with commas, as data planes before list values wrote it.
    let addresses = entries.into_iter().flat_map(|entry| entry.split(','));
    Some(addresses.filter_map(|entry| entry.trim().parse().ok()).collect())
}

/// The endpoint that answered; `None` where Envoy names none.
pub(super) fn served(metadata: Option<&Metadata>) -> Option<SocketAddr> {
    text(entry(metadata?, NAMESPACE, SERVED)?)?.trim().parse().ok()
}

fn entry<'m>(metadata: &'m Metadata, namespace: &str, key: &str) -> Option<&'m Value> {
    metadata.filter_metadata.get(namespace)?.fields.get(key)
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::Text(text)) => Some(text),
        _ => None,
    }
}

const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// The default namespace of what is picked and of what served.
pub(super) const NAMESPACE: &str = "envoy.lb";
const SERVED: &str = "x-gateway-destination-endpoint-served";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::proto::{ListValue, Struct};
    use super::*;

    fn hint(kind: Option<Kind>) -> Option<Box<[SocketAddr]>> {
        subset_of(Some(&holding(SUBSET_NAMESPACE, SUBSET, kind)))
    }

    fn holding(namespace: &str, key: &str, kind: Option<Kind>) -> Metadata {
        let fields = HashMap::from([(key.to_owned(), Value { kind })]);
        Metadata { filter_metadata: HashMap::from([(namespace.to_owned(), Struct { fields })]) }
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

    #[test]
    fn the_endpoint_that_served_is_an_address_or_unknown() {
        let of = |text: &str| served(Some(&holding(NAMESPACE, SERVED, Some(Kind::Text(text.into())))));
        assert_eq!(of("10.0.0.1:8000"), "10.0.0.1:8000".parse().ok());
        assert_eq!(of("[fd00::1]:80"), "[fd00::1]:80".parse().ok());
        assert_eq!((of(""), of("engine-0"), served(None)), (None, None, None));
        assert_eq!(served(Some(&holding(NAMESPACE, SERVED, None))), None);
    }
}
