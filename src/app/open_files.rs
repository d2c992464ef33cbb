//! File descriptors: how many connections fit under RLIMIT_NOFILE.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{Config, Server};

/// Raises the soft limit to the hard one, as far as that is allowed; the limit in force.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    now.unwrap_or(u64::MAX)
}

/// `server.max_connections`, or what fits: every client may need a connection to a replica as well, and probes, scrapes,
/// ports and logs need theirs. Says so where it is less.
pub(super) fn fitting_connections(config: &Config) -> usize {
    let wanted = config.server.max_connections.get();
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let replicas = config.pools.iter().map(|pool| pool.replicas.len() as u64).sum();
    let fitting = fitting(open_files, replicas);
    if fitting < wanted {
        let needed = 2 * wanted as u64 + reserved(replicas);
        if config.server.max_connections == Server::default().max_connections {
            // A default, not a wish.
            tracing::info!(
                "up to {fitting} clients at a time: RLIMIT_NOFILE is {open_files} ({wanted} need {needed})"
            );
        } else {
            tracing::warn!(
                open_files,
                needed,
                fitting,
                "RLIMIT_NOFILE is too low for server.max_connections = {wanted}: raise it (LimitNOFILE=, ulimit -n) to \
                 {needed}; until then {fitting} clients are served at a time"
            );
        }
    }
    fitting.min(wanted)
}

fn fitting(open_files: u64, replicas: u64) -> usize {
    let shared = open_files.saturating_sub(reserved(replicas)).max(open_files / 4) / 2;
    usize::try_from(shared.max(1)).unwrap_or(usize::MAX)
}

fn reserved(replicas: u64) -> u64 {
    OWN_FILES + FILES_PER_REPLICA * replicas
}

/// Of the gateway itself: ports, admin connections, logs, telemetry.
const OWN_FILES: u64 = 64;
/// Probe, scrape and one to spare.
const FILES_PER_REPLICA: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_twice_and_replicas_keep_theirs() {
        assert_eq!(fitting(1024, 4), (1024 - 76) / 2);
        assert_eq!(fitting(128, 2), 29);
        assert_eq!(fitting(64, 100), 8);
        assert_eq!(fitting(0, 0), 1);
    }
}
