//! Takes out what patterns match. Linear in the text's length, whatever the pattern.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::config::Pattern;

/// The patterns of `telemetry.content.redact`.
#[derive(Clone, Debug, Default)]
pub(super) struct Redact(Vec<Pattern>);

impl Redact {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        Self(patterns.to_vec())
    }

    /// Whether nothing is taken out.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text without what a pattern matches, in it or, as in the arguments of a tool call, behind escapes of its own.
    pub(super) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let redacted = self.matched(text);
        if self.is_empty() || !redacted.contains('\\') {
            return redacted;
        }
        match self.matched(&unescaped(&redacted)) {
            Cow::Borrowed(_) => redacted,
            Cow::Owned(read) => read.into(),
        }
    }

    fn matched<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.0.iter().fold(Cow::Borrowed(text), |text, pattern| {
            match pattern.regex().replace_all(&text, MARK) {
                Cow::Borrowed(_) => text,
                Cow::Owned(redacted) => Cow::Owned(redacted),
            }
        })
    }

    /// A body, of which at most `limit` bytes are kept: each of its texts, names and numbers where it is whole JSON, else its
    /// beginning as one text.
    pub(super) fn body(&self, body: &[u8], limit: usize) -> Json {
        match serde_json::from_slice(body) {
            Ok(json) if body.len() <= limit => self.json(json),
            _ => {
                let text = String::from_utf8_lossy(body);
                let is_cut = body.len() >= limit.saturating_add(BEYOND_CUT);
                // Escapes would hide from a pattern what it is for.
                match tokens_at(&text).filter(|_| !self.is_empty()).and_then(|at| text.get(..at)) {
                    Some(before) => {
                        let text = self.text(&unescaped(before)).into_owned() + REDACTED;
                        crate::record::cut(&text, limit).into()
                    }
                    None => self.cut(&unescaped(&text), limit, is_cut).into(),
                }
            }
        }
    }

    /// At most `limit` bytes of a text. Where that itself `is_cut`, half a secret may stand at its end, which no pattern knows.
    pub(super) fn cut(&self, text: &str, limit: usize, is_cut: bool) -> String {
        let redacted = self.text(text);
        let unsure = if is_cut && !self.is_empty() { BEYOND_CUT } else { 0 };
        crate::record::cut(&redacted, limit.min(redacted.len().saturating_sub(unsure))).to_owned()
    }

    fn json(&self, json: Json) -> Json {
        if self.is_empty() {
            return json;
        }
        match json {
            Json::String(text) => match self.text(&text) {
                Cow::Borrowed(_) => Json::String(text),
                Cow::Owned(redacted) => redacted.into(),
            },
            Json::Number(number) => match self.text(&number.to_string()) {
                Cow::Borrowed(_) => number.into(),
                Cow::Owned(redacted) => redacted.into(),
            },
            Json::Array(list) => list.into_iter().map(|entry| self.json(entry)).collect(),
            Json::Object(members) => members
                .into_iter()
                .map(|(name, value)| match name.as_str() {
                    // Tokens one by one show what no pattern sees.
                    _ if is_tokens(&name, &value) => (name, REDACTED.into()),
                    _ => (self.text(&name).into_owned(), self.json(value)),
                })
                .collect(),
            json => json,
        }
    }
}

/// Whether a member holds tokens one by one.
fn is_tokens(name: &str, value: &Json) -> bool {
    fn has_ids(value: &Json) -> bool {
        value
            .as_array()
            .and_then(|list| list.first())
            .is_some_and(|first| first.is_number() || has_ids(first))
    }
    (TOKENS.contains(&name) && (value.is_array() || value.is_object()))
        || (TOKENS_OR_TEXT.contains(&name) && has_ids(value))
}

/// Where the first value of such a member begins, in JSON that may have been cut anywhere. In a string its name would have escaped quotes.
fn tokens_at(text: &str) -> Option<usize> {
    let begins = |name: &str, is_it: fn(&str) -> bool| {
        let named = format!("\"{name}\"");
        text.match_indices(&named).find_map(|(at, _)| {
            let rest = text.get(at + named.len()..)?.trim_start().strip_prefix(':')?.trim_start();
            is_it(rest).then_some(text.len() - rest.len())
        })
    };
    let lists = TOKENS.iter().filter_map(|name| begins(name, |value| value.starts_with(['[', '{'])));
    let ids = TOKENS_OR_TEXT.iter().filter_map(|name| begins(name, has_ids_first));
    lists.chain(ids).min()
}

fn has_ids_first(value: &str) -> bool {
    let first = value.trim_start_matches(|c: char| c == '[' || c.is_whitespace());
    value.starts_with('[') && first.starts_with(|c: char| c.is_ascii_digit())
}

/// Text of JSON that may have been cut anywhere, with its escapes replaced.
fn unescaped(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        let (read, length) = unescape(escape);
        plain.push(read);
        rest = escape.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

/// What an escape stands for, and its length.
fn unescape(escape: &str) -> (char, usize) {
    let unit = |at: usize| {
        let digits = escape.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    match escape.as_bytes().get(1) {
        Some(b'n') => ('\n', 2),
        Some(b't') => ('\t', 2),
        Some(b'r') => ('\r', 2),
        Some(quoted @ (b'"' | b'\\' | b'/')) => (char::from(*quoted), 2),
        Some(b'u') => {
            let units: Vec<u16> = [unit(0), unit(6)].into_iter().map_while(|unit| unit).collect();
            match char::decode_utf16(units).next() {
                Some(Ok(read)) => (read, 6 * read.len_utf16()),
                _ => (char::REPLACEMENT_CHARACTER, 1),
            }
        }
        _ => ('\\', 1),
    }
}

/// Members that hold an answer's or a prompt's tokens in a list or an object.
const TOKENS: [&str; 5] = ["logprobs", "prompt_logprobs", "token_ids", "prompt_token_ids", "token_strs"];
/// Those that do where it is a list of numbers.
const TOKENS_OR_TEXT: [&str; 3] = ["prompt", "input", "tokens"];
/// Longest secret that is found at a cut: so many bytes are kept beyond what is written.
pub(super) const BEYOND_CUT: usize = 1024;
/// Stands for what was taken out.
pub(super) const REDACTED: &str = "[redacted]";
const MARK: regex::NoExpand<'static> = regex::NoExpand(REDACTED);

#[cfg(test)]
impl Redact {
    /// Of these patterns.
    pub(super) fn of(patterns: &[&str]) -> Self {
        let patterns = Json::from(patterns.to_vec());
        let text = format!(
            "[telemetry.content]\nfile = \"f\"\nredact = {patterns}\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n"
        );
        let config = crate::config::check::check_str("f.toml", &text, &|_| None).unwrap();
        Self::new(&config.telemetry.content.unwrap().redact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redact(patterns: &[&str]) -> Redact {
        Redact::of(patterns)
    }

    #[test]
    fn texts_names_and_numbers_of_a_body_lose_what_matches_and_keep_the_rest() {
        let redact = redact(&[r"[\w.]+@[\w.]+", r"\b\d{13,19}\b", "(?i)geheim"]);
        let body = r#"{"messages":[{"content":"ask \u0041nn\u0040x.org or GEHEIM $1"}],"a@b.c":4111111111111111,"n":7,"t":true}"#;
        let expected = json!({
            "messages": [{ "content": "ask [redacted] or [redacted] $1" }],
            "[redacted]": "[redacted]",
            "n": 7,
            "t": true,
        });
        assert_eq!(redact.body(body.as_bytes(), 1000), expected);
        assert_eq!(Redact::default().body(body.as_bytes(), 1000)["n"], 7);
    }

    #[test]
    fn tokens_and_escapes_within_escapes_hide_nothing() {
        let redact = redact(&[r"[\w.]+@[\w.]+"]);
        let body = json!({ "choices": [{
            "message": { "tool_calls": [{ "arguments": r#"{"to":"joe\u0040x.org"}"# }], "content": "a\\b" },
            "logprobs": { "content": [{ "token": "joe", "bytes": [106] }] },
            "token_ids": null,
        }] });
        let expected = json!({ "choices": [{
            "message": { "tool_calls": [{ "arguments": r#"{"to":"[redacted]"}"# }], "content": "a\\b" },
            "logprobs": "[redacted]",
            "token_ids": null,
        }] });
        assert_eq!(redact.body(body.to_string().as_bytes(), 1000), expected);
    }

    #[test]
    fn a_body_that_was_cut_shows_no_tokens_either() {
        let redact = redact(&[r"\b\d{13,19}\b"]);
        let tokens = json!([{ "token": "4929" }, { "token": "0000" }]);
        for answer in [
            json!({ "choices": [{ "a": "kept", "logprobs": { "content": tokens } }] }),
            json!({ "a": "kept", "prompt_logprobs": tokens }),
            json!({ "a": "kept", "token_strs": ["4929", "0000"] }),
            json!({ "a": "kept", "tokens": [4929, 0] }),
            json!({ "a": "kept", "prompt": [[4929, 0], [1, 2]] }),
            json!({ "a": "kept", "input": [4929, 0] }),
        ] {
            for body in [serde_json::to_vec(&answer).unwrap(), serde_json::to_vec_pretty(&answer).unwrap()] {
                for cut in [0, 1, 2, 6] {
                    let shown = redact.body(&body[..body.len() - cut], 1000).to_string();
                    assert!(shown.contains("kept") && shown.contains(REDACTED), "{shown}");
                    assert!(!shown.contains("4929"), "{shown}");
                }
                assert!(!redact.body(&body, body.len() - 1).to_string().contains("4929"), "{answer}");
            }
        }
    }

    #[test]
    fn what_is_only_named_like_tokens_stays() {
        let redact = redact(&[r"\b\d{13,19}\b"]);
        let body = json!({
            "logprobs": true,
            "prompt_logprobs": null,
            "messages": [{ "content": "{\"tokens\": [4929]}", "input": { "n": [1] } }],
            "input": ["some", "texts"],
            "tools": [{ "properties": { "tokens": { "type": "integer" } } }],
        });
        let text = body.to_string();
        assert_eq!(redact.body(text.as_bytes(), 1000), body);
        assert_eq!(redact.body(&text.as_bytes()[..text.len() - 1], 1000), unescaped(&text[..text.len() - 1]));
    }

    #[test]
    fn a_body_that_was_cut_or_is_no_json_is_a_text_with_its_escapes_read() {
        let redact = redact(&[r"[\w.]+@[\w.]+", "😀"]);
        for (body, limit, expected) in [
            (r#"{"a":"x\u0040y.z and \ud83d\ude00 mo"#, 100, r#"{"a":"[redacted] and [redacted] mo"#),
            (r#"{"a":"some\"thing\n long"}"#, 9, r#"{"a":"som"#),
            (r"\", 100, r"\"),
            (r"\u12", 100, "\u{fffd}u12"),
            (r"\ud83dx\u0041", 100, "\u{fffd}ud83dxA"),
            // A match that begins within the bound is taken out whole.
            (r"see long.name@host.example", 12, "see [redacte"),
        ] {
            assert_eq!(redact.body(body.as_bytes(), limit), expected, "{body}");
        }
    }

    #[test]
    fn half_a_secret_at_the_end_of_what_was_kept_is_left_out_however_much_was_taken_out_before() {
        let redact = redact(&[r"\d{16}"]);
        let (limit, card) = (2000, "4929000011112222");
        let body = |whole: usize| {
            let head = format!("{card} ").repeat(171);
            let body = head.clone() + &"x".repeat(limit + BEYOND_CUT - 12 - head.len()) + card;
            body[..whole].to_owned()
        };
        let kept = redact.body(body(limit + BEYOND_CUT).as_bytes(), limit);
        assert!(!kept.as_str().unwrap().contains("4929"), "half of the number stood there");
        let all = redact.body(body(limit + BEYOND_CUT - 13).as_bytes(), limit);
        assert!(
            all.as_str().unwrap().len() > kept.as_str().unwrap().len(),
            "of what is whole nothing is lost"
        );
    }
}
