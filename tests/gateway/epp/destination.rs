//! Where Envoy is to send a request: its addresses.

use std::num::NonZeroU32;

use tokenway::config::DataParallel;

use super::{BODY, Picker};
use crate::support::config;
use crate::support::replica::Replica;

#[tokio::test]
async fn ranks_of_one_host_are_one_destination() {
    let (one, two, three) = (Replica::start().await, Replica::start().await, Replica::start().await);
    let mut config = config::of(&[&one, &two, &three]);
    config.pools[0].data_parallel = DataParallel::Ranks(NonZeroU32::new(4).unwrap());
    let picker = Picker::start(config).await;
    let (_envoy, placed) = picker.placed(BODY).await;
    let mut endpoints = placed.endpoints();
    endpoints.sort_unstable();
    let mut names = [one.name(), two.name(), three.name()];
    names.sort_unstable();
    assert_eq!(endpoints, names, "the choice and two hosts to fall back to: {}", placed.destination);
}
