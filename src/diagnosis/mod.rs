//! Who differs, since when, in which stage, and what changed just before.
//!
//! Pure; what drift's findings, the admin page's verdict and alert texts name comes from here, by one [`table`] of thresholds.

mod cause;
mod changes;
pub(crate) mod engines;
mod events;
pub(crate) mod figures;
mod growth;
mod others;
pub(crate) mod peers;
mod signals;
pub(crate) mod table;

pub(crate) use self::cause::Tier;
pub use self::cause::{Case, Causes, Diagnosis};
pub(crate) use self::changes::of_changes;
pub use self::changes::{diagnose_against, diagnose_signals};
pub(crate) use self::events::Onset;
pub(crate) use self::signals::SignalChange;
pub use self::signals::{SignalHistory, Signals, Snapshot};
