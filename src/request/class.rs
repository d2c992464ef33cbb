//! The prompt class: how long a prompt is, in three words.
//!
//! Latency of a 200-token prompt and of a 20,000-token one have nothing in common; series are kept apart by class.

use crate::config::Classes;
use crate::units::Tokens;

/// Prompt class by estimated input tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Not known: no body was classified.
    #[default]
    None,
    /// Up to `classes.short` tokens.
    Short,
    /// Up to `classes.medium` tokens.
    Medium,
    /// Above.
    Long,
}

impl Class {
    /// In the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::None, Self::Short, Self::Medium, Self::Long];

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Short => "short",
            Self::Medium => "medium",
            Self::Long => "long",
        }
    }
}

/// The class of a prompt of `prompt` tokens, counted or estimated.
#[must_use]
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
