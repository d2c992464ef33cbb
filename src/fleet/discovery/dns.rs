//! Replicas from DNS: every address of a headless Service's name, or every SRV record.
//!
//! A name is looked up again when the shortest TTL of its answer ends, within [`MIN_TTL`] and [`MAX_TTL`]. The system's
//! `resolv.conf` says whom to ask and which domains to search, unless the source names a server, which then is asked for the
//! targets of SRV records as well. Requests to a replica found by address need no further look-up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, Record, RecordType};

use super::report::{News, Report};
use super::roster::Found;
use crate::clock::doubled;
use crate::config::{DnsRecords, DnsSource, Endpoint, ReplicaSpec};

/// Asks until the task is dropped.
pub(super) async fn run(source: DnsSource, report: Report) {
    let mut asking = Asking { source, resolver: None, last: Families::default(), targets: BTreeMap::new() };
    let mut misses = 0_u32;
    loop {
        let answer = asking.ask().await;
        for (host, addresses) in &asking.targets {
            report.connector.set_addresses(host, Arc::clone(addresses));
        }
        let pause = match answer {
            Ok(Answer { targets, ttl }) => {
                misses = 0;
                report.answered(targets);
                ttl.clamp(MIN_TTL, MAX_TTL)
            }
            Err(error) => {
                misses += 1;
                if error.is_nx_domain() {
                    report.note(News::Absent(&format!("no such name: {}", asking.source.name)));
                } else if error.is_no_records_found() {
                    report.note(News::Absent(&format!("no records of {}", asking.source.name)));
                } else {
                    report.note(News::Failed(&error.to_string()));
                    // The system's configuration may have changed.
                    asking.resolver = None;
                }
                doubled(FIRST_RETRY, misses - 1, MAX_RETRY)
            }
        };
        // Gateways that started together do not ask together for ever.
        tokio::time::sleep(pause.mul_f64(0.9 + 0.1 * fastrand::f64())).await;
    }
}

struct Asking {
    source: DnsSource,
    resolver: Option<TokioResolver>,
    /// Addresses of the last answer, for a family that fails while the other one is answered.
    last: Families,
    /// Addresses of the targets of SRV records by the source's own server, as it answered last.
    targets: BTreeMap<Arc<str>, Arc<[IpAddr]>>,
}

#[derive(Debug, Default)]
struct Families {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
}

struct Answer {
    targets: Vec<Found>,
    ttl: Duration,
}

impl Asking {
    async fn ask(&mut self) -> Result<Answer, NetError> {
        let resolver = match self.resolver.take() {
            Some(resolver) => resolver,
            None => resolver_of(&self.source)?,
        };
        let answer = match self.source.records {
            DnsRecords::Addresses { port } => self.addresses(&resolver, port).await,
            DnsRecords::Services => self.services(&resolver).await,
        };
        self.resolver = Some(resolver);
        answer
    }

    async fn addresses(&mut self, resolver: &TokioResolver, port: u16) -> Result<Answer, NetError> {
        let name = &*self.source.name;
        let (v4, v6) =
            tokio::join!(resolver.lookup(name, RecordType::A), resolver.lookup(name, RecordType::AAAA));
        let (v4, v6) = match (v4, v6) {
            // What failed says more than what is merely not there.
            (Err(v4), Err(v6)) => return Err(if v4.is_no_records_found() { v6 } else { v4 }),
            answers => answers,
        };
        let mut ttl = MAX_TTL;
        for (answer, last) in [(v4, &mut self.last.v4), (v6, &mut self.last.v6)] {
            match answer {
                Ok(answer) => {
                    ttl = ttl.min(shortest_ttl(answer.answers()));
                    *last = answer.answers().iter().filter_map(address).collect();
                    last.sort_unstable();
                }
                Err(error) if error.is_no_records_found() => last.clear(),
                Err(_) => ttl = ttl.min(MAX_RETRY),
            }
        }
        let all = self.last.v4.iter().chain(&self.last.v6);
        let targets = all.map(|address| target(&self.source, &address.to_string(), port)).collect();
        Ok(Answer { targets, ttl })
    }

    async fn services(&mut self, resolver: &TokioResolver) -> Result<Answer, NetError> {
        let answer = resolver.lookup(&*self.source.name, RecordType::SRV).await?;
        let mut found: Vec<(u16, String, u16)> = answer.answers().iter().filter_map(service).collect();
        // RFC 2782: those of a higher number are for when no lower one can be reached.
        let first = found.iter().map(|(priority, ..)| *priority).min();
        found.retain(|(priority, ..)| Some(*priority) == first);
        found.sort_unstable();
        found.dedup();
        let targets: Vec<Found> =
            found.iter().map(|(_, host, port)| target(&self.source, host, *port)).collect();
        let mut ttl = shortest_ttl(answer.answers());
        if self.source.server.is_some() {
            let hosts: BTreeSet<_> =
                targets.iter().map(|found| Arc::clone(&found.spec.endpoint.host)).collect();
            self.targets.retain(|host, _| hosts.contains(host));
            // Whoever asks another server for the records asks it for their targets too: the system may not know them.
            for host in hosts {
                let records = addresses_of(resolver, &host).await;
                let addresses: Arc<[IpAddr]> = records.iter().filter_map(address).collect();
                if !addresses.is_empty() {
                    ttl = ttl.min(shortest_ttl(&records));
                    self.targets.insert(host, addresses);
                }
            }
        }
        Ok(Answer { targets, ttl })
    }
}

/// Of both families; none where the server has no answer, which leaves its last one in force.
async fn addresses_of(resolver: &TokioResolver, host: &str) -> Vec<Record> {
    let host = format!("{}.", host.trim_end_matches('.'));
    let (v4, v6) =
        tokio::join!(resolver.lookup(&*host, RecordType::A), resolver.lookup(&*host, RecordType::AAAA));
    let answers = [v4, v6].into_iter().flatten();
    answers.flat_map(|answer| answer.answers().to_vec()).collect()
}

fn resolver_of(source: &DnsSource) -> Result<TokioResolver, NetError> {
    let mut builder = match source.server {
        None => TokioResolver::builder_tokio()?,
        Some(server) => {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            let connections = connections.map(|connection| {
                let mut connection = connection;
                connection.port = server.port();
                connection
            });
            let server = NameServerConfig::new(server.ip(), true, connections.into());
            let config = ResolverConfig::from_name_servers(vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };
    // We ask when a TTL has ended: an answer out of a cache would be older than it says.
    builder.options_mut().cache_size = 0;
    builder.options_mut().timeout = TIMEOUT;
    builder.build()
}

fn shortest_ttl(records: &[Record]) -> Duration {
    records.iter().map(|record| Duration::from_secs(record.ttl.into())).min().unwrap_or(MIN_TTL)
}

fn address(record: &Record) -> Option<IpAddr> {
    match &record.data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    }
}

/// Priority, host and port; `None` for other records and for the target `.`, which says that there is no service.
fn service(record: &Record) -> Option<(u16, String, u16)> {
    let RData::SRV(service) = &record.data else { return None };
    let host = service.target.to_ascii().to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let is_usable = !host.is_empty() && http::HeaderValue::try_from(host).is_ok() && service.port > 0;
    is_usable.then(|| (service.priority, host.to_owned(), service.port))
}

fn target(source: &DnsSource, host: &str, port: u16) -> Found {
    let base_path = source.base_path.clone();
    let endpoint = Endpoint { is_tls: source.is_tls, host: host.into(), port, base_path };
    ReplicaSpec { name: endpoint.authority().into(), endpoint, zone: None }.into()
}

/// A TTL of zero would make us ask without end; ...
const MIN_TTL: Duration = Duration::from_secs(1);
/// ... and one of a day would keep a dead fleet for a day.
const MAX_TTL: Duration = Duration::from_secs(300);
/// Of one try at one server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Doubled for each failure in a row.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(10);
