//! Values of the labels `result` and `reason` that several rooms count by.

/// How a delivery ended, to a webhook or a collector (label `result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// It was taken.
    Sent,
    /// No answer, or not a good one.
    Failed,
    /// It never left: the queue was full.
    Dropped,
}

impl DeliveryResult {
    pub(super) const LABELS: &[&str] = &[Self::Sent.as_str(), Self::Failed.as_str(), Self::Dropped.as_str()];

    /// Value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// Result of joining an engine's span with a record (label `result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinResult {
    /// The record got its engine's times.
    Joined,
    /// No span came in time.
    Missing,
    /// No record came in time.
    Unmatched,
}

impl JoinResult {
    pub(super) const LABELS: &[&str] =
        &[Self::Joined.as_str(), Self::Missing.as_str(), Self::Unmatched.as_str()];

    /// Value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Missing => "missing",
            Self::Unmatched => "unmatched",
        }
    }
}

/// Why spans were dropped (label `reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The collector is slower than the spans.
    QueueFull,
    /// The collector refused them or did not respond.
    ExportFailed,
    /// The gateway stopped first.
    Shutdown,
    /// Over `telemetry.sampling.max_per_second`.
    RateLimited,
}

impl DropReason {
    pub(super) const LABELS: &[&str] = &[
        Self::QueueFull.as_str(),
        Self::ExportFailed.as_str(),
        Self::Shutdown.as_str(),
        Self::RateLimited.as_str(),
    ];

    /// Value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::ExportFailed => "export_failed",
            Self::Shutdown => "shutdown",
            Self::RateLimited => "rate_limited",
        }
    }
}
