//! Who a replica is: its address, and what it is called.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;

use crate::config::Endpoint;
use crate::record::Served;
use crate::routing::rendezvous;

/// Who one replica is. Labels and zone may change with the configuration.
#[derive(Debug)]
pub struct Identity {
    pub endpoint: Endpoint,
    /// The endpoint as text.
    pub url: Arc<str>,
    /// Value of the `Host` header.
    pub host: HeaderValue,
    /// Its place among the engines of its URL, where each of them is a target of its own.
    pub rank: Option<Rank>,
    /// What tells its process from an earlier one at the same URL, where its source says.
    pub instance: Option<Arc<str>>,
    /// Revision of its pool when it was found.
    pub began_as: Arc<str>,
    served: ArcSwap<Served>,
    /// `zone` of its configuration.
    pub(super) zone: Mutex<Option<Arc<str>>>,
}

/// One of several engines behind one URL (data parallelism).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// From 0: the value of `X-data-parallel-rank`.
    pub index: u32,
    /// Engines behind the URL.
    pub of: u32,
}

impl Identity {
    /// Of a target of `endpoint`.
    pub fn new(endpoint: Endpoint, rank: Option<Rank>, instance: Option<Arc<str>>, served: Served) -> Self {
        // `parse_endpoint` lets only hosts through that are valid authorities.
        let host = HeaderValue::from_str(&endpoint.authority())
            .unwrap_or_else(|_| HeaderValue::from_static("replica"));
        let url = endpoint.to_string().into();
        Self {
            endpoint,
            url,
            host,
            rank,
            instance,
            began_as: Arc::clone(&served.revision),
            served: ArcSwap::from_pointee(served),
            zone: Mutex::default(),
        }
    }

    /// Labels of its metrics and records.
    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }

    /// Takes other labels from now on: its name or its pool's revision changed.
    pub(super) fn relabel(&self, served: Served) {
        self.served.store(Arc::new(served));
    }

    /// Spreads keys over replicas: ranks of one URL are told apart.
    pub fn hash(&self) -> u64 {
        match self.rank {
            Some(rank) => rendezvous::identity(0, format!("{}#{}", self.url, rank.index).as_bytes()),
            None => self.of_url(),
        }
    }

    /// The same of all ranks of its URL: they are processes of one server, which die together.
    pub fn of_url(&self) -> u64 {
        rendezvous::identity(0, self.url.as_bytes())
    }
}
