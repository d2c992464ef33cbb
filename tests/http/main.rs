//! The data port as a protocol: HTTP/1.1 and HTTP/2, TLS, identity, requests that try to smuggle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod identity;
mod listener;
mod listener_http2;
#[path = "../listener_support/mod.rs"]
mod listener_support;
mod smuggling;
#[path = "../support/mod.rs"]
mod support;
mod tls;
