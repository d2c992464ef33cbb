//! What tenants cost: the look-up of an API key among 100,000 of 10,000 tenants, budgets of a request, and memory.
//!
//! Prints medians and ranges of repetitions; figures for people to compare on one machine, never a test.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use http::request::Parts;
use sha2::{Digest, Sha256};
use tokenway::admission::{Demand, TenantLimiter};
use tokenway::clock::{Clock, Stamp};
use tokenway::config::{Budget, Tenant, Window, Zone};
use tokenway::request::api_keys::{ApiKey, ApiKeys};
use tokenway::request::tenant::Tenants;
use tokenway::units::Tokens;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut out = std::io::stdout();
    let tenants: Vec<Tenant> =
        (0..TENANTS).map(|n| Tenant { name: format!("tenant-{n}").into(), ..Tenant::default() }).collect();
    let made = Arc::new(ApiKeys::default());
    let table = Tenants::new(&tenants, None).beside(Arc::clone(&made), Arc::default());
    let before = resident();
    let keys: HashMap<_, _> =
        (0..KEYS).map(|n| (Sha256::digest(secret(n)).into(), Arc::new(key(n)))).collect();
    made.publish(keys);
    let bytes = (resident() - before) / KEYS;
    let requests: Vec<Parts> = (0..REQUESTS).map(|n| request(n * 7919 % KEYS)).collect();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let look_up = measure(|n| {
        black_box(table.identify(&requests[n % REQUESTS], now)).ok();
    });
    writeln!(out, "look-up of a key among {KEYS} of {TENANTS} tenants, SHA-256 included: {look_up}").ok();
    writeln!(out, "memory: {bytes} bytes a key").ok();

    let budgets = |count| (0..count).map(budget).collect::<Vec<_>>();
    let active: Vec<_> =
        tenants.iter().map(|tenant| Tenant { budgets: budgets(2), ..tenant.clone() }).collect();
    let (limiter, before) = (TenantLimiter::default(), resident());
    for tenant in &active {
        let demand = Demand {
            tokens: Tokens(100),
            is_counted: false,
            output: Tokens(50),
            is_output_bounded: false,
            is_free: false,
            model: "m",
            key: None,
            wall: now,
        };
        black_box(limiter.admit(tenant, &demand, Stamp::default()));
    }
    let bytes = (resident() - before) / TENANTS;
    writeln!(out, "memory: {bytes} bytes for what a tenant with 2 budgets has used").ok();
    for count in [0, 2, 4] {
        let tenant = Tenant { budgets: budgets(count), ..tenants[0].clone() };
        let limiter = TenantLimiter::default();
        let own = ApiKey { budgets: budgets(count.min(1)), ..key(0) };
        let cost = measure(|n| {
            let demand = Demand {
                tokens: Tokens(100),
                is_counted: false,
                output: Tokens(50),
                is_output_bounded: false,
                is_free: false,
                model: "m",
                key: Some(&own),
                wall: now + Duration::from_millis(n as u64),
            };
            black_box(limiter.admit(&tenant, &demand, Stamp::default()));
        });
        writeln!(out, "admission with {count} budgets of the tenant and {} of the key: {cost}", count.min(1))
            .ok();
    }
}

/// Median, least and most of the repetitions, in nanoseconds a call.
fn measure(mut call: impl FnMut(usize)) -> String {
    let clock = Clock::start();
    let mut all: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let begin = clock.now();
            (0..CALLS).for_each(&mut call);
            clock.now().since(begin).as_secs_f64() * 1e9 / CALLS as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    format!("{:.0} ns ({:.0}-{:.0})", all[REPETITIONS / 2], all[0], all[REPETITIONS - 1])
}

fn budget(n: usize) -> Budget {
    let window = [Window::Day, Window::Month, Window::Hour, Window::Week][n % 4];
    let time_zone = Zone::named("Europe/Berlin").unwrap_or_default();
    Budget { window, time_zone, tokens: Some(1 << 50), requests: Some(1 << 50), ..Budget::default() }
}

fn key(n: usize) -> ApiKey {
    ApiKey {
        tenant: format!("tenant-{}", n % TENANTS).into(),
        name: format!("key-{n}").into(),
        expires: Some(2_000),
        ..ApiKey::default()
    }
}

fn secret(n: usize) -> String {
    format!("tw-{n:048x}")
}

fn request(n: usize) -> Parts {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    let value = HeaderValue::try_from(format!("Bearer {}", secret(n))).ok();
    parts.headers.extend(value.map(|value| (http::header::AUTHORIZATION, value)));
    parts
}

/// Bytes; 0 without /proc.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

const TENANTS: usize = 10_000;
const KEYS: usize = 100_000;
const REQUESTS: usize = 20_000;
const CALLS: usize = 200_000;
const REPETITIONS: usize = 9;
