//! `[cluster]`: the broker through which several gateways share what they do.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::check::codec::{NAMED, Own, Word};
use super::check::pem::CERTIFICATES;
use super::check::secret;
use super::check::section::{Item, Section};
use super::declare::{Declared, section};
use super::endpoint::escape;
use super::{Endpoint, PoolTls, Secret, percent_decoded};
use crate::labels::labels;

section! {
    /// several gateways before the same replicas; without it, or while its broker is away, each routes alone; restart
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Cluster for "[cluster]", optional {
        /// required: Redis 6 or Valkey; redis+sentinel://HOST,HOST/NAME; rediss:// and rediss+sentinel:// for TLS; with a password as "env:NAME" or "file:PATH"
        url: Broker as BROKER, required "redis://127.0.0.1:6379";
        /// gateways of one name work together; others may share the broker
        name: Arc<str> as NAMED, default "tokenway";
        /// PEM file of the CA that signs the broker's certificate
        ca: Option<PathBuf> as CERTIFICATES, example "ca.pem";
        /// hard budgets while the broker is away: "open" counts alone, "closed" refuses what no lease covers
        on_loss: OnLoss as Word("on_loss"), default "open";
    }
}

impl Cluster {
    /// TLS towards its broker.
    pub fn tls(&self) -> PoolTls {
        PoolTls { ca: self.ca.clone(), ..PoolTls::default() }
    }
}

/// A Redis or Valkey server, or the sentinels that know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broker {
    /// The server, or the sentinels.
    pub endpoints: Vec<Endpoint>,
    /// What sentinels call the server.
    pub master: Option<Arc<str>>,
    /// User of its ACL.
    pub user: Option<Arc<str>>,
    /// Its password.
    pub password: Option<Secret>,
    /// Number of the database.
    pub database: u16,
}

labels! {
    /// What holds for hard budgets while the broker is away.
    #[derive(Default)]
    pub enum OnLoss {
        /// Each gateway counts alone.
        #[default]
        Open = "open",
        /// What no lease covers is refused.
        Closed = "closed",
    }
}

pub(super) fn cluster(root: &Section<'_>) -> Option<Cluster> {
    let (section, cluster) = Cluster::opened(root)?;
    section.expect("url", HINT);
    Some(cluster)
}

fn broker(item: &Item<'_>) -> Option<Broker> {
    let text = secret::read_or_plain(item)?;
    if secret::is_stand_in(&text) {
        return Some(Broker::default());
    }
    let broker = parse(text.reveal());
    match &broker {
        Err(fault) => item.fault_masked(format!("cluster.url is no URL of a broker: {fault}"), HINT),
        Ok(broker) if broker.password.is_some() => {
            let hint = "name where the URL is kept: \"env:NAME\" or \"file:PATH\"";
            item.warn_of_plain_secret("cluster.url has its password in the file", hint);
        }
        Ok(_) => {}
    }
    broker.ok()
}

/// Reads `redis://[user[:password]@]host[:port][/database]`, and the same of sentinels with `/name` before the database.
fn parse(text: &str) -> Result<Broker, &'static str> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no ://")?;
    let (is_tls, is_sentinel) = match scheme {
        "redis" | "valkey" => (false, false),
        "rediss" | "valkeys" => (true, false),
        "redis+sentinel" => (false, true),
        "rediss+sentinel" => (true, true),
        _ => {
            return Err(
                "it starts with none of redis://, rediss://, redis+sentinel:// and rediss+sentinel://",
            );
        }
    };
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (user, password) = match user {
        None => (None, None),
        Some(user) => match user.split_once(':') {
            Some((user, password)) => (Some(user).filter(|user| !user.is_empty()), Some(decoded(password)?)),
            None => (None, Some(decoded(user)?)),
        },
    };
    let mut parts = rest.split('/');
    let hosts = parts.next().unwrap_or_default();
    let mut named = || parts.next().filter(|name| !name.is_empty());
    let master = is_sentinel.then(|| named().ok_or("it names no server after the sentinels")).transpose()?;
    let master = master.map(Into::into);
    let database = match parts.next().unwrap_or_default() {
        "" => 0,
        number => number.parse().map_err(|_| "its path is not the number of a database")?,
    };
    if parts.next().is_some() {
        return Err("its path has too many parts");
    }
    let port = if is_sentinel { 26_379 } else { 6379 };
    let endpoints: Vec<_> =
        hosts.split(',').map(|host| endpoint(host, port, is_tls)).collect::<Result<_, _>>()?;
    if endpoints.len() > 1 && !is_sentinel {
        return Err("it has several hosts, which only sentinels may be");
    }
    let user = user.map(decoded).transpose()?.map(Into::into);
    Ok(Broker { endpoints, master, user, password: password.map(Secret::new), database })
}

fn endpoint(text: &str, port: u16, is_tls: bool) -> Result<Endpoint, &'static str> {
    let authority: http::uri::Authority = text.parse().map_err(|_| "it has no host")?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let named = text.strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':'));
    let port = match named {
        None => port,
        Some(named) => {
            named.parse().ok().filter(|port| *port > 0).ok_or("it has no port between 1 and 65535")?
        }
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    Ok(Endpoint { is_tls, host: host.to_ascii_lowercase().into(), port, base_path: "".into() })
}

/// Without percent signs (RFC 3986).
fn decoded(text: &str) -> Result<String, &'static str> {
    const FAULT: &str = "its user or password has a % that is no escape";
    if !text.split('%').skip(1).all(|rest| escape(rest).is_some()) {
        return Err(FAULT);
    }
    String::from_utf8(percent_decoded(text)).map_err(|_| FAULT)
}

impl std::fmt::Display for Broker {
    /// Without user and password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_tls = self.endpoints.iter().any(|endpoint| endpoint.is_tls);
        let hosts: Vec<_> = self.endpoints.iter().map(Endpoint::authority).collect();
        let (scheme, sentinel) =
            (if is_tls { "rediss" } else { "redis" }, if self.master.is_some() { "+sentinel" } else { "" });
        write!(f, "{scheme}{sentinel}://{}", hosts.join(","))?;
        if let Some(master) = &self.master {
            write!(f, "/{master}")?;
        }
        if self.database > 0 { write!(f, "/{}", self.database) } else { Ok(()) }
    }
}

const BROKER: Own<Broker> = Own { read: broker, show: |broker| json!(broker.to_string()) };
const HINT: &str =
    "write url = \"redis://127.0.0.1:6379\", or name where it is kept: \"env:NAME\" or \"file:PATH\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_taken_apart_and_shown_without_its_password() {
        for (text, shown, user, password) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379", None, None),
            ("redis://:p%40s@Cache:7000/3", "redis://cache:7000/3", None, Some("p@s")),
            ("rediss://gw:p:w@[::1]:6380", "rediss://[::1]:6380", Some("gw"), Some("p:w")),
            ("redis://secret@h", "redis://h:6379", None, Some("secret")),
            ("redis+sentinel://:pw9@a,b:9/main/2", "redis+sentinel://a:26379,b:9/main/2", None, Some("pw9")),
        ] {
            let broker = parse(text).unwrap();
            assert_eq!(broker.to_string(), shown);
            assert_eq!(
                (broker.user.as_deref(), broker.password.as_ref().map(Secret::reveal)),
                (user, password)
            );
            assert!(!password.is_some_and(|password| format!("{broker:?}").contains(password)), "{broker:?}");
        }
    }

    #[test]
    fn what_is_no_broker_is_refused() {
        for text in [
            "localhost:6379", "http://h", "redis://", "redis://h:0", "redis://h:x", "redis://h/one",
            "redis://h/1/2", "redis://a,b", "redis+sentinel://a", "redis://:%zz@h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
