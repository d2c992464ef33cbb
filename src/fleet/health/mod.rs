//! What a replica's evidence is worth: whether it takes requests, and how much of its ordinary traffic.
//!
//! Streams, probes, scrapes and attempts write evidence ([`Vitals`], [`answers::Answers`], [`warmth::Warmth`]); [`standing`] is the
//! one rule that reads it, and [`compare`] publishes what it says of every member of a pool.

pub(super) mod answers;
mod compare;
mod evidence;
mod slow_start;
mod standing;
pub(super) mod vitals;
pub(super) mod warmth;

pub(crate) use self::compare::{COMPARE_EVERY, compare};
pub(crate) use self::evidence::{Health, Member};
pub(crate) use self::standing::fails_alone;
pub(crate) use self::vitals::REFUSED_TWICE;
pub(crate) use self::vitals::Vitals;
