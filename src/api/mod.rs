//! The answers of the admin API: `admin` writes these structs, `top`, `explain`, `drift` and `canary` read them. What only the page
//! reads is written as JSON where it is made.
//!
//! Times are seconds. Fields stand in the order of the wire, by name. A `None` is `null` on the wire unless the field says
//! that it is left out; a field that is missing, as from a gateway of another version, reads as its default. Words of closed
//! sets (states, outcomes, kinds) are strings, so that a reader can show a word that it does not know.

/// Declares structs of answers.
macro_rules! answers {
    ($($(#[$meta:meta])* struct $Answer:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })+) => {$(
        #[derive(Clone, Debug, Default, serde::Deserialize, PartialEq, serde::Serialize)]
        #[serde(default)]
        $(#[$meta])*
        pub(crate) struct $Answer { $($(#[$field_meta])* pub(crate) $field: $type,)* }
    )+};
}

pub(crate) mod canaries;
pub(crate) mod decisions;
pub(crate) mod drift;
pub(crate) mod failure;
pub(crate) mod fleet;
pub(crate) mod keys;
pub(crate) mod requests;
pub(crate) mod scale;
pub(crate) mod slo;
pub(crate) mod usage;

#[cfg(test)]
mod tests;
