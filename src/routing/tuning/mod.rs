//! The numbers that decisions and learning are tuned by, in three families: what things cost ([`prices`]), how long things are
//! remembered ([`memories`]), and what is assumed before anything was seen ([`priors`]).
//!
//! Each with its unit and its reason; `benches/routing/sensitivity.py --constants` says what each does, against the noise of its
//! seeds. Sizes of tables and bounds on nonsense are not tuned: they stand where they are used.

pub(crate) mod memories;
pub(crate) mod prices;
pub(crate) mod priors;
