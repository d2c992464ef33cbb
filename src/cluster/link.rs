//! The connection to the broker: one socket that publishes, subscribes and counts (RESP3).

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use tokio::sync::mpsc;
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
            let endpoint = match &broker.master {
                Some(master) => find(broker, master, connector, tracker).await?,
                None => broker.endpoints.first().ok_or(LinkError::Closed)?.clone(),
            };
            let (mut link, messages) = dial(broker, &endpoint, connector, tracker).await?;
            // A sentinel, or a name, may be the last to learn of a change.
            let role = redis::cmd("ROLE").query_async::<Value>(&mut link.connection).await;
            match role {
                Ok(Value::Array(role)) if !role.first().is_some_and(is_master) => {
                    Err(LinkError::NotMaster(endpoint.authority()))
                }
                Err(error) if broker.master.is_some() => Err(error.into()),
                // A proxy may not know the command.
                _ => Ok((link, messages)),
            }
        };
        tokio::time::timeout(WITHIN, opening).await.unwrap_or(Err(LinkError::Silent))
    }
}

fn is_master(value: &Value) -> bool {
    matches!(value, Value::BulkString(word) if word == b"master")
        || matches!(value, Value::SimpleString(word) if word == "master")
}

/// Asks the sentinels in turn.
async fn find(
    broker: &Broker,
    master: &str,
    connector: &Connector,
    tracker: &TaskTracker,
) -> Result<Endpoint, LinkError> {
    let mut failed = LinkError::NoMaster(master.to_owned());
    for sentinel in &broker.endpoints {
        let asked = async {
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
            found.ok_or_else(|| LinkError::NoMaster(master.to_owned()))
        };
        match tokio::time::timeout(WITHIN / 2, asked).await.unwrap_or(Err(LinkError::Silent)) {
            Ok((host, port)) => {
                let (is_tls, base_path) = (sentinel.is_tls, "".into());
                return Ok(Endpoint { is_tls, host: host.into(), port, base_path });
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
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
