//! The connection to the broker: one socket that publishes, subscribes and counts (RESP3).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::background::boxed;
use crate::config::{Broker, Endpoint, Secret};
use crate::upstream::connect::Connector;

/// Why there is no connection, or no more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket or TLS.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The broker refuses.
    #[error(transparent)]
    Broker(#[from] RedisError),
    /// It does not answer.
    #[error("no answer within {} s", WITHIN.as_secs())]
    Silent,
    /// The connection ended.
    #[error("the connection was closed")]
    Closed,
    /// Sentinels do not know the server.
    #[error("no sentinel knows a master named {0}")]
    NoMaster(String),
    /// A sentinel or a name leads to a server that is a replica by now.
    #[error("{0} is a read-only replica, no master")]
    NotMaster(String),
}

/// What lasts until the connection ends.
pub(super) type UntilLost = Result<Infallible, LinkError>;

/// Messages of a channel, as they come; what does not fit is lost, which the numbers of batches show.
pub(super) type Messages = mpsc::Receiver<Vec<u8>>;

/// An open connection.
#[derive(Debug)]
pub struct Link {
    pub(super) connection: MultiplexedConnection,
    _driver: AbortOnDropHandle<()>,
}

impl Link {
    /// Connects, and shakes hands.
    pub async fn open(
        broker: &Broker,
        connector: &Connector,
        tracker: &TaskTracker,
    ) -> Result<(Self, Messages), LinkError> {
        let opening = async {
            match (&broker.master, broker.endpoints.first()) {
                (Some(master), _) => find(broker, master, connector, tracker).await,
                (None, Some(endpoint)) => reach(broker, endpoint, connector, tracker).await,
                (None, None) => Err(LinkError::Closed),
            }
        };
        tokio::time::timeout(WITHIN, opening).await.unwrap_or(Err(LinkError::Silent))
    }
}

/// Connects to a server, unless it is a replica.
async fn reach(
    broker: &Broker,
    endpoint: &Endpoint,
    connector: &Connector,
    tracker: &TaskTracker,
) -> Result<(Link, Messages), LinkError> {
    let (mut link, messages) = dial(broker, endpoint, connector, tracker).await?;
    // A sentinel, or a name, may be the last to learn of a change.
    match redis::cmd("ROLE").query_async::<Value>(&mut link.connection).await {
        Ok(Value::Array(role)) if !role.first().is_some_and(is_master) => {
            Err(LinkError::NotMaster(endpoint.authority()))
        }
        Err(error) if broker.master.is_some() => Err(error.into()),
        // A proxy may not know the command.
        _ => Ok((link, messages)),
    }
}

fn is_master(value: &Value) -> bool {
    matches!(value, Value::BulkString(word) if word == b"master")
        || matches!(value, Value::SimpleString(word) if word == "master")
}

/// Asks all sentinels at once and takes the first master that one of them leads to: those that are silent, or have yet to learn of a
/// change, hold up none.
async fn find(
    broker: &Broker,
    master: &Arc<str>,
    connector: &Connector,
    tracker: &TaskTracker,
) -> Result<(Link, Messages), LinkError> {
    let mut ways = JoinSet::new();
    for sentinel in broker.endpoints.clone() {
        let (broker, master) = (broker.clone(), Arc::clone(master));
        let (connector, tracker) = (connector.clone(), tracker.clone());
        ways.spawn(async move {
            let asking = ask(&broker, &master, &sentinel, &connector, &tracker);
            let named = tokio::time::timeout(WITHIN / 2, asking).await.unwrap_or(Err(LinkError::Silent))?;
            reach(&broker, &named, &connector, &tracker).await
        });
    }
    let mut failed = LinkError::Silent;
    while let Some(ended) = ways.join_next().await {
        match ended.unwrap_or(Err(LinkError::Closed)) {
            Ok(found) => return Ok(found),
            // What another one answers explains more.
            Err(LinkError::Silent) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The master by one sentinel.
async fn ask(
    broker: &Broker,
    master: &str,
    sentinel: &Endpoint,
    connector: &Connector,
    tracker: &TaskTracker,
) -> Result<Endpoint, LinkError> {
    let mut info = Broker { database: 0, ..broker.clone() };
    let mut dialed = dial(&info, sentinel, connector, tracker).await;
    if matches!(&dialed, Err(LinkError::Broker(error)) if refuses_user(error)) {
        // Its users are its own: the master's need not be among them.
        (info.user, info.password) = (None, None);
        dialed = dial(&info, sentinel, connector, tracker).await;
    }
    let (mut link, _messages) = dialed?;
    let mut asking = redis::cmd("SENTINEL");
    asking.arg("get-master-addr-by-name").arg(master);
    let found: Option<(String, u16)> = asking.query_async(&mut link.connection).await?;
    let (host, port) = found.ok_or_else(|| LinkError::NoMaster(master.to_owned()))?;
    Ok(Endpoint { is_tls: sentinel.is_tls, host: host.into(), port, base_path: "".into() })
}

/// Whether it does not know the user, or its password is another.
pub(super) fn refuses_user(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || error.to_string().contains("WRONGPASS")
}

async fn dial(
    broker: &Broker,
    endpoint: &Endpoint,
    connector: &Connector,
    tracker: &TaskTracker,
) -> Result<(Link, Messages), LinkError> {
    let stream = connector.open(endpoint).await?;
    let mut info = RedisConnectionInfo::default()
        .set_db(broker.database.into())
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("tokenway", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &broker.user {
        info = info.set_username(user);
    }
    if let Some(password) = &broker.password {
        info = info.set_password(Secret::reveal(password));
    }
    let (sender, messages) = mpsc::channel(MAX_WAITING);
    let config = AsyncConnectionConfig::new()
        .set_push_sender(move |push: PushInfo| {
            // A message that does not fit shows in the numbers of its sender's batches; a connection that ended closes the channel.
            if let (PushKind::Message, Some(Value::BulkString(message))) =
                (push.kind, push.data.into_iter().nth(1))
            {
                let _ = sender.try_send(message);
            }
            Ok::<_, redis::aio::SendError>(())
        })
        .set_response_timeout(Some(WITHIN));
    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    let driver = AbortOnDropHandle::new(tracker.spawn(boxed(driver)));
    Ok((Link { connection, _driver: driver }, messages))
}

/// For a connection, and for an answer.
const WITHIN: Duration = Duration::from_secs(2);
/// Messages that wait to be taken in.
const MAX_WAITING: usize = 4096;
