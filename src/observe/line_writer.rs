//! Lines to a file or standard stream, written by a thread of their own.
//!
//! Whoever has a line appends it to a bounded buffer and goes on; a stalled pipe, a full disk or a closed pipe drops lines
//! and counts them. For the access log and the log on stderr.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use memchr::{memchr, memrchr};
use parking_lot::{Condvar, Mutex};

/// Queues lines for the writer, which ends when this is dropped.
#[derive(Debug)]
pub struct LineWriter {
    queue: Arc<LineQueue>,
}

/// The file or standard stream of a log, unbuffered.
#[derive(Debug)]
pub struct LogOutput {
    file: File,
    path: Option<PathBuf>,
    rotation: Option<Rotation>,
}

/// Files of bounded size and number.
#[derive(Debug)]
struct Rotation {
    /// Bytes of the file.
    size: u64,
    /// At which a new one begins, unless one line alone is larger.
    max: u64,
    /// That are kept, the newest included.
    files: u32,
}

impl LogOutput {
    /// The process' standard output.
    pub fn stdout() -> io::Result<Self> {
        Ok(Self { file: File::from(io::stdout().as_fd().try_clone_to_owned()?), path: None, rotation: None })
    }

    /// The process' standard error.
    pub fn stderr() -> io::Result<Self> {
        Ok(Self { file: File::from(io::stderr().as_fd().try_clone_to_owned()?), path: None, rotation: None })
    }

    /// A file, to be appended to.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self { file: append(path)?, path: Some(path.to_owned()), rotation: None })
    }

    /// A file that only its owner reads: at `max` bytes it becomes `path.1`, and a new one begins; `files` are kept.
    pub fn private(path: &Path, max: u64, files: u32) -> io::Result<Self> {
        let (file, size) = append_private(path)?;
        let rotation = Some(Rotation { size, max, files });
        Ok(Self { file, path: Some(path.to_owned()), rotation })
    }

    fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        match &mut self.rotation {
            None => self.file = append(path)?,
            Some(rotation) => (self.file, rotation.size) = append_private(path)?,
        }
        Ok(())
    }

    /// Writes lines, over as many files as they need.
    fn write(&mut self, mut lines: &[u8]) -> io::Result<()> {
        while !lines.is_empty() {
            let fitting = match &self.rotation {
                None => lines.len(),
                Some(rotation) => match rotation.fitting(lines) {
                    0 => {
                        self.rotate()?;
                        continue;
                    }
                    fitting => fitting,
                },
            };
            let (now, later) = lines.split_at(fitting);
            self.file.write_all(now)?;
            if let Some(rotation) = &mut self.rotation {
                rotation.size += now.len() as u64;
            }
            lines = later;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        if let (Some(path), Some(Rotation { files, .. })) = (&self.path, &self.rotation) {
            let numbered =
                |n: u32| if n == 0 { path.clone() } else { PathBuf::from(format!("{}.{n}", path.display())) };
            // Whoever frees the disk may have removed any of them.
            let or_gone = |moved: io::Result<()>| match moved {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
            if *files == 1 {
                or_gone(fs::remove_file(path))?;
            }
            for n in (1..*files).rev() {
                or_gone(fs::rename(numbered(n - 1), numbered(n)))?;
            }
        }
        self.reopen()
    }

    /// Whether people read it.
    pub fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }
}

impl LineWriter {
    /// Starts the writer's thread. `lost` counts the lines that a failed write lost; `failed` has the first error of a series.
    pub fn start(
        name: &str,
        output: LogOutput,
        lost: impl Fn(u64) + Send + 'static,
        failed: fn(&io::Error),
    ) -> io::Result<Self> {
        let queue = Arc::new(LineQueue::default());
        let writer = Writer { queue: Arc::clone(&queue), output, lost, failed, is_torn: false };
        std::thread::Builder::new().name(name.into()).spawn(move || writer.run())?;
        Ok(Self { queue })
    }

    /// Queues a line, its newline included; false if there is no room.
    pub fn add(&self, line: &[u8]) -> bool {
        self.queue.change(|pending| pending.lines.add(line))
    }

    /// Reopens the file, for rotation; pending lines go to the new one.
    pub fn reopen(&self) {
        self.queue.change(|pending| pending.reopens = true);
    }

    /// Blocks until queued lines are written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        self.queue.change(|pending| pending.flushed.push(done));
        // A stalled pipe is given up.
        let _ = is_done.recv_timeout(limit);
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.queue.change(|pending| pending.is_closed = true);
    }
}

/// From those who have lines to the writer.
#[derive(Debug, Default)]
struct LineQueue {
    pending: Mutex<WriterWork>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct WriterWork {
    lines: LineBatch,
    reopens: bool,
    flushed: Vec<SyncSender<()>>,
    is_closed: bool,
    /// The writer sleeps and has to be woken.
    is_idle: bool,
}

#[derive(Debug, Default)]
struct LineBatch {
    text: Vec<u8>,
    count: u64,
}

impl LineQueue {
    /// Adds work, and wakes the writer if it sleeps.
    fn change<T>(&self, add: impl FnOnce(&mut WriterWork) -> T) -> T {
        let mut pending = self.pending.lock();
        let added = add(&mut pending);
        let was_idle = std::mem::take(&mut pending.is_idle);
        drop(pending);
        if was_idle {
            self.wake.notify_one();
        }
        added
    }

    /// Waits for work and takes it; swaps `lines`, which is empty, with the pending ones.
    fn take(&self, lines: &mut LineBatch) -> WriterWork {
        let mut pending = self.pending.lock();
        while pending.is_nothing() {
            pending.is_idle = true;
            self.wake.wait(&mut pending);
        }
        std::mem::swap(&mut pending.lines, lines);
        WriterWork {
            reopens: std::mem::take(&mut pending.reopens),
            flushed: std::mem::take(&mut pending.flushed),
            is_closed: pending.is_closed,
            ..WriterWork::default()
        }
    }
}

impl LineBatch {
    /// Appends a line, if there is room.
    fn add(&mut self, line: &[u8]) -> bool {
        let has_room = self.text.len() + line.len() <= MAX_PENDING_BYTES;
        if has_room {
            self.text.extend_from_slice(line);
            self.count += 1;
        }
        has_room
    }
}

impl WriterWork {
    fn is_nothing(&self) -> bool {
        self.lines.count == 0 && !self.reopens && self.flushed.is_empty() && !self.is_closed
    }
}

struct Writer<L> {
    queue: Arc<LineQueue>,
    output: LogOutput,
    lost: L,
    failed: fn(&io::Error),
    /// A failed write may have left a partial line: the next write starts with a newline.
    is_torn: bool,
}

impl<L: Fn(u64)> Writer<L> {
    fn run(mut self) {
        let mut lines = LineBatch::default();
        loop {
            let rest = self.queue.take(&mut lines);
            if rest.reopens {
                self.reopen();
            }
            self.write(&mut lines);
            for flushed in rest.flushed {
                // The receiver may have timed out.
                let _ = flushed.try_send(());
            }
            if rest.is_closed {
                return;
            }
            // Waiting for each line would cost the requests' threads a wake-up, a system call, per line.
            std::thread::sleep(BATCH_INTERVAL);
        }
    }

    fn reopen(&mut self) {
        match self.output.reopen() {
            Ok(()) => self.is_torn = false,
            Err(error) => {
                let path = self.output.path.as_deref().map(Path::display).map(tracing::field::display);
                tracing::error!(path, %error, "log file not reopened");
            }
        }
    }

    /// Writes the lines and empties the batch.
    fn write(&mut self, lines: &mut LineBatch) {
        let count = std::mem::take(&mut lines.count);
        if count == 0 {
            return;
        }
        let torn = if self.is_torn { self.output.write(b"\n") } else { Ok(()) };
        match torn.and_then(|()| self.output.write(&lines.text)) {
            Ok(()) => self.is_torn = false,
            Err(error) => {
                if !self.is_torn {
                    (self.failed)(&error);
                }
                self.is_torn = true;
                (self.lost)(count);
            }
        }
        lines.text.clear();
        lines.text.shrink_to(USUAL_BATCH);
    }
}

impl Rotation {
    /// Bytes of whole lines that still fit into the file; 0 where a new one is due.
    fn fitting(&self, lines: &[u8]) -> usize {
        let room = usize::try_from(self.max.saturating_sub(self.size)).unwrap_or(usize::MAX);
        if lines.len() <= room {
            return lines.len();
        }
        let end = |at: usize| at + 1;
        match lines.get(..room).and_then(|fitting| memrchr(b'\n', fitting)) {
            Some(last) => end(last),
            None if self.size > 0 => 0,
            None => memchr(b'\n', lines).map_or(lines.len(), end),
        }
    }
}

/// A file of mode 0600, and its size.
fn append_private(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(PRIVATE).open(path)?;
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Bytes waiting for the writer, about 4,000 lines; as much again may be in the process of being written.
const MAX_PENDING_BYTES: usize = 4 << 20;
const PRIVATE: u32 = 0o600;
const USUAL_BATCH: usize = 256 << 10;
const BATCH_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_is_written_anew_however_many_are_kept() {
        for files in [1, 2, 3] {
            let directory =
                std::env::temp_dir().join(format!("tokenway-lines-{}-{files}", std::process::id()));
            fs::create_dir_all(&directory).unwrap();
            let path = directory.join("content.jsonl");
            let mut output = LogOutput::private(&path, 8, files).unwrap();
            output.write(b"before\n").unwrap();
            fs::remove_file(&path).unwrap();
            output.write(b"after\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "after\n", "{files}");
            fs::remove_dir_all(&directory).unwrap();
        }
    }
}
