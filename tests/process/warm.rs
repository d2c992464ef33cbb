//! What one gateway, without a broker, knows after its restart.

use std::net::TcpListener;

use tempfile::TempDir;

use crate::rollouts::stop_gateway;
use crate::serve_support::client::{chat, post_chat};
use crate::serve_support::{Fleet, Gateway, replace};

const CONVERSATIONS: usize = 12;

/// The decisions on the next turn of each conversation.
fn turn(gateway: &Gateway, number: usize) -> Vec<(String, bool)> {
    let decision = |conversation| {
        let prompt = format!("{}{}", format!("{conversation} lorem ").repeat(600), "more ".repeat(number));
        let answer = post_chat(&gateway.data, &chat("sim", &prompt, 2), "key");
        assert_eq!(answer.status, 200, "{answer:?}");
        let line = |name: &str| answer.head.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let replica = line("x-tokenway-replica").unwrap_or_else(|| panic!("{}", answer.head));
        (replica, line("x-tokenway-decision").unwrap().contains("reason=prefix"))
    };
    (0..CONVERSATIONS).map(decision).collect()
}

#[test]
fn conversations_find_their_replicas_after_a_restart() {
    let (fleet, folder) = (Fleet::start(&[]), TempDir::new().unwrap());
    let file = folder.path().join("gateway.toml");
    let head = "[server]\nroute_info_headers = true\n[[route]]\nmodel = \"*\"\npools = [\"main\"]\npolicy = \"prefix\"\n";
    let pool =
        format!("[[pool]]\nname = \"main\"\nscrape_interval = \"100ms\"\nreplicas = {}\n", fleet.toml());
    replace(&file, &format!("{head}{pool}"));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = || {
        let gateway = Gateway::with_state(&file, folder.path(), port);
        // Both: while one is ready, it has every conversation.
        gateway.process.err.lines_with("\"to\":\"ready\"", 2);
        gateway.wait_ready();
        gateway
    };
    let gateway = start();
    let homes = turn(&gateway, 0);
    assert!(homes.iter().any(|home| home.0 != homes[0].0), "conversations spread: {homes:?}");
    stop_gateway(gateway);
    let kept = std::fs::read_to_string(folder.path().join(format!("decisions-{port}.json"))).unwrap();
    assert!(!kept.contains("lorem"), "hashes alone are kept");
    let gateway = start();
    gateway.process.err.line_with("cached prompts and speeds are known from before the restart");
    let after = turn(&gateway, 1);
    let found = homes.iter().zip(&after).filter(|(home, now)| now.1 && home.0 == now.0).count();
    assert_eq!(found, CONVERSATIONS, "{homes:?}\n{after:?}");
    stop_gateway(gateway);
}
