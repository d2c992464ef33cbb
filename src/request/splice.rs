//! The edits that a request body may get: the model's name, the id of a response, the tenant's `cache_salt` and
//! `priority`, and, of `stream_options`, `include_usage` and `continuous_usage_stats`.
//!
//! All are splices on the raw bytes at places that the parse has found; every other byte stays the client's, so
//! unknown fields survive, in their order and with their white space. A body that needs no edit
//! is the same `Bytes`, not a copy.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::request::dialect::{BodyForm, Dialect};
use crate::request::fields::{Fields, ModelAt, truth};
use crate::request::json::{JsonError, JsonKind, Raw};
use crate::request::pieces::Pieces;

/// What a route wants changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edits<'a> {
    /// The engine's name of the model, where it differs from the client's or stands in for none.
    pub model: Option<&'a str>,
    /// The engine's id of the response, where the client chose one.
    pub request_id: Option<&'a str>,
    /// The `cache_salt` in place of the client's own, or beside what it wrote.
    pub cache_salt: Option<&'a str>,
    /// The engine's `priority`, likewise.
    pub priority: Option<i32>,
    /// Ask for usage in streams.
    pub ask_usage: bool,
    /// Ask for it with every chunk as well.
    pub ask_running: bool,
    /// No engine of the route counts in chunks where `include_usage` is off.
    pub counts_only_beside_usage: bool,
}

/// A body ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// The bytes to send.
    pub body: Pieces,
    /// The usage was asked for by us: the client is to see nothing of it.
    pub asks_usage: bool,
    /// The usage of every chunk was asked for by us: likewise.
    pub asks_running: bool,
    /// The client asked for usage, and every chunk counts: a stream that ends without it can be given it.
    pub owes_usage: bool,
}

/// Applies the edits to a body; `fields` must have been parsed from it.
pub fn splice(dialect: Dialect, body: &Bytes, fields: &Fields<'_>, edits: Edits<'_>) -> Spliced {
    let asked = if edits.ask_usage { ask_usage(dialect, body, fields, &edits) } else { Asked::default() };
    let mut all = asked.edits;
    all.extend(edits.model.and_then(|model| rename(dialect, body, fields, model)));
    let chosen = fields.request_id.zip(edits.request_id);
    all.extend(chosen.map(|(raw, id)| Edit::replace(raw.span(), &format!("\"{id}\""))));
    all.extend(
        edits.cache_salt.and_then(|salt| put(body, fields.cache_salt, "cache_salt", &format!("\"{salt}\""))),
    );
    all.extend(edits.priority.and_then(|it| put(body, fields.priority, "priority", &it.to_string())));
    in_order(&mut all);
    // No comma may follow the last member.
    if let Some(last) = all.last_mut().filter(|_| is_empty_object(body)) {
        last.text.truncate(last.text.trim_end_matches(',').len());
    }
    let body = match body.len() {
        _ if all.is_empty() => body.clone().into(),
        small if small <= MAX_COPIED => apply(body, &all).into(),
        _ => apart(body, all),
    };
    let Asked { usage, running, counts_for_client, .. } = asked;
    Spliced {
        body,
        asks_usage: usage,
        asks_running: running,
        owes_usage: counts_for_client || running && !usage,
    }
}

/// Bytes in place of a range of the body.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) at: Range<usize>,
    pub(crate) text: String,
}

impl Edit {
    pub(crate) fn insert(at: usize, text: &str) -> Self {
        Self { at: at..at, text: text.to_owned() }
    }

    pub(crate) fn replace(at: Range<usize>, text: &str) -> Self {
        Self { at, text: text.to_owned() }
    }

    /// A member of the object behind `open`: in place of the value that counts, else the first.
    pub(crate) fn put(open: usize, given: Option<Range<usize>>, key: &str, value: &str) -> Self {
        match given {
            Some(at) => Self::replace(at, value),
            None => Self::insert(open, &format!("\"{key}\":{value},")),
        }
    }
}

/// Sorts edits as [`apply`] takes them; those at one place keep their order.
pub(crate) fn in_order(edits: &mut [Edit]) {
    edits.sort_by_key(|edit| edit.at.start);
}

/// Names the model. Only an object of JSON gets a member that it does not have.
fn rename(dialect: Dialect, body: &Bytes, fields: &Fields<'_>, model: &str) -> Option<Edit> {
    if fields.model.as_deref() == Some(model) {
        return None;
    }
    let text = serde_json::to_string(model).ok()?;
    match fields.model_at.clone() {
        Some(ModelAt::Json(at)) => Some(Edit { at, text }),
        Some(ModelAt::Form(at)) => Some(Edit { at, text: model.to_owned() }),
        None if dialect.body_form() == BodyForm::Json => put(body, None, "model", &text),
        None => None,
    }
}

fn put(body: &Bytes, given: Option<Raw<'_>>, key: &str, value: &str) -> Option<Edit> {
    Some(Edit::put(open_of(body)?, given.map(|given| given.span()), key, value))
}

/// Behind the brace that opens a body.
pub(crate) fn open_of(body: &[u8]) -> Option<usize> {
    memchr::memchr(b'{', body).map(|at| at + 1)
}

/// Whether a body has no member: all its edits are members that are put in.
fn is_empty_object(body: &Bytes) -> bool {
    let members = open_of(body).and_then(|open| body.get(open..));
    members.is_some_and(|members| members.trim_ascii_start().starts_with(b"}"))
}

/// What is asked for that the client did not ask for.
#[derive(Debug, Default)]
struct Asked {
    usage: bool,
    running: bool,
    /// The client asked for usage, with every chunk as well.
    counts_for_client: bool,
    edits: SmallVec<[Edit; 3]>,
}

/// Nothing where usage is not to be asked for, or the client has asked for it already. Where the client wants
/// `continuous_usage_stats` only if it turned `include_usage` off before engines that then count nowhere: as it gets no count, both are
/// turned round. Elsewhere an engine would then count in every chunk.
fn ask_usage(dialect: Dialect, body: &Bytes, fields: &Fields<'_>, edits: &Edits<'_>) -> Asked {
    if !fields.is_stream() || !matches!(dialect, Dialect::Chat | Dialect::Completions) {
        return Asked::default();
    }
    match fields.stream_options {
        Some(options) if options.kind() == JsonKind::Object => {
            ask_in_options(body, options, edits).unwrap_or_default()
        }
        // A body with `stream` in it is an object with a member, so a comma may follow.
        options if options.is_none_or(|options| options.kind() == JsonKind::Null) => {
            ask_in_place(body, options, edits.ask_running)
        }
        // The engine reports what is wrong with it.
        _ => Asked::default(),
    }
}

/// Puts whole options in place of those that hold nothing.
fn ask_in_place(body: &Bytes, options: Option<Raw<'_>>, running: bool) -> Asked {
    let whole = if running { RUNNING } else { USAGE };
    let edit = put(body, options, "stream_options", &format!("{{{whole}}}"));
    edit.map_or_else(Asked::default, |edit| Asked {
        usage: true,
        running,
        edits: SmallVec::from_iter([edit]),
        ..Asked::default()
    })
}

fn ask_in_options(body: &Bytes, options: Raw<'_>, edits: &Edits<'_>) -> Result<Asked, JsonError> {
    let running = edits.ask_running;
    let mut is_empty = true;
    // Of duplicates the engine takes the last.
    let (mut include_usage, mut continuous) = (None, None);
    options.cursor().object(|key, cursor| {
        is_empty = false;
        let value = cursor.value()?;
        match key.string().as_deref() {
            Some("include_usage") => include_usage = Some(value),
            Some("continuous_usage_stats") => continuous = Some(value),
            _ => {}
        }
        Ok::<_, JsonError>(())
    })?;
    let is_off = |value: Raw<'_>| value.kind() == JsonKind::Null || truth(&value) == Some(false);
    let is_on = |value: &Raw<'_>| truth(value) == Some(true);
    // The engine reports what is wrong with a value that is neither on nor off.
    let is_odd = |value: Raw<'_>| !is_off(value) && !is_on(&value);
    let wanted = continuous.filter(|value| !is_off(*value));
    let is_void = edits.counts_only_beside_usage && include_usage.is_some_and(is_off);
    let void = wanted.filter(|value| is_void && is_on(value));
    if wanted.is_some() && void.is_none() || include_usage.is_some_and(is_odd) {
        let counts_for_client = [include_usage, wanted].iter().all(|value| value.as_ref().is_some_and(is_on));
        return Ok(Asked { counts_for_client, ..Asked::default() });
    }
    // No comma may follow what is alone.
    if is_empty {
        return Ok(ask_in_place(body, Some(options), running));
    }
    let usage = include_usage.is_none_or(is_off);
    let mut asked = Asked { usage, running, ..Asked::default() };
    asked.edits.extend(void.filter(|_| !running).map(|value| Edit::replace(value.span(), "false")));
    for (is_asked, value, member) in [(usage, include_usage, USAGE), (running, continuous, CONTINUOUS)] {
        asked.edits.extend(is_asked.then(|| match value {
            Some(value) => Edit::replace(value.span(), "true"),
            None => Edit::insert(options.span().start + 1, &format!("{member},")),
        }));
    }
    Ok(asked)
}

const USAGE: &str = r#""include_usage":true"#;
const CONTINUOUS: &str = r#""continuous_usage_stats":true"#;
const RUNNING: &str = r#""include_usage":true,"continuous_usage_stats":true"#;

/// The texts of edits that are in order and do not overlap, between what they leave of the body.
fn apart(body: &Bytes, edits: impl IntoIterator<Item = Edit>) -> Pieces {
    let mut pieces: SmallVec<[Bytes; 8]> = SmallVec::new();
    let mut from = 0;
    for edit in edits {
        pieces.extend([body.slice(from..edit.at.start), edit.text.into()]);
        from = edit.at.end;
    }
    pieces.push(body.slice(from..));
    pieces.into_iter().collect()
}

/// Applies edits that are in order and do not overlap, in one allocation.
pub(crate) fn apply(body: &[u8], edits: &[Edit]) -> Bytes {
    let added: usize = edits.iter().map(|edit| edit.text.len()).sum();
    let mut spliced = Vec::with_capacity(body.len() + added);
    let mut from = 0;
    for edit in edits {
        spliced.extend_from_slice(body.get(from..edit.at.start).unwrap_or_default());
        spliced.extend_from_slice(edit.text.as_bytes());
        from = edit.at.end;
    }
    spliced.extend_from_slice(body.get(from..).unwrap_or_default());
    spliced.into()
}

/// Bytes of a body that is copied rather than sent in pieces; the copy is not charged to the memory of bodies.
const MAX_COPIED: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::request::fields::parse;

    const ASK: Edits<'_> = Edits {
        model: None,
        request_id: None,
        cache_salt: None,
        priority: None,
        ask_usage: true,
        ask_running: false,
        counts_only_beside_usage: false,
    };

    fn spliced(dialect: Dialect, body: &str, edits: Edits<'_>) -> (String, bool) {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let fields = parse(dialect, &body).unwrap();
        let spliced = splice(dialect, &body, &fields, edits);
        (String::from_utf8(spliced.body.whole().to_vec()).unwrap(), spliced.asks_usage)
    }

    #[test]
    fn usage_is_asked_for_where_the_client_did_not() {
        for (body, expected) in [
            (r#" { "stream":true}"#, r#" {"stream_options":{"include_usage":true}, "stream":true}"#),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options": { } }"#,
                r#"{"stream":true,"stream_options": {"include_usage":true} }"#,
            ),
            (
                r#"{"stream_options":{"include_usage" : false,"x":1},"stream":true}"#,
                r#"{"stream_options":{"include_usage" : true,"x":1},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{ "x":[1] },"stream":true}"#,
                r#"{"stream_options":{"include_usage":true, "x":[1] },"stream":true}"#,
            ),
            (
                r#"{"str\u0065am_options":{"include_usag\u0065":false},"stream":true}"#,
                r#"{"str\u0065am_options":{"include_usag\u0065":true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":true},"stream_options":null,"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream_options":{"include_usage":true},"stream":true}"#,
            ),
        ] {
            for dialect in [Dialect::Chat, Dialect::Completions] {
                assert_eq!(spliced(dialect, body, ASK), (expected.to_owned(), true), "{body}");
            }
        }
    }

    #[test]
    fn a_salt_stands_in_place_of_the_one_that_the_engine_would_take() {
        let ask = Edits { cache_salt: Some("ours"), ask_usage: false, ..ASK };
        for (body, expected) in [
            (r#" { "model":"m"}"#, r#" {"cache_salt":"ours", "model":"m"}"#),
            ("{ }", r#"{"cache_salt":"ours" }"#),
            (r#"{"x":{}}"#, r#"{"cache_salt":"ours","x":{}}"#),
            (r#"{"cache_salt":null,"x":"cache_salt"}"#, r#"{"cache_salt":"ours","x":"cache_salt"}"#),
            (r#"{"cache_s\u0061lt" : [1] }"#, r#"{"cache_s\u0061lt" : "ours" }"#),
            (r#"{"cache_salt":"a","cache_salt":"b"}"#, r#"{"cache_salt":"a","cache_salt":"ours"}"#),
            (
                r#"{"messages":[{"cache_salt":"in"}]}"#,
                r#"{"cache_salt":"ours","messages":[{"cache_salt":"in"}]}"#,
            ),
        ] {
            for dialect in [Dialect::Chat, Dialect::Embeddings, Dialect::Messages] {
                assert_eq!(spliced(dialect, body, ask).0, expected, "{body}");
            }
        }
        let ask = Edits { priority: Some(-3), ask_usage: false, ..ASK };
        let (body, _) = spliced(Dialect::Chat, r#"{"priority" : 9,"n":1}"#, ask);
        assert_eq!(body, r#"{"priority" : -3,"n":1}"#);
        let all = Edits { model: Some("m"), cache_salt: Some("ours"), priority: Some(1), ..ASK };
        let (empty, _) = spliced(Dialect::Chat, "{ }", all);
        assert_eq!(empty, r#"{"model":"m","cache_salt":"ours","priority":1 }"#);
        let (body, _) = spliced(Dialect::Chat, r#"{"stream":true}"#, all);
        let body: Value = serde_json::from_str(&body).unwrap();
        let put = (&body["cache_salt"], &body["priority"], &body["stream_options"]["include_usage"]);
        assert_eq!(put, (&json!("ours"), &json!(1), &json!(true)));
    }

    #[test]
    fn running_counts_are_asked_for_beside_it() {
        let (u, c) = (USAGE, CONTINUOUS);
        let ask = Edits { ask_running: true, ..ASK };
        let own = format!("{{{u},{c}}}");
        for (options, expected, asks) in [
            (None, format!(r#"{{{u},{c}}}"#), (true, true)),
            (Some("null"), format!(r#"{{{u},{c}}}"#), (true, true)),
            (Some("{ }"), format!(r#"{{{u},{c}}}"#), (true, true)),
            (Some(r#"{"include_usage":true}"#), format!(r#"{{{c},"include_usage":true}}"#), (false, true)),
            (
                Some(r#"{"continuous_usage_stats":false,"include_usage":null}"#),
                format!("{{{c},{u}}}"),
                (true, true),
            ),
            (Some(r#"{"x":1}"#), format!(r#"{{{u},{c},"x":1}}"#), (true, true)),
            (Some(r#"{"continuous_usage_stats":true}"#), format!("{{{c}}}"), (false, false)),
            (Some(r#"{"include_usage":"off"}"#), format!("{{{c},{u}}}"), (true, true)),
            (Some(r#"{"include_usage":"yes"}"#), format!(r#"{{{c},"include_usage":"yes"}}"#), (false, true)),
            (Some(r#"{"include_usage":"maybe"}"#), r#"{"include_usage":"maybe"}"#.to_owned(), (false, false)),
            (Some("5"), "5".to_owned(), (false, false)),
            (Some(&own), own.clone(), (false, false)),
        ] {
            let body = match options {
                Some(options) => format!(r#"{{"stream":true,"stream_options":{options}}}"#),
                None => r#"{"stream":true}"#.to_owned(),
            };
            let body = Bytes::from(body);
            let spliced = splice(Dialect::Chat, &body, &parse(Dialect::Chat, &body).unwrap(), ask);
            let sent: Value = serde_json::from_slice(&spliced.body.whole()).unwrap();
            assert_eq!(
                sent["stream_options"],
                serde_json::from_str::<Value>(&expected).unwrap(),
                "{options:?}"
            );
            assert_eq!((spliced.asks_usage, spliced.asks_running), asks, "{options:?}");
            let is_owed = asks == (false, true) || options == Some(&own);
            assert_eq!(spliced.owes_usage, is_owed, "{options:?}");
        }
    }

    #[test]
    fn counts_that_an_engine_would_not_send_are_turned_off_where_usage_is_turned_on() {
        let vllm = Edits { counts_only_beside_usage: true, ..ASK };
        let body = |options: &str| format!(r#"{{"stream":true,"stream_options":{{{options}}}}}"#);
        for off in ["false", "null", "0", "\"off\""] {
            let own = body(&format!(r#""continuous_usage_stats" : true,"include_usage":{off}"#));
            let counted = body(r#""continuous_usage_stats" : true,"include_usage":true"#);
            let plain = counted.replace(": true", ": false");
            assert_eq!(spliced(Dialect::Chat, &own, vllm), (plain, true));
            let running = Edits { ask_running: true, ..vllm };
            assert_eq!(spliced(Dialect::Chat, &own, running), (counted, true), "withheld likewise");
            assert_eq!(spliced(Dialect::Chat, &own, ASK), (own, false), "SGLang counts all the same");
        }
        for own in [
            r#""continuous_usage_stats":true"#,
            r#""include_usage":true,"continuous_usage_stats":true"#,
            r#""include_usage":false,"continuous_usage_stats":"maybe""#,
        ] {
            assert_eq!(spliced(Dialect::Completions, &body(own), vllm), (body(own), false));
        }
    }

    #[test]
    fn everything_else_stays_byte_for_byte() {
        for (dialect, body) in [
            (Dialect::Chat, r#"{"stream":false}"#),
            (Dialect::Chat, r#"{"stream":null,"stream_options":null}"#),
            (Dialect::Chat, r#"{}"#),
            (Dialect::Chat, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            (Dialect::Chat, r#"{"stream":true,"stream_options":{"include_usage":"maybe"}}"#),
            (Dialect::Chat, r#"{"stream":true,"stream_options":5}"#),
            (Dialect::Chat, r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#),
            (
                Dialect::Completions,
                r#"{"stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}}"#,
            ),
            (Dialect::Messages, r#"{"stream":true}"#),
            (Dialect::Responses, r#"{"stream":true}"#),
            (Dialect::Embeddings, r#"{"stream":true}"#),
        ] {
            assert_eq!(spliced(dialect, body, ASK), (body.to_owned(), false), "{body}");
        }
    }

    #[test]
    fn an_unchanged_body_is_not_copied() {
        let body = Bytes::from_static(br#"{"model":"m","stream":true}"#);
        let fields = parse(Dialect::Chat, &body).unwrap();
        let edits = Edits { model: Some("m"), ..Edits::default() };
        assert_eq!(splice(Dialect::Chat, &body, &fields, edits).body.whole().as_ptr(), body.as_ptr());
    }

    #[test]
    fn a_long_body_is_not_copied_either() {
        let text = "x".repeat(MAX_COPIED);
        let body = Bytes::from(format!(r#"{{"model":"m","stream":true,"prompt":"{text}"}}"#));
        let fields = parse(Dialect::Completions, &body).unwrap();
        let edits = Edits { model: Some("longer"), priority: Some(7), ..ASK };
        let sent = splice(Dialect::Completions, &body, &fields, edits).body;
        let own: Vec<&Bytes> =
            sent.iter().filter(|piece| body.as_ptr_range().contains(&piece.as_ptr())).collect();
        assert_eq!(own.iter().map(|piece| piece.len()).sum::<usize>(), body.len() - r#""m""#.len());
        let whole = format!(
            r#"{{"stream_options":{{"include_usage":true}},"priority":7,"model":"longer","stream":true,"prompt":"{text}"}}"#
        );
        assert_eq!((sent.whole(), sent.len()), (Bytes::from(whole.clone()), whole.len()));
    }

    #[test]
    fn a_model_is_named_where_it_stands_or_first() {
        for (body, model, expected) in [
            (r#"{"model" : "a","x":1}"#, "b", r#"{"model" : "b","x":1}"#),
            (r#"{"mod\u0065l":"\u0061","x":1}"#, "b\"/", r#"{"mod\u0065l":"b\"/","x":1}"#),
            (r#" {"x":1}"#, "b", r#" {"model":"b","x":1}"#),
            ("{ }", "b", r#"{"model":"b" }"#),
            (r#"{"model": null}"#, "b", r#"{"model": "b"}"#),
            (r#"{"model":""}"#, "b", r#"{"model":"b"}"#),
        ] {
            let edits = Edits { model: Some(model), ..ASK };
            assert_eq!(spliced(Dialect::Chat, body, edits), (expected.to_owned(), false), "{body}");
        }
    }

    #[test]
    fn both_edits_go_together_in_any_order() {
        let edits = Edits { model: Some("longer"), ..ASK };
        for (body, expected) in [
            (
                r#"{"model":"a","stream":true,"stream_options":null}"#,
                r#"{"model":"longer","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream_options":null,"stream":true,"model":"a"}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true,"model":"longer"}"#,
            ),
        ] {
            assert_eq!(spliced(Dialect::Chat, body, edits), (expected.to_owned(), true), "{body}");
        }
    }

    fn options() -> impl Strategy<Value = Option<Value>> {
        prop::sample::select(vec![
            None,
            Some(json!(null)),
            Some(json!({})),
            Some(json!({"include_usage":false})),
            Some(json!({"include_usage":true})),
            Some(json!({"continuous_usage_stats":true,"x":{"include_usage":1}})),
        ])
    }

    proptest! {
        #[test]
        fn the_result_is_the_same_json_but_for_the_edits(
            rest in prop::collection::hash_map("[a-z{\"\\\\]{0,6}", ".{0,20}", 0..5),
            options in options(),
            model in prop::option::of(".{0,10}"),
            is_stream in any::<bool>(),
            pretty in any::<bool>(),
        ) {
            let mut body = json!(rest);
            body["model"] = json!("old");
            body["stream"] = json!(is_stream);
            if let Some(options) = options {
                body["stream_options"] = options;
            }
            let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
            let edits = Edits { model: model.as_deref(), ..ASK };
            let (after, asked) = spliced(Dialect::Chat, &text, edits);

            let options = &body["stream_options"];
            let is_left = options["include_usage"] == json!(true) || options["continuous_usage_stats"] == json!(true);
            prop_assert_eq!(asked, is_stream && !is_left);
            if asked {
                body["stream_options"]["include_usage"] = json!(true);
            }
            if let Some(model) = model {
                body["model"] = json!(model);
            }
            prop_assert_eq!(serde_json::from_str::<Value>(&after).unwrap(), body);
        }

        #[test]
        fn taking_the_insertion_out_gives_the_original(
            rest in prop::collection::hash_map("[a-z{\"\\\\]{0,6}", ".{0,20}", 0..5), space in "[ \n]{0,3}",
        ) {
            let mut body = json!(rest);
            body["stream"] = json!(true);
            let text = format!("{space}{body}{space}");
            let (after, _) = spliced(Dialect::Chat, &text, ASK);
            prop_assert_eq!(after.replacen(r#""stream_options":{"include_usage":true},"#, "", 1), text);
        }

        #[test]
        fn no_body_panics_or_loses_its_grammar(
            tokens in prop::collection::vec(prop::sample::select(vec![
                "{", "}", ",", ":", "\"stream_options\"", "\"include_usage\"", "\"model\"", "\"m\"", "null", "true", "false", " ",
            ]), 0..16),
        ) {
            let options = tokens.concat();
            for text in [format!("{{\"stream\":true,\"stream_options\":{{{options}}}}}"), format!("{{\"stream\":true{options}}}")] {
                let body = Bytes::from(text);
                if let Ok(fields) = parse(Dialect::Chat, &body) {
                    let edits = Edits { model: Some("new"), ..ASK };
                    let after = splice(Dialect::Chat, &body, &fields, edits).body.whole();
                    prop_assert!(parse(Dialect::Chat, &after).is_ok());
                }
            }
        }
    }
}
