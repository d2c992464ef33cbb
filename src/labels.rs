//! Labels: closed sets whose members have a name outside (in metrics, logs, the API), each declared once, and the hasher of maps
//! whose keys are labels.

/// In the place of names beyond a bound: they share one value.
pub(crate) const OTHER: &str = "other";

/// A closed set by its names, for what reads any of them.
pub(crate) trait Labelled: Copy + PartialEq + 'static {
    /// Every name, with what it means.
    const WORDS: &'static [(&'static str, Self)];
}

/// Declares enums with the name of each variant behind it: `ALL` and `LABELS` in that order, `as_str`, `named`.
macro_rules! labels {
    ($(
        $(#[$meta:meta])*
        $visible:vis enum $set:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $label:literal,)+
        }
    )+) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $(#[$meta])*
        $visible enum $set {
            $(#[doc = concat!("`", $label, "`")] $(#[$variant_meta])* $variant,)+
        }

        #[allow(dead_code, reason = "not every set is walked")]
        impl $set {
            /// Every one.
            $visible const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];
            /// Their names.
            $visible const LABELS: &'static [&'static str] = &[$($label),+];

            /// Its name in metrics, logs and the API.
            $visible const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }

            /// The one of this name.
            $visible fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == name)
            }
        }

        impl $crate::labels::Labelled for $set {
            const WORDS: &'static [(&'static str, Self)] = &[$(($label, Self::$variant)),+];
        }
    )+};
}

pub(crate) use labels;

/// The hasher of maps that every request reads. Seeded at random in each process as the standard library's is, so that label values
/// cannot be made to collide; fast on short keys.
pub(crate) type LabelHasher = hashlink::DefaultHashBuilder;
