//! `[pool.probe]` and `[pool.ejection]`: how replicas prove themselves, and how many may be out for not doing so.

use std::time::Duration;

use super::check::codec::{SHARE, TEXT, Word};
use super::check::values::{INTERVAL, POSITIVE_DURATION};
use super::declare::section;
use crate::labels::labels;

section! {
    /// of replicas that live answers do not prove
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Probe for "[pool.probe]" {
        /// between two probes of a replica
        interval: Duration as INTERVAL, default "10s";
        /// of one probe
        timeout: Duration as POSITIVE_DURATION, default "5s";
        /// auto | completion | chat | embedding | rerank | health; auto: the first that the engine answers
        kind: ProbeKind as Word("probe kind"), default "auto";
        /// of a completion of one token
        prompt: String as TEXT, default "ping", hidden;
    }
}

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Ejection for "[pool.ejection]" {
        /// at most this share of a pool is ejected because of failures, or one replica where that is less; 0: none
        max_share: f64 as SHARE, default 0.5;
    }
}

impl ProbeKind {
    /// Whether its answer is text.
    pub fn generates(self) -> bool {
        matches!(self, Self::Completion | Self::Chat)
    }
}

labels! {
    /// `pool.probe.kind`
    pub enum ProbeKind {
        /// The first of the others that the engine answers.
        Auto = "auto",
        /// A one-token completion.
        Completion = "completion",
        /// A one-token chat.
        Chat = "chat",
        /// One embedding.
        Embedding = "embedding",
        /// One rerank.
        Rerank = "rerank",
        /// `GET /health`: proves little, reported as `unproven`.
        Health = "health",
    }
}
