//! A broker that answers with an error: logged when it begins and when it ends, and nothing else ends with it, unless it has become
//! a read-only replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redis::RedisError;

use super::link::LinkError;

/// How many things the broker refuses now.
#[derive(Clone, Debug, Default)]
pub(super) struct Refused(Arc<AtomicU32>);

impl Refused {
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// `what` is not done while the broker refuses it, for people.
    pub(super) fn of(&self, what: &'static str) -> Refusals {
        Refusals { what, is_refused: false, all: self.clone() }
    }
}

/// One thing that the broker may refuse while the rest continues.
pub(super) struct Refusals {
    what: &'static str,
    is_refused: bool,
    all: Refused,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// There was nothing to write.
    Nothing,
    /// The broker took it.
    Taken,
}

impl Refusals {
    /// Whether it is refused now.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Notes how a round went. One that wrote nothing proves nothing: a full broker can still be read.
    ///
    /// # Errors
    /// Where the connection ended.
    pub(super) fn note(&mut self, result: Result<impl Into<Written>, RedisError>) -> Result<(), LinkError> {
        match result.map(Into::into) {
            Ok(Written::Nothing) => {}
            Ok(Written::Taken) => {
                if std::mem::replace(&mut self.is_refused, false) {
                    self.all.0.fetch_sub(1, Ordering::Relaxed);
                    tracing::info!(ended = self.what, "cluster: the broker takes writes again");
                }
            }
            Err(error) if error.is_io_error() || error.is_connection_dropped() => return Err(error.into()),
            // Its master is elsewhere since a failover: the next connection may lead there.
            Err(error) if error.code() == Some("READONLY") => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    self.all.0.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "cluster: the broker refuses; {}", self.what);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        if self.is_refused {
            self.all.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Of a round that writes wherever it has to.
impl From<()> for Written {
    fn from((): ()) -> Self {
        Self::Taken
    }
}
