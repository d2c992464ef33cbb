//! What requests cost their tenants: limits, budgets, metrics and the bill agree.

use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tokenway::admission::Amounts;
use tokenway::config::{Budget, Tenant, Window};
use tokenway::observe::usage::Used;

use crate::support::client::{Client, Reply};
use crate::support::replica::{Replica, Step};
use crate::support::{Gateway, config, wire};

const PATH: &str = "/v1/chat/completions";
/// Some five hundred tokens.
const WORDS: usize = 400;

fn budget() -> Budget {
    Budget { tokens: Some(100_000), requests: Some(100), window: Window::Month, ..Budget::default() }
}

fn tenant(budget: Budget) -> Tenant {
    let key_digests = vec![Sha256::digest("a").into()];
    Tenant { name: "a".into(), key_digests, budgets: vec![budget], ..Tenant::default() }
}

async fn start(replica: &Replica, budget: Budget) -> Gateway {
    let mut config = config::of(&[replica]);
    config.tenants = vec![tenant(budget)];
    Gateway::start(config).await
}

async fn asking(gateway: &Gateway, is_stream: bool) -> Client {
    let mut client = gateway.client().await;
    let words = "word ".repeat(WORDS);
    let body = format!(
        r#"{{"model":"tiny","stream":{is_stream},"max_tokens":9,"messages":[{{"role":"user","content":"{words}"}}]}}"#
    );
    client.post(PATH, &[("authorization", "Bearer a")], body.as_bytes()).await;
    client
}

async fn ask(gateway: &Gateway, is_stream: bool) -> Reply {
    let reply = asking(gateway, is_stream).await.reply().await;
    gateway.idle().await;
    reply
}

/// Of the tenant's budget.
fn charged(gateway: &Gateway) -> Amounts {
    let now = gateway.app.gateway.clock.wall(gateway.app.gateway.clock.now());
    let mut ledgers = gateway.app.gateway.tenants.ledgers(now).tenants;
    ledgers.get_mut("a").map_or(Amounts::default(), |ledger| ledger.used(&budget(), now))
}

/// What `tokenway usage` has.
fn billed(gateway: &Gateway) -> Used {
    let until = SystemTime::now() + Duration::from_secs(3600);
    let usage = &gateway.app.gateway.observer.metrics().usage;
    let (sums, _) = usage.sum(SystemTime::UNIX_EPOCH, until, |_, payer| (0, payer.clone()));
    let mut total = Used::default();
    sums.values().for_each(|used| total.add(used));
    total
}

/// The sum of the series of a family whose labels contain this.
fn counted(gateway: &Gateway, family: &str, label: &str) -> f64 {
    let page = gateway.app.gateway.observer.metrics().render(&[]);
    let of_family = page.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    let values = of_family.filter(|line| line.contains(label));
    values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":10}}"#;

#[tokio::test]
async fn the_time_of_a_whole_answer_at_its_engine_is_charged_and_billed() {
    let replica = Replica::start().await;
    let slow = [vec![Step::Tick; 105], wire::json(200, ANSWER)].concat();
    replica.always(slow);
    let second = Budget { engine_seconds: Some(1), window: Window::Month, ..Budget::default() };
    let gateway = start(&replica, second).await;
    assert_eq!(ask(&gateway, false).await.status(), 200);
    let spent = ask(&gateway, false).await;
    assert_eq!((spent.status(), &*spent.code()), (429, "budget"), "{}", spent.text());
    let of_budget = charged(&gateway).engine_ms as f64 / 1e3;
    let used = billed(&gateway);
    let of_bill = (used.prefill_us + used.decode_us + used.engine_other_us) as f64 / 1e6;
    let metric = counted(&gateway, "tokenway_tenant_engine_seconds_total", "stage=\"engine_other\"");
    assert!(metric > 1.0 && (metric - of_bill).abs() < 1e-3, "{metric} and {of_bill}");
    assert!((of_budget - of_bill).abs() < 2e-3, "{of_budget} and {of_bill}");
}
