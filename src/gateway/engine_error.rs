//! An engine's error message without what it quotes. Pure.
//!
//! Text of a prompt or an answer never leaves the relay, and errors quote both. What stands in quotes or brackets, is not ASCII, or
//! occurs in the request is left out; so are numbers that may identify a person.

use std::collections::HashSet;

use super::attempt::{AttemptError, BufferedResponse, UpstreamResponse};
use crate::record::{Record, cut};
use crate::relay::usage::{self, AnswerFacts};
use crate::request::pieces::Pieces;

/// The words of an error that speaks against its engine; `None` where there are none.
pub(super) fn of_result(
    result: &Result<UpstreamResponse, AttemptError>,
    record: &Record,
    request: &Pieces,
) -> Option<Box<str>> {
    let words = match result {
        Ok(UpstreamResponse::Buffered(answer)) | Err(AttemptError::Replica(_, Some(answer))) => {
            of_body(answer, record)?
        }
        Ok(UpstreamResponse::Stream { reader, .. }) => {
            let AnswerFacts { message, .. } = &reader.scanner.state().answer;
            message.clone()?
        }
        _ => return None,
    };
    let words = without_quotes(&words, &request.whole());
    (!words.is_empty()).then(|| words.into())
}

fn of_body(answer: &BufferedResponse, record: &Record) -> Option<Box<str>> {
    let dialect = record.dialect;
    if !answer.head.status.is_server_error() {
        answer.error_under_success(dialect, record.owes_answer())?;
        return answer.facts(dialect).message.clone();
    }
    let body = answer.body.get(..MAX_BODY.min(answer.body.len()))?;
    let message = usage::of_unary(dialect, body).message;
    let is_text = || body.first().is_some_and(u8::is_ascii_alphanumeric);
    message.or_else(|| is_text().then(|| String::from_utf8_lossy(body).into()))
}

/// The first line, at most [`MAX_WORDS`] bytes.
fn without_quotes(words: &str, request: &[u8]) -> String {
    let line = words.lines().next().unwrap_or_default().trim().as_bytes();
    let hidden = quoted(line).into_iter().zip(of_request(line, request)).zip(numbers(line));
    let mut words = String::with_capacity(MAX_WORDS);
    for (byte, ((quoted, of_request), number)) in line.iter().zip(hidden) {
        if quoted || of_request || number || !(b' '..=b'~').contains(byte) {
            if !words.ends_with(HIDDEN) {
                words.push(HIDDEN);
            }
        } else {
            words.push(char::from(*byte));
        }
    }
    if words.chars().all(|c| c == HIDDEN || !c.is_alphanumeric()) {
        return String::new();
    }
    cut(&words, MAX_WORDS).trim().to_owned()
}

/// Whether each byte stands in quotes or brackets. An apostrophe within a word opens nothing; what is not closed runs to the end.
fn quoted(line: &[u8]) -> Vec<bool> {
    let mut closes: Option<u8> = None;
    let mut before = b' ';
    let mut is_in = Vec::with_capacity(line.len());
    for byte in line {
        let opens = match byte {
            b'"' | b'`' => Some(*byte),
            b'\'' if !before.is_ascii_alphanumeric() => Some(b'\''),
            b'{' => Some(b'}'),
            b'[' => Some(b']'),
            b'<' => Some(b'>'),
            _ => None,
        };
        is_in.push(closes.is_some() || opens.is_some());
        match closes {
            Some(end) if end == *byte => closes = None,
            Some(_) => {}
            None => closes = opens,
        }
        before = *byte;
    }
    is_in
}

/// Whether each byte is part of a run of [`RUN`] that stands in the request as well.
fn of_request(line: &[u8], request: &[u8]) -> Vec<bool> {
    let mut is_there = vec![false; line.len()];
    let runs: HashSet<&[u8]> = line.windows(RUN).collect();
    if runs.is_empty() {
        return is_there;
    }
    let mut first = [false; 256];
    for run in &runs {
        if let [byte, ..] = run {
            first[usize::from(*byte)] = true;
        }
    }
    let begins = |run: &&[u8]| run.first().is_some_and(|byte| first[usize::from(*byte)]);
    let found: HashSet<&[u8]> =
        request.windows(RUN).filter(begins).filter(|run| runs.contains(run)).collect();
    for (at, run) in line.windows(RUN).enumerate() {
        if found.contains(run) {
            is_there.iter_mut().skip(at).take(RUN).for_each(|byte| *byte = true);
        }
    }
    is_there
}

/// Whether each byte is part of a number of at least four digits, separators between digits included.
fn numbers(line: &[u8]) -> Vec<bool> {
    let mut is_number = vec![false; line.len()];
    let mut start = None;
    for at in 0..=line.len() {
        let byte = line.get(at).copied().unwrap_or(b' ');
        let goes_on = byte.is_ascii_digit() || (start.is_some() && matches!(byte, b'-' | b'.' | b'/'));
        match (goes_on, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                let run = line.get(from..at).unwrap_or_default();
                if run.iter().filter(|byte| byte.is_ascii_digit()).count() >= MIN_DIGITS {
                    is_number.iter_mut().take(at).skip(from).for_each(|byte| *byte = true);
                }
                start = None;
            }
            _ => {}
        }
    }
    is_number
}

/// In place of what is left out.
const HIDDEN: char = '…';
const MAX_WORDS: usize = 200;
const MAX_BODY: usize = 4096;
/// Bytes in common with the request that are no chance.
const RUN: usize = 8;
const MIN_DIGITS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_words_and_loses_what_it_quotes() {
        let request = br#"{"messages":[{"content":"my ssn is 123-45-6789, keep it quiet"}]}"#;
        for (words, expected) in [
            (
                "CUDA error: device-side assert triggered\nCompile with ...",
                "CUDA error: device-side assert triggered",
            ),
            ("cannot parse my ssn is 123-45-6789 here", "cannot parse … here"),
            ("unexpected token 'secret' at 7, got {\"a\": 1}", "unexpected token … at 7, got …"),
            ("the model's cache is full", "the model's cache is full"),
            ("call 0049 176 1234567 now", "call … 176 … now"),
            ("out of memory: tried to allocate 2.50 GiB", "out of memory: tried to allocate 2.50 GiB"),
            ("\"everything\"", ""),
            ("", ""),
        ] {
            assert_eq!(without_quotes(words, request), expected, "{words}");
        }
        assert!(without_quotes(&"word ".repeat(200), b"").len() <= MAX_WORDS);
    }
}
