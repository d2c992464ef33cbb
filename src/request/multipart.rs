//! The fields `model` and `stream` of a `multipart/form-data` body (RFC 7578), read in place.
//!
//! Audio comes in such bodies. They are forwarded as they came; only the parts of these names are looked at, and where
//! the route maps the model's name its value is what a rename replaces. The walk is bounded in parts and in header bytes of each.
//! Heads that parsers read differently (a parameter twice, RFC 8187's `name*`, escapes, folded lines) are errors.

use std::borrow::Cow;

use http::{HeaderMap, header};
use memchr::memmem::{self, Finder};

use crate::request::fields::{self, FieldError, Fields, ModelAt};

/// The boundary that a request's `content-type` gives; `None` for any other type than `multipart/form-data`. It is empty, with which
/// nothing can be read, where the type gives none, or could be read in two ways.
pub fn boundary(headers: &HeaderMap) -> Option<&str> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let value = types.next()?.to_str().ok()?;
    let kind = value.split(';').next().unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let is_known = |charset: &[u8]| CHARSETS.iter().any(|known| charset.eq_ignore_ascii_case(known));
    let is_clear = types.next().is_none()
        && parameter(value.as_bytes(), "charset").is_ok_and(|charset| charset.is_none_or(is_known));
    let boundary = parameter(value.as_bytes(), "boundary").ok().flatten().filter(|_| is_clear);
    Some(boundary.and_then(|boundary| std::str::from_utf8(boundary).ok()).unwrap_or_default())
}

/// Reads the fields of a form.
///
/// # Errors
/// A body that does not have the boundary's form, a part whose head has two readings, or two parts named `model`.
pub fn parse<'a>(boundary: &str, body: &'a [u8]) -> Result<Fields<'a>, FieldError> {
    let mut fields = Fields::default();
    each_part(boundary, body, |part| {
        match name_of(part.head)? {
            Some(b"model") => model(&mut fields, part.value, part.start)?,
            // Of several the last counts, as in the engine, which reports what is wrong with a value.
            Some(b"stream") => {
                let word = std::str::from_utf8(part.value).unwrap_or_default();
                fields.stream = fields::truth_of_word(word);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(fields)
}

/// The text of a form, in which files that are no text are empty. `None` where anything else is no text, which an engine
/// takes for one in another character set.
pub fn text(boundary: &str, body: &[u8]) -> Option<String> {
    let mut text = String::new();
    each_part(boundary, body, |part| {
        let value = match std::str::from_utf8(part.value) {
            Ok(value) => value,
            Err(_) if is_file(part.head)? => "",
            Err(_) => return Err(form("has a field that is no text")),
        };
        let head = String::from_utf8_lossy(part.head);
        // The head begins with the line break behind its boundary.
        text.extend(["--", boundary, &head, "\r\n\r\n", value, "\r\n"]);
        Ok(())
    })
    .ok()?;
    text.extend(["--", boundary, "--\r\n"]);
    Some(text)
}

/// One part of a form.
struct Part<'a> {
    head: &'a [u8],
    value: &'a [u8],
    /// Where the value begins in the body.
    start: usize,
}

fn each_part<'a>(
    boundary: &str,
    body: &'a [u8],
    mut each: impl FnMut(Part<'a>) -> Result<(), FieldError>,
) -> Result<(), FieldError> {
    if !(1..=MAX_BOUNDARY).contains(&boundary.len()) {
        return Err(form("needs a content-type with one boundary of 1 to 70 characters"));
    }
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    let finder = Finder::new(&delimiter);
    let mut at = first_part(&delimiter, &finder, body)?;
    for _ in 0..MAX_PARTS {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            return Ok(());
        }
        // White space may follow a boundary (RFC 2046 §5.1.1).
        let line_end = memmem::find(rest, b"\r\n").ok_or(form("ends inside a part"))?;
        if !rest.get(..line_end).unwrap_or_default().trim_ascii().is_empty() {
            return Err(form("has its boundary inside a line"));
        }
        let head = rest.get(line_end..).unwrap_or_default();
        let head_len = match head.get(..head.len().min(MAX_PART_HEAD)).map(|h| memmem::find(h, b"\r\n\r\n")) {
            Some(Some(len)) => len,
            _ => return Err(form("has a part without a head of at most 8 KiB")),
        };
        let start = at + line_end + head_len + 4;
        let value = body.get(start..).unwrap_or_default();
        let length = finder.find(value).ok_or(form("ends inside a part"))?;
        let head = head.get(..head_len).unwrap_or_default();
        each(Part { head, value: value.get(..length).unwrap_or_default(), start })?;
        at = start + length + delimiter.len();
    }
    Err(form("has over 1000 parts"))
}

/// Where the first boundary ends: at the body's start, or behind a preamble.
fn first_part(delimiter: &[u8], finder: &Finder<'_>, body: &[u8]) -> Result<usize, FieldError> {
    let at_start = delimiter.get(2..).unwrap_or_default();
    if body.starts_with(at_start) {
        return Ok(at_start.len());
    }
    finder.find(body).map(|at| at + delimiter.len()).ok_or(form("does not have its boundary"))
}

fn model<'a>(fields: &mut Fields<'a>, value: &'a [u8], start: usize) -> Result<(), FieldError> {
    if fields.model_at.replace(ModelAt::Form(start..start + value.len())).is_some() {
        return Err(FieldError::Duplicate { field: "model" });
    }
    let text = std::str::from_utf8(value)
        .map_err(|_| FieldError::WrongType { field: "model", expected: "UTF-8 text" })?;
    fields.model = Some(Cow::Borrowed(text));
    Ok(())
}

/// The name that a part's head gives it.
fn name_of(head: &[u8]) -> Result<Option<&[u8]>, FieldError> {
    disposition(head)?.map_or(Ok(None), |value| parameter(value, "name"))
}

/// Whether a part is a file to engines, which know the parameter in lower case alone.
fn is_file(head: &[u8]) -> Result<bool, FieldError> {
    let mut is_file = false;
    each_parameter(disposition(head)?.unwrap_or_default(), |key, _| {
        is_file |= matches!(key, b"filename" | b"filename*");
        Ok(())
    })?;
    Ok(is_file)
}

fn disposition(head: &[u8]) -> Result<Option<&[u8]>, FieldError> {
    let mut disposition = None;
    let mut lines = head.split(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let is_last = lines.peek().is_none();
        let line = if is_last { line } else { line.strip_suffix(b"\r").ok_or(AMBIGUOUS)? };
        if line.contains(&b'\r') || line.first().is_some_and(u8::is_ascii_whitespace) {
            return Err(AMBIGUOUS);
        }
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (name, value) = line.split_at(colon);
        if name.trim_ascii().eq_ignore_ascii_case(b"content-disposition")
            && disposition.replace(value).is_some()
        {
            return Err(AMBIGUOUS);
        }
    }
    Ok(disposition)
}

/// The value of a header's parameter, without its quotes.
///
/// # Errors
/// Where the parameter is given twice or in its extended form, or where a value is not simply quoted or unquoted.
fn parameter<'v>(value: &'v [u8], name: &str) -> Result<Option<&'v [u8]>, FieldError> {
    let mut found = None;
    each_parameter(value, |key, text| {
        let own = key.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()));
        match key.get(name.len()..) {
            Some(b"") if own && found.replace(text).is_none() => Ok(()),
            Some(b"" | [b'*', ..]) if own => Err(AMBIGUOUS),
            _ => Ok(()),
        }
    })?;
    Ok(found)
}

/// Visits the parameters of a header, by name and value without its quotes.
fn each_parameter<'v>(
    value: &'v [u8],
    mut each: impl FnMut(&'v [u8], &'v [u8]) -> Result<(), FieldError>,
) -> Result<(), FieldError> {
    let mut rest = after(value, b';').unwrap_or_default().trim_ascii();
    while !rest.is_empty() {
        let equals = memchr::memchr(b'=', rest).ok_or(AMBIGUOUS)?;
        let (key, given) = rest.split_at(equals);
        let (key, given) = (key.trim_ascii(), given.get(1..).unwrap_or_default().trim_ascii_start());
        let (text, behind) = match given.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = memchr::memchr(b'"', quoted).ok_or(AMBIGUOUS)?;
                let behind = quoted.get(end + 1..).unwrap_or_default().trim_ascii();
                (quoted.get(..end).unwrap_or_default(), behind)
            }
            None => {
                let end = memchr::memchr(b';', given).unwrap_or(given.len());
                let (text, behind) = given.split_at(end);
                (text.trim_ascii_end(), behind)
            }
        };
        let is_odd =
            text.contains(&b'\\') || key.contains(&b';') || !given.starts_with(b"\"") && text.contains(&b'"');
        if is_odd || !(behind.is_empty() || behind.starts_with(b";")) {
            return Err(AMBIGUOUS);
        }
        each(key, text)?;
        rest = behind.get(1..).unwrap_or_default().trim_ascii();
    }
    Ok(())
}

/// What stands behind the first of these bytes.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    memchr::memchr(byte, text).and_then(|at| text.get(at + 1..))
}

fn form(problem: &'static str) -> FieldError {
    FieldError::Form { problem }
}

const AMBIGUOUS: FieldError = FieldError::Form { problem: "has a part whose head can be read in two ways" };
/// In which names and values are read here; an engine takes any that its Python knows.
const CHARSETS: [&[u8]; 2] = [b"utf-8", b"us-ascii"];
/// RFC 2046 §5.1.1.
const MAX_BOUNDARY: usize = 70;
const MAX_PARTS: usize = 1000;
const MAX_PART_HEAD: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(head: &str, value: &str) -> String {
        format!("--b\r\n{head}\r\n\r\n{value}\r\n")
    }

    fn model_of(body: &str) -> Result<Option<String>, FieldError> {
        let fields = parse("b", body.as_bytes())?;
        if let (Some(ModelAt::Form(at)), Some(model)) = (&fields.model_at, &fields.model) {
            assert_eq!(&body[at.clone()], model.as_ref());
        }
        Ok(fields.model.map(Cow::into_owned))
    }

    #[test]
    fn the_boundary_comes_from_the_content_type() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(value));
            boundary(&headers).map(str::to_owned)
        };
        assert_eq!(of("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(of("Multipart/Form-Data;charset=utf-8; Boundary=\"a b;c\"").as_deref(), Some("a b;c"));
        for unclear in [
            "multipart/form-data",
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=a; boundary*=utf-8''b",
            "multipart/form-data; boundary=a; charset=utf-7",
        ] {
            assert_eq!(of(unclear).as_deref(), Some(""), "{unclear}");
        }
        assert_eq!(of("multipart/form-data; charset=UTF-8; boundary=a").as_deref(), Some("a"));
        assert_eq!(of("application/json; boundary=abc"), None);
        assert_eq!(boundary(&HeaderMap::new()), None);
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        let file = part(
            "Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav",
            "RIFF\r\n\r\n--not\r\nname=\"model\"",
        );
        let model = part("content-disposition: form-data; name=\"model\"", "whisper");
        for body in [
            format!("{file}{model}--b--\r\n"),
            format!("{model}{file}--b--"),
            format!("preamble\r\n{model}--b--\r\nepilogue"),
            format!(
                "{}--b--",
                part("Content-Type: text/plain\r\nContent-Disposition: form-data;name=model", "whisper")
            ),
        ] {
            assert_eq!(model_of(&body), Ok(Some("whisper".to_owned())), "{body}");
        }
        assert_eq!(model_of(&format!("{file}--b--\r\n")), Ok(None));
        assert_eq!(model_of("--b--\r\n"), Ok(None));
    }

    #[test]
    fn a_head_with_two_readings_is_refused() {
        let of = |head: &str| model_of(&format!("{}--b--", part(head, "whisper")));
        let disposition = "content-disposition: form-data; ";
        for head in [
            "name=\"x\"; name=\"model\"",
            "name=\"model\"; name=\"x\"",
            "name=\"x\"; name*=utf-8''model",
            "name*0=\"mo\"; name*1=\"del\"",
            "name=\"x\"\r\ncontent-disposition: form-data; name=\"model\"",
            "name=\"x\"\n; name=\"model\"",
            "name=\"x\"\r\n ; name=\"model\"",
            r#"filename="a\"; name="x"; name="model""#,
            r#"name="x\"; y="; z="1"#,
            "name=\"x\"y; name=model",
            "x; name=model",
        ] {
            assert_eq!(of(&format!("{disposition}{head}")), Err(AMBIGUOUS), "{head}");
        }
        for (head, model) in [
            ("name=\"model \"", None),
            ("name=\"file\"; filename*=utf-8''model", None),
            ("NAME = model ; filename=\"a;b=c\";", Some("whisper".to_owned())),
        ] {
            assert_eq!(of(&format!("{disposition}{head}")), Ok(model), "{head}");
        }
        let latin = [
            b"--b\r\n".as_slice(),
            disposition.as_bytes(),
            b"filename=\"\xe9\"; name=model\r\n\r\nw\r\n--b--",
        ];
        let latin = latin.concat();
        assert_eq!(parse("b", &latin).unwrap().model.as_deref(), Some("w"));
        let inside = format!("--bx\r\n{disposition}name=model\r\n\r\nw\r\n--b--");
        assert_eq!(model_of(&inside), Err(form("has its boundary inside a line")));
    }

    #[test]
    fn a_form_that_cannot_be_read_says_why() {
        let model = part("content-disposition: form-data; name=\"model\"", "a");
        assert_eq!(model_of(&format!("{model}{model}--b--")), Err(FieldError::Duplicate { field: "model" }));
        for (body, problem) in [
            ("", "does not have its boundary"),
            ("--c\r\n", "does not have its boundary"),
            ("--b\r\n\r\n\r\nx", "ends inside a part"),
            ("--b", "ends inside a part"),
            ("--b\r\nname: x", "has a part without a head of at most 8 KiB"),
        ] {
            assert_eq!(model_of(body), Err(form(problem)), "{body}");
        }
        assert!(parse("", b"--").is_err() && parse(&"x".repeat(71), b"--").is_err());
    }

    proptest! {
        #[test]
        fn no_body_panics(parts in prop::collection::vec(prop::sample::select(vec![
            "--b", "\r\n", "\r\n--b", "--", ": ", "content-disposition", "name=", "\"model\"", ";", "x", "\n",
        ]), 0..24)) {
            let _ = parse("b", parts.concat().as_bytes());
        }
    }
}
