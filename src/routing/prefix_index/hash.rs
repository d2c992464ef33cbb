//! A hasher for keys that are hashes already.

use std::hash::{BuildHasherDefault, Hasher};

pub(super) type BuildSame = BuildHasherDefault<Same>;

/// The key itself: chain hashes are keyed and uniform.
#[derive(Debug, Default)]
pub(super) struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}
