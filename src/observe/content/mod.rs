//! What clients asked and got, where it may be read: by the audit trail (`[telemetry.content]`) and by the hook
//! behind answers (`[hook]`).
//!
//! A request that no reader wants has no [`Capture`], and costs nothing. One that has is copied within a bound as it passes; at its
//! end each reader takes it at once or drops and counts it. Nothing here goes into logs, spans or metrics.

mod answer;
mod capture;
mod entry;
pub mod fields;
mod messages;
mod redact;
mod trail;

pub use self::capture::{Capture, Reader};
pub(super) use self::trail::Trail;
