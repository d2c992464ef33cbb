# The daily commands. `just` alone lists them.

default:
    @just --list

# All that a change must pass, as CI runs it.
check:
    .ci/run

# What takes minutes, job by job; `just nightly clients memory` some of it.
nightly *jobs:
    .ci/nightly {{jobs}}

# Format, then lint.
lint:
    cargo fmt
    cargo clippy --all-targets --locked -- -D warnings

# All tests; `just test relay` for those whose name has "relay".
test *filter:
    cargo test --locked {{filter}}

# Simulated fleet, gateway and traffic in one process.
demo:
    cargo run --release --locked -- demo

# The gateway in front of the replicas at these URLs.
serve +urls:
    cargo run --release --locked -- serve {{ prepend("--upstream ", urls) }}

# CPU and latency beside a minimal hyper proxy; about two minutes.
bench *args:
    cargo bench --locked --bench relay -- {{args}}

# Profile-guided build of a release (docs/decisions/0005-profile-guided-releases.md); 15 to 25 minutes.
release *args:
    benches/profile/release {{args}}

# Routing policies against a trace in simulated time; all flags of `tokenway replay`.
replay trace *args:
    cargo run --release --locked -- replay {{trace}} --config benches/routing/goal.toml {{args}}

# All routing tables to target/routing-tables.md and the goals to docs/results.md, from a directory with the traces; about an hour, `just routing-tables DIR goals` less.
routing-tables traces *sections:
    cargo build --release --locked
    python3 benches/routing/tables.py target/release/tokenway {{traces}} {{sections}}

# Every kind of traffic, to target/matrix.md, some hours; `just routing-matrix --quick` prints a part, some minutes.
routing-matrix *args:
    cargo build --release --locked
    python3 benches/routing/matrix.py target/release/tokenway {{args}}

# A million mutants of the corpus for each parser, on stable, some ten minutes; `just fuzz 5000` less. With coverage guidance:
# cargo +nightly fuzz run sse (needs cargo-fuzz).
fuzz cases="1000000":
    FUZZ_CASES={{cases}} cargo test --locked --test fuzz

# Soak with random faults, 10,000 slow readers, slow-loris, HTTP/2 floods; 40 minutes, `--minutes 10`, `--only soak` less.
# `just endure --write docs/results.md` also puts the results there.
endure *args:
    cargo build --release --locked
    python3 tests/endure/endure.py target/release/tokenway {{args}}

# The page in a browser before scripted incidents, some seven minutes, `--only "slow replica"` less; needs Chromium and `pip install playwright`.
page *args:
    cargo build --locked
    python3 tests/page/behaviour.py target/debug/tokenway
    python3 tests/page/incidents.py target/debug/tokenway {{args}}

# Everyday faults over sockets: sick and slow replicas, few descriptors, reloads, restarts; 12 minutes, `--only sick` less.
everyday *args:
    cargo build --release --locked
    python3 tests/endure/everyday.py target/release/tokenway {{args}}

# The machine around: clocks that jump, a cgroup of 256 MiB, connections closed under it, SIGTERM, TLS scanners; 20 minutes, `--only drain` less.
surroundings *args:
    cargo build --release --locked
    python3 tests/endure/surroundings.py target/release/tokenway {{args}}

# Honest traffic of three tenants beside a hostile one and a fleet that fails, drawn at random; an hour, `--minutes 2` less.
strangers *args:
    cargo build --release --locked
    python3 tests/endure/strangers.py target/release/tokenway {{args}}

# What one connection, stream, byte of a body and tenant takes; two minutes, `--only streams` less.
memory *args:
    cargo build --release --locked
    python3 tests/endure/memory.py target/release/tokenway {{args}}

# Clients that do it wrong: heads, framing, bodies, targets, leaving in each phase, TLS; about a minute, `--only tables` less.
clients *args:
    cargo build --release --locked
    python3 tests/endure/clients.py target/release/tokenway {{args}}

# The checks against real vLLM replicas that you have running.
real-fleet +urls:
    tests/real_fleet/run.sh {{urls}}

# The book, to target/book/index.html, with its links followed.
book:
    .ci/book

# Binary and packages for arm64, on an x86-64 Debian 12.
arm64:
    docker/arm64

# Documentation of the library's modules.
doc:
    cargo doc --locked --no-deps --document-private-items --open

# Known vulnerabilities; needs GitHub.
advisories:
    cargo deny check advisories
