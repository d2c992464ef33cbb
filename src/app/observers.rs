//! Who reads what requests leave behind: the observers of the data path, and drift detection as a tap of theirs.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::drift::service::{self, DriftError, Feed};
use crate::observe::{ObserveError, Observer, Surroundings, Tap};

/// The running observers.
#[derive(Clone)]
pub struct Observers {
    /// Called by the data path.
    pub observer: Arc<Observer>,
    /// Drift detection.
    pub drift: Arc<Feed>,
}

/// Why an observer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ObserversError {
    /// Access log, spans, the receiver of engines' spans.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The drift webhook, or findings as OTLP events.
    #[error(transparent)]
    Drift(#[from] DriftError),
}

impl Observers {
    /// Starts all that the configuration asks for; `tap` is a further reader.
    ///
    /// # Errors
    /// [`ObserversError`], naming the section to mend.
    pub fn start(
        config: &Config,
        surroundings: Surroundings,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Self, ObserversError> {
        let around = surroundings.clone();
        let mut observer = Observer::start(config, surroundings)?;
        let drift =
            Arc::new(service::start(&config.drift, &around, observer.metrics(), observer.collector())?);
        observer.add_tap(Arc::clone(&drift) as Arc<dyn Tap>);
        if let Some(tap) = tap {
            observer.add_tap(tap);
        }
        Ok(Self { observer: Arc::new(observer), drift })
    }

    /// Writes and exports what is queued; each part within about `limit`.
    pub async fn shutdown(&self, limit: Duration) {
        self.observer.shutdown(limit).await;
        service::end(&self.drift, limit).await;
    }
}
