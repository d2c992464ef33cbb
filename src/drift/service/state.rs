//! The baseline file, kept over restarts.
//!
//! A lost or broken file is no error: baselines then start empty. It is written beside its place and renamed, so that a
//! crash leaves the old one.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::Path;

use crate::drift::detectors::Saved;

/// Reads a file; `None` where there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Saved>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let mut file = BufWriter::new(File::create(beside)?);
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
        assert!(read(&path).is_err());
        write(&path, &Detectors::new(Settings::default()).save()).unwrap();
        assert!(read(&path).unwrap().is_some());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
