//! Time zones of calendars: UTC, an offset, or a name of the system's database (`TZDIR`, `/usr/share/zoneinfo`).

use std::sync::Arc;

use jiff::tz::{Offset, TimeZone};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

use super::check::codec::Own;
use super::check::section::Item;

/// Where days begin, with the name that the file gives it.
#[derive(Clone, Debug)]
pub struct Zone {
    name: Arc<str>,
    zone: TimeZone,
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name) || self.name == other.name
    }
}

impl Eq for Zone {}

impl Default for Zone {
    fn default() -> Self {
        Self { name: UTC.into(), zone: TimeZone::UTC }
    }
}

/// Its name.
impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.name)
    }
}

/// As state files have it. One that this system does not know keeps its name, and the days of UTC: a file is no worse for a system
/// without the database, which a configuration with such a name does not start on.
impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = Box::<str>::deserialize(from)?;
        Ok(Self::named(&name).unwrap_or_else(|_| Self { name: name.into(), zone: TimeZone::UTC }))
    }
}

impl Zone {
    /// As the file writes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rules.
    pub fn rules(&self) -> &TimeZone {
        &self.zone
    }

    /// The zone of that name.
    ///
    /// # Errors
    /// What is wrong, and how to write it.
    pub fn named(name: &str) -> Result<Self, (String, &'static str)> {
        let named = |zone| Ok(Self { name: name.into(), zone });
        if [UTC, "+00:00", "-00:00"].contains(&name) {
            return Ok(Self::default());
        }
        if name.starts_with(['+', '-']) {
            let seconds = offset(name).and_then(|seconds| Offset::from_seconds(seconds).ok());
            let offset = seconds.ok_or_else(|| (format!("{name:?} is no offset from UTC"), HINT))?;
            return named(TimeZone::fixed(offset));
        }
        match TimeZone::get(name) {
            Ok(zone) => named(zone),
            // A machine without the database knows no zone at all.
            Err(_) if TimeZone::get("Europe/Berlin").is_err() => Err((
                format!("{name:?} cannot be looked up: this system has no time zone database"),
                NO_DATABASE,
            )),
            Err(_) => Err((format!("{name:?} is no time zone"), HINT)),
        }
    }
}

/// Seconds ahead of UTC.
fn offset(text: &str) -> Option<i32> {
    let (sign, rest) = (text.get(..1)?, text.get(1..)?);
    let (hours, minutes) = rest.split_once(':').filter(|(h, m)| h.len() == 2 && m.len() == 2)?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let is_valid = (0..=14).contains(&hours) && (0..60).contains(&minutes);
    let seconds = hours * 3600 + minutes * 60;
    is_valid.then_some(if sign == "-" { -seconds } else { seconds })
}

fn read(item: &Item<'_>) -> Option<Zone> {
    let zone = Zone::named(item.text()?);
    zone.map_err(|(message, hint)| item.fault(message, hint)).ok()
}

pub(super) const ZONE: Own<Zone> = Own { read, show: |zone| json!(zone.name()) };
const UTC: &str = "UTC";
const HINT: &str = "write \"UTC\", a zone such as \"Europe/Berlin\", or hours and minutes: \"+02:00\"";
const NO_DATABASE: &str = "install it (package tzdata), set TZDIR, or write hours and minutes: \"+02:00\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_offsets_or_names() {
        for name in ["UTC", "+02:00", "-09:30", "Europe/Berlin", "America/New_York"] {
            assert_eq!(Zone::named(name).unwrap().name(), name);
        }
        assert_eq!(Zone::named("+00:00").unwrap(), Zone::default());
        for wrong in ["+2", "02:00", "+15:00", "Europe/Bern-Bethlehem", "", "../etc/passwd"] {
            let (message, hint) = Zone::named(wrong).unwrap_err();
            assert!(message.contains("is no ") && hint.contains("Europe/Berlin"), "{wrong}: {message}");
        }
    }
}
