//! The field `model` of a `multipart/form-data` body (RFC 7578), read in place.
//!
//! Audio comes in such bodies. They are forwarded as they came; only the part named `model` is looked at, and where
//! the route maps the name its value is what a rename replaces. The walk is bounded in parts and in header bytes of each.

use std::borrow::Cow;

use http::{HeaderMap, header};
use memchr::memmem::{self, Finder};

use crate::request::fields::{FieldError, Fields, ModelAt};

/// The boundary that a request's `content-type` gives; `None` for any other type than `multipart/form-data`.
#[must_use]
pub fn boundary(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = value.split(';').next().unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    // Without one the body cannot be read: an empty boundary says so.
    Some(parameter(value, "boundary").unwrap_or_default())
}

/// Reads the fields of a form.
///
/// # Errors
/// A body that does not have the boundary's form, or two parts named `model`.
pub fn parse<'a>(boundary: &str, body: &'a [u8]) -> Result<Fields<'a>, FieldError> {
    if !(1..=MAX_BOUNDARY).contains(&boundary.len()) {
        return Err(form("has no boundary of 1 to 70 characters in its content-type"));
    }
    let mut fields = Fields { choices: 1, ..Fields::default() };
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    let finder = Finder::new(&delimiter);
    let mut at = first_part(&delimiter, &finder, body)?;
    for _ in 0..MAX_PARTS {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            return Ok(fields);
        }
        // White space may follow a boundary (RFC 2046 §5.1.1).
        let line_end = memmem::find(rest, b"\r\n").ok_or(form("ends inside a part"))?;
        let head = rest.get(line_end..).unwrap_or_default();
        let head_len = match head.get(..head.len().min(MAX_PART_HEAD)).map(|h| memmem::find(h, b"\r\n\r\n")) {
            Some(Some(len)) => len,
            _ => return Err(form("has a part without a head of at most 8 KiB")),
        };
        let start = at + line_end + head_len + 4;
        let value = body.get(start..).unwrap_or_default();
        let length = finder.find(value).ok_or(form("ends inside a part"))?;
        if is_model(head.get(..head_len).unwrap_or_default()) {
            model(&mut fields, value.get(..length).unwrap_or_default(), start)?;
        }
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
    if fields.model_at.is_some() {
        return Err(FieldError::Duplicate { field: "model" });
    }
    let text = std::str::from_utf8(value)
        .map_err(|_| FieldError::WrongType { field: "model", expected: "UTF-8 text" })?;
    fields.model_at = Some(ModelAt::Form(start..start + value.len()));
    fields.model = Some(Cow::Borrowed(text));
    Ok(())
}

/// Whether a part's head names it `model`.
fn is_model(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let Ok(line) = std::str::from_utf8(line) else { return false };
        let Some((name, value)) = line.trim().split_once(':') else { return false };
        name.trim().eq_ignore_ascii_case("content-disposition") && parameter(value, "name") == Some("model")
    })
}

/// The value of a header's parameter, without its quotes.
fn parameter<'v>(value: &'v str, name: &str) -> Option<&'v str> {
    let (_, mut rest) = value.split_once(';')?;
    loop {
        let (key, given) = rest.split_once('=')?;
        let given = given.trim_start();
        let (text, after) = match given.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => given.split_at(given.find(';').unwrap_or(given.len())),
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(text.trim_end());
        }
        rest = after.split_once(';')?.1;
    }
}

fn form(problem: &'static str) -> FieldError {
    FieldError::Form { problem }
}

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
        assert_eq!(of("multipart/form-data").as_deref(), Some(""));
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
