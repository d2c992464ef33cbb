//! Whole files that people write: configurations, secrets, certificates, lists of replicas.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;

/// All of a file.
///
/// # Errors
/// A file that cannot be read, or of more than 16 MiB: a device that never ends is no configuration.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 16 MiB"));
    }
    Ok(bytes)
}

/// The text of a file that lies in the binary as `build.rs` compressed it.
pub(crate) fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).map(|_| text).unwrap_or_default()
}

/// The same as text.
///
/// # Errors
/// As [`read`], or a file that is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The same as [`read`] without holding up other tasks.
pub(crate) async fn read_in_background(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || read(&path)).await.map_err(io::Error::other)?
}

const MOST_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_without_an_end_is_refused_and_a_text_must_be_one() {
        let endless = Path::new("/dev/zero");
        for error in [read(endless).unwrap_err(), read_in_background(endless).await.unwrap_err()] {
            assert_eq!(error.to_string(), "it is larger than 16 MiB");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(
            (read(&file).unwrap(), read_text(&file).unwrap_err().to_string()),
            (vec![0xff], "it is not UTF-8".to_owned())
        );
    }
}
