//! KV between two replicas, as vLLM's `NixlConnector` shows it in requests and answers (`kv_transfer_params`), and as SGLang's engines
//! are told of it (`bootstrap_*`): the one whose port is the bootstrap server's computes the prompt.
//!
//! A replica that is asked to keep its KV says where it is; one that gets that object fetches it, which takes its time, and
//! finds the prompt computed. Blocks are not held: nothing expires.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use crate::server::faults::{Applied, FaultKind};
use crate::server::replica::Replica;

use super::api::Api;
use super::chunk::DONE;
use super::error::ApiError;
use super::generation::{Generation, Render, Token};
use super::rooms;

/// What a request asks of its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Nothing.
    None,
    /// To keep it for another replica.
    Keep,
    /// To fetch it from the replica on this port.
    Fetch(u16),
    /// To compute it for whoever enters this room.
    Host(u64),
    /// To wait in this room for what the replica on this port computes.
    Join(u16, u64),
}

impl Transfer {
    /// Of a request to the replica on port `own`.
    pub(super) fn of(body: &Map<String, Value>, own: u16) -> Self {
        let number = |key| body.get(key).and_then(Value::as_u64);
        let port_of = |port| u16::try_from(port).ok();
        if let Some((port, room)) = number("bootstrap_port").and_then(port_of).zip(number("bootstrap_room")) {
            return if port == own { Self::Host(room) } else { Self::Join(port, room) };
        }
        let Some(params) = body.get("kv_transfer_params").and_then(Value::as_object) else {
            return Self::None;
        };
        let is_on = |key| params.get(key).and_then(Value::as_bool).unwrap_or(false);
        let port =
            params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        match port.filter(|_| is_on("do_remote_prefill")) {
            Some(port) => Self::Fetch(port),
            None if is_on("do_remote_decode") => Self::Keep,
            None => Self::None,
        }
    }
}

/// A whole answer with the object that says where its KV is.
pub(super) fn offer(replica: &Replica, generation: &Generation, answer: &str) -> String {
    let params = json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": format!("sim-{}", replica.port()),
        "remote_request_id": generation.id,
        "remote_host": "127.0.0.1",
        "remote_port": replica.port(),
        "remote_num_tokens": generation.ask.prompt_tokens(),
        "transfer_mode": "pull",
    });
    let member = format!("\"kv_transfer_params\":{params}");
    let null = "\"kv_transfer_params\":null";
    match answer.strip_suffix('}') {
        Some(_) if answer.contains(null) => answer.replacen(null, &member, 1),
        Some(open) => format!("{open},{member}}}"),
        None => answer.to_owned(),
    }
}

/// Fetches the KV of a prompt: afterwards it is in the cache, and the answer says that nothing was cached.
pub(super) async fn fetch(
    replica: &Arc<Replica>,
    generation: &mut Generation,
    transfer: Transfer,
    faults: &Applied,
) -> Result<(), ApiError> {
    let config = &replica.config.kv_transfer;
    let port = match transfer {
        Transfer::Fetch(port) => port,
        Transfer::Join(port, room) => {
            let computed = tokio::time::timeout(MAX_WAIT, rooms::enter(room)).await;
            computed.map_err(|_| ApiError::internal("Internal server error"))?;
            port
        }
        _ => return Ok(()),
    };
    let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let is_lost = faults.of(FaultKind::TransferLost).is_some() || TcpStream::connect(remote).await.is_err();
    if is_lost {
        tokio::time::sleep(config.lost_after).await;
        return Err(ApiError::internal("Internal server error"));
    }
    let handshake = if replica.meets(port) { config.handshake } else { Duration::ZERO };
    tokio::time::sleep(handshake + config.of(generation.ask.prompt_tokens())).await;
    replica.driver.preload(&generation.jobs());
    generation.is_fetched = true;
    Ok(())
}

/// What a stream shows of a lost transfer: its head and the role have been sent by then.
pub(super) fn lost_stream(
    api: Api,
    generation: &Generation,
    render: &mut dyn Render,
    error: &ApiError,
) -> Vec<u8> {
    let mut events = Vec::new();
    render.token(generation, Token { choice: usize::MAX, index: 0, is_last: false }, &mut events);
    let mut all: Vec<u8> = events.concat();
    if api.ends_with_done() {
        all.extend_from_slice(error.event().as_bytes());
        all.extend_from_slice(&DONE);
    } else {
        let body = error.body(api.error_shape());
        all.extend_from_slice(format!("event: error\ndata: {body}\n\n").as_bytes());
    }
    all
}

/// In a room that nobody comes to.
const MAX_WAIT: Duration = Duration::from_secs(30);
