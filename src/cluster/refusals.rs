//! A broker that answers with an error: logged when it begins and when it ends, and nothing else ends with it, unless it has become
//! a read-only replica.

use std::sync::Arc;

use redis::RedisError;

use super::link::LinkError;

/// How many things the broker refuses now: each holds a mark meanwhile.
#[derive(Debug, Default)]
pub(super) struct Refused(Arc<()>);

impl Refused {
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// `what` is not done while the broker refuses it, for people.
    pub(super) fn of(&self, what: &'static str) -> Refusals<'_> {
        Refusals { what, mark: None, all: self }
    }
}

/// One thing that the broker may refuse while the rest continues.
pub(super) struct Refusals<'a> {
    what: &'static str,
    mark: Option<Arc<()>>,
    all: &'a Refused,
}

impl Refusals<'_> {
    /// Whether it is refused now.
    pub(super) fn is_refused(&self) -> bool {
        self.mark.is_some()
    }

    /// Notes how a round went, and whether it wrote. One that did not proves nothing: a full broker can still be read.
    ///
    /// # Errors
    /// Where the connection ended.
    pub(super) fn note(&mut self, result: Result<bool, RedisError>) -> Result<(), LinkError> {
        match result {
            Ok(false) => {}
            Ok(true) => {
                if self.mark.take().is_some() {
                    tracing::info!(ended = self.what, "cluster: the broker takes writes again");
                }
            }
            Err(error) if error.is_io_error() || error.is_connection_dropped() => return Err(error.into()),
            // Its master is elsewhere since a failover: the next connection may lead there.
            Err(error) if error.code() == Some("READONLY") => return Err(error.into()),
            Err(error) => {
                if self.mark.replace(Arc::clone(&self.all.0)).is_none() {
                    tracing::warn!(%error, "cluster: the broker refuses; {}", self.what);
                }
            }
        }
        Ok(())
    }
}
