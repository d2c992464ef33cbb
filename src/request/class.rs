//! The prompt class: how long a prompt is, in three words.
//!
//! Latency of a 200-token prompt and of a 20,000-token one have nothing in common; series are kept apart by class.

use std::sync::{Arc, LazyLock};

use crate::config::Classes;
use crate::labels::labels;
use crate::units::Tokens;

labels! {
    /// Prompt class by estimated input tokens.
    #[derive(Default)]
    pub enum Class {
        /// Not known: no body was classified.
        #[default]
        None = "none",
        /// Up to `classes.short` tokens.
        Short = "short",
        /// Up to `classes.medium` tokens.
        Medium = "medium",
        /// Above.
        Long = "long",
    }
}

impl Class {
    /// Its name where names are shared.
    pub(crate) fn shared_name(self) -> &'static Arc<str> {
        static NAMES: LazyLock<[Arc<str>; Class::ALL.len()]> =
            LazyLock::new(|| Class::ALL.map(|class| class.as_str().into()));
        &NAMES[self as usize]
    }
}

/// The class of a prompt of `prompt` tokens, counted or estimated.
pub fn class_of(classes: &Classes, prompt: Tokens) -> Class {
    if prompt <= classes.short {
        Class::Short
    } else if prompt <= classes.medium {
        Class::Medium
    } else {
        Class::Long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_the_class_below() {
        let classes = Classes { short: Tokens(10), medium: Tokens(20) };
        for (tokens, class) in [
            (0, Class::Short),
            (10, Class::Short),
            (11, Class::Medium),
            (20, Class::Medium),
            (21, Class::Long),
        ] {
            assert_eq!(class_of(&classes, Tokens(tokens)), class, "{tokens}");
        }
    }
}
