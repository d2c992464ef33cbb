//! Host names to addresses: answers are kept, and one look-up serves scrapes, probes and requests alike.
//!
//! `getaddrinfo` returns no TTL and occupies a thread that outlives the caller's timeout. So an answer counts for [`FRESH_FOR`];
//! after that it is used once more while one look-up runs beside, and it outlasts failed look-ups for [`STALE_FOR`]: a name
//! server that is away takes no replica with it. Addresses from a discovery source win over the system's resolver for as long
//! as the source repeats them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::background::boxed;
use crate::clock::{Clock, Stamp};

/// Resolves names; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    hosts: Arc<Mutex<HashMap<Arc<str>, Arc<Host>>>>,
    clock: Clock,
    tracker: TaskTracker,
}

#[derive(Debug, Default)]
struct Host {
    answer: watch::Sender<Option<Answer>>,
    is_asking: AtomicBool,
}

#[derive(Clone, Debug)]
struct Answer {
    /// When it was given; of a failure, when that happened.
    at: Stamp,
    result: Result<Arc<[IpAddr]>, Arc<io::Error>>,
    /// By a discovery source, not by the system's resolver.
    is_of_source: bool,
}

impl Resolver {
    pub(super) fn new(clock: Clock, tracker: TaskTracker) -> Self {
        Self { hosts: Arc::default(), clock, tracker }
    }

    /// The addresses of a name or of an address as text, in the resolver's order; at least one.
    pub(super) async fn resolve(&self, host: &Arc<str>) -> io::Result<Arc<[IpAddr]>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([address]));
        }
        let entry = self.entry(host);
        let now = self.clock.now();
        let known = entry.answer.borrow().clone();
        match known {
            Some(Answer { at, result: Ok(addresses), is_of_source })
                if is_of_source || now.since(at) < STALE_FOR =>
            {
                if now.since(at) >= if is_of_source { REPEATED_WITHIN } else { FRESH_FOR } {
                    self.ask(host, &entry);
                }
                return Ok(addresses);
            }
            Some(Answer { at, result: Err(error), .. }) if now.since(at) < FAILED_FOR => {
                return Err(again(&error));
            }
            _ => {}
        }
        let mut answers = entry.answer.subscribe();
        self.ask(host, &entry);
        let is_new = |answer: &Option<Answer>| answer.as_ref().is_some_and(|answer| answer.at >= now);
        match answers.wait_for(is_new).await.as_deref() {
            Ok(Some(Answer { result, .. })) => result.clone().map_err(|error| again(&error)),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The first address of a host, as far as it is known; asks for nothing.
    pub(super) fn known(&self, host: &Arc<str>) -> Option<IpAddr> {
        if let Ok(address) = host.parse() {
            return Some(address);
        }
        let entry = self.hosts.lock().get(host).cloned()?;
        let answer = entry.answer.borrow();
        answer.as_ref()?.result.as_ref().ok()?.first().copied()
    }

    /// The addresses of a name, as far as they are known. A look-up runs beside where the last one was long ago.
    pub(super) fn addresses(&self, host: &Arc<str>) -> Option<Arc<[IpAddr]>> {
        let entry = self.hosts.lock().get(host).cloned()?;
        let known = entry.answer.borrow().clone()?;
        if self.clock.now().since(known.at) >= LOOKED_AT_AGAIN && !known.is_of_source {
            self.ask(host, &entry);
        }
        known.result.ok()
    }

    /// The addresses of a name, by a name server that the system does not ask. The source repeats them with each of its own
    /// answers; of one that was dropped the system is asked again, and they stay where it does not know the name.
    pub(super) fn set_addresses(&self, host: &Arc<str>, addresses: Arc<[IpAddr]>) {
        let answer = Answer { at: self.clock.now(), result: Ok(addresses), is_of_source: true };
        self.entry(host).answer.send_replace(Some(answer));
    }

    fn entry(&self, host: &Arc<str>) -> Arc<Host> {
        let mut hosts = self.hosts.lock();
        let fresh = || Arc::new(Host::default());
        Arc::clone(hosts.entry(Arc::clone(host)).or_insert_with(fresh))
    }

    fn ask(&self, host: &Arc<str>, entry: &Arc<Host>) {
        if entry.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (host, entry, clock) = (Arc::clone(host), Arc::clone(entry), self.clock);
        self.tracker.spawn(boxed(async move {
            let result = tokio::net::lookup_host((&*host, 0)).await.and_then(|found| {
                let addresses: Arc<[IpAddr]> = found.map(|address| address.ip()).collect();
                let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                if addresses.is_empty() { Err(none()) } else { Ok(addresses) }
            });
            let result = result.map_err(Arc::new);
            // First: whoever finds it asking, and asks no more, came before this answer.
            entry.is_asking.store(false, Ordering::Release);
            let answer = Answer { at: clock.now(), result, is_of_source: false };
            entry.answer.send_if_modified(|known| keep_newer(known, answer));
        }));
    }
}

/// Nothing of the system replaces what a source repeats, and a failure no addresses that still count.
fn keep_newer(known: &mut Option<Answer>, new: Answer) -> bool {
    let is_kept = known.as_ref().is_some_and(|old| {
        let (age, has_failed) = (new.at.since(old.at), new.result.is_err());
        let is_repeated = old.is_of_source && (has_failed || age < REPEATED_WITHIN);
        is_repeated || (has_failed && old.result.is_ok() && age < STALE_FOR)
    });
    if !is_kept {
        *known = Some(new);
    }
    !is_kept
}

/// The same error for one more caller.
fn again(error: &Arc<io::Error>) -> io::Error {
    let wrapped = || io::Error::new(error.kind(), Arc::clone(error));
    error.raw_os_error().map_or_else(wrapped, io::Error::from_raw_os_error)
}

/// The addresses in the order in which they are tried: the resolver's, with the families in turn (RFC 8305 §4).
pub(super) fn families_in_turn(addresses: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    let is_preferred =
        |address: &IpAddr| addresses.first().is_some_and(|first| first.is_ipv4() == address.is_ipv4());
    let (preferred, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| is_preferred(address));
    let turns = (0..addresses.len()).flat_map(|turn| [preferred.get(turn), other.get(turn)]);
    turns.flatten().map(|address| SocketAddr::new(*address, port)).collect()
}

const FRESH_FOR: Duration = Duration::from_secs(10);
/// After how long an answer is asked for anew that no connect asks for: where a name leads elsewhere, its old host may go on.
const LOOKED_AT_AGAIN: Duration = Duration::from_secs(30);
/// How long it is used while newer look-ups run or fail.
const STALE_FOR: Duration = Duration::from_secs(300);
/// A source that still has a name repeats its addresses within this: its longest TTL, and as much for a server that is slow.
const REPEATED_WITHIN: Duration = Duration::from_secs(600);
/// A name that failed is not looked up again before this.
const FAILED_FOR: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[tokio::test]
    async fn addresses_pass_and_names_are_looked_up_once() {
        let resolver = Resolver::new(Clock::start(), TaskTracker::new());
        assert_eq!(*resolver.resolve(&"::1".into()).await.unwrap(), ["::1".parse::<IpAddr>().unwrap()]);
        let name: Arc<str> = "localhost".into();
        let (one, two) = tokio::join!(resolver.resolve(&name), resolver.resolve(&name));
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()), "two look-ups for one name");
        let unknown: Arc<str> = "no-such-name.invalid".into();
        assert!(resolver.resolve(&unknown).await.is_err());
        resolver.set_addresses(&unknown, Arc::new([IpAddr::from([127, 0, 0, 9])]));
        assert_eq!(*resolver.resolve(&unknown).await.unwrap(), [IpAddr::from([127, 0, 0, 9])]);
    }

    #[test]
    fn families_take_turns_in_the_resolver_s_order() {
        let addresses = ["::1", "::2", "::3", "127.0.0.1"].map(|text| text.parse().unwrap());
        let order = families_in_turn(&addresses, 80).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(order, ["[::1]:80", "127.0.0.1:80", "[::2]:80", "[::3]:80"]);
    }

    #[test]
    fn a_failed_look_up_leaves_the_addresses_in_force_for_a_while() {
        let mut known = Some(good(1, false));
        assert!(!keep_newer(&mut known, bad(100)));
        assert!(keep_newer(&mut known, bad(400)) && known.unwrap().result.is_err());
    }

    #[test]
    fn addresses_of_a_source_win_while_it_repeats_them_or_the_system_has_none() {
        let mut known = Some(good(1, true));
        assert!(!keep_newer(&mut known, good(500, false)), "the system's answer replaced a source's");
        assert!(!keep_newer(&mut known, bad(5000)), "a replica lost its address");
        assert!(keep_newer(&mut known, good(5000, false)), "the address of a source that is gone never ends");
    }

    fn good(seconds: u64, is_of_source: bool) -> Answer {
        Answer { at: at(seconds), result: Ok(Arc::new([IpAddr::from([127, 0, 0, 1])])), is_of_source }
    }

    fn bad(seconds: u64) -> Answer {
        Answer { at: at(seconds), result: Err(Arc::new(io::Error::other(""))), is_of_source: false }
    }
}
