//! Each line of a `sh` block of README and book runs as it stands there, page by page, in front of simulated engines.
//!
//! Ports are moved to free ones and long runs are shortened; `vllm` and `cargo run` are stand-ins that start `tokenway`. A
//! command that serves stays up for those below it, as in a reader's other terminal. What needs a cluster or builds the crate
//! is run by the script that `ELSEWHERE` names.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::{Page, root};
use crate::serve_support::client::{connect, exchange, request};
use crate::serve_support::{Process, chat, get, until};

#[test]
fn readme() {
    Reader::open("README.md").follow();
}

#[test]
fn getting_started() {
    Reader::open("docs/getting-started.md").follow();
}

#[test]
fn every_other_page() {
    let pages = Page::all().into_iter().filter(|page| !page.blocks("sh").is_empty());
    for page in pages.filter(|page| !["README.md", "docs/getting-started.md"].contains(&&*page.path)) {
        let mut reader = Reader::open(&page.path);
        reader.serve();
        reader.follow();
    }
}

/// Somebody with a page, a directory and some terminals.
struct Reader {
    page: Page,
    folder: TempDir,
    ports: Ports,
    path: String,
    /// What serves: its first words, and the process.
    up: Vec<(&'static str, Process)>,
    /// `serve` was called: what the page starts takes the place of that.
    is_set_up: bool,
}

impl Reader {
    fn open(path: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let ports = Ports::free();
        let tenant = if path == "docs/tenants.md" { TENANT } else { "" };
        let gateway = ports.moved(GATEWAY) + tenant;
        for name in ["gateway.toml", "today.toml", "tomorrow.toml"] {
            if path != "docs/getting-started.md" {
                put(name, &gateway);
            }
        }
        put("trace.jsonl", &trace());
        put(
            "config.yaml",
            "model_list:\n  - model_name: chat\n    litellm_params:\n      model: hosted_vllm/llama\n      api_base: http://gpu-1:8000/v1\n",
        );
        put("nginx.conf", "upstream vllm { server gpu-1:8000; server gpu-2:8000; }\n");
        symlink(root().join("tests"), folder.path().join("tests")).unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_tokenway"), bin.join("tokenway")).unwrap();
        let release = folder.path().join("target/release");
        fs::create_dir_all(&release).unwrap();
        symlink(env!("CARGO_BIN_EXE_tokenway"), release.join("tokenway")).unwrap();
        let curl = in_path("curl").map(|path| format!("exec {} --fail-with-body \"$@\"", path.display()));
        let stand_ins = [
            ("vllm", Some("exec tokenway sim --replicas 1 --model \"$2\" --port \"$4\"".to_owned())),
            ("cargo", Some("while [ \"$1\" != -- ]; do shift; done; shift; exec tokenway \"$@\"".to_owned())),
            ("curl", curl),
        ];
        for (name, script) in stand_ins.iter().filter_map(|(name, script)| Some((name, script.as_ref()?))) {
            let file = bin.join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path_of = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Self { page: Page::read(path), folder, ports, path: path_of, up: Vec::new(), is_set_up: false }
    }

    /// Starts what a page takes for granted: engines, and a gateway that has answered a request.
    fn serve(&mut self) {
        self.run("tokenway sim --port 8001 --replicas 3");
        self.run("tokenway serve --config gateway.toml");
        let head = "x-request-id: request-1\r\nauthorization: Bearer any\r\n";
        let post = |model| request("POST", "/v1/chat/completions", head, &chat(model, "hello", 4));
        let data = format!("127.0.0.1:{}", self.ports.data);
        for model in ["sim", "llama-8b"] {
            let answer = exchange(connect(&data).unwrap(), &post(model));
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let scale = "/api/v1/pools/llama-8b/scale";
        until("the scale", || (get(&self.admin(), scale).status == 200).then_some(()));
        self.is_set_up = true;
    }

    /// Runs every command of the page.
    fn follow(mut self) {
        let blocks: Vec<String> = self.page.blocks("sh").into_iter().map(str::to_owned).collect();
        let commands: Vec<String> = blocks.iter().flat_map(|block| commands(block)).collect();
        assert!(!commands.is_empty(), "{}", self.page.path);
        for command in commands {
            match ELSEWHERE.iter().find(|(begin, ..)| command.starts_with(begin)) {
                Some((_, script, part)) => {
                    let text = fs::read_to_string(root().join(script)).unwrap();
                    assert!(text.contains(part), "{script} does not run {command}");
                }
                None => self.run(&command),
            }
        }
    }

    fn run(&mut self, command: &str) {
        let program = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
        if ["curl", "python3"].contains(&program) && in_path(program).is_none() {
            eprintln!("skipped, no {program}: {command}");
            return;
        }
        let text =
            SHORTER.iter().fold(self.ports.moved(command), |text, (long, short)| text.replace(long, short));
        match SERVING.iter().find(|(begin, ..)| command.starts_with(begin)) {
            Some((begin, kind, line)) => self.start(&text, begin, kind, line),
            None => self.finish(&text),
        }
    }

    /// Starts what serves, and waits until it does.
    fn start(&mut self, command: &str, begin: &str, kind: &'static str, line: &str) {
        let text = command
            .trim_end_matches('&')
            .split(" && ")
            .next()
            .unwrap_or_default()
            .replace(begin, &format!("exec {begin}"));
        // One gateway has the ports.
        if kind == "gateway" || self.is_set_up {
            self.up.retain(|(up, _)| *up != kind);
        }
        let process = self.spawn(&text);
        if line == READY {
            until("a ready gateway", || (get(&self.admin(), "/readyz").status == 200).then_some(()));
        } else {
            process.out.line_with(line);
        }
        if kind != "demo" {
            self.up.push((kind, process));
        }
    }

    /// Runs a command to its end.
    fn finish(&self, command: &str) {
        let mut process = self.spawn(command);
        let code = process.exit_code_within(COMPUTES_FOR);
        let (out, err) = (process.out.rest(), process.err.rest());
        let refusal = REFUSED.iter().find(|(part, _)| command.contains(part)).map(|(_, why)| why);
        match refusal {
            Some(why) => {
                assert!(
                    code == 1 && err.contains(why),
                    "{}: {command}: {code}\n{out}\n{err}",
                    self.page.path
                );
            }
            None => assert_eq!(code, 0, "{}: {command}\n{out}\n{err}", self.page.path),
        }
        if command.starts_with("curl -N ") {
            assert!(out.contains("data: [DONE]"), "{command}\n{out}");
        }
    }

    fn spawn(&self, command: &str) -> Process {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).current_dir(self.folder.path()).env("PATH", &self.path);
        shell.env("REQUEST_ID", "request-1").env("TOKEN", "any");
        shell.env("TOKENWAY_DEMO_LISTEN", "127.0.0.1:0").env("TOKENWAY_DEMO_ADMIN_LISTEN", "127.0.0.1:0");
        shell.env("TOKENWAY_LISTEN", format!("127.0.0.1:{}", self.ports.data));
        shell.env("TOKENWAY_ADMIN_LISTEN", self.admin()).env("TOKENWAY_ADMIN_URL", self.admin());
        shell.env("STATE_DIRECTORY", self.folder.path().join("state"));
        Process::spawn(shell)
    }

    fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.ports.admin)
    }
}

/// Commands that run until they are ended: how they begin, what they are, and what they print on stdout when they are ready.
const SERVING: [(&str, &str, &str); 7] = [
    ("tokenway sim", "engines", "ready n="),
    ("vllm serve", "engines", "ready n="),
    ("tokenway serve", "gateway", READY),
    ("tokenway epp", "gateway", READY),
    ("target/release/tokenway serve", "gateway", READY),
    ("tokenway demo", "demo", "http://127.0.0.1:"),
    ("cargo run --release --locked -- demo", "demo", "clients: sent "),
];

/// `replay` and `bench` in a debug build, on a machine that is busy with other tests.
const COMPUTES_FOR: Duration = Duration::from_secs(300);

/// Not by a line: `/readyz` says so.
const READY: &str = "/readyz";

/// What is not run here: how it begins, the script that runs it, and a part of that script.
const ELSEWHERE: [(&str, &str, &str); 2] = [
    ("cargo test --locked", ".ci/run", "cargo test --locked"),
    ("helm install tokenway config/helm/tokenway", ".ci/packages", "template tokenway \"$chart\""),
];

/// Long runs and open ports, and what is run in their place.
const SHORTER: [(&str, &str); 4] = [
    ("--grpc-listen 0.0.0.0:9002", "--grpc-listen 127.0.0.1:0"),
    ("--duration 30s", "--duration 1s"),
    ("--rate 8 --html", "--rate 8 --duration 1s --html"),
    ("--requests 200 --rate 2 ", "--requests 30 --rate 30 --output 4 16 "),
];

/// What names something that this gateway does not have, and the answer.
const REFUSED: [(&str, &str); 2] =
    [("ack 3f2a91c07d5e8b14", "no finding"), ("reset 3f2a91c07d5e8b14", "no finding")];

/// The gateway of pages that have none of their own.
const GATEWAY: &str = r#"
[server]
listen = "127.0.0.1:8080"
[admin]
listen = "127.0.0.1:9090"
[[pool]]
name = "main"
replicas = ["http://127.0.0.1:8001"]
[[pool]]
name = "llama-8b"
replicas = ["http://127.0.0.1:8002"]
[[pool]]
name = "llama-8b-r2"
replicas = ["http://127.0.0.1:8003"]
[[route]]
name = "chat"
model = "sim"
pools = ["main"]
[[route]]
model = "llama-8b"
upstream_model = "sim"
pools = ["llama-8b"]
[route.canary]
pool = "llama-8b-r2"
steps = [{ weight = 10, soak = "10m" }]
"#;

/// Of the page on tenants; its key is `any`.
const TENANT: &str = r#"
[[tenant]]
name = "team-a"
key_sha256 = ["d6a7cd2a7371b1a15d543196979ff74fdb027023ebf187d5d329be11055c77fd"]
"#;

/// Where what a page puts on fixed ports is in fact.
struct Ports {
    data: u16,
    admin: u16,
    /// The first of three.
    engines: u16,
}

impl Ports {
    /// Five free ports, below the ephemeral range.
    fn free() -> Self {
        let is_free =
            |port: &u16| (*port..port + 5).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        let mut tries = (0..2_000).map(|_| fastrand::u16(2_000..6_000) * 5);
        let first = tries.find(is_free).unwrap();
        Self { data: first, admin: first + 1, engines: first + 2 }
    }

    fn moved(&self, text: &str) -> String {
        let hosts = ["127.0.0.1:", "localhost:", "--port "];
        let moves = [
            (8080, self.data),
            (9090, self.admin),
            (8000, self.engines),
            (8001, self.engines),
            (8002, self.engines + 1),
            (8003, self.engines + 2),
        ];
        let all = hosts.iter().flat_map(|host| moves.iter().map(move |(from, to)| (host, from, to)));
        all.fold(text.to_owned(), |text, (host, from, to)| {
            // Not again: a moved port may read as another of the page.
            text.replace(&format!("{host}{from}"), &format!("{host}\u{0}{to}"))
        })
        .replace('\u{0}', "")
    }
}

/// The commands of a block: continued lines are one; where some have a prompt, the others are output.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let prompted: Vec<&str> = joined.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let lines = if prompted.is_empty() { joined.lines().collect() } else { prompted };
    let without_remark = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    lines.into_iter().map(without_remark).filter(|line| !line.is_empty()).collect()
}

/// Requests that share prompts, for `replay` and `bench`.
fn trace() -> String {
    let line = |n: u32| {
        format!(
            "{{\"timestamp\":{},\"input_length\":1024,\"output_length\":8,\"hash_ids\":[{},{}]}}\n",
            n * 50,
            n % 4,
            100 + n
        )
    };
    (0..24).map(line).collect()
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file())
}
