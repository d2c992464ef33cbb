//! Where Envoy is to send a request: its addresses and its path.

use std::num::NonZeroU32;

use tokenway::config::DataParallel;

use super::envoy::{DUPLEX, Envoy, changed, fields};
use super::proto::{BodySendMode, HttpHeaders, Order};
use super::{BODY, Picker, WHOLE};
use crate::support::config;

#[tokio::test]
async fn ranks_of_one_host_are_one_destination() {
    let ([one, two, three], picker) = Picker::before(|config| {
        config.pools[0].data_parallel = DataParallel::Ranks(NonZeroU32::new(4).unwrap());
    })
    .await;
    let (_envoy, placed) = picker.placed(BODY).await;
    let mut endpoints = placed.endpoints();
    endpoints.sort_unstable();
    let mut names = [one.name(), two.name(), three.name()];
    names.sort_unstable();
    assert_eq!(endpoints, names, "the choice and two hosts to fall back to: {}", placed.destination);
}

fn to(path: &str) -> HttpHeaders {
    let pseudo = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "a")];
    HttpHeaders { headers: Some(fields(&pseudo)), end_of_stream: false }
}

#[tokio::test]
async fn the_path_is_the_one_that_serve_would_send() {
    for (root, base, path, expected) in [
        ("", "", "/v1/chat/completions?a=b", None),
        ("/llm", "", "/v1/chat/completions", None),
        ("/llm", "", "/llm/v1/chat/completions?a=b", Some("/v1/chat/completions?a=b")),
        ("", "/base", "/v1/chat/completions", Some("/base/v1/chat/completions")),
        ("/llm", "/base", "/llm/v1/chat/completions", Some("/base/v1/chat/completions")),
        ("/llm", "/llm", "/llm/v1/chat/completions", None),
    ] {
        let (_replicas, mut config) = config::fresh::<2>().await;
        config.server.root_path = root.into();
        config.pools[0].replicas.iter_mut().for_each(|replica| replica.endpoint.base_path = base.into());
        let picker = Picker::start(config).await;
        let mut envoy = picker.request(to(path), DUPLEX, BODY).await;
        let placed = envoy.placed().await;
        assert_eq!(placed.value(":path"), expected, "{root} {base} {path}");
        assert_eq!(placed.endpoints().len(), 2);
        // The new path would lead to another route of Envoy, or to none.
        assert_eq!(placed.selects_route_again, expected.is_none(), "{root} {base} {path}");

        let modes = [BodySendMode::Buffered, DUPLEX[1]];
        let mut envoy = Envoy::request(&picker.gateway.app, to(path), modes).await;
        envoy.order().await;
        envoy.body(WHOLE, true).await;
        let Some(Order::RequestBody(part)) = envoy.order().await.order else { panic!("no body") };
        let common = part.response.unwrap();
        let (set, _) = changed(common.header_mutation);
        let path_of = set.iter().find(|(name, _)| name == ":path").map(|(_, value)| &**value);
        assert_eq!(
            (path_of, common.clear_route_cache),
            (expected, expected.is_none()),
            "{root} {base} {path}"
        );
    }
}

#[tokio::test]
async fn a_replica_at_another_base_path_is_no_fallback() {
    let ([_one, _two, three], picker) =
        Picker::before(|config| config.pools[0].replicas[2].endpoint.base_path = "/base".into()).await;
    for _ in 0..3 {
        let (_envoy, placed) = picker.placed(BODY).await;
        let endpoints = placed.endpoints();
        let is_based = endpoints[0] == three.name();
        assert_eq!(placed.value(":path").is_some(), is_based);
        assert_eq!(endpoints.len(), if is_based { 1 } else { 2 }, "{}", placed.destination);
    }
}
