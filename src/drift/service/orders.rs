//! What an operator says of findings: known, over, silence. Sent to the task that owns them, answered by it.

use tokio::sync::oneshot;

use crate::drift::detectors::{Finding, Mute};

/// One order, with the way back for its answer.
pub(super) enum Order {
    /// Somebody knows of this finding, or takes that back.
    Acknowledge(String, bool, oneshot::Sender<Option<Finding>>),
    /// This finding is over: what is now becomes usual.
    Reset(String, oneshot::Sender<Option<Finding>>),
    /// Silence, or its end.
    Mute(Mute, oneshot::Sender<()>),
}

/// The task that owns the findings is gone or overloaded.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("drift detection is busy")]
pub struct Busy;
