//! A broker that answers with an error: logged once, and nothing else ends with it.

use redis::RedisError;

use super::link::LinkError;

/// One thing that the broker may refuse while the rest continues.
pub(super) struct Refusals {
    what: &'static str,
    is_logged: bool,
}

impl Refusals {
    /// `what` is not done meanwhile, for people.
    pub(super) fn of(what: &'static str) -> Self {
        Self { what, is_logged: false }
    }

    /// Notes how a command went.
    ///
    /// # Errors
    /// Where the connection ended.
    pub(super) fn note(&mut self, result: Result<(), RedisError>) -> Result<(), LinkError> {
        match result {
            Ok(()) => self.is_logged = false,
            Err(error) if error.is_io_error() || error.is_connection_dropped() => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut self.is_logged, true) {
                    tracing::warn!(%error, "cluster: the broker refuses; {}", self.what);
                }
            }
        }
        Ok(())
    }
}
