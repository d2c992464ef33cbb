//! The data port as a protocol: HTTP/1.1 and HTTP/2, TLS, identity, requests that try to smuggle.

mod identity;
mod listener;
mod listener_http2;
#[path = "../listener_support/mod.rs"]
mod listener_support;
mod smuggling;
mod tls;
