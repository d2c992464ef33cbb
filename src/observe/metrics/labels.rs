//! Values of the labels `result` and `reason` that several rooms count by.

use crate::labels::labels;

labels! {
    /// How a delivery ended, to a webhook or a collector (label `result`).
    pub enum DeliveryResult {
        /// It was taken.
        Sent = "sent",
        /// No answer, or not a good one.
        Failed = "failed",
        /// It never left: the queue was full.
        Dropped = "dropped",
    }

    /// Result of joining an engine's span with a record (label `result`).
    pub enum JoinResult {
        /// The record got its engine's times.
        Joined = "joined",
        /// No span came in time.
        Missing = "missing",
        /// No record came in time.
        Unmatched = "unmatched",
    }

    /// Why entries of `[telemetry.content]` were dropped (label `reason`).
    pub enum ContentLoss {
        /// The disk, or the redaction, is slower than the requests.
        QueueFull = "queue_full",
        /// The disk is full or gone.
        WriteFailed = "write_failed",
        /// The collector did not take them, or the process ended before it could.
        ExportFailed = "export_failed",
    }

    /// How the hook before a request, or the one behind its answer, ended (label `outcome`).
    pub enum HookOutcome {
        /// Before: it allowed the request. After: it took the answer.
        Ok = "ok",
        /// Before: it refused the request.
        Refused = "refused",
        /// No answer within `hook.timeout`.
        Timeout = "timeout",
        /// No connection, a status that is no success, or an answer that cannot be read.
        Failed = "failed",
        /// The request is larger than `hook.max_body`.
        TooLarge = "too_large",
        /// After: the queue was full.
        Dropped = "dropped",
    }

    /// Why spans were dropped (label `reason`).
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
