//! Who takes a request to its replica: the gateway's own connections, or a proxy that asked for the decision.
//!
//! A request that a proxy carries is prepared, queued, placed, timed and recorded as any other. It is sent once, as the proxy
//! decides on retries: no second attempt, hedge, migration, prefill leg, tunnel or heartbeat.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::Response;
use http::request::Parts;
use smallvec::SmallVec;

use super::{ClientConnection, Gateway, IncomingRequest};
use crate::debug::debug_as;
use crate::error::ReplicaFailure;
use crate::fleet::replica::Replica;
use crate::listener::{KillSwitch, Peer};
use crate::request::arriving::{ArrivingBody, FedBody};
use crate::request::rare::Rare;
use crate::upstream::http1::EngineRequest;

/// A request with its destination.
#[derive(Debug)]
pub struct Cargo {
    /// Where it goes.
    pub replica: Arc<Replica>,
    /// Where it may go instead, in this order.
    pub fallbacks: SmallVec<[Arc<Replica>; MAX_FALLBACKS]>,
    /// As the gateway itself would send it.
    pub request: EngineRequest,
}

/// A proxy that carries one request.
pub trait Carrier: Send + Sync {
    /// Hands the request over and waits for the head of its answer. After [`ReplicaFailure::Bypassed`] the proxy has the answer of
    /// another replica, and gives it when the request is carried to that one.
    fn carry(
        &self,
        cargo: Cargo,
    ) -> Pin<Box<dyn Future<Output = Result<Response<FedBody>, ReplicaFailure>> + Send + '_>>;

    /// Whether the proxy lets the request go to this replica.
    fn allows(&self, replica: &Replica) -> bool;

    /// Where alone the request may go; `None` for anywhere. With it no other replica is waited for.
    fn subset(&self) -> Option<&[SocketAddr]>;

    /// Whether the answer passes through the gateway, so that what was asked for here can be taken out of it.
    fn returns_answer(&self) -> bool;
}

debug_as!(dyn Carrier => "Carrier");

impl IncomingRequest {
    /// A request that `carrier` takes to its replica, with its client's address where that is known.
    pub fn carried(
        gateway: Arc<Gateway>,
        parts: Parts,
        body: Option<ArrivingBody>,
        kill: KillSwitch,
        peer: Peer,
        carrier: Arc<dyn Carrier>,
    ) -> Box<Self> {
        let connection = ClientConnection::of(&gateway, peer, None);
        let rare = Rare::of(&parts.headers);
        Box::new(Self { gateway, parts, rare, body, kill, connection, carrier: Some(carrier) })
    }
}

/// Replicas given beside the chosen one.
pub const MAX_FALLBACKS: usize = 2;
