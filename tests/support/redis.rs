//! A real Redis, on a free port, without files: what `[cluster]` is tested against.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokenway::config::{Broker, Cluster, Endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;

/// A server that ends with the test.
pub struct Redis {
    pub addr: SocketAddr,
    child: Option<Child>,
}

impl Redis {
    pub async fn start() -> Self {
        let mut this = Self { addr: free_address(), child: None };
        this.start_again().await;
        this
    }

    /// A sentinel, with its file in `folder`, that calls the server at `master` `main`.
    pub async fn sentinel_of(master: SocketAddr, folder: &Path) -> Self {
        let (addr, file) = (free_address(), folder.join("sentinel.conf"));
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor main {} {} 1\n",
            addr.port(),
            master.ip(),
            master.port()
        );
        fs::write(&file, text).unwrap();
        let mut this = Self { addr, child: None };
        this.run(&[file.to_str().unwrap(), "--sentinel"]).await;
        this
    }

    /// Starts it, empty, at its address.
    pub async fn start_again(&mut self) {
        let port = self.addr.port().to_string();
        let flags = [
            "--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel",
            "warning",
        ];
        self.run(&flags).await;
    }

    async fn run(&mut self, flags: &[&str]) {
        let spawned = Command::new("redis-server").args(flags).stdout(Stdio::null()).spawn();
        let missing = "redis-server is not installed, and [cluster] is tested against a real one: apt-get install redis-server";
        self.child = Some(spawned.unwrap_or_else(|error| panic!("{missing} ({error})")));
        let answers = async {
            while self.ask("PING").await.is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        soon("redis answers", answers).await;
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The beginning of its answer to one command.
    pub async fn ask(&self, command: &str) -> Option<String> {
        let mut socket = TcpStream::connect(self.addr).await.ok()?;
        socket.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
        let mut answer = vec![0; 4096];
        let n = socket.read(&mut answer).await.ok().filter(|n| *n > 0)?;
        Some(String::from_utf8_lossy(&answer[..n]).into_owned())
    }

    /// `[cluster]` with it.
    pub fn cluster(&self) -> Cluster {
        let host = self.addr.ip().to_string().into();
        let endpoint = Endpoint { is_tls: false, host, port: self.addr.port(), base_path: "".into() };
        Cluster { url: Broker { endpoints: vec![endpoint], ..Broker::default() }, ..Cluster::default() }
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
