//! A real Redis, on a free port, without files: what `[cluster]` is tested against.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
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
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = free.local_addr().unwrap();
        drop(free);
        let mut this = Self { addr, child: None };
        this.start_again().await;
        this
    }

    /// Starts it, empty, at its address.
    pub async fn start_again(&mut self) {
        let port = self.addr.port().to_string();
        let flags = [
            "--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel",
            "warning",
        ];
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

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
