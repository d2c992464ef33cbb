//! Where the replicas of a pool come from, beside the list in the file: DNS, a file, Kubernetes, the admin port.
//!
//! Each source is a task that hands whole answers, or failures, to the pool's `roster`: the one pure place that decides who
//! belongs to the pool. A source that fails keeps what it said last. `membership` hands them over, and `matching` makes the pool match.

pub(in crate::fleet) mod deps;
mod dns;
mod file;
mod file_sd;
pub(in crate::fleet) mod hand_over;
mod kubernetes;
mod matching;
pub mod membership;
mod naming;
mod report;
pub mod roster;
mod sources;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// State of one source of a pool's replicas.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// Name of the pool: label `pool`.
    pub pool: Arc<str>,
    /// `static`, `admin`, `file`, `dns` or `kubernetes`: label `source`.
    pub source: &'static str,
    /// Replicas that it names.
    pub targets: usize,
    /// Since its last good answer; `None` before the first.
    pub age: Option<Duration>,
    /// Since when it fails, and how.
    pub failing: Option<(Duration, Arc<str>)>,
    /// Failures so far.
    pub failures: u64,
    /// Replicas of the pool that serve although its sources name them no more, because nothing that they name is ready.
    pub kept: usize,
}

/// A change of the fleet on the admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChange {
    /// What to do.
    pub action: ReplicaAction,
    /// Name of the pool; `None` where there is but one.
    pub pool: Option<String>,
    /// URL of the replica; `None` where it is named.
    pub url: Option<String>,
    /// Name of a known replica, or of the one to add.
    pub name: Option<String>,
    /// Zone of the one to add.
    pub zone: Option<String>,
}

/// What an operator does with a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaAction {
    /// Adds it, or lets it take requests again.
    Add,
    /// It gets no new requests and stays listed.
    Drain,
    /// It gets no new requests and leaves when its streams have ended.
    Remove,
}

/// Why a change was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// No such pool, or several and none was named.
    #[error("unknown pool {0:?}; name one of: {1}")]
    UnknownPool(String, String),
    /// No such replica.
    #[error("pool {pool:?} has no replica {replica:?}")]
    UnknownReplica {
        /// Name of the pool.
        pool: String,
        /// As it was named.
        replica: String,
    },
    /// Another replica has the name.
    #[error("pool {pool:?} has a replica {name:?} already: {url}")]
    NameTaken {
        /// Name of the pool.
        pool: String,
        /// As it was given.
        name: String,
        /// URL of the replica that has it.
        url: String,
    },
    /// The URL or the name cannot be used.
    #[error("{0}")]
    Invalid(String),
}
