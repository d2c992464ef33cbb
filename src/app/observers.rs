//! Starts the readers of records: the observers of the data path, and drift detection as a tap of theirs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::autoscale::service as autoscale;
use crate::cluster::Topics;
use crate::config::Config;
use crate::drift::service::{self, DriftError, Feed};
use crate::gateway::table::CarriedOver;
use crate::observe::{ObserveError, Observer, Surroundings, Tap};
use crate::rollout::service as rollouts;

/// The running observers.
#[derive(Clone)]
pub struct Observers {
    /// Entry point of the data path: metrics, spans, access log.
    pub observer: Arc<Observer>,
    /// Input of drift detection.
    pub drift: Arc<Feed>,
    /// Input of the canaries' judges.
    pub rollouts: Arc<rollouts::Feed>,
    /// Replicas that each pool should have.
    pub scale: Arc<autoscale::Board>,
}

/// What rollouts and scalers see and set of the data path.
pub struct DataPath {
    /// Shares of canaries.
    pub carried_over: CarriedOver,
    /// Demand on every pool.
    pub loads: autoscale::Loads,
    /// What gateways of one cluster show each other.
    pub topics: Option<Arc<Topics>>,
}

impl Default for DataPath {
    /// Of a gateway without one.
    fn default() -> Self {
        Self { carried_over: CarriedOver::default(), loads: Box::new(Vec::new), topics: None }
    }
}

/// Why an observer cannot start.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum ObserversError {
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Drift(#[from] DriftError),
    #[error("route.canary.webhook: tls: {0}")]
    Rollouts(#[from] rustls::Error),
}

impl Observers {
    /// Starts every reader that the running configuration asks for, and `tap`.
    ///
    /// # Errors
    /// [`ObserversError`], naming the section to mend.
    pub fn start(
        configs: &watch::Receiver<Arc<Config>>,
        surroundings: Surroundings,
        data_path: DataPath,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Self, ObserversError> {
        let (config, around) = (Arc::clone(&configs.borrow()), surroundings.clone());
        let mut observer = Observer::start(&config, surroundings)?;
        let drift =
            Arc::new(service::start(&config.drift, &around, &observer.metrics, observer.collector())?);
        observer.add_tap(Arc::clone(&drift) as Arc<dyn Tap>);
        let DataPath { carried_over, loads, topics } = data_path;
        let rollouts = rollouts::start(configs.clone(), &around, &observer.metrics, carried_over, topics)?;
        let rollouts = Arc::new(rollouts);
        observer.add_tap(Arc::clone(&rollouts) as Arc<dyn Tap>);
        let scale = autoscale::start(configs.clone(), &around, &observer.metrics, loads);
        if let Some(tap) = tap {
            observer.add_tap(tap);
        }
        Ok(Self { observer: Arc::new(observer), drift, rollouts, scale })
    }

    /// Writes and exports queued data, for at most about `limit`, and states that outlast the process, for at most `states`.
    pub async fn shutdown(&self, limit: Duration, states: Duration) {
        self.scale.ended.cancel();
        tokio::join!(
            self.observer.shutdown(limit),
            service::end(&self.drift, states),
            rollouts::end(&self.rollouts, states)
        );
    }
}
