//! A broker that answers with an error: logged when it begins and when it ends, and nothing else ends with it, unless it has become
//! a read-only replica.

use redis::RedisError;

use super::link::LinkError;

/// One thing that the broker may refuse while the rest continues.
pub(super) struct Refusals {
    what: &'static str,
    is_refused: bool,
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
    /// `what` is not done meanwhile, for people.
    pub(super) fn of(what: &'static str) -> Self {
        Self { what, is_refused: false }
    }

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
                    tracing::info!(ended = self.what, "cluster: the broker takes writes again");
                }
            }
            Err(error) if error.is_io_error() || error.is_connection_dropped() => return Err(error.into()),
            // Its master is elsewhere since a failover: the next connection may lead there.
            Err(error) if error.code() == Some("READONLY") => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    tracing::warn!(%error, "cluster: the broker refuses; {}", self.what);
                }
            }
        }
        Ok(())
    }
}

/// Of a round that writes wherever it has to.
impl From<()> for Written {
    fn from((): ()) -> Self {
        Self::Taken
    }
}
