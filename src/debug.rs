//! `Debug` that shows a name alone: for secrets, and for what would bring the `Debug` of all that it holds into the binary.

/// Shows each type as its text.
macro_rules! debug_as {
    ($($type:ty => $shown:literal),+ $(,)?) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($shown)
            }
        }
    )+};
}

pub(crate) use debug_as;
