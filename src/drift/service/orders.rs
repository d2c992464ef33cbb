//! What an operator says of findings: known, over, silence. Sent to the task that owns them, answered by it.

use tokio::sync::oneshot;

use super::feed::{Feed, FeedMessage};
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

impl Feed {
    /// Somebody knows of the finding `id`: nobody is told of it any more. `None` where it does not hold.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn acknowledge(&self, id: &str, is_acknowledged: bool) -> Result<Option<Finding>, Busy> {
        self.order(|answer| Order::Acknowledge(id.to_owned(), is_acknowledged, answer)).await
    }

    /// Ends the finding `id` and takes what is now for usual. `None` where it does not hold.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn reset(&self, id: &str) -> Result<Option<Finding>, Busy> {
        self.order(|answer| Order::Reset(id.to_owned(), answer)).await
    }

    /// Tells nobody of such findings; `None` of a duration ends that. Returns the mute as it was understood.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn mute(&self, mute: Mute) -> Result<(), Busy> {
        self.order(|answer| Order::Mute(mute, answer)).await
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, Busy> {
        let (answer, answered) = oneshot::channel();
        self.send(FeedMessage::Order(order(answer)))?;
        answered.await.map_err(|_| Busy)
    }
}
