//! The baseline file, kept over restarts.
//!
//! A lost or broken file stops nothing: baselines then start empty, and the broken file is kept under another name. It is
//! written beside its place and renamed, so that a crash leaves the old one.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::drift::detectors::Saved;

/// Reads a file; `None` where there is none. One that is no state is moved aside, so that the next save does not destroy it.
pub(super) fn read(path: &Path) -> io::Result<Option<Saved>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    match serde_json::from_slice(&text) {
        Ok(saved) => Ok(Some(saved)),
        Err(error) => {
            let aside = with_suffix(path, ".corrupt");
            let place = match fs::rename(path, &aside) {
                Ok(()) => format!("kept as {}", aside.display()),
                Err(error) => format!("cannot be moved aside: {error}"),
            };
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("corrupt ({error}), {place}")))
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let beside = with_suffix(path, ".new");
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let mut file = BufWriter::new(File::create(&beside)?);
    serde_json::to_writer(&mut file, saved)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    fs::rename(beside, path)
}

/// Longer than any file of ours.
const MAX_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drift::detectors::{Detectors, Settings};

    #[test]
    fn a_missing_file_is_none_and_a_broken_one_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drift.json");
        assert!(read(&path).unwrap().is_none());
        fs::write(&path, "{\"version\":1,\"ser").unwrap();
        let said = read(&path).unwrap_err().to_string();
        assert!(said.contains("corrupt") && said.contains("drift.json.corrupt"), "{said}");
        assert!(read(&path).unwrap().is_none(), "it is out of the way");
        write(&path, &Detectors::new(Settings::default()).save()).unwrap();
        assert!(read(&path).unwrap().is_some());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "the state and the corrupt one");
    }
}
