//! One try of the broker, for `tokenway check --online`: whether it is there, lets this gateway in, and takes what gateways send.

use redis::{ErrorKind, RedisError};
use tokio_util::task::TaskTracker;

use super::link::{Link, LinkError, refuses_user};
use crate::config::Cluster;
use crate::upstream::connect::Connector;

/// Why a broker cannot be used, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// No broker is there.
    #[error("{0}; check host and port of cluster.url, for TLS also rediss:// and cluster.ca")]
    Away(LinkError),
    /// It wants a password.
    #[error("it wants a password: write redis://USER:PASSWORD@HOST in what cluster.url names")]
    NoPassword,
    /// It has another.
    #[error("it refuses user or password of cluster.url")]
    WrongPassword,
    /// It has no RESP3.
    #[error("it does not speak RESP3: [cluster] needs Redis 6 or Valkey")]
    Old,
    /// A command is refused.
    #[error("{command} is refused ({error}); its user needs: +@all ~{name}:* &{name}:*")]
    Forbidden {
        /// The command.
        command: &'static str,
        /// `cluster.name`
        name: String,
        /// What it answered.
        error: RedisError,
    },
    /// It copies another one.
    #[error("it is a read-only replica: name its master, or its sentinels as redis+sentinel://")]
    ReadOnly,
    /// It spreads keys over servers.
    #[error(
        "it is in cluster mode, where keys of one change lie apart: name a server, or sentinels, without it"
    )]
    Sharded,
}

/// Tries the broker; returns what it is: `Redis 7.2.4`.
pub async fn try_broker(config: &Cluster, connector: &Connector) -> Result<String, Unusable> {
    let opened = Link::open(&config.url, connector, &TaskTracker::new()).await;
    let (mut link, _messages) = opened.map_err(|error| match error {
        LinkError::Broker(error) => refused(error),
        LinkError::NotMaster(_) => Unusable::ReadOnly,
        error => Unusable::Away(error),
    })?;
    let [key, other] = ["check", "check-other"].map(|name| format!("{}:{name}", config.name));
    let of_two_keys = redis::cmd("DEL").arg(&key).arg(&other).to_owned();
    let tries = COMMANDS.iter().map(|&(command, arguments)| {
        let mut trying = redis::cmd(command);
        trying.arg(&key).arg(arguments);
        (command, trying)
    });
    let [time, begin, end] = ["TIME", "MULTI", "EXEC"].map(|command| (command, redis::cmd(command)));
    for (command, trying) in tries.chain([time, begin, ("DEL", of_two_keys), end]) {
        if let Err(error) = trying.query_async::<()>(&mut link.connection).await {
            return Err(match error.code() {
                Some("READONLY") => Unusable::ReadOnly,
                Some("CROSSSLOT" | "MOVED" | "CLUSTERDOWN") => Unusable::Sharded,
                _ => Unusable::Forbidden { command, name: config.name.to_string(), error },
            });
        }
    }
    // Where it may not be asked it works all the same.
    let info: String =
        redis::cmd("INFO").arg("server").query_async(&mut link.connection).await.unwrap_or_default();
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    Ok(match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "its version is hidden".to_owned(),
    })
}

fn refused(error: RedisError) -> Unusable {
    let text = error.to_string();
    if text.contains("NOAUTH") || text.contains("without any password configured") {
        Unusable::NoPassword
    } else if refuses_user(&error) {
        Unusable::WrongPassword
    } else if error.kind() == ErrorKind::RESP3NotSupported || text.contains("HELLO") {
        Unusable::Old
    } else {
        Unusable::Away(error.into())
    }
}

/// What gateways send, on a key and a channel of this try only.
const COMMANDS: &[(&str, &[&str])] = &[
    ("SUBSCRIBE", &[]),
    ("UNSUBSCRIBE", &[]),
    ("PUBLISH", &[""]),
    ("SET", &["1", "EX", "1"]),
    ("GET", &[]),
    ("INCR", &[]),
    ("DEL", &[]),
    ("HSET", &["field", "1"]),
    ("HSETNX", &["field", "1"]),
    ("HGETALL", &[]),
    ("HMGET", &["field"]),
    ("HKEYS", &[]),
    ("HLEN", &[]),
    ("HDEL", &["field"]),
    ("DEL", &[]),
    ("ZADD", &["1", "member"]),
    ("ZRANGE", &["0", "-1"]),
    ("ZRANGEBYSCORE", &["0", "1"]),
    ("ZREMRANGEBYSCORE", &["-inf", "0"]),
    ("ZREM", &["member"]),
    ("DEL", &[]),
    ("XADD", &["*", "field", "1"]),
    ("XRANGE", &["-", "+", "COUNT", "1"]),
    ("EXPIRE", &["1"]),
    ("EXPIREAT", &["1"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_gateways_send_is_tried() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cluster");
        let mut sent = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            // What a link asks first it can do without, and its sentinels have users of their own.
            if !["trial.rs", "link.rs"].iter().any(|other| path.ends_with(other)) {
                let text = std::fs::read_to_string(path).unwrap();
                let commands = text.split("cmd(\"").skip(1).filter_map(|rest| rest.split('"').next());
                sent.extend(commands.map(str::to_owned));
            }
        }
        assert!(sent.iter().any(|command| command == "PUBLISH"), "{sent:?}");
        sent.retain(|command| command != "TIME" && !COMMANDS.iter().any(|(tried, _)| tried == command));
        assert!(sent.is_empty(), "they pass a check and fail then: {sent:?}");
    }
}
