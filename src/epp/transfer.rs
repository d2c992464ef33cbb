//! What passes between a session and the line: the request with its destination, then the head of its answer.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use http::Response;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metadata::NAMESPACE;
use super::proto::{Kind, Struct, Value};
use crate::error::ReplicaFailure;
use crate::fleet::replica::Replica;
use crate::gateway::carrier::{Cargo, Carrier};
use crate::request::arriving::FedBody;
use crate::upstream::http1::EngineRequest;

/// Envoy, as the line sees it for one request.
#[derive(Debug)]
pub(super) struct Transfer {
    /// Where the request may go; `None` for anywhere.
    subset: Option<Box<[SocketAddr]>>,
    returns_answer: bool,
    between: Mutex<Between>,
    /// An answer is there.
    arrival: Notify,
}

#[derive(Debug, Default)]
struct Between {
    outgoing: Option<Outgoing>,
    answer: Option<Answer>,
    /// The answer of another replica than the request was placed at.
    taken: Option<Response<FedBody>>,
}

#[derive(Debug)]
struct Answer {
    head: Response<FedBody>,
    /// Who gave it; `None` where Envoy does not name it.
    served: Option<SocketAddr>,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    /// `ip:port` of the chosen replica and of its fallbacks, with commas between.
    pub(super) destination: String,
    /// As the gateway itself would send it.
    pub(super) request: EngineRequest,
}

impl Transfer {
    pub(super) fn new(subset: Option<Box<[SocketAddr]>>, returns_answer: bool) -> Self {
        Self { subset, returns_answer, between: Mutex::default(), arrival: Notify::new() }
    }

    /// The request, once it is placed.
    pub(super) fn take(&self) -> Option<Outgoing> {
        self.between.lock().outgoing.take()
    }

    /// The head of its answer has come, from this endpoint if Envoy names it.
    pub(super) fn arrived(&self, head: Response<FedBody>, served: Option<SocketAddr>) {
        self.between.lock().answer = Some(Answer { head, served });
        self.arrival.notify_one();
    }
}

impl Carrier for Transfer {
    fn carry(
        &self,
        cargo: Cargo,
    ) -> Pin<Box<dyn Future<Output = Result<Response<FedBody>, ReplicaFailure>> + Send + '_>> {
        Box::pin(async move {
            let Cargo { replica, fallbacks, request } = cargo;
            if let Some(head) = self.between.lock().taken.take() {
                return Ok(head);
            }
            let Some(address) = replica.connections.address() else {
                let (replica, kind) = (replica.name(), io::ErrorKind::NotFound);
                return Err(ReplicaFailure::Unreachable { replica, kind });
            };
            let mut destination = address.to_string();
            for address in fallbacks.iter().filter_map(|replica| replica.connections.address()) {
                destination.push(',');
                destination.push_str(&address.to_string());
            }
            self.between.lock().outgoing = Some(Outgoing { destination, request });
            let Answer { head, served } = loop {
                let arrived = self.between.lock().answer.take();
                match arrived {
                    Some(answer) => break answer,
                    None => self.arrival.notified().await,
                }
            };
            match served {
                Some(served) if served != address => {
                    self.between.lock().taken = Some(head);
                    Err(ReplicaFailure::Bypassed { replica: replica.name(), served })
                }
                _ => Ok(head),
            }
        })
    }

    fn allows(&self, replica: &Replica) -> bool {
        self.subset.as_ref().is_none_or(|subset| {
            replica.connections.address().is_some_and(|address| subset.contains(&address))
        })
    }

    fn subset(&self) -> Option<&[SocketAddr]> {
        self.subset.as_deref()
    }

    fn returns_answer(&self) -> bool {
        self.returns_answer
    }
}

/// The destination as dynamic metadata: `envoy.lb` → `x-gateway-destination-endpoint`.
pub(super) fn metadata(destination: &str) -> Struct {
    let text = Value { kind: Some(Kind::Text(destination.to_owned())) };
    let inner = Struct { fields: HashMap::from([(DESTINATION.to_owned(), text)]) };
    let outer = Value { kind: Some(Kind::Struct(inner)) };
    Struct { fields: HashMap::from([(NAMESPACE.to_owned(), outer)]) }
}

/// Header and key of the destination.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
