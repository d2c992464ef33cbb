//! Values of the labels `result` and `reason` that several rooms count by.

use crate::labels::labels;

labels! {
    /// How a delivery ended, to a webhook or a collector (label `result`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DeliveryResult {
        /// It was taken.
        Sent = "sent",
        /// No answer, or not a good one.
        Failed = "failed",
        /// It never left: the queue was full.
        Dropped = "dropped",
    }
}

labels! {
    /// Result of joining an engine's span with a record (label `result`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum JoinResult {
        /// The record got its engine's times.
        Joined = "joined",
        /// No span came in time.
        Missing = "missing",
        /// No record came in time.
        Unmatched = "unmatched",
    }
}

labels! {
    /// Why spans were dropped (label `reason`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DropReason {
        /// The collector is slower than the spans.
        QueueFull = "queue_full",
        /// The collector refused them or did not respond.
        ExportFailed = "export_failed",
        /// The gateway stopped first.
        Shutdown = "shutdown",
        /// Over `telemetry.sampling.max_per_second`.
        RateLimited = "rate_limited",
    }
}
