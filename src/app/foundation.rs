//! What data path and observers stand on: certificates read, the data socket bound, pools open.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::launch::Front;
use super::observers::DataPath;
use super::salt_key::settle_salts;
use super::{StartError, keeping};
use crate::background::Background;
use crate::clock::Clock;
use crate::cluster::Topics;
use crate::config::{Cluster, Config};
use crate::fleet::pool::PoolState;
use crate::fleet::registry::Fleet;
use crate::fleet::status::FleetView;
use crate::gateway::table::CarriedOver;
use crate::identity::KeyStore;
use crate::listener;
use crate::listener::tls::TlsSlot;
use crate::request::jwt::TokenKeys;
use crate::upstream::connect::Connector;

/// Everything that runs before the first observer.
pub struct Foundation {
    /// Pools and replicas; probes and scrapes run.
    pub fleet: Arc<Fleet>,
    /// Shares of canaries and keys of tokens, for every routing table.
    pub carried_over: CarriedOver,
    /// API keys made at run time.
    pub keys: Arc<KeyStore>,
    /// What the data port speaks.
    pub front: Front,
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    pub(super) background: Background,
    pub(super) pools: Arc<Vec<Arc<PoolState>>>,
    pub(super) tls: Option<Arc<TlsSlot>>,
    pub(super) socket: TcpListener,
    pub(super) data: SocketAddr,
    pub(super) connector: Connector,
    /// Secured by `[cluster]`.
    pub(super) broker: Connector,
    /// What parts of this gateway show the others.
    pub(super) topics: Arc<Topics>,
    pub(super) stopped: CancellationToken,
    /// Its state files.
    pub(super) claim: Option<File>,
}

impl Foundation {
    /// Starts on the current runtime, in this order: certificates, data socket, fleet. Probes and scrapes run on `control`, so that
    /// they answer while the data path is saturated.
    ///
    /// # Errors
    /// [`StartError`] with what to mend; nothing keeps running then.
    pub fn lay(config: Arc<Config>, clock: Clock, control: Handle) -> Result<Self, StartError> {
        let tls = config.server.tls.as_ref().map(TlsSlot::load).transpose()?;
        let addr = config.server.listen;
        let failed = |source| StartError::Listen { key: "server.listen", addr, source };
        let socket = listener::bind(addr).map_err(failed)?;
        let data = socket.local_addr().map_err(failed)?;
        let background = Background { runtime: control, tasks: TaskTracker::new() };
        let connector = Connector::new(background.tasks.clone())?;
        let broker = connector.secured(config.cluster.as_ref().map(Cluster::tls).as_ref())?;
        let stopped = CancellationToken::new();
        let tokens = Arc::new(TokenKeys::default());
        tokens.configure(config.jwt.as_ref());
        let carried_over = CarriedOver::new(tokens, stopped.clone());
        settle_salts(&carried_over.salt_key, &config);
        let claim = keeping::claim(&config);
        keeping::warn_of_another_port(&config);
        let kept = config.state.as_ref().map(|place| place.file("keys"));
        let keys = Arc::new(KeyStore::open(Arc::clone(&carried_over.api_keys), kept));
        let canaries = Arc::clone(&carried_over.canaries);
        let fleet = Arc::new(Fleet::new(connector.clone(), clock, background.clone(), canaries));
        fleet.secure(&config)?;
        let pools = fleet.apply(&config);
        Ok(Self {
            fleet,
            carried_over,
            keys,
            front: Front::default(),
            config,
            clock,
            background,
            pools,
            tls,
            socket,
            data,
            connector,
            broker,
            topics: Arc::default(),
            stopped,
            claim,
        })
    }

    /// Demand and shares, for the control plane.
    pub(super) fn data_path(&self) -> DataPath {
        let (fleet, clock) = (Arc::clone(&self.fleet), self.clock);
        let CarriedOver { canaries, shadows, .. } = self.carried_over.clone();
        let loads = Box::new(move || {
            let mut loads = fleet.loads(clock.now());
            for load in &mut loads {
                load.is_for_canary = canaries.any(&load.pool, |share| share.get() > 0)
                    || shadows.by_canary.any(&load.pool, |shadow| shadow.share.get() > 0);
            }
            loads
        });
        let topics = self.config.cluster.is_some().then(|| Arc::clone(&self.topics));
        DataPath { carried_over: self.carried_over.clone(), loads, topics }
    }

    pub(super) fn view(&self) -> FleetView {
        let [of_replicas, of_sources] = std::array::from_fn(|_| Arc::clone(&self.fleet));
        FleetView::new(move || of_replicas.statuses(), move || of_sources.sources())
    }
}
