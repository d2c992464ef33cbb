//! An engine's error message without what it quotes. Pure.
//!
//! Text of a prompt or an answer never leaves the relay, and errors quote both. An answer is not at hand to compare with, and a
//! prompt may be written with other escapes. So a message is shown as far as it is made of words that engines use for their
//! own state, and never where it repeats the request.

use std::collections::HashSet;
use std::sync::LazyLock;

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
    let words = own_words(&words, &request.whole());
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

/// The beginning of the first line up to the first word that may be quoted, at most [`MAX_WORDS`] bytes; a few common words at
/// the end go as well, because they may be the first of what is quoted.
fn own_words(message: &str, request: &[u8]) -> String {
    let line = message.lines().next().unwrap_or_default().trim();
    let repeats = of_request(line.as_bytes(), request);
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let mut shown: Vec<&str> = Vec::with_capacity(words.len());
    let mut certain = 0;
    for (at, word) in words.iter().enumerate() {
        let offset = word.as_ptr().addr() - line.as_ptr().addr();
        if repeats.iter().skip(offset).take(word.len()).any(|repeats| *repeats) {
            break;
        }
        match Word::of(word, at.checked_sub(1).and_then(|at| words.get(at)), words.get(at + 1)) {
            Word::Term => {
                shown.push(word);
                certain = shown.len();
            }
            Word::Common => shown.push(word),
            Word::Number if shown.last() == Some(&HIDDEN) => {}
            Word::Number => shown.push(HIDDEN),
            Word::Foreign => break,
        }
        if word.ends_with(':') && !CAUSES.iter().any(|cause| ends_with(word, cause)) {
            break;
        }
    }
    shown.truncate(certain);
    if shown.is_empty() {
        return String::new();
    }
    if words.last() != shown.last() {
        shown.push(HIDDEN);
    }
    cut(&shown.join(" "), MAX_WORDS).trim().to_owned()
}

/// What a word of a message can be.
enum Word {
    /// One that engines use for their own state, or a number beside such a one.
    Term,
    /// One that is in every text.
    Common,
    /// A number that may come from anywhere.
    Number,
    Foreign,
}

impl Word {
    fn of(word: &str, before: Option<&&str>, next: Option<&&str>) -> Self {
        let begins_well = word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '(');
        if !begins_well || !word.bytes().all(|b| b.is_ascii_alphanumeric() || PUNCTUATION.contains(&b)) {
            return Self::Foreign;
        }
        if word.bytes().all(|byte| !byte.is_ascii_alphabetic()) {
            let names_device = before.is_some_and(|word| is_in(&NUMBERED, word)) && word.len() <= MAX_INDEX;
            let is_memory = next.is_some_and(|word| MEMORY.iter().any(|unit| word.starts_with(unit)));
            return if names_device || is_memory { Self::Term } else { Self::Number };
        }
        let runs = word.split(|c: char| PUNCTUATION.contains(&(c as u8))).filter(|run| !run.is_empty());
        let mut kind = Self::Common;
        for part in runs.flat_map(|run| if is_known(run) { vec![run] } else { humps(run) }) {
            match part {
                _ if is_in(&TERMS, part) => kind = Self::Term,
                _ if is_in(&COMMON, part) => {}
                _ => return Self::Foreign,
            }
        }
        kind
    }
}

fn is_known(word: &str) -> bool {
    is_in(&TERMS, word) || is_in(&COMMON, word)
}

fn is_in(words: &HashSet<&str>, word: &str) -> bool {
    words.contains(&*word.to_ascii_lowercase())
}

fn ends_with(word: &str, end: &str) -> bool {
    word.trim_end_matches(':').to_ascii_lowercase().ends_with(end)
}

/// The words of an identifier in camel case: `EngineDeadError`, `OOMError`.
fn humps(run: &str) -> Vec<&str> {
    let bytes = run.as_bytes();
    let is = |at: usize, of: fn(&u8) -> bool| bytes.get(at).is_some_and(of);
    let begins = |at: &usize| {
        let is_upper = is(*at, u8::is_ascii_uppercase);
        is_upper && (is(at - 1, u8::is_ascii_lowercase) || is(at + 1, u8::is_ascii_lowercase))
    };
    let starts: Vec<usize> = std::iter::once(0).chain((1..run.len()).filter(begins)).collect();
    let ends = starts.iter().skip(1).copied().chain([run.len()]);
    starts.iter().zip(ends).filter_map(|(start, end)| run.get(*start..end)).collect()
}

/// Whether each byte is part of a run of [`RUN`] that stands in the request as well.
///
/// Whatever the place of such a run in a request, it holds one of the request's blocks of half its length: only these are looked up,
/// for bodies of many megabytes fail as well.
fn of_request(line: &[u8], request: &[u8]) -> Vec<bool> {
    let mut is_there = vec![false; line.len()];
    let runs: HashSet<&[u8]> = line.windows(RUN).collect();
    if runs.is_empty() {
        return is_there;
    }
    let blocks: HashSet<&[u8]> = line.windows(BLOCK).collect();
    let mut may_begin = vec![false; 1 << 16];
    for block in &blocks {
        may_begin[begin_of(block)] = true;
    }
    let (mut found, mut looked_at) = (HashSet::new(), 0);
    for (at, block) in request.chunks_exact(BLOCK).enumerate() {
        if !may_begin[begin_of(block)] || !blocks.contains(block) {
            continue;
        }
        looked_at += 1;
        if looked_at > MOST_BLOCKS {
            // Of little else than such words.
            return vec![true; line.len()];
        }
        let around = (at * BLOCK).saturating_sub(BLOCK)..((at + 2) * BLOCK).min(request.len());
        found.extend(request.get(around).unwrap_or_default().windows(RUN).filter(|run| runs.contains(run)));
    }
    for (at, run) in line.windows(RUN).enumerate() {
        if found.contains(run) {
            is_there.iter_mut().skip(at).take(RUN).for_each(|byte| *byte = true);
        }
    }
    is_there
}

fn begin_of(block: &[u8]) -> usize {
    block.first_chunk().map_or(0, |begin| usize::from(u16::from_ne_bytes(*begin)))
}

/// Split by white space.
fn set(words: &'static str) -> HashSet<&'static str> {
    words.split_ascii_whitespace().collect()
}

/// Words of engines, their frameworks and the servers before them about themselves.
static TERMS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    set(
        "abort aborted accelerator access actor adapter address allocate allocated allocation already assert assertion async \
        attempt attention attribute available background backend bad batch batches block blocks body borrowed bounds buffer \
        bytes cache call calls canceled cancelled cannot capacity cause caught channel client close closed collective comm communicator \
        compile complete completed completion computed config configuration connect connected connecting connection context \
        copy core corrupt could crash crashed cublas cuda cudnn cuda_error data dead deadline decode decoder decoding \
        deserialize detokenize detokenizer device died dimension disaggregation disconnect disconnected distributed driver \
        dtype element embedding embeddings empty encode encoder encountered endpoint engine error errors exceed exceeded \
        exceeds exception executor exhausted exit exited expected expired fail failed failing fails failure fatal fault \
        finite fsm future futures gateway gb generate generation gib gpu gpus grammar graph guided handle handler harmony hbm \
        headers healthy heartbeat hip host http illegal implemented index inference inf initialization initialize internal \
        interrupted invalid ipc iterator json kernel kill killed kv launch layer length limit list llm load loaded loading \
        local logits logprobs loop lora lost mapping maximum mb memory message metadata mib misaligned mismatch missing model \
        multimodal multiprocessing nan nccl network nixl node none nonetype npu null object occurred oom operation out output \
        overflow overloaded parallel parse parser parsing payload pickle pipeline plugin pool port preempted prefill prefix \
        probability process processes processing processor prompt queue quantization rank raised range ray read reason \
        receive received refused remote replica request requested requests reset resource resources response responses retry \
        rocm root router rpc runtime sample sampler sampling schedule scheduled scheduler scheme schema segmentation send \
        sequence sequences serialize serialized server service sglang shape shared shm shut shutdown shutting side sigkill \
        sigsegv size slot slots socket speculative stack start started starting state status stop stopped stream streaming \
        structured supported support system task template tensor tensors tensorrt terminated termination thread throttled \
        timed timeout token tokenization tokenize tokenizer tokens tool torch total tpu trace transfer transport triggered \
        triton type unavailable unable unauthorized unexpected unhandled unhealthy unimplemented unknown unreachable \
        unspecified unsupported upstream url usage uvm validation value vllm vocabulary vram watchdog weights worker workers \
        workspace write xgrammar xid zero zmq",
    )
});

/// Words of any text, which mean nothing alone.
static COMMON: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    set(
        "a above after again all an and any are as at be because been before below but by can current does don during either \
        for from had has have however in into is issue it its may more must new no not of off on only or s same see should t \
        than that the then there this to too tried try trying up was were when which while will with within without",
    )
});

/// Before a small number, which is then an index.
static NUMBERED: LazyLock<HashSet<&str>> =
    LazyLock::new(|| set("device dimension gpu layer node rank stage worker"));

/// After a number.
const MEMORY: &[&str] = &["GiB", "MiB", "KiB", "GB", "MB"];
/// What ends before a colon without a quote to follow.
const CAUSES: &[&str] =
    &["error", "exception", "failed", "failure", "memory", "reason", "cause", "generation", "exited"];
const PUNCTUATION: &[u8] = b":;,.-/()_'";
/// In place of what is left out.
const HIDDEN: &str = "…";
const MAX_WORDS: usize = 200;
const MAX_BODY: usize = 4096;
/// Bytes in common with the request that are no chance: the words that are shown are few, and prompts have them as well.
const RUN: usize = 16;
const BLOCK: usize = RUN / 2;
/// Blocks of a request that stand in the message as well: a prompt that is pasted from logs has some.
const MOST_BLOCKS: usize = 10_000;
/// Bytes of the number of a device, a comma or a full stop included.
const MAX_INDEX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_own_words_stay_readable() {
        for words in [
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "CUDA error: device-side assert triggered",
            "CUDA error: an illegal memory access was encountered",
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which",
            "RuntimeError: NCCL error: unhandled system error",
            "EngineDeadError",
            "the model's cache is full",
            "Internal Server Error",
            "RPC call to worker 3 timed out",
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            "list index out of range",
            "Already borrowed",
        ] {
            let shown = own_words(words, b"");
            let shown = shown.trim_end_matches(" …");
            assert!(words.starts_with(shown) && shown.len() + 10 > words.len(), "{shown}");
        }
        let limit = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens";
        assert_eq!(own_words(limit, b""), "This model's maximum context length is … tokens. …");
        assert!(own_words(&"error ".repeat(200), b"").len() <= MAX_WORDS);
    }

    #[test]
    fn what_an_error_quotes_of_a_prompt_or_an_answer_is_left_out() {
        let request = br#"{"messages":[{"content":"my ssn is 123-45-6789, the server failed to load"}]}"#;
        for (words, expected) in [
            (
                "Tool parser failed on output: Patient Maria Keller tested positive",
                "Tool parser failed on output: …",
            ),
            ("Tool parser failed on output: invalid memory", "Tool parser failed on output: …"),
            ("cannot parse my ssn is 123-45-6789 here", "cannot parse …"),
            ("cannot parse the server failed to load", "cannot parse …"),
            ("cannot tokenize hunter2 here", "cannot tokenize …"),
            ("cannot tokenize 4711 here", "cannot tokenize …"),
            ("unexpected token 'secret' at 7, got {\"a\": 1}", "unexpected token …"),
            ("unexpected token 'error' at 7", "unexpected token …"),
            ("invalid tool value is not for the weak", "invalid tool value …"),
            ("call 0049 176 1234567 now", "call …"),
            ("failed to decode schlüssel", "failed to decode …"),
            (
                "CUDA error: device-side assert triggered\nCompile with ...",
                "CUDA error: device-side assert triggered",
            ),
            ("\"everything\"", ""),
            ("the and of", ""),
            ("", ""),
        ] {
            assert_eq!(own_words(words, request), expected, "{words}");
        }
    }

    #[test]
    fn what_stands_anywhere_in_a_large_request_is_not_shown() {
        let line = "the server failed to load the model";
        let mut request = vec![b'.'; 1 << 20];
        for at in [0, 1, 7, 8, 4_093, request.len() - line.len()] {
            let before = request.clone();
            request[at..at + line.len()].copy_from_slice(line.as_bytes());
            assert_eq!(own_words(line, &request), "", "at {at}");
            request = before;
            assert_eq!(own_words(line, &request), line);
        }
        let repeated = "failed! ".repeat(20_000);
        assert_eq!(own_words("engine failed! failed! again", repeated.as_bytes()), "");
    }
}
