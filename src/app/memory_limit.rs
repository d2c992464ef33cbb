//! Memory: how much of it request bodies may take.
//!
//! A process in a container is killed when it passes its cgroup's limit, which the file's `server.body_memory` may not
//! know of.

use std::fs;
use std::path::Path;

use crate::config::Config;

/// `server.body_memory`, or what fits into the memory that this process may use. Says so where it is less.
pub(super) fn fitting_body_memory(config: &Config) -> usize {
    let wanted = config.server.body_memory;
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = of_cgroups(Path::new("/sys/fs/cgroup"), &cgroups);
    let Some(limit) = group.into_iter().chain(machine).min() else { return wanted };
    let fitting = usize::try_from(limit / BODY_SHARE).unwrap_or(usize::MAX);
    if fitting < wanted {
        tracing::warn!(
            memory_limit = limit,
            body_memory = fitting,
            "server.body_memory is lowered: request bodies may take a third of the memory that this process may use; \
             raise the limit, or give server.body_memory a smaller value"
        );
    }
    fitting.min(wanted)
}

/// The lowest limit of the groups that a process is in, in bytes (cgroup v1 and v2), as `/proc/self/cgroup` names them.
fn of_cgroups(root: &Path, cgroups: &str) -> Option<u64> {
    cgroups.lines().filter_map(|line| of_cgroup(root, line)).min()
}

/// Limits of a group apply to those below it. In a container the path may be one of the host, which is not to be seen
/// there; the root of the mount is then the container's own group.
fn of_cgroup(root: &Path, line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let (mount, file) = match controllers {
        "" => (root.to_path_buf(), "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let path = Path::new(path.trim_start_matches('/'));
    let limits = path.ancestors().filter_map(|group| {
        // `max`, or in v1 a number near 2^63, means that there is none.
        let limit = fs::read_to_string(mount.join(group).join(file)).ok()?.trim().parse().ok()?;
        (limit < UNLIMITED).then_some(limit)
    });
    limits.min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// A body that grows takes up to twice its size: two thirds at the worst, and the rest is for streams and tables.
const BODY_SHARE: u64 = 3;
const UNLIMITED: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_lowest_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "max\n");
        write(root.path(), "kubepods/memory.max", "1073741824\n");
        write(root.path(), "kubepods/pod1/gateway/memory.max", "max\n");
        assert_eq!(of_cgroups(root.path(), "0::/kubepods/pod1/gateway\n"), Some(1 << 30));
        assert_eq!(of_cgroups(root.path(), "0::/\n"), None);
    }

    #[test]
    fn version_one_has_a_hierarchy_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let none = u64::MAX >> 1 & !0xfff;
        write(root.path(), "memory/memory.limit_in_bytes", "268435456\n");
        write(root.path(), "memory/inner/memory.limit_in_bytes", &format!("{none}\n"));
        let of = |cgroups| of_cgroups(root.path(), cgroups);
        assert_eq!(of("3:cpu,cpuacct:/\n2:memory:/inner\n"), Some(256 << 20));
        assert_eq!(
            of("2:memory:/docker/of-the-host\n"),
            Some(256 << 20),
            "the container's own group is the root"
        );
        assert_eq!(of("3:cpu,cpuacct:/\n"), None);
        assert_eq!(of("nonsense"), None);
    }

    #[test]
    fn the_machine_has_a_size() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("nonsense"), None);
    }
}
