//! What an engine puts into a stream whose client asks for nothing: the defaults of its flags.
//!
//! Learned by one streamed token before a replica takes requests: whether the usage comes unasked
//! (`--enable-force-include-usage`), and the `system_fingerprint` that vLLM moves when usage is asked for.

use std::sync::Arc;

use crate::request::json::{Cursor, JsonKind};

/// Facts of a completions stream without `stream_options`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamDefaults {
    /// It ends with a usage-only chunk.
    pub sends_usage: bool,
    /// `system_fingerprint` as it stands in the chunk that finishes a choice, quotes included.
    pub fingerprint: Option<Arc<str>>,
}

impl StreamDefaults {
    /// Reads a whole stream; `None` where it is none of completions.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let mut facts = None;
        for data in text.lines().filter_map(|line| line.strip_prefix("data:")) {
            let members = Cursor::new(data.trim()).members(["choices", "usage", "system_fingerprint"]);
            let Ok([Some(choices), usage, fingerprint]) = members else { continue };
            let facts = facts.get_or_insert_with(Self::default);
            let has_none = choices.text().trim_matches(['[', ']']).trim().is_empty();
            if has_none {
                facts.sends_usage |= usage.is_some();
            } else if let Some(given) = fingerprint.filter(|given| given.kind() == JsonKind::Str) {
                facts.fingerprint = Some(given.text().into());
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_tells_what_comes_unasked() {
        let finish = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}],\"system_fingerprint\":\"fp\"}\n\n";
        let usage =
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"system_fingerprint\":\"fp\"}\n\n";
        let bare = "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":1}}\r\n\r\n";
        let done = "data: [DONE]\n\n";
        let known = |sends_usage, fingerprint: Option<&str>| {
            Some(StreamDefaults { sends_usage, fingerprint: fingerprint.map(Arc::from) })
        };
        assert_eq!(StreamDefaults::read([finish, done].concat().as_bytes()), known(false, Some("\"fp\"")));
        assert_eq!(StreamDefaults::read([bare, usage, done].concat().as_bytes()), known(true, None));
        assert_eq!(StreamDefaults::read([bare, done].concat().as_bytes()), known(false, None));
        for none in ["", "{}", done, "data: {\"error\":{}}\n\n"] {
            assert_eq!(StreamDefaults::read(none.as_bytes()), None, "{none}");
        }
    }
}
