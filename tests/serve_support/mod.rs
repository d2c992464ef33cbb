//! What the tests of the binary share: started processes, a client of one request a connection, a fleet.
//!
//! Everything is blocking and on the outside: arguments, signals, pipes and sockets, as an operator has them.
//! Each wait is for a condition and has a limit; a test that fails leaves no process behind.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

pub mod client;
pub mod process;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

pub use self::client::{Answer, admin, chat, get, post_chat};
pub use self::process::Process;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Polls until there is a value, up to a limit.
pub fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, poll)
}

/// The same with a limit of its own, for what computes.
pub fn until_within<T>(limit: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let every = Duration::from_millis(20);
    for _ in 0..limit.as_millis() / every.as_millis() {
        if let Some(answer) = poll() {
            return answer;
        }
        sleep(every);
    }
    panic!("waited in vain: {what}");
}

/// `tokenway sim` with two replicas.
pub struct Fleet {
    process: Process,
    /// Base URLs.
    pub urls: Vec<String>,
}

impl Fleet {
    pub fn start(flags: &[&str]) -> Self {
        let process = Process::start(&[&["sim", "--replicas", "2", "--port", "0"], flags].concat());
        process.out.line_with("ready n=2");
        let urls = process.out.lines().into_iter().filter_map(|l| Some(l.split_once("url=")?.1.to_owned()));
        let urls = urls.collect();
        Self { process, urls }
    }

    /// As `--upstream` takes them.
    pub fn upstreams(&self) -> String {
        self.urls.join(",")
    }

    /// As `replicas` of a pool takes them.
    pub fn toml(&self) -> String {
        format!("{:?}", self.urls)
    }
}

/// `tokenway serve` on free ports.
pub struct Gateway {
    pub process: Process,
    /// Host and port of the data port.
    pub data: String,
    /// Host and port of the admin port.
    pub admin: String,
}

impl Gateway {
    pub fn start(flags: &[&str]) -> Self {
        let ports = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        Self::of(Process::start(&[&ports, flags].concat()))
    }

    /// With a file, and with state in a directory over restarts.
    pub fn with_state(file: &Path, state: &Path, admin_port: u16) -> Self {
        Self::with_state_at(file, state, ([127, 0, 0, 1], admin_port).into())
    }

    /// The same with its admin port at `admin`.
    pub fn with_state_at(file: &Path, state: &Path, admin: SocketAddr) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenway"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", &admin.to_string()]);
        command.arg("--config").arg(file).env("STATE_DIRECTORY", state);
        Self::of(Process::spawn(command))
    }

    fn of(process: Process) -> Self {
        let line = process.err.line_with(r#""message":"tokenway is listening""#);
        let banner: serde_json::Value = serde_json::from_str(&line).unwrap();
        let authority = |key: &str| {
            let url = banner[key].as_str().unwrap();
            url.split_once("://").unwrap().1.to_owned()
        };
        Self { data: authority("data"), admin: authority("admin"), process }
    }

    pub fn in_front_of(fleet: &Fleet, flags: &[&str]) -> Self {
        let this = Self::start(&[&["--upstream", &fleet.upstreams()], flags].concat());
        this.wait_ready();
        this
    }

    pub fn with_file(file: &Path) -> Self {
        Self::start(&["--config", file.to_str().unwrap()])
    }

    /// The same once it is ready.
    pub fn ready_with(file: &Path) -> Self {
        let this = Self::with_file(file);
        this.wait_ready();
        this
    }

    pub fn wait_ready(&self) {
        until("a ready gateway", || (get(&self.admin, "/readyz").status == 200).then_some(()));
    }

    /// The value of the only series of a metric, 0 without one.
    pub fn metric(&self, name: &str) -> f64 {
        let page = get(&self.admin, "/metrics").body;
        let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let series: Vec<&str> = page.lines().filter(is_it).collect();
        assert!(series.len() <= 1, "{series:?}");
        series.first().map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }
}

/// A port that refuses connections for as long as this value lives: bound, never listening.
pub struct DeadPort(Socket);

impl DeadPort {
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        Self(socket)
    }

    pub fn port(&self) -> u16 {
        self.0.local_addr().unwrap().as_socket().unwrap().port()
    }
}

/// A file of the repository's `config/`.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

/// Replaces a file in one step, so that no reader sees half of it.
pub fn replace(file: &Path, content: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, file).unwrap();
}
