//! Files that keep state over restarts.
//!
//! A lost or broken file stops nothing: its owner starts empty, and the broken file is kept under another name. One that cannot
//! be read stays as it is. A file is written beside its place and renamed, so that a crash leaves the old one.

#[cfg(test)]
pub(crate) mod hung;
mod writes;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::writes::{OVERDUE, WRITE_LIMIT, Writes};

/// The field `version` of a file: one of another version is no such state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Version<const N: u32>;

impl<const N: u32> Serialize for Version<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(N)
    }
}

impl<'de, const N: u32> Deserialize<'de> for Version<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match u32::deserialize(from)? {
            own if own == N => Ok(Self),
            other => Err(D::Error::custom(format!("version {other}, not {N}"))),
        }
    }
}

/// Reads a file; `None` where there is none. One that is no such state is moved aside, so that the next write does not
/// destroy it.
///
/// # Errors
/// A file that cannot be read, or that was moved aside.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    match serde_json::from_slice(&text) {
        Ok(state) => Ok(Some(state)),
        Err(error) => {
            // What was kept before is not replaced.
            let first = with_suffix(path, ".corrupt");
            let is_free = !first.try_exists().unwrap_or(true);
            let aside = if is_free {
                first
            } else {
                with_suffix(path, &format!(".{:08x}.corrupt", fastrand::u32(..)))
            };
            let place = match fs::rename(path, &aside) {
                Ok(()) => format!("kept as {}", aside.display()),
                Err(error) => format!("cannot be moved aside: {error}"),
            };
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("corrupt or of another version ({error}), {place}"),
            ))
        }
    }
}

/// Reads a file whose loss stops nothing; `loss` is what it means, for the log.
pub fn restore<T: DeserializeOwned>(path: &Path, loss: &str) -> Option<T> {
    read(path).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "{loss}");
        None
    })
}

/// Writes a file; whether that could be done. `loss` is what it means if not, for the log.
pub fn keep<T: Serialize>(path: &Path, state: &T, loss: &str) -> bool {
    write(path, state).inspect_err(|error| tracing::warn!(path = %path.display(), %error, "{loss}")).is_ok()
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file, whole or not at all, and its directory where there is none.
///
/// # Errors
/// A directory or file that cannot be written, or one with a state that cannot be read: a rename would replace it all the same.
pub fn write<T: Serialize>(path: &Path, state: &T) -> io::Result<()> {
    open(path)?;
    // Another gateway may write the same file at this moment.
    let beside = with_suffix(path, &format!(".{:08x}{UNFINISHED}", fastrand::u32(..)));
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let written = write_whole(&beside, state).and_then(|len| {
        if len > MAX_BYTES {
            // It would not be read again, and what was kept before is better than nothing.
            let message = format!("{len} bytes are more than the {MAX_BYTES} that are read again");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        fs::rename(&beside, path)
    });
    // On a full disk what is left of it would only take room.
    written.inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Returns how many bytes they are.
fn write_whole<T: Serialize>(path: &Path, state: &T) -> io::Result<u64> {
    let mut open = OpenOptions::new();
    // Some hold secrets, and none concerns other users.
    let file = open.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, state)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(file.get_ref().metadata()?.len())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// How the name of a file ends that is not renamed yet.
pub const UNFINISHED: &str = ".new";
/// A month of drift of 100 routes of 64 replicas.
const MAX_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_none_and_a_broken_one_is_moved_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/state.json");
        assert!(read::<Vec<u8>>(&path).unwrap().is_none());
        write(&path, &[1, 2]).unwrap();
        fs::write(&path, "[1,").unwrap();
        let said = read::<Vec<u8>>(&path).unwrap_err().to_string();
        assert!(said.contains("corrupt") && said.contains("state.json.corrupt"), "{said}");
        assert!(read::<Vec<u8>>(&path).unwrap().is_none(), "it is out of the way");
        write(&path, &[3]).unwrap();
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), Some(vec![3]));
        let kept = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(kept, 2, "the state and the corrupt one");
        fs::write(&path, "[2,").unwrap();
        read::<Vec<u8>>(&path).unwrap_err();
        let mut all: Vec<_> = fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect();
        all.sort();
        assert_eq!(all, ["[1,", "[2,"], "both are kept");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        // Also root cannot read a link to itself.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        read::<Vec<u8>>(&path).unwrap_err();
        write(&path, &[1]).unwrap_err();
        assert!(path.is_symlink());
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        write(&path, &[1]).unwrap();
        // JSON has no such key.
        let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
        write(&path, &unwritable).unwrap_err();
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), Some(vec![1]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
