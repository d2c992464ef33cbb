//! Parameters that queries of several endpoints have in common.

use super::error::AdminError;

/// How many an answer has at most.
pub(super) fn parse_limit(asked: Option<&str>, default: usize, max: usize) -> Result<usize, AdminError> {
    let limit = asked.map_or(Some(default), |asked| asked.parse().ok());
    limit
        .filter(|limit| (1..=max).contains(limit))
        .ok_or_else(|| AdminError::InvalidQuery(format!("limit is 1 to {max}")))
}

/// Refuses a value that nothing can have: an empty list would read as good news.
pub(super) fn one_of(name: &str, value: Option<&str>, known: &[&str]) -> Result<(), AdminError> {
    match value.filter(|value| !known.contains(value)) {
        Some(value) => {
            Err(AdminError::InvalidQuery(format!("{name}={value}: {name} is one of {}", known.join(", "))))
        }
        None => Ok(()),
    }
}
