//! A body in pieces: what is between two splices stays where it was read, however long it is.

use bytes::Bytes;

/// Bytes in several places, in order; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    first: Bytes,
    rest: Box<[Bytes]>,
}

impl Pieces {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().all(Bytes::is_empty)
    }

    /// The pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// All in one place: a copy where there are several.
    pub fn whole(&self) -> Bytes {
        if self.rest.is_empty() {
            return self.first.clone();
        }
        let mut whole = Vec::with_capacity(self.len());
        self.iter().for_each(|piece| whole.extend_from_slice(piece));
        whole.into()
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = std::iter::Chain<std::iter::Once<Bytes>, std::vec::IntoIter<Bytes>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.rest.into_vec())
    }
}

impl From<Bytes> for Pieces {
    fn from(first: Bytes) -> Self {
        Self { first, rest: Box::default() }
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        Self { first: pieces.next().unwrap_or_default(), rest: pieces.collect() }
    }
}
