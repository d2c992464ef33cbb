//! A started `tokenway`: its pipes are read all the time, it is ended when the test is.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{LIMIT, until_within};

/// A running process.
pub struct Process {
    child: Child,
    /// Standard output.
    pub out: Pipe,
    /// Standard error.
    pub err: Pipe,
}

impl Process {
    pub fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenway"));
        command.args(args);
        Self::spawn(command)
    }

    /// Starts any command, without what the developer's shell has set.
    pub fn spawn(mut command: Command) -> Self {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOKENWAY_") || name.to_string_lossy().starts_with("OTEL_")
            {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = Pipe::read(child.stdout.take().unwrap());
        let err = Pipe::read(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// Runs it to its end: exit code, standard output, standard error.
    pub fn run(args: &[&str]) -> (i32, String, String) {
        let mut this = Self::start(args);
        let code = this.exit_code();
        (code, this.out.rest(), this.err.rest())
    }

    /// Sends a signal: `TERM`, `INT` or `HUP`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -s {name}");
    }

    /// Waits for the end.
    pub fn exit_code(&mut self) -> i32 {
        self.exit_code_within(LIMIT)
    }

    /// Waits for the end of what computes for a while.
    pub fn exit_code_within(&mut self, limit: Duration) -> i32 {
        let status = until_within(limit, "the end of the process", || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("stdout:\n{}\nstderr:\n{}", self.out.lines().join("\n"), self.err.lines().join("\n"));
        }
        // Nothing to end where it ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process wrote so far, by lines.
pub struct Pipe {
    lines: Arc<Lines>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Lines {
    read: Mutex<Vec<String>>,
    more: Condvar,
    is_held: AtomicBool,
}

impl Pipe {
    fn read(pipe: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Lines::default());
        let writing = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                writing.read.lock().push(line);
                writing.more.notify_all();
                while writing.is_held.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self { lines, reader: Some(reader) }
    }

    /// Reads nothing more: whoever writes will block or drop.
    pub fn hold(&self) {
        self.lines.is_held.store(true, Ordering::Relaxed);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.read.lock().clone()
    }

    /// How many lines contain `part`.
    pub fn count(&self, part: &str) -> usize {
        self.lines.read.lock().iter().filter(|line| line.contains(part)).count()
    }

    /// The first line that contains `part`.
    pub fn line_with(&self, part: &str) -> String {
        self.lines_with(part, 1).remove(0)
    }

    /// The lines that contain `part`, when there are at least `n`.
    pub fn lines_with(&self, part: &str, n: usize) -> Vec<String> {
        let mut read = self.lines.read.lock();
        let matching = |read: &Vec<String>| -> Vec<String> {
            read.iter().filter(|line| line.contains(part)).cloned().collect()
        };
        let waited = self.lines.more.wait_while_for(&mut read, |read| matching(read).len() < n, LIMIT);
        let found = matching(&read);
        drop(read);
        assert!(!waited.timed_out() || found.len() >= n, "no line contains {part:?}");
        found
    }

    /// Everything, once the process has ended.
    pub fn rest(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.lines().join("\n")
    }
}
